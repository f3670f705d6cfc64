/* What a checkpoint's config.json says, in one vocabulary for all architectures.
 *
 * An architecture is one file (arch_*.c) that maps names and settings to this struct and names the
 * tensors on disk; exec never asks which architecture it runs. */
#ifndef PHASOR_MODEL_CONFIG_H
#define PHASOR_MODEL_CONFIG_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/numeric.h"
#include "base/status.h"

#define MODEL_LAYERS_MAX  1024
#define MODEL_EXPERTS_MAX 4096
#define MODEL_EOS_IDS_MAX 16
#define WEIGHT_NAME_BYTES 128 /* enough for every name with any layer and expert */

enum rope_kind {
    ROPE_PLAIN,  /* "default" */
    ROPE_LINEAR, /* positions divided by `factor` */
    ROPE_YARN,   /* Peng et al., "YaRN", 2023, as transformers computes it */
    ROPE_LLAMA3, /* frequency-dependent factor of Llama 3.1 */
};

/* Rotary position embedding, half-split pairs (i, i + head_dim / 2). */
struct rope_config {
    enum rope_kind kind;
    double theta;
    double factor;
    double attention_factor;       /* multiplies cos and sin; 1 unless YaRN */
    double beta_fast, beta_slow;   /* YaRN */
    bool truncate;                 /* YaRN: round the correction range to whole dimensions */
    double low_freq_factor;        /* llama3 */
    double high_freq_factor;       /* llama3 */
    double original_max_positions; /* YaRN, llama3 */
};

enum expert_kind { FFN_DENSE, FFN_MOE };

struct layer_config {
    enum expert_kind ffn;
    bool sliding; /* attention sees the last `sliding_window` positions, itself included */
};

struct model_config {
    const struct architecture *architecture;
    int64_t vocab_count;
    int64_t hidden_dim;
    int64_t layer_count;
    int64_t head_count;
    int64_t kv_head_count;
    int64_t head_dim;
    int64_t position_count_max; /* max_position_embeddings */
    int64_t expert_count;       /* routed experts per MoE layer */
    int64_t expert_top_k;
    int64_t expert_dim;        /* intermediate width of one routed expert */
    int64_t shared_expert_dim; /* 0: no shared expert; else it has a sigmoid gate */
    int64_t dense_dim;         /* intermediate width of dense layers; 0: none */
    int64_t sliding_window;    /* 0: none */
    double norm_epsilon;
    bool norm_topk_prob; /* divide the top-k softmax weights by their sum */
    bool qkv_bias;
    bool output_bias;    /* bias of the attention output projection (Qwen3 attention_bias) */
    bool qk_norm;        /* RMSNorm over head_dim of each query and key head before RoPE */
    bool tied_embedding; /* the LM head is the embedding table */
    struct rope_config rope;
    struct layer_config layers[MODEL_LAYERS_MAX];
    enum dtype dtype; /* of the weights, as config.json says (torch_dtype or dtype); where it is
                       * silent, model_config_load answers bfloat16 and checkpoint_open the type of
                       * the embedding */
    bool dtype_is_stated;
    int64_t bos_id;                     /* -1: none */
    int64_t eos_ids[MODEL_EOS_IDS_MAX]; /* config.json and generation_config.json together */
    int64_t eos_count;
};

