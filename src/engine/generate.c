#include "engine/generate.h"

#include <string.h>

#include "engine/choice.h"
#include "engine/session.h"

#define PASS_LEAST 64

struct generation {
    const struct phasor_generate_params *params;
    struct token_list prompt;
    struct choice choice;
    size_t given;     /* bytes of the text */
    bool has_stopped; /* the caller wants no more */
    bool is_done;
    enum status failure;
    struct error failure_reason;
};

/* Gives out what is settled. False when the caller wants no more. */
static bool give_text(struct generation *generation)
{
    const struct phasor_generate_params *params = generation->params;
    size_t settled = choice_settled(&generation->choice);
    if (params->text == NULL)
        return true;
    const char *text = settled == 0 ? "" : generation->choice.text.bytes + generation->given;
    generation->has_stopped =
        params->text(params->text_context, text, settled - generation->given) != 0;
    generation->given = settled;
    return !generation->has_stopped;
}

static bool on_token(void *context, const struct generated_token *token)
{
    struct generation *generation = context;
    bool ended;
    generation->failure =
        choice_push(&generation->choice, token, &ended, &generation->failure_reason);
    return generation->failure == STATUS_OK && give_text(generation) && !ended;
}

static void on_finished(void *context, const struct sequence_end *end)
{
    struct generation *generation = context;
    generation->is_done = true;
    if (generation->failure != STATUS_OK || generation->has_stopped)
        return;
    if (end->reason == FINISH_FAILED)
        generation->failure =
            error_set(&generation->failure_reason, end->error->status, "%s", end->error->message);
    else
        generation->failure = choice_finish(&generation->choice, end, &generation->failure_reason);
    if (generation->failure == STATUS_OK)
        give_text(generation);
}

/* A long prompt and a change of layout can be stopped, too, before a text comes. */
static enum status ask(void *context, struct error *err)
{
    struct generation *generation = context;
    if (!generation->has_stopped)
        give_text(generation);
    return generation->has_stopped ? error_set(err, STATUS_CANCELLED, "the generation was stopped")
                                   : STATUS_OK;
}

static enum status encode(struct generation *generation, const struct engine *engine,
                          struct error *err)
{
    const struct phasor_generate_params *params = generation->params;
    const struct tokenizer *tokenizer = engine_tokenizer(engine);
    size_t length = strlen(params->prompt);
    if (tokenizer == NULL)
        return error_set(err, STATUS_UNSUPPORTED,
                         "the checkpoint has no tokenizer.json, so it cannot read a text; a batch "
                         "file can hold token ids");
    if (!params->chat) {
        struct encode_options options = {.add_special = true};
        return tokenizer_encode(tokenizer, &generation->prompt, params->prompt, length, options,
                                err);
    }
    const struct chat_template *chat_template;
    struct chat_options options = {.add_generation_prompt = true, .enable_thinking = true};
    struct chat_message message = {
        .role = "user", .content = params->prompt, .content_length = length};
    TRY(session_chat_template(&chat_template, engine, params->chat_template, err));
    return chat_encode(chat_template, tokenizer, &generation->prompt, &message, 1, options, err);
}

/* What is left of the context, where that is less than was asked for. */
static int64_t token_count_max(const struct generation *generation, const struct session *session,
                               const struct log_sink *log)
{
    bool is_context = session->context_max <= session->kv_token_max;
    int64_t limit = is_context ? session->context_max : session->kv_token_max;
    int64_t left = limit - (int64_t)generation->prompt.count;
    int64_t wanted = generation->params->max_tokens;
    if (left < 1)
        return wanted; /* the generator refuses it and has the numbers */
    if (wanted > left)
        log_write(log, LOG_INFO,
                  "the %s of %lld tokens has room for %lld behind the prompt, not for %lld%s",
                  is_context ? "context" : "KV cache", (long long)limit, (long long)left,
                  (long long)wanted, is_context ? "" : "; --kv-memory or --memory makes more");
    return wanted < left ? wanted : left;
}

