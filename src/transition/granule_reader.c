#include "transition/granule_reader.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/perturb.h"
#include "io/locked_file.h"

/* In flight on each rank while others are held: what a disk of 4.5 GB/s needs, in reads of any size
 * from 128 KiB on (bench/read.c); and two granules at least, so that there always is a next one. */
#define FLYING_BYTES ((uint64_t)4 << 20)
#define FLYING_MIN   2
#define FLYING_MAX   16

#define THREADS_MAX 8 /* of each rank, that wait for the disk */

/* Longer than a disk that spins up takes, or a server that starts again. Where others wait for the
 * rank they give up before (comm_domain_params). */
#define PATIENCE_SECONDS 60

/* A list that is read. */
struct reading {
    struct granule_list list;
    int64_t asked, come; /* granules: asked for, and given to the caller */
};

struct asked {
    struct granule granule; /* its bytes are not there yet */
    bool is_then;           /* of the list that follows */
};

struct granule_reader {
    const struct backup *backup;
    struct device *device;
    struct read_queue *queue;
    void *memory; /* of the host's pool; the ring begins at the first page in it. NULL: none */
    int buffer_count;
    int *free_buffers; /* [buffer_count], of which free_count are */
    int free_count;
    struct asked *asked;      /* [buffer_count] for what a buffer is */
    bool is_stuck;            /* the kernel has buffers for ever */
    struct reading now, then; /* then: nothing is asked for before all of now is */
    /* That have come and are not given yet; those of `then` are not until it begins. */
    struct granule *there; /* [buffer_count], newest last */
    int there_count;
};

struct granule_readers {
    struct granule_reader_params params;
    int rank_count;
    enum read_tier tier;
    char tier_reason[160]; /* why not a better one; "" */
    struct locked_file *locked;
    bool is_pinned;               /* its memory, by the first rank's device for all */
    struct granule_reader *ranks; /* [rank_count] */
    char source[GRANULE_SOURCE_BYTES];
};

/* ---- Sizes ----------------------------------------------------------------------------------- */

static uint64_t buffer_bytes_of(const struct backup_form *form)
{
    return (uint64_t)backup_granule_span_max(form);
}

static int buffer_count_of(const struct backup_form *form, int hold_count)
{
    uint64_t bytes = buffer_bytes_of(form), flying = (FLYING_BYTES + bytes - 1) / bytes;
    return hold_count + (int)(flying < FLYING_MIN   ? FLYING_MIN
                              : flying > FLYING_MAX ? FLYING_MAX
                                                    : flying);
}

uint64_t granule_reader_bytes(const struct backup_form *form, int hold_count)
{
    return (uint64_t)buffer_count_of(form, hold_count) * buffer_bytes_of(form) + READ_ALIGNMENT;
}

/* ---- Where the bytes come from --------------------------------------------------------------- */

struct load {
    struct granule_readers *readers;
    enum status statuses[COMM_RANKS_MAX];
    struct error errors[COMM_RANKS_MAX];
};

/* A share that cannot be read is no failure of the box. */
static enum status load_share(void *context, int rank, struct error *err)
{
    struct load *load = context;
    (void)err;
    load->statuses[rank] = locked_file_load(load->readers->locked, rank, load->readers->rank_count,
                                            &load->errors[rank]);
    return STATUS_OK;
}

static struct device *pinner(const struct granule_readers *readers)
{
    return box_device(readers->params.box, 0);
}

static void locked_put(struct granule_readers *readers)
{
    if (readers->locked == NULL)
        return;
    if (!readers->is_pinned || pinner(readers)->ops->host_memory_unpin(
                                   pinner(readers), locked_file_memory(readers->locked)))
        locked_file_destroy(readers->locked);
    readers->locked = NULL;
    readers->is_pinned = false;
}

/* Copies to a GPU from what is locked alone would go through memory of the driver's. */
static enum status locked_pin(struct granule_readers *readers, struct error *err)
{
    TRY(pinner(readers)->ops->host_memory_pin(pinner(readers), locked_file_memory(readers->locked),
                                              (size_t)locked_file_bytes(readers->locked),
                                              "the backup", err));
    readers->is_pinned = true;
    return STATUS_OK;
}

