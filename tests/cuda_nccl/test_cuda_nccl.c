/* What collectives by NCCL have beside those of other backends: calls of a library that fail or
 * never end, GPUs that do not come, and two communicators in flight. The suites that they hold with
 * others are those of tests/comm and of tests/cuda_comm, over the same stub. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "base/memory.h"
#include "base/system.h"
#include "comm/nccl.h"
#include "comm_tools.h"
#include "device/peers.h"
#include "device_bytes.h"
#include "gpu.h"
#include "nccl_tools.h"
#include "numa_fake.h"
#include "simt_control.h"

TestSuite(cuda_nccl, .timeout = 250);

#define RANKS 3
#define COUNT 48 /* values */
#define PART  16

/* Results of NCCL's. */
#define SYSTEM_ERROR 2
#define REMOTE_ERROR 6

/* One of each collective, whatever becomes of them. */
struct all {
    struct box *box;
    struct comm *comms[RANKS];
    float *in[RANKS], *out[RANKS]; /* pinned: looked at also when streams have failed */
    struct error said[RANKS];
};

static enum status all_prepare(void *context, int rank, struct error *err)
{
    struct all *all = context;
    struct device *device = box_device(all->box, rank);
    size_t bytes = COUNT * sizeof(float);
    TRY(device->ops->host_memory_get(device, (void **)&all->in[rank], bytes, "in", err));
    TRY(device->ops->host_memory_get(device, (void **)&all->out[rank], 6 * bytes, "out", err));
    for (int i = 0; i < COUNT; i++)
        all->in[rank][i] = (float)(i + rank);
    memset(all->out[rank], 0, 6 * bytes);
    return STATUS_OK;
}

static void all_put(struct all *all, int rank)
{
    static const int64_t uneven[] = {PART, 0, 2 * PART};
    static const int64_t bytes[] = {64, 64, 64}, some[] = {64, 0, 128}, offsets[] = {0, 64, 128};
    static struct comm_message sends[RANKS], receives[RANKS];
    struct comm *comm = all->comms[rank];
    struct stream *stream = box_device(all->box, rank)->stream;
    const float *in = all->in[rank];
    float *out = all->out[rank];
    comm_all_gather(comm, stream, &(struct comm_all_gather){out, in, bytes, 0});
    out += COUNT;
    comm_all_gather(comm, stream, &(struct comm_all_gather){out, in, some, 0});
    out += COUNT;
    comm_reduce_scatter(comm, stream, &(struct comm_reduce_scatter){out, in, uneven, 0});
    out += COUNT;
    comm_all_to_all_v(comm, stream,
                      &(struct comm_all_to_all_v){out, in, bytes, offsets, bytes, offsets, 0});
    out += COUNT;
    sends[rank] = (struct comm_message){(rank + 1) % RANKS, (void *)in, 64};
    receives[rank] = (struct comm_message){(rank + RANKS - 1) % RANKS, out, 64};
    comm_exchange(comm, stream, &(struct comm_exchange){&sends[rank], &receives[rank], 1, 1, 0});
    out += COUNT;
    comm_all_reduce(comm, stream, &(struct comm_all_reduce){out, in, COUNT, 0});
}

static enum status all_rank(void *context, int rank, struct error *err)
{
    struct all *all = context;
    struct device *device = box_device(all->box, rank);
    all_put(all, rank);
    enum status status = device->ops->synchronize(device->stream, err);
    all->said[rank] = status == STATUS_OK ? (struct error){.message = ""} : *err;
    return status;
}

/* Who was told nothing has everything. */
static void check_sums(const struct all *all, int n)
{
    for (int r = 0; r < RANKS; r++) {
        const float *sums = all->out[r] + (ptrdiff_t)5 * COUNT;
        for (int i = 0; all->said[r].message[0] == 0 && i < COUNT; i++)
            cr_assert_eq(sums[i], 3 * i + 3, "at %d: rank %d, value %d: %g", n, r, i,
                         (double)sums[i]);
    }
}

static struct box *box_of(int rank_count, double patience)
{
    struct box *box;
    struct error err;
    cr_assert_eq(nccl_box_open(&box, rank_count, patience, NULL, &err), STATUS_OK, "%s",
                 err.message);
    return box;
}

