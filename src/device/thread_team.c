#define _GNU_SOURCE
#include "device/thread_team.h"

#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/system.h"
#include "device/cpu_places.h"
#include "device/sleepers.h"
#include "device/thread_delay.h"

/* How often a thread looks whether others are on its CPU, and how much of that time it has to have
 * waited for them. Where that is so wherever the caller goes it moves less and less often. */
#define LOOK_SECONDS     0.1
#define LOOK_SECONDS_MAX 8.0
#define DELAY_THAT_TELLS 0.25

/* A turn of who shares a CPU, as the system has it by default. A system call that takes longer than
 * the second has let others in, and a run that took so much longer than its work. */
#define TURN_SECONDS 3e-3
#define AWAY_SECONDS 3e-4

/* From when on a system that settles may find that the turn is over (base_slice_ns, which is a
 * millisecond or a few), and what a worker does at least before it leaves a run to be told: to come
 * again takes some microseconds. */
#define TURN_SECONDS_LEAST 2e-3
#define STAY_SECONDS       2e-4

/* A thread's view of its CPU. */
struct look {
    double at, delay; /* when it looked last, and what it had waited by then */
    bool met;         /* others, between the last two looks */
};

struct worker {
    pthread_t thread;
    struct thread_team *team;
    int index;
    int cpu;             /* as the system numbers it; -1: it is not pinned */
    unsigned generation; /* of the last run it took part in */
    struct look look;
    double joined;       /* when it joined that run */
    double ran;          /* what it had run in all when it was last asked, before that */
    double turn;         /* and when it last gave way */
    bool leaves;         /* work has returned before its end */
    bool system_settles; /* it was sent away when it asked */
};

/* Of the calling thread, where it is one. */
static _Thread_local struct worker *self;

/* A run in one word, so that a worker joins the run that it saw begin, while it is open, or none:
 * the generation in the upper half; whether it is closed, the workers that have finished, and those
 * that have joined in the lower. */
#define RUN_JOINED     UINT64_C(1)
#define RUN_FINISHED   (UINT64_C(1) << 15)
#define RUN_COUNT_MASK UINT64_C(0x7FFF)
#define RUN_CLOSED     (UINT64_C(1) << 31)
#define RUN_GENERATION (UINT64_C(1) << 32)

/* A worker that leaves a run may join it again: there is room for as many. */
#define THREAD_COUNT_MOST ((int)RUN_COUNT_MASK / 2)

struct thread_team {
    int thread_count;
    bool spin;
    void (*work)(void *context, int worker);
    void *context;
    bool is_share; /* workers may leave, and come again */
    _Alignas(64) atomic_uint_fast64_t run;
    struct sleepers workers_waiting;
    _Alignas(64) struct sleepers caller_waiting;
    atomic_bool stopping;

    /* Of the caller. */
    double look_after;       /* seconds until it looks again */
    int next;                /* worker to change CPUs with */
    struct worker workers[]; /* [0] is the caller's, without a thread */
};

static unsigned run_generation(uint64_t run)
{
    return (unsigned)(run / RUN_GENERATION);
}

static unsigned run_joined(uint64_t run)
{
    return (unsigned)(run / RUN_JOINED & RUN_COUNT_MASK);
}

static unsigned run_finished(uint64_t run)
{
    return (unsigned)(run / RUN_FINISHED & RUN_COUNT_MASK);
}

static bool run_began(const void *context)
{
    const struct worker *worker = context;
    return run_generation(atomic_load(&worker->team->run)) != worker->generation;
}

static bool all_finished(const void *context)
{
    const struct thread_team *team = context;
    return run_finished(atomic_load(&team->run)) == (unsigned)team->thread_count - 1;
}

static bool joined_finished(const void *context)
{
    const struct thread_team *team = context;
    uint64_t run = atomic_load(&team->run);
    return run_finished(run) == run_joined(run);
}

