/* The table that phasor bench ends with, for people and for programs. */
#ifndef PHASOR_CLI_BENCH_PRINT_H
#define PHASOR_CLI_BENCH_PRINT_H

#include "bench_results.h"

enum bench_format { BENCH_MARKDOWN, BENCH_JSON, BENCH_JSON_LINES, BENCH_CSV };

/* To standard output: one row for each cell and mode, as GitHub's Markdown, an array, lines, or
 * comma-separated values (RFC 4180). False: told on standard error. */
bool bench_print(const struct bench_results *results, enum bench_format format);

#endif
