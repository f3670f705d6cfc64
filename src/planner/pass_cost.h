/* What one pass costs on one box, under one layout: the stages of docs/ARCHITECTURE.md, "One
 * token's way through a layer", each priced on the rank that has most to do. HAP's Ta, Te and Tc
 * (equations 1 and 2) are sums of these parts.
 */
#ifndef PHASOR_PLANNER_PASS_COST_H
#define PHASOR_PLANNER_PASS_COST_H

#include "layout/layout.h"
#include "layout/traffic.h"
#include "planner/profile.h"
#include "planner/routing.h"

struct pass_shape {
    enum phase phase; /* whose routing it has */
    enum layer_form form;
    double rows;  /* tokens of the pass, all data-parallel groups together */
    double pairs; /* of a query and a key that it sees (itself included), of all of them */
    double seen;  /* tokens of the cache that attention reads, likewise */
    double sliding_pairs, sliding_seen; /* the same in layers with a sliding window */
    double logit_rows;                  /* tokens whose logits are wanted */
    double fullest; /* rows of the group that has most, over the mean; 0: all have as many */
};

/* The numbers of weights and cache. */
struct cost_types {
    enum dtype matrices, experts, cache;
};

enum cost_part {
    COST_PROJECTION, /* 2 */
    COST_ATTENTION,  /* 2 */
    COST_EXPERTS,    /* 6 */
    COST_SHARED,     /* 8, and dense layers */
    COST_ROWS,       /* 1, 2, 4, 7: norms, sums, rotations, router, combine */
    COST_HEAD,       /* 9, with the choice of tokens */
    COST_HOST,       /* between passes, with what is copied between host and devices */
    COST_EXCHANGE,   /* + enum traffic: between ranks */
    COST_PART_COUNT = COST_EXCHANGE + TRAFFIC_KIND_COUNT
};

struct pass_cost {
    double seconds[COST_PART_COUNT]; /* of all layers together */
};

static inline double pass_cost_total(const struct pass_cost *cost)
{
    double sum = 0;
    for (int part = 0; part < COST_PART_COUNT; part++)
        sum += cost->seconds[part];
    return sum;
}

static inline void pass_cost_add(struct pass_cost *to, const struct pass_cost *more, double times)
{
    for (int part = 0; part < COST_PART_COUNT; part++)
        to->seconds[part] += times * more->seconds[part];
}

/* Infinite parts where the profile lacks a table, or a rate. */
struct pass_cost pass_cost(const struct profile *profile, const struct model_shape *shape,
                           const struct layout *layout, const struct cost_types *types,
                           const struct routing *routing, const struct pass_shape *pass);

/* Its COST_ATTENTION alone: nothing else is another with other pairs and tokens of the cache. */
double pass_attention_seconds(const struct profile *profile, const struct model_shape *shape,
                              const struct layout *layout, const struct cost_types *types,
                              const struct pass_shape *pass);

#endif
