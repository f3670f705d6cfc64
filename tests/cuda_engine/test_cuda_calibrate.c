/* Calibrations of emulated GPUs: what comes of them, and what a call of CUDA that fails leaves. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "cuda_profile.h"
#include "engine/calibrate_store.h"
#include "gpu.h"
#include "planner/pass_cost.h"
#include "simt_control.h"
#include "sweep.h"
#include "wave_tools.h"

/* Of all tests of this program. */
__attribute__((constructor)) static void close_seldom(void)
{
    simt_close_every(16);
}

TestSuite(cuda_calibrate, .timeout = 1200);

static bool exists(const char *path)
{
    struct stat about;
    return lstat(path, &about) == 0;
}

/* ---- What comes of it ------------------------------------------------------------------------ */

#if CUDART_VERSION >= 12050
#define PART_OF_2 ", 2 of 4 multiprocessors"
#else
#define PART_OF_2 ""
#endif

static const struct {
    const char *devices, *gpus;
    int collectives; /* tables */
    double sharing;
} boxes[] = {
    {"cuda:0", "emulated GPU (sm_75)", 0, 1},
    {"cuda:0x2", "emulated GPU (sm_75" PART_OF_2 ")", 5, 2},
    {"cuda:0-3", "4 x emulated GPU (sm_75)", 15, 1},
    {"cuda:0x2,1x2", "2 x emulated GPU (sm_75" PART_OF_2 ")", 15, 2},
};

static void is_positive(double seconds, const char *what)
{
    cr_assert(isfinite(seconds) && seconds > 0, "%s: %g", what, seconds);
}

/* Everything that the planner asks for has a time: the operations of the plan, and each collective
 * of each group. */
static void check_times(const struct profile *profile, int ranks)
{
    for (int g = 0; g < cuda_profile_plan.grid_count; g++) {
        const struct work_shape *work = &cuda_profile_plan.grids[g].most_flops;
        is_positive(profile_work_seconds(profile, work), "work");
    }
    for (int op = GROUP_ALL_GATHER; op <= GROUP_ALL_TO_ALL; op++) {
        for (int size = 2; size <= ranks; size *= 2) {
            for (int strided = 0; strided <= (size < ranks); strided++)
                is_positive(profile_collective_seconds(profile, (enum group_op)op, size,
                                                       strided == 1, 1000),
                            "collective");
        }
    }
}

Test(cuda_calibrate, gives_a_profile_of_the_gpus)
{
    gpu_count_use(4);
    gpu_capability_use(75);
    for (size_t i = 0; i < sizeof boxes / sizeof *boxes; i++) {
        const char *path = tools_path(tools_folder(), "box.json");
        struct calibrate_report report;
        struct profile_file file;
        struct profile_identity here;
        struct error err;
        char devices[ENGINE_DEVICES_BYTES];
        uint64_t kernels = simt_kernel_count();
        cuda_profile_measure(&report, path, boxes[i].devices);
        cr_expect_geq(simt_kernel_count() - kernels, report.points_measured);
        cr_expect_not(exists(tools_path(tools_folder(), "box.json.partial")));
        cr_assert_eq(profile_file_read(&file, path, &err), STATUS_OK, "%s", err.message);
        cr_assert_eq(profile_identity_of(&here, &file.identity.devices, 0, &err), STATUS_OK);
        cr_expect_eq(profile_identity_fit(&file.identity, &here, &err), PROFILE_FITS, "%s",
                     err.message);
        engine_devices_format(devices, &file.identity.devices);
        cr_expect_str_eq(devices, boxes[i].devices);
        cr_expect_str_eq(file.identity.gpus, boxes[i].gpus);
        cr_expect_str_eq(file.identity.kernels, "cuda (sm_75)");
        cr_expect_eq(file.identity.memory_bytes, ((uint64_t)16 << 30) / (uint64_t)boxes[i].sharing);
        cr_expect_eq(file.profile.sharing, boxes[i].sharing);
        cr_expect_eq(file.profile.work_count, cuda_profile_plan.grid_count);
        cr_expect_eq(file.profile.collective_count, boxes[i].collectives);
        is_positive(file.profile.host_to_device - PROFILE_NO_RATE, "host to device");
        is_positive(file.profile.host_to_device_busy, "host to device while ranks exchange");
        is_positive(file.profile.host_step, "step");
        check_times(&file.profile, file.identity.devices.rank_count);
        profile_file_deinit(&file);
        gpu_check_nothing_left();
    }
}

/* What is measured lies in the GPUs' memory: a share of what is left there, whatever the host has.
 */
Test(cuda_calibrate, memory_is_that_of_the_gpus)
{
    static const struct engine_devices devices = {.rank_count = 2, .cuda = true, .gpus = {0, 1}};
    struct calibrate_params params = {.output_path = tools_path(tools_folder(), "box.json"),
                                      .devices = devices,
                                      .plan = &cuda_profile_plan};
    struct calibrate_report report;
    struct error err;
    gpu_count_use(2);
    simt_global_bytes_set((size_t)12 << 20);
    cr_assert_eq(calibrate_run(&report, &params, &err), STATUS_NO_MEMORY);
    cr_expect_not_null(strstr(err.message, "too little to measure 2 devices"), "%s", err.message);
    simt_global_bytes_set((size_t)32 << 20);
    cr_assert_eq(calibrate_run(&report, &params, &err), STATUS_OK, "%s", err.message);
    gpu_check_nothing_left();
}

