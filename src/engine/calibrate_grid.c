#include "engine/calibrate_grid.h"

#include <math.h>

#include "engine/calibrate_store.h"
#include "engine/profile_names.h"

/* ---- Shapes ---------------------------------------------------------------------------------- */

/* Of attention's shapes: what no axis tells. */
#define ATTENTION_KV_HEADS 4

#define ROW_BYTES (2 * sizeof(float)) /* of a value that is read and written */

static int64_t whole(double value)
{
    double least = fmax(nearbyint(value), 1);
    return (int64_t)fmin(least, 0x1p40);
}

/* Axes: rows of scores, tokens over rows (how much each row adds to what is there), heads over KV
 * heads, head_dim, and bytes or none. With segments of p rows and t tokens, a token is used by
 * u = p (1 - (p - 1) / 2t) rows, and there are as many rows of scores for each head of a KV head.
 * Few rows of scores are of fewer heads than the axis says: one row has no more. Of segments and KV
 * heads there are as many as have those bytes. */
static struct work_shape attention_work(const struct grid *grid,
                                        const double values[PROFILE_AXES_MAX])
{
    double scores = values[0], per_row = values[1], half = 0.5 / per_row;
    int64_t rows = whole((scores / values[2] - half) / (1 - half));
    int64_t tokens = whole(per_row * (double)rows);
    tokens = tokens < rows ? rows : tokens;
    int64_t pairs = whole((double)rows * ((double)tokens - (double)(rows - 1) / 2));
    int64_t heads = whole(fmin(scores * (double)tokens / (double)pairs, values[2]));
    struct work_shape one = {.kind = grid->kind,
                             .dtype = grid->dtype,
                             .dims = {rows, pairs, tokens, heads, 1, whole(values[3])}};
    double bytes = grid->axis_count > 4 ? values[4] : INFINITY;
    int64_t parts = whole(bytes / work_shape_bytes(&one));
    int64_t kv_heads = parts < ATTENTION_KV_HEADS ? parts : ATTENTION_KV_HEADS;
    int64_t most = grid->tokens_max / tokens, count = parts / kv_heads;
    most = most < 1 ? 1 : most > grid->segments_max ? grid->segments_max : most;
    count = count < most ? count : most;
    return (struct work_shape){.kind = grid->kind,
                               .dtype = grid->dtype,
                               .dims = {count * rows, count * pairs, count * tokens,
                                        kv_heads * heads, kv_heads, one.dims[5]}};
}

/* Axes: bytes, values of a row. */
static struct work_shape rows_work(const struct grid *grid, const double values[PROFILE_AXES_MAX])
{
    return (struct work_shape){
        .kind = grid->kind,
        .dtype = grid->dtype,
        .dims = {whole(values[0] / ROW_BYTES / values[1]), whole(values[1])}};
}

struct work_shape grid_work(const struct grid *grid, const double values[PROFILE_AXES_MAX])
{
    struct work_shape work = {.kind = grid->kind, .dtype = grid->dtype};
    if (grid->kind == WORK_ATTENTION)
        return attention_work(grid, values);
    if (grid->kind == WORK_ROWS && grid->axes[0].size == WORK_SIZE_BYTES)
        return rows_work(grid, values);
    /* Quotients behind what they are over. */
    for (int pass = 0; pass < 2; pass++) {
        for (int a = 0; a < grid->axis_count; a++) {
            const struct grid_axis *axis = &grid->axes[a];
            double over = axis->over < 0 ? 1 : (double)work.dims[axis->over];
            if ((axis->over >= 0) == (pass == 1))
                work.dims[axis->size] = whole(values[a] * over);
        }
    }
    return work;
}

/* ---- The grids ------------------------------------------------------------------------------- */

/* Vectors have their rate at 128 rows, AMX at some hundred: there memory is no longer waited for.
 */

#define MATMUL(dtype_)                                                                             \
    {                                                                                              \
        .kind = WORK_MATMUL, .dtype = (dtype_), .axis_count = 3, .points_max = 144,                \
        .axes = {{0, -1, 1, 4, {1, 8, 128, 512}},                                                  \
                 {1, -1, 16, 3, {64, 1024, 16384}},                                                \
                 {2, -1, 16, 2, {512, 4096}}},                                                     \
        .most_flops = {WORK_MATMUL, (dtype_), {128, 2048, 2048}},                                  \
        .most_bytes = {WORK_MATMUL, (dtype_), {1, 8192, 4096}},                                    \
        .least = {WORK_MATMUL, (dtype_), {1, 16, 64}},                                             \
    }

/* Rows of each expert, experts, the width of their slices, hidden. A batch in decode gives many
 * experts one row and some two: kernels for one row are others, so there is a point between. */
#define FFN(kind_, dtype_)                                                                         \
    {                                                                                              \
        .kind = (kind_), .dtype = (dtype_), .axis_count = 4, .points_max = 360,                    \
        .axes = {{0, 1, 1, 8, {1, 1.25, 2, 4, 8, 32, 128, 512}},                                   \
                 {1, -1, 1, 2, {1, 16}},                                                           \
                 {2, -1, 16, 5, {48, 96, 192, 768, 14336}},                                        \
                 {3, -1, 16, 2, {1024, 4096}}},                                                    \
        .most_flops = {(kind_), (dtype_), {128, 1, 2048, 2048}},                                   \
        .most_bytes = {(kind_), (dtype_), {8, 8, 1024, 4096}},                                     \
        .least = {(kind_), (dtype_), {1, 1, 16, 64}},                                              \
    }

