/* What every backend holds: one table of cases, for several numbers of members. */
#include <criterion/criterion.h>
#include <inttypes.h>

#include "comm_tools.h"

static const int member_counts[] = {1, 2, 3, 4, 8};
#define MEMBER_COUNTS (int)(sizeof member_counts / sizeof member_counts[0])

static const struct {
    enum kind kind;
    bool in_place;
} forms[] = {
    {ALL_GATHER, false}, {ALL_GATHER, true}, {REDUCE_SCATTER, false}, {REDUCE_SCATTER, true},
    {ALL_REDUCE, false}, {ALL_REDUCE, true}, {ALL_TO_ALL_V, false},   {EXCHANGE, false},
};
#define FORM_COUNT (int)(sizeof forms / sizeof forms[0])

struct job {
    struct box *box;
    struct comm *comms[MEMBERS_MAX];
    struct trial *trial;
    uint64_t bytes_before[MEMBERS_MAX][COMM_TAGS_MAX];
};

static enum status job_rank(void *context, int rank, struct error *err)
{
    struct job *job = context;
    struct device *device = box_device(job->box, rank);
    unsigned char *block;
    TRY(device->ops->memory_get(device, (void **)&block,
                                (size_t)job->trial->scenario.places[rank].bytes, "a test's block",
                                err));
    trial_post(job->trial, job->comms[rank], device, device->stream, block);
    enum status status = device->ops->synchronize(device->stream, err);
    device->ops->memory_free(device, block);
    return status != STATUS_OK ? status : trial_check(job->trial, rank, err);
}

static void note_bytes(struct job *job)
{
    for (int r = 0; r < box_rank_count(job->box); r++) {
        for (int tag = 0; tag < COMM_TAGS_MAX; tag++)
            job->bytes_before[r][tag] = comm_domain_bytes(box_domain(job->box), r, tag);
    }
}

static void check_bytes(const struct job *job)
{
    const struct scenario *s = &job->trial->scenario;
    for (int r = 0; r < box_rank_count(job->box); r++) {
        for (int tag = 0; tag < COMM_TAGS_MAX; tag++) {
            uint64_t counted =
                comm_domain_bytes(box_domain(job->box), r, tag) - job->bytes_before[r][tag];
            uint64_t expected = tag == s->tag ? scenario_bytes(s, r) : 0;
            cr_assert_eq(
                counted, expected, "%s of %d, %s: rank %d, tag %d: %" PRIu64 " bytes for %" PRIu64,
                kind_names[s->kind], s->size, profile_names[s->profile], r, tag, counted, expected);
        }
    }
}

static void run_case(struct job *job, int form, enum profile profile, struct random *random)
{
    static struct trial trial;
    int tag = (form * PROFILE_COUNT + (int)profile) % COMM_TAGS_MAX;
    scenario_make(&trial.scenario, forms[form].kind, profile, forms[form].in_place,
                  box_rank_count(job->box), tag, random);
    trial_prepare(&trial);
    job->trial = &trial;
    note_bytes(job);
    test_box_run(job->box, job_rank, job);
    check_bytes(job);
    trial_free(&trial);
}

static void run_table(const struct backend *backend, int member_count)
{
    struct job job;
    struct error err;
    struct random random = {.seed = (uint64_t)member_count};
    cr_assert_eq(backend->open(&job.box, member_count, FOREVER, &err), STATUS_OK, "%s",
                 err.message);
    test_comm_create(job.comms, job.box, member_count);
    for (int form = 0; form < FORM_COUNT; form++) {
        for (int profile = 0; profile < PROFILE_COUNT; profile++)
            run_case(&job, form, (enum profile)profile, &random);
    }
    test_comms_destroy(job.comms, member_count);
    backend->close(job.box);
}

Test(collectives, hold_their_contracts)
{
    for (int b = 0; b < backend_count; b++) {
        for (int i = 0; i < MEMBER_COUNTS; i++)
            run_table(&backends[b], member_counts[i]);
    }
}

Test(collectives, ends_know_their_places)
{
    struct box *box = test_box_open(4, FOREVER);
    struct comm *comms[3];
    struct error err;
    cr_assert_eq(comm_create(comms, box_domain(box), (int[]){3, 0, 2}, 3, &err), STATUS_OK);
    for (int m = 0; m < 3; m++) {
        cr_assert_eq(comm_size(comms[m]), 3);
        cr_assert_eq(comm_member(comms[m]), m);
    }
    test_comms_destroy(comms, 3);
    comm_destroy(NULL);
    box_close(box);
}

/* The parts are whole lines, follow one another and hold everything. */
Test(collectives, parts_of_an_all_reduce)
{
    for (int64_t total = 0; total < 700; total++) {
        for (int size = 1; size <= 9; size++) {
            int64_t next = 0, first, count;
            int64_t part = ((total + size - 1) / size + 15) / 16 * 16;
            for (int m = 0; m < size; m++) {
                comm_part(&first, &count, total, size, m);
                cr_assert_eq(first, next);
                cr_assert(count >= 0 && count <= part);
                cr_assert(count == part || first + count == total);
                next += count;
            }
            cr_assert_eq(next, total);
        }
    }
}
