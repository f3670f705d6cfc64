/* What the stages of a CUDA stream are told to have had: the weights that the CPU counts, and no
 * more time than there was. */
#include <criterion/criterion.h>

#include "base/system.h"
#include "cuda_tools.h"
#include "workload.h"

TestSuite(cuda_stages, .timeout = 300);

/* More than the stream keeps in mind before it settles. */
#define ROUNDS 600

static struct device *cpu_open(void)
{
    struct device *device;
    struct error err;
    struct cpu_share share = {.thread_count = 1, .first_cpu = -1};
    cr_assert_eq(device_cpu_create(&device, &share, &err), STATUS_OK, "%s", err.message);
    return device;
}

/* In stage 3, `rounds` times; answers with the bytes. */
static uint64_t bytes_of(struct device *device, const struct workload *w, int rounds)
{
    struct stage_total totals[DEVICE_STAGES];
    for (int i = 0; i < rounds; i++) {
        device->ops->stage(device->stream, 3, -1);
        workload_put(w, device);
        device->ops->stage(device->stream, 5, -1);
    }
    synchronize_ok(device, device->stream);
    device->ops->stage_totals(device->stream, totals);
    for (int stage = 0; stage < DEVICE_STAGES; stage++)
        cr_assert(stage == 3 || totals[stage].weight_bytes == 0, "stage %d", stage);
    return totals[3].weight_bytes;
}

Test(cuda_stages, weights_are_counted_as_on_the_cpu)
{
    static const enum kernel_op ops[] = {OP_MATMUL, OP_FFN_UP, OP_FFN_DOWN};
    for (size_t o = 0; o < sizeof ops / sizeof *ops; o++) {
        int tested = 0;
        for (size_t i = 0; i < case_lists[ops[o]]->count; i++) {
            const struct kernel_case *c = &case_lists[ops[o]]->cases[i];
            if (c->use != FOR_TEST || i % 5 != 0)
                continue;
            struct workload w;
            struct device *cpu = cpu_open(), *gpu = device_open(1);
            workload_create(&w, ops[o], c);
            uint64_t expected = bytes_of(cpu, &w, 1);
            cr_assert_eq(bytes_of(gpu, &w, 2), 2 * expected, "%s, case %zu",
                         case_lists[ops[o]]->name, i);
            workload_destroy(&w);
            device_destroy(cpu);
            device_destroy(gpu);
            tested += expected > 0;
        }
        cr_assert_gt(tested, 0);
    }
}

/* The first case of few rows, far beyond what the stream keeps in mind. */
Test(cuda_stages, of_a_long_pass)
{
    const struct kernel_case *c = &case_lists[OP_FFN_UP]->cases[0];
    struct stage_total totals[DEVICE_STAGES];
    struct workload w;
    struct device *cpu = cpu_open(), *gpu = device_open(1);
    workload_create(&w, OP_FFN_UP, c);
    uint64_t expected = bytes_of(cpu, &w, 1);
    double before = system_seconds(), sum = 0;
    cr_assert_eq(bytes_of(gpu, &w, ROUNDS), ROUNDS * expected);
    double whole = system_seconds() - before;
    gpu->ops->stage_totals(gpu->stream, totals);
    for (int stage = 1; stage < DEVICE_STAGES; stage++)
        sum += totals[stage].seconds;
    cr_assert(totals[3].seconds > 0 && sum <= whole, "%g of %g s", sum, whole);
    workload_destroy(&w);
    device_destroy(cpu);
    device_destroy(gpu);
}

/* Who waits for this rank sees it move while its thread waits for the GPU. */
Test(cuda_stages, the_gpus_work_is_progress)
{
    struct device *device = device_open(1);
    uint64_t passed = device->ops->progress(device->stream) + ROUNDS / 2;
    for (int i = 0; i < ROUNDS / 2; i++)
        device->ops->stage(device->stream, 1 + i % 5, i);
    while (device->ops->progress(device->stream) < passed)
        ;
    synchronize_ok(device, device->stream);
    cr_assert_geq(device->ops->progress(device->stream), passed + ROUNDS / 2);
    device_destroy(device);
}
