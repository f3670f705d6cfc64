#include "predictions.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/json.h"
#include "base/memory.h"
#include "base/random.h"
#include "comm/box.h"
#include "engine/engine.h"
#include "exec/exec.h"

#define PAGES (PREDICTIONS_TOKENS / 64 + 1) /* of a window */

static void check(enum status status, const struct error *err)
{
    if (status == STATUS_OK)
        return;
    fprintf(stderr, "predictions: %s\n", err->message);
    exit(1);
}

/* ---- Windows of tokens --------------------------------------------------------------------- */

void windows_read(struct windows *windows, const char *dir, int64_t vocab_count)
{
    char path[4096];
    struct error err;
    json_t *metrics;
    struct random random = {.seed = 1};
    snprintf(path, sizeof path, "%s/metrics.json", dir);
    bool has_text = access(path, R_OK) == 0;
    if (has_text)
        check(json_load_object(&metrics, path, 4 << 20, &err), &err);
    for (int w = 0; w < PREDICTIONS_WINDOWS; w++) {
        const json_t *window =
            has_text ? json_array_get(json_object_get(metrics, "per_window"), (size_t)w) : NULL;
        const json_t *ids = json_object_get(window, "token_ids");
        if (has_text && ids == NULL)
            break;
        int length = has_text ? (int)json_array_size(ids) : 256;
        length = length < PREDICTIONS_TOKENS ? length : PREDICTIONS_TOKENS;
        for (int i = 0; i < length; i++)
            windows->tokens[w][i] =
                has_text ? (int32_t)json_integer_value(json_array_get(ids, (size_t)i))
                         : (int32_t)random_below(&random, (uint64_t)vocab_count);
        windows->length[w] = length;
        windows->count = w + 1;
    }
    if (has_text)
        json_decref(metrics);
}

/* ---- Predictions --------------------------------------------------------------------------- */

static void to_logprobs(float *out, const float *logits, int64_t count)
{
    double most = logits[0], sum = 0;
    for (int64_t i = 1; i < count; i++)
        most = fmax(most, (double)logits[i]);
    for (int64_t i = 0; i < count; i++)
        sum += exp((double)logits[i] - most);
    for (int64_t i = 0; i < count; i++)
        out[i] = (float)((double)logits[i] - most - log(sum));
}

static void head_take(struct predictions *out, struct exec *exec, const struct exec_head *head,
                      const int64_t *places)
{
    struct exec_head got = *head;
    struct error err;
    check(exec_head(exec, &got, &err), &err);
    for (int64_t i = 0; i < got.row_count; i++)
        to_logprobs(out->logprobs + places[i] * out->vocab_count, got.logits + i * got.stride,
                    out->vocab_count);
}

/* A window in one pass; its predictions begin at `place`. */
static void window_predict(struct predictions *out, struct exec *exec, struct kv_cache *cache,
                           const struct windows *windows, int w, int64_t place)
{
    int32_t pages[PAGES], rows[EXEC_LOGIT_ROWS];
    int64_t places[EXEC_LOGIT_ROWS];
    struct error err;
    int length = windows->length[w];
    for (int p = 0; p < PAGES; p++)
        pages[p] = p;
    const struct exec_segment segment = {
        .tokens = windows->tokens[w], .token_count = length, .pages = pages};
    check(exec_forward(exec, cache, FORM_OWNED, &segment, 1, &err), &err);
    for (int first = 0; first + 1 < length; first += EXEC_LOGIT_ROWS) {
        int64_t count = length - 1 - first;
        count = count < EXEC_LOGIT_ROWS ? count : EXEC_LOGIT_ROWS;
        for (int64_t i = 0; i < count; i++) {
            rows[i] = (int32_t)(first + i);
            places[i] = place + first + i;
        }
        head_take(out, exec, &(struct exec_head){.rows = rows, .row_count = count}, places);
    }
}

/* The token at `position` of each window that has one behind it. `first`: where the windows'
 * predictions begin. */
