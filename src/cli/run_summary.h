/* What stands on standard error when a batch is done. */
#ifndef PHASOR_CLI_RUN_SUMMARY_H
#define PHASOR_CLI_RUN_SUMMARY_H

#include "phasor.h"

/* `errors`: the file of rows that failed. */
void run_summary_print(const struct phasor_batch_result *result, const char *errors);

#endif
