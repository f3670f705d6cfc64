/* The members of a communicator, and the place where they meet. */
#ifndef PHASOR_COMM_GROUP_H
#define PHASOR_COMM_GROUP_H

#include <stdatomic.h>

#include "comm/collective.h"
#include "comm/domain.h"
#include "comm/links.h"

/* Events of a member, in turn: virtual.c. */
#define COMM_MARKS 3

/* One end. The host thread of its rank writes `posted`, the stream's thread the others. */
struct comm {
    struct comm_group *group;
    int member;
    uint32_t posted; /* collectives put on a stream */
    /* Set before the member arrives; the others read it between arrival and departure. */
    const struct collective *call;
    struct event *marks[COMM_MARKS];  /* of a GPU: virtual.c */
    unsigned mark_count;              /* recorded so far */
    double link_seconds;              /* that its rank's slow link has to do: virtual.c */
    struct nccl_end *nccl;            /* nccl.c; NULL */
    _Alignas(64) atomic_uint arrived; /* number of the last collective at which it has arrived */
    atomic_uint finished;             /* number of the last that it has left */
};

struct comm_group {
    struct comm_domain *domain;
    const struct comm_backend *backend;
    struct comm_group *next; /* in the domain's list */
    unsigned id;             /* in the domain */
    int size;
    int ranks[COMM_RANKS_MAX];
    atomic_int ends_left; /* not yet destroyed */
    /* With slow links: what is under way, and room to tell them of it. */
    struct transfer transfer;
    struct link_bytes *sent;       /* [size x (size - 1)] */
    bool is_paced;                 /* virtual.c: its links are slow, */
    double delay_seconds;          /* and delay it so long */
    bool is_joined;                /* nccl.c: all ends are of use */
    _Alignas(64) atomic_uint here; /* members that have come to the gate */
    _Alignas(64) atomic_uint gate; /* see rendezvous.c; futex of those who wait */
    struct comm ends[];
};

/* Publishes the call; returns when all members are there and their calls fit one another, or with
 * the failure of the run: then nothing may be copied. */
enum status group_meet(const struct collective *call, struct error *err) MUST_CHECK;

/* Between group_meet and group_leave: returns when all members have come this far. */
void group_align(struct comm *comm);

/* Returns when all members are done with the buffers and the calls of the others. */
void group_leave(const struct collective *call);

/* A rank that waits lets others run, where they run one at a time (struct turn). */
void group_turn_give(const struct comm *comm);
void group_turn_take(const struct comm *comm);

/* Ends all waiting in the group, now and later. */
void group_end(struct comm_group *group);

/* Checks the calls of all members against one another; the sentence names two ranks. fit.c */
enum status group_calls_fit(const struct comm_group *group, struct error *err) MUST_CHECK;

static inline int group_rank(const struct comm *comm)
{
    return comm->group->ranks[comm->member];
}

static inline struct device *group_device(const struct comm *comm)
{
    return comm->group->domain->devices[group_rank(comm)];
}

#endif
