/* From one layout of the experts to the other, and back.
 *
 * A layer at a time: on every rank its new slice is written to a target that nobody reads
 * (store/expert_slots.h); when all ranks have theirs, and not before, the layer is swapped on all
 * of them by one thread. So a failure leaves every layer whole, in the old layout or the new, the
 * same on all ranks, and the next way may go on where one stopped. How the bytes come is the *way*:
 * one row of the table in ways.c, one file each.
 *
 * Runs between passes; all functions are called by one host thread, the ranks' own threads work
 * inside them.
 * Source: HAP, section III-D; where it prices a transition, this executes it.
 */
#ifndef PHASOR_TRANSITION_TRANSITION_H
#define PHASOR_TRANSITION_TRANSITION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/log.h"
#include "comm/box.h"
#include "model/checkpoint.h"
#include "store/expert_slots.h"

enum way {
    WAY_KEEP,    /* both layouts are resident, and the other one is used */
    WAY_RESHARD, /* ranks send one another what the receiver lacks */
    WAY_RELOAD,  /* what a rank lacks is read from the checkpoint */
    WAY_COUNT
};

/* "keep", "reshard", "reload". */
extern const char *const way_names[WAY_COUNT];

struct transition_params {
    struct box *box; /* its tags are traffic_names */
    const struct checkpoint *checkpoint;
    const struct model_shape *shape;
    const struct plan_layouts *layouts; /* that differ */
    struct expert_slots *const *slots;  /* [rank_count], loaded; keeps_both alike on all. The array
                                         * is read by transition_create alone */
    bool is_auto;       /* keep where both are resident, else what a probe finds faster */
    enum way way;       /* without is_auto. WAY_KEEP and resident slots go together */
    bool poisons_freed; /* tests: slots that nobody needs are filled with 0xff */
    struct log_sink log;
};

/* Borrows all that is in `params`, until destroyed. Takes what moving needs, so that a transition
 * allocates nothing. With resident slots the second layout is filled; with is_auto the first layer
 * with experts is written to its target by each way, and the faster is taken. */
struct transition;
enum status transition_create(struct transition **out, const struct transition_params *params,
                              struct error *err) MUST_CHECK;
void transition_destroy(struct transition *transition); /* NULL is allowed */

/* All layers get the layout of `phase`; those that have it stay as they are. With is_auto a way
 * that fails (a file that cannot be read) is left for another with one warning. STATUS_OK: all
 * layers have it. Else each layer has one of the two, the same on all ranks; where the failure is
 * of the box nothing more can be run, and otherwise passes may go on and the call may be repeated.
 */
enum status transition_run(struct transition *transition, enum phase phase,
                           struct error *err) MUST_CHECK;

/* How a layer came to what it has. */
struct transition_origin {
    bool has_experts; /* else the rest means nothing */
    enum phase phase;
    bool is_loaded; /* as the model was loaded: no transition yet */
    enum way way;
};
struct transition_origin transition_layer(const struct transition *transition, int64_t layer);

enum way transition_way(const struct transition *transition); /* of the next transition */

struct transition_counters {
    int64_t transition_count; /* of which a layer was to move */
    int64_t layer_count;      /* moved */
    double seconds;
};
struct transition_counters transition_counters_get(const struct transition *transition);

#endif
