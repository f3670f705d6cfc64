/* Which shapes are measured: a grid for each kind of work, coarse at first, with points where
 * interpolation errs. */
#ifndef PHASOR_ENGINE_CALIBRATE_GRID_H
#define PHASOR_ENGINE_CALIBRATE_GRID_H

#include "engine/profile_file.h"
#include "engine/profile_names.h"

#define GRID_VALUES_MAX 24

struct grid_axis {
    int size, over; /* as of a profile_axis */
    int step;       /* values are multiples of it */
    int count;
    double values[GRID_VALUES_MAX];
};

/* One for each table of a profile. */
struct grid {
    enum work_kind kind;
    enum dtype dtype;
    int axis_count;
    struct grid_axis axes[PROFILE_AXES_MAX];
    int points_max; /* with all that are added: no more than so many */
    /* Of attention: as many segments as have so many tokens together, up to so many. */
    int64_t segments_max, tokens_max;
    /* The shapes of the roofline: what computes most in a second, what reads most, and what costs
     * least. */
    struct work_shape most_flops, most_bytes, least;
};

/* The shape at a value of each axis. What no axis tells is chosen by the kind. */
struct work_shape grid_work(const struct grid *grid, const double values[PROFILE_AXES_MAX]);

/* Tables of a size and stride: of each operation, and of an all-to-all to one member. */
#define CALIBRATE_COLLECTIVES (GROUP_OP_COUNT + 1)

/* What is measured of a box. */
struct calibrate_plan {
    const struct grid *grids;
    int grid_count;
    const int64_t *collective_bytes; /* rising */
    int collective_count;            /* of them; 0: no collective is measured */
    int collective_points_max;
    int64_t file_bytes;    /* of the file whose reading is measured; 0: no rate is measured */
    double launch_seconds; /* shapes of which one launch takes longer are left out */
    double tolerance;      /* where interpolation errs by more, and the spread, a point is added */
    double patience_seconds; /* see calm_params */
    double point_seconds;    /* see meter_params */
    double sample_seconds;
};

/* Four to eight minutes on two cores. */
extern const struct calibrate_plan calibrate_plan_default;

/* As long, and with larger shapes: a GPU reaches its rate where a pass has thousands of rows. */
extern const struct calibrate_plan calibrate_plan_gpus;

const struct calibrate_plan *calibrate_plan_of(const struct engine_devices *devices);

/* The points at most, for who shows progress. */
int64_t calibrate_plan_points(const struct calibrate_plan *plan, int rank_count);

#endif
