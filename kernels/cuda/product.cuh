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

/* How a block of product_few goes through its panels. */
struct few_rounds {
    int parts;              /* of a panel, in a round */
    int windows;            /* rounds until a panel is done */
    int panels;             /* in a round */
    int staged;             /* parts whose inputs are in shared memory */
    uint32_t parts_inverse; /* 2^16 / parts, rounded up */
};

/* Up to so many rows all groups are flat (FLAT_ROWS of product_mma.cu). */
#define WGMMA_ROWS_LEAST 32

struct product {
    float *out;
    const float *in;
    const float *bias;                /* PRODUCT_MATMUL, or NULL */
    const struct ffn_weights *groups; /* else */
    struct matrix weight;             /* of PRODUCT_MATMUL; else the first group's */
    const int32_t *offsets;           /* else */
    const int32_t *token_of;          /* or NULL */
    int64_t row_count;                /* PRODUCT_MATMUL */
    int64_t row_limit;                /* no group has more rows; 0: it is not known */
    int64_t position_most;            /* positions that there may be; 0: not known */
    int64_t out_stride;
    int64_t in_stride;
    int group_count; /* 1 for PRODUCT_MATMUL */
    int panel_count; /* of outputs */
    int tile_count;  /* of a panel */
    int part_count;
    int scale_group_tiles, scale_group_count; /* int4: of the side that scales have groups along */
    int32_t *groups_with_rows;                /* where that is written (launch.h), or NULL */
    uint32_t scale_group_inverse;             /* (2^32 - 1) / scale_group_tiles */
    int flat_rows;               /* product_mma: groups of up to so many are flat; 0: none */
    int scale_groups_staged;     /* product_few: for how many there is shared memory */
    struct few_rounds rounds[3]; /* of up to 8, 16 and 32 rows */
};

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

/* Writes how many groups have rows, once for all blocks: each kernel of FFNs begins with it. */
template <enum product_kind KIND>
__device__ inline void product_groups_count(const struct product &p)
{
    if (KIND == PRODUCT_MATMUL || p.groups_with_rows == NULL || blockIdx.x > 0 || warp_id() > 0)
        return;
    int count = 0;
    for (int g = lane_id(); g < p.group_count; g += WARP)
        count += p.offsets[g + 1] > p.offsets[g];
    count = warp_sum(count);
    if (lane_id() == 0)
        *p.groups_with_rows = count;
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

/* Work on a group of `row_count` rows is cut into pieces_of(p, row_count) pieces. Finds the group
 * of piece `index` of all, and which of its own that is; false behind the last. All lanes of a warp
 * call it. */
template <enum product_kind KIND>
__device__ inline bool piece_find(int *group, int *piece, const struct product &p, int64_t index,
                                  int (*pieces_of)(const struct product &p, int row_count))
{
    for (int first = 0; first < p.group_count; first += WARP) {
        int g = first + lane_id(), pieces = 0;
        if (g < p.group_count)
            pieces = pieces_of(p, product_rows_of<KIND>(p, g).count);
        int end = warp_prefix(pieces);
        unsigned behind = __ballot_sync(ALL_LANES, index < end);
        if (behind != 0) {
            int owner = __ffs((int)behind) - 1;
            *group = first + owner;
            *piece = (int)index - __shfl_sync(ALL_LANES, end - pieces, owner);
            return true;
        }
        index -= __shfl_sync(ALL_LANES, end, WARP - 1);
    }
    return false;
}

/* Products with bf16 weights, by matrix instructions (product_mma.cu). */
cudaError_t product_mma(const struct cuda_launch *launch, const struct product *p,
                        enum product_kind kind);

/* Products of groups with few rows, by matrix instructions for bf16, with weights of bf16 and INT4;
 * p->flat_rows becomes how many rows are few, and the groups that have more are left out
 * (product_few.cu). */
cudaError_t product_few(const struct cuda_launch *launch, struct product *p,
                        enum product_kind kind);

/* Whether that leaves nothing out. */
static inline bool product_is_few(const struct product *p)
{
    return p->row_limit > 0 && p->row_limit <= p->flat_rows;
}

/* Products with INT4 weights, by matrix instructions for bf16 (product_int4.cu). */
cudaError_t product_int4(const struct cuda_launch *launch, const struct product *p,
                         enum product_kind kind);

/* The same for all groups of more than p->flat_rows rows, on sm_90 (product_wgmma.cu). It needs so
 * many bytes of scratch memory; where there are fewer, product_mma goes its own way. */
cudaError_t product_wgmma(const struct cuda_launch *launch, const struct product *p,
                          enum product_kind kind);
size_t product_wgmma_scratch(int64_t position_most, int group_count, int tile_count);

/* Whether that is how a product's groups of many rows are multiplied. */
static inline bool product_wgmma_takes(const struct cuda_launch *launch, enum dtype dtype,
                                       int64_t position_most)
{
    return launch->capability == 90 && dtype == DTYPE_BF16 && position_most > WGMMA_ROWS_LEAST;
}

/* Lets a kernel of these, which have no static shared memory, have as much dynamic as a block can:
 * one number for all launches, as ranks that share a GPU share what is set for its kernels. */
static inline cudaError_t product_allow(const struct cuda_launch *launch, const void *kernel)
{
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                launch->shared_bytes_max);
}

#endif
