/* Every operation on every set of kernels, over the shared table of cases:
 *   - against the reference (reference.h), with padding zero and everything else untouched;
 *   - bit for bit the same for 1, 2, 3 and 8 threads;
 *   - bit for bit the same for each row alone as for all rows together. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/cpu/kernels.h"
#include "reference.h"
#include "workload.h"

static struct device *device_open(const char *set, int thread_count)
{
    struct device *device;
    struct error err;
    cr_assert_eq(device_cpu_create_with(&device, thread_count, cpu_kernels_choose(set), &err),
                 STATUS_OK);
    return device;
}

/* ---- Against the reference ----------------------------------------------------------------- */

static bool is_poison(float value)
{
    return f32_bits(value) == POISON_F32;
}

/* `out` holds the reference's columns, then zeros to `padded`, then poison to `stride`. */
static void check_values(const struct reference *expected, const float *out, int64_t padded,
                         int64_t stride, const char *name)
{
    for (int64_t r = 0; r < expected->rows; r++) {
        const float *row = out + r * stride;
        for (int64_t c = 0; c < expected->columns; c++) {
            double value = expected->value[r * expected->columns + c];
            double bound = expected->bound[r * expected->columns + c];
            cr_assert(fabs(row[c] - value) <= bound,
                      "%s: row %lld, column %lld is %.9g instead of %.9g (bound %.2g)", name,
                      (long long)r, (long long)c, (double)row[c], value, bound);
        }
        for (int64_t c = expected->columns; c < stride; c++)
            cr_assert(c < padded ? row[c] == 0 : is_poison(row[c]),
                      "%s: row %lld, column %lld of the padding is %g", name, (long long)r,
                      (long long)c, (double)row[c]);
    }
}

/* The row behind the last. */
static void check_guard(const float *out, int64_t rows, int64_t stride, const char *name)
{
    for (int64_t c = 0; c < stride; c++)
        cr_assert(is_poison(out[rows * stride + c]), "%s: wrote behind the last row", name);
}

static void check_embed(struct workload *w, struct device *device, const char *name)
{
    struct reference expected;
    reference_embed(&expected, &w->embed);
    workload_launch(w, device);
    check_values(&expected, w->embed.out, w->embed.out_stride, w->embed.out_stride, name);
    check_guard(w->embed.out, w->embed.token_count, w->embed.out_stride, name);
    reference_deinit(&expected);
}

static void check_rms_norm(struct workload *w, struct device *device, const char *name)
{
    const struct op_rms_norm *op = &w->rms_norm;
    struct reference expected;
    reference_rms_norm(&expected, op);
    workload_launch(w, device);
    check_values(&expected, op->out, op->stride, op->stride, name);
    if (op->in != op->out)
        check_guard(op->out, op->row_count, op->stride, name);
    reference_deinit(&expected);
}

static void check_add(struct workload *w, struct device *device, const char *name)
{
    struct reference expected;
    reference_add(&expected, &w->add);
    workload_launch(w, device);
    check_values(&expected, w->add.out, w->add.stride, w->add.stride, name);
    reference_deinit(&expected);
}

static void check_matmul(struct workload *w, struct device *device, const char *name)
{
    const struct op_matmul *op = &w->matmul;
    struct reference expected;
    reference_matmul(&expected, op);
    workload_launch(w, device);
    check_values(&expected, op->out, round_up(op->weight.rows, 16), op->out_stride, name);
    check_guard(op->out, op->row_count, op->out_stride, name);
    reference_deinit(&expected);
}

static void check_attention(struct workload *w, struct device *device, const char *name)
{
    const struct op_attention *op = &w->attention;
    struct reference expected;
    reference_attention(&expected, op);
    workload_launch(w, device);
    check_values(&expected, op->out, expected.columns, op->out_stride, name);
    check_guard(op->out, expected.rows, op->out_stride, name);
    reference_deinit(&expected);
}

