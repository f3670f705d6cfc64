/* How long rows are, read ahead: against what the run then counts; which are alike; their order. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "engine/batch_lengths.h"
#include "engine/batch_order.h"
#include "engine_tools.h"
#include "phasor.h"

#define MODEL MODELS_DIR "/kjv-moe"

TestSuite(batch_lengths, .timeout = 60);

#define ROW(id, body)                                                                              \
    "{\"custom_id\":\"" id "\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{" body    \
    "}}\n"
#define CHAT(id, body)                                                                             \
    "{\"custom_id\":\"" id "\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\"body\":{"    \
    "\"messages\":[{\"role\":\"user\",\"content\":\"Who was Moses?\"}]" body "}}\n"

static struct batch_reader *reader_of(const char *lines)
{
    struct batch_reader *reader;
    struct error err;
    const char *path = tools_path(tools_folder(), "in.jsonl");
    tools_write_file(path, lines, strlen(lines));
    cr_assert_eq(batch_reader_open(&reader, path, BATCH_LINE_BYTES_MAX, NULL, NULL, &err),
                 STATUS_OK, "%s", err.message);
    return reader;
}

static bool shares_prefixes = true;

/* To be deinitialised. */
static struct batch_lengths all_of(const char *lines, const struct tokenizer *tokenizer,
                                   int64_t context_max)
{
    struct batch_lengths lengths;
    struct error err;
    struct batch_row row;
    bool found;
    struct batch_lengths_params params = {
        .reader = reader_of(lines),
        .tokenizer = tokenizer,
        .chat_template = tokenizer == NULL ? NULL : chat_template_find("kjv-moe"),
        .context_max = context_max,
        .shares_prefixes = shares_prefixes,
    };
    cr_assert_eq(batch_lengths_read(&lengths, &params, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(batch_reader_next(params.reader, &row, &found, &err), STATUS_OK);
    cr_assert_eq(found ? row.index : 0, 0, "the reader is not at the first row");
    batch_reader_close(params.reader);
    return lengths;
}

static struct plan_load lengths_of(const char *lines, const struct tokenizer *tokenizer,
                                   int64_t context_max)
{
    struct batch_lengths lengths = all_of(lines, tokenizer, context_max);
    struct plan_load load = lengths.load;
    batch_lengths_deinit(&lengths);
    return load;
}

static const struct {
    const char *name, *lines;
    struct plan_load load;
} cases[] = {
    {"ids", ROW("a", "\"prompt\":[5,6,7],\"max_tokens\":9"), PLAN_LOAD(1, 3, 9)},
    {"no max_tokens", ROW("a", "\"prompt\":[5,6,7]"), PLAN_LOAD(1, 3, 16)},
    {"means, rounded up",
     ROW("a", "\"prompt\":[5],\"max_tokens\":1") ROW("b", "\"prompt\":[5,6],\"max_tokens\":4"),
     PLAN_LOAD(2, 2, 3)},
    {"n, and several prompts", ROW("a", "\"prompt\":[[5],[5,6,7]],\"n\":3,\"max_tokens\":8"),
     PLAN_LOAD(6, 2, 8)},
    {"scored only", ROW("a", "\"prompt\":[5,6],\"max_tokens\":0,\"prompt_logprobs\":0"),
     PLAN_LOAD(1, 2, 1)},
    {"wrong rows are left out",
     "no json\n" ROW("a", "\"prompt\":[5,6,7],\"max_tokens\":9") ROW("a", "\"prompt\":[5]")
         ROW("b", "\"prompt\":[5],\"max_tokens\":100") ROW("c", "\"prompt\":\"needs a tokenizer\""),
     PLAN_LOAD(1, 3, 9)},
    {"none", "no json\n", PLAN_LOAD(0, 0, 0)},
    {"nothing", "", PLAN_LOAD(0, 0, 0)},
};

#define CONTEXT 100

static bool is_same(const struct plan_load *one, const struct plan_load *two)
{
    return one->sequences == two->sequences && one->prompt_tokens == two->prompt_tokens &&
           one->output_tokens == two->output_tokens;
}

Test(batch_lengths, are_counted)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct plan_load found = lengths_of(cases[i].lines, NULL, CONTEXT);
        cr_expect(is_same(&found, &cases[i].load), "%s: %lld of %lld + %lld", cases[i].name,
                  (long long)found.sequences, (long long)found.prompt_tokens,
                  (long long)found.output_tokens);
    }
}

