/* One layer on all ranks: its pieces, the vote, and the next way where one refuses. */
#include <stdio.h>

#include "base/perturb.h"
#include "base/trace.h"
#include "transition/transition_state.h"

#define POISON 0xff

/* ---- A rank's part ----------------------------------------------------------------------------
 */

/* Whether the rank's thread waits, for a layer that is not there yet. Under the lock. */
static bool does_wait(const struct transition_rank *rank)
{
    int64_t layer = rank->awaits;
    return layer == AWAITS_ALL ||
           (layer != AWAITS_NONE && rank->slots->layers[layer].phase != rank->transition->phase);
}

static enum status lane_change_run(void *argument, struct error *err)
{
    (void)err;
    trace_name("");
    record_drop();
    record_as(*(struct trace_lane **)argument);
    return STATUS_OK;
}

/* What it waits for is no need of anybody's: in a recording the two lanes have nothing to do with
 * each other. A stream that has failed is left as it is, for its recording has ended. */
void stream_record_as(const struct transition_rank *rank, struct stream *stream,
                      struct trace_lane *lane)
{
    struct error known;
    struct trace_lane *before = trace_lane_use(NULL);
    if (rank->ops->synchronize(stream, &known) == STATUS_OK)
        rank->ops->call(stream, lane_change_run, &lane, sizeof lane);
    if (rank->ops->synchronize(stream, &known) != STATUS_OK)
        known.status = STATUS_OK; /* whoever uses the stream hears of it */
    trace_lane_use(before);
}

static enum status lane_get_run(void *argument, struct error *err)
{
    (void)err;
    trace_name("");
    **(struct trace_lane ***)argument = record_lane();
    return STATUS_OK;
}

struct trace_lane *stream_lane(const struct transition_rank *rank, struct stream *stream)
{
    struct trace_lane *lane = NULL, **place = &lane;
    struct error known;
    rank->ops->call(stream, lane_get_run, &place, sizeof place);
    return rank->ops->synchronize(stream, &known) == STATUS_OK ? lane : NULL;
}

/* The rank's own stream while its thread waits, and so does not use it: what is awaited is not left
 * to a stream that may starve, nor is a layer that is written ahead, behind which the awaited one
 * is swapped. */
static void stream_take(struct transition_rank *rank)
{
    struct transition *transition = rank->transition;
    transition_lock(transition);
    rank->is_lent = does_wait(rank);
    transition_unlock(transition);
    rank->stream = rank->is_lent ? rank->device->stream : rank->beside;
    rank->is_recorded = rank->is_lent && record_is_on();
    if (rank->is_recorded)
        stream_record_as(rank, rank->stream, rank->beside_lane);
    perturb();
}

static void stream_give(struct transition_rank *rank)
{
    struct transition *transition = rank->transition;
    perturb();
    if (rank->is_recorded)
        stream_record_as(rank, rank->stream, NULL);
    transition_lock(transition);
    rank->is_lent = false;
    pthread_cond_broadcast(&transition->changed);
    transition_unlock(transition);
}

void stream_abort(const struct transition_rank *rank, const struct error *cause)
{
    struct error known;
    comm_domain_abort(box_domain(rank->transition->params.box), rank->index, cause);
    if (rank->ops->synchronize(rank->stream, &known) != STATUS_OK)
        return;
}

static enum status note_run(void *argument, struct error *err)
{
    (void)err;
    trace_layer(*(int64_t *)argument);
    trace_name("");
    return STATUS_OK;
}

void stream_note_layer(const struct transition_rank *rank, int64_t layer)
{
    rank->ops->call(rank->stream, note_run, &layer, sizeof layer);
}

/* Piece by piece, or all that are left at once where the stream is lent: it is until the layer is
 * there. */
static enum status pieces_move(struct transition_rank *rank, int64_t layer, enum phase phase,
                               struct error *err)
{
    const struct way_ops *way = ways[rank->transition->work_way];
    struct range pieces = {0, 0};
    int64_t count = way->piece_count(rank, layer, phase);
    struct stream *noted = NULL;
    enum status status = STATUS_OK;
    while (status == STATUS_OK && rank->refusal == STATUS_OK && pieces.first < count) {
        stream_take(rank);
        if (rank->stream != noted) /* once: a GPU would end what is on the stream before */
            stream_note_layer(rank, layer);
        noted = rank->stream;
        pieces.count = rank->is_lent ? count - pieces.first : 1;
        status = way->move(rank, layer, phase, pieces, err);
        if (status != STATUS_OK)
            stream_abort(rank, err);
        stream_give(rank);
        rank_moved(rank);
        pieces.first += pieces.count;
    }
    return status;
}

static void set_filling(struct transition_rank *rank, bool is_filling)
{
    transition_lock(rank->transition);
    rank->is_filling = is_filling;
    transition_unlock(rank->transition);
}

static enum status rank_fill(void *context, int index, struct error *err)
{
    struct transition *transition = context;
    struct transition_rank *rank = &transition->ranks[index];
    trace_layer(transition->work_layer);
    rank->refusal = STATUS_OK;
    set_filling(rank, true);
    enum status status = pieces_move(rank, transition->work_layer, transition->work_phase, err);
    set_filling(rank, false);
    return status;
}

