#include "engine/generator.h"

#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "base/record.h"
#include "base/system.h"
#include "base/trace.h"
#include "engine/generator_state.h"
#include "engine/routing_counts.h"
#include "replay/recording.h"

/* ---- Life ---------------------------------------------------------------------------------- */

static enum status check_params(const struct generator_params *params, const struct exec *exec,
                                struct error *err)
{
    if (params->sequence_count_max < 1 || params->batch_token_max < params->sequence_count_max)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--max-num-batched-tokens (%lld) must be at least --max-num-seqs (%lld), "
                         "which must be at least 1",
                         (long long)params->batch_token_max, (long long)params->sequence_count_max);
    if (params->batch_token_max > exec_token_max(exec))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--max-num-batched-tokens is %lld; this executor was made for %lld",
                         (long long)params->batch_token_max, (long long)exec_token_max(exec));
    if (params->context_max < 1)
        return error_set(err, STATUS_INVALID_ARGUMENT, "--max-model-len must be at least 1");
    return STATUS_OK;
}

static enum status pools_create(struct generator *generator, struct error *err)
{
    struct page_pool_params params = {.page_count = generator->cache.page_count,
                                      .seed = random_seed_make()};
    TRY(memory_get((void **)&generator->pools, (size_t)generator->group_count,
                   sizeof *generator->pools, "the generator", err));
    for (int g = 0; g < generator->group_count; g++)
        TRY(page_pool_init(&generator->pools[g], &params, err));
    return STATUS_OK;
}

/* Pages of each group, as many as the prompts of the first pass fill: with short answers they are
 * that pass's. More would be held by who never uses it: what a file's bytes say of its tokens is
 * rough, and prompts may begin alike, or be done. */
static int64_t pages_ahead(const struct generator *generator, int64_t page_count)
{
    const struct generator_params *params = &generator->params;
    int64_t tokens = params->tokens_expected < params->batch_token_max ? params->tokens_expected
                                                                       : params->batch_token_max;
    int64_t pages = kv_pages_for(ceil_div(tokens, generator->group_count));
    return pages < page_count ? pages : page_count;
}

/* As many pages as the budget gives to each group, at most what its sequences can use. */
static enum status cache_create(struct generator *generator, struct error *err)
{
    const struct generator_params *params = &generator->params;
    const struct exec *exec = generator->exec;
    const struct layout *layout = exec_layout(exec);
    enum dtype dtype = exec_kv_dtype(exec);
    uint64_t page_bytes = kv_page_bytes(exec_config(exec), layout, dtype) *
                          (uint64_t)layout->rank_count; /* one page of every group */
    uint64_t budget = (uint64_t)params->kv_bytes_max / page_bytes;
    uint64_t useful = (uint64_t)(generator->group_sequence_max * kv_pages_for(params->context_max));
    uint64_t count = budget < useful ? budget : useful;
    if (count < 1)
        return error_set(err, STATUS_NO_MEMORY,
                         "the KV cache needs at least %llu bytes for one page of %d tokens in each "
                         "group, and was given %lld; raise --memory or --kv-memory",
                         (unsigned long long)page_bytes, KV_PAGE_TOKENS,
                         (long long)params->kv_bytes_max);
    if (count > INT32_MAX)
        count = INT32_MAX;
    TRY(kv_cache_init(&generator->cache,
                      &(struct kv_cache_params){
                          .box = exec_box(exec),
                          .config = exec_config(exec),
                          .layout = layout,
                          .dtype = dtype,
                          .page_count = (int64_t)count,
                          .written_count = pages_ahead(generator, (int64_t)count),
                      },
                      err));
    generator->counters.kv_pages_written = generator->cache.written_count * generator->group_count;
    generator->counters.kv_pages_total = (int64_t)count * generator->group_count;
    generator->counters.kv_page_bytes = page_bytes / (uint64_t)generator->group_count;
    generator->counters.kv_token_max = (int64_t)count * KV_PAGE_TOKENS;
    return pools_create(generator, err);
}

