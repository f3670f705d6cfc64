/* Many collectives one behind another, with the same memory used again at once: what a departure
 * too early, a wrong order or a lost wake-up would spoil. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/perturb.h"
#include "comm_tools.h"

/* ---- Random sequences over random communicators -----------------------------------------------
 */

#define COMMS_MAX  4
#define STEP_COUNT 24

struct group {
    int ranks[MEMBERS_MAX];
    int size;
    bool beside; /* runs on a stream beside the device's own */
    struct comm *comms[MEMBERS_MAX];
};

struct sequence {
    uint64_t seed;
    const struct backend *backend;
    struct box *box;
    struct group groups[COMMS_MAX];
    int group_count;
    struct step {
        struct group *group;
        struct trial trial;
    } steps[STEP_COUNT];
    uint64_t expected_bytes[MEMBERS_MAX][COMM_TAGS_MAX];
};

static void group_draw(struct group *out, int rank_count, struct random *random)
{
    out->size = 0;
    out->beside = random_below(random, 3) == 0;
    while (out->size == 0) {
        for (int r = 0; r < rank_count; r++) {
            if (random_below(random, 3) > 0)
                out->ranks[out->size++] = r;
        }
    }
    for (int m = out->size - 1; m > 0; m--) {
        int other = (int)random_below(random, (uint64_t)m + 1), rank = out->ranks[m];
        out->ranks[m] = out->ranks[other];
        out->ranks[other] = rank;
    }
}

static void step_draw(struct step *out, struct sequence *sequence, struct random *random)
{
    enum kind kind = (enum kind)random_below(random, KIND_COUNT);
    enum profile profile = PROFILE_RANDOM;
    if (random_below(random, 4) == 0)
        profile = (enum profile)random_below(random, PROFILE_LARGE);
    bool in_place = kind_can_be_in_place(kind) && random_below(random, 2) == 0;
    out->group = &sequence->groups[random_below(random, (uint64_t)sequence->group_count)];
    int tag = (int)random_below(random, COMM_TAGS_MAX);
    scenario_make(&out->trial.scenario, kind, profile, in_place, out->group->size, tag, random);
    trial_prepare(&out->trial);
    for (int m = 0; m < out->group->size; m++)
        sequence->expected_bytes[out->group->ranks[m]][tag] +=
            scenario_bytes(&out->trial.scenario, m);
}

static struct sequence *sequence_make(uint64_t seed)
{
    struct random random = {.seed = seed};
    struct error err;
    struct sequence *sequence = memory_alloc(1, sizeof *sequence);
    cr_assert_not_null(sequence);
    sequence->seed = seed;
    int rank_count = 2 + (int)random_below(&random, MEMBERS_MAX - 1);
    sequence->backend = &backends[random_below(&random, (uint64_t)backend_count)];
    cr_assert_eq(sequence->backend->open(&sequence->box, rank_count, FOREVER, &err), STATUS_OK,
                 "%s", err.message);
    sequence->group_count = 1 + (int)random_below(&random, COMMS_MAX);
    for (int g = 0; g < sequence->group_count; g++) {
        struct group *group = &sequence->groups[g];
        group_draw(group, rank_count, &random);
        cr_assert_eq(
            comm_create(group->comms, box_domain(sequence->box), group->ranks, group->size, &err),
            STATUS_OK, "%s", err.message);
    }
    for (int s = 0; s < STEP_COUNT; s++)
        step_draw(&sequence->steps[s], sequence, &random);
    return sequence;
}

static void sequence_free(struct sequence *sequence)
{
    for (int s = 0; s < STEP_COUNT; s++)
        trial_free(&sequence->steps[s].trial);
    for (int g = 0; g < sequence->group_count; g++)
        test_comms_destroy(sequence->groups[g].comms, sequence->groups[g].size);
    sequence->backend->close(sequence->box);
    memory_free(sequence);
}

/* -1: the rank has no part in it. */
static int member_of(const struct group *group, int rank)
{
    for (int m = 0; m < group->size; m++) {
        if (group->ranks[m] == rank)
            return m;
    }
    return -1;
}

static size_t block_bytes(const struct sequence *sequence, int rank)
{
    int64_t most = 1;
    for (int s = 0; s < STEP_COUNT; s++) {
        const struct step *step = &sequence->steps[s];
        int m = member_of(step->group, rank);
        if (m >= 0 && step->trial.scenario.places[m].bytes > most)
            most = step->trial.scenario.places[m].bytes;
    }
    return (size_t)most;
}

