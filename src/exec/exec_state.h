/* What the executor's own sources share. exec.c: life, and passes from the caller's side; rank.c:
 * a rank's buffers; pass.c: who has which rows in a pass; embedding.c, layer.c, head.c: the stages
 * in order; ffn.c: experts, shared experts, dense layers; experts.c: how tokens reach the experts
 * and come back, in the three forms. */
#ifndef PHASOR_EXEC_EXEC_STATE_H
#define PHASOR_EXEC_EXEC_STATE_H

#include "exec/exec.h"

/* Activations of a rank, in the memory of its device: f32, [rows][stride]. "own" rows are the
 * tokens that the rank owns, "group" rows those of its attention group, "received" rows those that
 * its experts have before them. */
struct activations {
    float *residual;      /* [own][hidden]: the stream that every module adds to */
    float *normed;        /* [own][hidden] */
    float *module_out;    /* [own][hidden]: what a module adds to the residual */
    float *group_in;      /* [group][hidden]: normed rows of the group; At > 1 only */
    float *group_out;     /* [group][hidden]: partial sums for the group; At > 1 only */
    float *qkv;           /* [group][q | k | v] */
    float *attention;     /* [group][own heads x head_dim] */
    float *rope;          /* [group][head_dim] */
    float *router_logits; /* [own][expert_count] */
    int32_t *choices;     /* [own][ids | weights] */

    float *sent;            /* [own x lists][hidden]: rows to the expert groups, and back; Ee > 1 */
    int32_t *sent_choices;  /* [own x lists][ids | weights] */
    int32_t *sent_token_of; /* [own x lists] */
    int32_t *slot_of;       /* [own][Ee] */
    int32_t *sent_counts;   /* [Ee] */
    int32_t *all_counts;    /* [N][Ee] */

    float *received;           /* [received][hidden]; N > 1 only */
    int32_t *received_choices; /* [received][ids | weights] */
    float *received_out;       /* [received][hidden]: partial sums for them */
    float *up;                 /* [pairs][own expert width], or rows of a shared or dense width, or
                                * both */
    float *down;               /* [pairs][hidden], or rows, or both */
    int32_t *expert_offsets;   /* [own experts + 1] */
    int32_t *token_of;         /* [pairs] */
    int32_t *position_of;      /* [pairs] */

    int32_t *ids;         /* [held]: embedding rows that this rank sends out */
    int32_t *embed_rows;  /* [own]: where they arrive */
    int32_t *row_offsets; /* [3][2]: {0, rows}: a feed-forward network over all rows of a kind */
    int32_t *group_of[PHASE_COUNT]; /* [expert_count]; see struct expert_place */
    int32_t *local_of[PHASE_COUNT]; /* [expert_count] */
    int32_t *logit_rows;            /* [EXEC_LOGIT_ROWS] */
    float *own_finals;              /* [EXEC_LOGIT_ROWS][hidden] */
    float *finals;                  /* [EXEC_LOGIT_ROWS][hidden], of all ranks */
    float *logits;                  /* [EXEC_LOGIT_ROWS][own vocab] */
    struct draw *draws;             /* [EXEC_LOGIT_ROWS] */
    struct chosen *chosen;          /* [EXEC_LOGIT_ROWS], of own vocab */
    struct candidates *candidates;  /* likewise */
};

/* Which of row_offsets. */
enum row_kind { ROWS_OWN, ROWS_GROUP, ROWS_ALL, ROW_KIND_COUNT };

/* Host memory from which and to which copies go. */
struct staging {
    float *rope;           /* as the activations of these names */
    int32_t *ids;          /* [held] */
    int32_t *embed_rows;   /* [own] */
    int32_t *row_offsets;  /* [ROW_KIND_COUNT][2] */
    int32_t *tables;       /* [2][expert_count]: group_of, local_of */
    int32_t *all_counts;   /* [N][Ee] */
    int64_t *sent;         /* [N][Ee]: the same for the formulas of layout/traffic.h */
    int32_t *logit_rows;   /* [EXEC_LOGIT_ROWS] */
    struct draw *draws;    /* [EXEC_LOGIT_ROWS] */
    struct chosen *chosen; /* [EXEC_LOGIT_ROWS] */
    struct candidates *candidates;
    int32_t *choices; /* [own][ids | weights]: for exec_record_routing */
};

/* Strides in values, each a multiple of 16 but `choices`, and the rows that buffers hold: the same
 * on every rank. Where the plan has two layouts, the larger of both. */
