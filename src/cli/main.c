/* The command line of phasor. It knows the library by include/phasor.h alone. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "commands.h"

const struct cli_command *const commands[] = {
    &command_run,    &command_inspect,    &command_plan,    &command_quantize,
    &command_replay, &command_calibrate,  &command_bench,   &command_report,
    &command_synth,  &command_completion, &command_version, NULL};

const struct option_word expert_dtype_words[] = {
    {"auto", PHASOR_DTYPE_AUTO, NULL},
    {"int4", PHASOR_DTYPE_INT4, NULL},
    {NULL, 0, NULL},
};

const struct option_word transition_words[] = {
    {"auto", PHASOR_TRANSITION_AUTO, NULL},
    {"keep", PHASOR_TRANSITION_KEEP, NULL},
    {"reshard", PHASOR_TRANSITION_RESHARD, NULL},
    {"reload", PHASOR_TRANSITION_RELOAD, NULL},
    {"upload", PHASOR_TRANSITION_UPLOAD, NULL},
    {"mixed", PHASOR_TRANSITION_MIXED, NULL},
    {NULL, 0, NULL},
};

const struct option_word policy_words[] = {
    {"int4-decode", PHASOR_POLICY_INT4_DECODE, NULL},
    {"exact", PHASOR_POLICY_EXACT, NULL},
    {NULL, 0, NULL},
};

const struct option_word dtype_words[] = {
    {"auto", PHASOR_DTYPE_AUTO, NULL},
    {"float32", PHASOR_DTYPE_FLOAT32, NULL},
    {"float", PHASOR_DTYPE_FLOAT32, NULL},
    {"bfloat16", PHASOR_DTYPE_BFLOAT16, NULL},
    {"half", 0, "is not computed with on the CPU; use bfloat16, or float32 to keep every bit"},
    {"float16", 0, "is not computed with on the CPU; use bfloat16, or float32 to keep every bit"},
    {NULL, 0, NULL},
};

int fail(const struct phasor_error *err)
{
    fprintf(stderr, "phasor: %s\n", err->message);
    return EXIT_FATAL;
}

int finish_output(int exit_code)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return exit_code;
    fprintf(stderr, "phasor: cannot write to standard output: %s\n", strerror(errno));
    return EXIT_FATAL;
}

static void print_overview(FILE *out)
{
    fprintf(out, "Usage: phasor COMMAND [options]\n\n"
                 "Mixture-of-Experts inference, with a layout of the experts for each phase.\n\n"
                 "Commands:\n");
    for (const struct cli_command *const *command = commands; *command != NULL; command++)
        fprintf(out, "  %-12s %s\n", (*command)->name, (*command)->summary);
    fprintf(out, "\n\"phasor COMMAND --help\" tells more; so does phasor(1).\n"
                 "Every option can be set by a variable: PHASOR_MAX_NUM_SEQS=64 stands for "
                 "--max-num-seqs 64.\n");
}

static const struct cli_command *find_command(const char *name)
{
    for (const struct cli_command *const *command = commands; *command != NULL; command++) {
        if (strcmp((*command)->name, name) == 0)
            return *command;
    }
    return NULL;
}

static int unknown_command(const char *name)
{
    fprintf(stderr, "phasor: \"%s\" is no command\nTry \"phasor --help\".\n", name);
    return EXIT_USAGE;
}

static int show_help(const char *name)
{
    const struct cli_command *command = name == NULL ? NULL : find_command(name);
    if (name != NULL && command == NULL)
        return unknown_command(name);
    if (command == NULL)
        print_overview(stdout);
    else
        options_help(stdout, command);
    return finish_output(EXIT_DONE);
}

static int run_command(int argc, char **argv)
{
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        return show_help(NULL);
    if (strcmp(name, "help") == 0)
        return show_help(argc > 2 ? argv[2] : NULL);
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0)
        name = "version";
    const struct cli_command *command = find_command(name);
    if (command == NULL)
        return unknown_command(name);
    char **operands;
    int operand_count;
    int exit_code = options_parse(command, argc - 1, argv + 1, &operands, &operand_count);
    if (exit_code < 0)
        exit_code = command->run(command, operands, operand_count);
    return finish_output(exit_code);
}

int main(int argc, char **argv)
{
    /* A reader that goes away is an error with a sentence, not a silent death. */
    signal(SIGPIPE, SIG_IGN);
    if (argc < 2) {
        print_overview(stderr);
        return EXIT_USAGE;
    }
    return run_command(argc, argv);
}
