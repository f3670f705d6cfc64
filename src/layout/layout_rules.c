/* Which layouts a model can have. */
#include "layout/layout.h"

#define GRANULES_MAX 8

int64_t layout_granule_count(int64_t expert_dim)
{
    int64_t count = GRANULES_MAX;
    while (count > 1 && expert_dim % (count * PACK_BLOCK) != 0)
        count /= 2;
    return count;
}

/* ---- The rules, each with its sentence ------------------------------------------------------- */

static enum status check_attention(int tp, const struct model_shape *shape, struct error *reason)
{
    if (shape->head_count % tp != 0)
        return error_set(reason, STATUS_UNSUPPORTED, "%lld query heads cannot be cut %d ways",
                         (long long)shape->head_count, tp);
    if (shape->kv_head_count % tp != 0)
        return error_set(reason, STATUS_UNSUPPORTED,
                         "%lld heads of keys and values cannot be cut %d ways",
                         (long long)shape->kv_head_count, tp);
    return STATUS_OK;
}

static enum status check_experts(const struct expert_layout *experts,
                                 const struct model_shape *shape, struct error *reason)
{
    int64_t width = shape->expert_dim, granules = layout_granule_count(width);
    if (shape->expert_count % experts->ep != 0)
        return error_set(reason, STATUS_UNSUPPORTED,
                         "%lld experts cannot be dealt evenly to %d groups",
                         (long long)shape->expert_count, experts->ep);
    if (granules % experts->tp == 0)
        return STATUS_OK;
    if (width % PACK_BLOCK != 0)
        return error_set(reason, STATUS_UNSUPPORTED,
                         "an expert's width of %lld cannot be cut %d ways: it is no multiple of %d",
                         (long long)width, experts->tp, PACK_BLOCK);
    return error_set(reason, STATUS_UNSUPPORTED,
                     "an expert's width of %lld cannot be cut %d ways: it has %lld granule%s of "
                     "%lld",
                     (long long)width, experts->tp, (long long)granules, granules == 1 ? "" : "s",
                     (long long)(width / granules));
}

enum status layout_check(const struct layout *layout, const struct model_shape *shape,
                         struct error *reason)
{
    ASSERT(layout->attention.tp * layout->attention.dp == layout->rank_count);
    ASSERT(layout->experts.tp * layout->experts.ep == layout->rank_count);
    TRY(check_attention(layout->attention.tp, shape, reason));
    return check_experts(&layout->experts, shape, reason);
}

static enum status check_packed(const struct model_shape *shape, struct error *reason)
{
    if (shape->moe_layer_count == 0)
        return error_set(reason, STATUS_UNSUPPORTED,
                         ":int4 is of routed experts, and this model has none");
    if (shape->expert_dim % PACK_BLOCK != 0 || shape->hidden_dim % PACK_BLOCK != 0)
        return error_set(reason, STATUS_UNSUPPORTED,
                         "experts of %lld x %lld cannot be INT4 (:int4): both must be multiples of "
                         "%d",
                         (long long)shape->expert_dim, (long long)shape->hidden_dim, PACK_BLOCK);
    return STATUS_OK;
}

enum status plan_layouts_check(const struct plan_layouts *plan, const struct model_shape *shape,
                               struct error *reason)
{
    static const char *const names[PHASE_COUNT] = {"prefill", "decode"};
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        enum status status = layout_check(&plan->of[phase], shape, reason);
        if (status != STATUS_OK && plan_layouts_differ(plan))
            return error_prefix(reason, status, "in %s", names[phase]);
        TRY(status);
    }
    return plan->decode_is_packed ? check_packed(shape, reason) : STATUS_OK;
}

/* ---- All, and the baselines ------------------------------------------------------------------ */

int layout_list(struct layout *out, int capacity, int rank_count)
{
    int count = 0;
    ASSERT(rank_count >= 1 && rank_count <= LAYOUT_RANKS_MAX);
    for (int at = 1; at <= rank_count; at++) {
        for (int et = 1; et <= rank_count; et++) {
            if (rank_count % at != 0 || rank_count % et != 0)
                continue;
            if (count < capacity)
                out[count] = (struct layout){.rank_count = rank_count,
                                             .attention = {.tp = at, .dp = rank_count / at},
                                             .experts = {.tp = et, .ep = rank_count / et}};
            count++;
        }
    }
    return count;
}

/* At = 1 is always legal. */
static struct attention_layout attention_largest_tp(const struct model_shape *shape, int rank_count)
{
    int tp = rank_count;
    while (rank_count % tp != 0 || check_attention(tp, shape, NULL) != STATUS_OK)
        tp--;
    return (struct attention_layout){.tp = tp, .dp = rank_count / tp};
}

/* The legal degrees of the experts with the largest Et, or the largest Ee. */
static enum status experts_largest(struct expert_layout *out, const struct model_shape *shape,
                                   int rank_count, bool wants_tp, struct error *reason)
{
    for (int degree = rank_count; degree >= 1; degree--) {
        int other = rank_count / degree;
        struct expert_layout experts = {.tp = wants_tp ? degree : other,
                                        .ep = wants_tp ? other : degree};
        if (rank_count % degree == 0 && check_experts(&experts, shape, NULL) == STATUS_OK) {
            *out = experts;
            return STATUS_OK;
        }
    }
    int64_t granules = layout_granule_count(shape->expert_dim);
    return error_set(reason, STATUS_UNSUPPORTED,
                     "%lld experts of %lld granule%s cannot lie on %d devices: no two factors of "
                     "%d divide them",
                     (long long)shape->expert_count, (long long)granules, granules == 1 ? "" : "s",
                     rank_count, rank_count);
}

static enum status layout_static(struct layout *out, const struct model_shape *shape,
                                 int rank_count, bool wants_tp, struct error *reason)
{
    struct layout layout = {.rank_count = rank_count};
    ASSERT(rank_count >= 1 && rank_count <= LAYOUT_RANKS_MAX);
    TRY(experts_largest(&layout.experts, shape, rank_count, wants_tp, reason));
    layout.attention = attention_largest_tp(shape, rank_count);
    *out = layout;
    return STATUS_OK;
}

enum status layout_static_tp(struct layout *out, const struct model_shape *shape, int rank_count,
                             struct error *reason)
{
    return layout_static(out, shape, rank_count, true, reason);
}

enum status layout_static_ep(struct layout *out, const struct model_shape *shape, int rank_count,
                             struct error *reason)
{
    return layout_static(out, shape, rank_count, false, reason);
}