static enum status tables_create(struct generator *generator, struct error *err)
{
    size_t sequences = (size_t)generator->params.sequence_count_max;
    const char *what = "the generator";
    TRY(memory_get((void **)&generator->loads, (size_t)generator->group_count,
                   sizeof *generator->loads, what, err));
    TRY(memory_get((void **)&generator->running, sequences, sizeof *generator->running, what, err));
    TRY(memory_get((void **)&generator->segments, sequences, sizeof *generator->segments, what,
                   err));
    TRY(memory_get((void **)&generator->of_segment, sequences, sizeof *generator->of_segment, what,
                   err));
    TRY(memory_get((void **)&generator->wanted,
                   (size_t)(generator->group_count * generator->group_token_max),
                   sizeof *generator->wanted, what, err));
    return sampler_init(&generator->sampler, exec_config(generator->exec)->vocab_count, err);
}

/* Sums alone: who runs, and the cache, are this one's. */
static struct generator_counters sums_of(const struct generator_counters *counters)
{
    struct generator_counters sums = *counters;
    sums.running = sums.waiting = 0;
    sums.kv_pages_used = sums.kv_pages_cached = sums.kv_pages_total = 0;
    sums.kv_pages_written = sums.kv_pages_taken = sums.kv_token_max = 0;
    sums.kv_page_bytes = 0;
    return sums;
}

enum status generator_create(struct generator **out, struct exec *exec,
                             const struct generator_params *params, struct error *err)
{
    struct generator *generator;
    TRY(check_params(params, exec, err));
    TRY(memory_get((void **)&generator, 1, sizeof *generator, "the generator", err));
    generator->exec = exec;
    generator->params = *params;
    generator->params.before = NULL;
    if (params->before != NULL)
        generator->counters = sums_of(params->before);
    if (params->routing != NULL)
        exec_record_routing(exec, routing_counts_ids(params->routing));
    exec_stage_totals(exec, generator->stages);
    generator->group_count = exec_layout(exec)->attention.dp;
    generator->group_token_max = ceil_div(params->batch_token_max, generator->group_count);
    generator->group_sequence_max = params->sequence_count_max < generator->group_token_max
                                        ? params->sequence_count_max
                                        : generator->group_token_max;
    enum status status = tables_create(generator, err);
    if (status == STATUS_OK)
        status = cache_create(generator, err);
    if (status != STATUS_OK) {
        generator_destroy(generator);
        return status;
    }
    *out = generator;
    return STATUS_OK;
}

void sequence_free(struct sequence *sequence)
{
    memory_free(sequence->pages);
    memory_free(sequence);
}

void generator_destroy(struct generator *generator)
{
    if (generator == NULL)
        return;
    for (int64_t i = 0; i < generator->counters.running; i++)
        sequence_free(generator->running[i]);
    while (generator->first_waiting != NULL) {
        struct sequence *sequence = generator->first_waiting;
        generator->first_waiting = sequence->next;
        sequence_free(sequence);
    }
    for (int g = 0; generator->pools != NULL && g < generator->group_count; g++)
        page_pool_deinit(&generator->pools[g]);
    memory_free(generator->pools);
    kv_cache_deinit(&generator->cache);
    sampler_deinit(&generator->sampler);
    memory_free(generator->wanted);
    memory_free(generator->of_segment);
    memory_free(generator->segments);
    memory_free(generator->running);
    memory_free(generator->loads);
    memory_free(generator);
}

struct generator_counters generator_counters_get(const struct generator *generator)
{
    struct generator_counters counters = generator->counters;
    for (int g = 0; g < generator->group_count; g++) {
        counters.kv_pages_used += page_pool_used(&generator->pools[g]);
        counters.kv_pages_cached += generator->pools[g].cached_count;
        counters.kv_pages_taken +=
            generator->pools[g].page_count - generator->pools[g].unused_count;
    }
    return counters;
}

uint64_t generator_table_bytes(const struct generator_params *params, int64_t vocab_count)
{
    /* Each group's share of a pass is rounded up. */
    uint64_t sequences = (uint64_t)params->sequence_count_max;
    uint64_t rows = (uint64_t)params->batch_token_max + COMM_RANKS_MAX;
    uint64_t for_sequence = sizeof(struct sequence) + sizeof(struct exec_segment) +
                            sizeof(struct sequence **) + sizeof(struct sequence *);
    return sizeof(struct generator) + sequences * for_sequence + rows * sizeof(struct wanted_row) +
           COMM_RANKS_MAX * (sizeof(struct group_load) + sizeof(struct page_pool)) +
           (uint64_t)vocab_count * sizeof(struct candidate);
}

