/* The JSON of --summary-file: the keys of `vllm bench serve`, and some of phasor's own. */
#include <stdio.h>
#include <string.h>

#include "base/json_writer.h"
#include "engine/batch_metrics.h"

static double ratio(double count, double of)
{
    return of > 0 ? count / of : 0;
}

static void write_int(struct json_writer *json, const char *key, uint64_t value)
{
    json_write_key(json, key);
    json_write_int(json, (int64_t)value);
}

static void write_number(struct json_writer *json, const char *key, double value)
{
    json_write_key(json, key);
    json_write_number(json, value);
}

static void write_rows(struct json_writer *json, const struct batch_snapshot *now)
{
    const struct phasor_batch_result *result = now->result;
    json_write_key(json, "model_id");
    json_write_string(json, now->model_name);
    json_write_key(json, "plan");
    json_write_string(json, now->plan);
    json_write_key(json, "status");
    json_write_string(json, now->status);
    write_number(json, "duration", result->elapsed_seconds);
    write_int(json, "num_prompts", result->total);
    write_int(json, "completed", result->completed);
    write_int(json, "failed", result->failed);
    write_int(json, "completed_before", result->completed_before);
    write_int(json, "failed_before", result->failed_before);
}

static void write_tokens(struct json_writer *json, const struct phasor_batch_result *result)
{
    double input = (double)result->prompt_tokens, output = (double)result->completion_tokens;
    double rows = (double)result->completed, seconds = result->elapsed_seconds;
    write_int(json, "total_input_tokens", result->prompt_tokens);
    write_int(json, "total_output_tokens", result->completion_tokens);
    write_number(json, "mean_input_len", ratio(input, rows));
    write_number(json, "mean_output_len", ratio(output, rows));
    write_number(json, "request_throughput", ratio(rows, seconds));
    write_number(json, "output_throughput", ratio(output, seconds));
    write_number(json, "total_token_throughput", ratio(input + output, seconds));
}

static void write_latency(struct json_writer *json, const char *name,
                          const struct phasor_latency *latency)
{
    const struct {
        const char *word;
        double seconds;
    } values[] = {{"mean", latency->mean_seconds},
                  {"median", latency->median_seconds},
                  {"p99", latency->p99_seconds}};
    char key[32];
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        snprintf(key, sizeof key, "%s_%s_ms", values[i].word, name);
        write_number(json, key, values[i].seconds * 1e3);
    }
}

static void write_stages(struct json_writer *json, const char *key, const double *seconds)
{
    json_write_key(json, key);
    json_write_open(json, '{');
    for (int stage = 0; stage < STAGE_KIND_COUNT; stage++)
        write_number(json, stage_names[stage], seconds[stage]);
    json_write_close(json, '}');
}

/* Of the stages that have weights. */
static void write_weights(struct json_writer *json, const char *key, const uint64_t *bytes)
{
    json_write_key(json, key);
    json_write_open(json, '{');
    for (int stage = 0; stage < STAGE_KIND_COUNT; stage++) {
        if (bytes[stage] > 0)
            write_int(json, stage_names[stage], bytes[stage]);
    }
    json_write_close(json, '}');
}

static void write_phases(struct json_writer *json, const struct phasor_batch_result *result)
{
    write_int(json, "prefill_tokens", result->prefill_tokens);
    write_number(json, "prefill_s", result->prefill_seconds);
    write_stages(json, "prefill_stages_s", result->prefill_stage_seconds);
    write_weights(json, "prefill_weights_read_bytes", result->prefill_weight_bytes);
    write_int(json, "decode_tokens", result->decode_tokens);
    write_number(json, "decode_s", result->decode_seconds);
    write_stages(json, "decode_stages_s", result->decode_stage_seconds);
    write_weights(json, "decode_weights_read_bytes", result->decode_weight_bytes);
    write_int(json, "shared_tokens", result->shared_tokens);
}

