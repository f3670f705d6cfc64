/* The file of --record: from the nodes on the lanes of threads (base/record.h) to a recording
 * (replay/recording.h). */
#ifndef PHASOR_ENGINE_BATCH_RECORDING_H
#define PHASOR_ENGINE_BATCH_RECORDING_H

#include "base/status.h"
#include "engine/engine.h"
#include "phasor.h"
#include "replay/recording.h"

/* Of nodes on lanes. One took 104 to 115 bytes, with its needs and what collectives were of (2 and
 * 4 ranks): so some 4.7 million of them, more than a wave of 256 rows on four ranks. The file and
 * its arrays, which come behind, take 76 to 80: both together are below a gigabyte. */
#define RECORDING_BYTES_MAX  ((int64_t)512 << 20)
#define RECORDING_BYTES_TEXT "512 MiB"

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
