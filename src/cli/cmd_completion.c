/* phasor completion: scripts for shells, made from the tables of options. */
#include <stdio.h>
#include <string.h>

#include "commands.h"

static const struct cli_option options[] = {{.name = NULL}};

/* ---- bash ---------------------------------------------------------------------------------- */

static void print_bash_command(const struct cli_command *command)
{
    printf("    %s) words=\"", command->name);
    for (const struct cli_option *option = command->options; option->name != NULL; option++)
        printf("--%s ", option->name);
    printf("--help\" ;;\n");
}

static void print_bash(void)
{
    printf("# bash completion for phasor\n"
           "_phasor() {\n"
           "  local current=${COMP_WORDS[COMP_CWORD]} words=\n"
           "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n    words=\"help");
    for (const struct cli_command *const *command = commands; *command != NULL; command++)
        printf(" %s", (*command)->name);
    printf("\"\n    COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n    return\n  fi\n"
           "  case ${COMP_WORDS[1]} in\n");
    for (const struct cli_command *const *command = commands; *command != NULL; command++)
        print_bash_command(*command);
    printf("  esac\n"
           "  case $current in\n"
           "    -*) COMPREPLY=($(compgen -W \"$words\" -- \"$current\")) ;;\n"
           "    *) COMPREPLY=($(compgen -f -- \"$current\")) ;;\n"
           "  esac\n"
           "}\n"
           "complete -o filenames -F _phasor phasor\n");
}

/* ---- zsh ----------------------------------------------------------------------------------- */

/* Help texts stand within single quotes and brackets. */
static void print_zsh_text(const char *text)
{
    for (; *text != 0; text++) {
        if (*text == '\'')
            printf("'\\''");
        else if (*text == '[' || *text == ']' || *text == ':' || *text == '\\')
            printf("\\%c", *text);
        else
            putchar(*text);
    }
}

static void print_zsh_option(const struct cli_option *option)
{
    printf("        '--%s%s[", option->name, option->kind == OPTION_FLAG ? "" : "=");
    print_zsh_text(option->help);
    printf("]");
    if (option->kind != OPTION_FLAG) {
        putchar(':');
        print_zsh_text(option->value);
        printf(":%s", option->kind == OPTION_FILE ? "_files" : "");
    }
    printf("' \\\n");
}

static void print_zsh(void)
{
    printf("#compdef phasor\n"
           "_phasor() {\n"
           "  if (( CURRENT == 2 )); then\n    _values command");
    for (const struct cli_command *const *command = commands; *command != NULL; command++) {
        printf(" '%s[", (*command)->name);
        print_zsh_text((*command)->summary);
        printf("]'");
    }
    printf("\n    return\n  fi\n"
           "  local command=${words[2]}\n  shift words; (( CURRENT-- ))\n"
           "  case $command in\n");
    for (const struct cli_command *const *command = commands; *command != NULL; command++) {
        printf("    %s)\n      _arguments \\\n", (*command)->name);
        for (const struct cli_option *option = (*command)->options; option->name != NULL; option++)
            print_zsh_option(option);
        printf("        '*:file:_files' ;;\n");
    }
    printf("  esac\n}\n_phasor \"$@\"\n");
}

/* ---- fish ---------------------------------------------------------------------------------- */

static void print_fish_text(const char *text)
{
    for (; *text != 0; text++) {
        if (*text == '\'' || *text == '\\')
            putchar('\\');
        putchar(*text);
    }
}

static void print_fish_command(const struct cli_command *command)
{
    printf("complete -c phasor -n __fish_use_subcommand -f -a %s -d '", command->name);
    print_fish_text(command->summary);
    printf("'\n");
    for (const struct cli_option *option = command->options; option->name != NULL; option++) {
        printf("complete -c phasor -n '__fish_seen_subcommand_from %s' -l %s", command->name,
               option->name);
        if (option->letter != 0)
            printf(" -s %c", option->letter);
        if (option->kind != OPTION_FLAG)
            printf(option->kind == OPTION_FILE ? " -r" : " -x");
        printf(" -d '");
        print_fish_text(option->help);
        printf("'\n");
    }
}

static void print_fish(void)
{
    printf("# fish completion for phasor\n");
    for (const struct cli_command *const *command = commands; *command != NULL; command++)
        print_fish_command(*command);
}

static int run(const struct cli_command *command, char **operands, int operand_count)
{
    (void)operand_count;
    if (strcmp(operands[0], "bash") == 0)
        print_bash();
    else if (strcmp(operands[0], "zsh") == 0)
        print_zsh();
    else if (strcmp(operands[0], "fish") == 0)
        print_fish();
    else
        return options_mistake(command, "\"%s\" is not known; choose bash, zsh or fish",
                               operands[0]);
    return EXIT_DONE;
}

const struct cli_command command_completion = {
    .name = "completion",
    .operands = "bash|zsh|fish",
    .summary = "print a completion script for a shell",
    .details = "bash: source <(phasor completion bash)\n"
               "zsh:  phasor completion zsh > \"${fpath[1]}/_phasor\"\n"
               "fish: phasor completion fish > ~/.config/fish/completions/phasor.fish",
    .options = options,
    .operand_min = 1,
    .operand_max = 1,
    .run = run,
};
