/* How full the fullest group is and how many experts a few tokens meet, against draws. */
#include <criterion/criterion.h>
#include <math.h>

#include "base/random.h"
#include "model_shapes.h"
#include "planner/routing.h"

TestSuite(routing, .timeout = 280);

/* Rows of the fullest group over the mean, of so many rows that go to any group alike. */
static double fullest_drawn(int groups, int64_t rows, struct random *random)
{
    int64_t counts[LAYOUT_RANKS_MAX] = {0}, most = 0;
    for (int64_t row = 0; row < rows; row++)
        counts[random_below(random, (uint64_t)groups)]++;
    for (int g = 0; g < groups; g++)
        most = counts[g] > most ? counts[g] : most;
    return (double)most * groups / (double)rows;
}

Test(routing, the_fullest_group_is_as_full_as_one_that_is_drawn)
{
    static const int groups[] = {2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 32, 64};
    const struct model_shape *shape = &model_shapes[MIXTRAL_8X7B].shape;
    const struct routing even = {0};
    struct random random = {.seed = 5};
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
        int64_t rows = 100 * groups[g];
        double mean = 0;
        for (int i = 0; i < 2000; i++)
            mean += fullest_drawn(groups[g], rows, &random) / 2000;
        double told = routing_imbalance(&even, shape, PHASE_PREFILL, groups[g], (double)rows);
        cr_assert_float_eq((told - 1) / (mean - 1), 1, 0.06, "%d groups: %.4f for %.4f", groups[g],
                           told, mean);
    }
}

Test(routing, routing_is_uneven_by_chance_and_by_liking)
{
    const struct model_shape *shape = &model_shapes[MIXTRAL_8X7B].shape;
    struct routing even = {0}, skewed = {.deviation = 0.5};
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        cr_assert_eq(routing_imbalance(&even, shape, phase, 1, 100), 1);
        cr_assert_float_eq(routing_imbalance(&even, shape, phase, 4, 1e12), 1, 1e-5);
        cr_assert_float_eq(routing_imbalance(&even, shape, phase, 4, 300), 1 + 1.1886 * 0.1, 1e-12);
        cr_assert_float_eq(routing_imbalance(&skewed, shape, phase, 4, 1e15),
                           1 + 1.1886 * sqrt(0.125), 1e-6);
        cr_assert_eq(routing_imbalance(&skewed, shape, phase, 4, 0.1), 4);
    }
    /* One token meets 2 of 8 experts; two meet 8 x (1 - (3/4)^2), or less by 8 deviations squared.
     */
    cr_assert_float_eq(routing_experts_met(&even, shape, 8, 1), 2, 1e-12);
    cr_assert_float_eq(routing_experts_met(&even, shape, 8, 2), 3.5, 1e-12);
    cr_assert_float_eq(routing_experts_met(&even, shape, 2, 1000), 2, 1e-9);
    cr_assert_float_eq(routing_experts_met(&skewed, shape, 8, 1), 2, 1e-9);
    cr_assert_float_eq(routing_experts_met(&skewed, shape, 8, 2), 3.375, 1e-9);
    cr_assert_float_eq(routing_experts_met(&skewed, shape, 2, 1000), 2, 1e-3);
}

/* However much experts differ: one token meets as many, more tokens more, and none more than there
 * are; the more they differ the fewer. */
Test(routing, more_tokens_meet_more_experts)
{
    static const double deviations[] = {0,   1e-9, 1e-4, 1e-3, 1.1e-3, 0.1,
                                        0.3, 1,    1.7,  1.8,  10,     100};
    for (int model = 0; model < MODEL_SHAPE_COUNT; model++) {
        const struct model_shape *shape = &model_shapes[model].shape;
        const double held = (double)shape->expert_count, chosen = (double)shape->expert_top_k;
        for (double tokens = 1; tokens <= 16384; tokens *= 2) {
            double alike = INFINITY;
            for (size_t d = 0; d < sizeof deviations / sizeof *deviations; d++) {
                const struct routing routing = {.deviation = deviations[d]};
                double met = routing_experts_met(&routing, shape, held, tokens);
                double before = routing_experts_met(&routing, shape, held, tokens / 2);
                cr_expect(met >= chosen * (1 - 1e-6) && met <= held && met <= alike * (1 + 1e-6),
                          "%s, %g tokens, %g: %g", model_shapes[model].name, tokens, deviations[d],
                          met);
                cr_expect(tokens > 1 || fabs(met / chosen - 1) < 1e-6);
                cr_expect_geq(met, before * (1 - 1e-6));
                alike = met;
            }
        }
    }
}

/* Of experts whose likings are drawn, those that some tokens choose, on the mean; each token has
 * as many as it wants, by chance alone. */
static double met_drawn(int64_t experts, double share, double deviation, int tokens,
                        struct random *random)
{
    double met = 0;
    for (int64_t e = 0; e < experts; e++) {
        double sum = -6; /* of twelve: nearly normal */
        for (int i = 0; i < 12; i++)
            sum += random_unit(random_next(random));
        double liking = fmin(fmax(share * (1 + deviation * sum), 0), 1);
        met += 1 - pow(1 - liking, tokens);
    }
    return met;
}

Test(routing, experts_that_are_liked_less_are_missed_more_often)
{
    static const int models[] = {MIXTRAL_8X7B, QWEN2_57B_A14B};
    static const int tokens[] = {1, 2, 4, 8, 16, 32, 64, 512};
    const struct routing skewed = {.deviation = 0.3};
    struct random random = {.seed = 7};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        const struct model_shape *shape = &model_shapes[models[m]].shape;
        int64_t experts = shape->expert_count;
        double share = (double)shape->expert_top_k / (double)experts;
        for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++) {
            const int times = (int)(200000 / experts);
            double mean = 0;
            for (int i = 0; i < times; i++)
                mean += met_drawn(experts, share, 0.3, tokens[t], &random) / times;
            double told = routing_experts_met(&skewed, shape, (double)experts, tokens[t]);
            cr_expect_float_eq(told / mean, 1, 0.01, "%d tokens: %g for %g", tokens[t], told, mean);
        }
    }
}

/* What was counted stands in place of what is assumed, and chance beside it. */
Test(routing, routing_is_as_uneven_as_it_was_counted)
{
    const struct model_shape *shape = &model_shapes[MIXTRAL_8X7B].shape;
    struct routing counted = {
        .deviation = 0.5,
        .is_counted = true,
        .excess = {[PHASE_PREFILL] = {[4] = 0.3}, [PHASE_DECODE] = {[4] = 0.7}},
    };
    double by_chance = routing_by_chance(2, 1e15);
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        double excess = phase == PHASE_PREFILL ? 0.3 : 0.7;
        cr_assert_eq(routing_imbalance(&counted, shape, phase, 2, 1e15), 1 + by_chance);
        cr_assert_float_eq(routing_imbalance(&counted, shape, phase, 4, 1e15), 1 + excess, 1e-6);
        cr_assert_float_eq(routing_imbalance(&counted, shape, phase, 4, 300),
                           1 + hypot(excess, 0.11886), 1e-12);
    }
}
