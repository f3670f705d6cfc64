/* What the transition's own sources share. transition.c: life; choice.c: the choice of a way;
 * exposed.c: by which numbers; layers.c: a layer on all ranks, by way after way; mover.c: the
 * layers in turn, between passes or beside them; ways.c: the table; way_*.c: how bytes come. */
#ifndef PHASOR_TRANSITION_TRANSITION_STATE_H
#define PHASOR_TRANSITION_TRANSITION_STATE_H

#include <pthread.h>

#include "base/record.h"
#include "comm/box.h"
#include "comm/comm.h"
#include "device/thread_team.h"
#include "layout/moves.h"
#include "transition/transition.h"

struct move_list {
    struct move *moves; /* [count] */
    int64_t count;
};

/* Some of the experts of each layer, spread evenly: `of_16` of 16 of them, or the others. */
struct expert_part {
    int of_16;
    bool is_of_others;
};
#define ALL_EXPERTS ((struct expert_part){16, false})

/* Of `awaits`: no layer, or all. */
#define AWAITS_NONE (-1)
#define AWAITS_ALL  INT64_MAX

/* One rank's part in a transition. A thread of the transition's hosts works on it. */
struct transition_rank {
    struct transition *transition;
    int index;
    struct device *device;
    const struct device_ops *ops;
    struct expert_slots *slots;
    struct comm *world;
    struct reshard_rank *reshard; /* way_reshard.c */
    struct reload_rank *reload;   /* way_reload.c */
    struct upload_rank *upload;   /* way_upload.c */
    struct mixed_rank *mixed;     /* way_mixed.c */
    struct expert_part part;      /* that it moves: all, but for the doubles of way_mixed.c */
    struct stream *beside;        /* of low priority */
    /* Of what is put on `beside`, and while device->stream is lent, on that: in a recording it is
     * beside the passes all the same. */
    struct trace_lane *beside_lane;
    struct trace_lane *reads; /* of a recording: what it reads of files */
    /* For the pieces that are moved now: device->stream, with all workers, or the one beside. */
    struct stream *stream;
    bool is_lent;     /* it is device->stream */
    bool is_recorded; /* and what is put there, as of beside_lane */
    /* Why the rank cannot have the layer this way; STATUS_OK: it has it. */
    enum status refusal;
    struct error refusal_error;

    /* Under the transition's lock: */
    int64_t awaits;  /* the layer for which the rank's own thread waits, its stream lent */
    bool is_filling; /* its slice of the layer is being written */
};

/* A row of the table of ways. Each function is called on every rank, by a thread of the rank.
 *
 * A layer's slice comes in pieces, small enough that one on a stream of low priority is short.
 * `move` writes some of them, in the layout of the phase, to the rank's target: on rank->stream,
 * and where that is lent on all workers. They are there when it returns; but on a stream of low
 * priority that may be true of the last pieces of a layer alone, for all, and when it refuses or
 * fails nothing of the layer is on any stream. What another way may mend it tells by way_refuse,
 * and returns STATUS_OK; what it returns ends the box. */
struct way_ops {
    /* NULL: next to nothing; or see transition_way_bytes: its own part of it. */
    uint64_t (*bytes)(const struct expert_slots_params *slots, const struct device *device);
    enum status (*open)(struct transition_rank *rank, struct error *err); /* all that it needs */
    void (*close)(struct transition_rank *rank); /* also where `open` failed or was not called */
    int64_t (*piece_count)(const struct transition_rank *rank, int64_t layer, enum phase phase);
    enum status (*move)(struct transition_rank *rank, int64_t layer, enum phase phase,
                        struct range pieces, struct error *err);
    /* NULL, or gives up what was begun for layers to come. The transition has ended, how it may; no
     * thread of the rank works on it. */
    void (*end)(struct transition_rank *rank);
    bool takes_int4; /* a layer may come from there that has the backup's weights */
    bool gives_int4; /* it has them afterwards */
};
extern const struct way_ops *const ways[WAY_COUNT];

extern const struct way_ops way_keep, way_reshard, way_reload, way_upload, way_mixed;

/* way_reload.c: what workers read through. */
uint64_t reload_bytes(const struct expert_slots_params *slots, const struct device *device);

/* way_reshard.c: puts a round of the rank's messages on rank->stream, which has to be synchronized
 * before the next. */
void reshard_put(struct transition_rank *rank, int64_t layer, enum phase phase, int64_t round);

struct transition {
    struct transition_params params;
    int rank_count;
    struct transition_rank *ranks;    /* [rank_count] */
    bool is_open[WAY_COUNT];          /* has all that it needs */
    bool has_chosen;                  /* what is opened now stays */
    int mixed_part;                   /* of 16 experts, those that mixed sends */
    struct granule_readers *granules; /* way_upload.c */
    struct box_hosts hosts;           /* beside the box's own */

