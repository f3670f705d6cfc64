/* How copies between GPUs go: directly, unless the machine or its user says that they cannot. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "comm_tools.h"
#include "device/peers.h"
#include "device_bytes.h"
#include "io/forbid.h"
#include "kernels/cuda/device/cuda_reach.h"
#include "leaks.h"
#include "numa_fake.h"
#include "simt_control.h"

TestSuite(gpus, .init = numa_fake_use, .fini = numa_fake_remove, .timeout = 60);

struct gather {
    struct box *box;
    struct comm *comms[3];
    char text[2000]; /* what the log was told */
};

static void tell(void *context, enum log_level level, const char *message)
{
    struct gather *gather = context;
    size_t length = strlen(gather->text);
    cr_assert_eq(level, LOG_INFO);
    snprintf(gather->text + length, sizeof gather->text - length, "%s\n", message);
}

static enum status gather_rank(void *context, int rank, struct error *err)
{
    static const int64_t counts[3] = {100, 100, 100};
    struct gather *gather = context;
    struct device *device = box_device(gather->box, rank);
    char *out, seen[300];
    TRY(device->ops->memory_get(device, (void **)&out, 300, "a test", err));
    memset(seen, 'a' + rank, sizeof seen);
    device_write(device, out, seen, sizeof seen);
    comm_all_gather(gather->comms[rank], device->stream,
                    &(struct comm_all_gather){out, out + (ptrdiff_t)100 * rank, counts, 0});
    TRY(device->ops->synchronize(device->stream, err));
    device_read(device, seen, out, sizeof seen);
    if (seen[0] != 'a' || seen[199] != 'b' || seen[299] != 'c')
        return error_set(err, STATUS_INTERNAL, "rank %d", rank);
    device->ops->memory_free(device, out);
    return STATUS_OK;
}

#define SENTENCE                                                                                   \
    "copies between GPUs go through the host: NCCL_P2P_DISABLE or NCCL_P2P_LEVEL says so\n"

#define SENTENCE_OF_SOME                                                                           \
    "copies between some GPUs go through the host: NCCL_P2P_DISABLE or NCCL_P2P_LEVEL says so\n"

/* Twice, as what was allowed once stays so. */
static void check_bytes(uint64_t expected, const char *sentence)
{
    for (int again = 0; again < 2; again++) {
        struct gather gather = {.text = ""};
        struct error err;
        struct box_params params = {
            .rank_count = 3, .gpus = (int[]){0, 1, 2}, .log = {.write = tell, .context = &gather}};
        simt_device_count_set(3);
        cr_assert_eq(box_open(&gather.box, &params, &err), STATUS_OK, "%s", err.message);
        uint64_t all = simt_peer_bytes(), direct = simt_direct_bytes();
        test_comm_create(gather.comms, gather.box, 3);
        test_box_run(gather.box, gather_rank, &gather);
        cr_assert_eq(simt_peer_bytes() - all, 600);
        cr_assert_eq(simt_direct_bytes() - direct, expected);
        cr_assert_eq(strstr(gather.text, "go through the host") != NULL, sentence != NULL, "%s",
                     gather.text);
        cr_assert(sentence == NULL || strstr(gather.text, sentence) != NULL, "%s", gather.text);
        test_comms_destroy(gather.comms, 3);
        box_close(gather.box);
    }
}

static void check_copies(bool are_direct, bool is_said)
{
    check_bytes(are_direct ? 600 : 0, is_said ? SENTENCE : NULL);
}

Test(gpus, copies_go_directly)
{
    check_copies(true, false);
}

Test(gpus, that_cannot_reach_each_other)
{
    simt_peer_access_set(false);
    check_copies(false, false);
}

Test(gpus, direct_copies_may_be_forbidden)
{
    setenv("NCCL_P2P_DISABLE", "1", 1);
    check_copies(false, true);
}

Test(gpus, direct_copies_may_be_forbidden_by_level)
{
    static const char *const levels[] = {"LOC", "0", "NVL", "PHB", "3", "none"};
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        setenv("NCCL_P2P_LEVEL", levels[i], 1);
        check_copies(false, true);
    }
}

/* Of three GPUs two are on one switch, and the third is on the other node. */
Test(gpus, direct_copies_may_be_forbidden_between_some)
{
    static const struct {
        const char *level;
        uint64_t bytes;
    } levels[] = {{"LOC", 0}, {"PIX", 200}, {"1", 200}, {"PHB", 200}, {"5", 600}, {"SYS", 600}};
    numa_fake_device_in("pci0000:16/0000:17:00.0/0000:18:00.0", "0000:1a:00.0", "0");
    numa_fake_device_in("pci0000:16/0000:17:00.0/0000:18:01.0", "0000:1b:00.0", "0");
    numa_fake_device_in("pci0000:80/0000:81:00.0", "0000:1c:00.0", "1");
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
        setenv("NCCL_P2P_LEVEL", levels[i].level, 1);
        check_bytes(levels[i].bytes, levels[i].bytes == 0     ? SENTENCE
                                     : levels[i].bytes == 200 ? SENTENCE_OF_SOME
                                                              : NULL);
    }
}

