/* Recordings and boxes put together by hand, and random ones. */
#ifndef TESTS_REPLAY_BUILDER_H
#define TESTS_REPLAY_BUILDER_H

#include <stddef.h>

#include "base/random.h"
#include "replay/box_model.h"
#include "replay/recording.h"
#include "replay/simulate.h"

/* Nodes are added to any lane at any time, and are known by the number that adding them gave;
 * `node` of the finished recording is the place of each. */
struct builder {
    struct recording recording; /* growing: nodes are not by lanes yet */
    struct built_node {
        struct recording_node about;
        uint32_t lane;
        uint32_t *needs;
        size_t need_capacity;
    } * nodes;
    size_t node_capacity, lane_capacity, collective_capacity, group_capacity, count_capacity;
    uint32_t *node; /* after build_finish */
};

void build_begin(struct builder *builder, int rank_count);
uint32_t build_lane(struct builder *builder, enum lane_kind kind, int rank);
uint32_t build_group(struct builder *builder, int size, const int *ranks);
uint32_t build_compute(struct builder *builder, uint32_t lane, double seconds, uint64_t bytes);
uint32_t build_wait(struct builder *builder, uint32_t lane);
uint32_t build_move(struct builder *builder, uint32_t lane, enum node_kind kind, uint64_t bytes);

/* The member's n-th call of its group; counts[group size]. */
uint32_t build_collective(struct builder *builder, uint32_t lane, uint32_t group,
                          enum collective_op op, const int64_t *counts);
void build_need(struct builder *builder, uint32_t node, uint32_t need);

/* Puts the nodes in the order of their lanes; the recording has passed recording_check. */
void build_finish(struct builder *builder);
void build_end(struct builder *builder);

/* Two ranks, with a node of each kind and an operation of each kind; finished. */
void build_example(struct builder *out);

/* When a node begins and ends. */
struct node_time build_time(const struct builder *builder, const struct simulation *simulation,
                            uint32_t node);

/* A box without links, host and disk, whose collectives are direct, without latencies, by one
 * protocol of efficiency 1. */
void box_plain(struct box_model *out, int rank_count);

/* An end that is none of the ranks. */
int box_add_end(struct box_model *box, const char *name);
int box_add_link(struct box_model *box, int a, int b, double bytes_per_second, double latency);

/* Every rank on one switch, as fast as all others. */
void box_star(struct box_model *out, int rank_count, double bytes_per_second, double latency);

/* PHASOR_TEST_SEED, which is printed. */
uint64_t test_seed(void);

#endif
