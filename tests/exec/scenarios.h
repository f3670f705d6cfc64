/* Passes that every layout must answer alike: small models of each architecture, batches with the
 * edges that layouts have, fed in chunks and then token by token. */
#ifndef PHASOR_TESTS_EXEC_SCENARIOS_H
#define PHASOR_TESTS_EXEC_SCENARIOS_H

#include "model_runner.h"

#define SCENARIO_SEQUENCES_MAX 8
#define SCENARIO_DECODE_STEPS  4

struct scenario {
    const char *name;
    int64_t sequence_count;
    int64_t lengths[SCENARIO_SEQUENCES_MAX]; /* of the prompts */
    bool same_token; /* all tokens are one: all rows are equal, and so are their experts */
};

extern const struct scenario scenarios[];
extern const int64_t scenario_count;

/* Of tests/data/configs, one for each architecture. */
extern const char *const scenario_models[];
extern const int64_t scenario_model_count;

/* Writes a random checkpoint of that model; the path is static, until the next call. One of each
 * (model, type) is made and shared. */
const char *scenario_checkpoint(const char *model, enum dtype dtype);

/* All of them: the `.fini` of every suite that makes any. */
void scenario_checkpoints_remove(void);

/* Tokens of a pass that a group must be able to take, times the groups. */
int64_t scenario_token_max(const struct scenario *scenario, int group_count);

struct scenario_result {
    float *logits; /* of all tokens, sequence after sequence: [token][vocab]; free with
                    * memory_free */
    int64_t token_count;
    int64_t vocab;
    double nll;         /* teacher-forced, of all tokens but the first of each sequence */
    int64_t round_max;  /* the most rounds that a dispatch had to take */
    int64_t expert_max; /* the most experts that the tokens of one layer and pass chose together */
    /* Bytes that the collectives must have moved, given what the router chose: by the formulas, and
     * by a walk through every message. */
    struct traffic_bytes by_formula, by_walk;
};

/* Prompts in two passes of the owned form, then single tokens in the forms for decode. */
void scenario_run(struct scenario_result *out, struct model_runner *runner,
                  const struct scenario *scenario);

/* The same, with `before` called before each pass: numbers 0 and 1 are the prompts', the rest
 * single tokens. Experts may change meanwhile, so bytes are not told. */
void scenario_run_with(struct scenario_result *out, struct model_runner *runner,
                       const struct scenario *scenario, void (*before)(void *context, int pass),
                       void *context);

/* The root of the mean square difference of the logits in units of their standard deviation. */
double scenario_mean(const struct scenario_result *found, const struct scenario_result *expected);

/* By how much, of it, the NLL of text grows that `expected` would write itself: of each position all
 * tokens, as likely as it has them, so that it does not depend on which ones are drawn. >= 0. */
double scenario_nll_change(const struct scenario_result *found,
                           const struct scenario_result *expected);

/* The largest difference of two logits in units of the row's standard deviation. */
double scenario_worst(const struct scenario_result *found, const struct scenario_result *expected);

#endif