/* No point is added: between the ends of its axes attention goes from memory's rate to the
 * processor's over the first tens of rows of scores, which two probes at the ends do not see. Bytes
 * are next to nothing, a part of a core's cache, as much as it holds (1 MiB), what the cores'
 * common one does, and more. Between one head and eight over each of the KV heads it is not
 * straight, since so many rows of scores are of fewer tokens: so there is a number between. */
#define ATTENTION(dtype_)                                                                          \
    {                                                                                              \
        .kind = WORK_ATTENTION, .dtype = (dtype_), .axis_count = 5, .points_max = 2310,            \
        .segments_max = 64, .tokens_max = 4096,                                                    \
        .axes =                                                                                    \
            {{WORK_SIZE_SCORE_ROWS, -1, 1, 11, {1, 2, 4, 8, 16, 48, 96, 256, 1024, 2048, 8192}},   \
             {2, 0, 1, 7, {1, 2, 8, 32, 96, 256, 1056}},                                           \
             {3, 4, 1, 3, {1, 4, 8}},                                                              \
             {5, -1, 32, 2, {64, 128}},                                                            \
             {WORK_SIZE_BYTES, -1, 1, 5, {1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24}}},          \
        .most_flops = {WORK_ATTENTION, (dtype_), {512, 131328, 512, 16, 4, 128}},                  \
        .most_bytes = {WORK_ATTENTION, (dtype_), {4, 16384, 16384, 16, 4, 128}},                   \
        .least = {WORK_ATTENTION, (dtype_), {1, 1, 1, 1, 1, 64}},                                  \
    }

static const struct grid grids[] = {
    MATMUL(DTYPE_BF16),
    FFN(WORK_FFN_UP, DTYPE_BF16),
    FFN(WORK_FFN_UP, DTYPE_INT4),
    FFN(WORK_FFN_DOWN, DTYPE_BF16),
    FFN(WORK_FFN_DOWN, DTYPE_INT4),
    ATTENTION(DTYPE_BF16),
    {
        .kind = WORK_ROWS,
        .dtype = DTYPE_F32,
        .axis_count = 2,
        .points_max = 64,
        /* One row has 8 KiB to 64, and is another thing than several. */
        .axes = {{WORK_SIZE_BYTES,
                  -1,
                  1 << 16,
                  7,
                  {1 << 13, 1 << 14, 1 << 15, 1 << 16, 1 << 19, 1 << 22, 1 << 26}},
                 {1, -1, 16, 4, {1024, 2048, 4096, 8192}}},
        .most_flops = {WORK_ROWS, DTYPE_F32, {256, 2048}},
        .most_bytes = {WORK_ROWS, DTYPE_F32, {256, 2048}},
        .least = {WORK_ROWS, DTYPE_F32, {1, 16}},
    },
    {
        .kind = WORK_DEQUANTIZE,
        .dtype = DTYPE_INT4,
        .axis_count = 1,
        .points_max = 12,
        .axes = {{0, -1, 32768, 6, {65536, 98304, 1 << 18, 1 << 20, 1 << 22, 1 << 25}}},
        .most_flops = {WORK_DEQUANTIZE, DTYPE_INT4, {1 << 22}},
        .most_bytes = {WORK_DEQUANTIZE, DTYPE_INT4, {1 << 22}},
        .least = {WORK_DEQUANTIZE, DTYPE_INT4, {32768}},
    },
};

/* Between one and eight MiB messages outgrow caches. */
static const int64_t collective_bytes[] = {256, 4096, 65536, 1 << 18, 1 << 20, 3 << 20, 8 << 20};

const struct calibrate_plan calibrate_plan_default = {
    .grids = grids,
    .grid_count = (int)(sizeof grids / sizeof *grids),
    .collective_bytes = collective_bytes,
    .collective_count = (int)(sizeof collective_bytes / sizeof *collective_bytes),
    .collective_points_max = 14,
    .file_bytes = (int64_t)256 << 20,
    .launch_seconds = 0.15,
    .tolerance = 0.03,
    .patience_seconds = 30,
    .point_seconds = 0.12,
    .sample_seconds = 2e-3,
};

const struct calibrate_plan *calibrate_plan_of(const struct engine_devices *devices)
{
    return devices->cuda ? &calibrate_plan_gpus : &calibrate_plan_default;
}

/* Rates are measured once, all else twice. */
int64_t calibrate_plan_points(const struct calibrate_plan *plan, int rank_count)
{
    int64_t rates = plan->file_bytes > 0 ? RATE_COUNT : 0, points = 0;
    for (int g = 0; g < plan->grid_count; g++)
        points += plan->grids[g].points_max;
    for (int size = 2; size <= rank_count && plan->collective_count > 0; size++) {
        if (rank_count % size == 0)
            points +=
                CALIBRATE_COLLECTIVES * plan->collective_points_max * (size < rank_count ? 2 : 1);
    }
    return rates + 2 * points;
}
