/* The commands of phasor, each in its own cmd_*.c. */
#ifndef PHASOR_CLI_COMMANDS_H
#define PHASOR_CLI_COMMANDS_H

#include "options.h"
#include "phasor.h"

extern const struct cli_command command_run;
extern const struct cli_command command_inspect;
extern const struct cli_command command_plan;
extern const struct cli_command command_quantize;
extern const struct cli_command command_replay;
extern const struct cli_command command_bench;
extern const struct cli_command command_report;
extern const struct cli_command command_calibrate;
extern const struct cli_command command_synth;
extern const struct cli_command command_completion;
extern const struct cli_command command_version;

extern const struct cli_command *const commands[]; /* NULL-terminated */

/* The words of --dtype; half precision is known and refused. */
extern const struct option_word dtype_words[];
extern const struct option_word expert_dtype_words[];
extern const struct option_word transition_words[];
extern const struct option_word policy_words[];

/* Tells an error of the library on stderr; returns EXIT_FATAL. */
int fail(const struct phasor_error *err);

/* Closes standard output: what could not be written there (a full disk) is told, and makes the exit
 * code EXIT_FATAL. */
int finish_output(int exit_code);

#endif
