#include "engine/batch_lengths.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "base/checked.h"
#include "base/memory.h"

#define WATCH_ROWS 64

/* OpenAI's default for completions. */
#define COMPLETION_TOKENS_DEFAULT 16

/* All that is found, row by row. */
struct look {
    const struct batch_lengths_params *params;
    struct plan_cell sums; /* of the rows whose prompts were encoded */
    struct plan_cells cells;
    double bytes, tokens; /* of the texts that were */
    bool encodes;         /* the row that is looked at; or its tokens are estimated */
    bool is_of_some;      /* the other rows are not looked at */
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
        bytes += (double)request->messages[i].content_length;
    return bytes;
}

static int64_t text_count(struct look *look, const struct request *request, int64_t index)
{
    struct token_list ids = {0};
    struct error ignored; /* the row's, once it is run */
    double bytes = prompt_bytes(request, index);
    if (!look->encodes)
        return (int64_t)fmax(1, look->bytes > 0 ? bytes * look->tokens / look->bytes : bytes);
    enum status status = prompt_encode(&ids, look->params, request, index, &ignored);
    int64_t count = status == STATUS_OK ? (int64_t)ids.count : 0;
    token_list_deinit(&ids);
    look->bytes += bytes;
    look->tokens += (double)count;
    return count;
}

/* 0: it cannot be run. */
static int64_t prompt_count(struct look *look, const struct request *request, int64_t index)
{
    bool is_chat = request->endpoint == ENDPOINT_CHAT;
    const struct batch_lengths_params *params = look->params;
    if (!is_chat && request->prompts[index].ids != NULL)
        return (int64_t)json_array_size(request->prompts[index].ids);
    if (params->tokenizer == NULL || (is_chat && params->chat_template == NULL))
        return 0;
    return text_count(look, request, index);
}

static int64_t answer_count(const struct request *request, int64_t left)
{
    int64_t wanted = request->max_tokens >= 0                    ? request->max_tokens
                     : request->endpoint == ENDPOINT_COMPLETIONS ? COMPLETION_TOKENS_DEFAULT
                                                                 : BATCH_LENGTHS_ANSWER;
    wanted = wanted < left ? wanted : left;
    return wanted > 1 ? wanted : 1; /* a prompt that is only scored is a pass, too */
}

/* Of no sequences where the whole row is refused. */
static struct plan_cell row_sum(struct look *look, const struct request *request)
{
    struct plan_cell row = {0};
    for (int64_t i = 0; i < request->prompt_count; i++) {
        int64_t prompt = prompt_count(look, request, i), left = look->params->context_max - prompt;
        int64_t least = request->max_tokens >= 0 ? request->max_tokens : 1;
        if (prompt == 0 || left < least)
            return (struct plan_cell){0};
        row.sequences += (double)request->n;
        row.prompt_tokens += (double)(request->n * prompt);
        row.output_tokens += (double)request->n * (double)answer_count(request, left);
    }
    return row;
}

static void cell_add(struct plan_cell *to, const struct plan_cell *row)
{
    to->sequences += row->sequences;
    to->prompt_tokens += row->prompt_tokens;
    to->output_tokens += row->output_tokens;
}

/* Returns the row's cell. */
static uint16_t look_at(struct look *look, struct batch_row *row)
{
    struct request request;
    struct row_error ignored;
    batch_reader_check(look->params->reader, row);
    if (row->is_wrong || !request_parse(&request, row->bytes, row->length, row->line,
                                        &look->params->defaults, NULL, &ignored))
        return BATCH_LENGTHS_NO_CELL;
    struct plan_cell sum = row_sum(look, &request);
    request_deinit(&request);
    if (sum.sequences == 0)
        return BATCH_LENGTHS_NO_CELL;
    int cell = plan_cell_of(sum.prompt_tokens / sum.sequences, sum.output_tokens / sum.sequences);
    if (look->encodes)
        cell_add(&look->sums, &sum);
    cell_add(&look->cells.of[cell], &sum);
    return (uint16_t)cell;
}

/* ---- All of them ----------------------------------------------------------------------------- */

static bool is_large(const struct batch_reader *reader)
{
    struct stat about;
    return fstat(batch_reader_fd(reader), &about) != 0 ||
           about.st_size > BATCH_LENGTHS_FILE_BYTES_MAX;
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
        if (!found || row.index >= row_count) /* a file may grow */
            return STATUS_OK;
        look->encodes = row.index % stride == 0;
        if (!look->encodes && look->is_of_some) {
            if (++passed % (WATCH_ROWS * WATCH_ROWS) == 0)
                TRY(watch_ask(&params->watch, err));
            continue;
        }
        cell_of[row.index] = look_at(look, &row);
        if (++looked % WATCH_ROWS == 0)
            TRY(watch_ask(&params->watch, err));
    }
}

static void sum_up(struct batch_lengths *out, const struct look *look, int64_t stride)
{
    if (look->sums.sequences == 0)
        return;
    /* Rounded up, both together may be a token longer than any. */
    double looked = (double)ceil_div(out->row_count, stride);
    double context = (double)look->params->context_max;
    double prompt = fmin(ceil(look->sums.prompt_tokens / look->sums.sequences), context - 1);
    double output = fmin(ceil(look->sums.output_tokens / look->sums.sequences), context - prompt);
    out->load = (struct plan_load){
        .sequences = (int64_t)(look->sums.sequences * (double)out->row_count / looked + 0.5),
        .prompt_tokens = (int64_t)fmax(1, prompt),
        .output_tokens = (int64_t)fmax(1, output),
    };
    plan_mix_make(&out->mix, &look->cells, out->load.sequences, look->params->context_max);
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
