#include "comm/comm.h"

#include "base/checked.h"
#include "base/memory.h"
#include "base/record.h"
#include "base/trace.h"
#include "comm/gpus.h"
#include "comm/group.h"
#include "device/peers.h"

/* The unit of an all-reduce's parts: a line of the cache. */
#define PART_VALUES 16

static const struct comm_backend *backend_of(const struct comm_domain *domain, int member_count)
{
    if (domain->devices[0]->ops->peers == NULL)
        return domain->links != NULL ? &comm_backend_slow : &comm_backend_local;
    return gpus_have_nccl(domain, member_count) ? &comm_backend_nccl : &comm_backend_virtual;
}

static void group_init(struct comm_group *group, struct comm_domain *domain, const int *ranks,
                       int member_count)
{
    group->domain = domain;
    group->backend = backend_of(domain, member_count);
    group->size = member_count;
    atomic_init(&group->ends_left, member_count);
    for (int m = 0; m < member_count; m++) {
        ASSERT(ranks[m] >= 0 && ranks[m] < domain->rank_count);
        for (int before = 0; before < m; before++)
            ASSERT(ranks[before] != ranks[m]);
        group->ranks[m] = ranks[m];
        group->ends[m].group = group;
        group->ends[m].member = m;
    }
}

static void group_free(struct comm_group *group)
{
    if (group->backend->deinit != NULL)
        group->backend->deinit(group);
    memory_free(group);
}

enum status comm_create(struct comm **out, struct comm_domain *domain, const int *ranks,
                        int member_count, struct error *err)
{
    ASSERT(member_count >= 1 && member_count <= COMM_RANKS_MAX);
    struct comm_group *group;
    TRY(memory_get((void **)&group, 1, sizeof *group + (size_t)member_count * sizeof group->ends[0],
                   "a communicator", err));
    group_init(group, domain, ranks, member_count);
    enum status status = STATUS_OK;
    if (group->backend->init != NULL)
        status = group->backend->init(group, err);
    if (status != STATUS_OK) {
        group_free(group);
        return status;
    }
    domain_add(domain, group);
    for (int m = 0; m < member_count; m++)
        out[m] = &group->ends[m];
    return STATUS_OK;
}

void comm_destroy(struct comm *comm)
{
    if (comm == NULL || atomic_fetch_sub(&comm->group->ends_left, 1) > 1)
        return;
    struct comm_group *group = comm->group;
    domain_remove(group->domain, group);
    group_free(group);
}

int comm_size(const struct comm *comm)
{
    return comm->group->size;
}

int comm_member(const struct comm *comm)
{
    return comm->member;
}

void comm_part(int64_t *first, int64_t *count, int64_t total, int size, int member)
{
    int64_t part = round_up(ceil_div(total, size), PART_VALUES);
    *first = member * part < total ? member * part : total;
    *count = total - *first < part ? total - *first : part;
}

/* Bytes that each member's part of it has: struct recording_collective says which. */
static void counts_of(int64_t counts[COMM_RANKS_MAX], const struct collective *call)
{
    int size = call->comm->group->size, self = call->comm->member;
    for (int m = 0; m < size; m++) {
        counts[m] = 0;
        if (call->kind == COLLECTIVE_ALL_GATHER)
            counts[m] = call->all_gather.counts[m];
        else if (call->kind == COLLECTIVE_REDUCE_SCATTER)
            counts[m] = call->reduce_scatter.counts[m] * (int64_t)sizeof(float);
        else if (call->kind == COLLECTIVE_ALL_TO_ALL_V && m != self)
            counts[m] = call->all_to_all_v.send_counts[m];
    }
    if (call->kind == COLLECTIVE_ALL_REDUCE)
        counts[0] = call->all_reduce.count * (int64_t)sizeof(float);
    for (int64_t i = 0; call->kind == COLLECTIVE_EXCHANGE && i < call->exchange.send_count; i++) {
        const struct comm_message *send = &call->exchange.sends[i];
        counts[send->peer] += send->peer != self ? send->bytes : 0;
    }
}

static void collective_record(const struct collective *call)
{
    int64_t counts[COMM_RANKS_MAX];
    const struct comm_group *group = call->comm->group;
    if (!record_is_on())
        return;
    counts_of(counts, call);
    record_collective(&(struct record_collective){.group = group->id,
                                                  .number = call->number,
                                                  .op = (int)call->kind,
                                                  .tag = call->tag,
                                                  .member = call->comm->member,
                                                  .size = group->size,
                                                  .ranks = group->ranks,
                                                  .counts = counts});
}

/* Runs on the stream's thread. What is recorded as the member's own is from when all have come
 * until it is done, without what it waits in between. */
static enum status collective_run(void *argument, struct error *err)
{
    const struct collective *call = argument;
    const struct comm_backend *backend = call->comm->group->backend;
    trace_name(collective_name(call));
    double begin = trace_begin();
    TRY(group_meet(call, err));
    trace_add(begin, "wait for the others", 0);
    record_begin();
    collective_record(call);
    enum status status = backend->move(call, err);
    group_leave(call);
    return backend->parted == NULL ? status : backend->parted(call, status, err);
}

static void collective_post(struct comm *comm, struct stream *stream, struct collective *call)
{
    ASSERT(call->tag >= 0 && call->tag < COMM_TAGS_MAX);
    const struct device_ops *ops = group_device(comm)->ops;
    call->comm = comm;
    call->stream = stream;
    call->number = ++comm->posted;
    if (ops->peers != NULL)
        ops->peers->call(stream, collective_run, call, sizeof *call);
    else
        ops->call(stream, collective_run, call, sizeof *call);
}

void comm_all_gather(struct comm *comm, struct stream *stream, const struct comm_all_gather *op)
{
    struct collective call = {.kind = COLLECTIVE_ALL_GATHER, .tag = op->tag, .all_gather = *op};
    collective_post(comm, stream, &call);
}

void comm_reduce_scatter(struct comm *comm, struct stream *stream,
                         const struct comm_reduce_scatter *op)
{
    struct collective call = {
        .kind = COLLECTIVE_REDUCE_SCATTER, .tag = op->tag, .reduce_scatter = *op};
    collective_post(comm, stream, &call);
}

void comm_all_reduce(struct comm *comm, struct stream *stream, const struct comm_all_reduce *op)
{
    struct collective call = {.kind = COLLECTIVE_ALL_REDUCE, .tag = op->tag, .all_reduce = *op};
    collective_post(comm, stream, &call);
}

void comm_all_to_all_v(struct comm *comm, struct stream *stream, const struct comm_all_to_all_v *op)
{
    struct collective call = {.kind = COLLECTIVE_ALL_TO_ALL_V, .tag = op->tag, .all_to_all_v = *op};
    collective_post(comm, stream, &call);
}

void comm_exchange(struct comm *comm, struct stream *stream, const struct comm_exchange *op)
{
    struct collective call = {.kind = COLLECTIVE_EXCHANGE, .tag = op->tag, .exchange = *op};
    collective_post(comm, stream, &call);
}
