#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/system.h"
#include "device/thread_delay.h"
#include "device/thread_team.h"

#define SIZE_MAX_OF_TEAM 9

static struct thread_team *team_open(int size)
{
    struct thread_team *team;
    struct error err;
    cr_assert_eq(thread_team_create(&team, size, -1, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(thread_team_size(team), size);
    return team;
}

struct job {
    int calls[SIZE_MAX_OF_TEAM]; /* plain memory: visible to the caller when the run returns */
    int input;                   /* plain memory: visible to the workers when the run starts */
    int seen[SIZE_MAX_OF_TEAM];
    pthread_t threads[SIZE_MAX_OF_TEAM];
};

static void job_work(void *context, int worker)
{
    struct job *job = context;
    job->calls[worker]++;
    job->seen[worker] = job->input;
    job->threads[worker] = pthread_self();
}

Test(thread_team, every_worker_runs_once_in_each_run)
{
    for (int size = 1; size <= SIZE_MAX_OF_TEAM; size++) {
        struct thread_team *team = team_open(size);
        struct job job = {0};
        for (int run = 1; run <= 300; run++) {
            job.input = run * 3;
            thread_team_run(team, job_work, &job);
            for (int worker = 0; worker < SIZE_MAX_OF_TEAM; worker++) {
                cr_assert_eq(job.calls[worker], worker < size ? run : 0);
                cr_assert_eq(job.seen[worker], worker < size ? run * 3 : 0);
            }
        }
        cr_assert(pthread_equal(job.threads[0], pthread_self()));
        for (int worker = 1; worker < size; worker++)
            cr_assert(!pthread_equal(job.threads[worker], job.threads[worker - 1]));
        thread_team_destroy(team);
    }
}

/* ---- Those that come ------------------------------------------------------------------------- */

struct pieces {
    atomic_int next;
    int count;
    int calls[SIZE_MAX_OF_TEAM]; /* plain memory, as above */
    int taken[SIZE_MAX_OF_TEAM];
};

static void pieces_work(void *context, int worker)
{
    struct pieces *pieces = context;
    pieces->calls[worker]++;
    while (atomic_fetch_add(&pieces->next, 1) < pieces->count)
        pieces->taken[worker]++;
}

Test(thread_team, a_share_is_done_once_by_those_that_come)
{
    for (int size = 1; size <= SIZE_MAX_OF_TEAM; size++) {
        struct thread_team *team = team_open(size);
        for (int run = 0; run < 300; run++) {
            struct pieces pieces = {.count = run};
            int taken = 0;
            thread_team_share(team, pieces_work, &pieces);
            cr_assert_eq(pieces.calls[0], 1);
            for (int worker = 0; worker < SIZE_MAX_OF_TEAM; worker++) {
                cr_assert(pieces.calls[worker] <= (worker < size));
                taken += pieces.taken[worker];
            }
            cr_assert_eq(taken, run);
            /* All take part again where all are wanted. */
            struct job job = {.input = run};
            thread_team_run(team, job_work, &job);
            for (int worker = 0; worker < size; worker++)
                cr_assert_eq(job.calls[worker], 1);
        }
        thread_team_destroy(team);
    }
}

static sem_t is_held, let_go;

static void hold(int number)
{
    (void)number;
    sem_post(&is_held);
    while (sem_wait(&let_go) != 0)
        continue;
}

/* A worker that stands in a signal handler is one that gets no time. */
Test(thread_team, a_worker_that_gets_no_time_is_not_waited_for, .timeout = 60)
{
    struct thread_team *team = team_open(3);
    struct job job = {0};
    struct sigaction action = {.sa_handler = hold};
    cr_assert_eq(sem_init(&is_held, 0, 0) | sem_init(&let_go, 0, 0), 0);
    cr_assert_eq(sigaction(SIGUSR1, &action, NULL), 0);
    thread_team_run(team, job_work, &job);
    cr_assert_eq(pthread_kill(job.threads[2], SIGUSR1), 0);
    sem_wait(&is_held);
    for (int run = 0; run < 100; run++) {
        struct pieces pieces = {.count = 1000};
        thread_team_share(team, pieces_work, &pieces);
        cr_assert_eq(pieces.calls[2], 0);
        cr_assert_eq(pieces.taken[0] + pieces.taken[1], 1000);
    }
    sem_post(&let_go);
    thread_team_run(team, job_work, &job);
    cr_assert_eq(job.calls[2], 2);
    thread_team_destroy(team);
}

/* ---- Sums ------------------------------------------------------------------------------------ */

struct sum {
    atomic_int_fast64_t next;
    int64_t parts[SIZE_MAX_OF_TEAM];
};

static void sum_work(void *context, int worker)
{
    struct sum *sum = context;
    int64_t piece;
    while ((piece = atomic_fetch_add(&sum->next, 1)) < 1000)
        sum->parts[worker] += piece;
}

Test(thread_team, shares_work)
{
    struct thread_team *team = team_open(4);
    for (int run = 0; run < 200; run++) {
        struct sum sum = {0};
        int64_t total = 0;
        thread_team_run(team, sum_work, &sum);
        for (int worker = 0; worker < 4; worker++)
            total += sum.parts[worker];
        cr_assert_eq(total, 999 * 1000 / 2);
    }
    thread_team_destroy(team);
}

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

static void uneven_work(void *context, int worker)
{
    atomic_int *done = context;
    if (worker % 2 == 1)
        sleep_ms(5);
    atomic_fetch_add(done, 1);
}

/* Longer than the spin: caller and workers sleep in the kernel and must be woken. */
Test(thread_team, waits_for_the_slow_and_wakes_the_sleeping)
{
    struct thread_team *team = team_open(4);
    for (int run = 0; run < 10; run++) {
        atomic_int done = 0;
        thread_team_run(team, uneven_work, &done);
        cr_assert_eq(atomic_load(&done), 4);
        sleep_ms(3);
    }
    thread_team_destroy(team);
}

/* ---- Another process on the caller's CPU -------------------------------------------------------
 */

static atomic_bool neighbour_ends;

static void *neighbour_main(void *context)
{
    (void)context;
    thread_pin(pthread_self(), 0);
    while (!atomic_load(&neighbour_ends))
        continue;
    return NULL;
}

struct places {
    cpu_set_t of[2];
    atomic_int sum;
};

static void places_work(void *context, int worker)
{
    struct places *places = context;
    for (int i = 0; i < 10000; i++)
        atomic_fetch_add(&places->sum, 1);
    cr_assert_eq(sched_getaffinity(0, sizeof places->of[worker], &places->of[worker]), 0);
}

static void skip_unless_told(void)
{
    if (thread_team_cpu_count() < 2 || thread_delay() < 0)
        cr_skip_test("needs two CPUs, and the system's word of who waits");
}

/* Ends only when it has moved: the time that takes is the system's. */
Test(thread_team, a_caller_whose_cpu_is_wanted_changes_places_with_a_worker, .timeout = 120)
{
    skip_unless_told();
    pthread_t neighbour;
    struct thread_team *team;
    struct places first = {.sum = 0}, now;
    struct error err;
    cr_assert_eq(thread_team_create(&team, 2, 0, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(pthread_create(&neighbour, NULL, neighbour_main, NULL), 0);
    thread_pin(pthread_self(), 0);
    thread_team_run(team, places_work, &first);
    cr_assert(!CPU_EQUAL(&first.of[0], &first.of[1]));
    do {
        now.sum = 0;
        thread_team_run(team, places_work, &now);
    } while (CPU_EQUAL(&now.of[0], &first.of[0]));
    cr_assert_gt(thread_delay(), 0);
    cr_assert(CPU_EQUAL(&now.of[0], &first.of[1]));
    cr_assert(CPU_EQUAL(&now.of[1], &first.of[0]));
    atomic_store(&neighbour_ends, true);
    pthread_join(neighbour, NULL);
    thread_team_destroy(team);
}

/* For two seconds; whether the caller was anywhere else than at first. */
static bool moves_in_two_seconds(struct thread_team *team, struct places *first)
{
    struct places now;
    struct timespec began, at;
    bool has_moved = false;
    thread_team_run(team, places_work, first);
    clock_gettime(CLOCK_MONOTONIC, &began);
    do {
        now.sum = 0;
        thread_team_run(team, places_work, &now);
        has_moved |= !CPU_EQUAL(&now.of[0], &first->of[0]);
        clock_gettime(CLOCK_MONOTONIC, &at);
    } while (at.tv_sec - began.tv_sec < 2);
    return has_moved;
}

/* One that has waited less than a quarter of one look has no reason to. Where others are about,
 * that cannot be seen: it is tried again. */
Test(thread_team, a_caller_that_has_its_cpu_stays, .timeout = 120)
{
    skip_unless_told();
    for (int tries = 0; tries < 10; tries++) {
        struct thread_team *team;
        struct places first = {.sum = 0};
        struct error err;
        cpu_set_t before;
        cr_assert_eq(sched_getaffinity(0, sizeof before, &before), 0);
        cr_assert_eq(thread_team_create(&team, 2, 0, &err), STATUS_OK, "%s", err.message);
        thread_pin(pthread_self(), 0);
        double waited = thread_delay();
        bool has_moved = moves_in_two_seconds(team, &first);
        waited = thread_delay() - waited;
        thread_team_destroy(team);
        cr_assert_eq(sched_setaffinity(0, sizeof before, &before), 0);
        if (waited < 0.02) {
            cr_assert(!has_moved);
            return;
        }
    }
    cr_skip_test("others were on its CPU all the time");
}

/* Its owner has not pinned it. */
Test(thread_team, a_caller_that_is_not_pinned_is_left_alone, .timeout = 120)
{
    skip_unless_told();
    pthread_t neighbours[2];
    struct thread_team *team;
    struct places first = {.sum = 0};
    struct error err;
    cpu_set_t before;
    cr_assert_eq(sched_getaffinity(0, sizeof before, &before), 0);
    cr_assert_eq(thread_team_create(&team, 2, 0, &err), STATUS_OK, "%s", err.message);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(pthread_create(&neighbours[i], NULL, neighbour_main, NULL), 0);
    bool has_moved = moves_in_two_seconds(team, &first);
    cr_assert(!has_moved && CPU_EQUAL(&first.of[0], &before));
    atomic_store(&neighbour_ends, true);
    for (int i = 0; i < 2; i++)
        pthread_join(neighbours[i], NULL);
    thread_team_destroy(team);
}

/* ---- Another process on a worker's CPU ------------------------------------------------------- */

#define PATIENCE_SECONDS 60 /* a failure, not a hang */

static atomic_int questions, yields;
static bool system_is_old;

/* In place of the system's, for the whole program. Asked by an old system how long it has run, a
 * thread is told something without its account being settled. */
int clock_gettime(clockid_t clock, struct timespec *now)
{
    bool is_own = clock == CLOCK_THREAD_CPUTIME_ID;
    if (is_own)
        atomic_fetch_add(&questions, 1);
    return (int)syscall(SYS_clock_gettime, is_own && system_is_old ? CLOCK_MONOTONIC : clock, now);
}

int sched_yield(void)
{
    atomic_fetch_add(&yields, 1);
    return (int)syscall(SYS_sched_yield);
}

static void *on_the_last_cpu(void *context)
{
    (void)context;
    thread_pin(pthread_self(), 1);
    while (!atomic_load(&neighbour_ends))
        continue;
    return NULL;
}

/* A team runs until its worker, whose CPU another thread wants, has done something three times. */
static void worker_gives_way(const atomic_int *count)
{
    skip_unless_told();
    pthread_t neighbour;
    struct thread_team *team;
    struct places places = {.sum = 0};
    struct error err;
    cr_assert_eq(thread_team_create(&team, 2, 0, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(pthread_create(&neighbour, NULL, on_the_last_cpu, NULL), 0);
    double end = system_seconds() + PATIENCE_SECONDS;
    while (atomic_load(count) < 3 && system_seconds() < end)
        thread_team_run(team, places_work, &places);
    atomic_store(&neighbour_ends, true);
    pthread_join(neighbour, NULL);
    thread_team_destroy(team);
    cr_assert_geq(atomic_load(count), 3);
}

Test(thread_team, a_worker_whose_cpu_is_wanted_has_the_system_look_between_runs, .timeout = 120)
{
    worker_gives_way(&questions);
}

Test(thread_team, a_worker_whose_cpu_is_wanted_yields_where_the_system_does_not_look,
     .timeout = 120)
{
    system_is_old = true;
    worker_gives_way(&yields);
}

struct long_share {
    atomic_int next;
    atomic_int done;
    int count;
    int calls[2], leaves[2]; /* plain memory, as above */
};

/* Pieces of a tenth of a millisecond. */
static void long_work(void *context, int worker)
{
    struct long_share *share = context;
    share->calls[worker]++;
    for (;;) {
        if (thread_team_should_leave()) {
            share->leaves[worker]++;
            return;
        }
        if (atomic_fetch_add(&share->next, 1) >= share->count)
            return;
        for (double end = system_seconds() + 1e-4; system_seconds() < end;)
            continue;
        atomic_fetch_add(&share->done, 1);
    }
}

/* Until it has come back to a run that it had left. */
Test(thread_team, a_worker_whose_turn_is_over_leaves_a_share_and_comes_again, .timeout = 120)
{
    skip_unless_told();
    pthread_t neighbour;
    struct thread_team *team;
    struct error err;
    cr_assert_eq(thread_team_create(&team, 2, 0, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(pthread_create(&neighbour, NULL, on_the_last_cpu, NULL), 0);
    double end = system_seconds() + PATIENCE_SECONDS;
    int most = 0;
    while (most < 2 && system_seconds() < end) {
        struct long_share share = {.count = 2000};
        thread_team_share(team, long_work, &share);
        cr_assert_eq(atomic_load(&share.done), share.count);
        cr_assert_eq(share.calls[0], 1);
        cr_assert_eq(share.leaves[0], 0);
        cr_assert(share.calls[1] <= share.leaves[1] + 1);
        most = share.calls[1];
        /* Where all are wanted once, nobody leaves. */
        struct long_share all = {.count = 2000};
        thread_team_run(team, long_work, &all);
        cr_assert_eq(all.calls[1], 1);
        cr_assert_eq(all.leaves[1], 0);
    }
    atomic_store(&neighbour_ends, true);
    pthread_join(neighbour, NULL);
    thread_team_destroy(team);
    cr_assert_geq(most, 2);
    cr_assert(!thread_team_should_leave());
}

/* The system sends it elsewhere, and has its own mind about whose turn it is. */
Test(thread_team, a_worker_that_is_not_pinned_does_not_ask, .timeout = 120)
{
    skip_unless_told();
    pthread_t neighbours[2];
    struct places places = {.sum = 0};
    struct thread_team *team = team_open(2);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(
            pthread_create(&neighbours[i], NULL, i == 0 ? neighbour_main : on_the_last_cpu, NULL),
            0);
    (void)moves_in_two_seconds(team, &places);
    cr_assert_eq(atomic_load(&questions), 0);
    atomic_store(&neighbour_ends, true);
    for (int i = 0; i < 2; i++)
        pthread_join(neighbours[i], NULL);
    thread_team_destroy(team);
}

/* ---- Idle ------------------------------------------------------------------------------------ */

/* Time of a CPU that the workers have had so far. */
static int64_t workers_ns(const struct job *job, int size)
{
    int64_t sum = 0;
    for (int worker = 1; worker < size; worker++) {
        clockid_t clock;
        struct timespec now;
        cr_assert_eq(pthread_getcpuclockid(job->threads[worker], &clock), 0);
        clock_gettime(clock, &now);
        sum += (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    }
    return sum;
}

/* Sooner or later they are all asleep, and then have none. */
Test(thread_team, takes_no_time_while_idle)
{
    struct thread_team *team = team_open(4);
    struct job job = {0};
    thread_team_run(team, job_work, &job);
    int64_t before, after = workers_ns(&job, 4);
    do {
        before = after;
        sleep_ms(200);
        after = workers_ns(&job, 4);
    } while (after != before);
    thread_team_destroy(team);
}

Test(thread_team, destroys_at_once_and_while_asleep)
{
    uint64_t live = memory_counters_get().live_count;
    for (int size = 1; size <= SIZE_MAX_OF_TEAM; size++) {
        for (int idle = 0; idle < 2; idle++) {
            struct thread_team *team = team_open(size);
            if (idle)
                sleep_ms(2);
            thread_team_destroy(team);
        }
    }
    thread_team_destroy(NULL);
    cr_assert_eq(memory_counters_get().live_count, live);
}

Test(thread_team, two_teams_do_not_meet)
{
    struct thread_team *one = team_open(3), *other = team_open(2);
    struct job a = {0}, b = {0};
    for (int run = 1; run <= 100; run++) {
        thread_team_run(one, job_work, &a);
        thread_team_run(other, job_work, &b);
    }
    cr_assert(a.calls[0] == 100 && a.calls[2] == 100 && b.calls[1] == 100 && b.calls[2] == 0);
    thread_team_destroy(one);
    thread_team_destroy(other);
}

Test(thread_team, without_memory)
{
    struct thread_team *team = NULL;
    struct error err;
    memory_fail_at(1, 0);
    cr_assert_eq(thread_team_create(&team, 2, -1, &err), STATUS_NO_MEMORY);
    cr_assert_null(team);
    cr_assert_not_null(strstr(err.message, "thread team"));
}

Test(thread_team, counts_the_cpus)
{
    int count = thread_team_cpu_count();
    cr_assert(count >= 1 && count <= 8192, "%d", count);
    /* Making a team does not take CPUs from its caller. */
    struct thread_team *team = team_open(count);
    cr_assert_eq(thread_team_cpu_count(), count);
    thread_team_destroy(team);
}
