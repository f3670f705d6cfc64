#include "engine/batch_lengths.h"

#include <math.h>

#include "base/checked.h"

#define WATCH_ROWS 64

/* OpenAI's default for completions. */
#define COMPLETION_TOKENS_DEFAULT 16

struct sums {
    double sequences, prompt_tokens, output_tokens;
};

/* ---- One row --------------------------------------------------------------------------------- */

static enum status prompt_encode(struct token_list *out, const struct batch_lengths_params *params,
                                 const struct request *request, int64_t index, struct error *err)
{
    struct encode_options encode = {.add_special = request->add_special_tokens,
                                    .parse_special = request->parse_special};
    struct chat_options chat = {.add_generation_prompt = request->add_generation_prompt,
                                .enable_thinking = request->enable_thinking};
    if (request->endpoint == ENDPOINT_CHAT)
        return chat_encode(params->chat_template, params->tokenizer, out, request->messages,
                           request->message_count, chat, err);
    const struct prompt_source *source = &request->prompts[index];
    return tokenizer_encode(params->tokenizer, out, source->text, source->text_length, encode, err);
}

/* 0: it cannot be run. */
static int64_t prompt_count(const struct batch_lengths_params *params,
                            const struct request *request, int64_t index)
{
    bool is_chat = request->endpoint == ENDPOINT_CHAT;
    struct token_list ids = {0};
    struct error ignored; /* the row's, once it is run */
    if (!is_chat && request->prompts[index].ids != NULL)
        return (int64_t)json_array_size(request->prompts[index].ids);
    if (params->tokenizer == NULL || (is_chat && params->chat_template == NULL))
        return 0;
    enum status status = prompt_encode(&ids, params, request, index, &ignored);
    int64_t count = status == STATUS_OK ? (int64_t)ids.count : 0;
    token_list_deinit(&ids);
    return count;
}

static int64_t answer_count(const struct request *request, int64_t left)
{
    int64_t wanted = request->max_tokens >= 0                    ? request->max_tokens
                     : request->endpoint == ENDPOINT_COMPLETIONS ? COMPLETION_TOKENS_DEFAULT
                                                                 : BATCH_LENGTHS_ANSWER;
    wanted = wanted < left ? wanted : left;
    return wanted > 1 ? wanted : 1; /* a prompt that is only scored is a pass, too */
}

static void add_row(struct sums *sums, const struct batch_lengths_params *params,
                    const struct request *request)
{
    struct sums row = {0};
    for (int64_t i = 0; i < request->prompt_count; i++) {
        int64_t prompt = prompt_count(params, request, i), left = params->context_max - prompt;
        int64_t least = request->max_tokens >= 0 ? request->max_tokens : 1;
        if (prompt == 0 || left < least)
            return; /* the whole row is refused */
        row.sequences += (double)request->n;
        row.prompt_tokens += (double)(request->n * prompt);
        row.output_tokens += (double)request->n * (double)answer_count(request, left);
    }
    sums->sequences += row.sequences;
    sums->prompt_tokens += row.prompt_tokens;
    sums->output_tokens += row.output_tokens;
}

/* ---- All that are looked at ------------------------------------------------------------------ */

static void look_at(struct sums *sums, const struct batch_lengths_params *params,
                    struct batch_row *row)
{
    struct request request;
    struct row_error ignored;
    batch_reader_check(params->reader, row);
    if (row->is_wrong || !request_parse(&request, row->bytes, row->length, row->line,
                                        &params->defaults, NULL, &ignored))
        return;
    add_row(sums, params, &request);
    request_deinit(&request);
}

static enum status sum_up(struct sums *sums, const struct batch_lengths_params *params,
                          int64_t stride, struct error *err)
{
    for (int64_t looked = 0;;) {
        struct batch_row row;
        bool found;
        TRY(batch_reader_skim(params->reader, &row, &found, err));
        if (!found)
            return STATUS_OK;
        if (row.index % stride != 0)
            continue;
        look_at(sums, params, &row);
        if (++looked % WATCH_ROWS == 0)
            TRY(watch_ask(&params->watch, err));
    }
}

enum status batch_lengths_read(struct plan_load *out, const struct batch_lengths_params *params,
                               struct error *err)
{
    struct sums sums = {0};
    int64_t rows = batch_reader_row_count(params->reader);
    int64_t stride = ceil_div(rows > 0 ? rows : 1, BATCH_LENGTHS_ROWS_MAX);
    TRY(sum_up(&sums, params, stride, err));
    TRY(batch_reader_rewind(params->reader, err));
    *out = (struct plan_load){.sequences = 0};
    if (sums.sequences == 0)
        return STATUS_OK;
    /* Rounded up, both together may be a token longer than any. */
    double looked = (double)ceil_div(rows, stride), context = (double)params->context_max;
    double prompt = fmin(ceil(sums.prompt_tokens / sums.sequences), context - 1);
    double output = fmin(ceil(sums.output_tokens / sums.sequences), context - prompt);
    *out = (struct plan_load){
        .sequences = (int64_t)(sums.sequences * (double)rows / looked + 0.5),
        .prompt_tokens = (int64_t)fmax(1, prompt),
        .output_tokens = (int64_t)fmax(1, output),
    };
    return STATUS_OK;
}
