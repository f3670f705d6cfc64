/* The whole forward pass against Hugging Face transformers: small random checkpoints that cover
 * every option, with logits and greedy tokens that transformers computed from them
 * (tools/goldens/model/make_goldens.py). Bounds: logits within 1e-4 of their spread; greedy tokens
 * equal over 64 steps, or up to the first step where transformers' top two are closer than 1e-2. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "kernels/cpu/kernels.h"
#include "model_runner.h"

#define POSITIONS_MAX 256
#define MODEL_MAX     32
#define LOGIT_BOUND   1e-4 /* of the spread */

static const char *const models[] = {
    "mixtral",       "mixtral-sliding", "mixtral-tied",     "mixtral-sharded", "mixtral-fused",
    "qwen2moe",      "qwen2moe-norm",   "qwen2moe-mlponly", "qwen2moe-window", "qwen3moe",
    "qwen3moe-bias", "qwen3moe-fused",  "qwen3moe-v4",      "qwen3moe-window",
};

struct golden {
    json_t *json;
    float *logits; /* [rows][vocab] */
    int64_t vocab, rows, long_row;
};

struct runner {
    struct model_runner model;
    int32_t pages[POSITIONS_MAX / KV_PAGE_TOKENS];
};

static void check(enum status status, const struct error *err)
{
    cr_assert_eq(status, STATUS_OK, "%s", err->message);
}

static void golden_open(struct golden *golden, const char *name)
{
    char path[512];
    size_t length;
    struct error err;
    snprintf(path, sizeof path, "%s/models/%s/goldens.json", TEST_DATA, name);
    check(json_load_object(&golden->json, path, 1 << 20, &err), &err);
    snprintf(path, sizeof path, "%s/models/%s/goldens_logits.bin", TEST_DATA, name);
    check(file_read_whole((char **)&golden->logits, &length, path, 64 << 20, &err), &err);
    golden->vocab = json_integer_value(json_object_get(golden->json, "vocab"));
    golden->rows = json_integer_value(json_object_get(golden->json, "logits_rows"));
    golden->long_row = json_integer_value(json_object_get(golden->json, "long_last_row"));
    cr_assert_eq(length, (size_t)(golden->long_row + 1) * (size_t)golden->vocab * sizeof(float));
}

static int64_t ids_of(int32_t *out, const json_t *json, const char *key)
{
    const json_t *list = json_object_get(json, key);
    int64_t count = (int64_t)json_array_size(list);
    cr_assert(count > 0 && count <= POSITIONS_MAX);
    for (int64_t i = 0; i < count; i++)
        out[i] = (int32_t)json_integer_value(json_array_get(list, (size_t)i));
    return count;
}

static void runner_open(struct runner *runner, const char *name, enum dtype dtype,
                        const char *kernels)
{
    model_runner_open(&runner->model, &(struct runner_params){
                                          .name = name,
                                          .dtype = dtype,
                                          .thread_count = 2,
                                          .token_max = POSITIONS_MAX,
                                          .page_count = POSITIONS_MAX / KV_PAGE_TOKENS,
                                          .kernels = kernels,
                                      });
    model_runner_take(&runner->model, 0, runner->pages, POSITIONS_MAX / KV_PAGE_TOKENS);
}

static void runner_close(struct runner *runner)
{
    model_runner_close(&runner->model);
}

static void feed(struct runner *runner, const int32_t *tokens, int64_t count, int64_t position)
{
    struct error err;
    struct exec_segment segment = {tokens, count, position, runner->pages, 0};
    check(exec_forward(runner->model.exec, &runner->model.cache, FORM_OWNED, &segment, 1, &err),
          &err);
}

static const float *logits_of(struct runner *runner, int32_t row)
{
    struct error err;
    struct exec_head head = {.rows = &row, .row_count = 1};
    check(exec_head(runner->model.exec, &head, &err), &err);
    return head.logits;
}

/* The standard deviation of the expected row: what an error is measured against. */
static double spread_of(const float *logits, int64_t count)
{
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += logits[i];
        squares += (double)logits[i] * logits[i];
    }
    double mean = sum / (double)count;
    return sqrt(squares / (double)count - mean * mean);
}

static double worst_error(const float *found, const float *expected, int64_t count)
{
    double worst = 0;
    for (int64_t i = 0; i < count; i++) {
        double error = fabs((double)found[i] - expected[i]);
        worst = error > worst || isnan(error) ? error : worst;
    }
    return worst / spread_of(expected, count);
}

static void check_row(struct runner *runner, int32_t row, const float *expected, int64_t vocab,
                      const char *name)
{
    double error = worst_error(logits_of(runner, row), expected, vocab);
    cr_assert(error <= LOGIT_BOUND,
              "%s, row %d: logits are off by %.2e of their spread (bound %.0e)", name, row, error,
              LOGIT_BOUND);
}

