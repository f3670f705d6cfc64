/* The layers in turn: by one thread, which drives a host thread for each rank, while the caller
 * waits between passes or passes run beside it. */
#include "base/memory.h"
#include "base/perturb.h"
#include "base/system.h"
#include "base/trace.h"
#include "transition/transition_state.h"

/* Only to lock: nobody changes what he was given to look at. */
static struct transition *unlocked(const struct transition *transition)
{
    return (struct transition *)(uintptr_t)transition;
}

void transition_lock(const struct transition *transition)
{
    perturb();
    pthread_mutex_lock(&unlocked(transition)->lock);
}

void transition_unlock(const struct transition *transition)
{
    pthread_mutex_unlock(&unlocked(transition)->lock);
    perturb();
}

/* ---- Waiting, under the lock ------------------------------------------------------------------
 */

static struct comm_domain *domain_of(const struct transition *transition)
{
    return box_domain(transition->params.box);
}

/* Until something has changed, or for a moment, after which there may be nobody to say so: the box
 * may have failed. */
static void wait_a_moment(struct transition *transition)
{
    struct timespec until = system_moment(comm_domain_poll_seconds(domain_of(transition)));
    record_pause();
    pthread_cond_timedwait(&transition->changed, &transition->lock, &until);
    record_resume();
}

static bool box_has_failed(const struct transition *transition)
{
    return comm_domain_failure(domain_of(transition), NULL) != STATUS_OK;
}

/* Who waits for a layer ends the run when nobody moves: whoever is to bring it may wait for nobody,
 * and so be missed by no collective. That is told at once: a read that hangs cannot be taken back,
 * and whoever is to hear of the failure waits until it returns. */
static void watch(struct transition *transition)
{
    double seconds = comm_domain_quiet_seconds(domain_of(transition));
    if (seconds <= 0 || box_has_failed(transition))
        return;
    for (int r = 0; r < transition->rank_count; r++) {
        struct error cause;
        if (!transition->ranks[r].is_filling)
            continue;
        error_set(&cause, STATUS_INTERNAL,
                  "has not finished changing the layout of its experts in layer %lld, for which "
                  "others wait; no rank has moved for %g seconds",
                  (long long)transition->work_layer, seconds);
        comm_domain_abort(domain_of(transition), r, &cause);
        transition_unlock(transition);
        log_write(&transition->params.log, LOG_WARNING, "rank %d %s; the run ends when it does", r,
                  cause.message);
        transition_lock(transition);
        return;
    }
}

/* ---- The mover --------------------------------------------------------------------------------
 */

/* Whether nobody needs the layer as it was. Under the lock, as what follows. */
static bool all_released(const struct transition *transition, int64_t layer)
{
    return !transition->needs_release || transition->released[layer] == transition->rank_count;
}

/* A pass that releases layers still runs. */
static bool later_is_needed(const struct transition *transition, int64_t layer)
{
    while (++layer < transition->params.shape->layer_count) {
        if (transition->ranks[0].slots->layers[layer].weights != NULL &&
            !all_released(transition, layer))
            return true;
    }
    return false;
}

/* Whether the layer may be swapped; with `waits`, when it may, and false where that will not be. */
static bool may_swap(struct transition *transition, int64_t layer, bool waits)
{
    transition_lock(transition);
    while (waits && !all_released(transition, layer) && !transition->is_stopping &&
           !box_has_failed(transition))
        wait_a_moment(transition);
    bool may = all_released(transition, layer) && !box_has_failed(transition);
    for (int r = 0; may && transition->needs_release && r < transition->rank_count; r++)
        record_need(transition->releases[layer * transition->rank_count + r]);
    transition_unlock(transition);
    return may;
}