/* What a run without parts would not have, a profile with them does not say, and the reverse. */
Test(cuda_calibrate, a_profile_with_parts_is_foreign_where_there_are_none)
{
#if CUDART_VERSION >= 12050
    static const struct engine_devices devices = {.rank_count = 2, .cuda = true};
    struct profile_identity with, without;
    struct error err;
    cr_assert_eq(profile_identity_of(&with, &devices, 0, &err), STATUS_OK, "%s", err.message);
    simt_multiprocessors_set(2); /* too few for two */
    cr_assert_eq(profile_identity_of(&without, &devices, 0, &err), STATUS_OK, "%s", err.message);
    cr_expect_str_eq(without.gpus, "emulated GPU (sm_75)");
    cr_expect_eq(profile_identity_fit(&with, &without, &err), PROFILE_FOREIGN);
    cr_expect_not_null(strstr(err.message, "2 of 4 multiprocessors"), "%s", err.message);
    cr_expect_eq(profile_identity_fit(&without, &with, &err), PROFILE_FOREIGN);
#endif
}

Test(cuda_calibrate, gpus_that_are_not_there)
{
    struct phasor_calibrate_params params = phasor_calibrate_params_default();
    struct phasor_error err;
    char *path;
    params.devices = "cuda:0-1";
    params.output_path = tools_path(tools_folder(), "box.json");
    cr_expect_eq(phasor_calibrate(&params, NULL, &err), PHASOR_UNSUPPORTED);
    cr_expect_not_null(strstr(err.message, "there is no cuda:1"), "%s", err.message);
    cr_expect_not(exists(params.output_path));
    cr_expect_eq(phasor_profile_path(&path, &params, &err), PHASOR_UNSUPPORTED);
    gpu_count_use(2);
    cr_assert_eq(setenv("PHASOR_CACHE", "/c", 1), 0);
    cr_assert_eq(phasor_profile_path(&path, &params, &err), PHASOR_OK, "%s", err.message);
    cr_expect_eq(strncmp(path, "/c/profile-cuda2-", 17), 0, "%s", path);
    phasor_text_free(path);
}

/* ---- What fails ------------------------------------------------------------------------------ */

/* As little as there is of each kind: some thousand calls of CUDA. */
#define LEAST(kind_, dtype_, ...)                                                                  \
    {                                                                                              \
        .kind = (kind_), .dtype = (dtype_), .points_max = 1, .segments_max = 1, .tokens_max = 1,   \
        .most_flops = {(kind_), (dtype_), {__VA_ARGS__}},                                          \
        .most_bytes = {(kind_), (dtype_), {__VA_ARGS__}},                                          \
        .least = {(kind_), (dtype_), {__VA_ARGS__}},                                               \
    }

static const struct grid least_grids[] = {
    LEAST(WORK_FFN_UP, DTYPE_BF16, 1, 1, 16, 16),
    LEAST(WORK_ATTENTION, DTYPE_BF16, 1, 1, 1, 1, 1, 32),
    LEAST(WORK_ROWS, DTYPE_F32, 1, 16),
};

static const int64_t least_bytes[] = {64};

static const struct calibrate_plan least_plan = {
    .grids = least_grids,
    .grid_count = 3,
    .collective_bytes = least_bytes,
    .collective_count = 1,
    .collective_points_max = 1,
    .launch_seconds = 1e6,
    .tolerance = 1e6,
    .point_seconds = 1e-9,
    .sample_seconds = 1e-9,
};

/* Returns whether the n-th call came. What was measured before is gone on with. */
static bool call_fails(uint64_t n, const char *devices)
{
    const char *path = tools_path(tools_folder(), "box.json");
    struct calibrate_report report = {.points_measured = 0};
    struct error err = {.message = ""};
    struct calibrate_params params = cuda_profile_params(path, devices, &least_plan);
    uint64_t host = memory_counters_get().live_count;
    simt_stream_seed_set(n % 4);
    simt_fail_at(n, cudaErrorUnknown);
    enum status status = calibrate_run(&report, &params, &err);
    bool came = !simt_fail_is_ahead();
    simt_fail_at(0, cudaSuccess);
    cr_assert(came || status == STATUS_OK, "%s, call %" PRIu64 ": %s", devices, n, err.message);
    cr_assert(status == STATUS_OK || strstr(err.message, "cuda:") != NULL,
              "%s, call %" PRIu64 ": %s", devices, n, err.message);
    cr_assert_eq(exists(path), status == STATUS_OK, "%s, call %" PRIu64, devices, n);
    gpu_check_nothing_left();
    cr_assert_eq(memory_counters_get().live_count, host, "%s, call %" PRIu64, devices, n);
    if (status != STATUS_OK)
        cr_assert_eq(calibrate_run(&report, &params, &err), STATUS_OK, "%s, call %" PRIu64 ": %s",
                     devices, n, err.message);
    cr_assert_eq(remove(path), 0);
    return came;
}

