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

/* Log-probability of `id`, and the likeliest where they were asked for. */
static struct generated_token describe_token(struct generator *generator, const float *logits,
                                             int32_t id, int32_t top_count, double log_sum)
{
    struct generated_token token = {.id = id, .logprob = (float)((double)logits[id] - log_sum)};
    if (top_count <= 0)
        return token;
    const struct candidate *ranked;
    int64_t count = sampler_top(&generator->sampler, logits, top_count, &ranked);
    for (int64_t i = 0; i < count; i++)
        generator->top[i] =
            (struct token_logprob){ranked[i].id, (float)((double)ranked[i].logit - log_sum)};
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
                               const float *logits, double log_sum)
{
    const struct sequence_request *request = &wanted->sequence->request;
    if (request->callbacks.prompt_token == NULL)
        return;
    struct generated_token token = describe_token(
        generator, logits, request->prompt[wanted->position + 1], request->logprobs, log_sum);
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

/* `logits` are NULL where no log-probability is asked for. */
static void next_token(struct generator *generator, const struct wanted_row *wanted, int32_t id,
                       const float *logits, double log_sum)
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
    if (logits != NULL)
        token = describe_token(generator, logits, id, request->logprobs, log_sum);
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

static void use_logits(struct generator *generator, const struct wanted_row *wanted,
                       const float *logits)
{
    int64_t count = generator->sampler.vocab_count;
    if (wanted->sequence->done)
        return;
    double log_sum = is_scored(wanted) ? sampler_log_sum_exp(logits, count) : 0;
    if (!isfinite(log_sum) || !sampler_can_choose(logits, count)) {
        fail_as_not_finite(wanted);
    } else if (is_inner(wanted)) {
        score_prompt_token(generator, wanted, logits, log_sum);
    } else {
        struct sampler_choice choice = choice_of(wanted);
        int32_t id = sampler_choose(&generator->sampler, logits, &choice);
        next_token(generator, wanted, id, logits, log_sum);
    }
}

static void use_largest(struct generator *generator, const struct wanted_row *wanted,
                        const struct largest *largest)
{
    if (wanted->sequence->done)
        return;
    if (largest->at < 0)
        fail_as_not_finite(wanted);
    else
        next_token(generator, wanted, largest->at, NULL, 0);
}

/* Whether the largest logit of each row is all that is needed. */
static bool are_greedy(const struct wanted_row *wanted, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        struct sampler_choice choice = choice_of(&wanted[i]);
        if (is_scored(&wanted[i]) || !sampler_is_greedy(&choice))
            return false;
    }
    return true;
}

static struct exec_head head_of(struct generator *generator, const struct wanted_row *wanted,
                                int64_t left)
{
    int64_t count = left < EXEC_LOGIT_ROWS ? left : EXEC_LOGIT_ROWS;
    for (int64_t i = 0; i < count; i++)
        generator->head_rows[i] = wanted[i].row;
    return (struct exec_head){
        .rows = generator->head_rows, .row_count = count, .is_greedy = are_greedy(wanted, count)};
}

struct exec_head generator_head(struct generator *generator, int64_t wanted_count)
{
    return head_of(generator, generator->wanted, wanted_count);
}

static void use_head(struct generator *generator, const struct wanted_row *wanted,
                     const struct exec_head *head)
{
    for (int64_t i = 0; i < head->row_count; i++) {
        if (head->is_greedy)
            use_largest(generator, &wanted[i], &head->largest[i]);
        else
            use_logits(generator, &wanted[i], head->logits + i * head->stride);
    }
}

enum status generator_use_logits(struct generator *generator, const struct exec_head *head,
                                 int64_t wanted_count, struct error *err)
{
    use_head(generator, generator->wanted, head);
    for (int64_t first = head->row_count; first < wanted_count; first += EXEC_LOGIT_ROWS) {
        const struct wanted_row *wanted = generator->wanted + first;
        struct exec_head more = head_of(generator, wanted, wanted_count - first);
        TRY(exec_head(generator->exec, &more, err));
        use_head(generator, wanted, &more);
    }
    return STATUS_OK;
}
