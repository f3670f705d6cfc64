/* The bundled model's likelihood against transformers': models/kjv-moe/metrics.json holds what
 * transformers computed over validation.jsonl (the text, its ids, and the negative log-likelihood
 * of each window). The same way as --prompt-logprobs goes: tokenizer, generator, executor. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "engine/engine.h"
#include "exec/exec.h"
#include "sweep.h"

#define MODEL MODELS_DIR "/kjv-moe"

struct tally {
    double nll;
    int64_t scored;
    int64_t last_position;
    bool finished;
};

static void check(enum status status, const struct error *err)
{
    cr_assert_eq(status, STATUS_OK, "%s", err->message);
}

static void score(void *context, int64_t position, const struct generated_token *token)
{
    struct tally *tally = context;
    cr_assert_eq(position, tally->last_position + 1, "positions come in order");
    tally->last_position = position;
    tally->nll -= token->logprob;
    tally->scored++;
}

static void finish(void *context, const struct sequence_end *end)
{
    ((struct tally *)context)->finished = end->reason == FINISH_LENGTH;
}

/* NLL of one window; its ids must be those of transformers. */
static double window_nll(struct generator *generator, const struct tokenizer *tokenizer,
                         const char *text, const json_t *window)
{
    struct error err;
    struct token_list ids = {0};
    struct tally tally = {0};
    struct encode_options options = {.add_special = true};
    check(tokenizer_encode(tokenizer, &ids, text, strlen(text), options, &err), &err);
    const json_t *expected = json_object_get(window, "token_ids");
    cr_assert_eq(ids.count, json_array_size(expected));
    for (size_t i = 0; i < ids.count; i++)
        cr_assert_eq(ids.ids[i], json_integer_value(json_array_get(expected, i)));
    struct sequence_request request = {
        .prompt = ids.ids,
        .prompt_count = (int64_t)ids.count,
        .logprobs = -1,
        .prompt_logprobs = true,
        .callbacks = {.prompt_token = score, .finished = finish},
        .context = &tally,
    };
    check(generator_submit(generator, &request, &err), &err);
    while (!generator_is_idle(generator))
        check(generator_step(generator, &err), &err);
    cr_assert(tally.finished);
    cr_assert_eq(tally.scored, (int64_t)ids.count - 1);
    token_list_deinit(&ids);
    return tally.nll;
}

struct form {
    enum dtype dtype;
    bool has_int4_experts;
    int64_t pass_tokens;        /* windows go in chunks of so many */
    double window_bound, bound; /* relative: of each window, and of all */
};

static void check_model(const struct form *form, const char *devices, const char *plan)
{
    struct error err;
    struct engine *engine;
    struct exec *exec;
    struct generator *generator;
    json_t *metrics;
    char *lines;
    size_t length;
    struct engine_params params = {.model = MODEL,
                                   .dtype = form->dtype,
                                   .has_int4_experts = form->has_int4_experts,
                                   .devices = devices,
                                   .plan = plan,
                                   .needs_tokenizer = true};
    check(engine_open(&engine, &params, &err), &err);
    check(engine_exec_create(&exec, engine, form->pass_tokens, 4, &err), &err);
    struct generator_params limits = {.sequence_count_max = 4,
                                      .batch_token_max = form->pass_tokens,
                                      .context_max = 1024,
                                      .kv_bytes_max = 64 << 20};
    check(generator_create(&generator, exec, &limits, &err), &err);
    check(json_load_object(&metrics, MODEL "/metrics.json", 4 << 20, &err), &err);
    check(file_read_whole(&lines, &length, MODEL "/validation.jsonl", 1 << 20, &err), &err);

    const json_t *windows = json_object_get(metrics, "per_window");
    double found = 0, expected = 0;
    char *line = lines;
    for (size_t w = 0; w < json_array_size(windows); w++) {
        const json_t *window = json_array_get(windows, w);
        char *end = strchr(line, '\n');
        cr_assert_not_null(end);
        json_t *row;
        check(json_parse_object(&row, line, (size_t)(end - line), "validation.jsonl", &err), &err);
        double nll = window_nll(generator, engine_tokenizer(engine),
                                json_string_value(json_object_get(row, "text")), window);
        double wanted = json_number_value(json_object_get(window, "nll_sum"));
        cr_assert(fabs(nll - wanted) <= form->window_bound * wanted, "window %zu: %.4f, not %.4f",
                  w, nll, wanted);
        found += nll;
        expected += wanted;
        json_decref(row);
        line = end + 1;
    }
    cr_assert(json_array_size(windows) > 10);
    cr_log_info("%s: NLL %.4f, transformers %.4f, relative difference %.2e", plan, found, expected,
                found / expected - 1);
    cr_assert(fabs(found / expected - 1) <= form->bound);

    memory_free(lines);
    json_decref(metrics);
    generator_destroy(generator);
    exec_destroy(exec);
    engine_close(engine);
}

static const struct form bf16 = {DTYPE_BF16, false, 200, 5e-3, 1e-3};

Test(nll, bfloat16_equals_transformers)
{
    check_model(&bf16, "cpu", "tp1|tp1");
}

Test(nll, float32_equals_transformers)
{
    static const struct form f32 = {DTYPE_F32, false, 200, 1e-5, 1e-3};
    check_model(&f32, "cpu", "tp1|tp1");
}

/* Passes of eight tokens, so that experts have a row or two, as in decode: their products with
 * packed nibbles may cost 1 %, and cost a quarter of one. Rounded half a step too high they cost
 * 0.7. */
Test(nll, packed_int4_costs_less_than_half_a_percent)
{
    static const struct form int4 = {DTYPE_BF16, true, 8, 4e-2, 5e-3};
    check_model(&int4, "cpu", "tp1|tp1");
}

/* A layout takes seconds: the quick tier takes some of them, by the seed. */
#define QUICK_STEP 2

/* The layouts that static TP, static EP and mixtures have on 2, 4 and 8 ranks. */
Test(nll, every_kind_of_layout_equals_transformers, .timeout = 600)
{
    static const struct {
        const char *devices, *plan;
    } cases[] = {
        {"cpu:2", "tp2|tp2"},       {"cpu:4", "tp4|tp4"}, {"cpu:4", "dp4|ep4"},
        {"cpu:4", "tp2dp2|tp2ep2"}, {"cpu:8", "tp8|tp8"}, {"cpu:8", "dp8|ep8"},
        {"cpu:8", "tp2dp4|tp4ep2"},
    };
    size_t step = sweep_step(QUICK_STEP);
    for (size_t i = sweep_first(step) - 1; i < sizeof cases / sizeof cases[0]; i += step)
        check_model(&bf16, cases[i].devices, cases[i].plan);
}
