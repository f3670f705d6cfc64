/* Collectives as sends and receives of NCCL, each member's own part of them. Bytes are bytes:
 * counts differ from member to member, which its collectives do not know; where they are equal, its
 * all-gather is quicker than sends.
 *
 * One group of calls is one launch, in which all sends and receives go on together. Those of two
 * members meet in the order in which each has named them. What has no bytes is named by neither.
 */
#include "base/checked.h"
#include "comm/nccl.h"
#include "device/peers.h"

/* Of each peer's values that are summed, brought at a time: 4 MiB have a link's whole rate. Those
 * of all peers are less than NCCL_SCRATCH_MAX: streams keep as much when they need more
 * (cuda_stream.c), where to free it could wait for a launch of another rank that waits for this
 * one. */
#define PIECE_VALUES ((int64_t)1 << 20)

/* Peers' values in scratch memory begin at a multiple of so many. */
#define ALIGN_VALUES 64

/* ---- A group of calls ------------------------------------------------------------------------ */

/* Zero but for the first three: nothing was named yet, and nothing is open. */
struct batch {
    const struct collective *call;
    const struct nccl_library *nccl;
    const struct peer_ops *peers;
    bool is_open; /* the end's lock is held */
};

static struct batch batch_of(const struct collective *call)
{
    return (struct batch){.call = call,
                          .nccl = nccl_of(call->comm->group)->library,
                          .peers = group_device(call->comm)->ops->peers};
}

static enum status batch_check(const struct batch *batch, const char *what, int result,
                               struct error *err)
{
    const struct comm *comm = batch->call->comm;
    if (result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS)
        return STATUS_OK;
    return nccl_failed(comm, comm->nccl->handle, what, result, err);
}

/* Where the end was aborted: why. */
static enum status aborted(const struct batch *batch, struct error *err)
{
    TRY(comm_domain_failure(batch->call->comm->group->domain, err));
    return error_set(err, STATUS_INTERNAL, "a communicator was aborted");
}

static enum status batch_open(struct batch *batch, struct error *err)
{
    struct nccl_end *end = batch->call->comm->nccl;
    if (batch->is_open)
        return STATUS_OK;
    pthread_mutex_lock(&end->lock);
    enum status status = end->handle == NULL ? aborted(batch, err) : STATUS_OK;
    if (status == STATUS_OK)
        status = batch_check(batch, "ncclGroupStart", batch->nccl->group_start(), err);
    batch->is_open = status == STATUS_OK;
    if (status != STATUS_OK)
        pthread_mutex_unlock(&end->lock);
    return status;
}

static enum status batch_send(struct batch *batch, int to, const void *in, int64_t bytes,
                              struct error *err)
{
    if (bytes == 0)
        return STATUS_OK;
    TRY(batch_open(batch, err));
    int result =
        batch->nccl->send(in, (size_t)bytes, NCCL_INT8, to, batch->call->comm->nccl->handle,
                          batch->peers->native(batch->call->stream));
    return batch_check(batch, "ncclSend", result, err);
}

static enum status batch_receive(struct batch *batch, int from, void *out, int64_t bytes,
                                 struct error *err)
{
    if (bytes == 0)
        return STATUS_OK;
    TRY(batch_open(batch, err));
    collective_count(batch->call, from, bytes);
    int result =
        batch->nccl->receive(out, (size_t)bytes, NCCL_INT8, from, batch->call->comm->nccl->handle,
                             batch->peers->native(batch->call->stream));
    return batch_check(batch, "ncclRecv", result, err);
}

/* What is put on the stream before NCCL has put its own there would run before it. */
static enum status await_launch(const struct batch *batch, struct error *err)
{
    struct nccl_end *end = batch->call->comm->nccl;
    int state = NCCL_IN_PROGRESS;
    for (int look = 0; state == NCCL_IN_PROGRESS; look++) {
        nccl_nap(look);
        pthread_mutex_lock(&end->lock);
        bool is_there = end->handle != NULL;
        int result = is_there ? batch->nccl->async_error(end->handle, &state) : NCCL_SUCCESS;
        enum status status = batch_check(batch, "ncclCommGetAsyncError",
                                         result != NCCL_SUCCESS || !is_there ? result : state, err);
        pthread_mutex_unlock(&end->lock);
        if (!is_there)
            return aborted(batch, err);
        TRY(status);
    }
    return STATUS_OK;
}

