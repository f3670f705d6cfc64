/* The files of a batch, before the model is loaded. The run checks them again, and more: this
 * spares the user a load before a simple mistake shows. */
#ifndef PHASOR_CLI_RUN_FILES_H
#define PHASOR_CLI_RUN_FILES_H

#include <stdbool.h>

struct run_files {
    const char *input, *output;                                               /* "-": a stream */
    const char *errors, *metrics, *summary, *trace, *record, *routing_counts; /* or NULL */
    bool keeps_output; /* output that is not empty is to be gone on with, or replaced */
};

/* Tells what is wrong on standard error and returns the exit code; -1: nothing was found. */
int run_files_check(const struct run_files *files);

#endif
