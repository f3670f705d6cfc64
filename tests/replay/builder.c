#include "builder.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

#define RESERVE(array, capacity, needed)                                                           \
    do {                                                                                           \
        struct error reserve_error;                                                                \
        cr_assert_eq(memory_reserve(&(array), &(capacity), (needed), sizeof *(array), "a test",    \
                                    &reserve_error),                                               \
                     STATUS_OK);                                                                   \
    } while (0)

static char **one_string(const char *text)
{
    char **strings = memory_alloc(1, sizeof *strings);
    strings[0] = memory_copy_text(text, strlen(text));
    return strings;
}

void build_begin(struct builder *builder, int rank_count)
{
    *builder = (struct builder){.recording = {.rank_count = rank_count,
                                              .wall_seconds = 1,
                                              .string_count = 1,
                                              .stage_count = 1,
                                              .tag_count = 1}};
    builder->recording.about = memory_copy_text("{}", 2);
    builder->recording.strings = one_string("thing");
    builder->recording.stage_names = one_string("stage");
    builder->recording.tag_names = one_string("tag");
}

uint32_t build_lane(struct builder *builder, enum lane_kind kind, int rank)
{
    struct recording *recording = &builder->recording;
    RESERVE(recording->lanes, builder->lane_capacity, recording->lane_count + 1u);
    recording->lanes[recording->lane_count] = (struct recording_lane){.kind = kind, .rank = rank};
    return recording->lane_count++;
}

uint32_t build_group(struct builder *builder, int size, const int *ranks)
{
    struct recording *recording = &builder->recording;
    RESERVE(recording->groups, builder->group_capacity, recording->group_count + 1u);
    struct recording_group *group = &recording->groups[recording->group_count];
    *group = (struct recording_group){.size = size};
    for (int m = 0; m < size; m++)
        group->ranks[m] = (uint8_t)ranks[m];
    return recording->group_count++;
}

static uint32_t add(struct builder *builder, uint32_t lane, const struct recording_node *about)
{
    struct recording *recording = &builder->recording;
    RESERVE(builder->nodes, builder->node_capacity, recording->node_count + 1u);
    builder->nodes[recording->node_count] = (struct built_node){.about = *about, .lane = lane};
    recording->lanes[lane].count++;
    return recording->node_count++;
}

uint32_t build_compute(struct builder *builder, uint32_t lane, double seconds, uint64_t bytes)
{
    return add(builder, lane,
               &(struct recording_node){.kind = NODE_COMPUTE,
                                        .work = WORK_MATMUL,
                                        .layer = -1,
                                        .duration_ns = (uint64_t)llround(seconds * 1e9),
                                        .bytes = bytes});
}

uint32_t build_wait(struct builder *builder, uint32_t lane)
{
    return add(builder, lane, &(struct recording_node){.kind = NODE_WAIT, .layer = -1});
}

uint32_t build_move(struct builder *builder, uint32_t lane, enum node_kind kind, uint64_t bytes)
{
    return add(builder, lane,
               &(struct recording_node){.kind = (uint8_t)kind, .bytes = bytes, .layer = -1});
}

uint32_t build_collective(struct builder *builder, uint32_t lane, uint32_t group,
                          enum collective_op op, const int64_t *counts)
{
    struct recording *recording = &builder->recording;
    struct recording_group *about = &recording->groups[group];
    struct recording_collective call = {
        .group = group, .number = 1, .op = (uint8_t)op, .count_first = recording->count_count};
    while (about->ranks[call.member] != recording->lanes[lane].rank)
        call.member++;
    for (uint32_t i = 0; i < recording->collective_count; i++)
        call.number += recording->collectives[i].group == group &&
                       recording->collectives[i].member == call.member;
    RESERVE(recording->counts, builder->count_capacity,
            recording->count_count + (size_t)about->size);
    memcpy(recording->counts + recording->count_count, counts,
           (size_t)about->size * sizeof *counts);
    recording->count_count += (uint32_t)about->size;
    RESERVE(recording->collectives, builder->collective_capacity, recording->collective_count + 1u);
    recording->collectives[recording->collective_count] = call;
    return add(builder, lane,
               &(struct recording_node){.kind = NODE_COLLECTIVE,
                                        .layer = -1,
                                        .collective = recording->collective_count++});
}

void build_need(struct builder *builder, uint32_t node, uint32_t need)
{
    struct built_node *built = &builder->nodes[node];
    RESERVE(built->needs, built->need_capacity, built->about.need_count + 1u);
    built->needs[built->about.need_count++] = need;
    builder->recording.need_count++;
}

