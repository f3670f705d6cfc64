#include "workload.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"

#define EPSILON 1e-5f

/* ---- Memory and random values -------------------------------------------------------------- */

static void *own(struct workload *w, size_t count, size_t size)
{
    struct error err;
    enum status status = memory_reserve(&w->owned, &w->owned_capacity, w->owned_count + 1,
                                        sizeof *w->owned, "a workload", &err);
    void *memory = memory_alloc(count, size);
    ASSERT(status == STATUS_OK && memory != NULL);
    w->owned[w->owned_count++] = memory;
    return memory;
}

static void *output_add(struct workload *w, void *data, size_t bytes)
{
    struct output *output = &w->outputs[w->output_count++];
    *output = (struct output){data, own(w, bytes, 1), bytes};
    memcpy(output->initial, data, bytes);
    return data;
}

static float uniform(struct random *random)
{
    return (float)(2 * random_unit(random_next(random)) - 1);
}

static float *values_new(struct workload *w, struct random *random, int64_t count, float scale)
{
    float *values = own(w, (size_t)count, sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = uniform(random) * scale;
    return values;
}

/* [rows][stride], zero between dim and stride. */
static float *rows_new(struct workload *w, struct random *random, int64_t rows, int64_t dim,
                       int64_t stride)
{
    float *values = values_new(w, random, rows * stride, 1);
    for (int64_t r = 0; r < rows; r++)
        memset(values + r * stride + dim, 0, (size_t)(stride - dim) * sizeof *values);
    return values;
}

/* Poisoned rows to write, and one more that stays as it is. */
static float *output_new(struct workload *w, int64_t rows, int64_t stride)
{
    int64_t count = (rows + 1) * stride;
    float *values = own(w, (size_t)count, sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = f32_from_bits(POISON_F32);
    return output_add(w, values, (size_t)count * sizeof *values);
}

static float *output_rows_new(struct workload *w, struct random *random, int64_t rows, int64_t dim,
                              int64_t stride)
{
    float *values = rows_new(w, random, rows, dim, stride);
    return output_add(w, values, (size_t)(rows * stride) * sizeof *values);
}

static int32_t *output_ints_new(struct workload *w, int64_t count)
{
    int32_t *values = own(w, (size_t)count, sizeof *values);
    return output_add(w, values, (size_t)count * sizeof *values);
}

static struct matrix matrix_new(struct workload *w, struct random *random, enum packing packing,
                                enum dtype dtype, int64_t rows, int64_t columns)
{
    int64_t count = packed_count(rows, columns);
    void *data = own(w, (size_t)count, (size_t)dtype_bytes(dtype));
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t column = 0; column < columns; column++) {
            int64_t at = packed_index(packing, dtype, rows, columns, row, column);
            float value = uniform(random);
            if (dtype == DTYPE_BF16)
                ((uint16_t *)data)[at] = bf16_from_f32(value);
            else
                ((float *)data)[at] = value;
        }
    }
    return (struct matrix){data, dtype, packing, rows, columns};
}

static int64_t stride_of(const struct workload *w, int64_t dim)
{
    return round_up(dim, PACK_BLOCK) + w->from->stride_extra;
}

/* ---- Operations on rows -------------------------------------------------------------------- */

static void create_embed(struct workload *w, struct random *random)
{
    const struct kernel_case *c = w->from;
    int32_t *ids = own(w, (size_t)c->token_count, sizeof *ids);
    for (int64_t t = 0; t < c->token_count; t++)
        ids[t] = (int32_t)random_below(random, (uint64_t)c->rows);
    ids[c->token_count - 1] = (int32_t)c->rows - 1;
    w->embed = (struct op_embed){
        .out = output_new(w, c->token_count, stride_of(w, c->columns)),
        .table = matrix_new(w, random, PACK_OUTPUT, c->dtype, c->rows, c->columns),
        .ids = ids,
        .token_count = c->token_count,
        .out_stride = stride_of(w, c->columns),
    };
    w->bytes = (double)(c->token_count * c->columns * (dtype_bytes(c->dtype) + 4));
}