/* On all ranks at once, for everybody who looks. */
static void layer_swap(struct transition *transition, int64_t layer, enum phase phase)
{
    enum way way = transition->filled_by[layer];
    bool is_packed = phase == PHASE_DECODE && transition->params.layouts->decode_is_packed;
    struct transition_counters *counters = &transition->counters;
    transition_lock(transition);
    for (int r = 0; r < transition->rank_count; r++) {
        struct expert_slots *slots = transition->ranks[r].slots;
        expert_slots_swap(slots, layer, phase);
        slots->layers[layer].is_int4 = ways[way]->gives_int4 || is_packed;
    }
    transition->origins[layer] =
        (struct transition_origin){.has_experts = true, .phase = phase, .way = way};
    counters->layer_count++;
    counters->early_count += later_is_needed(transition, layer);
    counters->transition_count += !transition->has_moved;
    transition->has_moved = true;
    transition->swaps[layer] = record_mark();
    pthread_cond_broadcast(&transition->changed);
    transition_unlock(transition);
}

static bool is_stopping(const struct transition *transition)
{
    transition_lock(transition);
    bool stopping = transition->is_stopping;
    transition_unlock(transition);
    return stopping;
}

/* Layers are filled as long as there is room, and swapped in the same order, each when nobody needs
 * it as it was: layers before `*swapped` have been, those before `*filled` are there. */
static enum status layers_fill_and_swap(struct transition *transition, enum phase phase,
                                        int64_t *swapped, int64_t *filled, struct error *err)
{
    int64_t end = transition->params.shape->layer_count;
    for (*filled = *swapped = layer_next(transition, 0, phase);
         *swapped < end && !is_stopping(transition);) {
        bool has_room = *filled < end && layer_reserve(transition, *filled, phase);
        if (*swapped < *filled && may_swap(transition, *swapped, !has_room)) {
            layer_swap(transition, *swapped, phase);
            *swapped = layer_next(transition, *swapped + 1, phase);
            if (transition->params.poisons_freed)
                TRY(spares_poison(transition, err));
        } else if (has_room) {
            TRY(layer_fill_anyhow(&transition->filled_by[*filled], transition, *filled, phase,
                                  err));
            *filled = layer_next(transition, *filled + 1, phase);
        } else {
            return comm_domain_failure(domain_of(transition), err); /* or it is to stop */
        }
    }
    return STATUS_OK;
}

/* What some ways have begun for layers that did not come by them. */
static void ways_end(const struct transition *transition)
{
    for (enum way way = 0; way < WAY_COUNT; way++) {
        if (!transition->is_open[way] || ways[way]->end == NULL)
            continue;
        for (int r = 0; r < transition->rank_count; r++)
            ways[way]->end(&transition->ranks[r]);
    }
}

static enum status layers_move(struct transition *transition, enum phase phase, struct error *err)
{
    int64_t swapped, filled;
    enum status status = layers_fill_and_swap(transition, phase, &swapped, &filled, err);
    if (status != STATUS_OK)
        error_prefix(err, status, "layer %lld, changing the layout of its experts by %s",
                     (long long)transition->work_layer, way_names[transition->work_way]);
    ways_end(transition);
    /* What is there in vain, and what was to come. */
    for (int64_t layer = swapped; layer < transition->params.shape->layer_count; layer++) {
        if (layer_has_to_move(transition, layer, phase))
            layer_give_back(transition, layer, phase);
    }
    return status;
}

/* What fails while passes run would fail beside each of them: it is told once, and left to who
 * waits between them. Under the lock. */
static void give_up_beside(struct transition *transition, enum phase phase,
                           const struct error *cause)
{
    if (!transition->needs_release || box_has_failed(transition))
        return;
    transition->is_given_up[phase] = true;
    transition_unlock(transition);
    log_write(
        &transition->params.log, LOG_WARNING,
        "experts could not change their layout beside passes (%s); it is tried once more between "
        "them",
        cause->message);
    transition_lock(transition);
}