static void check_route(struct workload *w, struct device *device, const char *name)
{
    const struct op_route *op = &w->route;
    int64_t pairs = op->token_count * op->top_k;
    struct reference weights;
    int32_t *ids = memory_alloc((size_t)pairs, sizeof *ids);
    cr_assert_not_null(ids);
    reference_route(&weights, ids, op);
    workload_launch(w, device);
    for (int64_t p = 0; p < pairs; p++)
        cr_assert_eq(op->ids[p], ids[p], "%s: token %lld, choice %lld is %d instead of %d", name,
                     (long long)(p / op->top_k), (long long)(p % op->top_k), op->ids[p], ids[p]);
    check_values(&weights, op->weights, op->top_k, op->top_k, name);
    check_guard(op->weights, op->token_count, op->top_k, name);
    reference_deinit(&weights);
    memory_free(ids);
}

static void check_ints(const int32_t *found, const int32_t *expected, int64_t count,
                       const char *what, const char *name)
{
    for (int64_t i = 0; i < count; i++)
        cr_assert_eq(found[i], expected[i], "%s: %s[%lld] is %d instead of %d", name, what,
                     (long long)i, found[i], expected[i]);
}

static void check_group(struct workload *w, struct device *device, const char *name)
{
    const struct op_group *op = &w->group;
    int64_t pairs = op->token_count * op->top_k;
    uint64_t loads[256];
    int32_t offsets[257], token_of[256], position_of[256];
    cr_assert(op->expert_count <= 256 && pairs <= 256);
    reference_group(loads, offsets, token_of, position_of, op);
    workload_launch(w, device);
    check_ints(op->offsets, offsets, op->expert_count + 1, "offsets", name);
    check_ints(op->token_of, token_of, pairs, "token_of", name);
    check_ints(op->position_of, position_of, pairs, "position_of", name);
    for (int64_t e = 0; e < op->expert_count; e++)
        cr_assert_eq(op->loads[e], loads[e] + 100 * (uint64_t)e, "%s: load of expert %lld", name,
                     (long long)e);
    struct op_group without = *op;
    without.loads = NULL;
    device->ops->group(device->stream, &without);
    check_ints(op->offsets, offsets, op->expert_count + 1, "offsets without loads", name);
}

static void check_ffn_up(struct workload *w, struct device *device, const char *name)
{
    const struct op_ffn_up *op = &w->ffn_up;
    struct reference expected;
    reference_ffn_up(&expected, op);
    workload_launch(w, device);
    check_values(&expected, op->out, round_up(expected.columns, 16), op->out_stride, name);
    check_guard(op->out, expected.rows, op->out_stride, name);
    reference_deinit(&expected);
}

static void check_ffn_down(struct workload *w, struct device *device, const char *name)
{
    const struct op_ffn_down *op = &w->ffn_down;
    struct reference expected;
    reference_ffn_down(&expected, op);
    workload_launch(w, device);
    check_values(&expected, op->out, round_up(expected.columns, 16), op->out_stride, name);
    check_guard(op->out, expected.rows, op->out_stride, name);
    reference_deinit(&expected);
}

static void check_combine(struct workload *w, struct device *device, const char *name)
{
    struct reference expected;
    reference_combine(&expected, &w->combine);
    workload_launch(w, device);
    check_values(&expected, w->combine.out, w->combine.stride, w->combine.stride, name);
    check_guard(w->combine.out, w->combine.token_count, w->combine.stride, name);
    reference_deinit(&expected);
}

static void check_shared_add(struct workload *w, struct device *device, const char *name)
{
    struct reference expected;
    reference_shared_add(&expected, &w->shared_add);
    workload_launch(w, device);
    check_values(&expected, w->shared_add.out, w->shared_add.stride, w->shared_add.stride, name);
    reference_deinit(&expected);
}

