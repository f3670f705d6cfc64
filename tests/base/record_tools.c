#include "record_tools.h"

#include <criterion/criterion.h>
#include <time.h>

#include "base/trace.h"

struct record_lane_view views[LANES_MAX];
int view_count;

static void see(void *context, const struct record_lane_view *view)
{
    (void)context;
    cr_assert_lt(view_count, LANES_MAX);
    views[view_count++] = *view;
}

void look(struct trace *trace)
{
    view_count = 0;
    record_look(trace, see, NULL);
}

struct trace_lane *lanes[LANE_COUNT];

struct trace *trace_open(void)
{
    static const enum record_lane_kind kinds[LANE_COUNT] = {RECORD_LANE_DRIVER, RECORD_LANE_HOST,
                                                            RECORD_LANE_STREAM, RECORD_LANE_LOW,
                                                            RECORD_LANE_READS};
    struct trace *trace;
    struct error err;
    cr_assert_eq(trace_create(&trace, &err), STATUS_OK);
    for (int l = 0; l < LANE_COUNT; l++) {
        lanes[l] = trace_lane_add(trace, l, "lane");
        record_lane_set(lanes[l], kinds[l]);
    }
    trace_lane_use(lanes[DRIVER]);
    return trace;
}

void trace_close(struct trace *trace)
{
    trace_lane_use(NULL);
    trace_destroy(trace);
}

void node(const char *name)
{
    record_begin();
    record_end(name);
}

const struct record_node *node_at(int lane, size_t n)
{
    cr_assert_lt(n, views[lane].node_count);
    return record_node_at(&views[lane], n);
}

void expect_needs(int lane, size_t n, const struct record_mark *needs, uint32_t count)
{
    const struct record_node *of = node_at(lane, n);
    cr_assert_eq(of->need_count, count, "node %zu has %u needs", n, of->need_count);
    for (uint32_t i = 0; i < count; i++) {
        struct record_mark need = record_need_at(&views[lane], of, i);
        cr_expect_eq(need.lane, needs[i].lane);
        cr_expect_eq(need.count, needs[i].count);
    }
}

void sleep_for(uint64_t ns)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}
