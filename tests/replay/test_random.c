/* Random recordings on random boxes: as the reference says, and what holds for any. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../sweep.h"
#include "base/memory.h"
#include "builder.h"
#include "reference.h"

#define CASES 300

static struct random dice;
static struct builder builder;
static struct box_model box;

static int below(int bound)
{
    return (int)random_below(&dice, (uint64_t)bound);
}

/* Often the same, so that things happen together. */
static double amount(double unit)
{
    return unit *
           (below(3) == 0 ? (double)(1 + below(4)) : 0.1 + 5 * random_unit(random_next(&dice)));
}

/* ---- Boxes ----------------------------------------------------------------------------------- */

static void random_protocols(struct box_collective *out)
{
    out->protocol_count = 1 + below(BOX_PROTOCOLS_MAX);
    for (int p = 0; p < out->protocol_count; p++)
        out->protocols[p] = (struct box_protocol){.base_latency = below(2) * amount(0.01),
                                                  .step_latency = below(2) * amount(0.01),
                                                  .message_latency = below(2) * amount(0.01),
                                                  .efficiency = below(2) == 0 ? 1 : 0.3};
}

/* A tree of switches, ranks, host and disk, and some links besides. */
static void random_box(int rank_count)
{
    int switches[3];
    box_plain(&box, rank_count);
    for (int s = 0; s < 3; s++) {
        switches[s] = box_add_end(&box, "switch");
        if (s > 0)
            box_add_link(&box, switches[s], switches[below(s)], amount(10),
                         below(2) * amount(0.01));
    }
    box.host = box_add_end(&box, "host");
    box.disk = box_add_end(&box, "disk");
    box_add_link(&box, box.host, switches[0], amount(10), 0);
    box_add_link(&box, box.disk, box.host, amount(3), amount(0.01));
    for (int rank = 0; rank < rank_count; rank++)
        box_add_link(&box, rank, switches[below(3)], amount(10), below(2) * amount(0.01));
    for (int more = below(4); more > 0 && rank_count > 1; more--) {
        int rank = below(rank_count);
        box_add_link(&box, rank, (rank + 1) % rank_count, amount(20), 0);
    }
    for (int l = 0; l < box.link_count; l++)
        box.links[l].is_half_duplex = below(4) == 0;
    for (int op = 0; op < COLLECTIVE_OP_COUNT; op++) {
        random_protocols(&box.collectives[op]);
        if (op < COLLECTIVE_OP_ALL_TO_ALL && below(2) == 0)
            box.collectives[op].algorithm = ALGORITHM_RING;
    }
    box.memory_count = below(3);
    for (int m = 0; m < box.memory_count; m++)
        box.memory_bytes_per_second[m] = amount(10);
    for (int rank = 0; rank < rank_count && box.memory_count > 0; rank++)
        box.memory_of[rank] =
            below(3) - 1 < box.memory_count ? below(box.memory_count + 1) - 1 : -1;
    box.has_one_slot = below(4) == 0;
}

/* ---- Recordings ------------------------------------------------------------------------------ */

static void random_needs(uint32_t node, uint32_t before)
{
    for (int needs = below(3); needs > 0 && before > 0; needs--)
        build_need(&builder, node, (uint32_t)below((int)before));
}

static void random_counts(int64_t *out, enum collective_op op, int size, int member)
{
    for (int m = 0; m < size; m++)
        out[m] = below(3) == 0 ? 0 : (int64_t)amount(10);
    if (op == COLLECTIVE_OP_ALL_REDUCE)
        memset(out + 1, 0, (size_t)(size - 1) * sizeof *out);
    if (op >= COLLECTIVE_OP_ALL_TO_ALL)
        out[member] = 0;
}