/* Any rank may copy any of it. */
static struct numa_nodes nodes_of(const struct granule_readers *readers)
{
    struct numa_nodes nodes = {{0}};
    for (int r = 0; r < readers->rank_count; r++) {
        const struct device *device = box_device(readers->params.box, r);
        if (device->ops->host_node != NULL)
            numa_nodes_add(&nodes, device->ops->host_node(device));
    }
    return nodes;
}

/* All granules in locked memory; `cause` says why not. What it returns is of the box. */
static enum status locked_get(struct granule_readers *readers, uint64_t offset, uint64_t bytes,
                              bool *has, struct error *cause, struct error *err)
{
    const struct backup *backup = readers->params.backup;
    struct load load = {.readers = readers};
    *has = false;
    const struct locked_file_params params = {.fd = backup_fd(backup),
                                              .path = backup_path(backup),
                                              .offset = offset,
                                              .bytes = bytes,
                                              .nodes = nodes_of(readers)};
    if (locked_file_create(&readers->locked, &params, cause) != STATUS_OK)
        return STATUS_OK;
    if (locked_pin(readers, cause) != STATUS_OK) {
        locked_put(readers);
        return STATUS_OK;
    }
    log_write(&readers->params.log, LOG_INFO,
              "reading the INT4 backup into locked memory, for upload: %llu MiB",
              (unsigned long long)bytes >> 20);
    TRY(box_run(readers->params.box, load_share, &load, err));
    *has = true;
    for (int r = readers->rank_count - 1; r >= 0; r--) {
        if (load.statuses[r] == STATUS_OK)
            continue;
        *has = false;
        *cause = load.errors[r];
    }
    if (!*has)
        locked_put(readers);
    return STATUS_OK;
}

/* What is to be locked and cannot be is left to the page cache, for which there is room, too. */
static enum status tier_choose(struct granule_readers *readers, struct error *err)
{
    const struct granule_reader_params *params = &readers->params;
    uint64_t offset = backup_granule_offset(params->backup, 0);
    const struct read_tier_facts facts = {
        .bytes = backup_file_bytes(params->backup) - offset,
        .memory_available = params->memory_available,
        .memory_lockable = params->memory_lockable,
    };
    struct error cause = {.message = "what may be read only once is not locked"};
    bool has = false;
    readers->tier = read_tier_choose(&facts, readers->tier_reason, sizeof readers->tier_reason);
    if (readers->tier != TIER_LOCKED)
        return STATUS_OK;
    if (params->is_sure)
        TRY(locked_get(readers, offset, facts.bytes, &has, &cause, err));
    if (!has) {
        readers->tier = TIER_CACHED;
        snprintf(readers->tier_reason, sizeof readers->tier_reason, "%.150s", cause.message);
    }
    return STATUS_OK;
}

/* ---- Queues ---------------------------------------------------------------------------------- */

static void queue_close(struct granule_reader *reader)
{
    /* What the kernel may still write to stays. */
    if (read_queue_destroy(reader->queue))
        reader->device->ops->host_memory_free(reader->device, reader->memory);
    reader->queue = NULL;
    reader->memory = NULL;
}

static enum status queue_open(struct granule_readers *readers, int rank, enum read_backend backend,
                              struct error *err)
{
    const struct granule_reader_params *params = &readers->params;
    struct granule_reader *reader = &readers->ranks[rank];
    struct read_queue_params queue = {
        .backend = backend,
        .fd = backup_fd(params->backup),
        .path = backup_path(params->backup),
        .buffer_count = reader->buffer_count,
        .buffer_bytes = buffer_bytes_of(backup_form(params->backup)),
        .avoids_cache = readers->tier == TIER_DISK,
        .thread_count = reader->buffer_count < THREADS_MAX ? reader->buffer_count : THREADS_MAX,
        .patience_seconds = PATIENCE_SECONDS,
        .locked = readers->locked,
        .uring = params->uring,
    };
    if (backend != READ_LOCKED) {
        TRY(reader->device->ops->host_memory_get(
            reader->device, &reader->memory,
            granule_reader_bytes(backup_form(params->backup), params->hold_count),
            "reading the backup", err));
        uintptr_t start = (uintptr_t)reader->memory + READ_ALIGNMENT - 1;
        queue.buffers = (void *)(start - start % READ_ALIGNMENT);
    }
    return read_queue_create(&reader->queue, &queue, err);
}

