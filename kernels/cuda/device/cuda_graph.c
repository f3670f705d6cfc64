#include "kernels/cuda/device/cuda_graph.h"

#include <string.h>

#include "base/checked.h"
#include "base/memory.h"
#include "kernels/cuda/device/cuda_error.h"
#include "kernels/cuda/device/cuda_operations.h"
#include "kernels/cuda/device/cuda_stream.h"

#define ARRAY_ALIGNMENT 64

/* ---- Pieces ---------------------------------------------------------------------------------- */

/* What it was captured to; nothing of it is on the stream. */
static void graph_drop(struct cuda_piece *piece)
{
    if (piece->graph != NULL)
        (void)cudaGraphExecDestroy(piece->graph);
    if (piece->plain != NULL)
        (void)cudaGraphExecDestroy(piece->plain);
    for (int i = 0; piece->part.marks != NULL && piece->part.marks[i] != NULL; i++)
        (void)cudaEventDestroy(piece->part.marks[i]);
    (void)cudaGetLastError();
    cuda_block_give_back(piece->block);
    memory_free(piece->part.marks);
    memory_free(piece->part.stage_of);
    memory_free(piece->part.reads);
    memory_free(piece->array_at);
    *piece = (struct cuda_piece){.work = piece->work, .used = piece->used};
}

static void piece_destroy(struct cuda_piece *piece)
{
    if (piece == NULL)
        return;
    graph_drop(piece);
    cuda_work_deinit(&piece->work);
    memory_free(piece);
}

void cuda_graphs_init(struct cuda_graphs *graphs)
{
    graphs->settled = 1;
}

void cuda_graphs_deinit(struct cuda_graphs *graphs)
{
    for (int i = 0; i < graphs->place_count * CUDA_PIECE_VARIANTS; i++)
        piece_destroy(graphs->places[i]);
    memory_free(graphs->places);
    cuda_blocks_deinit(&graphs->blocks);
    cuda_work_deinit(&graphs->pending);
}

/* The variants of the piece that comes, and the place of the next; NULL: there is no memory. */
static struct cuda_piece **variants_next(struct cuda_graphs *graphs)
{
    struct error ignored;
    size_t first = (size_t)graphs->place * CUDA_PIECE_VARIANTS;
    if (graphs->place == graphs->place_count) {
        size_t room = first + CUDA_PIECE_VARIANTS;
        if (memory_reserve(&graphs->places, &graphs->place_room, room, sizeof *graphs->places,
                           "graphs", &ignored) != STATUS_OK)
            return NULL;
        memset(graphs->places + first, 0, CUDA_PIECE_VARIANTS * sizeof *graphs->places);
        graphs->place_count++;
    }
    graphs->place++;
    return graphs->places + first;
}

static struct cuda_piece *variant_find(struct cuda_piece *const *variants,
                                       const struct cuda_work *work)
{
    for (int i = 0; i < CUDA_PIECE_VARIANTS; i++) {
        if (variants[i] != NULL && cuda_work_is_same(&variants[i]->work, work))
            return variants[i];
    }
    return NULL;
}

static struct cuda_piece *piece_create(const struct cuda_work *work)
{
    struct error ignored;
    struct cuda_piece *piece = memory_alloc(1, sizeof *piece);
    if (piece == NULL || cuda_work_copy(&piece->work, work, &ignored) != STATUS_OK) {
        piece_destroy(piece);
        return NULL;
    }
    return piece;
}

/* Keeps in mind what comes for the first time, in the place of what was there the longest ago.
 * Without memory for it, it will be another first time. */
static void variant_note(struct cuda_graphs *graphs, struct cuda_piece **variants)
{
    int oldest = 0;
    for (int i = 1; i < CUDA_PIECE_VARIANTS && variants[oldest] != NULL; i++) {
        if (variants[i] == NULL || variants[i]->used < variants[oldest]->used)
            oldest = i;
    }
    if (variants[oldest] != NULL && variants[oldest]->launched == graphs->settled)
        return; /* its marks are yet to be read */
    piece_destroy(variants[oldest]);
    variants[oldest] = piece_create(&graphs->pending);
    if (variants[oldest] != NULL)
        variants[oldest]->used = graphs->step;
}

