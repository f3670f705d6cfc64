#define _GNU_SOURCE
#include "device/thread_team.h"

#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/memory.h"
#include "device/sleepers.h"

struct worker {
    pthread_t thread;
    struct thread_team *team;
    int index;
    unsigned generation; /* of the last run it took part in */
};

struct thread_team {
    int thread_count;
    bool spin;
    void (*work)(void *context, int worker);
    void *context;
    _Alignas(64) atomic_uint generation; /* grows by one for each run */
    struct sleepers workers_waiting;
    _Alignas(64) atomic_uint unfinished; /* workers still in this run */
    struct sleepers caller_waiting;
    atomic_bool stopping;
    struct worker workers[];
};

static bool run_began(const void *context)
{
    const struct worker *worker = context;
    return atomic_load(&worker->team->generation) != worker->generation;
}

static bool run_ended(const void *context)
{
    const struct thread_team *team = context;
    return atomic_load(&team->unfinished) == 0;
}

static void *worker_main(void *argument)
{
    struct worker *worker = argument;
    struct thread_team *team = worker->team;
    for (;;) {
        sleepers_wait(&team->workers_waiting, team->spin, run_began, worker);
        worker->generation++;
        if (atomic_load(&team->stopping))
            return NULL;
        team->work(team->context, worker->index);
        if (atomic_fetch_sub(&team->unfinished, 1) == 1)
            sleepers_wake(&team->caller_waiting);
    }
}

void thread_pin(pthread_t thread, int cpu)
{
    cpu_set_t allowed, one;
    if (cpu < 0 || sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return;
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (!CPU_ISSET(i, &allowed) || cpu-- > 0)
            continue;
        CPU_ZERO(&one);
        CPU_SET(i, &one);
        pthread_setaffinity_np(thread, sizeof one, &one);
        return;
    }
}

enum status thread_team_create(struct thread_team **out, int thread_count, int first_cpu,
                               struct error *err)
{
    ASSERT(thread_count >= 1);
    struct thread_team *team;
    TRY(memory_get((void **)&team, 1, sizeof *team + (size_t)thread_count * sizeof team->workers[0],
                   "a thread team", err));
    team->thread_count = 1;
    team->spin = first_cpu >= 0;
    for (int i = 1; i < thread_count; i++) {
        struct worker *worker = &team->workers[i];
        *worker = (struct worker){.team = team, .index = i};
        int failure = pthread_create(&worker->thread, NULL, worker_main, worker);
        if (failure != 0) {
            thread_team_destroy(team);
            return error_set_errno(err, failure, "cannot start thread %d of %d", i + 1,
                                   thread_count);
        }
        team->thread_count++;
        if (first_cpu >= 0)
            thread_pin(worker->thread, first_cpu + i);
    }
    *out = team;
    return STATUS_OK;
}

static void run_begin(struct thread_team *team)
{
    atomic_fetch_add(&team->generation, 1);
    sleepers_wake(&team->workers_waiting);
}

void thread_team_destroy(struct thread_team *team)
{
    if (team == NULL)
        return;
    atomic_store(&team->stopping, true);
    run_begin(team);
    for (int i = 1; i < team->thread_count; i++)
        pthread_join(team->workers[i].thread, NULL);
    memory_free(team);
}

int thread_team_size(const struct thread_team *team)
{
    return team->thread_count;
}

void thread_team_run(struct thread_team *team, void (*work)(void *context, int worker),
                     void *context)
{
    if (team->thread_count == 1) {
        work(context, 0);
        return;
    }
    team->work = work;
    team->context = context;
    atomic_store(&team->unfinished, (unsigned)team->thread_count - 1);
    run_begin(team);
    work(context, 0);
    sleepers_wait(&team->caller_waiting, team->spin, run_ended, team);
}

int thread_team_cpu_count(void)
{
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
        return CPU_COUNT(&allowed);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}
