/* Which way is taken: the one that was asked for, or the one for which passes wait least. */
#include "base/memory.h"
#include "base/system.h"
#include "transition/exposed.h"
#include "transition/transition_state.h"

/* ---- What ways need --------------------------------------------------------------------------
 */

static void way_close(struct transition *transition, enum way way)
{
    transition->is_open[way] = false;
    for (int r = 0; r < transition->rank_count; r++)
        ways[way]->close(&transition->ranks[r]);
}

static enum status way_open(struct transition *transition, enum way way, struct error *err)
{
    enum status status = STATUS_OK;
    for (int r = 0; r < transition->rank_count && status == STATUS_OK; r++)
        status = ways[way]->open(&transition->ranks[r], err);
    transition->is_open[way] = status == STATUS_OK;
    if (status != STATUS_OK)
        way_close(transition, way);
    return status;
}

/* One that is not needed, only there to choose from: it may want what is not there. */
static enum status way_offer(struct transition *transition, enum way way, struct error *err)
{
    struct error cause;
    if (way_open(transition, way, &cause) != STATUS_OK)
        log_write(&transition->params.log, LOG_DEBUG,
                  "experts cannot change their layout by %s: %s", way_names[way], cause.message);
    return comm_domain_failure(box_domain(transition->params.box), err);
}

/* ---- By trial --------------------------------------------------------------------------------
 */

/* The first layer that can be moved; -1: none has experts. */
static int64_t first_layer(const struct transition *transition)
{
    for (int64_t layer = 0; layer < transition->params.shape->layer_count; layer++) {
        if (layer_has_to_move(transition, layer, PHASE_DECODE))
            return layer;
    }
    return -1;
}

/* There by the way, and back by that or the one that gives prefill its weights. */
static void transition_ways_set(struct transition *transition, enum way way)
{
    transition->way[PHASE_DECODE] = way;
    transition->way[PHASE_PREFILL] = way_back(way);
}

/* Seconds of one layer by a way, whose result is left in the target; negative where it refuses. */
static enum status way_probe(double *seconds, struct transition *transition, enum way way,
                             int64_t layer, struct error *err)
{
    bool has_refused, has_room = layer_reserve(transition, layer, PHASE_DECODE);
    ASSERT(has_room);
    transition->is_trial = true;
    double start = system_seconds();
    enum status status = layer_fill(transition, way, layer, PHASE_DECODE, &has_refused, err);
    transition->is_trial = false;
    layer_give_back(transition, layer, PHASE_DECODE);
    *seconds = has_refused ? -1 : system_seconds() - start;
    return has_refused ? STATUS_OK : status;
}

/* What the two parts of mixed need time for in the same measure, so that they end together; an
 * expert in each, at least, where there are two. */
static int part_of_mixed(const struct transition *transition, double reshard, double reload)
{
    int64_t experts = transition->params.shape->expert_count;
    int least = experts < 16 ? (int)ceil_div(16, experts) : 1;
    int part = (int)(16 * reload / (reshard + reload) + 0.5);
    return part < least ? least : part > 16 - least ? 16 - least : part;
}

/* Seconds of a layer by each way that is open; negative: it cannot be had so. Ranks may connect
 * when they first exchange something, which takes longer than to move a layer: that is done before.
 */
static enum status ways_probe(double seconds[WAY_COUNT], struct transition *transition,
                              struct error *err)
{
    int64_t layer = first_layer(transition);
    if (layer >= 0 && transition->is_open[WAY_RESHARD])
        TRY(way_probe(&seconds[WAY_RESHARD], transition, WAY_RESHARD, layer, err));
    for (int way = WAY_RESHARD; way < WAY_COUNT; way++) {
        seconds[way] = -1;
        if (layer >= 0 && transition->is_open[way])
            TRY(way_probe(&seconds[way], transition, (enum way)way, layer, err));
    }
    return STATUS_OK;
}

/* With the parts that the trial of the other two says. */
static enum status mixed_offer(double seconds[WAY_COUNT], struct transition *transition,
                               struct error *err)
{
    if (seconds[WAY_RESHARD] < 0 || seconds[WAY_RELOAD] < 0)
        return STATUS_OK;
    transition->mixed_part = part_of_mixed(transition, seconds[WAY_RESHARD], seconds[WAY_RELOAD]);
    TRY(way_offer(transition, WAY_MIXED, err));
    if (!transition->is_open[WAY_MIXED])
        return STATUS_OK;
    return way_probe(&seconds[WAY_MIXED], transition, WAY_MIXED, first_layer(transition), err);
}

/* What was opened for a trial is opened anew to stay: then memory may be locked for it. Where that
 * fails it is not open. */
static enum status upload_settle(struct transition *transition, struct error *err)
{
    way_close(transition, WAY_UPLOAD);
    transition->has_chosen = true;
    return way_offer(transition, WAY_UPLOAD, err);
}

static void log_choice(const struct transition *transition, const double seconds[WAY_COUNT],
                       const double exposed[WAY_COUNT], enum way way)
{
    const struct log_sink *log = &transition->params.log;
    for (int w = WAY_RESHARD; w < WAY_COUNT; w++) {
        if (exposed[w] >= 0)
            log_write(log, LOG_DEBUG,
                      "experts change their layout by %s in %.6f s a layer; a wave would wait %.6f "
                      "s for all of them, there and back",
                      way_names[w], seconds[w], exposed[w]);
    }
    log_write(log, LOG_DEBUG,
              "experts change their layout by %s: what %.6f s of prefill do not hide is least",
              way_names[way], transition->params.prefill_seconds);
}

