/* Reload: what a rank lacks is read from the checkpoint and packed as when the model was loaded;
 * what it has of the checkpoint's it copies from its old slot. A piece is a matrix of a move. Ranks
 * need nothing of one another. A file that cannot be read is no failure of the box: another way may
 * go on. */
#include <stdatomic.h>

#include "base/memory.h"
#include "base/system.h"
#include "base/trace.h"
#include "store/packed_read.h"
#include "transition/transition_state.h"

/* What the workers are at. It is the rank's, because a stream that fails may be left before it has
 * come to what was put on it. */
struct reload_job {
    struct transition_rank *rank;
    int64_t layer;
    enum phase phase;
    char *target;
    atomic_llong next; /* piece */
    int64_t end;
    atomic_bool has_failed;

    /* Of a recording. */
    bool is_recorded;
    struct record_mark need; /* where its stream stood */
    uint64_t begin_ns;
    atomic_uint_fast64_t end_ns;                  /* of the last worker */
    atomic_uint_fast64_t read_ns, work_ns, bytes; /* of all together; reads are within the work */
};

struct reload_rank {
    struct move_list lists[PHASE_COUNT][2]; /* what is here is of use, or not: it is the backup's */
    int worker_count;
    struct reload_worker {
        struct packed_staging staging;
        enum status status;
        struct error error;
    } * workers; /* [worker_count] */
    struct reload_job job;
};

/* ---- One matrix of one move ------------------------------------------------------------------ */

/* Rows of gate and up, columns of down; the last block may be filled in part. */
static struct block block_of(const struct move *move, const struct expert_form *form,
                             int64_t expert_dim, bool is_down)
{
    int64_t first = move->blocks.first * PACK_BLOCK, count = move->blocks.count * PACK_BLOCK;
    if (first + count > expert_dim)
        count = expert_dim - first;
    return is_down ? (struct block){0, form->hidden_dim, first, count}
                   : (struct block){first, count, 0, form->hidden_dim};
}

/* From where to where; its place is not known yet. */
static struct packed_block packed_of(const struct expert_form *form, int64_t expert_dim,
                                     const struct move *move, int matrix)
{
    bool is_down = matrix == EXPERT_MATRICES - 1;
    return (struct packed_block){
        .weight = (enum weight)(WEIGHT_EXPERT_GATE + matrix),
        .expert = move->expert,
        .block = block_of(move, form, expert_dim, is_down),
        .packing = is_down ? PACK_INPUT : PACK_OUTPUT,
        .dtype = form->type.dtype,
    };
}

static struct packed_block piece_of(const struct reload_job *job, const struct move *move,
                                    int matrix)
{
    const struct expert_form *form = &job->rank->slots->forms[job->phase];
    int64_t expert_dim = job->rank->transition->params.shape->expert_dim;
    int per_matrix = form->array_count / EXPERT_MATRICES, array = matrix * per_matrix;
    struct packed_block block = packed_of(form, expert_dim, move, matrix);
    block.layer = job->layer;
    block.place = job->target + expert_form_offset(form, array, move->expert, move->blocks.first);
    if (per_matrix == 2)
        block.scales = (uint16_t *)(job->target + expert_form_offset(form, array + 1, move->expert,
                                                                     move->blocks.first));
    return block;
}

/* ---- What a worker reads through ------------------------------------------------------------- */

static void room_add(struct packed_room *room, const struct expert_form *form, int64_t expert_dim,
                     struct range blocks)
{
    const struct move move = {.blocks = blocks};
    for (int matrix = 0; matrix < EXPERT_MATRICES; matrix++) {
        struct packed_block block = packed_of(form, expert_dim, &move, matrix);
        packed_room_add(room, &block);
    }
}

/* For whatever range of its slices a rank may lack; a longer one need not want more, and the last
 * block of an expert may be filled in part. */
static struct packed_room room_of(const struct expert_form forms[PHASE_COUNT], int64_t expert_dim,
                                  bool decode_is_packed)
{
    struct packed_room room = {0};
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        struct range slice = forms[phase].slice.blocks;
        if (phase == PHASE_DECODE && decode_is_packed)
            continue; /* that is the backup's alone */
        for (int64_t count = 1; count <= slice.count; count++) {
            struct range at_end = {slice.first + slice.count - count, count};
            room_add(&room, &forms[phase], expert_dim, (struct range){slice.first, count});
            room_add(&room, &forms[phase], expert_dim, at_end);
        }
    }
    return room;
}

uint64_t reload_bytes(const struct expert_slots_params *slots, const struct device *device)
{
    struct expert_form forms[PHASE_COUNT];
    for (int phase = 0; phase < PHASE_COUNT; phase++)
        forms[phase] = expert_form_of(slots->shape, &slots->layouts->of[phase], slots->rank,
                                      slots->types[phase]);
    struct packed_room room =
        room_of(forms, slots->shape->expert_dim, slots->layouts->decode_is_packed);
    return (uint64_t)device->ops->host_workers(device) * packed_staging_bytes(&room, device);
}

