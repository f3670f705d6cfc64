#define _GNU_SOURCE
#include "device/thread_team.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/memory.h"

/* 5 to 20 us where there is a pause instruction: longer than the gap between two stages of a layer,
 * far shorter than a time slice. */
#define SPIN_COUNT 1000

struct worker {
    pthread_t thread;
    struct thread_team *team;
    int index;
};

struct thread_team {
    int thread_count;
    void (*work)(void *context, int worker);
    void *context;
    _Alignas(64) atomic_uint generation; /* grows by one for each run; futex of the workers */
    _Alignas(64) atomic_uint unfinished; /* workers still in this run; futex of the caller */
    atomic_int stopping;
    struct worker workers[];
};

static void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Waits until *word differs from `old`. */
static void wait_while(atomic_uint *word, unsigned old)
{
    for (int i = 0; i < SPIN_COUNT; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != old)
            return;
        pause_briefly();
    }
    while (atomic_load_explicit(word, memory_order_acquire) == old)
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
}

static void wake_all(atomic_uint *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1 << 30, NULL, NULL, 0);
}

static void *worker_main(void *argument)
{
    struct worker *worker = argument;
    struct thread_team *team = worker->team;
    unsigned generation = 0;
    for (;;) {
        wait_while(&team->generation, generation);
        generation++;
        if (atomic_load(&team->stopping))
            return NULL;
        team->work(team->context, worker->index);
        if (atomic_fetch_sub_explicit(&team->unfinished, 1, memory_order_acq_rel) == 1)
            wake_all(&team->unfinished);
    }
}

/* Only a team as large as the set of CPUs is pinned: two smaller teams would meet on the same ones.
 * Best effort: a refusal only costs speed. */
static void pin_thread(pthread_t thread, int index, int thread_count)
{
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) != thread_count)
        return;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed) || index-- > 0)
            continue;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        pthread_setaffinity_np(thread, sizeof one, &one);
        return;
    }
}

enum status thread_team_create(struct thread_team **out, int thread_count, struct error *err)
{
    ASSERT(thread_count >= 1);
    struct thread_team *team;
    TRY(memory_get((void **)&team, 1, sizeof *team + (size_t)thread_count * sizeof team->workers[0],
                   "a thread team", err));
    team->thread_count = 1;
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
        pin_thread(worker->thread, i, thread_count);
    }
    *out = team;
    return STATUS_OK;
}

void thread_team_destroy(struct thread_team *team)
{
    if (team == NULL)
        return;
    atomic_store(&team->stopping, 1);
    atomic_fetch_add(&team->generation, 1);
    wake_all(&team->generation);
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
    if (team->thread_count > 1) {
        team->work = work;
        team->context = context;
        atomic_store(&team->unfinished, (unsigned)team->thread_count - 1);
        atomic_fetch_add_explicit(&team->generation, 1, memory_order_acq_rel);
        wake_all(&team->generation);
    }
    work(context, 0);
    unsigned left;
    while (team->thread_count > 1 &&
           (left = atomic_load_explicit(&team->unfinished, memory_order_acquire)) != 0)
        wait_while(&team->unfinished, left);
}

int thread_team_cpu_count(void)
{
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
        return CPU_COUNT(&allowed);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}
