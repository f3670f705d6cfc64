/* From the logits of a pass to tokens, scores and ends. */
#include <math.h>

#include "base/system.h"
#include "engine/generator_state.h"

void sequence_finish(struct sequence *sequence, enum finish_reason reason, int32_t stop_id,
                     const struct error *error)
{
    double now = system_seconds();
    double begun = sequence->started > 0 ? sequence->started : now;
    struct sequence_end end = {
        .reason = reason,
        .stop_id = stop_id,
        .token_count = sequence->token_count,
        .queued_seconds = begun - sequence->submitted,
        .first_token_seconds =
            sequence->first_token > 0 ? sequence->first_token - sequence->submitted : 0,
        .total_seconds = now - sequence->submitted,
        .error = error,
    };
    sequence->done = true;
    sequence->request.callbacks.finished(sequence->request.context, &end);
}

_Static_assert(LOGPROBS_MAX <= CANDIDATES_MAX, "candidates are as many as may be asked for");

/* What is known of a wanted row: one of the two. */
struct row_view {
    const float *logits;
    const struct candidates *candidates;
    double log_sum; /* of the exponentials of all logits; where log-probabilities are asked for */
};

/* The `count` likeliest tokens; those of candidates are enough of them. */
static int64_t view_top(struct generator *generator, const struct row_view *view, int64_t count,
                        const struct candidate **out)
{
    if (view->logits != NULL)
        return sampler_top(&generator->sampler, view->logits, count, out);
    *out = view->candidates->top;
    return count < view->candidates->count ? count : view->candidates->count;
}

/* Log-probability of `id`, whose logit is `logit`, and the likeliest where they were asked for. */
static struct generated_token describe_token(struct generator *generator,
                                             const struct row_view *view, int32_t id, float logit,
                                             int32_t top_count)
{
    struct generated_token token = {.id = id, .logprob = (float)((double)logit - view->log_sum)};
    if (top_count <= 0)
        return token;
    const struct candidate *ranked;
    int64_t count = view_top(generator, view, top_count, &ranked);
    for (int64_t i = 0; i < count; i++)
        generator->top[i] =
            (struct token_logprob){ranked[i].at, (float)((double)ranked[i].logit - view->log_sum)};
    token.top = generator->top;
    token.top_count = (int32_t)count;
    return token;
}

static bool is_stop_token(const struct generator *generator, const struct sequence *sequence,
                          int32_t id)
{
    const struct model_config *config = exec_config(generator->exec);
    for (int64_t i = 0; i < sequence->request.stop_count; i++) {
        if (sequence->request.stop_ids[i] == id)
            return true;
    }
    for (int64_t i = 0; !sequence->request.ignore_eos && i < config->eos_count; i++) {
        if (config->eos_ids[i] == id)
            return true;
    }
    return false;
}

static void score_prompt_token(struct generator *generator, const struct wanted_row *wanted,
                               const struct row_view *view)
{
    const struct sequence_request *request = &wanted->sequence->request;
    if (request->callbacks.prompt_token == NULL)
        return;
    int32_t id = request->prompt[wanted->position + 1];
    struct generated_token token =
        describe_token(generator, view, id, view->logits[id], request->logprobs);
    request->callbacks.prompt_token(request->context, wanted->position + 1, &token);
}

static struct sampler_choice choice_of(const struct wanted_row *wanted)
{
    const struct sequence_request *request = &wanted->sequence->request;
    return (struct sampler_choice){
        .temperature = request->sampling.temperature,
        .top_k = request->sampling.top_k,
        .top_p = request->sampling.top_p,
        .min_p = request->sampling.min_p,
        .seed = request->sampling.seed,
        .position = (uint64_t)wanted->position + 1,
    };
}

