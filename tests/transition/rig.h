/* A model under a plan with two layouts, its transition, and the same model loaded under each
 * layout alone: what every layer must be like, to the byte. */
#ifndef PHASOR_TESTS_TRANSITION_RIG_H
#define PHASOR_TESTS_TRANSITION_RIG_H

#include <stdatomic.h>

#include "exec/scenarios.h"
#include "io/uring_calls.h"
#include "quant/backup_write.h"
#include "transition/transition.h"

struct rig_params {
    const char *model; /* of scenario_models */
    enum dtype dtype;
    bool has_int4_experts;
    int rank_count;
    const char *plan; /* "a|p>d", "a|p>d:int4" */
    bool is_auto, keeps_format;
    enum way way; /* without is_auto. WAY_KEEP: both layouts are resident */
    bool keeps_both;
    double prefill_seconds; /* see struct transition_params */
    int64_t spare_count;    /* without keeps_both; see struct expert_slots_params */
    bool leaves_freed;      /* slots that are freed are not poisoned */
    double patience_seconds;
    struct turn *turn;
    struct log_sink log;
    const char *dir;                 /* of the checkpoint; NULL: scenario_checkpoint */
    bool has_backup;                 /* also without WAY_UPLOAD and ":int4"; then: */
    struct backup_settings settings; /* of it; group 0: groups of 64 */
    /* How it is read; see struct transition_params. Without: from the disk, as the system can. */
    uint64_t memory_available, memory_lockable;
    const struct uring_calls *uring;
};

/* A kernel without io_uring: what is read comes by threads. */
extern const struct uring_calls rig_no_uring;

/* Warnings alone. */
struct warnings {
    atomic_int count;
    char last[512];
};
struct log_sink rig_hear(struct warnings *heard);

struct rig {
    struct model_runner runner;
    struct model_shape shape;
    struct expert_slots *slots[COMM_RANKS_MAX];
    struct transition *transition;
    char backup_path[512]; /* removed with the checkpoint */
    struct backup *backup; /* or NULL */
};

/* Decode is on packed weights. */
bool rig_is_packed(const struct rig_params *params);

/* Whether the way can be taken at all: int4 experts are not made native, and packed slices come
 * from a backup. */
bool rig_can(const struct rig_params *params, enum way way);

struct model_shape rig_shape(const char *model);

/* Without a transition; then rig_start makes it. */
void rig_load(struct rig *out, const struct rig_params *params);
enum status rig_start(struct rig *rig, const struct rig_params *params, struct error *err);

void rig_open(struct rig *out, const struct rig_params *params); /* both; fails the test */
void rig_close(struct rig *rig);

/* Goes to decode by that way from here on, whatever a trial found (and closed). */
void rig_take_way(const struct rig *rig, enum way way);

/* The same change of phase, between passes; or beside two: in the first each rank lets go of layer
 * after layer, in the second it waits for each, and what is left is moved behind them. */
enum status rig_move(const struct rig *rig, struct transition *transition, enum phase phase,
                     bool is_beside, struct error *err);

/* Cold starts under each of the plan's layouts alone, of the same model. */
struct cold {
    struct model_runner of[PHASE_COUNT];
};
void cold_open(struct cold *out, const struct rig_params *params);
void cold_close(struct cold *cold);

/* Puts the backup's weights, as the reference dequantizes them, in place of a cold start's. */
void rig_dequantize(struct model_runner *cold, const struct rig *rig);

/* Whether each layer has a whole slice on every rank, in one layout on all, with the bytes of a
 * cold start, or of the reference's dequantization where it has the backup's, or the backup's own
 * where decode is packed; fails the test.
 * Returns how many layers with experts have that of `phase`. */
int64_t rig_check(const struct rig *rig, const struct cold *cold, enum phase phase,
                  const char *label);

/* What a rank's device holds, as the formulas say: weights, executor, cache. */
uint64_t rig_memory_said(const struct rig *rig, int rank);
/* And the host for it, where there is a backup. */
uint64_t rig_host_memory_said(const struct rig *rig, int rank);
/* And for the way, there and back. */
uint64_t rig_way_memory_said(const struct rig *rig, int rank, enum way way);

/* Whether that is all that each rank's device has held at most; fails the test. */
void rig_check_memory(const struct rig *rig, const char *label);

/* Bytes that have left each rank as transitions' so far. */
void rig_bytes(int64_t bytes[COMM_RANKS_MAX], const struct rig *rig);

/* What a transition to `phase` must send from a rank: the formula, for all layers. */
int64_t rig_predicted_bytes(const struct rig *rig, enum phase phase, int rank);

int64_t rig_moe_layers(const struct rig *rig);

#endif
