/* What all products of activations with weights share: matmul, and both halves of feed-forward
 * networks (device/ops.h). Tiles, panels: layout/packing.h; a panel is 16 outputs.
 *
 * How a value is summed, on every path, so that its bits depend on its own row alone: the columns
 * are cut into parts of PART_TILES tiles; within a part k rises, then the parts are added up in
 * their order. So a path may give each part to somebody else (few rows) or go through all of them
 * (many rows). */
#ifndef PHASOR_KERNELS_CUDA_PRODUCT_CUH
#define PHASOR_KERNELS_CUDA_PRODUCT_CUH

#include "kernels/cuda/parts.cuh"

#define PART_TILES   16
#define PART_COLUMNS (PART_TILES * PACK_BLOCK)

enum product_kind {
    PRODUCT_MATMUL, /* one matrix */
    PRODUCT_UP,     /* gate and up of each group, joined */
    PRODUCT_DOWN    /* down of each group */
};

struct product {
    float *out;
    const float *in;
    const float *bias;                /* PRODUCT_MATMUL, or NULL */
    const struct ffn_weights *groups; /* else */
    struct matrix weight;             /* PRODUCT_MATMUL; else data, scales and minima are unset */
    const int32_t *offsets;           /* else */
    const int32_t *token_of;          /* or NULL */
    int64_t row_count;                /* PRODUCT_MATMUL */
    int64_t out_stride;
    int64_t in_stride;
    int group_count; /* 1 for PRODUCT_MATMUL */
    int panel_count; /* of outputs */
    int tile_count;  /* of a panel */
    int part_count;
    int scale_group_tiles, scale_group_count; /* int4: of the side that scales have groups along */
};

static struct product product_shape(const struct matrix *weight)
{
    struct product p = {};
    p.weight = *weight;
    p.group_count = 1;
    p.panel_count = (int)ceil_div(weight->rows, PACK_BLOCK);
    p.tile_count = (int)ceil_div(weight->columns, PACK_BLOCK);
    p.part_count = (int)ceil_div(p.tile_count, PART_TILES);
    if (weight->dtype == DTYPE_INT4) {
        bool by_output = weight->packing == PACK_OUTPUT;
        p.scale_group_tiles = (int)(weight->group / PACK_BLOCK);
        p.scale_group_count =
            (int)ceil_div(by_output ? p.tile_count : p.panel_count, p.scale_group_tiles);
    }
    return p;
}

/* Rows of a group: positions first .. first + count - 1. */
struct product_rows {
    int64_t first;
    int count;
};

template <enum product_kind KIND>
__device__ inline struct product_rows product_rows_of(const struct product &p, int group)
{
    struct product_rows rows = {0, (int)p.row_count};
    if (KIND != PRODUCT_MATMUL) {
        rows.first = p.offsets[group];
        rows.count = p.offsets[group + 1] - (int)rows.first;
    }
    return rows;
}

template <enum product_kind KIND>
__device__ inline const float *product_input(const struct product &p, int64_t position)
{
    if (KIND == PRODUCT_UP && p.token_of != NULL)
        position = p.token_of[position];
    return p.in + position * p.in_stride;
}

/* Matrix `which` (0, or 1 for the up beside the gate) of a group. */
template <enum product_kind KIND>
__device__ inline struct matrix product_matrix(const struct product &p, int group, int which)
{
    if (KIND == PRODUCT_MATMUL)
        return p.weight;
    if (KIND == PRODUCT_DOWN)
        return p.groups[group].down;
    return which == 0 ? p.groups[group].gate : p.groups[group].up;
}

/* Which tile of its matrix is tile `k` of a panel. */
template <enum product_kind KIND>
__device__ inline int64_t product_tile(const struct product &p, int panel, int k)
{
    bool by_input =
        KIND == PRODUCT_DOWN || (KIND == PRODUCT_MATMUL && p.weight.packing == PACK_INPUT);
    return by_input ? (int64_t)k * p.panel_count + panel : (int64_t)panel * p.tile_count + k;
}

/* Writes outputs of one row: `gate` is the sum, `up` that of the second matrix. */
template <enum product_kind KIND>
__device__ inline void product_write(const struct product &p, int64_t position, int output,
                                     float gate, float up)
{
    float value = gate;
    if (KIND == PRODUCT_UP)
        value = silu(gate) * up;
    if (KIND == PRODUCT_MATMUL && p.bias != NULL)
        value += p.bias[output];
    p.out[position * p.out_stride + output] = value;
}

#endif
