#include "engine/pass_contexts.h"

#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "device/device.h"
#include "exec/exec.h"

/* Long enough for contexts of thousands of tokens, as bench/control.py shows. */
#define PROMPT_TOKENS_MAX 256

enum { SEED_PROMPTS = 1, SEED_PAGES };

/* ---- Prompts --------------------------------------------------------------------------------- */

/* Of one page at least, and no longer than the context otherwise: what came early in it saw
 * little. */
static int64_t prompt_tokens(const struct engine *engine, int64_t context)
{
    int64_t tokens = KV_PAGE_TOKENS, most = engine_config(engine)->position_count_max;
    if (most < tokens)
        return most;
    while (tokens < PROMPT_TOKENS_MAX && 2 * tokens <= context)
        tokens *= 2;
    return tokens;
}

static int64_t prompt_count(int64_t prompt)
{
    return CONTEXT_POOL_PAGES / kv_pages_for(prompt);
}

/* Each group computes its share of the prompts; their pages have the same numbers in all groups. */
struct prompts {
    int32_t tokens[CONTEXT_POOL_TOKENS];
    int32_t pages[CONTEXT_POOL_PAGES];
    struct exec_segment segments[CONTEXT_POOL_PAGES];
    int64_t count;
};

static void prompts_init(struct prompts *out, const struct engine *engine, int64_t prompt)
{
    uint64_t vocab = (uint64_t)engine_config(engine)->vocab_count;
    int groups = engine_layout(engine)->attention.dp;
    struct random random = {.seed = random_key(SEED_PROMPTS, 0)};
    out->count = prompt_count(prompt);
    for (int64_t t = 0; t < out->count * prompt; t++)
        out->tokens[t] = (int32_t)random_below(&random, vocab);
    for (int32_t page = 0; page < CONTEXT_POOL_PAGES; page++)
        out->pages[page] = page;
    for (int group = 0; group < groups; group++) {
        struct range share = layout_share(out->count, groups, group);
        for (int64_t i = share.first; i < share.first + share.count; i++)
            out->segments[i] = (struct exec_segment){.tokens = out->tokens + i * prompt,
                                                     .token_count = prompt,
                                                     .pages = out->pages + i * kv_pages_for(prompt),
                                                     .group = group};
    }
}

/* ---- Pages ----------------------------------------------------------------------------------- */

/* A page of one rank's, in one cache or another. */
struct page_place {
    const struct kv_cache *cache;
    int group;
    int64_t page;
};

static void values_copy(void *to, int64_t to_page, const void *from, int64_t from_page,
                        size_t bytes)
{
    memcpy((char *)to + (size_t)to_page * bytes, (const char *)from + (size_t)from_page * bytes,
           bytes);
}

/* Of all layers, on all ranks of the group: those that have the same heads. */
static void page_copy(const struct engine *engine, struct page_place to, struct page_place from)
{
    int tp = engine_layout(engine)->attention.tp;
    for (int at = 0; at < tp; at++) {
        for (int64_t layer = 0; layer < engine_config(engine)->layer_count; layer++) {
            struct kv_layer target = kv_cache_layer(to.cache, to.group * tp + at, layer);
            struct kv_layer source = kv_cache_layer(from.cache, from.group * tp + at, layer);
            size_t bytes = (size_t)(kv_page_values(&target) * dtype_bytes(target.dtype));
            values_copy(target.keys, to.page, source.keys, from.page, bytes);
            values_copy(target.values, to.page, source.values, from.page, bytes);
        }
    }
}

void pass_contexts_copy(struct kv_cache *to, const struct pass_contexts *contexts,
                        const struct engine *engine)
{
    for (int group = 0; group < engine_layout(engine)->attention.dp; group++) {
        for (int64_t page = 0; page < CONTEXT_POOL_PAGES; page++)
            page_copy(engine, (struct page_place){to, group, page},
                      (struct page_place){&contexts->cache, group, page});
    }
}

/* What a group has computed the others have as well: else rows of one group would have more in
 * common than those of two. */
