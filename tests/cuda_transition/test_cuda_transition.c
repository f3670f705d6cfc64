/* Changes of layout on GPUs whose calls fail. What else they hold are the CPU's tests
 * (tests/transition). */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "change_faults.h"
#include "device/peers.h"
#include "gpu.h"
#include "numa_fake.h"
#include "rig.h"
#include "simt_control.h"
#include "sweep.h"

/* Of all tests of this program. */
__attribute__((constructor)) static void close_seldom(void)
{
    simt_close_every(16);
}

TestSuite(cuda_transition, .fini = scenario_checkpoints_remove, .timeout = 1200);

static const struct rig_params base = {.model = "qwen2moe",
                                       .dtype = DTYPE_BF16,
                                       .rank_count = 2,
                                       .plan = "dp2|ep2>tp2",
                                       .spare_count = 1,
                                       .patience_seconds = 100,
                                       .uring = &rig_no_uring};

/* By each way, and with packed decode. */
#define CASE_COUNT (WAY_COUNT + 2)

static struct rig_params case_at(int index, int rank_count)
{
    struct rig_params params = base;
    if (rank_count == 4) {
        params.model = "mixtral";
        params.rank_count = 4;
        params.plan = "dp4|ep4>tp4";
    }
    if (index < WAY_COUNT) {
        params.way = (enum way)index;
        return params;
    }
    params.plan = rank_count == 4 ? "dp4|ep4>tp4:int4" : "dp2|ep2>tp2:int4";
    params.way = index == WAY_COUNT ? WAY_UPLOAD : WAY_KEEP;
    return params;
}

static const char *case_name(int index)
{
    static const char *const packed[] = {"upload, packed", "keep, packed"};
    return index < WAY_COUNT ? way_names[index] : packed[index - WAY_COUNT];
}

/* What makes native weights of a backup's is a kernel. */
Test(cuda_transition, uploads_by_kernels)
{
    struct rig_params params = case_at(WAY_UPLOAD, 2);
    struct rig rig;
    struct error err;
    rig_open(&rig, &params);
    cr_assert_eq(strncmp(box_device(rig.runner.box, 1)->ops->name, "cuda:", 5), 0);
    uint64_t before = simt_kernel_count();
    cr_assert_eq(transition_run(rig.transition, PHASE_DECODE, &err), STATUS_OK);
    cr_assert_geq(simt_kernel_count() - before, 2 * (uint64_t)rig_moe_layers(&rig));
    rig_close(&rig);
    gpu_check_nothing_left();
}

/* A backup in locked memory is every GPU's: it lies on the nodes of all of them by turns. */
Test(cuda_transition, a_locked_backup_lies_beside_the_gpus)
{
    struct rig_params params = case_at(WAY_UPLOAD, 2);
    struct rig rig;
    unsigned long nodes = 0;
    numa_fake_use();
    numa_fake_device("0000:1a:00.0", "1\n");
    numa_fake_device("0000:1b:00.0", "3\n");
    params.memory_available = params.memory_lockable = UINT64_MAX / 2;
    for (int times = 0; times < 4; times++) {
        rig_open(&rig, &params);
        nodes = 0;
        for (int r = 0; r < params.rank_count; r++) {
            const struct device *device = box_device(rig.runner.box, r);
            nodes |= device->ops->peers->ordinal(device) == 0 ? 1ul << 1 : 1ul << 3;
        }
        struct numa_fake_bound bound = numa_fake_bound();
        cr_expect(bound.mode == MPOL_INTERLEAVE && bound.nodes == nodes && !bound.was_touched);
        cr_expect_eq(bound.count, times + 1);
        rig_close(&rig);
    }
    numa_fake_remove();
}

/* Nothing is kept of what could not be made. A failure that hinders nothing, as of giving back what
 * was for the start alone, is none: experts can change their layout. */
