#include "options.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define OPTIONS_MAX 64
#define HELP_COLUMN 34
#define HELP_WIDTH  96

/* ---- Values -------------------------------------------------------------------------------- */

/* Why a value was refused: a sentence with one %s for what was found. */
typedef const char *refusal;

static refusal set_number(const struct cli_option *option, double value)
{
    static char text[80]; /* told before the next number is looked at */
    bool is_bounded = option->min != 0 || option->max != 0;
    if (!is_bounded || (value >= option->min && value <= option->max))
        return NULL;
    if (value > option->max && option->max > 1e15)
        return "is too large";
    snprintf(text, sizeof text, "is %s %.10g", value > option->max ? "above" : "below",
             value > option->max ? option->max : option->min);
    return text;
}

static refusal set_word(const struct cli_option *option, int *target, const char *text)
{
    for (const struct option_word *word = option->words; word->word != NULL; word++) {
        if (strcmp(word->word, text) != 0)
            continue;
        *target = word->value;
        return word->refusal;
    }
    return "is not one of the words it takes (see --help)";
}

static refusal set_real(const struct cli_option *option, double *target, const char *text)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end != 0 || !(value >= -1e308 && value <= 1e308))
        return "is no number";
    *target = value;
    return set_number(option, value);
}

static refusal set_seed(uint64_t *target, const char *text)
{
    char *end;
    errno = 0;
    *target = strtoull(text, &end, text[0] == '0' && (text[1] | 0x20) == 'x' ? 16 : 10);
    bool is_number = *text >= '0' && *text <= '9' && *end == 0 && errno == 0;
    return is_number ? NULL : "is no number from 0 to 2^64 - 1";
}

static refusal set_value(const struct cli_option *option, void *values, const char *text)
{
    void *target = (char *)values + option->offset;
    switch (option->kind) {
    case OPTION_FLAG:
        *(bool *)target = true;
        return NULL;
    case OPTION_TEXT:
    case OPTION_FILE:
        *(const char **)target = text;
        return NULL;
    case OPTION_COUNT:
        if (!number_parse_count(target, text))
            return *text == '-' && isdigit((unsigned char)text[1])
                       ? "is below 0"
                       : "is no whole number (8192, 8k and 8K are)";
        return set_number(option, (double)*(int64_t *)target);
    case OPTION_BYTES:
        if (!number_parse_bytes(target, text))
            return "is no size (4GiB, 4G, 500MB and plain bytes are)";
        return set_number(option, (double)*(uint64_t *)target);
    case OPTION_REAL:
        return set_real(option, target, text);
    case OPTION_SEED:
        return set_seed(target, text);
    case OPTION_WORD:
        return set_word(option, target, text);
    }
    return NULL;
}

/* ---- Environment --------------------------------------------------------------------------- */

static void variable_name(char *out, size_t capacity, const char *option)
{
    snprintf(out, capacity, "PHASOR_%s", option);
    for (char *c = out; *c != 0; c++)
        *c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
}

static bool means_no(const char *text)
{
    return *text == 0 || strcmp(text, "0") == 0 || strcmp(text, "false") == 0 ||
           strcmp(text, "no") == 0 || strcmp(text, "off") == 0;
}

static int read_environment(const struct cli_command *command)
{
    for (const struct cli_option *option = command->options; option->name != NULL; option++) {
        char name[64];
        variable_name(name, sizeof name, option->name);
        const char *text = getenv(name);
        if (text == NULL || *text == 0 || (option->kind == OPTION_FLAG && means_no(text)))
            continue;
        refusal reason = set_value(option, command->values, text);
        if (reason != NULL)
            return options_mistake(command, "%s: \"%s\" %s", name, text, reason);
    }
    return -1;
}

/* ---- Parsing ------------------------------------------------------------------------------- */

static int table_length(const struct cli_command *command)
{
    int count = 0;
    while (command->options[count].name != NULL)
        count++;
    return count;
}

/* getopt's own tables, made from ours; `val` of a long option is its index + 256. */
static void make_tables(const struct cli_command *command, struct option *longs, char *letters)
{
    int count = table_length(command);
    *letters++ = 'h';
    for (int i = 0; i < count; i++) {
        const struct cli_option *option = &command->options[i];
        bool has_value = option->kind != OPTION_FLAG;
        longs[i] = (struct option){option->name, has_value ? required_argument : no_argument, NULL,
                                   256 + i};
        if (option->letter != 0) {
            *letters++ = option->letter;
            if (has_value)
                *letters++ = ':';
        }
    }
    *letters = 0;
    longs[count] = (struct option){"help", no_argument, NULL, 'h'};
    longs[count + 1] = (struct option){0};
}

