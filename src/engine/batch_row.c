#include "engine/batch_row.h"

#include <string.h>
#include <xxhash.h>

#include "base/memory.h"
#include "base/system.h"

/* ---- Life ---------------------------------------------------------------------------------- */

static void row_destroy(struct batch_row_run *row)
{
    struct batch_world *world = row->world;
    if (row->newer != NULL)
        row->newer->older = row->older;
    else if (world->rows == row)
        world->rows = row->older;
    if (row->older != NULL)
        row->older->newer = row->newer;
    for (int64_t i = 0; row->prompts != NULL && i < row->request.prompt_count; i++)
        prompt_result_deinit(&row->prompts[i]);
    for (int64_t i = 0; row->choices != NULL && i < row->choice_count; i++)
        choice_deinit(&row->choices[i]);
    world->kept_bytes -= row->kept_bytes;
    memory_free(row->prompts);
    memory_free(row->choices);
    memory_free(row->sequences);
    request_deinit(&row->request);
    memory_free(row);
}

static enum status row_arrays(struct batch_row_run *row, struct error *err)
{
    size_t choices = (size_t)row->choice_count;
    TRY(memory_get((void **)&row->prompts, (size_t)row->request.prompt_count, sizeof *row->prompts,
                   "a row", err));
    TRY(memory_get((void **)&row->choices, choices, sizeof *row->choices, "a row", err));
    return memory_get((void **)&row->sequences, choices, sizeof *row->sequences, "a row", err);
}

static enum status row_create(struct batch_row_run **out, struct batch_world *world,
                              struct request *request, int64_t line, struct error *err)
{
    struct batch_row_run *row;
    enum status status = memory_get((void **)&row, 1, sizeof *row, "a row", err);
    if (status != STATUS_OK) {
        request_deinit(request);
        return status;
    }
    row->world = world;
    row->line = line;
    row->request = *request;
    *request = (struct request){0};
    row->choice_count = row->request.prompt_count * row->request.n;
    row->older = world->rows;
    if (world->rows != NULL)
        world->rows->newer = row;
    world->rows = row;
    status = row_arrays(row, err);
    if (status != STATUS_OK) {
        row_destroy(row);
        return status;
    }
    row->choice_options = (struct choice_options){.tokenizer = world->tokenizer,
                                                  .stops = &row->request.stops,
                                                  .include_stop = row->request.include_stop,
                                                  .logprobs = row->request.logprobs};
    for (int64_t i = 0; i < row->choice_count; i++) {
        choice_init(&row->choices[i], &row->choice_options, row->request.skip_special_tokens);
        row->sequences[i] = (struct batch_sequence){.row = row, .choice = i};
    }
    *out = row;
    return STATUS_OK;
}

void batch_rows_drop(struct batch_world *world)
{
    while (world->rows != NULL)
        row_destroy(world->rows);
    world->sequence_count = 0;
}

/* One sequence less is open; the last one completes the row. */
static void row_release(struct batch_row_run *row)
{
    if (--row->open_count > 0)
        return;
    row->world->done(row->world->context, row);
    row_destroy(row);
}

/* The first failure of a row is the one that is told. */
static void row_fail(struct batch_row_run *row, const char *code, const char *param,
                     const struct error *cause)
{
    if (!row->has_failed)
        row_error_set(&row->error, code, param, "line %lld: %s", (long long)row->line,
                      cause->message);
    row->has_failed = true;
}

/* ---- Callbacks of the generator ------------------------------------------------------------ */

static void note_token(struct batch_sequence *sequence)
{
    struct batch_world *world = sequence->row->world;
    double now = system_seconds();
    world->completion_tokens++;
    if (sequence->token_at > 0)
        batch_meter_gap(world->meter, now - sequence->token_at);
    sequence->token_at = now;
}

static bool on_token(void *context, const struct generated_token *token)
{
    struct batch_sequence *sequence = context;
    struct batch_row_run *row = sequence->row;
    struct error err;
    bool ended = true;
    note_token(sequence);
    if (!row->has_failed &&
        choice_push(&row->choices[sequence->choice], token, &ended, &err) != STATUS_OK)
        row_fail(row, ROW_INTERNAL, NULL, &err);
    return !ended && !row->has_failed;
}

