#define _GNU_SOURCE
#include "io/read_queue.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/system.h"
#include "io/locked_file.h"
#include "io/read_backend.h"

const char *const read_backend_names[READ_BACKEND_COUNT] = {
    [READ_URING] = "io_uring", [READ_THREADS] = "threads", [READ_LOCKED] = "locked memory"};

static const struct read_backend_ops *const backends[READ_BACKEND_COUNT] = {
    [READ_URING] = &read_uring, [READ_THREADS] = &read_threads, [READ_LOCKED] = &read_locked};

/* What the system puts off is asked for again after so long. */
#define PAUSE_SECONDS 1e-3

/* Between two looks at the backend at most so much of the patience passes: the process may have
 * been stopped, or the machine asleep, or the caller away. */
#define LOOKS_OF_PATIENCE 10
#define LOOK_SECONDS_MAX  1.0

enum slot_state {
    SLOT_FREE,    /* the buffer is the caller's */
    SLOT_WAITING, /* a request is to begin */
    SLOT_FLYING,  /* a request is the backend's */
    SLOT_DONE     /* to be told of */
};

/* A buffer and the read into it. */
struct slot {
    enum slot_state state;
    uint64_t id, offset, ticket;
    size_t bytes, got;
    int failure;    /* errno; 0: none */
    bool has_ended; /* the file, before the read */
    bool is_direct; /* the request, now */
    /* By the queue's clock: when something last came of the read, or it was first put off after
     * that. By system_seconds: before when it does not go on (0: it was not put off). */
    double since, not_before;
};

struct read_queue {
    struct read_queue_params params;
    const struct read_backend_ops *ops;
    void *backend;
    struct read_target target;
    char *own_buffers;  /* NULL: the caller's */
    char *first_page;   /* where the first read goes, which nobody asked for */
    struct slot *slots; /* [buffer_count + 1]: the last is that of the first page */
    int slot_count;
    uint64_t next_ticket;
    bool is_broken;   /* the backend tells of no more requests */
    bool is_hung;     /* it had not given up requests in the time for that */
    double clock;     /* seconds in which somebody looked: what patience is counted in */
    double looked_at; /* system_seconds */
    struct read_queue_use use;
    struct read_queue *next_abandoned;
};

static double least(double a, double b)
{
    return a < b ? a : b;
}

/* ---- Requests -------------------------------------------------------------------------------- */

/* NULL where the bytes lie in the locked file. */
static char *place_of(const struct read_queue *queue, int s)
{
    if (queue->params.locked != NULL)
        return NULL;
    return s == queue->params.buffer_count
               ? queue->first_page
               : queue->target.buffers + (size_t)s * queue->params.buffer_bytes;
}

void *read_queue_buffer(const struct read_queue *queue, int buffer)
{
    ASSERT(buffer >= 0 && buffer < queue->params.buffer_count);
    return place_of(queue, buffer);
}

/* Past the page cache only what is aligned goes: not what is left of a read that stopped in the
 * middle of a page. */
static bool may_be_direct(const struct read_queue *queue, const struct read_request *request)
{
    return queue->use.is_direct &&
           ((uintptr_t)request->place | request->bytes | request->offset) % READ_ALIGNMENT == 0;
}

static void put_off(struct read_queue *queue, struct slot *slot)
{
    if (slot->not_before == 0)
        slot->since = queue->clock;
    slot->state = SLOT_WAITING;
    slot->not_before = system_seconds() + PAUSE_SECONDS;
    queue->use.again_count++;
}

static void begin(struct read_queue *queue, int s)
{
    struct slot *slot = &queue->slots[s];
    struct read_request request = {
        .ticket = ++queue->next_ticket,
        .place = place_of(queue, s),
        .bytes = slot->bytes - slot->got,
        .offset = slot->offset + slot->got,
        .buffer = s < queue->params.buffer_count ? s : -1,
    };
    if (request.place != NULL)
        request.place += slot->got;
    request.is_direct = may_be_direct(queue, &request);
    int failure = queue->ops->begin(queue->backend, &request);
    if (failure == -EAGAIN || failure == -EBUSY || failure == -EINTR) {
        put_off(queue, slot);
        return;
    }
    if (failure != 0) {
        slot->failure = -failure;
        slot->state = SLOT_DONE;
        return;
    }
    slot->ticket = request.ticket;
    slot->is_direct = request.is_direct;
    slot->state = SLOT_FLYING;
    queue->use.request_count++;
    queue->use.direct_count += request.is_direct;
    queue->use.registered_count += queue->use.is_registered && request.buffer >= 0;
}

static void submit(struct read_queue *queue, int s, uint64_t id, uint64_t offset, size_t bytes)
{
    queue->slots[s] = (struct slot){
        .state = SLOT_WAITING, .id = id, .offset = offset, .bytes = bytes, .since = queue->clock};
    begin(queue, s);
}

