/* Which layout for which phase: every legal plan is priced, and the one with the least time for the
 * batch is found, or told why none is possible; static TP's layout is kept where it would gain next
 * to nothing over it. HAP, section III-C, equations 4 and 5; by exact
 * enumeration instead of an integer program, for the space is small.
 *
 * Pure functions: no file, no clock, no state. In four steps that can each be printed: the problem,
 * the candidates with their costs, the reason of each that is not possible, the choice.
 */
#ifndef PHASOR_PLANNER_PLANNER_H
#define PHASOR_PLANNER_PLANNER_H

#include "planner/pass_cost.h"
#include "planner/transition_cost.h"

enum plan_way { PLAN_NONE, PLAN_KEEP, PLAN_RESHARD, PLAN_UPLOAD, PLAN_RELOAD, PLAN_WAY_COUNT };

/* "none" (one layout for both phases), "keep", "reshard", "upload", "reload". */
extern const char *const plan_way_names[PLAN_WAY_COUNT];

/* Weights move between the phases, so that sequences run in waves; else others come for those that
 * end. */
static inline bool plan_way_moves(enum plan_way way)
{
    return way != PLAN_NONE && way != PLAN_KEEP;
}

/* Full pages of prompts that begin alike are computed once, and kept once (src/engine/page_pool.h).
 */
struct plan_shared {
    double tokens;  /* of a prompt, on the mean, that another sequence has computed; 0: none */
    double sharers; /* sequences that have one page, on the mean; more than 1 where there are any */
};

/* Sequences of one length. */
struct plan_load {
    int64_t sequences;
    int64_t prompt_tokens, output_tokens; /* >= 1 each; the first output token is prefill's */
    double output_deviation; /* of output_tokens, which is the mean; 0: all end together */
    struct plan_shared shared;
};

/* An initialiser, of sequences of just one length that share nothing. */
#define PLAN_LOAD(all, prompt, output)                                                             \
    {                                                                                              \
        .sequences = (all), .prompt_tokens = (prompt), .output_tokens = (output)                   \
    }

/* Of a prompt that begins like others, how long that beginning is; less than the prompt. */
double plan_load_beginning(const struct plan_load *load);

/* How experts are held. */
enum plan_room {
    PLAN_ROOM_ONE,   /* one layout */
    PLAN_ROOM_SPARE, /* and a spare slot */
    PLAN_ROOM_BOTH,  /* two layouts */
    PLAN_ROOM_COUNT
};

enum plan_room plan_way_room(enum plan_way way);

/* Bytes that the fullest rank takes. */
struct plan_memory {
    uint64_t weights; /* but for the routed experts */
    uint64_t experts; /* with spare slots */
    uint64_t cache, activations;
    uint64_t buffers; /* that a change of layout works with, beside the slots */
    uint64_t spare;   /* of one more slot of experts; not in the total */
};

/* Tokens that a wave's last sequence still has to generate when weights begin to go back. */
#define PLAN_TAIL_TOKENS 32

/* Who waits enters with others: with as many as make this share of all places, or have
 * plan_problem.entry_tokens, or end within so many passes. */
#define PLAN_ENTRY_SHARE  16
#define PLAN_ENTRY_PASSES 64

static inline uint64_t plan_memory_total(const struct plan_memory *memory)
{
    return memory->weights + memory->experts + memory->cache + memory->activations +
           memory->buffers;
}

struct plan_problem {
    int rank_count;
    const struct model_shape *shape;
    const struct profile *profile;
    struct cost_types types; /* native: experts as in prefill */
    struct expert_type native, backup;
    struct routing routing;
    struct plan_load load;
    /* [mix_count <= 16], of rising output_tokens: the same sequences by their lengths, of which
     * `load` has the means; 0: all are of one length. */
    const struct plan_load *mix;
    int mix_count;
    bool may_stay; /* waves may decode as prefill has the experts, where a change costs more than it
                    * saves: of a part of a batch, the rest of which changes */
    bool moves_only; /* plans that move no weights are not priced, and unknown: who asks knows what
                      * they take */
    int64_t entry_tokens;  /* of a pass of prefill for which sequences wait for one another, where
                            * they wait for a place; 0: they do not */
    bool is_queue;         /* another batch follows: the last way back is paid, too */
    bool allows_int4;      /* policy int4-decode, and there is a backup or it can be made */
    bool can_have_backup;  /* or would be allowed: what decodes on one is priced all the same */
    const int64_t *passes; /* [pass_count]: tokens of a pass that may be chosen */
    const int64_t *waves;  /* [wave_count]: sequences together that may be chosen */
    int pass_count, wave_count;
    int64_t usual_pass; /* of them the one that is taken unless another gains 1 %, for predictions
                         * err by more; 0: none is */
    int64_t pass_least; /* a remedy names none that is shorter; 0: than it has sequences */
    uint64_t memory_bytes; /* of each rank */
    uint64_t upload_bytes; /* of each rank: buffers of PLAN_UPLOAD for decode on native weights, */
    uint64_t upload_packed_bytes; /* and on packed ones. Other ways have next to none */
    /* A pure function: what the fullest rank takes with so many tokens a pass and sequences at a
     * time, each of prompt and output tokens. */
    struct plan_memory (*memory)(void *context, const struct plan_layouts *layouts,
                                 enum plan_room room, int64_t pass_tokens, int64_t sequences);
    /* The same with all experts in INT4, as --expert-dtype has it, of layouts without packed
     * decode; NULL: that cannot be, or is not allowed. No plan has it: only what would fit is told.
     */
    struct plan_memory (*int4_memory)(void *context, const struct plan_layouts *layouts,
                                      enum plan_room room, int64_t pass_tokens, int64_t sequences);
    void *memory_context;
};

