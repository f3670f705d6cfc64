/* Sizes of published models, from their config.json. */
#ifndef TESTS_LAYOUT_MODEL_SHAPES_H
#define TESTS_LAYOUT_MODEL_SHAPES_H

#include "layout/shape.h"

enum {
    MIXTRAL_8X7B,
    MIXTRAL_8X22B,
    QWEN15_MOE_A27B,
    QWEN2_57B_A14B,
    QWEN3_30B_A3B,
    MODEL_SHAPE_COUNT
};

struct named_shape {
    const char *name;
    struct model_shape shape;
};
extern const struct named_shape model_shapes[MODEL_SHAPE_COUNT];

#endif
