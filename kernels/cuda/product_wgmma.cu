/* Products with bf16 weights and many rows by the matrix instruction of four warps (wgmma.cuh).
 *
 * A first kernel arranges the inputs: rounds them to bf16, in the order and the places in which a
 * stage in shared memory has them, so that one copy brings a stage's rows, whichever tokens they
 * are of. In the second a block multiplies 128 outputs with up to ROWS_MOST rows. Two of its warps
 * have weights and inputs brought into a ring of stages; twice four warps multiply: each 64 outputs
 * with all the rows, which the instruction reads in shared memory, while weights go to registers: a
 * tile of 16 by 16 as it is packed is a warp's part of the left operand. Sums of a part of the
 * columns and those of all parts before stand in registers; they are as in product_mma.cu, to the
 * bit: the instruction adds as that of one warp does.
 *
 * What the second-level cache gives limits all: 128 outputs and 184 rows take 9.75 KiB for 16
 * columns, which are 184 cycles of the matrix units. So CLUSTER blocks with the same rows and other
 * outputs go through the columns together, and each brings its share of the rows to all of them. */
#include "kernels/cuda/product_operands.cuh"
#include "kernels/cuda/wgmma.cuh"

#define ROWS_MOST  184 /* of a piece: both kinds of sums, and weights, fit in the registers */
#define STAGES     5
#define TEAM_WARPS 4 /* that have an instruction together */
#define TEAM       (TEAM_WARPS * WARP)
#define THREADS    (3 * TEAM)
#define PANELS     (2 * TEAM_WARPS) /* of weights in a block */

#define STAGE_TILES 4
#define PART_STAGES (MMA_PART_TILES / STAGE_TILES)
#define TILE_BYTES  (TILE_WORDS * (int)sizeof(uint32_t))
#define ROW_GROUP   8 /* rows whose places in shared memory belong together */

/* Panels of up stand this far behind where they would: so half a panel of gate and half one of up
 * are in different banks. */
#define UP_SHIFT      32
#define WEIGHTS_BYTES (PANELS * STAGE_TILES * TILE_BYTES + 4 * UP_SHIFT)
#define INPUTS_BYTES  (ROWS_MOST * WGMMA_ROW_BYTES)
#define RING_ALIGN    1024

/* Registers of a thread that brings, and of one that multiplies: of all there are for THREADS. */
#define REGISTERS_BRING    24
#define REGISTERS_MULTIPLY 240

/* What a block multiplies: rows, from a panel of outputs on; no rows: nothing is left. */
struct piece {
    struct product_rows rows;
    int group;
    int first_panel;
};

/* Pieces that are known ahead: the warps that bring are at most STAGES stages ahead, of which each
 * may be another piece's. */
#define PIECES_KNOWN (STAGES + 1)

struct ring_memory {
    unsigned char inputs[STAGES][INPUTS_BYTES]; /* wgmma_rows */
    unsigned char weights[STAGES][WEIGHTS_BYTES];
    struct phase_barrier full[STAGES]; /* the stage is there, and what piece it begins */
    struct phase_barrier free[STAGES]; /* all have read it */
    struct piece pieces[PIECES_KNOWN];
};

/* A thread's place in the ring. */
struct ring {
    struct ring_memory *memory;
    int stage;
    uint32_t parity;
};

__device__ static void ring_next(struct ring *ring)
{
    if (++ring->stage == STAGES) {
        ring->stage = 0;
        ring->parity ^= 1;
    }
}

__device__ static void ring_wait_full(const struct ring *ring)
{
    phase_wait(&ring->memory->full[ring->stage], ring->parity);
}

/* ---- Pieces of work -------------------------------------------------------------------------- */

__device__ static int parts_of(int count, int size)
{
    return (count + size - 1) / size;
}

/* Rows of a strip of a group of `row_count`: strips are as even as they can be. */
__device__ static int strip_rows(int row_count)
{
    int strips = parts_of(row_count, ROWS_MOST);
    return parts_of(parts_of(row_count, strips), ROW_GROUP) * ROW_GROUP;
}

/* Output panels of a piece. */
template <enum product_kind KIND> __device__ constexpr int piece_panels()
{
    return KIND == PRODUCT_UP ? PANELS / 2 : PANELS;
}

