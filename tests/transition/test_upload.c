/* However upload reads the backup, the bytes are the same, by as many reads as there are granules;
 * what it would use and cannot have it does without, on all ranks alike and with one warning; a
 * kernel that fails, hangs or loses its mind leaves every layer whole. What the n-th read or
 * allocation does is in test_faults.c. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/disk.h"
#include "base/memory.h"
#include "fake_uring.h"
#include "reads.h"
#include "rig.h"
#include "rig_gpus.h"
#include "transition/granule_reader.h"
#include "transition/transition_state.h"

static const struct rig_params cases[] = {
    {.model = "mixtral", .dtype = DTYPE_BF16, .rank_count = 4, .plan = "dp4|ep4>tp4"},
    {.model = "qwen2moe",
     .dtype = DTYPE_F32,
     .rank_count = 2,
     .plan = "tp2|tp2>ep2",
     .settings = {.group = 32, .is_asymmetric = true, .has_zstd = true}},
    {.model = "qwen3moe", .dtype = DTYPE_BF16, .rank_count = 4, .plan = "tp4|tp4>tp4:int4"},
};
#define CASE_COUNT (sizeof cases / sizeof *cases)

/* ---- Without faults ---------------------------------------------------------------------------
 */

static struct uring_calls unregistered; /* the system's, but it registers no buffers */

static int refuse_buffers(struct uring_ring *ring, const struct iovec *buffers, unsigned count)
{
    (void)ring, (void)buffers, (void)count;
    return -ENOMEM;
}

static void init(void)
{
    fake_reset();
    unregistered = uring_calls_system() == NULL ? rig_no_uring : *uring_calls_system();
    unregistered.register_buffers = refuse_buffers;
}
TestSuite(upload, .init = init, .fini = scenario_checkpoints_remove, .timeout = 120);

#define PLENTY (UINT64_MAX / 2)

static const struct reading {
    const char *name;
    enum read_tier tier;
    bool by_uring, is_unregistered;
    const char *source;
} readings[] = {
    {"io_uring, O_DIRECT", TIER_DISK, true, false, "disk, by io_uring, O_DIRECT"},
    {"io_uring, O_DIRECT, unregistered", TIER_DISK, true, true, "disk, by io_uring, O_DIRECT"},
    {"io_uring, page cache", TIER_CACHED, true, false, "page cache, by io_uring"},
    {"threads, O_DIRECT", TIER_DISK, false, false, "disk, by threads, O_DIRECT"},
    {"threads, page cache", TIER_CACHED, false, false, "page cache, by threads"},
    {"locked memory", TIER_LOCKED, true, false, "locked memory"},
};
#define READING_COUNT (sizeof readings / sizeof *readings)

static struct rig_params params_of(const struct rig_params *base, const struct reading *reading)
{
    struct rig_params params = *base;
    params.way = WAY_UPLOAD;
    params.memory_available = reading->tier == TIER_DISK ? 0 : PLENTY;
    params.memory_lockable = reading->tier == TIER_LOCKED ? PLENTY : 0;
    params.uring = !reading->by_uring         ? &rig_no_uring
                   : reading->is_unregistered ? &unregistered
                                              : NULL;
    return params;
}

/* Granules of all layers on all ranks. */
static uint64_t granules_of(const struct rig *rig)
{
    uint64_t total = 0;
    for (int r = 0; r < rig->transition->rank_count; r++)
        total +=
            (uint64_t)ways[WAY_UPLOAD]->piece_count(&rig->transition->ranks[r], 0, PHASE_DECODE);
    return total * (uint64_t)rig_moe_layers(rig);
}

/* What the machine can is what was used, for every read; and each granule was read once. */
static void check_use(const struct rig *rig, const struct reading *reading, uint64_t times)
{
    struct read_queue_use use = granule_readers_use(rig->transition->granules);
    bool can_uring = reading->by_uring && uring_works();
    bool is_direct = reading->tier == TIER_DISK && direct_works(rig->backup_path);
    char source[TRANSITION_SOURCE_BYTES];
    transition_source(source, rig->transition);
    cr_assert_eq(granule_readers_tier(rig->transition->granules), reading->tier);
    cr_assert_eq(use.backend, reading->tier == TIER_LOCKED ? READ_LOCKED
                              : can_uring                  ? READ_URING
                                                           : READ_THREADS);
    cr_assert_eq(use.read_count, times * granules_of(rig), "%s: %llu reads", reading->name,
                 (unsigned long long)use.read_count);
    cr_assert_geq(use.request_count, use.read_count);
    cr_assert_eq(use.is_direct, is_direct, "%s", reading->name);
    cr_assert_eq(use.direct_count, is_direct ? use.request_count : 0, "%s", reading->name);
    cr_assert(!reading->is_unregistered || use.registered_count == 0);
    cr_assert_eq(use.registered_count, use.is_registered ? use.request_count : 0);
    if (can_uring == reading->by_uring && (is_direct || reading->tier != TIER_DISK))
        cr_assert_str_eq(source, reading->source);
}