Test(batch_lengths, answers_may_differ)
{
    struct plan_load found = lengths_of(ROW("a", "\"prompt\":[5],\"max_tokens\":8,\"n\":3")
                                            ROW("b", "\"prompt\":[5,6],\"max_tokens\":16"),
                                        NULL, CONTEXT);
    cr_expect_eq(found.output_tokens, 10);
    cr_expect_float_eq(found.output_deviation, sqrt(3 * 2 * 2 + 6 * 6) / 2, 1e-9);
    found = lengths_of(ROW("a", "\"prompt\":[5],\"max_tokens\":8,\"n\":3"), NULL, CONTEXT);
    cr_expect_eq(found.output_deviation, 0);
}

/* Of rows that can be run alone: of their prompts and answers together. */
Test(batch_lengths, of_which_the_longest_is_known)
{
    struct batch_lengths lengths =
        all_of(ROW("a", "\"prompt\":[[5],[5,6,7]],\"n\":3,\"max_tokens\":8")
                   ROW("b", "\"prompt\":[5,6],\"max_tokens\":2")
                       ROW("c", "\"prompt\":[[5,6,7,8,9,10],[5]],\"max_tokens\":99"),
               NULL, CONTEXT);
    cr_assert_eq(lengths.load.sequences, 7);
    cr_assert_eq(lengths.longest_tokens, 11);
    batch_lengths_deinit(&lengths);
}

/* Both together are never more than the context, though each is rounded up. */
Test(batch_lengths, stay_within_the_context)
{
    struct plan_load found = lengths_of(ROW("a", "\"prompt\":[5],\"max_tokens\":3")
                                            ROW("b", "\"prompt\":[5,6],\"max_tokens\":2"),
                                        NULL, 4);
    cr_assert_eq(found.prompt_tokens, 2);
    cr_assert_eq(found.output_tokens, 2);
    found = lengths_of(ROW("a", "\"prompt\":[5,6,7],\"max_tokens\":0,\"echo\":true"), NULL, 3);
    cr_assert_eq(found.prompt_tokens + found.output_tokens, 3);
}

/* Of many rows some are looked at, evenly: here each of 2 x 4096 + 1 has a prompt of 1 or 3. */
Test(batch_lengths, of_many_rows_are_estimated)
{
    struct text lines = {0};
    int rows = 2 * BATCH_LENGTHS_ROWS_MAX + 1;
    for (int i = 0; i < rows; i++)
        text_append_format(&lines,
                           "{\"custom_id\":\"%d\",\"method\":\"POST\",\"url\":"
                           "\"/v1/completions\",\"body\":{\"prompt\":%s,\"max_tokens\":5}}\n",
                           i, i % 2 == 0 ? "[5]" : "[5,6,7]");
    cr_assert(!lines.failed);
    struct plan_load found = lengths_of(lines.bytes, NULL, CONTEXT);
    cr_assert_eq(found.sequences, rows, "%lld", (long long)found.sequences);
    cr_assert_eq(found.prompt_tokens, 2, "%lld", (long long)found.prompt_tokens);
    cr_assert_eq(found.output_tokens, 5);
    text_deinit(&lines);
}

