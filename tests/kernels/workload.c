#include "workload.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "reference.h"
#include "workload_data.h"
#include "workload_memory.h"

void workload_create(struct workload *out, enum kernel_op op, const struct kernel_case *from)
{
    static void (*const fill[OP_COUNT])(struct workload *, struct random *) = {
        [OP_EMBED] = workload_embed,
        [OP_RMS_NORM] = workload_rms_norm,
        [OP_ADD] = workload_add,
        [OP_MATMUL] = workload_matmul,
        [OP_ROPE_APPEND] = workload_rope_append,
        [OP_ATTENTION] = workload_attention,
        [OP_ROUTE] = workload_route,
        [OP_DISPATCH] = workload_dispatch,
        [OP_GROUP] = workload_group,
        [OP_FFN_UP] = workload_ffn_up,
        [OP_FFN_DOWN] = workload_ffn_down,
        [OP_COMBINE] = workload_combine,
        [OP_CHOOSE] = workload_choose,
        [OP_CANDIDATES] = workload_candidates,
        [OP_SHARED_ADD] = workload_shared_add,
        [OP_GATHER] = workload_gather,
        [OP_DEQUANTIZE] = workload_dequantize,
        [OP_COPY] = workload_copy,
        [OP_FILL] = workload_fill,
    };
    struct random random = {.seed = 1 + (uint64_t)op};
    *out = (struct workload){.op = op, .from = from, .row_count = from->token_count};
    if (op == OP_DISPATCH || op == OP_GROUP || op == OP_DEQUANTIZE || op == OP_COPY ||
        op == OP_FILL)
        out->row_count = 0;
    fill[op](out, &random);
}

void workload_destroy(struct workload *workload)
{
    for (size_t i = 0; i < workload->owned_count; i++)
        workload_memory_free(workload->owned[i]);
    memory_free(workload->owned);
    *workload = (struct workload){0};
}

void workload_reset(struct workload *workload)
{
    for (int i = 0; i < workload->output_count; i++)
        memcpy(workload->outputs[i].data, workload->outputs[i].initial, workload->outputs[i].bytes);
}

const float *workload_rounded(struct workload *workload, const float *in, int64_t rows,
                              int64_t stride)
{
    float *rounded = own(workload, (size_t)(rows * stride), sizeof *rounded);
    for (int64_t i = 0; i < rows * stride; i++)
        rounded[i] = bf16_to_f32(bf16_from_f32(in[i]));
    return rounded;
}

/* To nearest even: 11 significant bits, and none of less than 2^-24. */
static double half_round(double value)
{
    int exponent;
    frexp(value, &exponent);
    double step = ldexp(1, exponent - 11 > -24 ? exponent - 11 : -24);
    return rint(value / step) * step;
}

/* Of each 512 neighbours the largest is 2^13 units or more, and below 2^14. */
static const float *halves_new(struct workload *workload, const float *in, int64_t rows,
                               int64_t stride)
{
    enum { PART = 512 };
    float *rounded = own(workload, (size_t)(rows * stride), sizeof *rounded);
    for (int64_t first = 0; first < rows * stride;) {
        int64_t left = stride - first % stride, count = left < PART ? left : PART;
        float most = 0;
        int exponent;
        for (int64_t i = first; i < first + count; i++)
            most = fmaxf(most, fabsf(in[i]));
        frexpf(most, &exponent);
        double unit = ldexp(1, (most == 0 ? -100 : exponent - 1) - 13);
        for (int64_t i = first; i < first + count; i++)
            rounded[i] = (float)(half_round((double)in[i] / unit) * unit);
        first += count;
    }
    return rounded;
}

const float *workload_factors(struct workload *workload, const float *in, int64_t rows,
                              int64_t stride)
{
    enum dtype dtype = workload->from->dtype;
    if (dtype != DTYPE_BF16 && (dtype != DTYPE_INT4 || !workload->widens_int4))
        return in;
    if (workload->takes_halves)
        return halves_new(workload, in, rows, stride);
    return workload->takes_pairs ? workload_rounded(workload, in, rows, stride) : in;
}

static struct matrix widened_new(struct workload *workload, const struct matrix *weights)
{
    int64_t count = packed_count(weights->rows, weights->columns);
    uint16_t *data = own(workload, (size_t)count, sizeof *data);
    struct op_dequantize op = {.in = *weights, .dtype = DTYPE_BF16};
    struct reference numbers;
    reference_dequantize(&numbers, &op);
    for (int64_t i = 0; i < numbers.rows * numbers.columns; i++)
        data[packed_index(weights->packing, DTYPE_BF16, weights->rows, weights->columns,
                          i / numbers.columns, i % numbers.columns)] =
            bf16_from_f32((float)numbers.value[i]);
    reference_deinit(&numbers);
    return (struct matrix){.data = data,
                           .dtype = DTYPE_BF16,
                           .packing = weights->packing,
                           .rows = weights->rows,
                           .columns = weights->columns};
}

