/* One compute slot for all, by hand. */
#include <criterion/criterion.h>
#include <math.h>

#include "builder.h"
#include "replay/report.h"

static struct builder builder;
static struct simulation simulation;

static void run(void)
{
    struct error err;
    build_finish(&builder);
    cr_assert_eq(
        simulate(&simulation, &(struct simulation_params){.recording = &builder.recording}, &err),
        STATUS_OK, "%s", err.message);
}

static void expect(uint32_t node, double begin, double end)
{
    struct node_time time = build_time(&builder, &simulation, node);
    cr_assert_float_eq(time.begin, begin, 1e-12, "node %u begins at %.15g", node, time.begin);
    cr_assert_float_eq(time.end, end, 1e-12, "node %u ends at %.15g", node, time.end);
}

static void expect_cause(uint32_t node, uint32_t cause)
{
    cr_assert_eq(build_time(&builder, &simulation, node).cause, builder.node[cause],
                 "node %u has another cause", node);
}

/* From the last node to the beginning there is no time that is in no node; the parts and the whole
 * are the same. */
static void expect_path_without_gap(void)
{
    struct report report;
    struct error err;
    double seconds = 0;
    cr_assert_eq(report_make(&report, &builder.recording, &simulation, &err), STATUS_OK, "%s",
                 err.message);
    for (int i = 0; i < report.path_count; i++)
        seconds += report.path[i].seconds;
    cr_assert_float_eq(report.path_gap_seconds, 0, 1e-12, "%g s are in no node",
                       report.path_gap_seconds);
    cr_assert_float_eq(seconds, simulation.seconds, 1e-9 * simulation.seconds, "%.15g of %.15g s",
                       seconds, simulation.seconds);
    report_deinit(&report);
}

static void end(void)
{
    cr_assert_null(simulation.links);
    simulation_deinit(&simulation);
    build_end(&builder);
}

static uint32_t part(uint32_t lane, uint32_t group, double seconds)
{
    static const int64_t counts[3] = {1 << 20, 0, 0};
    uint32_t node = build_collective(&builder, lane, group, COLLECTIVE_OP_ALL_REDUCE, counts);
    builder.nodes[node].about.duration_ns = (uint64_t)llround(seconds * 1e9);
    return node;
}

Test(as_recorded, a_lane_keeps_the_slot_until_it_waits)
{
    build_begin(&builder, 2);
    uint32_t zero = build_lane(&builder, LANE_STREAM, 0),
             one = build_lane(&builder, LANE_STREAM, 1);
    uint32_t a = build_compute(&builder, zero, 1, 0), b = build_compute(&builder, one, 2, 0);
    uint32_t pass = build_wait(&builder, zero), c = build_compute(&builder, zero, 1, 0);
    uint32_t held = build_wait(&builder, zero), d = build_compute(&builder, zero, 1, 0);
    uint32_t e = build_compute(&builder, one, 3, 0);
    build_need(&builder, held, b);
    run();
    expect(a, 0, 1);
    expect(pass, 1, 1);
    expect(c, 1, 2);
    expect(b, 2, 4);
    expect(held, 4, 4);
    expect(e, 4, 7); /* it did not have to wait, so the other lane does */
    expect(d, 7, 8);
    expect_cause(c, pass);
    expect_cause(b, c); /* which had the slot, and not the wait before it on that lane */
    expect_cause(held, b);
    expect_cause(e, b);
    expect_cause(d, e); /* it could have begun when b had ended */
    expect_path_without_gap();
    end();
}

Test(as_recorded, members_meet_do_their_parts_and_leave_together)
{
    build_begin(&builder, 2);
    uint32_t zero = build_lane(&builder, LANE_STREAM, 0),
             one = build_lane(&builder, LANE_STREAM, 1);
    uint32_t group = build_group(&builder, 2, (int[]){0, 1});
    uint32_t a = build_compute(&builder, zero, 1, 0), b = build_compute(&builder, one, 1, 0);
    uint32_t meets[2] = {part(zero, group, 0.5), part(one, group, 0.25)};
    uint32_t c = build_compute(&builder, zero, 2, 0), d = build_compute(&builder, one, 2, 0);
    run();
    expect(a, 0, 1);
    expect(b, 1, 2);
    /* The second has the slot when they meet, then the first. */
    expect(meets[0], 2, 2.75);
    expect(meets[1], 2, 2.75);
    expect(c, 2.75, 4.75);
    expect(d, 4.75, 6.75);
    cr_assert_eq(simulation.seconds, 6.75);
    cr_assert_eq(build_time(&builder, &simulation, meets[0]).cause, builder.node[b]);
    expect_cause(b, a);
    expect_cause(c, meets[0]);
    expect_cause(d, c);
    expect_path_without_gap();
    end();
}

/* A lane that computes beside gets the slot between the parts of two members: it begins when the
 * first part is done, when the collective has not ended. */
