/* phasor_plan: which layouts for which phase, for a model, a box and a load. */
#ifndef PHASOR_ENGINE_PLAN_H
#define PHASOR_ENGINE_PLAN_H

#include "base/numeric.h"
#include "base/status.h"
#include "planner/planner.h"

struct plan_params {
    const char *model;
    const char *revision; /* or NULL */
    const char *box;      /* see plan_source_read */
    uint64_t draw;
    const char *input;    /* rows in place of `load`; NULL: none */
    bool shares_prefixes; /* of the rows: as of phasor_batch_params */
    bool dtype_is_auto;
    enum dtype dtype;
    bool has_int4_experts; /* as of engine_params */
    struct plan_load load;
    bool is_queue, allows_int4;
    int64_t max_num_seqs, max_num_batched_tokens; /* 0: part of the plan */
    uint64_t memory_bytes;                        /* of a device; 0: as the box says */
    double routing_deviation;
    const char *backup;  /* of INT4, in place of the one in the cache; NULL: that one */
    const char *routing; /* counts in place of it (engine/routing_counts.h); NULL: none */
};

/* The contract is phasor_plan's; the keys are in phasor(1). `*out` is freed by memory_free. */
enum status plan_json(char **out, const struct plan_params *params, struct error *err) MUST_CHECK;

/* Loads of every pair of these. */
struct plan_axes {
    const int64_t *sequences, *prompt_tokens; /* [sequence_count], [prompt_count] */
    size_t sequence_count, prompt_count;
};

/* The contract is phasor_plan_map's. */
enum status plan_map_json(char **out, const struct plan_params *params,
                          const struct plan_axes *axes, struct error *err) MUST_CHECK;

/* A planner that has read the model's config, the box, the counts and what is known of a backup. */
struct planner;

/* What may be another from one question to the next: as in plan_params. */
struct plan_asked {
    struct plan_load load;
    bool is_queue, allows_int4;
    int64_t max_num_seqs, max_num_batched_tokens;
};

/* The contracts are those of phasor_planner_open and phasor_planner_ask. */
enum status planner_open(struct planner **out, const struct plan_params *params,
                         struct error *err) MUST_CHECK;
enum status planner_ask(char **out, const struct planner *planner, const struct plan_asked *asked,
                        struct error *err) MUST_CHECK;
void planner_close(struct planner *planner); /* NULL is allowed */

#endif
