/* Operations as they are launched: shapes become arguments. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "measure/meter_state.h"

#define INT4_GROUP_WEIGHTS 64 /* as of a backup that nobody gave another group */
#define NORM_EPSILON       1e-6f
#define DEQUANTIZE_COLUMNS 2048 /* about */
#define SIZE_MAX_SANE      ((int64_t)1 << 31)

static int64_t aligned(int64_t bytes)
{
    return round_up(bytes, 64);
}

/* ---- Weights --------------------------------------------------------------------------------- */

/* A matrix whose numbers begin at `place`; behind them its scales. */
static struct matrix matrix_at(const char *place, enum packing packing, enum dtype dtype,
                               int64_t rows, int64_t columns)
{
    struct matrix matrix = {
        .data = place, .dtype = dtype, .packing = packing, .rows = rows, .columns = columns};
    if (dtype == DTYPE_INT4) {
        matrix.scales = (const uint16_t *)(place + aligned(packed_bytes(rows, columns, dtype)));
        matrix.group = INT4_GROUP_WEIGHTS;
    }
    return matrix;
}

/* From one matrix to the next. */
static int64_t matrix_room(enum packing packing, enum dtype dtype, int64_t rows, int64_t columns)
{
    int64_t numbers = aligned(packed_bytes(rows, columns, dtype));
    if (dtype != DTYPE_INT4)
        return numbers;
    int64_t scales = packed_scale_count(packing, rows, columns, INT4_GROUP_WEIGHTS);
    return numbers + aligned(scales * (int64_t)sizeof(uint16_t));
}

static int64_t up_room(const struct work_shape *work)
{
    return matrix_room(PACK_OUTPUT, work->dtype, work->dims[2], work->dims[3]);
}

static int64_t down_room(const struct work_shape *work)
{
    return matrix_room(PACK_INPUT, work->dtype, work->dims[3], work->dims[2]);
}

static struct matrix up_at(const char *place, const struct work_shape *work)
{
    return matrix_at(place, PACK_OUTPUT, work->dtype, work->dims[2], work->dims[3]);
}

static struct matrix down_at(const char *place, const struct work_shape *work)
{
    return matrix_at(place, PACK_INPUT, work->dtype, work->dims[3], work->dims[2]);
}

/* ---- Segments of attention ------------------------------------------------------------------- */

/* With n segments of p rows each, of t tokens, rows = n p, seen = n t, and of the pairs each row
 * has t - (p - 1) / 2 on the mean. */
static int64_t segments_of(const struct work_shape *work)
{
    double rows = (double)work->dims[0], mean = (double)work->dims[1] / rows;
    double count = ((double)work->dims[2] - rows / 2) / fmax(mean - 0.5, 0.5);
    double most = fmin(rows, (double)work->dims[2]);
    return (int64_t)fmin(fmax(nearbyint(count), 1), most);
}

/* Of `total`, the share of one of `count` that are as even as can be. */
static int64_t even_share(int64_t total, int64_t count, int64_t index)
{
    return total / count + (index < total % count);
}

static int64_t segment_tokens(const struct work_shape *work, int64_t count, int64_t index)
{
    int64_t rows = even_share(work->dims[0], count, index);
    int64_t tokens = even_share(work->dims[2], count, index);
    return tokens > rows ? tokens : rows;
}

/* By how much a context is longer or shorter than the mean at most: half a page in decode. */
static int64_t contexts_spread(const struct work_shape *work, int64_t count)
{
    bool is_decode = work->dims[1] == work->dims[2];
    int64_t least = work->dims[2] / count - 1;
    return !is_decode ? 0 : least < KV_PAGE_TOKENS / 2 ? least : KV_PAGE_TOKENS / 2;
}

