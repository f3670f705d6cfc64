/* Links between ranks on GPUs that are made slow: how long a collective takes at least, by its
 * bytes. That its results are right, the suite of tests/comm says, of which one backend has such
 * links. */
#include <criterion/criterion.h>
#include <math.h>
#include <sched.h>
#include <stdatomic.h>

#include "comm/group.h"
#include "comm_tools.h"
#include "device/peers.h"
#include "gpu.h"

TestSuite(slow_links, .timeout = 120);

#define RATE   1e7 /* bytes a second */
#define DELAY  0.002
#define VALUES 25000
#define BYTES  (VALUES * (int64_t)sizeof(float)) /* 10 ms */
#define RANKS  4

#define ROUNDING 1e-7 /* seconds, of a clock that counts nanoseconds */

struct job {
    struct box *box;
    bool clock_stands; /* but while links are taken */
    struct comm *comms[RANKS];
    float *in[RANKS], *out[RANKS];
    void (*put)(const struct job *job, int rank);
    double busy[RANKS];    /* seconds that the rank's stream has something else to do before */
    int first;             /* waits for its stream before all others do; -1: nobody does */
    atomic_int put_count;  /* ranks whose streams have all that they are to do */
    atomic_int done_count; /* ranks that have waited */
    double seconds[RANKS]; /* until it was done */
    double ends[RANKS];    /* by the clock */

    /* Of what one rank alone has a part in, for each rank: nothing but for that one. */
    int one;
    int64_t bytes_of_one[RANKS], values_of_one[RANKS];
};

static void job_aim(struct job *job, int one)
{
    job->one = one;
    for (int r = 0; r < RANKS; r++) {
        job->bytes_of_one[r] = r == one ? BYTES : 0;
        job->values_of_one[r] = r == one ? VALUES : 0;
    }
}

static enum status job_prepare(void *context, int rank, struct error *err)
{
    struct job *job = context;
    struct device *device = box_device(job->box, rank);
    TRY(device->ops->memory_get(device, (void **)&job->in[rank], RANKS * BYTES, "in", err));
    return device->ops->memory_get(device, (void **)&job->out[rank], RANKS * BYTES, "out", err);
}

struct busy {
    struct stream *stream;
    const struct peer_ops *peers;
    double seconds;
};

static enum status be_busy(void *argument, struct error *err)
{
    const struct busy *busy = argument;
    TRY(busy->peers->pace_begin(busy->stream, 0, err));
    return busy->peers->pace_end(busy->stream, busy->seconds, err);
}

static enum status have_put(void *argument, struct error *err)
{
    struct job *const *job = argument;
    (void)err;
    atomic_fetch_add(&(*job)->put_count, 1);
    return STATUS_OK;
}

/* Streams of an emulated GPU go on while somebody waits for one of them, until that has nothing to
 * do: who waits first sees the least of the others. Nobody does before all have put what they are
 * to do, so that what it sees is a matter of the streams' order alone. */
static void until_it_is_its_turn(struct job *job, int rank)
{
    while (atomic_load(&job->put_count) < RANKS)
        sched_yield();
    while (job->first >= 0 && rank != job->first && atomic_load(&job->done_count) == 0)
        sched_yield();
}

static enum status job_run(void *context, int rank, struct error *err)
{
    struct job *job = context;
    struct device *device = box_device(job->box, rank);
    const struct busy busy = {device->stream, device->ops->peers, job->busy[rank]};
    double begin = gpu_seconds();
    if (busy.seconds > 0)
        busy.peers->call(device->stream, be_busy, &busy, sizeof busy);
    job->put(job, rank);
    device->ops->peers->call(device->stream, have_put, &job, sizeof job);
    until_it_is_its_turn(job, rank);
    enum status status = device->ops->synchronize(device->stream, err);
    job->ends[rank] = gpu_seconds();
    job->seconds[rank] = job->ends[rank] - begin;
    atomic_fetch_add(&job->done_count, 1);
    return status;
}

static enum status job_end(void *context, int rank, struct error *err)
{
    struct job *job = context;
    struct device *device = box_device(job->box, rank);
    (void)err;
    device->ops->memory_free(device, job->in[rank]);
    device->ops->memory_free(device, job->out[rank]);
    return STATUS_OK;
}

static struct stream *stream_of(const struct job *job, int rank)
{
    return box_device(job->box, rank)->stream;
}

static void put_all_gather(const struct job *job, int rank)
{
    static const int64_t counts[RANKS] = {BYTES, BYTES / 2, BYTES, BYTES};
    comm_all_gather(job->comms[rank], stream_of(job, rank),
                    &(struct comm_all_gather){job->out[rank], job->in[rank], counts, 0});
}