static int64_t largest(const float *logits, int64_t count)
{
    int64_t best = 0;
    for (int64_t i = 1; i < count; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

/* Continues the prompt that has just been fed. */
static void check_greedy(struct runner *runner, const struct golden *golden, int64_t prompt_count,
                         const char *name)
{
    const json_t *expected = json_object_get(golden->json, "greedy");
    const json_t *margins = json_object_get(golden->json, "greedy_margin");
    int32_t row = (int32_t)prompt_count - 1;
    for (size_t step = 0; step < 64; step++) {
        int32_t id = (int32_t)largest(logits_of(runner, row), golden->vocab);
        int32_t wanted = (int32_t)json_integer_value(json_array_get(expected, step));
        if (id != wanted) {
            double margin = json_number_value(json_array_get(margins, step));
            cr_assert(margin < 1e-2, "%s: step %zu gives %d instead of %d with a margin of %g",
                      name, step, id, wanted, margin);
            return;
        }
        feed(runner, &id, 1, prompt_count + (int64_t)step);
        row = 0;
    }
}

static void check_model(const char *name, const char *kernels)
{
    struct golden golden;
    struct runner runner;
    int32_t prompt[POSITIONS_MAX], longer[POSITIONS_MAX];
    uint64_t live = memory_counters_get().live_count;
    golden_open(&golden, name);
    runner_open(&runner, name, DTYPE_F32, kernels);
    int64_t count = ids_of(prompt, golden.json, "prompt");
    int64_t longer_count = ids_of(longer, golden.json, "long_prompt");

    /* The long prompt in chunks of uneven size, as a scheduler would feed it. */
    for (int64_t at = 0, chunk = 7; at < longer_count; at += chunk, chunk += 13) {
        int64_t left = longer_count - at;
        feed(&runner, longer + at, left < chunk ? left : chunk, at);
        if (left <= chunk)
            check_row(&runner, (int32_t)left - 1, golden.logits + golden.long_row * golden.vocab,
                      golden.vocab, name);
    }
    feed(&runner, prompt, count, 0);
    for (int64_t row = 0; row < golden.rows; row++)
        check_row(&runner, (int32_t)row, golden.logits + row * golden.vocab, golden.vocab, name);
    check_greedy(&runner, &golden, count, name);

    runner_close(&runner);
    json_decref(golden.json);
    memory_free(golden.logits);
    cr_assert_eq(memory_counters_get().live_count, live, "%s leaks", name);
}

ParameterizedTestParameters(goldens, equal_transformers)
{
    static char names[sizeof models / sizeof models[0]][MODEL_MAX];
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++)
        snprintf(names[i], MODEL_MAX, "%s", models[i]);
    return cr_make_param_array(char[MODEL_MAX], names, sizeof models / sizeof models[0]);
}

ParameterizedTest(char (*name)[MODEL_MAX], goldens, equal_transformers)
{
    check_model(*name, NULL);
}

/* The number type that published models run in. These weights are bf16 on disk, so only keys and
 * values are rounded, and by kernels that take pairs the inputs of products: by 2^-8 of themselves
 * at most, 2^-9 in the mean square. The root of the mean square error over all logits must stay
 * within 2^-6 of their spread, eight times that, for what two to four layers of softmax and
 * routing make of it. */
static double mean_square_error(const char *name, const char *kernels)
{
    struct golden golden;
    struct runner runner;
    int32_t prompt[POSITIONS_MAX];
    double sum = 0;
    golden_open(&golden, name);
    runner_open(&runner, name, DTYPE_BF16, kernels);
    feed(&runner, prompt, ids_of(prompt, golden.json, "prompt"), 0);
    for (int64_t row = 0; row < golden.rows; row++) {
        const float *expected = golden.logits + row * golden.vocab;
        const float *found = logits_of(&runner, (int32_t)row);
        double spread = spread_of(expected, golden.vocab);
        for (int64_t i = 0; i < golden.vocab; i++)
            sum += pow((found[i] - expected[i]) / spread, 2);
    }
    double mean = sum / (double)(golden.rows * golden.vocab);
    runner_close(&runner);
    json_decref(golden.json);
    memory_free(golden.logits);
    return mean;
}

Test(goldens, bfloat16_stays_near_transformers)
{
    static const char *const names[] = {"mixtral", "mixtral-sharded", "qwen2moe", "qwen3moe"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        double error = sqrt(mean_square_error(names[i], NULL));
        cr_expect(error < 0x1p-6, "%s: %.2e of the spread", names[i], error);
        cr_log_info("%s: %.2e", names[i], error);
    }
}

Test(goldens, every_kernel_set_equals_transformers)
{
    static const char *const sets[] = {"plain",      "avx2",       "avx512",
                                       "avx512vnni", "avx512bf16", "amx"};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        if (cpu_kernels_choose(sets[i]) == NULL) {
            cr_log_info("this machine or build has no %s kernels: not tested", sets[i]);
            continue;
        }
        check_model("mixtral-sliding", sets[i]);
        check_model("qwen2moe", sets[i]);
        check_model("qwen3moe", sets[i]);
        double error =
            sqrt(mean_square_error("qwen2moe", sets[i])); /* by pairs, where it takes them */
        cr_expect(error < 0x1p-6, "%s: %.2e of the spread", sets[i], error);
    }
}
