/* Grids become tables: measured, looked at between their points, and refined. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "engine/calibrate_state.h"
#include "engine/profile_names.h"

/* Of work without flops, or without bytes: the roofline is the other's. */
#define NO_LIMIT_PER_SECOND 1e20

/* Points closer than this are one. */
#define STEP_MIN 1.3

/* ---- A table that grows ---------------------------------------------------------------------- */

struct builder {
    struct calibration *now;
    const struct grid *from;
    struct grid grid; /* with what was added */
    struct work_table table;
    double *log_ratios; /* [points_max] */
    struct profile_point *points;
};

static double roofline(const struct work_table *table, const struct work_shape *work)
{
    return table->fixed + fmax(work_shape_flops(work) / table->flops_per_second,
                               work_shape_bytes(work) / table->bytes_per_second);
}

/* The three shapes of the grid, one after another: what is known of one is taken off the next. */
static enum status roofline_measure(struct builder *builder, struct error *err)
{
    struct work_table *table = &builder->table;
    const struct grid *grid = builder->from;
    struct profile_point flops, bytes, least;
    TRY(calibration_work(&flops, builder->now, &grid->most_flops, err));
    TRY(calibration_work(&bytes, builder->now, &grid->most_bytes, err));
    TRY(calibration_work(&least, builder->now, &grid->least, err));
    double count = work_shape_flops(&grid->most_flops);
    table->flops_per_second = count > 0 ? count / flops.seconds : NO_LIMIT_PER_SECOND;
    table->bytes_per_second = work_shape_bytes(&grid->most_bytes) / bytes.seconds;
    table->fixed = 0;
    table->fixed = fmax(least.seconds - roofline(table, &grid->least), 1e-9);
    return STATUS_OK;
}

static bool is_measurable(const struct builder *builder, const struct work_shape *work)
{
    return meter_holds(builder->now->meter, work) &&
           roofline(&builder->table, work) <= builder->now->plan->launch_seconds;
}

static int64_t grid_points(const struct grid *grid)
{
    int64_t count = 1;
    for (int a = 0; a < grid->axis_count; a++)
        count *= grid->axes[a].count;
    return count;
}

/* Values and places of the point-th combination, the last axis fastest. */
static void place_of(int places[PROFILE_AXES_MAX], double values[PROFILE_AXES_MAX],
                     const struct grid *grid, int64_t point)
{
    for (int a = grid->axis_count - 1; a >= 0; a--) {
        places[a] = (int)(point % grid->axes[a].count);
        values[a] = grid->axes[a].values[places[a]];
        point /= grid->axes[a].count;
    }
}

/* What was not measured is the mean of the neighbours below it. */
static double ratio_below(const struct builder *builder, const int places[PROFILE_AXES_MAX],
                          int64_t point)
{
    double sum = 0;
    int count = 0;
    int64_t stride = 1;
    for (int a = builder->grid.axis_count - 1; a >= 0; a--) {
        if (places[a] > 0) {
            sum += builder->log_ratios[point - stride];
            count++;
        }
        stride *= builder->grid.axes[a].count;
    }
    return count > 0 ? sum / count : 0;
}

/* Points that the store has cost nothing. */
static enum status fill(struct builder *builder, struct error *err)
{
    int64_t count = grid_points(&builder->grid);
    builder->table.axis_count = builder->grid.axis_count;
    for (int a = 0; a < builder->grid.axis_count; a++) {
        const struct grid_axis *axis = &builder->grid.axes[a];
        builder->table.axes[a] =
            (struct profile_axis){axis->size, axis->over, axis->count, axis->values};
    }
    for (int64_t i = 0; i < count; i++) {
        int places[PROFILE_AXES_MAX];
        double values[PROFILE_AXES_MAX];
        place_of(places, values, &builder->grid, i);
        struct work_shape work = grid_work(&builder->grid, values);
        if (!is_measurable(builder, &work)) {
            builder->points[i] = (struct profile_point){0, 0, 0};
            builder->log_ratios[i] = ratio_below(builder, places, i);
            continue;
        }
        TRY(calibration_work(&builder->points[i], builder->now, &work, err));
        builder->log_ratios[i] = log(builder->points[i].seconds / roofline(&builder->table, &work));
    }
    return STATUS_OK;
}

