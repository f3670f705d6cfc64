/* A loaded model, ready to run: checkpoint, tokenizer, the box of ranks, the weights of each under
 * one layout, or two. The only part that sees planner, exec and transition together; it stays
 * small. */
#ifndef PHASOR_ENGINE_ENGINE_H
#define PHASOR_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/log.h"
#include "base/numeric.h"
#include "base/status.h"
#include "base/watch.h"
#include "comm/comm.h"
#include "engine/engine_devices.h"
#include "engine/generator.h"
#include "exec/weights.h"
#include "layout/layout.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "tokenizer/tokenizer.h"
#include "transition/transition.h"

struct engine_params;

/* What a plan can be chosen by: nothing is loaded yet. All is borrowed. */
struct engine_basis {
    const struct engine_params *params;
    const struct checkpoint *checkpoint;
    const struct tokenizer *tokenizer; /* NULL: the checkpoint has none */
    struct weight_types types;
    const struct engine_devices *devices;
};

struct engine_choice {
    bool is_made; /* else it is as if nobody had been asked */
    struct plan_layouts layouts;
    bool has_way; /* by which experts change between them; else as engine_params say */
    enum way way;
    int64_t pass_tokens;  /* of a pass, where engine_params do not say; 0: not chosen */
    uint64_t cache_bytes; /* of the KV cache, all ranks', which it was priced with; 0: not known */
};

/* Decode computes with weights of an INT4 backup. */
static inline bool engine_choice_takes_int4(const struct engine_choice *choice)
{
    return choice->layouts.decode_is_packed || (choice->has_way && choice->way == WAY_UPLOAD);
}

/* Tokens of a pass where nobody says. */
#define ENGINE_PASS_TOKENS 2048

struct engine_params {
    const char *model;     /* directory or id */
    const char *revision;  /* or NULL */
    bool dtype_is_auto;    /* weights as config.json says: bf16 and f16 as bf16, f32 as f32 */
    enum dtype dtype;      /* DTYPE_F32 or DTYPE_BF16 otherwise */
    bool has_int4_experts; /* routed experts are rounded to int4 while they load */
    int32_t thread_count;  /* of all ranks together; 0: one for each core the process may use */
    const char *devices;   /* see engine_devices_parse; NULL: as many as the plan has, or one */
    const char *plan;      /* see engine_plan_parse */
    uint64_t planned_cache_bytes; /* of `plan`: as engine_choice has it of one that is chosen */
    /* Who is asked for the plan where `plan` is NULL; or NULL. The layouts are legal. */
    enum status (*choose)(void *context, struct engine_choice *out,
                          const struct engine_basis *basis, struct error *err);
    void *choose_context;
    bool transition_is_auto; /* between the layouts of a plan that has two */
    enum way transition;     /* without transition_is_auto */
    bool keeps_format; /* transition_is_auto never makes it a matter of times or faults whether
                        * decode has a backup's weights: without packed decode it has none */
    const char *backup_path; /* INT4, for WAY_UPLOAD, transition_is_auto or packed decode; NULL: in
                              * the cache */
    bool is_exact;           /* decode never uses INT4 weights of a backup */
    bool needs_tokenizer;    /* false: a checkpoint without tokenizer.json will do (token ids) */
    uint64_t memory_bytes;   /* for all that phasor holds in this process; 0: as much as there is */
    /* What runs will ask for (session_params), which transition_is_auto leaves them; 0: unknown. */
    uint64_t kv_bytes;
    int64_t max_num_seqs, max_num_batched_tokens;
    bool records;            /* runs may be recorded: the ranks work one at a time */
    bool caches_weights;     /* packed weights are left in the cache, and mapped from there */
    struct comm_links links; /* see box_params; not for users: bench/reality.c */
    struct log_sink log;
    /* Loading: bytes read of all bytes; before that the same of weights that go into a backup,
     * where one is made. An answer other than 0 stops: STATUS_CANCELLED. May be NULL. */
    int (*load_progress)(void *context, uint64_t bytes_done, uint64_t bytes_total);
    void *load_context;
};

struct engine;
enum status engine_open(struct engine **out, const struct engine_params *params,
                        struct error *err) MUST_CHECK;
void engine_close(struct engine *engine); /* NULL is allowed */

