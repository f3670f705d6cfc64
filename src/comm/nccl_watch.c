/* The order in which a rank launches, and the thread that looks whether what was launched goes on.
 *
 * A kernel of NCCL runs until those of its peers have come, and takes from its GPU what others may
 * need to begin. Two communicators in flight, launched in one order here and in another there, can
 * so wait for each other for ever. The threads of a rank's streams are several. Therefore who comes
 * last to a meeting puts the launch of every member into the queue of its rank, in one step: so
 * queues have one order on all ranks, and of what is queued anywhere the first is first on each of
 * its ranks. On the GPU itself each launch waits for the one before: its streams are several, too.
 * That closes no ring: what a stream was told to wait for was launched, or met, before.
 *
 * Nobody else would notice that a peer's GPU does not come: threads do not wait for GPUs here, and
 * who waits at last waits inside of CUDA. So a thread looks at every end, and aborts all of them
 * when the run has ended (nccl_abort.c): their kernels leave, and with them all who wait.
 */
#include <stdio.h>

#include "base/memory.h"
#include "base/perturb.h"
#include "base/system.h"
#include "comm/nccl.h"
#include "device/peers.h"

/* ---- The queues ------------------------------------------------------------------------------ */

static struct nccl_rank *rank_of(const struct comm *comm)
{
    return &nccl_of(comm->group)->ranks[group_rank(comm)];
}

static void append(struct nccl_end *end)
{
    struct nccl_rank *rank = rank_of(end->comm);
    end->queued_next = NULL;
    end->is_queued = true;
    if (rank->first == NULL)
        rank->first = end;
    else
        rank->last->queued_next = end;
    rank->last = end;
}

/* From wherever it stands: when the run has ended nobody waits for his turn. */
static void take_out(struct nccl_end *end)
{
    struct nccl_rank *rank = rank_of(end->comm);
    struct nccl_end *before = NULL;
    if (!end->is_queued)
        return;
    for (struct nccl_end *at = rank->first; at != end; at = at->queued_next)
        before = at;
    if (before == NULL)
        rank->first = end->queued_next;
    else
        before->queued_next = end->queued_next;
    if (rank->last == end)
        rank->last = before;
    end->is_queued = false;
}

void nccl_queue(struct comm_group *group)
{
    struct nccl_domain *nccl = nccl_of(group);
    pthread_mutex_lock(&nccl->lock);
    for (int m = 0; m < group->size; m++)
        append(group->ends[m].nccl);
    pthread_mutex_unlock(&nccl->lock);
}

enum status nccl_queue_wait(const struct collective *call, struct error *err)
{
    struct nccl_domain *nccl = nccl_of(call->comm->group);
    const struct nccl_rank *rank = rank_of(call->comm);
    perturb();
    pthread_mutex_lock(&nccl->lock);
    while (rank->first != call->comm->nccl && !atomic_load(&nccl->domain->ended))
        pthread_cond_wait(&nccl->turn, &nccl->lock);
    pthread_mutex_unlock(&nccl->lock);
    return comm_domain_failure(nccl->domain, err);
}

void nccl_queue_leave(const struct collective *call, bool is_launched)
{
    struct nccl_domain *nccl = nccl_of(call->comm->group);
    struct nccl_rank *rank = rank_of(call->comm);
    pthread_mutex_lock(&nccl->lock);
    take_out(call->comm->nccl);
    if (is_launched) {
        rank->is_running = true;
        rank->launch_count++;
        rank->launch = *call;
    }
    if (rank->first != NULL)
        pthread_cond_broadcast(&nccl->turn);
    pthread_mutex_unlock(&nccl->lock);
}

/* Within the lock. */
static void stir(struct nccl_domain *nccl)
{
    nccl->is_stirred = true;
    pthread_cond_signal(&nccl->stirred);
}

/* ---- The watch: all within the lock ---------------------------------------------------------- */

struct nccl_comm *nccl_end_take(struct nccl_end *end)
{
    pthread_mutex_lock(&end->lock);
    struct nccl_comm *handle = end->handle;
    end->handle = NULL;
    pthread_mutex_unlock(&end->lock);
    return handle;
}

/* The GPU is not asked whether what was launched has ended meanwhile: it may not answer before the
 * abort. One that was launched meanwhile is not known yet: its own thread sees that the run has
 * ended. */
static void ranks_mark(struct nccl_domain *nccl)
{
    for (int r = 0; r < nccl->domain->rank_count; r++) {
        if (nccl->ranks[r].is_running)
            atomic_store(&nccl->ranks[r].is_aborted, true);
    }
}

/* All are told at once, by threads of their own. */
static void end_abort(struct nccl_end *end, struct nccl_comm *handle)
{
    if (handle != NULL)
        nccl_abort_begin(&nccl_of(end->comm->group)->told, end->abort, handle);
}

/* Not by the watch alone: that may be with a driver, which answers when the kernels have left that
 * an abort is to end. An end that a thread is calling into is left to the watch. */
