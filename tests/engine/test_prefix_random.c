/* Random prompts of a few documents, random limits, plans and ends, all cancelled now and then: no
 * order of events leaves a page behind, keeps a sequence waiting, or shows in a result. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/random.h"
#include "prefix_rig.h"
#include "sweep.h"

#define COUNT 60

/* A prompt, and what came of it. Traces are alike where all of their bytes are. */
struct case_of {
    struct prompt prompt;
    int64_t stop_after;
    struct heard trace;
};

static bool on_token(void *context, const struct generated_token *token)
{
    struct case_of *one = context;
    return trace_callbacks.token(&one->trace, token) && one->trace.count < one->stop_after;
}

static void on_prompt(void *context, int64_t position, const struct generated_token *token)
{
    trace_callbacks.prompt_token(&((struct case_of *)context)->trace, position, token);
}

static void on_end(void *context, const struct sequence_end *end)
{
    trace_callbacks.finished(&((struct case_of *)context)->trace, end);
}

static void make_cases(struct case_of *cases, struct random *random)
{
    static const int64_t heads[] = {0, 63, 64, 65, 128, 190, 192, 256, 300};
    for (int i = 0; i < COUNT; i++) {
        int64_t head = heads[random_below(random, sizeof heads / sizeof *heads)];
        int64_t tail = random_below(random, 4) == 0 ? 0 : (int64_t)random_below(random, 100);
        struct prompt *prompt = &cases[i].prompt;
        *prompt = prompt_of(1 + random_below(random, 3), head, random_below(random, 5),
                            head + tail == 0 ? 1 : tail);
        prompt->is_scored = random_below(random, 8) == 0;
        if (prompt->is_scored && random_below(random, 2) == 0)
            prompt->token_max = 0;
        cases[i].stop_after = 1 + (int64_t)random_below(random, TOKENS_MAX + 2);
    }
}

static struct limits make_limits(struct random *random)
{
    static const char *const plans[] = {NULL, "tp2dp2|ep4", "dp4|ep4", "dp2|ep2"};
    struct limits limits = {.plan = plans[random_below(random, 4)],
                            .dtype = DTYPE_F32,
                            .sequences = 1 + (int64_t)random_below(random, 16),
                            .pages = 8 + (int64_t)random_below(random, 30)};
    limits.batch_tokens = limits.sequences + (int64_t)random_below(random, 200);
    return limits;
}

static void submit_case(struct rig *rig, struct case_of *one)
{
    struct error err;
    struct sequence_request request = {
        .prompt = one->prompt.ids,
        .prompt_count = one->prompt.count,
        .token_count_max = one->prompt.token_max,
        .sampling = {.temperature = 0.8, .top_p = 1, .seed = 3},
        .ignore_eos = true,
        .logprobs = 0,
        .prompt_logprobs = one->prompt.is_scored,
        .callbacks = {on_token, on_prompt, on_end},
        .context = one,
    };
    one->trace = (struct heard){0};
    check(generator_submit(rig->generator, &request, &err), &err);
}

/* They come a few at a time; each step is cancelled with all that is there, once in `cancels`. */
static void run_cases(struct case_of *cases, const struct limits *limits, uint64_t seed,
                      uint64_t cancels)
{
    struct random random = {.seed = seed};
    struct rig rig;
    rig_open(&rig, limits);
    for (int next = 0; next < COUNT || !generator_is_idle(rig.generator);) {
        for (uint64_t i = random_below(&random, 4); i > 0 && next < COUNT; i--)
            submit_case(&rig, &cases[next++]);
        step(&rig);
        if (cancels == 0 || random_below(&random, cancels) != 0)
            continue;
        generator_cancel_all(rig.generator);
        cr_assert_eq(counters(&rig).kv_pages_used, 0);
    }
    cr_assert_eq(counters(&rig).kv_pages_used, 0);
    for (int g = 0; g < rig.generator->group_count; g++)
        cr_assert(rig.generator->loads[g].sequence_count == 0 &&
                  rig.generator->loads[g].token_count == 0);
    rig_close(&rig);
}

static void check_cases(const struct case_of *got, const struct case_of *whole, uint64_t seed)
{
    for (int i = 0; i < COUNT; i++) {
        cr_assert_eq(got[i].trace.finished, 1, "seed %d, prompt %d", (int)seed, i);
        if (got[i].trace.reason != FINISH_CANCELLED)
            cr_assert_arr_eq(&got[i].trace, &whole[i].trace, sizeof got[i].trace,
                             "seed %d, prompt %d", (int)seed, i);
    }
}

Test(prefix, any_order_of_events_gives_what_whole_prompts_give, .timeout = 1800)
{
    static struct case_of whole[COUNT], shared[COUNT];
    uint64_t step_size = sweep_step(20);
    for (uint64_t seed = sweep_first(step_size); seed <= 60; seed += step_size) {
        struct random random = {.seed = seed};
        printf("seed %d\n", (int)seed);
        make_cases(whole, &random);
        memcpy(shared, whole, sizeof whole);
        struct limits limits = make_limits(&random);
        run_cases(whole, &limits, seed, 0);
        limits.shares = true;
        run_cases(shared, &limits, seed, 0);
        check_cases(shared, whole, seed);
        run_cases(shared, &limits, seed + 1, 40);
        check_cases(shared, whole, seed);
    }
}
