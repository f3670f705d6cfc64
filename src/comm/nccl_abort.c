/* The end of a communicator whose kernels may never leave by themselves: NCCL's abort, and what is
 * done where that does not return either.
 *
 * An abort returns when the kernels of its end have left the GPU: never, where those of another end
 * stand before them on a stream and have not been told yet. So each is told by a thread of its own.
 * Nobody can call back a thread that is inside of NCCL: when its time is over it is left to itself,
 * with what it needs, and nobody frees what a GPU has any more, for which it might be waited. A
 * stream's thread that is inside of CUDA, whose kernels never leave the GPU, cannot be called back
 * either: the log has told why the process does not end by itself then.
 */
#include <errno.h>
#include <string.h>

#include "base/memory.h"
#include "base/system.h"
#include "comm/nccl.h"
#include "device/peers.h"

/* With the watchdog's patience of 10 seconds, where kernels leave, all threads have ended
 * within 15. */
#define ABORT_SECONDS 4.0

/* Of an end, its thread, and who waits for it: the last of them frees it. */
struct nccl_abort {
    const struct nccl_domain *nccl; /* not for the thread, who may outlive it */
    const struct nccl_library *library;
    int rank;
    struct nccl_comm *handle;
    struct nccl_abort *next;

    pthread_mutex_t lock; /* of all below */
    pthread_cond_t ended;
    struct timespec until;
    bool has_begun, has_ended, is_left;
    int user_count;
};

enum status nccl_abort_create(struct nccl_abort **out, const struct comm *comm, struct error *err)
{
    struct nccl_abort *abort;
    TRY(memory_get((void **)&abort, 1, sizeof *abort, "a communicator", err));
    abort->nccl = nccl_of(comm->group);
    abort->library = abort->nccl->library;
    abort->rank = group_rank(comm);
    abort->user_count = 1;
    pthread_mutex_init(&abort->lock, NULL);
    system_condition_init(&abort->ended);
    *out = abort;
    return STATUS_OK;
}

static void leave(struct nccl_abort *abort, bool has_ended)
{
    pthread_mutex_lock(&abort->lock);
    abort->has_ended |= has_ended;
    bool is_last = --abort->user_count == 0;
    pthread_cond_broadcast(&abort->ended);
    pthread_mutex_unlock(&abort->lock);
    if (!is_last)
        return;
    pthread_cond_destroy(&abort->ended);
    pthread_mutex_destroy(&abort->lock);
    memory_free(abort);
}

static void *abort_main(void *context)
{
    struct nccl_abort *abort = context;
    (void)abort->library->abort(abort->handle);
    leave(abort, true);
    return NULL;
}

/* Where there is no thread for it, it is not told at all: who told it here might never come back.
 */
void nccl_abort_begin(struct nccl_abort **told, struct nccl_abort *abort, struct nccl_comm *handle)
{
    pthread_t thread;
    abort->handle = handle;
    abort->next = *told;
    *told = abort;
    pthread_mutex_lock(&abort->lock);
    abort->until = system_moment(ABORT_SECONDS);
    abort->has_begun = true;
    abort->user_count += 2;
    pthread_mutex_unlock(&abort->lock);
    int failure = pthread_create(&thread, NULL, abort_main, abort);
    if (failure == 0) {
        pthread_detach(thread);
        return;
    }
    log_write(&abort->nccl->log, LOG_WARNING,
              "rank %d's communicator cannot be aborted: no thread can be started (%s)",
              abort->rank, strerror(failure));
    leave(abort, false);
}

static void give_up(const struct nccl_abort *abort)
{
    const struct comm_domain *domain = abort->nccl->domain;
    const struct peer_ops *peers = domain->devices[abort->rank]->ops->peers;
    struct error cause = {.message = ""};
    bool has_failed = comm_domain_failure(domain, &cause) != STATUS_OK;
    peers->give_up();
    log_write(&abort->nccl->log, LOG_WARNING,
              "%s%sNCCL has not aborted the communicator of rank %d (cuda:%d) after %g seconds: "
              "what GPUs have is not freed any more, but when the process ends",
              cause.message, has_failed ? "; " : "", abort->rank,
              peers->ordinal(domain->devices[abort->rank]), ABORT_SECONDS);
}

/* Returns when it has ended; for the last of those who wait, when nobody else has it any more. */
static void await(struct nccl_abort *abort, bool is_last)
{
    int failure = 0;
    pthread_mutex_lock(&abort->lock);
    while ((is_last ? abort->user_count > 1 : !abort->has_ended) && failure != ETIMEDOUT)
        failure = pthread_cond_timedwait(&abort->ended, &abort->lock, &abort->until);
    bool is_over = abort->has_begun && !abort->has_ended && !abort->is_left;
    abort->is_left |= is_over;
    pthread_mutex_unlock(&abort->lock);
    if (is_over)
        give_up(abort);
}

void nccl_aborts_await(struct nccl_abort *told)
{
    while (told != NULL) {
        struct nccl_abort *next = told->next;
        await(told, false);
        leave(told, false);
        told = next;
    }
}

void nccl_abort_destroy(struct nccl_abort *abort)
{
    if (abort == NULL)
        return;
    await(abort, true);
    leave(abort, false);
}
