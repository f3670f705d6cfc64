/* What the choices of a row cost: its prompt is computed once, and behind its full pages once for
 * each choice. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "device/ops.h"
#include "engine/batch_lengths.h"
#include "engine_tools.h"
#include "phasor.h"

#define MODEL  TEST_DATA "/models/mixtral"
#define PROMPT 200 /* tokens: three full pages and 8 more */
#define TAIL   (PROMPT % KV_PAGE_TOKENS)

static void write_row(const char *path, int n, const char *more)
{
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file);
    fprintf(
        file,
        "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"n\":%d,"
        "\"max_tokens\":4,\"ignore_eos\":true,\"temperature\":1%s,\"prompt\":[",
        n, more);
    for (int i = 0; i < PROMPT; i++)
        fprintf(file, "%s%d", i == 0 ? "" : ",", i * 7 % 128);
    fprintf(file, "]}}\n");
    cr_assert_eq(fclose(file), 0);
}

static struct phasor_batch_result run_row(struct phasor_model *model, int n, const char *more,
                                          bool shares)
{
    struct phasor_error err;
    struct phasor_batch_result result;
    struct phasor_batch_params params = phasor_batch_params_default();
    params.input_path = tools_path(tools_folder(), "in");
    params.output_path = tools_path(tools_folder(), shares ? "shared" : "whole");
    params.overwrite = true;
    params.deterministic = true;
    params.shares_prefixes = shares;
    params.max_num_seqs = 8;
    params.max_num_batched_tokens = 64;
    params.kv_bytes = 8 << 20;
    write_row(params.input_path, n, more);
    cr_assert_eq(phasor_batch_run(model, &params, &result, &err), PHASOR_OK, "%s", err.message);
    cr_assert(result.completed == 1 && result.failed == 0);
    return result;
}

/* The choices themselves, without ids and the time. */
static char *choices_of(const char *name)
{
    json_t *rows = tools_read_rows(tools_path(tools_folder(), name));
    const json_t *body =
        json_object_get(json_object_get(json_array_get(rows, 0), "response"), "body");
    char *text = json_dumps(json_object_get(body, "choices"), JSON_SORT_KEYS);
    json_decref(rows);
    cr_assert_not_null(text);
    return text;
}

/* Of the row that was written last, as a plan has it. */
static uint64_t shared_ahead(void)
{
    struct batch_lengths lengths;
    struct batch_lengths_params params = {.context_max = 1024, .shares_prefixes = true};
    struct error err;
    cr_assert_eq(batch_reader_open(&params.reader, tools_path(tools_folder(), "in"),
                                   BATCH_LINE_BYTES_MAX, NULL, NULL, &err),
                 STATUS_OK, "%s", err.message);
    cr_assert_eq(batch_lengths_read(&lengths, &params, &err), STATUS_OK, "%s", err.message);
    double tokens = lengths.load.shared.tokens * (double)lengths.load.sequences;
    batch_lengths_deinit(&lengths);
    batch_reader_close(params.reader);
    return (uint64_t)(tokens + 0.5);
}

Test(choices, cost_one_prompt_and_a_tail_each, .timeout = 120)
{
    static const struct {
        int n;
        const char *more;
        uint64_t computed;
    } cases[] = {
        {1, "", PROMPT},
        {2, "", PROMPT + TAIL},
        {16, "", PROMPT + 15 * TAIL}, /* more than run at once: the pages stay */
        /* The first choice scores the prompt, alone; the others have one of their own. */
        {4, ",\"prompt_logprobs\":0", PROMPT + PROMPT + 2 * TAIL},
    };
    struct phasor_model_params params = phasor_model_params_default();
    struct phasor_model *model;
    struct phasor_error err;
    params.model = MODEL;
    cr_assert_eq(phasor_model_open(&model, &params, &err), PHASOR_OK, "%s", err.message);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        uint64_t all = (uint64_t)cases[c].n * PROMPT;
        struct phasor_batch_result shared = run_row(model, cases[c].n, cases[c].more, true);
        struct phasor_batch_result whole = run_row(model, cases[c].n, cases[c].more, false);
        cr_expect_eq(shared.prefill_tokens, cases[c].computed, "case %zu: %llu", c,
                     (unsigned long long)shared.prefill_tokens);
        cr_expect_eq(shared.shared_tokens, all - cases[c].computed);
        cr_expect_eq(shared_ahead(), shared.shared_tokens, "case %zu: what was read ahead", c);
        cr_expect_eq(whole.prefill_tokens, all);
        char *a = choices_of("shared"), *b = choices_of("whole");
        cr_expect_str_eq(a, b);
        free(a);
        free(b);
    }
    phasor_model_close(model);
}