static void check_reading(const struct rig_params *base, const struct reading *reading,
                          const struct cold *cold)
{
    struct rig_params params = params_of(base, reading);
    struct rig rig;
    struct error err;
    char label[160];
    snprintf(label, sizeof label, "%s on %s", reading->name, params.plan);
    rig_open(&rig, &params);
    for (int step = 0; step < 4; step++) {
        enum phase phase = step % 2 == 0 ? PHASE_DECODE : PHASE_PREFILL;
        uint64_t held = memory_counters_get().live_bytes, pageable = rig_gpu_pageable_bytes();
        cr_assert_eq(rig_move(&rig, rig.transition, phase, step > 1, &err), STATUS_OK, "%s: %s",
                     label, err.message);
        cr_assert_eq(memory_counters_get().live_bytes, held, "%s", label);
        cr_assert_eq(rig_gpu_pageable_bytes(), pageable, "%s: copies of what is not pinned", label);
        cr_assert_eq(rig_check(&rig, cold, phase, label), rig_moe_layers(&rig), "%s", label);
    }
    check_use(&rig, reading, 2);
    rig_close(&rig);
}

Test(upload, brings_the_same_bytes_however_it_reads)
{
    for (size_t i = 0; i < CASE_COUNT; i++) {
        struct cold cold;
        uint64_t live = memory_counters_get().live_count;
        cold_open(&cold, &cases[i]);
        for (size_t r = 0; r < READING_COUNT; r++)
            check_reading(&cases[i], &readings[r], &cold);
        cold_close(&cold);
        cr_assert_eq(memory_counters_get().live_count, live);
    }
}

/* ---- What cannot be had -----------------------------------------------------------------------
 */

/* One warning with these words; then the bytes of a cold start. */
static void check_fallback(const struct rig_params *base, const char *label, const char *cure,
                           enum read_backend backend)
{
    struct rig_params params = *base;
    struct warnings heard;
    struct cold cold;
    struct rig rig;
    struct error err;
    params.way = WAY_UPLOAD;
    params.uring = &fake_uring;
    params.log = rig_hear(&heard);
    cold_open(&cold, base);
    rig_open(&rig, &params);
    cr_assert_eq(heard.count, cure != NULL, "%s: %s", label, heard.last);
    if (cure != NULL)
        cr_assert_not_null(strstr(heard.last, cure), "%s: %s", label, heard.last);
    cr_assert_eq(granule_readers_use(rig.transition->granules).backend, backend, "%s", label);
    for (int step = 0; step < 2; step++)
        cr_assert_eq(rig_move(&rig, rig.transition, PHASE_DECODE, step == 1, &err), STATUS_OK,
                     "%s: %s", label, err.message);
    cr_assert_eq(rig_check(&rig, &cold, PHASE_DECODE, label), rig_moe_layers(&rig));
    cr_assert_eq(heard.count, cure != NULL, "%s: %s", label, heard.last);
    rig_close(&rig);
    cold_close(&cold);
    cr_assert_eq(fake.ring_count, 0, "%s: a ring was left open", label);
    fake_reset();
}

Test(upload, A20_one_rank_may_not_use_io_uring)
{
    static const struct {
        int error;
        const char *cure;
    } refusals[] = {
        {EPERM, "io_uring_setup, io_uring_enter and io_uring_register"},
        {ENOSYS, "io_uring_setup, io_uring_enter and io_uring_register"},
        {EOPNOTSUPP, "Linux 5.6"},
        {EINVAL, "Linux 5.6"},
        {ENOMEM, "locked memory"},
    };
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        fake.call = FAKE_SETUP;
        fake.n = 1 + (int)i % cases[0].rank_count;
        fake.error = refusals[i].error;
        check_fallback(&cases[0], strerror(refusals[i].error), refusals[i].cure, READ_THREADS);
    }
    /* It can be set up everywhere, and reads nothing on the last rank. */
    fake.call = FAKE_RESULT;
    fake.n = cases[0].rank_count;
    fake.error = EIO;
    check_fallback(&cases[0], "first read", "the INT4 backup is read by threads", READ_THREADS);
}

