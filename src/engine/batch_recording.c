#include "engine/batch_recording.h"

#include <string.h>

#include "base/json_writer.h"
#include "base/memory.h"
#include "base/record.h"
#include "base/text.h"
#include "comm/collective.h"
#include "exec/stage.h"
#include "layout/traffic.h"
#include "layout/work.h"

#define MIRRORS(a, b) _Static_assert((int)(a) == (int)(b), #a " mirrors " #b)
MIRRORS(RECORD_NODE_COMPUTE, NODE_COMPUTE);
MIRRORS(RECORD_NODE_COLLECTIVE, NODE_COLLECTIVE);
MIRRORS(RECORD_NODE_COPY, NODE_COPY);
MIRRORS(RECORD_NODE_READ, NODE_READ);
MIRRORS(RECORD_NODE_WAIT, NODE_WAIT);
MIRRORS(RECORD_NODE_KIND_COUNT, NODE_KIND_COUNT);
MIRRORS(COLLECTIVE_ALL_GATHER, COLLECTIVE_OP_ALL_GATHER);
MIRRORS(COLLECTIVE_REDUCE_SCATTER, COLLECTIVE_OP_REDUCE_SCATTER);
MIRRORS(COLLECTIVE_ALL_REDUCE, COLLECTIVE_OP_ALL_REDUCE);
MIRRORS(COLLECTIVE_ALL_TO_ALL_V, COLLECTIVE_OP_ALL_TO_ALL);
MIRRORS(COLLECTIVE_EXCHANGE, COLLECTIVE_OP_EXCHANGE);
MIRRORS(COLLECTIVE_KIND_COUNT, COLLECTIVE_OP_COUNT);
_Static_assert(COMM_RANKS_MAX <= RECORDING_RANKS_MAX, "a group has room for its ranks");

static const enum lane_kind lane_kinds[RECORD_LANE_KIND_COUNT] = {
    [RECORD_LANE_STREAM] = LANE_STREAM, [RECORD_LANE_LOW] = LANE_LOW,
    [RECORD_LANE_HOST] = LANE_HOST,     [RECORD_LANE_DRIVER] = LANE_HOST,
    [RECORD_LANE_READS] = LANE_READS,
};

/* A lane as it was recorded, and what of it is kept. */
struct source {
    struct record_lane_view view;
    size_t kept;    /* nodes */
    uint32_t first; /* of them in the recording */
};

/* A communicator, by the number that it has in its domain. */
struct group {
    int64_t id;
    int64_t first_number, last_number; /* of its calls */
    uint8_t *arrived;                  /* [last - first + 1] members that are there */
};

struct builder {
    struct recording *out;
    struct source *sources; /* in the order of the lanes */
    size_t source_count, source_room;
    struct group *groups;
    size_t group_count, group_room;
    size_t string_room;
    enum status status; /* of what cannot fail where it is called */
    struct error *err;
};

static enum status get(struct builder *builder, void *array, size_t *room, size_t count,
                       size_t size)
{
    return memory_reserve(array, room, count, size, "the recording", builder->err);
}

/* ---- Lanes ----------------------------------------------------------------------------------- */

static void see(void *context, const struct record_lane_view *view)
{
    struct builder *builder = context;
    if (view->node_count == 0 || builder->status != STATUS_OK)
        return;
    builder->status = get(builder, &builder->sources, &builder->source_room,
                          builder->source_count + 1, sizeof *builder->sources);
    if (builder->status == STATUS_OK)
        builder->sources[builder->source_count++] =
            (struct source){.view = *view, .kept = view->node_count};
}

static struct source *source_of(const struct builder *builder, uint32_t lane)
{
    for (size_t s = 0; s < builder->source_count; s++) {
        if (builder->sources[s].view.number == lane)
            return &builder->sources[s];
    }
    return NULL;
}

/* Of a transition, which may be under way when the run ends. */
static bool is_of_transition(const struct record_lane_view *view)
{
    bool is_host = view->kind == RECORD_LANE_HOST && strcmp(view->name, "host") != 0;
    return view->kind == RECORD_LANE_LOW || view->kind == RECORD_LANE_READS || is_host;
}

/* ---- Groups ---------------------------------------------------------------------------------- */

static const int64_t *values_of(const struct source *source, size_t node)
{
    return record_values_of(&source->view, record_node_at(&source->view, node));
}

static struct group *group_of(const struct builder *builder, int64_t id)
{
    for (size_t g = 0; g < builder->group_count; g++) {
        if (builder->groups[g].id == id)
            return &builder->groups[g];
    }
    return NULL;
}