/* Prompts of text and chats are as long as the run finds them. */
Test(batch_lengths, are_those_of_the_run)
{
    static const char lines[] = ROW("a", "\"prompt\":\"In the beginning\",\"max_tokens\":3")
        ROW("b", "\"prompt\":[\"And God said\",\"Let there be light\"],\"max_tokens\":3")
            CHAT("c", ",\"max_tokens\":3");
    struct tokenizer *tokenizer;
    struct error err;
    struct phasor_error failure;
    struct phasor_model *model;
    struct phasor_batch_result result;
    struct phasor_model_params open = phasor_model_params_default();
    struct phasor_batch_params run = phasor_batch_params_default();
    open.model = MODEL;
    run.input_path = tools_path(tools_folder(), "in.jsonl");
    run.output_path = tools_path(tools_folder(), "out.jsonl");
    run.chat_template = "kjv-moe";
    run.kv_bytes = 64 << 20;
    cr_assert_eq(tokenizer_open(&tokenizer, MODEL, &err), STATUS_OK, "%s", err.message);
    struct plan_load found = lengths_of(lines, tokenizer, 8192);
    cr_assert_eq(phasor_model_open(&model, &open, &failure), PHASOR_OK, "%s", failure.message);
    cr_assert_eq(phasor_batch_run(model, &run, &result, &failure), PHASOR_OK, "%s",
                 failure.message);
    cr_assert_eq(result.completed, 3);
    cr_assert_eq(found.sequences, 4);
    cr_assert_eq(found.prompt_tokens, (int64_t)(result.prompt_tokens + 3) / 4);
    cr_assert_eq(lengths_of(CHAT("c", ""), tokenizer, 8192).output_tokens, BATCH_LENGTHS_ANSWER);
    phasor_model_close(model);
    tokenizer_close(tokenizer);
}

/* ---- Prompts that begin alike ---------------------------------------------------------------- */

/* Ids of `count` tokens, of which those at `from` and behind it are `own`. */
static void put_prompt(struct text *lines, int64_t count, int64_t from, int own)
{
    for (int64_t t = 0; t < count; t++)
        text_append_format(lines, "%s%d", t == 0 ? "" : ",", t < from ? (int)t % 97 : own);
}

static void put_row(struct text *lines, int id, const char *more, int64_t count, int64_t from)
{
    text_append_format(lines,
                       "{\"custom_id\":\"%d\",\"method\":\"POST\",\"url\":"
                       "\"/v1/completions\",\"body\":{\"max_tokens\":5%s,\"prompt\":[",
                       id, more);
    put_prompt(lines, count, from, 100 + id);
    text_append_string(lines, "]}}\n");
}

static void expect_shared(const struct text *lines, double tokens, double sharers, const char *what)
{
    cr_assert(!lines->failed);
    struct plan_shared found = lengths_of(lines->bytes, NULL, 16384).shared;
    cr_expect_float_eq(found.tokens, tokens, 1e-9 * tokens, "%s: %g tokens", what, found.tokens);
    if (tokens > 0)
        cr_expect_float_eq(found.sharers, sharers, 1e-9 * sharers, "%s: %g sharers", what,
                           found.sharers);
}

/* As bench_prefix has them: 64 questions of 64 tokens behind one document of 128 pages. */
Test(batch_lengths, a_document_of_many_questions_is_computed_once)
{
    struct text lines = {0};
    for (int q = 0; q < 64; q++)
        put_row(&lines, q, "", 8192 + 64, 8192);
    expect_shared(&lines, 8192 * 63.0 / 64, 64, "sharing");
    struct plan_load load = lengths_of(lines.bytes, NULL, 16384);
    cr_expect_eq(load.prompt_tokens, 8192 + 64);
    cr_expect_float_eq(plan_load_beginning(&load), 8192, 1e-6);
    shares_prefixes = false;
    expect_shared(&lines, 0, 0, "without");
    text_deinit(&lines);
}

Test(batch_lengths, full_pages_of_prompts_are_shared)
{
    static const struct {
        const char *name, *more;
        int rows;
        int64_t count, from;
        double tokens, sharers;
    } kinds[] = {
        {"one prompt", "", 1, 200, 200, 0, 0},
        {"choices", ",\"n\":3", 1, 200, 200, 192 * 2 / 3.0, 3},
        {"short choices", ",\"n\":3", 1, 64, 64, 0, 0},
        {"a last token of one's own", ",\"n\":2", 1, 128, 128, 64 / 2.0, 2},
        {"choices of rows alike", ",\"n\":2", 3, 200, 200, 192 * 5 / 6.0, 6},
        {"scored prompts", ",\"prompt_logprobs\":0", 3, 200, 200, 0, 0},
        {"echoed with scores", ",\"echo\":true,\"logprobs\":1", 3, 200, 200, 0, 0},
        {"choices of one that is scored", ",\"n\":3,\"prompt_logprobs\":0", 1, 200, 200, 64, 2},
        {"part of a page", "", 4, 200, 60, 0, 0},
        {"the first page", "", 4, 200, 100, 64 * 3 / 4.0, 4},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct text lines = {0};
        for (int row = 0; row < kinds[i].rows; row++)
            put_row(&lines, row, kinds[i].more, kinds[i].count, kinds[i].from);
        expect_shared(&lines, kinds[i].tokens, kinds[i].sharers, kinds[i].name);
        text_deinit(&lines);
    }
}

