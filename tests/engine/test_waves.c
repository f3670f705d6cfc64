/* Waves under a plan with two layouts: who is prefilled together decodes together, weights move
 * only in between, and what comes out is what one layout gives. */
#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "engine/engine.h"
#include "engine_tools.h"
#include "exec/exec.h"
#include "layout/expert_form.h"
#include "phasor.h"

#define MODEL         MODELS_DIR "/kjv-moe"
#define LAYERS        6
#define VOCAB_MAX     65536
#define SEQUENCES_MAX 12
#define STEPS         16

/* What the generator asked for, pass by pass. */
struct passes {
    struct engine *engine;
    bool are_apart;          /* no pass has a transition beside it */
    struct exec_hooks hooks; /* as the engine sets them */
    int64_t early_count;     /* layers that moved while a pass ran */
    int64_t prefills, decodes;
    int64_t turns;  /* from prefill to decode, with a change of layout */
    int64_t stays;  /* without */
    bool has_moved; /* the last of them */
    int64_t backs;  /* ways back that had begun while decode ran */
    enum phase last;
};

struct heard {
    int32_t ids[STEPS];
    float logprobs[STEPS];
    int64_t count;
    double prompt_nll;
    enum finish_reason reason;
    bool is_done;
};

static void check(enum status status, const struct error *err)
{
    cr_assert_eq(status, STATUS_OK, "%s", err->message);
}

/* A rank comes to the end of a pass only when the first layer has moved. */
static void done_slowly(void *context, int rank, int64_t layer)
{
    struct passes *passes = context;
    struct error err;
    if (layer == LAYERS - 1)
        check(transition_await(engine_transition(passes->engine), rank, 0, &err), &err);
    passes->hooks.experts_done(passes->hooks.context, rank, layer);
}

static enum status enter(void *context, const struct generator_pass *pass, struct exec_hooks *hooks,
                         struct error *err)
{
    struct passes *passes = context;
    enum phase before = passes->last;
    bool is_turn = pass->phase == PHASE_DECODE && before == PHASE_PREFILL;
    passes->turns += is_turn && !pass->stays;
    passes->stays += is_turn && pass->stays;
    passes->has_moved = is_turn ? !pass->stays : passes->has_moved;
    ++*(pass->phase == PHASE_DECODE ? &passes->decodes : &passes->prefills);
    passes->last = pass->phase;
    struct generator_pass seen = *pass;
    seen.is_last &= !passes->are_apart;
    seen.is_tail &= !passes->are_apart;
    const struct transition *transition = engine_transition(passes->engine);
    passes->backs += before == PHASE_DECODE && pass->phase == PHASE_PREFILL && transition != NULL &&
                     transition_is_under_way(transition);
    TRY(engine_enter(passes->engine, &seen, hooks, err));
    passes->hooks = *hooks;
    for (int64_t layer = 0; pass->stays && layer < LAYERS; layer++)
        cr_assert_eq(transition_layer(transition, layer).phase, PHASE_PREFILL);
    if (hooks->experts_done != NULL) {
        hooks->context = passes;
        hooks->experts_done = done_slowly;
    }
    return STATUS_OK;
}

static bool was_whole(void *context)
{
    const struct passes *passes = context;
    return engine_was_whole(passes->engine);
}

static bool on_token(void *context, const struct generated_token *token)
{
    struct heard *trace = context;
    trace->logprobs[trace->count] = token->logprob;
    trace->ids[trace->count++] = token->id;
    return true;
}

static void on_prompt_token(void *context, int64_t position, const struct generated_token *token)
{
    struct heard *trace = context;
    (void)position;
    trace->prompt_nll -= token->logprob;
}

static void on_end(void *context, const struct sequence_end *end)
{
    struct heard *trace = context;
    trace->reason = end->reason;
    trace->is_done = true;
}

struct wave_case {
    const char *plan;
    enum way way;
    bool in_waves;
    int64_t running_max;
    int64_t count; /* of sequences, of i + 1 prompt tokens each */
    int64_t token_counts[SEQUENCES_MAX];
    int64_t turns;      /* -1: more than in waves */
    bool stops_at_once; /* whatever the first token is */
    unsigned stays;     /* a bit for each sequence */
};

