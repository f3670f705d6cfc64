#include "base/record.h"

#include <string.h>
#include <time.h>

#include "base/memory.h"
#include "base/trace_lane.h"

/* A host's work is cut into nodes no shorter than this where commands are put on streams: a few of
 * them, and far less than an operation takes that is worth its command. */
#define HOST_NS_MIN 5000

#define ARRAY_FIRST 256

/* ---- Life ------------------------------------------------------------------------------------ */

/* Under the lane's lock, or where nobody works on it. */
static void lane_clear(struct record_lane *of)
{
    memory_free(of->nodes);
    memory_free(of->needs);
    memory_free(of->values);
    memory_free(of->seen);
    *of = (struct record_lane){.kind = of->kind, .as = of->as};
}

void record_lane_deinit(struct trace_lane *lane)
{
    lane_clear(&lane->record);
}

void record_lane_set(struct trace_lane *lane, enum record_lane_kind kind)
{
    if (lane != NULL)
        lane->record.kind = kind;
}

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void each_lane_locked(struct trace *trace, void (*look)(struct record_lane *of))
{
    pthread_mutex_lock(&trace->lock);
    for (struct trace_lane *lane = trace->lanes; lane != NULL; lane = lane->next) {
        pthread_mutex_lock(&lane->lock);
        look(&lane->record);
        pthread_mutex_unlock(&lane->lock);
    }
    pthread_mutex_unlock(&trace->lock);
}

static void lane_pass(struct record_lane *of)
{
    (void)of;
}

void record_start(struct trace *trace, int64_t node_max)
{
    atomic_store(&trace->is_recording, false);
    each_lane_locked(trace, lane_clear);
    atomic_store(&trace->node_room, node_max);
    atomic_store(&trace->outcome, RECORD_WHOLE);
    atomic_store(&trace->phase, 0);
    atomic_fetch_add(&trace->recording, 1);
    atomic_store(&trace->is_recording, true);
    record_resume();
}

/* Nodes are added under the lock of their lane and not once it is off: so behind a round of the
 * locks all lanes rest, and each mark that a node needs is of nodes that are there. */
enum record_outcome record_stop(struct trace *trace)
{
    record_pause();
    atomic_store(&trace->is_recording, false);
    each_lane_locked(trace, lane_pass);
    return (enum record_outcome)atomic_load(&trace->outcome);
}

/* ---- The thread's lane ----------------------------------------------------------------------- */

static bool is_recording(const struct trace *trace)
{
    return atomic_load_explicit(&trace->is_recording, memory_order_acquire);
}

/* NULL: nothing is kept. */
static struct trace_lane *lane_now(void)
{
    struct trace_lane *own = trace_own;
    if (own == NULL || !is_recording(own->trace))
        return NULL;
    struct trace_lane *lane = own->record.as != NULL ? own->record.as : own;
    return lane->record.kind == RECORD_LANE_NONE ? NULL : lane;
}

bool record_is_on(void)
{
    return lane_now() != NULL;
}

uint64_t record_now(void)
{
    return record_is_on() ? clock_ns(CLOCK_MONOTONIC) : 0;
}

void record_as(struct trace_lane *lane)
{
    if (trace_own != NULL)
        trace_own->record.as = lane;
}

struct trace_lane *record_lane(void)
{
    return trace_own != NULL && trace_own->record.as != NULL ? trace_own->record.as : trace_own;
}

static bool is_host(const struct record_lane *of)
{
    return of->kind == RECORD_LANE_HOST || of->kind == RECORD_LANE_DRIVER;
}

/* ---- Adding ---------------------------------------------------------------------------------- */

static void give_up(struct trace *trace, enum record_outcome outcome)
{
    int whole = RECORD_WHOLE;
    atomic_compare_exchange_strong(&trace->outcome, &whole, (int)outcome);
    atomic_store(&trace->is_recording, false);
}

