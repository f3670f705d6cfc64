/* Times that can be found by hand. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "builder.h"

#define GB 1000000000

static struct builder builder;
static struct box_model box;
static struct simulation simulation;

static void run_as(enum durations durations)
{
    struct error err;
    cr_assert_eq(simulate(&simulation,
                          &(struct simulation_params){
                              .recording = &builder.recording, .box = &box, .durations = durations},
                          &err),
                 STATUS_OK, "%s", err.message);
}

static void run(void)
{
    build_finish(&builder);
    run_as(DURATIONS_MEASURED);
}

static void end(void)
{
    simulation_deinit(&simulation);
    build_end(&builder);
}

static void expect(uint32_t node, double begin, double end)
{
    struct node_time time = build_time(&builder, &simulation, node);
    cr_assert(fabs(time.begin - begin) <= 1e-12 * fmax(begin, 1e-3) &&
                  fabs(time.end - end) <= 1e-12 * fmax(end, 1e-3),
              "node %u: expected %.15g to %.15g, found %.15g to %.15g", node, begin, end,
              time.begin, time.end);
}

static void expect_cause(uint32_t node, uint32_t cause)
{
    uint32_t found = build_time(&builder, &simulation, node).cause;
    cr_assert_eq(found, builder.node[cause], "node %u: expected node %u as its cause", node, cause);
}

/* ---- Lanes and needs ------------------------------------------------------------------------- */

Test(lanes, a_lane_runs_one_after_another)
{
    box_plain(&box, 1);
    build_begin(&builder, 1);
    uint32_t lane = build_lane(&builder, LANE_STREAM, 0);
    uint32_t a = build_compute(&builder, lane, 1.5, 0), b = build_compute(&builder, lane, 0, 0);
    uint32_t c = build_compute(&builder, lane, 0.25, 0);
    run();
    expect(a, 0, 1.5);
    expect(b, 1.5, 1.5);
    expect(c, 1.5, 1.75);
    expect_cause(c, b);
    cr_assert_eq(build_time(&builder, &simulation, a).cause, UINT32_MAX);
    cr_assert_eq(simulation.seconds, 1.75);
    end();
}

Test(lanes, a_node_waits_for_the_last_of_its_needs)
{
    box_plain(&box, 2);
    build_begin(&builder, 2);
    uint32_t lanes[2] = {build_lane(&builder, LANE_STREAM, 0),
                         build_lane(&builder, LANE_STREAM, 1)};
    uint32_t host = build_lane(&builder, LANE_HOST, -1);
    uint32_t a = build_compute(&builder, lanes[0], 1, 0),
             b = build_compute(&builder, lanes[1], 3, 0);
    uint32_t wait = build_wait(&builder, host), after = build_compute(&builder, host, 2, 0);
    build_need(&builder, wait, a);
    build_need(&builder, wait, b);
    run();
    expect(wait, 3, 3);
    expect_cause(wait, b);
    expect(after, 3, 5);
    end();
}

/* ---- Compute slots --------------------------------------------------------------------------- */

Test(slots, streams_of_a_rank_share_it_evenly)
{
    box_plain(&box, 2);
    build_begin(&builder, 2);
    uint32_t one = build_lane(&builder, LANE_STREAM, 0), two = build_lane(&builder, LANE_STREAM, 0);
    uint32_t other = build_lane(&builder, LANE_STREAM, 1);
    uint32_t a = build_compute(&builder, one, 1, 0), b = build_compute(&builder, two, 3, 0);
    uint32_t c = build_compute(&builder, other, 3, 0);
    run();
    expect(a, 0, 2); /* at half the rate */
    expect(b, 0, 4); /* one done at 2, the other two by 4 */
    expect(c, 0, 3);
    end();
}

