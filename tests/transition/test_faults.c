/* A transition that fails leaves every layer whole, old or new, the same on all ranks, with the
 * bytes of a cold start; what does not hurt the box lets the run go on, by the same way later or by
 * another now. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/system.h"
#include "clock.h"
#include "comm/domain.h"
#include "fake_uring.h"
#include "faulty_device.h"
#include "patience.h"
#include "rig.h"
#include "rig_gpus.h"
#include "sweep.h"
#include "transition/transition_state.h"

/* ---- Reads that fail ------------------------------------------------------------------------- */

static atomic_llong reads_left = INT64_MAX;   /* until one fails */
static atomic_bool reads_stay_broken;         /* and all behind it */
static atomic_bool reads_are_damaged;         /* they give bytes, one bit of which is wrong */
static atomic_llong slow_left;                /* so many reads take 2 ms by a clock that stands */
static atomic_llong hangs_left, hanging;      /* so many are to hang; so many do, or have */
static atomic_bool reads_wait, reads_came;    /* all, as long as it is set; one has */
static atomic_llong hung_count, reads_behind; /* over; reads that were begun behind the first */
static void hang(void);

/* In place of the C library's: the n-th read fails, or the next ones hang. */
ssize_t pread(int fd, void *out, size_t bytes, off_t offset);
ssize_t pread(int fd, void *out, size_t bytes, off_t offset)
{
    while (atomic_load(&reads_wait)) {
        atomic_store(&reads_came, true);
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
    int64_t left = atomic_fetch_sub(&reads_left, 1);
    bool is_broken = left == 1 || (left < 1 && atomic_load(&reads_stay_broken));
    if (is_broken && !atomic_load(&reads_are_damaged)) {
        errno = EIO;
        return -1;
    }
    atomic_fetch_add(&reads_behind, atomic_load(&hung_count) > 0);
    if (atomic_fetch_sub(&slow_left, 1) > 0) {
        clock_advance(0.002);
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    if (atomic_fetch_sub(&hangs_left, 1) > 0) {
        hang();
        atomic_fetch_add(&hung_count, 1);
    }
    ssize_t count = syscall(SYS_pread64, fd, out, bytes, offset);
    if (is_broken && count > 0)
        ((char *)out)[(uint64_t)offset * 31 % (uint64_t)count] ^= 4;
    return count;
}

static const struct rig_params cases[] = {
    {.model = "mixtral", .dtype = DTYPE_BF16, .rank_count = 4, .plan = "dp4|ep4>tp4"},
    {.model = "qwen2moe", .dtype = DTYPE_F32, .rank_count = 2, .plan = "tp2|tp2>ep2"},
    {.model = "qwen3moe", .dtype = DTYPE_BF16, .rank_count = 8, .plan = "dp8|tp8>tp2ep4"},
};
#define CASE_COUNT (sizeof cases / sizeof *cases)

/* A pass over layers of both layouts, as one rank alone computes it. */
static void check_pass(struct rig *rig, const struct scenario_result *expected, const char *label)
{
    struct scenario_result found;
    scenario_run(&found, &rig->runner, &scenarios[0]);
    double error = rig->runner.types.matrices == DTYPE_F32 ? scenario_worst(&found, expected)
                                                           : scenario_mean(&found, expected) / 100;
    cr_assert_leq(error, 1e-4, "%s: off by %.2e", label, error);
    memory_free(found.logits);
}

static void expect_pass(struct scenario_result *out, const struct rig_params *params)
{
    struct model_runner alone;
    model_runner_open(&alone, &(struct runner_params){
                                  .dir = scenario_checkpoint(params->model, params->dtype),
                                  .dtype = params->dtype,
                                  .plan = "tp1|tp1",
                                  .gpus = rig_gpus(1),
                                  .token_max = scenario_token_max(&scenarios[0], 1),
                                  .segment_max = SCENARIO_SEQUENCES_MAX,
                                  .page_count = 2 * SCENARIO_SEQUENCES_MAX,
                              });
    scenario_run(out, &alone, &scenarios[0]);
    model_runner_close(&alone);
}

enum read_fault {
    READ_ONCE,        /* between passes */
    READ_ONCE_BESIDE, /* what cannot be moved beside passes is tried once more between them */
    READ_STAYS_BESIDE,
    READ_DAMAGES, /* between passes; only a backup has checksums */
    READ_DAMAGES_BESIDE,
    READ_FAULT_COUNT
};

/* The n-th read of a transition fails: by one way alone the run says so and may try again; where
 * another way is allowed it goes on by that, with one warning. */
struct reads {
    struct rig rig;
    enum way way;
    bool is_auto;
    bool is_fake; /* by a fake kernel, late and out of order; else by pread */
    struct warnings heard;
    char label[160];
};

static void reads_open(struct reads *out, const struct rig_params *base, enum way way, bool is_auto)
{
    struct rig_params params = *base;
    *out = (struct reads){.way = way,
                          .is_auto = is_auto && !rig_is_packed(base),
                          .is_fake = base->uring == &fake_uring};
    params.is_auto = is_auto;
    params.way = way;
    params.has_backup = way == WAY_UPLOAD;
    params.log = rig_hear(&out->heard);
    if (!out->is_fake)
        params.uring = &rig_no_uring;
    rig_open(&out->rig, &params);
    rig_take_way(&out->rig, way);
}

static bool is_damage(enum read_fault fault)
{
    return fault == READ_DAMAGES || fault == READ_DAMAGES_BESIDE;
}

static void fault_arm(const struct reads *reads, enum read_fault fault, int64_t n)
{
    fake.count = 0;
    fake.error = EIO;
    fake.call = is_damage(fault) ? FAKE_BYTES : FAKE_RESULT;
    fake.is_sticky = fault == READ_STAYS_BESIDE;
    fake.n = reads->is_fake ? (int)n : 0;
    atomic_store(&reads_stay_broken, fault == READ_STAYS_BESIDE);
    atomic_store(&reads_are_damaged, is_damage(fault));
    atomic_store(&reads_left, reads->is_fake ? INT64_MAX : n);
}

/* Whether it has come. */
static bool fault_disarm(const struct reads *reads)
{
    bool has_come = reads->is_fake && fake.count >= fake.n;
    fake.n = 0;
    return atomic_exchange(&reads_left, INT64_MAX) <= 0 || has_come;
}

/* What fails once, ahead of the layer that it is for, is read again when that begins. */
static bool is_read_again(const struct reads *reads, enum read_fault fault, enum status status)
{
    return reads->way == WAY_UPLOAD && (fault == READ_ONCE || fault == READ_ONCE_BESIDE) &&
           status == STATUS_OK && reads->heard.count == 0;
}

/* By another way, or by the same between passes, with one warning; or by that at another try. */
static void went_on(struct reads *reads, const struct cold *cold, const struct error *err,
                    enum status status, bool is_warned)
{
    const struct warnings *heard = &reads->heard;
    char by[32];
    snprintf(by, sizeof by, "by %s", way_names[reads->way]);
    cr_assert_eq(status, STATUS_OK, "%s: %s", reads->label, err->message);
    cr_assert_eq(rig_check(&reads->rig, cold, PHASE_DECODE, reads->label),
                 rig_moe_layers(&reads->rig), "%s", reads->label);
    cr_assert_eq(heard->count, is_warned, "%s: %d of %d: %s", reads->label, heard->count, is_warned,
                 heard->last);
    if (is_warned) {
        const char *then = reads->is_auto ? "going on by reshard" : "it is tried once more";
        cr_assert_not_null(strstr(heard->last, by), "%s", heard->last);
        cr_assert_not_null(strstr(heard->last, then), "%s", heard->last);
    }
}

static void said_so(struct reads *reads, const struct cold *cold, const struct error *err,
                    bool is_damaged, const struct scenario_result *expected)
{
    struct rig *rig = &reads->rig;
    struct error again;
    char by[32];
    snprintf(by, sizeof by, "by %s: rank ", way_names[reads->way]);
    cr_assert_eq(err->status, is_damaged ? STATUS_FORMAT : STATUS_IO, "%s: %s", reads->label,
                 err->message);
    cr_assert_not_null(strstr(err->message, by), "%s", err->message);
    cr_assert_not_null(
        strstr(err->message, reads->way == WAY_UPLOAD ? ".backup" : "model.safetensors"), "%s",
        err->message);
    cr_assert_eq(strstr(err->message, "is damaged") != NULL, is_damaged, "%s", err->message);
    cr_assert_lt(rig_check(rig, cold, PHASE_DECODE, reads->label), rig_moe_layers(rig), "%s",
                 reads->label);
    if (expected != NULL)
        check_pass(rig, expected, reads->label); /* with mixed layers */
    cr_assert_eq(transition_run(rig->transition, PHASE_DECODE, &again), STATUS_OK);
    cr_assert_eq(rig_check(rig, cold, PHASE_DECODE, reads->label), rig_moe_layers(rig));
}

/* Returns whether there was an n-th. `expected` is NULL where no pass is to be run. */
static bool read_fails(struct reads *reads, enum read_fault fault, int64_t n,
                       const struct cold *cold, const struct scenario_result *expected)
{
    bool is_beside = fault != READ_ONCE && fault != READ_DAMAGES;
    bool is_mended = reads->is_auto || fault == READ_ONCE_BESIDE || fault == READ_DAMAGES_BESIDE;
    struct rig *rig = &reads->rig;
    struct error err = {.message = ""}, back;
    snprintf(reads->label, sizeof reads->label, "%s, read %lld, fault %d%s", way_names[reads->way],
             (long long)n, (int)fault, reads->is_auto ? ", auto" : "");
    reads->heard.count = 0;
    rig_take_way(rig, reads->way);
    fault_arm(reads, fault, n);
    enum status status = rig_move(rig, rig->transition, PHASE_DECODE, is_beside, &err);
    bool has_come = fault_disarm(reads);
    bool failed = has_come && !is_read_again(reads, fault, status);
    if (!failed || is_mended)
        went_on(reads, cold, &err, status, failed && (reads->is_auto || is_beside));
    else
        said_so(reads, cold, &err, is_damage(fault), expected);
    if (expected != NULL)
        check_pass(rig, expected, reads->label);
    /* Whatever layers have come from where: back to the checkpoint's own. */
    cr_assert_eq(transition_run(rig->transition, PHASE_PREFILL, &back), STATUS_OK, "%s: %s",
                 reads->label, back.message);
    cr_assert_eq(rig_check(rig, cold, PHASE_PREFILL, reads->label), rig_moe_layers(rig));
    return has_come;
}

#define READS_WITH_A_PASS 16 /* in the full tier one pair in so many */

TestSuite(transition_faults, .fini = scenario_checkpoints_remove, .timeout = 600);

static void reads_fail(const struct rig_params *base, enum way way, int fault_count, uint64_t step)
{
    struct scenario_result expected;
    struct cold cold;
    struct reads reads[2];
    uint64_t n = sweep_first(step), count = 0;
    cold_open(&cold, base);
    expect_pass(&expected, base);
    for (int is_auto = 0; is_auto <= 1; is_auto++)
        reads_open(&reads[is_auto], base, way, is_auto);
    for (;; n += step, count++) {
        bool has_many = step > 1 && rig_case_step() == 1;
        bool has_pass = way != WAY_UPLOAD && (has_many || count / 2 % READS_WITH_A_PASS == 0);
        enum read_fault fault = (enum read_fault)(count / 2 % (uint64_t)fault_count);
        if (!read_fails(&reads[count % 2], fault, (int64_t)n, &cold, has_pass ? &expected : NULL))
            break;
    }
    printf("%s, %s by %s: %llu reads failed, one in %llu\n", base->model, base->plan,
           way_names[way], (unsigned long long)count, (unsigned long long)step);
    cr_assert_gt(n, 50);
    for (int is_auto = 0; is_auto <= 1; is_auto++)
        rig_close(&reads[is_auto].rig);
    cold_close(&cold);
    memory_free(expected.logits);
}

Test(transition_faults, A24_any_read_of_a_reload_may_fail, .timeout = 3000)
{
    for (size_t i = rig_case_first(CASE_COUNT); i < CASE_COUNT; i += rig_case_step())
        reads_fail(&cases[i], WAY_RELOAD, READ_DAMAGES, rig_sweep_step(i == 0 ? 131 : 1009));
}

/* Whoever cannot read still sends what the others wait for. */
Test(transition_faults, A24_any_read_of_a_mixed_change_may_fail, .timeout = 3000)
{
    for (size_t i = rig_case_first(CASE_COUNT); i < CASE_COUNT; i += rig_case_step())
        reads_fail(&cases[i], WAY_MIXED, READ_DAMAGES, rig_sweep_step(i == 0 ? 131 : 1009));
}

/* A layer with native weights goes on by reshard; no other is made of what is damaged. */
Test(transition_faults, A11_A24_any_read_of_an_upload_may_fail_or_lie, .timeout = 3000)
{
    for (size_t i = rig_case_first(CASE_COUNT); i < CASE_COUNT; i += rig_case_step())
        reads_fail(&cases[i], WAY_UPLOAD, READ_FAULT_COUNT, sweep_step(i == 0 ? 7 : 31));
}

/* The same of completions, late and out of order, some of them short. */
Test(transition_faults, A11_A23_A24_any_completion_may_fail_or_lie, .timeout = 3000)
{
    fake.is_shuffled = fake.is_doubled = fake.is_short = true;
    for (size_t i = rig_case_first(CASE_COUNT); i < CASE_COUNT; i += rig_case_step()) {
        struct rig_params params = cases[i];
        params.uring = &fake_uring;
        reads_fail(&params, WAY_UPLOAD, READ_FAULT_COUNT, sweep_step(i == 0 ? 11 : 61));
    }
}

/* Packed slices have no other way: it is said, and may be tried again. */
Test(transition_faults, A11_A24_any_read_of_packed_slices_may_fail_or_lie, .timeout = 3000)
{
    struct rig_params params = cases[0];
    params.plan = "dp4|ep4>tp4:int4";
    reads_fail(&params, WAY_UPLOAD, READ_FAULT_COUNT, sweep_step(7));
}

/* Nor where they are filled when a model is opened: nothing is kept. */
Test(transition_faults, A11_A24_any_read_at_the_start_may_fail_or_lie, .timeout = 3000)
{
    struct rig_params params = cases[0];
    struct cold cold;
    struct rig rig;
    struct error err;
    uint64_t step = sweep_step(7), n = sweep_first(step), live;
    bool failed = true;
    params.plan = "tp4|tp4>tp4:int4";
    params.way = WAY_KEEP;
    params.uring = &rig_no_uring;
    cold_open(&cold, &params);
    rig_load(&rig, &params);
    live = memory_counters_get().live_count;
    for (; failed; n += step) {
        bool is_damage = n / step % 2 == 0;
        atomic_store(&reads_are_damaged, is_damage);
        atomic_store(&reads_stay_broken, true); /* what fails ahead of its layer is read again */
        atomic_store(&reads_left, (int64_t)n + params.rank_count); /* each tries its queue before */
        enum status status = rig_start(&rig, &params, &err);
        failed = atomic_exchange(&reads_left, INT64_MAX) <= 0;
        cr_assert_eq(status, !failed ? STATUS_OK : is_damage ? STATUS_FORMAT : STATUS_IO);
        if (failed) {
            cr_assert_not_null(strstr(err.message, "its experts for decode by upload: rank "), "%s",
                               err.message);
            cr_assert_not_null(strstr(err.message, ".backup"), "%s", err.message);
            cr_assert_eq(memory_counters_get().live_count, live);
        }
    }
    cr_assert_gt(n, 50);
    cr_assert_eq(transition_run(rig.transition, PHASE_DECODE, &err), STATUS_OK);
    cr_assert_eq(rig_check(&rig, &cold, PHASE_DECODE, "opened again"), rig_moe_layers(&rig));
    rig_close(&rig);
    cold_close(&cold);
}

/* A way that keeps what numbers decode has stands in for another; where there is none the run ends,
 * as if the way had been named. */
Test(transition_faults, A24_a_format_that_is_kept)
{
    static const enum way read_ways[] = {WAY_RELOAD, WAY_UPLOAD};
    struct cold cold;
    cold_open(&cold, &cases[0]);
    for (int w = 0; w < 2; w++) {
        struct rig_params params = cases[0];
        bool is_upload = read_ways[w] == WAY_UPLOAD;
        struct warnings heard;
        struct rig rig;
        struct error err = {.message = ""};
        params.is_auto = params.keeps_format = params.has_backup = true;
        params.uring = &rig_no_uring;
        params.log = rig_hear(&heard);
        rig_open(&rig, &params);
        rig_take_way(&rig, read_ways[w]);
        heard.count = 0; /* that there is no io_uring */
        atomic_store(&reads_stay_broken, false);
        atomic_store(&reads_are_damaged, false);
        atomic_store(&reads_left, 1);
        cr_assert_eq(transition_run(rig.transition, PHASE_DECODE, &err),
                     is_upload ? STATUS_IO : STATUS_OK, "%s", err.message);
        atomic_store(&reads_left, INT64_MAX);
        cr_assert_eq(heard.count, !is_upload, "%s", heard.last);
        cr_assert_eq(transition_run(rig.transition, PHASE_DECODE, &err), STATUS_OK);
        cr_assert_eq(rig_check(&rig, &cold, PHASE_DECODE, "kept"), rig_moe_layers(&rig));
        for (int64_t layer = 0; layer < rig.shape.layer_count; layer++) {
            struct transition_origin origin = transition_layer(rig.transition, layer);
            cr_assert(!origin.has_experts || origin.is_int4 == is_upload);
        }
        rig_close(&rig);
    }
    cold_close(&cold);
}

/* What fails beside passes is told once, and not read again until somebody waits for it. */
Test(transition_faults, what_fails_beside_a_pass_is_not_tried_beside_the_next)
{
    static const enum way read_ways[] = {WAY_RELOAD, WAY_UPLOAD};
    for (int w = 0; w < 2; w++) {
        struct rig_params params = cases[0];
        struct warnings heard;
        struct cold cold;
        struct rig rig;
        struct error err;
        params.way = read_ways[w];
        params.uring = &rig_no_uring;
        params.log = rig_hear(&heard);
        cold_open(&cold, &params);
        rig_open(&rig, &params);
        heard.count = 0; /* that there is no io_uring */
        for (int wave = 1; wave <= 2; wave++) {
            int64_t left = 0;
            atomic_store(&reads_stay_broken, true);
            atomic_store(&reads_are_damaged, false);
            atomic_store(&reads_left, 1);
            for (int pass = 0; pass < 3; pass++) {
                cr_assert_eq(transition_run(rig.transition, PHASE_PREFILL, &err), STATUS_OK);
                transition_start(rig.transition, PHASE_DECODE);
                while (transition_is_under_way(rig.transition))
                    continue;
                cr_assert(pass == 0 || atomic_load(&reads_left) == left);
                left = atomic_load(&reads_left);
                cr_assert_lt(left, 1);
            }
            cr_assert_eq(heard.count, wave, "%s", heard.last);
            cr_assert_eq(transition_run(rig.transition, PHASE_DECODE, &err), STATUS_IO);
            atomic_store(&reads_left, INT64_MAX);
            cr_assert_eq(transition_run(rig.transition, PHASE_DECODE, &err), STATUS_OK);
            cr_assert_eq(rig_check(&rig, &cold, PHASE_DECODE, "after all"), rig_moe_layers(&rig));
            cr_assert_eq(transition_run(rig.transition, PHASE_PREFILL, &err), STATUS_OK);
            cr_assert_eq(heard.count, wave);
        }
        rig_close(&rig);
        cold_close(&cold);
    }
}

/* Who waits between passes, and has been asked, comes while it is being told that it is tried once
 * more: the one failure is not the answer. */
static struct {
    atomic_bool is_told, is_asked;
    struct transition *transition;
} given_up;

static bool is_given_up(void)
{
    transition_lock(given_up.transition);
    bool is = given_up.transition->is_given_up[PHASE_DECODE];
    transition_unlock(given_up.transition);
    return is;
}

/* The thread of the transition; for a while, when the other has been asked. */
static void tell_slowly(void *context, enum log_level level, const char *message)
{
    (void)context, (void)message;
    if (level != LOG_WARNING)
        return;
    atomic_store(&reads_left, INT64_MAX);
    atomic_store(&given_up.is_told, true);
    for (int i = 0; i < 100 && (!atomic_load(&given_up.is_asked) || is_given_up());
         i += atomic_load(&given_up.is_asked))
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

static enum status answer_when_told(void *context, struct error *err)
{
    (void)context, (void)err;
    while (!atomic_load(&given_up.is_told))
        continue;
    atomic_store(&given_up.is_asked, true);
    return STATUS_OK;
}

Test(transition_faults, what_is_said_to_be_tried_once_more_is)
{
    struct rig_params params = cases[1];
    struct rig rig;
    struct error err;
    params.way = WAY_RELOAD;
    params.log.write = tell_slowly;
    rig_open(&rig, &params);
    given_up.transition = rig.transition;
    transition_watch(rig.transition, &(struct watch){answer_when_told, NULL});
    atomic_store(&reads_stay_broken, true);
    atomic_store(&reads_left, 1);
    transition_start(rig.transition, PHASE_DECODE);
    cr_assert_eq(transition_run(rig.transition, PHASE_DECODE, &err), STATUS_OK, "%s", err.message);
    cr_assert(atomic_load(&given_up.is_told));
    rig_close(&rig);
}

/* The first time before anything moves; the second time a layer does, whose reads fail then. */
static enum status stop_and_fail(void *context, struct error *err)
{
    int *count = context;
    bool is_second = ++*count == 2;
    while (is_second && !atomic_load(&reads_came)) /* else nothing moves any more */
        continue;
    atomic_store(&reads_wait, !is_second);
    return is_second ? error_set(err, STATUS_CANCELLED, "enough") : STATUS_OK;
}

Test(transition_faults, the_answer_of_who_is_asked_stays_though_a_layer_fails)
{
    struct rig_params params = cases[1];
    struct rig rig;
    struct error err;
    int count = 0;
    params.way = WAY_RELOAD;
    rig_open(&rig, &params);
    transition_watch(rig.transition, &(struct watch){stop_and_fail, &count});
    atomic_store(&reads_stay_broken, true);
    atomic_store(&reads_left, 1);
    cr_assert_eq(transition_run(rig.transition, PHASE_DECODE, &err), STATUS_CANCELLED, "%s",
                 err.message);
    cr_assert_str_eq(err.message, "enough");
    cr_assert_eq(count, 2);
    cr_assert_lt(atomic_exchange(&reads_left, INT64_MAX), 1);
    cr_assert_eq(transition_counters_get(rig.transition).layer_count, 0);
    rig_close(&rig);
}

/* ---- Allocations that fail ------------------------------------------------------------------- */

/* What cannot be had is said before anything moves, and nothing is kept; a choice of ways that
 * lacks the room for one makes do with the other. A transition itself allocates nothing. */
static void allocations_fail(const struct rig_params *base, const struct cold *cold)
{
    struct rig_params with_threads = *base, *params = &with_threads;
    struct rig rig;
    struct error err;
    int64_t refused = 0, went_on = 0;
    with_threads.uring = &rig_no_uring; /* a ring without memory would be no failure */
    rig_load(&rig, params);
    for (int r = 0; r < params->rank_count; r++)
        test_device_warm(box_device(rig.runner.box, r));
    uint64_t before = memory_counters_get().alloc_count;
    uint64_t live = memory_counters_get().live_count;
    cr_assert_eq(rig_start(&rig, params, &err), STATUS_OK);
    uint64_t total = memory_counters_get().alloc_count - before;
    transition_destroy(rig.transition);
    for (uint64_t n = 1; n <= total; n++) {
        memory_fail_at(n, 0);
        enum status status = rig_start(&rig, params, &err);
        memory_fail_at(0, 0);
        if (status != STATUS_OK) {
            cr_assert_eq(status, STATUS_NO_MEMORY);
            cr_assert_not_null(strstr(err.message, "allocate"), "%s", err.message);
            refused++;
        } else {
            went_on++;
            memory_fail_at(1, 1);
            status = transition_run(rig.transition, PHASE_DECODE, &err);
            memory_fail_at(0, 0);
            cr_assert_eq(status, STATUS_OK);
            cr_assert_eq(rig_check(&rig, cold, PHASE_DECODE, params->plan), rig_moe_layers(&rig));
            cr_assert_eq(transition_run(rig.transition, PHASE_PREFILL, &err), STATUS_OK);
            transition_destroy(rig.transition);
        }
        cr_assert_eq(memory_counters_get().live_count, live, "allocation %llu leaks",
                     (unsigned long long)n);
    }
    cr_assert_gt(refused, 4);
    cr_assert_eq(went_on > 0, params->is_auto, "%s: %lld went on",
                 params->is_auto ? "auto" : way_names[params->way], (long long)went_on);
    rig.transition = NULL;
    rig_close(&rig);
}

Test(transition_faults, A26_any_allocation_may_fail)
{
    struct cold cold;
    cold_open(&cold, &cases[1]);
    for (int way = 0; way < WAY_COUNT; way++) {
        struct rig_params params = cases[1];
        params.way = (enum way)way;
        allocations_fail(&params, &cold);
    }
    struct rig_params choice = cases[1];
    choice.is_auto = true;
    choice.has_backup = true;
    allocations_fail(&choice, &cold);
    for (int way = 0; way < WAY_COUNT; way++) {
        struct rig_params packed = cases[1];
        packed.plan = "tp2|tp2>ep2:int4";
        packed.way = (enum way)way;
        if (rig_can(&packed, packed.way))
            allocations_fail(&packed, &cold);
    }
    cold_close(&cold);
}

/* ---- The device fails, or does not come -------------------------------------------------------
 */

/* Ranks beside one that hangs. */
struct others {
    const struct rig *rig;
    int rank;
    uint64_t moved[COMM_RANKS_MAX]; /* before */
};

static uint64_t moved_by(const struct rig *rig, int rank)
{
    return atomic_load(&box_domain(rig->runner.box)->ranks[rank].moved);
}

static void others_init(struct others *out, const struct rig *rig, int rank)
{
    *out = (struct others){.rig = rig, .rank = rank};
    for (int r = 0; r < rig->transition->rank_count; r++)
        out->moved[r] = moved_by(rig, r);
}

/* It has written its slice of the layer, or waits for another within it. */
static bool is_through(const struct others *others, int rank)
{
    struct transition *transition = others->rig->transition;
    transition_lock(transition);
    bool is_filling = transition->ranks[rank].is_filling;
    transition_unlock(transition);
    return (!is_filling && moved_by(others->rig, rank) > others->moved[rank]) ||
           rank_waits(box_domain(others->rig->runner.box), rank);
}

static bool are_others_through(void *context)
{
    const struct others *others = context;
    bool are_all = true;
    for (int r = 0; r < others->rig->transition->rank_count; r++)
        are_all &= r == others->rank || is_through(others, r);
    return are_all;
}

/* Whichever. */
static bool is_one_left(const struct others *others)
{
    int left = 0;
    for (int r = 0; r < others->rig->transition->rank_count; r++)
        left += !is_through(others, r);
    return left == 1;
}

/* Returns whether there was an n-th operation. The clock stands, but for an operation that hangs.
 */
static bool operation_fails(const struct rig_params *base, enum way way, enum fault_kind kind,
                            bool is_beside, int64_t n, const struct cold *cold)
{
    struct rig_params params = *base;
    struct rig rig;
    struct error err;
    char label[160], who[32];
    int rank = (int)(n % params.rank_count);
    snprintf(label, sizeof label, "%s, %s by %s%s, operation %lld of rank %d", params.model,
             params.plan, way_names[way], is_beside ? " beside passes" : "", (long long)n, rank);
    snprintf(who, sizeof who, "rank %d", rank);
    params.way = way;
    params.patience_seconds = 0.5;
    clock_hold();
    rig_load(&rig, &params);
    struct device *device = box_device(rig.runner.box, rank);
    faulty_device_install(device, kind);
    /* For a rank that is late nobody may be waiting when it lets a layer go, or poisons it. */
    if (kind == FAULT_HANG)
        faulty_device_spare(sizeof(void *) + sizeof(int64_t));
    cr_assert_eq(rig_start(&rig, &params, &err), STATUS_OK);
    struct others others;
    others_init(&others, &rig, rank);
    faulty_device_hang(box_domain(rig.runner.box), are_others_through, &others);
    faulty_device_arm(n);
    enum status status = rig_move(&rig, rig.transition, PHASE_DECODE, is_beside, &err);
    bool failed = faulty_device_has_failed(), is_busy = faulty_device_is_busy();
    faulty_device_remove(device);
    int64_t changed = rig_check(&rig, cold, PHASE_DECODE, label);
    cr_assert_eq(status == STATUS_OK, !failed, "%s", label);
    /* What it works with may go. */
    cr_assert_not(is_busy, "%s: something goes on", label);
    if (status != STATUS_OK) {
        cr_assert_not_null(strstr(err.message, who), "%s: %s", label, err.message);
        /* Beside passes it may be the pass that hears of it first. */
        if (!is_beside)
            cr_assert_not_null(strstr(err.message, "changing the layout of its experts"), "%s",
                               err.message);
        /* The last operations are the poison of a freed slot, behind the last swap. */
        cr_assert_leq(changed, rig_moe_layers(&rig), "%s", label);
    }
    rig_close(&rig);
    return failed;
}

static void sweep_way(const struct rig_params *base, enum way way, enum fault_kind kind,
                      bool is_beside, uint64_t quick_step, const struct cold *cold)
{
    uint64_t step = rig_sweep_step(quick_step), n = sweep_first(step);
    uint64_t live = memory_counters_get().live_count;
    while (operation_fails(base, way, kind, is_beside, (int64_t)n, cold)) {
        cr_assert_eq(memory_counters_get().live_count, live);
        n += step;
    }
    cr_assert_gt(n, 2);
}

static void sweep(enum fault_kind kind, bool is_beside, uint64_t quick_step)
{
    static const enum way in_place[] = {WAY_RESHARD, WAY_RELOAD, WAY_UPLOAD, WAY_MIXED};
    for (size_t i = 0; i < 2; i++) {
        struct cold cold;
        cold_open(&cold, &cases[i]);
        for (size_t w = 0; w < sizeof in_place / sizeof *in_place; w++)
            sweep_way(&cases[i], in_place[w], kind, is_beside, quick_step, &cold);
        struct rig_params packed = cases[i];
        packed.plan = i == 0 ? "dp4|ep4>tp4:int4" : "tp2|tp2>ep2:int4";
        sweep_way(&packed, WAY_UPLOAD, kind, is_beside, 7 * quick_step, &cold);
        cold_close(&cold);
    }
}

Test(transition_faults, A27_any_operation_may_fail)
{
    sweep(FAULT_STREAM, false, 3);
}

Test(transition_faults, A27_any_operation_may_fail_beside_passes)
{
    sweep(FAULT_STREAM, true, 3);
}

Test(transition_faults, A27_any_host_thread_may_fail)
{
    sweep(FAULT_HOST, false, 2);
}

Test(transition_faults, A27_any_host_thread_may_fail_beside_passes)
{
    sweep(FAULT_HOST, true, 2);
}

Test(transition_faults, A29_a_rank_that_does_not_come)
{
    struct cold cold;
    cold_open(&cold, &cases[0]);
    for (int beside = 0; beside < 2; beside++) {
        for (int64_t n = 1; n <= 1 + 2 * beside; n += 2) {
            cr_assert(operation_fails(&cases[0], WAY_RESHARD, FAULT_HANG, beside, n, &cold));
            /* In which ranks need nothing of one another. */
            cr_assert(operation_fails(&cases[0], WAY_RELOAD, FAULT_HANG, beside, n, &cold));
        }
    }
    cold_close(&cold);
}

/* Reads hang until it is told: of one worker, or of all as on a disk that is gone. The box ends
 * when they return; the layer is the old one, and no more of it is read. Time passes once nothing
 * else is read any more. */
static struct {
    struct others others;
    atomic_int *told;
    long long all; /* that hang */
} hung;

static void hang(void)
{
    struct comm_domain *domain = box_domain(hung.others.rig->runner.box);
    bool is_first = atomic_fetch_add(&hanging, 1) == 0;
    while (atomic_load(hung.told) == 0) {
        if (is_first && atomic_load(&hanging) >= hung.all &&
            (hung.all > 1 || is_one_left(&hung.others)))
            clock_advance(comm_domain_poll_seconds(domain));
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
}

static int worker_count(const struct rig *rig)
{
    int count = 0;
    for (int r = 0; r < rig->transition->rank_count; r++) {
        const struct device *device = box_device(rig->runner.box, r);
        count += device->ops->host_workers(device);
    }
    return count;
}

Test(transition_faults, A29_a_read_that_hangs)
{
    static const struct {
        enum way way;
        int64_t hanging; /* reads: one; 0: all workers'; or all threads' */
        int64_t behind;  /* at most: what is left of the pieces that hung; or what upload had
                          * asked for, of that layer and the next: 32 buffers of each rank */
    } hangs[] = {{WAY_RELOAD, 1, 8},
                 {WAY_RELOAD, 0, 8},
                 {WAY_UPLOAD, 1, 32 * 4 - 1},
                 {WAY_UPLOAD, 8 * 4, 32 * 4 - 8 * 4}};
    struct cold cold;
    clock_hold();
    cold_open(&cold, &cases[0]);
    for (size_t h = 0; h < sizeof hangs / sizeof *hangs; h++) {
        char by[32];
        struct warnings heard = {0};
        struct rig_params params = cases[0];
        struct rig rig;
        struct error err;
        params.way = hangs[h].way;
        params.patience_seconds = 0.5;
        params.log = rig_hear(&heard);
        params.uring = &rig_no_uring;
        snprintf(by, sizeof by, "by %s: rank ", way_names[params.way]);
        rig_open(&rig, &params);
        heard.count = 0; /* that there is no io_uring */
        others_init(&hung.others, &rig, -1);
        hung.told = &heard.count;
        hung.all = hangs[h].hanging > 0 ? hangs[h].hanging : worker_count(&rig);
        atomic_store(&hanging, 0);
        atomic_store(&hung_count, 0);
        atomic_store(&reads_behind, 0);
        atomic_store(&hangs_left, hung.all);
        enum status status = transition_run(rig.transition, PHASE_DECODE, &err);
        atomic_store(&hangs_left, 0);
        atomic_store(&hung_count, 0);
        printf("%s: %lld reads hung, %lld behind them\n", way_names[params.way], hung.all,
               (long long)atomic_load(&reads_behind));
        cr_assert_leq(atomic_load(&reads_behind), hangs[h].behind);
        cr_assert_neq(status, STATUS_OK);
        cr_assert_eq(heard.count, 1);
        cr_assert_not_null(strstr(heard.last, "rank "), "%s", heard.last);
        cr_assert_not_null(strstr(err.message, by), "%s", err.message);
        cr_assert_not_null(strstr(err.message, "no rank has moved for 0.5 seconds"), "%s",
                           err.message);
        cr_assert_lt(rig_check(&rig, &cold, PHASE_DECODE, "a read hangs"), rig_moe_layers(&rig));
        rig_close(&rig);
    }
    cold_close(&cold);
}

/* A disk that is slow, but moves, is waited for, far beyond the patience. */
Test(transition_faults, A29_slow_reads_are_waited_for)
{
    struct warnings heard = {0};
    struct rig_params params = cases[1];
    struct rig rig;
    struct error err;
    params.way = WAY_RELOAD;
    params.patience_seconds = 0.8;
    params.log = rig_hear(&heard);
    clock_hold();
    rig_open(&rig, &params);
    double start = system_seconds();
    atomic_store(&slow_left, 4000);
    cr_assert_eq(transition_run(rig.transition, PHASE_DECODE, &err), STATUS_OK, "%s", err.message);
    cr_assert_gt(system_seconds() - start, 2 * params.patience_seconds);
    cr_assert_eq(heard.count, 0, "%s", heard.last);
    rig_close(&rig);
}
