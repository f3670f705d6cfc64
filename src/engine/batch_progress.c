#include "engine/batch_progress.h"

#include "base/system.h"

#define PROGRESS_SECONDS 0.2

static double rate(double count, double seconds)
{
    return seconds > 0 ? count / seconds : 0;
}

uint64_t batch_progress_done(const struct batch_progress *progress)
{
    const struct phasor_batch_result *result = progress->result;
    return result->completed + result->failed + result->completed_before + result->failed_before;
}

static struct phasor_batch_progress measure(const struct batch_progress *progress)
{
    struct generator_counters counters = {0};
    const struct phasor_batch_result *result = progress->result;
    if (progress->world->generator != NULL)
        counters = generator_counters_get(progress->world->generator);
    double elapsed = progress->started_at > 0 ? system_seconds() - progress->started_at : 0;
    uint64_t done = batch_progress_done(progress), done_now = result->completed + result->failed;
    struct phasor_batch_progress now = {
        .requests_total = result->total,
        .requests_done = done,
        .requests_failed = result->failed + result->failed_before,
        .prompt_tokens = (uint64_t)counters.prefill_tokens,
        .completion_tokens = progress->world->completion_tokens,
        .prefill_tokens_per_second =
            rate((double)counters.prefill_tokens, counters.prefill_seconds),
        .decode_tokens_per_second = rate((double)counters.decode_tokens, counters.decode_seconds),
        .elapsed_seconds = elapsed,
        .remaining_seconds = -1,
    };
    if (done_now > 0 && done <= result->total)
        now.remaining_seconds = elapsed * (double)(result->total - done) / (double)done_now;
    return now;
}

enum status batch_progress_stopped(const struct batch_progress *progress, struct error *err)
{
    return error_set(err, STATUS_CANCELLED, "the run was stopped; %llu of %llu rows are done%s",
                     (unsigned long long)batch_progress_done(progress),
                     (unsigned long long)progress->result->total,
                     progress->can_resume ? ", and --resume runs the rest" : "");
}

static enum status tell(struct batch_progress *progress, bool is_last, double now,
                        struct error *err)
{
    const struct phasor_batch_params *params = progress->params;
    if (progress->is_stopped && !is_last)
        return batch_progress_stopped(progress, err);
    if (params->progress == NULL || (!is_last && now - progress->told_at < PROGRESS_SECONDS))
        return STATUS_OK;
    progress->told_at = now;
    struct phasor_batch_progress measured = measure(progress);
    int answer = params->progress(params->progress_context, &measured);
    if (answer == PHASOR_GO_ON || is_last)
        return STATUS_OK;
    progress->is_stopped = answer != PHASOR_DRAIN;
    if (progress->is_stopped)
        return batch_progress_stopped(progress, err);
    if (!progress->is_draining)
        progress->drain_until = now + params->drain_seconds;
    progress->is_draining = true;
    return STATUS_OK;
}

enum status batch_progress_tell(struct batch_progress *progress, bool is_last, struct error *err)
{
    double now = system_seconds();
    TRY(tell(progress, is_last, now, err));
    bool is_over = progress->is_draining && now >= progress->drain_until;
    bool is_done = is_last || batch_progress_done(progress) >= progress->result->total;
    return is_over && !is_done ? batch_progress_stopped(progress, err) : STATUS_OK;
}

enum status batch_progress_reading(void *context, struct error *err)
{
    struct batch_progress *progress = context;
    TRY(tell(progress, false, system_seconds(), err));
    return progress->is_draining
               ? error_set(err, STATUS_CANCELLED, "the run was stopped before it began")
               : STATUS_OK;
}