static void all_open(struct all *all, double patience)
{
    *all = (struct all){.box = box_of(RANKS, patience)};
    test_comm_create(all->comms, all->box, RANKS);
    test_box_run(all->box, all_prepare, all);
}

static void all_close(struct all *all)
{
    for (int r = 0; r < RANKS; r++) {
        struct device *device = box_device(all->box, r);
        device->ops->host_memory_free(device, all->in[r]);
        device->ops->host_memory_free(device, all->out[r]);
    }
    test_comms_destroy(all->comms, RANKS);
    box_close(all->box);
    cr_assert_eq(simt_live_count(), 0);
    cr_assert_eq(stub()->live_count(), 0, "%d handles are left", (int)stub()->live_count());
}

/* ---- Who is joined by it --------------------------------------------------------------------- */

static uint64_t launches_of(struct box *box, const int *ranks, int count)
{
    static char out[RANKS];
    struct comm *comms[RANKS];
    struct error err;
    uint64_t before = stub()->launch_count();
    static const int64_t counts[RANKS] = {1, 1, 1};
    cr_assert_eq(comm_create(comms, box_domain(box), ranks, count, &err), STATUS_OK, "%s",
                 err.message);
    for (int m = 0; m < count; m++)
        comm_all_gather(comms[m], box_device(box, ranks[m])->stream,
                        &(struct comm_all_gather){out, out + m, counts, 0});
    for (int m = 0; m < count; m++) {
        struct device *device = box_device(box, ranks[m]);
        cr_assert_eq(device->ops->synchronize(device->stream, &err), STATUS_OK, "%s", err.message);
    }
    test_comms_destroy(comms, count);
    return stub()->launch_count() - before;
}

Test(cuda_nccl, joins_ranks_that_have_a_gpu_each)
{
    struct box *box;
    struct error err;
    for (int shares = 0; shares < 2; shares++) {
        int uses = shares ? 0 : 1; /* of ranks that share a GPU none is joined by it */
        simt_device_count_set(3);
        cr_assert_eq(
            box_open(&box,
                     &(struct box_params){.rank_count = 3,
                                          .gpus = shares ? (int[]){0, 1, 0} : (int[]){0, 1, 2}},
                     &err),
            STATUS_OK, "%s", err.message);
        cr_assert_eq(launches_of(box, (int[]){0, 1}, 2), 2 * uses);
        cr_assert_eq(launches_of(box, (int[]){2, 1}, 2), 2 * uses);
        cr_assert_eq(launches_of(box, (int[]){0, 1, 2}, 3), 3 * uses);
        cr_assert_eq(launches_of(box, (int[]){1}, 1), 0);
        box_close(box);
    }
}

/* Where GPUs are, how many there are, and how far NCCL is to go (""; as it likes); what comes wrong
 * is tried where it would go. */
struct placed {
    char first[64], second[64], third[64], level[8];
    int gpu_count;
    enum status expected;
    bool goes_by_processor; /* expected of AMD's */
};

#if defined(__x86_64__)
#define IS_AMD (__builtin_cpu_is("amd") != 0)
#else
#define IS_AMD false
#endif

#define ROOT     "pci0000:16/0000:17:00.0"
#define SWITCHED ROOT "/0000:18:00.0", ROOT "/0000:18:01.0"

ParameterizedTestParameters(cuda_nccl, tries_what_it_would_take)
{
    static struct placed cases[] = {
        {ROOT, "pci0000:80/0000:81:00.0", "pci0000:c0/0000:c1:00.0", "", 3, STATUS_OK, false},
        {ROOT, "pci0000:80/0000:81:00.0", "pci0000:c0/0000:c1:00.0", "SYS", 3, STATUS_IO, false},
        {ROOT, "pci0000:80/0000:81:00.0", "pci0000:c0/0000:c1:00.0", "", 2, STATUS_IO, true},
        {ROOT, "pci0000:16/0000:19:00.0", "pci0000:80/0000:81:00.0", "", 3, STATUS_OK, false},
        {SWITCHED, "pci0000:80/0000:81:00.0", "", 3, STATUS_IO, false},
        {SWITCHED, "pci0000:80/0000:81:00.0", "LOC", 3, STATUS_OK, false},
    };
    return cr_make_param_array(struct placed, cases, sizeof cases / sizeof *cases);
}

