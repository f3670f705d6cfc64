/* What a recording keeps of threads that work: which nodes, with what needs, and which time. */
#include <criterion/criterion.h>
#include <string.h>
#include <time.h>

#include "base/trace.h"
#include "record_tools.h"

/* Of the thread on a CPU. */
static uint64_t worked_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void work_for(uint64_t ns)
{
    uint64_t begin = worked_ns();
    while (worked_ns() - begin < ns)
        continue;
}

Test(record, keeps_what_runs_between_start_and_stop)
{
    struct trace *trace = trace_open();
    trace_lane_use(lanes[ONE]);
    node("before");
    cr_expect_not(record_is_on());
    cr_expect_eq(record_mark().lane, 0);
    record_start(trace, ROOM);
    cr_expect(record_is_on());
    trace_stage(3, 7);
    record_phase(trace, 2);
    record_begin();
    record_work(&(struct record_work){.kind = 4, .dims = {1, 2, 3}, .flops = 5, .bytes = 6});
    record_threads(8);
    record_end("first");
    record_begin();
    trace_name("given");
    trace_bytes(9);
    record_end("second");
    trace_add_named(0, "second");
    trace_lane_use(NULL);
    cr_expect_not(record_is_on());
    node("on no lane");
    cr_expect_eq(record_stop(trace), RECORD_WHOLE);
    trace_lane_use(lanes[ONE]);
    node("behind");
    look(trace);
    cr_assert_eq(views[ONE].node_count, 2);
    const struct record_node *nodes = node_at(ONE, 0);
    cr_expect_str_eq(nodes[0].name, "first");
    cr_expect(nodes[0].work == 4 && nodes[0].flops == 5 && nodes[0].bytes == 6);
    cr_expect(nodes[0].dims[0] == 1 && nodes[0].dims[2] == 3 && nodes[0].dims[3] == 0);
    cr_expect(nodes[0].threads == 8 && nodes[0].stage == 3 && nodes[0].layer == 7);
    cr_expect_eq(nodes[0].phase, 2);
    cr_expect_str_eq(nodes[1].name, "given");
    cr_expect(nodes[1].bytes == 9 && nodes[1].threads == 1);
    record_start(trace, ROOM);
    look(trace);
    cr_expect_eq(views[ONE].node_count, 0);
    trace_close(trace);
}

Test(record, gives_each_need_to_the_next_node_once)
{
    struct trace *trace = trace_open();
    record_start(trace, ROOM);
    trace_lane_use(lanes[ONE]);
    node("a");
    struct record_mark first = record_mark();
    node("b");
    struct record_mark second = record_mark();
    record_need(second); /* of its own lane: it is behind that anyway */
    node("c");
    trace_lane_use(lanes[OTHER]);
    record_need(first);
    record_begin();
    record_drop();
    record_end("none");
    record_begin();
    trace_name("");
    record_end("none either");
    trace_add_named(0, "");
    node("d"); /* has the need of those */
    record_need(second);
    struct record_mark waited = record_mark(); /* a node that only waits */
    record_need(first);                        /* is within it */
    record_need(second);
    node("e");
    cr_expect_eq(record_stop(trace), RECORD_WHOLE);
    look(trace);
    for (size_t n = 0; n < 3; n++)
        expect_needs(ONE, n, NULL, 0);
    cr_assert_eq(views[OTHER].node_count, 3);
    expect_needs(OTHER, 0, &(struct record_mark){.lane = (uint16_t)views[ONE].number, .count = 1},
                 1);
    expect_needs(OTHER, 1, &(struct record_mark){.lane = (uint16_t)views[ONE].number, .count = 2},
                 1);
    cr_expect_eq(node_at(OTHER, 1)->kind, RECORD_NODE_WAIT);
    cr_expect(waited.lane == views[OTHER].number && waited.count == 2);
    expect_needs(OTHER, 2, NULL, 0);
    trace_close(trace);
}

Test(record, knows_no_mark_of_an_earlier_one)
{
    struct trace *trace = trace_open();
    record_start(trace, ROOM);
    trace_lane_use(lanes[ONE]);
    node("a");
    struct record_mark old = record_mark();
    record_start(trace, ROOM);
    node("a");
    trace_lane_use(lanes[OTHER]);
    record_need(old);
    node("b");
    record_stop(trace);
    look(trace);
    expect_needs(OTHER, 0, NULL, 0);
    trace_close(trace);
}