/* `view` is NULL where no log-probability is asked for. */
static void next_token(struct generator *generator, const struct wanted_row *wanted, int32_t id,
                       float logit, const struct row_view *view)
{
    struct sequence *sequence = wanted->sequence;
    const struct sequence_request *request = &sequence->request;
    if (sequence->token_count++ == 0)
        sequence->first_token = system_seconds();
    sequence->last_token = id;
    if (is_stop_token(generator, sequence, id)) {
        sequence_finish(sequence, FINISH_STOP, id, NULL);
        return;
    }
    struct generated_token token = {.id = id};
    if (view != NULL)
        token = describe_token(generator, view, id, logit, request->logprobs);
    bool go_on =
        request->callbacks.token == NULL || request->callbacks.token(request->context, &token);
    if (!go_on)
        sequence_finish(sequence, FINISH_CALLER, -1, NULL);
    else if (sequence->token_count >= request->token_count_max)
        sequence_finish(sequence, FINISH_LENGTH, -1, NULL);
}

static void fail_as_not_finite(const struct wanted_row *wanted)
{
    struct error error;
    error_set(&error, STATUS_INTERNAL,
              "the model's logits at position %lld are not finite; its weights overflow or "
              "are damaged",
              (long long)wanted->position);
    sequence_finish(wanted->sequence, FINISH_FAILED, -1, &error);
}

/* Whether it is a token of the prompt, which another one follows. */
static bool is_inner(const struct wanted_row *wanted)
{
    return wanted->position + 1 < wanted->sequence->request.prompt_count;
}

static bool is_scored(const struct wanted_row *wanted)
{
    return is_inner(wanted) || wanted->sequence->request.logprobs >= 0;
}

/* ---- What devices find ----------------------------------------------------------------------- */

/* Whether the next token is the largest or any: the devices choose it. */
static bool is_chosen(const struct generator *generator, const struct wanted_row *wanted)
{
    struct sampler_choice choice = choice_of(wanted);
    return !is_inner(wanted) && (sampler_is_greedy(&choice) ||
                                 sampler_is_unlimited(&choice, generator->sampler.vocab_count));
}

/* Whether the host must see its logits: of a prompt's tokens, to score them, and where more tokens
 * may be drawn than are candidates. */
static bool needs_logits(const struct generator *generator, const struct wanted_row *wanted)
{
    struct sampler_choice choice = choice_of(wanted);
    return is_inner(wanted) || (!is_chosen(generator, wanted) && choice.top_k > CANDIDATES_MAX &&
                                choice.top_k < generator->sampler.vocab_count);
}

/* Whether it is drawn among few, or its log-probability is asked for. */
static bool needs_candidates(const struct generator *generator, const struct wanted_row *wanted)
{
    return !needs_logits(generator, wanted) && (!is_chosen(generator, wanted) || is_scored(wanted));
}

static struct exec_head head_of(struct generator *generator, const struct wanted_row *wanted,
                                int64_t left)
{
    int64_t count = left < EXEC_LOGIT_ROWS ? left : EXEC_LOGIT_ROWS;
    struct exec_head head = {
        .rows = generator->head_rows, .row_count = count, .skips_logits = true};
    for (int64_t i = 0; i < count; i++) {
        struct sampler_choice choice = choice_of(&wanted[i]);
        generator->head_rows[i] = wanted[i].row;
        generator->head_draws[i] = is_inner(&wanted[i]) ? (struct draw){0} : sampler_draw(&choice);
        if (generator->head_draws[i].temperature > 0)
            head.draws = generator->head_draws;
        head.wants_chosen |= is_chosen(generator, &wanted[i]);
        head.wants_candidates |= needs_candidates(generator, &wanted[i]);
        head.skips_logits &= !needs_logits(generator, &wanted[i]);
    }
    return head;
}

struct exec_head generator_head(struct generator *generator, int64_t wanted_count)
{
    return head_of(generator, generator->wanted, wanted_count);
}

/* Of a token of the prompt: its score. Of the last: the next token, among all logits. */
static void use_logits(struct generator *generator, const struct wanted_row *wanted,
                       const float *logits)
{
    int64_t count = generator->sampler.vocab_count;
    struct row_view view = {.logits = logits};
    if (is_scored(wanted))
        view.log_sum = sampler_log_sum_exp(logits, count);
    if (!isfinite(view.log_sum) || !sampler_can_choose(logits, count)) {
        fail_as_not_finite(wanted);
    } else if (is_inner(wanted)) {
        score_prompt_token(generator, wanted, &view);
    } else {
        struct sampler_choice choice = choice_of(wanted);
        int32_t id = sampler_choose(&generator->sampler, logits, &choice);
        next_token(generator, wanted, id, logits[id], is_scored(wanted) ? &view : NULL);
    }
}

