/* Upload: the slice for decode comes whole from the INT4 backup. A piece is a granule: read ahead
 * of all that follows (granule_reader.h), checked, copied to the device, and dequantized there into
 * the target; or, where decode runs on packed weights, copied to it array by array as it is.
 * Granules are placed as they come, in any order. Ranks need nothing of one another. A file that
 * cannot be read or is damaged is no failure of the box: another way may go on. What prefill
 * computes with is never from here.
 *
 * A GPU copies and dequantizes one half of what is held while threads of the host check the other,
 * as one alone does so at a tenth of a link's rate: before a half is held anew its event is waited
 * for, and the stream itself is synchronized at the end of a layer alone. On a CPU both are work of
 * the same cores, and checking by a thread of the host would take them from prefill: there is one
 * half, and all that is put on the stream ends before the next of it is checked, on that stream. */
#include <stdatomic.h>

#include "base/memory.h"
#include "base/trace.h"
#include "transition/granule_reader.h"
#include "transition/transition_state.h"

/* Granules that are worked at together: one for each worker that checks them, and as many small
 * ones as take longer to dequantize than threads to wake each other; but no more than this. */
#define BATCH_MAX   8
#define BATCH_BYTES ((int64_t)2 << 20)

/* A granule on its way from the ring to the target. */
struct upload_granule {
    struct granule granule;
    const void *content;
    enum status status;
    struct error error;
};

/* Granules that are given back together, when the device is done with them. */
struct upload_half {
    char *scratch[BATCH_MAX];                /* host memory [content_bytes]; NULL without zstd */
    struct upload_granule placed[BATCH_MAX]; /* put on the stream, or being checked for it */
    int placed_count;
    struct event *done; /* passed when what was put on the stream of it has run; NULL: one half */
};
#define HALVES_MAX 2

/* What the workers are at; the rank's, as that of way_reload.c. */
struct upload_job {
    struct transition_rank *rank;
    char *target;
    struct upload_half *half;
    int first;       /* of the half's granules, that are checked now */
    atomic_int next; /* of them */
};

struct upload_rank {
    struct move_list list;  /* to decode: one move for each expert, all of one length */
    int64_t parts;          /* granules of a move */
    int64_t granule_blocks; /* of a granule */
    int64_t *numbers;       /* [list.count * parts] granules of the first layer with experts */
    struct granule_reader *reader;
    int batch_max;            /* granules of a half */
    char *staging[BATCH_MAX]; /* device memory [content_bytes]; NULL: nothing is dequantized. Both
                               * halves use it, for one stream does so in its order */
    struct upload_half halves[HALVES_MAX];
    int half_count;
    int at;                        /* the half that granules are added to */
    struct stream *stream;         /* where they were put last */
    struct thread_team *checkers;  /* the rank's host thread, and others; NULL: it alone */
    struct granule got[BATCH_MAX]; /* have been read, and are to be added */
    int got_count;
    struct upload_job job;
};

/* ---- Life ------------------------------------------------------------------------------------ */

static bool is_packed(const struct transition_rank *rank)
{
    return rank->transition->params.layouts->decode_is_packed;
}

/* That a slice is whole granules, of numbers that can be dequantized, or are the backup's. */
static enum status check_slice(const struct transition_rank *rank, struct error *err)
{
    const struct transition_params *params = &rank->transition->params;
    const struct expert_form *to = &rank->slots->forms[PHASE_DECODE];
    if (params->backup == NULL)
        return error_set(err, STATUS_INVALID_ARGUMENT, "upload needs an INT4 backup");
    if (to->type.dtype == DTYPE_INT4 && !is_packed(rank))
        return error_set(err, STATUS_UNSUPPORTED,
                         "upload makes INT4 experts native, and these are to be int4 in memory; "
                         "leave --expert-dtype int4 away, or move them by --transition reshard");
    int64_t blocks = backup_form(params->backup)->granule_width / PACK_BLOCK;
    if (to->slice.blocks.first % blocks != 0 || to->slice.blocks.count % blocks != 0)
        return error_set(err, STATUS_UNSUPPORTED,
                         "upload: %lld blocks of an expert's width are no whole granules of %lld "
                         "blocks; choose a smaller degree of tensor parallelism for the experts",
                         (long long)to->slice.blocks.count, (long long)blocks);
    return STATUS_OK;
}

