#include "base/trace.h"

#include "base/memory.h"
#include "base/record_lane.h"
#include "base/system.h"
#include "base/trace_lane.h"

#define SPANS_FIRST 256

_Thread_local struct trace_lane *trace_own;

enum status trace_create(struct trace **out, struct error *err)
{
    TRY(memory_get((void **)out, 1, sizeof **out, "the trace", err));
    pthread_mutex_init(&(*out)->lock, NULL);
    return STATUS_OK;
}

void trace_destroy(struct trace *trace)
{
    if (trace == NULL)
        return;
    for (struct trace_lane *lane = trace->lanes, *next; lane != NULL; lane = next) {
        next = lane->next;
        record_lane_forget(lane);
        pthread_mutex_destroy(&lane->lock);
        memory_free(lane->spans);
        memory_free(lane);
    }
    pthread_mutex_destroy(&trace->lock);
    memory_free(trace);
}

void trace_start(struct trace *trace, int64_t span_max)
{
    trace_stop(trace);
    pthread_mutex_lock(&trace->lock);
    for (struct trace_lane *lane = trace->lanes; lane != NULL; lane = lane->next) {
        pthread_mutex_lock(&lane->lock);
        memory_free(lane->spans);
        lane->spans = NULL;
        lane->span_count = lane->span_max = 0;
        pthread_mutex_unlock(&lane->lock);
    }
    pthread_mutex_unlock(&trace->lock);
    atomic_store(&trace->room, span_max);
    atomic_store(&trace->left_out, 0);
    atomic_store(&trace->is_on, true);
}

void trace_stop(struct trace *trace)
{
    atomic_store(&trace->is_on, false);
}

struct trace_lane *trace_lane_add(struct trace *trace, int rank, const char *name)
{
    struct trace_lane *lane = trace == NULL ? NULL : memory_alloc(1, sizeof *lane);
    if (lane == NULL)
        return NULL;
    *lane = (struct trace_lane){.trace = trace, .rank = rank, .name = name, .layer = -1};
    pthread_mutex_init(&lane->lock, NULL);
    pthread_mutex_lock(&trace->lock);
    lane->number = ++trace->lane_count;
    struct trace_lane **place = &trace->lanes;
    while (*place != NULL && (*place)->rank <= rank)
        place = &(*place)->next;
    lane->next = *place;
    *place = lane;
    pthread_mutex_unlock(&trace->lock);
    return lane;
}

/* ---- Spans ----------------------------------------------------------------------------------- */

struct trace_lane *trace_lane_use(struct trace_lane *lane)
{
    struct trace_lane *before = trace_own;
    trace_own = lane;
    return before;
}

double trace_begin(void)
{
    if (trace_own == NULL || !atomic_load_explicit(&trace_own->trace->is_on, memory_order_relaxed))
        return 0;
    return system_seconds();
}

static void leave_out(struct trace *trace, double end)
{
    if (atomic_fetch_add(&trace->left_out, 1) > 0)
        return;
    pthread_mutex_lock(&trace->lock);
    trace->left_out_since = end;
    pthread_mutex_unlock(&trace->lock);
}

/* Under the lane's lock. */
static bool has_place(struct trace_lane *lane)
{
    if (lane->span_count < lane->span_max)
        return true;
    int64_t more = lane->span_max == 0 ? SPANS_FIRST : 2 * lane->span_max;
    struct trace_span *spans = memory_resize(lane->spans, (size_t)more, sizeof *spans);
    if (spans == NULL)
        return false;
    lane->spans = spans;
    lane->span_max = more;
    return true;
}

void trace_add(double begin, const char *name, uint64_t bytes)
{
    trace_add_until(begin, system_seconds(), name, bytes);
}

void trace_add_until(double begin, double end, const char *name, uint64_t bytes)
{
    if (begin == 0 || trace_own == NULL)
        return;
    struct trace_lane *lane = trace_own;
    struct trace_span span = {.name = name,
                              .begin = begin,
                              .end = end,
                              .layer = lane->layer,
                              .bytes = bytes,
                              .stage = lane->stage};
    bool is_in = atomic_fetch_sub(&lane->trace->room, 1) > 0;
    if (is_in) {
        pthread_mutex_lock(&lane->lock);
        is_in = has_place(lane);
        if (is_in)
            lane->spans[lane->span_count++] = span;
        pthread_mutex_unlock(&lane->lock);
    }
    if (!is_in)
        leave_out(lane->trace, span.end);
}

void trace_stage(int stage, int64_t layer)
{
    if (trace_own == NULL)
        return;
    trace_own->stage = stage;
    trace_own->layer = layer;
}

struct trace_place trace_place(void)
{
    return trace_own == NULL ? (struct trace_place){.layer = -1}
                             : (struct trace_place){trace_own->stage, trace_own->layer};
}

void trace_layer(int64_t layer)
{
    if (trace_own != NULL)
        trace_own->layer = layer;
}

void trace_name(const char *name)
{
    if (trace_own != NULL)
        trace_own->given_name = name;
}

void trace_bytes(uint64_t more)
{
    if (trace_own != NULL)
        trace_own->given_bytes += more;
}

void trace_add_named(double begin, const char *name)
{
    if (trace_own == NULL)
        return;
    const char *given = trace_own->given_name != NULL ? trace_own->given_name : name;
    if (*given != 0)
        trace_add(begin, given, trace_own->given_bytes);
    trace_own->given_name = NULL;
    trace_own->given_bytes = 0;
}

/* ---- Looking --------------------------------------------------------------------------------- */

void trace_look(struct trace *trace,
                void (*look)(void *context, const struct trace_lane_view *lane), void *context)
{
    pthread_mutex_lock(&trace->lock);
    for (struct trace_lane *lane = trace->lanes; lane != NULL; lane = lane->next) {
        pthread_mutex_lock(&lane->lock);
        look(context,
             &(struct trace_lane_view){lane->rank, lane->name, lane->spans, lane->span_count});
        pthread_mutex_unlock(&lane->lock);
    }
    pthread_mutex_unlock(&trace->lock);
}

int64_t trace_left_out(struct trace *trace, double *since)
{
    int64_t left_out = atomic_load(&trace->left_out);
    pthread_mutex_lock(&trace->lock);
    *since = left_out > 0 ? trace->left_out_since : 0;
    pthread_mutex_unlock(&trace->lock);
    return left_out;
}
