/* The scheduler around the executor, on a small checkpoint whose greedy tokens and likelihoods are
 * known from transformers (tests/data/models/mixtral). */
#include <criterion/criterion.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "engine/engine.h"
#include "exec/exec.h"

#define MODEL     TEST_DATA "/models/mixtral"
#define STEPS     64
#define TOKEN_MAX 64

struct setup {
    struct engine *engine;
    struct exec *exec;
    struct generator *generator;
    json_t *golden;
    int32_t prompt[256];
    int64_t prompt_count;
};

struct heard {
    int32_t ids[STEPS];
    int64_t count;
    int64_t stop_after;    /* the callback ends the sequence there; 0: never */
    float logprobs[STEPS]; /* where they were asked for */
    int64_t unlike_top;    /* tokens that are not the first of the likeliest, and less likely */
    double prompt_nll;
    int64_t finished;
    struct sequence_end end;
};

static void check(enum status status, const struct error *err)
{
    cr_assert_eq(status, STATUS_OK, "%s", err->message);
}

static void ids_read(struct setup *setup, const char *key)
{
    const json_t *list = json_object_get(setup->golden, key);
    setup->prompt_count = (int64_t)json_array_size(list);
    for (int64_t i = 0; i < setup->prompt_count; i++)
        setup->prompt[i] = (int32_t)json_integer_value(json_array_get(list, (size_t)i));
}

struct room {
    int64_t sequences, token_max, batch_tokens, context_max;
    int64_t pages; /* the budget of the KV cache */
    int64_t entry_tokens;
    bool shares_prefixes;
    const char *plan; /* NULL: of one rank */
};

static void setup_open_in(struct setup *setup, const struct room *room)
{
    struct error err = {0};
    struct engine_params params = {
        .model = MODEL, .dtype = DTYPE_F32, .thread_count = 2, .plan = room->plan};
    memset(setup, 0, sizeof *setup);
    check(engine_open(&setup->engine, &params, &err), &err);
    check(engine_exec_create(&setup->exec, setup->engine, room->token_max, room->sequences, &err),
          &err);
    const struct layout *layout = engine_layout(setup->engine);
    uint64_t page_bytes = kv_page_bytes(engine_config(setup->engine), layout, DTYPE_F32) *
                          (uint64_t)layout->rank_count;
    struct generator_params limits = {.sequence_count_max = room->sequences,
                                      .batch_token_max = room->batch_tokens,
                                      .context_max = room->context_max,
                                      .kv_bytes_max = room->pages * (int64_t)page_bytes,
                                      .entry_tokens = room->entry_tokens,
                                      .shares_prefixes = room->shares_prefixes};
    check(generator_create(&setup->generator, setup->exec, &limits, &err), &err);
    check(json_load_object(&setup->golden, MODEL "/goldens.json", 1 << 20, &err), &err);
    ids_read(setup, "prompt");
}

/* `pages` is the budget of the KV cache, in pages. */
static void setup_open(struct setup *setup, int64_t sequences, int64_t batch_tokens, int64_t pages)
{
    setup_open_in(setup,
                  &(struct room){sequences, TOKEN_MAX, batch_tokens, 256, pages, 100, false, NULL});
}

static void setup_close(struct setup *setup)
{
    generator_destroy(setup->generator);
    exec_destroy(setup->exec);
    engine_close(setup->engine);
    json_decref(setup->golden);
}

static bool on_token(void *context, const struct generated_token *token)
{
    struct heard *trace = context;
    trace->logprobs[trace->count] = token->logprob;
    trace->ids[trace->count++] = token->id;
    if (token->top_count > 0 && token->top[0].id != token->id) {
        cr_expect_leq(token->logprob, token->top[0].logprob);
        trace->unlike_top++;
    }
    return trace->stop_after == 0 || trace->count < trace->stop_after;
}

static void on_prompt(void *context, int64_t position, const struct generated_token *token)
{
    (void)position;
    ((struct heard *)context)->prompt_nll -= token->logprob;
}

static void on_end(void *context, const struct sequence_end *end)
{
    struct heard *trace = context;
    trace->finished++;
    trace->end = *end;
}

static struct sequence_request request_of(struct setup *setup, struct heard *trace,
                                          int64_t token_count)
{
    return (struct sequence_request){
        .prompt = setup->prompt,
        .prompt_count = setup->prompt_count,
        .token_count_max = token_count,
        .ignore_eos = true,
        .logprobs = -1,
        .callbacks = {on_token, on_prompt, on_end},
        .context = trace,
    };
}

