#include "kernels/cpu/device/cpu_record.h"

#include <string.h>

#include "base/record.h"
#include "layout/work.h"

_Static_assert(RECORD_DIMS == WORK_DIMS, "a node has the dimensions of a work");

static void put(const struct work *work)
{
    struct record_work of = {.kind = (int)work->kind,
                             .flops = (uint64_t)work->flops,
                             .bytes = (uint64_t)work_bytes(work)};
    memcpy(of.dims, work->dims, sizeof of.dims);
    record_work(&of);
}

/* f32 values, `passes` rows for each. */
static void put_rows(int64_t row_count, int64_t value_count, int64_t passes)
{
    struct work work = work_rows(row_count, value_count, passes, (int64_t)sizeof(float));
    put(&work);
}

void cpu_record_embed(const struct op_embed *op)
{
    put_rows(op->token_count, op->table.columns, 2);
}

void cpu_record_rms_norm(const struct op_rms_norm *op)
{
    put_rows(op->row_count, op->dim, 2);
}

void cpu_record_add(const struct op_add *op)
{
    put_rows(op->row_count, op->stride, 3);
}

void cpu_record_matmul(const struct op_matmul *op)
{
    struct work work = work_matmul(op->row_count, &op->weight);
    put(&work);
}

/* Queries are read and written; keys and values read, and written to the cache. */
void cpu_record_rope_append(const struct op_rope_append *op)
{
    int64_t tokens = 0;
    for (int64_t s = 0; s < op->segment_count; s++)
        tokens += op->segments[s].token_count;
    put_rows(tokens, (op->qkv.head_count + 2 * op->qkv.kv_head_count) * op->qkv.head_dim, 2);
}

void cpu_record_attention(const struct op_attention *op)
{
    struct work work = work_attention(op->qkv.head_count, op->qkv.kv_head_count, op->qkv.head_dim);
    for (int64_t s = 0; s < op->segment_count; s++)
        work_attention_add(&work, op->segments[s].token_count, op->segments[s].first_position,
                           op->window, op->kv.dtype);
    put(&work);
}

void cpu_record_route(const struct op_route *op)
{
    put_rows(op->token_count, op->expert_count, 2);
}

void cpu_record_dispatch(const struct op_dispatch *op)
{
    put_rows(op->token_count, op->top_k + op->group_count, 2);
}

void cpu_record_group(const struct op_group *op)
{
    put_rows(op->token_count, op->top_k, 3);
}

/* Rows of all groups, and the groups that have any: those before are on the stream, so the offsets
 * are there. */
static int64_t groups_with_rows(const int32_t *offsets, int64_t group_count)
{
    int64_t count = 0;
    for (int64_t g = 0; g < group_count; g++)
        count += offsets[g + 1] > offsets[g];
    return count;
}

void cpu_record_ffn_up(const struct op_ffn_up *op)
{
    struct work work =
        work_ffn_up(op->offsets[op->group_count] - op->offsets[0],
                    groups_with_rows(op->offsets, op->group_count), &op->groups[0].gate);
    put(&work);
}

void cpu_record_ffn_down(const struct op_ffn_down *op)
{
    struct work work =
        work_ffn_down(op->offsets[op->group_count] - op->offsets[0],
                      groups_with_rows(op->offsets, op->group_count), &op->groups[0].down);
    put(&work);
}

/* Each choice that is here is a row; that they are fewer is not looked for. */
void cpu_record_combine(const struct op_combine *op)
{
    put_rows(op->token_count, op->stride, op->top_k + 1);
}

void cpu_record_shared_add(const struct op_shared_add *op)
{
    put_rows(op->token_count, op->stride, 4);
}

void cpu_record_choose(const struct op_choose *op)
{
    put_rows(op->row_count, op->dim, 1);
}

void cpu_record_candidates(const struct op_candidates *op)
{
    put_rows(op->row_count, op->dim, 1);
}

void cpu_record_gather(const struct op_gather *op)
{
    struct work work = work_rows(op->row_count, op->row_bytes, 2, 1);
    put(&work);
}

void cpu_record_dequantize(const struct op_dequantize *op)
{
    struct work work = work_dequantize(&op->in, op->dtype);
    put(&work);
}

void cpu_record_fill(const struct op_fill *op)
{
    struct work work = work_rows(1, op->bytes, 1, 1);
    put(&work);
}

void cpu_record_copy(const struct op_copy *op, struct cpu_pool *pool)
{
    bool to_device = cpu_pool_has(pool, op->out);
    bool is_within = to_device && cpu_pool_has(pool, op->in);
    struct work work = work_rows(1 + op->more_rows, op->bytes, is_within ? 2 : 1, 1);
    put(&work);
    if (!is_within)
        record_copy(!to_device);
}