struct dimensions {
    int64_t hidden, qkv, k_offset, v_offset, attention, experts, choices, expert_width, vocab;
    int64_t shared_width, dense_width; /* of a rank's slice */
    int64_t token_max, group_max, own_max, decode_max;
    int64_t lists_max;             /* expert groups that one token can go to */
    int64_t received_max;          /* rows before the experts */
    int64_t capacity[PHASE_COUNT]; /* of those, in the owned form */
    int64_t held_max;              /* embedding rows that one rank may have to send out */
    int64_t expert_count;          /* of a rank */
    int64_t group_count;           /* of the experts: the largest Ee */
    int64_t up_values, down_rows;
};

/* Counts of collectives over some ranks, borrowed by what is on the streams. */
struct row_counts {
    int64_t rows[COMM_RANKS_MAX];
    int64_t bytes[COMM_RANKS_MAX];        /* of rows */
    int64_t values[COMM_RANKS_MAX];       /* of rows */
    int64_t choice_bytes[COMM_RANKS_MAX]; /* of their choices */
};

/* Who has which rows in a pass: the same for all ranks. */
struct pass {
    enum layer_form form;
    int64_t row_count;
    struct range own[COMM_RANKS_MAX];   /* in the replicated form all rows, on every rank */
    struct range group[COMM_RANKS_MAX]; /* by data-parallel group */
    const struct exec_segment *segments;
    int64_t segment_count;
    struct kv_cache *cache;
};

/* Counts and offsets of an all-to-all, in bytes. */
struct exchange_counts {
    int64_t send[COMM_RANKS_MAX], send_at[COMM_RANKS_MAX];
    int64_t receive[COMM_RANKS_MAX], receive_at[COMM_RANKS_MAX];
};

/* One round of a dispatch in the owned form: counts of its collectives. */
struct round_counts {
    struct exchange_counts rows, choices; /* with the expert peers */
    struct row_counts group;              /* rows of each member of the expert group */
    int64_t first_row;                    /* of this member among them */
    int64_t row_count;                    /* of all members */
};

/* Where a rank stands under one layout of the experts, and who is with it. */
struct expert_place {
    struct expert_layout layout;
    int et, ee;
    int64_t expert_count;
    int64_t capacity;   /* see struct dimensions */
    struct comm *group; /* those that hold slices of the same experts */
    struct comm *peers; /* those that hold the same slices of other experts */
    int32_t *group_of;  /* [expert_count of the model]: which group holds it; device memory */
    int32_t *local_of;  /* [expert_count of the model]: its place here, or -1; device memory */
    int64_t count_bytes[COMM_RANKS_MAX]; /* of the counts that each rank tells the others */
};

struct rank {
    struct exec *exec;
    int index;
    struct layout_place place;
    struct device *device;
    const struct device_ops *ops;
    struct stream *stream;
    int64_t layer; /* that runs; -1: none */
    const struct weights *weights;
    struct comm *world;     /* all ranks; communicators are NULL where they would join one rank */
    struct comm *attention; /* the attention group */
    struct expert_place experts[PHASE_COUNT]; /* decode's is empty where it is as prefill's */
    const struct expert_place *here;          /* of the layer that runs: layers may differ */
    struct activations act;
    void *slab;
    struct staging staging;
    void *staging_slab;
    struct segment *segments; /* [segment_max] of the pass, of this rank's group */

    /* Of the pass: */
    int64_t segment_count;
    int64_t own_count, group_count, row_count;
    int64_t group_first;              /* of all rows */
    struct row_counts attention_rows; /* of the members of the attention group */
    struct row_counts world_rows;     /* of all ranks */
    struct row_counts final_rows;     /* of the head */
    struct exchange_counts embedding; /* rows of the table, with all ranks */
    int64_t held_count;               /* rows that this rank sends out */
    int64_t received_count;           /* rows before the experts */
    int64_t rounds;
    bool shared_joined;        /* with the experts of the layer that runs: ffn.c */
    struct round_counts round; /* written only while nothing on the stream reads it */
};

struct rope_table {
    float *rows;
    int64_t count, count_max;
};

struct exec {
    struct box *box;
    const struct model_config *config;
    struct plan_layouts layouts;
    struct layout layout; /* of prefill, for all but the experts: see struct expert_place */
    struct model_shape shape;
    int64_t token_max, segment_max;
    struct dimensions dim;
    struct rank *ranks; /* [rank_count] */
    struct pass pass;   /* that runs or ran last */
    struct rope_table rope;
    int32_t *routing; /* see exec_record_routing */
    struct exec_hooks hooks;
    float *logits;                         /* [EXEC_LOGIT_ROWS][vocab] */
    struct chosen chosen[EXEC_LOGIT_ROWS]; /* of all vocabulary */
    struct candidates candidates[EXEC_LOGIT_ROWS];
    const int32_t *wanted; /* of struct exec_head */
    int64_t wanted_count;
    bool wants_chosen, wants_candidates, skips_logits;
    const struct draw *draws;
};