static void run(struct heard traces[SEQUENCES_MAX], struct passes *passes,
                const struct wave_case *of, bool are_apart)
{
    static int32_t prompt[SEQUENCES_MAX] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8};
    static int32_t all_ids[VOCAB_MAX];
    for (int32_t i = 0; i < VOCAB_MAX; i++)
        all_ids[i] = i;
    struct exec *exec;
    struct generator *generator;
    struct error err;
    struct engine_params model = {
        .model = MODEL, .dtype = DTYPE_F32, .plan = of->plan, .transition = of->way};
    *passes = (struct passes){.last = PHASE_DECODE, .are_apart = are_apart};
    memset(traces, 0, SEQUENCES_MAX * sizeof *traces);
    check(engine_open(&passes->engine, &model, &err), &err);
    check(engine_exec_create(&exec, passes->engine, 64, of->running_max, &err), &err);
    struct generator_params params = {.sequence_count_max = of->running_max,
                                      .batch_token_max = 64,
                                      .context_max = 64,
                                      .kv_bytes_max = 1 << 24,
                                      .in_waves = of->in_waves,
                                      .enter = enter,
                                      .was_whole = was_whole,
                                      .enter_context = passes};
    check(generator_create(&generator, exec, &params, &err), &err);
    for (int64_t i = 0; i < of->count; i++) {
        struct sequence_request request = {
            .prompt = prompt,
            .prompt_count = i + 1,
            .token_count_max = of->token_counts[i],
            .ignore_eos = true,
            .stop_ids = all_ids,
            .stop_count = of->stops_at_once ? VOCAB_MAX : 0,
            .logprobs = 0,
            .prompt_logprobs = i % 2 == 0,
            .stays = (of->stays >> i & 1) != 0,
            .callbacks = {.token = on_token, .prompt_token = on_prompt_token, .finished = on_end},
            .context = &traces[i]};
        check(generator_submit(generator, &request, &err), &err);
    }
    while (!generator_is_idle(generator))
        check(generator_step(generator, &err), &err);
    for (int64_t i = 0; i < of->count; i++) {
        cr_assert_eq(traces[i].reason, of->stops_at_once ? FINISH_STOP : FINISH_LENGTH);
        cr_assert_eq(traces[i].count, of->stops_at_once ? 0 : of->token_counts[i]);
        cr_assert(traces[i].is_done);
    }
    const struct transition *transition = engine_transition(passes->engine);
    if (transition != NULL) {
        /* There, and back for each wave but the last; nothing behind it is needed. */
        struct transition_counters counters = transition_counters_get(transition);
        int64_t there = of->stops_at_once ? passes->prefills : passes->turns;
        bool is_left = passes->has_moved || of->stops_at_once;
        cr_assert_eq(counters.transition_count, there > 0 ? 2 * there - is_left : 0);
        cr_assert_eq(transition_way(transition), of->way);
        passes->early_count = counters.early_count;
    }
    generator_destroy(generator);
    exec_destroy(exec);
    engine_close(passes->engine);
}

Test(waves, prefill_together_and_decode_together)
{
    static const struct wave_case cases[] = {
        /* Four at a time: three waves, the last of two. */
        {"dp2|ep2>tp2", WAY_RESHARD, true, 4, 10, {5, 5, 5, 5, 5, 5, 5, 5, 5, 5}, 3, false, 0},
        /* The shortest waits for the longest of its wave. */
        {"dp2|ep2>tp2", WAY_RELOAD, true, 3, 6, {2, 9, 4, 3, 3, 16}, 2, false, 0},
        {"tp2|tp2>ep2", WAY_RESHARD, true, 2, 4, {8, 2, 2, 8}, 2, false, 0},
        /* Newcomers join in mid-decode, because nothing moves. */
        {"dp2|ep2>tp2", WAY_KEEP, false, 3, 6, {2, 9, 4, 3, 3, 16}, -1, false, 0},
        /* What ends with its prompt is no reason to move; others take its place in the wave. */
        {"dp2|ep2>tp2", WAY_RESHARD, true, 4, 8, {1, 1, 1, 1, 1, 1, 1, 1}, 0, false, 0},
        {"dp2|ep2>tp2", WAY_RESHARD, true, 4, 8, {1, 1, 5, 1, 1, 5, 1, 1}, 1, false, 0},
        {"tp1|tp1", WAY_KEEP, false, 4, 10, {5, 5, 5, 5, 5, 5, 5, 5, 5, 5}, -1, false, 0},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct heard found[SEQUENCES_MAX], expected[SEQUENCES_MAX];
        struct passes passes, ignored;
        struct wave_case alone = cases[c];
        alone.plan = "tp1|tp1";
        alone.in_waves = false;
        run(expected, &ignored, &alone, true);
        run(found, &passes, &cases[c], false);
        printf("%s, case %zu: %lld prefills, %lld decodes, %lld turns\n", cases[c].plan, c,
               (long long)passes.prefills, (long long)passes.decodes, (long long)passes.turns);
        if (cases[c].turns >= 0)
            cr_assert_eq(passes.turns, cases[c].turns, "case %zu: %lld turns", c,
                         (long long)passes.turns);
        else
            cr_assert_gt(passes.turns, 2, "case %zu", c);
        for (int64_t i = 0; i < cases[c].count; i++)
            cr_assert_arr_eq(found[i].ids, expected[i].ids, sizeof found[i].ids, "case %zu, %lld",
                             c, (long long)i);
    }
}

/* Tokens and likelihoods are to the bit those of transitions between passes; and with each turn the
 * first layer, at least, moves while prefill computes, and the way back begins while decode does.
 */