/* How many of the likeliest are kept with each prompt token. */
static int64_t prompt_tops(const struct request *request)
{
    int64_t echoed = request->echo ? request->logprobs : -1;
    return echoed > request->prompt_logprobs ? echoed : request->prompt_logprobs;
}

static void on_prompt_token(void *context, int64_t position, const struct generated_token *token)
{
    struct batch_sequence *sequence = context;
    struct batch_row_run *row = sequence->row;
    struct prompt_result *prompt = &row->prompts[sequence->choice / row->request.n];
    struct error err;
    if (row->has_failed || prompt_tops(&row->request) < 0)
        return; /* scored only because the generator needs a reason to read the prompt */
    ASSERT(position == (int64_t)prompt->scores.count + 1);
    if (scored_list_add(&prompt->scores, token, prompt_tops(&row->request), 0, &err) != STATUS_OK)
        row_fail(row, ROW_INTERNAL, NULL, &err);
}

static void on_finished(void *context, const struct sequence_end *end)
{
    struct batch_sequence *sequence = context;
    struct batch_row_run *row = sequence->row;
    struct error err;
    row->world->sequence_count--;
    if (end->reason == FINISH_STOP)
        note_token(sequence); /* the stop token itself */
    batch_meter_choice(row->world->meter, end);
    if (end->reason == FINISH_FAILED)
        row_fail(row, ROW_INTERNAL, NULL, end->error);
    else if (choice_finish(&row->choices[sequence->choice], end, &err) != STATUS_OK)
        row_fail(row, ROW_INTERNAL, NULL, &err);
    row_release(row);
}

/* ---- Prompts ------------------------------------------------------------------------------- */

static bool needs_tokenizer(struct batch_row_run *row, const char *param)
{
    struct error err;
    if (row->world->tokenizer != NULL)
        return true;
    error_set(&err, STATUS_UNSUPPORTED,
              "the checkpoint has no tokenizer.json; send token ids as the \"prompt\" of "
              "/v1/completions");
    row_fail(row, ROW_UNSUPPORTED, param, &err);
    return false;
}

static void encode_chat(struct batch_row_run *row)
{
    const struct request *request = &row->request;
    const struct batch_world *world = row->world;
    struct chat_options options = {.add_generation_prompt = request->add_generation_prompt,
                                   .enable_thinking = request->enable_thinking};
    struct error err;
    if (!needs_tokenizer(row, "messages"))
        return;
    if (world->chat_template == NULL) {
        row_fail(row, ROW_UNSUPPORTED, "messages", world->chat_refusal);
        return;
    }
    enum status status = chat_encode(world->chat_template, world->tokenizer, &row->prompts[0].ids,
                                     request->messages, request->message_count, options, &err);
    if (status != STATUS_OK)
        row_fail(row, status == STATUS_NO_MEMORY ? ROW_INTERNAL : ROW_INVALID_VALUE, "messages",
                 &err);
}

static enum status copy_ids(struct token_list *out, const json_t *ids, struct error *err)
{
    for (size_t i = 0; i < json_array_size(ids); i++)
        TRY(ids_append(out, (int32_t)json_integer_value(json_array_get(ids, i)), err));
    return STATUS_OK;
}

/* With echo: the prompt as it was given, or decoded from its ids. */
static enum status echo_prompt(const struct batch_row_run *row, struct prompt_result *prompt,
                               const struct prompt_source *source, struct error *err)
{
    const struct tokenizer *tokenizer = row->world->tokenizer;
    struct decoder decoder = {.skip_special = row->request.skip_special_tokens};
    enum status status = STATUS_OK;
    if (source->ids == NULL) {
        text_append(&prompt->text, source->text, source->text_length);
    } else if (tokenizer != NULL) {
        for (size_t i = 0; status == STATUS_OK && i < prompt->ids.count; i++)
            status = decoder_push(&decoder, tokenizer, &prompt->text, prompt->ids.ids[i], err);
        if (status == STATUS_OK)
            status = decoder_finish(&decoder, &prompt->text, err);
        decoder_deinit(&decoder);
    }
    return status == STATUS_OK ? text_check(&prompt->text, "an echoed prompt", err) : status;
}

