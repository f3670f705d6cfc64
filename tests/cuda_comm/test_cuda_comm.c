/* What collectives between GPUs have beside those of the CPU: work that is behind its threads,
 * memory of other GPUs, and calls of CUDA that fail. The suite that all hold is that of tests/comm.
 */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "comm_tools.h"
#include "cuda_boxes.h"
#include "device/peers.h"
#include "device_bytes.h"
#include "simt_control.h"

TestSuite(cuda_comm, .timeout = 250);

static struct box *cuda_box_slow(int rank_count, int gpu_count, double bytes_per_second)
{
    struct box *box;
    struct error err;
    cr_assert_eq(cuda_box_open(&box, rank_count, gpu_count, bytes_per_second, FOREVER, &err),
                 STATUS_OK, "%s", err.message);
    return box;
}

static struct box *cuda_box(int rank_count, int gpu_count)
{
    return cuda_box_slow(rank_count, gpu_count, 0);
}

/* ---- The box --------------------------------------------------------------------------------- */

Test(cuda_comm, a_gpu_that_is_not_there)
{
    struct box *box = NULL;
    struct error err;
    struct box_params params = {.rank_count = 2, .gpus = (int[]){0, 1}};
    cr_assert_eq(box_open(&box, &params, &err), STATUS_UNSUPPORTED);
    cr_assert_not_null(strstr(err.message, "there is no cuda:1"), "%s", err.message);
    cr_assert_null(box);
    cr_assert_eq(simt_live_count(), 0);
}

/* It has what is left, to the byte, and not one more. */
static uint64_t check_memory(struct device *device, const char *name)
{
    char words[80];
    uint64_t left = device->ops->memory_left(device);
    struct error err;
    void *memory;
    snprintf(words, sizeof words, "of %s this rank has %" PRIu64 " bytes", name, left);
    cr_assert_eq(device->ops->memory_get(device, &memory, left + 1, "a test", &err),
                 STATUS_NO_MEMORY);
    cr_assert_not_null(strstr(err.message, words), "%s", err.message);
    return left;
}

/* An emulated one has 16 GiB, of which a sixteenth stays and a MiB is enough for streams. */
Test(cuda_comm, ranks_on_a_gpu_share_its_memory)
{
    struct box *box = cuda_box(3, 2); /* ranks 0 and 2 are on cuda:0 */
    uint64_t all = (uint64_t)15 << 30, some = 1 << 20;
    uint64_t shared = check_memory(box_device(box, 2), "cuda:0");
    uint64_t own = check_memory(box_device(box, 1), "cuda:1");
    cr_assert(shared <= all / 2 && shared >= all / 2 - some, "%" PRIu64, shared);
    cr_assert(own <= all && own >= all - some, "%" PRIu64, own);
    cr_assert(box_memory_is_apart(box));
    cr_assert_eq(box_memory_left(box), 3 * shared);
    cr_assert_eq(box_memory_held(box), 0);
    box_close(box);
}

Test(cuda_comm, threads_of_the_host_are_shared)
{
    struct box *box = cuda_box(4, 1);
    for (int r = 0; r < 4; r++)
        cr_assert_eq(box_device(box, r)->ops->host_workers(box_device(box, r)), 1);
    box_close(box);
}

/* ---- Kernel, collective, kernel -------------------------------------------------------------- */

#define VALUES 100
#define STRIDE 112 /* of an operation's row */
#define ROUNDS 4

/* x += c; y = all x; x += x, which the others have just read; x = the sum of all x; z += y of the
 * next member. All small whole numbers. */
struct chain {
    struct box *box;
    struct comm *comms[MEMBERS_MAX];
    float *x[MEMBERS_MAX], *y[MEMBERS_MAX], *z[MEMBERS_MAX], *c[MEMBERS_MAX];
    uint64_t put; /* commands on each stream */
};

