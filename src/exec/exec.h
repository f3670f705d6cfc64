/* The executor: one forward pass over tokens of any sequences.
 *
 * A pass goes through the stages of docs/ARCHITECTURE.md, "One token's way through a layer"
 * (src/exec/layer.c). exec knows neither planner nor transition, and no architecture. */
#ifndef PHASOR_EXEC_EXEC_H
#define PHASOR_EXEC_EXEC_H

#include <stdint.h>

#include "device/device.h"
#include "exec/kv_cache.h"
#include "exec/weights.h"

struct exec;

/* `device`, `config` and `weights` are borrowed. `token_max` tokens and `segment_max` segments of a
 * pass are provided for; a pass allocates nothing. */
enum status exec_create(struct exec **out, struct device *device, const struct model_config *config,
                        const struct weights *weights, int64_t token_max, int64_t segment_max,
                        struct error *err) MUST_CHECK;
void exec_destroy(struct exec *exec); /* NULL is allowed */

/* Bytes of activations that exec_create will take. */
uint64_t exec_bytes(const struct model_config *config, int64_t token_max);

const struct model_config *exec_config(const struct exec *exec);
struct device *exec_device(const struct exec *exec);
int64_t exec_token_max(const struct exec *exec);
enum dtype exec_kv_dtype(const struct exec *exec); /* f32 with f32 weights, else bf16 */

/* Tokens of one sequence in a pass. */
struct exec_segment {
    const int32_t *tokens; /* [token_count] */
    int64_t token_count;
    int64_t first_position;
    const int32_t *pages; /* of the sequence, from position 0 to the last of these tokens */
};

/* Runs the pass: keys and values are appended to `cache`, and the final hidden states of all tokens
 * stay in the executor for exec_logits, in the order of the segments. Token ids are within the
 * vocabulary; token counts sum to at most token_max. */
enum status exec_forward(struct exec *exec, struct kv_cache *cache,
                         const struct exec_segment *segments, int64_t segment_count,
                         struct error *err) MUST_CHECK;

/* Logits of some tokens of the last pass: `rows` are token indices in it, at most EXEC_LOGIT_ROWS.
 * `*logits` is [row_count][*stride], f32, valid until the next call. */
#define EXEC_LOGIT_ROWS 64
enum status exec_logits(struct exec *exec, const int32_t *rows, int64_t row_count, float **logits,
                        int64_t *stride, struct error *err) MUST_CHECK;

/* How many tokens each expert of each layer has received since the executor was made:
 * [layer_count][expert_count], borrowed; to be read between passes. */
const uint64_t *exec_expert_loads(const struct exec *exec);

#endif
