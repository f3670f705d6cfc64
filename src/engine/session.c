#include "engine/session.h"

#include "base/system.h"
#include "base/text.h"
#include "exec/exec.h"
#include "exec/kv_cache.h"

/* Far above any use; routing counts (token, choice) pairs in 32 bits. */
#define SEQUENCES_MAX    (1 << 20)
#define BATCH_TOKENS_MAX (1 << 24)

static enum status check_limits(const struct session_params *params,
                                const struct model_config *config, struct error *err)
{
    long long seqs = params->max_num_seqs, tokens = params->max_num_batched_tokens;
    if (seqs < 1 || seqs > SEQUENCES_MAX)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--max-num-seqs: expected 1 to %d, found %lld", SEQUENCES_MAX, seqs);
    if (tokens < seqs || tokens > BATCH_TOKENS_MAX)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--max-num-batched-tokens: expected at least --max-num-seqs (%lld) and at "
                         "most %d, found %lld",
                         seqs, BATCH_TOKENS_MAX, tokens);
    if (tokens * config->expert_top_k > INT32_MAX)
        return error_set(
            err, STATUS_INVALID_ARGUMENT,
            "--max-num-batched-tokens: expected at most %lld for %lld experts a token, "
            "found %lld",
            (long long)(INT32_MAX / config->expert_top_k), (long long)config->expert_top_k, tokens);
    if (params->max_model_len < 0 || params->max_model_len > config->position_count_max)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--max-model-len: expected at most %lld, which this model was made for, "
                         "found %lld",
                         (long long)config->position_count_max, (long long)params->max_model_len);
    return STATUS_OK;
}

/* What the loader asks for weights, for activations and an explicit KV cache: a sentence now rather
 * than the kernel's killer later. */
static enum status check_memory(const struct session_params *params, const struct engine *engine,
                                struct error *err)
{
    const struct layout *layout = engine_layout(engine);
    uint64_t pass = exec_bytes(engine_config(engine), layout, params->max_num_batched_tokens,
                               params->max_num_seqs) *
                    (uint64_t)layout->rank_count;
    uint64_t available = system_memory_available();
    if (pass > available || params->kv_bytes > available - pass)
        return error_set(
            err, STATUS_NO_MEMORY,
            "a pass of %lld tokens needs %llu MiB and the KV cache %llu MiB; %llu MiB "
            "of memory are available; lower --max-num-batched-tokens or --kv-memory",
            (long long)params->max_num_batched_tokens, (unsigned long long)(pass >> 20),
            (unsigned long long)(params->kv_bytes >> 20), (unsigned long long)(available >> 20));
    return STATUS_OK;
}

enum status session_open(struct session *out, struct engine *engine,
                         const struct session_params *params, struct error *err)
{
    TRY(check_limits(params, engine_config(engine), err));
    TRY(check_memory(params, engine, err));
    struct session session = {.context_max = params->max_model_len > 0
                                                 ? params->max_model_len
                                                 : engine_config(engine)->position_count_max};
    TRY(engine_exec_create(&session.exec, engine, params->max_num_batched_tokens,
                           params->max_num_seqs, err));
    uint64_t kv_bytes = params->kv_bytes > 0 ? params->kv_bytes : system_memory_available() / 2;
    struct generator_params generator = {
        .sequence_count_max = params->max_num_seqs,
        .batch_token_max = params->max_num_batched_tokens,
        .context_max = session.context_max,
        .kv_bytes_max = kv_bytes > INT64_MAX ? INT64_MAX : (int64_t)kv_bytes,
    };
    enum status status = generator_create(&session.generator, session.exec, &generator, err);
    if (status != STATUS_OK) {
        session_close(&session);
        return status;
    }
    session.kv_token_max = generator_counters_get(session.generator).kv_token_max;
    *out = session;
    return STATUS_OK;
}

void session_close(struct session *session)
{
    generator_destroy(session->generator);
    exec_destroy(session->exec);
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
