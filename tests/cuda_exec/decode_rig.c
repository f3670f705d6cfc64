#include "decode_rig.h"

#include <criterion/criterion.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"

static void nothing_done(void *context, int rank, int64_t layer)
{
    (void)context;
    (void)rank;
    (void)layer;
}

void decode_without_graphs(struct decode *decode)
{
    exec_set_hooks(decode->runner.exec, &(struct exec_hooks){.experts_done = nothing_done});
}

/* Sequences are dealt to the groups in turn. */
static int64_t segments_make(struct decode *decode, struct exec_segment *segments,
                             int64_t sequence_count, bool is_prompt)
{
    int64_t count = 0;
    int groups = decode->runner.layout.attention.dp;
    for (int g = 0; g < groups; g++) {
        for (int64_t s = g; s < sequence_count; s += groups) {
            struct decode_sequence *sequence = &decode->sequences[s];
            int64_t tokens = is_prompt ? decode->params.prompts[s] : 1;
            segments[count++] = (struct exec_segment){sequence->tokens + sequence->fed, tokens,
                                                      sequence->fed, sequence->pages, g};
            sequence->fed += tokens;
        }
    }
    return count;
}

static void runner_open(struct decode *decode)
{
    const struct decode_params *params = &decode->params;
    int gpus[COMM_RANKS_MAX];
    for (int r = 0; r < params->rank_count; r++)
        gpus[r] = r % params->gpu_count;
    model_runner_open(&decode->runner, &(struct runner_params){
                                           .dir = scenario_checkpoint(params->model, params->dtype),
                                           .dtype = params->dtype,
                                           .rank_count = params->rank_count,
                                           .plan = params->plan,
                                           .token_max = 4 * DECODE_TOKENS,
                                           .segment_max = DECODE_SEQUENCES,
                                           .page_count = 24,
                                           .thread_count = params->rank_count,
                                           .patience_seconds = 100,
                                           .gpus = gpus,
                                       });
}

void decode_open(struct decode *decode, const struct decode_params *params)
{
    struct error err;
    struct exec_segment segments[DECODE_SEQUENCES];
    *decode = (struct decode){.params = *params};
    runner_open(decode);
    decode->vocab = decode->runner.config->vocab_count;
    decode->found =
        memory_alloc((size_t)(DECODE_STEPS * DECODE_SEQUENCES * decode->vocab), sizeof(float));
    cr_assert_not_null(decode->found);
    for (int s = 0; s < DECODE_SEQUENCES; s++) {
        struct decode_sequence *sequence = &decode->sequences[s];
        for (int64_t t = 0; t < DECODE_TOKENS; t++)
            sequence->tokens[t] = (int32_t)((t * 37 + s * 101 + t / 7) % decode->vocab);
        model_runner_take(&decode->runner, s % decode->runner.layout.attention.dp, sequence->pages,
                          (params->prompts[s] + DECODE_STEPS) / KV_PAGE_TOKENS + 1);
    }
    int64_t count = segments_make(decode, segments, DECODE_SEQUENCES, true);
    cr_assert_eq(
        exec_forward(decode->runner.exec, &decode->runner.cache, FORM_OWNED, segments, count, &err),
        STATUS_OK, "%s", err.message);
}

void decode_close(struct decode *decode)
{
    model_runner_close(&decode->runner);
    memory_free(decode->found);
}

/* The token, and the first of the candidates with their sums. */
static void found_keep(float *to, const struct exec_head *head, int64_t row)
{
    memcpy(to, &head->chosen[row], sizeof *head->chosen);
    memcpy(to + sizeof *head->chosen / sizeof *to, &head->candidates[row], 64);
}

enum status decode_step(struct decode *decode, int step, int sequence_count, struct error *err)
{
    static const int32_t rows[DECODE_SEQUENCES] = {0, 1, 2};
    /* Of each step others: a step that is run again as it was recorded must see its own. */
    const struct draw draws[DECODE_SEQUENCES] = {
        {1, random_key(1, (uint64_t)step)}, {0, 0}, {0.5, random_key(2, (uint64_t)step)}};
    struct exec *exec = decode->runner.exec;
    struct exec_segment segments[DECODE_SEQUENCES];
    struct exec_head head = {
        .rows = rows,
        .row_count = sequence_count,
        .wants_chosen = decode->params.chooses,
        .wants_candidates = decode->params.chooses,
        .skips_logits = decode->params.chooses,
        .draws = draws,
    };
    int64_t count = segments_make(decode, segments, sequence_count, false);
    TRY(exec_step(exec, &decode->runner.cache, exec_decode_form(exec), segments, count, &head,
                  err));
    for (int64_t i = 0; i < sequence_count; i++) {
        float *to = decode->found + (step * DECODE_SEQUENCES + i) * decode->vocab;
        if (decode->params.chooses)
            found_keep(to, &head, i);
        else
            memcpy(to, head.logits + i * head.stride, (size_t)decode->vocab * sizeof *to);
    }
    return STATUS_OK;
}

bool decode_is_same(const struct decode *decode, const struct decode *other, int step_count)
{
    size_t values = (size_t)(step_count * DECODE_SEQUENCES * decode->vocab);
    return memcmp(decode->found, other->found, values * sizeof *decode->found) == 0;
}
