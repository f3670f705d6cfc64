/* Collectives of members that reach each other's memory: each copies and sums straight from its
 * peers' buffers into its own, without anything between.
 *
 * Why no copy meets a write. Each function runs at all members at once, between their meeting and
 * their parting (rendezvous.c), and there a member writes its own results alone. So it is enough
 * that nobody writes what another reads in the same stretch; each function says why. What a member
 * did before is visible to all behind the meeting, and who parted may use its buffers again. Of
 * members whose work runs behind their threads all this is said of that work (virtual.c).
 */
#include "base/trace.h"
#include "comm/group.h"

static const struct collective *peer_call(const struct collective *call, int member)
{
    return call->comm->group->ends[member].call;
}

static const struct comm_reach *reach_of(const struct collective *call)
{
    return call->comm->group->backend->reach;
}

void collective_count(const struct collective *call, int from, int64_t bytes)
{
    const struct comm_group *group = call->comm->group;
    if (from == call->comm->member)
        return;
    atomic_fetch_add_explicit(&group->domain->ranks[group->ranks[from]].bytes[call->tag],
                              (uint64_t)bytes, memory_order_relaxed);
    trace_bytes((uint64_t)bytes);
}

double collective_bytes(const struct collective *sender, const struct collective *receiver)
{
    int from = sender->comm->member, to = receiver->comm->member;
    double value = (double)sizeof(float), sum = 0;
    switch (sender->kind) {
    case COLLECTIVE_ALL_GATHER:
        return (double)sender->all_gather.counts[from];
    case COLLECTIVE_REDUCE_SCATTER:
        return value * (double)sender->reduce_scatter.counts[to];
    case COLLECTIVE_ALL_REDUCE:
        return 2 * value * (double)sender->all_reduce.count / sender->comm->group->size;
    case COLLECTIVE_ALL_TO_ALL_V:
        return (double)sender->all_to_all_v.send_counts[to];
    default:
        break;
    }
    for (int64_t i = 0; i < sender->exchange.send_count; i++) {
        const struct comm_message *send = &sender->exchange.sends[i];
        sum += send->peer == to ? (double)send->bytes : 0;
    }
    return sum;
}

int collective_steps(const struct collective *call)
{
    return call->kind == COLLECTIVE_ALL_REDUCE ? 2 : 1;
}

/* Bytes of member `from` to this one. */
static enum status copy_from(const struct collective *call, int from, void *out, const void *in,
                             int64_t bytes, struct error *err)
{
    collective_count(call, from, bytes);
    if (bytes == 0 || out == in)
        return STATUS_OK;
    return reach_of(call)->copy(call, out, in, bytes, err);
}

/* `values` of every member, `count` each. */
static enum status sum_of(const struct collective *call, float *out, const float *const *values,
                          int64_t count, struct error *err)
{
    for (int m = 0; m < call->comm->group->size; m++)
        collective_count(call, m, count * (int64_t)sizeof *out);
    return reach_of(call)->sum(call, out, values, count, err);
}

/* Read: each member's `in`. Written: own `out`, but for the own place where that is `in`. */
static enum status all_gather(const struct collective *call, struct error *err)
{
    const struct comm_all_gather *op = &call->all_gather;
    char *out = op->out;
    for (int m = 0; m < call->comm->group->size; m++) {
        TRY(copy_from(call, m, out, peer_call(call, m)->all_gather.in, op->counts[m], err));
        out += op->counts[m];
    }
    return STATUS_OK;
}

/* Read: this member's part of each `in`. Written: own `out`, which may be that part of the own
 * `in`; that one nobody else reads. */
static enum status reduce_scatter(const struct collective *call, struct error *err)
{
    const struct comm_reduce_scatter *op = &call->reduce_scatter;
    int size = call->comm->group->size, self = call->comm->member;
    const float *values[COMM_RANKS_MAX];
    int64_t first = 0;
    for (int m = 0; m < self; m++)
        first += op->counts[m];
    for (int m = 0; m < size && op->counts[self] > 0; m++)
        values[m] = peer_call(call, m)->reduce_scatter.in + first;
    if (op->counts[self] > 0)
        TRY(sum_of(call, op->out, values, op->counts[self], err));
    return STATUS_OK;
}

/* Read: this member's part of each `in`. Written: that part of the own `out`, which may be `in`;
 * in the own `in` nobody else reads that part. */
