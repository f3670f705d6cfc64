/* What the transition's own sources share. transition.c: life, the layers in turn, the choice of a
 * way; ways.c: the table; way_*.c: how bytes come. */
#ifndef PHASOR_TRANSITION_TRANSITION_STATE_H
#define PHASOR_TRANSITION_TRANSITION_STATE_H

#include "comm/comm.h"
#include "layout/moves.h"
#include "transition/transition.h"

struct move_list {
    struct move *moves; /* [count] */
    int64_t count;
};

/* One rank's part in a transition. Its own host thread works on it. */
struct transition_rank {
    struct transition *transition;
    int index;
    struct device *device;
    const struct device_ops *ops;
    struct expert_slots *slots;
    struct comm *world;
    struct reshard_rank *reshard; /* way_reshard.c */
    struct reload_rank *reload;   /* way_reload.c */
    /* Why the rank cannot have the layer this way; STATUS_OK: it has it. */
    enum status refusal;
    struct error refusal_error;
};

/* A row of the table of ways. Each function is called on every rank, with the rank's own thread.
 *
 * `fill` writes the slice of the layer in the layout of the phase to the rank's target, and returns
 * when it is there. What another way may mend it tells by way_refuse, and returns STATUS_OK; what
 * it returns ends the box. */
struct way_ops {
    enum status (*open)(struct transition_rank *rank, struct error *err); /* all that it needs */
    void (*close)(struct transition_rank *rank); /* also where `open` failed or was not called */
    enum status (*fill)(struct transition_rank *rank, int64_t layer, enum phase phase,
                        struct error *err);
};
extern const struct way_ops *const ways[WAY_COUNT];

extern const struct way_ops way_keep, way_reshard, way_reload;

struct transition {
    struct transition_params params;
    int rank_count;
    struct transition_rank *ranks;     /* [rank_count] */
    struct transition_origin *origins; /* [layer_count] */
    bool is_open[WAY_COUNT];           /* has all that it needs */
    enum way way;
    struct transition_counters counters;

    /* What the ranks work at. */
    enum way work_way;
    int64_t work_layer;
    enum phase work_phase;
};

/* The move list of a rank to the layout of `phase`, in memory that move_list_deinit releases. */
enum status move_list_init(struct move_list *out, const struct transition *transition,
                           enum phase phase, int rank, struct move_rules rules,
                           struct error *err) MUST_CHECK;
void move_list_deinit(struct move_list *list); /* {0} is allowed */

/* The layout from which a layer goes to that of a phase. */
static inline enum phase phase_other(enum phase phase)
{
    return phase == PHASE_PREFILL ? PHASE_DECODE : PHASE_PREFILL;
}

/* The rank has no slice of the layer by this way: `error` says why. */
void way_refuse(struct transition_rank *rank, enum status status, const struct error *error);

#endif