Test(slots, low_priority_has_the_gaps)
{
    box_plain(&box, 1);
    build_begin(&builder, 1);
    uint32_t stream = build_lane(&builder, LANE_STREAM, 0), low = build_lane(&builder, LANE_LOW, 0);
    uint32_t host = build_lane(&builder, LANE_HOST, 0);
    uint32_t delay = build_compute(&builder, host, 1.5, 0);
    uint32_t a = build_compute(&builder, stream, 1, 0), b = build_compute(&builder, stream, 2, 0);
    uint32_t c = build_compute(&builder, low, 1, 0);
    build_need(&builder, b, delay);
    run();
    expect(a, 0, 1);
    expect(b, 1.5, 3.5);
    expect(c, 0, 4); /* 1 to 1.5 and 3.5 to 4 */
    end();
}

Test(slots, one_for_all_ranks)
{
    box_plain(&box, 2);
    box.has_one_slot = true;
    build_begin(&builder, 2);
    uint32_t zero = build_lane(&builder, LANE_STREAM, 0),
             one = build_lane(&builder, LANE_STREAM, 1);
    uint32_t low = build_lane(&builder, LANE_LOW, 0);
    uint32_t a = build_compute(&builder, zero, 1, 0), b = build_compute(&builder, one, 2, 0);
    uint32_t c = build_compute(&builder, low, 1, 0);
    run();
    expect(a, 0, 2);
    expect(b, 0, 3);
    expect(c, 0, 4);
    end();
}

Test(slots, a_shared_memory_slows_down_who_asks_for_more)
{
    box_plain(&box, 3);
    box.memory_count = 1;
    box.memory_bytes_per_second[0] = 10;
    box.memory_of[0] = box.memory_of[1] = box.memory_of[2] = 0;
    build_begin(&builder, 3);
    uint32_t lanes[3];
    for (int rank = 0; rank < 3; rank++)
        lanes[rank] = build_lane(&builder, LANE_STREAM, rank);
    /* They ask for 8, 8 and 2 of 10: the last has all it wants, the others 4 each. */
    uint32_t a = build_compute(&builder, lanes[0], 1, 8),
             b = build_compute(&builder, lanes[1], 2, 16);
    uint32_t c = build_compute(&builder, lanes[2], 3, 6);
    run();
    expect(a, 0, 2);
    expect(c, 0, 3);
    expect(b, 0, 3); /* 8 bytes by 2, then 8 a second */
    end();
}

Test(slots, a_share_of_the_slot_asks_for_a_share_of_the_memory)
{
    box_plain(&box, 2);
    box.memory_count = 1;
    box.memory_bytes_per_second[0] = 10;
    box.memory_of[0] = box.memory_of[1] = 0;
    build_begin(&builder, 2);
    uint32_t lanes[3] = {build_lane(&builder, LANE_STREAM, 0), build_lane(&builder, LANE_STREAM, 0),
                         build_lane(&builder, LANE_STREAM, 1)};
    /* The first two ask for half of 4 each, the third for 6: all have what they want. */
    uint32_t a = build_compute(&builder, lanes[0], 1, 4),
             b = build_compute(&builder, lanes[1], 1, 4);
    uint32_t c = build_compute(&builder, lanes[2], 2, 12);
    run();
    expect(a, 0, 2);
    expect(b, 0, 2);
    expect(c, 0, 2);
    end();
}

/* ---- Links ----------------------------------------------------------------------------------- */

static const int ranks[] = {0, 1, 2, 3};

/* A call of every rank's own lane. */
static void call_all(uint32_t *nodes, const uint32_t *lanes, int rank_count, uint32_t group,
                     enum collective_op op, const int64_t *counts)
{
    for (int rank = 0; rank < rank_count; rank++)
        nodes[rank] = build_collective(&builder, lanes[rank], group, op, counts);
}

/* Pairs: counts[from][to] of 4. */
static void exchange_all(uint32_t *nodes, const uint32_t *lanes, int rank_count, uint32_t group,
                         int64_t counts[4][4])
{
    for (int rank = 0; rank < rank_count; rank++)
        nodes[rank] =
            build_collective(&builder, lanes[rank], group, COLLECTIVE_OP_EXCHANGE, counts[rank]);
}

