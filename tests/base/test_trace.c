/* What ran when: which spans a trace keeps, on which lane, and what it leaves out. */
#include <criterion/criterion.h>
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/memory.h"
#include "base/trace.h"
#include "base/trace_event.h"

#define LANES_MAX 8
#define SPANS_MAX 64

/* What a look found: copies. */
static struct {
    struct trace_lane_view lanes[LANES_MAX];
    struct trace_span spans[LANES_MAX][SPANS_MAX];
    int lane_count;
} seen;

static void see(void *context, const struct trace_lane_view *lane)
{
    (void)context;
    cr_assert_lt(seen.lane_count, LANES_MAX);
    cr_assert_leq(lane->span_count, SPANS_MAX);
    seen.lanes[seen.lane_count] = *lane;
    if (lane->span_count > 0)
        memcpy(seen.spans[seen.lane_count], lane->spans,
               (size_t)lane->span_count * sizeof *lane->spans);
    seen.lane_count++;
}

static void look(struct trace *trace)
{
    seen.lane_count = 0;
    trace_look(trace, see, NULL);
}

static struct trace *trace_open(void)
{
    struct trace *trace;
    struct error err;
    cr_assert_eq(trace_create(&trace, &err), STATUS_OK);
    return trace;
}

static void add(const char *name)
{
    trace_add(trace_begin(), name, 0);
}

static void expect_names(int lane, const char *const *names, int count)
{
    cr_assert_eq(seen.lanes[lane].span_count, count);
    for (int i = 0; i < count; i++)
        cr_expect_str_eq(seen.spans[lane][i].name, names[i]);
}

Test(trace, keeps_what_runs_between_start_and_stop)
{
    struct trace *trace = trace_open();
    add("no lane");
    trace_lane_use(trace_lane_add(trace, 0, "lane"));
    add("before");
    double begun = trace_begin();
    trace_start(trace, 10);
    trace_add(begun, "began before", 0);
    add("first");
    add("second");
    trace_stop(trace);
    add("behind");
    look(trace);
    expect_names(0, (const char *[]){"first", "second"}, 2);
    trace_start(trace, 10);
    add("again");
    look(trace);
    expect_names(0, (const char *[]){"again"}, 1);
    trace_lane_use(NULL);
    add("no lane");
    look(trace);
    cr_expect_eq(seen.lanes[0].span_count, 1);
    trace_destroy(trace);
}

Test(trace, has_lanes_in_the_order_of_their_ranks)
{
    struct trace *trace = trace_open();
    const struct {
        int rank;
        const char *name;
    } given[] = {{1, "a"}, {0, "b"}, {-1, "c"}, {0, "d"}, {1, "e"}, {-1, "f"}},
      *in_order[] = {&given[2], &given[5], &given[1], &given[3], &given[0], &given[4]};
    for (int i = 0; i < 6; i++)
        cr_assert_not_null(trace_lane_add(trace, given[i].rank, given[i].name));
    look(trace);
    cr_assert_eq(seen.lane_count, 6);
    for (int i = 0; i < 6; i++) {
        cr_expect_eq(seen.lanes[i].rank, in_order[i]->rank);
        cr_expect_str_eq(seen.lanes[i].name, in_order[i]->name);
    }
    cr_expect_null(trace_lane_add(NULL, 0, "none"));
    trace_destroy(trace);
}

Test(trace, spans_belong_to_a_stage_and_a_layer)
{
    struct trace *trace = trace_open();
    trace_lane_use(trace_lane_add(trace, 0, "lane"));
    trace_start(trace, 10);
    add("none");
    trace_stage(3, 7);
    double outer = trace_begin();
    trace_add(trace_begin(), "inner", 5);
    trace_add(outer, "outer", 6);
    cr_expect(trace_place().stage == 3 && trace_place().layer == 7);
    trace_layer(8);
    add("next");
    trace_add_until(1, 2, "then", 0);
    trace_lane_use(NULL);
    cr_expect_eq(trace_place().layer, -1);
    look(trace);
    const struct trace_span *spans = seen.spans[0];
    expect_names(0, (const char *[]){"none", "inner", "outer", "next", "then"}, 5);
    cr_expect(spans[4].begin == 1 && spans[4].end == 2);
    cr_expect(spans[0].stage == 0 && spans[0].layer == -1);
    cr_expect(spans[1].stage == 3 && spans[1].layer == 7 && spans[1].bytes == 5);
    cr_expect(spans[2].stage == 3 && spans[2].layer == 7 && spans[2].bytes == 6);
    cr_expect(spans[3].stage == 3 && spans[3].layer == 8);
    cr_expect(spans[2].begin <= spans[1].begin && spans[1].end <= spans[2].end);
    for (int i = 0; i < 4; i++)
        cr_expect_leq(spans[i].begin, spans[i].end);
    trace_destroy(trace);
}