enum plan_verdict { PLAN_POSSIBLE, PLAN_ILLEGAL, PLAN_TOO_LARGE, PLAN_NOT_ALLOWED, PLAN_UNKNOWN };

struct plan_candidate {
    struct plan_layouts layouts;
    enum plan_way way;
    enum plan_verdict verdict;
    bool has_times; /* it fits, and what it takes is known: it is possible, or would be if it were
                     * allowed */
    struct plan_memory memory;
    unsigned stays; /* of each part (plan_table_add) a bit: its waves decode as prefill has
                     * the experts */
    int64_t pass_tokens, wave; /* the best of those that fit; where it is too large the least */
    int64_t spares; /* of PLAN_ROOM_SPARE: slots that layers are written to ahead; else 0 */
    /* Seconds of the whole batch. */
    double prefill, transition, decode, way_back;
    struct pass_cost prefill_cost, decode_cost; /* the same, by parts */
};

static inline double plan_candidate_total(const struct plan_candidate *candidate)
{
    return candidate->prefill + candidate->transition + candidate->decode + candidate->way_back;
}

/* Candidates in the order of the enumeration, behind them an illegal one for each layout that the
 * model cannot have; indices of them, -1: there is none. */
struct plan_table {
    struct plan_candidate *candidates;
    int count;
    int fastest;                           /* of the possible ones */
    int best;                              /* the one to take: plan_table_pick */
    int static_tp, static_ep, best_static; /* docs/plans.md */
};

/* STATUS_OK also where no candidate is possible: fastest and best are -1. Equal times go to the one
 * that comes first, which changes less. */
enum status plan_find(struct plan_table *out, const struct plan_problem *problem,
                      struct error *err) MUST_CHECK;
void plan_table_deinit(struct plan_table *table); /* a zero one is allowed */

/* `out` has candidates of its own. */
enum status plan_table_copy(struct plan_table *out, const struct plan_table *table,
                            struct error *err) MUST_CHECK;

/* Adds the table of part `part` of a batch, 1 to 31; `table` has that of part 0. Parts run one
 * after another, of the same model, box and policy: seconds are added; pass and wave are the larger
 * ones; memory has of each thing what the part takes that needs most of it, with no more spares
 * than the part with the fewest has. A candidate is possible where it is in both, and that is no
 * more than memory_bytes. */
void plan_table_add(struct plan_table *table, const struct plan_table *more, int part,
                    uint64_t memory_bytes);

/* Finds `fastest`, `best` and `best_static` anew, for who has changed candidates; the best by
 * `static_tp`, which is there. */
void plan_table_choose(struct plan_table *table);

/* By how much the fastest plan has to be faster to leave static TP's layout, or to have the experts
 * in two layouts. Static TP loads ranks evenly whatever is routed where; others do on the mean, and
 * what few tokens draw may take this much from them. A second layout takes memory, or time between
 * the phases. */
#define PLAN_GAIN_WORTH_A_LAYOUT 1.01

/* Of the possible candidates that may(context, candidate) allows, all of them for NULL, the one to
 * take; -1: there is none. The first of these over which the fastest has no such gain: static TP;
 * the fastest that has static TP's layout in both phases, so that decode alone is on packed
 * weights; the fastest whose experts have one layout in both phases; else the fastest itself. So
 * what is taken is never slower than the fastest by that gain. */
int plan_table_pick(const struct plan_table *table,
                    bool (*may)(const void *context, const struct plan_candidate *candidate),
                    const void *context);

/* Whether ranks share heads and a dense layer alike. */
bool plan_is_same_attention(const struct layout *a, const struct layout *b);

/* Why a layout, or a pair, is illegal: the rule with its numbers (layout_check). */
void plan_illegal_reason(struct error *reason, const struct plan_problem *problem,
                         const struct plan_candidate *candidate);

/* ---- The parts, for who explains ------------------------------------------------------------- */

/* All passes of prefill of one wave, and the last of them. Data-parallel groups share no pages:
 * where a wave has fewer beginnings than there are groups, each group computes one, or waits for
 * who does.
 */
struct prefill_cost {
    struct pass_cost cost;
    double last_pass;
};
struct prefill_cost plan_prefill_cost(const struct plan_problem *problem,
                                      const struct layout *layout, int64_t pass_tokens,
                                      int64_t wave);

/* All steps of decode of `wave` sequences of the mean length, which begin together. */
struct pass_cost plan_decode_cost(const struct plan_problem *problem, const struct layout *layout,
                                  bool is_packed, int64_t wave);

/* The same where nobody comes: with a mix, fewer and fewer of them, until the longest has ended. */
struct pass_cost plan_wave_decode_cost(const struct plan_problem *problem,
                                       const struct layout *layout, bool is_packed, int64_t wave);

/* Prefill of the whole batch where others come for those that have ended, with `wave` at a time:
 * after the first of them prompts come as answers end, few at a time where these differ (`struct
 * entry` of planner/turns.h). */
struct pass_cost plan_refilled_prefill_cost(const struct plan_problem *problem,
                                            const struct layout *layout, int64_t pass_tokens,
                                            int64_t wave);

/* Decode of the whole batch where others come for those that have ended, up to `wave` at a time,
 * those with the longest answers first; in the end fewer and fewer of them (planner/turns.h). */
struct pass_cost plan_refilled_decode_cost(const struct plan_problem *problem,
                                           const struct layout *layout, bool is_packed,
                                           int64_t wave);

#endif