static void submit(struct setup *setup, struct heard *trace, int64_t token_count)
{
    struct error err;
    struct sequence_request request = request_of(setup, trace, token_count);
    check(generator_submit(setup->generator, &request, &err), &err);
}

static void run(struct setup *setup)
{
    struct error err;
    while (!generator_is_idle(setup->generator))
        check(generator_step(setup->generator, &err), &err);
}

static void check_golden(const struct setup *setup, const struct heard *trace)
{
    const json_t *expected = json_object_get(setup->golden, "greedy");
    cr_assert_eq(trace->finished, 1);
    for (int64_t i = 0; i < trace->count; i++)
        cr_assert_eq(trace->ids[i], json_integer_value(json_array_get(expected, (size_t)i)),
                     "token %lld", (long long)i);
}

Test(generator, greedy_equals_transformers_for_every_chunk)
{
    for (int64_t batch_tokens = 1; batch_tokens <= 32; batch_tokens += batch_tokens / 2 + 1) {
        struct setup setup;
        struct heard trace = {0};
        setup_open(&setup, 1, batch_tokens, 8);
        submit(&setup, &trace, STEPS);
        run(&setup);
        cr_assert_eq(trace.count, STEPS);
        cr_assert_eq(trace.end.reason, FINISH_LENGTH);
        check_golden(&setup, &trace);
        setup_close(&setup);
    }
}

Test(generator, more_sequences_than_fit_all_finish)
{
    struct setup setup;
    struct heard traces[9] = {0};
    setup_open(&setup, 4, 16, 5); /* two pages each: two run at a time */
    for (int i = 0; i < 9; i++)
        submit(&setup, &traces[i], STEPS - i);
    run(&setup);
    for (int i = 0; i < 9; i++) {
        cr_assert_eq(traces[i].count, STEPS - i);
        check_golden(&setup, &traces[i]);
    }
    cr_assert_eq(generator_counters_get(setup.generator).kv_pages_used, 0);
    setup_close(&setup);
}

/* How many enter together, behind those who enter first: the least, but for who is last. Those wait
 * for nobody else, where `room` is for so many. */
static int64_t entered_together(struct setup *setup, int64_t room)
{
    int64_t least = INT64_MAX;
    struct error err;
    check(generator_step(setup->generator, &err), &err);
    while (!generator_is_idle(setup->generator)) {
        struct generator_counters before = generator_counters_get(setup->generator);
        check(generator_step(setup->generator, &err), &err);
        int64_t waiting = generator_counters_get(setup->generator).waiting;
        if (waiting < before.waiting && waiting > 0 && before.waiting - waiting < least)
            least = before.waiting - waiting;
        if (before.waiting <= room - before.running)
            cr_assert_eq(waiting, 0, "%lld wait", (long long)waiting);
    }
    return least;
}

static void submit_quiet(struct setup *setup, struct heard *all, int64_t count, int64_t token_count)
{
    struct error err;
    struct sequence_request request = request_of(setup, all, token_count);
    request.callbacks.token = NULL;
    for (int64_t i = 0; i < count; i++)
        check(generator_submit(setup->generator, &request, &err), &err);
}

/* Two end with each step, and half as many again wait as there are places. A sixteenth of who runs
 * has ended, or prompts that could enter have entry_tokens, or those of a pass, which no page has.
 * In one case 50 find pages; the last has two groups of 32 places, in each of which one ends. */
