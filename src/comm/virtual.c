/* Ranks on GPUs, several of them on one or one on each, joined by events alone: what a collective
 * does is put on the members' streams, which run it behind their threads. No stream waits for its
 * thread, no kernel for another, and no thread for a stream but where a first sum, or a larger one,
 * takes scratch memory, or a first one over slow links makes the rank's link.
 *
 * The threads meet as those of local.c do, so that each knows the others' calls. What there is the
 * order of the threads becomes an order of the streams by marks: before a thread goes to meet the
 * others it records an event behind what it has put on its stream, and when it has met them it lets
 * its stream wait for theirs. So what a stream does behind a meeting runs behind all that any
 * member put on before it. All waits are for what has been recorded: streams never wait for a
 * thread, nor for each other in a ring. Three events take turns: a mark is recorded anew three
 * marks later, when all have met that wait for it, as no two meetings have more than two marks
 * between them. With fewer a thread that is late would let its stream wait for what the others have
 * put on theirs meanwhile, and copies would run one after another.
 *
 * Links that are to be slow (struct comm_links) are a clock on each member's stream, which holds it
 * back until the bytes would have come: what copies and sums take is within that time, or longer
 * than it. Each rank has one link, which collectives of several communicators that run at once take
 * one after another, so that together they take their sum. Copies from and to the host are not held
 * back.
 *
 * A member that fails ends the run, and goes to the meetings that are left. Before the parting it
 * waits for its stream: perhaps it could not mark what it has put there. Behind the parting all see
 * that the run has ended, so that no wrong value is taken for a result.
 */
#include <math.h>

#include "comm/group.h"
#include "device/peers.h"

_Static_assert(COMM_RANKS_MAX <= PEERS_MAX, "a device sums all members");

static const struct peer_ops *peers_of(const struct collective *call)
{
    return group_device(call->comm)->ops->peers;
}

/* Before a meeting. */
static enum status mark(const struct collective *call, struct error *err)
{
    struct comm *comm = call->comm;
    return peers_of(call)->record(call->stream, comm->marks[comm->mark_count++ % COMM_MARKS], err);
}

/* Behind it: for all of them, also where a wait fails. */
static enum status wait_for_marks(const struct collective *call, struct error *err)
{
    const struct comm *comm = call->comm;
    unsigned which = (comm->mark_count - 1) % COMM_MARKS;
    enum status first = STATUS_OK;
    struct error later;
    for (int m = 0; m < comm->group->size; m++) {
        if (m == comm->member)
            continue;
        enum status status = peers_of(call)->wait(call->stream, comm->group->ends[m].marks[which],
                                                  first == STATUS_OK ? err : &later);
        first = first == STATUS_OK ? status : first;
    }
    return first;
}

static enum status copy(const struct collective *call, void *out, const void *in, int64_t bytes,
                        struct error *err)
{
    return peers_of(call)->copy(call->stream, out, in, bytes, err);
}

static enum status sum(const struct collective *call, float *out, const float *const *in,
                       int64_t count, struct error *err)
{
    const struct comm_group *group = call->comm->group;
    struct peer_sum sum = {.out = out, .in_count = group->size, .count = count};
    for (int m = 0; m < group->size; m++) {
        sum.in[m] = in[m];
        sum.devices[m] = group->domain->devices[group->ranks[m]];
    }
    return peers_of(call)->sum(call->stream, &sum, err);
}

static void give_up(const struct collective *call, const struct error *cause)
{
    struct error later; /* than the one that is told */
    comm_domain_abort(call->comm->group->domain, collective_rank(call), cause);
    if (peers_of(call)->settle(call->stream, &later) != STATUS_OK)
        return; /* a GPU that is broken: nothing runs on it any more */
}

/* By the last to come: all that a rank sends or receives goes over its link, in both directions at
 * once; and the collective is done when all are, as all wait for one another behind it. */
static void pace_find(struct comm_group *group)
{
    const struct comm_links *speed = &group->domain->speed;
    double most = 0;
    for (int m = 0; speed->bytes_per_second > 0 && m < group->size; m++) {
        double sent = 0, received = 0;
        for (int other = 0; other < group->size; other++) {
            if (other == m)
                continue;
            sent += collective_bytes(group->ends[m].call, group->ends[other].call);
            received += collective_bytes(group->ends[other].call, group->ends[m].call);
        }
        group->ends[m].link_seconds = fmax(sent, received) / speed->bytes_per_second;
        most = fmax(most, group->ends[m].link_seconds);
    }
    group->is_paced = most > 0;
    group->delay_seconds = collective_steps(group->ends[0].call) * speed->latency_seconds;
}

/* The clock runs from when all members' streams have come. */
static enum status pace_begin(const struct collective *call, struct error *err)
{
    TRY(wait_for_marks(call, err));
    return peers_of(call)->pace_begin(call->stream, call->comm->link_seconds, err);
}

/* Where it fails it meets the others nevertheless, in moves_run. The last mark is behind all that
 * holds the stream, as those that wait for it at the parting are to wait for the busiest link. */
static enum status move_paced(const struct collective *call, struct error *err)
{
    struct error later;
    const struct comm_group *group = call->comm->group;
    if (!group->is_paced)
        return moves_run(call, err);
    enum status begun = pace_begin(call, err);
    enum status moved = moves_run(call, begun == STATUS_OK ? err : &later);
    enum status status = begun != STATUS_OK ? begun : moved;
    if (status == STATUS_OK)
        status = peers_of(call)->pace_end(call->stream, group->delay_seconds, err);
    enum status marked = mark(call, status == STATUS_OK ? err : &later);
    return status == STATUS_OK ? marked : status;
}

static enum status move(const struct collective *call, struct error *err)
{
    enum status status = move_paced(call, err);
    if (status != STATUS_OK)
        give_up(call, err);
    return status;
}

/* What comes behind it on the stream may write what the others have read, and the host free it once
 * the stream is at rest, whether somebody has failed or not. */
static enum status parted(const struct collective *call, enum status moved, struct error *err)
{
    struct error later;
    enum status waited = wait_for_marks(call, moved == STATUS_OK ? err : &later);
    if (moved != STATUS_OK || waited != STATUS_OK)
        return moved != STATUS_OK ? moved : waited;
    return comm_domain_failure(call->comm->group->domain, err);
}

static enum status init(struct comm_group *group, struct error *err)
{
    for (int m = 0; m < group->size; m++) {
        struct device *device = group_device(&group->ends[m]);
        for (int i = 0; i < COMM_MARKS; i++)
            TRY(device->ops->event_create(device, &group->ends[m].marks[i], err));
    }
    return STATUS_OK;
}

static void deinit(struct comm_group *group)
{
    for (int m = 0; m < group->size; m++) {
        struct device *device = group_device(&group->ends[m]);
        for (int i = 0; i < COMM_MARKS; i++)
            device->ops->event_destroy(device, group->ends[m].marks[i]);
    }
}

static const struct comm_reach reach = {
    .open = wait_for_marks, .close = mark, .copy = copy, .sum = sum};

const struct comm_backend comm_backend_virtual = {
    .name = "virtual",
    .init = init,
    .deinit = deinit,
    .come = mark,
    .met = pace_find,
    .move = move,
    .parted = parted,
    .reach = &reach,
};
