/* That a collective over slow links takes the time that the links need, or more: how much more is a
 * matter of the machine. */
#include <criterion/criterion.h>
#include <stdatomic.h>

#include "base/system.h"
#include "comm_tools.h"
#include "device/one_at_a_time.h"

#define VALUES 1024

static const struct comm_links links = {.bytes_per_second = 1e6, .latency_seconds = 0.01};

/* Of two ranks that both begin at once: a second for each million of bytes in one direction, and
 * the latency of each step. */
static const struct {
    const char *name;
    enum { GATHER, SCATTER, REDUCE, TO_ALL, MESSAGES } what;
    double seconds;
} cases[] = {
    {"all-gather of 8,000 and 2,000 bytes", GATHER, 0.01 + 0.008},
    {"reduce-scatter of 500 and 300 values", SCATTER, 0.01 + 0.002},
    {"all-reduce of 1,000 values", REDUCE, 2 * 0.01 + 0.004},
    {"all-to-all of 1,000 and 9,000 bytes", TO_ALL, 0.01 + 0.009},
    {"exchange of 2 messages one way", MESSAGES, 0.01 + 0.007},
};

struct job {
    struct box *box;
    struct comm *comms[2];
    int index;
    char in[2][16384], out[2][16384];
    struct comm_message messages[2][2];
    double begin[2], end[2];
};

static void post(struct job *job, int rank, struct stream *stream)
{
    static const int64_t bytes[2] = {8000, 2000}, values[2] = {500, 300}, zeros[2];
    static const int64_t sends[2][2] = {{0, 1000}, {9000, 0}}, gets[2][2] = {{0, 9000}, {1000, 0}};
    struct comm *comm = job->comms[rank];
    void *in = job->in[rank], *out = job->out[rank];
    struct comm_message *messages = job->messages[rank];
    for (int i = 0; i < 2; i++)
        messages[i] = (struct comm_message){.peer = 1 - rank,
                                            .data = (char *)(rank == 0 ? in : out) + i * 3000,
                                            .bytes = i == 0 ? 3000 : 4000};
    switch (cases[job->index].what) {
    case GATHER:
        comm_all_gather(comm, stream, &(struct comm_all_gather){out, in, bytes, 0});
        break;
    case SCATTER:
        comm_reduce_scatter(comm, stream, &(struct comm_reduce_scatter){out, in, values, 0});
        break;
    case REDUCE:
        comm_all_reduce(comm, stream, &(struct comm_all_reduce){out, in, 1000, 0});
        break;
    case TO_ALL:
        comm_all_to_all_v(
            comm, stream,
            &(struct comm_all_to_all_v){out, in, sends[rank], zeros, gets[rank], zeros, 0});
        break;
    default:
        comm_exchange(comm, stream,
                      &(struct comm_exchange){.sends = messages,
                                              .receives = messages,
                                              .send_count = rank == 0 ? 2 : 0,
                                              .receive_count = rank == 0 ? 0 : 2});
        break;
    }
}

static enum status run_rank(void *context, int rank, struct error *err)
{
    struct job *job = context;
    struct device *device = box_device(job->box, rank);
    job->begin[rank] = system_seconds();
    post(job, rank, device->stream);
    TRY(device->ops->synchronize(device->stream, err));
    job->end[rank] = system_seconds();
    return STATUS_OK;
}

static struct job *job_open(struct turn *turn, const struct comm_links *speed)
{
    static struct job job;
    struct error err;
    struct box_params params = {.rank_count = 2,
                                .thread_count = 2,
                                .turn = turn,
                                .links = *speed,
                                .patience_seconds = FOREVER};
    cr_assert_eq(box_open(&job.box, &params, &err), STATUS_OK, "%s", err.message);
    test_comm_create(job.comms, job.box, 2);
    return &job;
}

static void job_close(const struct job *job)
{
    test_comms_destroy((struct comm **)job->comms, 2);
    box_close(job->box);
}

