#include "base/record.h"

#include <time.h>

#include "base/record_lane.h"

/* A host's work is cut into nodes no shorter than this where commands are put on streams: a few of
 * them, and far less than an operation takes that is worth its command. */
#define HOST_NS_MIN 5000

/* ---- Life ------------------------------------------------------------------------------------ */

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

static bool is_recording(const struct trace *trace)
{
    return atomic_load_explicit(&trace->is_recording, memory_order_acquire);
}

void record_start(struct trace *trace, int64_t byte_max)
{
    record_forget(trace);
    atomic_store(&trace->byte_room, byte_max);
    atomic_store(&trace->outcome, RECORD_WHOLE);
    atomic_store(&trace->phase, 0);
    atomic_fetch_add(&trace->recording, 1);
    atomic_store(&trace->is_recording, true);
    record_resume();
}

enum record_outcome record_outcome(const struct trace *trace)
{
    return (enum record_outcome)atomic_load(&trace->outcome);
}

/* Lanes change under their locks, and not once it is off (record_lane.h): so behind a round of the
 * locks all of them rest, and each mark that a node needs is of nodes that are there. */
enum record_outcome record_stop(struct trace *trace)
{
    record_pause();
    atomic_store(&trace->is_recording, false);
    pthread_mutex_lock(&trace->lock);
    for (struct trace_lane *lane = trace->lanes; lane != NULL; lane = lane->next) {
        pthread_mutex_lock(&lane->lock);
        pthread_mutex_unlock(&lane->lock);
    }
    pthread_mutex_unlock(&trace->lock);
    return record_outcome(trace);
}

void record_forget(struct trace *trace)
{
    atomic_store(&trace->is_recording, false);
    pthread_mutex_lock(&trace->lock);
    for (struct trace_lane *lane = trace->lanes; lane != NULL; lane = lane->next)
        record_lane_forget(lane);
    pthread_mutex_unlock(&trace->lock);
}

/* ---- The thread's lane ----------------------------------------------------------------------- */

/* What the lane's thread told of an earlier recording is over: a node that has begun then, or work
 * that a host has not been asked for. */
static void begin_anew(struct record_lane *of, uint16_t recording)
{
    if (of->recording == recording)
        return;
    of->recording = recording;
    of->has_next = false;
    of->since = of->since_ns = of->paused_ns = of->excluded_ns = of->ended_ns = 0;
}

/* NULL: nothing is kept. */
static struct trace_lane *lane_now(void)
{
    struct trace_lane *own = trace_own;
    if (own == NULL || !is_recording(own->trace))
        return NULL;
    struct trace_lane *lane = own->record.as != NULL ? own->record.as : own;
    if (lane->record.kind == RECORD_LANE_NONE)
        return NULL;
    begin_anew(&lane->record, atomic_load(&own->trace->recording));
    return lane;
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

static void node_add(struct trace_lane *lane, const struct record_node *node)
{
    record_lane_add(lane, lane->record.recording, node);
}

/* ---- Hosts ----------------------------------------------------------------------------------- */

static uint64_t host_clock(const struct record_lane *of)
{
    return clock_ns(of->kind == RECORD_LANE_DRIVER ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID);
}

/* Its work counts from here on. The wall's clock is read before and, at a node's end, behind the
 * other: whatever else runs between two readings, no work takes longer than the node lasted, but
 * for the microseconds that host_need moves from one node to the next. */
static void host_since(struct record_lane *of, uint64_t wall_ns)
{
    of->since_ns = wall_ns;
    of->since = host_clock(of);
}

/* The host's work so far becomes a node; shorter than `least`, only where the node has needs. */
static void host_cut(struct trace_lane *lane, uint64_t least)
{
    struct record_lane *of = &lane->record;
    uint64_t now = of->since == 0 ? 0 : host_clock(of), work = now - of->since;
    if (work < least && !record_lane_has_needs(lane))
        return;
    struct record_node node = {.name = lane->name,
                               .kind = work > 0 ? RECORD_NODE_COMPUTE : RECORD_NODE_WAIT,
                               .duration_ns = work,
                               .end_ns = clock_ns(CLOCK_MONOTONIC),
                               .layer = (int32_t)trace_own->layer,
                               .stage = (uint8_t)trace_own->stage,
                               .threads = 1};
    node.begin_ns = of->since == 0 ? node.end_ns : of->since_ns;
    if (of->since != 0)
        host_since(of, node.end_ns);
    node_add(lane, &node);
}

/* What it did before does not wait for what it comes to need now; but where it needed others
 * already, some microseconds of work between the two are told as behind both. */
static void host_need(struct trace_lane *lane)
{
    struct record_lane *of = &lane->record;
    uint64_t wall = clock_ns(CLOCK_MONOTONIC);
    if (!record_lane_has_needs(lane))
        host_cut(lane, 1);
    else if (host_clock(of) - of->since >= HOST_NS_MIN)
        host_cut(lane, HOST_NS_MIN);
    if (of->since_ns < wall)
        of->since_ns = wall;
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
    } else if (record_lane_has_needs(lane)) {
        now = clock_ns(CLOCK_MONOTONIC);
        node_add(lane, &(struct record_node){.name = "wait",
                                             .kind = RECORD_NODE_WAIT,
                                             .begin_ns = now,
                                             .end_ns = now,
                                             .layer = (int32_t)trace_own->layer,
                                             .stage = (uint8_t)trace_own->stage,
                                             .threads = 1});
    }
    return record_lane_mark(lane);
}