static bool is_behind(const struct device *device)
{
    return device->ops->peers != NULL;
}

/* Two where the work of a stream runs behind its thread, as a GPU's does, so that the host can be
 * at one meanwhile. */
static int half_count_of(bool is_gpu)
{
    return is_gpu ? 2 : 1;
}

static enum status half_open(struct upload_half *half, const struct transition_rank *rank,
                             struct error *err)
{
    const struct upload_rank *upload = rank->upload;
    const struct backup_form *form = backup_form(rank->transition->params.backup);
    if (upload->half_count > 1)
        TRY(rank->ops->event_create(rank->device, &half->done, err));
    for (int b = 0; b < upload->batch_max && form->settings.has_zstd; b++)
        TRY(rank->ops->host_memory_get(rank->device, (void **)&half->scratch[b],
                                       (size_t)form->content_bytes, "the experts' backup", err));
    return STATUS_OK;
}

static enum status staging_get(struct transition_rank *rank, struct error *err)
{
    struct upload_rank *upload = rank->upload;
    size_t content = (size_t)backup_form(rank->transition->params.backup)->content_bytes;
    for (int b = 0; b < upload->batch_max && !is_packed(rank); b++)
        TRY(rank->ops->memory_get(rank->device, (void **)&upload->staging[b], content,
                                  "the experts' backup", err));
    return STATUS_OK;
}

static int batch_max_of(const struct backup_form *form, int worker_count)
{
    int64_t small = BATCH_BYTES / form->content_bytes;
    int64_t count = small > worker_count ? small : worker_count;
    return count < BATCH_MAX ? (int)count : BATCH_MAX;
}

/* One batch is worked at while the next is gathered: of two halves each is one, and of one half the
 * next is not in it yet. */
static int hold_count_of(const struct backup_form *form, int worker_count)
{
    return 2 * batch_max_of(form, worker_count);
}

struct upload_bytes transition_upload_bytes_of(const struct backup_form *form, int worker_count,
                                               bool is_gpu, bool is_packed)
{
    uint64_t buffers = (uint64_t)batch_max_of(form, worker_count) * (uint64_t)form->content_bytes;
    uint64_t halves = (uint64_t)half_count_of(is_gpu);
    return (struct upload_bytes){
        .device = is_packed ? 0 : buffers,
        .host = granule_reader_bytes(form, hold_count_of(form, worker_count)) +
                (form->settings.has_zstd ? halves * buffers : 0),
    };
}

struct upload_bytes transition_upload_bytes(const struct backup *backup,
                                            const struct device *device, bool is_packed)
{
    return transition_upload_bytes_of(backup_form(backup), device->ops->host_workers(device),
                                      is_behind(device), is_packed);
}

/* Of all ranks, by the first; it has as many workers as any. */
static enum status readers_get(struct transition *transition, int worker_count, struct error *err)
{
    const struct transition_params *params = &transition->params;
    bool is_choice = params->is_auto && !params->layouts->decode_is_packed;
    if (transition->granules != NULL)
        return STATUS_OK;
    return granule_readers_open(
        &transition->granules,
        &(struct granule_reader_params){
            .box = params->box,
            .backup = params->backup,
            .hold_count = hold_count_of(backup_form(params->backup), worker_count),
            .memory_available = params->memory_available,
            .memory_lockable = params->memory_lockable,
            .is_sure =
                (transition->has_chosen || !is_choice) && !transition->ranks[0].slots->keeps_both,
            .uring = params->uring,
            .log = params->log,
        },
        err);
}

/* Where a piece lies in the expert. */
static int64_t first_block(const struct upload_rank *upload, int64_t piece)
{
    const struct move *move = &upload->list.moves[piece / upload->parts];
    return move->blocks.first + piece % upload->parts * upload->granule_blocks;
}