Test(generator, who_found_no_room_enters_with_others)
{
    static const struct {
        struct room room;
        int64_t prompt_tokens, expected;
    } cases[] = {
        {{32, 2048, 2048, 512, 400, 2000, false, NULL}, 8, 2},
        {{64, 2048, 2048, 512, 400, 2000, false, NULL}, 8, 4},
        {{64, 2048, 100, 512, 400, 2000, false, NULL}, 60, 2},
        {{208, 2048, 2048, 512, 1600, 2400, false, NULL}, 250, 10},
        {{208, 2048, 2048, 512, 1600, 2000, true, NULL}, 250, 14},
        {{60, 2048, 2048, 512, 50, 2000, false, NULL}, 8, 4},
        {{208, 2048, 2048, 512, 1600, 1200, false, NULL}, 250, 6},
        {{64, 2048, 2048, 512, 400, 0, false, NULL}, 8, 2},
/* Ranks that hand over to each other take a minute more, beside others with a sanitizer. */
#if !defined(__SANITIZE_ADDRESS__)
        {{64, 2048, 2048, 512, 400, 2000, false, "dp2|ep2"}, 8, 4},
#endif
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct setup setup;
        struct heard all = {0};
        const struct room *room = &cases[c].room;
        int64_t count = room->sequences * 3 / 2;
        setup_open_in(&setup, room);
        setup.prompt_count = cases[c].prompt_tokens;
        for (int64_t i = 0; i < setup.prompt_count; i++)
            setup.prompt[i] = (int32_t)(3 + i % 7);
        for (int64_t i = 0; i < count; i += 2)
            submit_quiet(&setup, &all, 2, 5 + i / 2);
        int64_t together =
            entered_together(&setup, room->sequences < room->pages ? room->sequences : room->pages);
        cr_expect_eq(together, cases[c].expected, "case %d: %lld", (int)c, (long long)together);
        cr_assert_eq(all.finished, count);
        setup_close(&setup);
    }
}

/* Three of 64 end early, and the others go on for long: nobody waits longer for a fourth. */
Test(generator, who_found_no_room_enters_in_the_end)
{
    struct setup setup;
    struct error err;
    struct heard all = {0};
    int64_t step = 0, entered[3] = {0};
    setup_open(&setup, 64, TOKEN_MAX, 256);
    setup.prompt_count = 1;
    submit_quiet(&setup, &all, 3, 5);
    submit_quiet(&setup, &all, 61, 180);
    submit_quiet(&setup, &all, 7, 5);
    while (!generator_is_idle(setup.generator)) {
        int64_t before = generator_counters_get(setup.generator).waiting;
        check(generator_step(setup.generator, &err), &err);
        step++;
        if (generator_counters_get(setup.generator).waiting < before && step > 1)
            entered[before == 7 ? 0 : before == 4 ? 1 : 2] = step;
    }
    /* A step of prefill and four of decode; so many more, and they enter with the next. */
    cr_expect_eq(entered[0], 5 + GENERATOR_ENTRY_PASSES + 1, "%lld", (long long)entered[0]);
    cr_expect_eq(entered[1], 2 * entered[0] - 1, "%lld", (long long)entered[1]);
    cr_expect_eq(entered[2], entered[1] + 5, "one has nobody to wait for: %lld",
                 (long long)entered[2]);
    cr_assert_eq(all.finished, 71);
    setup_close(&setup);
}

/* The step in which the first of the waiting enters. */
static int64_t step_of_entry(struct setup *setup)
{
    struct error err;
    int64_t before = 0, step = 0;
    do {
        check(generator_step(setup->generator, &err), &err);
        int64_t waiting = generator_counters_get(setup->generator).waiting;
        if (step++ > 0 && waiting < before)
            return step;
        before = waiting;
    } while (!generator_is_idle(setup->generator));
    return -1;
}

/* One of 41 has 8 of 88 pages, and ends early: that is as much as a share of all. */
Test(generator, who_found_no_pages_enters_with_others)
{
    struct setup setup;
    struct heard early = {.stop_after = 10}, all = {0};
    setup_open_in(&setup, &(struct room){100, 256, 256, 512, 88, 2000, false, NULL});
    setup.prompt_count = 1;
    submit(&setup, &early, 8 * 64 - 1);
    submit_quiet(&setup, &all, 40, 127);
    submit_quiet(&setup, &all, 3, 10);
    int64_t step = step_of_entry(&setup);
    cr_expect_eq(step, 11, "step %lld", (long long)step);
    cr_assert_eq(generator_counters_get(setup.generator).waiting, 0);
    run(&setup);
    cr_assert_eq(all.finished, 43);
    setup_close(&setup);
}

/* One of the 50 ends with each step from the tenth on, and a page is free: who needs six of them
 * waits for no seventh. */