Test(waves, layers_move_while_prefill_computes)
{
    static const struct wave_case cases[] = {
        {"dp2|ep2>tp2", WAY_RESHARD, true, 4, 10, {5, 5, 5, 5, 5, 5, 5, 5, 5, 5}, 3, false, 0},
        {"dp2|ep2>tp2", WAY_RELOAD, true, 3, 6, {2, 9, 4, 3, 3, 16}, 2, false, 0},
        {"tp2|tp2>ep2", WAY_RESHARD, true, 2, 4, {8, 2, 2, 8}, 2, false, 0},
        {"dp2|ep2>tp2", WAY_UPLOAD, true, 2, 6, {8, 2, 2, 8, 1, 7}, 3, false, 0},
        {"dp4|ep4>tp2ep2", WAY_RESHARD, true, 4, 8, {1, 1, 5, 1, 1, 5, 1, 1}, 1, false, 0},
        {"tp2|tp2>tp2:int4", WAY_UPLOAD, true, 2, 6, {8, 2, 2, 8, 1, 7}, 3, false, 0},
    };
    setenv("PHASOR_CACHE", tools_folder(), 1);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct heard beside[SEQUENCES_MAX], apart[SEQUENCES_MAX];
        struct passes passes;
        run(apart, &passes, &cases[c], true);
        cr_assert_eq(passes.early_count, 0, "case %zu", c);
        cr_assert_eq(passes.backs, 0);
        run(beside, &passes, &cases[c], false);
        cr_assert_eq(passes.turns, cases[c].turns, "case %zu: %lld turns", c,
                     (long long)passes.turns);
        cr_assert_geq(passes.early_count, passes.turns, "case %zu: %lld", c,
                      (long long)passes.early_count);
        cr_assert_eq(passes.backs, passes.turns - 1, "case %zu: %lld ways back beside decode", c,
                     (long long)passes.backs);
        cr_assert_arr_eq(beside, apart, sizeof beside, "case %zu", c);
    }
}

/* Layers that moved for a phase that does not come go back, and the next wave enters. */
Test(waves, a_wave_may_end_with_its_first_tokens)
{
    static const struct wave_case all_stop = {"dp2|ep2>tp2",      WAY_RESHARD, true, 2, 6,
                                              {5, 5, 5, 5, 5, 5}, 0,           true, 0};
    struct heard traces[SEQUENCES_MAX];
    struct passes passes;
    run(traces, &passes, &all_stop, false);
    cr_assert_eq(passes.prefills, 3);
    cr_assert_eq(passes.decodes, 0);
    cr_assert_geq(passes.early_count, 3);
}

/* Waves are of sequences that stay, or of others; those that stay get to the bit what they get
 * where nothing ever moves, and the others what they get where all do. */
Test(waves, some_decode_in_the_layout_of_prefill)
{
    static const struct wave_case cases[] = {
        {"tp2|tp2>tp2:int4", WAY_UPLOAD, true, 2, 6, {8, 2, 2, 8, 3, 7}, 2, false, 0x0C},
        {"tp2|tp2>tp2:int4", WAY_UPLOAD, true, 2, 6, {8, 2, 2, 8, 3, 7}, 2, false, 0x03},
        {"tp2|tp2>tp2:int4", WAY_UPLOAD, true, 2, 6, {8, 2, 2, 8, 3, 7}, 2, false, 0x30},
        /* Each alone, though there is room for two. */
        {"tp2|tp2>ep2", WAY_RESHARD, true, 2, 4, {8, 9, 2, 8}, 2, false, 0x0A},
        {"dp2|ep2>tp2", WAY_RELOAD, true, 3, 7, {2, 9, 4, 3, 3, 16, 4}, 2, false, 0x18},
        {"dp2|ep2>tp2", WAY_RESHARD, true, 3, 7, {2, 9, 4, 3, 3, 16, 4}, 1, false, 0x7C},
        {"dp2|ep2>tp2", WAY_MIXED, true, 3, 7, {2, 9, 4, 3, 3, 16, 4}, 2, false, 0x18},
        /* Some end with their prompts, before and behind a change of kind. */
        {"dp2|ep2>tp2", WAY_RESHARD, true, 4, 8, {1, 1, 5, 1, 1, 5, 1, 1}, 1, false, 0xF0},
        {"dp2|ep2>tp2", WAY_RESHARD, true, 4, 8, {1, 1, 5, 1, 1, 5, 1, 1}, 1, false, 0x0F},
    };
    setenv("PHASOR_CACHE", tools_folder(), 1);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct heard found[SEQUENCES_MAX], moved[SEQUENCES_MAX], stayed[SEQUENCES_MAX];
        struct passes passes, ignored;
        struct wave_case all_move = cases[c], all_stay = cases[c];
        all_move.stays = 0;
        all_stay.stays = 0xFFF;
        run(moved, &ignored, &all_move, false);
        run(stayed, &ignored, &all_stay, false);
        cr_assert_eq(ignored.turns, 0);
        run(found, &passes, &cases[c], false);
        cr_assert_eq(passes.turns, cases[c].turns, "case %zu: %lld turns", c,
                     (long long)passes.turns);
        cr_assert_gt(passes.stays, 0, "case %zu", c);
        for (int64_t i = 0; i < cases[c].count; i++) {
            bool stays = (cases[c].stays >> i & 1) != 0;
            cr_assert_arr_eq(&found[i], stays ? &stayed[i] : &moved[i], sizeof found[i],
                             "case %zu, %lld", c, (long long)i);
        }
    }
}
