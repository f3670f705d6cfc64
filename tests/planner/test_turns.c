/* Who decodes at which step, where others come for those that end: against a schedule that places
 * sequence by sequence. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "planner/turns.h"

TestSuite(turns, .timeout = 60);

static uint64_t test_seed(void)
{
    const char *seed = getenv("PHASOR_TEST_SEED");
    return seed == NULL ? 0 : strtoull(seed, NULL, 10);
}

#define STEPS_MAX  4096
#define PLACES_MAX 64

/* Sequences and tokens in their caches, at each step. */
struct schedule {
    int64_t running[STEPS_MAX], tokens[STEPS_MAX];
    int64_t full_steps;
};

/* The longest first, each to the place that is free first. */
static void schedule_make(struct schedule *out, const struct plan_load *loads, int count,
                          int64_t places)
{
    int64_t end[PLACES_MAX] = {0};
    *out = (struct schedule){.full_steps = 0};
    for (int i = count - 1; i >= 0; i--) {
        for (int64_t s = 0; s < loads[i].sequences; s++) {
            int64_t steps = loads[i].output_tokens - 1;
            int first = 0;
            for (int p = 1; p < places; p++)
                first = end[p] < end[first] ? p : first;
            cr_assert_leq(end[first] + steps, STEPS_MAX);
            if (steps > 0 && end[first] > out->full_steps)
                out->full_steps = end[first];
            for (int64_t t = 0; t < steps; t++) {
                out->running[end[first] + t]++;
                out->tokens[end[first] + t] += loads[i].prompt_tokens + t;
            }
            end[first] += steps;
        }
    }
}

static void check_turns(const struct plan_load *loads, int count, int64_t places)
{
    static struct schedule schedule;
    struct turns turns;
    schedule_make(&schedule, loads, count, places);
    turns_take(&turns, loads, count, places);
    cr_assert_eq(turns.full_steps, schedule.full_steps, "%d full steps, not %d",
                 (int)turns.full_steps, (int)schedule.full_steps);
    for (int64_t step = 0; step < turns.full_steps; step++)
        cr_assert_eq(schedule.running[step], places);
    int64_t now = turns.full_steps;
    for (int i = 0; i < turns.tail_count; i++) {
        const struct stretch *stretch = &turns.tail[i];
        cr_assert_gt(stretch->steps, 0);
        double tokens = (double)schedule.tokens[now] / (double)stretch->running;
        cr_assert_eq(stretch->context_tokens, (int64_t)ceil(tokens));
        for (int64_t end = now + stretch->steps; now < end; now++)
            cr_assert_eq(schedule.running[now], stretch->running, "step %d", (int)now);
    }
    cr_assert_eq(schedule.running[now], 0);
}

Test(turns, are_those_of_a_schedule)
{
    struct random random = {.seed = test_seed()};
    for (int round = 0; round < 500; round++) {
        struct plan_load loads[8];
        int count = 1 + (int)random_below(&random, 8);
        int64_t output = 1 + (int64_t)random_below(&random, 8);
        for (int i = 0; i < count; i++) {
            loads[i] = (struct plan_load)PLAN_LOAD(1 + (int64_t)random_below(&random, 40),
                                                   1 + (int64_t)random_below(&random, 200), output);
            output += (int64_t)random_below(&random, round % 2 == 0 ? 4 : 60);
        }
        check_turns(loads, count, 7 + (int64_t)random_below(&random, PLACES_MAX - 6));
    }
}

/* What a rest is: of answers of one length a wave by itself. */
Test(turns, of_one_length_are_waves)
{
    struct turns turns;
    turns_take(&turns, &(struct plan_load)PLAN_LOAD(300, 50, 21), 1, 256);
    cr_assert_eq(turns.full_steps, 20);
    cr_assert_eq(turns.tail_count, 1);
    cr_assert_eq(turns.tail[0].running, 44);
    cr_assert_eq(turns.tail[0].steps, 20);
    cr_assert_eq(turns.tail[0].context_tokens, 50);
    turns_take(&turns, &(struct plan_load)PLAN_LOAD(300, 50, 1), 1, 256);
    cr_assert_eq(turns.full_steps + turns.tail_count, 0, "prefill's tokens are no steps");
}

/* Times at which somebody comes to places that are free, of answers that are drawn: `count` loads
 * of even distributions, the longest first. */