Test(generator, who_needs_many_pages_waits_for_no_others)
{
    struct setup setup;
    struct heard all = {0};
    setup_open_in(&setup, &(struct room){100, 256, 256, 512, 50, 2000, false, NULL});
    setup.prompt_count = 1;
    for (int64_t i = 0; i < 50; i++)
        submit_quiet(&setup, &all, 1, 10 + i);
    submit_quiet(&setup, &all, 1, 6 * 64 - 1);
    submit_quiet(&setup, &all, 20, 10);
    int64_t step = step_of_entry(&setup);
    cr_expect_eq(step, 16, "step %lld", (long long)step);
    run(&setup);
    cr_assert_eq(all.finished, 71);
    setup_close(&setup);
}

Test(generator, who_runs_ends_and_who_waits_stays_when_nobody_is_admitted)
{
    struct setup setup;
    struct error err;
    struct heard traces[5] = {0};
    setup_open(&setup, 2, 16, 8);
    for (int i = 0; i < 4; i++)
        submit(&setup, &traces[i], STEPS);
    check(generator_step(setup.generator, &err), &err); /* two are in */
    cr_assert_not(generator_is_idle(setup.generator));
    generator_stop_admitting(setup.generator);
    cr_assert_not(generator_is_idle(setup.generator), "two run");
    submit(&setup, &traces[4], STEPS);
    run(&setup);
    struct generator_counters now = generator_counters_get(setup.generator);
    cr_assert(now.running == 0 && now.waiting == 3 && now.kv_pages_used == 0);
    for (int i = 0; i < 5; i++) {
        cr_assert_eq(traces[i].finished, i < 2);
        cr_assert_eq(traces[i].count, i < 2 ? STEPS : 0);
    }
    check(generator_step(setup.generator, &err), &err);
    cr_assert_eq(generator_counters_get(setup.generator).step_count, now.step_count);
    generator_cancel_all(setup.generator);
    for (int i = 2; i < 5; i++) {
        cr_assert_eq(traces[i].finished, 1);
        cr_assert_eq(traces[i].end.reason, FINISH_CANCELLED);
    }
    setup_close(&setup);
}

/* Those who waited are forgotten without a word, and nothing leaks. */
Test(generator, can_be_destroyed_while_some_wait)
{
    struct setup setup;
    struct error err;
    struct heard traces[4] = {0};
    uint64_t live = memory_counters_get().live_count;
    setup_open(&setup, 2, 16, 8);
    for (int i = 0; i < 4; i++)
        submit(&setup, &traces[i], STEPS);
    check(generator_step(setup.generator, &err), &err);
    generator_stop_admitting(setup.generator);
    setup_close(&setup);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(traces[i].finished, 0);
    cr_assert_eq(memory_counters_get().live_count, live);
}

Test(generator, a_step_allocates_nothing)
{
    struct setup setup;
    struct error err;
    struct heard traces[3] = {0};
    setup_open(&setup, 3, 16, 8);
    for (int i = 0; i < 3; i++)
        submit(&setup, &traces[i], STEPS);
    uint64_t before = memory_counters_get().alloc_count;
    while (!generator_is_idle(setup.generator))
        check(generator_step(setup.generator, &err), &err);
    cr_assert_eq(memory_counters_get().alloc_count, before);
    setup_close(&setup);
}

/* Locks that phasor takes by name: the linker gives this to who calls for pthread_mutex_lock. */
static atomic_int lock_count;
int __real_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    atomic_fetch_add_explicit(&lock_count, 1, memory_order_relaxed); /* orders nothing */
    return __real_pthread_mutex_lock(mutex);
}

/* On one rank: several meet in collectives. */
Test(generator, a_step_takes_no_lock)
{
    struct setup setup;
    struct error err;
    struct heard traces[3] = {0};
    setup_open(&setup, 3, 16, 8);
    cr_assert_gt(lock_count, 0, "loading takes some");
    for (int i = 0; i < 3; i++)
        submit(&setup, &traces[i], STEPS);
    int before = lock_count;
    while (!generator_is_idle(setup.generator))
        check(generator_step(setup.generator, &err), &err);
    cr_assert_eq(lock_count, before);
    setup_close(&setup);
}

