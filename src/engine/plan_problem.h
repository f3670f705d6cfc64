/* What the planner is asked, out of a model's config and a box. */
#ifndef PHASOR_ENGINE_PLAN_PROBLEM_H
#define PHASOR_ENGINE_PLAN_PROBLEM_H

#include "model/config.h"
#include "planner/planner.h"
#include "quant/backup_format.h"

/* Waves are powers of two up to the most that a run may have at once, passes such multiples of the
 * least up to PLAN_PASS_MOST. */
#define PLAN_WAVES_MAX  21
#define PLAN_PASSES_MAX 5

/* Of the KV cache, where the bytes that are given for it do not do, or there are more than can be:
 * sums with it do not come round to little. */
#define PLAN_CACHE_BYTES_MOST ((uint64_t)1 << 60)

/* What was asked about last: the planner asks about many waves and passes of the same layouts, one
 * after another, and about few attentions. */
struct plan_known {
    bool is_known;
    struct plan_layouts layouts;
    struct plan_known_experts {
        bool is_known;
        uint64_t bytes, spare;
    } experts[PLAN_ROOM_COUNT][2];                         /* [room][in INT4] */
    uint64_t activations[PLAN_PASSES_MAX][PLAN_WAVES_MAX]; /* [pass][wave]; 0: not asked about */
};

struct plan_resident {
    struct attention_layout attention;
    uint64_t bytes;
};
#define PLAN_RESIDENT_MAX 24

/* A problem with what it points to; not to be copied. */
struct plan_subject {
    const struct model_config *config;
    struct model_shape shape;
    enum dtype dtype;
    uint64_t cache_bytes; /* that each rank is to have; 0: what memory leaves */
    int64_t pages_least;  /* of each group's cache: of the longest sequence */
    int64_t wave_opened;  /* passes are opened for so many sequences, however few run; 0: for those
                           * that run */
    struct plan_problem problem;
    int64_t passes[PLAN_PASSES_MAX], waves[PLAN_WAVES_MAX];
    struct plan_known known;
    struct plan_resident resident[PLAN_RESIDENT_MAX];
    int resident_count;
};

/* Of those that the planner chooses from. */
#define PLAN_PASS_MOST 16384

struct plan_subject_params {
    const struct model_config *config; /* borrowed, as is the profile */
    const struct profile *profile;
    int rank_count;
    enum dtype dtype;                     /* of weights and cache: DTYPE_F32 or DTYPE_BF16 */
    bool has_int4_experts;                /* as of engine_params; then there is no backup's INT4 */
    const struct backup_settings *backup; /* of the one there is; NULL: as one is made here */
    uint64_t memory_bytes;                /* of each device */
    uint64_t kv_bytes;                    /* of it, for the KV cache; 0: what is left */
    struct plan_load load;
    /* Of prompt and answer of the longest sequence: the cache is to hold it, too; 0: as of `load`
     */
    int64_t longest_tokens;
    const struct plan_load *mix; /* as of plan_problem; borrowed */
    int mix_count;
    bool may_stay, moves_only, is_queue, allows_int4;
    int64_t max_num_seqs, max_num_batched_tokens; /* 0: the planner chooses */
    int64_t wave_max; /* where it does: at most so many sequences at a time, for which passes are
                       * opened; 0: 256, and for those that run */
    int worker_count; /* threads of each rank; 0: not known, and as many as any way uses */
    bool is_gpu;      /* ranks are GPUs, whose memory is not the host's */
    const struct routing *routing; /* copied; NULL: all experts are liked alike */
};

/* STATUS_INVALID_ARGUMENT when a limit is out of range, or a sequence longer than the model's
 * context. */
enum status plan_subject_init(struct plan_subject *out, const struct plan_subject_params *params,
                              struct error *err) MUST_CHECK;

/* The same, of config, experts, load and the two limits alone: before anything is read or priced.
 */
enum status plan_load_check(const struct plan_subject_params *params, struct error *err) MUST_CHECK;

#endif
