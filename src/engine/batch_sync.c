#include "engine/batch_sync.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <time.h>

#include "base/disk.h"
#include "base/memory.h"
#include "base/system.h"

struct batch_sync {
    int fds[BATCH_SYNC_FILES];
    double delay_seconds;
    pthread_t thread;
    /* Guards all that follows; never held during a sync, so that writing need not wait for one. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_dirty[BATCH_SYNC_FILES]; /* lines that are not known to be on the disk */
    double due;                      /* when they are to be synced; 0: there are none */
    bool is_stopping;
    int failure, failed_file;
};

/* ---- Syncing; the lock is held at both ends ------------------------------------------------ */

static void sync_file(struct batch_sync *sync, int file)
{
    sync->is_dirty[file] = false; /* a line that comes meanwhile makes it true again */
    pthread_mutex_unlock(&sync->lock);
    int failure = disk_sync(sync->fds[file]) == 0 ? 0 : errno;
    pthread_mutex_lock(&sync->lock);
    if (failure == 0)
        return;
    sync->is_dirty[file] = true;
    if (sync->failure == 0) {
        sync->failure = failure;
        sync->failed_file = file;
    }
}

static void sync_all(struct batch_sync *sync)
{
    sync->due = 0;
    for (int i = 0; i < BATCH_SYNC_FILES; i++) {
        if (sync->is_dirty[i])
            sync_file(sync, i);
    }
}

static void wait_until(struct batch_sync *sync, double due)
{
    struct timespec moment = {.tv_sec = (time_t)due};
    moment.tv_nsec = (long)((due - (double)moment.tv_sec) * 1e9);
    pthread_cond_timedwait(&sync->changed, &sync->lock, &moment);
}

static void *sync_main(void *argument)
{
    struct batch_sync *sync = argument;
    pthread_mutex_lock(&sync->lock);
    while (!sync->is_stopping && sync->failure == 0) {
        if (sync->due == 0)
            pthread_cond_wait(&sync->changed, &sync->lock);
        else if (system_seconds() < sync->due)
            wait_until(sync, sync->due);
        else
            sync_all(sync);
    }
    pthread_mutex_unlock(&sync->lock);
    return NULL;
}

/* ---- The writer's side --------------------------------------------------------------------- */

/* Signals are for the threads that were there before. */
static int start_thread(struct batch_sync *sync)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failure = pthread_create(&sync->thread, NULL, sync_main, sync);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failure;
}

static void destroy(struct batch_sync *sync)
{
    pthread_cond_destroy(&sync->changed);
    pthread_mutex_destroy(&sync->lock);
    memory_free(sync);
}

enum status batch_sync_start(struct batch_sync **out, const int fds[BATCH_SYNC_FILES],
                             double delay_seconds, struct error *err)
{
    void *memory;
    TRY(memory_get(&memory, 1, sizeof(struct batch_sync), "the batch writer", err));
    struct batch_sync *sync = memory;
    for (int i = 0; i < BATCH_SYNC_FILES; i++)
        sync->fds[i] = fds[i];
    sync->delay_seconds = delay_seconds;
    pthread_mutex_init(&sync->lock, NULL);
    system_condition_init(&sync->changed);
    int failure = start_thread(sync);
    if (failure != 0) {
        destroy(sync);
        return error_set_errno(err, failure, "cannot start the thread that syncs the output");
    }
    *out = sync;
    return STATUS_OK;
}

void batch_sync_note(struct batch_sync *sync, int file)
{
    if (sync == NULL || sync->fds[file] < 0)
        return;
    pthread_mutex_lock(&sync->lock);
    sync->is_dirty[file] = true;
    if (sync->due == 0) {
        sync->due = system_seconds() + sync->delay_seconds;
        pthread_cond_signal(&sync->changed);
    }
    pthread_mutex_unlock(&sync->lock);
}

int batch_sync_failure(struct batch_sync *sync, int *file)
{
    if (sync == NULL)
        return 0;
    pthread_mutex_lock(&sync->lock);
    int failure = sync->failure;
    *file = sync->failed_file;
    pthread_mutex_unlock(&sync->lock);
    return failure;
}

int batch_sync_stop(struct batch_sync *sync, int *file)
{
    if (sync == NULL)
        return 0;
    pthread_mutex_lock(&sync->lock);
    sync->is_stopping = true;
    pthread_cond_signal(&sync->changed);
    pthread_mutex_unlock(&sync->lock);
    pthread_join(sync->thread, NULL);
    pthread_mutex_lock(&sync->lock);
    sync_all(sync);
    pthread_mutex_unlock(&sync->lock);
    int failure = batch_sync_failure(sync, file);
    destroy(sync);
    return failure;
}
