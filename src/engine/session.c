#include "engine/session.h"

#include "base/memory.h"
#include "base/size_text.h"
#include "base/system.h"
#include "base/text.h"
#include "engine/routing_counts.h"
#include "engine/run_limits.h"
#include "exec/exec.h"

static enum status check_limits(const struct session_params *params, const struct engine *engine,
                                struct error *err)
{
    const struct model_config *config = engine_config(engine);
    TRY(run_limits_check(params->max_num_seqs, params->max_num_batched_tokens, config,
                         engine_layout(engine)->attention.dp, err));
    if (params->max_model_len < 0 || params->max_model_len > config->position_count_max)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--max-model-len: expected at most %lld, which this model was made for, "
                         "found %lld",
                         (long long)config->position_count_max, (long long)params->max_model_len);
    return STATUS_OK;
}

/* ---- Memory -------------------------------------------------------------------------------- */

static void cure_add(struct text *to, const char *cure)
{
    text_append_format(to, "%s%s", to->length == 0 ? "; " : ", or ", cure);
}

/* One of these helps. Of tables those of sequences, else the cache; a pass may not have fewer
 * tokens than sequences, and what one prompt takes nobody has named. */
static void cures_make(struct text *out, const struct session_params *params, bool is_of_tables,
                       bool is_budget, const struct engine *engine)
{
    bool is_batch = !params->is_one_prompt;
    bool are_equal = params->max_num_batched_tokens <= params->max_num_seqs;
    const char *advice = engine_room_advice(engine);
    *out = (struct text){0};
    if (is_batch)
        cure_add(out, are_equal && params->max_num_seqs > 1
                          ? "lower both --max-num-batched-tokens and --max-num-seqs"
                          : "lower --max-num-batched-tokens");
    if (is_batch && is_of_tables && !are_equal && params->max_num_seqs > 1)
        cure_add(out, "lower --max-num-seqs");
    if (!is_of_tables && params->kv_bytes > 0)
        cure_add(out, "lower --kv-memory");
    cure_add(out, is_budget ? "raise --memory" : "leave phasor more of the memory");
    if (*advice != 0)
        cure_add(out, advice + strlen(", or ")); /* which it begins with */
}

/* A sentence now rather than the kernel's killer later. */
static enum status check_memory(const struct session_params *params, const struct engine *engine,
                                struct error *err)
{
    const struct layout *layout = engine_layout(engine);
    uint64_t pass = exec_bytes(engine_config(engine), engine_layouts(engine),
                               params->max_num_batched_tokens, params->max_num_seqs) *
                    (uint64_t)layout->rank_count;
    const struct box *box = engine_box(engine);
    uint64_t held = box_memory_held(box), allowed = engine_memory_bytes(engine);
    uint64_t available = box_memory_left(box);
    bool is_budget = allowed > 0 && (allowed < held || allowed - held < available);
    if (is_budget)
        available = allowed < held ? 0 : allowed - held;
    if (pass <= available && params->kv_bytes <= available - pass)
        return STATUS_OK;
    struct text cures;
    cures_make(&cures, params, false, is_budget, engine);
    error_set(err, STATUS_NO_MEMORY,
              "a pass of %lld tokens needs %s and the KV cache %s; %s of %smemory are %s%s",
              (long long)params->max_num_batched_tokens, SIZE_TEXT(pass),
              SIZE_TEXT(params->kv_bytes), SIZE_TEXT(available),
              box_memory_is_apart(box) ? "the GPUs' " : "",
              is_budget ? "left of --memory" : "available", cures.failed ? "" : cures.bytes);
    text_deinit(&cures);
    return STATUS_NO_MEMORY;
}

/* What the budget, or what of it there is, leaves for the KV cache once weights and executor are
 * there, with what comes with each page taken off. */
static enum status kv_bytes_left(uint64_t *out, const struct session_params *params,
                                 const struct session *session, const struct engine *engine,
                                 struct error *err)
{
    const struct model_config *config = engine_config(engine);
    const struct layout *layout = engine_layout(engine);
    uint64_t budget = engine_memory_bytes(engine), held = box_memory_held(engine_box(engine));
    uint64_t there = held + box_memory_left(engine_box(engine));
    uint64_t memory = budget < there ? budget : there;
    uint64_t tables =
        run_table_bytes(params->max_num_seqs, params->max_num_batched_tokens, config->vocab_count) +
        params->aside_bytes;
    struct run_page page = run_page_bytes(config, layout, exec_kv_dtype(session->exec));
    if (box_memory_is_apart(engine_box(engine))) /* the host's are not of the GPUs' memory */
        tables = page.beside = 0;
    uint64_t each = page.kv + page.beside;
    if (held > memory || tables > memory - held || each > memory - held - tables) {
        struct text cures;
        cures_make(&cures, params, true, memory == budget, engine);
        error_set(
            err, STATUS_NO_MEMORY,
            "--memory is %s, of which %s can be had: weights and activations take %s, tables and "
            "rows in flight %s, and the KV cache needs at least %s%s",
            SIZE_TEXT(budget), SIZE_TEXT(memory), SIZE_TEXT(held), SIZE_TEXT(tables),
            SIZE_TEXT(each), cures.failed ? "" : cures.bytes);
        text_deinit(&cures);
        return STATUS_NO_MEMORY;
    }
    *out = (memory - held - tables) / each * page.kv;
    return STATUS_OK;
}