static uint32_t begin_ranks(uint32_t *lanes, int rank_count)
{
    build_begin(&builder, rank_count);
    for (int rank = 0; rank < rank_count; rank++)
        lanes[rank] = build_lane(&builder, LANE_STREAM, rank);
    return build_group(&builder, rank_count, ranks);
}

Test(links, two_ranks_and_one_link)
{
    uint32_t lanes[2], nodes[2];
    box_plain(&box, 2);
    int link = box_add_link(&box, 0, 1, 10 * (double)GB, 1e-6);
    uint32_t group = begin_ranks(lanes, 2);
    exchange_all(nodes, lanes, 2, group, (int64_t[4][4]){{0, 20LL * GB}, {5LL * GB, 0}});
    run();
    expect(nodes[0], 0, 1e-6 + 2);
    expect(nodes[1], 0, 1e-6 + 2);
    cr_assert_eq(simulation.links[link].bytes[0], 20e9);
    cr_assert_eq(simulation.links[link].bytes[1], 5e9);
    cr_assert_float_eq(simulation.links[link].busy_seconds, 2, 1e-12);
    end();
}

Test(links, half_duplex_is_shared_by_both_directions)
{
    uint32_t lanes[2], nodes[2];
    box_plain(&box, 2);
    box_add_link(&box, 0, 1, 10, 0);
    box.links[0].is_half_duplex = true;
    uint32_t group = begin_ranks(lanes, 2);
    exchange_all(nodes, lanes, 2, group, (int64_t[4][4]){{0, 20}, {5, 0}});
    run();
    expect(nodes[0], 0, 2.5);
    cr_assert_eq(simulation.links[0].bytes[0], 25);
    cr_assert_eq(simulation.links[0].bytes[1], 0);
    end();
}

/* 0 and 1 behind one uplink to the switch where 2 and 3 are, whose own links are as fast. */
Test(links, a_shared_uplink)
{
    uint32_t lanes[4], nodes[4];
    box_plain(&box, 4);
    int left = box_add_end(&box, "left"), right = box_add_end(&box, "right");
    for (int rank = 0; rank < 4; rank++)
        box_add_link(&box, rank, rank < 2 ? left : right, 10, 0);
    int uplink = box_add_link(&box, left, right, 10, 0);
    uint32_t group = begin_ranks(lanes, 4), pair = build_group(&builder, 2, (int[]){2, 3});
    uint32_t beside[2] = {build_lane(&builder, LANE_STREAM, 2),
                          build_lane(&builder, LANE_STREAM, 3)};
    /* 0 -> 2 and 1 -> 3 share the uplink, 3 -> 2 shares nothing but 2's own link with the first. */
    exchange_all(nodes, lanes, 4, group, (int64_t[4][4]){{0, 0, 20, 0}, {0, 0, 0, 50}, {0}, {0}});
    uint32_t apart =
        build_collective(&builder, beside[0], pair, COLLECTIVE_OP_EXCHANGE, (int64_t[]){0, 0});
    build_collective(&builder, beside[1], pair, COLLECTIVE_OP_EXCHANGE, (int64_t[]){30, 0});
    run();
    /* Each at 5 a second until 4, when 20 have come from 0 to 2; the other 30 at 10. */
    expect(nodes[0], 0, 7);
    expect(nodes[3], 0, 7);
    /* 5 a second until 4, then 10. */
    expect(apart, 0, 5);
    cr_assert_eq(simulation.links[uplink].bytes[0], 70);
    cr_assert_float_eq(simulation.links[uplink].busy_seconds, 7, 1e-12);
    end();
}

