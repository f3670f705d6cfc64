#include "prefix_rig.h"

#include <criterion/criterion.h>

#include "base/random.h"

#define MODEL TEST_DATA "/models/mixtral"

void check(enum status status, const struct error *err)
{
    cr_assert_eq(status, STATUS_OK, "%s", err->message);
}

void rig_open(struct rig *rig, const struct limits *limits)
{
    struct error err = {0};
    struct engine_params params = {.model = limits->model == NULL ? MODEL : limits->model,
                                   .dtype = limits->dtype,
                                   .plan = limits->plan,
                                   .thread_count = 2};
    check(engine_open(&rig->engine, &params, &err), &err);
    check(
        engine_exec_create(&rig->exec, rig->engine, limits->batch_tokens, limits->sequences, &err),
        &err);
    const struct layout *layout = engine_layout(rig->engine);
    uint64_t page = kv_page_bytes(engine_config(rig->engine), layout, limits->dtype) *
                    (uint64_t)layout->rank_count;
    struct generator_params generator = {.sequence_count_max = limits->sequences,
                                         .batch_token_max = limits->batch_tokens,
                                         .context_max =
                                             limits->context > 0 ? limits->context : CONTEXT,
                                         .kv_bytes_max = limits->pages * (int64_t)page,
                                         .shares_prefixes = limits->shares};
    check(generator_create(&rig->generator, rig->exec, &generator, &err), &err);
}

void rig_close(struct rig *rig)
{
    generator_destroy(rig->generator);
    exec_destroy(rig->exec);
    engine_close(rig->engine);
}

struct generator_counters counters(const struct rig *rig)
{
    return generator_counters_get(rig->generator);
}

struct prompt prompt_of(uint64_t seed, int64_t head, uint64_t own_seed, int64_t tail)
{
    struct prompt prompt = {.count = head + tail, .token_max = TOKENS_MAX};
    struct random random = {.seed = seed};
    for (int64_t i = 0; i < prompt.count; i++) {
        if (i == head)
            random = (struct random){.seed = own_seed + 1000};
        prompt.ids[i] = (int32_t)random_below(&random, VOCAB);
    }
    return prompt;
}

static bool on_token(void *context, const struct generated_token *token)
{
    struct heard *trace = context;
    trace->logprobs[trace->count] = token->logprob;
    trace->ids[trace->count++] = token->id;
    return true;
}

static void on_prompt(void *context, int64_t position, const struct generated_token *token)
{
    struct heard *trace = context;
    cr_assert_eq(position, ++trace->score_count);
    trace->scores[position] = token->logprob;
}

static void on_end(void *context, const struct sequence_end *end)
{
    struct heard *trace = context;
    trace->finished++;
    trace->reason = end->reason;
}

const struct sequence_callbacks trace_callbacks = {on_token, on_prompt, on_end};

enum status try_submit(struct rig *rig, const struct prompt *prompt, struct heard *trace,
                       struct error *err)
{
    struct sequence_request request = {
        .prompt = prompt->ids,
        .prompt_count = prompt->count,
        .token_count_max = prompt->token_max,
        .sampling = {.temperature = 0.8, .top_p = 1, .seed = 3},
        .ignore_eos = true,
        .logprobs = 0,
        .prompt_logprobs = prompt->is_scored,
        .callbacks = trace_callbacks,
        .context = trace,
    };
    return generator_submit(rig->generator, &request, err);
}

void submit(struct rig *rig, const struct prompt *prompt, struct heard *trace)
{
    struct error err;
    *trace = (struct heard){0};
    check(try_submit(rig, prompt, trace, &err), &err);
}

void step(struct rig *rig)
{
    struct error err;
    check(generator_step(rig->generator, &err), &err);
}

void run(struct rig *rig)
{
    while (!generator_is_idle(rig->generator))
        step(rig);
    cr_assert_eq(counters(rig).kv_pages_used, 0);
}

void run_one(struct rig *rig, const struct prompt *prompt, struct heard *trace)
{
    submit(rig, prompt, trace);
    run(rig);
}
