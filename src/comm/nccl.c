/* Ranks on GPUs, one on each, whose bytes move as NCCL moves them: over NVLink, PCIe or the host,
 * by whatever way it knows to be the fastest there.
 *
 * The threads meet as those of all backends do, so that calls have been held against one another
 * before anything moves. Then each puts its part on its own stream: sends and receives in one group
 * of NCCL's, or its all-gather, and where there is something to add, a kernel of ours behind them
 * (nccl_moves.c). Nothing else is needed between streams: what NCCL has sent may be written again,
 * and what it has received is there, for what comes later on the same stream.
 *
 * NCCL's own reductions are not used. Their order of adding is that of a ring or a tree, which it
 * chooses by the number of bytes: so a row's sum would depend on how many rows the batch has, and
 * differ from that of other backends.
 *
 * Communicators do not block, so that a thread of ours is never inside of NCCL for long: a launch
 * that is under way is looked after until NCCL says that it is on the stream. In which order ranks
 * launch, who notices that one does not come, and how all are released then: nccl_watch.c.
 */
#include "comm/nccl.h"

#include <sched.h>
#include <time.h>

#include "base/memory.h"
#include "base/system.h"
#include "comm/gpus.h"
#include "device/peers.h"

/* The first communicator of a process finds out how its GPUs are joined, which may take seconds. */
#define INIT_PATIENCES 6

#define LOOKS_QUICK     100
#define NAP_NANOSECONDS 20000

void nccl_nap(int look)
{
    if (look < LOOKS_QUICK)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = NAP_NANOSECONDS}, NULL);
}

enum status nccl_failed(const struct comm *comm, struct nccl_comm *handle, const char *what,
                        int result, struct error *err)
{
    const struct nccl_library *library = nccl_of(comm->group)->library;
    const struct device *device = group_device(comm);
    const char *last = library->last_error(handle);
    bool is_told = last != NULL && last[0] != 0;
    return error_set(err, STATUS_IO,
                     "%s on cuda:%d: %s%s%s (NCCL_DEBUG=WARN says more, PHASOR_NCCL=off goes by "
                     "copies)",
                     what, device->ops->peers->ordinal(device), library->error_text(result),
                     is_told ? ": " : "", is_told ? last : "");
}

/* ---- Collectives ----------------------------------------------------------------------------- */

/* Memory that a sum needs is got before anybody launches: to get it may be to wait for the GPU. */
static enum status come(const struct collective *call, struct error *err)
{
    size_t bytes = nccl_scratch_bytes(call);
    void *scratch;
    if (bytes == 0)
        return STATUS_OK;
    return group_device(call->comm)->ops->peers->scratch(call->stream, bytes, &scratch, err);
}

static enum status launch(const struct collective *call, struct error *err)
{
    const struct peer_ops *peers = group_device(call->comm)->ops->peers;
    struct event *launched = nccl_of(call->comm->group)->ranks[group_rank(call->comm)].launched;
    TRY(peers->wait(call->stream, launched, err));
    TRY(nccl_move(call, err));
    return peers->record(call->stream, launched, err);
}

static enum status move(const struct collective *call, struct error *err)
{
    char text[COLLECTIVE_TEXT_BYTES];
    struct comm_domain *domain = call->comm->group->domain;
    enum status waited = nccl_queue_wait(call, err);
    enum status status = waited == STATUS_OK ? launch(call, err) : waited;
    nccl_queue_leave(call, status == STATUS_OK);
    if (waited != STATUS_OK || status == STATUS_OK)
        return status;
    /* At once: others may be launching, which ends only when this one does, too, or is aborted. */
    if (comm_domain_failure(domain, NULL) == STATUS_OK)
        error_prefix(err, status, "%s", collective_text(text, call));
    comm_domain_abort(domain, collective_rank(call), err);
    return status;
}

/* What was launched may yet fail, or be aborted: whoever waits for the stream hears of it then. */
static enum status parted(const struct collective *call, enum status moved, struct error *err)
{
    if (moved != STATUS_OK)
        return moved;
    return comm_domain_failure(call->comm->group->domain, err);
}

static void ended(struct comm_group *group)
{
    nccl_wake(nccl_of(group));
}

/* ---- Life ------------------------------------------------------------------------------------ */

/* The handles of all ends begin to join; those that are set are to be destroyed or aborted. */
static enum status ends_open(struct comm_group *group, struct error *err)
{
    const struct nccl_library *library = nccl_of(group)->library;
    struct nccl_config config = {.size = sizeof config,
                                 .magic = NCCL_CONFIG_MAGIC,
                                 .version = NCCL_CONFIG_VERSION,
                                 .blocking = 0};
    struct nccl_id id;
    const char *what = "ncclGetUniqueId";
    int result = library->get_id(&id), m = 0;
    if (result == NCCL_SUCCESS) {
        what = "ncclGroupStart";
        result = library->group_start();
    }
    if (result != NCCL_SUCCESS)
        return nccl_failed(&group->ends[0], NULL, what, result, err);
    enum status status = STATUS_OK;
    for (m = 0; m < group->size && status == STATUS_OK; m++) {
        struct comm *comm = &group->ends[m];
        const struct device *device = group_device(comm);
        status = device->ops->peers->use(device, err);
        if (status != STATUS_OK)
            break;
        result = library->init(&comm->nccl->handle, group->size, id, m, &config);
        if (result != NCCL_SUCCESS && result != NCCL_IN_PROGRESS)
            status = nccl_failed(comm, NULL, "ncclCommInitRankConfig", result, err);
    }
    result = library->group_end();
    if (status == STATUS_OK && result != NCCL_SUCCESS && result != NCCL_IN_PROGRESS)
        status = nccl_failed(&group->ends[0], NULL, "ncclGroupEnd", result, err);
    return status;
}

