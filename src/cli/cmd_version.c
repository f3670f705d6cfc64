#include <stdio.h>

#include "commands.h"

static const struct cli_option options[] = {{.name = NULL}};

static int run_version(const struct cli_command *command, char **operands, int operand_count)
{
    (void)command;
    (void)operands;
    (void)operand_count;
    printf("phasor %s\n%s\n", phasor_version(), phasor_nccl());
    return EXIT_DONE;
}

const struct cli_command command_version = {
    .name = "version",
    .operands = "",
    .summary = "print the version, and that of NCCL",
    .options = options,
    .run = run_version,
};