static enum status submit(struct generation *generation, struct session *session,
                          const struct log_sink *log, struct error *err)
{
    const struct phasor_generate_params *params = generation->params;
    struct sequence_request request = {
        .prompt = generation->prompt.ids,
        .prompt_count = (int64_t)generation->prompt.count,
        .token_count_max = token_count_max(generation, session, log),
        .sampling = {.temperature = params->temperature,
                     .top_k = params->top_k,
                     .top_p = params->top_p,
                     .seed = params->seed},
        .ignore_eos = params->ignore_eos,
        .logprobs = -1,
        .callbacks = {.token = on_token, .finished = on_finished},
        .context = generation,
    };
    return generator_submit(session->generator, &request, err);
}

static enum status drive(struct generation *generation, struct session *session,
                         const struct log_sink *log, struct error *err)
{
    TRY(submit(generation, session, log, err));
    while (!generation->is_done && !generation->has_stopped) {
        TRY(generator_step(session->generator, err));
        if (!generation->is_done && generation->given == 0)
            TRY(ask(generation, err));
    }
    if (generation->failure != STATUS_OK)
        return error_set(err, generation->failure, "%s", generation->failure_reason.message);
    return generation->has_stopped ? ask(generation, err) : STATUS_OK;
}

static enum status check_params(const struct phasor_generate_params *params, struct error *err)
{
    if (params->prompt == NULL)
        return error_set(err, STATUS_INVALID_ARGUMENT, "a prompt is needed");
    if (params->max_tokens < 1)
        return error_set(err, STATUS_INVALID_ARGUMENT, "max_tokens must be at least 1");
    if (!(params->temperature >= 0 && params->temperature <= 100) ||
        !(params->top_p > 0 && params->top_p <= 1) || params->top_k < 0)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "temperature must be 0 to 100, top_p above 0 and at most 1, top_k not "
                         "negative");
    return STATUS_OK;
}

/* No more than the prompt takes, which one attention group has: all of them have as much room. */
static int64_t pass_tokens(const struct generation *generation, const struct engine *engine)
{
    int64_t count = (int64_t)generation->prompt.count * engine_layout(engine)->attention.dp;
    return count < PASS_LEAST           ? PASS_LEAST
           : count < ENGINE_PASS_TOKENS ? count
                                        : ENGINE_PASS_TOKENS;
}

static void fill_result(struct phasor_generate_result *result, const struct generation *generation,
                        const struct session *session)
{
    struct generator_counters counters = generator_counters_get(session->generator);
    *result = (struct phasor_generate_result){
        .prompt_tokens = (uint64_t)generation->prompt.count,
        .completion_tokens = (uint64_t)generation->choice.end.token_count,
        .prefill_seconds = counters.prefill_seconds,
        .decode_seconds = counters.decode_seconds,
        .reached_length = generation->choice.end.reason == FINISH_LENGTH,
    };
}

enum status generate_run(struct engine *engine, const struct phasor_generate_params *params,
                         const struct log_sink *log, struct phasor_generate_result *result,
                         struct error *err)
{
    TRY(check_params(params, err));
    static const struct stop_set no_stops;
    struct choice_options options = {
        .tokenizer = engine_tokenizer(engine), .stops = &no_stops, .logprobs = -1};
    struct generation generation = {.params = params};
    struct session_params limits = {.max_num_seqs = 1,
                                    .is_one_prompt = true,
                                    .max_model_len = params->max_model_len,
                                    .kv_bytes = params->kv_bytes,
                                    .watch = {.ask = ask, .context = &generation},
                                    .log = *log};
    struct session session = {0};
    choice_init(&generation.choice, &options, true);
    enum status status = encode(&generation, engine, err);
    limits.tokens_expected = (int64_t)generation.prompt.count;
    limits.max_num_batched_tokens = pass_tokens(&generation, engine);
    if (status == STATUS_OK)
        status = session_open(&session, engine, &limits, err);
    if (status == STATUS_OK)
        status = drive(&generation, &session, log, err);
    if (status == STATUS_OK)
        fill_result(result, &generation, &session);
    session_close(&session);
    choice_deinit(&generation.choice);
    token_list_deinit(&generation.prompt);
    return status;
}