/* Under the lane's lock: room for `more` of an array. */
static bool has_room(void *array, size_t *room, size_t count, size_t more, size_t size)
{
    void *old, *grown;
    if (count + more <= *room)
        return true;
    size_t wanted = *room == 0 ? ARRAY_FIRST : 2 * *room;
    while (wanted < count + more)
        wanted *= 2;
    memcpy(&old, array, sizeof old);
    grown = memory_resize(old, wanted, size);
    if (grown == NULL)
        return false;
    memcpy(array, &grown, sizeof grown);
    *room = wanted;
    return true;
}

/* With the needs that wait for it. */
static void node_add(struct trace_lane *lane, const struct record_node *node)
{
    struct record_lane *of = &lane->record;
    bool is_full = atomic_fetch_sub(&lane->trace->node_room, 1) <= 0, is_kept = true;
    pthread_mutex_lock(&lane->lock);
    if (is_recording(lane->trace) && !is_full) {
        is_kept = has_room(&of->nodes, &of->node_room, of->node_count, 1, sizeof *of->nodes);
        if (is_kept) {
            struct record_node *added = &of->nodes[of->node_count++];
            *added = *node;
            added->phase = (uint8_t)atomic_load(&lane->trace->phase);
            added->need_first = (uint32_t)of->need_first;
            added->need_count = (uint32_t)(of->need_count - of->need_first);
            of->need_first = of->need_count;
        }
    }
    pthread_mutex_unlock(&lane->lock);
    if (is_full || !is_kept)
        give_up(lane->trace, is_full ? RECORD_FULL : RECORD_NO_MEMORY);
}

static bool has_needs(const struct record_lane *of)
{
    return of->need_count > of->need_first;
}

static struct record_mark mark_now(struct trace_lane *lane)
{
    pthread_mutex_lock(&lane->lock);
    uint32_t count = (uint32_t)lane->record.node_count;
    pthread_mutex_unlock(&lane->lock);
    if (count == 0)
        return (struct record_mark){0};
    return (struct record_mark){
        .lane = lane->number, .recording = atomic_load(&lane->trace->recording), .count = count};
}

/* What a lane has needed before, it need not need again. */
static bool is_seen(struct record_lane *of, struct record_mark mark)
{
    size_t before = of->seen_room;
    if (!has_room(&of->seen, &of->seen_room, 0, (size_t)mark.lane + 1, sizeof *of->seen))
        return false;
    memset(of->seen + before, 0, (of->seen_room - before) * sizeof *of->seen);
    if (of->seen[mark.lane] >= mark.count)
        return true;
    of->seen[mark.lane] = mark.count;
    return false;
}

static void need_add(struct trace_lane *lane, struct record_mark mark)
{
    struct record_lane *of = &lane->record;
    if (mark.lane == 0 || mark.lane == lane->number ||
        mark.recording != atomic_load(&lane->trace->recording) || is_seen(of, mark))
        return;
    pthread_mutex_lock(&lane->lock);
    bool is_kept = has_room(&of->needs, &of->need_room, of->need_count, 1, sizeof *of->needs);
    if (is_kept)
        of->needs[of->need_count++] = mark;
    pthread_mutex_unlock(&lane->lock);
    if (!is_kept)
        give_up(lane->trace, RECORD_NO_MEMORY);
}

/* ---- Hosts ----------------------------------------------------------------------------------- */

static uint64_t host_clock(const struct record_lane *of)
{
    return clock_ns(of->kind == RECORD_LANE_DRIVER ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID);
}

/* The host's work so far becomes a node; shorter than `least`, only where the node has needs. */
static void host_cut(struct trace_lane *lane, uint64_t least)
{
    struct record_lane *of = &lane->record;
    uint64_t now = of->since == 0 ? 0 : host_clock(of), work = now - of->since;
    if (work < least && !has_needs(of))
        return;
    struct record_node node = {.name = lane->name,
                               .kind = work > 0 ? RECORD_NODE_COMPUTE : RECORD_NODE_WAIT,
                               .duration_ns = work,
                               .end_ns = clock_ns(CLOCK_MONOTONIC),
                               .layer = (int32_t)lane->layer,
                               .stage = (uint8_t)lane->stage,
                               .threads = 1};
    node.begin_ns = of->since == 0 ? node.end_ns : of->since_ns;
    node_add(lane, &node);
    of->since = now;
    of->since_ns = node.end_ns;
}

