/* A published checkpoint in a directory: its config, and its tensors wherever they lie.
 *
 * Tensor data is read with pread into the caller's memory, never mapped (a mapped file that shrinks
 * is a SIGBUS). Shards are resolved beneath the directory: a name with "..", an absolute path or a
 * link that leads out of it is refused before it is opened, except the links of a Hugging Face
 * cache snapshot into the blobs of the same cache entry. */
#ifndef PHASOR_MODEL_CHECKPOINT_H
#define PHASOR_MODEL_CHECKPOINT_H

#include <stdint.h>

#include "base/status.h"
#include "model/config.h"
#include "model/safetensors.h"

struct checkpoint;

/* Opens DIR: config.json, then model.safetensors or model.safetensors.index.json with its shards.
 * Every shard's header is checked, and every weight that the config calls for must be there once,
 * with the expected shape and a float type; what is missing is named (tensor and layer). */
enum status checkpoint_open(struct checkpoint **out, const char *dir, struct error *err) MUST_CHECK;
void checkpoint_close(struct checkpoint *checkpoint); /* NULL is allowed */

/* What these and the lookups below return lives as long as the checkpoint. */
const struct model_config *checkpoint_config(const struct checkpoint *checkpoint);
const char *checkpoint_dir(const struct checkpoint *checkpoint);

/* All tensors of all shards, for `inspect`. */
int64_t checkpoint_tensor_count(const struct checkpoint *checkpoint);
const struct tensor_info *checkpoint_tensor(const struct checkpoint *checkpoint, int64_t index);

/* NULL when there is none. */
const struct tensor_info *checkpoint_find(const struct checkpoint *checkpoint, const char *name);

/* Where one weight lies: `*first_row` is the row of the tensor's leading dimensions flattened to a
 * matrix [rows][last dimension] at which this weight begins: 0, or inside a fused expert tensor.
 * Handles single and fused expert forms alike: asked for WEIGHT_EXPERT_UP of expert e, it answers
 * with the fused tensor and the row 2 x expert_dim x e + expert_dim where the checkpoint is fused.
 * Tied heads answer with the embedding. The weight must be present (weight_is_present). */
struct weight_location {
    const struct tensor_info *tensor;
    int64_t first_row;
    int64_t row_count;
    int64_t column_count;
};
enum status checkpoint_locate(struct weight_location *out, const struct checkpoint *checkpoint,
                              enum weight weight, int64_t layer, int64_t expert,
                              struct error *err) MUST_CHECK;

/* Reads `bytes` at `offset` within the tensor. Thread-safe. */
enum status checkpoint_read(const struct checkpoint *checkpoint, const struct tensor_info *tensor,
                            uint64_t offset, void *out, uint64_t bytes,
                            struct error *err) MUST_CHECK;

/* Rows [row, row + row_count) of columns [column, column + column_count) of a located weight. */
struct block {
    int64_t row, row_count;
    int64_t column, column_count;
};

/* Reads a block, and no byte beside it, converted to `dtype`, as [row_count][column_count].
 * `staging` of `staging_bytes` (at least one row of the block on disk) is used for the conversion.
 */
enum status checkpoint_read_block(const struct checkpoint *checkpoint,
                                  const struct weight_location *where, struct block block,
                                  void *out, enum dtype dtype, void *staging,
                                  uint64_t staging_bytes, struct error *err) MUST_CHECK;

/* The same for whole rows. */
enum status checkpoint_read_rows(const struct checkpoint *checkpoint,
                                 const struct weight_location *where, int64_t row, int64_t count,
                                 void *out, enum dtype dtype, void *staging, uint64_t staging_bytes,
                                 struct error *err) MUST_CHECK;

/* Has the system read whole rows ahead, a hint (file_read_ahead). Thread-safe. */
void checkpoint_read_ahead(const struct checkpoint *checkpoint, const struct weight_location *where,
                           int64_t row, int64_t row_count);

/* Whether a row begins in the page cache (file_is_cached). Thread-safe. */
bool checkpoint_is_cached(const struct checkpoint *checkpoint, const struct weight_location *where,
                          int64_t row);

#endif
