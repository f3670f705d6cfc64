/* Granules of a list come once each, whatever the order in which reads end, however often lists are
 * given up; as many are in flight as keep a disk busy, in the memory that was said. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/random.h"
#include "fake_uring.h"
#include "rig.h"
#include "transition/granule_reader.h"

#define HOLD       3
#define LIST_COUNT 200

static const struct rig_params base = {.model = "mixtral",
                                       .dtype = DTYPE_BF16,
                                       .rank_count = 2,
                                       .plan = "tp2|tp2>ep2",
                                       .has_backup = true};

static struct granule_reader_params params_of(const struct rig *rig,
                                              const struct uring_calls *uring)
{
    return (struct granule_reader_params){
        .box = rig->runner.box, .backup = rig->backup, .hold_count = HOLD, .uring = uring};
}

static struct granule_readers *readers_of(const struct granule_reader_params *params)
{
    struct granule_readers *readers = NULL;
    struct error err;
    cr_assert_eq(granule_readers_open(&readers, params, &err), STATUS_OK, "%s", err.message);
    return readers;
}

TestSuite(granule_reader, .init = fake_reset, .fini = scenario_checkpoints_remove, .timeout = 60);

/* What a reader gives, held against the file until it is let go. */
struct held {
    struct granule granules[HOLD];
    int count;
};

static void check_bytes(const struct rig *rig, const struct granule *granule)
{
    size_t bytes = (size_t)backup_granule_bytes(rig->backup, granule->number);
    char *expected = memory_alloc(bytes, 1);
    cr_assert_eq(pread(backup_fd(rig->backup), expected, bytes,
                       (off_t)backup_granule_offset(rig->backup, granule->number)),
                 (ssize_t)bytes);
    cr_assert(memcmp(granule->bytes, expected, bytes) == 0, "granule %lld",
              (long long)granule->number);
    memory_free(expected);
}

static void let_one_go(struct held *held, const struct rig *rig, struct granule_reader *reader,
                       struct random *random)
{
    int i = (int)random_below(random, (uint64_t)held->count);
    check_bytes(rig, &held->granules[i]);
    granule_reader_release(reader, &held->granules[i]);
    held->granules[i] = held->granules[--held->count];
}

/* The first `most` of a list, some of them held while others come. */
static void read_some(const struct rig *rig, struct granule_reader *reader, const int64_t *numbers,
                      int64_t most, struct random *random)
{
    bool has_come[LIST_COUNT] = {false};
    struct held held = {.count = 0};
    struct error err;
    for (int64_t come = 0; come < most;) {
        struct granule *granule = &held.granules[held.count];
        bool has;
        cr_assert_eq(granule_reader_next(reader, granule, &has, 5, &err), STATUS_OK, "%s",
                     err.message);
        cr_assert(has);
        cr_assert(granule->i >= 0 && granule->i < LIST_COUNT && !has_come[granule->i]);
        cr_assert_eq(granule->number, numbers[granule->i] + 1);
        has_come[granule->i] = true;
        come++;
        held.count++;
        while (held.count == HOLD || (held.count > 0 && random_below(random, 2) == 0))
            let_one_go(&held, rig, reader, random);
    }
    while (held.count > 0 && most == LIST_COUNT)
        let_one_go(&held, rig, reader, random);
}

/* Whether a round names the list of the next, or another that does not come, or none. */
enum follower { FOLLOWED_BY_NEXT, FOLLOWED_BY_ANOTHER, FOLLOWED_BY_NONE };

static void numbers_draw(int64_t numbers[LIST_COUNT], const struct rig *rig, struct random *random)
{
    uint64_t bound = (uint64_t)backup_form(rig->backup)->granule_count - 1;
    for (int i = 0; i < LIST_COUNT; i++)
        numbers[i] = (int64_t)random_below(random, bound);
}

static void check_lists(const struct rig *rig, const struct uring_calls *uring)
{
    const struct granule_reader_params params = params_of(rig, uring);
    struct granule_readers *readers = readers_of(&params);
    struct granule_reader *reader = granule_reader_of(readers, 1);
    struct random random = {3, 0};
    int64_t numbers[2][LIST_COUNT];
    struct error err;
    bool has;
    numbers_draw(numbers[0], rig, &random);
    for (int round = 0; round < 30; round++) {
        /* Every third is given up in the middle, with some that are held. */
        int64_t most = round % 3 == 2 ? (int64_t)random_below(&random, LIST_COUNT) : LIST_COUNT;
        const struct granule_list list = {numbers[round % 2], LIST_COUNT, 1};
        struct granule_list next = {numbers[(round + 1) % 2], LIST_COUNT, 1};
        enum follower follower = (enum follower)random_below(&random, 3);
        numbers_draw(numbers[(round + 1) % 2], rig, &random);
        cr_assert_eq(granule_reader_begin(reader, &list, &err), STATUS_OK);
        next.first -= follower == FOLLOWED_BY_ANOTHER;
        if (follower != FOLLOWED_BY_NONE)
            granule_reader_follow(reader, &next);
        read_some(rig, reader, list.numbers, most, &random);
        if (most == LIST_COUNT) {
            struct granule none;
            cr_assert_eq(granule_reader_next(reader, &none, &has, 0, &err), STATUS_OK);
            cr_assert(!has);
        } else if (round % 2 == 0) {
            granule_reader_stop(reader);
        }
    }
    granule_readers_close(readers);
}