static void random_call(uint32_t streams, int rank_count, uint32_t group)
{
    const struct recording_group *about = &builder.recording.groups[group];
    uint32_t before = builder.recording.node_count;
    enum collective_op op = (enum collective_op)below(COLLECTIVE_OP_COUNT);
    int64_t counts[RECORDING_RANKS_MAX];
    int size = about->size, ranks[RECORDING_RANKS_MAX];
    for (int m = 0; m < size; m++)
        ranks[m] = about->ranks[m];
    random_counts(counts, op, size, 0);
    for (int m = 0; m < size; m++) {
        if (op >= COLLECTIVE_OP_ALL_TO_ALL)
            random_counts(counts, op, size, m);
        uint32_t lane = (uint32_t)(below((int)streams / rank_count) * rank_count + ranks[m]);
        random_needs(build_collective(&builder, lane, group, op, counts), before);
    }
}

/* Lanes are rank by rank, so many of each rank. */
static void random_recording(int rank_count, int node_count)
{
    static const enum lane_kind kinds[] = {LANE_STREAM, LANE_STREAM, LANE_LOW, LANE_HOST,
                                           LANE_READS};
    uint32_t lanes = 0, group_count = (uint32_t)(1 + below(3));
    build_begin(&builder, rank_count);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        for (int rank = 0; rank < rank_count; rank++)
            lanes = build_lane(&builder, kinds[k], rank) + 1;
    }
    for (uint32_t g = 0; g < group_count; g++) {
        int ranks[RECORDING_RANKS_MAX], size = 1 + below(rank_count), first = below(rank_count);
        for (int m = 0; m < size; m++)
            ranks[m] = (first + m) % rank_count;
        build_group(&builder, size, ranks);
    }
    while ((int)builder.recording.node_count < node_count) {
        uint32_t before = builder.recording.node_count, lane = (uint32_t)below((int)lanes), node;
        switch (below(6)) {
        case 0:
            random_call(lanes, rank_count, (uint32_t)below((int)group_count));
            continue;
        case 1:
            node = build_move(&builder, lane, below(2) == 0 ? NODE_COPY : NODE_READ,
                              (uint64_t)(below(3) == 0 ? 0 : amount(4)));
            if (builder.nodes[node].about.kind == NODE_COPY)
                builder.nodes[node].about.to_host = (uint8_t)below(2);
            break;
        case 2:
            node = build_wait(&builder, lane);
            break;
        default:
            node =
                build_compute(&builder, lane, below(8) == 0 ? 0 : amount(0.2), (uint64_t)below(8));
        }
        random_needs(node, before);
    }
    build_finish(&builder);
}

static void run(struct simulation *out, double scale)
{
    struct error err;
    cr_assert_eq(simulate(out,
                          &(struct simulation_params){
                              .recording = &builder.recording, .box = &box, .link_scale = scale},
                          &err),
                 STATUS_OK, "%s", err.message);
}

/* ---- Checks ---------------------------------------------------------------------------------- */

static bool is_near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fmax(1, fmax(fabs(a), fabs(b)));
}

static void check_reference(const struct simulation *found)
{
    const struct recording *recording = &builder.recording;
    struct node_time *times = calloc(recording->node_count, sizeof *times);
    double(*bytes)[2] = calloc(BOX_LINKS_MAX, sizeof *bytes);
    reference_simulate(times, bytes, recording, &box);
    for (uint32_t n = 0; n < recording->node_count; n++)
        cr_assert(is_near(times[n].begin, found->times[n].begin) &&
                      is_near(times[n].end, found->times[n].end),
                  "node %u: expected %.12g to %.12g, found %.12g to %.12g", n, times[n].begin,
                  times[n].end, found->times[n].begin, found->times[n].end);
    for (int l = 0; l < box.link_count; l++) {
        double busy = found->links[l].busy_seconds, each = box.links[l].bytes_per_second;
        cr_assert(is_near(found->links[l].bytes[0], bytes[l][0]) &&
                  is_near(found->links[l].bytes[1], bytes[l][1]));
        cr_assert(busy <= found->seconds * (1 + 1e-12) &&
                  busy * each >= fmax(bytes[l][0], bytes[l][1]) * (1 - 1e-9));
    }
    free(bytes);
    free(times);
}

/* Nothing begins before all that it waits for has ended, nor before its cause; nothing is shorter
 * than alone. */
