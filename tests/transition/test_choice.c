/* Which way is taken where the run may choose. */
#include <criterion/criterion.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/disk.h"
#include "base/memory.h"
#include "clock.h"
#include "comm/collective.h"
#include "device_bytes.h"
#include "fake_uring.h"
#include "reads.h"
#include "rig.h"
#include "transition/exposed.h"

struct heard {
    double seconds[WAY_COUNT], exposed[WAY_COUNT]; /* of the trial; negative: not possible */
    double prefill_seconds;
    enum way way;
    int choices, warnings;
};

static enum way way_of(const char *name)
{
    int way = 0;
    while (way < WAY_COUNT && strcmp(way_names[way], name) != 0)
        way++;
    cr_assert_lt(way, WAY_COUNT, "%s", name);
    return (enum way)way;
}

static void hear(void *context, enum log_level level, const char *message)
{
    struct heard *heard = context;
    double seconds, exposed;
    char name[16];
    heard->warnings += level == LOG_WARNING;
    if (sscanf(message,
               "experts change their layout by %15[a-z] in %lf s a layer; a wave would wait %lf s",
               name, &seconds, &exposed) == 3) {
        heard->seconds[way_of(name)] = seconds;
        heard->exposed[way_of(name)] = exposed;
    } else if (sscanf(message, "experts change their layout by %15[a-z]: what %lf s of prefill",
                      name, &seconds) == 2) {
        heard->way = way_of(name);
        heard->prefill_seconds = seconds;
        heard->choices++;
    }
}

static struct heard nothing(void)
{
    struct heard heard = {.way = WAY_COUNT};
    for (int way = 0; way < WAY_COUNT; way++)
        heard.seconds[way] = heard.exposed[way] = -1;
    return heard;
}

TestSuite(choice, .fini = scenario_checkpoints_remove);

/* Where both are resident, nothing is tried. */
Test(choice, is_keep_where_both_are_resident)
{
    struct heard heard = nothing();
    struct rig_params params = {.model = "qwen2moe",
                                .dtype = DTYPE_BF16,
                                .rank_count = 4,
                                .plan = "dp4|ep4>tp4",
                                .is_auto = true,
                                .keeps_both = true,
                                .log = {hear, &heard}};
    struct cold cold;
    struct rig rig;
    struct error err;
    cold_open(&cold, &params);
    rig_open(&rig, &params);
    cr_assert_eq(transition_way(rig.transition), WAY_KEEP);
    cr_assert_eq(heard.choices, 0);
    cr_assert_eq(rig_check(&rig, &cold, PHASE_PREFILL, "filled"), rig_moe_layers(&rig));
    cr_assert_eq(transition_run(rig.transition, PHASE_DECODE, &err), STATUS_OK);
    cr_assert_eq(rig_check(&rig, &cold, PHASE_DECODE, "moved"), rig_moe_layers(&rig));
    cr_assert_eq(transition_layer(rig.transition, 0).way, WAY_KEEP);
    cr_assert_eq(heard.warnings, 0);
    rig_close(&rig);
    cold_close(&cold);
}

static bool is_near(double a, double b)
{
    return fabs(a - b) < 1e-4;
}

/* What was measured of one layer is weighed with the prefill that was said, and the way is taken
 * that is exposed least. */
static void check_trial(const struct heard *heard, const struct rig_params *params, int64_t layers)
{
    const struct exposure exposure = {layers, params->spare_count, params->prefill_seconds,
                                      params->prefill_seconds};
    double exposed[WAY_COUNT];
    cr_assert_eq(heard->choices, 1);
    cr_assert(is_near(heard->prefill_seconds, params->prefill_seconds));
    ways_exposed(exposed, heard->seconds, &exposure);
    for (int way = WAY_RESHARD; way < WAY_COUNT; way++) {
        bool is_there = way != WAY_UPLOAD || (params->has_backup && !params->keeps_format);
        cr_assert_eq(heard->exposed[way] >= 0, is_there, "%s", way_names[way]);
        cr_assert(is_near(heard->exposed[way], exposed[way]), "%s: %g, not %g", way_names[way],
                  heard->exposed[way], exposed[way]);
    }
    cr_assert_eq(heard->way, way_least(heard->exposed));
}

/* The trial leaves all layers as they were. */
Test(choice, in_place_is_what_prefill_hides_best)
{
    for (int i = 0; i < 10; i++) {
        struct heard heard = nothing();
        struct rig_params params = {.model = "qwen2moe",
                                    .dtype = DTYPE_BF16,
                                    .rank_count = 4,
                                    .plan = "dp4|ep4>tp4",
                                    .is_auto = true,
                                    .has_backup = i % 2 == 1,
                                    .spare_count = i / 2 % 2 + 1,
                                    .prefill_seconds = i / 4 == 0 ? 0 : 1000,
                                    .keeps_format = i >= 8,
                                    .log = {hear, &heard}};
        struct cold cold;
        struct rig rig;
        struct error err;
        cold_open(&cold, &params);
        rig_open(&rig, &params);
        check_trial(&heard, &params, rig_moe_layers(&rig));
        cr_assert_eq(transition_way(rig.transition), heard.way);
        cr_assert_eq(rig_check(&rig, &cold, PHASE_PREFILL, "tried"), rig_moe_layers(&rig));
        cr_assert_eq(transition_counters_get(rig.transition).layer_count, 0);
        cr_assert_eq(transition_run(rig.transition, PHASE_DECODE, &err), STATUS_OK);
        cr_assert_eq(rig_check(&rig, &cold, PHASE_DECODE, "moved"), rig_moe_layers(&rig));
        cr_assert_eq(transition_layer(rig.transition, 0).way, heard.way);
        cr_assert_eq(heard.warnings, 0);
        rig_close(&rig);
        cold_close(&cold);
    }
}