int64_t meter_context(const struct work_shape *work, int64_t count, int64_t index, int launch)
{
    int phase = 0;
    for (int bit = 1; bit < METER_CONTEXTS; bit <<= 1) /* one far from the last each time */
        phase = 2 * phase + ((launch & bit) != 0);
    double place =
        ((double)(index * METER_CONTEXTS + phase) + 0.5) / (double)(count * METER_CONTEXTS);
    double apart = (2 * place - 1) * (double)contexts_spread(work, count);
    return segment_tokens(work, count, index) + (int64_t)nearbyint(apart);
}

static int64_t page_count(const struct work_shape *work, int64_t count)
{
    int64_t most = segment_tokens(work, count, 0) + contexts_spread(work, count);
    return count * ceil_div(most, KV_PAGE_TOKENS);
}

static struct kv_layer kv_of(const struct work_shape *work)
{
    return (struct kv_layer){
        .dtype = work->dtype, .kv_head_count = work->dims[4], .head_dim = work->dims[5]};
}

/* Of keys, or of values. */
static int64_t kv_room(const struct work_shape *work, int64_t count)
{
    struct kv_layer kv = kv_of(work);
    return aligned(kv_page_values(&kv) * dtype_bytes(work->dtype) * page_count(work, count));
}

static struct kv_layer kv_at(char *place, const struct work_shape *work, int64_t count)
{
    struct kv_layer kv = kv_of(work);
    kv.keys = place;
    kv.values = place + kv_room(work, count);
    return kv;
}

static int64_t qkv_stride(const struct work_shape *work)
{
    return round_up((work->dims[3] + 2 * work->dims[4]) * work->dims[5], PACK_BLOCK);
}

/* ---- What it takes --------------------------------------------------------------------------- */

/* Of the matrix that is dequantized: as many blocks of rows as come nearest, and columns in whole
 * groups, so that it has the values that were asked for, or next to nothing more. */
static int64_t dequantize_rows(const struct work_shape *work)
{
    int64_t block = PACK_BLOCK * DEQUANTIZE_COLUMNS, blocks = (work->dims[0] + block / 2) / block;
    return blocks < 1 ? PACK_BLOCK : blocks * PACK_BLOCK;
}

static int64_t dequantize_columns(const struct work_shape *work)
{
    return round_up(ceil_div(work->dims[0], dequantize_rows(work)), INT4_GROUP_WEIGHTS);
}

static struct matrix dequantize_at(const char *place, const struct work_shape *work)
{
    return matrix_at(place, PACK_OUTPUT, DTYPE_INT4, dequantize_rows(work),
                     dequantize_columns(work));
}

static int64_t dequantized_room(const struct work_shape *work)
{
    return aligned(packed_bytes(dequantize_rows(work), dequantize_columns(work), DTYPE_BF16));
}

/* Room for a launch's weights or cache. */
static int64_t weight_room(const struct work_shape *work)
{
    const int64_t *dims = work->dims;
    switch (work->kind) {
    case WORK_MATMUL:
        return matrix_room(PACK_OUTPUT, work->dtype, dims[1], dims[2]);
    case WORK_FFN_UP:
        return 2 * dims[1] * up_room(work);
    case WORK_FFN_DOWN:
        return dims[1] * down_room(work);
    case WORK_ATTENTION:
        return 2 * kv_room(work, segments_of(work));
    case WORK_ROWS:
        return aligned(round_up(dims[1], PACK_BLOCK) * (int64_t)sizeof(float));
    case WORK_DEQUANTIZE:
        return matrix_room(PACK_OUTPUT, DTYPE_INT4, dequantize_rows(work),
                           dequantize_columns(work));
    default:
        return 0;
    }
}

/* Bytes of the larger of what goes in and what comes out. */
static int64_t activation_room(const struct work_shape *work)
{
    int64_t rows = work->dims[0], widest = 0;
    switch (work->kind) {
    case WORK_MATMUL:
        widest = work->dims[1] > work->dims[2] ? work->dims[1] : work->dims[2];
        break;
    case WORK_FFN_UP:
    case WORK_FFN_DOWN:
        widest = work->dims[2] > work->dims[3] ? work->dims[2] : work->dims[3];
        break;
    case WORK_ATTENTION:
        widest = qkv_stride(work);
        break;
    case WORK_ROWS:
        widest = work->dims[1];
        break;
    default:
        break;
    }
    return rows * round_up(widest, PACK_BLOCK) * (int64_t)sizeof(float);
}

