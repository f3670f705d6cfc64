#include "engine/batch_lengths.h"

#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "base/memory.h"
#include "engine/prefix_set.h"

#define WATCH_ROWS 64

/* OpenAI's default for completions. */
#define COMPLETION_TOKENS_DEFAULT 16

/* All that is found, row by row. */
struct look {
    const struct batch_lengths_params *params;
    struct plan_cell sums; /* of the rows whose prompts were encoded */
    struct plan_cells cells;
    int64_t longest_tokens;
    double bytes, tokens; /* of the texts that were */
    struct prefix_set prefixes;
    struct plan_cell firsts; /* of the rows that were encoded: of each prompt one sequence */
    bool encodes;            /* the row that is looked at; or its tokens are estimated */
    bool is_of_some;         /* the other rows are not looked at */
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

static double prompt_bytes(const struct request *request, int64_t index)
{
    double bytes = 0;
    if (request->endpoint != ENDPOINT_CHAT)
        return (double)request->prompts[index].text_length;
    for (size_t i = 0; i < request->message_count; i++)
        bytes +=
            (double)(request->messages[i].content_length + request->messages[i].reasoning_length);
    return bytes;
}

/* The tokens are in `ids` where the row is encoded. */
static int64_t text_count(struct look *look, struct token_list *ids, const struct request *request,
                          int64_t index)
{
    struct error ignored; /* the row's, once it is run */
    double bytes = prompt_bytes(request, index);
    if (!look->encodes)
        return (int64_t)fmax(1, look->bytes > 0 ? bytes * look->tokens / look->bytes : bytes);
    if (prompt_encode(ids, look->params, request, index, &ignored) != STATUS_OK)
        ids->count = 0;
    look->bytes += bytes;
    look->tokens += (double)ids->count;
    return (int64_t)ids->count;
}

/* What is no id is the row's error, once it is run. */
static enum status ids_copy(struct token_list *ids, const json_t *array, struct error *err)
{
    size_t count = json_array_size(array);
    TRY(memory_get((void **)&ids->ids, count, sizeof *ids->ids, "a prompt", err));
    ids->count = ids->capacity = count;
    for (size_t i = 0; i < count; i++)
        ids->ids[i] = (int32_t)json_integer_value(json_array_get(array, i));
    return STATUS_OK;
}

/* `*out` is 0: it cannot be run. */
static enum status prompt_count(int64_t *out, struct look *look, struct token_list *ids,
                                const struct request *request, int64_t index, struct error *err)
{
    bool is_chat = request->endpoint == ENDPOINT_CHAT;
    const struct batch_lengths_params *params = look->params;
    *out = 0;
    if (!is_chat && request->prompts[index].ids != NULL) {
        *out = (int64_t)json_array_size(request->prompts[index].ids);
        return look->encodes && params->shares_prefixes
                   ? ids_copy(ids, request->prompts[index].ids, err)
                   : STATUS_OK;
    }
    if (params->tokenizer != NULL && (!is_chat || params->chat_template != NULL))
        *out = text_count(look, ids, request, index);
    return STATUS_OK;
}

static int64_t answer_count(const struct request *request, int64_t left)
{
    int64_t wanted = request->max_tokens >= 0                    ? request->max_tokens
                     : request->endpoint == ENDPOINT_COMPLETIONS ? COMPLETION_TOKENS_DEFAULT
                                                                 : BATCH_LENGTHS_ANSWER;
    wanted = wanted < left ? wanted : left;
    return wanted > 1 ? wanted : 1; /* a prompt that is only scored is a pass, too */
}

/* ---- What is there already ------------------------------------------------------------------- */

/* Of the first sequence of a prompt: by its pages; or, where these are not known, as much as of
 * those that are. */
static enum status first_found(struct prefix_share *out, struct look *look, int64_t prompt,
                               const struct token_list *ids, struct error *err)
{
    const struct plan_cell *known = &look->firsts;
    if (look->encodes) {
        TRY(prefix_set_add(&look->prefixes, out, ids->ids, (int64_t)ids->count, err));
        look->firsts.prompt_tokens += (double)prompt;
        look->firsts.found_tokens += (double)out->found;
        look->firsts.lent_tokens += (double)out->lent;
        return STATUS_OK;
    }
    double share = known->prompt_tokens > 0 ? (double)prompt / known->prompt_tokens : 0;
    int64_t findable = prefix_findable(prompt), found = (int64_t)(known->found_tokens * share);
    *out = (struct prefix_share){found < findable ? found : findable,
                                 (int64_t)(known->lent_tokens * share)};
    return STATUS_OK;
}

/* The first to be scored shares nothing (engine/batch_row.c). */
static bool is_scored(const struct request *request)
{
    bool is_echoed = request->echo && request->logprobs >= 0;
    return request->prompt_logprobs >= 0 || is_echoed || request->max_tokens == 0;
}

/* The others of a prompt's sequences find what its first has computed. */
static enum status prompt_share(struct plan_cell *row, struct look *look,
                                const struct request *request, int64_t prompt,
                                const struct token_list *ids, struct error *err)
{
    struct prefix_share first, second;
    int64_t sharing = request->n - is_scored(request), findable = prefix_findable(prompt);
    if (!look->params->shares_prefixes || sharing == 0)
        return STATUS_OK;
    TRY(first_found(&first, look, prompt, ids, err));
    row->found_tokens += (double)first.found;
    row->lent_tokens += (double)first.lent;
    if (sharing == 1)
        return STATUS_OK;
    second = (struct prefix_share){findable, findable - first.found};
    if (look->encodes)
        TRY(prefix_set_add(&look->prefixes, &second, ids->ids, (int64_t)ids->count, err));
    row->found_tokens += (double)((sharing - 1) * second.found);
    row->lent_tokens += (double)second.lent;
    return STATUS_OK;
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* Adds the sequences of a prompt, and to the longest; `*runs` is false where the whole row is
 * refused. */
static enum status prompt_add(struct plan_cell *row, int64_t *longest, bool *runs,
                              struct look *look, const struct request *request, int64_t index,
                              struct error *err)
{
    struct token_list ids = {0};
    int64_t prompt, least = request->max_tokens >= 0 ? request->max_tokens : 1;
    enum status status = prompt_count(&prompt, look, &ids, request, index, err);
    int64_t left = look->params->context_max - prompt;
    *runs = prompt > 0 && left >= least;
    if (status == STATUS_OK && *runs) {
        int64_t count = answer_count(request, left);
        double answer = (double)count;
        *longest = prompt + count > *longest ? prompt + count : *longest;
        row->sequences += (double)request->n;
        row->prompt_tokens += (double)(request->n * prompt);
        row->output_tokens += (double)request->n * answer;
        row->output_squares += (double)request->n * answer * answer;
        status = prompt_share(row, look, request, prompt, &ids, err);
    }
    token_list_deinit(&ids);
    return status;
}

/* Of no sequences where the whole row is refused. */
static enum status row_sum(struct plan_cell *out, struct look *look, const struct request *request,
                           struct error *err)
{
    bool runs = true;
    int64_t longest = look->longest_tokens;
    struct request once = *request; /* who generates nothing scores the prompt, or does nothing */
    once.n = request->max_tokens == 0 ? 1 : request->n;
    *out = (struct plan_cell){0};
    for (int64_t i = 0; i < request->prompt_count && runs; i++)
        TRY(prompt_add(out, &longest, &runs, look, &once, i, err));
    if (runs)
        look->longest_tokens = longest;
    else
        *out = (struct plan_cell){0};
    return STATUS_OK;
}

/* `*out` is the row's cell. */
static enum status look_at(uint16_t *out, struct look *look, struct batch_row *row,
                           struct error *err)
{
    struct request request;
    struct row_error ignored;
    struct plan_cell sum;
    *out = BATCH_LENGTHS_NO_CELL;
    batch_reader_check(look->params->reader, row);
    if (row->is_wrong || !request_parse(&request, row->bytes, row->length, row->line,
                                        &look->params->defaults, NULL, &ignored))
        return STATUS_OK;
    enum status status = row_sum(&sum, look, &request, err);
    request_deinit(&request);
    if (status != STATUS_OK || sum.sequences == 0)
        return status;
    int cell = plan_cell_of(sum.prompt_tokens / sum.sequences, sum.output_tokens / sum.sequences);
    if (look->encodes)
        plan_cell_add(&look->sums, &sum);
    plan_cell_add(&look->cells.of[cell], &sum);
    *out = (uint16_t)cell;
    return STATUS_OK;
}

/* ---- All of them ----------------------------------------------------------------------------- */

static bool is_large(const struct batch_reader *reader)
{
    return batch_reader_bytes(reader) > BATCH_LENGTHS_FILE_BYTES_MAX;
}

static enum status look_at_all(struct look *look, uint16_t *cell_of, int64_t row_count,
                               int64_t stride, struct error *err)
{
    const struct batch_lengths_params *params = look->params;
    for (int64_t row = 0; row < row_count; row++)
        cell_of[row] = BATCH_LENGTHS_NO_CELL;
    for (int64_t looked = 0, passed = 0;;) {
        struct batch_row row;
        bool found;
        TRY(batch_reader_skim(params->reader, &row, &found, err));
        if (!found)
            return STATUS_OK;
        look->encodes = row.index % stride == 0;
        if (!look->encodes && look->is_of_some) {
            if (++passed % (WATCH_ROWS * WATCH_ROWS) == 0)
                TRY(watch_ask(&params->watch, err));
            continue;
        }
        TRY(look_at(&cell_of[row.index], look, &row, err));
        if (++looked % WATCH_ROWS == 0)
            TRY(watch_ask(&params->watch, err));
    }
}

static void sum_up(struct batch_lengths *out, const struct look *look, int64_t stride)
{
    if (look->sums.sequences == 0)
        return;
    double looked = (double)ceil_div(out->row_count, stride);
    out->load = plan_cell_load(&look->sums, look->sums.sequences * (double)out->row_count / looked,
                               look->params->context_max);
    plan_mix_make(&out->mix, &look->cells, out->load.sequences, look->params->context_max);
    out->longest_tokens = look->longest_tokens;
}

static enum status read_with(struct batch_lengths *out, struct look *look, struct error *err)
{
    int64_t rows = out->row_count;
    int64_t stride = ceil_div(rows > 0 ? rows : 1, BATCH_LENGTHS_ROWS_MAX);
    look->is_of_some = out->is_sample = stride > 1 && is_large(look->params->reader);
    TRY(look_at_all(look, out->cell_of, rows, stride, err));
    sum_up(out, look, stride);
    return batch_reader_rewind(look->params->reader, err);
}

enum status batch_lengths_read(struct batch_lengths *out, const struct batch_lengths_params *params,
                               struct error *err)
{
    struct look *look;
    int64_t rows = batch_reader_row_count(params->reader);
    *out = (struct batch_lengths){.row_count = rows};
    TRY(memory_get((void **)&out->cell_of, (size_t)rows + 1, sizeof *out->cell_of,
                   "the rows' lengths", err));
    enum status status = memory_get((void **)&look, 1, sizeof *look, "the rows' lengths", err);
    if (status == STATUS_OK) {
        look->params = params;
        status = read_with(out, look, err);
        prefix_set_deinit(&look->prefixes);
        memory_free(look);
    }
    if (status != STATUS_OK)
        batch_lengths_deinit(out);
    return status;
}

void batch_lengths_deinit(struct batch_lengths *lengths)
{
    memory_free(lengths->cell_of);
    *lengths = (struct batch_lengths){0};
}
