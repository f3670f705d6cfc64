#include "kernels/cuda/device/cuda_reach.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/memory.h"
#include "base/system.h"
#include "kernels/cuda/device/cuda_error.h"

#define WORDS 16384

/* What it takes of GPUs; the host's memory has what is sent, and then what came. */
struct pieces {
    cudaStream_t stream; /* of `to` */
    uint32_t *source, *target, *sent, *came;
};

/* Of a thread of its own, whom nobody can call back from a copy that hangs: whoever of the two is
 * last frees it. */
struct trial {
    int to, from;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool has_ended, is_left; /* by the thread; by who waited for it */
    enum status status;
    struct error err;
};

static atomic_bool is_stuck;

bool cuda_is_stuck(void)
{
    return atomic_load(&is_stuck);
}

void cuda_give_up(void)
{
    atomic_store(&is_stuck, true);
}

/* ---- The copy -------------------------------------------------------------------------------- */

static enum status pieces_get(struct pieces *pieces, const struct trial *trial, struct error *err)
{
    const size_t bytes = WORDS * sizeof(uint32_t);
    CUDA_TRY(trial->from, cudaSetDevice(trial->from), err);
    CUDA_TRY(trial->from, cudaMalloc((void **)&pieces->source, bytes), err);
    CUDA_TRY(trial->to, cudaSetDevice(trial->to), err);
    CUDA_TRY(trial->to, cudaMalloc((void **)&pieces->target, bytes), err);
    CUDA_TRY(trial->to, cudaMallocHost((void **)&pieces->sent, bytes), err);
    CUDA_TRY(trial->to, cudaMallocHost((void **)&pieces->came, bytes), err);
    CUDA_TRY(trial->to, cudaStreamCreateWithPriority(&pieces->stream, cudaStreamNonBlocking, 0),
             err);
    return STATUS_OK;
}

static void pieces_free(const struct pieces *pieces, const struct trial *trial)
{
    (void)cudaSetDevice(trial->to);
    if (pieces->stream != NULL)
        (void)cudaStreamDestroy(pieces->stream);
    (void)cudaFreeHost(pieces->came);
    (void)cudaFreeHost(pieces->sent);
    (void)cudaFree(pieces->target);
    (void)cudaSetDevice(trial->from);
    (void)cudaFree(pieces->source);
    (void)cudaGetLastError();
}

static enum status pieces_copy(const struct pieces *pieces, const struct trial *trial,
                               struct error *err)
{
    const size_t bytes = WORDS * sizeof(uint32_t);
    cudaStream_t stream = pieces->stream;
    for (uint32_t i = 0; i < WORDS; i++)
        pieces->sent[i] = (i + 1) * 2654435761u + (uint32_t)(64 * trial->to + trial->from);
    CUDA_TRY(trial->to, cudaMemsetAsync(pieces->target, 0, bytes, stream), err);
    CUDA_TRY(trial->to,
             cudaMemcpyAsync(pieces->source, pieces->sent, bytes, cudaMemcpyDefault, stream), err);
    CUDA_TRY(trial->to,
             cudaMemcpyAsync(pieces->target, pieces->source, bytes, cudaMemcpyDefault, stream),
             err);
    CUDA_TRY(trial->to,
             cudaMemcpyAsync(pieces->came, pieces->target, bytes, cudaMemcpyDefault, stream), err);
    CUDA_TRY(trial->to, cudaStreamSynchronize(stream), err);
    return STATUS_OK;
}

/* What is wrong, and who may be in the way. */
static enum status refuse(struct error *err, const struct trial *trial, const char *what)
{
    return error_set(
        err, STATUS_IO,
        "a copy from cuda:%d to cuda:%d %s: these GPUs say that they reach each other, "
        "and do not; an IOMMU, or the Access Control Services (ACS) of a PCIe bridge, "
        "may be in the way: switch them off in the firmware, or set "
        "NCCL_P2P_DISABLE=1, and copies go through the host",
        trial->from, trial->to, what);
}

static enum status pieces_check(const struct pieces *pieces, const struct trial *trial,
                                struct error *err)
{
    if (memcmp(pieces->came, pieces->sent, WORDS * sizeof(uint32_t)) == 0)
        return STATUS_OK;
    return refuse(err, trial, "brought other bytes than were sent");
}

static enum status trial_run(const struct trial *trial, struct error *err)
{
    struct pieces pieces = {.stream = NULL};
    enum status status = pieces_get(&pieces, trial, err);
    if (status == STATUS_OK)
        status = pieces_copy(&pieces, trial, err);
    if (status == STATUS_OK)
        status = pieces_check(&pieces, trial, err);
    pieces_free(&pieces, trial);
    return status;
}

/* ---- Who waits for it ------------------------------------------------------------------------ */

static void trial_free(struct trial *trial)
{
    pthread_cond_destroy(&trial->ended);
    pthread_mutex_destroy(&trial->lock);
    memory_free(trial);
}

static void *trial_thread(void *context)
{
    struct trial *trial = context;
    enum status status = trial_run(trial, &trial->err);
    pthread_mutex_lock(&trial->lock);
    bool is_left = trial->is_left;
    trial->status = status;
    trial->has_ended = true;
    pthread_cond_signal(&trial->ended);
    pthread_mutex_unlock(&trial->lock);
    if (is_left)
        trial_free(trial);
    return NULL;
}

static enum status trial_begin(struct trial **out, pthread_t *thread, int to, int from,
                               struct error *err)
{
    struct trial *trial;
    TRY(memory_get((void **)&trial, 1, sizeof *trial, "a copy between GPUs", err));
    trial->to = to;
    trial->from = from;
    pthread_mutex_init(&trial->lock, NULL);
    system_condition_init(&trial->ended);
    int failure = pthread_create(thread, NULL, trial_thread, trial);
    if (failure != 0) {
        trial_free(trial);
        return error_set_errno(err, failure,
                               "cannot start the thread that tries a copy between GPUs");
    }
    *out = trial;
    return STATUS_OK;
}

/* False: it has not ended, and is left. */
static bool trial_await(struct trial *trial, double patience_seconds)
{
    struct timespec last = system_moment(patience_seconds);
    int failure = 0;
    pthread_mutex_lock(&trial->lock);
    while (!trial->has_ended && failure != ETIMEDOUT)
        failure = pthread_cond_timedwait(&trial->ended, &trial->lock, &last);
    bool has_ended = trial->has_ended;
    trial->is_left = !has_ended;
    pthread_mutex_unlock(&trial->lock);
    return has_ended;
}

enum status cuda_reach_try(int to, int from, double patience_seconds, struct error *err)
{
    const struct trial names = {.to = to, .from = from};
    struct trial *trial;
    pthread_t thread;
    TRY(trial_begin(&trial, &thread, to, from, err));
    if (!trial_await(trial, patience_seconds)) {
        cuda_give_up();
        pthread_detach(thread);
        return refuse(err, &names, "does not end");
    }
    pthread_join(thread, NULL);
    enum status status = trial->status;
    if (status != STATUS_OK)
        *err = trial->err;
    trial_free(trial);
    return status;
}