Test(generator, ends_as_asked)
{
    struct setup setup;
    struct heard by_caller = {.stop_after = 3}, by_token = {0}, cancelled = {0};
    setup_open(&setup, 4, 64, 8);
    submit(&setup, &by_caller, STEPS);
    struct sequence_request request = request_of(&setup, &by_token, STEPS);
    const json_t *greedy = json_object_get(setup.golden, "greedy");
    int32_t stop = (int32_t)json_integer_value(json_array_get(greedy, 2));
    struct error err;
    request.stop_ids = &stop;
    request.stop_count = 1;
    check(generator_submit(setup.generator, &request, &err), &err);
    run(&setup);
    cr_assert_eq(by_caller.end.reason, FINISH_CALLER);
    cr_assert_eq(by_caller.count, 3);
    cr_assert_eq(by_token.end.reason, FINISH_STOP);
    cr_assert_eq(by_token.end.stop_id, stop);
    cr_assert_eq(by_token.count, 2, "the stop token is not given");
    cr_assert_eq(by_token.end.token_count, 3, "but counted");

    submit(&setup, &cancelled, STEPS);
    check(generator_step(setup.generator, &err), &err);
    generator_cancel_all(setup.generator);
    cr_assert_eq(cancelled.end.reason, FINISH_CANCELLED);
    cr_assert(generator_is_idle(setup.generator));
    cr_assert_eq(generator_counters_get(setup.generator).kv_pages_used, 0);
    setup_close(&setup);
}

Test(generator, scores_prompts)
{
    struct setup setup;
    struct heard trace = {0};
    setup_open(&setup, 2, 11, 8);
    ids_read(&setup, "long_prompt");
    struct error err;
    struct sequence_request request = request_of(&setup, &trace, 0);
    request.prompt_logprobs = true;
    check(generator_submit(setup.generator, &request, &err), &err);
    run(&setup);
    double expected = json_number_value(json_object_get(setup.golden, "nll_long"));
    cr_assert(fabs(trace.prompt_nll - expected) < 1e-4 * expected, "%g, not %g", trace.prompt_nll,
              expected);
    cr_assert_eq(trace.count, 0);
    setup_close(&setup);
}

Test(generator, refuses_what_cannot_run)
{
    struct setup setup;
    struct heard trace = {0};
    int32_t outside[] = {1, 128};
    setup_open(&setup, 2, 64, 2);
    const struct {
        const int32_t *prompt;
        int64_t prompt_count, token_count;
        enum status status;
        const char *words;
    } cases[] = {
        {setup.prompt, 0, 1, STATUS_INVALID_ARGUMENT, "no tokens"},
        {outside, 2, 1, STATUS_INVALID_ARGUMENT, "token 1 of the prompt is 128"},
        {setup.prompt, 8, -1, STATUS_INVALID_ARGUMENT, "max_tokens is negative"},
        {setup.prompt, 8, 249, STATUS_LIMIT, "the context of 256"},
        {setup.prompt, 8, INT64_MAX, STATUS_LIMIT, "the context of 256"},
        {setup.prompt, 8, 200, STATUS_LIMIT, "need 4 pages of KV cache and there are 2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct error err;
        struct sequence_request request = request_of(&setup, &trace, cases[i].token_count);
        request.prompt = cases[i].prompt;
        request.prompt_count = cases[i].prompt_count;
        cr_assert_eq(generator_submit(setup.generator, &request, &err), cases[i].status);
        cr_assert_not_null(strstr(err.message, cases[i].words), "%s", err.message);
    }
    cr_assert_eq(trace.finished, 0);
    cr_assert(generator_is_idle(setup.generator));
    setup_close(&setup);
}

Test(generator, sampling_does_not_depend_on_the_batch)
{
    struct setup setup;
    struct heard alone = {0}, together[3] = {0};
    setup_open(&setup, 4, 64, 16);
    struct error err;
    struct sequence_request request = request_of(&setup, &alone, STEPS);
    request.sampling = (struct sampling_params){.temperature = 1.3, .top_p = 0.9, .seed = 7};
    check(generator_submit(setup.generator, &request, &err), &err);
    run(&setup);
    for (int i = 0; i < 3; i++) {
        request.context = &together[i];
        request.sampling.seed = 7 + (uint64_t)i % 2;
        check(generator_submit(setup.generator, &request, &err), &err);
    }
    run(&setup);
    cr_assert_arr_eq(alone.ids, together[0].ids, sizeof alone.ids);
    cr_assert_arr_eq(alone.ids, together[2].ids, sizeof alone.ids);
    cr_assert(memcmp(alone.ids, together[1].ids, sizeof alone.ids) != 0, "another seed");
    setup_close(&setup);
}

/* Alone, the largest and a draw among all come from the devices alone, log-probabilities and a
 * small nucleus from candidates, and what candidates do not decide from all logits; together, the
 * host has all logits for top_k's sake. It keeps all tokens but the last here, so it draws as no
 * limit does. */
Test(generator, what_devices_choose_does_not_depend_on_who_sees_the_logits)
{
    static const struct {
        double temperature, top_p;
        int64_t top_k;
        int32_t logprobs;
    } rows[] = {{1.3, 1, 0, -1},   {1.3, 1, 0, 2},    {0, 1, 0, -1},    {0, 1, 0, 2},
                {1.3, 1, 127, -1}, {1.3, 0.5, 0, -1}, {20, 0.99, 0, 1}, {20, 0.99, 0, -1}};
    enum { ROWS = sizeof rows / sizeof *rows };
    struct setup setup;
    struct heard alone[ROWS] = {0}, together[ROWS] = {0};
    struct error err;
    setup_open(&setup, 8, 64, 16);
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < ROWS; i++) {
            struct heard *heard = pass == 0 ? &alone[i] : &together[i];
            struct sequence_request request = request_of(&setup, heard, STEPS);
            request.sampling = (struct sampling_params){.temperature = rows[i].temperature,
                                                        .top_k = rows[i].top_k,
                                                        .top_p = rows[i].top_p,
                                                        .seed = 7};
            request.logprobs = rows[i].logprobs;
            check(generator_submit(setup.generator, &request, &err), &err);
            if (pass == 0)
                run(&setup);
        }
        run(&setup);
    }
    for (int i = 0; i < ROWS; i++)
        cr_expect_arr_eq(together[i].ids, alone[i].ids, sizeof alone[i].ids, "row %d", i);
    cr_expect_arr_eq(alone[0].ids, alone[1].ids, sizeof alone[0].ids);
    cr_expect_arr_eq(alone[2].ids, alone[3].ids, sizeof alone[2].ids);
    cr_expect_arr_eq(alone[0].ids, alone[4].ids, sizeof alone[0].ids);
    cr_expect_arr_eq(alone[6].ids, alone[7].ids, sizeof alone[6].ids);
    cr_expect(memcmp(alone[0].ids, alone[2].ids, sizeof alone[0].ids) != 0, "drawn as the largest");
    setup_close(&setup);
}