static void step_predict(struct predictions *out, struct exec *exec, struct kv_cache *cache,
                         const struct windows *windows, int position, const int64_t *first)
{
    struct exec_segment segments[PREDICTIONS_WINDOWS];
    int32_t pages[PREDICTIONS_WINDOWS][PAGES], rows[PREDICTIONS_WINDOWS];
    int64_t places[PREDICTIONS_WINDOWS], count = 0;
    struct error err;
    for (int w = 0; w < windows->count; w++) {
        if (position + 1 >= windows->length[w])
            continue;
        for (int p = 0; p < PAGES; p++)
            pages[w][p] = w * PAGES + p;
        segments[count] = (struct exec_segment){.tokens = &windows->tokens[w][position],
                                                .token_count = 1,
                                                .first_position = position,
                                                .pages = pages[w]};
        rows[count] = (int32_t)count;
        places[count++] = first[w] + position;
    }
    if (count == 0)
        return;
    check(exec_forward(exec, cache, FORM_GATHERED, segments, count, &err), &err);
    head_take(out, exec, &(struct exec_head){.rows = rows, .row_count = count}, places);
}

static void rows_make(struct predictions *out, const struct windows *windows,
                      int64_t first[PREDICTIONS_WINDOWS])
{
    for (int w = 0; w < windows->count; w++) {
        first[w] = out->row_count;
        out->row_count += windows->length[w] > 0 ? windows->length[w] - 1 : 0;
    }
    out->logprobs =
        memory_alloc_raw((size_t)((out->row_count + 1) * out->vocab_count), sizeof(float));
}

static void all_predict(struct predictions *out, struct exec *exec, struct kv_cache *cache,
                        const struct windows *windows, bool by_step)
{
    int64_t first[PREDICTIONS_WINDOWS];
    rows_make(out, windows, first);
    for (int w = 0; w < windows->count && !by_step; w++)
        window_predict(out, exec, cache, windows, w, first[w]);
    for (int position = 0; position < PREDICTIONS_TOKENS && by_step; position++)
        step_predict(out, exec, cache, windows, position, first);
}

void predictions_make(struct predictions *out, const char *dir, const struct windows *windows,
                      enum predictions_way way)
{
    struct error err;
    struct engine *engine;
    struct exec *exec;
    struct kv_cache cache;
    const struct engine_params params = {
        .model = dir,
        .dtype = way == PREDICTIONS_F32 ? DTYPE_F32 : DTYPE_BF16,
        .has_int4_experts = way == PREDICTIONS_DECODE_INT4,
    };
    check(engine_open(&engine, &params, &err), &err);
    check(engine_exec_create(&exec, engine, PREDICTIONS_TOKENS, EXEC_LOGIT_ROWS, &err), &err);
    const struct kv_cache_params kv = {.box = exec_box(exec),
                                       .config = exec_config(exec),
                                       .layout = exec_layout(exec),
                                       .dtype = exec_kv_dtype(exec),
                                       .page_count = PREDICTIONS_WINDOWS * PAGES};
    check(kv_cache_init(&cache, &kv, &err), &err);
    *out = (struct predictions){.vocab_count = exec_config(exec)->vocab_count};
    snprintf(out->kernels, sizeof out->kernels, "%s", box_device(exec_box(exec), 0)->ops->name);
    all_predict(out, exec, &cache, windows, way != PREDICTIONS_F32);
    kv_cache_deinit(&cache);
    exec_destroy(exec);
    engine_close(engine);
}

void predictions_free(struct predictions *predictions)
{
    memory_free(predictions->logprobs);
    *predictions = (struct predictions){0};
}

/* ---- Beside one another ------------------------------------------------------------------- */

static int64_t likeliest(const float *logprobs, int64_t count)
{
    int64_t best = 0;
    for (int64_t i = 1; i < count; i++)
        best = logprobs[i] > logprobs[best] ? i : best;
    return best;
}

struct difference predictions_compare(const struct predictions *native,
                                      const struct predictions *other,
                                      const struct windows *windows)
{
    struct difference sum = {0};
    int64_t row = 0, vocab = native->vocab_count;
    for (int w = 0; w < windows->count; w++) {
        for (int i = 0; i + 1 < windows->length[w]; i++, row++) {
            const float *p = native->logprobs + row * vocab, *q = other->logprobs + row * vocab;
            sum.nll -= (double)q[windows->tokens[w][i + 1]];
            sum.agreement += likeliest(p, vocab) == likeliest(q, vocab);
            for (int64_t t = 0; t < vocab; t++)
                sum.divergence += exp((double)p[t]) * ((double)p[t] - (double)q[t]);
        }
    }
    return (struct difference){sum.nll / (double)row, sum.divergence / (double)row,
                               sum.agreement / (double)row};
}
