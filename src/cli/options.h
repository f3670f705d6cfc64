/* Commands and their options as tables: parsing, --help, the environment and shell completions all
 * come from the same rows. */
#ifndef PHASOR_CLI_OPTIONS_H
#define PHASOR_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Exit codes. */
#define EXIT_DONE      0
#define EXIT_FATAL     1
#define EXIT_USAGE     2
#define EXIT_SOME_ROWS 3 /* the run is done and some rows failed */

enum option_kind {
    OPTION_FLAG,  /* bool; no value */
    OPTION_TEXT,  /* const char * */
    OPTION_FILE,  /* the same, completed as a file name */
    OPTION_COUNT, /* int64_t; 8k is 8,000 and 8K is 8,192, as in vLLM */
    OPTION_BYTES, /* uint64_t; 4GiB, 4G (the same), 4GB (decimal), or a plain number */
    OPTION_REAL,  /* double */
    OPTION_SEED,  /* uint64_t */
    OPTION_WORD,  /* int: the value of one of `words` */
};

struct option_word {
    const char *word;
    int value;
    const char *refusal; /* NULL, or why this word is known and not taken */
};

struct cli_option {
    const char *name; /* long, without dashes; NULL ends the table */
    char letter;      /* 0: none */
    enum option_kind kind;
    size_t offset;     /* within the command's values */
    const char *value; /* what --help calls the value */
    const char *help;  /* one or two lines' worth */
    double min, max;   /* of counts, bytes and reals; both 0: not negative */
    const struct option_word *words;
};

struct cli_command {
    const char *name;
    const char *operands; /* for the usage line, e.g. "MODEL" */
    const char *summary;  /* one line */
    const char *details;  /* behind the options; or NULL */
    const struct cli_option *options;
    void *values; /* the defaults before parsing */
    int operand_min, operand_max;
    int (*run)(const struct cli_command *command, char **operands, int operand_count);
};

/* Parses argv[1..] (argv[0] is the command's name) into command->values; PHASOR_<NAME> in the
 * environment stands for an option that is not given. Returns -1 to go on, or an exit code (help
 * was shown, or a mistake was told on stderr). */
int options_parse(const struct cli_command *command, int argc, char **argv, char ***operands,
                  int *operand_count);

/* Whether it stood among the arguments, not in the environment alone, which has what is usual and
 * may not fit each call. `name` as in the table, after options_parse. */
bool options_is_typed(const struct cli_command *command, const char *name);

void options_help(FILE *out, const struct cli_command *command);

/* Tells a mistake of usage on stderr; returns EXIT_USAGE. */
int options_mistake(const struct cli_command *command, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Numbers as people write them; false leaves `*out` unchanged. Not negative, whole, below 2^63. */
bool number_parse_count(int64_t *out, const char *text);
bool number_parse_bytes(uint64_t *out, const char *text);

#endif