static bool is_dtype_known(const struct work_shape *work)
{
    bool is_ffn = work->kind == WORK_FFN_UP || work->kind == WORK_FFN_DOWN;
    if (work->kind == WORK_ROWS)
        return work->dtype == DTYPE_F32;
    if (work->kind == WORK_DEQUANTIZE)
        return work->dtype == DTYPE_INT4;
    return work->dtype == DTYPE_F32 || work->dtype == DTYPE_BF16 ||
           (is_ffn && work->dtype == DTYPE_INT4);
}

static bool are_dims_sane(const struct work_shape *work)
{
    static const int dim_counts[WORK_KIND_COUNT] = {
        [WORK_MATMUL] = 3,   [WORK_ATTENTION] = 6, [WORK_FFN_UP] = 4,
        [WORK_FFN_DOWN] = 4, [WORK_ROWS] = 2,      [WORK_DEQUANTIZE] = 1,
    };
    for (int d = 0; d < dim_counts[work->kind]; d++) {
        if (work->dims[d] < 1 || work->dims[d] > SIZE_MAX_SANE)
            return false;
    }
    const int64_t *dims = work->dims;
    if (work->kind == WORK_ATTENTION)
        return dims[3] % dims[4] == 0 && dims[5] % 2 == 0 && dims[2] >= 1;
    bool is_ffn = work->kind == WORK_FFN_UP || work->kind == WORK_FFN_DOWN;
    bool is_padded = work->dtype == DTYPE_INT4 && is_ffn &&
                     (dims[2] % PACK_BLOCK != 0 || dims[3] % PACK_BLOCK != 0);
    return !is_padded && (!is_ffn || dims[0] >= dims[1]);
}

/* Whether sizes are so small that bytes can be counted: what no memory holds is told by reals. */
static bool is_countable(const struct work_shape *work)
{
    const double most = 0x1p46;
    double dims[WORK_SHAPE_DIMS];
    for (int d = 0; d < WORK_SHAPE_DIMS; d++)
        dims[d] = (double)work->dims[d];
    switch (work->kind) {
    case WORK_MATMUL:
        return dims[0] * fmax(dims[1], dims[2]) < most && dims[1] * dims[2] < most;
    case WORK_ATTENTION:
        return fmax(dims[0], dims[2]) * fmax(dims[3], dims[4]) * dims[5] < most &&
               dims[1] * dims[3] * dims[5] < 0x1p60;
    case WORK_FFN_UP:
    case WORK_FFN_DOWN:
        return dims[0] * fmax(dims[2], dims[3]) < most && dims[1] * dims[2] * dims[3] < most;
    default:
        return dims[0] * fmax(dims[1], 1) < most;
    }
}

/* Weights have METER_WEIGHT_PARTS of METER_PARTS; of what is dequantized, in and out each half. */
uint64_t meter_rank_bytes(const struct work_shape *work)
{
    if (work->kind <= WORK_OTHER || work->kind >= WORK_KIND_COUNT || !is_dtype_known(work) ||
        !are_dims_sane(work) || !is_countable(work))
        return UINT64_MAX;
    int64_t weights = weight_room(work), activations = activation_room(work);
    if (work->kind == WORK_DEQUANTIZE) {
        int64_t out = dequantized_room(work);
        weights = 2 * (weights > out ? weights : out);
        activations = 0;
    }
    int64_t part = ceil_div(weights, METER_WEIGHT_PARTS);
    return METER_PARTS * (uint64_t)aligned(part > activations ? part : activations);
}