/* Launches what was named, unless `named` says that naming it has failed. A group that was begun is
 * ended in any case. */
static enum status batch_close(struct batch *batch, enum status named, struct error *err)
{
    struct error later;
    if (!batch->is_open)
        return named;
    int result = batch->nccl->group_end();
    enum status status =
        batch_check(batch, "ncclGroupEnd", result, named == STATUS_OK ? err : &later);
    batch->is_open = false;
    pthread_mutex_unlock(&batch->call->comm->nccl->lock);
    if (named != STATUS_OK || status != STATUS_OK)
        return named != STATUS_OK ? named : status;
    return result == NCCL_IN_PROGRESS ? await_launch(batch, err) : STATUS_OK;
}

/* To itself a member copies. */
static enum status copy_own(const struct collective *call, void *out, const void *in, int64_t bytes,
                            struct error *err)
{
    if (bytes == 0 || out == in)
        return STATUS_OK;
    return group_device(call->comm)->ops->peers->copy(call->stream, out, in, bytes, err);
}

/* ---- Parts of one array, one for each member ------------------------------------------------- */

struct parts {
    int64_t first[COMM_RANKS_MAX], count[COMM_RANKS_MAX];
    int64_t count_max;
    bool are_equal;
};

static void parts_add(struct parts *parts, int member, int64_t first, int64_t count)
{
    parts->first[member] = first;
    parts->count[member] = count;
    parts->count_max = count > parts->count_max ? count : parts->count_max;
    parts->are_equal = (member == 0 || parts->are_equal) && count == parts->count[0];
}

static struct parts parts_of_counts(const int64_t *counts, int size)
{
    struct parts parts = {.count_max = 0};
    int64_t first = 0;
    for (int m = 0; m < size; m++) {
        parts_add(&parts, m, first, counts[m]);
        first += counts[m];
    }
    return parts;
}

static struct parts parts_of_sum(int64_t total, int size)
{
    struct parts parts = {.count_max = 0};
    for (int m = 0; m < size; m++) {
        int64_t first, count;
        comm_part(&first, &count, total, size, m);
        parts_add(&parts, m, first, count);
    }
    return parts;
}

/* ---- All-gather ------------------------------------------------------------------------------ */

static enum status gather_equal(const struct collective *call, char *out, const char *in,
                                int64_t bytes, struct error *err)
{
    struct batch batch = batch_of(call);
    if (bytes == 0)
        return STATUS_OK;
    TRY(batch_open(&batch, err));
    for (int m = 0; m < call->comm->group->size; m++)
        collective_count(call, m, bytes);
    int result = batch.nccl->all_gather(in, out, (size_t)bytes, NCCL_INT8, call->comm->nccl->handle,
                                        batch.peers->native(call->stream));
    return batch_close(&batch, batch_check(&batch, "ncclAllGather", result, err), err);
}

static enum status gather_sends(struct batch *batch, const struct parts *parts, char *out,
                                const char *in, int64_t width, struct error *err)
{
    int size = batch->call->comm->group->size, self = batch->call->comm->member;
    for (int m = 0; m < size; m++) {
        if (m == self)
            continue;
        TRY(batch_send(batch, m, in, parts->count[self] * width, err));
        TRY(batch_receive(batch, m, out + parts->first[m] * width, parts->count[m] * width, err));
    }
    return STATUS_OK;
}

/* Values of `width` bytes; `in` may be the member's own place in `out`. */
static enum status gather(const struct collective *call, const struct parts *parts, char *out,
                          const char *in, int64_t width, struct error *err)
{
    int self = call->comm->member;
    if (parts->are_equal)
        return gather_equal(call, out, in, parts->count[0] * width, err);
    struct batch batch = batch_of(call);
    enum status named = gather_sends(&batch, parts, out, in, width, err);
    TRY(batch_close(&batch, named, err));
    return copy_own(call, out + parts->first[self] * width, in, parts->count[self] * width, err);
}

