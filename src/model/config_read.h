/* Pieces of config reading that architectures share. Only for the files that read config.json. */
#ifndef PHASOR_MODEL_CONFIG_READ_H
#define PHASOR_MODEL_CONFIG_READ_H

#include "model/config.h"

extern const struct architecture architecture_mixtral;
extern const struct architecture architecture_qwen2_moe;
extern const struct architecture architecture_qwen3_moe;

/* Largest sizes accepted. Every product of four of them fits 64 bits with room to spare; published
 * models are smaller by a factor of 8 or more. */
#define MODEL_WIDTH_MAX (1 << 20) /* hidden and intermediate widths */
#define MODEL_HEADS_MAX 4096
#define MODEL_VOCAB_MAX (1 << 24)
#define POSITIONS_MAX   (1 << 30)

/* What these functions read from. `file` names it in messages. */
struct config_source {
    const json_t *object;
    const char *file;
};

/* Number of experts (num_experts or num_local_experts: both spellings are published for all
 * architectures), top-k, and the width of an expert under `width_key`. */
enum status config_read_experts(struct model_config *config, struct config_source source,
                                const char *width_key, struct error *err) MUST_CHECK;

/* Which layers are dense, by mlp_only_layers and decoder_sparse_step (Qwen), and their width. */
enum status config_read_dense_layers(struct model_config *config, struct config_source source,
                                     struct error *err) MUST_CHECK;

/* How a class of transformers decides which layers slide. */
enum sliding_rule {
    SLIDING_ALL,      /* every layer, when there is a window at all */
    SLIDING_BY_LAYER, /* layer_types; without it, even layers below max_window_layers */
};

/* Sets the window and the layers that slide; `gated`: only when use_sliding_window is true. */
enum status config_read_sliding(struct model_config *config, struct config_source source,
                                enum sliding_rule rule, bool gated, struct error *err) MUST_CHECK;

/* Rotary embedding of transformers 4 (rope_theta, rope_scaling) and 5 (rope_parameters). */
enum status config_read_rope(struct model_config *config, struct config_source source,
                             struct error *err) MUST_CHECK;

/* Absent, null, false, or an empty object, array or string: says nothing. */
bool config_key_is_silent(const json_t *object, const char *key);

#endif
