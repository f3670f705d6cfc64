/* Lines of results of phasor bench: to JSON and back. */
#ifndef PHASOR_CLI_BENCH_LINES_H
#define PHASOR_CLI_BENCH_LINES_H

#include "bench_results.h"

/* New objects; NULL where memory is short. */
json_t *bench_cell_json(const struct bench_question *question, const struct bench_cell *cell);
json_t *bench_run_json(const struct bench_results *results, const struct bench_run *run);

/* False where the object is no such line, or of a question that has no such cell, or plan. */
bool bench_cell_read(struct bench_cell *out, const struct bench_question *question,
                     const json_t *object);
bool bench_run_read(struct bench_run *out, const struct bench_results *results,
                    const json_t *object);

/* Bytes by kind, [PHASOR_COLLECTIVE_COUNT]: those that sent anything. */
json_t *bench_collectives_json(const uint64_t *bytes_of);

#endif
