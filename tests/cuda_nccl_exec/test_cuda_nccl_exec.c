/* Whole passes of ranks that NCCL joins (its stub, over emulated GPUs): bit for bit those of ranks
 * that are joined by copies, and of the same bytes. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <string.h>

#include "base/memory.h"
#include "gpu.h"
#include "nccl_stub_use.h"
#include "scenarios.h"

TestSuite(cuda_nccl_exec, .timeout = 200, .fini = scenario_checkpoints_remove);

struct run {
    char model[16]; /* no pointer: the runner copies it */
    int rank_count;
    char plan[32];
    uint64_t stream_seed;
};

/* Rank r is on GPU r % gpu_count: NCCL joins them where that is r. */
static void run_one(struct scenario_result *out, const struct run *run, int gpu_count)
{
    struct model_runner runner;
    struct layout layout;
    struct error err;
    const struct scenario *scenario = &scenarios[2];
    int gpus[COMM_RANKS_MAX];
    gpu_count_use(gpu_count);
    gpu_order_use(GPU_FORWARD, run->stream_seed);
    for (int r = 0; r < run->rank_count; r++)
        gpus[r] = r % gpu_count;
    cr_assert_eq(layout_parse(&layout, run->plan, run->rank_count, &err), STATUS_OK);
    model_runner_open(&runner, &(struct runner_params){
                                   .dir = scenario_checkpoint(run->model, DTYPE_F32),
                                   .dtype = DTYPE_F32,
                                   .rank_count = run->rank_count,
                                   .plan = run->plan,
                                   .token_max = scenario_token_max(scenario, layout.attention.dp),
                                   .segment_max = SCENARIO_SEQUENCES_MAX,
                                   .page_count = 2 * SCENARIO_SEQUENCES_MAX,
                                   .thread_count = run->rank_count,
                                   .patience_seconds = 100,
                                   .gpus = gpus,
                               });
    scenario_run(out, &runner, scenario);
    for (int r = 0; r < run->rank_count; r++) {
        for (int kind = 0; kind < TRAFFIC_KIND_COUNT; kind++)
            cr_assert_eq(comm_domain_bytes(box_domain(runner.box), r, kind),
                         out->by_formula.bytes[r][kind]);
    }
    model_runner_close(&runner);
}

ParameterizedTestParameters(cuda_nccl_exec, answers_as_by_copies)
{
    static struct run runs[] = {
        {"mixtral", 2, "tp2|tp2", 0},        {"qwen2moe", 2, "dp2|ep2", 3},
        {"mixtral", 4, "tp4|tp2ep2", 1},     {"qwen2moe", 4, "dp4|ep4", 2},
        {"qwen3moe", 4, "tp2dp2|tp2ep2", 4}, {"qwen3moe", 4, "dp4|tp4", 0},
        {"qwen3moe", 8, "tp2dp4|tp2ep4", 3},
    };
    return cr_make_param_array(struct run, runs, sizeof runs / sizeof *runs);
}

ParameterizedTest(struct run *run, cuda_nccl_exec, answers_as_by_copies)
{
    struct scenario_result expected, found;
    uint64_t live = memory_counters_get().live_count;
    stub()->jitter_set(run->stream_seed);
    run_one(&expected, run, 1);
    cr_assert_eq(stub()->launch_count(), 0);
    run_one(&found, run, run->rank_count);
    cr_assert_gt(stub()->launch_count(), 100);
    cr_assert_eq(found.token_count, expected.token_count);
    size_t count = (size_t)(found.token_count * found.vocab);
    cr_assert_eq(memcmp(found.logits, expected.logits, count * sizeof *found.logits), 0,
                 "%s, %s: other logits than by copies", run->model, run->plan);
    cr_assert_eq(found.nll, expected.nll);
    memory_free(found.logits);
    memory_free(expected.logits);
    cr_assert_eq(memory_counters_get().live_count, live);
    cr_assert_eq(stub()->live_count(), 0);
    gpu_check_nothing_left();
}