/* Pieces that the blocks of a cluster take together, of all strips. */
template <enum product_kind KIND> __device__ static int panel_blocks(const struct product &p)
{
    return parts_of(p.panel_count, CLUSTER * piece_panels<KIND>());
}

template <enum product_kind KIND>
__device__ static int group_pieces(const struct product &p, int row_count)
{
    if (row_count <= p.flat_rows)
        return 0;
    return parts_of(row_count, strip_rows(row_count)) * panel_blocks<KIND>(p);
}

/* Strips that go through all panels before the next ones begin, so that clusters which run together
 * share both. */
#define SPAN 12

/* Finds the block's part of piece `index` of all; no rows behind the last. */
template <enum product_kind KIND>
__device__ static struct piece piece_at(const struct product &p, int64_t index)
{
    struct piece piece = {{0, 0}, 0, 0};
    int at = (int)index;
    if (KIND == PRODUCT_MATMUL ? index >= group_pieces<KIND>(p, (int)p.row_count)
                               : !piece_find<KIND>(&piece.group, &at, p, index, group_pieces<KIND>))
        return piece;
    struct product_rows rows = product_rows_of<KIND>(p, piece.group);
    int height = strip_rows(rows.count), strips = parts_of(rows.count, height);
    int first = at / (SPAN * panel_blocks<KIND>(p)) * SPAN, span = min(strips - first, SPAN);
    at -= first * panel_blocks<KIND>(p);
    int strip = first + at % span;
    piece.first_panel = (at / span * CLUSTER + cluster_rank()) * piece_panels<KIND>();
    piece.rows.first = rows.first + strip * height;
    piece.rows.count = min(rows.count - strip * height, height);
    return piece;
}

/* ---- Bringing -------------------------------------------------------------------------------- */

/* Where the arranged row of a group's first position is: groups begin at multiples of ROW_GROUP,
 * and their rows do not overlap. */
__device__ static int64_t arranged_first(int64_t position, int group)
{
    return (position / ROW_GROUP + group) * ROW_GROUP;
}

/* Arranged rows, of which each stage of columns has so many. */
__host__ __device__ static int64_t arranged_rows(int64_t position_most, int group_count)
{
    return (position_most / ROW_GROUP + group_count + 1) * ROW_GROUP;
}

template <enum product_kind KIND>
__device__ static int64_t arranged_row(const struct product &p, const struct piece &piece)
{
    int64_t first = product_rows_of<KIND>(p, piece.group).first;
    return arranged_first(first, piece.group) + piece.rows.first - first;
}

/* Packed by output, a panel's tiles lie together; packed by input, a tile's panels do. */
template <enum product_kind KIND> __device__ static bool is_by_input(const struct product &p)
{
    return KIND == PRODUCT_DOWN || (KIND == PRODUCT_MATMUL && p.weight.packing == PACK_INPUT);
}

/* The pieces of the block, one after another, as the warps go through them that bring. */
template <enum product_kind KIND>
__device__ static struct piece piece_number(const struct product &p, unsigned n)
{
    return piece_at<KIND>(p, (int64_t)n * (gridDim.x / CLUSTER) + blockIdx.x / CLUSTER);
}

/* One warp brings the weights of all pieces, and says which pieces they are. A lane copies a
 * panel's tiles of a stage, or all panels of a tile. */
