#include "planner/routing.h"

#include <math.h>

/* The largest of n normal values whose sum is given, in deviations above their mean, on the mean:
 * sqrt(n / (n - 1)) times that of independent ones. Between these n, along ln n. */
static double largest_deviation(int n)
{
    static const struct {
        int n;
        double deviations;
    } known[] = {{2, 0.7979},  {3, 1.0365},  {4, 1.1886},  {6, 1.3882},  {8, 1.5219}, {12, 1.7017},
                 {16, 1.8239}, {24, 1.9896}, {32, 2.1028}, {48, 2.2568}, {64, 2.3623}};
    size_t i = 0, last = sizeof known / sizeof *known - 1;
    while (i < last && known[i].n < n)
        i++;
    if (i == 0 || known[i].n <= n)
        return known[i].deviations;
    double share = log((double)n / known[i - 1].n) / log((double)known[i].n / known[i - 1].n);
    return known[i - 1].deviations + share * (known[i].deviations - known[i - 1].deviations);
}

double routing_by_chance(int ep, double draws)
{
    return largest_deviation(ep) * sqrt((ep - 1) / draws);
}

static double excess_of(const struct routing *routing, const struct model_shape *shape,
                        enum phase phase, int ep)
{
    if (routing->is_counted)
        return ep <= ROUTING_GROUPS_MAX ? routing->excess[phase][ep] : 0;
    return largest_deviation(ep) * routing->deviation * sqrt(ep / (double)shape->expert_count);
}

double routing_imbalance(const struct routing *routing, const struct model_shape *shape,
                         enum phase phase, int ep, double draws)
{
    if (ep < 2 || !(draws > 0))
        return 1;
    double by_chance = routing_by_chance(ep, draws), excess = excess_of(routing, shape, phase, ep);
    return fmin(1 + sqrt(by_chance * by_chance + excess * excess), ep);
}

/* More alike than that is alike. */
#define SHAPE_MOST 1e6
/* Experts are chosen by all tokens or by none. */
#define SHAPE_LEAST 1e-3

/* Sign and errno are nobody's: of what is above zero. */
static double log_gamma(double value)
{
    int sign;
    return lgamma_r(value, &sign);
}

double routing_experts_met(const struct routing *routing, const struct model_shape *shape,
                           double held, double tokens)
{
    double chosen = (double)shape->expert_top_k / (double)shape->expert_count, missed = 1 - chosen;
    double variance = routing->deviation * routing->deviation;
    if (!(missed > 0))
        return held;
    double both = variance > 0 ? missed / (chosen * variance) - 1 : SHAPE_MOST;
    if (both >= SHAPE_MOST)
        return held * (1 - pow(missed, tokens));
    both = fmax(both, SHAPE_LEAST);
    double misses = missed * both;
    return held * (1 - exp(log_gamma(misses + tokens) - log_gamma(misses) -
                           log_gamma(both + tokens) + log_gamma(both)));
}

double routing_group_chance(const struct model_shape *shape, int ep)
{
    double held = (double)shape->expert_count / ep, misses = 1;
    for (int64_t draw = 0; draw < shape->expert_top_k; draw++)
        misses *= fmax(0, (double)shape->expert_count - held - (double)draw) /
                  ((double)shape->expert_count - (double)draw);
    return 1 - misses;
}