/* The recording's group of the same number, with its ranks. */
static enum status group_add(struct builder *builder, const int64_t *values)
{
    size_t room = builder->group_count; /* of the recording's own array: grown by one */
    TRY(get(builder, &builder->groups, &builder->group_room, builder->group_count + 1,
            sizeof *builder->groups));
    TRY(get(builder, &builder->out->groups, &room, builder->group_count + 1,
            sizeof *builder->out->groups));
    struct recording_group *to = &builder->out->groups[builder->group_count];
    *to = (struct recording_group){.size = (int)values[RECORD_VALUE_SIZE]};
    for (int m = 0; m < to->size; m++)
        to->ranks[m] = (uint8_t)values[RECORD_VALUES + m];
    builder->groups[builder->group_count++] =
        (struct group){.id = values[RECORD_VALUE_GROUP],
                       .first_number = values[RECORD_VALUE_NUMBER],
                       .last_number = values[RECORD_VALUE_NUMBER]};
    builder->out->group_count = (uint32_t)builder->group_count;
    return STATUS_OK;
}

static enum status groups_find(struct builder *builder)
{
    for (size_t s = 0; s < builder->source_count; s++) {
        const struct source *source = &builder->sources[s];
        for (size_t n = 0; n < source->kept; n++) {
            const int64_t *values = values_of(source, n);
            if (values == NULL)
                continue;
            struct group *group = group_of(builder, values[RECORD_VALUE_GROUP]);
            if (group == NULL) {
                TRY(group_add(builder, values));
                continue;
            }
            int64_t number = values[RECORD_VALUE_NUMBER];
            group->first_number = number < group->first_number ? number : group->first_number;
            group->last_number = number > group->last_number ? number : group->last_number;
        }
    }
    for (size_t g = 0; g < builder->group_count; g++) {
        struct group *group = &builder->groups[g];
        TRY(memory_get((void **)&group->arrived,
                       (size_t)(group->last_number - group->first_number + 1), 1, "the recording",
                       builder->err));
    }
    return STATUS_OK;
}

static uint8_t *arrived_at(const struct builder *builder, const int64_t *values)
{
    struct group *group = group_of(builder, values[RECORD_VALUE_GROUP]);
    return &group->arrived[values[RECORD_VALUE_NUMBER] - group->first_number];
}

/* ---- What is whole --------------------------------------------------------------------------- */

static void arrivals_count(struct builder *builder)
{
    for (size_t g = 0; g < builder->group_count; g++)
        memset(builder->groups[g].arrived, 0,
               (size_t)(builder->groups[g].last_number - builder->groups[g].first_number + 1));
    for (size_t s = 0; s < builder->source_count; s++) {
        for (size_t n = 0; n < builder->sources[s].kept; n++) {
            const int64_t *values = values_of(&builder->sources[s], n);
            if (values != NULL)
                (*arrived_at(builder, values))++;
        }
    }
}

/* All that it needs is kept, and who it meets. */
static bool is_whole(const struct builder *builder, const struct source *source, size_t node)
{
    const struct record_node *of = record_node_at(&source->view, node);
    const int64_t *values = values_of(source, node);
    for (uint32_t i = 0; i < of->need_count; i++) {
        struct record_mark need = record_need_at(&source->view, of, i);
        const struct source *other = source_of(builder, need.lane);
        if (other == NULL || need.count > other->kept)
            return false;
    }
    return values == NULL || *arrived_at(builder, values) == values[RECORD_VALUE_SIZE];
}

/* Cuts lanes off before the first node that is not whole, which may make others so. */
static void cut(struct builder *builder)
{
    bool has_cut = true;
    while (has_cut) {
        has_cut = false;
        arrivals_count(builder);
        for (size_t s = 0; s < builder->source_count; s++) {
            struct source *source = &builder->sources[s];
            size_t node = 0;
            while (node < source->kept && is_whole(builder, source, node))
                node++;
            has_cut = has_cut || node < source->kept;
            source->kept = node;
        }
    }
}

static enum status check_cuts(const struct builder *builder)
{
    for (size_t s = 0; s < builder->source_count; s++) {
        const struct source *source = &builder->sources[s];
        if (source->kept < source->view.node_count && !is_of_transition(&source->view))
            return error_set(builder->err, STATUS_INTERNAL,
                             "%zu of %zu nodes of rank %d, \"%s\", have no part in what was "
                             "recorded",
                             source->view.node_count - source->kept, source->view.node_count,
                             source->view.rank, source->view.name);
    }
    return STATUS_OK;
}

/* ---- Sizes ----------------------------------------------------------------------------------- */