/* ---- Sums ------------------------------------------------------------------------------------ */

/* The same for all members. */
static int64_t piece_most(int size)
{
    int64_t most = ((int64_t)NCCL_SCRATCH_MAX / (int64_t)sizeof(float) - 1) / (size - 1);
    most -= most % ALIGN_VALUES;
    return most < PIECE_VALUES ? most : PIECE_VALUES;
}

/* What a peer's piece takes of scratch memory. */
static int64_t piece_stride(const struct parts *parts, const struct comm *comm)
{
    int64_t own = parts->count[comm->member], most = piece_most(comm->group->size);
    return round_up(own < most ? own : most, ALIGN_VALUES);
}

static struct parts parts_summed(const struct collective *call)
{
    int size = call->comm->group->size;
    if (call->kind == COLLECTIVE_ALL_REDUCE)
        return parts_of_sum(call->all_reduce.count, size);
    return parts_of_counts(call->reduce_scatter.counts, size);
}

size_t nccl_scratch_bytes(const struct collective *call)
{
    if (call->kind != COLLECTIVE_ALL_REDUCE && call->kind != COLLECTIVE_REDUCE_SCATTER)
        return 0;
    struct parts parts = parts_summed(call);
    int64_t stride = piece_stride(&parts, call->comm);
    return (size_t)((call->comm->group->size - 1) * stride) * sizeof(float);
}

/* Of each member's part the values from `start` on, a piece of them. */
static int64_t piece_count(const struct parts *parts, int member, int64_t start, int64_t most)
{
    int64_t left = parts->count[member] > start ? parts->count[member] - start : 0;
    return left < most ? left : most;
}

/* The own piece of every member, brought to places in scratch memory in their order. */
static enum status pieces_bring(struct batch *batch, const struct parts *parts, int64_t start,
                                const float *in, float *scratch, struct error *err)
{
    int size = batch->call->comm->group->size, self = batch->call->comm->member;
    int64_t most = piece_most(size);
    int64_t width = (int64_t)sizeof *in, own = piece_count(parts, self, start, most);
    for (int m = 0; m < size; m++) {
        if (m == self)
            continue;
        TRY(batch_send(batch, m, in + parts->first[m] + start,
                       piece_count(parts, m, start, most) * width, err));
        TRY(batch_receive(batch, m, scratch, own * width, err));
        scratch += piece_stride(parts, batch->call->comm);
    }
    return STATUS_OK;
}

static enum status piece_sum(const struct collective *call, const struct parts *parts,
                             int64_t start, const float *in, float *out, const float *scratch,
                             struct error *err)
{
    const struct comm *comm = call->comm;
    const struct device *device = group_device(comm);
    struct peer_sum sum = {
        .out = out + start,
        .in_count = comm->group->size,
        .count = piece_count(parts, comm->member, start, piece_most(comm->group->size))};
    for (int m = 0; m < comm->group->size; m++) {
        bool is_own = m == comm->member;
        sum.in[m] = is_own ? in + parts->first[m] + start : scratch;
        sum.devices[m] = device;
        scratch += is_own ? 0 : piece_stride(parts, comm);
    }
    return device->ops->peers->sum(call->stream, &sum, err);
}

/* out = the own part of the sum of all members' `in`, of which it may be the own part: in the order
 * of the members. A member with a smaller part has nothing to do in the last pieces of others. */
static enum status sum_parts(const struct collective *call, const struct parts *parts, float *out,
                             const float *in, struct error *err)
{
    const struct peer_ops *peers = group_device(call->comm)->ops->peers;
    void *scratch;
    TRY(peers->scratch(call->stream, nccl_scratch_bytes(call), &scratch, err));
    int64_t most = piece_most(call->comm->group->size);
    for (int64_t start = 0; start < parts->count_max; start += most) {
        struct batch batch = batch_of(call);
        enum status named = pieces_bring(&batch, parts, start, in, scratch, err);
        TRY(batch_close(&batch, named, err));
        TRY(piece_sum(call, parts, start, in, out, scratch, err));
    }
    return STATUS_OK;
}