static void add(struct device *device, float *out, const float *in)
{
    device->ops->add(device->stream, &(struct op_add){out, in, 1, STRIDE});
}

static void chain_round(struct chain *chain, int rank)
{
    static const int64_t bytes[MEMBERS_MAX] = {STRIDE * sizeof(float), STRIDE * sizeof(float),
                                               STRIDE * sizeof(float), STRIDE * sizeof(float),
                                               STRIDE * sizeof(float), STRIDE * sizeof(float),
                                               STRIDE * sizeof(float), STRIDE * sizeof(float)};
    struct device *device = box_device(chain->box, rank);
    struct comm *comm = chain->comms[rank];
    float *x = chain->x[rank], *y = chain->y[rank];
    int next = (rank + 1) % box_rank_count(chain->box);
    add(device, x, chain->c[rank]);
    comm_all_gather(comm, device->stream, &(struct comm_all_gather){y, x, bytes, 0});
    add(device, x, x);
    comm_all_reduce(comm, device->stream, &(struct comm_all_reduce){x, x, VALUES, 1});
    add(device, chain->z[rank], y + next * STRIDE);
}

static enum status chain_prepare(void *context, int rank, struct error *err)
{
    struct chain *chain = context;
    struct device *device = box_device(chain->box, rank);
    size_t row = STRIDE * sizeof(float), rows = (size_t)box_rank_count(chain->box) * row;
    float zeros[STRIDE] = {0}, c[STRIDE];
    TRY(device->ops->memory_get(device, (void **)&chain->x[rank], row, "x", err));
    TRY(device->ops->memory_get(device, (void **)&chain->y[rank], rows, "y", err));
    TRY(device->ops->memory_get(device, (void **)&chain->z[rank], row, "z", err));
    TRY(device->ops->memory_get(device, (void **)&chain->c[rank], row, "c", err));
    for (int i = 0; i < STRIDE; i++)
        c[i] = (float)(1 + rank + i % 3);
    device_write(device, chain->x[rank], zeros, row);
    device_write(device, chain->z[rank], zeros, row);
    device_write(device, chain->c[rank], c, row);
    /* A first sum gets the memory that later ones have. */
    comm_all_reduce(chain->comms[rank], device->stream,
                    &(struct comm_all_reduce){chain->x[rank], chain->x[rank], VALUES, 1});
    return device->ops->synchronize(device->stream, err);
}

/* Returns when the stream's thread has passed all of it. */
static enum status chain_put(void *context, int rank, struct error *err)
{
    struct chain *chain = context;
    const struct device *device = box_device(chain->box, rank);
    uint64_t passed = device->ops->progress(device->stream) + (uint64_t)ROUNDS * 5;
    for (int round = 0; round < ROUNDS; round++)
        chain_round(chain, rank);
    while (device->ops->progress(device->stream) < passed) {
        TRY(comm_domain_failure(box_domain(chain->box), err));
        sleep_microseconds(100);
    }
    return STATUS_OK;
}

static enum status chain_finish(void *context, int rank, struct error *err)
{
    const struct chain *chain = context;
    const struct device *device = box_device(chain->box, rank);
    return device->ops->synchronize(device->stream, err);
}

static void chain_check(const struct chain *chain, uint64_t seed)
{
    int size = box_rank_count(chain->box);
    float found_x[MEMBERS_MAX][VALUES], found_z[MEMBERS_MAX][VALUES];
    for (int m = 0; m < size; m++) {
        device_read(box_device(chain->box, m), found_x[m], chain->x[m], sizeof found_x[m]);
        device_read(box_device(chain->box, m), found_z[m], chain->z[m], sizeof found_z[m]);
    }
    for (int i = 0; i < VALUES; i++) {
        double x[MEMBERS_MAX] = {0}, z[MEMBERS_MAX] = {0};
        for (int round = 0; round < ROUNDS; round++) {
            double sum = 0;
            for (int m = 0; m < size; m++)
                x[m] += 1 + m + i % 3;
            for (int m = 0; m < size; m++) {
                z[m] += x[(m + 1) % size];
                sum += 2 * x[m];
            }
            for (int m = 0; m < size; m++)
                x[m] = sum;
        }
        for (int m = 0; m < size; m++) {
            cr_assert_eq(found_x[m][i], x[m], "%d ranks, seed %d: x of %d: %g for %g", size,
                         (int)seed, m, (double)found_x[m][i], x[m]);
            cr_assert_eq(found_z[m][i], z[m], "%d ranks, seed %d: z of %d: %g for %g", size,
                         (int)seed, m, (double)found_z[m][i], z[m]);
        }
    }
}

