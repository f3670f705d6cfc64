#include "own_points.h"

#include <math.h>

#include "engine/calibrate_grid.h"

static const struct grid *grid_of(const struct profile_file *file, const struct work_table *table)
{
    const struct calibrate_plan *plan = calibrate_plan_of(&file->identity.devices);
    for (int g = 0; g < plan->grid_count; g++) {
        if (plan->grids[g].kind == table->kind && plan->grids[g].dtype == table->dtype &&
            plan->grids[g].axis_count == table->axis_count)
            return &plan->grids[g];
    }
    return NULL;
}

/* The i-th of a table, the last axis fastest. */
static struct work_shape work_at(const struct work_table *table, const struct grid *grid, int64_t i)
{
    double values[PROFILE_AXES_MAX] = {0};
    for (int a = table->axis_count - 1; a >= 0; a--) {
        values[a] = table->axes[a].values[i % table->axes[a].count];
        i /= table->axes[a].count;
    }
    return grid_work(grid, values);
}

/* Each that is found takes a place among those drawn as likely as any before it. */
struct drawing {
    struct own_point *out;
    int count, seen;
    struct random *draws;
    bool (*wants)(const struct own_point *point, int context);
    int context;
};

static void offer(struct drawing *drawing, const struct own_point *point)
{
    if (!drawing->wants(point, drawing->context))
        return;
    int place = drawing->seen < drawing->count
                    ? drawing->seen
                    : (int)random_below(drawing->draws, (uint64_t)drawing->seen + 1);
    if (place < drawing->count)
        drawing->out[place] = *point;
    drawing->seen++;
}

/* The i-th of the t-th table; false: it was not measured, or the meter does not hold it. */
static bool work_point(struct own_point *out, const struct profile_file *file, int t, int64_t i,
                       const struct meter *meter)
{
    const struct work_table *table = &file->profile.work[t];
    const struct grid *grid = grid_of(file, table);
    const struct profile_point *measured = &file->work_points[t][i];
    if (grid == NULL || measured->repeats == 0)
        return false;
    *out = (struct own_point){.work = work_at(table, grid, i), .seconds = measured->seconds};
    return meter_holds(meter, &out->work);
}

static bool message_point(struct own_point *out, const struct collective_table *table, int i,
                          const struct meter *meter)
{
    *out = (struct own_point){.is_collective = true,
                              .collective = {.op = table->op,
                                             .size = table->size,
                                             .is_strided = table->is_strided,
                                             .bytes = (int64_t)table->bytes[i],
                                             .fullest = table->to_one ? table->size : 1},
                              .seconds = table->seconds[i]};
    return out->collective.bytes <= meter_collective_bytes_max(meter);
}

static void offer_works(struct drawing *drawing, const struct profile_file *file, int t,
                        const struct meter *meter)
{
    struct own_point point;
    for (int64_t i = 0; i < profile_table_points(&file->profile.work[t]); i++) {
        if (work_point(&point, file, t, i, meter))
            offer(drawing, &point);
    }
}

static void offer_collectives(struct drawing *drawing, const struct collective_table *table,
                              const struct meter *meter)
{
    struct own_point point;
    for (int i = 0; i < table->point_count; i++) {
        if (message_point(&point, table, i, meter))
            offer(drawing, &point);
    }
}

int own_points_draw(struct own_point *out, int count, const struct profile_file *file,
                    const struct meter *meter, struct random *draws,
                    bool (*wants)(const struct own_point *point, int context), int context)
{
    struct drawing drawing = {
        .out = out, .count = count, .draws = draws, .wants = wants, .context = context};
    for (int t = 0; t < file->profile.work_count; t++)
        offer_works(&drawing, file, t, meter);
    for (int t = 0; t < file->profile.collective_count; t++)
        offer_collectives(&drawing, &file->profile.collectives[t], meter);
    return drawing.seen < count ? drawing.seen : count;
}

/* ---- The nearest ----------------------------------------------------------------------------- */

static double axis_value(const struct profile_axis *axis, const struct work_shape *work)
{
    return work_shape_size(work, axis->size) /
           (axis->over < 0 ? 1 : work_shape_size(work, axis->over));
}

/* Of the shapes themselves: one that a grid makes is not always where its axes say. */
static double distance_of(const struct work_table *table, const struct work_shape *a,
                          const struct work_shape *b)
{
    double sum = 0;
    for (int axis = 0; axis < table->axis_count; axis++)
        sum += pow(log(axis_value(&table->axes[axis], a) / axis_value(&table->axes[axis], b)), 2);
    return sum;
}

bool own_point_near_work(struct own_point *out, const struct profile_file *file,
                         const struct meter *meter, const struct work_shape *work)
{
    double least = INFINITY;
    struct own_point point;
    for (int t = 0; t < file->profile.work_count; t++) {
        const struct work_table *table = &file->profile.work[t];
        if (table->kind != work->kind || table->dtype != work->dtype)
            continue;
        for (int64_t i = 0; i < profile_table_points(table); i++) {
            if (!work_point(&point, file, t, i, meter))
                continue;
            double apart = distance_of(table, &point.work, work);
            if (!(apart < least))
                continue;
            least = apart;
            *out = point;
        }
    }
    return least < INFINITY;
}

bool own_point_near_collective(struct own_point *out, const struct profile_file *file,
                               const struct meter *meter, const struct collective_shape *shape)
{
    double least = INFINITY;
    struct own_point point;
    for (int t = 0; t < file->profile.collective_count; t++) {
        const struct collective_table *table = &file->profile.collectives[t];
        if (table->op != shape->op || table->size != shape->size ||
            table->is_strided != shape->is_strided ||
            table->to_one != (shape->fullest > (1 + shape->size) / 2.0))
            continue;
        for (int i = 0; i < table->point_count; i++) {
            double apart = fabs(log((double)shape->bytes / table->bytes[i]));
            if (!message_point(&point, table, i, meter) || !(apart < least))
                continue;
            least = apart;
            *out = point;
        }
    }
    return least < INFINITY;
}
