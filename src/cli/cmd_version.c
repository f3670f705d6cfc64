#include <stdio.h>

#include "commands.h"

static const struct cli_option options[] = {{.name = NULL}};

static int run_version(const struct cli_command *command, char **operands, int operand_count)
{
    (void)command;
    (void)operands;
    (void)operand_count;
    printf("phasor %s\n", phasor_version());
    return EXIT_DONE;
}

const struct cli_command command_version = {
    .name = "version",
    .operands = "",
    .summary = "print the version",
    .options = options,
    .run = run_version,
};
