/* What stands before a step of decode that is recorded by itself: keys and values that the model
 * computed. What its rows have seen decides which experts they choose: of rows with long contexts
 * more have the same than of rows that have seen numbers nobody computed, and a step reads fewer
 * experts.
 *
 * The model computes a few prompts of random tokens, whose pages are a pool; every sequence's
 * context is pages that are drawn from it, with replacement (a bootstrap). So what attention finds
 * is as far apart between two sequences as in two texts of that length, though the pool is shorter
 * than they are. Two things are not as in a text: the pool's own mean is no text's (it is common to
 * all, as a text's is), and a page's keys have the positions that it had in its prompt, which
 * matters to models that look at near positions first. How far times are off: bench/control.py.
 *
 * All of it is a function of the model and the context's length alone: neither of the layout, but
 * for rounding, nor of what was recorded before. The host reaches the devices' memory.
 */
#ifndef PHASOR_ENGINE_PASS_CONTEXTS_H
#define PHASOR_ENGINE_PASS_CONTEXTS_H

#include "engine/engine.h"
#include "exec/kv_cache.h"

#define CONTEXT_POOL_TOKENS 2048
#define CONTEXT_POOL_PAGES  (CONTEXT_POOL_TOKENS / KV_PAGE_TOKENS)

struct pass_contexts {
    int64_t prompt;        /* tokens of each that the model has computed; 0: none */
    struct kv_cache cache; /* the pool, the same in each group: CONTEXT_POOL_PAGES */
};

/* Has the engine compute a pool for contexts of so many tokens, 1 to the model's positions, where
 * it is not for those already; `contexts` may be {0}. What the engine was in, prefill or decode, it
 * is to enter again. A failure is of the box, or for want of memory. */
enum status pass_contexts_get(struct pass_contexts *contexts, struct engine *engine,
                              int64_t context, struct error *err) MUST_CHECK;
/* Before the engine is closed; {0} is allowed. */
void pass_contexts_deinit(struct pass_contexts *contexts);

/* Into the first pages of another cache of the same engine. */
void pass_contexts_copy(struct kv_cache *to, const struct pass_contexts *contexts,
                        const struct engine *engine);

/* Of a cache that begins with such a copy: the context of a sequence, which all groups together
 * count from 0 and which belongs to `group`. Writes the numbers of its pages. They are the pool's,
 * but for the last, in which the step writes: that is `own`, a copy. With `owns_all` all are
 * copies, own and those behind it. */
void pass_contexts_draw(int32_t *pages, struct kv_cache *cache, const struct engine *engine,
                        int64_t context, int64_t sequence, int group, int64_t own, bool owns_all);

#endif