static void prompts_spread(const struct kv_cache *cache, const struct engine *engine,
                           const struct prompts *prompts)
{
    for (int64_t i = 0; i < prompts->count; i++) {
        const struct exec_segment *segment = &prompts->segments[i];
        for (int64_t page = 0; page < kv_pages_for(segment->token_count); page++) {
            struct page_place from = {cache, segment->group, segment->pages[page]};
            for (int group = 0; group < engine_layout(engine)->attention.dp; group++) {
                if (group != segment->group)
                    page_copy(engine, (struct page_place){cache, group, from.page}, from);
            }
        }
    }
}

/* ---- The pool -------------------------------------------------------------------------------- */

static enum status cache_get(struct kv_cache *out, const struct engine *engine,
                             const struct exec *exec, struct error *err)
{
    return out->layers != NULL
               ? STATUS_OK
               : kv_cache_init(out,
                               &(struct kv_cache_params){.box = exec_box(exec),
                                                         .config = engine_config(engine),
                                                         .layout = engine_layout(engine),
                                                         .dtype = exec_kv_dtype(exec),
                                                         .page_count = CONTEXT_POOL_PAGES},
                               err);
}

/* `stays`: no experts are read ahead for decode. */
static enum status pool_compute(struct kv_cache *cache, struct engine *engine, struct exec *exec,
                                const struct prompts *prompts, struct error *err)
{
    struct generator_pass pass = {.phase = PHASE_PREFILL, .stays = true};
    struct exec_hooks hooks = {0};
    ASSERT(box_device(exec_box(exec), 0)->ops->host_reaches);
    TRY(engine_settle(engine, err));
    TRY(engine_enter(engine, &pass, &hooks, err));
    TRY(cache_get(cache, engine, exec, err));
    TRY(exec_forward(exec, cache, FORM_OWNED, prompts->segments, prompts->count, err));
    prompts_spread(cache, engine, prompts);
    return STATUS_OK;
}

enum status pass_contexts_get(struct pass_contexts *contexts, struct engine *engine,
                              int64_t context, struct error *err)
{
    int64_t prompt = prompt_tokens(engine, context);
    int64_t groups = engine_layout(engine)->attention.dp;
    struct prompts *prompts;
    struct exec *exec = NULL;
    if (contexts->prompt == prompt)
        return STATUS_OK;
    TRY(memory_get((void **)&prompts, 1, sizeof *prompts, "prompts", err));
    prompts_init(prompts, engine, prompt);
    contexts->prompt = 0;
    enum status status = engine_exec_create(
        &exec, engine, ceil_div(prompts->count, groups) * prompt * groups, prompts->count, err);
    if (status == STATUS_OK)
        status = pool_compute(&contexts->cache, engine, exec, prompts, err);
    if (status == STATUS_OK)
        contexts->prompt = prompt;
    exec_destroy(exec);
    memory_free(prompts);
    return status;
}

void pass_contexts_deinit(struct pass_contexts *contexts)
{
    kv_cache_deinit(&contexts->cache);
    contexts->prompt = 0;
}

/* ---- Sequences ------------------------------------------------------------------------------- */

void pass_contexts_draw(int32_t *pages, struct kv_cache *cache, const struct engine *engine,
                        int64_t context, int64_t sequence, int group, int64_t own, bool owns_all)
{
    int64_t page_count = kv_pages_for(context), prompt = prompt_tokens(engine, context);
    uint64_t pool = (uint64_t)(prompt_count(prompt) * kv_pages_for(prompt));
    struct random random = {
        .seed = random_key(random_key(SEED_PAGES, (uint64_t)context), (uint64_t)sequence)};
    for (int64_t at = 0; at < page_count; at++) {
        struct page_place drawn = {cache, group, (int64_t)random_below(&random, pool)};
        bool is_own = owns_all || at == page_count - 1;
        pages[at] = (int32_t)(is_own ? own : drawn.page);
        if (is_own)
            page_copy(engine, (struct page_place){cache, group, own++}, drawn);
    }
}