struct record_mark record_mark_of(struct trace_lane *lane)
{
    if (lane == NULL || !is_recording(lane->trace))
        return (struct record_mark){0};
    return record_lane_mark(lane->record.as != NULL ? lane->record.as : lane);
}

void record_need(struct record_mark mark)
{
    if (mark.lane == 0)
        return;
    struct trace_lane *lane = lane_now();
    if (lane == NULL)
        return;
    if (is_host(&lane->record) && lane->record.since != 0)
        host_need(lane);
    record_lane_need(lane, lane->record.recording, mark);
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
        host_since(of, clock_ns(CLOCK_MONOTONIC));
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

/* `name` is not "". */
static void node_end(struct trace_lane *lane, struct record_node *node, const char *name,
                     uint64_t end_ns, uint64_t bytes)
{
    node->name = name;
    node->end_ns = end_ns;
    node->duration_ns = node->end_ns - node->begin_ns - lane->record.excluded_ns;
    node->bytes = node->bytes > 0 ? node->bytes : bytes;
    node->layer = (int32_t)trace_own->layer;
    node->stage = (uint8_t)trace_own->stage;
    node_add(lane, node);
}

void record_end(const char *name)
{
    struct trace_lane *lane;
    struct record_node *node = next_node(&lane);
    if (node == NULL)
        return;
    record_resume();
    lane->record.has_next = false;
    name = trace_own->given_name != NULL ? trace_own->given_name : name;
    if (*name != 0)
        node_end(lane, node, name, clock_ns(CLOCK_MONOTONIC), trace_own->given_bytes);
}

void record_cut(const char *name, uint64_t at_ns)
{
    struct trace_lane *lane;
    struct record_node *node = next_node(&lane);
    if (node == NULL)
        return;
    record_resume();
    node_end(lane, node, name, at_ns, 0);
    lane->record.excluded_ns = 0;
    *node = (struct record_node){.threads = node->threads, .begin_ns = at_ns};
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
    if (node != NULL)
        record_lane_collective(lane, lane->record.recording, node, call);
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
    struct trace_lane *lane = lane_now();
    if (lane == NULL || reads == NULL || reads->record.kind == RECORD_LANE_NONE)
        return (struct record_mark){0};
    struct record_lane *of = &reads->record;
    begin_anew(of, lane->record.recording);
    begin_ns = begin_ns > of->ended_ns ? begin_ns : of->ended_ns;
    end_ns = end_ns > begin_ns ? end_ns : begin_ns;
    of->ended_ns = end_ns;
    record_lane_need(reads, of->recording, need);
    node_add(reads, &(struct record_node){.name = name,
                                          .kind = RECORD_NODE_READ,
                                          .begin_ns = begin_ns,
                                          .end_ns = end_ns,
                                          .duration_ns = end_ns - begin_ns,
                                          .bytes = bytes,
                                          .layer = (int32_t)trace_own->layer,
                                          .stage = (uint8_t)trace_own->stage,
                                          .threads = 1});
    return record_lane_mark(reads);
}