template <enum product_kind KIND, bool BY_INPUT>
__device__ static void weights_bring(const struct product &p, struct ring_memory *memory)
{
    const int mats = KIND == PRODUCT_UP ? 2 : 1;
    struct ring ring = {memory, 0, 0};
    int lane = lane_id(), m = BY_INPUT ? 0 : lane / piece_panels<KIND>();
    int panel = BY_INPUT ? 0 : lane % piece_panels<KIND>();
    int to = BY_INPUT ? lane * PANELS * TILE_BYTES : lane * STAGE_TILES * TILE_BYTES + m * UP_SHIFT;
#pragma unroll 1
    for (unsigned n = 0;; n++) {
        struct piece piece = piece_number<KIND>(p, n);
        phase_wait(&memory->free[ring.stage], ring.parity ^ 1);
        if (lane == 0)
            memory->pieces[n % PIECES_KNOWN] = piece;
        if (piece.rows.count == 0)
            break;
        int panels = max(0, min(piece_panels<KIND>(), p.panel_count - piece.first_panel));
        int64_t tile = product_tile<KIND>(p, piece.first_panel + panel, BY_INPUT ? lane : 0);
        const unsigned char *from =
            (const unsigned char *)product_matrix<KIND>(p, piece.group, m).data + tile * TILE_BYTES;
#pragma unroll 1
        for (int left = p.tile_count; left > 0; left -= STAGE_TILES) {
            struct phase_barrier *full = &memory->full[ring.stage];
            int tiles = min(STAGE_TILES, left);
            phase_wait(&memory->free[ring.stage], ring.parity ^ 1);
            if (lane == 0)
                phase_arrive_bytes(full, panels * mats * tiles * TILE_BYTES);
            if (BY_INPUT ? panels > 0 && lane < tiles : m < mats && panel < panels)
                bulk_copy(memory->weights[ring.stage] + to, from,
                          (BY_INPUT ? panels : tiles) * TILE_BYTES, full);
            from += (BY_INPUT ? p.panel_count : 1) * (STAGE_TILES * TILE_BYTES);
            ring_next(&ring);
        }
    }
    if (lane == 0)
        phase_arrive(&memory->full[ring.stage]);
}

/* Another one brings the inputs: of a piece's rows the block's share, to all blocks of the cluster.
 */
template <enum product_kind KIND>
__device__ static void inputs_bring(const struct product &p, const unsigned char *arranged,
                                    int64_t arranged_count, struct ring_memory *memory)
{
    const int group_bytes = ROW_GROUP * WGMMA_ROW_BYTES;
    struct ring ring = {memory, 0, 0};
#pragma unroll 1
    for (unsigned n = 0;; n++) {
        struct piece piece = piece_number<KIND>(p, n);
        phase_wait(&memory->free[ring.stage], ring.parity ^ 1);
        if (piece.rows.count == 0)
            break;
        int groups = parts_of(piece.rows.count, ROW_GROUP), share = parts_of(groups, CLUSTER);
        int to = cluster_rank() * share * group_bytes;
        int bytes = min(share * group_bytes, groups * group_bytes - to);
        const unsigned char *from = arranged + arranged_row<KIND>(p, piece) * WGMMA_ROW_BYTES + to;
#pragma unroll 1
        for (int left = p.tile_count; left > 0; left -= STAGE_TILES) {
            struct phase_barrier *full = &memory->full[ring.stage];
            phase_wait(&memory->free[ring.stage], ring.parity ^ 1);
            if (lane_id() == 0) {
                phase_arrive_bytes(full, groups * group_bytes);
                if (bytes > 0)
                    bulk_copy_cluster(memory->inputs[ring.stage] + to, from, bytes, full);
            }
            from += arranged_count * WGMMA_ROW_BYTES;
            ring_next(&ring);
        }
    }
    if (lane_id() == 0)
        phase_arrive(&memory->full[ring.stage]);
}

/* ---- Multiplying ----------------------------------------------------------------------------- */

/* Where in a stage the lane's part of the warp's first tile is, and how far it is to the next. */
struct warp_tiles {
    int at, step;
};

/* A warp has a panel; of gate and up (instruction's rows g and g + 8) half of one each, so that the
 * two sums of an output are in one lane. */
template <enum product_kind KIND>
__device__ static struct warp_tiles warp_tiles_of(const struct product &p)
{
    struct warp_tiles tiles = {0, TILE_BYTES};
    if (KIND == PRODUCT_UP) {
        bool is_up = lane_in_group() >= 2;
        tiles.at = (warp_id() / 2 + (is_up ? PANELS / 2 : 0)) * STAGE_TILES * TILE_BYTES +
                   (is_up ? UP_SHIFT : 0) +
                   (lane_in_group() * PACK_BLOCK + warp_id() % 2 * 8 + lane_group()) * 4;
        return tiles;
    }
    tiles.at = (lane_in_group() * 8 + lane_group()) * 8;
    if (is_by_input<KIND>(p)) {
        tiles.at += warp_id() * TILE_BYTES;
        tiles.step = PANELS * TILE_BYTES;
    } else {
        tiles.at += warp_id() * STAGE_TILES * TILE_BYTES;
    }
    return tiles;
}

/* The lane's part of a tile. Of gate and up half the lanes take the one first and half the other:
 * words of one matrix alone would be in half the banks. */