void build_finish(struct builder *builder)
{
    struct recording *recording = &builder->recording;
    uint32_t node_count = recording->node_count, needs = 0;
    uint32_t *next = memory_alloc(recording->lane_count, sizeof *next);
    struct error err;
    builder->node = memory_alloc(node_count, sizeof *builder->node);
    recording->nodes = memory_alloc(node_count, sizeof *recording->nodes);
    recording->needs = memory_alloc(recording->need_count, sizeof *recording->needs);
    for (uint32_t lane = 0, first = 0; lane < recording->lane_count; lane++) {
        recording->lanes[lane].first = next[lane] = first;
        first += recording->lanes[lane].count;
    }
    for (uint32_t n = 0; n < node_count; n++)
        builder->node[n] = next[builder->nodes[n].lane]++;
    for (uint32_t n = 0; n < node_count; n++) {
        struct recording_node *node = &recording->nodes[builder->node[n]];
        *node = builder->nodes[n].about;
        node->need_first = needs;
        for (uint32_t i = 0; i < node->need_count; i++)
            recording->needs[needs++] = builder->node[builder->nodes[n].needs[i]];
    }
    memory_free(next);
    cr_assert_eq(recording_check(recording, "a test's", &err), STATUS_OK, "%s", err.message);
}

void build_end(struct builder *builder)
{
    for (uint32_t n = 0; n < builder->recording.node_count; n++)
        memory_free(builder->nodes[n].needs);
    memory_free(builder->nodes);
    memory_free(builder->node);
    recording_deinit(&builder->recording);
}

void build_example(struct builder *out)
{
    static const int64_t counts[COLLECTIVE_OP_COUNT][2][2] = {{{10, 20}, {10, 20}},
                                                              {{5, 0}, {5, 0}},
                                                              {{64, 0}, {64, 0}},
                                                              {{0, 7}, {9, 0}},
                                                              {{0, 0}, {3, 0}}};
    uint32_t streams[2], last = 0;
    build_begin(out, 2);
    uint32_t driver = build_lane(out, LANE_HOST, -1), reads = build_lane(out, LANE_READS, 1);
    uint32_t low = build_lane(out, LANE_LOW, 1);
    for (int rank = 0; rank < 2; rank++)
        streams[rank] = build_lane(out, LANE_STREAM, rank);
    uint32_t group = build_group(out, 2, (int[]){1, 0});
    uint32_t begun = build_compute(out, driver, 0.001, 0);
    uint32_t read = build_move(out, reads, NODE_READ, 4096);
    build_need(out, read, begun);
    build_need(out, build_move(out, low, NODE_COPY, 4096), read);
    build_compute(out, low, 0.25, 100);
    for (int rank = 0; rank < 2; rank++) {
        build_need(out, build_compute(out, streams[rank], 0.5 + 0.25 * rank, 1000), begun);
        for (int op = 0; op < COLLECTIVE_OP_COUNT; op++)
            last = build_collective(out, streams[rank], group, (enum collective_op)op,
                                    counts[op][1 - rank]);
    }
    build_need(out, build_wait(out, driver), last);
    build_finish(out);
}

struct node_time build_time(const struct builder *builder, const struct simulation *simulation,
                            uint32_t node)
{
    return simulation->times[builder->node[node]];
}

void box_plain(struct box_model *out, int rank_count)
{
    *out = (struct box_model){
        .name = "test", .rank_count = rank_count, .end_count = rank_count, .host = -1, .disk = -1};
    for (int op = 0; op < COLLECTIVE_OP_COUNT; op++)
        out->collectives[op] = (struct box_collective){
            .protocol_count = 1, .protocols = {{.name = "plain", .efficiency = 1}}};
    for (int rank = 0; rank < RECORDING_RANKS_MAX; rank++)
        out->memory_of[rank] = -1;
    for (int rank = 0; rank < rank_count; rank++)
        snprintf(out->end_names[rank], sizeof out->end_names[rank], "gpu%d", rank);
}

int box_add_end(struct box_model *box, const char *name)
{
    snprintf(box->end_names[box->end_count], sizeof box->end_names[0], "%s", name);
    return box->end_count++;
}

int box_add_link(struct box_model *box, int a, int b, double bytes_per_second, double latency)
{
    box->links[box->link_count] =
        (struct box_link){.ends = {a, b}, .bytes_per_second = bytes_per_second, .latency = latency};
    return box->link_count++;
}

void box_star(struct box_model *out, int rank_count, double bytes_per_second, double latency)
{
    box_plain(out, rank_count);
    int hub = box_add_end(out, "switch");
    for (int rank = 0; rank < rank_count; rank++)
        box_add_link(out, rank, hub, bytes_per_second, latency);
}

uint64_t test_seed(void)
{
    const char *text = getenv("PHASOR_TEST_SEED");
    uint64_t seed = text == NULL ? 0 : strtoull(text, NULL, 10);
    printf("PHASOR_TEST_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}
