#include "base/record_lane.h"

#include <string.h>

#include "base/memory.h"

#define CHUNK_BYTES ((size_t)16384)
#define ARRAY_FIRST 64

/* ---- Room, under the lane's lock ------------------------------------------------------------- */

static void give_up(struct trace *trace, enum record_outcome outcome)
{
    int whole = RECORD_WHOLE;
    atomic_compare_exchange_strong(&trace->outcome, &whole, (int)outcome);
    atomic_store(&trace->is_recording, false);
}

/* False: the recording has ended. */
static bool may_take(struct trace *trace, size_t bytes)
{
    if (atomic_fetch_sub(&trace->byte_room, (long long)bytes) >= (long long)bytes)
        return true;
    give_up(trace, RECORD_FULL);
    return false;
}

/* An array grows, with zeros. */
static bool has_room(struct trace *trace, void *array, size_t *room, size_t wanted, size_t size)
{
    void *old;
    char *grown;
    size_t more = *room == 0 ? ARRAY_FIRST : 2 * *room;
    if (wanted <= *room)
        return true;
    more = more < wanted ? wanted : more;
    if (!may_take(trace, (more - *room) * size))
        return false;
    memcpy(&old, array, sizeof old);
    grown = memory_resize(old, more, size);
    if (grown == NULL) {
        give_up(trace, RECORD_NO_MEMORY);
        return false;
    }
    memset(grown + *room * size, 0, (more - *room) * size);
    memcpy(array, &grown, sizeof grown);
    *room = more;
    return true;
}

static void *list_at(const struct record_list *list, size_t i, size_t size)
{
    size_t in_chunk = CHUNK_BYTES / size;
    return (char *)list->chunks[i / in_chunk] + i % in_chunk * size;
}

/* Room for `more` behind what is there, one behind the other: at the beginning of a chunk where
 * this one has too little. NULL: the recording has ended. */
static void *list_add(struct trace *trace, struct record_list *list, size_t more, size_t size)
{
    size_t in_chunk = CHUNK_BYTES / size, first = list->count;
    ASSERT(more <= in_chunk);
    if (first % in_chunk + more > in_chunk)
        first += in_chunk - first % in_chunk;
    if (first / in_chunk == list->chunk_count) {
        if (!has_room(trace, &list->chunks, &list->chunk_room, list->chunk_count + 1,
                      sizeof *list->chunks) ||
            !may_take(trace, CHUNK_BYTES))
            return NULL;
        void *chunk = memory_alloc_raw(CHUNK_BYTES, 1);
        if (chunk == NULL) {
            give_up(trace, RECORD_NO_MEMORY);
            return NULL;
        }
        list->chunks[list->chunk_count++] = chunk;
    }
    list->count = first + more;
    return list_at(list, first, size);
}

static void list_clear(struct record_list *list)
{
    for (size_t c = 0; c < list->chunk_count; c++)
        memory_free(list->chunks[c]);
    memory_free(list->chunks);
    *list = (struct record_list){0};
}

void record_lane_forget(struct trace_lane *lane)
{
    struct record_lane *of = &lane->record;
    pthread_mutex_lock(&lane->lock);
    list_clear(&of->nodes);
    list_clear(&of->needs);
    list_clear(&of->values);
    memory_free(of->seen);
    of->seen = NULL;
    of->need_first = of->seen_room = 0;
    pthread_mutex_unlock(&lane->lock);
}

/* ---- Adding ---------------------------------------------------------------------------------- */

/* Under the lane's lock. */
static bool goes_on(const struct trace *trace, uint16_t recording)
{
    return atomic_load(&trace->is_recording) && atomic_load(&trace->recording) == recording;
}

void record_lane_add(struct trace_lane *lane, uint16_t recording, const struct record_node *node)
{
    struct record_lane *of = &lane->record;
    pthread_mutex_lock(&lane->lock);
    struct record_node *added = goes_on(lane->trace, recording)
                                    ? list_add(lane->trace, &of->nodes, 1, sizeof *added)
                                    : NULL;
    if (added != NULL) {
        *added = *node;
        added->phase = (uint8_t)atomic_load(&lane->trace->phase);
        added->need_first = (uint32_t)of->need_first;
        added->need_count = (uint32_t)(of->needs.count - of->need_first);
        of->need_first = of->needs.count;
    }
    pthread_mutex_unlock(&lane->lock);
}