Test(links, a_straggler_holds_all_others)
{
    uint32_t lanes[3], nodes[3];
    int64_t counts[3] = {10, 10, 10};
    box_star(&box, 3, 10, 0.5);
    uint32_t group = begin_ranks(lanes, 3);
    uint32_t quick = build_compute(&builder, lanes[0], 1, 0);
    uint32_t late = build_compute(&builder, lanes[2], 4, 0);
    call_all(nodes, lanes, 3, group, COLLECTIVE_OP_ALL_GATHER, counts);
    uint32_t after = build_compute(&builder, lanes[0], 1, 0);
    run();
    expect(quick, 0, 1);
    /* A route has two links; each rank sends 10 to two others. */
    for (int rank = 0; rank < 3; rank++) {
        expect(nodes[rank], 4, 4 + 1 + 2);
        expect_cause(nodes[rank], late);
    }
    expect(after, 7, 8);
    expect_cause(after, nodes[0]);
    end();
}

Test(links, a_copy_goes_on_beside_computation)
{
    box_plain(&box, 1);
    box.host = box_add_end(&box, "host");
    box.disk = box_add_end(&box, "disk");
    box_add_link(&box, 0, box.host, 10, 0.25);
    box_add_link(&box, box.disk, box.host, 2, 0.5);
    build_begin(&builder, 1);
    uint32_t stream = build_lane(&builder, LANE_STREAM, 0), low = build_lane(&builder, LANE_LOW, 0);
    uint32_t reads = build_lane(&builder, LANE_READS, 0);
    uint32_t read = build_move(&builder, reads, NODE_READ, 4);
    uint32_t copy = build_move(&builder, low, NODE_COPY, 40);
    uint32_t back = build_move(&builder, low, NODE_COPY, 10);
    uint32_t empty = build_move(&builder, low, NODE_COPY, 0);
    builder.nodes[back].about.to_host = 1;
    uint32_t work = build_compute(&builder, stream, 5, 0);
    uint32_t after = build_compute(&builder, stream, 1, 0);
    build_need(&builder, copy, read);
    build_need(&builder, after, back);
    run();
    expect(read, 0, 0.5 + 2);
    expect(copy, 2.5, 2.5 + 0.25 + 4);
    expect(back, 6.75, 6.75 + 0.25 + 1);
    expect(empty, 8, 8.25);
    expect(work, 0, 5);
    expect(after, 8, 9);
    cr_assert_eq(simulation.links[0].bytes[0], 10);
    cr_assert_eq(simulation.links[0].bytes[1], 40);
    cr_assert_eq(simulation.links[1].bytes[0], 4);
    end();
}

Test(links, the_scale_multiplies_bandwidths_and_divides_latencies)
{
    uint32_t lanes[2], nodes[2];
    struct error err;
    box_plain(&box, 2);
    box_add_link(&box, 0, 1, 10, 1);
    box.collectives[COLLECTIVE_OP_EXCHANGE].protocols[0].base_latency = 2;
    box.collectives[COLLECTIVE_OP_EXCHANGE].protocols[0].step_latency = 3;
    box.collectives[COLLECTIVE_OP_EXCHANGE].protocols[0].message_latency = 4;
    uint32_t group = begin_ranks(lanes, 2);
    exchange_all(nodes, lanes, 2, group, (int64_t[4][4]){{0, 20}, {0, 0}});
    run();
    expect(nodes[0], 0, 1 + 2 + 3 + 4 + 2);
    simulation_deinit(&simulation);
    cr_assert_eq(simulate(&simulation,
                          &(struct simulation_params){
                              .recording = &builder.recording, .box = &box, .link_scale = 4},
                          &err),
                 STATUS_OK);
    expect(nodes[0], 0, 3);
    end();
}

/* ---- Algorithms ------------------------------------------------------------------------------ */

/* On a star of links of 10, without latency: the busiest of all rank's links out and in. */
static void expect_uneven(enum collective_op op, enum algorithm algorithm, double seconds)
{
    uint32_t lanes[4], nodes[4];
    int64_t counts[4] = {100, 0, 50, 10};
    if (op == COLLECTIVE_OP_ALL_REDUCE)
        counts[0] = 160, counts[2] = counts[3] = 0;
    box_star(&box, 4, 10, 0);
    for (int i = 0; i < COLLECTIVE_OP_COUNT; i++)
        box.collectives[i].algorithm = algorithm;
    uint32_t group = begin_ranks(lanes, 4);
    call_all(nodes, lanes, 4, group, op, counts);
    run();
    for (int rank = 0; rank < 4; rank++)
        expect(nodes[rank], 0, seconds);
    end();
}

