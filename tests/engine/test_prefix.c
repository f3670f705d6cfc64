/* Prompts that begin alike: what is computed once, who waits for whom, and that nobody's result
 * shows it. On random prompts for the small checkpoint of test_generator.c. */
#include <criterion/criterion.h>

#include "base/memory.h"
#include "prefix_rig.h"

/* ---- Results --------------------------------------------------------------------------------- */

/* Long and short, alike for some pages, for all, up to a page's end, and not at all. */
static int64_t mixed_prompts(struct prompt *prompts)
{
    static const int64_t shapes[][4] = {
        {1, 200, 1, 30}, {1, 200, 2, 100}, {1, 192, 0, 0}, {1, 192, 0, 0}, {1, 193, 0, 0},
        {2, 70, 3, 5},   {1, 128, 4, 1},   {1, 128, 0, 0}, {2, 64, 5, 64}, {1, 200, 1, 30},
        {3, 20, 6, 0},   {1, 320, 7, 40},  {2, 300, 8, 9}, {1, 64, 9, 3},  {2, 70, 3, 5},
    };
    int64_t count = sizeof shapes / sizeof shapes[0];
    for (int64_t i = 0; i < count; i++)
        prompts[i] =
            prompt_of((uint64_t)shapes[i][0], shapes[i][1], (uint64_t)shapes[i][2], shapes[i][3]);
    prompts[4].is_scored = true;
    prompts[12].is_scored = true;
    prompts[12].token_max = 0;
    return count;
}

static int64_t total_tokens(const struct prompt *prompts, int64_t count)
{
    int64_t total = 0;
    for (int64_t i = 0; i < count; i++)
        total += prompts[i].count;
    return total;
}

/* Returns the prompt tokens that were not computed. */
static int64_t run_all(const struct limits *limits, const struct prompt *prompts, int64_t count,
                       struct heard *traces)
{
    struct rig rig;
    rig_open(&rig, limits);
    for (int64_t i = 0; i < count; i++)
        submit(&rig, &prompts[i], &traces[i]);
    run(&rig);
    struct generator_counters end = counters(&rig);
    cr_assert_eq(end.prefill_tokens + end.shared_tokens, total_tokens(prompts, count));
    for (int64_t i = 0; i < count; i++) {
        cr_assert_eq(traces[i].finished, 1);
        cr_assert_eq(traces[i].reason, FINISH_LENGTH);
        cr_assert_eq(traces[i].count, prompts[i].token_max);
        cr_assert_eq(traces[i].score_count, prompts[i].is_scored ? prompts[i].count - 1 : 0);
    }
    rig_close(&rig);
    return end.shared_tokens;
}

Test(prefix, results_are_the_same_to_the_bit, .timeout = 300)
{
    static const char *const plans[] = {NULL, "tp2dp2|ep4", "dp4|ep4", "tp2|ep2"};
    static struct prompt prompts[PROMPTS_MAX];
    static struct heard whole[PROMPTS_MAX], shared[PROMPTS_MAX];
    int64_t count = mixed_prompts(prompts);
    for (int p = 0; p < 4; p++) {
        for (int type = 0; type < 2; type++) {
            struct limits limits = {.plan = plans[p],
                                    .dtype = type == 0 ? DTYPE_F32 : DTYPE_BF16,
                                    .sequences = 16,
                                    .batch_tokens = 300,
                                    .pages = 60};
            cr_assert_eq(run_all(&limits, prompts, count, whole), 0);
            limits.shares = true;
            for (int tight = 0; tight < 3; tight++) {
                limits.pages = tight == 1 ? 8 : 60; /* few: evictions */
                limits.batch_tokens = tight == 2 ? 50 : 300;
                limits.sequences = tight == 2 ? 5 : 16;
                cr_assert_gt(run_all(&limits, prompts, count, shared), 0);
                for (int64_t i = 0; i < count; i++)
                    cr_assert_arr_eq(&whole[i], &shared[i], sizeof whole[i], "plan %s, prompt %lld",
                                     plans[p], (long long)i);
            }
        }
    }
}

/* ---- What is saved --------------------------------------------------------------------------- */

