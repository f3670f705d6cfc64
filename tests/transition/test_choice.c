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
            double reshard, reload;
            printf("%s\n", heard.probe);
            cr_assert_eq(sscanf(heard.probe,
                                "a layer's experts change their layout there and back in %lf s by "
                                "reshard, in %lf s by reload",
                                &reshard, &reload),
                         2, "%s", heard.probe);
            cr_assert(reshard > 0 && reload > 0);
            cr_assert_eq(way, reload < reshard ? WAY_RELOAD : WAY_RESHARD, "%s", heard.probe);
        }
        cr_assert_eq(transition_run(rig.transition, PHASE_DECODE, &err), STATUS_OK);
        cr_assert_eq(rig_check(&rig, &cold, PHASE_DECODE, "moved"), rig_moe_layers(&rig));
        cr_assert_eq(transition_layer(rig.transition, 0).way, way);
        cr_assert_eq(heard.warnings, 0);
        rig_close(&rig);
        cold_close(&cold);
    }
}