Test(algorithms, uneven_counts_by_rings)
{
    /* 1 -> 2 has all but 50, 0 -> 1 all, 2 -> 3 all but 10, 3 -> 0 all but 100. */
    expect_uneven(COLLECTIVE_OP_ALL_GATHER, ALGORITHM_RING, 16);
    expect_uneven(COLLECTIVE_OP_REDUCE_SCATTER, ALGORITHM_RING, 16); /* out of 1 */
    expect_uneven(COLLECTIVE_OP_ALL_REDUCE, ALGORITHM_RING, 24);     /* 2 x 160 x 3 / 4 */
}

Test(algorithms, uneven_counts_directly)
{
    /* Out of 0: 3 x 100. Into 3: 100 + 50 in the meantime, all in time. */
    expect_uneven(COLLECTIVE_OP_ALL_GATHER, ALGORITHM_DIRECT, 30);
    expect_uneven(COLLECTIVE_OP_REDUCE_SCATTER, ALGORITHM_DIRECT, 30); /* into 0 */
    expect_uneven(COLLECTIVE_OP_ALL_REDUCE, ALGORITHM_DIRECT, 24);
}

Test(algorithms, a_ring_sends_what_the_next_one_lacks)
{
    uint32_t lanes[3], nodes[3];
    box_plain(&box, 3);
    for (int rank = 0; rank < 3; rank++)
        box_add_link(&box, rank, (rank + 1) % 3, 1, 0);
    box.collectives[COLLECTIVE_OP_ALL_GATHER].algorithm = ALGORITHM_RING;
    box.collectives[COLLECTIVE_OP_REDUCE_SCATTER].algorithm = ALGORITHM_RING;
    uint32_t group = begin_ranks(lanes, 3);
    call_all(nodes, lanes, 3, group, COLLECTIVE_OP_ALL_GATHER, (int64_t[]){1, 2, 4});
    run();
    cr_assert_eq(simulation.links[0].bytes[0], 5); /* to 1: all but 2 */
    cr_assert_eq(simulation.links[1].bytes[0], 3); /* to 2: all but 4 */
    cr_assert_eq(simulation.links[2].bytes[0], 6);
    expect(nodes[0], 0, 6);
    end();
    group = begin_ranks(lanes, 3);
    call_all(nodes, lanes, 3, group, COLLECTIVE_OP_REDUCE_SCATTER, (int64_t[]){1, 2, 4});
    run();
    cr_assert_eq(simulation.links[0].bytes[0], 6); /* from 0: all but its own part, 1 */
    cr_assert_eq(simulation.links[1].bytes[0], 5);
    cr_assert_eq(simulation.links[2].bytes[0], 3);
    end();
}

Test(algorithms, steps_have_latencies)
{
    static const struct {
        enum collective_op op;
        enum algorithm algorithm;
        int steps;
    } cases[] = {
        {COLLECTIVE_OP_ALL_GATHER, ALGORITHM_RING, 3},
        {COLLECTIVE_OP_REDUCE_SCATTER, ALGORITHM_RING, 3},
        {COLLECTIVE_OP_ALL_REDUCE, ALGORITHM_RING, 6},
        {COLLECTIVE_OP_ALL_GATHER, ALGORITHM_DIRECT, 1},
        {COLLECTIVE_OP_REDUCE_SCATTER, ALGORITHM_DIRECT, 1},
        {COLLECTIVE_OP_ALL_REDUCE, ALGORITHM_DIRECT, 2},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        uint32_t lanes[4], nodes[4];
        box_star(&box, 4, 1e30, 0.5); /* routes of latency 1 */
        box.collectives[cases[c].op].algorithm = cases[c].algorithm;
        box.collectives[cases[c].op].protocols[0].base_latency = 100;
        box.collectives[cases[c].op].protocols[0].step_latency = 10;
        uint32_t group = begin_ranks(lanes, 4);
        call_all(nodes, lanes, 4, group, cases[c].op, (int64_t[]){4, 0, 0, 0});
        run();
        expect(nodes[2], 0, 100 + 11 * cases[c].steps);
        end();
    }
}