/* Returns when what an end was told has been done. */
static enum status end_await(const struct comm *comm, double until, struct error *err)
{
    const struct comm_domain *domain = comm->group->domain;
    const struct nccl_library *library = nccl_of(comm->group)->library;
    for (int look = 0;; look++) {
        int state = NCCL_SUCCESS;
        int result = library->async_error(comm->nccl->handle, &state);
        if (result == NCCL_SUCCESS)
            result = state;
        if (result == NCCL_SUCCESS)
            return STATUS_OK;
        if (result != NCCL_IN_PROGRESS)
            return nccl_failed(comm, comm->nccl->handle, "ncclCommGetAsyncError", result, err);
        TRY(comm_domain_failure(domain, err));
        if (system_seconds() > until)
            return error_set(err, STATUS_IO,
                             "the communicator of cuda:%d is not there after %g seconds "
                             "(NCCL_DEBUG=INFO says what it waits for, PHASOR_NCCL=off goes by "
                             "copies)",
                             group_device(comm)->ops->peers->ordinal(group_device(comm)),
                             INIT_PATIENCES * domain->patience_seconds);
        nccl_nap(look);
    }
}

static enum status ends_join(struct comm_group *group, struct error *err)
{
    char text[RANKS_TEXT_BYTES];
    double until = system_seconds() + INIT_PATIENCES * group->domain->patience_seconds;
    enum status status = ends_open(group, err);
    for (int m = 0; m < group->size && status == STATUS_OK; m++)
        status = end_await(&group->ends[m], until, err);
    if (status != STATUS_OK)
        return error_prefix(err, status, "NCCL cannot join %s",
                            ranks_text(text, group->ranks, group->size));
    return STATUS_OK;
}

static enum status init(struct comm_group *group, struct error *err)
{
    struct nccl_end *ends;
    TRY(memory_get((void **)&ends, (size_t)group->size, sizeof *ends, "a communicator", err));
    for (int m = 0; m < group->size; m++) {
        ends[m].comm = &group->ends[m];
        pthread_mutex_init(&ends[m].lock, NULL);
        group->ends[m].nccl = &ends[m];
    }
    for (int m = 0; m < group->size; m++)
        TRY(nccl_abort_create(&ends[m].abort, &group->ends[m], err));
    TRY(gpus_reach_group(group->domain, group->ranks, group->size, err));
    /* When the run has ended there is nothing to join for, and that is told to who calls. */
    enum status status = ends_join(group, err);
    if (comm_domain_failure(group->domain, NULL) != STATUS_OK)
        return STATUS_OK;
    TRY(status);
    group->is_joined = true;
    nccl_watch(group);
    return STATUS_OK;
}

static bool is_begun(int result)
{
    return result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS;
}

/* In one group, as they were begun: by itself each would be a job behind the call, of which a
 * thread can have one. */
static bool ends_finalize(struct comm_group *group)
{
    const struct nccl_library *library = nccl_of(group)->library;
    bool is_well = is_begun(library->group_start());
    if (!is_well)
        return false;
    for (int m = 0; is_well && m < group->size; m++)
        is_well = is_begun(library->finalize(group->ends[m].nccl->handle));
    return is_begun(library->group_end()) && is_well;
}

/* Lets what runs come to its end; aborts those that do not. */
static void ends_close(struct comm_group *group)
{
    struct nccl_abort *told = NULL;
    const struct nccl_library *library = nccl_of(group)->library;
    double until = system_seconds() + group->domain->patience_seconds;
    bool is_well = group->is_joined && comm_domain_failure(group->domain, NULL) == STATUS_OK &&
                   ends_finalize(group);
    for (int m = 0; is_well && m < group->size; m++) {
        struct error unsaid; /* what was asked of it has been done */
        is_well = end_await(&group->ends[m], until, &unsaid) == STATUS_OK;
    }
    for (int m = 0; m < group->size; m++) {
        struct nccl_comm *handle = nccl_end_take(group->ends[m].nccl);
        if (handle != NULL && is_well)
            (void)library->destroy(handle);
        else if (handle != NULL)
            nccl_abort_begin(&told, group->ends[m].nccl->abort, handle);
    }
    nccl_aborts_await(told);
}

static void deinit(struct comm_group *group)
{
    struct nccl_end *ends = group->ends[0].nccl;
    if (ends == NULL)
        return;
    nccl_unwatch(group);
    ends_close(group);
    for (int m = 0; m < group->size; m++) {
        nccl_abort_destroy(ends[m].abort);
        pthread_mutex_destroy(&ends[m].lock);
    }
    memory_free(ends);
}

const struct comm_backend comm_backend_nccl = {
    .name = "nccl",
    .init = init,
    .deinit = deinit,
    .come = come,
    .met = nccl_queue,
    .move = move,
    .parted = parted,
    .ended = ended,
};
