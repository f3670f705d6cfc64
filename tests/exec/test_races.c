/* Many ranks on few cores, with random delays at the places where threads meet (base/perturb.h):
 * the thread sanitizer looks on, and the bits stay those of the first run. The full tier of a tsan
 * build takes 1,000 seeds. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/perturb.h"
#include "base/system.h"
#include "scenarios.h"

static const struct {
    const char *model, *plan;
} cases[] = {
    {"mixtral", "tp8|tp8"},        {"mixtral", "dp8|ep8"},     {"qwen2moe", "tp2dp4|tp2ep4"},
    {"qwen2moe", "tp4dp2|tp4ep2"}, {"qwen3moe", "dp8|tp2ep4"},
};
#define CASE_COUNT (sizeof cases / sizeof cases[0])

static const struct scenario few = {"few tokens", 3, {9, 1, 4}, false};

static uint64_t seed_count(void)
{
    return getenv("PHASOR_TEST_FULL") != NULL ? 1000 : 20;
}

/* A runner serves many seeds: a pass more costs less than another model. */
static void run_case(size_t index, uint64_t first_seed)
{
    struct model_runner runner;
    struct scenario_result first, again;
    struct layout layout;
    struct error err;
    cr_assert_eq(layout_parse(&layout, cases[index].plan, 8, &err), STATUS_OK);
    model_runner_open(&runner, &(struct runner_params){
                                   .dir = scenario_checkpoint(cases[index].model, DTYPE_F32),
                                   .dtype = DTYPE_F32,
                                   .rank_count = 8,
                                   .plan = cases[index].plan,
                                   .token_max = scenario_token_max(&few, layout.attention.dp),
                                   .segment_max = SCENARIO_SEQUENCES_MAX,
                                   .page_count = 2 * SCENARIO_SEQUENCES_MAX,
                               });
    scenario_run(&first, &runner, &few);
    for (uint64_t seed = first_seed; seed < first_seed + seed_count() / CASE_COUNT; seed++) {
        perturb_seed(seed);
        scenario_run(&again, &runner, &few);
        cr_assert(memcmp(first.logits, again.logits,
                         (size_t)(first.token_count * first.vocab) * sizeof(float)) == 0,
                  "%s, seed %llu", cases[index].plan, (unsigned long long)seed);
        memory_free(again.logits);
    }
    memory_free(first.logits);
    model_runner_close(&runner);
}

TestSuite(races, .fini = scenario_checkpoints_remove);

Test(races, eight_ranks_with_random_delays, .timeout = 3600)
{
    const char *seed = getenv("PHASOR_TEST_SEED");
    double start = system_seconds();
    for (size_t i = 0; i < CASE_COUNT; i++)
        run_case(i, (seed == NULL ? 0 : strtoull(seed, NULL, 10)) + i * 1000);
    printf("races: %llu seeds in %.0f s\n", (unsigned long long)seed_count(),
           system_seconds() - start);
}