Test(as_recorded, a_part_of_a_collective_is_a_cause)
{
    build_begin(&builder, 2);
    uint32_t zero = build_lane(&builder, LANE_STREAM, 0),
             one = build_lane(&builder, LANE_STREAM, 1), low = build_lane(&builder, LANE_LOW, 1);
    uint32_t group = build_group(&builder, 2, (int[]){0, 1});
    uint32_t host = build_lane(&builder, LANE_HOST, -1);
    uint32_t delay = build_compute(&builder, host, 1.5, 0);
    uint32_t a = build_compute(&builder, zero, 1, 0), b = build_compute(&builder, one, 1, 0);
    uint32_t meets[2] = {part(zero, group, 0.5), part(one, group, 0.25)};
    uint32_t beside = build_compute(&builder, low, 4, 0);
    uint32_t after = build_compute(&builder, host, 5, 0);
    build_need(&builder, beside, delay);
    build_need(&builder, after, beside);
    run();
    expect(a, 0, 1);
    expect(b, 1, 2);
    expect(beside, 2.25, 6.25); /* asked before the first member did */
    expect(meets[0], 2, 6.75);
    expect(after, 6.25, 11.25);
    expect_cause(beside, meets[1]);
    expect_cause(meets[0], b);
    expect_path_without_gap();
    end();
}

Test(as_recorded, who_asked_first_is_next)
{
    build_begin(&builder, 3);
    uint32_t lanes[3], nodes[3];
    for (int rank = 0; rank < 3; rank++)
        lanes[rank] = build_lane(&builder, rank == 1 ? LANE_LOW : LANE_STREAM, rank);
    uint32_t host = build_lane(&builder, LANE_HOST, -1);
    uint32_t delay = build_compute(&builder, host, 0.5, 0);
    for (int rank = 0; rank < 3; rank++)
        nodes[rank] = build_compute(&builder, lanes[rank], 1, 0);
    uint32_t again = build_compute(&builder, lanes[2], 1, 0);
    build_need(&builder, nodes[0], delay);
    run();
    /* 1 and 2 ask at 0, the lower lane first, 0 at a half; hosts compute beside. */
    expect(delay, 0, 0.5);
    expect(nodes[1], 0, 1);
    expect(nodes[2], 1, 2);
    expect(again, 2, 3);
    expect(nodes[0], 3, 4);
    cr_assert_eq(build_time(&builder, &simulation, nodes[1]).cause, UINT32_MAX);
    expect_cause(nodes[2], nodes[1]);
    expect_cause(nodes[0], again);
    expect_path_without_gap();
    end();
}

Test(as_recorded, of_those_who_ask_together_the_lowest_lane_is_next)
{
    build_begin(&builder, 2);
    uint32_t zero = build_lane(&builder, LANE_STREAM, 0),
             one = build_lane(&builder, LANE_STREAM, 1);
    uint32_t host = build_lane(&builder, LANE_HOST, -1);
    uint32_t delay = build_compute(&builder, host, 1, 0), then = build_wait(&builder, host);
    uint32_t a = build_compute(&builder, zero, 1, 0), b = build_compute(&builder, one, 1, 0);
    build_need(&builder, b, delay); /* is seen first, at the same time */
    build_need(&builder, a, then);
    run();
    expect(a, 1, 2);
    expect(b, 2, 3);
    end();
}

Test(as_recorded, copies_take_the_slot_and_reads_do_not)
{
    build_begin(&builder, 1);
    uint32_t stream = build_lane(&builder, LANE_STREAM, 0), low = build_lane(&builder, LANE_LOW, 0);
    uint32_t reads = build_lane(&builder, LANE_READS, 0);
    uint32_t read = build_move(&builder, reads, NODE_READ, 1 << 20);
    uint32_t copy = build_move(&builder, low, NODE_COPY, 1 << 20);
    uint32_t a = build_compute(&builder, stream, 1, 0);
    builder.nodes[read].about.duration_ns = 250000000;
    builder.nodes[copy].about.duration_ns = 500000000;
    build_need(&builder, copy, read);
    run();
    expect(read, 0, 0.25);
    expect(a, 0, 1);
    expect(copy, 1, 1.5);
    expect_cause(copy, a);
    expect_path_without_gap();
    end();
}

/* Work on one slot and nothing else: it lasts as long as all durations together. */
Test(as_recorded, nothing_is_lost)
{
    uint64_t seed = test_seed();
    struct random random = {.seed = seed};
    build_begin(&builder, 3);
    uint32_t lanes[3], group = build_group(&builder, 3, (int[]){2, 0, 1});
    double total = 0;
    for (int rank = 0; rank < 3; rank++)
        lanes[rank] = build_lane(&builder, LANE_STREAM, rank);
    for (int i = 0; i < 300; i++) {
        for (int rank = 0; rank < 3; rank++) {
            double seconds = (double)random_below(&random, 100) * 1e-3;
            if (i % 3 == 0)
                part(lanes[rank], group, seconds);
            else
                build_compute(&builder, lanes[rank], seconds, 0);
            total += seconds;
        }
    }
    run();
    cr_assert_float_eq(simulation.seconds, total, 1e-9 * total);
    expect_path_without_gap();
    end();
}
