/* Batches on GPUs through the library's face, beside the CPU's; and memory, which is theirs. */
#include <criterion/criterion.h>
#include <string.h>

#include "cuda_batch.h"
#include "gpu.h"
#include "simt_control.h"
#include "wave_tools.h"

TestSuite(cuda_engine, .timeout = 250);

#define MIB ((size_t)1 << 20)

static enum phasor_status model_open(struct phasor_model **out, const char *devices,
                                     const char *plan, enum phasor_transition transition,
                                     uint64_t memory, struct phasor_error *err)
{
    struct phasor_model_params params = wave_model(WAVE_MODEL, plan, transition);
    params.devices = devices;
    params.memory_bytes = memory;
    return phasor_model_open(out, &params, err);
}

static void check_answers(const char *devices, const char *on_cpu, const char *plan,
                          enum phasor_transition transition)
{
    struct phasor_model_params params = wave_model(WAVE_MODEL, plan, transition);
    params.devices = on_cpu;
    json_t *expected = cuda_batch_rows(&params, NULL);
    params.devices = devices;
    cuda_batch_compare(cuda_batch_rows(&params, NULL), expected, devices);
}

Test(cuda_engine, a_batch_has_the_answers_of_the_cpu)
{
    gpu_count_use(2);
    check_answers("cuda:0", "cpu:1", NULL, PHASOR_TRANSITION_AUTO);
    check_answers("cuda:0-1", "cpu:2", "dp2|ep2>tp2", PHASOR_TRANSITION_KEEP);
    check_answers("cuda:0x2", "cpu:2", "dp2|ep2>tp2", PHASOR_TRANSITION_RESHARD);
    gpu_check_kernels(1);
    gpu_check_nothing_left();
}

/* Of the GPUs, however much the host has; all together, and of each as much as of the others. */
Test(cuda_engine, memory_is_that_of_the_gpus)
{
    struct phasor_model *model;
    struct phasor_error err;
    gpu_count_use(2);
    simt_global_bytes_set(8 * MIB);
    cr_assert_eq(model_open(&model, "cuda:0-1", "tp2|tp2", PHASOR_TRANSITION_AUTO, 0, &err),
                 PHASOR_NO_MEMORY);
    cr_assert_not_null(strstr(err.message, "15 MiB of the GPUs' memory are available"), "%s",
                       err.message);
    simt_global_bytes_set(64 * MIB);
    cr_assert_eq(model_open(&model, "cuda:0-1", "tp2|tp2", PHASOR_TRANSITION_AUTO, 0, &err),
                 PHASOR_OK, "%s", err.message);
    phasor_model_close(model);
    cr_assert_eq(model_open(&model, "cuda:0x2", "tp2|tp2", PHASOR_TRANSITION_AUTO, 8 * MIB, &err),
                 PHASOR_NO_MEMORY);
    cr_assert_not_null(strstr(err.message, "and --memory is 8192 KiB"), "%s", err.message);
    gpu_check_nothing_left();
}

/* Without a word the cache has half of what is left of the GPUs: a run that would not fit there is
 * refused, with theirs. */
Test(cuda_engine, a_cache_that_the_gpus_cannot_hold)
{
    struct phasor_batch_params batch = wave_batch(wave_rows);
    struct phasor_batch_result result;
    struct phasor_model *model;
    struct phasor_error err;
    gpu_count_use(1);
    simt_global_bytes_set(64 * MIB);
    cr_assert_eq(model_open(&model, "cuda:0", NULL, PHASOR_TRANSITION_AUTO, 0, &err), PHASOR_OK,
                 "%s", err.message);
    batch.kv_bytes = 1024 * MIB;
    batch.max_num_batched_tokens = 32;
    cr_assert_eq(phasor_batch_run(model, &batch, &result, &err), PHASOR_NO_MEMORY);
    cr_assert_not_null(strstr(err.message, "of the GPUs' memory are available"), "%s", err.message);
    batch.kv_bytes = 0;
    cr_assert_eq(phasor_batch_run(model, &batch, &result, &err), PHASOR_OK, "%s", err.message);
    phasor_model_close(model);
    gpu_check_nothing_left();
}
