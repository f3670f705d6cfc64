#include "engine/generator.h"

#include <string.h>

#include "base/memory.h"
#include "base/system.h"
#include "engine/generator_state.h"

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
                         "group, and was given %lld; raise --kv-memory",
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
                      },
                      err));
    generator->counters.kv_pages_total = (int64_t)count * generator->group_count;
    generator->counters.kv_token_max = (int64_t)count * KV_PAGE_TOKENS;
    return STATUS_OK;
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

enum status generator_create(struct generator **out, struct exec *exec,
                             const struct generator_params *params, struct error *err)
{
    struct generator *generator;
    TRY(check_params(params, exec, err));
    TRY(memory_get((void **)&generator, 1, sizeof *generator, "the generator", err));
    generator->exec = exec;
    generator->params = *params;
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

static void sequence_free(struct sequence *sequence)
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
    counters.kv_pages_used = counters.kv_pages_total;
    for (int g = 0; g < generator->group_count; g++)
        counters.kv_pages_used -= generator->cache.groups[g].free_count;
    return counters;
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
    if (pages > generator->cache.page_count)
        return error_set(err, STATUS_LIMIT,
                         "prompt and max_tokens need %lld pages of KV cache and there are %lld; "
                         "raise --kv-memory",
                         (long long)pages, (long long)generator->cache.page_count);
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

/* ---- Groups -------------------------------------------------------------------------------- */

static int64_t tokens_of(const struct sequence *sequence)
{
    return sequence->request.prompt_count + sequence->request.token_count_max;
}

static bool group_has_room(const struct generator *generator, int group,
                           const struct sequence *sequence)
{
    return generator->cache.groups[group].free_count >= sequence->page_count &&
           generator->loads[group].sequence_count < generator->group_sequence_max;
}

/* The group with the fewest tokens before it among those that have room; -1: none has. */
static int group_choose(const struct generator *generator, const struct sequence *sequence)
{
    int best = -1;
    for (int g = 0; g < generator->group_count; g++) {
        if (group_has_room(generator, g, sequence) &&
            (best < 0 || generator->loads[g].token_count < generator->loads[best].token_count))
            best = g;
    }
    return best;
}

static void group_enter(struct generator *generator, struct sequence *sequence, int group)
{
    sequence->group = group;
    kv_cache_take(&generator->cache, group, sequence->pages, sequence->page_count);
    generator->loads[group].sequence_count++;
    generator->loads[group].token_count += tokens_of(sequence);
}

static void group_leave(struct generator *generator, struct sequence *sequence)
{
    struct group_load *load = &generator->loads[sequence->group];
    kv_cache_return(&generator->cache, sequence->group, sequence->pages, sequence->page_count);
    load->sequence_count--;
    load->token_count -= tokens_of(sequence);
}

/* ---- Ending -------------------------------------------------------------------------------- */

/* Takes the ended out of the running and gives their pages back. */
static void sweep_ended(struct generator *generator)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < generator->counters.running; i++) {
        struct sequence *sequence = generator->running[i];
        if (!sequence->done) {
            generator->running[kept++] = sequence;
            continue;
        }
        group_leave(generator, sequence);
        sequence_free(sequence);
    }
    generator->counters.running = kept;
}

void generator_cancel_all(struct generator *generator)
{
    for (int64_t i = 0; i < generator->counters.running; i++) {
        /* A step that failed half-way may have ended some. */
        if (!generator->running[i]->done)
            sequence_finish(generator->running[i], FINISH_CANCELLED, -1, NULL);
    }
    sweep_ended(generator);
    while (generator->first_waiting != NULL) {
        struct sequence *sequence = generator->first_waiting;
        generator->first_waiting = sequence->next;
        generator->counters.waiting--;
        sequence_finish(sequence, FINISH_CANCELLED, -1, NULL);
        sequence_free(sequence);
    }
}

/* ---- Scheduling ---------------------------------------------------------------------------- */

/* In order of arrival: a large request at the head waits for pages, and those behind it wait. */
static void admit(struct generator *generator)
{
    while (generator->first_waiting != NULL &&
           generator->counters.running < generator->params.sequence_count_max) {
        struct sequence *sequence = generator->first_waiting;
        int group = group_choose(generator, sequence);
        if (group < 0)
            return;
        generator->first_waiting = sequence->next;
        generator->counters.waiting--;
        group_enter(generator, sequence, group);
        sequence->started = system_seconds();
        generator->running[generator->counters.running++] = sequence;
    }
}

static int64_t prompt_left(const struct sequence *sequence)
{
    return sequence->request.prompt_count - sequence->position;
}