static void *mover_main(void *context)
{
    struct transition *transition = context;
    trace_lane_use(transition->lane);
    transition_lock(transition);
    for (;;) {
        record_pause();
        while (!transition->is_moving && !transition->is_quitting)
            pthread_cond_wait(&transition->changed, &transition->lock);
        if (!transition->is_moving)
            break;
        record_need(transition->begun);
        record_resume();
        enum phase phase = transition->phase;
        transition_unlock(transition);
        struct error error = {.message = ""};
        enum status status = layers_move(transition, phase, &error);
        transition_lock(transition);
        if (status != STATUS_OK)
            give_up_beside(transition, phase, &error);
        transition->status = status;
        transition->error = error;
        transition->ended = record_mark();
        transition->is_moving = false;
        pthread_cond_broadcast(&transition->changed);
    }
    transition_unlock(transition);
    return NULL;
}

enum status mover_init(struct transition *transition, struct error *err)
{
    pthread_mutex_init(&transition->lock, NULL);
    system_condition_init(&transition->changed);
    transition->lane = trace_lane_add(box_trace(transition->params.box), -1, "transition");
    record_lane_set(transition->lane, RECORD_LANE_HOST);
    int failure = pthread_create(&transition->mover, NULL, mover_main, transition);
    transition->has_mover = failure == 0;
    return failure == 0 ? STATUS_OK
                        : error_set_errno(err, failure, "cannot start the thread of transitions");
}

void mover_deinit(struct transition *transition)
{
    transition_lock(transition);
    transition->is_stopping = true;
    transition->is_quitting = true;
    pthread_cond_broadcast(&transition->changed);
    transition_unlock(transition);
    if (transition->has_mover)
        pthread_join(transition->mover, NULL);
    pthread_cond_destroy(&transition->changed);
    pthread_mutex_destroy(&transition->lock);
}

/* ---- For who waits between passes -------------------------------------------------------------
 */

/* Under the lock; nothing is under way. */
static void begin(struct transition *transition, enum phase phase, bool needs_release)
{
    if (layer_next(transition, 0, phase) == transition->params.shape->layer_count)
        return;
    for (int64_t layer = 0; layer < transition->params.shape->layer_count; layer++)
        transition->released[layer] = 0;
    transition->phase = phase;
    transition->needs_release = needs_release;
    transition->is_stopping = false;
    transition->is_moving = true;
    transition->has_moved = false;
    transition->begun = record_mark();
    pthread_cond_broadcast(&transition->changed);
}

static void set_awaits(struct transition *transition, int64_t awaits)
{
    for (int r = 0; r < transition->rank_count; r++)
        transition->ranks[r].awaits = awaits;
}

void mover_lend_all(struct transition *transition, bool are_lent)
{
    transition_lock(transition);
    set_awaits(transition, are_lent ? AWAITS_ALL : AWAITS_NONE);
    transition_unlock(transition);
}

void transition_watch(struct transition *transition, const struct watch *watch)
{
    transition->watch = *watch;
}

/* Asks whether to go on, without the lock; if not, no further layer moves. Within a pass others may
 * come to a collective meanwhile: however long the answer takes, they have patience. */
static enum status ask(struct transition *transition, struct error *err)
{
    transition_unlock(transition);
    comm_domain_set_away(domain_of(transition), true);
    enum status status = watch_ask(&transition->watch, err);
    comm_domain_set_away(domain_of(transition), false);
    transition_lock(transition);
    if (status != STATUS_OK) {
        transition->is_stopping = true;
        pthread_cond_broadcast(&transition->changed);
    }
    return status;
}

static void end_await(struct transition *transition)
{
    while (transition->is_moving) {
        wait_a_moment(transition);
        watch(transition);
    }
}

/* The same, and asks with each layer that has come; not to the end, where the answer is to stop. */
static enum status end_await_asking(struct transition *transition, struct error *err)
{
    while (transition->is_moving) {
        wait_a_moment(transition);
        watch(transition);
        if (transition->is_moving)
            TRY(ask(transition, err));
    }
    return STATUS_OK;
}