static void check_gather(struct workload *w, struct device *device, const char *name)
{
    struct reference expected;
    reference_gather(&expected, &w->gather);
    workload_launch(w, device);
    check_values(&expected, w->gather.out, w->gather.stride, w->gather.stride, name);
    check_guard(w->gather.out, w->gather.row_count, w->gather.stride, name);
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

static void check_rope_append(struct workload *w, struct device *device, const char *name)
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

static void (*const checks[OP_COUNT])(struct workload *, struct device *, const char *) = {
    [OP_EMBED] = check_embed,
    [OP_RMS_NORM] = check_rms_norm,
    [OP_ADD] = check_add,
    [OP_MATMUL] = check_matmul,
    [OP_ROPE_APPEND] = check_rope_append,
    [OP_ATTENTION] = check_attention,
    [OP_ROUTE] = check_route,
    [OP_GROUP] = check_group,
    [OP_FFN_UP] = check_ffn_up,
    [OP_FFN_DOWN] = check_ffn_down,
    [OP_COMBINE] = check_combine,
    [OP_SHARED_ADD] = check_shared_add,
    [OP_GATHER] = check_gather,
};

/* ---- Bit for bit --------------------------------------------------------------------------- */

struct bits {
    void *data[4];
};

static struct bits bits_take(const struct workload *w)
{
    struct bits bits = {{NULL}};
    for (int i = 0; i < w->output_count; i++) {
        bits.data[i] = memory_alloc_raw(w->outputs[i].bytes, 1);
        cr_assert_not_null(bits.data[i]);
        memcpy(bits.data[i], w->outputs[i].data, w->outputs[i].bytes);
    }
    return bits;
}

static void bits_check(const struct bits *bits, const struct workload *w, const char *name,
                       const char *how, int number)
{
    for (int i = 0; i < w->output_count; i++)
        cr_assert(memcmp(bits->data[i], w->outputs[i].data, w->outputs[i].bytes) == 0,
                  "%s: output %d differs with %s (%d)", name, i, how, number);
}

static void check_bits(struct workload *w, struct device *const devices[4], const char *name)
{
    workload_reset(w);
    workload_launch(w, devices[0]);
    struct bits bits = bits_take(w);
    for (int d = 1; d < 4; d++) {
        workload_reset(w);
        workload_launch(w, devices[d]);
        bits_check(&bits, w, name, "more threads", devices[d]->ops->host_workers(devices[d]));
    }
    for (int d = 0; w->row_count > 0 && d < 2; d++) {
        workload_reset(w);
        for (int64_t row = w->row_count - 1; row >= 0; row--)
            workload_launch_row(w, devices[d], row);
        bits_check(&bits, w, name, "each row alone", d + 1);
    }
    for (int i = 0; i < 4; i++)
        memory_free(bits.data[i]);
}

/* ---- Every set, every operation ------------------------------------------------------------ */

static const char *const sets[] = {"plain", "avx2", "avx512"};

static void run_cases(const char *set, enum kernel_op op)
{
    struct device *devices[4];
    static const int thread_counts[4] = {1, 2, 3, 8};
    for (int d = 0; d < 4; d++)
        devices[d] = device_open(set, thread_counts[d]);
    int count = 0;
    for (size_t i = 0; i < case_lists[op].count; i++) {
        const struct kernel_case *c = &case_lists[op].cases[i];
        char name[256];
        int used = snprintf(name, sizeof name, "%s: ", set);
        if (c->use != FOR_TEST)
            continue;
        struct workload workload;
        case_describe(name + used, sizeof name - (size_t)used, op, c);
        workload_create(&workload, op, c);
        checks[op](&workload, devices[0], name);
        check_bits(&workload, devices, name);
        workload_destroy(&workload);
        count++;
    }
    cr_assert_gt(count, 0);
    for (int d = 0; d < 4; d++)
        device_destroy(devices[d]);
}

struct combination {
    int set;
    enum kernel_op op;
};

ParameterizedTestParameters(operations, hold_their_contracts)
{
    static struct combination all[3 * OP_COUNT];
    for (int i = 0; i < 3 * OP_COUNT; i++)
        all[i] = (struct combination){i / OP_COUNT, (enum kernel_op)(i % OP_COUNT)};
    return cr_make_param_array(struct combination, all, 3 * OP_COUNT);
}

ParameterizedTest(struct combination *of, operations, hold_their_contracts)
{
    if (cpu_kernels_choose(sets[of->set]) == NULL)
        cr_skip_test("this machine cannot run the %s kernels", sets[of->set]);
    uint64_t live = memory_counters_get().live_count;
    run_cases(sets[of->set], of->op);
    cr_assert_eq(memory_counters_get().live_count, live);
}
