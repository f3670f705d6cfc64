/* Passes: how tokens are batched and chunked does not change what comes out. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "model_runner.h"

#define TOKENS_MAX 160
#define PAGES_MAX  16
#define VOCAB_MAX  1024

/* Sequences of uneven length, some with a past that is fed first. */
static const struct {
    int64_t past, count;
} shapes[] = {{0, 5}, {63, 1}, {70, 3}, {0, 64}, {1, 1}, {100, 20}};
#define SHAPE_COUNT (sizeof shapes / sizeof shapes[0])

static void runner_start(struct model_runner *out, const char *name, enum dtype dtype,
                         int thread_count, int64_t token_max, int64_t page_count)
{
    model_runner_open(out, &(struct runner_params){.name = name,
                                                   .dtype = dtype,
                                                   .thread_count = thread_count,
                                                   .token_max = token_max,
                                                   .page_count = page_count});
}

static void tokens_fill(int32_t *tokens, int64_t count, uint64_t seed, int64_t vocab)
{
    struct random random = {.seed = seed};
    for (int64_t i = 0; i < count; i++)
        tokens[i] = (int32_t)random_below(&random, (uint64_t)vocab);
}

static void forward(struct model_runner *runner, const struct exec_segment *segments, int64_t count)
{
    struct error err;
    cr_assert_eq(exec_forward(runner->exec, &runner->cache, FORM_OWNED, segments, count, &err),
                 STATUS_OK);
}

static void logits_copy(float *out, struct model_runner *runner, int32_t row)
{
    struct error err;
    struct exec_head head = {.rows = &row, .row_count = 1};
    cr_assert_eq(exec_head(runner->exec, &head, &err), STATUS_OK);
    memcpy(out, head.logits, (size_t)exec_config(runner->exec)->vocab_count * sizeof *out);
}

struct sequence {
    int32_t tokens[TOKENS_MAX];
    int32_t pages[PAGES_MAX];
    int64_t past, count;
};

static void sequence_open(struct sequence *sequence, struct model_runner *runner, size_t shape)
{
    sequence->past = shapes[shape].past;
    sequence->count = shapes[shape].count;
    tokens_fill(sequence->tokens, TOKENS_MAX, shape, exec_config(runner->exec)->vocab_count);
    model_runner_take(runner, 0, sequence->pages, kv_pages_for(sequence->past + sequence->count));
    struct exec_segment past = {sequence->tokens, sequence->past, 0, sequence->pages, 0};
    if (sequence->past > 0)
        forward(runner, &past, 1);
}

static struct exec_segment segment_of(const struct sequence *sequence)
{
    return (struct exec_segment){sequence->tokens + sequence->past, sequence->count, sequence->past,
                                 sequence->pages, 0};
}

static void sequence_close(struct sequence *sequence, struct model_runner *runner)
{
    model_runner_return(runner, 0, sequence->pages, kv_pages_for(sequence->past + sequence->count));
}

/* All tokens' logits of a batch of ragged segments are those of each segment alone, to the bit. */
static void check_batch(const char *name, enum dtype dtype, int threads_alone, int threads_batch)
{
    struct model_runner alone, batch;
    static struct sequence sequences[SHAPE_COUNT], single;
    static float found[VOCAB_MAX], expected[VOCAB_MAX];
    struct exec_segment segments[SHAPE_COUNT];
    runner_start(&alone, name, dtype, threads_alone, TOKENS_MAX, PAGES_MAX);
    runner_start(&batch, name, dtype, threads_batch, TOKENS_MAX, PAGES_MAX);
    size_t bytes = (size_t)exec_config(batch.exec)->vocab_count * sizeof *found;
    cr_assert(bytes <= sizeof found);
    for (size_t i = 0; i < SHAPE_COUNT; i++) {
        sequence_open(&sequences[i], &batch, i);
        segments[i] = segment_of(&sequences[i]);
    }
    forward(&batch, segments, SHAPE_COUNT);
    int32_t row = 0;
    for (size_t i = 0; i < SHAPE_COUNT; i++) {
        sequence_open(&single, &alone, i);
        struct exec_segment segment = segment_of(&single);
        forward(&alone, &segment, 1);
        for (int32_t t = 0; t < segment.token_count; t++) {
            logits_copy(found, &batch, row++);
            logits_copy(expected, &alone, t);
            cr_assert(memcmp(found, expected, bytes) == 0, "%s: segment %zu, token %d", name, i, t);
        }
        sequence_close(&single, &alone);
    }
    model_runner_close(&alone);
    model_runner_close(&batch);
}

Test(exec, a_batch_is_each_segment_alone)
{
    static const char *const models[] = {"mixtral-sliding", "qwen2moe", "qwen3moe",
                                         "qwen3moe-bias"};
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        check_batch(models[i], DTYPE_F32, 1, 3);
        check_batch(models[i], DTYPE_BF16, 2, 1);
    }
}