static enum status numbers_get(struct transition_rank *rank, struct error *err)
{
    struct upload_rank *upload = rank->upload;
    int64_t count = upload->list.count * upload->parts;
    TRY(memory_get((void **)&upload->numbers, (size_t)count, sizeof *upload->numbers,
                   "the transition", err));
    for (int64_t piece = 0; piece < count; piece++)
        upload->numbers[piece] =
            backup_granule(backup_form(rank->transition->params.backup), 0,
                           upload->list.moves[piece / upload->parts].expert,
                           first_block(upload, piece) / upload->granule_blocks);
    return STATUS_OK;
}

/* No more than there are granules in a half. The workers of the device themselves would wait for
 * its stream. */
static enum status checkers_open(struct upload_rank *upload, int worker_count, struct error *err)
{
    int count = worker_count < upload->batch_max ? worker_count : upload->batch_max;
    if (upload->half_count == 1 || count == 1)
        return STATUS_OK;
    return thread_team_create(&upload->checkers, count, -1, err);
}

static enum status upload_open(struct transition_rank *rank, struct error *err)
{
    struct upload_rank *upload;
    const struct move_rules rules = {.uses_here = false, .elsewhere = MOVE_BACKUP};
    int worker_count = rank->ops->host_workers(rank->device);
    TRY(check_slice(rank, err));
    TRY(memory_get((void **)&upload, 1, sizeof *upload, "the transition", err));
    rank->upload = upload;
    TRY(move_list_init(&upload->list, rank->transition, PHASE_DECODE, rank->index, rules,
                       rank->part, err));
    upload->granule_blocks =
        backup_form(rank->transition->params.backup)->granule_width / PACK_BLOCK;
    upload->parts = rank->slots->forms[PHASE_DECODE].slice.blocks.count / upload->granule_blocks;
    TRY(numbers_get(rank, err));
    upload->batch_max = batch_max_of(backup_form(rank->transition->params.backup), worker_count);
    upload->half_count = half_count_of(is_behind(rank->device));
    TRY(staging_get(rank, err));
    for (int h = 0; h < upload->half_count; h++)
        TRY(half_open(&upload->halves[h], rank, err));
    TRY(checkers_open(upload, worker_count, err));
    TRY(readers_get(rank->transition, worker_count, err));
    upload->reader = granule_reader_of(rank->transition->granules, rank->index);
    return STATUS_OK;
}

static void half_close(struct upload_half *half, const struct transition_rank *rank)
{
    rank->ops->event_destroy(rank->device, half->done);
    for (int b = 0; b < BATCH_MAX; b++)
        rank->ops->host_memory_free(rank->device, half->scratch[b]);
}

static void upload_close(struct transition_rank *rank)
{
    struct upload_rank *upload = rank->upload;
    if (upload == NULL)
        return;
    granule_readers_close(rank->transition->granules);
    rank->transition->granules = NULL;
    for (int h = 0; h < HALVES_MAX; h++)
        half_close(&upload->halves[h], rank);
    for (int b = 0; b < BATCH_MAX; b++)
        rank->ops->memory_free(rank->device, upload->staging[b]);
    thread_team_destroy(upload->checkers);
    memory_free(upload->numbers);
    move_list_deinit(&upload->list);
    memory_free(upload);
    rank->upload = NULL;
}

/* ---- Granules in host memory ----------------------------------------------------------------- */

static int64_t upload_piece_count(const struct transition_rank *rank, int64_t layer,
                                  enum phase phase)
{
    (void)layer;
    ASSERT(phase == PHASE_DECODE);
    return rank->upload->list.count * rank->upload->parts;
}

static bool has_halves(const struct transition_rank *rank)
{
    return rank->upload->half_count > 1;
}

static bool has_failed(const struct transition_rank *rank)
{
    return rank->refusal != STATUS_OK ||
           comm_domain_failure(box_domain(rank->transition->params.box), NULL) != STATUS_OK;
}

/* Until it was seen to be there: how long the disk took is not known where the rank was at
 * something else. What was in locked memory is no read. */
static void read_record(const struct transition_rank *rank, const struct granule *granule,
                        uint64_t bytes)
{
    enum read_tier tier = granule_readers_tier(rank->transition->granules);
    const char *name = tier == TIER_CACHED ? "read from the page cache" : "read";
    if (tier != TIER_LOCKED && record_is_on())
        record_need(record_read(rank->reads, name, granule->asked_ns, granule->come_ns, bytes,
                                granule->asked));
}