static enum status all_reduce(const struct collective *call, struct error *err)
{
    const struct comm_all_reduce *op = &call->all_reduce;
    struct parts parts = parts_summed(call);
    float *own = op->out + parts.first[call->comm->member];
    TRY(sum_parts(call, &parts, own, op->in, err));
    return gather(call, &parts, (char *)op->out, (const char *)own, sizeof(float), err);
}

/* ---- Messages -------------------------------------------------------------------------------- */

static enum status all_to_all_sends(struct batch *batch, struct error *err)
{
    const struct comm_all_to_all_v *op = &batch->call->all_to_all_v;
    for (int m = 0; m < batch->call->comm->group->size; m++) {
        if (m == batch->call->comm->member)
            continue;
        TRY(batch_send(batch, m, (const char *)op->in + op->send_offsets[m], op->send_counts[m],
                       err));
        TRY(batch_receive(batch, m, (char *)op->out + op->receive_offsets[m], op->receive_counts[m],
                          err));
    }
    return STATUS_OK;
}

static enum status all_to_all_v(const struct collective *call, struct error *err)
{
    const struct comm_all_to_all_v *op = &call->all_to_all_v;
    int self = call->comm->member;
    struct batch batch = batch_of(call);
    enum status named = all_to_all_sends(&batch, err);
    TRY(batch_close(&batch, named, err));
    return copy_own(call, (char *)op->out + op->receive_offsets[self],
                    (const char *)op->in + op->send_offsets[self], op->receive_counts[self], err);
}

static enum status exchange_sends(struct batch *batch, struct error *err)
{
    const struct comm_exchange *op = &batch->call->exchange;
    int self = batch->call->comm->member;
    for (int64_t i = 0; i < op->send_count; i++) {
        const struct comm_message *send = &op->sends[i];
        if (send->peer != self)
            TRY(batch_send(batch, send->peer, send->data, send->bytes, err));
    }
    for (int64_t i = 0; i < op->receive_count; i++) {
        const struct comm_message *receive = &op->receives[i];
        if (receive->peer != self)
            TRY(batch_receive(batch, receive->peer, receive->data, receive->bytes, err));
    }
    return STATUS_OK;
}

static enum status exchange(const struct collective *call, struct error *err)
{
    const struct comm_exchange *op = &call->exchange;
    int self = call->comm->member;
    struct batch batch = batch_of(call);
    enum status named = exchange_sends(&batch, err);
    TRY(batch_close(&batch, named, err));
    int64_t next = 0;
    for (int64_t i = 0; i < op->receive_count; i++) {
        if (op->receives[i].peer != self)
            continue;
        next = exchange_next_send(op, self, next);
        TRY(copy_own(call, op->receives[i].data, op->sends[next].data, op->receives[i].bytes, err));
        next++;
    }
    return STATUS_OK;
}

enum status nccl_move(const struct collective *call, struct error *err)
{
    struct parts parts;
    switch (call->kind) {
    case COLLECTIVE_ALL_GATHER:
        parts = parts_of_counts(call->all_gather.counts, call->comm->group->size);
        return gather(call, &parts, call->all_gather.out, call->all_gather.in, 1, err);
    case COLLECTIVE_REDUCE_SCATTER:
        parts = parts_summed(call);
        return sum_parts(call, &parts, call->reduce_scatter.out, call->reduce_scatter.in, err);
    case COLLECTIVE_ALL_REDUCE:
        return all_reduce(call, err);
    case COLLECTIVE_ALL_TO_ALL_V:
        return all_to_all_v(call, err);
    case COLLECTIVE_EXCHANGE:
        return exchange(call, err);
    case COLLECTIVE_KIND_COUNT:
        break;
    }
    ASSERT(!"a kind of collective");
    return STATUS_INTERNAL;
}