/* ---- Capture --------------------------------------------------------------------------------- */

const void *cuda_graphs_array(const struct cuda_graphs *graphs, const struct cuda_array *array)
{
    const struct cuda_piece *piece = graphs->capturing;
    for (int i = 0; piece != NULL && i < piece->work.array_count; i++) {
        const struct cuda_array *known = &piece->work.arrays[i].array;
        if (known->kind == array->kind && known->source == array->source &&
            known->count == array->count)
            return piece->block->device + piece->array_at[i];
    }
    ASSERT(piece == NULL);
    return NULL;
}

/* The arrays one behind another, and memory for them. */
static enum status arrays_place(struct cuda_stream *cuda, struct cuda_piece *piece,
                                struct error *err)
{
    const struct cuda_work *work = &piece->work;
    TRY(memory_get((void **)&piece->array_at, (size_t)work->array_count, sizeof *piece->array_at,
                   "a graph", err));
    for (int i = 0; i < work->array_count; i++) {
        const struct cuda_named_array *named = &work->arrays[i];
        size_t bytes = cuda_array_bytes_max(&named->array, &named->facts);
        piece->array_at[i] = piece->bytes;
        piece->bytes += (size_t)round_up((int64_t)bytes, ARRAY_ALIGNMENT);
    }
    piece->is_new = true;
    if (piece->bytes == 0)
        return STATUS_OK;
    return cuda_blocks_take(&piece->block, &cuda->graphs.blocks, cuda->common->ordinal,
                            piece->bytes, err);
}

static enum status part_make(struct cuda_piece *piece, int ordinal, struct error *err)
{
    struct cuda_work_sums sums = cuda_work_sum(&piece->work);
    struct cuda_stages_part *part = &piece->part;
    size_t marks = (size_t)sums.mark_count + 1; /* the last one ends them */
    TRY(memory_get((void **)&part->marks, marks, sizeof *part->marks, "a graph", err));
    TRY(memory_get((void **)&part->stage_of, marks, sizeof *part->stage_of, "a graph", err));
    TRY(memory_get((void **)&part->reads, (size_t)sums.read_count, sizeof *part->reads, "a graph",
                   err));
    for (int i = 0; i < sums.mark_count; i++)
        CUDA_TRY(ordinal, cudaEventCreateWithFlags(&part->marks[i], cudaEventDefault), err);
    return STATUS_OK;
}

/* Behind launch `i` and changes of the stage: the next one; launch_count: there is none. */
static int launch_behind(const struct cuda_work *work, int i)
{
    do {
        i++;
    } while (i < work->launch_count && work->launches[i].kind->is_stage);
    return i;
}

/* Two launches are one where one kernel does both, at the place of the second. */
static enum status work_launch(struct cuda_stream *cuda, const struct cuda_work *work,
                               struct error *err)
{
    struct cuda_launch_once both;
    for (int i = 0; i < work->launch_count; i++) {
        const struct cuda_launch_once *launch = &work->launches[i];
        int next = launch_behind(work, i);
        if (next == work->launch_count ||
            !cuda_operations_join(&both, launch, &work->launches[next])) {
            TRY(launch->kind->launch(cuda, launch->op, err));
            continue;
        }
        while (++i < next)
            TRY(work->launches[i].kind->launch(cuda, work->launches[i].op, err));
        TRY(both.kind->launch(cuda, both.op, err));
    }
    return STATUS_OK;
}

/* Of what is launched meanwhile nothing runs. */
static enum status graph_capture(cudaGraph_t *out, struct cuda_stream *cuda,
                                 struct cuda_piece *piece, bool is_sampled, struct error *err)
{
    cudaStream_t stream = cuda->launch.stream;
    CUDA_TRY(cuda->common->ordinal,
             cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), err);
    cuda->graphs.capturing = piece;
    cuda_stages_capture(&cuda->stages, &piece->part, is_sampled);
    enum status launched = work_launch(cuda, &piece->work, err);
    cuda_stages_capture(&cuda->stages, NULL, false);
    cuda->graphs.capturing = NULL;
    cudaError_t ended = cudaStreamEndCapture(stream, out);
    if (launched == STATUS_OK && ended != cudaSuccess)
        return cuda_error_set(err, cuda->common->ordinal, "cudaStreamEndCapture", ended);
    return launched;
}