static void chain_close(struct chain *chain)
{
    int size = box_rank_count(chain->box);
    for (int r = 0; r < size; r++) {
        struct device *device = box_device(chain->box, r);
        void *all[] = {chain->x[r], chain->y[r], chain->z[r], chain->c[r]};
        for (int i = 0; i < 4; i++)
            device->ops->memory_free(device, all[i]);
    }
    test_comms_destroy(chain->comms, size);
    box_close(chain->box);
}

/* With seed 0 nothing runs on an emulated GPU before somebody waits for it. */
static void chain_run(int rank_count, int gpu_count, uint64_t seed)
{
    struct chain chain = {.box = cuda_box(rank_count, gpu_count)};
    test_comm_create(chain.comms, chain.box, rank_count);
    simt_stream_seed_set(seed);
    test_box_run(chain.box, chain_prepare, &chain);
    uint64_t kernels = simt_kernel_count();
    test_box_run(chain.box, chain_put, &chain);
    if (seed == 0)
        cr_assert_eq(simt_kernel_count(), kernels, "a stream was waited for");
    test_box_run(chain.box, chain_finish, &chain);
    chain_check(&chain, seed);
    chain_close(&chain);
    cr_assert_eq(simt_live_count(), 0);
}

Test(cuda_comm, kernels_and_collectives_follow_each_other_without_the_host)
{
    static const struct {
        int rank_count, gpu_count;
    } boxes[] = {{2, 1}, {4, 1}, {8, 1}, {2, 2}, {4, 4}, {8, 3}};
    for (size_t b = 0; b < sizeof boxes / sizeof boxes[0]; b++) {
        for (uint64_t seed = 0; seed < 6; seed++)
            chain_run(boxes[b].rank_count, boxes[b].gpu_count, seed);
    }
}

/* Of a GPU that can be cut each rank has a part of its own, and all streams of the rank are there.
 */
Test(cuda_comm, ranks_on_a_gpu_have_a_part_each)
{
#if CUDART_VERSION >= 12050
    simt_multiprocessors_set(64);
    struct box *box = cuda_box(4, 1);
    for (int r = 0; r < 4; r++) {
        struct device *device = box_device(box, r);
        struct stream *streams[] = {device->stream, NULL};
        struct error err;
        cr_assert_eq(device->ops->stream_create(device, &streams[1], STREAM_LOW, &err), STATUS_OK);
        for (int s = 0; s < 2; s++) {
            unsigned first = 0, count = 0;
            cr_expect(simt_stream_part(device->ops->peers->native(streams[s]), &first, &count));
            cr_expect(first == 16u * (unsigned)r && count == 16, "rank %d: %u from %u", r, count,
                      first);
        }
        device->ops->stream_destroy(device, streams[1]);
    }
    box_close(box);
    chain_run(4, 1, 1);
#endif
}

/* ---- Bytes between GPUs ---------------------------------------------------------------------- */

struct job {
    struct box *box;
    struct comm *comms[MEMBERS_MAX];
    struct trial trial;
};

