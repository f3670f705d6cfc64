#include "cases.h"

#include <stdio.h>

#include "case_lists.h"

const struct case_list *const case_lists[OP_COUNT] = {
    [OP_EMBED] = &embed_list,
    [OP_RMS_NORM] = &rms_norm_list,
    [OP_ADD] = &add_list,
    [OP_MATMUL] = &matmul_list,
    [OP_ROPE_APPEND] = &rope_append_list,
    [OP_ATTENTION] = &attention_list,
    [OP_ROUTE] = &route_list,
    [OP_DISPATCH] = &dispatch_list,
    [OP_GROUP] = &group_list,
    [OP_FFN_UP] = &ffn_up_list,
    [OP_FFN_DOWN] = &ffn_down_list,
    [OP_COMBINE] = &combine_list,
    [OP_SHARED_ADD] = &shared_add_list,
    [OP_CHOOSE] = &choose_list,
    [OP_CANDIDATES] = &candidates_list,
    [OP_GATHER] = &gather_list,
    [OP_DEQUANTIZE] = &dequantize_list,
    [OP_COPY] = &copy_list,
    [OP_FILL] = &fill_list,
};

static int describe_heads(char *out, size_t capacity, const struct kernel_case *c)
{
    int64_t tokens = 0, longest = 0;
    int count = 0;
    for (; count < CASE_SEGMENTS_MAX && c->segments[count].token_count > 0; count++) {
        int64_t end = c->segments[count].first_position + c->segments[count].token_count;
        tokens += c->segments[count].token_count;
        longest = end > longest ? end : longest;
    }
    return snprintf(out, capacity,
                    "%lld/%lld heads x %lld, window %lld, %d segments, %lld tokens, context %lld",
                    (long long)c->head_count, (long long)c->kv_head_count, (long long)c->head_dim,
                    (long long)c->window, count, (long long)tokens, (long long)longest);
}

void case_describe(char *out, size_t capacity, enum kernel_op op, const struct kernel_case *c)
{
    const char *dtype = c->dtype == DTYPE_INT4 ? "int4" : c->dtype == DTYPE_BF16 ? "bf16" : "f32";
    int used = snprintf(out, capacity, "%s ", case_lists[op]->name);
    out += used;
    capacity -= (size_t)used;
    switch (op) {
    case OP_EMBED:
    case OP_MATMUL:
        snprintf(out, capacity, "%s %lldx%lld%s, %lld tokens", dtype, (long long)c->rows,
                 (long long)c->columns, op == OP_MATMUL && c->option ? " + bias" : "",
                 (long long)c->token_count);
        return;
    case OP_ROPE_APPEND:
    case OP_ATTENTION:
        used = snprintf(out, capacity, "%s ", dtype);
        describe_heads(out + used, capacity - (size_t)used, c);
        return;
    case OP_DISPATCH:
        used = snprintf(out, capacity, "to %lld groups, ", (long long)c->group_count);
        out += used;
        capacity -= (size_t)used;
        /* fall through */
    case OP_ROUTE:
    case OP_GROUP:
        snprintf(out, capacity, "%lld of %lld experts, %lld tokens", (long long)c->top_k,
                 (long long)c->expert_count, (long long)c->token_count);
        return;
    case OP_DEQUANTIZE:
        snprintf(out, capacity, "to %s, %lldx%lld, by %s%s", dtype, (long long)c->rows,
                 (long long)c->columns, c->packing == PACK_OUTPUT ? "output" : "input",
                 c->option ? ", with minima" : "");
        return;
    case OP_COPY:
        snprintf(out, capacity, "%lld rows, %lld bytes", (long long)(c->rows > 0 ? c->rows : 1),
                 (long long)c->row_bytes);
        return;
    case OP_FILL:
        snprintf(out, capacity, "%lld bytes", (long long)c->row_bytes);
        return;
    case OP_GATHER:
        snprintf(out, capacity, "%lld rows, %lld bytes", (long long)c->token_count,
                 (long long)c->row_bytes);
        return;
    case OP_FFN_UP:
    case OP_FFN_DOWN:
        used = snprintf(out, capacity, "%s width %lld, hidden %lld, ", dtype, (long long)c->rows,
                        (long long)c->columns);
        if (c->spread == SPREAD_DENSE)
            snprintf(out + used, capacity - (size_t)used, "dense, %lld tokens",
                     (long long)c->token_count);
        else
            snprintf(out + used, capacity - (size_t)used, "%lld of %lld experts, %lld tokens",
                     (long long)c->top_k, (long long)c->expert_count, (long long)c->token_count);
        return;
    default:
        snprintf(out, capacity, "%lld values, %lld tokens", (long long)c->columns,
                 (long long)c->token_count);
    }
}
