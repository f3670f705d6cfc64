/* Sleeping and waking: no wake is lost, whoever comes between. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <time.h>

#include "device/sleepers.h"

#define WAITERS 5
#define ROUNDS  3000

TestSuite(sleepers, .timeout = 60);

struct round {
    struct sleepers waiting, done_waiting;
    atomic_int current; /* round that has begun */
    atomic_int done;    /* waiters that have seen it, of all rounds */
    bool spin;
};

struct target {
    struct round *round;
    int number;
};

static bool has_begun(const void *context)
{
    const struct target *target = context;
    return atomic_load(&target->round->current) >= target->number;
}

static bool is_done(const void *context)
{
    const struct target *target = context;
    return atomic_load(&target->round->done) >= target->number * WAITERS;
}

static void *wait_each(void *context)
{
    struct round *round = context;
    for (int i = 1; i <= ROUNDS; i++) {
        sleepers_wait(&round->waiting, round->spin, has_begun, &(struct target){round, i});
        atomic_fetch_add(&round->done, 1);
        sleepers_wake(&round->done_waiting);
    }
    return NULL;
}

static void run_rounds(bool spin)
{
    static struct round round;
    round = (struct round){.spin = spin};
    pthread_t threads[WAITERS];
    for (int i = 0; i < WAITERS; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, wait_each, &round), 0);
    for (int i = 1; i <= ROUNDS; i++) {
        if (i % 500 == 0) /* now they are all asleep */
            nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
        atomic_store(&round.current, i);
        sleepers_wake(&round.waiting);
        sleepers_wait(&round.done_waiting, spin, is_done, &(struct target){&round, i});
    }
    for (int i = 0; i < WAITERS; i++)
        pthread_join(threads[i], NULL);
    cr_assert_eq(atomic_load(&round.done), ROUNDS * WAITERS);
    cr_assert_eq(atomic_load(&round.waiting.count), 0);
}

Test(sleepers, many_wait_for_many_rounds)
{
    run_rounds(false);
}

Test(sleepers, with_spinning)
{
    run_rounds(true);
}

static bool is_true(const void *context)
{
    return *(const bool *)context;
}

Test(sleepers, what_is_true_is_not_waited_for)
{
    struct sleepers sleepers = {0};
    bool yes = true;
    sleepers_wait(&sleepers, false, is_true, &yes);
    sleepers_wait(&sleepers, true, is_true, &yes);
    sleepers_wake(&sleepers);
    cr_assert_eq(atomic_load(&sleepers.wakes), 0, "nobody slept");
}
