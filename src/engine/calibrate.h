/* From devices to the profile of a box: what `phasor calibrate` does. */
#ifndef PHASOR_ENGINE_CALIBRATE_H
#define PHASOR_ENGINE_CALIBRATE_H

#include "base/log.h"
#include "engine/calibrate_grid.h"

/* Where what was measured is kept until all is. */
#define CALIBRATE_PARTIAL_SUFFIX ".partial"

#define CALIBRATE_THREADS_MAX 4096

struct calibrate_params {
    const char *output_path;
    struct engine_devices devices;
    int thread_count;                  /* see box_params */
    bool overwrites;                   /* a profile that is there */
    uint64_t memory_bytes;             /* 0: what is enough, at most a quarter of what is free; of
                                        * GPUs theirs, of all ranks together */
    const struct calibrate_plan *plan; /* NULL: calibrate_plan_of the devices */
    struct log_sink log;
    /* An answer other than 0 stops; before each point. `what` is a few words. May be NULL. */
    int (*progress)(void *context, uint64_t done, uint64_t total, const char *what);
    void *progress_context;
};

struct calibrate_report {
    struct profile_identity identity;
    uint64_t points_measured, points_found; /* found: by a run that was interrupted */
    uint64_t disturbed;   /* measured while the machine was not as usual: measure/calm.h */
    double spread_median; /* of all points */
};

/* Measures, writes the profile and takes away the partial file. A failure (STATUS_CANCELLED, too)
 * leaves the output as it was, and in the partial file what was measured: the next call goes on
 * from there where box and version are the same, and begins anew where not. */
enum status calibrate_run(struct calibrate_report *out, const struct calibrate_params *params,
                          struct error *err) MUST_CHECK;

#endif
