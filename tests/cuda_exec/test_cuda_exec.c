/* Whole passes on GPUs answer as on the CPU: prompts in chunks, then single tokens, in one
 * rank and in several, with the bytes that the formulas say. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>

#include "base/memory.h"
#include "gpu.h"
#include "scenarios.h"

TestSuite(cuda_exec, .timeout = 200, .fini = scenario_checkpoints_remove);

#define LOGIT_BOUND 1e-4 /* of the spread; f32 */
#define MEAN_BOUND                                                                                 \
    0x1p-2 /* of the spread, in the mean square: inputs beside bf16 weights are                    \
            * rounded, so that some tokens choose other experts */
#define NLL_BOUND 1e-3

struct run {
    char model[16]; /* no pointer: the runner copies it */
    enum dtype dtype;
    int rank_count;
    int gpu_count; /* rank r is on GPU r % gpu_count, or of fewer where there are no more */
    char plan[32];
    int scenario;
    enum gpu_order order;
    uint64_t stream_seed;
};

static void run_one(struct scenario_result *out, const struct run *run, int gpu_count)
{
    struct model_runner runner;
    struct layout layout;
    struct error err;
    const struct scenario *scenario = &scenarios[run->scenario];
    int gpus[COMM_RANKS_MAX];
    for (int r = 0; r < run->rank_count; r++)
        gpus[r] = gpu_count > 0 ? r % gpu_count : 0;
    cr_assert_eq(layout_parse(&layout, run->plan, run->rank_count, &err), STATUS_OK);
    model_runner_open(&runner, &(struct runner_params){
                                   .dir = scenario_checkpoint(run->model, run->dtype),
                                   .dtype = run->dtype,
                                   .rank_count = run->rank_count,
                                   .plan = run->plan,
                                   .token_max = scenario_token_max(scenario, layout.attention.dp),
                                   .segment_max = SCENARIO_SEQUENCES_MAX,
                                   .page_count = 2 * SCENARIO_SEQUENCES_MAX,
                                   .thread_count = run->rank_count,
                                   .patience_seconds = 100,
                                   .gpus = gpu_count > 0 ? gpus : NULL,
                               });
    scenario_run(out, &runner, scenario);
    for (int r = 0; r < run->rank_count; r++) {
        for (int kind = 0; kind < TRAFFIC_KIND_COUNT; kind++)
            cr_assert_eq(comm_domain_bytes(box_domain(runner.box), r, kind),
                         out->by_formula.bytes[r][kind]);
    }
    model_runner_close(&runner);
}

ParameterizedTestParameters(cuda_exec, answers_as_the_cpu)
{
    static struct run runs[] = {
        {"mixtral", DTYPE_F32, 1, 1, "tp1|tp1", 0, GPU_FORWARD, 0},
        {"qwen2moe", DTYPE_F32, 1, 1, "tp1|tp1", 1, GPU_REVERSE, 1},
        {"qwen3moe", DTYPE_BF16, 1, 1, "tp1|tp1", 0, GPU_RANDOM, 2},
        {"qwen2moe", DTYPE_F32, 2, 2, "dp2|ep2", 0, GPU_RANDOM, 3},
        {"qwen3moe", DTYPE_F32, 4, 4, "tp2dp2|tp2ep2", 2, GPU_FORWARD, 4},
        {"mixtral", DTYPE_F32, 4, 1, "tp4|tp4", 2, GPU_REVERSE, 5},
        {"qwen2moe", DTYPE_F32, 4, 1, "dp4|ep4", 2, GPU_FORWARD, 0},
        {"qwen3moe", DTYPE_F32, 4, 2, "dp4|tp4", 2, GPU_RANDOM, 1},
        {"qwen2moe", DTYPE_F32, 2, 1, "tp2|ep2", 0, GPU_FORWARD, 2},
        {"mixtral", DTYPE_F32, 4, 4, "tp4|tp2ep2", 2, GPU_FORWARD, 3},
        {"qwen2moe", DTYPE_F32, 4, 2, "tp4|ep4", 2, GPU_FORWARD, 4},
        {"qwen3moe", DTYPE_BF16, 4, 1, "dp4|tp2ep2", 2, GPU_REVERSE, 0},
        {"mixtral", DTYPE_F32, 4, 1, "tp2dp2|tp4", 2, GPU_FORWARD, 1},
        {"qwen3moe", DTYPE_F32, 4, 3, "tp2dp2|ep4", 2, GPU_FORWARD, 2},
        {"qwen3moe", DTYPE_F32, 8, 1, "tp2dp4|tp2ep4", 2, GPU_FORWARD, 3},
    };
    return cr_make_param_array(struct run, runs, sizeof runs / sizeof *runs);
}

ParameterizedTest(struct run *run, cuda_exec, answers_as_the_cpu)
{
    struct scenario_result expected, found;
    uint64_t live = memory_counters_get().live_count;
    int gpu_count = gpu_count_use(run->gpu_count);
    gpu_order_use(run->order, run->stream_seed);
    run_one(&expected, run, 0);
    gpu_check_no_kernels();
    run_one(&found, run, gpu_count);
    double error = run->dtype == DTYPE_F32 ? scenario_worst(&found, &expected)
                                           : scenario_mean(&found, &expected);
    double nll = fabs(found.nll / expected.nll - 1);
    cr_assert(error <= (run->dtype == DTYPE_F32 ? LOGIT_BOUND : MEAN_BOUND) && nll <= NLL_BOUND,
              "%s, %s: logits off by %.2e, NLL by %.2e", run->model, run->plan, error, nll);
    memory_free(found.logits);
    gpu_check_kernels(100);
    memory_free(expected.logits);
    cr_assert_eq(memory_counters_get().live_count, live);
    gpu_check_nothing_left();
}