void read_queue_submit(struct read_queue *queue, uint64_t id, int buffer, uint64_t offset,
                       size_t bytes)
{
    ASSERT(buffer >= 0 && buffer < queue->params.buffer_count);
    ASSERT(bytes >= 1 && bytes <= queue->params.buffer_bytes);
    ASSERT(queue->slots[buffer].state == SLOT_FREE);
    ASSERT(queue->params.locked == NULL || locked_file_has(queue->params.locked, offset, bytes));
    submit(queue, buffer, id, offset, bytes);
}

/* ---- Results --------------------------------------------------------------------------------- */

static void note_cached(struct read_queue *queue, int failure)
{
    queue->use.is_direct = queue->use.note_is_usual = queue->target.note_is_usual = false;
    char *note = queue->target.note;
    size_t length = strlen(note);
    snprintf(note + length, sizeof queue->target.note - length,
             "%sthe file is read through the page cache, because %s O_DIRECT (%s)",
             length > 0 ? "; " : "",
             failure == EINVAL || failure == EOPNOTSUPP ? "its file system refuses"
                                                        : "it could not be opened anew with",
             strerror(failure));
}

/* A request has given `count` bytes or -errno: the read is complete, failed, or goes on. */
static void advance(struct read_queue *queue, struct slot *slot, int count)
{
    slot->state = SLOT_WAITING;
    if (count == -EAGAIN || count == -EINTR) {
        put_off(queue, slot);
        return;
    }
    if (count == -EINVAL && slot->is_direct) {
        /* O_DIRECT was taken when the file was opened, and is refused now. */
        if (queue->use.is_direct)
            note_cached(queue, EINVAL);
        return;
    }
    bool is_sound = count > 0 && (size_t)count <= slot->bytes - slot->got;
    if (is_sound) {
        slot->got += (size_t)count;
        slot->since = queue->clock;
        slot->not_before = 0;
    } else {
        slot->has_ended = count == 0;
        slot->failure = count < 0 ? -count : EIO; /* EIO: more bytes than there is room for */
    }
    if (!is_sound || slot->got == slot->bytes)
        slot->state = SLOT_DONE;
    else
        queue->use.again_count++;
}

static void take(struct read_queue *queue, const struct read_result *result)
{
    for (int s = 0; s < queue->slot_count; s++) {
        struct slot *slot = &queue->slots[s];
        if (slot->state == SLOT_FLYING && slot->ticket == result->ticket) {
            advance(queue, slot, result->count);
            return;
        }
    }
    queue->use.dropped_count++;
}

/* ---- Waiting --------------------------------------------------------------------------------- */

/* Begins what waits, where it is time. Whether any request is the backend's. */
static bool begin_waiting(struct read_queue *queue)
{
    bool is_flying = false;
    for (int s = 0; s < queue->slot_count; s++) {
        struct slot *slot = &queue->slots[s];
        if (slot->state == SLOT_WAITING && system_seconds() >= slot->not_before)
            begin(queue, s);
        is_flying = is_flying || slot->state == SLOT_FLYING;
    }
    return is_flying;
}

static int find(const struct read_queue *queue, enum slot_state state)
{
    for (int s = 0; s < queue->slot_count; s++) {
        if (queue->slots[s].state == state)
            return s;
    }
    return -1;
}

/* The read of which nothing has come for the longest time; -1: there is none. */
static int find_oldest(const struct read_queue *queue)
{
    int oldest = -1;
    for (int s = 0; s < queue->slot_count; s++) {
        const struct slot *slot = &queue->slots[s];
        if ((slot->state == SLOT_WAITING || slot->state == SLOT_FLYING) &&
            (oldest < 0 || slot->since < queue->slots[oldest].since))
            oldest = s;
    }
    return oldest;
}

static void sleep_for(double seconds)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)(1e9 * seconds)}, NULL);
}

static double look_seconds(const struct read_queue *queue)
{
    return least(queue->params.patience_seconds / LOOKS_OF_PATIENCE, LOOK_SECONDS_MAX);
}

static void tick(struct read_queue *queue)
{
    double now = system_seconds();
    queue->clock += least(now - queue->looked_at, look_seconds(queue));
    queue->looked_at = now;
}

/* Takes the next result of the backend: 1; 0 when there is none within `seconds`, or a while;
 * -errno.
 */
static int look(struct read_queue *queue, double seconds)
{
    struct read_result result;
    int count = queue->ops->next(queue->backend, &result, least(seconds, look_seconds(queue)));
    tick(queue);
    if (count == -EINTR || count == -EAGAIN)
        return 0;
    if (count > 0)
        take(queue, &result);
    queue->is_broken = count < 0;
    return count;
}

