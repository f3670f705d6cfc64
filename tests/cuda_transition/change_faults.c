#include "change_faults.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "simt_control.h"

static void fault_plant(const struct change_fault *fault)
{
    simt_stream_seed_set(fault->n % 4);
    if (fault->is_kernel)
        simt_fail_kernel_at(fault->n, cudaErrorIllegalAddress);
    else
        simt_fail_at(fault->n, cudaErrorUnknown);
}

static bool devices_are_sound(const struct rig *rig)
{
    for (int r = 0; r < box_rank_count(rig->runner.box); r++) {
        const struct device *device = box_device(rig->runner.box, r);
        struct error ignored;
        if (device->ops->synchronize(device->stream, &ignored) != STATUS_OK)
            return false;
    }
    return true;
}

bool change_fails(const struct change_fault *fault, const struct cold *cold)
{
    struct rig rig;
    struct error err = {.message = ""};
    char label[160];
    snprintf(label, sizeof label, "%s%s, %s %" PRIu64, fault->name,
             fault->is_beside ? " beside passes" : "", fault->is_kernel ? "kernel" : "call",
             fault->n);
    uint64_t live = simt_live_count();
    rig_open(&rig, fault->params);
    fault_plant(fault);
    enum status status = rig_move(&rig, rig.transition, PHASE_DECODE, fault->is_beside, &err);
    bool came = fault->is_kernel ? !simt_fail_kernel_is_ahead() : !simt_fail_is_ahead();
    simt_fail_at(0, cudaSuccess);
    cr_assert_eq(status != STATUS_OK, came, "%s: %s", label, err.message);
    if (came) {
        cr_assert_not_null(strstr(err.message, "rank "), "%s: %s", label, err.message);
        cr_assert_not_null(strstr(err.message, "on cuda:"), "%s: %s", label, err.message);
    }
    bool looks = !fault->is_kernel && (!fault->may_end_devices || devices_are_sound(&rig));
    if (looks)
        rig_check(&rig, cold, PHASE_DECODE, label);
    if (looks && came && fault->looked != NULL)
        ++*fault->looked;
    rig_close(&rig);
    simt_fail_kernel_at(0, cudaSuccess);
    cr_assert_eq(simt_live_count(), live, "%s", label);
    return came;
}