Test(cuda_calibrate, each_call_of_cuda_may_fail)
{
    static const char *const devices[] = {"cuda:0", "cuda:0x2", "cuda:0-1"};
    gpu_count_use(2);
    for (int i = 0; i < 3; i++) {
        uint64_t step = sweep_step(97), n = sweep_first(step);
        while (call_fails(n, devices[i]))
            n += step;
        printf("%s: %" PRIu64 " calls of CUDA, one in %" PRIu64 "\n", devices[i], n - step, step);
        cr_assert_gt(n, 100);
    }
}

/* Of warnings that the ranks have other parts than they were to have. */
struct warned {
    int count;
    char last[1024];
};

static void on_log(void *context, enum log_level level, const char *message)
{
    struct warned *warned = context;
    if (level != LOG_WARNING || strstr(message, "the ranks were to be on emulated GPU") == NULL)
        return;
    warned->count++;
    snprintf(warned->last, sizeof warned->last, "%s", message);
}

#if CUDART_VERSION >= 12050
static void expect_told(const struct warned *warned, const struct calibrate_report *report)
{
    char sentence[PROFILE_GPUS_BYTES + 32];
    snprintf(sentence, sizeof sentence, "but they are on %s: ", report->identity.gpus);
    cr_expect_not_null(strstr(warned->last, sentence), "%s, but %s", report->identity.gpus,
                       warned->last);
}
#endif

/* Parts that are given when they are expected and not when ranks are opened, or the other way,
 * whichever call of the driver fails: what is measured says what it was measured on. A rank whose
 * own stream is not made is a failure. */
Test(cuda_calibrate, parts_that_are_not_what_was_said)
{
#if CUDART_VERSION >= 12050
    const char *path = tools_path(tools_folder(), "box.json");
    struct calibrate_params params = cuda_profile_params(path, "cuda:0x2", &least_plan);
    struct warned warned = {0};
    int whole = 0;
    bool is_ahead = false;
    params.log = (struct log_sink){.write = on_log, .context = &warned};
    for (int n = 1; !is_ahead; n++) {
        struct calibrate_report report;
        struct error err = {.message = ""};
        int before = warned.count;
        simt_green_fail_at((uint64_t)n);
        enum status status = calibrate_run(&report, &params, &err);
        is_ahead = simt_green_fail_is_ahead();
        simt_green_fail_at(0);
        bool has_stream = strstr(err.message, "cuda_partition_stream on cuda:0") == NULL;
        cr_expect_eq(status == STATUS_OK, has_stream, "at %d: %s", n, err.message);
        cr_expect_eq(exists(path), status == STATUS_OK, "at %d", n);
        bool is_whole = status == STATUS_OK && strstr(report.identity.gpus, PART_OF_2) == NULL;
        cr_expect(!is_ahead || !is_whole, "%s", report.identity.gpus);
        whole += is_whole;
        if (status == STATUS_OK && warned.count > before)
            expect_told(&warned, &report);
        (void)remove(path);
        gpu_check_nothing_left();
    }
    cr_expect_geq(whole, 2 * 5, "%d", whole);
    cr_expect_geq(warned.count, whole, "%d and %d", warned.count, whole);
#endif
}

/* Of a driver whose parts are of no use a profile is of whole GPUs, and runs find it their own. */
Test(cuda_calibrate, parts_that_nobody_is_given)
{
    const char *path = tools_path(tools_folder(), "box.json");
    struct calibrate_params params = cuda_profile_params(path, "cuda:0x2", &least_plan);
    struct calibrate_report report;
    struct profile_identity here;
    struct error err;
    struct warned warned = {0};
    params.log = (struct log_sink){.write = on_log, .context = &warned};
    simt_green_set(SIMT_GREEN_WITHOUT_WAITS);
    cr_assert_eq(calibrate_run(&report, &params, &err), STATUS_OK, "%s", err.message);
    cr_expect_eq(warned.count, 0);
    cr_assert_eq(profile_identity_of(&here, &params.devices, 0, &err), STATUS_OK);
    cr_expect_eq(profile_identity_fit(&report.identity, &here, &err), PROFILE_FITS, "%s",
                 err.message);
    cr_expect_str_eq(report.identity.gpus, "emulated GPU (sm_75)");
}

/* A GPU that breaks in the midst of a kernel says so, on whichever rank it is waited for. */
Test(cuda_calibrate, a_gpu_that_breaks_is_told)
{
    const char *path = tools_path(tools_folder(), "box.json");
    struct calibrate_params params = cuda_profile_params(path, "cuda:0-1", &cuda_profile_plan);
    struct calibrate_report report;
    struct error err;
    gpu_count_use(2);
    simt_fail_kernel_at(30, cudaErrorIllegalAddress);
    cr_assert_eq(calibrate_run(&report, &params, &err), STATUS_IO);
    cr_expect_not_null(strstr(err.message, "an illegal memory access"), "%s", err.message);
    cr_expect_not(exists(path));
    cr_expect(exists(tools_path(tools_folder(), "box.json.partial")));
}
