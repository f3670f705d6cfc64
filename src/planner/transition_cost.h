/* What a change of the experts' layout between the phases costs beyond what passes hide.
 *
 * HAP's equation 6 takes the larger of zero and what the transition takes beyond prefill. Here it
 * is followed layer by layer, as src/transition does it: a layer is written to a spare slot, it can
 * be swapped when the last pass of prefill is done with it, its old slot is the next spare, and
 * decode waits for each layer alone.
 */
#ifndef PHASOR_PLANNER_TRANSITION_COST_H
#define PHASOR_PLANNER_TRANSITION_COST_H

#include <stdbool.h>

#include "layout/expert_form.h"
#include "planner/profile.h"

struct hiding {
    int64_t layers;      /* that move */
    int64_t spares;      /* >= 1: slots that may be written before any layer is released */
    bool is_beside;      /* it works while passes run; else it begins behind them */
    double layer;        /* seconds that a layer takes, alone */
    double layer_link;   /* of them those in which it comes over a link from the host */
    double exchanging;   /* of the seconds of prefill, in which ranks exchange */
    double link_sharing; /* profile_link_sharing */
    double prefill;      /* seconds of all passes of prefill */
    double last_pass;    /* of them the last: layers are released evenly in it */
    double decode_layer; /* seconds of a layer in decode */
};

/* Seconds by which decode's first step ends later than with all layers there.
 *
 * What is copied beside exchanges holds them up, and they it: on one link each has half of it, so a
 * second of exchange takes two, in which a second's worth is copied. Copies are then as far as they
 * would be, and passes end later by the exchanges that had copies beside them. */
double hiding_exposed(const struct hiding *hiding);

/* Bytes of one layer's change. */
struct change {
    double received; /* of the rank to which most are sent */
    double read;     /* of a file, by all ranks together */
    double backup;   /* in it for all layers, where it is a backup; else 0 */
    double file;     /* of it those that are read again and again */
    double taken;    /* of it, by the rank that takes most */
    double values;   /* weights that it has to dequantize or to pack */
};

/* From the experts' layout `from` to `to`, both of numbers `type`, by each way. */
struct change change_by_reshard(const struct model_shape *shape, const struct layout *from,
                                const struct layout *to, struct expert_type type);
struct change change_by_reload(const struct model_shape *shape, const struct layout *from,
                               const struct layout *to, struct expert_type type);

/* Of the whole slice of `to`, from a backup of numbers `backup`. */
struct change change_by_upload(const struct model_shape *shape, const struct layout *to,
                               struct expert_type backup);

/* Seconds that the rank which takes most has the link from the host, of a layer. */
double change_link_seconds(const struct profile *profile, const struct change *change);

/* Seconds of a layer. */
double change_reshard_seconds(const struct profile *profile, const struct change *change,
                              int rank_count);
double change_reload_seconds(const struct profile *profile, const struct change *change);
double change_upload_seconds(const struct profile *profile, const struct change *change,
                             bool is_packed);

#endif