static void create_rms_norm(struct workload *w, struct random *random)
{
    const struct kernel_case *c = w->from;
    int64_t stride = stride_of(w, c->columns);
    w->rms_norm = (struct op_rms_norm){
        .weight = values_new(w, random, c->columns, 2),
        .row_count = c->token_count,
        .dim = c->columns,
        .stride = stride,
        .epsilon = EPSILON,
    };
    if (c->option) {
        w->rms_norm.out = output_rows_new(w, random, c->token_count, c->columns, stride);
        w->rms_norm.in = w->rms_norm.out;
    } else {
        w->rms_norm.out = output_new(w, c->token_count, stride);
        w->rms_norm.in = rows_new(w, random, c->token_count, c->columns, stride);
    }
    w->bytes = (double)(c->token_count * c->columns * 8);
    w->flops = (double)(c->token_count * c->columns * 4);
}

static void create_add(struct workload *w, struct random *random)
{
    const struct kernel_case *c = w->from;
    int64_t stride = stride_of(w, c->columns);
    w->add = (struct op_add){
        .out = output_rows_new(w, random, c->token_count, c->columns, stride),
        .in = rows_new(w, random, c->token_count, c->columns, stride),
        .row_count = c->token_count,
        .stride = stride,
    };
    w->bytes = (double)(c->token_count * stride * 12);
    w->flops = (double)(c->token_count * stride);
}

static void create_matmul(struct workload *w, struct random *random)
{
    const struct kernel_case *c = w->from;
    float *bias = NULL;
    if (c->option)
        bias = rows_new(w, random, 1, c->rows, round_up(c->rows, PACK_BLOCK));
    w->matmul = (struct op_matmul){
        .out = output_new(w, c->token_count, stride_of(w, c->rows)),
        .in = rows_new(w, random, c->token_count, c->columns, stride_of(w, c->columns)),
        .weight = matrix_new(w, random, PACK_OUTPUT, c->dtype, c->rows, c->columns),
        .bias = bias,
        .row_count = c->token_count,
        .out_stride = stride_of(w, c->rows),
        .in_stride = stride_of(w, c->columns),
    };
    w->bytes = (double)packed_bytes(c->rows, c->columns, c->dtype);
    w->flops = 2.0 * (double)(c->token_count * c->rows * c->columns);
}

static void create_combine(struct workload *w, struct random *random)
{
    const struct kernel_case *c = w->from;
    int64_t stride = stride_of(w, c->columns), pairs = c->token_count * c->top_k;
    int32_t *position_of = own(w, (size_t)pairs, sizeof *position_of);
    for (int64_t p = 0; p < pairs; p++) { /* a random order, by inside-out shuffling */
        int64_t at = (int64_t)random_below(random, (uint64_t)p + 1);
        position_of[p] = position_of[at];
        position_of[at] = (int32_t)p;
    }
    w->combine = (struct op_combine){
        .out = output_new(w, c->token_count, stride),
        .in = rows_new(w, random, pairs, c->columns, stride),
        .position_of = position_of,
        .weights = values_new(w, random, pairs, 1),
        .token_count = c->token_count,
        .top_k = c->top_k,
        .stride = stride,
    };
    w->bytes = (double)((pairs + c->token_count) * stride * 4);
    w->flops = 2.0 * (double)(pairs * stride);
}

static void create_shared_add(struct workload *w, struct random *random)
{
    const struct kernel_case *c = w->from;
    int64_t stride = stride_of(w, c->columns);
    w->shared_add = (struct op_shared_add){
        .out = output_rows_new(w, random, c->token_count, c->columns, stride),
        .shared = rows_new(w, random, c->token_count, c->columns, stride),
        .in = rows_new(w, random, c->token_count, c->columns, stride),
        .gate = values_new(w, random, c->columns, 1),
        .token_count = c->token_count,
        .dim = c->columns,
        .stride = stride,
    };
    w->bytes = (double)(c->token_count * stride * 16);
    w->flops = 4.0 * (double)(c->token_count * stride);
}

static void create_gather(struct workload *w, struct random *random)
{
    const struct kernel_case *c = w->from;
    int64_t stride = stride_of(w, c->columns), in_rows = 2 * c->token_count;
    int32_t *rows = own(w, (size_t)c->token_count, sizeof *rows);
    for (int64_t r = 0; r < c->token_count; r++)
        rows[r] = (int32_t)random_below(random, (uint64_t)in_rows);
    w->gather = (struct op_gather){
        .out = output_new(w, c->token_count, stride),
        .in = rows_new(w, random, in_rows, c->columns, stride),
        .rows = rows,
        .row_count = c->token_count,
        .stride = stride,
    };
    w->bytes = (double)(c->token_count * stride * 8);
}

