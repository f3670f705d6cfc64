/* What a run of a batch says about itself: to Prometheus, and in the end as JSON, its numbers and
 * what ran when. Names and meanings are in docs/batch-format.md, "Metrics", and docs/trace.md. */
#ifndef PHASOR_ENGINE_BATCH_METRICS_H
#define PHASOR_ENGINE_BATCH_METRICS_H

#include <stdbool.h>

#include "base/text.h"
#include "base/trace.h"
#include "engine/batch_meter.h"
#include "engine/generator.h"
#include "engine/rank_use.h"
#include "engine/routing_counts.h"
#include "phasor.h"
#include "transition/transition.h"

/* A run at one moment. */
struct batch_snapshot {
    const char *model_name;
    const char *plan;
    const struct phasor_batch_result *result; /* complete */
    const struct batch_meter *meter;
    const struct rank_use *use;
    const struct plan_layouts *layouts;
    const struct transition *transition; /* NULL: the plan has one layout */
    struct trace *trace;
    const char *kernels;
    struct routing_counts *routing; /* NULL: they were not counted */
    double started_at;              /* by system_seconds */
    int64_t layer_count;
    struct generator_counters counters;
    uint64_t generated_tokens; /* in rows that are in flight, too */
    int64_t begun_at;          /* seconds since 1970 */
    bool has_ended;
    const char *status; /* how: a word of status_name */
};

/* All append; out of memory shows in text_check. */
void batch_metrics_write(struct text *out, const struct batch_snapshot *now);
void batch_summary_write(struct text *out, const struct batch_snapshot *now);
void batch_trace_write(struct text *out, const struct batch_snapshot *now);

#endif
