#include <criterion/criterion.h>
#include <string.h>

#include "base/memory.h"
#include "checks.h"

/* Whether queries and exponentials are rounded to bf16. */
static bool is_rounded(const struct workload *w)
{
    const struct kv_layer *kv = &w->attention.kv;
    return kv->dtype == DTYPE_BF16 && kv->head_dim <= w->head_dim_pairs;
}

void check_attention(struct workload *w, struct device *device, const char *name)
{
    const struct op_attention *op = &w->attention;
    struct op_attention rounded = *op;
    struct reference expected;
    if (is_rounded(w) && op->segment_count > 0) {
        const struct segment *last = &op->segments[op->segment_count - 1];
        int64_t rows = last->first_row + last->token_count;
        rounded.qkv.values = (float *)workload_rounded(w, op->qkv.values, rows, op->qkv.stride);
    }
    reference_attention(&expected, &rounded, is_rounded(w) ? 0x1p-8 : 0);
    workload_launch(w, device);
    check_values(&expected, op->out, expected.columns, op->out_stride, name);
    check_guard(op->out, expected.rows, op->out_stride, name);
    reference_deinit(&expected);
}

/* ---- The append to the cache --------------------------------------------------------------- */

static uint32_t kv_bits(const void *memory, enum dtype dtype, int64_t index)
{
    return dtype == DTYPE_BF16 ? (uint32_t)((const uint16_t *)memory)[index] << 16
                               : ((const uint32_t *)memory)[index];
}

/* Reads back what one token appended, and puts poison in its place. */
static void take_token(float *keys, float *values, const struct kv_layer *kv,
                       const struct segment *segment, int64_t position, const char *name)
{
    int64_t dim_stride = round_up(kv->head_dim, 16), slot = position % KV_PAGE_TOKENS;
    uint32_t poison = kv->dtype == DTYPE_BF16 ? (uint32_t)POISON_BF16 << 16 : POISON_F32;
    for (int64_t head = 0; head < kv->kv_head_count; head++) {
        int64_t page = segment->pages[position / KV_PAGE_TOKENS];
        int64_t base = (page * kv->kv_head_count + head) * dim_stride * KV_PAGE_TOKENS;
        for (int64_t d = 0; d < dim_stride; d++) {
            int64_t key = base + d * KV_PAGE_TOKENS + slot, value = base + slot * dim_stride + d;
            if (d < kv->head_dim) {
                keys[head * kv->head_dim + d] = f32_from_bits(kv_bits(kv->keys, kv->dtype, key));
                values[head * kv->head_dim + d] =
                    f32_from_bits(kv_bits(kv->values, kv->dtype, value));
            } else {
                cr_assert_eq(kv_bits(kv->values, kv->dtype, value), 0,
                             "%s: the padding of a value is not zero", name);
            }
            for (int i = 0; i < 2; i++) {
                void *memory = i == 0 ? kv->keys : kv->values;
                int64_t at = i == 0 ? key : value;
                if (kv->dtype == DTYPE_BF16)
                    ((uint16_t *)memory)[at] = (uint16_t)(poison >> 16);
                else
                    ((uint32_t *)memory)[at] = poison;
            }
        }
    }
}

void check_rope_append(struct workload *w, struct device *device, const char *name)
{
    const struct op_rope_append *op = &w->rope_append;
    struct reference_qkv expected;
    reference_rope_append(&expected, op);
    workload_launch(w, device);
    int64_t columns = expected.k.columns;
    float *keys = memory_alloc((size_t)(w->row_count * columns), sizeof *keys);
    float *values = memory_alloc((size_t)(w->row_count * columns), sizeof *values);
    cr_assert(keys != NULL && values != NULL);
    for (int64_t s = 0; s < op->segment_count; s++) {
        const struct segment *segment = &op->segments[s];
        for (int64_t t = 0; t < segment->token_count; t++) {
            int64_t at = (segment->first_row + t) * columns;
            take_token(keys + at, values + at, &op->kv, segment, segment->first_position + t, name);
        }
    }
    check_values(&expected.k, keys, columns, columns, name);
    check_values(&expected.v, values, columns, columns, name);
    for (int64_t t = 0; t < w->row_count; t++) {
        struct reference row = {1, expected.q.columns, expected.q.value + t * expected.q.columns,
                                expected.q.bound + t * expected.q.columns};
        check_values(&row, op->qkv.values + t * op->qkv.stride, 0, expected.q.columns, name);
    }
    /* With the tokens taken out, the cache is as poisoned as before. */
    for (int i = 1; i < w->output_count; i++)
        cr_assert(memcmp(w->outputs[i].data, w->outputs[i].initial, w->outputs[i].bytes) == 0,
                  "%s: wrote beside the tokens", name);
    memory_free(keys);
    memory_free(values);
    reference_deinit(&expected.q);
    reference_deinit(&expected.k);
    reference_deinit(&expected.v);
}
