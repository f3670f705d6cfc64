#include "own_points.h"

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

static void offer_works(struct drawing *drawing, const struct profile_file *file, int t,
                        const struct meter *meter)
{
    const struct work_table *table = &file->profile.work[t];
    const struct grid *grid = grid_of(file, table);
    for (int64_t i = 0; grid != NULL && i < profile_table_points(table); i++) {
        const struct profile_point *measured = &file->work_points[t][i];
        struct own_point point = {.work = work_at(table, grid, i), .seconds = measured->seconds};
        if (measured->repeats > 0 && meter_holds(meter, &point.work))
            offer(drawing, &point);
    }
}

static void offer_collectives(struct drawing *drawing, const struct collective_table *table,
                              const struct meter *meter)
{
    for (int i = 0; i < table->point_count; i++) {
        struct own_point point = {.is_collective = true,
                                  .op = table->op,
                                  .size = table->size,
                                  .is_strided = table->is_strided,
                                  .bytes = (int64_t)table->bytes[i],
                                  .seconds = table->seconds[i]};
        if (point.bytes <= meter_collective_bytes_max(meter))
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