void record_phase(struct trace *trace, int phase)
{
    struct trace_lane *lane = lane_now();
    if (lane != NULL && is_host(&lane->record) && lane->record.since != 0)
        host_cut(lane, 1); /* what it did before */
    if (trace != NULL)
        atomic_store(&trace->phase, phase);
}

/* ---- Waiting --------------------------------------------------------------------------------- */

struct record_mark record_mark(void)
{
    struct trace_lane *lane = lane_now();
    if (lane == NULL)
        return (struct record_mark){0};
    uint64_t now;
    if (is_host(&lane->record)) {
        host_cut(lane, HOST_NS_MIN);
    } else if (has_needs(&lane->record)) {
        now = clock_ns(CLOCK_MONOTONIC);
        node_add(lane, &(struct record_node){.name = "wait",
                                             .kind = RECORD_NODE_WAIT,
                                             .begin_ns = now,
                                             .end_ns = now,
                                             .layer = (int32_t)lane->layer,
                                             .stage = (uint8_t)lane->stage,
                                             .threads = 1});
    }
    return mark_now(lane);
}

struct record_mark record_mark_of(struct trace_lane *lane)
{
    if (lane == NULL || !is_recording(lane->trace))
        return (struct record_mark){0};
    return mark_now(lane->record.as != NULL ? lane->record.as : lane);
}

void record_need(struct record_mark mark)
{
    if (mark.lane == 0)
        return;
    struct trace_lane *lane = lane_now();
    if (lane == NULL)
        return;
    if (is_host(&lane->record) && lane->record.since != 0 && !has_needs(&lane->record))
        host_cut(lane, 1); /* what it did before */
    need_add(lane, mark);
}

void record_pause(void)
{
    struct trace_lane *lane = lane_now();
    if (lane == NULL)
        return;
    struct record_lane *of = &lane->record;
    if (is_host(of)) {
        if (of->since != 0)
            host_cut(lane, 1);
        of->since = 0;
    } else if (of->has_next && of->paused_ns == 0) {
        of->paused_ns = clock_ns(CLOCK_MONOTONIC);
    }
}

void record_resume(void)
{
    struct trace_lane *lane = lane_now();
    if (lane == NULL)
        return;
    struct record_lane *of = &lane->record;
    if (is_host(of)) {
        of->since = host_clock(of);
        of->since_ns = clock_ns(CLOCK_MONOTONIC);
    } else if (of->has_next && of->paused_ns != 0) {
        of->excluded_ns += clock_ns(CLOCK_MONOTONIC) - of->paused_ns;
        of->paused_ns = 0;
    }
}

/* ---- Nodes of streams ------------------------------------------------------------------------ */

void record_begin(void)
{
    struct trace_lane *lane = lane_now();
    if (lane == NULL)
        return;
    struct record_lane *of = &lane->record;
    of->has_next = true;
    of->excluded_ns = of->paused_ns = 0;
    of->next = (struct record_node){.threads = 1, .begin_ns = clock_ns(CLOCK_MONOTONIC)};
}

/* Of the node that has begun; NULL: none has. */
static struct record_node *next_node(struct trace_lane **lane)
{
    *lane = lane_now();
    return *lane == NULL || !(*lane)->record.has_next ? NULL : &(*lane)->record.next;
}

void record_drop(void)
{
    struct trace_lane *lane = lane_now();
    if (lane != NULL)
        lane->record.has_next = false;
}

void record_end(const char *name)
{
    struct trace_lane *lane;
    struct record_node *node = next_node(&lane);
    if (node == NULL)
        return;
    record_resume();
    lane->record.has_next = false;
    node->name = trace_own->given_name != NULL ? trace_own->given_name : name;
    if (*node->name == 0)
        return;
    node->end_ns = clock_ns(CLOCK_MONOTONIC);
    node->duration_ns = node->end_ns - node->begin_ns - lane->record.excluded_ns;
    node->bytes = node->bytes > 0 ? node->bytes : trace_own->given_bytes;
    node->layer = (int32_t)trace_own->layer;
    node->stage = (uint8_t)trace_own->stage;
    node_add(lane, node);
}