static const struct cli_option *option_of(const struct cli_command *command, int code)
{
    if (code >= 256)
        return &command->options[code - 256];
    const struct cli_option *option = command->options;
    while (option->letter != code)
        option++;
    return option;
}

static bool typed[OPTIONS_MAX]; /* of the one command of this process */

bool options_is_typed(const struct cli_command *command, const char *name)
{
    for (int i = 0; command->options[i].name != NULL; i++) {
        if (strcmp(command->options[i].name, name) == 0)
            return typed[i];
    }
    return false;
}

static int parse_arguments(const struct cli_command *command, int argc, char **argv)
{
    struct option longs[OPTIONS_MAX + 2];
    char letters[2 * OPTIONS_MAX + 2];
    int code;
    make_tables(command, longs, letters);
    optind = 1;
    while ((code = getopt_long(argc, argv, letters, longs, NULL)) != -1) {
        if (code == 'h') {
            options_help(stdout, command);
            return EXIT_DONE;
        }
        if (code == '?') /* getopt has said what is wrong */
            return options_mistake(command, NULL);
        const struct cli_option *option = option_of(command, code);
        refusal reason = set_value(option, command->values, optarg);
        if (reason != NULL)
            return options_mistake(command, "--%s: \"%s\" %s", option->name, optarg, reason);
        typed[option - command->options] = true;
    }
    return -1;
}

int options_parse(const struct cli_command *command, int argc, char **argv, char ***operands,
                  int *operand_count)
{
    static char title[64]; /* outlives argv's other strings */
    snprintf(title, sizeof title, "phasor %s", command->name);
    argv[0] = title; /* getopt's messages begin with it */
    int exit_code = read_environment(command);
    if (exit_code < 0)
        exit_code = parse_arguments(command, argc, argv);
    if (exit_code >= 0)
        return exit_code;
    *operands = argv + optind;
    *operand_count = argc - optind;
    if (*operand_count < command->operand_min)
        return options_mistake(command, "%s is missing", command->operands);
    if (*operand_count > command->operand_max)
        return options_mistake(command, "\"%s\" is one argument too many",
                               argv[optind + command->operand_max]);
    return -1;
}

/* ---- Texts --------------------------------------------------------------------------------- */

int options_mistake(const struct cli_command *command, const char *format, ...)
{
    if (format != NULL) {
        va_list args;
        fprintf(stderr, "phasor %s: ", command->name);
        va_start(args, format);
        vfprintf(stderr, format, args);
        va_end(args);
        fputc('\n', stderr);
    }
    fprintf(stderr, "Try \"phasor %s --help\".\n", command->name);
    return EXIT_USAGE;
}

/* Fills a paragraph from the present `column` on, indented by HELP_COLUMN. */
static void print_wrapped(FILE *out, const char *text, int column)
{
    while (*text != 0) {
        int word = (int)strcspn(text, " ");
        if (column + 1 + word > HELP_WIDTH) {
            fprintf(out, "\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
        } else if (column > HELP_COLUMN) {
            fputc(' ', out);
            column++;
        }
        fprintf(out, "%.*s", word, text);
        column += word;
        text += word;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

static void print_option(FILE *out, const struct cli_option *option)
{
    int column = option->letter != 0 ? fprintf(out, "  -%c, --%s", option->letter, option->name)
                                     : fprintf(out, "      --%s", option->name);
    if (option->kind != OPTION_FLAG)
        column += fprintf(out, " %s", option->value);
    if (column >= HELP_COLUMN) {
        fputc('\n', out);
        column = 0;
    }
    fprintf(out, "%*s", HELP_COLUMN - column, "");
    print_wrapped(out, option->help, HELP_COLUMN);
}

void options_help(FILE *out, const struct cli_command *command)
{
    fprintf(out, "Usage: phasor %s [options]%s%s\n\n%s\n\nOptions:\n", command->name,
            *command->operands == 0 ? "" : " ", command->operands, command->summary);
    for (const struct cli_option *option = command->options; option->name != NULL; option++)
        print_option(out, option);
    struct cli_option help = {.name = "help", .letter = 'h', .help = "show this and exit"};
    print_option(out, &help);
    if (command->details != NULL)
        fprintf(out, "\n%s\n", command->details);
}