static void segment_add(struct generator *generator, int64_t *count, struct sequence *sequence,
                        const int32_t *tokens, int64_t token_count)
{
    generator->of_segment[*count] = sequence;
    generator->segments[(*count)++] = (struct exec_segment){
        .tokens = tokens,
        .token_count = token_count,
        .first_position = sequence->position,
        .pages = sequence->pages,
        .group = sequence->group,
    };
}

/* Prompt chunks of a group in order of admission, up to its share of batch_token_max tokens. */
static void collect_prompts(struct generator *generator, int group, int64_t *count)
{
    int64_t room = generator->group_token_max;
    for (int64_t i = 0; i < generator->counters.running && room > 0; i++) {
        struct sequence *sequence = generator->running[i];
        int64_t left = prompt_left(sequence);
        int64_t chunk = left < room ? left : room;
        if (chunk <= 0 || sequence->group != group)
            continue;
        segment_add(generator, count, sequence, sequence->request.prompt + sequence->position,
                    chunk);
        room -= chunk;
    }
}

static void collect_last_tokens(struct generator *generator, int group, int64_t *count)
{
    for (int64_t i = 0; i < generator->counters.running; i++) {
        struct sequence *sequence = generator->running[i];
        if (sequence->group == group)
            segment_add(generator, count, sequence, &sequence->last_token, 1);
    }
}

/* Segments stand in the order of their groups. */
static int64_t collect(struct generator *generator,
                       void (*of_group)(struct generator *generator, int group, int64_t *count))
{
    int64_t count = 0;
    for (int group = 0; group < generator->group_count; group++)
        of_group(generator, group, &count);
    return count;
}

/* Rows whose logits are needed: the last token of a whole context, and every prompt token but the
 * last when the prompt is scored. */
static int64_t collect_wanted(struct generator *generator, int64_t segment_count)
{
    int64_t wanted = 0;
    int32_t row = 0;
    for (int64_t s = 0; s < segment_count; s++) {
        struct sequence *sequence = generator->of_segment[s];
        const struct exec_segment *segment = &generator->segments[s];
        for (int64_t t = 0; t < segment->token_count; t++, row++) {
            int64_t position = segment->first_position + t;
            bool is_inner = position + 1 < sequence->request.prompt_count;
            if (is_inner ? sequence->request.prompt_logprobs
                         : sequence->request.token_count_max > 0)
                generator->wanted[wanted++] = (struct wanted_row){sequence, row, position};
        }
    }
    return wanted;
}

static int64_t advance(struct generator *generator, int64_t segment_count)
{
    int64_t tokens = 0;
    for (int64_t s = 0; s < segment_count; s++) {
        generator->of_segment[s]->position += generator->segments[s].token_count;
        tokens += generator->segments[s].token_count;
    }
    return tokens;
}

/* A prompt that is only scored ends with its last chunk. */
static void end_scored(struct generator *generator, int64_t segment_count)
{
    for (int64_t s = 0; s < segment_count; s++) {
        struct sequence *sequence = generator->of_segment[s];
        if (!sequence->done && sequence->request.token_count_max == 0 && prompt_left(sequence) == 0)
            sequence_finish(sequence, FINISH_LENGTH, -1, NULL);
    }
}

static void count_step(struct generator *generator, bool is_prefill, int64_t tokens, double seconds)
{
    struct generator_counters *counters = &generator->counters;
    *(is_prefill ? &counters->prefill_tokens : &counters->decode_tokens) += tokens;
    *(is_prefill ? &counters->prefill_seconds : &counters->decode_seconds) += seconds;
    counters->step_count++;
}

enum status generator_step(struct generator *generator, struct error *err)
{
    double start = system_seconds();
    admit(generator);
    int64_t segment_count = collect(generator, collect_prompts);
    bool is_prefill = segment_count > 0;
    if (!is_prefill)
        segment_count = collect(generator, collect_last_tokens);
    if (segment_count == 0)
        return STATUS_OK;
    enum layer_form form = is_prefill ? FORM_OWNED : exec_decode_form(generator->exec);
    TRY(exec_forward(generator->exec, &generator->cache, form, generator->segments, segment_count,
                     err));
    int64_t wanted_count = collect_wanted(generator, segment_count);
    int64_t tokens = advance(generator, segment_count);
    TRY(generator_use_logits(generator, wanted_count, err));
    end_scored(generator, segment_count);
    count_step(generator, is_prefill, tokens, system_seconds() - start);
    sweep_ended(generator);
    return STATUS_OK;
}
