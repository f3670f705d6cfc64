/* The inside of the backend `nccl`: what its communicators share in a domain, and what each of
 * their ends has. See nccl.c. */
#ifndef PHASOR_COMM_NCCL_H
#define PHASOR_COMM_NCCL_H

#include <pthread.h>
#include <stdbool.h>

#include "base/log.h"
#include "comm/group.h"
#include "comm/nccl_library.h"

struct nccl_end {
    struct comm *comm;
    /* Of the handle, which an abort frees: held through each call that uses it, from the begin of a
     * group of calls to its end. None of them waits for another rank. */
    pthread_mutex_t lock;
    struct nccl_comm *handle; /* NULL: not yet, or aborted */
    struct nccl_abort *abort; /* by whom it will be */

    /* Under nccl_domain.lock: */
    bool is_queued;
    struct nccl_end *queued_next, *watched_next;
};

struct nccl_rank {
    struct nccl_domain *nccl;
    struct nccl_end *first, *last; /* launches whose turn comes, in the order of all ranks */
    struct event *launched;        /* behind the last one */
    bool is_running;               /* it may not have been reached */
    uint64_t launch_count;
    struct collective launch;      /* the last one */
    atomic_bool is_aborted;        /* a launch was: what its stream has passed was not done */
};

struct nccl_domain {
    struct comm_domain *domain;
    const struct nccl_library *library;
    struct log_sink log;
    pthread_mutex_t lock;   /* of all below; within the domain's lock, and outside of an end's */
    pthread_cond_t turn;    /* a launch has had its turn, or the run has ended */
    pthread_cond_t stirred; /* for the watch: there are ends, the run has ended, or it is to stop */
    bool is_stirred;        /* it was, since it last rested: to look it lets go of the lock */
    struct nccl_end *watched;
    struct nccl_abort *told; /* nobody awaits them yet */
    bool is_stopping, has_thread;
    pthread_t thread;
    struct nccl_rank ranks[]; /* [rank_count] */
};

static inline struct nccl_domain *nccl_of(const struct comm_group *group)
{
    return group->domain->nccl;
}

/* ---- nccl_watch.c ---------------------------------------------------------------------------- */

enum status nccl_domain_create(struct nccl_domain **out, struct comm_domain *domain,
                               const struct nccl_library *library, const struct log_sink *log,
                               struct error *err) MUST_CHECK;
void nccl_domain_destroy(struct nccl_domain *nccl); /* behind its groups; NULL is allowed */

/* From here on, and until here, its ends are looked after, and aborted when the run ends. */
void nccl_watch(struct comm_group *group);
void nccl_unwatch(struct comm_group *group);

/* All members have come: their launches have their place in the order of each rank. */
void nccl_queue(struct comm_group *group);

/* Returns when it is this one's turn on its rank, or with the failure of the run. Behind either it
 * is to be left. */
enum status nccl_queue_wait(const struct collective *call, struct error *err) MUST_CHECK;
void nccl_queue_leave(const struct collective *call, bool is_launched);

/* Wakes all who wait; when the run has ended aborts begin, which the watch awaits. */
void nccl_wake(struct nccl_domain *nccl);

/* Takes the handle, so that nobody calls into it any more; NULL: it is gone. */
struct nccl_comm *nccl_end_take(struct nccl_end *end);

/* "ncclSend on cuda:1: unhandled system error: ..."; `handle` may be NULL. STATUS_IO. */
enum status nccl_failed(const struct comm *comm, struct nccl_comm *handle, const char *what,
                        int result, struct error *err);

/* ---- nccl_abort.c ---------------------------------------------------------------------------- */

/* For an end of a communicator, before it has a handle. */
struct nccl_abort;
enum status nccl_abort_create(struct nccl_abort **out, const struct comm *comm,
                              struct error *err) MUST_CHECK;

/* Waits for it where it has begun, as nccl_aborts_await; NULL is allowed. */
void nccl_abort_destroy(struct nccl_abort *abort);

/* A thread begins to abort the handle, which nobody else has any more, once for each end. `told`: a
 * list of those that have begun, with NULL at its end, for nccl_aborts_await. */
void nccl_abort_begin(struct nccl_abort **told, struct nccl_abort *abort, struct nccl_comm *handle);

/* Returns when all have been aborted; or some seconds after they have begun: then the log is told
 * which has not been, and from here on nothing of a GPU is freed (peer_ops.give_up). */
void nccl_aborts_await(struct nccl_abort *told);

/* ---- nccl_moves.c ---------------------------------------------------------------------------- */

#define NCCL_SCRATCH_MAX ((size_t)16 << 20)

/* Bytes of scratch memory that a call needs: less than NCCL_SCRATCH_MAX. */
size_t nccl_scratch_bytes(const struct collective *call);

/* Puts the whole of a call on its stream. */
enum status nccl_move(const struct collective *call, struct error *err) MUST_CHECK;

/* Sleeps for a moment between two looks; later ones longer. */
void nccl_nap(int look);

#endif