    /* What they work at. */
    enum way work_way;
    int64_t work_layer;
    enum phase work_phase;
    bool is_trial; /* of a way: the layer is moved alone, to see how long that takes */

    /* The mover: the thread that drives them, once the transition is made. */
    bool has_mover;
    struct trace_lane *lane; /* its own */
    pthread_t mover;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* anything below, or a rank's part */
    bool is_moving;         /* under way; the mover's to end */
    bool is_stopping;       /* is to end before its next layer */
    bool is_quitting;
    bool needs_release;            /* of a layer by all ranks, before it is swapped */
    enum phase phase;              /* to whose layout */
    bool has_moved;                /* a layer */
    bool is_given_up[PHASE_COUNT]; /* beside passes, until it has been tried between them */
    int *released;                 /* [layer_count] ranks that have */
    /* Of a recording: what was begun, each rank's release of a layer, its swap, and the end. */
    struct record_mark begun, ended;
    struct record_mark *releases; /* [layer_count][rank_count] */
    struct record_mark *swaps;    /* [layer_count] */
    enum status status;           /* how it ended */
    struct error error;
    enum way *filled_by; /* [layer_count] of those that are not swapped yet; the mover's */

    /* Under the lock, too: others look. */
    struct transition_origin *origins; /* [layer_count] */
    enum way way[PHASE_COUNT];         /* to there */
    struct transition_counters counters;

    struct watch watch; /* of who drives the box, and asked by that thread alone */
};

/* The lock of what may be const to who only looks. */
void transition_lock(const struct transition *transition);
void transition_unlock(const struct transition *transition);

/* choice.c. Opens the ways that may be needed, without those that a trial decides about. */
enum status ways_open(struct transition *transition, struct error *err) MUST_CHECK;
/* With spares that have been written to: sets the way to each phase, and fills the second layout of
 * resident slots. */
enum status way_choose(struct transition *transition, struct error *err) MUST_CHECK;

/* layers.c. The layer's slices are in their targets on all ranks, or `*has_refused`: on some they
 * are not, and `err` says why. */
enum status layer_fill(struct transition *transition, enum way way, int64_t layer, enum phase phase,
                       bool *has_refused, struct error *err) MUST_CHECK;
/* The same by the way to there, and way after way where there is a choice; `*way` is the last. */
enum status layer_fill_anyhow(enum way *way, struct transition *transition, int64_t layer,
                              enum phase phase, struct error *err) MUST_CHECK;
/* Its weights are the backup's. */
static inline bool layer_is_int4(const struct transition *transition, int64_t layer)
{
    return transition->ranks[0].slots->layers[layer].is_int4;
}
/* A target for the layer on all ranks; false where there is none until another has moved. */
bool layer_reserve(struct transition *transition, int64_t layer, enum phase phase);
void layer_give_back(struct transition *transition, int64_t layer, enum phase phase);
bool layer_has_to_move(const struct transition *transition, int64_t layer, enum phase phase);
/* The first layer from here on that has to move; the number of layers where none has. */
int64_t layer_next(const struct transition *transition, int64_t layer, enum phase phase);
/* What nobody needs becomes what nobody can use. */
enum status spares_poison(struct transition *transition, struct error *err) MUST_CHECK;

/* mover.c */
enum status mover_init(struct transition *transition, struct error *err) MUST_CHECK;
void mover_deinit(struct transition *transition); /* where it was not begun, too */
/* Lends the streams of all ranks, or takes them back; nothing is under way. */
void mover_lend_all(struct transition *transition, bool are_lent);

/* The move list of a rank to the layout of `phase`, of some experts, in memory that
 * move_list_deinit releases. */
enum status move_list_init(struct move_list *out, const struct transition *transition,
                           enum phase phase, int rank, struct move_rules rules,
                           struct expert_part part, struct error *err) MUST_CHECK;
void move_list_deinit(struct move_list *list); /* {0} is allowed */

/* The layout from which a layer goes to that of a phase. */
static inline enum phase phase_other(enum phase phase)
{
    return phase == PHASE_PREFILL ? PHASE_DECODE : PHASE_PREFILL;
}

/* What follows on the stream is recorded as of this lane; NULL: of its own again. */
void stream_record_as(const struct transition_rank *rank, struct stream *stream,
                      struct trace_lane *lane);
struct trace_lane *stream_lane(const struct transition_rank *rank, struct stream *stream);

/* What follows on rank->stream is for the layer; for the trace. */
void stream_note_layer(const struct transition_rank *rank, int64_t layer);

/* The rank has failed, with a cause: this is told to all, so that nobody is waited for. What the
 * rank has put on rank->stream has ended behind it, and what that works with may go. */
void stream_abort(const struct transition_rank *rank, const struct error *cause);

/* The rank goes on with its part, for whoever looks whether anybody does. */
void rank_moved(const struct transition_rank *rank);

/* The rank has no slice of the layer by this way: `error` says why. */
void way_refuse(struct transition_rank *rank, enum status status, const struct error *error);

#endif
