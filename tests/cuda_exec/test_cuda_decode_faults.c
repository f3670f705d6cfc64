/* Steps of decode on GPUs whose calls fail, while they are captured and launched again. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "decode_rig.h"
#include "simt_control.h"
#include "sweep.h"

TestSuite(cuda_decode_faults, .timeout = 1200, .fini = scenario_checkpoints_remove);

/* The first is launched one by one, the second captured, the third and fourth launched again. */
#define STEPS 4

static const struct decode_params cases[] = {
    {"mixtral", DTYPE_F32, 1, 1, "tp1|tp1", false, 0, {7, 3, 2}},
    {"qwen2moe", DTYPE_F32, 2, 1, "tp2|tp2", false, 0, {7, 3, 2}},
};

/* All of them, or until one fails. */
static enum status steps_run(struct decode *decode, int first, struct error *err)
{
    for (int step = first; step < STEPS; step++)
        TRY(decode_step(decode, step, DECODE_SEQUENCES, err));
    return STATUS_OK;
}

/* Whether the failure came. Then either a sentence says so, with rank and call, or all is as
 * without: what only a capture lacks is launched one by one. */
static bool steps_fail(const struct decode *expected, bool is_kernel, uint64_t n, uint64_t *went_on)
{
    static struct decode found;
    struct error err = {.message = ""};
    uint64_t host = memory_counters_get().live_count, live = simt_live_count();
    decode_open(&found, &expected->params);
    cr_assert_eq(decode_step(&found, 0, DECODE_SEQUENCES, &err), STATUS_OK);
    simt_stream_seed_set(n % 4);
    if (is_kernel)
        simt_fail_kernel_at(n, cudaErrorIllegalAddress);
    else
        simt_fail_at(n, cudaErrorUnknown);
    enum status status = steps_run(&found, 1, &err);
    bool came = is_kernel ? !simt_fail_kernel_is_ahead() : !simt_fail_is_ahead();
    simt_fail_at(0, cudaSuccess);
    cr_assert(came || status == STATUS_OK, "%s", err.message);
    if (status == STATUS_OK)
        cr_assert(decode_is_same(&found, expected, STEPS), "call %" PRIu64, n);
    else
        cr_assert(strstr(err.message, "rank ") != NULL && strstr(err.message, "on cuda:") != NULL,
                  "call %" PRIu64 ": %s", n, err.message);
    *went_on += came && status == STATUS_OK;
    decode_close(&found);
    simt_fail_kernel_at(0, cudaSuccess);
    cr_assert_eq(simt_live_count(), live, "call %" PRIu64, n);
    cr_assert_eq(memory_counters_get().live_count, host, "call %" PRIu64, n);
    return came;
}

static void sweep(const struct decode_params *params, bool is_kernel, uint64_t quick_step)
{
    static struct decode expected;
    struct error err;
    uint64_t step = sweep_step(quick_step), n = sweep_first(step), went_on = 0;
    decode_open(&expected, params);
    decode_without_graphs(&expected);
    cr_assert_eq(steps_run(&expected, 0, &err), STATUS_OK, "%s", err.message);
    for (; steps_fail(&expected, is_kernel, n, &went_on); n += step)
        ;
    printf("%s: of %" PRIu64 " %s, one in %" PRIu64 ", %" PRIu64 " hindered nothing\n",
           params->plan, n - step, is_kernel ? "kernels" : "calls", step, went_on);
    cr_assert_gt(n, is_kernel ? 100 : 250);
    if (is_kernel)
        cr_assert_eq(went_on, 0);
    else
        cr_assert_gt(went_on, 0);
    decode_close(&expected);
    gpu_check_nothing_left();
}

Test(cuda_decode_faults, each_call_may_fail)
{
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        sweep(&cases[c], false, 21);
}

Test(cuda_decode_faults, a_kernel_that_breaks_its_gpu)
{
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        sweep(&cases[c], true, 37);
}
