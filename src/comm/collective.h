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

/* One member's call: the argument of device->ops->call, or of that of its peers. */
struct collective {
    struct comm *comm;
    struct stream *stream; /* that it is on */
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

/* How bytes move: one table for each kind of link, one file for each table. All but init and deinit
 * run on the thread of each member's stream, in the order in which they stand here; NULL where
 * there is nothing to do. */
struct comm_group;
struct comm_backend {
    const char *name;

    /* Of a group whose members are known. What a failure leaves, deinit frees. */
    enum status (*init)(struct comm_group *group, struct error *err);
    void (*deinit)(struct comm_group *group);

    /* Before the member comes to the others. Its failure is the stream's; nobody has moved then. */
    enum status (*come)(const struct collective *call, struct error *err);

    /* By the last to come, for all. */
    void (*met)(struct comm_group *group);

    /* Once all members are there and their calls fit: writes this member's results alone. Reads its
     * peers' calls from call->comm->group; those stay until it returns at every member. Where it
     * fails it has met the others as often as where it does not (group_align). */
    enum status (*move)(const struct collective *call, struct error *err);

    /* When all have returned from `move`, this one with the status `moved`; what it returns is the
     * stream's, `moved` if that is a failure. */
    enum status (*parted)(const struct collective *call, enum status moved, struct error *err);

    /* The run has ended: once for each group, by any thread, which may hold locks of a stream. */
    void (*ended)(struct comm_group *group);

    const struct comm_reach *reach; /* of moves_run; NULL: it is not called */
};

/* How a member reaches its peers' memory, where it can read it itself. */
struct comm_reach {
    /* Around what one member reads of the others between two meetings, and writes of its own. It is
     * closed also where opening or what came then has failed. */
    enum status (*open)(const struct collective *call, struct error *err);
    enum status (*close)(const struct collective *call, struct error *err);

    /* `bytes` > 0; out is not in. */
    enum status (*copy)(const struct collective *call, void *out, const void *in, int64_t bytes,
                        struct error *err);

    /* out[i] = the sum of in[m][i] over the members m, one after another; `out` may be one of them.
     * `count` > 0. */
    enum status (*sum)(const struct collective *call, float *out, const float *const *in,
                       int64_t count, struct error *err);
};

/* comm_backend.move by the backend's reach, and the count of what is moved. moves.c */
enum status moves_run(const struct collective *call, struct error *err) MUST_CHECK;

/* All bytes that leave a rank are counted by this, where they come to the calling member from
 * `from`; its own are not. moves.c */
void collective_count(const struct collective *call, int from, int64_t bytes);

/* What flows from one member to another, by their calls: of an all-gather the sender's part, of a
 * reduce-scatter the receiver's, of an all-reduce 2 / size of the whole, of the others what is
 * sent; and in how many steps, one behind another. moves.c */
double collective_bytes(const struct collective *sender, const struct collective *receiver);
int collective_steps(const struct collective *call);

extern const struct comm_reach comm_reach_local;       /* local.c */
extern const struct comm_backend comm_backend_local;   /* the same */
extern const struct comm_backend comm_backend_slow;    /* slow.c */
extern const struct comm_backend comm_backend_virtual; /* virtual.c */
extern const struct comm_backend comm_backend_nccl;    /* nccl.c */

/* The next send to `peer` at or behind `from`, or send_count: how the i-th send to a peer is
 * found. */
static inline int64_t exchange_next_send(const struct comm_exchange *op, int peer, int64_t from)
{
    while (from < op->send_count && op->sends[from].peer != peer)
        from++;
    return from;
}

#endif