/* Each step on one block of the rank, which the next one writes as soon as it may; communicators
 * beside have a stream and a block of their own. */
static void steps_post(struct sequence *sequence, int rank, struct stream *const *streams,
                       unsigned char *const *blocks)
{
    for (int s = 0; s < STEP_COUNT; s++) {
        struct step *step = &sequence->steps[s];
        int m = member_of(step->group, rank);
        uint64_t bits = random_at(sequence->seed, (uint64_t)s, (uint64_t)rank);
        if (m < 0)
            continue;
        if (bits % 4 == 0)
            stream_pause(sequence->box, rank, (int64_t)(bits >> 8) % 100);
        int which = step->group->beside ? 1 : 0;
        trial_post(&step->trial, step->group->comms[m], box_device(sequence->box, rank),
                   streams[which], blocks[which]);
    }
}

static enum status steps_check(struct sequence *sequence, int rank, struct error *err)
{
    for (int s = 0; s < STEP_COUNT; s++) {
        const struct step *step = &sequence->steps[s];
        int m = member_of(step->group, rank);
        enum status status = m < 0 ? STATUS_OK : trial_check(&step->trial, m, err);
        if (status != STATUS_OK)
            return error_prefix(err, status, "step %d", s);
    }
    return STATUS_OK;
}

static enum status sequence_rank(void *context, int rank, struct error *err)
{
    struct sequence *sequence = context;
    struct device *device = box_device(sequence->box, rank);
    const struct device_ops *ops = device->ops;
    struct stream *streams[2] = {device->stream, NULL};
    unsigned char *blocks[2] = {NULL, NULL};
    size_t bytes = block_bytes(sequence, rank);
    enum status status;
    TRY_GOTO(ops->stream_create(device, &streams[1], STREAM_NORMAL, err), out);
    for (int i = 0; i < 2; i++)
        TRY_GOTO(ops->memory_get(device, (void **)&blocks[i], bytes, "a block", err), out);
    steps_post(sequence, rank, streams, blocks);
    for (int i = 0; i < 2; i++)
        TRY_GOTO(ops->synchronize(streams[i], err), out);
    status = steps_check(sequence, rank, err);
out:
    ops->stream_destroy(device, streams[1]);
    for (int i = 0; i < 2; i++)
        ops->memory_free(device, blocks[i]);
    return status;
}

static void check_bytes(const struct sequence *sequence)
{
    for (int r = 0; r < box_rank_count(sequence->box); r++) {
        for (int tag = 0; tag < COMM_TAGS_MAX; tag++)
            cr_assert_eq(comm_domain_bytes(box_domain(sequence->box), r, tag),
                         sequence->expected_bytes[r][tag],
                         "PHASOR_TEST_SEED=%" PRIu64 ": rank %d, tag %d", sequence->seed, r, tag);
    }
}

/* PHASOR_TEST_FULL: see tests/sweep.h. */
Test(sequences, of_any_kind_over_any_communicators, .timeout = 3000)
{
    uint64_t first = test_seed("sequences");
    uint64_t count = getenv("PHASOR_TEST_FULL") != NULL ? 1000 : 100;
    for (uint64_t seed = first; seed < first + count; seed++) {
        struct error err;
        perturb_seed(seed);
        struct sequence *sequence = sequence_make(seed);
        cr_assert_eq(box_run(sequence->box, sequence_rank, sequence, &err), STATUS_OK,
                     "PHASOR_TEST_SEED=%" PRIu64 ": %s", seed, err.message);
        check_bytes(sequence);
        sequence_free(sequence);
    }
}

/* ---- Two communicators over overlapping ranks -------------------------------------------------
 */

#define ROUNDS 200

struct overlap {
    struct box *box;
    struct comm *low[3], *high[3]; /* ranks 0 to 2, and 3 to 1 */
};

static const int64_t two_each[3] = {8, 8, 8};

/* Sends `value`, expects those of the members in their order. */
static void gather_value(struct overlap *overlap, struct comm *comm, int rank, int64_t *out)
{
    out += comm_member(comm);
    comm_all_gather(comm, box_device(overlap->box, rank)->stream,
                    &(struct comm_all_gather){out - comm_member(comm), out, two_each, 0});
}