static int64_t times_drawn(const struct plan_load *loads, int count, int64_t places,
                           struct random *random)
{
    static int64_t end[1024];
    int64_t times = 0, now = 0;
    cr_assert_leq(places, 1024);
    memset(end, 0, sizeof end);
    for (int i = count - 1; i >= 0; i--) {
        int64_t width = (int64_t)(sqrt(12) * loads[i].output_deviation + 0.5);
        for (int64_t s = 0; s < loads[i].sequences; s++) {
            int first = 0;
            for (int p = 1; p < places; p++)
                first = end[p] < end[first] ? p : first;
            times += end[first] > now;
            now = end[first];
            end[first] += loads[i].output_tokens - 1 - width / 2 +
                          (int64_t)random_below(random, (uint64_t)width + 1);
        }
    }
    return times;
}

/* Who comes, comes alone where answers differ, and with all others where they do not. */
Test(turns, few_come_together_where_answers_differ)
{
    static const int64_t places[] = {8, 64, 256};
    struct random random = {.seed = test_seed() + 1};
    const struct plan_load even = PLAN_LOAD(1000, 10, 20), few = PLAN_LOAD(5, 10, 20);
    cr_assert_eq(turns_together(&few, 1, 8), 0);
    cr_assert_eq(turns_together(&even, 1, 8), 8);
    for (size_t p = 0; p < sizeof places / sizeof *places; p++) {
        for (int round = 0; round < 50; round++) {
            struct plan_load loads[3];
            int count = 1 + round % 3;
            int64_t output = 50 + (int64_t)random_below(&random, 100), waiting = -places[p];
            for (int i = 0; i < count; i++) {
                loads[i] = (struct plan_load)PLAN_LOAD(600 + (int64_t)random_below(&random, 2000),
                                                       10, output);
                loads[i].output_deviation =
                    (0.02 + 0.25 * random_unit(random_next(&random))) * (double)output;
                output *= 2;
                waiting += loads[i].sequences;
            }
            double told = (double)waiting / turns_together(loads, count, places[p]);
            double found = (double)times_drawn(loads, count, places[p], &random);
            cr_assert_float_eq(told / found, 1, 0.4, "%d loads, %d places: %g times, not %g", count,
                               (int)places[p], told, found);
        }
    }
}

/* Batches that no schedule could be made of one by one. */
Test(turns, of_many_are_quick)
{
    static const struct plan_load loads[] = {PLAN_LOAD(1000000000, 10, 2), PLAN_LOAD(7, 10, 1000),
                                             PLAN_LOAD(1000000, 10, 1001),
                                             PLAN_LOAD(1, 10, 1000000)};
    struct turns turns;
    turns_take(&turns, loads, 4, 3);
    cr_assert_gt(turns.full_steps, 600000000);
    cr_assert_leq(turns.tail_count, 4);
}

/* Who would come alone waits for a sixteenth of the places, for prompts of 2,048 tokens or of a
 * pass, or for as many as end within 64 steps; half of those places are free meanwhile. Who comes
 * with as many does not wait, nor for more than there are. */
Test(turns, who_comes_alone_waits_for_others)
{
    static const struct {
        int64_t sequences, prompt, output, places, pass, together, running;
        double shared;
    } cases[] = {
        {6000, 10, 800, 8, 2048, 1, 8, 0},           {6000, 10, 800, 31, 2048, 1, 31, 0},
        {6000, 10, 800, 64, 2048, 4, 63, 0},         {6000, 10, 800, 256, 2048, 16, 249, 0},
        {6000, 100, 800, 256, 2048, 16, 249, 0},     {6000, 200, 800, 256, 2048, 11, 251, 0},
        {6000, 1024, 800, 256, 2048, 2, 256, 0},     {6000, 2048, 800, 256, 2048, 1, 256, 0},
        {6000, 2048, 800, 256, 2048, 16, 249, 1948}, {6000, 200, 800, 256, 1024, 6, 254, 0},
        {6000, 10, 4000, 256, 2048, 4, 255, 0},      {262, 10, 800, 256, 2048, 6, 254, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct plan_load load = PLAN_LOAD(cases[i].sequences, cases[i].prompt, cases[i].output);
        load.output_deviation = 0.3 * (double)cases[i].output;
        load.shared.tokens = cases[i].shared;
        struct entry entry = turns_entry(&load, 1, cases[i].places, cases[i].pass);
        cr_expect_eq(entry.together, cases[i].together, "case %d: %lld", (int)i,
                     (long long)entry.together);
        cr_expect_eq(entry.running, cases[i].running, "case %d: %lld run", (int)i,
                     (long long)entry.running);
    }
    const struct plan_load even = PLAN_LOAD(1000, 10, 20), few = PLAN_LOAD(50, 10, 20);
    struct entry entry = turns_entry(&even, 1, 256, 2048);
    cr_expect(entry.together == 256 && entry.running == 256);
    entry = turns_entry(&few, 1, 64, 2048);
    cr_expect(entry.together == 1 && entry.running == 64, "nobody waits");
}
