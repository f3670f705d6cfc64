/* A collective as it is put on a stream, and how it is named in sentences. */
#ifndef PHASOR_COMM_COLLECTIVE_H
#define PHASOR_COMM_COLLECTIVE_H

#include <stddef.h>

#include "comm/comm.h"

enum collective_kind {
    COLLECTIVE_ALL_GATHER,
    COLLECTIVE_REDUCE_SCATTER,
    COLLECTIVE_ALL_REDUCE,
    COLLECTIVE_ALL_TO_ALL_V,
    COLLECTIVE_EXCHANGE,
    COLLECTIVE_KIND_COUNT,
};

/* One member's call: the argument of device->ops->call. */
struct collective {
    struct comm *comm;
    enum collective_kind kind;
    int tag;
    uint32_t number; /* 1, 2, 3 ... of its communicator */
    union {
        struct comm_all_gather all_gather;
        struct comm_reduce_scatter reduce_scatter;
        struct comm_all_reduce all_reduce;
        struct comm_all_to_all_v all_to_all_v;
        struct comm_exchange exchange;
    };
};
_Static_assert(sizeof(struct collective) <= STREAM_CALL_BYTES, "a stream copies so much");

/* How bytes move once all members are there and their calls fit: each member's thread calls the
 * function of the kind, which writes that member's results alone. Reads its peers' calls from
 * call->comm->group; whatever it reads stays until it returns at every member. One table for each
 * kind of link, one file for each table. */
struct comm_group;
struct comm_backend {
    const char *name;
    void (*met)(struct comm_group *group); /* all members have come: before any moves; or NULL */
    void (*move[COLLECTIVE_KIND_COUNT])(const struct collective *call);
};

extern const struct comm_backend comm_backend_local; /* local.c */
extern const struct comm_backend comm_backend_slow;  /* slow.c */

/* The next send to `peer` at or behind `from`, or send_count: how the i-th send to a peer is
 * found. */
static inline int64_t exchange_next_send(const struct comm_exchange *op, int peer, int64_t from)
{
    while (from < op->send_count && op->sends[from].peer != peer)
        from++;
    return from;
}

#endif