/* ---- Experts ------------------------------------------------------------------------------- */

/* Logits are multiples of 1/4, so that two are equal or far apart: ties are ties in any arithmetic.
 */
static void create_route(struct workload *w, struct random *random)
{
    const struct kernel_case *c = w->from;
    int64_t stride = stride_of(w, c->expert_count);
    float *logits = own(w, (size_t)(c->token_count * stride), sizeof *logits);
    for (int64_t i = 0; i < c->token_count * stride; i++)
        logits[i] = (float)random_below(random, 40) / 4 - 5;
    w->route = (struct op_route){
        .ids = output_ints_new(w, c->token_count * c->top_k),
        .weights = output_new(w, c->token_count, c->top_k),
        .logits = output_add(w, logits, (size_t)(c->token_count * stride) * sizeof *logits),
        .token_count = c->token_count,
        .expert_count = c->expert_count,
        .top_k = c->top_k,
        .logit_stride = stride,
        .normalize = c->option,
    };
    w->bytes = (double)(c->token_count * c->expert_count * 4);
}

static bool id_is_taken(const int32_t *ids, int64_t count, int32_t id)
{
    for (int64_t i = 0; i < count; i++) {
        if (ids[i] == id)
            return true;
    }
    return false;
}

/* top_k different experts for each token. */
static int32_t *expert_ids_new(struct workload *w, struct random *random)
{
    const struct kernel_case *c = w->from;
    int32_t *ids = own(w, (size_t)(c->token_count * c->top_k), sizeof *ids);
    for (int64_t t = 0; t < c->token_count; t++) {
        for (int64_t k = 0; k < c->top_k; k++) {
            int32_t *token_ids = ids + t * c->top_k, id;
            do {
                id = (int32_t)random_below(random, (uint64_t)c->expert_count);
                if (c->spread == SPREAD_FEW)
                    id -= id % 2;
                if (c->spread == SPREAD_LAST && k == 0)
                    id = (int32_t)c->expert_count - 1;
            } while (id_is_taken(token_ids, k, id));
            token_ids[k] = id;
        }
    }
    return ids;
}

static void create_group(struct workload *w, struct random *random)
{
    const struct kernel_case *c = w->from;
    int64_t pairs = c->token_count * c->top_k;
    uint64_t *loads = own(w, (size_t)c->expert_count, sizeof *loads);
    for (int64_t e = 0; e < c->expert_count; e++)
        loads[e] = (uint64_t)(100 * e);
    w->group = (struct op_group){
        .loads = output_add(w, loads, (size_t)c->expert_count * sizeof *loads),
        .offsets = output_ints_new(w, c->expert_count + 1),
        .token_of = output_ints_new(w, pairs),
        .position_of = output_ints_new(w, pairs),
        .ids = expert_ids_new(w, random),
        .token_count = c->token_count,
        .expert_count = c->expert_count,
        .top_k = c->top_k,
    };
    w->bytes = (double)(pairs * 12);
}

/* The rows of each expert, by one scan of all pairs for each: slow and clear. */
static int64_t expert_rows_new(struct workload *w, struct random *random, const int32_t **offsets,
                               const int32_t **token_of)
{
    const struct kernel_case *c = w->from;
    int32_t *starts = own(w, (size_t)c->expert_count + 1, sizeof *starts);
    *offsets = starts;
    *token_of = NULL;
    if (c->spread == SPREAD_DENSE) {
        starts[1] = (int32_t)c->token_count;
        return c->token_count;
    }
    const int32_t *ids = expert_ids_new(w, random);
    int32_t *tokens = own(w, (size_t)(c->token_count * c->top_k), sizeof *tokens);
    int32_t count = 0;
    for (int64_t e = 0; e < c->expert_count; e++) {
        starts[e] = count;
        for (int64_t p = 0; p < c->token_count * c->top_k; p++) {
            if (ids[p] == e)
                tokens[count++] = (int32_t)(p / c->top_k);
        }
    }
    starts[c->expert_count] = count;
    *token_of = tokens;
    return count;
}