static enum status sizes_find(struct builder *builder)
{
    struct recording *out = builder->out;
    uint64_t nodes = 0, needs = 0, collectives = 0, counts = 0;
    for (size_t s = 0; s < builder->source_count; s++) {
        struct source *source = &builder->sources[s];
        source->first = (uint32_t)nodes;
        nodes += source->kept;
        for (size_t n = 0; n < source->kept; n++) {
            const int64_t *values = values_of(source, n);
            needs += record_node_at(&source->view, n)->need_count;
            collectives += values != NULL;
            counts += values != NULL ? (uint64_t)values[RECORD_VALUE_SIZE] : 0;
        }
    }
    if (nodes >= UINT32_MAX || needs > UINT32_MAX || counts > UINT32_MAX)
        return error_set(builder->err, STATUS_LIMIT,
                         "the recording has more nodes, needs or counts than its file numbers");
    const char *what = "the recording";
    TRY(memory_get((void **)&out->lanes, builder->source_count, sizeof *out->lanes, what,
                   builder->err));
    TRY(memory_get((void **)&out->nodes, nodes, sizeof *out->nodes, what, builder->err));
    TRY(memory_get((void **)&out->needs, needs, sizeof *out->needs, what, builder->err));
    TRY(memory_get((void **)&out->collectives, collectives, sizeof *out->collectives, what,
                   builder->err));
    return memory_get((void **)&out->counts, counts, sizeof *out->counts, what, builder->err);
}

/* ---- Strings --------------------------------------------------------------------------------- */

static enum status string_get(char **out, const char *text, struct error *err)
{
    *out = memory_copy_text(text, strlen(text));
    return *out != NULL ? STATUS_OK
                        : error_set(err, STATUS_NO_MEMORY, "out of memory for the recording");
}

static enum status string_of(uint32_t *index, struct builder *builder, const char *text)
{
    struct recording *out = builder->out;
    for (*index = 0; *index < out->string_count; (*index)++) {
        if (strcmp(out->strings[*index], text) == 0)
            return STATUS_OK;
    }
    TRY(get(builder, &out->strings, &builder->string_room, out->string_count + 1,
            sizeof *out->strings));
    TRY(string_get(&out->strings[out->string_count], text, builder->err));
    out->string_count++;
    return STATUS_OK;
}

static enum status names_get(char ***out, uint32_t *count, const char *const *names, int name_count,
                             struct error *err)
{
    TRY(memory_get((void **)out, (size_t)name_count, sizeof **out, "the recording", err));
    for (int i = 0; i < name_count; i++) {
        TRY(string_get(&(*out)[i], names[i], err));
        (*count)++;
    }
    return STATUS_OK;
}

/* ---- Nodes ----------------------------------------------------------------------------------- */

static void collective_fill(struct builder *builder, const int64_t *values)
{
    struct recording *out = builder->out;
    const struct group *group = group_of(builder, values[RECORD_VALUE_GROUP]);
    int64_t size = values[RECORD_VALUE_SIZE];
    out->collectives[out->collective_count++] = (struct recording_collective){
        .group = (uint32_t)(group - builder->groups),
        .number = (uint32_t)(values[RECORD_VALUE_NUMBER] - group->first_number + 1),
        .op = (uint8_t)values[RECORD_VALUE_OP],
        .member = (uint8_t)values[RECORD_VALUE_MEMBER],
        .tag = (uint8_t)values[RECORD_VALUE_TAG],
        .count_first = out->count_count,
    };
    memcpy(out->counts + out->count_count, values + RECORD_VALUES + size,
           (size_t)size * sizeof *out->counts);
    out->count_count += (uint32_t)size;
}

static void needs_fill(struct builder *builder, const struct source *source,
                       const struct record_node *node)
{
    struct recording *out = builder->out;
    for (uint32_t i = 0; i < node->need_count; i++) {
        struct record_mark need = record_need_at(&source->view, node, i);
        out->needs[out->need_count++] = source_of(builder, need.lane)->first + need.count - 1;
    }
}

static enum status node_fill(struct builder *builder, const struct source *source, size_t n)
{
    struct recording *out = builder->out;
    const struct record_node *node = record_node_at(&source->view, n);
    const int64_t *values = values_of(source, n);
    struct recording_node *to = &out->nodes[out->node_count];
    *to = (struct recording_node){
        .duration_ns = node->duration_ns,
        .bytes = node->bytes,
        .flops = node->flops,
        .need_first = out->need_count,
        .need_count = node->need_count,
        .layer = node->layer,
        .kind = node->kind,
        .work = node->work,
        .phase = node->phase,
        .stage = is_of_transition(&source->view) ? STAGE_TRANSITION : node->stage,
        .threads = node->threads,
        .to_host = node->to_host,
        .collective = values != NULL ? out->collective_count : 0,
    };
    memcpy(to->dims, node->dims, sizeof to->dims);
    TRY(string_of(&to->name, builder, node->name));
    needs_fill(builder, source, node);
    if (values != NULL)
        collective_fill(builder, values);
    out->node_count++;
    return STATUS_OK;
}