/* By a change of one layer, which is what a layer back takes, too, as far as it can be tried here:
 * from the backup's weights a reload reads more. */
static enum status way_try(struct transition *transition, struct error *err)
{
    const struct exposure exposure = {
        .layer_count = transition->params.shape->moe_layer_count,
        .spare_count = transition->ranks[0].slots->spare_count,
        .prefill_seconds = transition->params.prefill_seconds,
        .last_pass_seconds = transition->params.prefill_seconds,
    };
    double seconds[WAY_COUNT], exposed[WAY_COUNT];
    TRY(ways_probe(seconds, transition, err));
    TRY(mixed_offer(seconds, transition, err));
    ways_exposed(exposed, seconds, &exposure);
    enum way way = way_least(exposed);
    if (way == WAY_UPLOAD) {
        TRY(upload_settle(transition, err));
        if (!transition->is_open[WAY_UPLOAD])
            exposed[WAY_UPLOAD] = -1;
        way = way_least(exposed);
    }
    transition_ways_set(transition, way);
    for (int w = WAY_RELOAD; w < WAY_COUNT; w++) {
        if (w != (int)transition->way[PHASE_DECODE] && w != (int)transition->way[PHASE_PREFILL])
            way_close(transition, (enum way)w);
    }
    log_choice(transition, seconds, exposed, way);
    return STATUS_OK;
}

/* ---- As it was asked for ---------------------------------------------------------------------
 */

/* Packed slices come from the backup alone: of that there is no choice. */
static bool may_choose(const struct transition *transition)
{
    const struct transition_params *params = &transition->params;
    return params->is_auto && !transition->ranks[0].slots->keeps_both &&
           !params->layouts->decode_is_packed;
}

/* Resident slots are filled by it. */
static enum way way_to_fill(const struct transition *transition)
{
    return transition->params.layouts->decode_is_packed ? WAY_UPLOAD : WAY_RESHARD;
}

/* The way of params, or what is_auto means where there is no choice. */
static enum way way_given(const struct transition *transition)
{
    if (!transition->params.is_auto)
        return transition->params.way;
    return transition->ranks[0].slots->keeps_both ? WAY_KEEP : WAY_UPLOAD;
}

/* The second layout of resident slots. */
static enum status both_fill(struct transition *transition, enum way way, struct error *err)
{
    bool has_refused;
    for (int64_t layer = 0; layer < transition->params.shape->layer_count; layer++) {
        if (!layer_has_to_move(transition, layer, PHASE_DECODE))
            continue;
        enum status status = layer_fill(transition, way, layer, PHASE_DECODE, &has_refused, err);
        if (status != STATUS_OK)
            return error_prefix(err, status, "layer %lld, its experts for decode by %s",
                                (long long)layer, way_names[way]);
    }
    return STATUS_OK;
}

/* Reshard stands by for what others cannot do; the parts of mixed are found by trial. Of which
 * numbers decode has a trial would let the clock decide. */
enum status ways_open(struct transition *transition, struct error *err)
{
    const struct transition_params *params = &transition->params;
    if (!may_choose(transition)) {
        enum way way = way_given(transition);
        TRY(way_open(transition, way == WAY_MIXED ? WAY_RESHARD : way, err));
        if (way == WAY_KEEP)
            return way_open(transition, way_to_fill(transition), err);
        return way == WAY_UPLOAD || way == WAY_MIXED ? way_open(transition, WAY_RELOAD, err)
                                                     : STATUS_OK;
    }
    TRY(way_open(transition, WAY_RESHARD, err));
    TRY(way_offer(transition, WAY_RELOAD, err));
    return params->backup == NULL || params->keeps_format ? STATUS_OK
                                                          : way_offer(transition, WAY_UPLOAD, err);
}

static enum status mixed_take(struct transition *transition, struct error *err)
{
    double seconds[WAY_COUNT];
    TRY(ways_probe(seconds, transition, err));
    way_close(transition, WAY_RESHARD);
    way_close(transition, WAY_RELOAD);
    bool is_known = seconds[WAY_RESHARD] >= 0 && seconds[WAY_RELOAD] >= 0;
    transition->mixed_part =
        is_known ? part_of_mixed(transition, seconds[WAY_RESHARD], seconds[WAY_RELOAD]) : 8;
    return way_open(transition, WAY_MIXED, err);
}

enum status way_choose(struct transition *transition, struct error *err)
{
    if (may_choose(transition))
        return way_try(transition, err);
    enum way way = way_given(transition);
    transition_ways_set(transition, way);
    ASSERT(transition->ranks[0].slots->keeps_both == (way == WAY_KEEP));
    if (way == WAY_MIXED)
        return mixed_take(transition, err);
    if (way != WAY_KEEP)
        return STATUS_OK;
    TRY(both_fill(transition, way_to_fill(transition), err));
    way_close(transition, way_to_fill(transition));
    return STATUS_OK;
}
