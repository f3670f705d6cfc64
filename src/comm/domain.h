/* The inside of a domain: what its communicators share. See comm.h for what it promises. */
#ifndef PHASOR_COMM_DOMAIN_H
#define PHASOR_COMM_DOMAIN_H

#include <pthread.h>
#include <stdatomic.h>

#include "comm/collective.h"

struct comm_group;
struct links;
struct nccl_domain;

struct domain_rank {
    struct comm_domain *domain;
    int rank;
    /* The collective that this rank entered or finished last, packed (domain_note); 0: none. Read
     * by whoever waits for the rank. */
    _Alignas(64) atomic_uint_fast64_t doing;
    /* By the ranks that copy from this one. */
    _Alignas(64) atomic_uint_fast64_t bytes[COMM_TAGS_MAX];
    atomic_uint_fast64_t moved; /* comm_domain_moved */
    /* What the watchdog saw last; under watch_lock. */
    uint64_t seen_progress, seen_doing, seen_moved;
};

struct comm_domain {
    struct device *devices[COMM_RANKS_MAX];
    const char *tag_names[COMM_TAGS_MAX]; /* borrowed; NULL: the number is named */
    int rank_count;
    bool may_spin; /* every thread of every device has a CPU */
    double patience_seconds;
    double poll_seconds;      /* between two looks of one who waits */
    struct comm_links speed;  /* of slow links; {0}: they are as they are */
    struct links *links;      /* of the CPU's ranks, that are slow; NULL */
    struct nccl_domain *nccl; /* between GPUs; NULL: they are joined by copies */

    atomic_bool ended; /* set after `failure` was written, which then stays */
    /* Guards the list and the writing of `failure`. It may be taken by a stream that fails, within
     * its own locks; so no stream is asked for anything while it is held. */
    pthread_mutex_t lock;
    struct error failure;
    struct comm_group *groups;
    unsigned group_count_ever; /* gives each group its id */

    pthread_mutex_t watch_lock;
    double looked_at;     /* when the watchdog looked last */
    double quiet_seconds; /* since it saw anything move */
    bool is_away;         /* comm_domain_set_away */

    struct domain_rank ranks[];
};

/* Ends the run: the message of `cause` begins with the rank already. The first cause stays. */
void domain_end(struct comm_domain *domain, const struct error *cause);

/* Lists a group, so that the end of the run reaches who waits in it. */
void domain_add(struct comm_domain *domain, struct comm_group *group);
void domain_remove(struct comm_domain *domain, struct comm_group *group);

/* Notes what a rank was last seen doing. */
void domain_note(const struct collective *call, bool finished);

/* Called about every poll_seconds by a member that waits for others in `call`: ends the run when
 * no rank has moved for patience_seconds. */
void domain_watch(const struct collective *call);

/* The rank of a member in a call's communicator. */
int collective_rank(const struct collective *call);

/* "dispatch": its tag, or else what it is; for the trace. */
const char *collective_name(const struct collective *call);

/* `all-gather number 3 of ranks 0-3 (tag "rows")`; returns `out`. */
#define COLLECTIVE_TEXT_BYTES 512
const char *collective_text(char out[COLLECTIVE_TEXT_BYTES], const struct collective *call);

/* "rank 3" or "ranks 0, 2, 5-7"; at most COMM_RANKS_MAX times ", 63", and a word. */
#define RANKS_TEXT_BYTES 320
const char *ranks_text(char out[RANKS_TEXT_BYTES], const int *ranks, int count);

#endif
