/* From a checkpoint to the granules of a backup: a few granules of one expert at a time. */
#ifndef PHASOR_QUANT_BACKUP_ENCODE_H
#define PHASOR_QUANT_BACKUP_ENCODE_H

#include "model/checkpoint.h"
#include "quant/backup_format.h"
#include "quant/int4_search.h"

/* Granules that are made together, neighbours of one expert: as many as keep their content within
 * 16 MiB (so that rows of `down` are read in long pieces), but all where the whole matrix has one
 * scale. */
int64_t backup_encode_parts(const struct backup_form *form);

/* One thread's: its buffers. */
struct backup_encoder;
enum status backup_encoder_create(struct backup_encoder **out, const struct backup_form *form,
                                  const struct checkpoint *checkpoint,
                                  struct error *err) MUST_CHECK;
void backup_encoder_destroy(struct backup_encoder *encoder); /* NULL is allowed */

/* Makes backup_encode_parts granules from `part` on (a multiple of them). A weight that is no
 * number, or beyond INT4_VALUE_MAX, is STATUS_FORMAT naming tensor, row and column. */
enum status backup_encode(struct backup_encoder *encoder, int64_t layer, int64_t expert,
                          int64_t part, struct error *err) MUST_CHECK;

/* The i-th of them as it is stored: compressed where the form says so, with trailer and padding
 * behind: backup_granule_span(*stored_bytes) bytes, which live until the next backup_encode. */
enum status backup_encoded(const void **bytes, int64_t *stored_bytes,
                           struct backup_encoder *encoder, int64_t i, int64_t number,
                           struct error *err) MUST_CHECK;

#endif
