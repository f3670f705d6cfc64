/* Ranks of one process: each member copies and sums straight from its peers' buffers into its own,
 * without anything between.
 *
 * Why no copy meets a write. Each function runs at all members at once, between their meeting and
 * their parting (rendezvous.c), and there a member writes its own results alone. So it is enough
 * that nobody writes what another reads in the same stretch; each function says why. What a member
 * did before is visible to all behind the meeting, and who parted may use its buffers again.
 */
#include <string.h>

#include "base/perturb.h"
#include "base/trace.h"
#include "comm/group.h"

/* Values that are summed at a time: they stay in the nearest cache. */
#define TILE_VALUES 1024

static const struct collective *peer_call(const struct collective *call, int member)
{
    return call->comm->group->ends[member].call;
}

/* All bytes that leave a rank are counted here, at the place where they are copied. */
static void count_bytes(const struct collective *call, int from, int64_t bytes)
{
    const struct comm_group *group = call->comm->group;
    if (from == call->comm->member)
        return;
    atomic_fetch_add_explicit(&group->domain->ranks[group->ranks[from]].bytes[call->tag],
                              (uint64_t)bytes, memory_order_relaxed);
    trace_bytes((uint64_t)bytes);
}

/* Bytes of member `from` to this one. */
static void copy_from(const struct collective *call, int from, void *out, const void *in,
                      int64_t bytes)
{
    if (bytes > 0 && out != in)
        memcpy(out, in, (size_t)bytes);
    count_bytes(call, from, bytes);
}

/* Where ranks run one at a time with the memory of the others closed, copying opens it. */
static void open_peers(const struct collective *call)
{
    struct turn *turn = group_device(call->comm)->turn;
    if (turn != NULL)
        turn->open_all(turn, group_device(call->comm));
    perturb();
}

static void close_peers(const struct collective *call)
{
    struct turn *turn = group_device(call->comm)->turn;
    if (turn != NULL)
        turn->close_others(turn, group_device(call->comm));
    perturb();
}

/* Read: each member's `in`. Written: own `out`, but for the own place where that is `in`. */
static void all_gather(const struct collective *call)
{
    const struct comm_all_gather *op = &call->all_gather;
    char *out = op->out;
    open_peers(call);
    for (int m = 0; m < call->comm->group->size; m++) {
        copy_from(call, m, out, peer_call(call, m)->all_gather.in, op->counts[m]);
        out += op->counts[m];
    }
    close_peers(call);
}

/* out[i] = the sum of values[m][i] over the members m, one after another. `out` may be one of them:
 * a tile of it is written when all members' tiles were read. */
static void sum_members(float *out, const float *const *values, int size, int64_t count)
{
    float sum[TILE_VALUES];
    for (int64_t start = 0; start < count; start += TILE_VALUES) {
        int64_t tile = count - start < TILE_VALUES ? count - start : TILE_VALUES;
        memcpy(sum, values[0] + start, (size_t)tile * sizeof *sum);
        for (int m = 1; m < size; m++) {
            for (int64_t i = 0; i < tile; i++)
                sum[i] += values[m][start + i];
        }
        memcpy(out + start, sum, (size_t)tile * sizeof *sum);
    }
}

/* Read: this member's part of each `in`. Written: own `out`, which may be that part of the own
 * `in`; that one nobody else reads. */
static void reduce_scatter(const struct collective *call)
{
    const struct comm_reduce_scatter *op = &call->reduce_scatter;
    int size = call->comm->group->size, self = call->comm->member;
    const float *values[COMM_RANKS_MAX];
    int64_t first = 0;
    for (int m = 0; m < self; m++)
        first += op->counts[m];
    open_peers(call);
    for (int m = 0; m < size && op->counts[self] > 0; m++) {
        values[m] = peer_call(call, m)->reduce_scatter.in + first;
        count_bytes(call, m, op->counts[self] * (int64_t)sizeof(float));
    }
    sum_members(op->out, values, size, op->counts[self]);
    close_peers(call);
}

/* Read: this member's part of each `in`. Written: that part of the own `out`, which may be `in`;
 * in the own `in` nobody else reads that part. */
static void sum_own_part(const struct collective *call)
{
    const struct comm_all_reduce *op = &call->all_reduce;
    int size = call->comm->group->size;
    const float *values[COMM_RANKS_MAX];
    int64_t first, count;
    comm_part(&first, &count, op->count, size, call->comm->member);
    for (int m = 0; m < size && count > 0; m++) {
        values[m] = peer_call(call, m)->all_reduce.in + first;
        count_bytes(call, m, count * (int64_t)sizeof(float));
    }
    if (count > 0)
        sum_members(op->out + first, values, size, count);
}

/* Read: each member's own part of its `out`. Written: all other parts of the own `out`. Where that
 * is `in`, the others read those parts before, when they summed: hence the alignment between. */
static void gather_parts(const struct collective *call)
{
    const struct comm_all_reduce *op = &call->all_reduce;
    int size = call->comm->group->size;
    for (int m = 0; m < size; m++) {
        int64_t first, count;
        comm_part(&first, &count, op->count, size, m);
        if (count > 0) /* the own part is in its place */
            copy_from(call, m, op->out + first, peer_call(call, m)->all_reduce.out + first,
                      count * (int64_t)sizeof(float));
    }
}

static void all_reduce(const struct collective *call)
{
    open_peers(call);
    sum_own_part(call);
    close_peers(call);
    group_align(call->comm);
    open_peers(call);
    gather_parts(call);
    close_peers(call);
}

/* Read: each member's `in`. Written: own `out`, which does not overlap the own `in`. */
static void all_to_all_v(const struct collective *call)
{
    const struct comm_all_to_all_v *op = &call->all_to_all_v;
    int self = call->comm->member;
    open_peers(call);
    for (int m = 0; m < call->comm->group->size; m++) {
        const struct comm_all_to_all_v *sender = &peer_call(call, m)->all_to_all_v;
        if (op->receive_counts[m] > 0)
            copy_from(call, m, (char *)op->out + op->receive_offsets[m],
                      (const char *)sender->in + sender->send_offsets[self], op->receive_counts[m]);
    }
    close_peers(call);
}

/* Read: what is sent. Written: what is received, which does not overlap it. */
static void exchange(const struct collective *call)
{
    const struct comm_exchange *op = &call->exchange;
    int64_t next[COMM_RANKS_MAX] = {0}; /* where to look for each sender's next send to this one */
    open_peers(call);
    for (int64_t i = 0; i < op->receive_count; i++) {
        int from = op->receives[i].peer;
        const struct comm_exchange *sender = &peer_call(call, from)->exchange;
        int64_t s = exchange_next_send(sender, call->comm->member, next[from]);
        copy_from(call, from, op->receives[i].data, sender->sends[s].data, op->receives[i].bytes);
        next[from] = s + 1;
    }
    close_peers(call);
}

const struct comm_backend comm_backend_local = {
    .name = "local",
    .move =
        {
            [COLLECTIVE_ALL_GATHER] = all_gather,
            [COLLECTIVE_REDUCE_SCATTER] = reduce_scatter,
            [COLLECTIVE_ALL_REDUCE] = all_reduce,
            [COLLECTIVE_ALL_TO_ALL_V] = all_to_all_v,
            [COLLECTIVE_EXCHANGE] = exchange,
        },
};