/* Of a plan that was chosen for this batch. */
static void write_prediction(struct json_writer *json, const struct phasor_batch_result *result)
{
    if (!result->has_prediction)
        return;
    write_number(json, "predicted_prefill_s", result->predicted_prefill_seconds);
    write_number(json, "predicted_decode_s", result->predicted_decode_seconds);
    write_number(json, "predicted_between_s", result->predicted_between_seconds);
    if (result->predicted_plan_change_seconds > 0)
        write_number(json, "predicted_plan_change_s", result->predicted_plan_change_seconds);
}

static void write_ranks(struct json_writer *json, const struct phasor_batch_result *result)
{
    write_int(json, "peak_memory_bytes", result->peak_bytes);
    write_int(json, "kv_cache_bytes", result->kv_bytes);
    write_int(json, "kv_cache_taken_bytes", result->kv_taken_bytes);
    json_write_key(json, "rank_peak_memory_bytes");
    json_write_open(json, '[');
    for (int r = 0; r < result->rank_count; r++)
        json_write_int(json, (int64_t)result->rank_peak_bytes[r]);
    json_write_close(json, ']');
    json_write_key(json, "collective_bytes");
    json_write_open(json, '{');
    for (int kind = 0; kind < TRAFFIC_KIND_COUNT; kind++)
        write_int(json, traffic_names[kind], result->collective_bytes[kind]);
    json_write_close(json, '}');
}

/* Where rows had plans of their own. */
static void write_plan_changes(struct json_writer *json, const struct phasor_batch_result *result)
{
    if (result->plan_changes == 0)
        return;
    write_int(json, "plan_changes", result->plan_changes);
    write_number(json, "plan_change_s", result->plan_change_seconds);
}

/* Each layer's experts: how they lie now, and how they came there. */
static void write_layers(struct json_writer *json, const struct batch_snapshot *now)
{
    json_write_key(json, "expert_layers");
    json_write_open(json, '[');
    for (int64_t layer = 0; layer < now->layer_count; layer++) {
        struct transition_origin origin = transition_layer(now->transition, layer);
        char layout[LAYOUT_TEXT_BYTES];
        if (!origin.has_experts)
            continue;
        layout_format(layout, &now->layouts->of[origin.phase]);
        json_write_open(json, '{');
        json_write_key(json, "layer");
        json_write_int(json, layer);
        json_write_key(json, "layout");
        json_write_string(json, strchr(layout, '|') + 1);
        json_write_key(json, "by");
        json_write_string(json, origin.is_loaded ? "load" : way_names[origin.way]);
        json_write_key(json, "provenance");
        json_write_string(json, origin.is_int4 ? "int4" : "native");
        json_write_close(json, '}');
    }
    json_write_close(json, ']');
}

static void write_backup_source(struct json_writer *json, const struct transition *transition)
{
    char source[TRANSITION_SOURCE_BYTES];
    if (transition_way(transition) != WAY_UPLOAD)
        return;
    transition_source(source, transition);
    json_write_key(json, "backup_source");
    json_write_string(json, source);
}

static void write_transitions(struct json_writer *json, const struct batch_snapshot *now)
{
    if (now->transition != NULL) {
        json_write_key(json, "transition");
        json_write_string(json, way_names[transition_way(now->transition)]);
        write_backup_source(json, now->transition);
    }
    if (now->transition != NULL || now->result->transitions > 0) { /* of an earlier part */
        write_int(json, "transitions", now->result->transitions);
        write_number(json, "transition_s", now->result->transition_seconds);
    }
    if (now->transition != NULL)
        write_layers(json, now);
}

void batch_summary_write(struct text *out, const struct batch_snapshot *now)
{
    struct json_writer json = {.out = out};
    json_write_open(&json, '{');
    write_rows(&json, now);
    write_tokens(&json, now->result);
    write_latency(&json, "ttft", &now->result->ttft);
    write_latency(&json, "tpot", &now->result->tpot);
    write_latency(&json, "itl", &now->result->itl);
    write_latency(&json, "e2el", &now->result->e2el);
    write_phases(&json, now->result);
    write_prediction(&json, now->result);
    write_ranks(&json, now->result);
    write_plan_changes(&json, now->result);
    write_transitions(&json, now);
    json_write_close(&json, '}');
    text_append_string(out, "\n");
}