static void encode_prompt(struct batch_row_run *row, int64_t index)
{
    const struct request *request = &row->request;
    const struct prompt_source *source = &request->prompts[index];
    struct prompt_result *prompt = &row->prompts[index];
    struct encode_options options = {.add_special = request->add_special_tokens,
                                     .parse_special = request->parse_special};
    struct error err;
    enum status status;
    if (source->ids == NULL && !needs_tokenizer(row, "prompt"))
        return;
    if (source->ids != NULL)
        status = copy_ids(&prompt->ids, source->ids, &err);
    else
        status = tokenizer_encode(row->world->tokenizer, &prompt->ids, source->text,
                                  source->text_length, options, &err);
    if (status == STATUS_OK && request->echo)
        status = echo_prompt(row, prompt, source, &err);
    if (status != STATUS_OK)
        row_fail(row, status == STATUS_NO_MEMORY ? ROW_INTERNAL : ROW_INVALID_VALUE, "prompt",
                 &err);
}

/* The room that a prompt leaves; fails the row when there is none. */
static void check_context(struct batch_row_run *row, const struct prompt_result *prompt)
{
    const struct request *request = &row->request;
    const char *param = request->endpoint == ENDPOINT_CHAT ? "messages" : "prompt";
    int64_t count = (int64_t)prompt->ids.count, context = row->world->context_max;
    int64_t wanted = request->max_tokens >= 0 ? request->max_tokens : 1;
    struct error err;
    if (count == 0) {
        error_set(&err, STATUS_INVALID_ARGUMENT, "the prompt has no tokens");
        row_fail(row, ROW_INVALID_VALUE, param, &err);
    } else if (count > context || wanted > context - count) {
        error_set(&err, STATUS_LIMIT,
                  "this model's maximum context length is %lld tokens; the prompt has %lld and at "
                  "least %lld more are asked for (max_tokens)",
                  (long long)context, (long long)count, (long long)wanted);
        row_fail(row, ROW_CONTEXT_LENGTH, param, &err);
    }
}

static void encode_prompts(struct batch_row_run *row)
{
    if (row->request.endpoint == ENDPOINT_CHAT)
        encode_chat(row);
    for (int64_t i = 0; !row->has_failed && i < row->request.prompt_count; i++) {
        if (row->request.endpoint == ENDPOINT_COMPLETIONS)
            encode_prompt(row, i);
        if (!row->has_failed)
            check_context(row, &row->prompts[i]);
    }
}

/* Scores that one answer may hold: at some 60 bytes each, a line of about 64 MiB. */
#define SCORES_MAX (1 << 20)

/* A short row can ask for an answer without bound: each choice repeats what is known of its prompt.
 */
static void check_scores(struct batch_row_run *row)
{
    const struct request *request = &row->request;
    int64_t tops = prompt_tops(request);
    int64_t scores = 0;
    for (int64_t i = 0; tops >= 0 && i < request->prompt_count; i++)
        scores += (int64_t)row->prompts[i].ids.count * (tops + 1) * request->n;
    if (scores <= SCORES_MAX)
        return;
    struct error err;
    error_set(&err, STATUS_LIMIT,
              "the answer would hold %lld scores of prompt tokens, and at most %d are written; ask "
              "for fewer choices (n), fewer logprobs, or split the row",
              (long long)scores, SCORES_MAX);
    row_fail(row, ROW_INVALID_VALUE, "prompt_logprobs", &err);
}

/* Stop strings are looked for in text. */
static void check_stops(struct batch_row_run *row)
{
    if (row->request.stops.count > 0 && row->world->tokenizer == NULL) {
        struct error err;
        error_set(&err, STATUS_UNSUPPORTED,
                  "the checkpoint has no tokenizer.json, so \"stop\" strings cannot be found; use "
                  "\"stop_token_ids\"");
        row_fail(row, ROW_UNSUPPORTED, "stop", &err);
    }
}

/* ---- Sequences ----------------------------------------------------------------------------- */

/* OpenAI's default for completions; in a chat the answer may take what is left. */
#define COMPLETION_TOKENS_DEFAULT 16