static enum status queues_open(struct granule_readers *readers, enum read_backend backend,
                               struct error *err)
{
    enum status status = STATUS_OK;
    for (int r = 0; r < readers->rank_count && status == STATUS_OK; r++)
        status = queue_open(readers, r, backend, err);
    for (int r = 0; r < readers->rank_count && status != STATUS_OK; r++)
        queue_close(&readers->ranks[r]);
    return status;
}

/* By io_uring on all ranks, or by threads on all. */
static enum status queues_open_alike(struct granule_readers *readers, struct error *err)
{
    struct error cause;
    if (readers->tier == TIER_LOCKED)
        return queues_open(readers, READ_LOCKED, err);
    enum status status = queues_open(readers, READ_URING, &cause);
    if (status == STATUS_UNSUPPORTED) {
        log_write(&readers->params.log, readers->params.is_sure ? LOG_WARNING : LOG_DEBUG,
                  "%s; the INT4 backup is read by threads", cause.message);
        return queues_open(readers, READ_THREADS, err);
    }
    if (status != STATUS_OK && err != NULL)
        *err = cause;
    return status;
}

/* ---- Life ------------------------------------------------------------------------------------ */

static enum status reader_init(struct granule_reader *reader, struct device *device,
                               const struct granule_reader_params *params, struct error *err)
{
    const char *what = "reading the backup";
    reader->backup = params->backup;
    reader->device = device;
    reader->buffer_count = buffer_count_of(backup_form(params->backup), params->hold_count);
    TRY(memory_get((void **)&reader->free_buffers, (size_t)reader->buffer_count,
                   sizeof *reader->free_buffers, what, err));
    TRY(memory_get((void **)&reader->there, (size_t)reader->buffer_count, sizeof *reader->there,
                   what, err));
    return memory_get((void **)&reader->asked, (size_t)reader->buffer_count, sizeof *reader->asked,
                      what, err);
}

static void source_format(struct granule_readers *readers)
{
    struct read_queue_use use = granule_readers_use(readers);
    const char *through =
        readers->tier == TIER_DISK && !use.is_direct ? " through the page cache" : "";
    if (readers->tier == TIER_LOCKED)
        snprintf(readers->source, sizeof readers->source, "%s", read_tier_names[TIER_LOCKED]);
    else
        snprintf(readers->source, sizeof readers->source, "%s%s, by %s%s",
                 read_tier_names[readers->tier], through, read_backend_names[use.backend],
                 use.is_direct ? ", O_DIRECT" : "");
}

static void tell(const struct granule_readers *readers)
{
    const char *reason = readers->tier_reason;
    struct read_queue_use use = granule_readers_use(readers);
    bool warns = readers->params.is_sure && !use.note_is_usual;
    if (use.note[0] != 0)
        log_write(&readers->params.log, warns ? LOG_WARNING : LOG_DEBUG,
                  "reading the INT4 backup: %s", use.note);
    if (readers->tier == TIER_LOCKED)
        return; /* it was told before it was read */
    log_write(&readers->params.log, readers->params.is_sure ? LOG_INFO : LOG_DEBUG,
              "upload reads the INT4 backup from: %s%s%s%s", readers->source,
              reason[0] != 0 ? " (" : "", reason, reason[0] != 0 ? ")" : "");
}