/* The score of a prompt, all tokens but the first. */
static double score(struct setup *setup, const int32_t *prompt, int64_t count)
{
    struct heard trace = {0};
    struct error err;
    struct sequence_request request = request_of(setup, &trace, 0);
    request.prompt = prompt;
    request.prompt_count = count;
    request.prompt_logprobs = true;
    check(generator_submit(setup->generator, &request, &err), &err);
    run(setup);
    return trace.prompt_nll;
}

/* Which come from candidates of the devices, beside scores, which come from all logits; of the
 * largest, of a draw among all, of one among few. */
Test(generator, log_probabilities_are_the_scores_of_the_same_text)
{
    static const struct sampling_params ways[] = {
        {.temperature = 0, .top_p = 1},
        {.temperature = 1.3, .top_p = 1, .seed = 5},
        {.temperature = 0.8, .top_p = 0.9, .top_k = 40, .seed = 6},
    };
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        struct setup setup;
        struct heard heard = {0};
        struct error err;
        int32_t text[256 + STEPS];
        double sum = 0;
        setup_open(&setup, 4, 64, 16);
        struct sequence_request request = request_of(&setup, &heard, STEPS);
        request.sampling = ways[w];
        request.logprobs = 2;
        check(generator_submit(setup.generator, &request, &err), &err);
        run(&setup);
        cr_assert_eq(heard.count, STEPS);
        memcpy(text, setup.prompt, (size_t)setup.prompt_count * sizeof *text);
        memcpy(text + setup.prompt_count, heard.ids, sizeof heard.ids);
        for (int i = 0; i < STEPS; i++)
            sum -= (double)heard.logprobs[i];
        double expected = score(&setup, text, setup.prompt_count + STEPS) -
                          score(&setup, text, setup.prompt_count);
        cr_expect(fabs(sum - expected) < 1e-4 * expected, "%zu: %g, not %g", w, sum, expected);
        cr_expect_eq(heard.unlike_top > 0, ways[w].temperature > 0, "%zu", w);
        setup_close(&setup);
    }
}