void nccl_wake(struct nccl_domain *nccl)
{
    pthread_mutex_lock(&nccl->lock);
    pthread_cond_broadcast(&nccl->turn);
    bool has_ended = atomic_load(&nccl->domain->ended);
    if (has_ended)
        ranks_mark(nccl);
    for (struct nccl_end *end = nccl->watched; has_ended && end != NULL; end = end->watched_next) {
        if (pthread_mutex_trylock(&end->lock) != 0)
            continue;
        struct nccl_comm *handle = end->handle;
        end->handle = NULL;
        pthread_mutex_unlock(&end->lock);
        end_abort(end, handle);
    }
    stir(nccl);
    pthread_mutex_unlock(&nccl->lock);
}

/* They are waited for outside of the lock: nobody who leaves a queue or destroys a communicator
 * waits for an abort that hangs. Whether there was any: there may be others then. */
static bool abort_all(struct nccl_domain *nccl)
{
    ranks_mark(nccl);
    for (struct nccl_end *end = nccl->watched; end != NULL; end = end->watched_next)
        end_abort(end, nccl_end_take(end));
    struct nccl_abort *told = nccl->told;
    nccl->told = NULL;
    if (told == NULL)
        return false;
    pthread_mutex_unlock(&nccl->lock);
    nccl_aborts_await(told);
    pthread_mutex_lock(&nccl->lock);
    return true;
}

/* A stream has settled, perhaps because what was on it was aborted. */
static enum status check_settled(void *context, struct error *err)
{
    const struct nccl_rank *rank = context;
    return atomic_load(&rank->is_aborted) ? comm_domain_failure(rank->nccl->domain, err)
                                          : STATUS_OK;
}

/* What a rank was about, for sentences. */
static const char *launch_text(char out[COLLECTIVE_TEXT_BYTES], const struct nccl_domain *nccl,
                               int rank)
{
    const struct nccl_rank *of = &nccl->ranks[rank];
    if (of->is_running)
        return collective_text(out, &of->launch);
    snprintf(out, COLLECTIVE_TEXT_BYTES, "between two collectives");
    return out;
}

/* What NCCL finds out behind its calls. */
static enum status ends_check(const struct nccl_domain *nccl, int *rank, struct error *err)
{
    char text[COLLECTIVE_TEXT_BYTES];
    for (struct nccl_end *end = nccl->watched; end != NULL; end = end->watched_next) {
        enum status status = STATUS_OK;
        int result = NCCL_SUCCESS, state = NCCL_SUCCESS;
        pthread_mutex_lock(&end->lock);
        if (end->handle != NULL)
            result = nccl->library->async_error(end->handle, &state);
        if (result == NCCL_SUCCESS)
            result = state;
        if (result != NCCL_SUCCESS && result != NCCL_IN_PROGRESS)
            status = nccl_failed(end->comm, end->handle, "ncclCommGetAsyncError", result, err);
        pthread_mutex_unlock(&end->lock);
        *rank = group_rank(end->comm);
        if (status != STATUS_OK)
            return error_prefix(err, status, "%s", launch_text(text, nccl, *rank));
    }
    return STATUS_OK;
}

/* Whether a rank has launched what has not ended, or is to launch. Outside of the lock while a
 * driver answers: it may let that wait for a thread that frees memory. */
static enum status rank_is_busy(struct nccl_domain *nccl, int r, bool *out, struct error *err)
{
    struct nccl_rank *rank = &nccl->ranks[r];
    const struct device *device = nccl->domain->devices[r];
    if (rank->is_running) {
        uint64_t launch_count = rank->launch_count;
        bool is_reached;
        pthread_mutex_unlock(&nccl->lock);
        perturb();
        enum status status = device->ops->peers->reached(rank->launched, &is_reached, err);
        pthread_mutex_lock(&nccl->lock);
        if (status != STATUS_OK)
            return status;
        if (is_reached && rank->launch_count == launch_count)
            rank->is_running = false;
    }
    *out = rank->is_running || rank->first != NULL;
    return STATUS_OK;
}

/* Who has yet to launch holds up those who have; of either the first. */
static enum status late_say(const struct nccl_domain *nccl, int *rank, double patience,
                            struct error *err)
{
    char text[COLLECTIVE_TEXT_BYTES];
    int rank_count = nccl->domain->rank_count;
    for (*rank = 0; *rank < rank_count; (*rank)++) {
        const struct nccl_end *first = nccl->ranks[*rank].first;
        if (first != NULL)
            return error_set(err, STATUS_INTERNAL,
                             "%s is not launched by NCCL; no rank has moved for %g seconds",
                             collective_text(text, first->comm->call), patience);
    }
    for (*rank = 0; *rank < rank_count - 1 && !nccl->ranks[*rank].is_running;)
        (*rank)++;
    return error_set(err, STATUS_INTERNAL,
                     "%s was launched by NCCL and does not end; no rank has moved for %g seconds",
                     launch_text(text, nccl, *rank), patience);
}

static enum status look(struct nccl_domain *nccl, int *rank, struct error *err)
{
    bool is_any = false;
    TRY(ends_check(nccl, rank, err));
    for (*rank = 0; *rank < nccl->domain->rank_count; (*rank)++) {
        bool is_busy;
        TRY(rank_is_busy(nccl, *rank, &is_busy, err));
        is_any |= is_busy;
    }
    double patience = is_any ? comm_domain_quiet_seconds(nccl->domain) : 0;
    return patience > 0 ? late_say(nccl, rank, patience, err) : STATUS_OK;
}