static int64_t groups_with_rows(const int32_t *offsets, int64_t group_count)
{
    int64_t count = 0;
    for (int64_t g = 0; g < group_count; g++)
        count += offsets[g] < offsets[g + 1];
    return count;
}

static void create_ffn_up(struct workload *w, struct random *random)
{
    const struct kernel_case *c = w->from;
    const int32_t *offsets, *token_of;
    int64_t rows = expert_rows_new(w, random, &offsets, &token_of);
    struct ffn_weights *groups = own(w, (size_t)c->expert_count, sizeof *groups);
    for (int64_t e = 0; e < c->expert_count; e++) {
        groups[e].gate = matrix_new(w, random, PACK_OUTPUT, c->dtype, c->rows, c->columns);
        groups[e].up = matrix_new(w, random, PACK_OUTPUT, c->dtype, c->rows, c->columns);
    }
    w->ffn_up = (struct op_ffn_up){
        .out = output_new(w, rows, stride_of(w, c->rows)),
        .in = rows_new(w, random, c->token_count, c->columns, stride_of(w, c->columns)),
        .groups = groups,
        .offsets = offsets,
        .token_of = token_of,
        .group_count = c->expert_count,
        .out_stride = stride_of(w, c->rows),
        .in_stride = stride_of(w, c->columns),
    };
    w->row_count = rows;
    w->bytes = 2.0 * (double)(groups_with_rows(offsets, c->expert_count) *
                              packed_bytes(c->rows, c->columns, c->dtype));
    w->flops = 4.0 * (double)(rows * c->rows * c->columns);
}

static void create_ffn_down(struct workload *w, struct random *random)
{
    const struct kernel_case *c = w->from;
    const int32_t *offsets, *token_of;
    int64_t rows = expert_rows_new(w, random, &offsets, &token_of);
    struct ffn_weights *groups = own(w, (size_t)c->expert_count, sizeof *groups);
    for (int64_t e = 0; e < c->expert_count; e++)
        groups[e].down = matrix_new(w, random, PACK_INPUT, c->dtype, c->columns, c->rows);
    w->ffn_down = (struct op_ffn_down){
        .out = output_new(w, rows, stride_of(w, c->columns)),
        .in = rows_new(w, random, rows, c->rows, stride_of(w, c->rows)),
        .groups = groups,
        .offsets = offsets,
        .group_count = c->expert_count,
        .out_stride = stride_of(w, c->columns),
        .in_stride = stride_of(w, c->rows),
    };
    w->row_count = rows;
    w->bytes = (double)(groups_with_rows(offsets, c->expert_count) *
                        packed_bytes(c->columns, c->rows, c->dtype));
    w->flops = 2.0 * (double)(rows * c->rows * c->columns);
}

/* ---- Attention ----------------------------------------------------------------------------- */

static int64_t segments_count(const struct kernel_case *c)
{
    int64_t count = 0;
    while (count < CASE_SEGMENTS_MAX && c->segments[count].token_count > 0)
        count++;
    return count;
}

/* Pages of all segments, shuffled among themselves and among as many unused ones. */
static struct segment *segments_new(struct workload *w, struct random *random)
{
    const struct kernel_case *c = w->from;
    int64_t count = segments_count(c), used = 0, row = 0;
    struct segment *segments = own(w, (size_t)count, sizeof *segments);
    for (int64_t s = 0; s < count; s++)
        used +=
            ceil_div(c->segments[s].first_position + c->segments[s].token_count, KV_PAGE_TOKENS);
    w->page_count = 2 * used;
    int32_t *pages = own(w, (size_t)w->page_count, sizeof *pages);
    for (int64_t p = 0; p < w->page_count; p++) {
        int64_t at = (int64_t)random_below(random, (uint64_t)p + 1);
        pages[p] = pages[at];
        pages[at] = (int32_t)p;
    }
    for (int64_t s = 0; s < count; s++) {
        segments[s] = (struct segment){
            .first_row = row,
            .token_count = c->segments[s].token_count,
            .first_position = c->segments[s].first_position,
            .pages = pages,
        };
        row += segments[s].token_count;
        pages += ceil_div(segments[s].first_position + segments[s].token_count, KV_PAGE_TOKENS);
    }
    w->row_count = row;
    return segments;
}