static void check_order(const struct simulation *found)
{
    const struct recording *recording = &builder.recording;
    for (uint32_t l = 0; l < recording->lane_count; l++) {
        for (uint32_t i = 0; i < recording->lanes[l].count; i++) {
            uint32_t n = recording->lanes[l].first + i;
            const struct recording_node *node = &recording->nodes[n];
            const struct node_time *time = &found->times[n];
            double least = node->kind == NODE_COMPUTE ? (double)node->duration_ns * 1e-9 : 0;
            cr_assert(time->end - time->begin >= least * (1 - 1e-12) - 1e-12 * time->end);
            cr_assert(i == 0 || time->begin >= found->times[n - 1].end);
            for (uint32_t k = 0; k < node->need_count; k++)
                cr_assert(time->begin >= found->times[recording->needs[node->need_first + k]].end);
            if (time->cause == UINT32_MAX)
                cr_assert_eq(time->begin, 0);
            else
                cr_assert_eq(time->begin, found->times[time->cause].end);
        }
    }
}

static void check_same_again(const struct simulation *found)
{
    struct simulation again;
    run(&again, 0);
    cr_assert_eq(memcmp(&again.seconds, &found->seconds, sizeof again.seconds), 0);
    for (uint32_t n = 0; n < builder.recording.node_count; n++)
        cr_assert(again.times[n].begin == found->times[n].begin &&
                  again.times[n].end == found->times[n].end &&
                  again.times[n].cause == found->times[n].cause);
    cr_assert_eq(memcmp(again.links, found->links, (size_t)box.link_count * sizeof *found->links),
                 0);
    simulation_deinit(&again);
}

Test(random, as_the_reference_says, .timeout = 300)
{
    uint64_t seed = test_seed();
    for (uint64_t c = 0; c < CASES; c++) {
        struct simulation found;
        dice = (struct random){.seed = random_mix(seed) + c};
        int rank_count = 1 + below(5);
        random_box(rank_count);
        random_recording(rank_count, 10 + below(150));
        run(&found, 0);
        check_reference(&found);
        check_order(&found);
        check_same_again(&found);
        simulation_deinit(&found);
        build_end(&builder);
    }
}

/* ---- Faster links ---------------------------------------------------------------------------- */

/* One stream for each rank, and calls of all: nothing is shared but by one call's own messages. */
static void recording_without_sharing(int rank_count)
{
    int ranks[RECORDING_RANKS_MAX];
    build_begin(&builder, rank_count);
    for (int rank = 0; rank < rank_count; rank++)
        ranks[rank] = (int)build_lane(&builder, LANE_STREAM, rank);
    build_group(&builder, rank_count, ranks);
    for (int i = 0; i < 60; i++) {
        if (below(3) == 0) {
            random_call((uint32_t)rank_count, rank_count, 0);
            continue;
        }
        uint32_t before = builder.recording.node_count;
        random_needs(build_compute(&builder, (uint32_t)below(rank_count), amount(0.2), 0), before);
    }
    build_finish(&builder);
}

static void expect_not_later(const struct simulation *fast, const struct simulation *slow,
                             const char *what)
{
    for (uint32_t n = 0; n < builder.recording.node_count; n++)
        cr_assert(fast->times[n].begin <= slow->times[n].begin * (1 + 1e-12) &&
                      fast->times[n].end <= slow->times[n].end * (1 + 1e-12),
                  "%s: node %u is later", what, n);
}

Test(random, without_sharing_all_links_faster_is_never_later)
{
    uint64_t seed = test_seed();
    for (uint64_t c = 0; c < CASES; c++) {
        struct simulation slow, fast;
        dice = (struct random){.seed = random_mix(seed + 1) + c};
        int rank_count = 1 + below(5);
        random_box(rank_count);
        box.has_one_slot = false;
        box.memory_count = 0;
        memset(box.memory_of, 0xFF, sizeof box.memory_of);
        recording_without_sharing(rank_count);
        run(&slow, 1);
        run(&fast, 1 + random_unit(random_next(&dice)));
        expect_not_later(&fast, &slow, "all links");
        simulation_deinit(&slow);
        simulation_deinit(&fast);
        build_end(&builder);
    }
}