template <enum product_kind KIND>
__device__ static void tile_load(uint32_t a[4], const unsigned char *at)
{
    if (KIND != PRODUCT_UP) {
        weights_load<MMA_BF16>(a, (const uint32_t *)at);
        return;
    }
    const int apart = PANELS / 2 * STAGE_TILES * TILE_BYTES + UP_SHIFT;
    bool is_up = lane_in_group() >= 2;
    const unsigned char *other = at + (is_up ? -apart : apart);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t one = *(const uint32_t *)(at + i * (TILE_BYTES / 2));
        uint32_t two = *(const uint32_t *)(other + i * (TILE_BYTES / 2));
        a[2 * i] = is_up ? two : one;
        a[2 * i + 1] = is_up ? one : two;
    }
}

/* The warp has read a stage, which the blocks of the cluster fill together. */
__device__ static void stage_release(struct ring_memory *memory, int stage)
{
    if (lane_id() < CLUSTER)
        phase_arrive_cluster(&memory->free[stage], lane_id());
}

/* Writes the sums of all rows: sum[4n .. 4n + 3] of rows 8n + 2t and one more, as mma_bf16 has
 * them. */
template <enum product_kind KIND, int N>
__device__ static void sums_write(const struct product &p, const struct piece &piece,
                                  const float sum[N / 2])
{
    int panel = piece.first_panel + (KIND == PRODUCT_UP ? warp_id() / 2 : warp_id());
    int output = panel * PACK_BLOCK +
                 (KIND == PRODUCT_UP ? warp_id() % 2 * 8 + lane_group() : 2 * lane_group());
    int row = 2 * lane_in_group(), count = piece.rows.count;
    float *to = p.out + (piece.rows.first + row) * p.out_stride + output;
    float2 bias = make_float2(-0.0f, -0.0f); /* what is added to it stays as it is */
    if (panel >= p.panel_count)
        return;
    if (KIND == PRODUCT_MATMUL && p.bias != NULL)
        bias = make_float2(p.bias[output], p.bias[output + 1]);
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
        const float *of = sum + 4 * n;
        if (KIND == PRODUCT_UP) {
            float first = silu(of[0]) * of[2], second = silu(of[1]) * of[3];
            if (row + 8 * n < count)
                to[0] = first;
            if (row + 8 * n + 1 < count)
                to[p.out_stride] = second;
        } else {
            if (row + 8 * n < count)
                *(float2 *)to = make_float2(of[0] + bias.x, of[2] + bias.y);
            if (row + 8 * n + 1 < count)
                *(float2 *)(to + p.out_stride) = make_float2(of[1] + bias.x, of[3] + bias.y);
        }
        to += 8 * p.out_stride;
    }
}

/* Multiplies the stage, which is there, as is its first tile of weights. Up to three instructions
 * are under way; the next one's tile is loaded meanwhile, in registers of one that is done. Loads
 * the first tile of the next stage, too, if it `goes_on`. */
template <enum product_kind KIND, int N>
__device__ static void stage_multiply(float sum[N / 2], uint32_t a[STAGE_TILES][4],
                                      struct ring *ring, struct warp_tiles tiles, bool is_first,
                                      bool goes_on)
{
    struct ring_memory *memory = ring->memory;
    int stage = ring->stage;
    wgmma_rows rows = wgmma_rows_at(memory->inputs[stage]);
    const unsigned char *weights = memory->weights[stage] + tiles.at;
    ring_next(ring);
#pragma unroll
    for (int j = 0; j < STAGE_TILES; j++) {
        wgmma_fence();
        wgmma<N>(sum, a[j], wgmma_columns(rows, j * PACK_BLOCK), j > 0 || !is_first);
        wgmma_commit();
        if (j + 1 < STAGE_TILES) {
            tile_load<KIND>(a[j + 1], weights + (j + 1) * tiles.step);
        } else if (goes_on) {
            ring_wait_full(ring);
            tile_load<KIND>(a[0], memory->weights[ring->stage] + tiles.at);
        }
        wgmma_wait<2>();
        if (j == 1 && !is_first)
            stage_release(memory, stage == 0 ? STAGES - 1 : stage - 1);
    }
}