void record_copy(bool to_host)
{
    struct trace_lane *lane;
    struct record_node *node = next_node(&lane);
    if (node == NULL)
        return;
    node->kind = RECORD_NODE_COPY;
    node->to_host = to_host;
}

void record_threads(int threads)
{
    struct trace_lane *lane;
    struct record_node *node = next_node(&lane);
    if (node != NULL)
        node->threads = (uint16_t)threads;
}

void record_work(const struct record_work *work)
{
    struct trace_lane *lane;
    struct record_node *node = next_node(&lane);
    if (node == NULL)
        return;
    node->work = (uint8_t)work->kind;
    node->flops = work->flops;
    node->bytes = work->bytes;
    for (int d = 0; d < RECORD_DIMS; d++)
        node->dims[d] = work->dims[d] < INT32_MAX ? (int32_t)work->dims[d] : INT32_MAX;
}

void record_collective(const struct record_collective *call)
{
    struct trace_lane *lane;
    struct record_node *node = next_node(&lane);
    if (node == NULL)
        return;
    struct record_lane *of = &lane->record;
    size_t more = RECORD_VALUES + 2 * (size_t)call->size;
    pthread_mutex_lock(&lane->lock);
    bool is_kept =
        has_room(&of->values, &of->value_room, of->value_count, more, sizeof *of->values);
    if (is_kept) {
        int64_t *values = of->values + of->value_count;
        node->kind = RECORD_NODE_COLLECTIVE;
        node->value_first = (uint32_t)of->value_count;
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
        of->value_count += more;
    }
    pthread_mutex_unlock(&lane->lock);
    if (!is_kept)
        give_up(lane->trace, RECORD_NO_MEMORY);
}

/* ---- What is told of afterwards -------------------------------------------------------------- */

void record_add(enum record_node_kind kind, const char *name, uint64_t begin_ns, uint64_t end_ns,
                uint64_t bytes, int threads)
{
    struct trace_lane *lane = lane_now();
    if (lane == NULL)
        return;
    node_add(lane, &(struct record_node){.name = name,
                                         .kind = (uint8_t)kind,
                                         .begin_ns = begin_ns,
                                         .end_ns = end_ns,
                                         .duration_ns = end_ns - begin_ns,
                                         .bytes = bytes,
                                         .layer = (int32_t)trace_own->layer,
                                         .stage = (uint8_t)trace_own->stage,
                                         .threads = (uint16_t)threads});
}

struct record_mark record_read(struct trace_lane *reads, const char *name, uint64_t begin_ns,
                               uint64_t end_ns, uint64_t bytes, struct record_mark need)
{
    if (reads == NULL || reads->record.kind == RECORD_LANE_NONE || lane_now() == NULL)
        return (struct record_mark){0};
    struct record_lane *of = &reads->record;
    begin_ns = begin_ns > of->ended_ns ? begin_ns : of->ended_ns;
    end_ns = end_ns > begin_ns ? end_ns : begin_ns;
    of->ended_ns = end_ns;
    need_add(reads, need);
    node_add(reads, &(struct record_node){.name = name,
                                          .kind = RECORD_NODE_READ,
                                          .begin_ns = begin_ns,
                                          .end_ns = end_ns,
                                          .duration_ns = end_ns - begin_ns,
                                          .bytes = bytes,
                                          .layer = (int32_t)trace_own->layer,
                                          .stage = (uint8_t)trace_own->stage,
                                          .threads = 1});
    return mark_now(reads);
}

/* ---- Looking --------------------------------------------------------------------------------- */

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
                                                 .nodes = of->nodes,
                                                 .needs = of->needs,
                                                 .values = of->values,
                                                 .node_count = of->node_count,
                                                 .need_count = of->need_first,
                                                 .value_count = of->value_count});
    }
    pthread_mutex_unlock(&trace->lock);
}
