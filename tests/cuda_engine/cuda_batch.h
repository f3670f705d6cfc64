/* Batches through the library's face, whose answers are compared between devices. */
#ifndef CUDA_BATCH_H
#define CUDA_BATCH_H

#include <jansson.h>

#include "phasor.h"

/* The rows a to e of wave_tools.h, answered by this model; the result may be NULL. Fails the test
 * where it cannot. */
json_t *cuda_batch_rows(const struct phasor_model_params *params,
                        struct phasor_batch_result *result);

/* Takes both; fails the test unless each row has the same text. */
void cuda_batch_compare(json_t *found, json_t *expected, const char *label);

#endif
