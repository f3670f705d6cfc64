#include "engine/engine_images.h"

#include <pthread.h>

#include "base/memory.h"

static bool are_possible(const struct box *box)
{
    for (int r = 0; r < box_rank_count(box); r++) {
        if (!packed_image_is_possible(box_device(box, r)))
            return false;
    }
    return true;
}

enum status engine_images_find(struct engine_images *out, const struct engine_room *room,
                               const struct checkpoint *checkpoint, struct error *err)
{
    const struct log_sink *log = &room->params->log;
    struct fingerprint fingerprint;
    struct error reason;
    *out = (struct engine_images){0};
    if (!room->params->caches_weights)
        return STATUS_OK;
    if (!are_possible(room->box)) {
        log_write(
            log, LOG_WARNING,
            "--weights-cache: a GPU's memory cannot be a file's, so its weights are read anew "
            "each time; leave the option out");
        return STATUS_OK;
    }
    TRY(fingerprint_files(&fingerprint, checkpoint, err));
    for (int r = 0; r < box_rank_count(room->box); r++) {
        struct weights_share share = engine_room_share(room, r);
        enum status status = weights_image_name(&out->of[r], &fingerprint, &share, &reason);
        if (status != STATUS_OK) {
            engine_images_deinit(out);
            log_write(log, LOG_WARNING, "--weights-cache: %s", reason.message);
            return STATUS_OK;
        }
        out->count = r + 1;
    }
    return STATUS_OK;
}

void engine_images_deinit(struct engine_images *images)
{
    for (int r = 0; r < images->count; r++)
        memory_free(images->of[r].path);
    *images = (struct engine_images){0};
}

const struct weights_image *engine_images_of(const struct engine_images *images, int rank)
{
    return rank < images->count ? &images->of[rank] : NULL;
}

/* ---- Leaving them ---------------------------------------------------------------------------- */

struct leaving {
    const struct engine_images *images;
    const struct weights *weights;
    const struct engine_params *params;
    uint64_t total;
    pthread_mutex_t lock; /* of all below: ranks write at the same time */
    uint64_t done;
    bool is_stopped;
    struct error failure; /* the first; "": none, and others are not told */
};

static enum status tell(void *context, uint64_t bytes, struct error *err)
{
    struct leaving *leaving = context;
    const struct engine_params *params = leaving->params;
    pthread_mutex_lock(&leaving->lock);
    leaving->done += bytes;
    if (!leaving->is_stopped && params->load_progress != NULL)
        leaving->is_stopped =
            params->load_progress(params->load_context, leaving->done, leaving->total) != 0;
    bool goes_on = !leaving->is_stopped && *leaving->failure.message == 0;
    pthread_mutex_unlock(&leaving->lock);
    return goes_on ? STATUS_OK
                   : error_set(err, STATUS_CANCELLED,
                               "leaving the packed weights in the cache was stopped");
}

/* A rank that cannot write ends it for all, but the box goes on. */
static enum status rank_leave(void *context, int rank, struct error *err)
{
    struct leaving *leaving = context;
    const struct packed_read_progress report = {.report = tell, .context = leaving};
    struct error reason;
    (void)err;
    if (leaving->weights[rank].is_mapped ||
        weights_image_write(&leaving->weights[rank], &leaving->images->of[rank], &report,
                            &reason) == STATUS_OK)
        return STATUS_OK;
    pthread_mutex_lock(&leaving->lock);
    if (*leaving->failure.message == 0)
        leaving->failure = reason;
    pthread_mutex_unlock(&leaving->lock);
    return STATUS_OK;
}

/* The load is none the worse. */
static enum status tell_failure(const struct leaving *leaving)
{
    log_write(&leaving->params->log, LOG_WARNING,
              "--weights-cache: %s; the next load packs the weights again",
              leaving->failure.message);
    return STATUS_OK;
}

enum status engine_images_leave(const struct engine_images *images, struct box *box,
                                const struct weights *weights, const struct engine_params *params,
                                struct error *err)
{
    struct leaving leaving = {
        .images = images, .weights = weights, .params = params, .lock = PTHREAD_MUTEX_INITIALIZER};
    for (int r = 0; r < images->count; r++) {
        leaving.total += weights[r].is_mapped ? 0 : weights_image_bytes(&weights[r]);
        log_write(&params->log, LOG_INFO, "--weights-cache: packed weights %s %s",
                  weights[r].is_mapped ? "are mapped from" : "will be left in", images->of[r].path);
    }
    if (leaving.total == 0)
        return STATUS_OK;
    if (packed_image_room(images->of[0].path, leaving.total, &leaving.failure) == STATUS_OK)
        *leaving.failure.message = 0;
    else
        return tell_failure(&leaving);
    TRY(box_run(box, rank_leave, &leaving, err));
    if (leaving.is_stopped)
        return error_set(err, STATUS_CANCELLED, "loading the weights was stopped");
    return *leaving.failure.message != 0 ? tell_failure(&leaving) : STATUS_OK;
}