/* ---- Where a table errs ---------------------------------------------------------------------- */

/* Between two values of an axis, in their logarithms; 0: there is none. */
static double between(const struct grid_axis *axis, int low)
{
    double a = axis->values[low], b = axis->values[low + 1];
    double value = nearbyint(sqrt(a * b) / axis->step) * axis->step;
    return b / a < STEP_MIN || value <= a || value >= b ? 0 : value;
}

/* By how much the middle of an interval errs beyond what is allowed, with the other axes at their
 * first values, and at their last; -INFINITY: it cannot be told. */
static enum status interval_error(double *out, struct builder *builder, int axis, double middle,
                                  struct error *err)
{
    struct profile profile = {.work_count = 1, .work = &builder->table};
    *out = -INFINITY;
    for (int side = 0; side < 2; side++) {
        double values[PROFILE_AXES_MAX];
        for (int a = 0; a < builder->grid.axis_count; a++) {
            const struct grid_axis *other = &builder->grid.axes[a];
            values[a] = other->values[side == 0 ? 0 : other->count - 1];
        }
        values[axis] = middle;
        struct work_shape work = grid_work(&builder->grid, values);
        struct profile_point point;
        if (!is_measurable(builder, &work))
            continue;
        TRY(calibration_work(&point, builder->now, &work, err));
        double error = fabs(log(point.seconds / profile_work_seconds(&profile, &work)));
        *out = fmax(*out, error - builder->now->plan->tolerance - point.spread);
    }
    return STATUS_OK;
}

/* Whether one more value of an axis leaves the table as small as it has to be. */
static bool has_room(const struct grid *grid, int axis)
{
    int64_t points = grid_points(grid);
    return grid->axes[axis].count < GRID_VALUES_MAX &&
           points + points / grid->axes[axis].count <= grid->points_max;
}

struct worst {
    int axis, low;
    double middle, error;
};

static enum status worst_find(struct worst *out, struct builder *builder, struct error *err)
{
    *out = (struct worst){.axis = -1};
    for (int a = 0; a < builder->grid.axis_count; a++) {
        const struct grid_axis *axis = &builder->grid.axes[a];
        for (int low = 0; low + 1 < axis->count && has_room(&builder->grid, a); low++) {
            double error, middle = between(axis, low);
            if (middle == 0)
                continue;
            TRY(interval_error(&error, builder, a, middle, err));
            if (error > 0 && (out->axis < 0 || error > out->error))
                *out = (struct worst){a, low, middle, error};
        }
    }
    return STATUS_OK;
}

static void value_insert(struct grid_axis *axis, int low, double value)
{
    memmove(axis->values + low + 2, axis->values + low + 1,
            (size_t)(axis->count - low - 1) * sizeof *axis->values);
    axis->values[low + 1] = value;
    axis->count++;
}

static enum status refine(struct builder *builder, struct error *err)
{
    for (;;) {
        struct worst worst;
        TRY(worst_find(&worst, builder, err));
        if (worst.axis < 0)
            return STATUS_OK;
        value_insert(&builder->grid.axes[worst.axis], worst.low, worst.middle);
        TRY(fill(builder, err));
    }
}

/* ---- Into the profile ------------------------------------------------------------------------ */

static enum status numbers_copy(const double **out, struct calibration *now, const double *from,
                                int64_t count, struct error *err)
{
    double *values;
    TRY(calibration_get(&values, now, (size_t)count, sizeof *values, err));
    memcpy(values, from, (size_t)count * sizeof *values);
    *out = values;
    return STATUS_OK;
}

static enum status points_copy(const struct profile_point **out, struct calibration *now,
                               const struct profile_point *from, int64_t count, struct error *err)
{
    struct profile_point *points;
    TRY(calibration_get(&points, now, (size_t)count, sizeof *points, err));
    memcpy(points, from, (size_t)count * sizeof *points);
    *out = points;
    return STATUS_OK;
}

