/* What a run of a batch tells about itself beside its rows: the numbers of its result, the file for
 * Prometheus while it runs, the summary at its end. */
#ifndef PHASOR_ENGINE_BATCH_REPORT_H
#define PHASOR_ENGINE_BATCH_REPORT_H

#include "base/log.h"
#include "base/status.h"
#include "engine/batch_meter.h"
#include "engine/batch_parts.h"
#include "engine/batch_row.h"
#include "engine/engine.h"
#include "engine/session.h"
#include "phasor.h"

struct batch_report;

/* All is borrowed, and looked at when there is something to tell. */
struct batch_report_params {
    const struct phasor_batch_params *params;
    const struct engine *engine;
    const struct session *session;
    const struct batch_world *world;
    const struct log_sink *log;
    struct phasor_batch_result *result; /* rows and tokens are counted by the caller */
};

/* Refuses names as batch_names.h tells (STATUS_INVALID_ARGUMENT or what the system says); nothing
 * is left behind. */
enum status batch_report_create(struct batch_report **out, const struct batch_report_params *params,
                                struct error *err) MUST_CHECK;
void batch_report_destroy(struct batch_report *report); /* NULL is allowed */

struct batch_meter *batch_report_meter(struct batch_report *report);

/* The session is open and the first row is about to start. `parts` is borrowed; NULL: all rows have
 * the engine's plan. Removes an earlier run's summary and
 * trace, unless that has done all rows. */
void batch_report_begin(struct batch_report *report, const struct batch_parts *parts);

/* Around a change of the engine's plan: the session is about to be closed; and it is open again.
 * What stands between them is counted as a change. Where it never opens again the run ends with
 * batch_report_end all the same. */
void batch_report_pause(struct batch_report *report);
void batch_report_go_on(struct batch_report *report);

/* Sums of the sessions before the one that opens next, for session_params; NULL: it is the first.
 */
const struct generator_counters *batch_report_counters(const struct batch_report *report);

/* Writes metrics, the first time and then every few seconds. To be called often, between passes. */
void batch_report_tick(struct batch_report *report);

/* Completes the result of a run that has begun, however it ended, and writes all files a last time,
 * but not over those of a run that this one found finished. The session is still open, or paused.
 * Of a run
 * that has not begun, removes what an earlier one left, unless output or errors were refused. */
void batch_report_end(struct batch_report *report, enum status status);

#endif