bool meter_holds(const struct meter *meter, const struct work_shape *work)
{
    return meter_rank_bytes(work) <= METER_PARTS * (uint64_t)meter->activation_bytes;
}

/* ---- Launches -------------------------------------------------------------------------------- */

static void put_matmul(struct meter_rank *rank, const struct meter_job *job)
{
    const int64_t *dims = job->work.dims;
    struct op_matmul op = {
        .out = rank->out,
        .in = rank->in,
        .weight =
            matrix_at(meter_next_weights(rank), PACK_OUTPUT, job->work.dtype, dims[1], dims[2]),
        .row_count = dims[0],
        .out_stride = round_up(dims[1], PACK_BLOCK),
        .in_stride = round_up(dims[2], PACK_BLOCK),
    };
    rank->device->ops->matmul(rank->device->stream, &op);
}

static const struct ffn_weights *next_groups(struct meter_rank *rank, const struct meter_job *job)
{
    return rank->groups + rank->launched++ % rank->variant_count * job->work.dims[1];
}

static void put_ffn_up(struct meter_rank *rank, const struct meter_job *job)
{
    const int64_t *dims = job->work.dims;
    struct op_ffn_up op = {
        .out = rank->out,
        .in = rank->in,
        .groups = next_groups(rank, job),
        .offsets = rank->offsets,
        .token_of = dims[1] > 1 ? rank->token_of : NULL,
        .position_most = dims[0],
        .group_count = dims[1],
        .row_limit = dims[0],
        .out_stride = round_up(dims[2], PACK_BLOCK),
        .in_stride = round_up(dims[3], PACK_BLOCK),
    };
    rank->device->ops->ffn_up(rank->device->stream, &op);
}

static void put_ffn_down(struct meter_rank *rank, const struct meter_job *job)
{
    const int64_t *dims = job->work.dims;
    struct op_ffn_down op = {
        .out = rank->out,
        .in = rank->in,
        .groups = next_groups(rank, job),
        .offsets = rank->offsets,
        .position_most = dims[0],
        .group_count = dims[1],
        .row_limit = dims[0],
        .out_stride = round_up(dims[3], PACK_BLOCK),
        .in_stride = round_up(dims[2], PACK_BLOCK),
    };
    rank->device->ops->ffn_down(rank->device->stream, &op);
}

static void put_attention(struct meter_rank *rank, const struct meter_job *job)
{
    const int64_t *dims = job->work.dims;
    int64_t launch = rank->launched % METER_CONTEXTS; /* the next weights count it */
    struct op_attention op = {
        .out = rank->out,
        .out_stride = round_up(dims[3] * dims[5], PACK_BLOCK),
        .qkv = {.values = rank->in,
                .stride = qkv_stride(&job->work),
                .k_offset = dims[3] * dims[5],
                .v_offset = (dims[3] + dims[4]) * dims[5],
                .head_count = dims[3],
                .kv_head_count = dims[4],
                .head_dim = dims[5]},
        .kv = kv_at(meter_next_weights(rank), &job->work, job->segment_count),
        .segments = rank->segments + launch * job->segment_count,
        .segment_count = job->segment_count,
    };
    rank->device->ops->attention(rank->device->stream, &op);
}

/* Launches take places for their rows in turn, as far as there is room: about as many other arrays
 * of rows are used in a layer before the same one is used again. So few rows are still in a cache,
 * and many are not, as in a pass. meter_next_weights counts the launch. */
#define ROWS_PLACES 8