/* Gathers what has been read, `most` at most, and one at least: it is waited for. None where the
 * rank refuses, or the box has failed. */
static void batch_gather(struct transition_rank *rank, int most)
{
    struct upload_rank *upload = rank->upload;
    const struct backup *backup = rank->transition->params.backup;
    double begin = trace_begin();
    uint64_t bytes = 0;
    double moment = comm_domain_poll_seconds(box_domain(rank->transition->params.box));
    struct error cause;
    bool has = true;
    upload->got_count = 0;
    while ((has || upload->got_count == 0) && upload->got_count < most && !has_failed(rank)) {
        if (upload->got_count == 0)
            record_pause();
        enum status status = granule_reader_next(upload->reader, &upload->got[upload->got_count],
                                                 &has, upload->got_count == 0 ? moment : 0, &cause);
        const struct granule *got = &upload->got[upload->got_count];
        uint64_t got_bytes =
            status == STATUS_OK && has ? (uint64_t)backup_granule_bytes(backup, got->number) : 0;
        if (status == STATUS_OK && has)
            read_record(rank, got, got_bytes);
        if (upload->got_count == 0)
            record_resume();
        if (status != STATUS_OK) {
            way_refuse(rank, status, &cause);
        } else if (has) {
            bytes += got_bytes;
            upload->got_count++;
            rank_moved(rank);
        }
    }
    trace_add(begin, "read", bytes);
}

static void upload_work(void *context, int worker)
{
    struct upload_job *job = context;
    struct upload_half *half = job->half;
    int i;
    trace_name("check");
    for (i = job->first; worker == 0 && i < half->placed_count; i++)
        trace_bytes((uint64_t)backup_granule_bytes(job->rank->transition->params.backup,
                                                   half->placed[i].granule.number));
    while ((i = atomic_fetch_add(&job->next, 1)) < half->placed_count) {
        struct upload_granule *granule = &half->placed[i];
        granule->status = backup_granule_check(
            &granule->content, job->rank->transition->params.backup, granule->granule.number,
            granule->granule.bytes, half->scratch[i], &granule->error);
        rank_moved(job->rank);
    }
}

/* On the stream's thread alone. */
static enum status upload_call(void *argument, struct error *err)
{
    (void)err;
    upload_work(*(struct upload_job **)argument, 0);
    return STATUS_OK;
}

/* On the rank's host thread, and others': what is on the stream goes on meanwhile. */
static void upload_work_here(struct upload_job *job)
{
    double begin = trace_begin();
    if (job->rank->upload->checkers != NULL)
        thread_team_share(job->rank->upload->checkers, upload_work, job);
    else
        upload_work(job, 0);
    trace_add_named(begin, "check");
}

/* By all workers where the stream is lent. Returns when it is known whether they are sound. */
static enum status batch_check(struct upload_job *job, struct error *err)
{
    struct transition_rank *rank = job->rank;
    atomic_store(&job->next, job->first);
    if (rank->is_lent)
        rank->ops->host_run(rank->device, upload_work, job);
    else if (has_halves(rank))
        upload_work_here(job);
    else
        rank->ops->call(rank->stream, upload_call, &job, sizeof job);
    if (!has_halves(rank))
        TRY(rank->ops->synchronize(rank->stream, err));
    for (int i = job->first; i < job->half->placed_count; i++) {
        const struct upload_granule *granule = &job->half->placed[i];
        if (granule->status != STATUS_OK)
            way_refuse(rank, granule->status, &granule->error);
    }
    return STATUS_OK;
}

/* ---- And on the device ----------------------------------------------------------------------- */

/* Array by array. */
static void granule_copy(const struct transition_rank *rank, char *target, const char *content,
                         int64_t expert, int64_t block)
{
    const struct expert_form *to = &rank->slots->forms[PHASE_DECODE];
    const struct backup_form *form = backup_form(rank->transition->params.backup);
    int per_matrix = to->array_count / EXPERT_MATRICES;
    for (int array = 0; array < to->array_count; array++) {
        enum backup_matrix matrix = (enum backup_matrix)(array / per_matrix);
        const struct range ranges[] = {backup_nibbles(form, matrix), backup_scales(form, matrix),
                                       backup_minima(form, matrix)};
        struct range range = ranges[array % per_matrix];
        ASSERT(range.count == to->arrays[array].block_bytes * rank->upload->granule_blocks);
        rank->ops->copy(
            rank->stream,
            &(struct op_copy){.out = target + expert_form_offset(to, array, expert, block),
                              .in = content + range.first,
                              .bytes = range.count});
    }
}

