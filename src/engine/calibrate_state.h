/* What the files calibrate*.c share: a calibration under way. */
#ifndef PHASOR_ENGINE_CALIBRATE_STATE_H
#define PHASOR_ENGINE_CALIBRATE_STATE_H

#include <limits.h>

#include "engine/calibrate.h"
#include "engine/calibrate_store.h"
#include "measure/calm.h"

struct calibration {
    struct calibrate_params params;
    const struct calibrate_plan *plan;
    char partial_path[PATH_MAX], read_path[PATH_MAX];
    struct box *box;
    struct meter *meter;
    struct calm_meter calm; /* of it */
    struct calibrate_store store;
    struct profile_file *out;
    uint64_t done, total; /* points, for progress */
    uint64_t done_max;    /* of what is measured now: what is looked at between points counts, too,
                           * where there are fewer than there might be */
    size_t looked_once;   /* entries of the store that were there when the second round began */
    double saved_at;
    struct calibrate_report report;
};

/* The point of a shape, from the store or measured now. */
enum status calibration_work(struct profile_point *out, struct calibration *now,
                             const struct work_shape *work, struct error *err) MUST_CHECK;
enum status calibration_collective(struct profile_point *out, struct calibration *now,
                                   const struct collective_shape *shape,
                                   struct error *err) MUST_CHECK;

/* Tables of the plan into now->out. */
enum status calibration_works(struct calibration *now, struct error *err) MUST_CHECK;
enum status calibration_collectives(struct calibration *now, struct error *err) MUST_CHECK;

/* All rates into now->out. */
enum status calibration_rates(struct calibration *now, struct error *err) MUST_CHECK;

/* So many points at most come next; now->done_max is what `done` is when they are there. */
void calibration_expect(struct calibration *now, int points);

/* Keeps what was measured, where it is time for it; asks whether to go on. */
enum status calibration_step(struct calibration *now, const char *what,
                             struct error *err) MUST_CHECK;

/* What was measured, into the store. */
enum status calibration_keep(struct calibration *now, const struct calibrate_entry *entry,
                             struct error *err) MUST_CHECK;

/* Memory of the profile. */
enum status calibration_get(void *out, struct calibration *now, size_t count, size_t size,
                            struct error *err) MUST_CHECK;

#endif
