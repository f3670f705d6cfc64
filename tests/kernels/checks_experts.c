#include <criterion/criterion.h>

#include "base/memory.h"
#include "checks.h"

/* A row is ids and weights and what is not the operation's; or ids and weights lie apart, each with
 * a guard behind. */
void check_route(struct workload *w, struct device *device, const char *name)
{
    const struct op_route *op = &w->route;
    bool apart = op->choice_stride == op->top_k;
    struct reference weights;
    int32_t *ids = memory_alloc((size_t)(op->token_count * op->top_k), sizeof *ids);
    cr_assert_not_null(ids);
    reference_route(&weights, ids, op);
    workload_launch(w, device);
    for (int64_t t = 0; t < op->token_count; t++) {
        for (int64_t c = 0; c < op->top_k; c++) {
            int32_t found = op->ids[t * op->choice_stride + c], id = ids[t * op->top_k + c];
            cr_assert_eq(found, id, "%s: token %lld, choice %lld is %d instead of %d", name,
                         (long long)t, (long long)c, found, id);
        }
    }
    struct reference row = {1, op->top_k, weights.value, weights.bound};
    for (int64_t t = 0; t < op->token_count; t++) {
        check_values(&row, op->weights + t * op->choice_stride, 0,
                     apart ? op->top_k : op->choice_stride - op->top_k, name);
        row.value += op->top_k;
        row.bound += op->top_k;
    }
    if (apart)
        check_ints(op->ids, ids, op->token_count * op->top_k, op->token_count * op->top_k, "ids",
                   name);
    check_guard(apart ? op->weights : (const float *)op->ids, op->token_count, op->choice_stride,
                name);
    reference_deinit(&weights);
    memory_free(ids);
}

#define INTS_MAX 4096

void check_dispatch(struct workload *w, struct device *device, const char *name)
{
    const struct op_dispatch *op = &w->dispatch;
    int64_t least = op->top_k < op->group_count ? op->top_k : op->group_count;
    int32_t counts[INTS_MAX], token_of[INTS_MAX], slot_of[INTS_MAX];
    cr_assert(op->token_count * op->group_count <= INTS_MAX && op->group_count <= INTS_MAX);
    cr_assert(op->token_count * least <= INTS_MAX);
    int32_t places = reference_dispatch(counts, token_of, slot_of, op);
    workload_launch(w, device);
    check_ints(op->counts, counts, op->group_count, op->group_count, "counts", name);
    check_ints(op->token_of, token_of, places, op->token_count * least, "token_of", name);
    check_ints(op->slot_of, slot_of, op->token_count * op->group_count,
               op->token_count * op->group_count, "slot_of", name);
}

void check_group(struct workload *w, struct device *device, const char *name)
{
    const struct op_group *op = &w->group;
    int64_t pairs = op->token_count * op->top_k;
    int32_t offsets[INTS_MAX], token_of[INTS_MAX], position_of[INTS_MAX];
    cr_assert(op->expert_count < INTS_MAX && pairs <= INTS_MAX);
    int32_t places = reference_group(offsets, token_of, position_of, op);
    workload_launch(w, device);
    check_ints(op->offsets, offsets, op->expert_count + 1, op->expert_count + 1, "offsets", name);
    check_ints(op->token_of, token_of, places, pairs, "token_of", name);
    check_ints(op->position_of, position_of, pairs, pairs, "position_of", name);
}

void check_ffn_up(struct workload *w, struct device *device, const char *name)
{
    const struct op_ffn_up *op = &w->ffn_up;
    struct op_ffn_up taken = *op;
    struct reference expected;
    taken.in = workload_factors(w, op->in, w->from->token_count, op->in_stride);
    taken.groups = workload_groups(w, op->groups, op->group_count);
    reference_ffn_up(&expected, &taken);
    workload_launch(w, device);
    check_values(&expected, op->out, round_up(expected.columns, 16), op->out_stride, name);
    check_guard(op->out, expected.rows, op->out_stride, name);
    reference_deinit(&expected);
}

void check_ffn_down(struct workload *w, struct device *device, const char *name)
{
    const struct op_ffn_down *op = &w->ffn_down;
    struct op_ffn_down taken = *op;
    struct reference expected;
    taken.in = workload_factors(w, op->in, w->row_count, op->in_stride);
    taken.groups = workload_groups(w, op->groups, op->group_count);
    reference_ffn_down(&expected, &taken);
    workload_launch(w, device);
    check_values(&expected, op->out, round_up(expected.columns, 16), op->out_stride, name);
    check_guard(op->out, expected.rows, op->out_stride, name);
    reference_deinit(&expected);
}

void check_combine(struct workload *w, struct device *device, const char *name)
{
    struct reference expected;
    reference_combine(&expected, &w->combine);
    workload_launch(w, device);
    check_values(&expected, w->combine.out, w->combine.stride, w->combine.stride, name);
    check_guard(w->combine.out, w->combine.token_count, w->combine.stride, name);
    reference_deinit(&expected);
}