void rank_moved(const struct transition_rank *rank)
{
    comm_domain_moved(box_domain(rank->transition->params.box), rank->index);
}

void way_refuse(struct transition_rank *rank, enum status status, const struct error *error)
{
    if (rank->refusal != STATUS_OK)
        return;
    rank->refusal = status;
    rank->refusal_error = *error;
}

/* ---- All ranks ------------------------------------------------------------------------------- */

/* This thread hears all ranks: its answer is their vote. */
enum status layer_fill(struct transition *transition, enum way way, int64_t layer, enum phase phase,
                       bool *has_refused, struct error *err)
{
    transition->work_way = way;
    transition->work_layer = layer;
    transition->work_phase = phase;
    *has_refused = false;
    trace_layer(layer);
    double begin = trace_begin();
    TRY(box_run_on(transition->params.box, &transition->hosts, rank_fill, transition, err));
    trace_add(begin, way_names[way], 0);
    for (int r = 0; r < transition->rank_count; r++) {
        const struct transition_rank *rank = &transition->ranks[r];
        if (rank->refusal == STATUS_OK)
            continue;
        *has_refused = true;
        if (err != NULL)
            *err = rank->refusal_error;
        return error_prefix(err, rank->refusal, "rank %d", r);
    }
    return STATUS_OK;
}

/* A native slice is never made of the backup's weights. */
static bool way_is_legal(const struct transition *transition, enum way way, int64_t layer)
{
    return !layer_is_int4(transition, layer) || ways[way]->takes_int4;
}

/* Layers that come by the one have the numbers of those that come by the other. */
static bool gives_the_same(enum way one, enum way other)
{
    return ways[one]->gives_int4 == ways[other]->gives_int4;
}

/* Another way, from here on, than one that could not move a layer; false where there is none. */
static bool way_next(struct transition *transition, enum way old, int64_t layer, enum phase phase,
                     const struct error *cause)
{
    enum way next = WAY_RESHARD;
    if (!transition->params.is_auto || old == next || !transition->is_open[next] ||
        !way_is_legal(transition, next, layer) ||
        (transition->params.keeps_format && !gives_the_same(old, next)))
        return false;
    log_write(&transition->params.log, LOG_WARNING,
              "the experts of layer %lld could not change their layout by %s (%s); going on by "
              "%s",
              (long long)layer, way_names[old], cause->message, way_names[next]);
    transition_lock(transition);
    transition->way[phase] = next;
    transition_unlock(transition);
    return true;
}

enum status layer_fill_anyhow(enum way *way, struct transition *transition, int64_t layer,
                              enum phase phase, struct error *err)
{
    struct error cause;
    enum status status;
    bool has_refused;
    do {
        *way = transition->way[phase];
        if (!way_is_legal(transition, *way, layer))
            *way = WAY_RELOAD;
        ASSERT(transition->is_open[*way]);
        status = layer_fill(transition, *way, layer, phase, &has_refused, &cause);
    } while (status != STATUS_OK && has_refused &&
             way_next(transition, *way, layer, phase, &cause));
    if (status != STATUS_OK && err != NULL)
        *err = cause;
    return status;
}

bool layer_reserve(struct transition *transition, int64_t layer, enum phase phase)
{
    bool has = true;
    for (int r = 0; r < transition->rank_count; r++)
        has &= expert_slots_reserve(transition->ranks[r].slots, layer, phase);
    return has; /* all ranks have the same number of slots */
}

void layer_give_back(struct transition *transition, int64_t layer, enum phase phase)
{
    for (int r = 0; r < transition->rank_count; r++)
        expert_slots_give_back(transition->ranks[r].slots, layer, phase);
}

bool layer_has_to_move(const struct transition *transition, int64_t layer, enum phase phase)
{
    const struct expert_slots *slots = transition->ranks[0].slots;
    return expert_slots_has(slots, layer) && slots->layers[layer].phase != phase;
}

/* ---- Poison ---------------------------------------------------------------------------------- */

/* Slots of the rank that no layer has: what was there is of no more use. */
static enum status rank_poison(void *context, int index, struct error *err)
{
    struct transition *transition = context;
    struct transition_rank *rank = &transition->ranks[index];
    stream_take(rank);
    for (int64_t spare = 0; spare < rank->slots->spare_count; spare++) {
        int64_t bytes = (int64_t)expert_slots_slot_bytes(rank->slots, PHASE_PREFILL);
        rank->ops->fill(
            rank->stream,
            &(struct op_fill){.out = rank->slots->spares[spare], .bytes = bytes, .byte = POISON});
    }
    enum status status = rank->ops->synchronize(rank->stream, err);
    if (status != STATUS_OK)
        stream_abort(rank, err);
    stream_give(rank);
    return status;
}

enum status spares_poison(struct transition *transition, struct error *err)
{
    if (transition->ranks[0].slots->spare_count == 0)
        return STATUS_OK;
    return box_run_on(transition->params.box, &transition->hosts, rank_poison, transition, err);
}

int64_t layer_next(const struct transition *transition, int64_t layer, enum phase phase)
{
    while (layer < transition->params.shape->layer_count &&
           !layer_has_to_move(transition, layer, phase))
        layer++;
    return layer;
}