/* Until something has changed, perhaps while it looked, or it is time to look again. */
static void rest(struct nccl_domain *nccl)
{
    bool looks_again = nccl->watched != NULL && !atomic_load(&nccl->domain->ended);
    struct timespec until = system_moment(nccl->domain->poll_seconds);
    int waited = 0;
    while (!nccl->is_stirred && waited == 0)
        waited = looks_again ? pthread_cond_timedwait(&nccl->stirred, &nccl->lock, &until)
                             : pthread_cond_wait(&nccl->stirred, &nccl->lock);
    nccl->is_stirred = false;
}

static void *watch_main(void *context)
{
    struct nccl_domain *nccl = context;
    pthread_mutex_lock(&nccl->lock);
    while (!nccl->is_stopping) {
        struct error cause;
        int rank;
        if (atomic_load(&nccl->domain->ended)) {
            if (abort_all(nccl))
                continue;
        } else if (look(nccl, &rank, &cause) != STATUS_OK) {
            pthread_mutex_unlock(&nccl->lock);
            comm_domain_abort(nccl->domain, rank, &cause);
            pthread_mutex_lock(&nccl->lock);
            continue;
        }
        rest(nccl);
    }
    pthread_mutex_unlock(&nccl->lock);
    return NULL;
}

void nccl_watch(struct comm_group *group)
{
    struct nccl_domain *nccl = nccl_of(group);
    pthread_mutex_lock(&nccl->lock);
    for (int m = 0; m < group->size; m++) {
        group->ends[m].nccl->watched_next = nccl->watched;
        nccl->watched = group->ends[m].nccl;
    }
    stir(nccl);
    pthread_mutex_unlock(&nccl->lock);
}

void nccl_unwatch(struct comm_group *group)
{
    struct nccl_domain *nccl = nccl_of(group);
    pthread_mutex_lock(&nccl->lock);
    struct nccl_end **link = &nccl->watched;
    while (*link != NULL) {
        if ((*link)->comm->group == group)
            *link = (*link)->watched_next;
        else
            link = &(*link)->watched_next;
    }
    for (int m = 0; m < group->size; m++) {
        struct nccl_rank *rank = rank_of(&group->ends[m]);
        take_out(group->ends[m].nccl);
        if (rank->is_running && rank->launch.comm->group == group)
            rank->is_running = false;
    }
    pthread_mutex_unlock(&nccl->lock);
}

/* ---- Life ------------------------------------------------------------------------------------ */

static enum status domain_fill(struct nccl_domain *nccl, struct error *err)
{
    for (int r = 0; r < nccl->domain->rank_count; r++) {
        struct device *device = nccl->domain->devices[r];
        TRY(device->ops->event_create(device, &nccl->ranks[r].launched, err));
        nccl->ranks[r].nccl = nccl;
        device->ops->peers->on_settled(device, check_settled, &nccl->ranks[r]);
    }
    int failure = pthread_create(&nccl->thread, NULL, watch_main, nccl);
    if (failure != 0)
        return error_set_errno(err, failure, "cannot start the thread that watches NCCL");
    nccl->has_thread = true;
    return STATUS_OK;
}

enum status nccl_domain_create(struct nccl_domain **out, struct comm_domain *domain,
                               const struct nccl_library *library, const struct log_sink *log,
                               struct error *err)
{
    struct nccl_domain *nccl;
    TRY(memory_get((void **)&nccl, 1,
                   sizeof *nccl + (size_t)domain->rank_count * sizeof nccl->ranks[0],
                   "what the ranks share", err));
    nccl->domain = domain;
    nccl->library = library;
    nccl->log = *log;
    pthread_mutex_init(&nccl->lock, NULL);
    system_condition_init(&nccl->stirred);
    pthread_cond_init(&nccl->turn, NULL);
    enum status status = domain_fill(nccl, err);
    if (status != STATUS_OK) {
        nccl_domain_destroy(nccl);
        return status;
    }
    *out = nccl;
    return STATUS_OK;
}

void nccl_domain_destroy(struct nccl_domain *nccl)
{
    if (nccl == NULL)
        return;
    ASSERT(nccl->watched == NULL);
    pthread_mutex_lock(&nccl->lock);
    nccl->is_stopping = true;
    stir(nccl);
    pthread_mutex_unlock(&nccl->lock);
    if (nccl->has_thread)
        pthread_join(nccl->thread, NULL);
    nccl_aborts_await(nccl->told);
    for (int r = 0; r < nccl->domain->rank_count; r++) {
        struct device *device = nccl->domain->devices[r];
        device->ops->event_destroy(device, nccl->ranks[r].launched);
        device->ops->peers->on_settled(device, NULL, NULL);
    }
    pthread_cond_destroy(&nccl->turn);
    pthread_cond_destroy(&nccl->stirred);
    pthread_mutex_destroy(&nccl->lock);
    memory_free(nccl);
}