static enum status overlap_rank(void *context, int rank, struct error *err)
{
    struct overlap *overlap = context;
    static _Thread_local int64_t low[ROUNDS][3], high[ROUNDS][3];
    struct device *device = box_device(overlap->box, rank);
    for (int i = 0; i < ROUNDS; i++) {
        if (rank <= 2) {
            low[i][rank] = i * 10 + rank;
            gather_value(overlap, overlap->low[rank], rank, low[i]);
        }
        if (rank >= 1) {
            high[i][3 - rank] = i * 10 + rank;
            gather_value(overlap, overlap->high[3 - rank], rank, high[i]);
        }
    }
    TRY(device->ops->synchronize(device->stream, err));
    for (int i = 0; i < ROUNDS; i++) {
        for (int m = 0; m < 3; m++) {
            if ((rank <= 2 && low[i][m] != i * 10 + m) ||
                (rank >= 1 && high[i][m] != i * 10 + 3 - m))
                return error_set(err, STATUS_INTERNAL, "round %d: member %d", i, m);
        }
    }
    return STATUS_OK;
}

Test(sequences, alternate_between_two_communicators)
{
    struct overlap overlap = {.box = test_box_open(4, FOREVER)};
    struct error err;
    cr_assert_eq(comm_create(overlap.low, box_domain(overlap.box), (int[]){0, 1, 2}, 3, &err), 0);
    cr_assert_eq(comm_create(overlap.high, box_domain(overlap.box), (int[]){3, 2, 1}, 3, &err), 0);
    test_box_run(overlap.box, overlap_rank, &overlap);
    test_comms_destroy(overlap.low, 3);
    test_comms_destroy(overlap.high, 3);
    box_close(overlap.box);
}

/* ---- The same bits in every run ---------------------------------------------------------------
 */

#define SUMS 5000

struct sums {
    struct box *box;
    struct comm *comms[4];
    uint64_t run;
    float in[4][SUMS], reduced[4][SUMS], scattered[4][SUMS];
};

static const int64_t sums_counts[4] = {SUMS - 1000, 0, 999, 1};

static enum status sums_rank(void *context, int rank, struct error *err)
{
    struct sums *sums = context;
    struct device *device = box_device(sums->box, rank);
    const struct device_ops *ops = device->ops;
    float *in, *reduced, *scattered; /* what a device sums is its own memory */
    int64_t bytes = sizeof sums->in[rank];
    TRY(ops->memory_get(device, (void **)&in, 3 * SUMS * sizeof *in, "a test", err));
    reduced = in + SUMS;
    scattered = reduced + SUMS;
    ops->fill(device->stream, &(struct op_fill){.out = in, .bytes = 3 * bytes});
    ops->copy(device->stream, &(struct op_copy){.out = in, .in = sums->in[rank], .bytes = bytes});
    stream_pause(sums->box, rank, (int64_t)(random_at(sums->run, 0, (uint64_t)rank) % 2000));
    comm_all_reduce(sums->comms[rank], device->stream,
                    &(struct comm_all_reduce){reduced, in, SUMS, 0});
    stream_pause(sums->box, rank, (int64_t)(random_at(sums->run, 1, (uint64_t)rank) % 2000));
    comm_reduce_scatter(sums->comms[rank], device->stream,
                        &(struct comm_reduce_scatter){scattered, in, sums_counts, 0});
    ops->copy(device->stream,
              &(struct op_copy){.out = sums->reduced[rank], .in = reduced, .bytes = bytes});
    ops->copy(device->stream,
              &(struct op_copy){.out = sums->scattered[rank], .in = scattered, .bytes = bytes});
    enum status status = ops->synchronize(device->stream, err);
    ops->memory_free(device, in);
    return status;
}

Test(sequences, reductions_give_the_same_bits_in_every_run)
{
    static struct sums first, again;
    struct random random = {.seed = test_seed("reductions")};
    for (int r = 0; r < 4; r++) {
        for (int i = 0; i < SUMS; i++)
            first.in[r][i] = (float)random_normal(&random);
    }
    first.box = test_box_open(4, FOREVER);
    test_comm_create(first.comms, first.box, 4);
    again = first;
    test_box_run(first.box, sums_rank, &first);
    for (again.run = 1; again.run < 30; again.run++) {
        test_box_run(again.box, sums_rank, &again);
        cr_assert_arr_eq(again.reduced, first.reduced, sizeof first.reduced);
        cr_assert_arr_eq(again.scattered, first.scattered, sizeof first.scattered);
    }
    test_comms_destroy(first.comms, 4);
    box_close(first.box);
}
