#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"
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

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

Test(thread_team, takes_no_time_while_idle)
{
    struct thread_team *team = team_open(4);
    struct job job = {0};
    thread_team_run(team, job_work, &job);
    sleep_ms(20);
    double before = cpu_seconds();
    sleep_ms(200);
    double spent = cpu_seconds() - before;
    cr_assert(spent < 0.05, "%g seconds of CPU in 0.2 idle seconds", spent);
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