static void put_rows(struct meter_rank *rank, const struct meter_job *job)
{
    const int64_t *dims = job->work.dims;
    int64_t stride = round_up(dims[1], PACK_BLOCK), values = dims[0] * stride;
    int64_t room = job->meter->activation_bytes / (values * (int64_t)sizeof(float));
    int64_t place = rank->launched % (room < ROWS_PLACES ? room : ROWS_PLACES) * values;
    float *in = rank->in + place, *out = rank->out + place;
    struct op_rms_norm norm = {
        .out = out,
        .in = in,
        .weight = (const float *)meter_next_weights(rank),
        .row_count = dims[0],
        .dim = dims[1],
        .stride = stride,
        .epsilon = NORM_EPSILON,
    };
    struct op_add add = {.out = in, .in = out, .row_count = dims[0], .stride = stride};
    rank->device->ops->rms_norm(rank->device->stream, &norm);
    rank->device->ops->add(rank->device->stream, &add);
}

/* Into the upper half of the weights, from the lower: scales never come from what was made of
 * scales, and so never grow. */
static void put_dequantize(struct meter_rank *rank, const struct meter_job *job)
{
    int64_t variant = rank->launched++ % rank->variant_count;
    int64_t half = rank->weight_bytes / 2 / 64 * 64;
    struct op_dequantize op = {
        .out = rank->weights + half + variant * dequantized_room(&job->work),
        .dtype = DTYPE_BF16,
        .in = dequantize_at(rank->weights + variant * rank->variant_bytes, &job->work),
    };
    rank->device->ops->dequantize(rank->device->stream, &op);
}

/* ---- Arrays of a point ----------------------------------------------------------------------- */

/* One row for each expert, and the rest at random: as routers choose, and the same for every rank.
 */
static void offsets_fill(int32_t *offsets, int32_t *token_of, const struct work_shape *work)
{
    int64_t rows = work->dims[0], experts = work->dims[1];
    struct random random = {.seed = 1};
    memset(offsets, 0, (size_t)(experts + 1) * sizeof *offsets);
    for (int64_t row = 0; row < rows; row++) {
        int64_t expert = row < experts ? row : (int64_t)random_below(&random, (uint64_t)experts);
        offsets[expert + 1]++;
    }
    for (int64_t e = 0; e < experts; e++)
        offsets[e + 1] += offsets[e];
    for (int64_t row = 0; row < rows; row++)
        token_of[row] = (int32_t)random_below(&random, (uint64_t)rows);
}

/* Small host arrays to the device, through its pool for copies. */
static enum status ints_send(int32_t **out, struct meter_rank *rank, const int32_t *values,
                             int64_t count, struct error *err)
{
    const struct device_ops *ops = rank->device->ops;
    int64_t bytes = count * (int64_t)sizeof *values;
    void *host;
    TRY(ops->memory_get(rank->device, (void **)out, (size_t)bytes, "what is measured", err));
    TRY(ops->host_memory_get(rank->device, &host, (size_t)bytes, "what is measured", err));
    memcpy(host, values, (size_t)bytes);
    ops->copy(rank->device->stream, &(struct op_copy){.out = *out, .in = host, .bytes = bytes});
    enum status status = ops->synchronize(rank->device->stream, err);
    ops->host_memory_free(rank->device, host);
    return status;
}

static enum status offsets_send(struct meter_rank *rank, const struct work_shape *work,
                                struct error *err)
{
    int32_t *values;
    int64_t experts = work->dims[1], rows = work->dims[0];
    TRY(memory_get((void **)&values, (size_t)(experts + 1 + rows), sizeof *values,
                   "what is measured", err));
    offsets_fill(values, values + experts + 1, work);
    enum status status = ints_send(&rank->offsets, rank, values, experts + 1, err);
    if (status == STATUS_OK)
        status = ints_send(&rank->token_of, rank, values + experts + 1, rows, err);
    memory_free(values);
    return status;
}