static enum status job_rank(void *context, int rank, struct error *err)
{
    struct job *job = context;
    struct device *device = box_device(job->box, rank);
    size_t bytes = (size_t)job->trial.scenario.places[rank].bytes;
    unsigned char *block;
    TRY(device->ops->memory_get(device, (void **)&block, bytes, "a block", err));
    trial_post(&job->trial, job->comms[rank], device, device->stream, block);
    enum status status = device->ops->synchronize(device->stream, err);
    device->ops->memory_free(device, block);
    return status != STATUS_OK ? status : trial_check(&job->trial, rank, err);
}

static uint64_t bytes_counted(const struct job *job, int tag)
{
    uint64_t sum = 0;
    for (int r = 0; r < box_rank_count(job->box); r++)
        sum += comm_domain_bytes(box_domain(job->box), r, tag);
    return sum;
}

/* Between ranks of one GPU none; else what the counters say, once: also what is summed comes by a
 * copy, as kernels may not reach the others' memory. */
static void check_brought(int gpu_count)
{
    static struct job job;
    struct random random = {.seed = 1};
    memset(&job, 0, sizeof job);
    job.box = cuda_box(4, gpu_count);
    test_comm_create(job.comms, job.box, 4);
    for (int kind = 0; kind < KIND_COUNT; kind++) {
        uint64_t before = simt_peer_bytes();
        scenario_make(&job.trial.scenario, (enum kind)kind, PROFILE_LARGE, false, 4, kind, &random);
        trial_prepare(&job.trial);
        test_box_run(job.box, job_rank, &job);
        trial_free(&job.trial);
        uint64_t expected = gpu_count == 1 ? 0 : bytes_counted(&job, kind);
        cr_assert_eq(simt_peer_bytes() - before, expected,
                     "%s, %d GPUs: %" PRIu64 " bytes for %" PRIu64, kind_names[kind], gpu_count,
                     simt_peer_bytes() - before, expected);
        cr_assert(gpu_count == 1 || expected > 1 << 20, "%s", kind_names[kind]);
    }
    test_comms_destroy(job.comms, 4);
    box_close(job.box);
}

Test(cuda_comm, what_is_counted_is_what_goes_between_gpus)
{
    check_brought(1);
    check_brought(4);
}

/* ---- Calls that fail ------------------------------------------------------------------------- */

Test(cuda_comm, each_call_of_creating_a_communicator_may_fail)
{
    struct box *box = cuda_box(3, 2);
    uint64_t live = simt_live_count(), host = memory_counters_get().live_count;
    enum status status = STATUS_IO;
    int n;
    for (n = 1; status != STATUS_OK; n++) {
        struct comm *comms[3];
        struct error err = {.message = ""};
        simt_fail_at((uint64_t)n, cudaErrorUnknown);
        status = comm_create(comms, box_domain(box), (int[]){2, 0, 1}, 3, &err);
        simt_fail_at(0, cudaSuccess);
        cr_assert(status == STATUS_OK ? n > 6 : status == STATUS_IO, "at %d", n);
        cr_assert(status == STATUS_OK || strstr(err.message, "on cuda:") != NULL, "at %d: %s", n,
                  err.message);
        if (status == STATUS_OK)
            test_comms_destroy(comms, 3);
        cr_assert_eq(simt_live_count(), live, "at %d", n);
        cr_assert_eq(memory_counters_get().live_count, host, "at %d", n);
    }
    box_close(box);
}

#define FAULT_RANKS       3
#define FAULT_COUNT       48
#define FAULT_SPLITS      16
#define LATE_MICROSECONDS 3000

/* One of each collective. Each rank frees what it gave as soon as its stream is at rest, which may
 * be because another rank has failed. One of them comes late to wait for its own: what is left on
 * that stream, and nobody else waits for, then runs when the others have freed. */
struct fault {
    struct box *box;
    int late;
    struct comm *comms[FAULT_RANKS];
    float *in[FAULT_RANKS], *out[FAULT_RANKS]; /* pinned: looked at whatever a GPU still does */
    struct error said[FAULT_RANKS];
};