/* The piece whose first stage is there. */
template <enum product_kind KIND, int N>
__device__ static void multiply(const struct product &p, int known, struct ring *ring,
                                struct warp_tiles tiles)
{
    float sum[N / 2] = {}, total[N / 2];
    uint32_t a[STAGE_TILES][4];
    struct ring_memory *memory = ring->memory;
    int stages = p.tile_count / STAGE_TILES, rest = p.tile_count % STAGE_TILES;
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        total[i] = -0.0f; /* what is added to it stays as it is */
    tile_load<KIND>(a[0], memory->weights[ring->stage] + tiles.at);
#pragma unroll 1
    for (int first = 0; first * STAGE_TILES < p.tile_count; first += PART_STAGES) {
        int count = min(stages - first, PART_STAGES);
#pragma unroll 1
        for (int s = 0; s < count; s++) {
            stage_multiply<KIND, N>(sum, a, ring, tiles, s == 0,
                                    first + s + 1 < stages + (rest > 0));
        }
        wgmma_wait_for<0>(sum);
        if (count > 0)
            stage_release(memory, (ring->stage + STAGES - 1) % STAGES);
        if (count < PART_STAGES && rest > 0) {
            wgmma_rows rows = wgmma_rows_at(memory->inputs[ring->stage]);
            const unsigned char *weights = memory->weights[ring->stage] + tiles.at;
#pragma unroll 1
            for (int j = 0; j < rest; j++) {
                tile_load<KIND>(a[0], weights + j * tiles.step);
                wgmma_fence();
                wgmma<N>(sum, a[0], wgmma_columns(rows, j * PACK_BLOCK), count + j > 0);
                wgmma_commit();
                wgmma_wait_for<0>(sum);
            }
            stage_release(memory, ring->stage);
            ring_next(ring);
        }
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            total[i] += sum[i];
    }
    sums_write<KIND, N>(p, memory->pieces[known], total);
}

/* Four warps, for all pieces of the block. */
template <enum product_kind KIND>
__device__ static void team_run(const struct product &p, struct ring_memory *memory)
{
    struct ring ring = {memory, 0, 0};
    struct warp_tiles tiles = warp_tiles_of<KIND>(p);
    for (int known = 0;; known = (known + 1) % PIECES_KNOWN) {
        ring_wait_full(&ring);
        int count = memory->pieces[known].rows.count;
        if (count == 0)
            return;
        if (count <= 64)
            multiply<KIND, 64>(p, known, &ring, tiles);
        else if (count <= 128)
            multiply<KIND, 128>(p, known, &ring, tiles);
        else if (count <= 160)
            multiply<KIND, 160>(p, known, &ring, tiles);
        else
            multiply<KIND, ROWS_MOST>(p, known, &ring, tiles);
    }
}

template <enum product_kind KIND>
__global__ void __launch_bounds__(THREADS, 1) KERNEL_CLUSTER
    product_wgmma_kernel(const struct product p, const unsigned char *arranged,
                         int64_t arranged_count)
{
    KERNEL_SHARED_ALIGNED(struct ring_memory, memory, RING_ALIGN);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            phase_init(&memory->full[i], 2); /* weights and inputs */
            phase_init(&memory->free[i], CLUSTER * PANELS);
        }
        phase_init_fence();
    }
    __syncthreads();
    cluster_sync(); /* the barriers are there in all blocks */
    if (threadIdx.x < 2 * TEAM) {
        registers_take<REGISTERS_MULTIPLY>();
        team_run<KIND>(p, memory);
    } else {
        registers_give<REGISTERS_BRING>();
        if (warp_id() == 2 * TEAM_WARPS) {
            if (is_by_input<KIND>(p))
                weights_bring<KIND, true>(p, memory);
            else
                weights_bring<KIND, false>(p, memory);
        } else if (warp_id() == 2 * TEAM_WARPS + 1)
            inputs_bring<KIND>(p, arranged, arranged_count, memory);
    }
    cluster_sync(); /* nobody arrives in a block that is gone */
}

/* ---- Inputs as bf16 -------------------------------------------------------------------------- */

#define ARRANGE_THREADS 256
#define ARRANGE_WARPS   (ARRANGE_THREADS / WARP)
#define PIECE_BYTES     16 /* eight inputs */
#define ROW_PIECES      (WGMMA_ROW_BYTES / PIECE_BYTES)