/* 0 sends two messages, 2 receives two and 3 has none; of no bytes there is none. */
Test(algorithms, direct_messages_have_latencies)
{
    uint32_t lanes[4], nodes[4];
    box_star(&box, 4, 1e30, 0.5); /* routes of latency 1 */
    box.collectives[COLLECTIVE_OP_EXCHANGE].protocols[0].base_latency = 100;
    box.collectives[COLLECTIVE_OP_EXCHANGE].protocols[0].message_latency = 10;
    uint32_t group = begin_ranks(lanes, 4);
    exchange_all(nodes, lanes, 4, group, (int64_t[4][4]){{0, 8, 8}, {0, 0, 8}});
    run();
    expect(nodes[3], 0, 100 + 1 + 2 * 10);
    end();
    group = begin_ranks(lanes, 4);
    exchange_all(nodes, lanes, 4, group, (int64_t[4][4]){{0, 0, 0, 8}, {0, 0, 0, 8}, {0, 0, 0, 8}});
    run();
    expect(nodes[0], 0, 100 + 1 + 3 * 10);
    end();
    box.collectives[COLLECTIVE_OP_ALL_REDUCE].protocols[0].message_latency = 10;
    box.collectives[COLLECTIVE_OP_ALL_REDUCE].algorithm = ALGORITHM_DIRECT;
    group = begin_ranks(lanes, 4);
    call_all(nodes, lanes, 4, group, COLLECTIVE_OP_ALL_REDUCE, (int64_t[]){4, 0, 0, 0});
    run();
    expect(nodes[0], 0, 2 * (1 + 3 * 10));
    end();
    box.collectives[COLLECTIVE_OP_ALL_REDUCE].algorithm = ALGORITHM_RING;
    group = begin_ranks(lanes, 4);
    call_all(nodes, lanes, 4, group, COLLECTIVE_OP_ALL_REDUCE, (int64_t[]){4, 0, 0, 0});
    run();
    expect(nodes[0], 0, 6);
    end();
}

/* Of two protocols the quick one for few bytes, the one with more of the bandwidth for many. */
Test(algorithms, the_protocol_that_is_soonest_done)
{
    static const struct {
        int64_t bytes;
        double seconds;
    } cases[] = {{10, 1 + 2}, {60, 1 + 12}, {100, 10 + 10}, {1000, 10 + 100}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        uint32_t lanes[2], nodes[2];
        box_plain(&box, 2);
        box_add_link(&box, 0, 1, 10, 0);
        box.collectives[COLLECTIVE_OP_EXCHANGE] =
            (struct box_collective){.protocol_count = 2,
                                    .protocols = {{.base_latency = 10, .efficiency = 1},
                                                  {.base_latency = 1, .efficiency = 0.5}}};
        uint32_t group = begin_ranks(lanes, 2);
        exchange_all(nodes, lanes, 2, group, (int64_t[4][4]){{0, cases[c].bytes}, {0, 0}});
        run();
        expect(nodes[0], 0, cases[c].seconds);
        cr_assert_eq(simulation.links[0].bytes[0], (double)cases[c].bytes);
        end();
    }
}

Test(algorithms, one_member_takes_no_time_and_no_bytes_take_the_latency)
{
    uint32_t lanes[2], nodes[2];
    box_plain(&box, 2);
    box_add_link(&box, 0, 1, 10, 0);
    box.collectives[COLLECTIVE_OP_ALL_GATHER].protocols[0].base_latency = 3;
    uint32_t group = begin_ranks(lanes, 2), alone = build_group(&builder, 1, ranks);
    uint32_t own =
        build_collective(&builder, lanes[0], alone, COLLECTIVE_OP_ALL_GATHER, (int64_t[]){100});
    call_all(nodes, lanes, 2, group, COLLECTIVE_OP_ALL_GATHER, (int64_t[]){0, 0});
    run();
    expect(own, 0, 0);
    expect(nodes[1], 0, 3);
    end();
}