/* Told where somebody has lowered the limit; what Linux gives to all is no reason to warn. */
Test(upload, A21_buffers_cannot_be_registered)
{
    static const rlim_t limits[] = {64 << 10, 8 << 20};
    struct rlimit limit;
    cr_assert_eq(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
    for (size_t i = 0; i < sizeof limits / sizeof *limits && limits[i] <= limit.rlim_max; i++) {
        limit.rlim_cur = limits[i];
        cr_assert_eq(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
        for (int n = 1; n <= cases[0].rank_count; n++) {
            fake.call = FAKE_BUFFERS;
            fake.n = n;
            fake.error = ENOMEM;
            check_fallback(&cases[0], "registering", i == 0 ? "limit of locked memory is 64" : NULL,
                           READ_URING);
        }
    }
}

Test(upload, A22_reads_past_the_page_cache_are_refused)
{
    for (int after = 0; after < 40; after += 13) {
        fake.refuses_direct = true;
        fake.refuses_after = after;
        bool is_known = after < cases[0].rank_count; /* when the queues are opened */
        check_fallback(&cases[0], "O_DIRECT", is_known ? "refuses O_DIRECT" : NULL, READ_URING);
    }
}

Test(upload, A23_completions_come_late_and_short_and_out_of_order)
{
    for (uint64_t seed = 0; seed < 8; seed++) {
        fake.is_shuffled = seed % 2 == 0;
        fake.is_short = seed / 2 % 2 == 0;
        fake.is_doubled = seed / 4 % 2 == 0;
        fake.draw = seed * 1000000;
        check_fallback(&cases[seed % CASE_COUNT], "odd completions", NULL, READ_URING);
    }
}

Test(upload, A24_what_the_system_puts_off_comes_later)
{
    static const int errors[] = {EAGAIN, EINTR};
    static const enum fake_call calls[] = {FAKE_READ, FAKE_RESULT, FAKE_NEXT};
    for (int i = 0; i < 6; i++) {
        fake.call = calls[i / 2];
        fake.error = errors[i % 2];
        fake.n = 20;
        check_fallback(&cases[0], "put off", NULL, READ_URING);
    }
}

/* A part of a copy that cannot be read: the rest of the way tells, if it must. */
static int reads_before_failure;

static int fail_read(void *context, enum disk_op op, size_t *length)
{
    (void)context, (void)length;
    return op == DISK_READ && --reads_before_failure == 0 ? EIO : 0;
}

static void ignore(void *context, enum disk_op op)
{
    (void)context, (void)op;
}

Test(upload, a_copy_that_cannot_be_made_is_left_to_the_page_cache)
{
    static const struct disk_hooks hooks = {fail_read, ignore, NULL};
    struct rig_params params = params_of(&cases[0], &readings[READING_COUNT - 1]);
    struct cold cold;
    struct rig rig;
    struct error err;
    cold_open(&cold, &params);
    rig_load(&rig, &params);
    for (int n = 1; n <= 2; n++) {
        reads_before_failure = n;
        disk_hooks_set(&hooks);
        disk_hooks_see_reads(true);
        cr_assert_eq(rig_start(&rig, &params, &err), STATUS_OK, "%s", err.message);
        disk_hooks_see_reads(false);
        disk_hooks_set(NULL);
        bool failed = reads_before_failure <= 0;
        cr_assert_eq(granule_readers_tier(rig.transition->granules),
                     failed ? TIER_CACHED : TIER_LOCKED);
        cr_assert(failed || n > 1);
        cr_assert_eq(transition_run(rig.transition, PHASE_DECODE, &err), STATUS_OK);
        cr_assert_eq(rig_check(&rig, &cold, PHASE_DECODE, "copy"), rig_moe_layers(&rig));
        cr_assert_eq(transition_run(rig.transition, PHASE_PREFILL, &err), STATUS_OK);
        transition_destroy(rig.transition);
    }
    rig.transition = NULL;
    rig_close(&rig);
    cold_close(&cold);
}

/* ---- What is lost on the way ------------------------------------------------------------------
 */

/* The last layer, and half of the one before it. */
struct cut {
    off_t at;
    size_t bytes;
    char *tail;
    int fd;
};

static void cut_off(struct cut *out, const struct rig *rig)
{
    uint64_t bytes = backup_file_bytes(rig->backup);
    out->bytes = bytes / (uint64_t)rig_moe_layers(rig) * 3 / 2;
    out->at = (off_t)(bytes - out->bytes);
    out->tail = memory_alloc(out->bytes, 1);
    out->fd = open(rig->backup_path, O_RDWR | O_CLOEXEC);
    cr_assert_eq(pread(out->fd, out->tail, out->bytes, out->at), (ssize_t)out->bytes);
    cr_assert_eq(ftruncate(out->fd, out->at), 0);
}

static void cut_mend(struct cut *cut)
{
    cr_assert_eq(pwrite(cut->fd, cut->tail, cut->bytes, cut->at), (ssize_t)cut->bytes);
    close(cut->fd);
    memory_free(cut->tail);
}

static void check_cut(const struct reading *reading, bool is_auto, const struct cold *cold)
{
    struct rig_params params = params_of(&cases[0], reading);
    struct warnings heard;
    struct cut cut;
    struct rig rig;
    struct error err = {.message = ""};
    params.is_auto = is_auto;
    params.has_backup = true;
    params.log = rig_hear(&heard);
    rig_open(&rig, &params);
    rig_take_way(&rig, WAY_UPLOAD);
    /* Where there was a choice the trial's reader may be the one that stays, or a new one, which is
     * sure to be used. */
    bool is_copied = granule_readers_tier(rig.transition->granules) == TIER_LOCKED;
    cr_assert(is_copied == (reading->tier == TIER_LOCKED) || is_auto, "%s", reading->name);
    heard.count = 0;
    cut_off(&cut, &rig);
    enum status status = transition_run(rig.transition, PHASE_DECODE, &err);
    cut_mend(&cut);
    int64_t moved = rig_check(&rig, cold, PHASE_DECODE, reading->name);
    bool is_whole = is_copied || is_auto;
    cr_assert_eq(status, (is_whole ? STATUS_OK : STATUS_FORMAT), "%s: %s", reading->name,
                 err.message);
    cr_assert(is_whole == (moved == rig_moe_layers(&rig)), "%s", reading->name);
    cr_assert_eq(heard.count, is_auto && !is_copied, "%s: %s", reading->name, heard.last);
    const char *sentence = is_auto ? heard.last : err.message;
    if (!is_copied) {
        cr_assert_not_null(strstr(sentence, rig.backup_path), "%s", sentence);
        cr_assert_not_null(strstr(sentence, " ends at byte "), "%s", sentence);
    }
    cr_assert_eq(transition_run(rig.transition, PHASE_DECODE, &err), STATUS_OK);
    cr_assert_eq(rig_check(&rig, cold, PHASE_DECODE, "whole again"), rig_moe_layers(&rig));
    rig_close(&rig);
}

Test(upload, A10_the_file_is_cut_while_it_is_read)
{
    struct cold cold;
    cold_open(&cold, &cases[0]);
    for (size_t r = 0; r < READING_COUNT; r++) {
        for (int is_auto = 0; is_auto < 2; is_auto++)
            check_cut(&readings[r], is_auto == 1, &cold);
    }
    cold_close(&cold);
}

/* A ring that gives nothing back any more is not asked again: the layers stay as they are, and the
 * buffers are the kernel's. */
Test(upload, A24_a_ring_that_fails_is_given_up)
{
    struct rig_params params = cases[0];
    struct cold cold;
    struct rig rig;
    struct error err;
    uint64_t held = memory_counters_get().live_bytes;
    (void)rig_gpu_has_more();
    params.way = WAY_UPLOAD;
    params.uring = &fake_uring;
    cold_open(&cold, &params);
    rig_open(&rig, &params);
    uint64_t ring = rig_host_memory_said(&rig, 0);
    fake.call = FAKE_NEXT;
    fake.n = 25;
    fake.error = EIO;
    fake.is_sticky = true;
    cr_assert_eq(transition_run(rig.transition, PHASE_DECODE, &err), STATUS_IO);
    cr_assert_not_null(strstr(err.message, "cannot wait for reads of "), "%s", err.message);
    int64_t moved = rig_check(&rig, &cold, PHASE_DECODE, "a ring fails");
    cr_assert_lt(moved, rig_moe_layers(&rig));
    fake.n = 0;
    fake_write_late();
    cr_assert_eq(transition_run(rig.transition, PHASE_DECODE, &err), STATUS_IO);
    cr_assert_not_null(strstr(err.message, "an earlier read of it has not ended"), "%s",
                       err.message);
    cr_assert_eq(rig_check(&rig, &cold, PHASE_DECODE, "again"), moved);
    rig_close(&rig);
    fake_write_late(); /* to what nobody else has */
    cold_close(&cold);
    cr_assert(memory_counters_get().live_bytes >= held + ring || rig_gpu_has_more());
}