/* The next token, where the devices have chosen it. */
static void use_chosen(struct generator *generator, const struct wanted_row *wanted,
                       const struct chosen *chosen, const struct candidates *candidates)
{
    struct row_view view = {.candidates = candidates};
    if (chosen->at < 0) {
        fail_as_not_finite(wanted);
        return;
    }
    if (is_scored(wanted))
        view.log_sum = (double)candidates->top[0].logit + log(candidates->sum);
    next_token(generator, wanted, chosen->at, chosen->logit, is_scored(wanted) ? &view : NULL);
}

static float logit_of(const struct candidates *candidates, int32_t id)
{
    int64_t i = 0;
    while (i < candidates->count && candidates->top[i].at != id)
        i++;
    ASSERT(i < candidates->count);
    return candidates->top[i].logit;
}

/* The next token by a limited draw; false: only all logits tell it. */
static bool use_candidates(struct generator *generator, const struct wanted_row *wanted,
                           const struct candidates *candidates)
{
    struct sampler_choice choice = choice_of(wanted);
    struct chosen chosen = {.at = (int32_t)candidates->count};
    if (candidates->count >= 0) {
        int32_t id = sampler_choose_among(candidates, generator->sampler.vocab_count, &choice);
        if (id < 0)
            return false;
        chosen = (struct chosen){.at = id, .logit = logit_of(candidates, id)};
    }
    use_chosen(generator, wanted, &chosen, candidates);
    return true;
}

/* Rows whose candidates did not tell: of all logits. What the head found before is gone. */
static enum status use_missed(struct generator *generator, const struct wanted_row *const *missed,
                              int64_t count, struct error *err)
{
    struct exec_head head = {.rows = generator->head_rows, .row_count = count};
    if (count == 0)
        return STATUS_OK;
    for (int64_t i = 0; i < count; i++)
        generator->head_rows[i] = missed[i]->row;
    TRY(exec_head(generator->exec, &head, err));
    for (int64_t i = 0; i < count; i++)
        use_logits(generator, missed[i], head.logits + i * head.stride);
    return STATUS_OK;
}

static enum status use_head(struct generator *generator, const struct wanted_row *wanted,
                            const struct exec_head *head, struct error *err)
{
    const struct wanted_row *missed[EXEC_LOGIT_ROWS];
    int64_t missed_count = 0;
    for (int64_t i = 0; i < head->row_count; i++) {
        if (wanted[i].sequence->done)
            continue;
        if (needs_logits(generator, &wanted[i]))
            use_logits(generator, &wanted[i], head->logits + i * head->stride);
        else if (is_chosen(generator, &wanted[i]))
            use_chosen(generator, &wanted[i], &head->chosen[i], &head->candidates[i]);
        else if (use_candidates(generator, &wanted[i], &head->candidates[i]))
            continue;
        else if (!head->skips_logits)
            use_logits(generator, &wanted[i], head->logits + i * head->stride);
        else
            missed[missed_count++] = &wanted[i];
    }
    return use_missed(generator, missed, missed_count, err);
}

enum status generator_use_logits(struct generator *generator, const struct exec_head *head,
                                 int64_t wanted_count, struct error *err)
{
    TRY(use_head(generator, generator->wanted, head, err));
    for (int64_t first = head->row_count; first < wanted_count; first += EXEC_LOGIT_ROWS) {
        const struct wanted_row *wanted = generator->wanted + first;
        struct exec_head more = head_of(generator, wanted, wanted_count - first);
        TRY(exec_head(generator->exec, &more, err));
        TRY(use_head(generator, wanted, &more, err));
    }
    return STATUS_OK;
}