static enum status fault_prepare(void *context, int rank, struct error *err)
{
    struct fault *fault = context;
    struct device *device = box_device(fault->box, rank);
    size_t bytes = FAULT_COUNT * sizeof(float);
    TRY(device->ops->host_memory_get(device, (void **)&fault->in[rank], bytes, "in", err));
    TRY(device->ops->host_memory_get(device, (void **)&fault->out[rank], 5 * bytes, "out", err));
    for (int i = 0; i < FAULT_COUNT; i++)
        fault->in[rank][i] = (float)(i + rank);
    memset(fault->out[rank], 0, 5 * bytes);
    return STATUS_OK;
}

static void fault_put(struct fault *fault, int rank)
{
    static const int64_t values[] = {FAULT_SPLITS, FAULT_SPLITS, FAULT_SPLITS};
    static const int64_t bytes[] = {64, 64, 64}, offsets[] = {0, 64, 128};
    static struct comm_message sends[FAULT_RANKS], receives[FAULT_RANKS];
    struct comm *comm = fault->comms[rank];
    struct stream *stream = box_device(fault->box, rank)->stream;
    const float *in = fault->in[rank];
    float *out = fault->out[rank];
    comm_all_gather(comm, stream, &(struct comm_all_gather){out, in, bytes, 0});
    out += FAULT_COUNT;
    comm_reduce_scatter(comm, stream, &(struct comm_reduce_scatter){out, in, values, 0});
    out += FAULT_COUNT;
    comm_all_to_all_v(comm, stream,
                      &(struct comm_all_to_all_v){out, in, bytes, offsets, bytes, offsets, 0});
    out += FAULT_COUNT;
    sends[rank] = (struct comm_message){(rank + 1) % FAULT_RANKS, (void *)in, 64};
    receives[rank] = (struct comm_message){(rank + FAULT_RANKS - 1) % FAULT_RANKS, out, 64};
    comm_exchange(comm, stream, &(struct comm_exchange){&sends[rank], &receives[rank], 1, 1, 0});
    out += FAULT_COUNT;
    comm_all_reduce(comm, stream, &(struct comm_all_reduce){out, in, FAULT_COUNT, 0});
}

static enum status fault_rank(void *context, int rank, struct error *err)
{
    struct fault *fault = context;
    struct device *device = box_device(fault->box, rank);
    fault_put(fault, rank);
    if (rank == fault->late)
        sleep_microseconds(LATE_MICROSECONDS);
    enum status status = device->ops->synchronize(device->stream, err);
    fault->said[rank] = status == STATUS_OK ? (struct error){.message = ""} : *err;
    device->ops->host_memory_free(device, fault->in[rank]);
    return status;
}

/* In memory that was freed there are numbers that are none: what is there was brought before, or
 * was not brought. */
static void check_values(const struct fault *fault, const struct error *err, int n)
{
    for (int r = 0; r < FAULT_RANKS; r++) {
        bool is_anything = cuda_box_leaves_anything && fault->said[r].message[0] != 0;
        for (int i = 0; i < 5 * FAULT_COUNT && !is_anything; i++) {
            float value = fault->out[r][i];
            cr_assert(value == value, "at %d: rank %d has read what was freed: %s", n, r,
                      err->message);
        }
    }
}

/* A rank whose stream has not failed has all, also where another's has. The last is the all-reduce,
 * in which a rank depends on what the others have made. */
static void check_sums(const struct fault *fault, int n)
{
    for (int r = 0; r < FAULT_RANKS; r++) {
        const float *sums = fault->out[r] + (ptrdiff_t)4 * FAULT_COUNT;
        for (int i = 0; fault->said[r].message[0] == 0 && i < FAULT_COUNT; i++)
            cr_assert_eq(sums[i], 3 * i + 3, "at %d: rank %d, value %d: %g", n, r, i,
                         (double)sums[i]);
    }
}