Test(trace, work_may_name_itself)
{
    struct trace *trace = trace_open();
    trace_lane_use(trace_lane_add(trace, 0, "lane"));
    trace_start(trace, 10);
    trace_name("its own");
    trace_bytes(2);
    trace_bytes(3);
    trace_add_named(trace_begin(), "theirs");
    trace_add_named(trace_begin(), "theirs");
    trace_name(""); /* wants not to be seen */
    trace_bytes(4);
    trace_add_named(trace_begin(), "theirs");
    trace_add_named(trace_begin(), "last");
    trace_lane_use(NULL);
    look(trace);
    expect_names(0, (const char *[]){"its own", "theirs", "last"}, 3);
    cr_expect_eq(seen.spans[0][0].bytes, 5);
    cr_expect_eq(seen.spans[0][1].bytes, 0);
    cr_expect_eq(seen.spans[0][2].bytes, 0);
    trace_destroy(trace);
}

Test(trace, what_there_is_no_room_for_is_left_out)
{
    struct trace *trace = trace_open();
    double since;
    struct trace_lane *lanes[2];
    for (int i = 0; i < 2; i++)
        lanes[i] = trace_lane_add(trace, i, "lane");
    trace_start(trace, 5);
    for (int i = 0; i < 8; i++) {
        trace_lane_use(lanes[i % 2]);
        add("span");
        cr_expect_eq(trace_left_out(trace, &since), i < 5 ? 0 : i - 4);
        cr_expect_eq(since > 0, i >= 5);
    }
    look(trace);
    cr_expect_eq(seen.lanes[0].span_count + seen.lanes[1].span_count, 5);
    cr_expect_geq(since, seen.spans[0][2].end);
    trace_start(trace, 5);
    cr_expect_eq(trace_left_out(trace, &since), 0);
    memory_fail_at(1, 1);
    add("span");
    memory_fail_at(0, 0);
    cr_expect_eq(trace_left_out(trace, &since), 1);
    add("span");
    look(trace);
    cr_expect_eq(seen.lanes[1].span_count, 1);
    trace_lane_use(NULL);
    trace_destroy(trace);
}

#define THREADS 4
#define ADDED   2000

static void *add_many(void *lane)
{
    trace_lane_use(lane);
    for (int i = 0; i < ADDED; i++)
        add("span");
    return NULL;
}

static int64_t span_total;

static void count(void *context, const struct trace_lane_view *lane)
{
    (void)context;
    span_total += lane->span_count;
    for (int64_t i = 1; i < lane->span_count; i++)
        cr_assert_leq(lane->spans[i - 1].end, lane->spans[i].end);
}

Test(trace, threads_add_while_others_look)
{
    struct trace *trace = trace_open();
    pthread_t threads[THREADS];
    double since;
    trace_start(trace, THREADS * ADDED);
    for (int t = 0; t < THREADS; t++)
        cr_assert_eq(pthread_create(&threads[t], NULL, add_many, trace_lane_add(trace, t, "lane")),
                     0);
    trace_look(trace, count, NULL);
    for (int t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    span_total = 0;
    trace_look(trace, count, NULL);
    cr_expect_eq(span_total, THREADS * ADDED);
    cr_expect_eq(trace_left_out(trace, &since), 0);
    trace_destroy(trace);
}

Test(trace_event, times_are_microseconds)
{
    static const struct {
        double seconds;
        const char *text;
    } cases[] = {
        {0, "{\"ts\":0.000"},
        {1.5e-6, "{\"ts\":1.500"},
        {2.0000004, "{\"ts\":2000000.400"},
        {9e9, "{\"ts\":9000000000000000.000"},
        {1e10, "{\"ts\":9000000000000000.000"},
        {INFINITY, "{\"ts\":9000000000000000.000"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct text out = {0};
        struct json_writer json = {.out = &out};
        json_write_open(&json, '{');
        trace_event_time(&json, "ts", cases[i].seconds);
        cr_expect_eq(out.length, strlen(cases[i].text));
        cr_expect_arr_eq(out.bytes, cases[i].text, out.length, "%s", cases[i].text);
        text_deinit(&out);
    }
}