static enum status sum_own_part(const struct collective *call, struct error *err)
{
    const struct comm_all_reduce *op = &call->all_reduce;
    int size = call->comm->group->size;
    const float *values[COMM_RANKS_MAX];
    int64_t first, count;
    comm_part(&first, &count, op->count, size, call->comm->member);
    for (int m = 0; m < size && count > 0; m++)
        values[m] = peer_call(call, m)->all_reduce.in + first;
    if (count > 0)
        TRY(sum_of(call, op->out + first, values, count, err));
    return STATUS_OK;
}

/* Read: each member's own part of its `out`. Written: all other parts of the own `out`. Where that
 * is `in`, the others read those parts before, when they summed: hence the alignment between. */
static enum status gather_parts(const struct collective *call, struct error *err)
{
    const struct comm_all_reduce *op = &call->all_reduce;
    int size = call->comm->group->size;
    for (int m = 0; m < size; m++) {
        int64_t first, count;
        comm_part(&first, &count, op->count, size, m);
        if (count > 0) /* the own part is in its place */
            TRY(copy_from(call, m, op->out + first, peer_call(call, m)->all_reduce.out + first,
                          count * (int64_t)sizeof(float), err));
    }
    return STATUS_OK;
}

/* Read: each member's `in`. Written: own `out`, which does not overlap the own `in`. */
static enum status all_to_all_v(const struct collective *call, struct error *err)
{
    const struct comm_all_to_all_v *op = &call->all_to_all_v;
    int self = call->comm->member;
    for (int m = 0; m < call->comm->group->size; m++) {
        const struct comm_all_to_all_v *sender = &peer_call(call, m)->all_to_all_v;
        if (op->receive_counts[m] > 0)
            TRY(copy_from(call, m, (char *)op->out + op->receive_offsets[m],
                          (const char *)sender->in + sender->send_offsets[self],
                          op->receive_counts[m], err));
    }
    return STATUS_OK;
}

/* Read: what is sent. Written: what is received, which does not overlap it. */
static enum status exchange(const struct collective *call, struct error *err)
{
    const struct comm_exchange *op = &call->exchange;
    int64_t next[COMM_RANKS_MAX] = {0}; /* where to look for each sender's next send to this one */
    for (int64_t i = 0; i < op->receive_count; i++) {
        int from = op->receives[i].peer;
        const struct comm_exchange *sender = &peer_call(call, from)->exchange;
        int64_t s = exchange_next_send(sender, call->comm->member, next[from]);
        TRY(copy_from(call, from, op->receives[i].data, sender->sends[s].data,
                      op->receives[i].bytes, err));
        next[from] = s + 1;
    }
    return STATUS_OK;
}

/* What a member does between two meetings. One that failed before only closes, with the others. */
static enum status stretch(const struct collective *call, enum status before,
                           enum status (*work)(const struct collective *call, struct error *err),
                           struct error *err)
{
    struct error later;
    enum status status = before;
    if (status == STATUS_OK)
        status = reach_of(call)->open(call, err);
    if (status == STATUS_OK)
        status = work(call, err);
    enum status closed = reach_of(call)->close(call, status == STATUS_OK ? err : &later);
    return status == STATUS_OK ? closed : status;
}

static enum status all_reduce(const struct collective *call, struct error *err)
{
    enum status status = stretch(call, STATUS_OK, sum_own_part, err);
    group_align(call->comm);
    return stretch(call, status, gather_parts, err);
}

enum status moves_run(const struct collective *call, struct error *err)
{
    switch (call->kind) {
    case COLLECTIVE_ALL_GATHER:
        return stretch(call, STATUS_OK, all_gather, err);
    case COLLECTIVE_REDUCE_SCATTER:
        return stretch(call, STATUS_OK, reduce_scatter, err);
    case COLLECTIVE_ALL_REDUCE:
        return all_reduce(call, err);
    case COLLECTIVE_ALL_TO_ALL_V:
        return stretch(call, STATUS_OK, all_to_all_v, err);
    case COLLECTIVE_EXCHANGE:
        return stretch(call, STATUS_OK, exchange, err);
    case COLLECTIVE_KIND_COUNT:
        break;
    }
    ASSERT(!"a kind of collective");
    return STATUS_INTERNAL;
}
