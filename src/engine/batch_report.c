#include "engine/batch_report.h"

#include <string.h>
#include <time.h>

#include "base/memory.h"
#include "base/record.h"
#include "base/system.h"
#include "base/trace.h"
#include "engine/batch_metrics.h"
#include "engine/batch_names.h"
#include "engine/batch_recording.h"
#include "engine/rank_use.h"
#include "model/checkpoint.h"

/* Prometheus looks every 15 to 60 seconds. */
#define METRICS_SECONDS 5.0

/* Spans of a trace: what a viewer opens without trouble, some 40 MB. */
#define TRACE_SPANS_MAX ((int64_t)1 << 18)

struct batch_report {
    struct batch_report_params run;
    struct batch_meter meter;
    const struct batch_parts *parts; /* NULL: there are none */
    struct rank_use before, now;     /* when the session began, and when it was last looked at */
    struct transition_counters transitions_before;
    struct generator_counters counters; /* when it was last looked at */
    struct sessions_before { /* of the same run, paused since; of no count there are none */
        int count;
        struct rank_use use;
        struct generator_counters counters;
        struct transition_counters transitions;
        uint64_t kv_bytes, kv_taken_bytes; /* the most */
    } past;
    double paused_at;    /* 0: the session is open */
    struct text kernels; /* their name: the device that has it may be gone */
    struct side_file files[SIDE_COUNT];
    struct text text; /* a file that is being built */
    double started_at, written_at;
    double wall_seconds; /* of the whole run */
    int64_t begun_at;    /* seconds since 1970 */
    bool is_idle;        /* an earlier run has done all rows */
    bool is_recorded;    /* and it may come to a file */
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
    for (int side = 0; side < SIDE_COUNT; side++)
        report->files[side] = batch_names_side(params->params, (enum batch_side)side);
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
    text_deinit(&report->kernels);
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

/* Of this session and those before it. */
static struct transition_counters transitions_all(const struct batch_report *report)
{
    const struct transition_counters *before = &report->transitions_before,
                                     *past = &report->past.transitions;
    struct transition_counters now = transitions_get(report);
    now.transition_count += past->transition_count - before->transition_count;
    now.seconds += past->seconds - before->seconds;
    return now;
}

static uint64_t larger(uint64_t one, uint64_t two)
{
    return one > two ? one : two;
}

/* The session is open. */
static void fill_session(struct batch_report *report)
{
    struct phasor_batch_result *result = report->run.result;
    const struct generator_counters *counters = &report->counters;
    struct transition_counters transitions = transitions_all(report);
    report->counters = generator_counters_get(report->run.session->generator);
    rank_use_get(&report->now, report->run.session->exec, &report->before);
    rank_use_add(&report->now, &report->past.use);
    result->kv_bytes =
        larger((uint64_t)counters->kv_pages_total * counters->kv_page_bytes, report->past.kv_bytes);
    result->kv_taken_bytes = larger((uint64_t)counters->kv_pages_taken * counters->kv_page_bytes,
                                    report->past.kv_taken_bytes);
    result->transitions = (uint64_t)transitions.transition_count;
    result->transition_seconds = transitions.seconds;
    fill_phases(result, counters);
}

static void fill_result(struct batch_report *report)
{
    struct phasor_batch_result *result = report->run.result;
    const struct latency *latencies = report->meter.latencies;
    if (report->paused_at == 0)
        fill_session(report);
    result->elapsed_seconds = system_seconds() - report->started_at;
    result->ttft = describe(&latencies[METER_TTFT]);
    result->tpot = describe(&latencies[METER_TPOT]);
    result->itl = describe(&latencies[METER_ITL]);
    result->e2el = describe(&latencies[METER_E2EL]);
    fill_ranks(result, &report->now);
}

/* ---- Files --------------------------------------------------------------------------------- */

static void routing_write(struct text *out, const struct batch_snapshot *now)
{
    routing_counts_write(out, now->routing, now->model_name);
}

static void (*const writers[SIDE_COUNT])(struct text *, const struct batch_snapshot *) = {
    [SIDE_METRICS] = batch_metrics_write,
    [SIDE_SUMMARY] = batch_summary_write,
    [SIDE_TRACE] = batch_trace_write,
    [SIDE_ROUTING] = routing_write,
}; /* a recording is no text: recording_end */

/* Of all parts, where there are some. */
static void plan_name(struct text *out, const struct batch_report *report)
{
    char layouts[LAYOUT_TEXT_BYTES];
    plan_layouts_format(layouts, engine_layouts(report->run.engine));
    if (report->parts != NULL)
        batch_parts_name(out, report->parts);
    else
        text_append_string(out, layouts);
}

static void write_file(struct batch_report *report, enum batch_side side, bool has_ended,
                       enum status status)
{
    struct text plan = {0};
    struct side_file *file = &report->files[side];
    if (file->path == NULL || writers[side] == NULL ||
        (report->is_idle && side_file_has_content(file)))
        return; /* they tell of the run that did the rows */
    plan_name(&plan, report);
    struct batch_snapshot now = {
        .model_name = engine_model_name(report->run.engine),
        .plan = plan.failed ? "" : plan.bytes,
        .result = report->run.result,
        .meter = &report->meter,
        .use = &report->now,
        .layouts = engine_layouts(report->run.engine),
        .transition = engine_transition(report->run.engine),
        .trace = engine_trace(report->run.engine),
        .kernels = report->kernels.failed ? "" : report->kernels.bytes,
        .routing = report->run.session->routing,
        .started_at = report->started_at,
        .layer_count = engine_config(report->run.engine)->layer_count,
        .counters = report->counters,
        .generated_tokens = report->run.world->completion_tokens,
        .begun_at = report->begun_at,
        .has_ended = has_ended,
        .status = status_name(status),
    };
    text_clear(&report->text);
    report->text.failed = false; /* the next one may fit again */
    writers[side](&report->text, &now);
    side_file_write(file, &report->text, report->run.log);
    text_deinit(&plan);
}

/* From this one on. */
static void clear_files(const struct batch_report *report, enum batch_side first)
{
    for (int side = (int)first; side < SIDE_COUNT; side++)
        side_file_clear(&report->files[side]);
}

static void session_begin(struct batch_report *report)
{
    rank_use_get(&report->before, report->run.session->exec, NULL);
    report->transitions_before = transitions_get(report);
}

void batch_report_pause(struct batch_report *report)
{
    const struct phasor_batch_result *result = report->run.result;
    fill_result(report);
    report->past = (struct sessions_before){
        .count = report->past.count + 1,
        .use = report->now,
        .counters = report->counters,
        .transitions = transitions_all(report),
        .kv_bytes = result->kv_bytes,
        .kv_taken_bytes = result->kv_taken_bytes,
    };
    report->paused_at = system_seconds();
}

void batch_report_go_on(struct batch_report *report)
{
    struct phasor_batch_result *result = report->run.result;
    result->plan_changes++;
    result->plan_change_seconds += system_seconds() - report->paused_at;
    report->paused_at = 0;
    session_begin(report);
}

const struct generator_counters *batch_report_counters(const struct batch_report *report)
{
    return report->past.count > 0 ? &report->past.counters : NULL;
}

void batch_report_begin(struct batch_report *report, const struct batch_parts *parts)
{
    const struct phasor_batch_result *result = report->run.result;
    uint64_t done_before = result->completed_before + result->failed_before;
    report->is_idle = done_before > 0 && done_before >= result->total;
    if (!report->is_idle)
        clear_files(report, SIDE_SUMMARY); /* if this run is killed, it has none */
    report->parts = parts;
    text_clear(&report->kernels);
    text_append_string(&report->kernels, engine_kernels(report->run.engine));
    session_begin(report);
    report->begun_at = (int64_t)time(NULL);
    report->started_at = system_seconds();
    if (report->files[SIDE_TRACE].path != NULL)
        trace_start(engine_trace(report->run.engine), TRACE_SPANS_MAX);
    report->is_recorded = report->files[SIDE_RECORD].path != NULL && !report->is_idle;
    if (report->is_recorded)
        record_start(engine_trace(report->run.engine), RECORDING_BYTES_MAX);
}

static void recording_refuse(const struct batch_report *report, const char *reason)
{
    const struct side_file *file = &report->files[SIDE_RECORD];
    log_write(report->run.log, LOG_WARNING, "%s: %s is not written: %s", file->flag, file->path,
              reason);
}

/* One that has ended before the run takes memory for nothing: that is given back, and told. */
static void recording_look(struct batch_report *report)
{
    struct trace *trace = engine_trace(report->run.engine);
    if (!report->is_recorded || record_outcome(trace) == RECORD_WHOLE)
        return;
    report->is_recorded = false;
    recording_refuse(report, record_outcome(trace) == RECORD_FULL
                                 ? "the run's operations take more than " RECORDING_BYTES_TEXT
                                   "; record fewer rows or tokens"
                                 : "there is no memory for it");
    record_forget(trace);
}

void batch_report_tick(struct batch_report *report)
{
    double now = system_seconds();
    recording_look(report);
    if (report->files[SIDE_METRICS].path == NULL || now - report->written_at < METRICS_SECONDS)
        return;
    report->written_at = now;
    fill_result(report);
    write_file(report, SIDE_METRICS, false, STATUS_OK);
}

/* A run that failed before its first row has nothing to tell, and what an earlier one told must not
 * be taken for its own. When the session is open, it was output or errors that were refused: those
 * belong to another run, and so may these. */
static void clear_of_others(const struct batch_report *report)
{
    if (report->run.session->generator == NULL)
        clear_files(report, SIDE_METRICS);
}

/* What a trace has no room for is left out. */
static void tell_trace(const struct batch_report *report)
{
    double since;
    const struct side_file *file = &report->files[SIDE_TRACE];
    trace_stop(engine_trace(report->run.engine));
    if (file->path != NULL && trace_left_out(engine_trace(report->run.engine), &since) > 0)
        log_write(report->run.log, LOG_WARNING,
                  "%s: %s holds the first %.3g s of the run; there is no room for more", file->flag,
                  file->path, since - report->started_at);
}

/* A part of a graph would be taken for a run that was shorter: there is the whole, or none. */
static void recording_end(const struct batch_report *report, enum status status)
{
    const struct side_file *file = &report->files[SIDE_RECORD];
    struct recording recording;
    struct error err;
    const struct batch_recording_params params = {.engine = report->run.engine,
                                                  .result = report->run.result,
                                                  .wall_seconds = report->wall_seconds};
    if (status != STATUS_OK) {
        recording_refuse(report, "the run did not do all its rows");
        return;
    }
    if (batch_recording_get(&recording, &params, &err) != STATUS_OK) {
        recording_refuse(report, err.message);
        return;
    }
    if (recording_write(&recording, file->path, &err) != STATUS_OK)
        recording_refuse(report, err.message);
    recording_deinit(&recording);
}

static void tell_routing(const struct batch_report *report)
{
    const struct side_file *file = &report->files[SIDE_ROUTING];
    const struct routing_counts *counts = report->run.session->routing;
    if (counts == NULL)
        return; /* the model may have no experts */
    int64_t least = routing_counts_least(engine_config(report->run.engine));
    if (routing_counts_tokens(counts) < least)
        log_write(report->run.log, LOG_INFO,
                  "%s: %s has the choices of %lld tokens, and --routing takes no fewer than %lld",
                  file->flag, file->path, (long long)routing_counts_tokens(counts),
                  (long long)least);
}

void batch_report_end(struct batch_report *report, enum status status)
{
    if (report->started_at == 0) {
        clear_of_others(report);
        return;
    }
    if (report->is_recorded)
        record_stop(engine_trace(report->run.engine));
    report->wall_seconds = system_seconds() - report->started_at;
    fill_result(report);
    recording_look(report);
    if (report->is_recorded) {
        recording_end(report, status);
        record_forget(engine_trace(report->run.engine));
    }
    tell_trace(report);
    tell_routing(report);
    for (int side = 0; side < SIDE_COUNT; side++)
        write_file(report, (enum batch_side)side, true, status);
}
