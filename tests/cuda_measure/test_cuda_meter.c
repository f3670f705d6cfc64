/* What the clock sees of a GPU: that its kernels have run, not that they were launched. The clock
 * counts kernels here, a thousandth of a second each. What else is measured: tests/measure. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdatomic.h>
#include <time.h>

#include "base/system.h"
#include "gpu.h"
#include "measure/meter.h"
#include "simt_control.h"

TestSuite(cuda_meter, .timeout = 120);

#define KERNEL_SECONDS 1e-3
#define RANK_BYTES     ((uint64_t)8 << 20)

static bool counts_kernels;

/* In place of system_seconds, by the linker. */
double __real_system_seconds(void);
double __wrap_system_seconds(void);

double __wrap_system_seconds(void)
{
    return counts_kernels ? (double)simt_kernel_count() * KERNEL_SECONDS : __real_system_seconds();
}

struct rig {
    struct box *box;
    struct meter *meter;
};

static void rig_open(struct rig *rig, int rank_count, const int *gpus, double sample_seconds)
{
    struct error err;
    const struct box_params box = {.rank_count = rank_count, .gpus = gpus};
    cr_assert_eq(box_open(&rig->box, &box, &err), STATUS_OK, "%s", err.message);
    struct meter_params params = meter_params_default(rig->box, RANK_BYTES * (uint64_t)rank_count);
    params.sample_seconds = sample_seconds;
    params.shares_cores = rank_count > 1;
    cr_assert_eq(meter_create(&rig->meter, &params, &err), STATUS_OK, "%s", err.message);
    counts_kernels = true;
}

static void rig_close(struct rig *rig)
{
    counts_kernels = false;
    meter_destroy(rig->meter);
    box_close(rig->box);
    gpu_check_nothing_left();
}

static const struct {
    const char *name;
    struct work_shape work;
    int kernels;
} works[] = {
    {"matmul", {WORK_MATMUL, DTYPE_BF16, {3, 64, 64}}, 1},
    {"up", {WORK_FFN_UP, DTYPE_BF16, {5, 2, 48, 64}}, 1},
    {"down", {WORK_FFN_DOWN, DTYPE_INT4, {8, 2, 48, 64}}, 1},
    {"norm and sum", {WORK_ROWS, DTYPE_F32, {4, 64}}, 2},
    {"dequantize", {WORK_DEQUANTIZE, DTYPE_INT4, {1000}}, 1},
};

/* One launch in a sample, and some. */
Test(cuda_meter, times_are_of_kernels_that_have_run)
{
    static const int gpu;
    for (int launches = 1; launches <= 8; launches += 7) {
        struct rig rig;
        rig_open(&rig, 1, &gpu, launches * KERNEL_SECONDS);
        for (size_t i = 0; i < sizeof works / sizeof *works; i++) {
            struct measured found;
            struct error err;
            cr_assert_eq(meter_work(&found, rig.meter, &works[i].work, &err), STATUS_OK, "%s: %s",
                         works[i].name, err.message);
            cr_expect(fabs(found.seconds - works[i].kernels * KERNEL_SECONDS) < 1e-9, "%s: %g s",
                      works[i].name, found.seconds);
        }
        rig_close(&rig);
    }
}

/* Ranks on one GPU take its time from each other: a launch of each has run. */
Test(cuda_meter, of_ranks_on_one_gpu_all_count)
{
    static const int gpus[2];
    struct rig rig;
    struct measured found;
    struct error err;
    rig_open(&rig, 2, gpus, KERNEL_SECONDS);
    cr_assert_eq(meter_work(&found, rig.meter, &works[0].work, &err), STATUS_OK, "%s", err.message);
    cr_expect(fabs(found.seconds - 2 * KERNEL_SECONDS) < 1e-9, "%g s", found.seconds);
    rig_close(&rig);
}

/* ---- Copies beside exchanges -----------------------------------------------------------------
 */

/* A rank whose stream comes late: until it has, or somebody has not waited for it. */
static struct {
    struct device_ops ops;
    const struct device_ops *real;
    struct box *box;
    atomic_bool has_come, is_missed;
} late;

#define LATE_RANK 1
#define LATE_MS   200

static enum status come_late(void *argument, struct error *err)
{
    (void)argument, (void)err;
    for (int ms = 0; ms < LATE_MS && !atomic_load(&late.is_missed); ms++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    atomic_store(&late.has_come, true);
    return STATUS_OK;
}

static enum status look_for_late(void *argument, struct error *err)
{
    (void)argument, (void)err;
    if (!atomic_load(&late.has_come))
        atomic_store(&late.is_missed, true);
    return STATUS_OK;
}

static enum status create_and_be_late(struct device *device, struct stream **out,
                                      enum stream_priority priority, struct error *err)
{
    if (device == box_device(late.box, LATE_RANK))
        late.real->call(device->stream, come_late, NULL, 0);
    return late.real->stream_create(device, out, priority, err);
}

/* Of a stream beside the device's own. */
static void call_and_look(struct stream *stream,
                          enum status (*work)(void *argument, struct error *err),
                          const void *argument, size_t bytes)
{
    bool is_own = false;
    for (int r = 0; r <= LATE_RANK; r++)
        is_own = is_own || stream == box_device(late.box, r)->stream;
    if (!is_own)
        late.real->call(stream, look_for_late, NULL, 0);
    late.real->call(stream, work, argument, bytes);
}

/* The copies are timed from when the streams of all ranks have come: before that nobody exchanges.
 */
Test(cuda_meter, copies_begin_when_all_ranks_have_come)
{
    static const int gpus[LATE_RANK + 1];
    const struct device_ops *own[LATE_RANK + 1];
    struct rig rig;
    struct error err;
    double rate;
    rig_open(&rig, LATE_RANK + 1, gpus, 1e-4);
    counts_kernels = false;
    late.box = rig.box;
    late.real = box_device(rig.box, 0)->ops;
    late.ops = *late.real;
    late.ops.stream_create = create_and_be_late;
    late.ops.call = call_and_look;
    for (int r = 0; r <= LATE_RANK; r++) {
        own[r] = box_device(rig.box, r)->ops;
        box_device(rig.box, r)->ops = &late.ops;
    }
    cr_assert_eq(meter_host_to_device_busy(&rate, rig.meter, 1e9, &err), STATUS_OK, "%s",
                 err.message);
    for (int r = 0; r <= LATE_RANK; r++)
        box_device(rig.box, r)->ops = own[r];
    cr_assert(late.has_come);
    cr_assert(!late.is_missed, "copies began before a rank had come");
    rig_close(&rig);
}