static enum status readers_fill(struct granule_readers *readers, struct error *err)
{
    const struct granule_reader_params *params = &readers->params;
    if (buffer_bytes_of(backup_form(params->backup)) > READ_BUFFER_BYTES_MAX)
        return error_set(err, STATUS_UNSUPPORTED,
                         "upload: a granule of %s takes %llu bytes, and a read at most %zu",
                         backup_path(params->backup),
                         (unsigned long long)buffer_bytes_of(backup_form(params->backup)),
                         READ_BUFFER_BYTES_MAX);
    TRY(memory_get((void **)&readers->ranks, (size_t)readers->rank_count, sizeof *readers->ranks,
                   "reading the backup", err));
    for (int r = 0; r < readers->rank_count; r++)
        TRY(reader_init(&readers->ranks[r], box_device(params->box, r), params, err));
    TRY(tier_choose(readers, err));
    TRY(queues_open_alike(readers, err));
    for (int r = 0; r < readers->rank_count; r++)
        granule_reader_stop(&readers->ranks[r]);
    source_format(readers);
    tell(readers);
    return STATUS_OK;
}

enum status granule_readers_open(struct granule_readers **out,
                                 const struct granule_reader_params *params, struct error *err)
{
    struct granule_readers *readers;
    TRY(memory_get((void **)&readers, 1, sizeof *readers, "reading the backup", err));
    readers->params = *params;
    readers->rank_count = box_rank_count(params->box);
    enum status status = readers_fill(readers, err);
    if (status != STATUS_OK) {
        granule_readers_close(readers);
        return status;
    }
    *out = readers;
    return STATUS_OK;
}

void granule_readers_close(struct granule_readers *readers)
{
    if (readers == NULL)
        return;
    for (int r = 0; readers->ranks != NULL && r < readers->rank_count; r++) {
        struct granule_reader *reader = &readers->ranks[r];
        if (reader->device != NULL)
            queue_close(reader);
        memory_free(reader->asked);
        memory_free(reader->there);
        memory_free(reader->free_buffers);
    }
    memory_free(readers->ranks);
    locked_put(readers);
    memory_free(readers);
}

struct granule_reader *granule_reader_of(const struct granule_readers *readers, int rank)
{
    return &readers->ranks[rank];
}

struct read_queue_use granule_readers_use(const struct granule_readers *readers)
{
    struct read_queue_use use = read_queue_use_get(readers->ranks[0].queue);
    for (int r = 1; r < readers->rank_count; r++) {
        struct read_queue_use of = read_queue_use_get(readers->ranks[r].queue);
        use.is_direct = use.is_direct && of.is_direct;
        use.is_registered = use.is_registered && of.is_registered;
        if (use.note[0] == 0 || (use.note_is_usual && of.note[0] != 0)) {
            use.note = of.note;
            use.note_is_usual = of.note_is_usual;
        }
        use.read_count += of.read_count;
        use.read_bytes += of.read_bytes;
        use.request_count += of.request_count;
        use.direct_count += of.direct_count;
        use.registered_count += of.registered_count;
        use.again_count += of.again_count;
        use.dropped_count += of.dropped_count;
    }
    return use;
}

enum read_tier granule_readers_tier(const struct granule_readers *readers)
{
    return readers->tier;
}

void granule_readers_source(char out[GRANULE_SOURCE_BYTES], const struct granule_readers *readers)
{
    memcpy(out, readers->source, GRANULE_SOURCE_BYTES);
}

/* ---- Reading --------------------------------------------------------------------------------- */

/* Reads the next granule of a list into a free buffer. */
static void granule_ask(struct granule_reader *reader, struct reading *reading)
{
    int buffer = reader->free_buffers[--reader->free_count];
    int64_t i = reading->asked++, number = reading->list.first + reading->list.numbers[i];
    reader->asked[buffer] = (struct asked){
        .granule = {.i = i,
                    .number = number,
                    .buffer = buffer,
                    .asked = record_mark(),
                    .asked_ns = record_now()},
        .is_then = reading == &reader->then,
    };
    read_queue_submit(reader->queue, (uint64_t)number, buffer,
                      backup_granule_offset(reader->backup, number),
                      (size_t)backup_granule_bytes(reader->backup, number));
}

