/* Which rows of a batch run under which plan, where they do not all have one: parts, one after
 * another (plan_parts.h), as they are fixed before the first row runs and kept in its record. */
#ifndef PHASOR_ENGINE_BATCH_PARTS_H
#define PHASOR_ENGINE_BATCH_PARTS_H

#include "base/json.h"
#include "engine/engine.h"
#include "planner/plan_mix.h"

struct batch_parts {
    int count;                    /* 0: all rows have one plan */
    int bin_count;                /* of the rows' mix */
    struct plan_classes classes;  /* of these bins: those of the first part come first */
    int class_end[PLAN_BINS_MAX]; /* of each part the class behind its last */
    struct engine_choice of[PLAN_BINS_MAX];
};

/* "tp2|tp2, then dp2|ep2": appended. */
void batch_parts_name(struct text *out, const struct batch_parts *parts);

/* As a record keeps them: a new reference, to null for no parts; NULL: out of memory. */
json_t *batch_parts_json(const struct batch_parts *parts);

/* False where `from` is not of parts whose plans a model of this shape has on so many ranks, with a
 * way for each change of layout, and with decode on a backup's weights in all parts or in none. */
bool batch_parts_parse(struct batch_parts *out, const json_t *from, const struct model_shape *shape,
                       int rank_count);

/* A plan as a record keeps it; false where it is not one of these. */
bool batch_choice_parse(struct engine_choice *out, const json_t *from,
                        const struct model_shape *shape, int rank_count);

/* Whether two records have the same rows under the same plans: not by which ways, and with which
 * passes and caches, which change no results but in last bits. */
bool batch_parts_are_alike(const json_t *one, const json_t *two);

#endif