static void put_reduce_scatter(const struct job *job, int rank)
{
    static const int64_t counts[RANKS] = {VALUES, VALUES, VALUES / 2, VALUES};
    comm_reduce_scatter(job->comms[rank], stream_of(job, rank),
                        &(struct comm_reduce_scatter){job->out[rank], job->in[rank], counts, 0});
}

static void put_all_reduce(const struct job *job, int rank)
{
    comm_all_reduce(job->comms[rank], stream_of(job, rank),
                    &(struct comm_all_reduce){job->out[rank], job->in[rank], 4 * VALUES, 0});
}

/* All send to one alone. */
static void put_all_to_one(const struct job *job, int rank)
{
    static const int64_t none[RANKS], from_all[RANKS] = {BYTES, BYTES, BYTES, BYTES};
    static const int64_t offsets[RANKS] = {0, BYTES, 2 * BYTES, 3 * BYTES};
    comm_all_to_all_v(job->comms[rank], stream_of(job, rank),
                      &(struct comm_all_to_all_v){job->out[rank], job->in[rank], job->bytes_of_one,
                                                  offsets, rank == job->one ? from_all : none,
                                                  offsets, 0});
}

/* Once around. */
static void put_exchange(const struct job *job, int rank)
{
    static struct comm_message sends[RANKS], receives[RANKS];
    sends[rank] = (struct comm_message){(rank + 1) % RANKS, job->in[rank], 2 * BYTES};
    receives[rank] = (struct comm_message){(rank + RANKS - 1) % RANKS, job->out[rank], 2 * BYTES};
    comm_exchange(job->comms[rank], stream_of(job, rank),
                  &(struct comm_exchange){&sends[rank], &receives[rank], 1, 1, 0});
}

/* One rank's part alone, to three others. */
static void put_gather_of_one(const struct job *job, int rank)
{
    comm_all_gather(job->comms[rank], stream_of(job, rank),
                    &(struct comm_all_gather){job->out[rank], job->in[rank], job->bytes_of_one, 0});
}

/* One rank's part alone, from three others. */
static void put_reduce_to_one(const struct job *job, int rank)
{
    comm_reduce_scatter(
        job->comms[rank], stream_of(job, rank),
        &(struct comm_reduce_scatter){job->out[rank], job->in[rank], job->values_of_one, 0});
}

/* Units of BYTES that the busiest link has, in the one direction or in the other, and how often it
 * delays them. */
static const struct {
    const char *name;
    void (*put)(const struct job *job, int rank);
    double units;
    int steps;
} cases[] = {
    {"all-gather", put_all_gather, 3, 1},         /* a whole part goes to three others */
    {"reduce-scatter", put_reduce_scatter, 3, 1}, /* a whole part comes from three others */
    {"all-reduce", put_all_reduce, 6, 2},         /* 2 x 3/4 of 4 */
    {"all-to-all", put_all_to_one, 3, 1},         {"exchange", put_exchange, 2, 1},
};

static void job_open(struct job *job)
{
    struct error err;
    struct box_params params = {.rank_count = RANKS,
                                .thread_count = RANKS,
                                .patience_seconds = FOREVER,
                                .links = {RATE, DELAY},
                                .gpus = (int[RANKS]){0}};
    *job = (struct job){.first = -1};
    job_aim(job, 0);
    gpu_count_use(1);
    job->clock_stands = gpu_clock_use();
    cr_assert_eq(box_open(&job->box, &params, &err), STATUS_OK, "%s", err.message);
    test_comm_create(job->comms, job->box, RANKS);
    test_box_run(job->box, job_prepare, job);
}

static void job_close(struct job *job)
{
    test_box_run(job->box, job_end, job);
    test_comms_destroy(job->comms, RANKS);
    box_close(job->box);
}

static void job_run_once(struct job *job)
{
    atomic_store(&job->put_count, 0);
    atomic_store(&job->done_count, 0);
    test_box_run(job->box, job_run, job);
}

static void expect_all(const struct job *job, const char *name, double at_least)
{
    for (int r = 0; r < RANKS; r++)
        cr_expect_geq(job->seconds[r], at_least - ROUNDING, "%s, rank %d: %g s for %g", name, r,
                      job->seconds[r], at_least);
}

static double seconds_said(const struct job *job)
{
    double most = 0;
    for (int r = 0; r < RANKS; r++)
        most = fmax(most, job->comms[r]->link_seconds);
    return most + job->comms[0]->group->delay_seconds;
}

