#include "engine/batch_meter.h"

void batch_meter_init(struct batch_meter *meter)
{
    *meter = (struct batch_meter){0};
    for (int i = 0; i < METER_HISTOGRAM_COUNT; i++) {
        bool is_length = i == METER_PROMPT_TOKENS || i == METER_GENERATED_TOKENS;
        meter->histograms[i].bounds = is_length ? &histogram_tokens : &histogram_seconds;
    }
}

static void add(struct batch_meter *meter, enum meter_latency latency,
                enum meter_histogram histogram, double seconds)
{
    latency_add(&meter->latencies[latency], seconds);
    histogram_add(&meter->histograms[histogram], seconds);
}

void batch_meter_gap(struct batch_meter *meter, double seconds)
{
    add(meter, METER_ITL, METER_GAP, seconds);
}

static void add_tokens(struct batch_meter *meter, const struct sequence_end *end)
{
    double decode = end->total_seconds - end->first_token_seconds;
    add(meter, METER_TTFT, METER_FIRST_TOKEN, end->first_token_seconds);
    histogram_add(&meter->histograms[METER_PREFILL],
                  end->first_token_seconds - end->queued_seconds);
    histogram_add(&meter->histograms[METER_DECODE], decode);
    if (end->token_count > 1)
        add(meter, METER_TPOT, METER_PER_TOKEN, decode / (double)(end->token_count - 1));
}

void batch_meter_choice(struct batch_meter *meter, const struct sequence_end *end)
{
    if (end->reason == FINISH_FAILED || end->reason == FINISH_CANCELLED)
        return;
    if (end->reason == FINISH_LENGTH)
        meter->length_count++;
    else
        meter->stop_count++;
    add(meter, METER_E2EL, METER_WHOLE, end->total_seconds);
    histogram_add(&meter->histograms[METER_QUEUED], end->queued_seconds);
    histogram_add(&meter->histograms[METER_INFERENCE], end->total_seconds - end->queued_seconds);
    if (end->token_count > 0)
        add_tokens(meter, end);
}

void batch_meter_row(struct batch_meter *meter, int64_t prompt_tokens, int64_t generated_tokens)
{
    histogram_add(&meter->histograms[METER_PROMPT_TOKENS], (double)prompt_tokens);
    histogram_add(&meter->histograms[METER_GENERATED_TOKENS], (double)generated_tokens);
}
