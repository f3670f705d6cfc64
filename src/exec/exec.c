#include "exec/exec.h"

#include <string.h>

#include "base/memory.h"
#include "exec/exec_state.h"

/* ---- Communicators --------------------------------------------------------------------------- */

/* Gives each of `count` ranks, first, first + step ..., its end in `*slot of that rank`; none where
 * a group would be one rank. */
static enum status join(struct exec *exec, size_t slot, int first, int step, int count,
                        struct error *err)
{
    int members[COMM_RANKS_MAX];
    struct comm *ends[COMM_RANKS_MAX];
    if (count < 2)
        return STATUS_OK;
    for (int m = 0; m < count; m++)
        members[m] = first + m * step;
    TRY(comm_create(ends, box_domain(exec->box), members, count, err));
    for (int m = 0; m < count; m++)
        memcpy((char *)&exec->ranks[members[m]] + slot, &ends[m], sizeof ends[m]);
    return STATUS_OK;
}

static enum status join_experts(struct exec *exec, enum phase phase, struct error *err)
{
    const struct expert_layout *experts = &exec->layouts.of[phase].experts;
    size_t place = offsetof(struct rank, experts) + (size_t)phase * sizeof(struct expert_place);
    for (int g = 0; g < experts->ep; g++)
        TRY(join(exec, place + offsetof(struct expert_place, group), g * experts->tp, 1,
                 experts->tp, err));
    for (int m = 0; m < experts->tp; m++)
        TRY(join(exec, place + offsetof(struct expert_place, peers), m, experts->tp, experts->ep,
                 err));
    return STATUS_OK;
}

static enum status communicators_create(struct exec *exec, struct error *err)
{
    const struct attention_layout *attention = &exec->layout.attention;
    TRY(join(exec, offsetof(struct rank, world), 0, 1, exec->layout.rank_count, err));
    for (int g = 0; g < attention->dp; g++)
        TRY(join(exec, offsetof(struct rank, attention), g * attention->tp, 1, attention->tp, err));
    for (int phase = 0; phase < exec_place_count(exec); phase++)
        TRY(join_experts(exec, (enum phase)phase, err));
    return STATUS_OK;
}

/* ---- Life ------------------------------------------------------------------------------------ */

uint64_t exec_bytes(const struct model_config *config, const struct plan_layouts *layouts,
                    int64_t token_max, int64_t segment_max)
{
    struct dimensions dim = dimensions_of(config, layouts, token_max, segment_max);
    return rank_bytes(&dim, config, &layouts->of[PHASE_PREFILL]);
}

static enum status start(void *context, int index, struct error *err)
{
    struct exec *exec = context;
    return rank_start(&exec->ranks[index], err);
}

/* Whose host memory the logits of all ranks are. */
static struct device *host_device(const struct exec *exec)
{
    return box_device(exec->box, 0);
}

static enum status ranks_create(struct exec *exec, const struct exec_params *params,
                                struct error *err)
{
    int rank_count = exec->layout.rank_count;
    size_t logits = (size_t)round_up(exec->config->vocab_count, PACK_BLOCK) * EXEC_LOGIT_ROWS;
    TRY(memory_get((void **)&exec->ranks, (size_t)rank_count, sizeof *exec->ranks, "the executor",
                   err));
    for (int r = 0; r < rank_count; r++) {
        struct rank *rank = &exec->ranks[r];
        rank->exec = exec;
        rank->index = r;
        rank->place = layout_place(&exec->layout, r);
        rank->device = box_device(exec->box, r);
        rank->ops = rank->device->ops;
        rank->stream = rank->device->stream;
        rank->weights = &params->weights[r];
        enum status status = rank_take_memory(rank, err);
        if (status != STATUS_OK)
            return error_prefix(err, status, "rank %d", r);
    }
    TRY(host_device(exec)->ops->host_memory_get(host_device(exec), (void **)&exec->logits,
                                                logits * sizeof *exec->logits, "logits", err));
    TRY(communicators_create(exec, err));
    /* What can fail for want of memory is done: a failure from here on is of the box. */
    return box_run(exec->box, start, exec, err);
}

