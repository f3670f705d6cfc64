/* The executor: one forward pass over tokens of any sequences, on all ranks of a box. Each layer's
 * experts lie in one of the plan's two layouts, which one its slots say (store/expert_slots.h): it
 * may change between passes, or beside them under the hooks below, and layers may differ.
 *
 * A pass goes through the stages of docs/ARCHITECTURE.md, "One token's way through a layer"
 * (src/exec/layer.c). exec knows neither planner nor transition, and no architecture. Its functions
 * are called by one host thread; the ranks' own threads work inside them. */
#ifndef PHASOR_EXEC_EXEC_H
#define PHASOR_EXEC_EXEC_H

#include <stdint.h>

#include "comm/box.h"
#include "exec/kv_cache.h"
#include "exec/stage.h"
#include "exec/weights.h"
#include "layout/traffic.h"

struct exec;

/* All is borrowed. */
struct exec_params {
    struct box *box; /* its tags are traffic_names */
    const struct model_config *config;
    const struct plan_layouts *layouts; /* legal for the model, of the box's rank count */
    const struct weights *weights;      /* [rank_count], loaded under these layouts */
    int64_t token_max;   /* of a pass, all groups together; rounded up to their number */
    int64_t segment_max; /* of a pass; and tokens of a pass in the forms for decode */
};

/* A pass allocates nothing. */
enum status exec_create(struct exec **out, const struct exec_params *params,
                        struct error *err) MUST_CHECK;
void exec_destroy(struct exec *exec); /* NULL is allowed */

/* Bytes that exec_create takes of each rank's memory. */
uint64_t exec_bytes(const struct model_config *config, const struct plan_layouts *layouts,
                    int64_t token_max, int64_t segment_max);

const struct model_config *exec_config(const struct exec *exec);
const struct layout *exec_layout(const struct exec *exec); /* of prefill; attention is one */
struct box *exec_box(const struct exec *exec);
int64_t exec_token_max(const struct exec *exec);   /* rounded up to the groups */
enum dtype exec_kv_dtype(const struct exec *exec); /* f32 with f32 weights, else bf16 */

/* Tokens of a pass that one data-parallel group takes: its even share of token_max, rounded up. */
int64_t exec_group_token_max(const struct exec *exec);

/* The form for passes of one token a sequence: replicated where Ad = 1, else gathered. */
enum layer_form exec_decode_form(const struct exec *exec);

/* Tokens of one sequence in a pass. */
struct exec_segment {
    const int32_t *tokens; /* [token_count] */
    int64_t token_count;
    int64_t first_position;
    const int32_t *pages; /* of the sequence, from position 0 to the last of these tokens */
    int group;            /* the data-parallel group that the sequence belongs to */
};

/* Runs the pass: keys and values are appended to `cache`, and the final hidden states of all tokens
 * stay in the executor for exec_head, in the order of the segments. Segments come in rising order
 * of their groups. Token ids are within the vocabulary; each group has at most exec_group_token_max
 * tokens; FORM_GATHERED and FORM_REPLICATED take at most segment_max tokens in all, FORM_REPLICATED
 * only where Ad = 1. A failure is of the box: nothing more can be run. */
enum status exec_forward(struct exec *exec, struct kv_cache *cache, enum layer_form form,
                         const struct exec_segment *segments, int64_t segment_count,
                         struct error *err) MUST_CHECK;

/* Rows of a pass whose logits are wanted, and what is found: the logits; what needs none on the
 * host, because the devices look at them (device/ops.h): a token of each row, and its candidates.
 * What is found is valid until the next call. */
#define EXEC_LOGIT_ROWS 64
struct exec_head {
    const int32_t *rows; /* token indices in the pass, in rising order; borrowed for the call */
    int64_t row_count;   /* 0 to EXEC_LOGIT_ROWS */
    bool wants_chosen, wants_candidates; /* whether they are found */
    bool skips_logits;
    const struct draw *draws; /* [row_count], borrowed for the call; or NULL: none is drawn */

    float *logits; /* found where not skipped: [row_count][stride], f32, host memory */
    int64_t stride;
    const struct chosen *chosen;         /* of each row, with a token for its place */
    const struct candidates *candidates; /* likewise */
};

/* exec_forward and exec_head in one run of the ranks, so that the host wakes them once. Where it
 * fails, nothing is found. */
enum status exec_step(struct exec *exec, struct kv_cache *cache, enum layer_form form,
                      const struct exec_segment *segments, int64_t segment_count,
                      struct exec_head *head, struct error *err) MUST_CHECK;

/* Of rows of the last pass. */
enum status exec_head(struct exec *exec, struct exec_head *head, struct error *err) MUST_CHECK;

/* What each stage has had since the box was opened: seconds, mean over the ranks, and bytes of
 * weights, all ranks together. Not while a pass runs. */
void exec_stage_totals(const struct exec *exec, struct stage_total totals[STAGE_KIND_COUNT]);

/* The experts that the router chose in the passes to come, until it is called with NULL:
 * `ids` is [layer_count][exec_token_max][top_k], host memory; the MoE layers' rows of the tokens of
 * a pass are written before exec_forward or exec_step returns. */
void exec_record_routing(struct exec *exec, int32_t *ids);

/* Who is told where a pass is in a layer's experts, in the passes to come, until it is called with
 * NULL; either function may be NULL. Both come from the rank's own thread. A layer's experts may be
 * changed (struct expert_slots) from when all ranks are done with them until a pass awaits them. */
struct exec_hooks {
    void *context;
    /* Before a rank asks how the layer's experts lie, and uses them. It may wait, and use the
     * rank's stream meanwhile. A failure ends the pass, and the box. */
    enum status (*experts_await)(void *context, int rank, int64_t layer, struct error *err);
    /* All that the pass does with them on this rank is on its stream. */
    void (*experts_done)(void *context, int rank, int64_t layer);
};
void exec_set_hooks(struct exec *exec, const struct exec_hooks *hooks);

#endif