/* ---- Life ------------------------------------------------------------------------------------ */

static enum status lists_init(struct transition_rank *rank, struct reload_rank *reload,
                              struct error *err)
{
    for (int i = 0; i < PHASE_COUNT * 2; i++) {
        const struct move_rules rules = {.uses_here = i % 2 == 0, .elsewhere = MOVE_CHECKPOINT};
        enum phase phase = (enum phase)(i / 2);
        struct move_list *list = &reload->lists[phase][i % 2];
        if (phase == PHASE_DECODE && rank->transition->params.layouts->decode_is_packed)
            continue; /* that is the backup's alone */
        TRY(move_list_init(list, rank->transition, phase, rank->index, rules, rank->part, err));
    }
    return STATUS_OK;
}

static enum status reload_open(struct transition_rank *rank, struct error *err)
{
    const struct transition_params *params = &rank->transition->params;
    struct packed_room room =
        room_of(rank->slots->forms, params->shape->expert_dim, params->layouts->decode_is_packed);
    struct reload_rank *reload;
    TRY(memory_get((void **)&reload, 1, sizeof *reload, "the transition", err));
    rank->reload = reload;
    TRY(lists_init(rank, reload, err));
    reload->worker_count = rank->ops->host_workers(rank->device);
    TRY(memory_get((void **)&reload->workers, (size_t)reload->worker_count, sizeof *reload->workers,
                   "the transition", err));
    for (int w = 0; w < reload->worker_count; w++)
        TRY(packed_staging_init(&reload->workers[w].staging, rank->device, &room, err));
    return STATUS_OK;
}

static void reload_close(struct transition_rank *rank)
{
    struct reload_rank *reload = rank->reload;
    if (reload == NULL)
        return;
    for (int w = 0; reload->workers != NULL && w < reload->worker_count; w++)
        packed_staging_deinit(&reload->workers[w].staging);
    memory_free(reload->workers);
    for (int i = 0; i < PHASE_COUNT * 2; i++)
        move_list_deinit(&reload->lists[i / 2][i % 2]);
    memory_free(reload);
    rank->reload = NULL;
}

/* ---- Pieces ---------------------------------------------------------------------------------- */

static const struct move_list *list_of(const struct transition_rank *rank, int64_t layer,
                                       enum phase phase)
{
    return &rank->reload->lists[phase][layer_is_int4(rank->transition, layer)];
}

static int64_t reload_piece_count(const struct transition_rank *rank, int64_t layer,
                                  enum phase phase)
{
    return list_of(rank, layer, phase)->count * EXPERT_MATRICES;
}

static const struct move *move_of(const struct reload_job *job, int64_t piece)
{
    return &list_of(job->rank, job->layer, job->phase)->moves[piece / EXPERT_MATRICES];
}

static enum status bytes_read(void *context, uint64_t bytes, struct error *err)
{
    struct transition_rank *rank = context;
    (void)err;
    atomic_fetch_add(&rank->reload->job.bytes, bytes);
    if (!rank->is_lent || rank->reload->worker_count == 1) /* else it is a part of them */
        trace_bytes(bytes);
    rank_moved(rank);
    return STATUS_OK;
}

/* ---- For a recording --------------------------------------------------------------------------
 *
 * Each worker reads, then packs, then reads again. It is told as one read and one computation
 * behind it, which share the time as the workers' reading and packing did. */

static uint64_t now_ns(void)
{
    return (uint64_t)(system_seconds() * 1e9);
}

/* On the stream's thread, before anything is read. */
static void job_begin(struct reload_job *job)
{
    if (!job->is_recorded)
        return;
    record_drop();
    job->need = record_mark();
    job->begin_ns = record_now();
}

static void job_worker_end(struct reload_job *job, uint64_t begin_ns)
{
    uint64_t now = now_ns(), known = atomic_load(&job->end_ns);
    atomic_fetch_add(&job->work_ns, now - begin_ns);
    while (known < now && !atomic_compare_exchange_weak(&job->end_ns, &known, now))
        ;
}

/* On the stream's thread, behind the last worker. */
static void job_end(struct reload_job *job, int worker_count)
{
    uint64_t end = atomic_load(&job->end_ns), work = atomic_load(&job->work_ns);
    uint64_t bytes = atomic_load(&job->bytes);
    if (!job->is_recorded || work == 0)
        return;
    double share = (double)atomic_load(&job->read_ns) / (double)work;
    uint64_t taken = end > job->begin_ns ? end - job->begin_ns : 0;
    uint64_t read = (uint64_t)((double)taken * (share < 1 ? share : 1));
    if (bytes > 0)
        record_need(record_read(job->rank->reads, "read again", job->begin_ns, job->begin_ns + read,
                                bytes, job->need));
    else
        read = 0;
    record_add(RECORD_NODE_COMPUTE, "read again", job->begin_ns + read, job->begin_ns + taken,
               2 * bytes, worker_count);
}

