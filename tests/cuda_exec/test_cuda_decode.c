/* Steps of decode on GPUs: with graphs they answer to the bit as without, however batches and
 * contexts change meanwhile. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>

#include "base/memory.h"
#include "decode_rig.h"
#include "sweep.h"

TestSuite(cuda_decode, .timeout = 400, .fini = scenario_checkpoints_remove);

/* The first sequence comes to its second page in step 4; launches of attention change with the
 * third's context in step 3. */
#define PROMPTS                                                                                    \
    {                                                                                              \
        60, 5, 509                                                                                 \
    }
#define LONGER_STEP 3
static const int batch_of[DECODE_STEPS] = {3, 3, 3, 3, 2, 2, 2, 3, 3, 1, 1, 1};

/* Of one rank. Here a piece of the step is launched one by one, as it comes for the first time: */
static const bool is_first[DECODE_STEPS] = {
    [0] = true, [LONGER_STEP] = true, [4] = true, [9] = true};

/* Each rank waits for its stream at the end of a step, and nowhere else, but where the context
 * needs more scratch memory. */
static void check_waits(uint64_t waits, int rank_count, int step)
{
    if (gpu_waits() == GPU_PIECES_UNKNOWN)
        return;
    if (step == LONGER_STEP)
        cr_assert_leq(waits, 2 * (uint64_t)rank_count);
    else
        cr_assert_eq(waits, rank_count, "step %d", step);
}

/* How many graphs each step has launched. */
static void decode_all(struct decode *decode, uint64_t *graphs, const struct decode_params *params,
                       bool has_graphs)
{
    struct error err;
    gpu_order_use(GPU_FORWARD, params->stream_seed);
    decode_open(decode, params);
    if (!has_graphs)
        decode_without_graphs(decode);
    for (int step = 0; step < DECODE_STEPS; step++) {
        uint64_t before = gpu_graphs(), waits = gpu_waits();
        cr_assert_eq(decode_step(decode, step, batch_of[step], &err), STATUS_OK, "%s", err.message);
        graphs[step] = gpu_graphs() - before;
        check_waits(gpu_waits() - waits, params->rank_count, step);
    }
}

static void check_graphs(const uint64_t *with, const uint64_t *without, int rank_count)
{
    uint64_t pieces = with[1];
    for (int step = 0; step < DECODE_STEPS && gpu_graphs() != GPU_PIECES_UNKNOWN; step++) {
        cr_assert_eq(without[step], 0);
        if (rank_count == 1 && is_first[step])
            cr_assert_lt(with[step], step == 0 ? 1 : pieces, "step %d", step);
        else if (rank_count == 1)
            cr_assert(pieces > 0 && with[step] == pieces, "step %d", step);
        else if (!is_first[step]) /* each rank has pieces between collectives */
            cr_assert_geq(with[step], 2 * (uint64_t)rank_count, "step %d", step);
    }
}

ParameterizedTestParameters(cuda_decode, graphs_change_no_bit)
{
    static const struct decode_params runs[] = {
        {"mixtral", DTYPE_F32, 1, 1, "tp1|tp1", false, 0, PROMPTS},
        {"qwen2moe", DTYPE_BF16, 1, 1, "tp1|tp1", true, 1, PROMPTS},
        {"qwen3moe", DTYPE_F32, 1, 1, "tp1|tp1", false, 2, PROMPTS},
        {"qwen2moe", DTYPE_F32, 2, 2, "tp2|tp2", false, 3, PROMPTS},
        {"qwen2moe", DTYPE_BF16, 2, 1, "dp2|ep2", false, 0, PROMPTS},
        {"mixtral", DTYPE_F32, 4, 1, "tp2dp2|tp2ep2", false, 1, PROMPTS},
        {"qwen3moe", DTYPE_F32, 4, 4, "tp4|ep4", true, 2, PROMPTS},
    };
    static struct decode_params chosen[sizeof runs / sizeof *runs];
    size_t step = (size_t)sweep_step(1), count = 0;
    for (size_t i = (size_t)sweep_first(step) - 1; i < sizeof runs / sizeof *runs; i += step)
        chosen[count++] = runs[i];
    return cr_make_param_array(struct decode_params, chosen, count);
}

ParameterizedTest(struct decode_params *run, cuda_decode, graphs_change_no_bit)
{
    static struct decode expected, found;
    uint64_t with[DECODE_STEPS], without[DECODE_STEPS], live = memory_counters_get().live_count;
    run->gpu_count = gpu_count_use(run->gpu_count);
    decode_all(&expected, without, run, false);
    decode_all(&found, with, run, true);
    cr_assert(decode_is_same(&found, &expected, DECODE_STEPS), "%s, %s", run->model, run->plan);
    check_graphs(with, without, run->rank_count);
    decode_close(&expected);
    decode_close(&found);
    cr_assert_eq(memory_counters_get().live_count, live);
    gpu_check_nothing_left();
}