static void kv_set(void *to, enum dtype dtype, int64_t index, float value)
{
    if (dtype == DTYPE_BF16)
        ((uint16_t *)to)[index] = bf16_from_f32(value);
    else
        ((float *)to)[index] = value;
}

static void *kv_memory_new(struct workload *w, const struct kv_layer *kv)
{
    int64_t count = kv_page_values(kv) * w->page_count;
    void *memory = own(w, (size_t)count, (size_t)dtype_bytes(kv->dtype));
    for (int64_t i = 0; i < count; i++) {
        if (kv->dtype == DTYPE_BF16)
            ((uint16_t *)memory)[i] = POISON_BF16;
        else
            ((uint32_t *)memory)[i] = POISON_F32;
    }
    return memory;
}

static struct kv_layer kv_new(struct workload *w)
{
    const struct kernel_case *c = w->from;
    struct kv_layer kv = {
        .dtype = c->dtype, .kv_head_count = c->kv_head_count, .head_dim = c->head_dim};
    kv.keys = kv_memory_new(w, &kv);
    kv.values = kv_memory_new(w, &kv);
    return kv;
}

/* Writes random keys and values of positions 0 .. of a segment's sequence as the header of ops.h
 * lays them out; the padding of a value row is zero, that of a key is left poisoned. */
static void kv_write(struct kv_layer *kv, const struct segment *segment, struct random *random)
{
    int64_t dim_stride = round_up(kv->head_dim, PACK_BLOCK);
    for (int64_t p = 0; p < segment->first_position + segment->token_count; p++) {
        int64_t slot = p % KV_PAGE_TOKENS;
        for (int64_t head = 0; head < kv->kv_head_count; head++) {
            int64_t base = (segment->pages[p / KV_PAGE_TOKENS] * kv->kv_head_count + head) *
                           dim_stride * KV_PAGE_TOKENS;
            for (int64_t d = 0; d < dim_stride; d++) {
                bool inside = d < kv->head_dim;
                if (inside)
                    kv_set(kv->keys, kv->dtype, base + d * KV_PAGE_TOKENS + slot, uniform(random));
                kv_set(kv->values, kv->dtype, base + slot * dim_stride + d,
                       inside ? uniform(random) : 0);
            }
        }
    }
}

/* The heads lie as in the executor: q, k and v each begin at a multiple of 16. */
static struct qkv qkv_new(struct workload *w, struct random *random, float scale, bool is_output)
{
    const struct kernel_case *c = w->from;
    int64_t q = round_up(c->head_count * c->head_dim, PACK_BLOCK);
    int64_t kv = round_up(c->kv_head_count * c->head_dim, PACK_BLOCK);
    int64_t stride = q + 2 * kv + c->stride_extra;
    float *values = values_new(w, random, w->row_count * stride, scale);
    if (is_output)
        output_add(w, values, (size_t)(w->row_count * stride) * sizeof *values);
    return (struct qkv){
        .values = values,
        .stride = stride,
        .k_offset = q,
        .v_offset = q + kv,
        .head_count = c->head_count,
        .kv_head_count = c->kv_head_count,
        .head_dim = c->head_dim,
    };
}

static void create_rope_append(struct workload *w, struct random *random)
{
    const struct kernel_case *c = w->from;
    struct op_rope_append *op = &w->rope_append;
    *op = (struct op_rope_append){.segments = segments_new(w, random),
                                  .segment_count = segments_count(c),
                                  .norm_epsilon = EPSILON};
    op->qkv = qkv_new(w, random, 1, true);
    op->kv = kv_new(w);
    size_t kv_bytes = (size_t)(kv_page_values(&op->kv) * w->page_count * dtype_bytes(op->kv.dtype));
    output_add(w, op->kv.keys, kv_bytes);
    output_add(w, op->kv.values, kv_bytes);
    if (c->option) {
        op->q_norm = values_new(w, random, c->head_dim, 2);
        op->k_norm = values_new(w, random, c->head_dim, 2);
    }
    float *rope = own(w, (size_t)(w->row_count * c->head_dim), sizeof *rope);
    for (int64_t t = 0; t < w->row_count; t++) {
        for (int64_t i = 0; i < c->head_dim / 2; i++) {
            float angle = 3 * uniform(random);
            rope[t * c->head_dim + i] = cosf(angle);
            rope[t * c->head_dim + c->head_dim / 2 + i] = sinf(angle);
        }
    }
    op->rope = rope;
    w->bytes = (double)(w->row_count * c->head_dim *
                        (c->head_count * 8 + c->kv_head_count * (8 + 2 * dtype_bytes(c->dtype))));
    w->flops = 3.0 * (double)(w->row_count * c->head_dim * (c->head_count + c->kv_head_count));
}