static void granule_place(const struct upload_job *job, int i)
{
    const struct transition_rank *rank = job->rank;
    const struct upload_rank *upload = rank->upload;
    const struct upload_granule *granule = &job->half->placed[i];
    const struct expert_form *to = &rank->slots->forms[PHASE_DECODE];
    const struct backup_form *form = backup_form(rank->transition->params.backup);
    int64_t expert = upload->list.moves[granule->granule.i / upload->parts].expert;
    int64_t block = first_block(upload, granule->granule.i);
    char *staging = upload->staging[i];
    if (is_packed(rank)) {
        granule_copy(rank, job->target, granule->content, expert, block);
        return;
    }
    rank->ops->copy(
        rank->stream,
        &(struct op_copy){.out = staging, .in = granule->content, .bytes = form->content_bytes});
    for (int m = 0; m < BACKUP_MATRICES; m++)
        rank->ops->dequantize(
            rank->stream, &(struct op_dequantize){
                              .out = job->target + expert_form_offset(to, m, expert, block),
                              .dtype = to->type.dtype,
                              .in = backup_granule_matrix(form, staging, (enum backup_matrix)m)});
}

/* Nothing more is read once something has failed. */
static void half_release(const struct transition_rank *rank, struct upload_half *half)
{
    for (int i = 0; i < half->placed_count && !has_failed(rank); i++)
        granule_reader_release(rank->upload->reader, &half->placed[i].granule);
    half->placed_count = 0;
}

/* What was put on the stream is in the target, and its buffers are read into again. */
static enum status placed_end(struct transition_rank *rank, struct stream *stream,
                              struct error *err)
{
    enum status status = rank->ops->synchronize(stream, err);
    for (int h = 0; h < HALVES_MAX && status == STATUS_OK; h++)
        half_release(rank, &rank->upload->halves[h]);
    return status;
}

/* The half that is added to; where it is full the other one, when the device is done with that. */
static enum status half_enter(struct transition_rank *rank, struct error *err)
{
    struct upload_rank *upload = rank->upload;
    if (upload->halves[upload->at].placed_count < upload->batch_max)
        return STATUS_OK;
    upload->at = (upload->at + 1) % HALVES_MAX;
    TRY(rank->ops->event_synchronize(upload->halves[upload->at].done, err));
    half_release(rank, &upload->halves[upload->at]);
    return STATUS_OK;
}

/* Gathers some, at most as many as the half has room for; of one half, while those in it are worked
 * at. */
static enum status batch_get(struct transition_rank *rank, int64_t most, struct error *err)
{
    struct upload_rank *upload = rank->upload;
    int64_t room = upload->batch_max;
    if (has_halves(rank)) {
        TRY(half_enter(rank, err));
        room -= upload->halves[upload->at].placed_count;
    }
    batch_gather(rank, (int)(most < room ? most : room));
    return has_halves(rank) ? STATUS_OK : placed_end(rank, rank->stream, err);
}

/* Gathers some while others are worked at, and puts them on the stream behind those. */
static enum status batch_move(struct transition_rank *rank, int64_t most, struct error *err)
{
    struct upload_rank *upload = rank->upload;
    TRY(batch_get(rank, most, err));
    struct upload_half *half = &upload->halves[upload->at];
    upload->job.half = half;
    upload->job.first = half->placed_count;
    for (int i = 0; i < upload->got_count; i++)
        half->placed[half->placed_count++].granule = upload->got[i];
    TRY(batch_check(&upload->job, err));
    upload->stream = rank->stream;
    for (int i = upload->job.first; i < half->placed_count && rank->refusal == STATUS_OK; i++)
        granule_place(&upload->job, i);
    if (has_halves(rank))
        rank->ops->event_record(rank->stream, half->done);
    return STATUS_OK;
}