/* Where nobody says: half of what is left, or as much as the plan's waves were priced with, if
 * there is as much. */
static uint64_t kv_bytes_usual(const struct engine *engine)
{
    uint64_t left = box_memory_left(engine_box(engine)), planned = engine_cache_bytes(engine);
    uint64_t most = left - left / 16;
    planned = planned < most ? planned : most;
    return planned > left / 2 ? planned : left / 2;
}

static enum status enter(void *context, const struct generator_pass *pass, struct exec_hooks *hooks,
                         struct error *err)
{
    return engine_enter(context, pass, hooks, err);
}

static bool was_whole(void *context)
{
    return engine_was_whole(context);
}

static enum status generator_open(struct session *session, const struct session_params *params,
                                  struct engine *engine, struct error *err)
{
    struct generator_params generator = {
        .sequence_count_max = params->max_num_seqs,
        .batch_token_max = params->max_num_batched_tokens,
        .context_max = session->context_max,
        .tokens_expected = params->tokens_expected,
        .before = params->before,
        .entry_tokens = engine_entry_tokens(engine),
        .shares_prefixes = params->shares_prefixes,
        .in_waves = engine_moves_weights(engine),
        .enter = enter,
        .was_whole = was_whole,
        .enter_context = engine,
        .routing = session->routing,
    };
    uint64_t kv_bytes = params->kv_bytes, left;
    if (engine_memory_bytes(engine) > 0) {
        TRY(kv_bytes_left(&left, params, session, engine, err));
        if (kv_bytes > left)
            return error_set(err, STATUS_NO_MEMORY,
                             "--kv-memory is %s, and --memory leaves %s for it; lower the one or "
                             "raise the other%s",
                             SIZE_TEXT(kv_bytes), SIZE_TEXT(left), engine_room_advice(engine));
        kv_bytes = kv_bytes > 0 ? kv_bytes : left;
    } else if (kv_bytes == 0) {
        kv_bytes = kv_bytes_usual(engine);
    }
    generator.kv_bytes_max = kv_bytes > INT64_MAX ? INT64_MAX : (int64_t)kv_bytes;
    return generator_create(&session->generator, session->exec, &generator, err);
}

/* ---- Life ---------------------------------------------------------------------------------- */

enum status session_open(struct session *out, struct engine *engine,
                         const struct session_params *params, struct error *err)
{
    TRY(engine_check(engine, err));
    TRY(check_limits(params, engine, err));
    TRY(check_memory(params, engine, err));
    struct session session = {.engine = engine,
                              .context_max = params->max_model_len > 0
                                                 ? params->max_model_len
                                                 : engine_config(engine)->position_count_max};
    TRY(engine_exec_create(&session.exec, engine, params->max_num_batched_tokens,
                           params->max_num_seqs, err));
    enum status status = STATUS_OK;
    if (params->counts_routing)
        status = routing_counts_create(&session.routing, engine_config(engine),
                                       exec_token_max(session.exec), err);
    if (status == STATUS_OK)
        status = generator_open(&session, params, engine, err);
    if (status != STATUS_OK) {
        session_close(&session);
        return status;
    }
    engine_watch(engine, &params->watch);
    struct generator_counters counters = generator_counters_get(session.generator);
    session.kv_token_max = counters.kv_token_max;
    if (counters.kv_pages_written > 0)
        log_write(
            &params->log, LOG_DEBUG,
            "about %lld tokens of prompts are expected: keys and values of %lld have their memory "
            "before the first pass",
            (long long)params->tokens_expected,
            (long long)(counters.kv_pages_written * KV_PAGE_TOKENS));
    *out = session;
    return STATUS_OK;
}

void session_close(struct session *session)
{
    static const struct watch nobody;
    if (session->engine != NULL)
        engine_watch(session->engine, &nobody);
    generator_destroy(session->generator);
    exec_destroy(session->exec);
    routing_counts_destroy(session->routing);
    *session = (struct session){0};
}

static enum status refuse_name(const char *name, struct error *err)
{
    struct text names = {0};
    for (const char *const *known = chat_template_names(); *known != NULL; known++)
        text_append_format(&names, "%s%s", names.length > 0 ? ", " : "", *known);
    enum status status =
        error_set(err, STATUS_INVALID_ARGUMENT, "--chat-template: \"%s\" is not known; choose %s",
                  name, names.bytes == NULL ? "none" : names.bytes);
    text_deinit(&names);
    return status;
}

enum status session_chat_template(const struct chat_template **out, const struct engine *engine,
                                  const char *name, struct error *err)
{
    const struct tokenizer *tokenizer = engine_tokenizer(engine);
    if (name != NULL) {
        *out = chat_template_find(name);
        return *out == NULL ? refuse_name(name, err) : STATUS_OK;
    }
    if (tokenizer == NULL)
        return error_set(err, STATUS_NOT_FOUND,
                         "the checkpoint has no tokenizer.json; prompts must be token ids");
    return chat_template_of(out, tokenizer, err);
}
