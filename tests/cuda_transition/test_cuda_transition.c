/* Changes of layout on GPUs whose calls fail. What else they hold are the CPU's tests
 * (tests/transition). */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/mempolicy.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "change_faults.h"
#include "device/peers.h"
#include "gpu.h"
#include "numa_fake.h"
#include "rig.h"
#include "simt_control.h"
#include "sweep.h"
#include "transition/granule_reader.h"
#include "transition/transition_state.h"

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

/* ---- Halves of what upload holds --------------------------------------------------------------
 */

/* How often ranks wait for their streams, and run work on them. */
static struct {
    struct device_ops ops;
    const struct device_ops *real;
    atomic_int synchronized, waited, waited_for_last, called;
} counted;

/* The half that was added to last is not to be waited for: the device would have nothing to do. */
static _Atomic(struct event *) recorded[COMM_RANKS_MAX];
static struct transition *counted_of;

static void note_record(struct stream *stream, struct event *event)
{
    for (int r = 0; r < counted_of->rank_count; r++) {
        if (counted_of->ranks[r].stream == stream)
            atomic_store(&recorded[r], event);
    }
    counted.real->event_record(stream, event);
}

static enum status count_synchronize(struct stream *stream, struct error *err)
{
    atomic_fetch_add(&counted.synchronized, 1);
    return counted.real->synchronize(stream, err);
}

static enum status count_wait(struct event *event, struct error *err)
{
    atomic_fetch_add(&counted.waited, 1);
    for (int r = 0; r < counted_of->rank_count; r++)
        atomic_fetch_add(&counted.waited_for_last, atomic_load(&recorded[r]) == event);
    return counted.real->event_synchronize(event, err);
}

static void count_call(struct stream *stream,
                       enum status (*work)(void *argument, struct error *err), const void *argument,
                       size_t bytes)
{
    atomic_fetch_add(&counted.called, 1);
    counted.real->call(stream, work, argument, bytes);
}

static void count_from_here(const struct rig *rig)
{
    counted.real = rig->transition->ranks[0].ops;
    counted.ops = *counted.real;
    counted.ops.synchronize = count_synchronize;
    counted.ops.event_synchronize = count_wait;
    counted.ops.call = count_call;
    counted.ops.event_record = note_record;
    counted_of = rig->transition;
    counted.synchronized = counted.waited = counted.waited_for_last = counted.called = 0;
    for (int r = 0; r < rig->transition->rank_count; r++)
        rig->transition->ranks[r].ops = &counted.ops;
}

/* Each device has its own operations. */
static void count_no_more(struct transition *transition)
{
    for (int r = 0; r < transition->rank_count; r++)
        transition->ranks[r].ops = transition->ranks[r].device->ops;
}

#define HALF 8 /* granules, where they are small */

/* Many granules to a layer: each half is held several times. */
static struct rig_params halves_case(int index)
{
    struct rig_params params = base;
    params.plan = index == 1 ? "tp2|tp2>ep2:int4" : "tp2|tp2>ep2";
    params.settings.has_zstd = index == 2;
    params.way = WAY_UPLOAD;
    params.leaves_freed = true; /* to overwrite them is no upload's work */
    return params;
}

/* Whatever the GPU has come to when the host reads on: nothing is written over that it still needs.
 * The host waits for halves alone, and for the stream at the end of a layer, or where another one
 * is used from there on; and it checks granules itself. */
static void check_halves(const struct rig_params *params, const struct cold *cold, uint64_t seed)
{
    struct rig rig;
    struct error err;
    char label[80];
    rig_open(&rig, params);
    simt_stream_seed_set(seed);
    for (int is_beside = 0; is_beside < 2; is_beside++) {
        snprintf(label, sizeof label, "%s, seed %d%s", params->plan, (int)seed,
                 is_beside ? ", beside passes" : "");
        count_from_here(&rig);
        cr_assert_eq(rig_move(&rig, rig.transition, PHASE_DECODE, is_beside, &err), STATUS_OK,
                     "%s: %s", label, err.message);
        int slices = rig.transition->rank_count * (int)rig_moe_layers(&rig);
        int pieces = (int)ways[WAY_UPLOAD]->piece_count(&rig.transition->ranks[0], 0, PHASE_DECODE);
        int streams = is_beside ? 2 : 1;
        cr_assert_geq(pieces, 4 * HALF);
        cr_assert_geq(counted.synchronized, slices, "%s", label);
        cr_assert_leq(counted.synchronized, streams * slices, "%s", label);
        /* For the trace, and the passes' releases. */
        cr_assert_leq(counted.called, (streams + is_beside) * slices, "%s", label);
        cr_assert_leq(counted.waited, (pieces - 1) / HALF * slices, "%s", label);
        cr_assert_eq(counted.waited_for_last, 0, "%s", label);
        cr_assert(is_beside || counted.waited == (pieces - 1) / HALF * slices, "%s", label);
        count_no_more(rig.transition);
        cr_assert_eq(rig_check(&rig, cold, PHASE_DECODE, label), rig_moe_layers(&rig), "%s", label);
        cr_assert_eq(transition_run(rig.transition, PHASE_PREFILL, &err), STATUS_OK);
    }
    simt_stream_seed_set(0);
    rig_close(&rig);
}

Test(cuda_transition, a_half_of_what_is_held_is_checked_while_the_other_is_copied)
{
    for (int index = 0; index < 3; index++) {
        struct rig_params params = halves_case(index);
        struct cold cold;
        cold_open(&cold, &params);
        for (uint64_t seed = 0; seed < 3; seed++)
            check_halves(&params, &cold, seed);
        cold_close(&cold);
    }
}

static uint64_t unpacked_bytes;

