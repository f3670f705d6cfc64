/* The sizes of a model that layouts and their costs depend on. */
#ifndef PHASOR_LAYOUT_SHAPE_H
#define PHASOR_LAYOUT_SHAPE_H

#include <stdint.h>

struct model_shape {
    int64_t layer_count;
    int64_t moe_layer_count; /* the others are dense */
    int64_t vocab_count;
    int64_t hidden_dim;
    int64_t head_count;
    int64_t kv_head_count;
    int64_t head_dim;
    int64_t expert_count;
    int64_t expert_top_k;
    int64_t expert_dim;
    int64_t shared_expert_dim;   /* 0: none */
    int64_t dense_dim;           /* 0: none */
    int64_t sliding_layer_count; /* whose attention sees the last `sliding_window` positions, itself
                                  * included; the others see all */
    int64_t sliding_window;      /* 0: none slides */
};

#endif
