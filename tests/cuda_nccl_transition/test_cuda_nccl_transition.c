/* Changes of layout between GPUs that NCCL joins: which of them goes over it. What else they hold
 * are the CPU's tests (tests/transition). */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>

#include "change_faults.h"
#include "gpu.h"
#include "nccl_stub_use.h"
#include "rig.h"
#include "simt_control.h"
#include "sweep.h"

/* Of all tests of this program. */
__attribute__((constructor)) static void close_seldom(void)
{
    simt_close_every(16);
}

TestSuite(cuda_nccl_transition, .fini = scenario_checkpoints_remove, .timeout = 600);

/* Reshard moves weights between ranks; upload and reload have each rank read its own. All agree by
 * NCCL on what a layer became, between passes by its communicator of transitions. */
Test(cuda_nccl_transition, reshard_goes_over_nccl)
{
    static const enum way of[] = {WAY_RESHARD, WAY_UPLOAD, WAY_RELOAD, WAY_KEEP};
    uint64_t launches[sizeof of / sizeof *of];
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        const struct rig_params params = {.model = "mixtral",
                                          .dtype = DTYPE_BF16,
                                          .rank_count = 4,
                                          .plan = "dp4|ep4>tp4",
                                          .way = of[i],
                                          .spare_count = 1,
                                          .patience_seconds = 100,
                                          .uring = &rig_no_uring};
        struct rig rig;
        struct error err;
        rig_open(&rig, &params);
        uint64_t before = stub()->launch_count(), peers = simt_peer_bytes();
        cr_assert_eq(transition_run(rig.transition, PHASE_DECODE, &err), STATUS_OK, "%s",
                     err.message);
        launches[i] = stub()->launch_count() - before;
        if (of[i] == WAY_RESHARD)
            cr_expect_gt(simt_peer_bytes() - peers, 100000);
        rig_close(&rig);
        cr_expect_eq(stub()->live_count(), 0);
        gpu_check_nothing_left();
    }
    for (size_t i = 1; i < sizeof of / sizeof *of; i++)
        cr_expect_gt(launches[0], launches[i], "reshard has %llu launches, %s %llu",
                     (unsigned long long)launches[0], way_names[of[i]],
                     (unsigned long long)launches[i]);
}

/* The run ends on all ranks, what NCCL has under way included, and nobody waits for ever. */
Test(cuda_nccl_transition, each_call_of_a_reshard_may_fail)
{
    const struct rig_params params = {.model = "mixtral",
                                      .dtype = DTYPE_BF16,
                                      .rank_count = 4,
                                      .plan = "dp4|ep4>tp4",
                                      .way = WAY_RESHARD,
                                      .spare_count = 1,
                                      .patience_seconds = 100,
                                      .uring = &rig_no_uring};
    uint64_t step = sweep_step(1);
    struct cold cold;
    int looked = 0; /* where no device was ended by the fault: few, and most beside passes */
    cold_open(&cold, &params);
    for (int beside = 0; beside < 2; beside++) {
        struct change_fault fault = {.name = "reshard over NCCL",
                                     .params = &params,
                                     .is_beside = beside == 1,
                                     .may_end_devices = true,
                                     .n = sweep_first(step),
                                     .looked = &looked};
        uint64_t failed = 0;
        for (; change_fails(&fault, &cold); fault.n += step)
            failed++;
        printf("%s: %" PRIu64 " calls failed, one in %" PRIu64 "; layers seen behind %d so far\n",
               fault.name, failed, step, looked);
        cr_expect_geq(failed, 10);
    }
    cr_expect_geq(looked, 1);
    cold_close(&cold);
    cr_expect_eq(stub()->live_count(), 0);
    gpu_check_nothing_left();
}