Test(cuda_transition, each_call_of_the_start_may_fail)
{
    for (int index = 0; index < CASE_COUNT; index++) {
        struct rig_params params = case_at(index, 2);
        uint64_t step = sweep_step(11), n = sweep_first(step), refused = 0, went_on = 0;
        uint64_t host = memory_counters_get().live_count;
        for (bool came = true; came; n += step) {
            struct rig rig;
            struct error err = {.message = ""};
            rig_load(&rig, &params);
            simt_fail_at(n, cudaErrorUnknown);
            enum status status = rig_start(&rig, &params, &err);
            came = !simt_fail_is_ahead();
            simt_fail_at(0, cudaSuccess);
            cr_assert(came || status == STATUS_OK, "%s: %s", case_name(index), err.message);
            cr_assert(status == STATUS_OK || strstr(err.message, "on cuda:") != NULL,
                      "%s, call %" PRIu64 ": %s", case_name(index), n, err.message);
            refused += status != STATUS_OK;
            went_on += came && status == STATUS_OK;
            if (status == STATUS_OK)
                cr_assert_eq(transition_run(rig.transition, PHASE_DECODE, &err), STATUS_OK,
                             "%s, call %" PRIu64 ": %s", case_name(index), n, err.message);
            else
                rig.transition = NULL;
            rig_close(&rig);
            gpu_check_nothing_left();
            cr_assert_eq(memory_counters_get().live_count, host, "%s, call %" PRIu64,
                         case_name(index), n);
        }
        printf("%s: of %" PRIu64 " calls of the start, one in %" PRIu64 ", %" PRIu64
               " refuse it, %" PRIu64 " do not\n",
               case_name(index), n - step, step, refused, went_on);
        cr_assert_gt(refused, 2 * went_on, "%s", case_name(index));
    }
}

static void sweep_calls(bool is_beside, int rank_count)
{
    for (int index = 0; index < CASE_COUNT; index++) {
        struct rig_params params = case_at(index, rank_count);
        bool is_keep = params.way == WAY_KEEP; /* it makes some calls beside passes alone */
        uint64_t step = sweep_step(is_keep ? 3 : rank_count == 4 ? 29 : 11), failed = 0;
        struct change_fault fault = {.name = case_name(index),
                                     .params = &params,
                                     .is_beside = is_beside,
                                     .n = sweep_first(step)};
        struct cold cold;
        if (is_keep && !is_beside)
            continue;
        cold_open(&cold, &params);
        for (; change_fails(&fault, &cold); fault.n += step)
            failed++;
        printf("%s of %d ranks%s: %" PRIu64 " calls failed, one in %" PRIu64 "\n", fault.name,
               rank_count, is_beside ? " beside passes" : "", failed, step);
        cr_assert_geq(failed, is_keep ? 2 : 10, "%s", fault.name);
        cold_close(&cold);
    }
}

/* The run ends on all ranks with a sentence that names rank and call, and nobody waits for ever. */
Test(cuda_transition, each_call_of_a_change_may_fail)
{
    sweep_calls(false, 2);
}

Test(cuda_transition, each_call_of_a_change_beside_passes_may_fail)
{
    sweep_calls(true, 2);
}

Test(cuda_transition, each_call_of_a_change_of_four_ranks_may_fail)
{
    sweep_calls(false, 4);
}

Test(cuda_transition, each_call_of_a_change_of_four_ranks_beside_passes_may_fail)
{
    sweep_calls(true, 4);
}

Test(cuda_transition, a_kernel_that_breaks_its_gpu_ends_the_change)
{
    const struct rig_params params = case_at(WAY_UPLOAD, 2);
    uint64_t step = sweep_step(3);
    struct change_fault fault = {
        .name = "upload", .params = &params, .is_kernel = true, .n = sweep_first(step)};
    for (bool came = true; came; fault.n += step) {
        fault.is_beside = fault.n / step % 2 == 0;
        came = change_fails(&fault, NULL);
    }
    cr_assert_gt(fault.n, 100);
}