enum status transition_run(struct transition *transition, enum phase phase, struct error *err)
{
    double start = system_seconds(), traced = trace_begin();
    transition_lock(transition);
    set_awaits(transition, AWAITS_ALL); /* no pass runs */
    if (transition->is_moving && (transition->phase != phase || transition->is_stopping)) {
        transition->is_stopping = true;
        pthread_cond_broadcast(&transition->changed);
        end_await(transition);
    }
    transition->status = STATUS_OK;
    bool has_any = layer_next(transition, 0, phase) < transition->params.shape->layer_count;
    enum status status = has_any ? ask(transition, err) : STATUS_OK;
    /* What was given up beside passes may be about to end, and is to be tried once more. */
    if (transition->is_given_up[phase])
        end_await(transition);
    transition->is_given_up[phase] = false;
    if (transition->is_moving)
        transition->needs_release = false;
    else if (status == STATUS_OK)
        begin(transition, phase, false);
    pthread_cond_broadcast(&transition->changed);
    if (status == STATUS_OK)
        status = end_await_asking(transition, err);
    end_await(transition);
    record_need(transition->ended);
    if (has_any)
        trace_add(traced, "transition", 0);
    set_awaits(transition, AWAITS_NONE);
    transition->counters.seconds += system_seconds() - start;
    /* The answer of who was asked stays, whatever became of the layer that still moved. */
    if (transition->status != STATUS_OK && (status == STATUS_OK || box_has_failed(transition))) {
        status = transition->status;
        if (err != NULL)
            *err = transition->error;
    }
    transition_unlock(transition);
    /* What was started may have broken the box behind its last layer. */
    return status != STATUS_OK ? status : comm_domain_failure(domain_of(transition), err);
}

/* ---- For passes -------------------------------------------------------------------------------
 */

void transition_start(struct transition *transition, enum phase phase)
{
    transition_lock(transition);
    ASSERT(!transition->is_moving || transition->phase == phase);
    if (!transition->is_moving && !transition->is_given_up[phase])
        begin(transition, phase, true);
    transition_unlock(transition);
}

bool transition_is_under_way(const struct transition *transition)
{
    transition_lock(transition);
    bool is_moving = transition->is_moving;
    transition_unlock(transition);
    return is_moving;
}

struct release {
    const struct transition_rank *rank;
    int64_t layer;
};

static enum status release_run(void *argument, struct error *err)
{
    const struct release *release = argument;
    struct transition *transition = release->rank->transition;
    (void)err;
    trace_name("");
    struct record_mark mark = record_mark();
    transition_lock(transition);
    transition->releases[release->layer * transition->rank_count + release->rank->index] = mark;
    transition->released[release->layer]++;
    pthread_cond_broadcast(&transition->changed);
    transition_unlock(transition);
    return STATUS_OK;
}

void transition_release(struct transition *transition, int rank, int64_t layer)
{
    const struct transition_rank *of = &transition->ranks[rank];
    struct release release = {of, layer};
    of->ops->call(of->device->stream, release_run, &release, sizeof release);
}

/* Under the lock. */
static bool is_there(const struct transition *transition, int rank, int64_t layer)
{
    return !transition->is_moving || box_has_failed(transition) ||
           transition->ranks[rank].slots->layers[layer].phase == transition->phase;
}

enum status transition_await(struct transition *transition, int rank, int64_t layer,
                             struct error *err)
{
    struct transition_rank *of = &transition->ranks[rank];
    transition_lock(transition);
    of->awaits = layer;
    bool is_asking = rank == 0;
    while (!is_there(transition, rank, layer)) {
        struct error known; /* to who is asked, and is asked again behind the pass */
        is_asking = is_asking && ask(transition, &known) == STATUS_OK;
        if (is_there(transition, rank, layer))
            break;
        wait_a_moment(transition);
        watch(transition);
    }
    of->awaits = AWAITS_NONE;
    while (of->is_lent)
        wait_a_moment(transition);
    record_need(transition->swaps[layer]);
    transition_unlock(transition);
    return comm_domain_failure(domain_of(transition), err);
}