/* What a lane has needed before, it need not need again. */
static bool is_new(struct trace_lane *lane, struct record_mark mark)
{
    struct record_lane *of = &lane->record;
    if (!has_room(lane->trace, &of->seen, &of->seen_room, (size_t)mark.lane + 1,
                  sizeof *of->seen) ||
        of->seen[mark.lane] >= mark.count)
        return false;
    of->seen[mark.lane] = mark.count;
    return true;
}

void record_lane_need(struct trace_lane *lane, uint16_t recording, struct record_mark mark)
{
    struct record_lane *of = &lane->record;
    if (mark.lane == 0 || mark.lane == lane->number || mark.recording != recording)
        return;
    pthread_mutex_lock(&lane->lock);
    if (goes_on(lane->trace, recording) && is_new(lane, mark)) {
        struct record_mark *added = list_add(lane->trace, &of->needs, 1, sizeof *added);
        if (added != NULL)
            *added = mark;
    }
    pthread_mutex_unlock(&lane->lock);
}

bool record_lane_has_needs(struct trace_lane *lane)
{
    pthread_mutex_lock(&lane->lock);
    bool has = lane->record.needs.count > lane->record.need_first;
    pthread_mutex_unlock(&lane->lock);
    return has;
}

void record_lane_collective(struct trace_lane *lane, uint16_t recording, struct record_node *node,
                            const struct record_collective *call)
{
    struct record_lane *of = &lane->record;
    size_t count = RECORD_VALUES + 2 * (size_t)call->size;
    pthread_mutex_lock(&lane->lock);
    int64_t *values = goes_on(lane->trace, recording)
                          ? list_add(lane->trace, &of->values, count, sizeof *values)
                          : NULL;
    if (values != NULL) {
        node->kind = RECORD_NODE_COLLECTIVE;
        node->value_first = (uint32_t)(of->values.count - count);
        values[RECORD_VALUE_GROUP] = call->group;
        values[RECORD_VALUE_NUMBER] = call->number;
        values[RECORD_VALUE_OP] = call->op;
        values[RECORD_VALUE_TAG] = call->tag;
        values[RECORD_VALUE_MEMBER] = call->member;
        values[RECORD_VALUE_SIZE] = call->size;
        for (int m = 0; m < call->size; m++) {
            values[RECORD_VALUES + m] = call->ranks[m];
            values[RECORD_VALUES + call->size + m] = call->counts[m];
        }
    }
    pthread_mutex_unlock(&lane->lock);
}

/* The number is taken under the lock: a recording that begins takes all nodes away first, and has
 * its number then. So no mark of its number counts nodes of the one before. */
struct record_mark record_lane_mark(struct trace_lane *lane)
{
    pthread_mutex_lock(&lane->lock);
    struct record_mark mark = {.lane = lane->number,
                               .recording = atomic_load(&lane->trace->recording),
                               .count = (uint32_t)lane->record.nodes.count};
    pthread_mutex_unlock(&lane->lock);
    return mark.count > 0 ? mark : (struct record_mark){0};
}

/* ---- Looking --------------------------------------------------------------------------------- */

const struct record_node *record_node_at(const struct record_lane_view *lane, size_t n)
{
    return list_at(lane->nodes, n, sizeof(struct record_node));
}

struct record_mark record_need_at(const struct record_lane_view *lane,
                                  const struct record_node *node, size_t i)
{
    const struct record_mark *mark = list_at(lane->needs, node->need_first + i, sizeof *mark);
    return *mark;
}

const int64_t *record_values_of(const struct record_lane_view *lane, const struct record_node *node)
{
    return node->kind == RECORD_NODE_COLLECTIVE
               ? list_at(lane->values, node->value_first, sizeof(int64_t))
               : NULL;
}

void record_look(struct trace *trace,
                 void (*look)(void *context, const struct record_lane_view *lane), void *context)
{
    pthread_mutex_lock(&trace->lock);
    for (struct trace_lane *lane = trace->lanes; lane != NULL; lane = lane->next) {
        const struct record_lane *of = &lane->record;
        if (of->kind == RECORD_LANE_NONE)
            continue;
        look(context, &(struct record_lane_view){.number = lane->number,
                                                 .rank = lane->rank,
                                                 .name = lane->name,
                                                 .kind = of->kind,
                                                 .node_count = of->nodes.count,
                                                 .nodes = &of->nodes,
                                                 .needs = &of->needs,
                                                 .values = &of->values});
    }
    pthread_mutex_unlock(&trace->lock);
}
