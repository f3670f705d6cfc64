#include "kernels/cpu/device/cpu_sort.h"

#include <string.h>

/* Where in the experts here a choice goes; -1: nowhere. */
static int32_t local_expert(const struct op_group *op, int64_t token, int64_t choice)
{
    int32_t id = op->ids[token * op->choice_stride + choice];
    return id < 0 || op->local_of == NULL ? id : op->local_of[id];
}

void cpu_sort_group(const struct op_group *op)
{
    int32_t *offsets = op->offsets;
    memset(offsets, 0, (size_t)(op->expert_count + 1) * sizeof *offsets);
    for (int64_t t = 0; t < op->token_count; t++) {
        for (int64_t c = 0; c < op->top_k; c++) {
            int32_t expert = local_expert(op, t, c);
            if (expert >= 0)
                offsets[expert + 1]++;
        }
    }
    for (int64_t e = 0; e < op->expert_count; e++) {
        offsets[e + 1] += offsets[e];
    }
    /* What buffers behind are made for. */
    int64_t most = op->top_k < op->expert_count ? op->top_k : op->expert_count;
    ASSERT(offsets[op->expert_count] <= op->token_count * most);
    /* offsets[e] serves as the next free place of expert e, and ends as the start of e + 1 ... */
    for (int64_t t = 0; t < op->token_count; t++) {
        for (int64_t c = 0; c < op->top_k; c++) {
            int32_t expert = local_expert(op, t, c);
            int32_t position = expert < 0 ? -1 : offsets[expert]++;
            op->position_of[t * op->top_k + c] = position;
            if (position >= 0)
                op->token_of[position] = (int32_t)t;
        }
    }
    /* ... so all starts move up by one. */
    for (int64_t e = op->expert_count; e > 0; e--)
        offsets[e] = offsets[e - 1];
    offsets[0] = 0;
}

/* Marks the groups of each token in slot_of, 0 or -1, and counts them. */
static void dispatch_count(const struct op_dispatch *op)
{
    memset(op->counts, 0, (size_t)op->group_count * sizeof *op->counts);
    for (int64_t t = 0; t < op->token_count; t++) {
        int32_t *slots = op->slot_of + t * op->group_count;
        for (int64_t g = 0; g < op->group_count; g++)
            slots[g] = -1;
        for (int64_t c = 0; c < op->top_k; c++) {
            int32_t id = op->ids[t * op->choice_stride + c];
            if (id < 0 || slots[op->group_of[id]] == 0)
                continue;
            slots[op->group_of[id]] = 0;
            op->counts[op->group_of[id]]++;
        }
    }
}

void cpu_sort_dispatch(const struct op_dispatch *op)
{
    int32_t *counts = op->counts;
    dispatch_count(op);
    /* counts[g] serves as the next free place of group g ... */
    int32_t start = 0;
    for (int64_t g = 0; g < op->group_count; g++) {
        int32_t count = counts[g];
        counts[g] = start;
        start += count;
    }
    for (int64_t t = 0; t < op->token_count; t++) {
        int32_t *slots = op->slot_of + t * op->group_count;
        for (int64_t g = 0; g < op->group_count; g++) {
            if (slots[g] < 0)
                continue;
            slots[g] = counts[g]++;
            op->token_of[slots[g]] = (int32_t)t;
        }
    }
    /* ... and ends as the end of its places. */
    for (int64_t g = op->group_count - 1; g > 0; g--)
        counts[g] -= counts[g - 1];
}