/* One after another, then both at once: it is the same. */
Test(prefix, saves_exactly_the_full_pages_before_the_last_token)
{
    static const struct {
        int64_t head, first_tail, second_tail, saved;
    } cases[] = {
        {0, 100, 100, 0},   {63, 1, 1, 0},    {64, 1, 1, 64},     {64, 0, 0, 0},
        {65, 0, 0, 64},     {64, 0, 30, 64},  {64, 30, 0, 0},     {128, 0, 0, 64},
        {129, 0, 0, 128},   {130, 9, 9, 128}, {191, 0, 200, 128}, {192, 0, 200, 192},
        {400, 80, 10, 384}, {448, 0, 0, 384},
    };
    static struct heard traces[2];
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct prompt first = prompt_of(1, cases[c].head, 1, cases[c].first_tail);
        struct prompt second = prompt_of(1, cases[c].head, 2, cases[c].second_tail);
        for (int at_once = 0; at_once < 2; at_once++) {
            struct rig rig;
            rig_open(&rig, &(struct limits){
                               .sequences = 2, .batch_tokens = 100, .pages = 16, .shares = true});
            submit(&rig, &first, &traces[0]);
            if (!at_once)
                run(&rig);
            submit(&rig, &second, &traces[1]);
            run(&rig);
            cr_assert_eq(counters(&rig).shared_tokens, cases[c].saved, "case %zu: %lld", c,
                         (long long)counters(&rig).shared_tokens);
            rig_close(&rig);
        }
    }
}

Test(prefix, a_document_with_64_questions_is_computed_once)
{
    static struct prompt prompts[64];
    static struct heard traces[64];
    struct rig rig;
    int64_t peak = 0;
    rig_open(&rig, &(struct limits){
                       .sequences = 64, .batch_tokens = 512, .pages = 6 + 64, .shares = true});
    for (int i = 0; i < 64; i++) {
        prompts[i] = prompt_of(1, 384, (uint64_t)i, 10);
        submit(&rig, &prompts[i], &traces[i]);
    }
    while (!generator_is_idle(rig.generator)) {
        step(&rig);
        peak = counters(&rig).kv_pages_used > peak ? counters(&rig).kv_pages_used : peak;
    }
    cr_assert_eq(counters(&rig).prefill_tokens, 384 + 64 * 10);
    cr_assert_eq(counters(&rig).shared_tokens, 63 * 384);
    cr_assert_eq(peak, 6 + 64, "each page of the document once, one more for each");
    cr_assert_eq(counters(&rig).kv_pages_used, 0);
    cr_assert_eq(counters(&rig).kv_pages_cached, 6);
    rig_close(&rig);
}

Test(prefix, scored_prompts_neither_take_nor_leave)
{
    struct prompt plain = prompt_of(1, 200, 0, 0), scored = plain;
    struct heard trace;
    struct rig rig;
    scored.is_scored = true;
    rig_open(&rig,
             &(struct limits){.sequences = 2, .batch_tokens = 64, .pages = 16, .shares = true});
    run_one(&rig, &scored, &trace);
    cr_assert_eq(counters(&rig).kv_pages_cached, 0);
    run_one(&rig, &plain, &trace);
    cr_assert_eq(counters(&rig).kv_pages_cached, 3);
    run_one(&rig, &scored, &trace);
    cr_assert_eq(trace.score_count, 199);
    cr_assert_eq(counters(&rig).shared_tokens, 0);
    run_one(&rig, &plain, &trace);
    cr_assert_eq(counters(&rig).shared_tokens, 192);
    rig_close(&rig);
}

/* Two documents in turn in a pool that holds one and a half of them: what is evicted is computed
 * anew, and never is more held than there is. */
Test(prefix, evicts_under_pressure)
{
    static struct heard first[2], again[2];
    struct prompt documents[2] = {prompt_of(1, 320, 1, 20), prompt_of(2, 320, 2, 20)};
    struct rig rig;
    rig_open(&rig,
             &(struct limits){.sequences = 2, .batch_tokens = 100, .pages = 8, .shares = true});
    for (int round = 0; round < 6; round++) {
        run_one(&rig, &documents[round % 2], round < 2 ? &first[round] : &again[round % 2]);
        struct generator_counters now = counters(&rig);
        cr_assert(now.kv_pages_cached >= 5 && now.kv_pages_cached <= now.kv_pages_total);
        if (round > 1)
            cr_assert_arr_eq(&first[round % 2], &again[round % 2], sizeof first[0]);
    }
    /* Of each the pages at its front live longest: with 6 needed of 8, 2 of the other's stay. */
    cr_assert_eq(counters(&rig).shared_tokens, 4 * 2 * KV_PAGE_TOKENS);
    rig_close(&rig);
}

/* ---- Who waits ------------------------------------------------------------------------------- */