/* False when the run is closed: what it worked on is the caller's again. */
static bool run_join(struct worker *worker)
{
    uint64_t run = atomic_load(&worker->team->run);
    do {
        worker->generation = run_generation(run);
        if ((run & RUN_CLOSED) != 0)
            return false;
    } while (!atomic_compare_exchange_weak(&worker->team->run, &run, run + RUN_JOINED));
    return true;
}

/* False where it is not time to, after so many seconds. */
static bool look_again(struct look *look, double seconds)
{
    double now = system_seconds(), time = now - look->at;
    if (time < seconds)
        return false;
    double delay = thread_delay(); /* below 0 where nobody is told */
    look->met = look->at > 0 && delay - look->delay > DELAY_THAT_TELLS * time;
    look->at = now;
    look->delay = delay;
    return true;
}

static double thread_seconds(void)
{
    struct timespec ran;
    return clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ran) == 0
               ? (double)ran.tv_sec + (double)ran.tv_nsec / 1e9
               : 0;
}

/* Who shares a CPU is sent off it when a tick of the system finds that he has had his turn, for
 * some milliseconds. That is to be between runs or between pieces, where nobody waits for the
 * worker, and not within a piece, for which all wait. So the system is to look there: asked how
 * long a thread has run, Linux (since 6.6) settles its account, and gives the CPU to the others if
 * the turn is over. An older one does not, or never has yet: there the turn is offered, at the end
 * of one. Not after each run, nor where the system settles: to yield is to give up what is left of
 * a turn (6.18), and so some of the CPU. */
static void worker_give_way(struct worker *worker)
{
    (void)look_again(&worker->look, LOOK_SECONDS);
    if (!worker->look.met)
        return;
    double before = system_seconds(), ran = thread_seconds(), now = system_seconds();
    bool was_away = now - worker->joined - (ran - worker->ran) > AWAY_SECONDS; /* or in a piece */
    worker->system_settles |= now - before > AWAY_SECONDS;
    worker->ran = ran;
    if (!was_away) {
        if (ran - worker->turn >= 2 * TURN_SECONDS)
            worker->system_settles = false; /* others came by chance while it asked */
        if (worker->system_settles || ran - worker->turn < TURN_SECONDS)
            return;
        (void)sched_yield();
    }
    worker->turn = ran;
}

bool thread_team_should_leave(void)
{
    struct worker *worker = self;
    if (worker == NULL || !worker->look.met || !worker->team->is_share)
        return false;
    double here = system_seconds() - worker->joined;
    worker->leaves |= here >= STAY_SECONDS &&
                      worker->ran - worker->turn + here >= TURN_SECONDS_LEAST &&
                      run_joined(atomic_load(&worker->team->run)) < THREAD_COUNT_MOST;
    return worker->leaves;
}

static void *worker_main(void *argument)
{
    struct worker *worker = argument;
    struct thread_team *team = worker->team;
    self = worker;
    for (;;) {
        if (!worker->leaves)
            sleepers_wait(&team->workers_waiting, team->spin, run_began, worker);
        worker->leaves = false;
        bool joined = run_join(worker);
        if (atomic_load(&team->stopping))
            return NULL;
        if (!joined)
            continue;
        if (worker->look.met)
            worker->joined = system_seconds();
        team->work(team->context, worker->index);
        atomic_fetch_add(&team->run, RUN_FINISHED);
        sleepers_wake(&team->caller_waiting);
        if (team->spin)
            worker_give_way(worker);
    }
}