/* How many of a rank's expert places there are. */
static inline int exec_place_count(const struct exec *exec)
{
    return plan_layouts_differ(&exec->layouts) ? PHASE_COUNT : 1;
}

/* rank.c */
struct dimensions dimensions_of(const struct model_config *config,
                                const struct plan_layouts *layouts, int64_t token_max,
                                int64_t segment_max);
uint64_t rank_bytes(const struct dimensions *dim, const struct model_config *config,
                    const struct layout *layout);
enum status rank_take_memory(struct rank *rank, struct error *err) MUST_CHECK;
enum status rank_start(struct rank *rank, struct error *err) MUST_CHECK; /* on its own thread */
void rank_deinit(struct rank *rank);

/* pass.c: once for all ranks, then on each; enqueues what the rank must know. */
void pass_start(struct exec *exec, const struct exec_segment *segments, int64_t segment_count);
void pass_prepare(struct rank *rank);

/* From here on a rank's time counts for `stage`. */
static inline void stage_begin(struct rank *rank, enum stage stage)
{
    rank->ops->stage(rank->stream, (int)stage, rank->layer);
}

/* Stages. Those that return a status may fail in sight, because they wait for the device. */
void embedding_run(struct rank *rank);
enum status layer_run(struct rank *rank, int64_t index, struct error *err) MUST_CHECK;
void head_run(struct rank *rank);

/* head.c: when all ranks have run it with what devices find. */
void head_merge(struct exec *exec);

/* layer.c: normed rows of the whole attention group; where a rank leaves its partial sums for them;
 * the sums of own rows of these, into `out`. */
const float *group_gather(struct rank *rank, enum traffic tag);
float *group_sums(const struct rank *rank);
void group_reduce(struct rank *rank, float *out, enum traffic tag);

/* ffn.c: 6: own experts' partial sums for the received rows, and the shared expert's where it rides
 * on their reduction; 8: the shared expert where it does not, behind combine_end: whole for own
 * tokens, or its slice for the group's, and the gate is applied to the sum; in place of 4 to 8 in a
 * layer without experts. */
void experts_run(struct rank *rank, const struct layer_weights *layer);
void shared_expert(struct rank *rank, const struct layer_weights *layer);
void dense_ffn(struct rank *rank, const struct layer_weights *layer);

static inline bool is_replicated(const struct rank *rank)
{
    return rank->exec->pass.form == FORM_REPLICATED;
}

/* exec.c: who is told of experts, see struct exec_hooks. */
enum status experts_await(struct rank *rank, int64_t layer, struct error *err) MUST_CHECK;
void experts_done(struct rank *rank, int64_t layer);

/* exec.c: what the router chose goes to where exec_record_routing says. */
enum status routing_record(struct rank *rank, int64_t layer, struct error *err) MUST_CHECK;

/* experts.c: stages 5 and 7. dispatch_begin finds how many rounds there are; in each, dispatch
 * brings rows before this rank's experts, combine takes their partial sums back; combine_end leaves
 * the sum over all experts in module_out, own rows. */
enum status dispatch_begin(struct rank *rank, struct error *err) MUST_CHECK;
enum status dispatch(struct rank *rank, int64_t round, struct error *err) MUST_CHECK;
void combine(struct rank *rank);
void combine_end(struct rank *rank);

/* Rows before the experts, their choices and partial sums, in the form of the pass. */
const float *received_rows(const struct rank *rank);
const int32_t *received_choices(const struct rank *rank);
float *received_sums(const struct rank *rank);

/* rope.c: cos and sin of positions 0 .. count - 1, [count][head_dim], which passes have in common:
 * to compute them takes as long as a tenth of a pass on a GPU. Of zeros; has none at first. extend
 * makes it as long as `count`, up to a limit; no rank reads it meanwhile. */
enum status rope_table_init(struct rope_table *table, const struct model_config *config,
                            struct error *err) MUST_CHECK;
void rope_table_extend(struct rope_table *table, const struct model_config *config, int64_t count);
void rope_table_deinit(struct rope_table *table);

/* Fills cos and sin of every token of the segments: out of the table, or computed. */
void rope_fill(float *rope, const struct model_config *config, const struct rope_table *table,
               const struct segment *segments, int64_t segment_count);

#endif