enum status exec_create(struct exec **out, const struct exec_params *params, struct error *err)
{
    struct exec *exec;
    ASSERT(params->layouts->of[PHASE_PREFILL].rank_count == box_rank_count(params->box));
    TRY(memory_get((void **)&exec, 1, sizeof *exec, "the executor", err));
    exec->box = params->box;
    exec->config = params->config;
    exec->layouts = *params->layouts;
    exec->layout = params->layouts->of[PHASE_PREFILL];
    exec->shape = weights_shape(params->config);
    exec->token_max = params->token_max;
    exec->segment_max = params->segment_max;
    exec->dim =
        dimensions_of(params->config, params->layouts, params->token_max, params->segment_max);
    exec->token_max = exec->dim.token_max;
    enum status status = rope_table_init(&exec->rope, params->config, err);
    if (status == STATUS_OK)
        status = ranks_create(exec, params, err);
    if (status != STATUS_OK) {
        exec_destroy(exec);
        return status;
    }
    *out = exec;
    return STATUS_OK;
}

void exec_destroy(struct exec *exec)
{
    if (exec == NULL)
        return;
    for (int r = 0; exec->ranks != NULL && r < exec->layout.rank_count; r++)
        rank_deinit(&exec->ranks[r]);
    if (exec->logits != NULL)
        host_device(exec)->ops->host_memory_free(host_device(exec), exec->logits);
    rope_table_deinit(&exec->rope);
    memory_free(exec->ranks);
    memory_free(exec);
}

const struct model_config *exec_config(const struct exec *exec)
{
    return exec->config;
}

const struct layout *exec_layout(const struct exec *exec)
{
    return &exec->layout;
}

struct box *exec_box(const struct exec *exec)
{
    return exec->box;
}

int64_t exec_token_max(const struct exec *exec)
{
    return exec->token_max;
}

int64_t exec_group_token_max(const struct exec *exec)
{
    return exec->dim.group_max;
}

enum dtype exec_kv_dtype(const struct exec *exec)
{
    return exec->ranks[0].weights->types.matrices;
}

enum layer_form exec_decode_form(const struct exec *exec)
{
    return exec->layout.attention.dp == 1 ? FORM_REPLICATED : FORM_GATHERED;
}

void exec_stage_totals(const struct exec *exec, struct stage_total totals[STAGE_KIND_COUNT])
{
    int rank_count = exec->layout.rank_count;
    memset(totals, 0, STAGE_KIND_COUNT * sizeof *totals);
    for (int r = 0; r < rank_count; r++) {
        struct stage_total of_rank[DEVICE_STAGES];
        exec->ranks[r].ops->stage_totals(exec->ranks[r].stream, of_rank);
        for (int stage = 0; stage < STAGE_KIND_COUNT; stage++) {
            totals[stage].seconds += of_rank[stage].seconds / rank_count;
            totals[stage].weight_bytes += of_rank[stage].weight_bytes;
        }
    }
}

/* ---- Hooks ----------------------------------------------------------------------------------- */

void exec_set_hooks(struct exec *exec, const struct exec_hooks *hooks)
{
    exec->hooks = hooks != NULL ? *hooks : (struct exec_hooks){0};
}

enum status experts_await(struct rank *rank, int64_t layer, struct error *err)
{
    const struct exec_hooks *hooks = &rank->exec->hooks;
    if (hooks->experts_await == NULL)
        return STATUS_OK;
    stage_begin(rank, STAGE_TRANSITION);
    return hooks->experts_await(hooks->context, rank->index, layer, err);
}

void experts_done(struct rank *rank, int64_t layer)
{
    const struct exec_hooks *hooks = &rank->exec->hooks;
    if (hooks->experts_done != NULL)
        hooks->experts_done(hooks->context, rank->index, layer);
}

/* ---- Routing, where it is recorded ----------------------------------------------------------- */

void exec_record_routing(struct exec *exec, int32_t *ids)
{
    exec->routing = ids;
}