/* Brings the reads on, waiting for at most `seconds`: as `look`. */
static int step(struct read_queue *queue, double seconds)
{
    int count = 0;
    bool is_flying = begin_waiting(queue);
    if (find(queue, SLOT_DONE) >= 0)
        return 1;
    if (find(queue, SLOT_WAITING) >= 0)
        seconds = least(seconds, PAUSE_SECONDS);
    if (is_flying) {
        count = look(queue, seconds);
    } else {
        sleep_for(seconds);
        tick(queue);
    }
    begin_waiting(queue);
    return count;
}

/* The sentence about a read that is done; STATUS_OK where it has all its bytes. */
static enum status judge(const struct read_queue *queue, const struct slot *slot, struct error *err)
{
    const char *path = queue->params.path;
    uint64_t at = slot->offset + slot->got;
    if (slot->failure == 0)
        return STATUS_OK;
    if (slot->has_ended)
        return file_ended_early(queue->target.fd, path, at, slot->bytes - slot->got, err);
    return error_set_errno(err, slot->failure, "cannot read %s at byte %llu", path,
                           (unsigned long long)at);
}

static enum status is_stuck(const struct read_queue *queue, const struct slot *slot,
                            struct error *err)
{
    return error_set(
        err, STATUS_IO,
        "cannot read %s at byte %llu: nothing has come for %g seconds; the disk or the "
        "server of the file system hangs",
        queue->params.path, (unsigned long long)(slot->offset + slot->got),
        queue->params.patience_seconds);
}

/* The read that is done, if there is one. */
static bool find_done(struct read_queue *queue, struct read_done *out, enum status *status,
                      struct error *err)
{
    int done = find(queue, SLOT_DONE);
    if (done < 0)
        return false;
    struct slot *slot = &queue->slots[done];
    slot->state = SLOT_FREE;
    *out = (struct read_done){slot->id, done,
                              queue->params.locked != NULL
                                  ? locked_file_at(queue->params.locked, slot->offset)
                                  : place_of(queue, done)};
    *status = judge(queue, slot, err);
    queue->use.read_count += *status == STATUS_OK;
    queue->use.read_bytes += *status == STATUS_OK ? slot->bytes : 0;
    return true;
}

enum status read_queue_wait(struct read_queue *queue, struct read_done *out, double seconds,
                            struct error *err)
{
    double patience = queue->params.patience_seconds, end = system_seconds() + seconds;
    enum status status = STATUS_OK;
    while (!find_done(queue, out, &status, err)) {
        int oldest = find_oldest(queue);
        *out = (struct read_done){.buffer = -1};
        if (oldest < 0)
            return STATUS_OK;
        const struct slot *slot = &queue->slots[oldest];
        double left = least(end - system_seconds(), slot->since + patience - queue->clock);
        int count = step(queue, left > 0 ? left : 0);
        if (count < 0)
            return error_set_errno(err, -count, "cannot wait for reads of %s", queue->params.path);
        if (count == 0 && find(queue, SLOT_DONE) < 0) {
            out->id = slot->id;
            if (queue->clock - slot->since >= patience)
                return is_stuck(queue, slot, err);
            if (system_seconds() >= end)
                return STATUS_OK;
        }
    }
    return status;
}

/* ---- Life ------------------------------------------------------------------------------------ */

/* Requests that have not begun are not begun any more; those of the backend are waited for, once:
 * then what is there is taken. */
bool read_queue_cancel(struct read_queue *queue)
{
    double patience = queue->is_hung ? 0 : queue->params.patience_seconds;
    for (double end = queue->clock + patience;;) {
        for (int s = 0; s < queue->slot_count; s++) {
            if (queue->slots[s].state != SLOT_FLYING)
                queue->slots[s].state = SLOT_FREE;
        }
        if (find(queue, SLOT_FLYING) < 0)
            return true;
        if (queue->is_broken)
            return false;
        if (look(queue, end - queue->clock) > 0) {
            end = queue->clock + patience;
        } else if (queue->clock >= end) {
            queue->is_hung = true;
            return false;
        }
    }
}

/* What reads that never end may still write to: kept, and kept findable. */
static _Atomic(struct read_queue *) abandoned;

static void release(struct read_queue *queue)
{
    if (queue->target.fd >= 0)
        close(queue->target.fd);
    if (queue->target.direct_fd >= 0)
        close(queue->target.direct_fd);
    memory_pages_free(queue->first_page, READ_ALIGNMENT);
    memory_pages_free(queue->own_buffers,
                      (size_t)queue->params.buffer_count * queue->params.buffer_bytes);
    memory_free(queue->slots);
    memory_free(queue);
}

bool read_queue_destroy(struct read_queue *queue)
{
    if (queue == NULL)
        return true;
    bool is_idle = read_queue_cancel(queue);
    queue->ops->close(queue->backend, !is_idle);
    if (is_idle) {
        release(queue);
        return true;
    }
    queue->next_abandoned = atomic_load(&abandoned);
    while (!atomic_compare_exchange_weak(&abandoned, &queue->next_abandoned, queue))
        ;
    return false;
}

