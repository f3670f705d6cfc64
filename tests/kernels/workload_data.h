/* How the data of a workload is made; workload_NAME fills in one operation from its case. */
#ifndef PHASOR_TESTS_KERNELS_WORKLOAD_DATA_H
#define PHASOR_TESTS_KERNELS_WORKLOAD_DATA_H

#include "base/random.h"
#include "workload.h"

/* ---- Memory, freed with the workload; zeroed ------------------------------------------------- */

void *own(struct workload *w, size_t count, size_t size);

/* Takes what stands in `data` as what a reset brings back; returns `data`. */
void *output_add(struct workload *w, void *data, size_t bytes);

/* ---- Values ---------------------------------------------------------------------------------- */

float uniform(struct random *random); /* -1 .. 1 */
float *values_new(struct workload *w, struct random *random, int64_t count, float scale);

/* [rows][stride], zero between dim and stride. */
float *rows_new(struct workload *w, struct random *random, int64_t rows, int64_t dim,
                int64_t stride);

/* The same as what an operation reads and writes. */
float *output_rows_new(struct workload *w, struct random *random, int64_t rows, int64_t dim,
                       int64_t stride);

/* Poisoned rows to write, and one more that stays as it is. */
float *output_new(struct workload *w, int64_t rows, int64_t stride);
int32_t *output_ints_new(struct workload *w, int64_t count);

struct matrix matrix_new(struct workload *w, struct random *random, enum packing packing,
                         enum dtype dtype, int64_t rows, int64_t columns);

/* 0 .. count - 1 in a random order. */
int32_t *shuffled_new(struct workload *w, struct random *random, int64_t count);

/* dim rounded up to 16, and what the case wants more. */
int64_t stride_of(const struct workload *w, int64_t dim);

/* ---- One for each operation ------------------------------------------------------------------ */

void workload_embed(struct workload *w, struct random *random);
void workload_rms_norm(struct workload *w, struct random *random);
void workload_add(struct workload *w, struct random *random);
void workload_matmul(struct workload *w, struct random *random);
void workload_rope_append(struct workload *w, struct random *random);
void workload_attention(struct workload *w, struct random *random);
void workload_route(struct workload *w, struct random *random);
void workload_dispatch(struct workload *w, struct random *random);
void workload_group(struct workload *w, struct random *random);
void workload_ffn_up(struct workload *w, struct random *random);
void workload_ffn_down(struct workload *w, struct random *random);
void workload_combine(struct workload *w, struct random *random);
void workload_choose(struct workload *w, struct random *random);
void workload_candidates(struct workload *w, struct random *random);
void workload_shared_add(struct workload *w, struct random *random);
void workload_gather(struct workload *w, struct random *random);
void workload_dequantize(struct workload *w, struct random *random);
void workload_copy(struct workload *w, struct random *random);
void workload_fill(struct workload *w, struct random *random);

#endif