/* ---- Modelled durations ---------------------------------------------------------------------- */

Test(modelled, the_longer_of_flops_and_bytes_and_the_launch)
{
    box_plain(&box, 1);
    box.device =
        (struct box_device){.peak_flops = 1000, .memory_bytes_per_second = 100, .launch = 0.5};
    for (int work = 0; work < WORK_KIND_COUNT; work++)
        box.device.flops_efficiency[work] = box.device.bytes_efficiency[work] = 1;
    box.device.flops_efficiency[WORK_MATMUL] = 0.5;
    build_begin(&builder, 1);
    uint32_t stream = build_lane(&builder, LANE_STREAM, 0),
             host = build_lane(&builder, LANE_HOST, 0);
    uint32_t by_flops = build_compute(&builder, stream, 9, 100);
    uint32_t by_bytes = build_compute(&builder, stream, 9, 300);
    uint32_t nothing = build_compute(&builder, stream, 9, 0);
    uint32_t of_host = build_compute(&builder, host, 9, 300);
    builder.nodes[by_flops].about.flops = 1000;
    builder.nodes[by_bytes].about.flops = 1000;
    build_finish(&builder);
    run_as(DURATIONS_MODELLED);
    expect(by_flops, 0, 0.5 + 2);
    expect(by_bytes, 2.5, 2.5 + 0.5 + 3);
    expect(nothing, 6, 6.5);
    expect(of_host, 0, 9);
    end();
}

/* Of the host that was recorded nothing but its order stays. */
Test(modelled, the_host_may_be_left_out)
{
    box_plain(&box, 1);
    box.device =
        (struct box_device){.peak_flops = 1000, .memory_bytes_per_second = 100, .launch = 0.5};
    for (int work = 0; work < WORK_KIND_COUNT; work++)
        box.device.flops_efficiency[work] = box.device.bytes_efficiency[work] = 1;
    build_begin(&builder, 1);
    uint32_t stream = build_lane(&builder, LANE_STREAM, 0),
             host = build_lane(&builder, LANE_HOST, 0);
    uint32_t before = build_compute(&builder, host, 9, 0);
    uint32_t work = build_compute(&builder, stream, 9, 100);
    build_need(&builder, work, before);
    build_finish(&builder);
    run_as(DURATIONS_MODELLED);
    expect(work, 9, 10.5);
    simulation_deinit(&simulation);
    run_as(DURATIONS_DEVICES);
    expect(before, 0, 0);
    expect(work, 0, 1.5);
    end();
}

/* ---- Refusals -------------------------------------------------------------------------------- */

static void expect_refused(const struct box_model *of, enum durations durations, const char *word)
{
    struct error err = {.message = ""};
    simulation = (struct simulation){.seconds = 77};
    cr_assert_eq(simulate(&simulation,
                          &(struct simulation_params){
                              .recording = &builder.recording, .box = of, .durations = durations},
                          &err),
                 STATUS_INVALID_ARGUMENT);
    cr_assert(strstr(err.message, word) != NULL, "%s", err.message);
    cr_assert_eq(simulation.seconds, 77);
    simulation = (struct simulation){0};
}

Test(refusals, a_box_without_what_the_recording_needs)
{
    build_begin(&builder, 2);
    uint32_t lane = build_lane(&builder, LANE_READS, 0);
    build_move(&builder, lane, NODE_READ, 4);
    build_finish(&builder);
    box_plain(&box, 3);
    expect_refused(&box, DURATIONS_MEASURED, "ranks");
    box_plain(&box, 2);
    expect_refused(&box, DURATIONS_MEASURED, "no host");
    box.host = box_add_end(&box, "host");
    expect_refused(&box, DURATIONS_MEASURED, "no disk");
    expect_refused(NULL, DURATIONS_MODELLED, "modelled");
    end();
}