Test(gpus, direct_copies_that_are_not_forbidden)
{
    setenv("NCCL_P2P_DISABLE", "0", 1);
    setenv("NCCL_P2P_LEVEL", "SYS", 1);
    check_copies(true, false);
}

/* Nothing is left of a box that does not open. */
Test(gpus, each_call_of_opening_may_fail)
{
    struct box *box = NULL;
    struct error err;
    struct box_params params = {.rank_count = 3, .gpus = (int[]){0, 1, 2}};
    enum status status = STATUS_IO;
    simt_device_count_set(3);
    for (int n = 1; status != STATUS_OK; n++) {
        simt_fail_at((uint64_t)n, cudaErrorUnknown);
        status = box_open(&box, &params, &err);
        simt_fail_at(0, cudaSuccess);
        cr_assert(status == STATUS_OK || simt_live_count() == 0, "at %d", n);
    }
    box_close(box);
}

/* ---- Parts of a GPU -------------------------------------------------------------------------- */

struct log_count {
    int infos, warnings;
    char last[300];
};

static void count(void *context, enum log_level level, const char *message)
{
    struct log_count *log = context;
    log->infos += level == LOG_INFO;
    log->warnings += level == LOG_WARNING;
    snprintf(log->last, sizeof log->last, "%s", message);
}

static bool part_of(unsigned *first, unsigned *many, const struct device *device)
{
    bool is_named = strstr(device->ops->name, " multiprocessors)") != NULL;
    bool has = simt_stream_part(device->ops->peers->native(device->stream), first, many);
    cr_expect_eq(has, is_named, "%s", device->ops->name);
    cr_expect_eq(device_cuda_part(device), has ? (int)*many : 0);
    return has;
}

/* Whether the ranks on a GPU have parts, all alike and none in another's; or all have none. */
static bool expect_parts_alike(const struct box *box, const int *gpus, int gpu, int n)
{
    unsigned begins[4], many = 0;
    int sharers = 0, parts = 0;
    for (int r = 0; r < 4; r++) {
        unsigned first, each;
        if (gpus[r] != gpu)
            continue;
        sharers++;
        if (!part_of(&first, &each, box_device(box, r)))
            continue;
        cr_expect(parts == 0 || each == many, "at %d: %u and %u", n, each, many);
        for (int before = 0; before < parts; before++)
            cr_expect(begins[before] + each <= first || first + each <= begins[before], "at %d", n);
        begins[parts++] = first;
        many = each;
    }
    cr_expect(parts == 0 || parts == sharers, "at %d: %d of %d", n, parts, sharers);
    return parts > 0;
}

/* Each call for parts fails once. */
static void check_parts(const int *gpus, int gpu_count)
{
    bool is_ahead = false;
    int n = 1, warned = 0;
    simt_device_count_set(gpu_count);
    simt_multiprocessors_set(132);
    for (; !is_ahead; n++) {
        struct log_count log = {0};
        struct error err;
        struct box *box;
        struct box_params params = {
            .rank_count = 4, .gpus = gpus, .log = {.write = count, .context = &log}};
        simt_green_fail_at((uint64_t)n);
        enum status status = box_open(&box, &params, &err);
        is_ahead = simt_green_fail_is_ahead();
        simt_green_fail_at(0);
        if (status == STATUS_OK) {
            int cut = 0;
            for (int gpu = 0; gpu < gpu_count; gpu++)
                cut += expect_parts_alike(box, gpus, gpu, n);
            cr_expect_eq(gpu_count - cut, log.warnings, "at %d: %s", n, log.last);
            box_close(box);
        }
        warned += log.warnings;
        cr_expect_leq(log.warnings, is_ahead ? 0 : 1, "at %d", n);
        cr_expect_eq(simt_live_count(), 0, "at %d", n);
    }
    cr_expect_geq(warned, 4 * 4, "only %d of %d", warned, n);
}

Test(gpus, ranks_on_a_gpu_have_parts_or_none)
{
#if CUDART_VERSION >= 12050
    check_parts((int[]){0, 0, 0, 0}, 1);
    check_parts((int[]){0, 1, 0, 1}, 2);
#endif
}

Test(gpus, that_are_not_cut_are_told_of)
{
    struct log_count log = {0};
    struct error err;
    struct box *box;
    struct box_params params = {
        .rank_count = 3, .gpus = (int[]){0, 0, 1}, .log = {.write = count, .context = &log}};
    simt_device_count_set(2);
    simt_multiprocessors_set(3);
    cr_assert_eq(box_open(&box, &params, &err), STATUS_OK, "%s", err.message);
    cr_expect_eq(log.infos, 1);
    cr_expect_not_null(strstr(log.last, "the 2 ranks on cuda:0 share its multiprocessors"));
    cr_expect_eq(log.warnings, 0);
    box_close(box);
}

