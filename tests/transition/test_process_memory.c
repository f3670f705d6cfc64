/* What a process takes with a model that changes its layout, by each way: what was said, to 2 % as
 * phasor's allocator counts, and to 10 % or 32 MiB as the system does. Every way has a process of
 * its own, since the system's peak never falls. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/memory.h"
#include "model/synth.h"
#include "rig.h"
#include "rss.h"

#define MIB (1ull << 20)

/* 250 MiB of experts, so that a layer that is held once more is seen. */
static void checkpoint_make(const char *dir)
{
    const struct synth_params params = {.preset = "qwen1.5-moe-a2.7b",
                                        .dir = dir,
                                        .layer_count = 4,
                                        .vocab_count = 1024,
                                        .scale = 4,
                                        .dtype = DTYPE_BF16,
                                        .seed = 1};
    int status;
    pid_t child = fork(); /* whose memory does not count */
    cr_assert_geq(child, 0);
    if (child == 0)
        _exit(synth_write(&params, NULL) != STATUS_OK);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
}

static uint64_t bytes_said(const struct rig *rig, enum way way)
{
    uint64_t said = 0;
    for (int r = 0; r < rig->runner.layout.rank_count; r++)
        said += rig_memory_said(rig, r) + rig_host_memory_said(rig, r) +
                rig_way_memory_said(rig, r, way);
    return said;
}

static void check_way(enum way way)
{
    char dir[] = "/tmp/phasor-test-XXXXXX", command[64];
    struct rig_params params = {.dir = dir,
                                .dtype = DTYPE_BF16,
                                .rank_count = 2,
                                .plan = "dp2|ep2>tp2",
                                .way = way,
                                .leaves_freed = true};
    struct rig rig;
    struct error err;
    cr_assert_not_null(mkdtemp(dir));
    checkpoint_make(dir);
    uint64_t before = rss_peak();
    rig_open(&rig, &params);
    for (int step = 0; step < 4; step++)
        cr_assert_eq(
            transition_run(rig.transition, step % 2 == 0 ? PHASE_DECODE : PHASE_PREFILL, &err),
            STATUS_OK, "%s", err.message);
    uint64_t said = bytes_said(&rig, way), held = memory_counters_get().peak_bytes;
    uint64_t resident = rss_peak() - before;
    uint64_t tolerance = said / 10 > 32 * MIB ? said / 10 : 32 * MIB;
    printf("%s: %.1f MiB were said, the allocator held %.1f MiB, VmHWM rose by %.1f MiB\n",
           way_names[way], (double)said / MIB, (double)held / MIB, (double)resident / MIB);
    cr_assert(held >= said && held - said <= said / 50);
    cr_assert(!rss_is_ours() || (resident <= said + tolerance && resident + tolerance >= said));
    rig_close(&rig);
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    cr_assert_eq(system(command), 0);
}

Test(process_memory, keep)
{
    check_way(WAY_KEEP);
}

Test(process_memory, reshard)
{
    check_way(WAY_RESHARD);
}

Test(process_memory, reload)
{
    check_way(WAY_RELOAD);
}

/* With its ring of granules. */
Test(process_memory, upload)
{
    check_way(WAY_UPLOAD);
}

/* With the staging of its part that reads. */
Test(process_memory, mixed)
{
    check_way(WAY_MIXED);
}