Test(slow_links, a_collective_takes_as_long_as_its_busiest_link)
{
    struct job job;
    job_open(&job);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        job.put = cases[c].put;
        job_run_once(&job);
        double seconds = cases[c].units * (double)BYTES / RATE + cases[c].steps * DELAY;
        cr_expect_float_eq(seconds_said(&job), seconds, 1e-9, "%s", cases[c].name);
        expect_all(&job, cases[c].name, seconds);
    }
    job_close(&job);
}

/* Each rank of these but one has a third of the bytes that it has. */
static const struct {
    const char *name;
    void (*put)(const struct job *job, int rank);
} uneven[] = {
    {"all-to-all", put_all_to_one},
    {"all-gather of one part", put_gather_of_one},
    {"reduce-scatter to one", put_reduce_to_one},
};

/* The clock of an emulated GPU stands when no link is taken any more. */
static void expect_one_end(const struct job *job, const char *name)
{
    for (int r = 0; r < RANKS && job->clock_stands; r++)
        cr_expect_geq(job->ends[job->first], job->ends[r] - ROUNDING, "%s, rank %d: %g s after %d",
                      name, r, job->ends[r] - job->ends[job->first], job->first);
}

/* Whichever rank has it, and whichever waits for its stream while those of all others have gone as
 * little as they may: that one has not gone on before the busiest link was done. Without a seed an
 * emulated GPU takes the oldest stream first, so that of every two ranks one has that order. */
Test(slow_links, all_wait_for_the_busiest_link)
{
    struct job job;
    job_open(&job);
    for (size_t c = 0; c < sizeof uneven / sizeof *uneven; c++) {
        for (int n = 0; n < 2 * RANKS * RANKS; n++) {
            gpu_order_use(GPU_FORWARD, (uint64_t)n / (RANKS * RANKS));
            job_aim(&job, n % RANKS);
            job.first = n / RANKS % RANKS;
            job.put = uneven[c].put;
            job_run_once(&job);
            expect_all(&job, uneven[c].name, 3 * (double)BYTES / RATE + DELAY);
            expect_one_end(&job, uneven[c].name);
        }
    }
    job_close(&job);
}

/* All bytes begin to flow when the last stream has come, not when each has: also where that one has
 * few of them. */
Test(slow_links, the_clock_begins_when_all_have_come)
{
    struct job job;
    job_open(&job);
    for (int late = 0; late < RANKS; late++) {
        job.put = put_all_to_one;
        for (int r = 0; r < RANKS; r++)
            job.busy[r] = r == late ? 0.1 : 0;
        job_run_once(&job);
        expect_all(&job, "all-to-all", 0.1 + 3 * (double)BYTES / RATE + DELAY);
    }
    job_close(&job);
}

/* ---- Two communicators at once --------------------------------------------------------------- */

struct both {
    struct job job;
    struct comm *comms[RANKS];
};

/* Each gathers on a stream of its own, to halves of `out` that are apart. */
static enum status both_run(void *context, int rank, struct error *err)
{
    static const int64_t counts[RANKS] = {BYTES / 2, BYTES / 2, BYTES / 2, BYTES / 2};
    struct both *both = context;
    struct job *job = &both->job;
    struct device *device = box_device(job->box, rank);
    struct stream *beside;
    char *out = (char *)job->out[rank], *in = (char *)job->in[rank];
    TRY(device->ops->stream_create(device, &beside, STREAM_NORMAL, err));
    double begin = gpu_seconds();
    comm_all_gather(job->comms[rank], device->stream,
                    &(struct comm_all_gather){out, in, counts, 0});
    comm_all_gather(both->comms[rank], beside,
                    &(struct comm_all_gather){out + 2 * BYTES, in, counts, 0});
    enum status status = device->ops->synchronize(device->stream, err);
    struct error later;
    enum status other = device->ops->synchronize(beside, status == STATUS_OK ? err : &later);
    job->seconds[rank] = gpu_seconds() - begin;
    device->ops->stream_destroy(device, beside);
    return status == STATUS_OK ? other : status;
}

/* What goes over one link takes the sum, whichever stream it is of. */
Test(slow_links, two_at_once_share_their_links)
{
    struct both both;
    job_open(&both.job);
    test_comm_create(both.comms, both.job.box, RANKS);
    for (uint64_t seed = 0; seed < 10; seed++) {
        gpu_order_use(GPU_FORWARD, seed); /* on a GPU both begin at once */
        test_box_run(both.job.box, both_run, &both);
        expect_all(&both.job, "two all-gathers", 2 * 1.5 * (double)BYTES / RATE + DELAY);
    }
    test_comms_destroy(both.comms, RANKS);
    job_close(&both.job);
}
