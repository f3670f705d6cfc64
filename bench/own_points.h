/* Points that a profile has, to be measured again: what no prediction can be better than is how far
 * the machine is now from where the profile was made. */
#ifndef PHASOR_BENCH_OWN_POINTS_H
#define PHASOR_BENCH_OWN_POINTS_H

#include "base/random.h"
#include "engine/profile_file.h"
#include "measure/meter.h"

struct own_point {
    bool is_collective;
    struct work_shape work;
    struct collective_shape collective;
    double seconds; /* as the profile has it */
};

/* Up to `count` of those that were measured, that the meter holds, and that `wants` wants, at
 * random: how many they are. */
int own_points_draw(struct own_point *out, int count, const struct profile_file *file,
                    const struct meter *meter, struct random *draws,
                    bool (*wants)(const struct own_point *point, int context), int context);

/* Of those that were measured and that the meter holds, the one nearest to an operation, in the
 * logarithms of what its table's axes are of, or to a collective of the same kind, of bytes; false:
 * there is none. */
bool own_point_near_work(struct own_point *out, const struct profile_file *file,
                         const struct meter *meter, const struct work_shape *work);
bool own_point_near_collective(struct own_point *out, const struct profile_file *file,
                               const struct meter *meter, const struct collective_shape *shape);

#endif
