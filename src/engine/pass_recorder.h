/* Single passes of prefill and decode, recorded for replay, without what stands before them: of a
 * piece of a prompt keys and values of earlier tokens are numbers that nobody computed, of decode
 * such as the model computes (engine/pass_contexts.h). What plans take on a box is composed of such
 * passes (bench/regret.c, phasor bench --replay).
 */
#ifndef PHASOR_ENGINE_PASS_RECORDER_H
#define PHASOR_ENGINE_PASS_RECORDER_H

#include "engine/engine.h"
#include "engine/pass_contexts.h"
#include "replay/recording.h"

/* Of sequences that are alike, spread evenly over the data-parallel groups. */
struct pass_case {
    enum phase phase;
    bool is_packed;     /* decode on the INT4 backup's weights: the engine's plan has them */
    int64_t sequences;  /* of decode */
    int64_t context;    /* of decode: positions that each new token sees, its own included */
    int64_t prompt;     /* of prefill: each prompt's tokens */
    int64_t tokens;     /* of prefill: of the pass, a multiple of the groups */
    int64_t pass_index; /* of prefill: passes that went before through the same prompts */
};

/* Passes after which a group stands at the beginning of a prompt again. `tokens` are a multiple of
 * the groups; a group's share is a multiple of the prompt, or divides it. */
int64_t pass_period(const struct layout *layout, int64_t prompt, int64_t tokens);

/* STATUS_INVALID_ARGUMENT with the rule that the case breaks. */
enum status pass_case_check(const struct pass_case *of, const struct layout *layout,
                            const struct model_config *config, struct error *err) MUST_CHECK;

struct pass_recorder;

/* For passes of these cases, each of which holds (pass_case_check), on an engine that records. Takes
 * memory for the largest. What stands before steps of decode it takes from `contexts`, which are
 * borrowed, and has it computed where it is not there: recorders that come one after another share
 * it. `is_timed`: each sequence has keys and values of its own, which are read from memory as those
 * of a run, and a pass of decode runs once before it is recorded; else sequences of decode
 * share pages, and times are not those of a run. */
enum status pass_recorder_create(struct pass_recorder **out, struct engine *engine,
                                 struct pass_contexts *contexts, const struct pass_case *cases,
                                 int count, bool is_timed, struct error *err) MUST_CHECK;
void pass_recorder_destroy(struct pass_recorder *recorder); /* NULL is allowed */

/* Runs and records one pass. `out` is the caller's to deinit. */
enum status pass_recorder_run(struct pass_recorder *recorder, const struct pass_case *of,
                              struct recording *out, struct error *err) MUST_CHECK;

#endif
