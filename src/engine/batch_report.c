#include "engine/batch_report.h"

#include <string.h>
#include <time.h>

#include "base/memory.h"
#include "base/system.h"
#include "engine/batch_metrics.h"
#include "engine/batch_names.h"
#include "engine/rank_use.h"
#include "model/checkpoint.h"

/* Prometheus looks every 15 to 60 seconds. */
#define METRICS_SECONDS 5.0

struct batch_report {
    struct batch_report_params run;
    struct batch_meter meter;
    struct rank_use before, now; /* when the run began, and when it was last looked at */
    struct transition_counters transitions_before;
    struct side_file metrics, summary;
    struct text text; /* a file that is being built */
    double started_at, written_at;
    int64_t begun_at; /* seconds since 1970 */
    bool is_idle;     /* an earlier run has done all rows */
};

/* ---- Life ---------------------------------------------------------------------------------- */

static enum status check_files(const struct batch_report *report, struct error *err)
{
    const struct phasor_batch_params *params = report->run.params;
    const char *dir = checkpoint_dir(engine_checkpoint(report->run.engine));
    TRY(batch_names_check_model(params, dir, err));
    return batch_names_check(params, err);
}

enum status batch_report_create(struct batch_report **out, const struct batch_report_params *params,
                                struct error *err)
{
    struct batch_report *report;
    TRY(memory_get((void **)&report, 1, sizeof *report, "the report of a run", err));
    report->run = *params;
    report->metrics = batch_names_side(params->params, SIDE_METRICS);
    report->summary = batch_names_side(params->params, SIDE_SUMMARY);
    batch_meter_init(&report->meter);
    enum status status = check_files(report, err);
    if (status == STATUS_OK)
        *out = report;
    else
        memory_free(report);
    return status;
}

void batch_report_destroy(struct batch_report *report)
{
    if (report == NULL)
        return;
    text_deinit(&report->text);
    memory_free(report);
}

struct batch_meter *batch_report_meter(struct batch_report *report)
{
    return &report->meter;
}

/* ---- The result ---------------------------------------------------------------------------- */

static struct phasor_latency describe(const struct latency *latency)
{
    return (struct phasor_latency){.count = latency->count,
                                   .mean_seconds = latency_mean(latency),
                                   .median_seconds = latency_quantile(latency, 0.5),
                                   .p99_seconds = latency_quantile(latency, 0.99)};
}

static void fill_phases(struct phasor_batch_result *result,
                        const struct generator_counters *counters)
{
    result->prefill_seconds = counters->prefill_seconds;
    result->decode_seconds = counters->decode_seconds;
    result->prefill_tokens = (uint64_t)counters->prefill_tokens;
    result->decode_tokens = (uint64_t)counters->decode_tokens;
    result->shared_tokens = (uint64_t)counters->shared_tokens;
    for (int stage = 0; stage < STAGE_KIND_COUNT; stage++) {
        const struct stage_total *prefill = &counters->prefill_stages[stage],
                                 *decode = &counters->decode_stages[stage];
        result->prefill_stage_seconds[stage] = prefill->seconds;
        result->decode_stage_seconds[stage] = decode->seconds;
        result->prefill_weight_bytes[stage] = prefill->weight_bytes;
        result->decode_weight_bytes[stage] = decode->weight_bytes;
    }
}

static void fill_ranks(struct phasor_batch_result *result, const struct rank_use *use)
{
    result->peak_bytes = memory_counters_get().peak_bytes;
    result->rank_count = use->rank_count;
    for (int kind = 0; kind < TRAFFIC_KIND_COUNT; kind++)
        result->collective_bytes[kind] = 0;
    for (int r = 0; r < use->rank_count; r++) {
        result->rank_peak_bytes[r] = use->ranks[r].memory.peak_bytes;
        for (int kind = 0; kind < TRAFFIC_KIND_COUNT; kind++)
            result->collective_bytes[kind] += use->ranks[r].sent_bytes[kind];
    }
}