/* In chunks of any size: each value depends on its own row and the cache alone, so that even the
 * bits stay the same. */
Test(exec, chunks_are_the_whole)
{
    static const int64_t chunks[] = {1, 7, 16, 33, 64, 65, 100};
    static float found[VOCAB_MAX], expected[VOCAB_MAX];
    static int32_t tokens[TOKENS_MAX], pages[PAGES_MAX];
    struct model_runner runner;
    runner_start(&runner, "qwen3moe-window", DTYPE_BF16, 2, TOKENS_MAX, PAGES_MAX);
    size_t bytes = (size_t)exec_config(runner.exec)->vocab_count * sizeof *found;
    tokens_fill(tokens, TOKENS_MAX, 1, exec_config(runner.exec)->vocab_count);
    model_runner_take(&runner, 0, pages, kv_pages_for(TOKENS_MAX));
    struct exec_segment whole = {tokens, TOKENS_MAX, 0, pages, 0};
    forward(&runner, &whole, 1);
    logits_copy(expected, &runner, TOKENS_MAX - 1);
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
        int64_t at = 0, count = 0;
        for (; at < TOKENS_MAX; at += count) {
            count = TOKENS_MAX - at < chunks[i] ? TOKENS_MAX - at : chunks[i];
            struct exec_segment chunk = {tokens + at, count, at, pages, 0};
            forward(&runner, &chunk, 1);
        }
        logits_copy(found, &runner, (int32_t)count - 1);
        cr_assert(memcmp(found, expected, bytes) == 0, "chunks of %lld", (long long)chunks[i]);
    }
    model_runner_close(&runner);
}

/* The next token sees the past: another first token changes the logits of the last. */
Test(exec, the_past_matters)
{
    static float one[VOCAB_MAX], other[VOCAB_MAX];
    int32_t tokens[3] = {1, 2, 3}, page;
    struct model_runner runner;
    runner_start(&runner, "mixtral", DTYPE_F32, 1, 8, 1);
    model_runner_take(&runner, 0, &page, 1);
    struct exec_segment segment = {tokens, 3, 0, &page, 0};
    forward(&runner, &segment, 1);
    logits_copy(one, &runner, 2);
    tokens[0] = 4;
    forward(&runner, &segment, 1);
    logits_copy(other, &runner, 2);
    cr_assert(memcmp(one, other, 16 * sizeof(float)) != 0);
    model_runner_close(&runner);
}

Test(exec, logits_of_many_rows)
{
    static int32_t tokens[EXEC_LOGIT_ROWS], rows[EXEC_LOGIT_ROWS];
    static float expected[VOCAB_MAX];
    struct model_runner runner;
    struct error err;
    struct exec_head head = {.rows = rows, .row_count = EXEC_LOGIT_ROWS};
    int32_t page;
    runner_start(&runner, "mixtral", DTYPE_F32, 2, EXEC_LOGIT_ROWS, 1);
    int64_t vocab = exec_config(runner.exec)->vocab_count;
    tokens_fill(tokens, EXEC_LOGIT_ROWS, 2, vocab);
    model_runner_take(&runner, 0, &page, 1);
    struct exec_segment segment = {tokens, EXEC_LOGIT_ROWS, 0, &page, 0};
    forward(&runner, &segment, 1);
    for (int32_t i = 0; i < EXEC_LOGIT_ROWS; i++)
        rows[i] = i / 3 * 3; /* rising, with repetitions */
    float *all = memory_alloc((size_t)(EXEC_LOGIT_ROWS * vocab), sizeof *all);
    cr_assert_eq(exec_head(runner.exec, &head, &err), STATUS_OK);
    cr_assert(head.stride >= vocab);
    for (int64_t i = 0; i < EXEC_LOGIT_ROWS; i++)
        memcpy(all + i * vocab, head.logits + i * head.stride, (size_t)vocab * sizeof *all);
    for (int64_t i = 0; i < EXEC_LOGIT_ROWS; i++) {
        logits_copy(expected, &runner, rows[i]);
        cr_assert_arr_eq(all + i * vocab, expected, (size_t)vocab * sizeof *all);
    }
    memory_free(all);
    model_runner_close(&runner);
}

