/* Seeded random checkpoints of published shapes: for tests, and for measuring models whose weights
 * are not at hand. Every number depends on (seed, tensor name, index) alone. */
#ifndef PHASOR_MODEL_SYNTH_H
#define PHASOR_MODEL_SYNTH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/numeric.h"
#include "base/status.h"

struct synth_params {
    const char *preset;  /* a name of synth_presets, or the path of a config.json */
    const char *dir;     /* made if need be; must be empty */
    int64_t layer_count; /* 0: as published */
    int64_t vocab_count; /* 0: as published */
    int64_t scale;       /* divides hidden, intermediate and vocabulary sizes and the number of
                          * heads, not head_dim; 0 or 1: as published. What becomes odd is rounded
                          * up to what a config allows. */
    enum dtype dtype;
    uint64_t seed;
    uint64_t shard_bytes_max; /* 0: 5 GB, as transformers; each shard holds at least one tensor */
    bool fused;               /* experts as the fused tensors of transformers 5 */
    /* Called now and then with the bytes written and their final number; a status other than OK
     * ends the work. May be NULL. */
    enum status (*progress)(void *context, uint64_t done_bytes, uint64_t total_bytes);
    void *progress_context;
};

/* NULL-terminated: mixtral-8x7b, mixtral-8x22b, qwen1.5-moe-a2.7b, qwen2-57b-a14b, qwen3-30b-a3b,
 * tiny-mixtral, tiny-qwen2moe, tiny-qwen3moe. */
const char *const *synth_presets(void);

/* Bytes of tensor data that synth_write would write; nothing is written. */
enum status synth_size(uint64_t *out, const struct synth_params *params,
                       struct error *err) MUST_CHECK;

/* Writes config.json, generation_config.json and the weights as published checkpoints have them
 * (there is no tokenizer: prompts are token ids). Memory: one buffer of a few MiB. Shards appear
 * under their final names only when complete, config.json last; after a failure the complete
 * shards stay. STATUS_INVALID_ARGUMENT for an unknown preset or a directory that is not empty. */
enum status synth_write(const struct synth_params *params, struct error *err) MUST_CHECK;

#endif