Test(granule_reader, gives_each_granule_once)
{
    struct rig rig;
    rig_load(&rig, &base);
    uint64_t live = memory_counters_get().live_count;
    check_lists(&rig, NULL);
    check_lists(&rig, &rig_no_uring);
    fake.is_shuffled = fake.is_short = fake.is_doubled = true;
    check_lists(&rig, &fake_uring);
    cr_assert_eq(fake.ring_count, 0);
    cr_assert_eq(memory_counters_get().live_count, live);
    rig_close(&rig);
}

/* Small granules: 16 and what may be held; 4 MiB or two of large ones. */
Test(granule_reader, keeps_enough_in_flight_in_the_memory_that_was_said)
{
    int64_t numbers[LIST_COUNT] = {0};
    struct error err;
    struct rig rig;
    rig_load(&rig, &base);
    const struct granule_reader_params params = params_of(&rig, &fake_uring);
    uint64_t said = granule_reader_bytes(backup_form(rig.backup), HOLD);
    uint64_t before = memory_counters_get().live_bytes;
    struct granule_readers *readers = readers_of(&params);
    uint64_t taken = memory_counters_get().live_bytes - before;
    cr_assert_geq(taken, 2 * said);
    cr_assert_leq(taken, 2 * (said + 16 * 1024), "%llu bytes for 2 x %llu",
                  (unsigned long long)taken, (unsigned long long)said);
    fake.hangs = true;
    cr_assert_eq(granule_reader_begin(granule_reader_of(readers, 0),
                                      &(struct granule_list){numbers, LIST_COUNT, 0}, &err),
                 STATUS_OK);
    uint64_t bytes = (uint64_t)backup_granule_bytes_max(rig.backup);
    cr_assert_lt(16 * bytes, 4 << 20);
    cr_assert_eq(fake.flying_count, 16 + HOLD);
    cr_assert_eq(said, (16 + HOLD) * bytes + READ_ALIGNMENT);
    fake.hangs = false;
    granule_readers_close(readers);
    cr_assert_eq(memory_counters_get().live_bytes, before);
    rig_close(&rig);
}

/* While the first list is held the disk goes on with the second; nothing is read twice, or given
 * before its list has begun. */
Test(granule_reader, goes_on_with_the_list_that_follows)
{
    int64_t numbers[LIST_COUNT] = {0};
    const struct granule_list first = {numbers, HOLD, 0}, second = {numbers, LIST_COUNT, 1};
    struct random random = {4, 0};
    struct granule held[HOLD], none;
    struct error err;
    struct rig rig;
    bool has;
    rig_load(&rig, &base);
    const struct granule_reader_params params = params_of(&rig, &fake_uring);
    struct granule_readers *readers = readers_of(&params);
    struct granule_reader *reader = granule_reader_of(readers, 0);
    uint64_t asked = granule_readers_use(readers).request_count;
    cr_assert_eq(granule_reader_begin(reader, &first, &err), STATUS_OK);
    granule_reader_follow(reader, &second);
    cr_assert_eq(granule_readers_use(readers).request_count - asked, 16 + HOLD);
    for (int i = 0; i < HOLD; i++) {
        cr_assert_eq(granule_reader_next(reader, &held[i], &has, 5, &err), STATUS_OK);
        cr_assert(has);
        cr_assert_eq(held[i].number, 0);
    }
    cr_assert_eq(granule_reader_next(reader, &none, &has, 5, &err), STATUS_OK);
    cr_assert(!has);
    for (int i = 0; i < HOLD; i++)
        granule_reader_release(reader, &held[i]);
    cr_assert_eq(granule_reader_begin(reader, &second, &err), STATUS_OK);
    read_some(&rig, reader, numbers, LIST_COUNT, &random);
    cr_assert_eq(granule_readers_use(readers).request_count - asked, HOLD + LIST_COUNT);
    granule_readers_close(readers);
    rig_close(&rig);
}

/* A read of the second list that fails is none of the first's, and is tried again as its own. */
Test(granule_reader, a_failure_is_of_the_list_that_is_read)
{
    int64_t numbers[LIST_COUNT] = {0};
    const struct granule_list first = {numbers, HOLD, 0}, second = {numbers, LIST_COUNT, 1};
    struct random random = {5, 0};
    struct granule held[HOLD];
    struct error err;
    struct rig rig;
    bool has;
    rig_load(&rig, &base);
    const struct granule_reader_params params = params_of(&rig, &fake_uring);
    struct granule_readers *readers = readers_of(&params);
    struct granule_reader *reader = granule_reader_of(readers, 0);
    cr_assert_eq(granule_reader_begin(reader, &first, &err), STATUS_OK);
    granule_reader_follow(reader, &second);
    fake.call = FAKE_RESULT;
    fake.error = EIO;
    fake.n = 2; /* behind the first read comes the last, and what was asked for before that */
    for (int i = 0; i < HOLD; i++) {
        cr_assert_eq(granule_reader_next(reader, &held[i], &has, 5, &err), STATUS_OK, "%s",
                     err.message);
        cr_assert(has && held[i].number == 0);
    }
    cr_assert_gt(fake.count, HOLD);
    for (int i = 0; i < HOLD; i++)
        granule_reader_release(reader, &held[i]);
    cr_assert_eq(granule_reader_begin(reader, &second, &err), STATUS_OK);
    fake.n = fake.count + 1;
    cr_assert_eq(granule_reader_next(reader, &held[0], &has, 5, &err), STATUS_IO);
    cr_assert_eq(granule_reader_begin(reader, &second, &err), STATUS_OK);
    read_some(&rig, reader, numbers, LIST_COUNT, &random);
    granule_readers_close(readers);
    rig_close(&rig);
}