uint64_t generator_bytes_per_page(void)
{
    return page_pool_bytes_per_page() + sizeof(int32_t); /* and its place in a sequence */
}

void generator_limit_sequences(struct generator *generator, int64_t token_max)
{
    if (token_max < generator->counters.kv_token_max)
        generator->counters.kv_token_max = kv_pages_for(token_max) * KV_PAGE_TOKENS;
}

/* ---- Submitting ---------------------------------------------------------------------------- */

static enum status check_request(const struct generator *generator,
                                 const struct sequence_request *request, struct error *err)
{
    int64_t vocab = exec_config(generator->exec)->vocab_count;
    int64_t context = generator->params.context_max;
    ASSERT(request->callbacks.finished != NULL && request->logprobs <= LOGPROBS_MAX);
    if (request->prompt_count < 1)
        return error_set(err, STATUS_INVALID_ARGUMENT, "the prompt has no tokens");
    if (request->token_count_max < 0)
        return error_set(err, STATUS_INVALID_ARGUMENT, "max_tokens is negative");
    if (request->prompt_count > context ||
        request->token_count_max > context - request->prompt_count)
        return error_set(err, STATUS_LIMIT,
                         "the prompt has %lld tokens and max_tokens is %lld; together they exceed "
                         "the context of %lld tokens",
                         (long long)request->prompt_count, (long long)request->token_count_max,
                         (long long)context);
    int64_t pages = kv_pages_for(request->prompt_count + request->token_count_max);
    int64_t page_max = generator->counters.kv_token_max / KV_PAGE_TOKENS;
    if (pages > page_max)
        return error_set(err, STATUS_LIMIT,
                         "prompt and max_tokens need %lld pages of KV cache and there are %lld; "
                         "raise --memory or --kv-memory",
                         (long long)pages, (long long)page_max);
    for (int64_t i = 0; i < request->prompt_count; i++) {
        if (request->prompt[i] < 0 || request->prompt[i] >= vocab)
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "token %lld of the prompt is %d, outside the vocabulary of %lld",
                             (long long)i, request->prompt[i], (long long)vocab);
    }
    return STATUS_OK;
}

enum status generator_submit(struct generator *generator, const struct sequence_request *request,
                             struct error *err)
{
    TRY(check_request(generator, request, err));
    struct sequence *sequence;
    TRY(memory_get((void **)&sequence, 1, sizeof *sequence, "a sequence", err));
    sequence->request = *request;
    sequence->page_count = kv_pages_for(request->prompt_count + request->token_count_max);
    enum status status = memory_get_raw((void **)&sequence->pages, (size_t)sequence->page_count,
                                        sizeof *sequence->pages, "a sequence", err);
    if (status != STATUS_OK) {
        sequence_free(sequence);
        return status;
    }
    sequence->submitted = system_seconds();
    if (generator->first_waiting == NULL)
        generator->first_waiting = sequence;
    else
        generator->last_waiting->next = sequence;
    generator->last_waiting = sequence;
    generator->counters.waiting++;
    return STATUS_OK;
}

/* ---- Ending -------------------------------------------------------------------------------- */

void generator_cancel_all(struct generator *generator)
{
    for (int64_t i = 0; i < generator->counters.running; i++) {
        /* A step that failed half-way may have ended some. */
        if (!generator->running[i]->done)
            sequence_finish(generator->running[i], FINISH_CANCELLED, -1, NULL);
    }
    generator_sweep_ended(generator);
    while (generator->first_waiting != NULL) {
        struct sequence *sequence = generator->first_waiting;
        generator->first_waiting = sequence->next;
        generator->counters.waiting--;
        sequence_finish(sequence, FINISH_CANCELLED, -1, NULL);
        sequence_free(sequence);
    }
}

/* ---- Steps ----------------------------------------------------------------------------------- */

/* A prompt that is only scored ends with its last chunk. */
static void end_scored(struct generator *generator, int64_t segment_count)
{
    for (int64_t s = 0; s < segment_count; s++) {
        struct sequence *sequence = generator->of_segment[s];
        if (!sequence->done && sequence->request.token_count_max == 0 && prompt_left(sequence) == 0)
            sequence_finish(sequence, FINISH_LENGTH, -1, NULL);
    }
}

