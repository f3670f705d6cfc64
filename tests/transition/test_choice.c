/* Which way is taken where the run may choose. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "rig.h"

struct heard {
    char probe[512];
    int warnings;
};

static void hear(void *context, enum log_level level, const char *message)
{
    struct heard *heard = context;
    if (level == LOG_WARNING)
        heard->warnings++;
    else
        snprintf(heard->probe, sizeof heard->probe, "%s", message);
}

TestSuite(choice, .fini = scenario_checkpoints_remove);

/* Resident: keep. In place: what the probe of one layer says; it leaves all layers as they were. */
Test(choice, is_keep_where_both_are_resident_else_the_faster)
{
    for (int keeps_both = 0; keeps_both <= 1; keeps_both++) {
        struct heard heard = {"", 0};
        struct rig_params params = {.model = "qwen2moe",
                                    .dtype = DTYPE_BF16,
                                    .rank_count = 4,
                                    .plan = "dp4|ep4>tp4",
                                    .is_auto = true,
                                    .keeps_both = keeps_both,
                                    .log = {hear, &heard}};
        struct cold cold;
        struct rig rig;
        struct error err;
        cold_open(&cold, &params);
        rig_open(&rig, &params);
        enum way way = transition_way(rig.transition);
        cr_assert_eq(rig_check(&rig, &cold, PHASE_PREFILL, "probed"), rig_moe_layers(&rig));
        cr_assert_eq(transition_counters_get(rig.transition).layer_count, 0);
        if (keeps_both) {
            cr_assert_eq(way, WAY_KEEP);
        } else {
            double reshard, reload, upload, mixed;
            enum way best;
            printf("%s\n", heard.probe);
            cr_assert_eq(sscanf(heard.probe,
                                "a layer's experts change their layout there and back in %lf s by "
                                "reshard, in %lf s by reload, in %lf s by upload and reload, in "
                                "%lf s by mixed",
                                &reshard, &reload, &upload, &mixed),
                         4, "%s", heard.probe);
            cr_assert(reshard > 0 && reload > 0 && upload < 0 && mixed > 0);
            best = reload < reshard ? WAY_RELOAD : WAY_RESHARD;
            best = mixed < reshard && mixed < reload ? WAY_MIXED : best;
            cr_assert_eq(way, best, "%s", heard.probe);
        }
        cr_assert_eq(transition_run(rig.transition, PHASE_DECODE, &err), STATUS_OK);
        cr_assert_eq(rig_check(&rig, &cold, PHASE_DECODE, "moved"), rig_moe_layers(&rig));
        cr_assert_eq(transition_layer(rig.transition, 0).way, way);
        cr_assert_eq(heard.warnings, 0);
        rig_close(&rig);
        cold_close(&cold);
    }
}

static bool is_written(const struct expert_slots *slots, const unsigned char *spare)
{
    uint64_t bytes = expert_slots_slot_bytes(slots, PHASE_PREFILL);
    for (uint64_t i = 0; i < bytes; i++) {
        if (spare[i] != 0xff)
            return false;
    }
    return true;
}

/* A spare slot has its pages before anything moves: what was never written to would be free memory
 * to whoever sizes a cache. */
Test(choice, spare_slots_are_written_to_at_the_start)
{
    for (int64_t spares = 1; spares <= 2; spares++) {
        struct rig_params params = {.model = "mixtral",
                                    .dtype = DTYPE_BF16,
                                    .rank_count = 2,
                                    .plan = "dp2|ep2>tp2",
                                    .way = WAY_RELOAD,
                                    .spare_count = spares,
                                    .leaves_freed = true};
        struct rig rig;
        rig_open(&rig, &params);
        for (int r = 0; r < params.rank_count; r++) {
            cr_assert_eq(rig.slots[r]->spare_count, spares);
            for (int64_t i = 0; i < spares; i++)
                cr_assert(is_written(rig.slots[r], rig.slots[r]->spares[i]));
        }
        rig_close(&rig);
    }
}