static int64_t token_count_max(const struct batch_row_run *row, const struct prompt_result *prompt)
{
    const struct request *request = &row->request;
    const struct batch_world *world = row->world;
    if (request->max_tokens >= 0)
        return request->max_tokens;
    int64_t limit =
        world->kv_token_max < world->context_max ? world->kv_token_max : world->context_max;
    int64_t left = limit - (int64_t)prompt->ids.count;
    if (left < 1)
        left = 1; /* the generator refuses it and has the numbers */
    bool is_chat = request->endpoint == ENDPOINT_CHAT;
    return is_chat || left < COMPLETION_TOKENS_DEFAULT ? left : COMPLETION_TOKENS_DEFAULT;
}

/* Rows without a seed differ from each other, and each is the same in every run whatever stands
 * around it. */
static uint64_t choice_seed(const struct batch_row_run *row, int64_t choice)
{
    const struct request *request = &row->request;
    uint64_t seed =
        request->has_seed
            ? (uint64_t)request->seed
            : XXH3_64bits_withSeed(request->custom_id, request->custom_id_length, row->world->seed);
    return seed + (uint64_t)choice;
}

static struct sequence_request describe_sequence(struct batch_row_run *row, int64_t choice)
{
    const struct request *request = &row->request;
    struct prompt_result *prompt = &row->prompts[choice / request->n];
    int64_t tops = prompt_tops(request);
    bool is_scorer = choice % request->n == 0 && (tops >= 0 || request->max_tokens == 0);
    int64_t logprobs = is_scorer && tops > request->logprobs ? tops : request->logprobs;
    return (struct sequence_request){
        .prompt = prompt->ids.ids,
        .prompt_count = (int64_t)prompt->ids.count,
        .token_count_max = token_count_max(row, prompt),
        .sampling = {.temperature = request->temperature,
                     .top_k = request->top_k,
                     .top_p = request->top_p,
                     .min_p = request->min_p,
                     .seed = choice_seed(row, choice)},
        .ignore_eos = request->ignore_eos,
        .stop_ids = request->stop_ids,
        .stop_count = request->stop_id_count,
        .logprobs = (int32_t)logprobs,
        .prompt_logprobs = is_scorer,
        .stays = row->world->stays,
        .callbacks = {on_token, on_prompt_token, on_finished},
        .context = &row->sequences[choice],
    };
}

static void submit_choice(struct batch_row_run *row, int64_t choice)
{
    struct error err;
    struct sequence_end nothing = {.reason = FINISH_LENGTH, .stop_id = -1};
    struct sequence_request sequence = describe_sequence(row, choice);
    if (sequence.token_count_max == 0 && !sequence.prompt_logprobs) {
        if (choice_finish(&row->choices[choice], &nothing, &err) != STATUS_OK)
            row_fail(row, ROW_INTERNAL, NULL, &err);
        return;
    }
    enum status status = generator_submit(row->world->generator, &sequence, &err);
    if (status != STATUS_OK) {
        const char *code = status == STATUS_LIMIT       ? ROW_CONTEXT_LENGTH
                           : status == STATUS_NO_MEMORY ? ROW_INTERNAL
                                                        : ROW_INVALID_VALUE;
        row_fail(row, code, row->request.endpoint == ENDPOINT_CHAT ? "messages" : "prompt", &err);
        return;
    }
    row->open_count++;
    row->world->sequence_count++;
}

/* What grows with the row itself; what the answer takes comes on top. */
static void count_kept(struct batch_row_run *row)
{
    uint64_t choice_bytes = sizeof *row->choices + sizeof *row->sequences;
    row->kept_bytes = sizeof *row + (uint64_t)row->choice_count * choice_bytes;
    for (int64_t i = 0; i < row->request.prompt_count; i++) {
        const struct prompt_result *prompt = &row->prompts[i];
        row->kept_bytes +=
            sizeof *prompt + prompt->ids.capacity * sizeof *prompt->ids.ids + prompt->text.capacity;
    }
    row->world->kept_bytes += row->kept_bytes;
}

enum status batch_row_start(struct batch_world *world, struct request *request, int64_t line,
                            struct error *err)
{
    struct batch_row_run *row;
    TRY(row_create(&row, world, request, line, err));
    row->open_count = 1;
    check_stops(row);
    if (!row->has_failed)
        encode_prompts(row);
    if (!row->has_failed)
        check_scores(row);
    request_drop_json(&row->request);
    count_kept(row);
    for (int64_t i = 0; !row->has_failed && i < row->choice_count; i++)
        submit_choice(row, i);
    row_release(row);
    return STATUS_OK;
}
