/* The file of --record: from the nodes on the lanes of threads (base/record.h) to a recording
 * (replay/recording.h). */
#ifndef PHASOR_ENGINE_BATCH_RECORDING_H
#define PHASOR_ENGINE_BATCH_RECORDING_H

#include "base/status.h"
#include "engine/engine.h"
#include "phasor.h"
#include "replay/recording.h"

struct batch_recording_params {
    const struct engine *engine; /* whose trace has recorded, and has stopped */
    const struct phasor_batch_result *result;
    double wall_seconds; /* between start and stop */
};

/* What of a transition was under way at the end, so that some rank had not done its part, is left
 * out, for nobody waited for it. STATUS_INTERNAL: something else is missing; STATUS_LIMIT: there is
 * more than a recording holds. `out` is the caller's, to deinit. */
enum status batch_recording_get(struct recording *out, const struct batch_recording_params *params,
                                struct error *err) MUST_CHECK;

#endif