/* Rows that are not tokenized find as much of their prompts as those that are. */
Test(batch_lengths, other_rows_share_in_proportion)
{
    struct text lines = {0};
    int rows = BATCH_LENGTHS_ROWS_MAX + 1000;
    for (int i = 0; i < rows; i++)
        put_row(&lines, i, i % 4 < 2 ? ",\"n\":2" : "", i % 4 < 2 ? 200 : 400, 140);
    cr_assert(!lines.failed);
    struct batch_lengths lengths = all_of(lines.bytes, NULL, CONTEXT * 10);
    /* 128 tokens of each, and of a row's second choice its full pages. */
    struct plan_cell all = {0};
    cr_assert_eq(lengths.mix.bin_count, 2);
    cr_expect_float_eq(lengths.load.shared.tokens, (128 + 192 + 128) / 3.0, 0.5, "%g",
                       lengths.load.shared.tokens);
    for (int b = 0; b < 2; b++) {
        const struct plan_load *bin = &lengths.mix.bins[b];
        double expected = bin->prompt_tokens == 400 ? 128 : (128 + 192) / 2.0;
        cr_expect_float_eq(bin->shared.tokens / expected, 1, 0.25, "%g for %g", bin->shared.tokens,
                           expected);
        all.sequences += (double)bin->sequences;
        all.found_tokens += (double)bin->sequences * bin->shared.tokens;
    }
    cr_expect_float_eq(all.found_tokens / all.sequences / lengths.load.shared.tokens, 1, 0.01);
    batch_lengths_deinit(&lengths);
    text_deinit(&lines);
}

/* ---- Which rows are alike -------------------------------------------------------------------- */

Test(batch_lengths, rows_are_in_cells)
{
    struct batch_lengths lengths =
        all_of(ROW("a", "\"prompt\":[5,6,7],\"max_tokens\":9") "no json\n" ROW(
                   "b", "\"prompt\":[[5,6,7],[5,6]],\"n\":2,\"max_tokens\":40"),
               NULL, CONTEXT);
    cr_assert_eq(lengths.row_count, 3);
    cr_expect_eq(lengths.cell_of[0], plan_cell_of(3, 9));
    cr_expect_eq(lengths.cell_of[1], BATCH_LENGTHS_NO_CELL);
    cr_expect_eq(lengths.cell_of[2], plan_cell_of(2.5, 40));
    cr_assert_eq(lengths.mix.bin_count, 2);
    struct plan_load few = PLAN_LOAD(1, 3, 9), many = PLAN_LOAD(4, 3, 40);
    cr_expect(is_same(&lengths.mix.bins[0], &few));
    cr_expect(is_same(&lengths.mix.bins[1], &many));
    cr_expect_eq(lengths.mix.bin_of[lengths.cell_of[0]], 0);
    cr_expect_eq(lengths.mix.bin_of[lengths.cell_of[2]], 1);
    batch_lengths_deinit(&lengths);
}