const struct model_config *engine_config(const struct engine *engine);
/* NULL when the checkpoint has none (and none was needed). */
const struct tokenizer *engine_tokenizer(const struct engine *engine);
const char *engine_model_name(const struct engine *engine);      /* as the user gave it */
const struct layout *engine_layout(const struct engine *engine); /* of prefill */
const struct plan_layouts *engine_layouts(const struct engine *engine);
uint64_t engine_memory_bytes(const struct engine *engine); /* as it was opened with */

/* Tokens of a pass for runs that do not say, of so many sequences: as they were chosen with the
 * plan, or ENGINE_PASS_TOKENS. */
int64_t engine_pass_tokens(const struct engine *engine, int64_t max_num_seqs);

/* Of the KV cache, which the plan was priced with; 0: that is not known. */
uint64_t engine_cache_bytes(const struct engine *engine);
const struct checkpoint *engine_checkpoint(const struct engine *engine);
const struct weight_types *engine_types(const struct engine *engine); /* in memory */

/* What computes: "cpu (avx512)". Last bits of results depend on it. */
const char *engine_kernels(const struct engine *engine);

/* What decode computes with: "native", or of which INT4 backup, "int4 group 64" dequantized,
 * "packed int4 group 64" as it is. As the model was opened: that a way was left for another is told
 * by a warning. */
#define ENGINE_DECODE_WEIGHTS_BYTES 48
void engine_decode_weights(char out[ENGINE_DECODE_WEIGHTS_BYTES], const struct engine *engine);

const struct box *engine_box(const struct engine *engine);

/* Between the layouts of the plan; NULL where it has one. */
struct transition *engine_transition(const struct engine *engine);

/* That upload or packed decode reads, or may; NULL: none is used. */
const struct backup *engine_backup(const struct engine *engine);

/* What runs when, where somebody starts it; and the lane in it of the thread that drives. */
struct trace *engine_trace(const struct engine *engine);
struct trace_lane *engine_lane(const struct engine *engine);

int engine_thread_count(const struct engine *engine); /* of all ranks together */

/* Whether it was opened so that runs may be recorded. */
bool engine_records(const struct engine *engine);

/* Whether a change of phase moves weights, so that phases had better be long. */
bool engine_moves_weights(const struct engine *engine);

/* generator_entry_tokens of its model and devices. */
int64_t engine_entry_tokens(const struct engine *engine);

/* What may be done for want of memory beside what a sentence names already; "" where nothing. */
const char *engine_room_advice(const struct engine *engine);

/* Before a pass: the experts are where its phase has them, or move to where the next has them while
 * it runs: then by `hooks`, which are none before. */
enum status engine_enter(struct engine *engine, const struct generator_pass *pass,
                         struct exec_hooks *hooks, struct error *err) MUST_CHECK;

/* Behind it: whether the experts were where its phase has them. They were not where a change that
 * the pass waited for ended before its last layer; engine_enter then has the reason. */
bool engine_was_whole(const struct engine *engine);

/* Between runs: no transition is under way behind it, and what was ends as the next run's prefill
 * would have it. */
enum status engine_settle(struct engine *engine, struct error *err) MUST_CHECK;

/* Who is asked between two layers that move, from now on: its failure is engine_enter's. */
void engine_watch(struct engine *engine, const struct watch *watch);

#define ENGINE_PLAN_STATIC "static"

/* The layouts that a plan's text means for this model on so many ranks (0: as many as it has); NULL
 * and ENGINE_PLAN_STATIC mean static tensor parallelism (0 ranks: one). STATUS_INVALID_ARGUMENT
 * when the model cannot lie so: the sentence has the rule. */
enum status engine_plan_parse(struct plan_layouts *out, const char *plan,
                              const struct model_config *config, int rank_count,
                              struct error *err) MUST_CHECK;

/* Loads all weights anew, as `choice`, which is made, has them, with what else it was opened with;
 * load_progress is called as then. Nothing of the engine's box, weights or transition is used
 * behind it, or by anybody else meanwhile. After a failure there are none, as engine_check tells,
 * and the engine is good for closing. */
enum status engine_change_plan(struct engine *engine, const struct engine_choice *choice,
                               struct error *err) MUST_CHECK;

/* STATUS_INVALID_ARGUMENT where such a failure left it without weights. */
enum status engine_check(const struct engine *engine, struct error *err) MUST_CHECK;

/* An executor over the engine's weights for passes of so many tokens and sequences; the caller
 * destroys it (exec_destroy) before it closes the engine. */
struct exec;
enum status engine_exec_create(struct exec **out, struct engine *engine, int64_t token_max,
                               int64_t segment_max, struct error *err) MUST_CHECK;

#endif