static void reload_work(void *context, int index)
{
    struct reload_job *job = context;
    struct reload_worker *worker = &job->rank->reload->workers[index];
    const struct packed_read_progress progress = {bytes_read, job->rank,
                                                  job->is_recorded ? &job->read_ns : NULL};
    const struct comm_domain *domain = box_domain(job->rank->transition->params.box);
    int64_t piece;
    uint64_t begin_ns = now_ns();
    worker->status = STATUS_OK;
    trace_name("read again");
    if (index == 0)
        job_begin(job);
    while (!atomic_load(&job->has_failed) && comm_domain_failure(domain, NULL) == STATUS_OK &&
           (piece = atomic_fetch_add(&job->next, 1)) < job->end) {
        const struct move *move = move_of(job, piece);
        if (move->source != MOVE_CHECKPOINT)
            continue;
        struct packed_block block = piece_of(job, move, (int)(piece % EXPERT_MATRICES));
        worker->status = packed_read(job->rank->transition->params.checkpoint, &block,
                                     &worker->staging, &progress, &worker->error);
        if (worker->status != STATUS_OK)
            atomic_store(&job->has_failed, true);
    }
    job_worker_end(job, begin_ns);
}

/* On the stream's thread alone. */
static enum status reload_call(void *argument, struct error *err)
{
    struct reload_job *job = *(struct reload_job **)argument;
    (void)err;
    reload_work(job, 0);
    job_end(job, 1);
    return STATUS_OK;
}

/* The same where workers read, behind them. */
static enum status reload_told(void *argument, struct error *err)
{
    struct reload_job *job = *(struct reload_job **)argument;
    (void)err;
    trace_name("");
    job_end(job, job->rank->reload->worker_count);
    return STATUS_OK;
}

/* What the rank has already. */
static void copy_here(const struct reload_job *job, int64_t piece)
{
    struct transition_rank *rank = job->rank;
    const struct expert_form *from = &rank->slots->forms[phase_other(job->phase)];
    const struct expert_form *to = &rank->slots->forms[job->phase];
    const struct move *move = move_of(job, piece);
    const char *old = expert_slots_now(rank->slots, job->layer);
    int per_matrix = to->array_count / EXPERT_MATRICES;
    int first = (int)(piece % EXPERT_MATRICES) * per_matrix;
    for (int a = first; a < first + per_matrix; a++)
        rank->ops->copy(
            rank->stream,
            &(struct op_copy){
                .out = job->target + expert_form_offset(to, a, move->expert, move->blocks.first),
                .in = old + expert_form_offset(from, a, move->expert, move->blocks.first),
                .bytes = move->blocks.count * to->arrays[a].block_bytes});
}

/* Files that cannot be read are for another way to mend, a device that fails is not. */
static enum status job_outcome(const struct reload_job *job, int worker_count, struct error *err)
{
    for (int w = 0; w < worker_count; w++) {
        const struct reload_worker *worker = &job->rank->reload->workers[w];
        if (worker->status == STATUS_OK)
            continue;
        if (!worker->staging.device_failed) {
            way_refuse(job->rank, worker->status, &worker->error);
            continue;
        }
        if (err != NULL)
            *err = worker->error;
        return worker->status;
    }
    return STATUS_OK;
}

static enum status reload_move(struct transition_rank *rank, int64_t layer, enum phase phase,
                               struct range pieces, struct error *err)
{
    struct reload_job *job = &rank->reload->job;
    *job = (struct reload_job){.rank = rank,
                               .layer = layer,
                               .phase = phase,
                               .target = expert_slots_target(rank->slots, layer, phase),
                               .is_recorded = record_is_on(),
                               .next = pieces.first,
                               .end = pieces.first + pieces.count};
    int worker_count = rank->is_lent ? rank->reload->worker_count : 1;
    for (int64_t piece = pieces.first; piece < job->end; piece++) {
        if (move_of(job, piece)->source == MOVE_HERE)
            copy_here(job, piece);
    }
    if (!rank->is_lent)
        rank->ops->call(rank->stream, reload_call, &job, sizeof job);
    TRY(rank->ops->synchronize(rank->stream, err));
    if (rank->is_lent)
        rank->ops->host_run(rank->device, reload_work, job);
    if (rank->is_lent && job->is_recorded) {
        struct trace_lane *before = trace_lane_use(NULL); /* it needs nothing that came since */
        rank->ops->call(rank->stream, reload_told, &job, sizeof job);
        trace_lane_use(before);
        TRY(rank->ops->synchronize(rank->stream, err));
    }
    return job_outcome(job, worker_count, err);
}

const struct way_ops way_reload = {
    .bytes = reload_bytes,
    .open = reload_open,
    .close = reload_close,
    .piece_count = reload_piece_count,
    .move = reload_move,
    .takes_int4 = true,
};
