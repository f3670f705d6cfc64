#include "engine/inspect_plans.h"

#include <string.h>

#include "engine/engine.h"
#include "engine/engine_backup.h"
#include "engine/inspect_sizes.h"
#include "engine/run_limits.h"
#include "exec/exec.h"
#include "layout/layout.h"

/* What all plans of a model have in common. */
struct subject {
    const struct model_config *config;
    struct model_shape shape;
    enum dtype dtype; /* of weights in memory, and of the KV cache */
    int64_t token_max, segment_max;
    int rank_count;
};

/* ---- One plan -------------------------------------------------------------------------------- */

/* [[0, 1], [2, 3]]: groups of neighbouring ranks. */
static void put_groups(struct description *to, json_t *object, int group_size, int rank_count)
{
    json_t *groups = description_put_array(to, object, "groups");
    json_t *group = NULL;
    for (int rank = 0; rank < rank_count; rank++) {
        if (rank % group_size == 0) {
            group = json_array();
            description_append(to, groups, group);
        }
        description_append(to, group, json_integer(rank));
    }
}

static json_t *put_experts(struct description *to, json_t *row, const char *key,
                           const struct model_shape *shape, const struct layout *layout)
{
    json_t *experts = description_put_object(to, row, key);
    put_groups(to, experts, layout->experts.tp, layout->rank_count);
    description_put_int(to, experts, "count", (uint64_t)(shape->expert_count / layout->experts.ep));
    description_put_int(to, experts, "width",
                        (uint64_t)layout_expert_width(layout, shape, 0).count);
    return experts;
}

static void put_decode_experts(struct description *to, json_t *row, const struct subject *subject,
                               const struct plan_layouts *layouts)
{
    json_t *experts =
        put_experts(to, row, "decode_experts", &subject->shape, &layouts->of[PHASE_DECODE]);
    const char *format = layouts->decode_is_packed ? "int4" : dtype_name(subject->dtype);
    description_put(to, experts, "format", json_string(format));
}

/* Who is with whom, and what each has: the same on every rank. */
static void put_layout(struct description *to, json_t *row, const struct subject *subject,
                       const struct plan_layouts *layouts)
{
    const struct layout *layout = &layouts->of[PHASE_PREFILL];
    const struct model_shape *shape = &subject->shape;
    json_t *attention = description_put_object(to, row, "attention");
    put_groups(to, attention, layout->attention.tp, layout->rank_count);
    description_put_int(to, attention, "heads", (uint64_t)layout_heads(layout, shape, 0).count);
    description_put_int(to, attention, "kv_heads",
                        (uint64_t)layout_kv_heads(layout, shape, 0).count);
    put_experts(to, row, "experts", shape, layout);
    if (plan_layouts_differ(layouts))
        put_decode_experts(to, row, subject, layouts);
    description_put_int(to, row, "shared_expert_width",
                        (uint64_t)layout_ffn_width(layout, shape->shared_expert_dim, 0).count);
    description_put_int(to, row, "dense_width",
                        (uint64_t)layout_ffn_width(layout, shape->dense_dim, 0).count);
}

static void put_rank(struct description *to, json_t *ranks, const struct subject *subject,
                     const struct plan_layouts *layouts, uint64_t activations, int rank)
{
    struct weights_bytes weights, keep;
    uint64_t parts[PART_COUNT] = {0};
    struct weights_share share = {
        .layouts = *layouts,
        .packed = backup_expert_type(&engine_backup_settings, subject->shape.hidden_dim),
        .rank = rank,
        .types = {subject->dtype, subject->dtype}};
    weights_bytes(&weights, subject->config, &share);
    share.keeps_both = true;
    weights_bytes(&keep, subject->config, &share);
    for (int w = 0; w < WEIGHT_KIND_COUNT; w++)
        parts[model_part_of((enum weight)w)] += weights.by_weight[w];
    parts[PART_EXPERTS] = weights.experts; /* with the spare slot of a plan that has two layouts */
    json_t *object = description_append_object(to, ranks);
    description_put_int(to, object, "rank", (uint64_t)rank);
    json_t *by_part = description_put_object(to, object, "by_part");
    for (int part = 0; part < PART_COUNT; part++)
        description_put_int(to, by_part, model_part_name((enum model_part)part), parts[part]);
    description_put_int(to, object, "weights", weights.resident + weights.experts);
    description_put_int(to, object, "activations", activations);
    description_put_int(to, object, "total", weights.resident + weights.experts + activations);
    if (plan_layouts_differ(layouts))
        description_put_int(to, object, "total_with_keep",
                            keep.resident + keep.experts + activations);
}

static bool is_baseline(const struct layout *layout, const struct subject *subject,
                        enum status (*baseline)(struct layout *out, const struct model_shape *shape,
                                                int rank_count, struct error *reason))
{
    struct layout other;
    return !layout->attention.replicate_ffn &&
           baseline(&other, &subject->shape, layout->rank_count, NULL) == STATUS_OK &&
           other.attention.tp == layout->attention.tp && other.experts.tp == layout->experts.tp;
}