/* Weights of a model, one kind for each role. Linear weights are [outputs][inputs] on disk. */
enum weight {
    WEIGHT_EMBEDDING,      /* [vocab][hidden] */
    WEIGHT_FINAL_NORM,     /* [hidden] */
    WEIGHT_HEAD,           /* [vocab][hidden]; absent when tied */
    WEIGHT_INPUT_NORM,     /* [hidden]; from here on per layer */
    WEIGHT_Q,              /* [head x head_dim][hidden] */
    WEIGHT_K,              /* [kv_head x head_dim][hidden] */
    WEIGHT_V,              /* [kv_head x head_dim][hidden] */
    WEIGHT_O,              /* [hidden][head x head_dim] */
    WEIGHT_Q_BIAS,         /* [head x head_dim] */
    WEIGHT_K_BIAS,         /* [kv_head x head_dim] */
    WEIGHT_V_BIAS,         /* [kv_head x head_dim] */
    WEIGHT_O_BIAS,         /* [hidden] */
    WEIGHT_Q_NORM,         /* [head_dim] */
    WEIGHT_K_NORM,         /* [head_dim] */
    WEIGHT_FFN_NORM,       /* [hidden] */
    WEIGHT_ROUTER,         /* [expert][hidden] */
    WEIGHT_EXPERT_GATE,    /* [expert_dim][hidden]; one expert */
    WEIGHT_EXPERT_UP,      /* [expert_dim][hidden] */
    WEIGHT_EXPERT_DOWN,    /* [hidden][expert_dim] */
    WEIGHT_FUSED_GATE_UP,  /* [expert][2 x expert_dim][hidden], gate first: transformers 5 form */
    WEIGHT_FUSED_DOWN,     /* [expert][hidden][expert_dim] */
    WEIGHT_SHARED_GATE,    /* [shared_expert_dim][hidden] */
    WEIGHT_SHARED_UP,      /* [shared_expert_dim][hidden] */
    WEIGHT_SHARED_DOWN,    /* [hidden][shared_expert_dim] */
    WEIGHT_SHARED_SIGMOID, /* [1][hidden] */
    WEIGHT_DENSE_GATE,     /* [dense_dim][hidden] */
    WEIGHT_DENSE_UP,       /* [dense_dim][hidden] */
    WEIGHT_DENSE_DOWN,     /* [hidden][dense_dim] */
    WEIGHT_KIND_COUNT
};

/* One per arch_*.c file; a constant. */
struct architecture {
    const char *class_name; /* in config.json "architectures" */
    const char *model_type;
    /* What the class in transformers takes where config.json is silent. */
    double rope_theta_default;
    double norm_epsilon_default;
    /* Fills the architecture's own part of a config whose common part is already there. */
    enum status (*config_read)(struct model_config *config, const json_t *object, const char *file,
                               struct error *err);
    /* Names on disk with {layer} and {expert} in place of numbers; NULL where the architecture
     * never has that weight. */
    const char *names[WEIGHT_KIND_COUNT];
    /* Second names under which some exports keep a weight (the modules of transformers 5); NULL
     * where there is none. */
    const char *alternative_names[WEIGHT_KIND_COUNT];
};

/* NULL-terminated list of all supported architectures. */
extern const struct architecture *const architectures[];

/* Reads DIR/config.json and, where it is there, DIR/generation_config.json. Keys of transformers 4
 * and 5 are understood; a setting that phasor does not know and that would change the result is
 * refused by name (STATUS_UNSUPPORTED); sizes that contradict each other are STATUS_FORMAT naming
 * the keys. `*config` is filled only on success. No pointer into the JSON is kept. */
enum status model_config_load(struct model_config *config, const char *dir,
                              struct error *err) MUST_CHECK;

/* The same from parsed JSON; `generation` may be NULL. `file` names config.json in messages. */
enum status model_config_parse(struct model_config *config, const json_t *object,
                               const json_t *generation, const char *file,
                               struct error *err) MUST_CHECK;

/* Writes the name on disk of a weight (layer and expert are ignored where the name has none) into
 * `out` of `capacity` bytes. The architecture must have it. */
void weight_name(char *out, size_t capacity, const struct model_config *config, enum weight weight,
                 int64_t layer, int64_t expert);

/* The same for the second name; false, with `out` untouched, where there is none. */
bool weight_alternative_name(char *out, size_t capacity, const struct model_config *config,
                             enum weight weight, int64_t layer, int64_t expert);

/* Whether there is one such weight per layer, not one per model. */
bool weight_is_per_layer(enum weight weight);

/* Whether this layer of this model has that weight (fused forms: whether it could). */
bool weight_is_present(const struct model_config *config, enum weight weight, int64_t layer);

/* Shape on disk: writes up to 3 dimensions, returns how many. */
int weight_shape(int64_t shape[3], const struct model_config *config, enum weight weight);

#endif