/* What is rounded to a number of fp16 below 1 has still no more bits than bf16. */
struct matrix workload_weights(struct workload *workload, const struct matrix *weights)
{
    struct matrix taken = *weights;
    if (workload->widens_int4 && weights->dtype == DTYPE_INT4)
        return widened_new(workload, weights);
    if (!workload->takes_halves || weights->dtype != DTYPE_BF16)
        return taken;
    int64_t count = packed_count(weights->rows, weights->columns);
    uint16_t *data = own(workload, (size_t)count, sizeof *data);
    for (int64_t i = 0; i < count; i++) {
        float value = bf16_to_f32(((const uint16_t *)weights->data)[i]);
        data[i] = bf16_from_f32((float)half_round((double)value));
    }
    taken.data = data;
    return taken;
}

const struct ffn_weights *workload_groups(struct workload *workload,
                                          const struct ffn_weights *groups, int64_t count)
{
    struct ffn_weights *taken = own(workload, (size_t)count, sizeof *taken);
    for (int64_t g = 0; g < count; g++)
        taken[g] = (struct ffn_weights){
            .gate = workload_weights(workload, &groups[g].gate),
            .up = workload_weights(workload, &groups[g].up),
            .down = workload_weights(workload, &groups[g].down),
        };
    return taken;
}

void workload_put(const struct workload *w, struct device *device)
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
    case OP_DISPATCH:
        ops->dispatch(device->stream, &w->dispatch);
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
    case OP_CHOOSE:
        ops->choose(device->stream, &w->choose);
        break;
    case OP_CANDIDATES:
        ops->candidates(device->stream, &w->candidates);
        break;
    case OP_SHARED_ADD:
        ops->shared_add(device->stream, &w->shared_add);
        break;
    case OP_GATHER:
        ops->gather(device->stream, &w->gather);
        break;
    case OP_DEQUANTIZE:
        ops->dequantize(device->stream, &w->dequantize);
        break;
    case OP_COPY:
        ops->copy(device->stream, &w->copy);
        break;
    case OP_FILL:
        ops->fill(device->stream, &w->fill);
        break;
    case OP_COUNT:
        break;
    }
}

void workload_launch(struct workload *workload, struct device *device)
{
    struct error err;
    workload_put(workload, device);
    ASSERT(device->ops->synchronize(device->stream, &err) == STATUS_OK);
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
static int32_t *offsets_of_row(const int32_t *offsets, int64_t group_count, int64_t row)
{
    int32_t *out = workload_memory_get((size_t)(group_count + 1) * sizeof *out);
    for (int64_t g = 0; g <= group_count; g++)
        out[g] = (int32_t)(offsets[g] <= row ? row : row + 1);
    return out;
}

void workload_launch_row(struct workload *workload, struct device *device, int64_t row)
{
    struct workload one = *workload;
    struct segment segment;
    int32_t *offsets = NULL;
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
        one.route.ids += row * one.route.choice_stride;
        one.route.weights += row * one.route.choice_stride;
        one.route.logits += row * one.route.logit_stride;
        one.route.token_count = 1;
        break;
    case OP_FFN_UP:
        offsets = offsets_of_row(one.ffn_up.offsets, one.ffn_up.group_count, row);
        one.ffn_up.offsets = offsets;
        break;
    case OP_FFN_DOWN:
        offsets = offsets_of_row(one.ffn_down.offsets, one.ffn_down.group_count, row);
        one.ffn_down.offsets = offsets;
        break;
    case OP_COMBINE:
        one.combine.out += row * one.combine.stride;
        one.combine.position_of += row * one.combine.top_k;
        if (one.combine.weights != NULL)
            one.combine.weights += row * one.combine.choice_stride;
        one.combine.token_count = 1;
        break;
    case OP_CHOOSE:
        one.choose.out += row;
        one.choose.in += row * one.choose.stride;
        if (one.choose.draws != NULL)
            one.choose.draws += row;
        one.choose.row_count = 1;
        break;
    case OP_CANDIDATES:
        one.candidates.out += row;
        one.candidates.in += row * one.candidates.stride;
        if (one.candidates.draws != NULL)
            one.candidates.draws += row;
        one.candidates.row_count = 1;
        break;
    case OP_SHARED_ADD:
        one.shared_add.out += row * one.shared_add.stride;
        one.shared_add.shared += row * one.shared_add.stride;
        one.shared_add.in += row * one.shared_add.stride;
        one.shared_add.token_count = 1;
        break;
    case OP_GATHER:
        one.gather.out = (char *)one.gather.out + row * one.gather.row_bytes;
        one.gather.rows += row;
        one.gather.row_count = 1;
        break;
    case OP_DISPATCH:
    case OP_GROUP:
    case OP_DEQUANTIZE:
    case OP_COPY:
    case OP_FILL:
    case OP_COUNT:
        return;
    }
    workload_launch(&one, device);
    workload_memory_free(offsets);
}
