/* The plan that a run is opened with where nobody names one: that of the planner for the lengths of
 * its batch and the times of this box; static tensor parallelism where these were not measured.
 *
 * A run that is resumed keeps the plan of its record, whatever profile there is by then. */
#ifndef PHASOR_ENGINE_AUTO_PLAN_H
#define PHASOR_ENGINE_AUTO_PLAN_H

#include <limits.h>

#include "engine/batch_order.h"
#include "engine/batch_parts.h"
#include "engine/engine.h"
#include "engine/profile_file.h"
#include "model/fingerprint.h"
#include "phasor.h"
#include "planner/planner.h"

/* Seconds of a whole batch. */
struct plan_forecast {
    double prefill, decode;
    double between; /* changes of layout: what passes do not hide */
    double loads;   /* of the weights, between parts of the batch */
};

struct auto_plan {
    const char *profile_path;                /* NULL: the one in the cache */
    const char *routing_path;                /* counts (engine/routing_counts.h); NULL: none */
    const struct phasor_batch_params *batch; /* complete; NULL: there is none, but */
    struct plan_load load;                   /* such; of no sequences: nothing is known of it */
    /* Found: */
    bool is_measured; /* a plan was chosen by the times of these: */
    struct profile_identity identity;
    bool has_forecast; /* a plan was chosen for `input` */
    struct plan_forecast forecast;
    struct fingerprint input;
    uint8_t *class_of; /* of each row of it: see batch_order; NULL: the file's order is as good */
    int class_count;
    struct batch_staying staying; /* of no bins where all classes change their layouts */
    struct batch_parts parts;     /* of no parts where all rows have one plan; else they are these
                                   * classes' */
    int part;                     /* whose plan the engine has */
    int input_fd;                 /* of what cannot be read twice, or its copy; -1: none */
    char input_path[PATH_MAX];    /* as it was named */
};

void auto_plan_init(struct auto_plan *plan); /* nothing is known */
void auto_plan_deinit(struct auto_plan *plan);

/* engine_params.choose, with an auto_plan as its context; what that borrows is needed no longer.
 *
 * A profile that is not in the cache is a note where there are ranks to lay out; one that is of
 * another box, or stale, a warning; the choice is not made then. One that was named and is not
 * there, or that breaks its format, is a failure; so are such counts, and that no plan is chosen by
 * them is a warning. For a model without experts nothing is read, and what was named is a warning.
 * A plan is chosen only where it can be run: with the INT4 backup that is at hand, and by the way
 * that was asked for; where none can, a warning has what would fit. */
enum status auto_plan_choose(void *context, struct engine_choice *out,
                             const struct engine_basis *basis, struct error *err) MUST_CHECK;

/* Warns where the ranks that were opened have other parts of their GPUs than those by whose times
 * the plan was chosen. It stands: the weights are loaded by it. */
void auto_plan_check_box(const struct auto_plan *plan, const struct box *box,
                         const struct log_sink *log);

/* Whether the run's order was found for this input. */
bool auto_plan_has_order(const struct auto_plan *plan, const struct fingerprint *input);

/* The parts of such an input, borrowed from the plan; NULL: it has one plan. */
const struct batch_parts *auto_plan_parts(const struct auto_plan *plan);

/* In which the rows of `input` are predicted to be done soonest; borrowed from the plan. */
struct batch_order auto_plan_order(const struct auto_plan *plan, struct watch watch);

/* The input of that name that was read ahead and cannot be read again, now the caller's; -1: there
 * is none. */
int auto_plan_take_input(struct auto_plan *plan, const char *path);

#endif