static void put_baselines(struct description *to, json_t *row, const struct subject *subject,
                          const struct plan_layouts *layouts)
{
    const struct layout *layout = &layouts->of[PHASE_PREFILL];
    json_t *names = description_put_array(to, row, "baselines");
    if (plan_layouts_differ(layouts))
        return;
    if (is_baseline(layout, subject, layout_static_tp))
        description_append(to, names, json_string("static_tp"));
    if (is_baseline(layout, subject, layout_static_ep))
        description_append(to, names, json_string("static_ep"));
}

/* As a run checks them (session.c): products of what passed do not overflow. */
static enum status check_limits(const struct subject *subject, int group_count, struct error *err)
{
    return run_limits_check(subject->segment_max, subject->token_max, subject->config, group_count,
                            err);
}

static void put_plan(struct description *to, json_t *list, const struct subject *subject,
                     const struct plan_layouts *layouts)
{
    const struct layout *layout = &layouts->of[PHASE_PREFILL];
    struct error reason;
    char text[LAYOUT_TEXT_BYTES];
    json_t *row = description_append_object(to, list);
    plan_layouts_format(text, layouts);
    description_put(to, row, "plan", json_string(text));
    if (plan_layouts_check(layouts, &subject->shape, &reason) != STATUS_OK ||
        check_limits(subject, layout->attention.dp, &reason) != STATUS_OK) {
        description_put(to, row, "refused", description_text(reason.message));
        return;
    }
    description_put(to, row, "refused", json_null());
    put_baselines(to, row, subject, layouts);
    put_layout(to, row, subject, layouts);
    description_put_int(to, row, "kv_bytes_per_token",
                        kv_page_bytes(subject->config, layout, subject->dtype) / KV_PAGE_TOKENS);
    uint64_t activations =
        exec_bytes(subject->config, layouts, subject->token_max, subject->segment_max);
    json_t *ranks = description_put_array(to, row, "ranks");
    for (int rank = 0; rank < layout->rank_count; rank++)
        put_rank(to, ranks, subject, layouts, activations, rank);
}

/* ---- Which plans ----------------------------------------------------------------------------- */

static bool wants_list(const struct inspect_plans_params *params)
{
    return params->plan != NULL && strcmp(params->plan, "list") == 0;
}

static enum status check_params(int *rank_count, const struct inspect_plans_params *params,
                                struct error *err)
{
    if (wants_list(params) && params->devices == NULL)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--plan list needs to know for how many devices; give --devices cpu:N");
    *rank_count = 0;
    if (params->devices == NULL)
        return STATUS_OK;
    struct engine_devices devices;
    TRY(engine_devices_parse(&devices, params->devices, err));
    *rank_count = devices.rank_count;
    return STATUS_OK;
}

/* Every pair of degrees, the refused with their rule: what there is to choose from. */
static void put_list(struct description *to, json_t *list, const struct subject *subject)
{
    struct layout layouts[LAYOUT_LIST_MAX];
    int count = layout_list(layouts, LAYOUT_LIST_MAX, subject->rank_count);
    for (int i = 0; i < count; i++) {
        struct plan_layouts one = plan_layouts_static(&layouts[i]);
        put_plan(to, list, subject, &one);
    }
}

static void put_plans(struct description *to, const struct subject *subject,
                      const struct plan_layouts *layouts)
{
    json_t *plans = description_put_object(to, to->root, "plans");
    description_put_int(to, plans, "device_count", (uint64_t)subject->rank_count);
    description_put(to, plans, "dtype", json_string(dtype_name(subject->dtype)));
    description_put_int(to, plans, "max_num_seqs", (uint64_t)subject->segment_max);
    description_put_int(to, plans, "max_num_batched_tokens", (uint64_t)subject->token_max);
    json_t *list = description_put_array(to, plans, "list");
    if (layouts == NULL)
        put_list(to, list, subject);
    else
        put_plan(to, list, subject, layouts);
}

enum status inspect_plans_put(struct description *to, const struct model_config *config,
                              enum dtype dtype, const struct inspect_plans_params *params,
                              struct error *err)
{
    struct plan_layouts layouts;
    struct subject subject = {
        .config = config,
        .shape = weights_shape(config),
        .dtype = params->dtype_is_auto ? dtype : params->dtype,
        .token_max = params->max_num_batched_tokens,
        .segment_max = params->max_num_seqs,
    };
    if (subject.dtype == DTYPE_F16) /* runs as bf16 */
        subject.dtype = DTYPE_BF16;
    TRY(check_limits(&subject, 1, err)); /* and for each plan with its own groups */
    TRY(check_params(&subject.rank_count, params, err));
    if (wants_list(params)) {
        put_plans(to, &subject, NULL);
        return STATUS_OK;
    }
    enum status status = engine_plan_parse(&layouts, params->plan, config, subject.rank_count, err);
    if (status == STATUS_UNSUPPORTED) { /* here the plan is to blame, not the checkpoint */
        if (err != NULL)
            err->status = STATUS_INVALID_ARGUMENT;
        return STATUS_INVALID_ARGUMENT;
    }
    TRY(status);
    const struct layout *layout = &layouts.of[PHASE_PREFILL];
    TRY(check_limits(&subject, layout->attention.dp, err));
    subject.rank_count = layout->rank_count;
    put_plans(to, &subject, &layouts);
    return STATUS_OK;
}