static enum status graph_make(cudaGraphExec_t *out, struct cuda_stream *cuda,
                              struct cuda_piece *piece, bool is_sampled, struct error *err)
{
    int ordinal = cuda->common->ordinal;
    cudaGraph_t graph = NULL;
    enum status status = graph_capture(&graph, cuda, piece, is_sampled, err);
    if (status == STATUS_OK) {
        cudaError_t error = cudaGraphInstantiateWithFlags(out, graph, 0);
        if (error != cudaSuccess)
            status = cuda_error_set(err, ordinal, "cudaGraphInstantiateWithFlags", error);
    }
    if (graph != NULL)
        (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
    return status;
}

/* What both graphs of a piece share. */
static enum status piece_prepare(struct cuda_stream *cuda, struct cuda_piece *piece,
                                 struct error *err)
{
    TRY(arrays_place(cuda, piece, err));
    TRY(part_make(piece, cuda->common->ordinal, err));
    piece->scratch = cuda->launch.scratch;
    piece->scratch_bytes = cuda->launch.scratch_bytes;
    piece->freed = atomic_load(&cuda->common->freed);
    return STATUS_OK;
}

/* Whether the next launch records all marks. */
static bool is_sample(const struct cuda_piece *piece)
{
    return piece->launch_count % CUDA_STAGE_SAMPLE == 0 || piece->part.mark_count < 2;
}

/* The graph that is launched next, where there is none yet. False, and nothing is captured any
 * more: what is launched one by one does the same. If something is wrong with more than the
 * capture, that will say so. */
static bool piece_capture(struct cuda_stream *cuda, struct cuda_piece *piece)
{
    struct error ignored = {.message = ""};
    bool is_sampled = is_sample(piece);
    cudaGraphExec_t *graph = is_sampled ? &piece->graph : &piece->plain;
    if (*graph != NULL)
        return true;
    double began = trace_begin();
    if ((piece->graph == NULL && piece_prepare(cuda, piece, &ignored) != STATUS_OK) ||
        graph_make(graph, cuda, piece, is_sampled, &ignored) != STATUS_OK) {
        graph_drop(piece);
        cuda->graphs.is_refused = true;
        return false;
    }
    trace_add(began, "graph captured", 0);
    return true;
}

/* ---- Launches -------------------------------------------------------------------------------- */

/* The arrays as they are now, of which the GPU's copies get what has changed. */
static enum status arrays_send(const struct cuda_stream *cuda, struct cuda_piece *piece,
                               struct error *err)
{
    size_t from = piece->bytes, to = 0;
    for (int i = 0; i < piece->work.array_count; i++) {
        const struct cuda_array *array = &piece->work.arrays[i].array;
        size_t at = piece->array_at[i], bytes = cuda_array_bytes(array);
        const struct cuda_block *block = piece->block;
        ASSERT(bytes <= cuda_array_bytes_max(array, &piece->work.arrays[i].facts));
        ASSERT(at + bytes <= piece->bytes);
        if (!cuda_array_write(array, block->host + at, block->device + at, piece->is_new))
            continue;
        from = at < from ? at : from;
        to = at + bytes;
    }
    piece->is_new = false;
    if (to > from)
        CUDA_TRY(cuda->common->ordinal,
                 cudaMemcpyAsync(piece->block->device + from, piece->block->host + from, to - from,
                                 cudaMemcpyHostToDevice, cuda->launch.stream),
                 err);
    return STATUS_OK;
}

static enum status graph_launch(struct cuda_stream *cuda, struct cuda_piece *piece,
                                struct error *err)
{
    double began = trace_begin();
    struct trace_place here = trace_place();
    bool is_sampled = is_sample(piece);
    TRY(arrays_send(cuda, piece, err));
    CUDA_TRY(cuda->common->ordinal,
             cudaGraphLaunch(is_sampled ? piece->graph : piece->plain, cuda->launch.stream), err);
    piece->launched = cuda->graphs.settled;
    piece->launch_count++;
    trace_stage(0, -1); /* of many stages and layers */
    trace_add(began, "graph", 0);
    trace_stage(here.stage, here.layer);
    return cuda_stages_add(&cuda->stages, &piece->part, is_sampled, err);
}

/* Whether what it was captured with is as it was. */
static bool graph_holds(const struct cuda_stream *cuda, const struct cuda_piece *piece)
{
    return piece->graph != NULL && piece->scratch == cuda->launch.scratch &&
           piece->scratch_bytes == cuda->launch.scratch_bytes &&
           piece->freed == atomic_load(&cuda->common->freed) &&
           cuda_stages_part_holds(&cuda->stages, &piece->part);
}

/* Room for what it adds to the stages, while it is launched. */
static enum status stages_room(struct cuda_stream *cuda, bool *has_room, struct error *err)
{
    struct cuda_work_sums sums = cuda_work_sum(&cuda->graphs.pending);
    *has_room = cuda_stages_have_room(&cuda->stages, sums.mark_count, sums.read_count);
    if (*has_room)
        return STATUS_OK;
    TRY(cuda_stream_settle(&cuda->base, err));
    *has_room = cuda_stages_have_room(&cuda->stages, sums.mark_count, sums.read_count);
    return STATUS_OK;
}

/* The piece whose graph is to be launched, captured if it is the time; NULL: launches one by one.
 */
static enum status piece_choose(struct cuda_piece **out, struct cuda_stream *cuda,
                                struct error *err)
{
    struct cuda_graphs *graphs = &cuda->graphs;
    bool has_room;
    *out = NULL;
    if (graphs->is_refused || graphs->pending.launch_count < CUDA_PIECE_LEAST)
        return STATUS_OK;
    struct cuda_piece **variants = variants_next(graphs);
    TRY(stages_room(cuda, &has_room, err));
    if (variants == NULL || !has_room)
        return STATUS_OK;
    struct cuda_piece *piece = variant_find(variants, &graphs->pending);
    if (piece == NULL) {
        variant_note(graphs, variants);
        return STATUS_OK;
    }
    if (piece->launched == graphs->settled)
        return STATUS_OK; /* its arrays may not have been copied, nor its marks read */
    piece->used = graphs->step;
    if (!graph_holds(cuda, piece))
        graph_drop(piece);
    if (!piece_capture(cuda, piece))
        return STATUS_OK;
    *out = piece;
    return STATUS_OK;
}

static enum status pending_launch(struct cuda_stream *cuda, struct error *err)
{
    struct cuda_piece *piece;
    TRY(piece_choose(&piece, cuda, err));
    if (piece != NULL)
        return graph_launch(cuda, piece, err);
    double began = trace_begin();
    enum status status = work_launch(cuda, &cuda->graphs.pending, err);
    trace_add(began, "launches", 0);
    return status;
}

void cuda_graphs_catch_up(struct cuda_stream *cuda)
{
    struct error failure = {.message = ""};
    if (cuda->graphs.pending.launch_count == 0)
        return;
    if (cuda->base.failure.status == STATUS_OK)
        cuda_stream_check(&cuda->base, pending_launch(cuda, &failure), &failure);
    cuda_work_clear(&cuda->graphs.pending);
}

/* A recording knows each operation by itself. */
void cuda_graphs_repeat(struct cuda_stream *cuda, bool begins)
{
    struct cuda_graphs *graphs = &cuda->graphs;
    struct error ignored;
    graphs->is_on = begins && !graphs->is_refused && !record_is_on();
    graphs->place = 0;
    graphs->step++;
    if (graphs->is_on && graphs->pending.launches == NULL &&
        cuda_work_init(&graphs->pending, CUDA_PIECE_LAUNCHES, &ignored) != STATUS_OK) {
        cuda_work_deinit(&graphs->pending);
        graphs->is_on = false;
    }
}

bool cuda_graphs_put_off(struct cuda_stream *cuda, const struct cuda_launch_once *launch)
{
    struct cuda_graphs *graphs = &cuda->graphs;
    if (!graphs->is_on)
        return false;
    cuda_work_add(&graphs->pending, launch);
    if (graphs->pending.launch_count ==
        (graphs->place == 0 ? CUDA_PIECE_FIRST : CUDA_PIECE_LAUNCHES))
        cuda_graphs_catch_up(cuda);
    return true;
}