static enum status groups_get(struct meter_rank *rank, const struct work_shape *work,
                              struct error *err)
{
    int64_t experts = work->dims[1];
    bool is_up = work->kind == WORK_FFN_UP;
    TRY(memory_get((void **)&rank->groups, (size_t)(rank->variant_count * experts),
                   sizeof *rank->groups, "what is measured", err));
    for (int64_t v = 0; v < rank->variant_count; v++) {
        char *place = rank->weights + v * rank->variant_bytes;
        for (int64_t e = 0; e < experts; e++) {
            /* What a kernel asks about shapes, it may ask of any of the three. */
            rank->groups[v * experts + e] = (struct ffn_weights){
                .gate = up_at(place, work),
                .up = up_at(is_up ? place + up_room(work) : place, work),
                .down = down_at(place, work),
            };
            place += is_up ? 2 * up_room(work) : down_room(work);
        }
    }
    return offsets_send(rank, work, err);
}

static enum status segments_get(struct meter_rank *rank, const struct meter_job *job,
                                struct error *err)
{
    const struct work_shape *work = &job->work;
    int64_t count = job->segment_count, pages = page_count(work, count), row = 0;
    TRY(memory_get((void **)&rank->segments, (size_t)(METER_CONTEXTS * count),
                   sizeof *rank->segments, "what is measured", err));
    TRY(memory_get((void **)&rank->pages, (size_t)pages, sizeof *rank->pages, "what is measured",
                   err));
    for (int64_t p = 0; p < pages; p++)
        rank->pages[p] = (int32_t)p;
    for (int64_t s = 0; s < count; s++) {
        int64_t rows = even_share(work->dims[0], count, s);
        for (int launch = 0; launch < METER_CONTEXTS; launch++)
            rank->segments[launch * count + s] =
                (struct segment){.first_row = row,
                                 .token_count = rows,
                                 .first_position = meter_context(work, count, s, launch) - rows,
                                 .pages = rank->pages + s * (pages / count)};
        row += rows;
    }
    return STATUS_OK;
}

static enum status point_begin(struct meter *meter, const struct meter_job *job, struct error *err)
{
    const struct work_shape *work = &job->work;
    int64_t room = weight_room(work);
    for (int r = 0; r < meter->rank_count; r++) {
        struct meter_rank *rank = &meter->ranks[r];
        rank->variant_bytes = room;
        rank->variant_count = rank->weight_bytes / room;
        if (work->kind == WORK_DEQUANTIZE) /* by the larger, what it makes */
            rank->variant_count = rank->weight_bytes / 2 / dequantized_room(work);
        if (work->kind == WORK_FFN_UP || work->kind == WORK_FFN_DOWN)
            TRY(groups_get(rank, work, err));
        if (work->kind == WORK_ATTENTION)
            TRY(segments_get(rank, job, err));
    }
    return STATUS_OK;
}

static void point_end(struct meter *meter)
{
    for (int r = 0; r < meter->rank_count; r++) {
        struct meter_rank *rank = &meter->ranks[r];
        rank->device->ops->memory_free(rank->device, rank->offsets);
        rank->device->ops->memory_free(rank->device, rank->token_of);
        memory_free(rank->groups);
        memory_free(rank->segments);
        memory_free(rank->pages);
        rank->offsets = rank->token_of = rank->pages = NULL;
        rank->groups = NULL;
        rank->segments = NULL;
    }
}

enum status meter_work(struct measured *out, struct meter *meter, const struct work_shape *work,
                       struct error *err)
{
    static void (*const puts[WORK_KIND_COUNT])(struct meter_rank *, const struct meter_job *) = {
        [WORK_MATMUL] = put_matmul, [WORK_ATTENTION] = put_attention,
        [WORK_FFN_UP] = put_ffn_up, [WORK_FFN_DOWN] = put_ffn_down,
        [WORK_ROWS] = put_rows,     [WORK_DEQUANTIZE] = put_dequantize,
    };
    struct meter_job job = {.put = puts[work->kind], .work = *work};
    ASSERT(meter_holds(meter, work));
    if (work->kind == WORK_ATTENTION)
        job.segment_count = segments_of(work);
    enum status status = point_begin(meter, &job, err);
    if (status == STATUS_OK)
        status = meter_sample(out, meter, &job, err);
    point_end(meter);
    return status;
}
