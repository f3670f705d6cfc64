/* Threads that take requests in turn and wait in pread: wherever io_uring may not be used. */
#include <errno.h>
#include <pthread.h>

#include "base/disk.h"
#include "base/memory.h"
#include "base/perturb.h"
#include "base/system.h"
#include "io/read_backend.h"

struct threads {
    pthread_mutex_t lock; /* of all that follows, up to `target` */
    pthread_cond_t has_request, has_result;
    struct read_request *requests; /* [capacity]: a ring */
    struct read_result *results;   /* [capacity]: a ring */
    int capacity;                  /* as many requests as a queue makes at a time */
    int request_first, request_count, result_first, result_count;
    bool is_over;
    struct read_target target; /* constant */
    pthread_t *threads;        /* [thread_count] */
    int thread_count;
};

static void *thread_main(void *context)
{
    struct threads *threads = context;
    pthread_mutex_lock(&threads->lock);
    for (;;) {
        while (!threads->is_over && threads->request_count == 0)
            pthread_cond_wait(&threads->has_request, &threads->lock);
        if (threads->is_over)
            break;
        struct read_request request = threads->requests[threads->request_first];
        threads->request_first = (threads->request_first + 1) % threads->capacity;
        threads->request_count--;
        pthread_mutex_unlock(&threads->lock);
        perturb();
        int fd = request.is_direct ? threads->target.direct_fd : threads->target.fd;
        ssize_t got = disk_read_at(fd, request.place, request.bytes, (off_t)request.offset);
        struct read_result result = {request.ticket, got < 0 ? -errno : (int)got};
        perturb();
        pthread_mutex_lock(&threads->lock);
        threads->results[(threads->result_first + threads->result_count++) % threads->capacity] =
            result;
        pthread_cond_signal(&threads->has_result);
    }
    pthread_mutex_unlock(&threads->lock);
    return NULL;
}

/* ---- Life ------------------------------------------------------------------------------------ */

static void release(struct threads *threads)
{
    pthread_cond_destroy(&threads->has_result);
    pthread_cond_destroy(&threads->has_request);
    pthread_mutex_destroy(&threads->lock);
    memory_free(threads->threads);
    memory_free(threads->results);
    memory_free(threads->requests);
    memory_free(threads);
}

/* A thread that waits in pread for ever cannot be ended: it is left alone, with what it uses. */
static void threads_close(void *backend, bool is_abandoned)
{
    struct threads *threads = backend;
    pthread_mutex_lock(&threads->lock);
    threads->is_over = true;
    pthread_cond_broadcast(&threads->has_request);
    pthread_mutex_unlock(&threads->lock);
    for (int t = 0; t < threads->thread_count; t++) {
        if (is_abandoned)
            pthread_detach(threads->threads[t]);
        else
            pthread_join(threads->threads[t], NULL);
    }
    if (!is_abandoned)
        release(threads);
}

static void locks_init(struct threads *threads)
{
    pthread_mutex_init(&threads->lock, NULL);
    pthread_cond_init(&threads->has_request, NULL);
    system_condition_init(&threads->has_result);
}

static enum status arrays_init(struct threads *threads, int thread_count, struct error *err)
{
    size_t capacity = (size_t)threads->capacity;
    TRY(memory_get((void **)&threads->requests, capacity, sizeof *threads->requests,
                   "threads that read", err));
    TRY(memory_get((void **)&threads->results, capacity, sizeof *threads->results,
                   "threads that read", err));
    return memory_get((void **)&threads->threads, (size_t)thread_count, sizeof *threads->threads,
                      "threads that read", err);
}

static enum status threads_open(void **out, const struct read_queue_params *params,
                                struct read_target *target, struct error *err)
{
    struct threads *threads;
    ASSERT(params->thread_count >= 1);
    TRY(memory_get((void **)&threads, 1, sizeof *threads, "threads that read", err));
    threads->target = *target;
    threads->capacity = target->request_count;
    locks_init(threads);
    enum status status = arrays_init(threads, params->thread_count, err);
    if (status != STATUS_OK) {
        release(threads);
        return status;
    }
    for (; threads->thread_count < params->thread_count; threads->thread_count++) {
        int failure =
            pthread_create(&threads->threads[threads->thread_count], NULL, thread_main, threads);
        if (failure != 0) {
            threads_close(threads, false);
            return error_set_errno(err, failure, "cannot start a thread that reads");
        }
    }
    *out = threads;
    return STATUS_OK;
}

/* ---- Requests -------------------------------------------------------------------------------- */

static int threads_begin(void *backend, const struct read_request *request)
{
    struct threads *threads = backend;
    pthread_mutex_lock(&threads->lock);
    ASSERT(threads->request_count < threads->capacity);
    threads->requests[(threads->request_first + threads->request_count++) % threads->capacity] =
        *request;
    pthread_cond_signal(&threads->has_request);
    pthread_mutex_unlock(&threads->lock);
    return 0;
}

static int threads_next(void *backend, struct read_result *out, double seconds)
{
    struct threads *threads = backend;
    struct timespec end = system_moment(seconds);
    pthread_mutex_lock(&threads->lock);
    while (threads->result_count == 0 && seconds > 0 &&
           pthread_cond_timedwait(&threads->has_result, &threads->lock, &end) == 0)
        ;
    int count = threads->result_count > 0;
    if (count > 0) {
        *out = threads->results[threads->result_first];
        threads->result_first = (threads->result_first + 1) % threads->capacity;
        threads->result_count--;
    }
    pthread_mutex_unlock(&threads->lock);
    return count;
}

const struct read_backend_ops read_threads = {threads_open, threads_close, threads_begin,
                                              threads_next};