/* Positions that a token at `position` sees. */
static int64_t seen_count(int64_t position, int64_t window)
{
    return window > 0 && window < position + 1 ? window : position + 1;
}

static void create_attention(struct workload *w, struct random *random)
{
    const struct kernel_case *c = w->from;
    struct op_attention *op = &w->attention;
    int64_t stride = stride_of(w, c->head_count * c->head_dim);
    *op = (struct op_attention){.segments = segments_new(w, random),
                                .segment_count = segments_count(c),
                                .window = c->window,
                                .out_stride = stride};
    op->qkv = qkv_new(w, random, 8, false); /* scores with some spread */
    op->kv = kv_new(w);
    op->out = output_new(w, w->row_count, stride);
    for (int64_t s = 0; s < op->segment_count; s++) {
        const struct segment *segment = &op->segments[s];
        kv_write(&op->kv, segment, random);
        int64_t first = segment->first_position, last = first + segment->token_count - 1;
        int64_t oldest = first + 1 - seen_count(first, c->window);
        w->bytes += (double)((last + 1 - oldest) * c->kv_head_count * c->head_dim * 2 *
                             dtype_bytes(c->dtype));
        for (int64_t p = first; p <= last; p++)
            w->flops += 4.0 * (double)(seen_count(p, c->window) * c->head_count * c->head_dim);
    }
}

/* ---- All together -------------------------------------------------------------------------- */

void workload_create(struct workload *out, enum kernel_op op, const struct kernel_case *from)
{
    static void (*const create[OP_COUNT])(struct workload *, struct random *) = {
        [OP_EMBED] = create_embed,
        [OP_RMS_NORM] = create_rms_norm,
        [OP_ADD] = create_add,
        [OP_MATMUL] = create_matmul,
        [OP_ROPE_APPEND] = create_rope_append,
        [OP_ATTENTION] = create_attention,
        [OP_ROUTE] = create_route,
        [OP_GROUP] = create_group,
        [OP_FFN_UP] = create_ffn_up,
        [OP_FFN_DOWN] = create_ffn_down,
        [OP_COMBINE] = create_combine,
        [OP_SHARED_ADD] = create_shared_add,
        [OP_GATHER] = create_gather,
    };
    struct random random = {.seed = 1 + (uint64_t)op};
    *out = (struct workload){.op = op, .from = from, .row_count = from->token_count};
    if (op == OP_GROUP)
        out->row_count = 0;
    create[op](out, &random);
}

void workload_destroy(struct workload *workload)
{
    for (size_t i = 0; i < workload->owned_count; i++)
        memory_free(workload->owned[i]);
    memory_free(workload->owned);
    *workload = (struct workload){0};
}

void workload_reset(struct workload *workload)
{
    for (int i = 0; i < workload->output_count; i++)
        memcpy(workload->outputs[i].data, workload->outputs[i].initial, workload->outputs[i].bytes);
}