/* What was read ahead of the next layer would be in the time of this one, or was not read in it. */
Test(choice, a_trial_reads_one_layer_alone)
{
    struct heard heard = nothing();
    struct rig_params params = {.model = "mixtral",
                                .dtype = DTYPE_BF16,
                                .rank_count = 2,
                                .plan = "dp2|ep2>tp2",
                                .is_auto = true,
                                .has_backup = true,
                                .spare_count = 1,
                                .uring = &fake_uring,
                                .log = {hear, &heard}};
    struct rig rig;
    fake_reset();
    fake.call = FAKE_BYTES; /* that none fails, but each is counted */
    fake.n = INT_MAX;
    rig_open(&rig, &params);
    /* Each rank tries its queue with the first page, once more where upload stays. */
    int tries = params.rank_count * (heard.way == WAY_UPLOAD ? 2 : 1);
    const struct backup_form *form = backup_form(rig.backup);
    cr_assert_geq(heard.exposed[WAY_UPLOAD], 0);
    cr_assert_eq(fake.count - tries, form->granule_count / form->moe_layer_count);
    rig_close(&rig);
}

static bool is_written(struct device *device, const struct expert_slots *slots, int64_t spare)
{
    uint64_t bytes = expert_slots_slot_bytes(slots, PHASE_PREFILL), i = 0;
    unsigned char *found = device_copy(device, slots->spares[spare], bytes);
    while (i < bytes && found[i] == 0xff)
        i++;
    memory_free(found);
    return i == bytes;
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
                cr_assert(is_written(box_device(rig.runner.box, r), rig.slots[r], i));
        }
        rig_close(&rig);
    }
}

/* ---- When upload is chosen: the clock stands, but for what is slow --------------------------- */

static int slow_read(void *context, enum disk_op op, size_t *length)
{
    (void)context, (void)length;
    if (op == DISK_READ)
        clock_advance(1e-3);
    return 0;
}

static void done_reading(void *context, enum disk_op op)
{
    (void)context, (void)op;
}

static const struct device_ops *real_ops;

static enum status slow_run(void *argument, struct error *err)
{
    (void)argument, (void)err;
    clock_advance(0.2);
    return STATUS_OK;
}

static void slow_call(struct stream *stream, enum status (*work)(void *argument, struct error *err),
                      const void *argument, size_t bytes)
{
    if (bytes == sizeof(struct collective))
        real_ops->call(stream, slow_run, "", 1);
    real_ops->call(stream, work, argument, bytes);
}

/* What the host's threads read of files is slow, and so is what ranks send; io_uring is not. Then
 * upload is taken, and with room for it in locked memory, as if it had been asked for. */
Test(choice, upload_that_is_chosen_locks_its_copy)
{
    static const struct disk_hooks hooks = {slow_read, done_reading, NULL};
    struct heard heard = nothing();
    struct rig_params params = {.model = "mixtral",
                                .dtype = DTYPE_F32,
                                .rank_count = 2,
                                .plan = "dp2|ep2>tp2",
                                .is_auto = true,
                                .has_backup = true,
                                .memory_available = UINT64_MAX / 2,
                                .memory_lockable = UINT64_MAX / 2,
                                .spare_count = 1,
                                .log = {hear, &heard}};
    char source[TRANSITION_SOURCE_BYTES];
    struct device_ops ops;
    struct rig rig;
    struct error err;
    if (!uring_works())
        return;
    clock_hold();
    rig_load(&rig, &params);
    struct device *device = box_device(rig.runner.box, 0);
    real_ops = device->ops;
    /* Else no collective is a call, which is what can be slow here. */
    if (real_ops->peers != NULL) {
        rig_close(&rig);
        return;
    }
    ops = *real_ops;
    ops.call = slow_call;
    device->ops = &ops;
    disk_hooks_set(&hooks);
    disk_hooks_see_reads(true);
    cr_assert_eq(rig_start(&rig, &params, &err), STATUS_OK, "%s", err.message);
    disk_hooks_see_reads(false);
    disk_hooks_set(NULL);
    cr_assert_eq(heard.way, WAY_UPLOAD, "%g %g %g", heard.exposed[WAY_RESHARD],
                 heard.exposed[WAY_RELOAD], heard.exposed[WAY_UPLOAD]);
    transition_source(source, rig.transition);
    cr_assert_str_eq(source, "locked memory");
    cr_assert_eq(transition_run(rig.transition, PHASE_DECODE, &err), STATUS_OK);
    cr_assert(transition_layer(rig.transition, 0).is_int4);
    transition_destroy(rig.transition);
    rig.transition = NULL;
    device->ops = real_ops;
    rig_close(&rig);
}