static enum status count_unpacked(struct device *device, void **out, size_t bytes, const char *what,
                                  struct error *err)
{
    if (strcmp(what, "the experts' backup") == 0)
        unpacked_bytes += bytes;
    return counted.real->host_memory_get(device, out, bytes, what, err);
}

/* What is unpacked on the host is in two halves, too. */
Test(cuda_transition, upload_takes_as_much_of_the_host_as_it_says)
{
    for (int index = 0; index < 3; index++) {
        struct rig_params params = halves_case(index);
        struct rig rig;
        struct error err;
        uint64_t said = 0;
        const struct device_ops *own[COMM_RANKS_MAX];
        rig_load(&rig, &params);
        counted.real = box_device(rig.runner.box, 0)->ops;
        counted.ops = *counted.real;
        counted.ops.host_memory_get = count_unpacked;
        unpacked_bytes = 0;
        for (int r = 0; r < params.rank_count; r++) {
            own[r] = box_device(rig.runner.box, r)->ops;
            box_device(rig.runner.box, r)->ops = &counted.ops;
        }
        cr_assert_eq(rig_start(&rig, &params, &err), STATUS_OK, "%s", err.message);
        for (int r = 0; r < params.rank_count; r++) {
            said += rig_host_memory_said(&rig, r) -
                    granule_reader_bytes(backup_form(rig.backup), 2 * HALF);
            box_device(rig.runner.box, r)->ops = own[r];
        }
        count_no_more(rig.transition);
        cr_assert_eq(unpacked_bytes, said, "case %d: %" PRIu64 " bytes, not %" PRIu64, index,
                     unpacked_bytes, said);
        cr_assert_eq(said > 0, params.settings.has_zstd);
        rig_close(&rig);
    }
}

/* Another bit in one of the last layer's granules. */
static void damage(const struct rig *rig)
{
    const struct backup_form *form = backup_form(rig->backup);
    int64_t number = backup_granule(form, rig_moe_layers(rig) - 1, 1, 7);
    off_t at = (off_t)backup_granule_offset(rig->backup, number) + 1;
    int fd = open(rig->backup_path, O_RDWR | O_CLOEXEC);
    char byte;
    cr_assert_eq(pread(fd, &byte, 1, at), 1);
    byte ^= 4;
    cr_assert_eq(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

/* Nobody has the layer, and what was put on the stream before is not left there: another way may
 * write to the same target, and others be read to what it was copied from. */
Test(cuda_transition, a_damaged_granule_is_refused_when_the_stream_is_empty)
{
    struct rig_params params = halves_case(0);
    struct cold cold;
    struct rig rig;
    struct error err;
    cold_open(&cold, &params);
    rig_open(&rig, &params);
    damage(&rig);
    count_from_here(&rig);
    cr_assert_eq(transition_run(rig.transition, PHASE_DECODE, &err), STATUS_FORMAT);
    cr_assert_not_null(strstr(err.message, "is damaged"), "%s", err.message);
    cr_assert_eq(counted.synchronized, rig.transition->rank_count * (int)rig_moe_layers(&rig));
    count_no_more(rig.transition);
    damage(&rig); /* mends it */
    cr_assert_eq(rig_check(&rig, &cold, PHASE_DECODE, "damaged"), rig_moe_layers(&rig) - 1);
    rig_close(&rig);
    cold_close(&cold);
}

/* Each rank's own stream is lent in the middle of its slice of a layer, from when that is said. */
static atomic_bool lends;
static int64_t dequantized[COMM_RANKS_MAX], dequantized_of_a_layer;
static struct transition *lender;

static void lend_and_dequantize(struct stream *stream, const struct op_dequantize *op)
{
    counted.real->dequantize(stream, op);
    for (int r = 0; r < lender->rank_count; r++) {
        struct transition_rank *rank = &lender->ranks[r];
        if (rank->stream != stream)
            continue;
        int64_t n = ++dequantized[r] % dequantized_of_a_layer;
        if (!atomic_load(&lends) || (n != 0 && n != dequantized_of_a_layer / 3))
            continue;
        transition_lock(lender);
        rank->awaits = n == 0 ? AWAITS_NONE : AWAITS_ALL;
        transition_unlock(lender);
    }
}

Test(cuda_transition, what_is_on_the_stream_beside_is_there_when_another_is_lent)
{
    struct rig_params params = halves_case(0);
    struct cold cold;
    struct rig rig;
    struct error err;
    cold_open(&cold, &params);
    rig_open(&rig, &params);
    lender = rig.transition;
    count_from_here(&rig);
    counted.ops.dequantize = lend_and_dequantize;
    dequantized_of_a_layer = 3 * ways[WAY_UPLOAD]->piece_count(&lender->ranks[0], 0, PHASE_DECODE);
    transition_start(lender, PHASE_DECODE);
    for (int r = 0; r < lender->rank_count; r++) {
        struct device *device = box_device(rig.runner.box, r);
        for (int64_t layer = 0; layer < rig.shape.layer_count; layer++)
            transition_release(lender, r, layer);
        cr_assert_eq(device->ops->synchronize(device->stream, &err), STATUS_OK);
    }
    atomic_store(&lends, true);
    while (transition_is_under_way(lender))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    atomic_store(&lends, false);
    count_no_more(lender);
    cr_assert_eq(rig_check(&rig, &cold, PHASE_DECODE, "lent"), rig_moe_layers(&rig));
    cr_assert_gt(counted.synchronized, lender->rank_count * (int)rig_moe_layers(&rig));
    rig_close(&rig);
    cold_close(&cold);
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
        cr_assert_geq(failed * step, is_keep ? 6 : 100, "%s", fault.name);
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
