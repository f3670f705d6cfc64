/* A rank's buffers: how large they are, where they lie, and what joins the rank to others. */
#include <string.h>

#include "base/memory.h"
#include "exec/exec_state.h"
#include "exec/weight_slices.h"

static int64_t max_of(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t min_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- Sizes --------------------------------------------------------------------------------- */

static void row_limits(struct dimensions *dim, const struct layout *layout, int64_t token_max,
                       int64_t segment_max)
{
    dim->group_max = ceil_div(token_max, layout->attention.dp);
    dim->token_max = dim->group_max * layout->attention.dp;
    dim->decode_max = min_of(segment_max, dim->token_max);
    dim->own_max = ceil_div(dim->group_max, layout->attention.tp);
    if (layout->attention.dp == 1) /* the replicated form */
        dim->own_max = max_of(dim->own_max, dim->decode_max);
    dim->held_max = dim->token_max;
}

/* One pair of buffers serves shared experts, dense layers and routed experts, in turn, or at once
 * where there is room (ffn.c); `down` serves embedding rows on their way as well. */
static void ffn_limits(struct dimensions *dim)
{
    int64_t rows = max_of(dim->group_max, dim->own_max);
    dim->up_values = rows * max_of(dim->shared_width, dim->dense_width);
    dim->down_rows = max_of(rows, dim->held_max);
}

/* What the experts need under one of the layouts, where it is more than under the other. */
static void expert_limits(struct dimensions *dim, const struct model_config *config,
                          const struct model_shape *shape, const struct plan_layouts *layouts,
                          enum phase phase)
{
    const struct layout *layout = &layouts->of[phase];
    int64_t groups = layout->experts.ep;
    int64_t expert_count = ceil_div(config->expert_count, groups);
    int64_t width = round_up(layout_expert_width(layout, shape, 0).count, PACK_BLOCK);
    dim->capacity[phase] =
        groups > 1 ? dispatch_capacity(layout, shape, dim->token_max) : dim->token_max;
    int64_t received = max_of(dim->capacity[phase], dim->decode_max);
    int64_t pairs = received * min_of(config->expert_top_k, expert_count);
    dim->group_count = max_of(dim->group_count, groups);
    dim->lists_max = max_of(dim->lists_max, min_of(config->expert_top_k, groups));
    dim->expert_count = max_of(dim->expert_count, expert_count);
    dim->received_max = max_of(dim->received_max, received);
    dim->up_values = max_of(dim->up_values, pairs * width);
    dim->down_rows = max_of(dim->down_rows, pairs);
}

struct dimensions dimensions_of(const struct model_config *config,
                                const struct plan_layouts *layouts, int64_t token_max,
                                int64_t segment_max)
{
    const struct layout *layout = &layouts->of[PHASE_PREFILL];
    struct model_shape shape = weights_shape(config);
    int64_t heads = layout_heads(layout, &shape, 0).count;
    int64_t kv_heads = layout_kv_heads(layout, &shape, 0).count;
    int64_t q = round_up(heads * config->head_dim, PACK_BLOCK);
    int64_t kv = round_up(kv_heads * config->head_dim, PACK_BLOCK);
    struct dimensions dim = {
        .hidden = round_up(config->hidden_dim, PACK_BLOCK),
        .qkv = q + 2 * kv,
        .k_offset = q,
        .v_offset = q + kv,
        .attention = q,
        .experts = round_up(config->expert_count, PACK_BLOCK),
        .choices = 2 * config->expert_top_k,
        .shared_width =
            round_up(layout_ffn_width(layout, config->shared_expert_dim, 0).count, PACK_BLOCK),
        .dense_width = round_up(layout_ffn_width(layout, config->dense_dim, 0).count, PACK_BLOCK),
        /* The first rank's range of the vocabulary is the longest. */
        .vocab = round_up(layout_vocab(&shape, layout->rank_count, 0).count, PACK_BLOCK),
    };
    row_limits(&dim, layout, token_max, segment_max);
    ffn_limits(&dim);
    for (int phase = 0; phase < PHASE_COUNT; phase++)
        expert_limits(&dim, config, &shape, layouts, (enum phase)phase);
    return dim;
}

/* ---- Places -------------------------------------------------------------------------------- */

/* A buffer and how many 4-byte values it has. */
struct buffer {
    void *pointer; /* to the pointer */
    int64_t count;
};

#define CHOSEN_VALUES     (int64_t)(sizeof(struct chosen) / 4)
#define DRAW_VALUES       (int64_t)(sizeof(struct draw) / 4)
#define CANDIDATES_VALUES (int64_t)(sizeof(struct candidates) / 4)

/* Lays buffers one after another; with `base` NULL it only counts. */
static int64_t buffers_place(const struct buffer *buffers, size_t buffer_count, char *base)
{
    int64_t bytes = 0;
    for (size_t i = 0; i < buffer_count; i++) {
        if (base != NULL) {
            void *place = base + bytes;
            memcpy(buffers[i].pointer, &place, sizeof place);
        }
        bytes += round_up(buffers[i].count * 4, 64);
    }
    return bytes;
}

static int64_t activations_place(struct activations *act, char *base, const struct dimensions *dim,
                                 const struct model_config *config, const struct layout *layout)
{
    int64_t joins = layout->rank_count > 1;
    int64_t cuts = layout->attention.tp > 1;
    int64_t tables = dim->group_count > 1;
    int64_t sends = tables * dim->own_max * dim->lists_max;
    int64_t groups = dim->group_count;
    int64_t received = joins * dim->received_max;
    int64_t choices = dim->received_max * config->expert_top_k;
    const struct buffer buffers[] = {
        {&act->residual, dim->own_max * dim->hidden},
        {&act->normed, dim->own_max * dim->hidden},
        {&act->module_out, dim->own_max * dim->hidden},
        {&act->group_in, cuts * dim->group_max * dim->hidden},
        {&act->group_out, cuts * dim->group_max * dim->hidden},
        {&act->qkv, dim->group_max * dim->qkv},
        {&act->attention, dim->group_max * dim->attention},
        {&act->rope, dim->group_max * config->head_dim},
        {&act->router_logits, dim->own_max * dim->experts},
        {&act->choices, dim->own_max * dim->choices},
        {&act->sent, sends * dim->hidden},
        {&act->sent_choices, sends * dim->choices},
        {&act->sent_token_of, sends},
        {&act->slot_of, tables * dim->own_max * groups},
        {&act->sent_counts, tables * groups},
        {&act->all_counts, tables * layout->rank_count * groups},
        {&act->received, received * dim->hidden},
        {&act->received_choices, received * dim->choices},
        {&act->received_out, received * dim->hidden},
        {&act->up, dim->up_values},
        {&act->down, dim->down_rows * dim->hidden},
        {&act->expert_offsets, dim->expert_count + 1},
        {&act->token_of, choices},
        {&act->position_of, choices},
        {&act->ids, dim->held_max},
        {&act->embed_rows, dim->own_max},
        {&act->row_offsets, 2 * ROW_KIND_COUNT},
        {&act->group_of[PHASE_PREFILL], config->expert_count},
        {&act->local_of[PHASE_PREFILL], config->expert_count},
        {&act->group_of[PHASE_DECODE], config->expert_count},
        {&act->local_of[PHASE_DECODE], config->expert_count},
        {&act->logit_rows, EXEC_LOGIT_ROWS},
        {&act->own_finals, EXEC_LOGIT_ROWS * dim->hidden},
        {&act->finals, joins * EXEC_LOGIT_ROWS * dim->hidden},
        {&act->logits, EXEC_LOGIT_ROWS * dim->vocab},
        {&act->draws, EXEC_LOGIT_ROWS * DRAW_VALUES},
        {&act->chosen, EXEC_LOGIT_ROWS * CHOSEN_VALUES},
        {&act->candidates, EXEC_LOGIT_ROWS * CANDIDATES_VALUES},
    };
    return buffers_place(buffers, sizeof buffers / sizeof buffers[0], base);
}

static int64_t staging_place(struct staging *staging, char *base, const struct dimensions *dim,
                             const struct model_config *config, const struct layout *layout)
{
    int64_t table = layout->rank_count * dim->group_count;
    const struct buffer buffers[] = {
        {&staging->rope, dim->group_max * config->head_dim},
        {&staging->ids, dim->held_max},
        {&staging->embed_rows, dim->own_max},
        {&staging->row_offsets, 2 * ROW_KIND_COUNT},
        {&staging->tables, 2 * config->expert_count},
        {&staging->all_counts, table},
        {&staging->sent, 2 * table},
        {&staging->logit_rows, EXEC_LOGIT_ROWS},
        {&staging->draws, EXEC_LOGIT_ROWS * DRAW_VALUES},
        {&staging->chosen, EXEC_LOGIT_ROWS * CHOSEN_VALUES},
        {&staging->candidates, EXEC_LOGIT_ROWS * CANDIDATES_VALUES},
        {&staging->choices, dim->own_max * dim->choices},
    };
    return buffers_place(buffers, sizeof buffers / sizeof buffers[0], base);
}

uint64_t rank_bytes(const struct dimensions *dim, const struct model_config *config,
                    const struct layout *layout)
{
    struct activations act;
    return (uint64_t)activations_place(&act, NULL, dim, config, layout);
}

/* ---- Life ---------------------------------------------------------------------------------- */

/* Where the rank stands under one of the layouts; and which expert stands where, from the layout to
 * the device. */
static enum status place_start(struct rank *rank, enum phase phase, struct error *err)
{
    const struct exec *exec = rank->exec;
    const struct layout *layout = &exec->layouts.of[phase];
    struct layout_place at = layout_place(layout, rank->index);
    struct expert_place *place = &rank->experts[phase];
    int64_t count = exec->shape.expert_count;
    int32_t *group_of = rank->staging.tables, *local_of = group_of + count, local = 0;
    layout_placement(group_of, layout, &exec->shape);
    for (int64_t e = 0; e < count; e++)
        local_of[e] = group_of[e] == at.ee ? local++ : -1;
    place->layout = layout->experts;
    place->et = at.et;
    place->ee = at.ee;
    place->expert_count = local;
    place->capacity = exec->dim.capacity[phase];
    place->group_of = rank->act.group_of[phase];
    place->local_of = rank->act.local_of[phase];
    for (int r = 0; r < layout->rank_count; r++)
        place->count_bytes[r] = layout->experts.ep * (int64_t)sizeof(int32_t);
    int64_t bytes = count * (int64_t)sizeof(int32_t);
    rank->ops->copy(rank->stream,
                    &(struct op_copy){.out = place->group_of, .in = group_of, .bytes = bytes});
    rank->ops->copy(rank->stream,
                    &(struct op_copy){.out = place->local_of, .in = local_of, .bytes = bytes});
    return rank->ops->synchronize(rank->stream, err);
}

enum status rank_take_memory(struct rank *rank, struct error *err)
{
    const struct exec *exec = rank->exec;
    const struct dimensions *dim = &exec->dim;
    int64_t bytes = activations_place(&rank->act, NULL, dim, exec->config, &exec->layout);
    int64_t staging = staging_place(&rank->staging, NULL, dim, exec->config, &exec->layout);
    TRY(memory_get((void **)&rank->segments, (size_t)exec->segment_max, sizeof *rank->segments,
                   "the executor", err));
    TRY(rank->ops->memory_get(rank->device, &rank->slab, (size_t)bytes, "activations", err));
    TRY(rank->ops->host_memory_get(rank->device, &rank->staging_slab, (size_t)staging,
                                   "the executor", err));
    activations_place(&rank->act, rank->slab, dim, exec->config, &exec->layout);
    staging_place(&rank->staging, rank->staging_slab, dim, exec->config, &exec->layout);
    return STATUS_OK;
}

/* Padding between heads and strides must be finite from the start. */
enum status rank_start(struct rank *rank, struct error *err)
{
    const struct exec *exec = rank->exec;
    int64_t bytes = (int64_t)rank_bytes(&exec->dim, exec->config, &exec->layout);
    rank->ops->fill(rank->stream, &(struct op_fill){.out = rank->slab, .bytes = bytes});
    for (int phase = 0; phase < exec_place_count(exec); phase++)
        TRY(place_start(rank, (enum phase)phase, err));
    return STATUS_OK;
}

void rank_deinit(struct rank *rank)
{
    if (rank->device == NULL)
        return;
    comm_destroy(rank->world);
    comm_destroy(rank->attention);
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        comm_destroy(rank->experts[phase].group);
        comm_destroy(rank->experts[phase].peers);
    }
    rank->ops->host_memory_free(rank->device, rank->staging_slab);
    rank->ops->memory_free(rank->device, rank->slab);
    memory_free(rank->segments);
}