/* Rows that are not tokenized have as many tokens for their bytes as those that are. */
Test(batch_lengths, tokens_of_other_rows_are_estimated)
{
    static const char verse[] = "In the beginning God created the heaven and the earth.";
    struct text lines = {0};
    struct tokenizer *tokenizer;
    struct error err;
    int rows = BATCH_LENGTHS_ROWS_MAX + 100;
    cr_assert_eq(tokenizer_open(&tokenizer, MODEL, &err), STATUS_OK, "%s", err.message);
    for (int i = 0; i < rows; i++) {
        text_append_format(&lines,
                           "{\"custom_id\":\"%d\",\"method\":\"POST\",\"url\":"
                           "\"/v1/completions\",\"body\":{\"max_tokens\":5,\"prompt\":\"",
                           i);
        for (int k = 0; k < (i % 4 < 2 ? 1 : 8); k++)
            text_append_format(&lines, "%s ", verse);
        text_append_format(&lines, "\"}}\n");
    }
    cr_assert(!lines.failed);
    struct batch_lengths lengths = all_of(lines.bytes, tokenizer, 512);
    /* Every second is tokenized. */
    cr_expect_eq(lengths.cell_of[0], lengths.cell_of[1], "a short row that is estimated");
    cr_expect_eq(lengths.cell_of[2], lengths.cell_of[3], "a long row that is estimated");
    cr_expect_neq(lengths.cell_of[0], lengths.cell_of[2]);
    cr_expect_eq(lengths.load.sequences, rows);
    batch_lengths_deinit(&lengths);
    tokenizer_close(tokenizer);
    text_deinit(&lines);
}

/* Rows that come while the file is read ahead are not counted, and nothing is written for them. */
Test(batch_lengths, a_file_may_grow)
{
    struct batch_lengths lengths;
    struct error err;
    struct batch_reader *reader = reader_of(ROW("a", "\"prompt\":[5],\"max_tokens\":9"));
    FILE *file = fopen(tools_path(tools_folder(), "in.jsonl"), "a");
    for (int i = 0; i < 1000; i++)
        fputs(ROW("b", "\"prompt\":[5,6],\"max_tokens\":9"), file);
    fclose(file);
    struct batch_lengths_params params = {.reader = reader, .context_max = CONTEXT};
    cr_assert_eq(batch_lengths_read(&lengths, &params, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(lengths.row_count, 1);
    cr_assert_eq(lengths.load.sequences, 1);
    cr_assert_eq(lengths.cell_of[0], plan_cell_of(1, 9));
    batch_lengths_deinit(&lengths);
    batch_reader_close(reader);
}

/* ---- Their order ----------------------------------------------------------------------------- */

static void expect_order(const uint8_t *class_of, int class_count, const int64_t *rows,
                         size_t row_count)
{
    struct batch_reader *reader = reader_of("0\n1\n\n2\n3\n4\n");
    struct batch_order order = {.class_of = class_of, .class_count = class_count};
    struct error err;
    bool found = true;
    for (size_t i = 0; found; i++) {
        struct batch_row row;
        cr_assert_eq(batch_order_skim(&order, reader, &row, &found, &err), STATUS_OK);
        cr_assert_eq(found, i < row_count);
        cr_assert(!found || (row.index == rows[i] && row.bytes[0] == '0' + rows[i]),
                  "row %d came at place %zu", (int)row.index, i);
    }
    batch_reader_close(reader);
}

Test(batch_order, rows_come_class_by_class)
{
    expect_order(NULL, 0, (const int64_t[]){0, 1, 2, 3, 4}, 5);
    expect_order((const uint8_t[]){0, 0, 0, 0, 0}, 1, (const int64_t[]){0, 1, 2, 3, 4}, 5);
    expect_order((const uint8_t[]){1, 0, 1, 0, 1}, 2, (const int64_t[]){1, 3, 0, 2, 4}, 5);
    expect_order((const uint8_t[]){2, 2, 0, 3, 0}, 4, (const int64_t[]){2, 4, 0, 1, 3}, 5);
}

static enum status refuse(void *context, struct error *err)
{
    return error_set(err, STATUS_CANCELLED, "stop, %d", ++*(int *)context);
}

Test(batch_order, somebody_is_asked_while_rows_are_passed_over)
{
    struct text lines = {0};
    int asked = 0;
    uint8_t class_of[5000] = {0};
    for (int i = 0; i < 5000; i++) {
        class_of[i] = i < 4999;
        text_append_string(&lines, "0\n");
    }
    struct batch_reader *reader = reader_of(lines.bytes);
    struct batch_order order = {.class_of = class_of, .class_count = 2, .watch = {refuse, &asked}};
    struct batch_row row;
    struct error err;
    bool found;
    cr_assert_eq(batch_order_skim(&order, reader, &row, &found, &err), STATUS_CANCELLED);
    cr_assert_eq(asked, 1);
    batch_reader_close(reader);
    text_deinit(&lines);
}