static enum status lanes_fill(struct builder *builder)
{
    struct recording *out = builder->out;
    for (size_t s = 0; s < builder->source_count; s++) {
        const struct source *source = &builder->sources[s];
        struct recording_lane *lane = &out->lanes[out->lane_count];
        *lane = (struct recording_lane){.kind = lane_kinds[source->view.kind],
                                        .rank = source->view.rank,
                                        .first = source->first,
                                        .count = (uint32_t)source->kept};
        TRY(string_of(&lane->name, builder, source->view.name));
        for (size_t n = 0; n < source->kept; n++)
            TRY(node_fill(builder, source, n));
        out->lane_count++;
    }
    return STATUS_OK;
}

/* ---- About ----------------------------------------------------------------------------------- */

static void write_string(struct json_writer *json, const char *key, const char *value)
{
    json_write_key(json, key);
    json_write_string(json, value);
}

static void write_int(struct json_writer *json, const char *key, int64_t value)
{
    json_write_key(json, key);
    json_write_int(json, value);
}

static void write_number(struct json_writer *json, const char *key, double value)
{
    json_write_key(json, key);
    json_write_number(json, value);
}

static enum status about_get(struct recording *out, const struct batch_recording_params *params,
                             struct error *err)
{
    const struct engine *engine = params->engine;
    const struct phasor_batch_result *result = params->result;
    char plan[LAYOUT_TEXT_BYTES], weights[ENGINE_DECODE_WEIGHTS_BYTES];
    struct text text = {0};
    struct json_writer json = {.out = &text};
    plan_layouts_format(plan, engine_layouts(engine));
    engine_decode_weights(weights, engine);
    json_write_open(&json, '{');
    write_string(&json, "program", "phasor " PHASOR_VERSION);
    write_string(&json, "model", engine_model_name(engine));
    write_string(&json, "dtype", dtype_name(engine_types(engine)->matrices));
    write_string(&json, "expert_dtype", dtype_name(engine_types(engine)->experts));
    write_string(&json, "decode_weights", weights);
    write_string(&json, "plan", plan);
    write_string(&json, "transition",
                 engine_transition(engine) == NULL
                     ? NULL
                     : way_names[transition_way(engine_transition(engine))]);
    write_string(&json, "kernels", engine_kernels(engine));
    write_int(&json, "threads", engine_thread_count(engine));
    write_int(&json, "rows", (int64_t)result->total);
    write_int(&json, "rows_before", (int64_t)(result->completed_before + result->failed_before));
    write_int(&json, "prompt_tokens", (int64_t)result->prompt_tokens);
    write_int(&json, "completion_tokens", (int64_t)result->completion_tokens);
    write_int(&json, "prefill_tokens", (int64_t)result->prefill_tokens);
    write_int(&json, "decode_tokens", (int64_t)result->decode_tokens);
    write_number(&json, "prefill_seconds", result->prefill_seconds);
    write_number(&json, "decode_seconds", result->decode_seconds);
    write_number(&json, "transition_seconds", result->transition_seconds);
    json_write_close(&json, '}');
    enum status status = text_check(&text, "the recording", err);
    if (status == STATUS_OK)
        status = string_get(&out->about, text.bytes, err);
    text_deinit(&text);
    return status;
}

/* ---- The whole ------------------------------------------------------------------------------- */

static enum status build(struct builder *builder, const struct batch_recording_params *params)
{
    struct recording *out = builder->out;
    out->rank_count = engine_layout(params->engine)->rank_count;
    out->wall_seconds = params->wall_seconds;
    record_look(engine_trace(params->engine), see, builder);
    TRY(builder->status);
    TRY(groups_find(builder));
    cut(builder);
    TRY(check_cuts(builder));
    TRY(sizes_find(builder));
    TRY(names_get(&out->stage_names, &out->stage_count, stage_names, STAGE_KIND_COUNT,
                  builder->err));
    TRY(names_get(&out->tag_names, &out->tag_count, traffic_names, TRAFFIC_KIND_COUNT,
                  builder->err));
    TRY(lanes_fill(builder));
    return about_get(out, params, builder->err);
}

enum status batch_recording_get(struct recording *out, const struct batch_recording_params *params,
                                struct error *err)
{
    *out = (struct recording){0};
    struct builder builder = {.out = out, .err = err};
    enum status status = build(&builder, params);
    for (size_t g = 0; g < builder.group_count; g++)
        memory_free(builder.groups[g].arrived);
    memory_free(builder.groups);
    memory_free(builder.sources);
    if (status != STATUS_OK)
        recording_deinit(out);
    return status;
}
