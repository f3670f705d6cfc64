/* What lanes keep: bytes, lists, and threads that work while recordings begin and end. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/memory.h"
#include "base/record_lane.h"
#include "base/trace.h"
#include "record_tools.h"

/* ---- Bytes ----------------------------------------------------------------------------------- */

static void call(void)
{
    static const int ranks[] = {0, 1};
    static const int64_t counts[2];
    record_begin();
    record_collective(
        &(struct record_collective){.number = 1, .size = 2, .ranks = ranks, .counts = counts});
    record_end("sum");
}

Test(record_lane, takes_no_more_bytes_than_it_was_given)
{
    static const int64_t rooms[] = {0, 1000, 20000, 100000, 1000000};
    struct trace *trace = trace_open();
    for (size_t r = 0; r < sizeof rooms / sizeof *rooms; r++) {
        uint64_t before = memory_counters_get().live_bytes;
        record_start(trace, rooms[r]);
        for (int i = 0; record_outcome(trace) == RECORD_WHOLE; i++) {
            cr_assert_lt(i, 100000);
            trace_lane_use(lanes[ONE + i % 2]);
            record_need(record_mark_of(lanes[ONE + (i + 1) % 2]));
            if (i % 3 == 0)
                call();
            else
                node("node");
        }
        cr_expect_not(record_is_on());
        uint64_t taken = memory_counters_get().live_bytes - before;
        cr_expect_leq(taken, (uint64_t)rooms[r]);
        cr_expect(rooms[r] < 100000 || taken > (uint64_t)rooms[r] / 2);
        cr_expect_eq(record_stop(trace), RECORD_FULL);
        record_forget(trace);
        cr_expect_eq(memory_counters_get().live_bytes, before);
        look(trace);
        for (int l = 0; l < view_count; l++)
            cr_expect_eq(views[l].node_count, 0);
    }
    trace_close(trace);
}

/* Whichever allocation it is. */
Test(record_lane, is_none_where_there_is_no_memory)
{
    struct trace *trace = trace_open();
    enum record_outcome outcome = RECORD_NO_MEMORY;
    int n = 0;
    while (outcome == RECORD_NO_MEMORY) {
        memory_fail_at((uint64_t)++n, 0);
        record_start(trace, ROOM);
        trace_lane_use(lanes[OTHER]);
        node("a");
        struct record_mark mark = record_mark();
        trace_lane_use(lanes[ONE]);
        record_need(mark);
        call();
        outcome = record_stop(trace);
        memory_fail_at(0, 0);
    }
    cr_expect_eq(outcome, RECORD_WHOLE);
    cr_expect_eq(n, 10, "%d allocations: two for each of four lists, and what is known", n - 1);
    look(trace);
    expect_needs(ONE, 0, &(struct record_mark){.lane = (uint16_t)views[OTHER].number, .count = 1},
                 1);
    trace_close(trace);
}

/* Nodes, needs and values of more than a chunk come back as they were told. */
Test(record_lane, keeps_long_lanes)
{
    static const int ranks[] = {0, 1, 2, 3, 4, 5, 6};
    struct trace *trace = trace_open();
    int64_t counts[7];
    record_start(trace, INT64_MAX);
    for (int i = 0; i < 5000; i++) {
        trace_lane_use(lanes[OTHER]);
        node("other");
        struct record_mark mark = record_mark();
        trace_lane_use(lanes[ONE]);
        record_need(mark);
        record_begin();
        for (int m = 0; m < 7; m++)
            counts[m] = 7 * i + m;
        record_collective(&(struct record_collective){
            .number = (uint32_t)i + 1, .size = 1 + i % 7, .ranks = ranks, .counts = counts});
        record_end("sum");
    }
    cr_expect_eq(record_stop(trace), RECORD_WHOLE);
    look(trace);
    cr_assert_eq(views[ONE].node_count, 5000);
    for (int i = 0; i < 5000; i++) {
        const struct record_node *node = node_at(ONE, (size_t)i);
        const int64_t *values = record_values_of(&views[ONE], node);
        expect_needs(
            ONE, (size_t)i,
            &(struct record_mark){.lane = (uint16_t)views[OTHER].number, .count = (uint32_t)i + 1},
            1);
        cr_assert_eq(values[RECORD_VALUE_NUMBER], i + 1);
        cr_assert_eq(values[RECORD_VALUE_SIZE], 1 + i % 7);
        for (int m = 0; m <= i % 7; m++) {
            cr_assert_eq(values[RECORD_VALUES + m], m);
            cr_assert_eq(values[RECORD_VALUES + 1 + i % 7 + m], 7 * i + m);
        }
    }
    trace_close(trace);
}

/* ---- Many threads ---------------------------------------------------------------------------- */

#define THREADS 4

static struct {
    pthread_mutex_t lock;
    struct record_mark last;
    atomic_int node_count;
    atomic_bool has_ended;
} shared = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Each hands a mark on to whoever comes next. */
static void *work_many(void *context)
{
    trace_lane_use(context);
    while (!atomic_load(&shared.has_ended)) {
        pthread_mutex_lock(&shared.lock);
        record_need(shared.last);
        call();
        shared.last = record_mark();
        atomic_fetch_add(&shared.node_count, 1);
        pthread_mutex_unlock(&shared.lock);
    }
    trace_lane_use(NULL);
    return NULL;
}