/* A ring of links of their own. */
Test(random, without_sharing_any_link_faster_is_never_later)
{
    uint64_t seed = test_seed();
    for (uint64_t c = 0; c < CASES; c++) {
        struct simulation slow, fast;
        dice = (struct random){.seed = random_mix(seed + 2) + c};
        int rank_count = 3 + below(4);
        box_plain(&box, rank_count);
        for (int rank = 0; rank < rank_count; rank++)
            box_add_link(&box, rank, (rank + 1) % rank_count, amount(10), amount(0.01));
        for (int op = 0; op < COLLECTIVE_OP_COUNT; op++) {
            random_protocols(&box.collectives[op]);
            box.collectives[op].algorithm = ALGORITHM_RING;
        }
        recording_without_sharing(rank_count);
        run(&slow, 0);
        struct box_link *link = &box.links[below(rank_count)];
        link->bytes_per_second *= 1 + random_unit(random_next(&dice));
        run(&fast, 0);
        expect_not_later(&fast, &slow, "bandwidth");
        simulation_deinit(&slow);
        link->latency *= random_unit(random_next(&dice));
        run(&slow, 0);
        expect_not_later(&slow, &fast, "latency");
        simulation_deinit(&slow);
        simulation_deinit(&fast);
        build_end(&builder);
    }
}

/* Where links are shared it does not hold: a file that is read sooner is copied beside what all
 * others wait for. */
Test(random, with_sharing_a_faster_link_may_make_all_later)
{
    struct simulation slow, fast;
    box_plain(&box, 1);
    box.host = box_add_end(&box, "host");
    box.disk = box_add_end(&box, "disk");
    box_add_link(&box, box.host, 0, 1, 0);
    int disk = box_add_link(&box, box.disk, box.host, 0.5, 0);
    build_begin(&builder, 1);
    uint32_t reads = build_lane(&builder, LANE_READS, 0), host = build_lane(&builder, LANE_HOST, 0);
    uint32_t low = build_lane(&builder, LANE_LOW, 0), stream = build_lane(&builder, LANE_STREAM, 0);
    uint32_t read = build_move(&builder, reads, NODE_READ, 10);
    build_need(&builder, build_move(&builder, low, NODE_COPY, 10), read);
    uint32_t delay = build_compute(&builder, host, 10, 0);
    build_need(&builder, build_move(&builder, stream, NODE_COPY, 10), delay);
    build_compute(&builder, stream, 15, 0);
    build_finish(&builder);
    run(&slow, 0);
    box.links[disk].bytes_per_second = 1;
    run(&fast, 0);
    cr_assert_eq(slow.seconds, 35);
    cr_assert_eq(fast.seconds, 45);
    simulation_deinit(&slow);
    simulation_deinit(&fast);
    build_end(&builder);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

Test(random, allocations_may_fail)
{
    dice = (struct random){.seed = test_seed()};
    random_box(3);
    random_recording(3, 100);
    uint64_t live = memory_counters_get().live_count, n = 0;
    enum status status = STATUS_NO_MEMORY;
    struct simulation found = {0};
    while (status != STATUS_OK && ++n < 10000) {
        struct error err;
        memory_fail_at(n, 0);
        status = simulate(&found,
                          &(struct simulation_params){.recording = &builder.recording,
                                                      .box = n % 2 == 0 ? NULL : &box},
                          &err);
        memory_fail_at(0, 0);
        if (status == STATUS_OK && n % 2 == 0 && found.links == NULL && n < 40) {
            simulation_deinit(&found); /* without a box it needs less */
            status = STATUS_NO_MEMORY;
        }
        cr_assert(status == STATUS_OK ||
                  (status == STATUS_NO_MEMORY && memory_counters_get().live_count == live));
    }
    cr_assert(n > 20 && n < 10000);
    simulation_deinit(&found);
    build_end(&builder);
}