/* Where the rank's stream is lent from here on, nothing of the layer is left on the other. */
static enum status batches_move(struct transition_rank *rank, int64_t left, struct error *err)
{
    struct upload_rank *upload = rank->upload;
    if (upload->stream != NULL && upload->stream != rank->stream)
        TRY(placed_end(rank, upload->stream, err));
    for (; left > 0 && !has_failed(rank); left -= upload->got_count)
        TRY(batch_move(rank, left, err));
    return STATUS_OK;
}

static struct granule_list layer_granules(const struct transition_rank *rank, int64_t layer)
{
    const struct transition_params *params = &rank->transition->params;
    int64_t moe_layer = backup_moe_layer(checkpoint_config(params->checkpoint), layer);
    return (struct granule_list){
        .numbers = rank->upload->numbers,
        .count = rank->upload->list.count * rank->upload->parts,
        .first = backup_granule(backup_form(params->backup), moe_layer, 0, 0),
    };
}

/* The disk goes on with the layer that comes next while this one is made and swapped; a trial
 * moves one layer alone. */
static enum status layer_begin(const struct transition_rank *rank, int64_t layer, enum phase phase,
                               struct error *err)
{
    const struct transition *transition = rank->transition;
    struct granule_list list = layer_granules(rank, layer);
    int64_t next = layer_next(transition, layer + 1, phase);
    TRY(granule_reader_begin(rank->upload->reader, &list, err));
    if (!transition->is_trial && next < transition->params.shape->layer_count) {
        list = layer_granules(rank, next);
        granule_reader_follow(rank->upload->reader, &list);
    }
    return STATUS_OK;
}

static void halves_empty(struct upload_rank *upload)
{
    upload->at = 0;
    upload->stream = NULL;
    for (int h = 0; h < HALVES_MAX; h++)
        upload->halves[h].placed_count = 0;
}

/* What is on the stream has run, or failed with it. */
static void stream_end(const struct transition_rank *rank, struct stream *stream)
{
    struct error known;
    if (rank->ops->synchronize(stream, &known) != STATUS_OK)
        return;
}

/* Nothing of the layer is on a stream any more, whatever has failed; then reads may be given up. */
static enum status layer_end(struct transition_rank *rank, enum status status, struct error *err)
{
    struct upload_rank *upload = rank->upload;
    struct error known;
    /* The other was waited for before the rank's own was used, but for where that wait failed. */
    if (status != STATUS_OK && upload->stream != NULL && upload->stream != rank->stream)
        stream_end(rank, upload->stream);
    enum status settled = placed_end(rank, rank->stream, status == STATUS_OK ? err : &known);
    halves_empty(upload);
    status = status == STATUS_OK ? settled : status;
    if (status != STATUS_OK || has_failed(rank))
        granule_reader_stop(rank->upload->reader);
    return status;
}

/* As many granules as there are pieces to be moved, of those that the layer has left. A GPU has all
 * of them when the last have been moved: till then it is at some while the next are checked. */
static enum status upload_move(struct transition_rank *rank, int64_t layer, enum phase phase,
                               struct range pieces, struct error *err)
{
    struct upload_rank *upload = rank->upload;
    struct error cause;
    enum status status = STATUS_OK;
    upload->job.rank = rank;
    upload->job.target = expert_slots_target(rank->slots, layer, phase);
    if (pieces.first == 0) {
        halves_empty(upload);
        status = layer_begin(rank, layer, phase, &cause);
        if (status != STATUS_OK)
            way_refuse(rank, status, &cause);
    }
    status = batches_move(rank, pieces.count, err);
    bool is_last = pieces.first + pieces.count == upload_piece_count(rank, layer, phase);
    if (status == STATUS_OK && !is_last && !has_failed(rank) && has_halves(rank))
        return STATUS_OK;
    return layer_end(rank, status, err);
}

static void upload_end(struct transition_rank *rank)
{
    granule_reader_stop(rank->upload->reader);
}

const struct way_ops way_upload = {
    .open = upload_open,
    .close = upload_close,
    .piece_count = upload_piece_count,
    .move = upload_move,
    .end = upload_end,
    .takes_int4 = true,
    .gives_int4 = true,
};