static void expect_needs_are_there(int lane, const struct record_node *node)
{
    for (uint32_t i = 0; i < node->need_count; i++) {
        struct record_mark need = record_need_at(&views[lane], node, i);
        int other = 0;
        while (other < view_count && views[other].number != need.lane)
            other++;
        cr_assert_lt(other, view_count);
        cr_assert_leq(need.count, views[other].node_count, "a node is not there");
    }
}

Test(record_lane, ends_whole_while_threads_go_on)
{
    struct trace *trace = trace_open();
    pthread_t threads[THREADS];
    size_t node_count = 0;
    record_start(trace, INT64_MAX);
    for (int t = 0; t < THREADS; t++) {
        struct trace_lane *lane = trace_lane_add(trace, 10 + t, "thread");
        record_lane_set(lane, RECORD_LANE_STREAM);
        cr_assert_eq(pthread_create(&threads[t], NULL, work_many, lane), 0);
    }
    while (atomic_load(&shared.node_count) < 10000)
        sleep_for(MS);
    cr_expect_eq(record_stop(trace), RECORD_WHOLE);
    look(trace); /* while they run, and add nothing */
    for (int l = 0; l < view_count; l++) {
        for (size_t n = 0; n < views[l].node_count; n++)
            expect_needs_are_there(l, node_at(l, n));
    }
    for (int l = LANE_COUNT; l < view_count; l++)
        node_count += views[l].node_count;
    cr_expect_geq(node_count, 10000);
    atomic_store(&shared.has_ended, true);
    for (int t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    trace_close(trace);
}

/* What was begun in one recording is nothing in the next, and what comes behind the end nowhere. */
Test(record_lane, ends_for_those_who_are_at_work)
{
    static const int ranks[] = {0};
    static const int64_t counts[1];
    struct trace *trace = trace_open();
    record_start(trace, ROOM);
    trace_lane_use(lanes[OTHER]);
    node("a");
    struct record_mark mark = record_mark();
    trace_lane_use(lanes[HOST]);
    record_resume();
    trace_lane_use(lanes[ONE]);
    record_begin();
    record_stop(trace);
    record_need(mark);
    record_collective(&(struct record_collective){.size = 1, .ranks = ranks, .counts = counts});
    record_end("none");
    look(trace);
    cr_expect_eq(views[ONE].node_count, 0);
    record_start(trace, ROOM);
    trace_lane_use(lanes[ONE]);
    record_begin();
    record_start(trace, ROOM);
    record_end("none");
    record_need(mark);
    node("b");
    trace_lane_use(lanes[HOST]);
    record_pause(); /* what it did was asked for in the first */
    record_stop(trace);
    look(trace);
    cr_assert_eq(views[ONE].node_count, 1);
    expect_needs(ONE, 0, NULL, 0);
    cr_expect_eq(views[HOST].node_count, 0);
    trace_close(trace);
}

/* A thread has looked whether there is a recording, and is slow: it tells of one that has ended by
 * then, or been followed by another. */
static void tell_late(uint16_t recording, struct record_mark mark)
{
    static const int ranks[] = {0};
    static const int64_t counts[1];
    const struct record_collective of = {.size = 1, .ranks = ranks, .counts = counts};
    struct record_node late = {.name = "late"};
    uint64_t bytes = memory_counters_get().live_bytes;
    record_lane_need(lanes[ONE], recording, mark);
    record_lane_collective(lanes[ONE], recording, &late, &of);
    record_lane_add(lanes[ONE], recording, &late);
    cr_expect_neq(late.kind, RECORD_NODE_COLLECTIVE);
    cr_expect_not(record_lane_has_needs(lanes[ONE]));
    cr_expect_eq(record_lane_mark(lanes[ONE]).count, 0);
    cr_expect_eq(memory_counters_get().live_bytes, bytes);
}

Test(record_lane, keeps_nothing_that_is_told_late)
{
    struct trace *trace = trace_open();
    record_start(trace, ROOM);
    trace_lane_use(lanes[OTHER]);
    node("a");
    struct record_mark mark = record_mark();
    cr_assert_eq(mark.count, 1);
    record_stop(trace);
    tell_late(mark.recording, mark);
    record_forget(trace);
    tell_late(mark.recording, mark);
    record_start(trace, ROOM);
    tell_late(mark.recording, mark);
    trace_close(trace);
}

#define ROUNDS 200

/* Threads that never rest, while recordings begin, fill up, end and are forgotten. */
Test(record_lane, begins_and_ends_while_threads_go_on)
{
    struct trace *trace = trace_open();
    pthread_t threads[THREADS];
    atomic_store(&shared.has_ended, false);
    for (int t = 0; t < THREADS; t++) {
        struct trace_lane *lane = trace_lane_add(trace, 10 + t, "thread");
        record_lane_set(lane, RECORD_LANE_STREAM);
        cr_assert_eq(pthread_create(&threads[t], NULL, work_many, lane), 0);
    }
    for (int round = 0; round < ROUNDS; round++) {
        record_start(trace, round % 2 == 0 ? INT64_MAX : 100000);
        sleep_for(MS / 4);
        if (round % 3 == 0)
            continue; /* the next one begins anyway */
        record_stop(trace);
        look(trace);
        for (int l = 0; l < view_count; l++) {
            for (size_t n = 0; n < views[l].node_count; n++)
                expect_needs_are_there(l, node_at(l, n));
        }
        record_forget(trace);
    }
    atomic_store(&shared.has_ended, true);
    for (int t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    trace_close(trace);
}
