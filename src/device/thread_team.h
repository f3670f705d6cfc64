/* A persistent team of threads that run one function together, then wait for the next.
 *
 * Waiting spins for a few microseconds where each thread has a CPU of its own, and then sleeps in
 * the kernel, so that a team never takes time from another process while it has nothing to do. */
#ifndef PHASOR_DEVICE_THREAD_TEAM_H
#define PHASOR_DEVICE_THREAD_TEAM_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct thread_team;

/* `thread_count` >= 1, the thread that calls thread_team_run included. Each of the others, 1 .., is
 * pinned to the CPU first_cpu + its number (see thread_pin); -1: they are not pinned, and do not
 * spin. Where they are, the caller is always the same thread; where its
 * owner has pinned that to first_cpu, a run may have it change CPUs with one of the others, when it
 * has to wait for its own much of the time; one of the others that has to offers its turn between
 * runs and between pieces. */
enum status thread_team_create(struct thread_team **out, int thread_count, int first_cpu,
                               struct error *err) MUST_CHECK;
void thread_team_destroy(struct thread_team *team); /* NULL is allowed */
int thread_team_size(const struct thread_team *team);

/* Runs work(context, worker) for worker = 0 .. size - 1, 0 on the calling thread, and returns when
 * all are done; what they wrote is visible to the caller. One caller at a time. */
void thread_team_run(struct thread_team *team, void (*work)(void *context, int worker),
                     void *context);

/* The same for work whose pieces the workers take until none is left: worker 0, and of the others
 * those that come before it returns. So one that another process keeps from its CPU is waited for
 * only while it has a piece. */
void thread_team_share(struct thread_team *team, void (*work)(void *context, int worker),
                       void *context);

/* For work that thread_team_share runs, before it takes a piece: whether it is to return without
 * one. So it is for a worker whose turn on its CPU is over, where it shares that with others: they
 * have theirs while nobody waits for it, and if the run goes on then the worker runs work again.
 * False in any other thread, and in the caller of thread_team_share. */
bool thread_team_should_leave(void);

/* CPUs that the calling thread may use: what thread_count 0 stands for elsewhere. */
int thread_team_cpu_count(void);

/* Pins a thread to one of the CPUs that the calling thread may use, counted from 0 in the order of
 * their places (device/cpu_places.h). Best effort: a refusal, or a number beyond the last, leaves
 * it as it is and only costs speed. */
void thread_pin(pthread_t thread, int cpu);

#endif