/* What the stages took since the last step; what is left of a step's time is between them. */
static void count_stages(struct generator *generator, struct stage_total *to, double seconds)
{
    struct stage_total now[STAGE_KIND_COUNT], *before = generator->stages;
    exec_stage_totals(generator->exec, now);
    for (int stage = STAGE_BETWEEN + 1; stage < STAGE_KIND_COUNT; stage++) {
        double taken = now[stage].seconds - before[stage].seconds;
        to[stage].seconds += taken;
        to[stage].weight_bytes += now[stage].weight_bytes - before[stage].weight_bytes;
        seconds -= taken;
    }
    to[STAGE_BETWEEN].seconds += seconds;
    memcpy(before, now, sizeof now);
}

static void count_step(struct generator *generator, bool is_prefill, int64_t tokens, double seconds)
{
    struct generator_counters *counters = &generator->counters;
    count_stages(generator, is_prefill ? counters->prefill_stages : counters->decode_stages,
                 seconds);
    *(is_prefill ? &counters->prefill_tokens : &counters->decode_tokens) += tokens;
    *(is_prefill ? &counters->prefill_seconds : &counters->decode_seconds) += seconds;
    counters->step_count++;
}

static enum status pass_enter(struct generator *generator, struct error *err)
{
    const struct generator_params *params = &generator->params;
    struct exec_hooks hooks = {0};
    if (params->enter != NULL)
        TRY(params->enter(params->enter_context, &generator->pass, &hooks, err));
    exec_set_hooks(generator->exec, &hooks);
    return STATUS_OK;
}

/* A pass that is run again writes the same places of the cache. `*seconds` are without what comes
 * between passes. */
static enum status pass_run(double *seconds, struct generator *generator, enum layer_form form,
                            int64_t segment_count, struct exec_head *head, struct error *err)
{
    const struct generator_params *params = &generator->params;
    bool is_prefill = generator->pass.phase == PHASE_PREFILL, is_done;
    struct trace *trace = box_trace(exec_box(generator->exec));
    *seconds = 0;
    do {
        record_phase(trace, RECORD_BETWEEN);
        TRY(pass_enter(generator, err));
        record_phase(trace, is_prefill ? RECORD_PREFILL : RECORD_DECODE);
        double start = system_seconds(), begin = trace_begin();
        TRY(exec_step(generator->exec, &generator->cache, form, generator->segments, segment_count,
                      head, err));
        trace_add(begin, is_prefill ? "prefill pass" : "decode pass", 0);
        *seconds += system_seconds() - start;
        is_done = params->enter == NULL || params->was_whole(params->enter_context);
    } while (!is_done);
    return STATUS_OK;
}

enum status generator_step(struct generator *generator, struct error *err)
{
    bool is_prefill;
    generator_admit(generator);
    int64_t segment_count = generator_collect(generator, &is_prefill);
    if (segment_count == 0)
        return STATUS_OK;
    enum layer_form form = is_prefill ? FORM_OWNED : exec_decode_form(generator->exec);
    generator->pass = (struct generator_pass){
        .phase = is_prefill ? PHASE_PREFILL : PHASE_DECODE,
        .is_last = is_prefill && generator_is_last_prefill(generator, segment_count),
        .is_tail = !is_prefill && generator_is_tail(generator),
        .stays = generator->params.in_waves && generator->running[0]->request.stays,
    };
    generator->wave_is_closed =
        generator->params.in_waves && (!is_prefill || generator->pass.is_last);
    double seconds;
    int64_t wanted_count = generator_collect_wanted(generator, segment_count);
    struct exec_head head = generator_head(generator, wanted_count);
    TRY(pass_run(&seconds, generator, form, segment_count, &head, err));
    double start = system_seconds(), begin = trace_begin();
    int64_t tokens = generator_advance(generator, segment_count);
    if (generator->params.routing != NULL)
        routing_counts_add(generator->params.routing, generator->pass.phase, tokens);
    TRY(generator_use_logits(generator, &head, wanted_count, err));
    end_scored(generator, segment_count);
    trace_add(begin, "logits and choice of tokens", 0);
    count_step(generator, is_prefill, tokens, seconds + system_seconds() - start);
    generator_sweep_ended(generator);
    record_phase(box_trace(exec_box(generator->exec)), RECORD_BETWEEN);
    return STATUS_OK;
}