/* The group that has an arranged row. All lanes call it. */
__device__ static int arranged_group(const struct product &p, int64_t row)
{
    int begun = 0;
    for (int first = 0; first < p.group_count; first += WARP) {
        int g = first + lane_id();
        bool has_begun = g < p.group_count && arranged_first(p.offsets[g], g) <= row;
        begun += __popc(__ballot_sync(ALL_LANES, has_begun));
    }
    return begun - 1;
}

/* Of each stage of columns all rows: [stage][arranged row][64 columns], as wgmma_rows. A warp takes
 * a row. Behind a group's last one there is again that one, up to a whole ROW_GROUP; groups that
 * are not multiplied here stay unset. */
template <enum product_kind KIND>
__global__ void __launch_bounds__(ARRANGE_THREADS)
    product_arrange_kernel(const struct product p, unsigned char *out, int64_t arranged_count)
{
    int pieces = p.tile_count * PACK_BLOCK * (int)sizeof(uint16_t) / PIECE_BYTES;
    int64_t row = (int64_t)blockIdx.x * ARRANGE_WARPS + warp_id();
    int64_t positions = KIND == PRODUCT_MATMUL ? p.row_count : p.offsets[p.group_count];
    product_groups_count<KIND>(p);
    for (; row < arranged_rows(positions, p.group_count); row += gridDim.x * ARRANGE_WARPS) {
        int group = KIND == PRODUCT_MATMUL ? 0 : arranged_group(p, row);
        struct product_rows rows = product_rows_of<KIND>(p, group);
        int at = (int)(row - arranged_first(rows.first, group));
        if (rows.count <= p.flat_rows || at >= parts_of(rows.count, ROW_GROUP) * ROW_GROUP)
            continue;
        const float4 *from =
            (const float4 *)product_input<KIND>(p, rows.first + min(at, rows.count - 1));
        unsigned char *to = out + row / ROW_GROUP * ROW_GROUP * WGMMA_ROW_BYTES;
#pragma unroll 2
        for (int i = lane_id(); i < pieces; i += WARP) {
            float4 low = from[2 * i], high = from[2 * i + 1];
            int64_t to_piece = i / ROW_PIECES * arranged_count * WGMMA_ROW_BYTES +
                               wgmma_place((int)(row % ROW_GROUP), i % ROW_PIECES);
            *(uint4 *)(to + to_piece) =
                make_uint4(bf16_pair(low.x, low.y), bf16_pair(low.z, low.w),
                           bf16_pair(high.x, high.y), bf16_pair(high.z, high.w));
        }
    }
}

template <enum product_kind KIND>
static cudaError_t product_wgmma_launch(const struct cuda_launch *launch, const struct product *p)
{
    const void *kernel = (const void *)product_wgmma_kernel<KIND>;
    cudaError_t failure = product_allow(launch, kernel);
    if (failure != cudaSuccess)
        return failure;
    unsigned char *arranged = (unsigned char *)launch->scratch;
    int64_t count = arranged_rows(p->position_most, p->group_count);
    int blocks = (launch->multiprocessors + CLUSTER - 1) / CLUSTER * CLUSTER;
    KERNEL_LAUNCH((product_arrange_kernel<KIND>), (unsigned)(launch->multiprocessors * 8),
                  ARRANGE_THREADS, 0, launch->stream, *p, arranged, count);
    KERNEL_LAUNCH((product_wgmma_kernel<KIND>), (unsigned)blocks, THREADS,
                  sizeof(struct ring_memory) + SHARED_SLACK(RING_ALIGN), launch->stream, *p,
                  arranged, count);
    return cudaGetLastError();
}

size_t product_wgmma_scratch(int64_t position_most, int group_count, int tile_count)
{
    int64_t stages = ceil_div(tile_count, STAGE_TILES);
    return (size_t)(stages * arranged_rows(position_most, group_count) * WGMMA_ROW_BYTES);
}

cudaError_t product_wgmma(const struct cuda_launch *launch, const struct product *p,
                          enum product_kind kind)
{
    if (kind == PRODUCT_UP)
        return product_wgmma_launch<PRODUCT_UP>(launch, p);
    if (kind == PRODUCT_DOWN)
        return product_wgmma_launch<PRODUCT_DOWN>(launch, p);
    return product_wgmma_launch<PRODUCT_MATMUL>(launch, p);
}
