/* What tells one model from another, and one input from another: 128 bits of XXH3. They guard
 * against mistakes, not against malice. */
#ifndef PHASOR_MODEL_FINGERPRINT_H
#define PHASOR_MODEL_FINGERPRINT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct fingerprint {
    uint64_t high, low;
};

#define FINGERPRINT_DIGITS 32

void fingerprint_format(char out[FINGERPRINT_DIGITS + 1], const struct fingerprint *fingerprint);

/* Of a checkpoint: the bytes of its configuration and tokenizer, names, types and shapes of all
 * tensors, and of each matrix a kibibyte of its values: a read for each, however large it is. */
struct checkpoint;
enum status fingerprint_checkpoint(struct fingerprint *out, const struct checkpoint *checkpoint,
                                   struct error *err) MUST_CHECK;

/* The same of the tensors alone: what was made of the weights stays theirs when a tokenizer or a
 * chat template changes. */
enum status fingerprint_weights(struct fingerprint *out, const struct checkpoint *checkpoint,
                                struct error *err) MUST_CHECK;

/* Of the tensors, and of which files they are read from: their inodes, lengths and when they were
 * last changed. For what holds every weight: one that is written over in place is another. */
enum status fingerprint_files(struct fingerprint *out, const struct checkpoint *checkpoint,
                              struct error *err) MUST_CHECK;

#endif