static enum status table_keep(struct work_table *table, const struct profile_point **points,
                              const struct builder *builder, struct error *err)
{
    int64_t count = grid_points(&builder->grid);
    *table = builder->table;
    for (int a = 0; a < table->axis_count; a++)
        TRY(numbers_copy(&table->axes[a].values, builder->now, builder->grid.axes[a].values,
                         table->axes[a].count, err));
    TRY(numbers_copy(&table->log_ratios, builder->now, builder->log_ratios, count, err));
    return points_copy(points, builder->now, builder->points, count, err);
}

static enum status table_build(struct builder *builder, struct error *err)
{
    TRY(memory_get((void **)&builder->log_ratios, (size_t)builder->from->points_max,
                   sizeof *builder->log_ratios, "a table of the profile", err));
    TRY(memory_get((void **)&builder->points, (size_t)builder->from->points_max,
                   sizeof *builder->points, "a table of the profile", err));
    TRY(roofline_measure(builder, err));
    TRY(fill(builder, err));
    builder->table.log_ratios = builder->log_ratios;
    return refine(builder, err);
}

enum status calibration_works(struct calibration *now, struct error *err)
{
    struct work_table *tables;
    const struct profile_point **points;
    size_t count = (size_t)now->plan->grid_count;
    TRY(calibration_get(&tables, now, count, sizeof *tables, err));
    TRY(calibration_get(&points, now, count, sizeof *points, err));
    for (size_t g = 0; g < count; g++) {
        const struct grid *grid = &now->plan->grids[g];
        struct builder builder = {.now = now,
                                  .from = grid,
                                  .grid = *grid,
                                  .table = {.kind = grid->kind, .dtype = grid->dtype}};
        calibration_expect(now, grid->points_max);
        enum status status = table_build(&builder, err);
        if (status == STATUS_OK)
            status = table_keep(&tables[g], &points[g], &builder, err);
        memory_free(builder.log_ratios);
        memory_free(builder.points);
        TRY(status);
        now->done = now->done_max;
    }
    now->out->profile.work = tables;
    now->out->profile.work_count = (int)count;
    now->out->work_points = points;
    return STATUS_OK;
}

/* ---- Collectives ----------------------------------------------------------------------------- */

struct collective_builder {
    struct calibration *now;
    struct collective_table table;
    double bytes[GRID_VALUES_MAX], seconds[GRID_VALUES_MAX];
    struct profile_point points[GRID_VALUES_MAX];
};

static enum status message_measure(struct profile_point *out, struct collective_builder *builder,
                                   int64_t bytes, struct error *err)
{
    const struct collective_table *table = &builder->table;
    struct collective_shape shape = {.op = table->op,
                                     .size = table->size,
                                     .is_strided = table->is_strided,
                                     .bytes = bytes,
                                     .fullest = table->to_one ? table->size : 1};
    return calibration_collective(out, builder->now, &shape, err);
}

static void message_insert(struct collective_builder *builder, int at, double bytes,
                           const struct profile_point *point)
{
    int behind = builder->table.point_count++ - at;
    memmove(builder->bytes + at + 1, builder->bytes + at, (size_t)behind * sizeof(double));
    memmove(builder->seconds + at + 1, builder->seconds + at, (size_t)behind * sizeof(double));
    memmove(builder->points + at + 1, builder->points + at,
            (size_t)behind * sizeof *builder->points);
    builder->bytes[at] = bytes;
    builder->seconds[at] = point->seconds;
    builder->points[at] = *point;
}

/* As the plan has them, in whole parts; those that are one then, or too large, once or not at all.
 */
static enum status messages_coarse(struct collective_builder *builder, struct error *err)
{
    const struct calibrate_plan *plan = builder->now->plan;
    const struct collective_table *table = &builder->table;
    int64_t most = meter_collective_bytes_max(builder->now->meter);
    for (int i = 0; i < plan->collective_count; i++) {
        int64_t bytes = meter_collective_bytes(table->op, table->size, plan->collective_bytes[i]);
        int last = table->point_count - 1;
        struct profile_point point;
        if ((bytes > most && i > 0) || (last >= 0 && (double)bytes <= builder->bytes[last]))
            continue;
        TRY(message_measure(&point, builder, bytes, err));
        message_insert(builder, last + 1, (double)bytes, &point);
    }
    return STATUS_OK;
}