/* The system's number of a CPU that the calling thread may use; -1: there is none. */
static int cpu_find(int index)
{
    cpu_set_t allowed;
    if (index < 0 || sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return -1;
    return cpu_of_set(&allowed, index);
}

static bool pin(pthread_t thread, int cpu)
{
    cpu_set_t one;
    if (cpu < 0)
        return false;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    return pthread_setaffinity_np(thread, sizeof one, &one) == 0;
}

void thread_pin(pthread_t thread, int cpu)
{
    (void)pin(thread, cpu_find(cpu));
}

enum status thread_team_create(struct thread_team **out, int thread_count, int first_cpu,
                               struct error *err)
{
    ASSERT(thread_count >= 1 && thread_count <= THREAD_COUNT_MOST);
    struct thread_team *team;
    TRY(memory_get((void **)&team, 1, sizeof *team + (size_t)thread_count * sizeof team->workers[0],
                   "a thread team", err));
    team->thread_count = 1;
    team->spin = first_cpu >= 0;
    team->next = 1;
    for (int i = 0; i < thread_count; i++) {
        struct worker *worker = &team->workers[i];
        *worker = (struct worker){.team = team, .index = i, .cpu = -1};
        if (first_cpu >= 0)
            worker->cpu = cpu_find(first_cpu + i);
        if (i == 0)
            continue;
        int failure = pthread_create(&worker->thread, NULL, worker_main, worker);
        if (failure != 0) {
            thread_team_destroy(team);
            return error_set_errno(err, failure, "cannot start thread %d of %d", i + 1,
                                   thread_count);
        }
        team->thread_count++;
        (void)pin(worker->thread, worker->cpu);
    }
    *out = team;
    return STATUS_OK;
}

static void run_begin(struct thread_team *team)
{
    uint64_t generation = run_generation(atomic_load(&team->run));
    atomic_store(&team->run, (generation + 1) * RUN_GENERATION);
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

/* ---- Moving away ----------------------------------------------------------------------------- */

/* A caller that its owner has not pinned where this has it goes where the system sends it. */
static bool caller_is_pinned(const struct thread_team *team)
{
    cpu_set_t allowed;
    int cpu = team->workers[0].cpu;
    return cpu >= 0 && sched_getaffinity(0, sizeof allowed, &allowed) == 0 &&
           CPU_COUNT(&allowed) == 1 && CPU_ISSET(cpu, &allowed);
}

static void caller_move(struct thread_team *team)
{
    struct worker *caller = &team->workers[0], *other = &team->workers[team->next];
    team->next = team->next % (team->thread_count - 1) + 1;
    if (other->cpu < 0 || !pin(pthread_self(), other->cpu))
        return;
    if (!pin(other->thread, caller->cpu)) {
        (void)pin(pthread_self(), caller->cpu);
        return;
    }
    int cpu = caller->cpu;
    caller->cpu = other->cpu;
    other->cpu = cpu;
}

/* Where others want the CPU of a worker, that one takes fewer pieces. Where they want the caller's,
 * nothing goes on for half of the time: so the caller moves, and goes on moving as long as it meets
 * somebody. */
static void caller_look(struct thread_team *team)
{
    struct look *look = &team->workers[0].look;
    if (!team->spin || !look_again(look, team->look_after))
        return;
    double next = LOOK_SECONDS;
    if (look->met && caller_is_pinned(team)) {
        caller_move(team);
        next = fmin(2 * team->look_after, LOOK_SECONDS_MAX);
    }
    team->look_after = next;
}

static void team_run(struct thread_team *team, void (*work)(void *context, int worker),
                     void *context, bool with_all)
{
    if (team->thread_count == 1) {
        work(context, 0);
        return;
    }
    caller_look(team);
    team->work = work;
    team->context = context;
    team->is_share = !with_all;
    run_begin(team);
    work(context, 0);
    if (with_all)
        sleepers_wait(&team->caller_waiting, team->spin, all_finished, team);
    atomic_fetch_or(&team->run, RUN_CLOSED);
    sleepers_wait(&team->caller_waiting, team->spin, joined_finished, team);
}

void thread_team_run(struct thread_team *team, void (*work)(void *context, int worker),
                     void *context)
{
    team_run(team, work, context, true);
}

void thread_team_share(struct thread_team *team, void (*work)(void *context, int worker),
                       void *context)
{
    team_run(team, work, context, false);
}

int thread_team_cpu_count(void)
{
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
        return CPU_COUNT(&allowed);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}