/* A call fails once: that is what all say, but that a rank's own stream knows whose it is. A broken
 * GPU is seen by each of its ranks. */
static void check_said(const struct fault *fault, const struct error *err, bool kernel, int n)
{
    cr_assert_eq(err->status, STATUS_IO, "at %d: %s", n, err->message);
    cr_assert(strncmp(err->message, "rank ", 5) == 0 && strstr(err->message, "on cuda:") != NULL,
              "at %d: %s", n, err->message);
    for (int r = 0; r < FAULT_RANKS; r++) {
        const char *said = fault->said[r].message;
        bool known = said[0] == 0 || strstr(kernel ? said : err->message,
                                            kernel ? "on cuda:0: an illegal memory access" : said);
        cr_assert(known, "at %d: rank %d says %s, the run %s", n, r, said, err->message);
    }
}

/* How ranks are joined. */
struct joint {
    int gpu_count;
    double bytes_per_second;
};

/* Whether the failure came. */
static bool fault_run(const struct joint *joint, int n, int late, bool kernel)
{
    struct fault fault = {
        .box = cuda_box_slow(FAULT_RANKS, joint->gpu_count, joint->bytes_per_second), .late = late};
    struct error err = {.message = ""};
    test_comm_create(fault.comms, fault.box, FAULT_RANKS);
    test_box_run(fault.box, fault_prepare, &fault);
    simt_free_waits_set(false);
    if (kernel)
        simt_fail_kernel_at((uint64_t)n, cudaErrorIllegalAddress);
    else
        simt_fail_at((uint64_t)n, cudaErrorUnknown);
    enum status status = box_run(fault.box, fault_rank, &fault, &err);
    bool came = kernel ? status != STATUS_OK : !simt_fail_is_ahead();
    simt_fail_at(0, cudaSuccess);
    simt_free_waits_set(true);
    if (status != STATUS_OK)
        check_said(&fault, &err, kernel, n);
    /* Who cannot wait frees too early. */
    bool is_at_rest = strstr(err.message, "cudaStreamSynchronize") == NULL;
    if (is_at_rest)
        check_sums(&fault, n);
    if (is_at_rest && strstr(err.message, "cudaStreamWaitEvent") == NULL)
        check_values(&fault, &err, n);
    for (int r = 0; r < FAULT_RANKS; r++)
        box_device(fault.box, r)->ops->host_memory_free(box_device(fault.box, r), fault.out[r]);
    test_comms_destroy(fault.comms, FAULT_RANKS);
    box_close(fault.box);
    simt_fail_kernel_at(0, cudaSuccess);
    cr_assert_eq(simt_live_count(), 0, "at %d", n);
    return came;
}

/* The n-th call of the runtime fails, for every n: the run ends on all ranks with a sentence that
 * names rank and call, and nobody waits for ever. */
Test(cuda_comm, each_call_of_a_collective_may_fail)
{
    static const struct joint joints[] = {{1, 0}, {FAULT_RANKS, 0}, {1, 1e9}};
    for (size_t j = 0; j < sizeof joints / sizeof *joints; j++) {
        int n = 0;
        bool came = true;
        while (came) {
            n++;
            came = false;
            for (int late = 0; late < FAULT_RANKS; late++) {
                simt_stream_seed_set((uint64_t)(n + late) % 4);
                came = fault_run(&joints[j], n, late, false) || came;
            }
        }
        cr_assert(n > 50, "only %d calls", n);
    }
}

Test(cuda_comm, a_kernel_that_breaks_its_gpu_ends_the_run)
{
    for (uint64_t seed = 0; seed < 4; seed++) {
        int n = 1;
        simt_stream_seed_set(seed);
        while (fault_run(&(struct joint){1, seed % 2 == 0 ? 0 : 1e9}, n, n % FAULT_RANKS, true))
            n++;
        cr_assert_gt(n, 2 * FAULT_RANKS, "seed %d: only %d kernels", (int)seed, n - 1);
    }
}