static enum status message_worst(int *low, int64_t *middle, struct profile_point *out,
                                 struct collective_builder *builder, struct error *err)
{
    const struct collective_table *table = &builder->table;
    double worst = 0;
    *low = -1;
    for (int i = 0; i + 1 < table->point_count; i++) {
        int64_t bytes = meter_collective_bytes(
            table->op, table->size, (int64_t)sqrt(builder->bytes[i] * builder->bytes[i + 1]));
        struct profile_point point;
        if ((double)bytes < builder->bytes[i] * STEP_MIN ||
            (double)bytes * STEP_MIN > builder->bytes[i + 1])
            continue;
        TRY(message_measure(&point, builder, bytes, err));
        double predicted = profile_message_seconds(table, (double)bytes);
        double error =
            fabs(log(point.seconds / predicted)) - builder->now->plan->tolerance - point.spread;
        if (error > worst) {
            worst = error;
            *low = i;
            *middle = bytes;
            *out = point;
        }
    }
    return STATUS_OK;
}

static enum status collective_build(struct collective_builder *builder, struct error *err)
{
    int most = builder->now->plan->collective_points_max;
    TRY(messages_coarse(builder, err));
    builder->table.bytes = builder->bytes;
    builder->table.seconds = builder->seconds;
    while (builder->table.point_count < most && builder->table.point_count < GRID_VALUES_MAX) {
        int low;
        int64_t middle;
        struct profile_point point;
        TRY(message_worst(&low, &middle, &point, builder, err));
        if (low < 0)
            break;
        message_insert(builder, low + 1, (double)middle, &point);
    }
    return STATUS_OK;
}

static enum status collective_keep(struct collective_table *out,
                                   const struct profile_point **points,
                                   const struct collective_builder *builder, struct error *err)
{
    int count = builder->table.point_count;
    *out = builder->table;
    TRY(numbers_copy(&out->bytes, builder->now, builder->bytes, count, err));
    TRY(numbers_copy(&out->seconds, builder->now, builder->seconds, count, err));
    return points_copy(points, builder->now, builder->points, count, err);
}

static bool is_group(const struct calibration *now, int size, bool is_strided)
{
    int ranks = now->params.devices.rank_count;
    return ranks % size == 0 && (!is_strided || size < ranks);
}

enum status calibration_collectives(struct calibration *now, struct error *err)
{
    struct collective_table *tables;
    const struct profile_point **points;
    const struct calibrate_plan *plan = now->plan;
    int count = 0, most = now->params.devices.rank_count * 2 * CALIBRATE_COLLECTIVES;
    TRY(calibration_get(&tables, now, (size_t)most, sizeof *tables, err));
    TRY(calibration_get(&points, now, (size_t)most, sizeof *points, err));
    for (int i = 4 * CALIBRATE_COLLECTIVES; i < most + 2 * CALIBRATE_COLLECTIVES; i++) {
        int size = i / (2 * CALIBRATE_COLLECTIVES), which = i % CALIBRATE_COLLECTIVES;
        bool to_one = which == GROUP_OP_COUNT;
        struct collective_builder builder = {
            .now = now,
            .table = {.op = to_one ? GROUP_ALL_TO_ALL : (enum group_op)which,
                      .size = size,
                      .is_strided = i / CALIBRATE_COLLECTIVES % 2 == 1,
                      .to_one = to_one}};
        if (plan->collective_count == 0 || !is_group(now, size, builder.table.is_strided))
            continue;
        calibration_expect(now, plan->collective_points_max);
        TRY(collective_build(&builder, err));
        TRY(collective_keep(&tables[count], &points[count], &builder, err));
        count++;
        now->done = now->done_max;
    }
    now->out->profile.collectives = tables;
    now->out->profile.collective_count = count;
    now->out->collective_points = points;
    return STATUS_OK;
}
