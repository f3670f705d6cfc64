/* The file for Prometheus: vLLM's names behind "phasor:", so that its dashboards need another
 * prefix only, and some of phasor's own. */
#include "engine/batch_metrics.h"

#include <stdio.h>

#include "base/memory.h"
#include "engine/exposition.h"

#define NO_LABEL ((struct exposition_label){NULL, NULL})

static struct exposition_label label(const char *name, const char *value)
{
    return (struct exposition_label){name, value};
}

/* ---- As vLLM names them -------------------------------------------------------------------- */

static void write_requests(struct exposition *to, const struct batch_snapshot *now)
{
    const struct generator_counters *counters = &now->counters;
    exposition_gauge(to, "num_requests_running", "Choices that are computed.",
                     (double)counters->running);
    exposition_gauge(to, "num_requests_waiting", "Choices that were read and wait for room.",
                     (double)counters->waiting);
    exposition_family(to, "request_success_total", "counter",
                      "Choices that are done, by what ended them.");
    exposition_sample(to, label("finished_reason", "stop"), NO_LABEL,
                      (double)now->meter->stop_count);
    exposition_sample(to, label("finished_reason", "length"), NO_LABEL,
                      (double)now->meter->length_count);
    exposition_counter(to, "prompt_tokens_total", "Prompt tokens of completed rows.",
                       (double)now->result->prompt_tokens);
    exposition_counter(to, "generation_tokens_total", "Tokens generated.",
                       (double)now->generated_tokens);
}

static void write_cache(struct exposition *to, const struct generator_counters *counters)
{
    double total = (double)counters->kv_pages_total;
    exposition_gauge(to, "kv_cache_usage_perc", "Part of the KV cache in use, 0 to 1.",
                     total > 0 ? (double)counters->kv_pages_used / total : 0);
    exposition_counter(to, "prefix_cache_queries_total",
                       "Prompt tokens that were computed, or found computed.",
                       (double)(counters->prefill_tokens + counters->shared_tokens));
    exposition_counter(to, "prefix_cache_hits_total", "Prompt tokens that were found computed.",
                       (double)counters->shared_tokens);
}

static void write_histograms(struct exposition *to, const struct batch_meter *meter)
{
    static const struct {
        const char *name, *help;
    } texts[METER_HISTOGRAM_COUNT] = {
        [METER_FIRST_TOKEN] = {"time_to_first_token_seconds",
                               "Of a choice: from its submission to its first token."},
        [METER_PER_TOKEN] = {"request_time_per_output_token_seconds",
                             "Of a choice: mean time of the tokens after the first."},
        [METER_GAP] = {"inter_token_latency_seconds", "From one token of a choice to the next."},
        [METER_WHOLE] = {"e2e_request_latency_seconds",
                         "Of a choice: from its submission to its last token."},
        [METER_QUEUED] = {"request_queue_time_seconds",
                          "Of a choice: from its submission to its prefill."},
        [METER_PREFILL] = {"request_prefill_time_seconds",
                           "Of a choice: from its prefill to its first token."},
        [METER_DECODE] = {"request_decode_time_seconds",
                          "Of a choice: from its first token to its last."},
        [METER_INFERENCE] = {"request_inference_time_seconds",
                             "Of a choice: from its prefill to its last token."},
        [METER_PROMPT_TOKENS] = {"request_prompt_tokens", "Prompt tokens of a completed row."},
        [METER_GENERATED_TOKENS] = {"request_generation_tokens",
                                    "Generated tokens of a completed row."},
    };
    for (int i = 0; i < METER_HISTOGRAM_COUNT; i++)
        exposition_histogram(to, texts[i].name, texts[i].help, &meter->histograms[i]);
}

/* ---- phasor's own -------------------------------------------------------------------------- */

static void write_run(struct exposition *to, const struct batch_snapshot *now)
{
    exposition_family(to, "run_info", "gauge", "Always 1; the labels tell of the run.");
    exposition_sample(to, label("version", PHASOR_VERSION), label("plan", now->plan), 1);
    exposition_gauge(to, "run_start_time_seconds", "When the run began, since 1970.",
                     (double)now->begun_at);
    exposition_gauge(to, "run_ended", "1 when the run has ended, in whatever way.", now->has_ended);
}