Test(prefix, a_sharer_waits_until_the_page_is_there)
{
    struct prompt first = prompt_of(1, 150, 1, 0), second = prompt_of(1, 140, 2, 10);
    struct heard traces[2];
    struct rig rig;
    rig_open(&rig,
             &(struct limits){.sequences = 2, .batch_tokens = 40, .pages = 16, .shares = true});
    submit(&rig, &first, &traces[0]);
    submit(&rig, &second, &traces[1]);
    /* 40, 40, 40, 30 of the first; then of the second what is behind token 128. */
    static const int64_t prefilled[] = {40, 80, 120, 150, 172};
    for (int i = 0; i < 5; i++) {
        step(&rig);
        cr_assert_eq(counters(&rig).prefill_tokens, prefilled[i], "step %d: %lld", i,
                     (long long)counters(&rig).prefill_tokens);
        cr_assert_eq(counters(&rig).decode_tokens, 0);
    }
    run(&rig);
    cr_assert_eq(counters(&rig).shared_tokens, 128);
    rig_close(&rig);
}

Test(prefix, cancelled_in_the_middle_leaves_what_was_computed)
{
    static struct heard before[3], after[3], alone;
    struct prompt prompt = prompt_of(1, 300, 1, 0);
    struct rig rig;
    rig_open(&rig,
             &(struct limits){.sequences = 3, .batch_tokens = 50, .pages = 20, .shares = true});
    for (int i = 0; i < 3; i++)
        submit(&rig, &prompt, &before[i]);
    for (int i = 0; i < 4; i++)
        step(&rig); /* 200 tokens of the first: page 3 is begun */
    generator_cancel_all(rig.generator);
    cr_assert(generator_is_idle(rig.generator));
    cr_assert_eq(counters(&rig).kv_pages_used, 0);
    cr_assert_eq(counters(&rig).kv_pages_cached, 3);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(before[i].reason, FINISH_CANCELLED);
        submit(&rig, &prompt, &after[i]);
    }
    run(&rig);
    cr_assert_eq(counters(&rig).shared_tokens, 3 * 64 + 2 * 256);
    cr_assert_eq(run_all(&(struct limits){.sequences = 1, .batch_tokens = 64, .pages = 8}, &prompt,
                         1, &alone),
                 0);
    for (int i = 0; i < 3; i++)
        cr_assert_arr_eq(&after[i], &alone, sizeof alone);
    rig_close(&rig);
}

Test(prefix, newcomers_join_those_that_decode)
{
    static struct heard traces[3];
    struct prompt prompt = prompt_of(1, 200, 1, 0);
    struct rig rig;
    rig_open(&rig,
             &(struct limits){.sequences = 3, .batch_tokens = 256, .pages = 20, .shares = true});
    for (int i = 0; i < 3; i++) {
        submit(&rig, &prompt, &traces[i]);
        step(&rig); /* the prompt, or what is left of it */
        cr_assert_eq(counters(&rig).running, i + 1);
        cr_assert_eq(traces[i].count, 1, "newcomers go first");
        step(&rig); /* a token of each */
        cr_assert_eq(traces[i].count, 2);
    }
    run(&rig);
    cr_assert_eq(counters(&rig).shared_tokens, 2 * 192);
    cr_assert_arr_eq(traces[0].ids, traces[2].ids, sizeof traces[0].ids);
    rig_close(&rig);
}

/* ---- Failures -------------------------------------------------------------------------------- */

Test(prefix, every_failed_allocation_leaves_the_generator_as_it_was)
{
    static struct heard traces[2];
    struct prompt prompt = prompt_of(1, 100, 1, 0);
    struct rig rig;
    rig_open(&rig,
             &(struct limits){.sequences = 2, .batch_tokens = 50, .pages = 8, .shares = true});
    uint64_t live = memory_counters_get().live_count;
    for (uint64_t n = 1;; n++) {
        struct error err;
        memory_fail_at(n, 0);
        enum status status = try_submit(&rig, &prompt, &traces[0], &err);
        memory_fail_at(0, 0);
        if (status == STATUS_OK)
            break;
        cr_assert_eq(status, STATUS_NO_MEMORY);
        cr_assert_eq(memory_counters_get().live_count, live);
        cr_assert(generator_is_idle(rig.generator));
    }
    run(&rig);
    cr_assert_eq(memory_counters_get().live_count, live);
    struct generator_params params = rig.generator->params;
    for (uint64_t n = 1;; n++) {
        struct generator *another;
        struct error err;
        memory_fail_at(n, 0);
        enum status status = generator_create(&another, rig.exec, &params, &err);
        memory_fail_at(0, 0);
        if (status == STATUS_OK) {
            generator_destroy(another);
            break;
        }
        cr_assert_eq(status, STATUS_NO_MEMORY);
        cr_assert_eq(memory_counters_get().live_count, live, "allocation %llu",
                     (unsigned long long)n);
    }
    run_one(&rig, &prompt, &traces[1]);
    cr_assert_eq(traces[0].finished, 1);
    cr_assert_arr_eq(&traces[0], &traces[1], sizeof traces[0]);
    rig_close(&rig);
}
