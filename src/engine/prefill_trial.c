#include "engine/prefill_trial.h"

#include "base/memory.h"
#include "base/system.h"

/* A prime: neighbours are different tokens, which go to different experts. */
#define TOKEN_STEP 7919

int64_t prefill_trial_tokens(const struct model_config *config, const struct layout *layout,
                             int64_t token_max)
{
    int64_t groups = layout->attention.dp, count = PREFILL_TRIAL_TOKENS;
    if (token_max > 0 && token_max < count)
        count = token_max;
    int64_t of_group = ceil_div(count, groups);
    if (of_group > config->position_count_max)
        of_group = config->position_count_max;
    return of_group * groups;
}

static struct kv_cache_params cache_params(const struct exec_params *params)
{
    const struct layout *layout = &params->layouts->of[PHASE_PREFILL];
    return (struct kv_cache_params){
        .box = params->box,
        .config = params->config,
        .layout = layout,
        .dtype = params->weights[0].types.matrices == DTYPE_F32 ? DTYPE_F32 : DTYPE_BF16,
        .page_count = kv_pages_for(params->token_max / layout->attention.dp),
    };
}

uint64_t prefill_trial_bytes(const struct exec_params *params)
{
    struct kv_cache_params cache = cache_params(params);
    return (exec_bytes(params->config, params->layouts, params->token_max, params->segment_max) +
            kv_page_bytes(params->config, cache.layout, cache.dtype) * (uint64_t)cache.page_count) *
           (uint64_t)cache.layout->rank_count;
}

/* A pass over tokens that differ, the same in each group. */
static enum status pass_run(double *seconds, struct exec *exec, struct kv_cache *cache,
                            struct error *err)
{
    int32_t tokens[PREFILL_TRIAL_TOKENS], pages[PREFILL_TRIAL_TOKENS / KV_PAGE_TOKENS + 1];
    struct exec_segment segments[LAYOUT_RANKS_MAX];
    int groups = exec_layout(exec)->attention.dp;
    int64_t count = exec_group_token_max(exec), vocab = exec_config(exec)->vocab_count;
    for (int64_t t = 0; t < count; t++)
        tokens[t] = (int32_t)(t * TOKEN_STEP % vocab);
    for (int64_t page = 0; page < cache->page_count; page++)
        pages[page] = (int32_t)page;
    for (int group = 0; group < groups; group++)
        segments[group] = (struct exec_segment){
            .tokens = tokens, .token_count = count, .pages = pages, .group = group};
    double start = system_seconds();
    TRY(exec_forward(exec, cache, FORM_OWNED, segments, groups, err));
    *seconds = system_seconds() - start;
    return STATUS_OK;
}

enum status prefill_trial(double *seconds, const struct exec_params *params, struct error *err)
{
    struct kv_cache_params of_cache = cache_params(params);
    struct kv_cache cache;
    struct exec *exec;
    TRY(exec_create(&exec, params, err));
    enum status status = kv_cache_init(&cache, &of_cache, err);
    if (status == STATUS_OK) {
        status = pass_run(seconds, exec, &cache, err);
        kv_cache_deinit(&cache);
    }
    exec_destroy(exec);
    return status;
}