/* All time of a host is in its nodes, but what it rests; of one that rests none is. */
Test(record, counts_a_hosts_time_once)
{
    struct trace *trace = trace_open();
    uint64_t begun = worked_ns();
    record_start(trace, ROOM);
    for (int kind = DRIVER; kind <= HOST; kind++) {
        trace_lane_use(lanes[kind]);
        record_resume();
        work_for(2 * MS);
        for (int i = 0; i < 100; i++) {
            work_for(20000);
            record_mark();
        }
        record_pause();
        sleep_for(20 * MS);
        record_need(record_mark_of(lanes[1 - kind]));
        record_resume();
        work_for(MS);
        sleep_for(20 * MS); /* it does not rest: only a driver's time is the clock's */
        record_pause();
    }
    record_stop(trace);
    uint64_t worked = worked_ns() - begun;
    look(trace);
    for (int kind = DRIVER; kind <= HOST; kind++) {
        uint64_t sum = 0;
        for (size_t n = 0; n < views[kind].node_count; n++)
            sum += node_at(kind, n)->duration_ns;
        cr_expect_geq(sum, (kind == DRIVER ? 25 : 5) * MS);
        cr_expect(kind == DRIVER || sum <= worked, "%llu ns: what it slept is in it",
                  (unsigned long long)sum);
        cr_expect_geq(views[kind].node_count, 100);
    }
    size_t last = views[HOST].node_count - 1;
    expect_needs(HOST, last,
                 &(struct record_mark){.lane = (uint16_t)views[DRIVER].number,
                                       .count = (uint32_t)views[DRIVER].node_count},
                 1);
    trace_close(trace);
}

/* What comes behind a wait is not told as before it, however short. */
Test(record, cuts_a_hosts_work_where_it_needs)
{
    struct trace *trace = trace_open();
    record_start(trace, ROOM);
    trace_lane_use(lanes[ONE]);
    node("a");
    struct record_mark mark = record_mark();
    trace_lane_use(lanes[HOST]);
    record_resume();
    work_for(MS);
    record_need(mark); /* the work before it does not wait */
    struct record_mark behind = record_mark();
    record_pause();
    cr_expect_eq(behind.count, 2);
    record_stop(trace);
    look(trace);
    cr_expect_geq(node_at(HOST, 0)->duration_ns, MS);
    expect_needs(HOST, 0, NULL, 0);
    expect_needs(HOST, 1, &mark, 1);
    trace_close(trace);
}

/* Of two things that it needs one after the other it waits for the second only behind the work in
 * between, as long as that is worth a node; and a node begins behind all that it needs. */
Test(record, cuts_a_hosts_work_between_two_needs)
{
    struct trace *trace = trace_open();
    struct record_mark marks[3];
    record_start(trace, ROOM);
    trace_lane_use(lanes[ONE]);
    node("a");
    marks[0] = record_mark();
    trace_lane_use(lanes[HOST]);
    record_need(marks[0]); /* its first takes memory, and so time */
    record_resume();
    record_pause();
    record_resume();
    for (int i = 0; i < 3; i++) {
        trace_lane_use(lanes[ONE]);
        node("node");
        marks[i] = record_mark();
        trace_lane_use(lanes[HOST]);
        record_need(marks[i]);
        if (i == 1)
            work_for(MS);
    }
    record_pause();
    record_stop(trace);
    look(trace);
    size_t count = views[HOST].node_count;
    cr_assert_geq(count, 2);
    for (size_t n = 0; n < count; n++) {
        const struct record_node *node = node_at(HOST, n);
        for (uint32_t i = 0; i < node->need_count; i++)
            cr_expect_geq(node->begin_ns,
                          node_at(ONE, record_need_at(&views[HOST], node, i).count - 1)->end_ns);
    }
    expect_needs(HOST, count - 1, &marks[2], 1);
    cr_expect_geq(node_at(HOST, count - 2)->duration_ns, MS);
    trace_close(trace);
}

Test(record, leaves_out_of_a_node_what_it_waits)
{
    struct trace *trace = trace_open();
    record_start(trace, ROOM);
    trace_lane_use(lanes[ONE]);
    record_begin();
    work_for(MS);
    record_pause();
    sleep_for(30 * MS);
    record_resume();
    record_end("node");
    record_begin();
    sleep_for(30 * MS);
    record_begin(); /* anew */
    record_end("node");
    record_stop(trace);
    look(trace);
    const struct record_node *node = node_at(ONE, 0);
    cr_expect_geq(node[0].end_ns - node[0].begin_ns, 31 * MS);
    cr_expect_leq(node[0].duration_ns + 30 * MS, node[0].end_ns - node[0].begin_ns);
    cr_expect_geq(node[0].duration_ns, MS);
    cr_expect_geq(node[1].begin_ns, node[0].end_ns + 30 * MS);
    trace_close(trace);
}