ParameterizedTest(struct placed *placed, cuda_nccl, tries_what_it_would_take)
{
    struct box *box;
    struct error err = {.message = ""};
    numa_fake_use();
    numa_fake_device_in(placed->first, "0000:1a:00.0", "0");
    numa_fake_device_in(placed->second, "0000:1b:00.0", "0");
    numa_fake_device_in(placed->third, "0000:1c:00.0", "1");
    setenv("NCCL_P2P_LEVEL", placed->level, 1);
    simt_peer_copies_set(SIMT_PEER_WRONG);
    enum status status = nccl_box_open(&box, placed->gpu_count, 10, NULL, &err);
    enum status expected = placed->goes_by_processor && !IS_AMD ? STATUS_OK : placed->expected;
    cr_assert_eq(status, expected, "%s, %s: %s", placed->second, placed->level, err.message);
    if (status == STATUS_OK && placed->gpu_count == 3) {
        struct comm *pair[2];
        bool is_far = placed->level[0] == 0; /* as NCCL likes: two alone go anywhere */
        status = comm_create(pair, box_domain(box), (int[]){2, 0}, 2, &err);
        cr_assert_eq(status, is_far && IS_AMD ? STATUS_IO : STATUS_OK, "%s", err.message);
        if (status == STATUS_OK)
            test_comms_destroy(pair, 2);
    }
    if (status == STATUS_OK || placed->expected == STATUS_OK)
        box_close(box);
    numa_fake_remove();
}

/* In place of the C library's (-Wl,--wrap), for what is free in /dev/shm. */
static uint64_t shm_free = UINT64_MAX;
int __wrap_statvfs(const char *path, struct statvfs *out);
int __wrap_statvfs(const char *path, struct statvfs *out)
{
    cr_assert_str_eq(path, "/dev/shm");
    *out = (struct statvfs){.f_frsize = 1, .f_bavail = shm_free};
    return 0;
}

static void keep_warning(void *context, enum log_level level, const char *message)
{
    if (level == LOG_WARNING)
        snprintf(context, 512, "%s", message);
}