/* ---- Whether GPUs reach each other that say so ----------------------------------------------- */

static enum status open_box(struct error *err)
{
    struct box *box;
    struct box_params params = {.rank_count = 2, .gpus = (int[]){0, 2}};
    enum status status = box_open(&box, &params, err);
    if (status == STATUS_OK)
        box_close(box);
    return status;
}

static void check_sentence(const struct error *err, const char *what)
{
    cr_expect_not_null(strstr(err->message, what), "%s", err->message);
    cr_expect_not_null(strstr(err->message, "IOMMU"), "%s", err->message);
    cr_expect_not_null(strstr(err->message, "NCCL_P2P_DISABLE=1"), "%s", err->message);
}

/* A copy each way; what is left of them is nothing. */
Test(gpus, that_reach_each_other_are_tried)
{
    struct error err;
    simt_device_count_set(3);
    cr_assert_eq(open_box(&err), STATUS_OK, "%s", err.message);
    cr_expect_geq(simt_direct_bytes(), 2 << 16);
    cr_expect_eq(simt_live_count(), 0);
}

Test(gpus, a_copy_that_comes_wrong_is_told)
{
    struct error err;
    simt_device_count_set(3);
    simt_peer_copies_set(SIMT_PEER_WRONG);
    cr_assert_eq(open_box(&err), STATUS_IO);
    check_sentence(&err, "a copy from cuda:2 to cuda:0 brought other bytes than were sent");
    cr_expect_eq(simt_live_count(), 0);
    setenv("NCCL_P2P_DISABLE", "1", 1); /* the cure; what was reached before stays so here */
    cr_expect_eq(open_box(&err), STATUS_OK, "%s", err.message);
}

Test(gpus, a_copy_that_no_thread_can_try_is_told)
{
    struct error err;
    simt_device_count_set(2);
    forbid(__NR_clone3, EAGAIN);
    cr_assert_eq(cuda_reach_try(1, 0, 10, &err), STATUS_IO);
    cr_expect_not_null(strstr(err.message, "cannot start the thread that tries a copy between"),
                       "%s", err.message);
    cr_expect_eq(simt_live_count(), 0);
}

#define TRIAL_PIECES 5 /* two of GPUs, two of the host, a stream */

/* Who copies goes on when it does, and gives back what it has; nobody else does. */
static void let_go(void)
{
    uint64_t held = simt_live_count();
    simt_peer_copies_set(SIMT_PEER_SOUND);
    while (simt_live_count() > held - TRIAL_PIECES)
        usleep(1000);
}

/* A device beside, with something of each kind that it gives back. */
struct beside {
    struct device *device;
    struct event *event;
    void *memory, *pinned;
};

static void beside_open(struct beside *beside)
{
    static const struct gpu_share share = {.ordinal = 1};
    struct error err;
    cr_assert_eq(device_cuda_create(&beside->device, &share, &err), STATUS_OK, "%s", err.message);
    const struct device_ops *ops = beside->device->ops;
    cr_assert_eq(ops->memory_get(beside->device, &beside->memory, 64, "a test", &err), STATUS_OK);
    cr_assert_eq(ops->host_memory_get(beside->device, &beside->pinned, 64, "a test", &err),
                 STATUS_OK);
    cr_assert_eq(ops->event_create(beside->device, &beside->event, &err), STATUS_OK);
}

static void beside_close(const struct beside *beside)
{
    const struct device_ops *ops = beside->device->ops;
    ops->event_destroy(beside->device, beside->event);
    ops->host_memory_free(beside->device, beside->pinned);
    ops->memory_free(beside->device, beside->memory);
    device_destroy(beside->device);
}

/* Not before the copy hangs: on a busy machine who copies may have nothing yet. */
static void on_wait(void)
{
    for (int i = 0; i < 10000 && simt_direct_bytes() == 0; i++)
        usleep(1000);
    clock_advance(11);
}

/* Nothing waits for it, and no GPU is opened behind it. */
Test(gpus, a_copy_that_hangs_is_told)
{
    struct beside beside;
    struct error err;
    simt_device_count_set(3);
    leaks_expected(true);
    beside_open(&beside);
    simt_peer_copies_set(SIMT_PEER_HANGING);
    clock_on_wait(on_wait);
    enum status status = open_box(&err);
    leaks_expected(false);
    cr_assert_eq(status, STATUS_IO);
    check_sentence(&err, "a copy from cuda:2 to cuda:0 does not end");
    cr_assert_eq(open_box(&err), STATUS_IO);
    cr_expect_str_eq(err.message,
                     "cuda:0 cannot be used: a GPU hangs in this process; start another one");
    beside_close(&beside);
    let_go();
}
