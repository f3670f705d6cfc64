/* A generator over the small checkpoint of test_generator.c, and prompts that begin alike. */
#ifndef PHASOR_TESTS_ENGINE_PREFIX_RIG_H
#define PHASOR_TESTS_ENGINE_PREFIX_RIG_H

#include <stdbool.h>

#include "engine/engine.h"
#include "engine/generator_state.h"

#define VOCAB       128
#define CONTEXT     512
#define PROMPTS_MAX 64
#define TOKENS_MAX  8

struct rig {
    struct engine *engine;
    struct exec *exec;
    struct generator *generator;
};

struct limits {
    const char *model, *plan; /* NULL: the small one; one rank */
    enum dtype dtype;
    int64_t sequences, batch_tokens, pages, context; /* pages of each group */
    bool shares;
};

struct prompt {
    int32_t ids[CONTEXT];
    int64_t count, token_max;
    bool is_scored;
};

/* What came of a prompt, to the bit. */
struct heard {
    int32_t ids[TOKENS_MAX];
    float logprobs[TOKENS_MAX], scores[CONTEXT];
    int64_t count, score_count, finished;
    enum finish_reason reason;
};

void check(enum status status, const struct error *err); /* fails the test */

void rig_open(struct rig *rig, const struct limits *limits);
void rig_close(struct rig *rig);
struct generator_counters counters(const struct rig *rig);

/* `head` tokens of document `seed`, then `tail` tokens of its own. */
struct prompt prompt_of(uint64_t seed, int64_t head, uint64_t own_seed, int64_t tail);

/* Of a prompt whose trace is the context. */
extern const struct sequence_callbacks trace_callbacks;

enum status try_submit(struct rig *rig, const struct prompt *prompt, struct heard *trace,
                       struct error *err);
void submit(struct rig *rig, const struct prompt *prompt, struct heard *trace); /* clears it */
void step(struct rig *rig);
void run(struct rig *rig); /* until idle; no page is held then */
void run_one(struct rig *rig, const struct prompt *prompt, struct heard *trace);

#endif