enum status routing_record(struct rank *rank, int64_t layer, struct error *err)
{
    const struct exec *exec = rank->exec;
    int64_t top_k = exec->config->expert_top_k, stride = exec->dim.choices;
    /* Replicated rows are recorded once. */
    if (exec->routing == NULL || (exec->pass.form == FORM_REPLICATED && rank->index > 0))
        return STATUS_OK;
    rank->ops->copy(rank->stream, &(struct op_copy){.out = rank->staging.choices,
                                                    .in = rank->act.choices,
                                                    .bytes = rank->own_count * stride * 4});
    TRY(rank->ops->synchronize(rank->stream, err));
    int64_t first = layer * exec->token_max + exec->pass.own[rank->index].first;
    for (int64_t t = 0; t < rank->own_count; t++)
        memcpy(exec->routing + (first + t) * top_k, rank->staging.choices + t * stride,
               (size_t)top_k * sizeof *exec->routing);
    return STATUS_OK;
}

/* ---- Passes ---------------------------------------------------------------------------------- */

static enum status rank_end(struct rank *rank, struct error *err)
{
    stage_begin(rank, STAGE_BETWEEN);
    return rank->ops->synchronize(rank->stream, err);
}

/* A step of decode is the one before but for its tokens; not where layers may change meanwhile, or
 * somebody looks between two stages. */
static bool is_repeated(const struct exec *exec)
{
    return exec->pass.form != FORM_OWNED && exec->routing == NULL &&
           exec->hooks.experts_await == NULL && exec->hooks.experts_done == NULL;
}

static void repeat(struct rank *rank, bool begins)
{
    if (rank->ops->repeat != NULL && is_repeated(rank->exec))
        rank->ops->repeat(rank->stream, begins);
}

static enum status rank_step(void *context, int index, struct error *err)
{
    struct exec *exec = context;
    struct rank *rank = &exec->ranks[index];
    rank->layer = -1;
    /* Of several ranks each has its share of the tokens' ids, which is another in each step. */
    if (rank->world == NULL)
        repeat(rank, true);
    stage_begin(rank, STAGE_EMBEDDING);
    pass_prepare(rank);
    embedding_run(rank);
    if (rank->world != NULL)
        repeat(rank, true);
    for (int64_t layer = 0; layer < exec->config->layer_count; layer++)
        TRY(layer_run(rank, layer, err));
    rank->layer = -1;
    if (exec->wanted_count > 0)
        head_run(rank);
    repeat(rank, false);
    return rank_end(rank, err);
}

static enum status rank_head(void *context, int index, struct error *err)
{
    struct exec *exec = context;
    head_run(&exec->ranks[index]);
    return rank_end(&exec->ranks[index], err);
}

static void wanted_set(struct exec *exec, const struct exec_head *head)
{
    ASSERT(head->row_count <= EXEC_LOGIT_ROWS);
    for (int64_t i = 1; i < head->row_count; i++)
        ASSERT(head->rows[i - 1] <= head->rows[i]);
    exec->wanted = head->rows;
    exec->wanted_count = head->row_count;
    exec->wants_chosen = head->wants_chosen;
    exec->wants_candidates = head->wants_candidates;
    exec->skips_logits = head->skips_logits;
    exec->draws = head->draws;
}

static void found_get(struct exec *exec, struct exec_head *head)
{
    head_merge(exec);
    head->chosen = exec->chosen;
    head->candidates = exec->candidates;
    head->logits = exec->logits;
    head->stride = round_up(exec->config->vocab_count, PACK_BLOCK);
}

enum status exec_step(struct exec *exec, struct kv_cache *cache, enum layer_form form,
                      const struct exec_segment *segments, int64_t segment_count,
                      struct exec_head *head, struct error *err)
{
    exec->pass = (struct pass){.form = form, .cache = cache};
    pass_start(exec, segments, segment_count);
    wanted_set(exec, head);
    TRY(box_run(exec->box, rank_step, exec, err));
    found_get(exec, head);
    return STATUS_OK;
}

enum status exec_forward(struct exec *exec, struct kv_cache *cache, enum layer_form form,
                         const struct exec_segment *segments, int64_t segment_count,
                         struct error *err)
{
    return exec_step(exec, cache, form, segments, segment_count, &(struct exec_head){0}, err);
}

enum status exec_head(struct exec *exec, struct exec_head *head, struct error *err)
{
    wanted_set(exec, head);
    TRY(box_run(exec->box, rank_head, exec, err));
    found_get(exec, head);
    return STATUS_OK;
}