static void write_rows(struct exposition *to, const struct phasor_batch_result *result)
{
    exposition_gauge(to, "input_rows", "Rows of the input file.", (double)result->total);
    exposition_gauge(to, "rows_done_before", "Rows that were done when the run was resumed.",
                     (double)(result->completed_before + result->failed_before));
    exposition_counter(to, "rows_completed_total", "Rows completed.", (double)result->completed);
    exposition_counter(to, "rows_failed_total", "Rows that got an error.", (double)result->failed);
}

static void write_phases(struct exposition *to, const struct phasor_batch_result *result)
{
    exposition_counter(to, "prefill_tokens_total", "Tokens through prefill passes.",
                       (double)result->prefill_tokens);
    exposition_counter(to, "prefill_seconds_total", "Time in prefill passes.",
                       result->prefill_seconds);
    exposition_counter(to, "decode_tokens_total", "Tokens through decode passes.",
                       (double)result->decode_tokens);
    exposition_counter(to, "decode_seconds_total", "Time in decode passes.",
                       result->decode_seconds);
}

static void write_pages(struct exposition *to, const struct generator_counters *counters)
{
    const struct {
        const char *state;
        int64_t count;
    } pages[] = {
        {"used", counters->kv_pages_used},
        {"cached", counters->kv_pages_cached},
        {"free", counters->kv_pages_total - counters->kv_pages_used - counters->kv_pages_cached},
    };
    exposition_family(to, "kv_pages", "gauge",
                      "Pages of the KV cache: had by choices, kept for choices to come, free.");
    for (size_t i = 0; i < sizeof pages / sizeof pages[0]; i++)
        exposition_sample(to, label("state", pages[i].state), NO_LABEL, (double)pages[i].count);
}

static void write_rank_memory(struct exposition *to, const struct rank_use *use)
{
    char rank[16];
    exposition_family(to, "rank_memory_bytes", "gauge", "Memory held of a rank's device.");
    for (int r = 0; r < use->rank_count; r++) {
        snprintf(rank, sizeof rank, "%d", r);
        exposition_sample(to, label("rank", rank), NO_LABEL, (double)use->ranks[r].memory.bytes);
    }
    exposition_family(to, "rank_memory_peak_bytes", "gauge",
                      "The most memory held of a rank's device since its weights were loaded.");
    for (int r = 0; r < use->rank_count; r++) {
        snprintf(rank, sizeof rank, "%d", r);
        exposition_sample(to, label("rank", rank), NO_LABEL,
                          (double)use->ranks[r].memory.peak_bytes);
    }
}

static void write_memory(struct exposition *to, const struct rank_use *use)
{
    struct memory_counters memory = memory_counters_get();
    exposition_gauge(to, "memory_bytes", "Memory held by the process, that of all ranks included.",
                     (double)memory.live_bytes);
    exposition_gauge(to, "memory_peak_bytes", "The most memory held by the process.",
                     (double)memory.peak_bytes);
    write_rank_memory(to, use);
}

static void write_traffic(struct exposition *to, const struct rank_use *use)
{
    char rank[16];
    exposition_family(to, "collective_bytes_total", "counter",
                      "Bytes that left a rank for other ranks, by collective.");
    for (int r = 0; r < use->rank_count; r++) {
        snprintf(rank, sizeof rank, "%d", r);
        for (int kind = 0; kind < TRAFFIC_KIND_COUNT; kind++)
            exposition_sample(to, label("rank", rank), label("collective", traffic_names[kind]),
                              (double)use->ranks[r].sent_bytes[kind]);
    }
}

void batch_metrics_write(struct text *out, const struct batch_snapshot *now)
{
    struct exposition to = {.out = out, .prefix = "phasor:", .model_name = now->model_name};
    write_requests(&to, now);
    write_cache(&to, &now->counters);
    write_histograms(&to, now->meter);
    write_run(&to, now);
    write_rows(&to, now->result);
    write_phases(&to, now->result);
    write_pages(&to, &now->counters);
    write_memory(&to, now->use);
    write_traffic(&to, now->use);
}
