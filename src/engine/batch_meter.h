/* How long the choices of a batch take, in vLLM's words:
 *
 *   TTFT   submission to the first token
 *   TPOT   (E2EL - TTFT) / (tokens - 1), one for each choice; choices of one token have none
 *   ITL    the time from one token to the next, each gap of each choice
 *   E2EL   submission to the last token
 *
 * A choice is submitted when its row has been read, so TTFT and E2EL have the wait behind the rows
 * before it. Each choice counts by itself, since each is a sequence of its own; lengths are of
 * rows, as `usage` tells them. A stop token is a token. Choices that failed or were cancelled count
 * in ITL alone, whose gaps count as they come; those that were to generate nothing, in E2EL alone.
 */
#ifndef PHASOR_ENGINE_BATCH_METER_H
#define PHASOR_ENGINE_BATCH_METER_H

#include <stdint.h>

#include "engine/generator.h"
#include "engine/histogram.h"
#include "engine/latency.h"

enum meter_latency { METER_TTFT, METER_TPOT, METER_ITL, METER_E2EL, METER_LATENCY_COUNT };

/* The times of a choice from its end, and the lengths of a row, for Prometheus. */
enum meter_histogram {
    METER_FIRST_TOKEN,
    METER_PER_TOKEN,
    METER_GAP,
    METER_WHOLE,
    METER_QUEUED,    /* submission to prefill */
    METER_PREFILL,   /* prefill to the first token */
    METER_DECODE,    /* first token to last */
    METER_INFERENCE, /* prefill to the last token */
    METER_PROMPT_TOKENS,
    METER_GENERATED_TOKENS,
    METER_HISTOGRAM_COUNT
};

struct batch_meter {
    struct latency latencies[METER_LATENCY_COUNT];
    struct histogram histograms[METER_HISTOGRAM_COUNT];
    uint64_t stop_count, length_count; /* choices by what ended them */
};

void batch_meter_init(struct batch_meter *meter);

/* A token came so long after the one before it of the same choice. */
void batch_meter_gap(struct batch_meter *meter, double seconds);

/* A choice has ended, in whatever way. */
void batch_meter_choice(struct batch_meter *meter, const struct sequence_end *end);

/* A row is complete. */
void batch_meter_row(struct batch_meter *meter, int64_t prompt_tokens, int64_t generated_tokens);

#endif
