#include "comm_tools.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"

const char *const tag_names[COMM_TAGS_MAX] = {
    "rows",  "ids",   "parts",  "logits", "tag 4",  "tag 5",  "tag 6",  "tag 7",
    "tag 8", "tag 9", "tag 10", "tag 11", "tag 12", "tag 13", "tag 14", NULL,
};

struct box *test_box_open(int rank_count, double patience_seconds)
{
    struct box *box;
    struct error err;
    cr_assert_eq(backends[0].open(&box, rank_count, patience_seconds, &err), STATUS_OK, "%s",
                 err.message);
    return box;
}

void test_box_run(struct box *box, enum status (*work)(void *context, int rank, struct error *err),
                  void *context)
{
    struct error err;
    cr_assert_eq(box_run(box, work, context, &err), STATUS_OK, "%s", err.message);
}

void test_comm_create(struct comm **out, struct box *box, int member_count)
{
    int ranks[COMM_RANKS_MAX];
    struct error err;
    for (int m = 0; m < member_count; m++)
        ranks[m] = m;
    cr_assert_eq(comm_create(out, box_domain(box), ranks, member_count, &err), STATUS_OK, "%s",
                 err.message);
}

void test_comms_destroy(struct comm **comms, int member_count)
{
    for (int m = 0; m < member_count; m++)
        comm_destroy(comms[m]);
}

void sleep_microseconds(int64_t microseconds)
{
    struct timespec left = {.tv_sec = microseconds / 1000000,
                            .tv_nsec = microseconds % 1000000 * 1000};
    while (nanosleep(&left, &left) != 0)
        ;
}

static enum status pause_run(void *argument, struct error *err)
{
    (void)err;
    sleep_microseconds(*(const int64_t *)argument);
    return STATUS_OK;
}

void stream_pause(struct box *box, int rank, int64_t microseconds)
{
    struct device *device = box_device(box, rank);
    device->ops->call(device->stream, pause_run, &microseconds, sizeof microseconds);
}

uint64_t test_seed(const char *test)
{
    const char *given = getenv("PHASOR_TEST_SEED");
    uint64_t seed = given == NULL ? 1 : strtoull(given, NULL, 10);
    printf("%s: PHASOR_TEST_SEED=%" PRIu64 "\n", test, seed);
    fflush(stdout);
    return seed;
}

static unsigned char *image_new(const struct scenario *scenario, int member)
{
    unsigned char *image = memory_alloc_raw((size_t)scenario->places[member].bytes, 1);
    cr_assert_not_null(image);
    return image;
}

void trial_prepare(struct trial *trial)
{
    const struct scenario *scenario = &trial->scenario;
    for (int m = 0; m < scenario->size; m++) {
        trial->before[m] = image_new(scenario, m);
        trial->after[m] = image_new(scenario, m);
        trial->expected[m] = image_new(scenario, m);
        scenario_fill(scenario, m, trial->before[m]);
        memcpy(trial->expected[m], trial->before[m], (size_t)scenario->places[m].bytes);
    }
    for (int m = 0; m < scenario->size; m++)
        scenario_expect(scenario, m, trial->expected[m], trial->before);
}

void trial_free(struct trial *trial)
{
    for (int m = 0; m < trial->scenario.size; m++) {
        memory_free(trial->before[m]);
        memory_free(trial->after[m]);
        memory_free(trial->expected[m]);
    }
}

void trial_post(struct trial *trial, struct comm *comm, struct device *device,
                struct stream *stream, unsigned char *block)
{
    int self = comm_member(comm);
    int64_t bytes = trial->scenario.places[self].bytes;
    device->ops->copy(stream,
                      &(struct op_copy){.out = block, .in = trial->before[self], .bytes = bytes});
    scenario_post(&trial->scenario, comm, stream, block);
    device->ops->copy(stream,
                      &(struct op_copy){.out = trial->after[self], .in = block, .bytes = bytes});
}

enum status trial_check(const struct trial *trial, int member, struct error *err)
{
    const struct scenario *s = &trial->scenario;
    const unsigned char *after = trial->after[member], *expected = trial->expected[member];
    if (memcmp(after, expected, (size_t)s->places[member].bytes) == 0)
        return STATUS_OK;
    for (int64_t i = 0; i < s->places[member].bytes; i++) {
        if (after[i] != expected[i])
            return error_set(err, STATUS_INTERNAL,
                             "%s of %d, %s%s: member %d has %02x for %02x in byte %" PRId64
                             " of its block (in at %" PRId64 ", out at %" PRId64 ")",
                             kind_names[s->kind], s->size, profile_names[s->profile],
                             s->in_place ? ", in place" : "", member, after[i], expected[i], i,
                             s->places[member].in_at, s->places[member].out_at);
    }
    return STATUS_OK;
}