/* The same file, whatever has its name by now. */
static void open_direct(struct read_queue *queue)
{
    char name[40];
    if (!queue->params.avoids_cache)
        return;
    snprintf(name, sizeof name, "/proc/self/fd/%d", queue->params.fd);
    queue->target.direct_fd = open(name, O_RDONLY | O_CLOEXEC | O_DIRECT);
    queue->use.is_direct = queue->target.direct_fd >= 0;
    if (!queue->use.is_direct)
        note_cached(queue, errno);
}

static enum status target_init(struct read_queue *queue, struct error *err)
{
    const struct read_queue_params *params = &queue->params;
    queue->target = (struct read_target){
        .fd = -1, .direct_fd = -1, .buffers = params->buffers, .request_count = queue->slot_count};
    if (params->locked != NULL)
        return STATUS_OK;
    if (params->buffers == NULL) {
        TRY(memory_pages_get((void **)&queue->own_buffers,
                             (size_t)params->buffer_count * params->buffer_bytes, "reading a file",
                             err));
        queue->target.buffers = queue->own_buffers;
    }
    TRY(memory_pages_get((void **)&queue->first_page, READ_ALIGNMENT, "reading a file", err));
    queue->target.fd = fcntl(params->fd, F_DUPFD_CLOEXEC, 0);
    if (queue->target.fd < 0)
        return error_set_errno(err, errno, "cannot open %s again", params->path);
    open_direct(queue);
    return STATUS_OK;
}

/* Proves that the backend works, and shows whether the file can be read past the page cache. */
static enum status read_first_page(struct read_queue *queue, struct error *err)
{
    struct read_done done;
    int s = queue->params.buffer_count;
    if (queue->params.locked != NULL)
        return STATUS_OK;
    submit(queue, s, 0, 0, READ_ALIGNMENT);
    enum status status = read_queue_wait(queue, &done, queue->params.patience_seconds, err);
    if (status == STATUS_OK && done.buffer != s)
        return is_stuck(queue, &queue->slots[s], err);
    queue->use.read_count = queue->use.read_bytes = 0;
    queue->use.request_count = queue->use.direct_count = queue->use.again_count = 0;
    return status == STATUS_FORMAT ? STATUS_OK : status; /* a file of less than a page */
}

/* All that failed while io_uring was set up or tried speaks against it, not against the file: that
 * is read by threads then, whose sentence will tell. */
static enum status not_usable(const struct read_queue_params *params, enum status status,
                              struct error *err)
{
    if (params->backend != READ_URING || status == STATUS_OK || status == STATUS_UNSUPPORTED)
        return status;
    error_prefix(err, status, "io_uring cannot be used");
    if (err != NULL)
        err->status = STATUS_UNSUPPORTED;
    return STATUS_UNSUPPORTED;
}

enum status read_queue_create(struct read_queue **out, const struct read_queue_params *params,
                              struct error *err)
{
    struct read_queue *queue;
    enum status status;
    ASSERT(params->buffer_count >= 1 && params->buffer_count <= READ_BUFFERS_MAX);
    ASSERT(params->buffer_bytes >= READ_ALIGNMENT && params->buffer_bytes % READ_ALIGNMENT == 0);
    ASSERT(params->buffer_bytes <= READ_BUFFER_BYTES_MAX);
    ASSERT((params->backend == READ_LOCKED) == (params->locked != NULL));
    ASSERT((uintptr_t)params->buffers % READ_ALIGNMENT == 0);
    TRY(memory_get((void **)&queue, 1, sizeof *queue, "a queue of reads", err));
    queue->params = *params;
    queue->ops = backends[params->backend];
    queue->target.fd = queue->target.direct_fd = -1;
    queue->slot_count = params->buffer_count + 1;
    queue->looked_at = system_seconds();
    queue->use = (struct read_queue_use){.backend = params->backend, .note = queue->target.note};
    TRY_GOTO(memory_get((void **)&queue->slots, (size_t)queue->slot_count, sizeof *queue->slots,
                        "a queue of reads", err),
             failed);
    TRY_GOTO(target_init(queue, err), failed);
    TRY_GOTO(queue->ops->open(&queue->backend, params, &queue->target, err), failed);
    queue->use.is_registered = queue->target.is_registered;
    queue->use.note_is_usual = queue->target.note_is_usual;
    status = read_first_page(queue, err);
    if (status != STATUS_OK) {
        read_queue_destroy(queue);
        return not_usable(params, status, err);
    }
    *out = queue;
    return STATUS_OK;

failed:
    release(queue);
    return status;
}

struct read_queue_use read_queue_use_get(const struct read_queue *queue)
{
    return queue->use;
}