static void launch(struct device *device, const struct workload *w)
{
    const struct device_ops *ops = device->ops;
    switch (w->op) {
    case OP_EMBED:
        ops->embed(device->stream, &w->embed);
        break;
    case OP_RMS_NORM:
        ops->rms_norm(device->stream, &w->rms_norm);
        break;
    case OP_ADD:
        ops->add(device->stream, &w->add);
        break;
    case OP_MATMUL:
        ops->matmul(device->stream, &w->matmul);
        break;
    case OP_ROPE_APPEND:
        ops->rope_append(device->stream, &w->rope_append);
        break;
    case OP_ATTENTION:
        ops->attention(device->stream, &w->attention);
        break;
    case OP_ROUTE:
        ops->route(device->stream, &w->route);
        break;
    case OP_GROUP:
        ops->group(device->stream, &w->group);
        break;
    case OP_FFN_UP:
        ops->ffn_up(device->stream, &w->ffn_up);
        break;
    case OP_FFN_DOWN:
        ops->ffn_down(device->stream, &w->ffn_down);
        break;
    case OP_COMBINE:
        ops->combine(device->stream, &w->combine);
        break;
    case OP_SHARED_ADD:
        ops->shared_add(device->stream, &w->shared_add);
        break;
    case OP_GATHER:
        ops->gather(device->stream, &w->gather);
        break;
    case OP_COUNT:
        break;
    }
    struct error err;
    ASSERT(ops->synchronize(device->stream, &err) == STATUS_OK);
}

void workload_launch(struct workload *workload, struct device *device)
{
    launch(device, workload);
}

/* The segment of one token. */
static struct segment segment_of_row(const struct segment *segments, int64_t row)
{
    while (row >= segments->first_row + segments->token_count)
        segments++;
    struct segment one = *segments;
    one.first_row = row;
    one.first_position += row - segments->first_row;
    one.token_count = 1;
    return one;
}

/* All groups empty but the one that holds sorted position `row`. */
static void offsets_of_row(int32_t *out, const int32_t *offsets, int64_t group_count, int64_t row)
{
    for (int64_t g = 0; g <= group_count; g++)
        out[g] = (int32_t)(offsets[g] <= row ? row : row + 1);
}

void workload_launch_row(struct workload *workload, struct device *device, int64_t row)
{
    struct workload one = *workload;
    struct segment segment;
    int32_t offsets[256];
    ASSERT(workload->from->expert_count < 256 || workload->op == OP_ROUTE);
    switch (workload->op) {
    case OP_EMBED:
        one.embed.out += row * one.embed.out_stride;
        one.embed.ids += row;
        one.embed.token_count = 1;
        break;
    case OP_RMS_NORM:
        one.rms_norm.out += row * one.rms_norm.stride;
        one.rms_norm.in += row * one.rms_norm.stride;
        one.rms_norm.row_count = 1;
        break;
    case OP_ADD:
        one.add.out += row * one.add.stride;
        one.add.in += row * one.add.stride;
        one.add.row_count = 1;
        break;
    case OP_MATMUL:
        one.matmul.out += row * one.matmul.out_stride;
        one.matmul.in += row * one.matmul.in_stride;
        one.matmul.row_count = 1;
        break;
    case OP_ROPE_APPEND:
        segment = segment_of_row(one.rope_append.segments, row);
        one.rope_append.segments = &segment;
        one.rope_append.segment_count = 1;
        break;
    case OP_ATTENTION:
        segment = segment_of_row(one.attention.segments, row);
        one.attention.segments = &segment;
        one.attention.segment_count = 1;
        break;
    case OP_ROUTE:
        one.route.ids += row * one.route.top_k;
        one.route.weights += row * one.route.top_k;
        one.route.logits += row * one.route.logit_stride;
        one.route.token_count = 1;
        break;
    case OP_FFN_UP:
        offsets_of_row(offsets, one.ffn_up.offsets, one.ffn_up.group_count, row);
        one.ffn_up.offsets = offsets;
        break;
    case OP_FFN_DOWN:
        offsets_of_row(offsets, one.ffn_down.offsets, one.ffn_down.group_count, row);
        one.ffn_down.offsets = offsets;
        break;
    case OP_COMBINE:
        one.combine.out += row * one.combine.stride;
        one.combine.position_of += row * one.combine.top_k;
        one.combine.weights += row * one.combine.top_k;
        one.combine.token_count = 1;
        break;
    case OP_SHARED_ADD:
        one.shared_add.out += row * one.shared_add.stride;
        one.shared_add.shared += row * one.shared_add.stride;
        one.shared_add.in += row * one.shared_add.stride;
        one.shared_add.token_count = 1;
        break;
    case OP_GATHER:
        one.gather.out += row * one.gather.stride;
        one.gather.rows += row;
        one.gather.row_count = 1;
        break;
    case OP_GROUP:
    case OP_COUNT:
        return;
    }
    launch(device, &one);
}
