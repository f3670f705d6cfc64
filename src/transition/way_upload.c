/* Upload: the slice for decode comes whole from the INT4 backup. A piece is a granule: read,
 * checked, copied to the device, and dequantized there into the target; or, where decode runs on
 * packed weights, copied to it array by array as it is. Ranks need nothing of one another. A file
 * that cannot be read or is damaged is no failure of the box: another way may go on. What prefill
 * computes with is never from here. */
#include <stdatomic.h>

#include "base/file.h"
#include "base/memory.h"
#include "transition/transition_state.h"

/* A granule on its way. */
struct upload_buffer {
    char *bytes;   /* host memory [backup_granule_bytes_max] */
    char *scratch; /* host memory [content_bytes]; NULL without zstd */
    char *staging; /* device memory [content_bytes]; NULL where nothing is dequantized */
    const void *content;
    enum status status;
    struct error error;
};

/* What the workers are at; the rank's, as that of way_reload.c. */
struct upload_job {
    struct transition_rank *rank;
    int64_t moe_layer;
    char *target;
    struct range pieces; /* as many as there are buffers, at most */
    atomic_llong next;   /* of them */
};

struct upload_rank {
    struct move_list list;         /* to decode: one move for each expert, all of one length */
    int64_t parts;                 /* granules of a move */
    int64_t granule_blocks;        /* of a granule */
    int buffer_count;              /* one for each worker */
    struct upload_buffer *buffers; /* [buffer_count] */
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

static enum status buffer_get(struct upload_buffer *buffer, const struct transition_rank *rank,
                              struct error *err)
{
    const struct backup *backup = rank->transition->params.backup;
    const struct backup_form *form = backup_form(backup);
    const char *what = "the experts' backup";
    size_t content = (size_t)form->content_bytes;
    TRY(rank->ops->host_memory_get(rank->device, (void **)&buffer->bytes,
                                   (size_t)backup_granule_bytes_max(backup), what, err));
    if (form->settings.has_zstd)
        TRY(rank->ops->host_memory_get(rank->device, (void **)&buffer->scratch, content, what,
                                       err));
    if (is_packed(rank))
        return STATUS_OK;
    return rank->ops->memory_get(rank->device, (void **)&buffer->staging, content, what, err);
}

static enum status upload_open(struct transition_rank *rank, struct error *err)
{
    struct upload_rank *upload;
    const struct move_rules rules = {.uses_here = false, .elsewhere = MOVE_BACKUP};
    TRY(check_slice(rank, err));
    TRY(memory_get((void **)&upload, 1, sizeof *upload, "the transition", err));
    rank->upload = upload;
    TRY(move_list_init(&upload->list, rank->transition, PHASE_DECODE, rank->index, rules, err));
    upload->granule_blocks =
        backup_form(rank->transition->params.backup)->granule_width / PACK_BLOCK;
    upload->parts = rank->slots->forms[PHASE_DECODE].slice.blocks.count / upload->granule_blocks;
    upload->buffer_count = rank->ops->host_workers(rank->device);
    TRY(memory_get((void **)&upload->buffers, (size_t)upload->buffer_count, sizeof *upload->buffers,
                   "the transition", err));
    for (int b = 0; b < upload->buffer_count; b++)
        TRY(buffer_get(&upload->buffers[b], rank, err));
    return STATUS_OK;
}

static void upload_close(struct transition_rank *rank)
{
    struct upload_rank *upload = rank->upload;
    if (upload == NULL)
        return;
    for (int b = 0; upload->buffers != NULL && b < upload->buffer_count; b++) {
        rank->ops->host_memory_free(rank->device, upload->buffers[b].bytes);
        rank->ops->host_memory_free(rank->device, upload->buffers[b].scratch);
        rank->ops->memory_free(rank->device, upload->buffers[b].staging);
    }
    memory_free(upload->buffers);
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

/* Where a piece lies in the expert. */
static int64_t first_block(const struct upload_rank *upload, int64_t piece)
{
    const struct move *move = &upload->list.moves[piece / upload->parts];
    return move->blocks.first + piece % upload->parts * upload->granule_blocks;
}

static int64_t granule_of(const struct upload_job *job, int64_t piece)
{
    const struct upload_rank *upload = job->rank->upload;
    const struct move *move = &upload->list.moves[piece / upload->parts];
    return backup_granule(backup_form(job->rank->transition->params.backup), job->moe_layer,
                          move->expert, first_block(upload, piece) / upload->granule_blocks);
}

/* The bytes of a granule. */
static enum status granule_read(struct upload_buffer *buffer, const struct backup *backup,
                                int64_t number, struct error *err)
{
    return file_read_at(backup_fd(backup), backup_path(backup),
                        backup_granule_offset(backup, number), buffer->bytes,
                        (size_t)backup_granule_bytes(backup, number), err);
}

static void upload_work(void *context, int worker)
{
    struct upload_job *job = context;
    const struct backup *backup = job->rank->transition->params.backup;
    int64_t i;
    (void)worker;
    while ((i = atomic_fetch_add(&job->next, 1)) < job->pieces.count) {
        struct upload_buffer *buffer = &job->rank->upload->buffers[i];
        int64_t number = granule_of(job, job->pieces.first + i);
        buffer->status = granule_read(buffer, backup, number, &buffer->error);
        if (buffer->status == STATUS_OK)
            buffer->status = backup_granule_check(&buffer->content, backup, number, buffer->bytes,
                                                  buffer->scratch, &buffer->error);
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

/* By all workers where the stream is lent. Returns when they are there, or it is known why not. */
static enum status granules_get(struct upload_job *job, struct error *err)
{
    struct transition_rank *rank = job->rank;
    if (!rank->is_lent)
        rank->ops->call(rank->stream, upload_call, &job, sizeof job);
    TRY(rank->ops->synchronize(rank->stream, err));
    if (rank->is_lent)
        rank->ops->host_run(rank->device, upload_work, job);
    for (int64_t i = 0; i < job->pieces.count; i++) {
        const struct upload_buffer *buffer = &rank->upload->buffers[i];
        if (buffer->status != STATUS_OK)
            way_refuse(rank, buffer->status, &buffer->error);
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
        rank->ops->copy(rank->stream,
                        &(struct op_copy){target + expert_form_offset(to, array, expert, block),
                                          content + range.first, range.count});
    }
}

static void granule_place(const struct upload_job *job, const struct upload_buffer *buffer,
                          int64_t piece)
{
    const struct transition_rank *rank = job->rank;
    const struct expert_form *to = &rank->slots->forms[PHASE_DECODE];
    const struct backup_form *form = backup_form(rank->transition->params.backup);
    int64_t expert = rank->upload->list.moves[piece / rank->upload->parts].expert;
    int64_t block = first_block(rank->upload, piece);
    if (is_packed(rank)) {
        granule_copy(rank, job->target, buffer->content, expert, block);
        return;
    }
    rank->ops->copy(rank->stream,
                    &(struct op_copy){buffer->staging, buffer->content, form->content_bytes});
    for (int m = 0; m < BACKUP_MATRICES; m++)
        rank->ops->dequantize(
            rank->stream,
            &(struct op_dequantize){
                .out = job->target + expert_form_offset(to, m, expert, block),
                .dtype = to->type.dtype,
                .in = backup_granule_matrix(form, buffer->staging, (enum backup_matrix)m)});
}

static enum status upload_some(struct upload_job *job, struct error *err)
{
    struct transition_rank *rank = job->rank;
    TRY(granules_get(job, err));
    if (rank->refusal != STATUS_OK)
        return STATUS_OK;
    for (int64_t i = 0; i < job->pieces.count; i++)
        granule_place(job, &rank->upload->buffers[i], job->pieces.first + i);
    return rank->ops->synchronize(rank->stream, err);
}

static enum status upload_move(struct transition_rank *rank, int64_t layer, enum phase phase,
                               struct range pieces, struct error *err)
{
    const struct model_config *config = checkpoint_config(rank->transition->params.checkpoint);
    const struct comm_domain *domain = box_domain(rank->transition->params.box);
    int64_t most = rank->upload->buffer_count, end = pieces.first + pieces.count;
    for (int64_t first = pieces.first; first < end && rank->refusal == STATUS_OK &&
                                       comm_domain_failure(domain, NULL) == STATUS_OK;
         first += most) {
        rank->upload->job = (struct upload_job){
            .rank = rank,
            .moe_layer = backup_moe_layer(config, layer),
            .target = expert_slots_target(rank->slots, layer, phase),
            .pieces = {first, end - first < most ? end - first : most},
        };
        TRY(upload_some(&rank->upload->job, err));
    }
    return STATUS_OK;
}

const struct way_ops way_upload = {
    .open = upload_open,
    .close = upload_close,
    .piece_count = upload_piece_count,
    .move = upload_move,
    .takes_int4 = true,
    .gives_int4 = true,
};