/* Of three GPUs that do not reach each other there are six ways. */
Test(cuda_nccl, too_little_shared_memory_is_told)
{
    static const struct {
        uint64_t free;
        const char *name, *value, *words;
    } cases[] = {
        {64 << 20, "NONE", "", "NCCL may take 120 MiB of /dev/shm, where 64 MiB are free"},
        {(120 << 20) - 1, "NONE", "", "where 119 MiB are free"},
        {120 << 20, "NONE", "", ""},
        {64 << 20, "NCCL_SHM_DISABLE", "1", ""},
        {64 << 20, "NCCL_P2P_LEVEL", "SYS", ""},
        {64 << 20, "CANNOT", "", "NCCL may take 120 MiB"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct box *box;
        struct error err;
        char warning[512] = "";
        struct log_sink log = {.write = keep_warning, .context = warning};
        shm_free = cases[i].free;
        simt_peer_access_set(strcmp(cases[i].name, "CANNOT") != 0);
        if (strcmp(cases[i].name, "CANNOT") == 0)
            setenv("NCCL_P2P_LEVEL", "SYS", 1);
        setenv(cases[i].name, cases[i].value, 1);
        cr_assert_eq(nccl_box_open(&box, 3, 10, &log, &err), STATUS_OK, "%s", err.message);
        box_close(box);
        unsetenv(cases[i].name);
        cr_expect(cases[i].words[0] == 0 ? warning[0] == 0
                                         : strstr(warning, cases[i].words) != NULL,
                  "case %d: %s", (int)i, warning);
    }
}

/* ---- Calls that fail ------------------------------------------------------------------------- */

Test(cuda_nccl, each_call_of_creating_a_communicator_may_fail)
{
    struct box *box = box_of(RANKS, FOREVER);
    uint64_t live = simt_live_count(), host = memory_counters_get().live_count;
    enum status status = STATUS_IO;
    int n;
    for (n = 1; status != STATUS_OK; n++) {
        struct comm *comms[RANKS];
        struct error err = {.message = ""};
        stub()->fail_at((uint64_t)n, SYSTEM_ERROR);
        status = comm_create(comms, box_domain(box), (int[]){2, 0, 1}, RANKS, &err);
        stub()->fail_at(0, 0);
        cr_assert(status == STATUS_OK ? n > 14 : status == STATUS_IO, "at %d", n);
        bool is_said = strncmp(err.message, "NCCL cannot join ranks 2, 0-1: ncclC", 36) == 0 ||
                       strncmp(err.message, "NCCL cannot join ranks 2, 0-1: ncclG", 36) == 0;
        cr_assert(status == STATUS_OK ||
                      (is_said && strstr(err.message, "unhandled system error: the stub was told")),
                  "at %d: %s", n, err.message);
        if (status == STATUS_OK)
            test_comms_destroy(comms, RANKS);
        cr_assert_eq(stub()->live_count(), 0, "at %d", n);
        cr_assert_eq(simt_live_count(), live, "at %d", n);
        cr_assert_eq(memory_counters_get().live_count, host, "at %d", n);
    }
    box_close(box);
}

/* Where it fails NCCL does not join ranks; the box is as it was. */
Test(cuda_nccl, a_communicator_that_is_never_there)
{
    struct box *box = box_of(RANKS, 0.01);
    struct comm *comms[RANKS];
    struct error err;
    stub()->polls_set(INT_MAX);
    cr_assert_eq(comm_create(comms, box_domain(box), (int[]){0, 1, 2}, RANKS, &err), STATUS_IO);
    cr_assert_not_null(strstr(err.message, "NCCL cannot join ranks 0-2: the communicator of cuda:0 "
                                           "is not there after 0.06 seconds"),
                       "%s", err.message);
    cr_assert_eq(stub()->live_count(), 0);
    stub()->polls_set(2);
    test_comm_create(comms, box, RANKS);
    test_comms_destroy(comms, RANKS);
    box_close(box);
}

/* The end of a communicator may fail, too: nobody is told, and nothing is left. Where the failure
 * is the watch's, which calls meanwhile, all is aborted: then this call is tried again. */
Test(cuda_nccl, each_call_of_destroying_a_communicator_may_fail)
{
    struct box *box = box_of(RANKS, FOREVER);
    bool came = true;
    int n;
    for (n = 1; came; n++) {
        struct comm *comms[RANKS];
        test_comm_create(comms, box, RANKS);
        stub()->fail_at((uint64_t)n, SYSTEM_ERROR);
        test_comms_destroy(comms, RANKS);
        struct error of_watch;
        came = !stub()->fail_is_ahead();
        stub()->fail_at(0, 0);
        cr_assert_eq(stub()->live_count(), 0, "at %d", n);
        if (comm_domain_failure(box_domain(box), &of_watch) == STATUS_OK)
            continue;
        box_close(box);
        box = box_of(RANKS, FOREVER);
        came = true;
        n--;
    }
    cr_assert_gt(n, 12);
    box_close(box);
}

/* The run says which rank, which collective and which call; each rank is released, and either has
 * what it was to have, or is told. */
static bool call_fails(int n, int polls)
{
    struct all all;
    struct error err = {.message = ""};
    stub()->polls_set(polls);
    all_open(&all, FOREVER);
    stub()->fail_at((uint64_t)n, SYSTEM_ERROR);
    enum status status = box_run(all.box, all_rank, &all, &err);
    bool came = !stub()->fail_is_ahead();
    stub()->fail_at(0, 0);
    cr_assert(came || status == STATUS_OK, "at %d: %s", n, err.message);
    cr_assert(status == STATUS_OK || status == STATUS_IO, "at %d: %s", n, err.message);
    if (status != STATUS_OK) {
        cr_assert_eq(strncmp(err.message, "rank ", 5), 0, "at %d: %s", n, err.message);
        cr_assert(strstr(err.message, "of ranks 0-2 (tag \"rows\"): nccl") != NULL ||
                      strstr(err.message, "between two collectives: nccl") != NULL,
                  "at %d: %s", n, err.message);
        cr_assert_not_null(strstr(err.message, "on cuda:"), "at %d: %s", n, err.message);
    }
    check_sums(&all, n);
    all_close(&all);
    return came;
}

Test(cuda_nccl, each_call_of_a_collective_may_fail)
{
    for (int polls = 0; polls < 3; polls++) {
        int n = 1;
        do
            simt_stream_seed_set((uint64_t)n % 4);
        while (call_fails(n++, polls));
        cr_assert_gt(n, 60, "only %d calls", n);
    }
}

/* ---- Launches that never end ----------------------------------------------------------------- */

/* A GPU hangs, or its communicator breaks, at the n-th launch: all are aborted, by who watches. */
static void launch_is_lost(int n, int result, double patience, const char *sentence)
{
    struct all all;
    struct error err = {.message = ""};
    uint64_t aborts = stub()->abort_count();
    simt_stream_seed_set((uint64_t)n % 4);
    stub()->polls_set(0);
    all_open(&all, patience);
    test_box_run(all.box, all_rank, &all); /* a first sum waits for the GPU itself */
    stub()->lose_at((uint64_t)n, result);
    enum status status = box_run(all.box, all_rank, &all, &err);
    stub()->lose_at(0, 0);
    cr_assert_eq(status, result != 0 ? STATUS_IO : STATUS_INTERNAL, "at %d: %s", n, err.message);
    cr_assert_eq(strncmp(err.message, "rank ", 5), 0, "at %d: %s", n, err.message);
    cr_assert_not_null(strstr(err.message, sentence), "at %d: %s", n, err.message);
    cr_assert_eq(stub()->abort_count(), aborts + RANKS);
    int told = 0;
    for (int r = 0; r < RANKS; r++)
        told += all.said[r].message[0] != 0;
    cr_assert_gt(told, 0);
    check_sums(&all, n);
    all_close(&all);
}

Test(cuda_nccl, a_gpu_that_hangs_ends_the_run)
{
    for (int n = 1; n <= 7 * RANKS; n += 4)
        launch_is_lost(n, 0, 0.2,
                       "of ranks 0-2 (tag \"rows\") was launched by NCCL and does not end; no rank "
                       "has moved for 0.2 seconds");
}

/* NCCL never says that it is on the stream. */
Test(cuda_nccl, a_launch_that_is_never_done_ends_the_run)
{
    struct all all;
    struct error err;
    all_open(&all, 0.2);
    test_box_run(all.box, all_rank, &all);
    stub()->polls_set(INT_MAX);
    cr_assert_eq(box_run(all.box, all_rank, &all, &err), STATUS_INTERNAL);
    cr_assert_str_eq(err.message, "rank 0: all-gather number 7 of ranks 0-2 (tag \"rows\") is not "
                                  "launched by NCCL; no rank has moved for 0.2 seconds");
    check_sums(&all, 0);
    all_close(&all);
}

Test(cuda_nccl, what_nccl_finds_out_later_ends_the_run)
{
    for (int n = 1; n <= 7 * RANKS; n += 4)
        launch_is_lost(n, REMOTE_ERROR, FOREVER, "ncclCommGetAsyncError on cuda:");
}

static enum status injected(void *argument, struct error *err)
{
    (void)argument;
    return error_set(err, STATUS_IO, "injected");
}

struct missing {
    struct all all;
    uint64_t expected;        /* launches */
    const atomic_bool *until; /* that, too, before rank 1's host fails; NULL: nothing else */
};

/* Rank 1's GPU hangs in the first, and then its host fails; the others wait in CUDA. */
static enum status host_fails(void *context, int rank, struct error *err)
{
    struct missing *missing = context;
    struct all *all = &missing->all;
    all_put(all, rank);
    while (rank == 1 && (stub()->launch_count() < missing->expected ||
                         (missing->until != NULL && !atomic_load(missing->until))))
        sleep_microseconds(100);
    if (rank == 1)
        return injected(NULL, err);
    struct device *device = box_device(all->box, rank);
    return device->ops->synchronize(device->stream, err);
}

Test(cuda_nccl, who_waits_for_a_gpu_is_released_when_the_run_ends)
{
    static struct missing missing;
    struct error err;
    stub()->polls_set(0);
    all_open(&missing.all, FOREVER);
    missing.expected = stub()->launch_count() + RANKS;
    stub()->lose_at(1, 0);
    double start = system_seconds();
    cr_assert_eq(box_run(missing.all.box, host_fails, &missing, &err), STATUS_IO);
    cr_assert_str_eq(err.message, "rank 1: injected");
    cr_assert_lt(system_seconds() - start, 5);
    all_close(&missing.all);
}

/* The watch holds no lock while a driver answers it: whoever ends the run then finds it awake, and
 * can wake nobody. It aborts all the same, or this never returns. */
static struct comm_domain *ended_within;
static atomic_int answers_until_end;
static const struct peer_ops *driver;

/* Each device has a table of its own. */
static const struct device_ops *usual_ops[RANKS];

/* A driver answers so whether an event has been reached. */
static void ops_set(struct all *all,
                    enum status (*reached)(struct event *event, bool *out, struct error *err))
{
    static struct device_ops ops[RANKS];
    static struct peer_ops peers;
    driver = box_device(all->box, 0)->ops->peers;
    peers = *driver;
    peers.reached = reached;
    for (int r = 0; r < RANKS; r++) {
        struct device *device = box_device(all->box, r);
        usual_ops[r] = device->ops;
        ops[r] = *device->ops;
        ops[r].peers = &peers;
        device->ops = &ops[r];
    }
}

static void ops_restore(struct all *all)
{
    for (int r = 0; r < RANKS; r++)
        box_device(all->box, r)->ops = usual_ops[r];
}

static enum status answer_late(struct event *event, bool *out, struct error *err)
{
    enum status status = driver->reached(event, out, err);
    if (atomic_fetch_sub(&answers_until_end, 1) == 1) {
        struct error cause;
        (void)injected(NULL, &cause);
        comm_domain_abort(ended_within, 0, &cause);
    }
    return status;
}

Test(cuda_nccl, a_run_may_end_while_a_driver_answers_the_watch)
{
    static struct all all;
    struct error err;
    stub()->polls_set(0);
    all_open(&all, FOREVER);
    ops_set(&all, answer_late);
    ended_within = box_domain(all.box);
    atomic_store(&answers_until_end, 4);
    stub()->lose_at(1, 0);
    cr_assert_eq(box_run(all.box, all_rank, &all, &err), STATUS_IO);
    cr_assert_str_eq(err.message, "rank 0: injected");
    ops_restore(&all);
    all_close(&all);
}

/* A driver may answer only when somebody else has made the kernels leave. */
static uint64_t aborts_before;
static atomic_bool is_asked, gave_up;

static enum status answer_behind_an_abort(struct event *event, bool *out, struct error *err)
{
    atomic_store(&is_asked, true);
    for (int n = 0; n < 50000 && stub()->abort_count() == aborts_before; n++)
        sleep_microseconds(100);
    if (stub()->abort_count() == aborts_before)
        atomic_store(&gave_up, true);
    return driver->reached(event, out, err);
}

Test(cuda_nccl, a_run_ends_whose_watch_is_not_answered)
{
    static struct missing missing;
    struct error err;
    stub()->polls_set(0);
    all_open(&missing.all, FOREVER);
    aborts_before = stub()->abort_count();
    ops_set(&missing.all, answer_behind_an_abort);
    missing.expected = stub()->launch_count() + RANKS;
    missing.until = &is_asked;
    stub()->lose_at(1, 0);
    cr_assert_eq(box_run(missing.all.box, host_fails, &missing, &err), STATUS_IO);
    cr_assert_str_eq(err.message, "rank 1: injected");
    cr_assert_not(atomic_load(&gave_up));
    ops_restore(&missing.all);
    all_close(&missing.all);
}

/* ---- Two communicators in flight ------------------------------------------------------------- */

#define FLIGHT_RANKS  4
#define FLIGHT_ROUNDS 40
#define FLIGHT_VALUES (FLIGHT_ROUNDS * FLIGHT_RANKS)

/* On two streams of each rank, with nothing that orders them; ranks differ in which they put first.
 * Each adds up whole numbers. */
struct flight {
    struct box *box;
    struct comm *comms[2][FLIGHT_RANKS];
    struct stream *beside[FLIGHT_RANKS];
    float *values[2][FLIGHT_RANKS]; /* a round after another, of FLIGHT_RANKS each */
};

static enum status flight_prepare(void *context, int rank, struct error *err)
{
    struct flight *flight = context;
    struct device *device = box_device(flight->box, rank);
    TRY(device->ops->stream_create(device, &flight->beside[rank], STREAM_NORMAL, err));
    for (int c = 0; c < 2; c++) {
        float values[FLIGHT_VALUES];
        TRY(device->ops->memory_get(device, (void **)&flight->values[c][rank], sizeof values,
                                    "a test", err));
        for (int i = 0; i < FLIGHT_VALUES; i++)
            values[i] = (float)(1 + c);
        device_write(device, flight->values[c][rank], values, sizeof values);
    }
    return STATUS_OK;
}

static enum status flight_rank(void *context, int rank, struct error *err)
{
    struct flight *flight = context;
    struct device *device = box_device(flight->box, rank);
    struct stream *streams[2] = {device->stream, flight->beside[rank]};
    for (int round = 0; round < FLIGHT_ROUNDS; round++) {
        for (int i = 0; i < 2; i++) {
            int c = (i + rank) % 2;
            float *values = flight->values[c][rank] + (ptrdiff_t)round * FLIGHT_RANKS;
            comm_all_reduce(flight->comms[c][rank], streams[c],
                            &(struct comm_all_reduce){values, values, FLIGHT_RANKS, 0});
        }
    }
    TRY(device->ops->synchronize(streams[0], err));
    return device->ops->synchronize(streams[1], err);
}

static void flight_open(struct flight *flight, uint64_t seed, int polls, double patience)
{
    struct error err;
    simt_stream_seed_set(seed);
    stub()->polls_set(polls);
    stub()->jitter_set(seed + 1);
    flight->box = box_of(FLIGHT_RANKS, patience);
    for (int c = 0; c < 2; c++)
        cr_assert_eq(comm_create(flight->comms[c], box_domain(flight->box),
                                 c == 0 ? (int[]){0, 1, 2, 3} : (int[]){2, 0, 3, 1}, FLIGHT_RANKS,
                                 &err),
                     STATUS_OK, "%s", err.message);
    /* The ends of the second are not in the order of the ranks. */
    struct comm *second[FLIGHT_RANKS];
    static const int ranks[FLIGHT_RANKS] = {2, 0, 3, 1};
    for (int m = 0; m < FLIGHT_RANKS; m++)
        second[ranks[m]] = flight->comms[1][m];
    memcpy(flight->comms[1], second, sizeof second);
    test_box_run(flight->box, flight_prepare, flight);
}

static void flight_close(struct flight *flight)
{
    for (int r = 0; r < FLIGHT_RANKS; r++) {
        struct device *device = box_device(flight->box, r);
        for (int c = 0; c < 2; c++)
            device->ops->memory_free(device, flight->values[c][r]);
        device->ops->stream_destroy(device, flight->beside[r]);
    }
    for (int c = 0; c < 2; c++)
        test_comms_destroy(flight->comms[c], FLIGHT_RANKS);
    box_close(flight->box);
}

static void flight_run(uint64_t seed, int polls)
{
    struct flight flight;
    flight_open(&flight, seed, polls, FOREVER);
    test_box_run(flight.box, flight_rank, &flight);
    for (int r = 0; r < FLIGHT_RANKS; r++) {
        struct device *device = box_device(flight.box, r);
        for (int c = 0; c < 2; c++) {
            float values[FLIGHT_VALUES];
            device_read(device, values, flight.values[c][r], sizeof values);
            for (int i = 0; i < FLIGHT_VALUES; i++)
                cr_assert_eq(values[i], FLIGHT_RANKS * (1 + c));
        }
    }
    flight_close(&flight);
}

Test(cuda_nccl, two_communicators_are_launched_in_one_order)
{
    for (uint64_t seed = 0; seed < 5; seed++) {
        for (int polls = 0; polls < 3; polls += 2)
            flight_run(seed, polls);
    }
}

/* Of each something stands behind what the other has launched and will never end. */
Test(cuda_nccl, two_communicators_are_aborted_at_once)
{
    for (int n = 1; n <= 8 * FLIGHT_RANKS; n += 5) {
        struct flight flight;
        struct error err;
        uint64_t aborts = stub()->abort_count();
        flight_open(&flight, (uint64_t)n % 5, 0, 0.2);
        stub()->lose_at((uint64_t)n, 0);
        cr_assert_eq(box_run(flight.box, flight_rank, &flight, &err), STATUS_INTERNAL, "at %d", n);
        cr_assert_not_null(strstr(err.message, "was launched by NCCL and does not end"),
                           "at %d: %s", n, err.message);
        flight_close(&flight);
        cr_assert_eq(stub()->abort_count(), aborts + 2 * FLIGHT_RANKS);
    }
}

/* ---- Many values ----------------------------------------------------------------------------- */

#define MANY (((int64_t)1 << 21) + 1000) /* of two members: more than a piece of each part */

struct many {
    struct box *box;
    struct comm *comms[2];
    float *in[2], *out[2];
};

static enum status many_rank(void *context, int rank, struct error *err)
{
    struct many *many = context;
    struct device *device = box_device(many->box, rank);
    static const int64_t counts[2] = {MANY - 5, 5};
    size_t bytes = (size_t)MANY * sizeof(float);
    TRY(device->ops->memory_get(device, (void **)&many->in[rank], bytes, "in", err));
    TRY(device->ops->memory_get(device, (void **)&many->out[rank], bytes, "out", err));
    float *values = memory_alloc_raw(MANY, sizeof *values);
    cr_assert_not_null(values);
    for (int64_t i = 0; i < MANY; i++)
        values[i] = (float)(i % 1000 + rank);
    device_write(device, many->in[rank], values, bytes);
    comm_reduce_scatter(many->comms[rank], device->stream,
                        &(struct comm_reduce_scatter){many->out[rank], many->in[rank], counts, 0});
    TRY(device->ops->synchronize(device->stream, err));
    device_read(device, values, many->out[rank], (size_t)counts[rank] * sizeof *values);
    for (int64_t i = 0; i < counts[rank]; i++) {
        int64_t at = rank == 0 ? i : counts[0] + i;
        if (values[i] != (float)(2 * (at % 1000) + 1))
            return error_set(err, STATUS_INTERNAL, "value %d is %g", (int)at, (double)values[i]);
    }
    memory_free(values);
    device->ops->memory_free(device, many->in[rank]);
    device->ops->memory_free(device, many->out[rank]);
    return STATUS_OK;
}

/* Piece by piece, of parts that have not as many. */
Test(cuda_nccl, sums_more_than_is_brought_at_a_time)
{
    struct many many = {.box = box_of(2, FOREVER)};
    simt_stream_seed_set(3);
    test_comm_create(many.comms, many.box, 2);
    uint64_t before = stub()->launch_count();
    test_box_run(many.box, many_rank, &many);
    cr_assert_eq(stub()->launch_count() - before, 6);
    test_comms_destroy(many.comms, 2);
    box_close(many.box);
}

/* Whatever there is to sum, and of whatever parts. */
Test(cuda_nccl, sums_need_little_scratch_memory)
{
    static const int64_t counts[] = {1, 1000, 599168, 599169, 1 << 20, 1 << 28};
    for (int size = 2; size <= COMM_RANKS_MAX; size++) {
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            struct comm_group group = {.size = size};
            struct comm comm = {.group = &group};
            const struct collective call = {.kind = COLLECTIVE_ALL_REDUCE,
                                            .comm = &comm,
                                            .all_reduce = {.count = size * counts[i]}};
            size_t bytes = nccl_scratch_bytes(&call);
            cr_expect_lt(bytes, NCCL_SCRATCH_MAX, "%d members, %d", size, (int)counts[i]);
            int64_t least = counts[i] < 60000 ? counts[i] : 60000;
            cr_expect_geq(bytes, (size_t)((size - 1) * least) * sizeof(float));
        }
    }
}
