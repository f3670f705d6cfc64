/* Where nothing fits: what would. Of each change alone the least that does, found with the
 * problem's own memory function; no times are asked about. */
#ifndef PHASOR_PLANNER_PLAN_REMEDY_H
#define PHASOR_PLANNER_PLAN_REMEDY_H

#include "planner/planner.h"

struct plan_remedies {
    /* The candidate that takes least, with the fewest sequences and the shortest pass that may be
     * chosen; of the table. NULL: none is legal and allowed, and no memory would do. */
    const struct plan_candidate *smallest;
    uint64_t memory_bytes; /* of a device: what `smallest` takes */
    int64_t sequences;   /* the most together, below what may be chosen; 0: even one is too many */
    int64_t pass_tokens; /* the longest pass, below what may be chosen, that has a token for each
                          * sequence; 0: even the shortest is too long */
    bool int4_fits;      /* with all experts in INT4 */
    struct plan_memory int4;
    struct plan_layouts sequences_of, pass_of, int4_of; /* with which plan, where there is one */
};

/* `table` is of `problem`, and has no possible candidate. */
void plan_remedies_find(struct plan_remedies *out, const struct plan_problem *problem,
                        const struct plan_table *table);

#endif