/* Every choice of every token, in the layers that have experts, and nothing elsewhere. */
Test(exec, routing_is_recorded)
{
    enum { TOKENS = 20 };
    static int32_t routing[4 * TOKENS * 8];
    int32_t tokens[TOKENS], page;
    struct model_runner runner;
    runner_start(&runner, "qwen2moe-mlponly", DTYPE_F32, 2, TOKENS, 1);
    int64_t top_k = runner.config->expert_top_k, per_layer = TOKENS * top_k;
    cr_assert(runner.config->layer_count * per_layer <= (int64_t)(sizeof routing / 4));
    memset(routing, 0xFF, sizeof routing);
    tokens_fill(tokens, TOKENS, 3, runner.config->vocab_count);
    model_runner_take(&runner, 0, &page, 1);
    struct exec_segment segment = {tokens, TOKENS, 0, &page, 0};
    exec_record_routing(runner.exec, routing);
    forward(&runner, &segment, 1);
    exec_record_routing(runner.exec, NULL);
    forward(&runner, &segment, 1);
    bool has_dense = false;
    for (int64_t layer = 0; layer < runner.config->layer_count; layer++) {
        bool is_dense = runner.config->layers[layer].ffn == FFN_DENSE;
        has_dense |= is_dense;
        for (int64_t i = 0; i < per_layer; i++) {
            int32_t id = routing[layer * per_layer + i];
            cr_assert(is_dense ? id == -1 : id >= 0 && id < runner.config->expert_count);
            for (int64_t j = i / top_k * top_k; j < i && !is_dense; j++)
                cr_assert_neq(routing[layer * per_layer + j], id, "one expert twice");
        }
    }
    cr_assert(has_dense);
    model_runner_close(&runner);
}

static struct exec_params params_of(const struct model_runner *runner, int64_t token_max)
{
    return (struct exec_params){.box = runner->box,
                                .config = runner->config,
                                .layouts = &runner->layouts,
                                .weights = runner->weights,
                                .token_max = token_max,
                                .segment_max = 4};
}

static uint64_t device_bytes(const struct model_runner *runner, int rank)
{
    const struct device *device = box_device(runner->box, rank);
    return device->ops->memory_use(device).bytes;
}

/* On every rank, under layouts that move tokens in all ways. */
Test(exec, takes_the_bytes_that_it_says_and_allocates_nothing_in_a_pass)
{
    static const struct {
        const char *plan;
        int rank_count;
    } cases[] = {{"tp1|tp1", 1}, {"tp2|tp2", 2}, {"dp2|ep2", 2}, {"tp2dp2|tp2ep2", 4}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        int32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8}, page;
        struct model_runner runner;
        struct error err;
        struct exec *another;
        model_runner_open(&runner, &(struct runner_params){.name = "qwen2moe",
                                                           .dtype = DTYPE_F32,
                                                           .rank_count = cases[c].rank_count,
                                                           .plan = cases[c].plan,
                                                           .token_max = 8 * cases[c].rank_count,
                                                           .page_count = 1});
        uint64_t before = device_bytes(&runner, cases[c].rank_count - 1);
        struct exec_params params = params_of(&runner, 1000);
        cr_assert_eq(exec_create(&another, &params, &err), STATUS_OK);
        cr_assert_eq(device_bytes(&runner, cases[c].rank_count - 1) - before,
                     exec_bytes(runner.config, &runner.layouts, 1000, 4), "%s", cases[c].plan);
        exec_destroy(another);
        exec_destroy(NULL);
        cr_assert_eq(device_bytes(&runner, cases[c].rank_count - 1), before);

        model_runner_take(&runner, 0, &page, 1);
        struct exec_segment segment = {tokens, 8, 0, &page, 0};
        uint64_t count = memory_counters_get().alloc_count;
        int32_t row = 7;
        struct exec_head head = {.rows = &row, .row_count = 1};
        forward(&runner, &segment, 1);
        cr_assert_eq(exec_head(runner.exec, &head, &err), STATUS_OK);
        cr_assert_eq(memory_counters_get().alloc_count, count);
        model_runner_close(&runner);
    }
}

/* A failure to create leaves the box as it was: a smaller executor can still be made. */
Test(exec, every_failed_allocation_leaves_nothing)
{
    struct model_runner runner;
    struct error err;
    struct exec *exec = NULL;
    model_runner_open(&runner, &(struct runner_params){.name = "mixtral",
                                                       .dtype = DTYPE_F32,
                                                       .rank_count = 4,
                                                       .plan = "tp2dp2|ep4",
                                                       .token_max = 8,
                                                       .page_count = 1});
    struct exec_params params = params_of(&runner, 8);
    for (int rank = 0; rank < 4; rank++)
        test_device_warm(box_device(runner.box, rank));
    uint64_t live = memory_counters_get().live_count;
    for (uint64_t n = 1;; n++) {
        memory_fail_at(n, 0);
        enum status status = exec_create(&exec, &params, &err);
        memory_fail_at(0, 0);
        if (status == STATUS_OK) {
            cr_assert_gt(n, 10);
            break;
        }
        cr_assert_eq(status, STATUS_NO_MEMORY);
        cr_assert_null(exec);
        cr_assert_eq(memory_counters_get().live_count, live, "allocation %llu",
                     (unsigned long long)n);
    }
    exec_destroy(exec);
    model_runner_close(&runner);
}