/* Whatever is free is read into. What is held is of `now`, and so are the buffers that come free
 * until all of it is asked for: `then` takes nothing that `now` waits for. */
static void read_ahead(struct granule_reader *reader)
{
    while (reader->free_count > 0 && reader->now.asked < reader->now.list.count)
        granule_ask(reader, &reader->now);
    while (reader->free_count > 0 && reader->then.asked < reader->then.list.count)
        granule_ask(reader, &reader->then);
}

void granule_reader_stop(struct granule_reader *reader)
{
    reader->now = reader->then = (struct reading){.list = {.count = 0}};
    reader->there_count = 0;
    if (!reader->is_stuck)
        reader->is_stuck = !read_queue_cancel(reader->queue);
    for (int b = 0; b < reader->buffer_count; b++)
        reader->free_buffers[b] = b;
    reader->free_count = reader->buffer_count;
}

/* That all of the list before it has come and been released. */
static bool does_follow(const struct granule_reader *reader, const struct granule_list *list)
{
    const struct granule_list *then = &reader->then.list;
    int64_t read = reader->then.asked;
    return reader->now.come == reader->now.list.count && then->count > 0 &&
           then->numbers == list->numbers && then->count == list->count &&
           then->first == list->first && reader->free_count + read == reader->buffer_count;
}

enum status granule_reader_begin(struct granule_reader *reader, const struct granule_list *list,
                                 struct error *err)
{
    if (does_follow(reader, list)) {
        reader->now = reader->then;
        reader->then = (struct reading){.list = {.count = 0}};
        for (int b = 0; b < reader->buffer_count; b++)
            reader->asked[b].is_then = false;
    } else {
        granule_reader_stop(reader);
        reader->now.list = *list;
    }
    if (reader->is_stuck)
        return error_set(err, STATUS_IO,
                         "%s cannot be read any more: an earlier read of it has not ended; the "
                         "disk or the server of the file system hangs",
                         backup_path(reader->backup));
    read_ahead(reader);
    return STATUS_OK;
}

void granule_reader_follow(struct granule_reader *reader, const struct granule_list *list)
{
    if (reader->is_stuck)
        return;
    ASSERT(reader->then.asked == 0);
    reader->then.list = *list;
    read_ahead(reader);
}

/* One of the list that is read now. */
static bool there_take(struct granule *out, struct granule_reader *reader)
{
    struct granule *there = reader->there;
    for (int i = 0; i < reader->there_count; i++) {
        if (reader->asked[there[i].buffer].is_then)
            continue;
        *out = there[i];
        reader->there_count--;
        memmove(&there[i], &there[i + 1], (size_t)(reader->there_count - i) * sizeof *there);
        return true;
    }
    return false;
}

enum status granule_reader_next(struct granule_reader *reader, struct granule *out, bool *has,
                                double seconds, struct error *err)
{
    struct read_done done;
    perturb();
    *has = false;
    while (reader->now.come < reader->now.list.count) {
        *has = there_take(out, reader);
        if (*has)
            break;
        enum status status = read_queue_wait(reader->queue, &done, seconds, err);
        if (status != STATUS_OK && done.buffer >= 0 && reader->asked[done.buffer].is_then) {
            /* No failure of `now`, which waits for none of those buffers. The list follows no more:
             * when it begins all of it is asked for again, and what fails then is its own. */
            reader->then.list.count = 0;
            continue;
        }
        TRY(status);
        if (done.buffer < 0)
            break;
        struct asked *asked = &reader->asked[done.buffer];
        ASSERT(done.id == (uint64_t)asked->granule.number);
        asked->granule.bytes = done.bytes;
        asked->granule.come_ns = record_now();
        reader->there[reader->there_count++] = asked->granule;
    }
    reader->now.come += *has;
    return STATUS_OK;
}

void granule_reader_release(struct granule_reader *reader, const struct granule *granule)
{
    ASSERT(reader->free_count < reader->buffer_count);
    reader->free_buffers[reader->free_count++] = granule->buffer;
    perturb();
    read_ahead(reader);
}