static struct transition_counters transitions_get(const struct batch_report *report)
{
    const struct transition *transition = engine_transition(report->run.engine);
    return transition == NULL ? (struct transition_counters){0}
                              : transition_counters_get(transition);
}

static void fill_transitions(struct batch_report *report)
{
    struct phasor_batch_result *result = report->run.result;
    const struct transition_counters *before = &report->transitions_before;
    struct transition_counters now = transitions_get(report);
    result->transitions = (uint64_t)(now.transition_count - before->transition_count);
    result->transition_seconds = now.seconds - before->seconds;
}

static void fill_result(struct batch_report *report)
{
    struct phasor_batch_result *result = report->run.result;
    const struct latency *latencies = report->meter.latencies;
    struct generator_counters counters = generator_counters_get(report->run.session->generator);
    rank_use_get(&report->now, report->run.session->exec, &report->before);
    result->elapsed_seconds = system_seconds() - report->started_at;
    result->ttft = describe(&latencies[METER_TTFT]);
    result->tpot = describe(&latencies[METER_TPOT]);
    result->itl = describe(&latencies[METER_ITL]);
    result->e2el = describe(&latencies[METER_E2EL]);
    fill_phases(result, &counters);
    fill_ranks(result, &report->now);
    fill_transitions(report);
}

/* ---- Files --------------------------------------------------------------------------------- */

static void write_file(struct batch_report *report, struct side_file *file,
                       void (*write)(struct text *, const struct batch_snapshot *), bool has_ended,
                       enum status status)
{
    char plan[LAYOUT_TEXT_BYTES];
    if (file->path == NULL || (report->is_idle && side_file_has_content(file)))
        return; /* they tell of the run that did the rows */
    plan_layouts_format(plan, engine_layouts(report->run.engine));
    struct batch_snapshot now = {
        .model_name = engine_model_name(report->run.engine),
        .plan = plan,
        .result = report->run.result,
        .meter = &report->meter,
        .use = &report->now,
        .layouts = engine_layouts(report->run.engine),
        .transition = engine_transition(report->run.engine),
        .layer_count = engine_config(report->run.engine)->layer_count,
        .counters = generator_counters_get(report->run.session->generator),
        .generated_tokens = report->run.world->completion_tokens,
        .begun_at = report->begun_at,
        .has_ended = has_ended,
        .status = status_name(status),
    };
    text_clear(&report->text);
    report->text.failed = false; /* the next one may fit again */
    write(&report->text, &now);
    side_file_write(file, &report->text, report->run.log);
}

void batch_report_begin(struct batch_report *report)
{
    const struct phasor_batch_result *result = report->run.result;
    uint64_t done_before = result->completed_before + result->failed_before;
    report->is_idle = done_before > 0 && done_before >= result->total;
    if (!report->is_idle)
        side_file_clear(&report->summary); /* if this run is killed, it has none */
    rank_use_get(&report->before, report->run.session->exec, NULL);
    report->transitions_before = transitions_get(report);
    report->begun_at = (int64_t)time(NULL);
    report->started_at = system_seconds();
}

void batch_report_tick(struct batch_report *report)
{
    double now = system_seconds();
    if (report->metrics.path == NULL || now - report->written_at < METRICS_SECONDS)
        return;
    report->written_at = now;
    fill_result(report);
    write_file(report, &report->metrics, batch_metrics_write, false, STATUS_OK);
}

/* A run that failed before its first row has nothing to tell, and what an earlier one told must not
 * be taken for its own. When the session is open, it was output or errors that were refused: those
 * belong to another run, and so may these. */
static void clear_files(const struct batch_report *report)
{
    if (report->run.session->generator != NULL)
        return;
    side_file_clear(&report->metrics);
    side_file_clear(&report->summary);
}

void batch_report_end(struct batch_report *report, enum status status)
{
    if (report->started_at == 0) {
        clear_files(report);
        return;
    }
    fill_result(report);
    write_file(report, &report->metrics, batch_metrics_write, true, status);
    write_file(report, &report->summary, batch_summary_write, true, status);
}