Test(slow, a_collective_takes_what_its_links_need)
{
    struct job *job = job_open(NULL, &links);
    for (job->index = 0; job->index < (int)(sizeof cases / sizeof cases[0]); job->index++) {
        test_box_run(job->box, run_rank, job);
        for (int rank = 0; rank < 2; rank++) {
            double seconds = job->end[rank] - job->begin[rank];
            cr_assert_geq(seconds, cases[job->index].seconds, "%s: rank %d: %.6f for %.6f s",
                          cases[job->index].name, rank, seconds, cases[job->index].seconds);
        }
    }
    job_close(job);
}

/* The pause of rank 1 begins after begun, so no rank may be through before its end and the
 * transfer. */
Test(slow, time_counts_from_the_last_member)
{
    struct job *job = job_open(NULL, &links);
    job->index = GATHER;
    double begun = system_seconds();
    stream_pause(job->box, 1, 50000);
    test_box_run(job->box, run_rank, job);
    cr_assert_geq(job->end[0] - begun, 0.05 + cases[GATHER].seconds);
    job_close(job);
}

/* ---- Turns ----------------------------------------------------------------------------------- */

static enum status note_work(void *argument, struct error *err)
{
    (void)err;
    atomic_store(*(atomic_bool **)argument, true);
    return STATUS_OK;
}

struct notes {
    struct job *job;
    atomic_bool behind, beside; /* the collective */
    bool was_behind;            /* when that beside was there */
};

/* Once rank 0 is within the collective, its other stream works, and then ends the run. */
static enum status run_beside(void *context, int rank, struct error *err)
{
    struct notes *notes = context;
    struct device *device = box_device(notes->job->box, rank);
    struct stream *other;
    atomic_bool *behind = &notes->behind, *beside = &notes->beside;
    post(notes->job, rank, device->stream);
    if (rank == 1)
        return device->ops->synchronize(device->stream, err);
    device->ops->call(device->stream, note_work, &behind, sizeof behind);
    TRY(device->ops->stream_create(device, &other, STREAM_NORMAL, err));
    while (comm_domain_bytes(box_domain(notes->job->box), 1, 0) == 0)
        sleep_microseconds(100);
    device->ops->call(other, note_work, &beside, sizeof beside);
    enum status status = device->ops->synchronize(other, err);
    notes->was_behind = atomic_load(behind);
    device->ops->stream_destroy(device, other);
    return status == STATUS_OK ? error_set(err, STATUS_CANCELLED, "enough") : status;
}

/* The bytes would come in some hours, and the run does not end before the other stream has worked.
 */
Test(slow, others_work_while_a_rank_sleeps)
{
    struct turn *turn;
    struct error err;
    cr_assert_eq(one_at_a_time_create(&turn, &err), STATUS_OK, "%s", err.message);
    struct comm_links slower = {.bytes_per_second = 1};
    struct notes notes = {.job = job_open(turn, &slower)};
    notes.job->index = GATHER;
    cr_assert_eq(box_run(notes.job->box, run_beside, &notes, &err), STATUS_CANCELLED);
    cr_assert_str_eq(err.message, "rank 0: enough");
    cr_assert(atomic_load(&notes.beside) && !notes.was_behind);
    job_close(notes.job);
    one_at_a_time_destroy(turn);
}

/* ---- The end of the run ---------------------------------------------------------------------- */

static enum status run_and_fail(void *context, int rank, struct error *err)
{
    struct job *job = context;
    struct device *device = box_device(job->box, rank);
    post(job, rank, device->stream);
    if (rank == 0)
        return device->ops->synchronize(device->stream, err);
    while (comm_domain_bytes(box_domain(job->box), 1, 0) == 0)
        sleep_microseconds(100);
    return error_set(err, STATUS_CANCELLED, "enough");
}

/* The bytes would come in some hours. */
Test(slow, the_end_of_the_run_ends_sleeping)
{
    struct comm_links slower = {.bytes_per_second = 1};
    struct job *job = job_open(NULL, &slower);
    struct error err;
    job->index = GATHER;
    cr_assert_eq(box_run(job->box, run_and_fail, job, &err), STATUS_CANCELLED);
    cr_assert_str_eq(err.message, "rank 1: enough");
    job_close(job);
}
