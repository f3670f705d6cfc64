/* How unevenly routers choose, and what a layout pays for it whose experts lie in groups: the group
 * with most rows is the last to be done. */
#ifndef PHASOR_PLANNER_ROUTING_H
#define PHASOR_PLANNER_ROUTING_H

#include <stdbool.h>

#include "layout/layout.h"

#define ROUTING_GROUPS_MAX 64

/* As it is assumed, or as it was counted (engine/routing_counts.h). */
struct routing {
    double deviation; /* of the experts' shares from one another, relative to the mean; counted: of
                       * all passes, 0 where a file does not tell */
    bool is_counted;
    /* Whose counts a phase has: its own, or those of all passes, where its own were too few. */
    bool is_own[PHASE_COUNT];
    /* [phase][groups]: rows of the fullest of so many groups over the mean, less 1, as they are
     * beyond what chance makes of even routing */
    double excess[PHASE_COUNT][ROUTING_GROUPS_MAX + 1];
};

/* Rows of the fullest of `ep` groups over the mean in a pass of the phase, >= 1. Rows are drawn by
 * chance, and experts are not equally liked:
 *   1 + sqrt(by_chance^2 + excess^2), at most ep,
 * where by_chance is routing_by_chance, and the excess, where none was counted,
 *   d(ep) x deviation x sqrt(ep / E). */
double routing_imbalance(const struct routing *routing, const struct model_shape *shape,
                         enum phase phase, int ep, double draws);

/* d(ep) x sqrt((ep - 1) / draws): what the fullest of `ep` >= 2 groups has above the mean, relative
 * to it, where `draws` > 0 choices fall on all alike. d(n): how many deviations the largest of n
 * normal values of a given sum lies above their mean, on the mean. */
double routing_by_chance(int ep, double draws);

/* Of one group's `held` experts, those that any of `tokens` tokens chooses, on the mean. Where all
 * are liked alike one is missed by (1 - k / E)^tokens. Where they are not, how likely a token is to
 * choose one is taken to be of the beta distribution of that mean p = k / E and that deviation:
 * then one is missed, on the mean, by
 *   G(b + tokens) G(s) / (G(b) G(s + tokens)), s = (1 - p) / (p deviation^2) - 1, b = (1 - p) s,
 * as the beta-binomial distribution has it, with the gamma function: those that are liked less are
 * missed more often than the others less. */
double routing_experts_met(const struct routing *routing, const struct model_shape *shape,
                           double held, double tokens);

/* How likely a token has any of its experts in one of `ep` groups. */
double routing_group_chance(const struct model_shape *shape, int ep);

#endif
