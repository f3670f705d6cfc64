/* What the executor's own sources share. */
#ifndef PHASOR_EXEC_EXEC_STATE_H
#define PHASOR_EXEC_EXEC_STATE_H

#include "exec/exec.h"

/* Activations of a pass: f32, [token_max][stride]. */
struct activations {
    float *residual;      /* [token][hidden]: the stream that every module adds to */
    float *normed;        /* [token][hidden] */
    float *module_out;    /* [token][hidden] */
    float *qkv;           /* [token][q | k | v] */
    float *attention;     /* [token][head_count x head_dim] */
    float *router_logits; /* [token][expert_count] */
    float *expert_up;     /* [token x top_k][expert_dim], or [token][shared or dense width] */
    float *expert_down;   /* [token x top_k][hidden] */
    float *rope;          /* [token][head_dim] */
    float *logits;        /* [EXEC_LOGIT_ROWS][vocab] */
    float *logit_hidden;  /* [EXEC_LOGIT_ROWS][hidden] */
    int32_t *ids;         /* [token] */
    int32_t *expert_ids;  /* [token][top_k] */
    float *expert_weights;
    int32_t *expert_offsets; /* [expert_count + 1] */
    int32_t *token_of;       /* [token x top_k] */
    int32_t *position_of;    /* [token x top_k] */
    int32_t *dense_offsets;  /* {0, token_count}: a group of all rows */
};

/* Strides in values, each a multiple of 16. */
struct strides {
    int64_t hidden, qkv, k_offset, v_offset, attention, experts, up, vocab;
};

struct exec {
    struct device *device;
    const struct model_config *config;
    const struct weights *weights;
    int64_t token_max, segment_max;
    struct strides strides;
    struct activations act;
    void *slab; /* all activations */
    struct segment *segments;
    int64_t segment_count;
    int64_t token_count; /* of the pass that runs or ran last */
    uint64_t *expert_loads;
};

/* One layer of the pass. */
void layer_run(struct exec *exec, int64_t index, const struct kv_layer *kv);

/* Fills cos and sin of every token of the pass. rope.c */
void rope_fill(float *rope, const struct model_config *config, const struct segment *segments,
               int64_t segment_count);

#endif