Test(record, cuts_a_node_in_two)
{
    struct trace *trace = trace_open();
    trace_lane_use(lanes[OTHER]);
    record_start(trace, ROOM);
    node("needed");
    struct record_mark mark = record_mark();
    trace_lane_use(lanes[ONE]);
    record_need(mark);
    record_begin();
    record_threads(3);
    record_work(&(struct record_work){.kind = 4, .bytes = 6});
    trace_stage(1, 2);
    uint64_t at = record_now() + MS;
    work_for(2 * MS);
    record_cut("first", at);
    trace_stage(3, 4);
    record_work(&(struct record_work){.kind = 5});
    record_end("second");
    record_stop(trace);
    record_cut("none", at);
    look(trace);
    const struct record_node *nodes = node_at(ONE, 0);
    cr_assert_eq(views[ONE].node_count, 2);
    cr_expect_str_eq(nodes[0].name, "first");
    cr_expect_str_eq(nodes[1].name, "second");
    cr_expect(nodes[0].end_ns == at && nodes[1].begin_ns == at);
    cr_expect(nodes[0].duration_ns == at - nodes[0].begin_ns);
    cr_expect_geq(nodes[1].duration_ns, MS / 2);
    cr_expect(nodes[0].work == 4 && nodes[0].bytes == 6 && nodes[0].stage == 1);
    cr_expect(nodes[1].work == 5 && nodes[1].bytes == 0 && nodes[1].stage == 3);
    cr_expect(nodes[0].threads == 3 && nodes[1].threads == 3);
    expect_needs(ONE, 0, &mark, 1);
    expect_needs(ONE, 1, NULL, 0);
    trace_close(trace);
}

Test(record, puts_reads_one_behind_the_other)
{
    struct trace *trace = trace_open();
    record_start(trace, ROOM);
    trace_lane_use(lanes[OTHER]);
    node("a");
    struct record_mark asked = record_mark();
    record_read(lanes[READS], "read", 1000, 5000, 10, asked);
    struct record_mark second = record_read(lanes[READS], "read", 2000, 6000, 20, asked);
    record_read(lanes[READS], "read", 3000, 5500, 30, asked); /* was there with the second */
    record_need(second);
    record_add(RECORD_NODE_COMPUTE, "b", 7000, 9000, 40, 2);
    record_stop(trace);
    look(trace);
    const struct record_node *reads = node_at(READS, 0);
    cr_assert_eq(views[READS].node_count, 3);
    cr_expect(reads[0].duration_ns == 4000 && reads[0].bytes == 10);
    cr_expect(reads[1].begin_ns == 5000 && reads[1].duration_ns == 1000);
    cr_expect(reads[2].begin_ns == 6000 && reads[2].duration_ns == 0);
    expect_needs(READS, 0, &asked, 1);
    expect_needs(OTHER, 1, &second, 1);
    cr_expect(node_at(OTHER, 1)->duration_ns == 2000 && node_at(OTHER, 1)->threads == 2);
    trace_close(trace);
}

Test(record, tells_of_a_collective)
{
    static const int ranks[] = {3, 5};
    static const int64_t counts[] = {64, 128};
    struct trace *trace = trace_open();
    record_start(trace, ROOM);
    trace_lane_use(lanes[ONE]);
    for (uint32_t number = 1; number <= 2; number++) {
        record_begin();
        record_collective(&(struct record_collective){.group = 9,
                                                      .number = number,
                                                      .op = 1,
                                                      .tag = 4,
                                                      .member = 1,
                                                      .size = 2,
                                                      .ranks = ranks,
                                                      .counts = counts});
        record_end("sum");
    }
    record_stop(trace);
    look(trace);
    const struct record_node *second = node_at(ONE, 1);
    cr_expect_eq(second->kind, RECORD_NODE_COLLECTIVE);
    static const int64_t expected[] = {9, 2, 1, 4, 1, 2, 3, 5, 64, 128};
    cr_expect_eq(memcmp(record_values_of(&views[ONE], second), expected, sizeof expected), 0);
    trace_close(trace);
}

/* Another lane has the nodes, of the stage and layer that this thread works for; the spans stay. */
Test(record, may_be_on_another_lane)
{
    struct trace *trace = trace_open();
    record_start(trace, ROOM);
    trace_start(trace, 100);
    trace_lane_use(lanes[OTHER]);
    trace_stage(1, 2); /* what its own thread works for */
    node("of its own");
    trace_lane_use(lanes[ONE]);
    trace_stage(3, 7);
    record_as(lanes[OTHER]);
    cr_expect_eq(record_lane(), lanes[OTHER]);
    double begin = trace_begin();
    node("a");
    trace_add(begin, "a", 0);
    record_as(NULL);
    node("b");
    struct record_mark needed = record_mark();
    record_as(lanes[OTHER]);
    record_need(needed);
    record_mark(); /* a node that only waits */
    record_as(NULL);
    record_stop(trace);
    look(trace);
    cr_assert(views[ONE].node_count == 1 && views[OTHER].node_count == 3);
    cr_expect(node_at(OTHER, 0)->stage == 1 && node_at(OTHER, 0)->layer == 2);
    cr_expect_str_eq(node_at(OTHER, 1)->name, "a");
    cr_expect_eq(node_at(OTHER, 2)->kind, RECORD_NODE_WAIT);
    for (size_t n = 1; n < 3; n++)
        cr_expect(node_at(OTHER, n)->stage == 3 && node_at(OTHER, n)->layer == 7);
    trace_close(trace);
}
