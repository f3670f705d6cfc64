#include "planner/profile.h"

#include <math.h>

/* A profile may say anything: what is no number, or below zero, is not known. */
static double known_or_infinite(double seconds)
{
    return seconds >= 0 ? seconds : INFINITY;
}

double profile_rate_seconds(double amount, double rate)
{
    if (!(amount > 0))
        return 0;
    return rate > 0 ? amount / rate : INFINITY;
}

/* Where a value stands between two points of an axis: the lower one, and the share of the other. */
struct place {
    int low;
    double share;
};

static struct place place_of(const double *values, int count, double value)
{
    int low = 0;
    if (count == 1 || !(value > values[0]))
        return (struct place){0, 0};
    if (value >= values[count - 1])
        return (struct place){count - 2, 1};
    while (value >= values[low + 1])
        low++;
    return (struct place){low, log(value / values[low]) / log(values[low + 1] / values[low])};
}

/* Heads that share a KV head tell apart attention of as many rows of scores: of more heads, or of
 * more query rows. Where each sequence has one row they are all heads, as they are at the last
 * value of that axis, whose points have no more heads than rows of scores. */
static bool are_scores_all_heads(const struct profile_axis *axis, const struct work_shape *work)
{
    return work->kind == WORK_ATTENTION && axis->size == 3 && axis->over == 4 &&
           work->dims[1] == work->dims[2];
}

static double axis_value(const struct profile_axis *axis, const struct work_shape *work)
{
    if (are_scores_all_heads(axis, work))
        return INFINITY;
    double over = axis->over < 0 ? 1 : work_shape_size(work, axis->over);
    return over > 0 ? work_shape_size(work, axis->size) / over : 0;
}

/* Multilinear, over the corners of the cell. */
static double log_ratio_of(const struct work_table *table, const struct work_shape *work)
{
    struct place places[PROFILE_AXES_MAX];
    double sum = 0;
    for (int a = 0; a < table->axis_count; a++)
        places[a] = place_of(table->axes[a].values, table->axes[a].count,
                             axis_value(&table->axes[a], work));
    for (int corner = 0; corner < 1 << table->axis_count; corner++) {
        double weight = 1;
        int64_t index = 0;
        for (int a = 0; a < table->axis_count; a++) {
            int high = corner >> a & 1;
            weight *= high ? places[a].share : 1 - places[a].share;
            index = index * table->axes[a].count + places[a].low + high;
        }
        if (weight > 0)
            sum += weight * table->log_ratios[index];
    }
    return sum;
}

static const struct work_table *work_table_of(const struct profile *profile, enum work_kind kind,
                                              enum dtype dtype)
{
    for (int i = 0; i < profile->work_count; i++) {
        const struct work_table *table = &profile->work[i];
        if (table->kind == kind && table->dtype == dtype)
            return table;
    }
    return NULL;
}

double profile_link_sharing(const struct profile *profile)
{
    double alone = profile->host_to_device, busy = profile->host_to_device_busy;
    double sharing = alone / busy - 1;
    return busy > 0 && sharing > 0 ? fmin(sharing, 1) : 0;
}

bool profile_has_work(const struct profile *profile, enum work_kind kind, enum dtype dtype)
{
    return work_table_of(profile, kind, dtype) != NULL;
}

double profile_work_seconds(const struct profile *profile, const struct work_shape *work)
{
    const struct work_table *table = work_table_of(profile, work->kind, work->dtype);
    struct work least = work_of(work);
    double bytes = (double)work_bytes(&least);
    if (bytes == 0)
        return 0;
    if (table == NULL)
        return INFINITY;
    double roofline =
        table->fixed + fmax(profile_rate_seconds((double)least.flops, table->flops_per_second),
                            profile_rate_seconds(bytes, table->bytes_per_second));
    return known_or_infinite(roofline * exp(log_ratio_of(table, work)));
}

/* Beyond the last point the last rate goes on, and before the first its time stands: a message is
 * never faster than the smallest that was measured. */
double profile_message_seconds(const struct collective_table *table, double bytes)
{
    int last = table->point_count - 1;
    if (bytes >= table->bytes[last])
        return known_or_infinite(table->seconds[last] * bytes / table->bytes[last]);
    struct place place = place_of(table->bytes, table->point_count, bytes);
    double low = table->seconds[place.low];
    return known_or_infinite(low * pow(table->seconds[place.low + 1] / low, place.share));
}

static const struct collective_table *table_of(const struct profile *profile, enum group_op op,
                                               int size, bool is_strided, bool to_one)
{
    for (int i = 0; i < profile->collective_count; i++) {
        const struct collective_table *table = &profile->collectives[i];
        if (table->op == op && table->size == size && table->is_strided == is_strided &&
            table->to_one == to_one)
            return table;
    }
    return NULL;
}

double profile_collective_seconds(const struct profile *profile, enum group_op op, int size,
                                  bool is_strided, double bytes)
{
    if (size < 2 || !(bytes > 0))
        return 0;
    const struct collective_table *table = table_of(profile, op, size, is_strided, false);
    return table == NULL ? INFINITY : profile_message_seconds(table, bytes);
}

double profile_all_to_all_seconds(const struct profile *profile, int size, bool is_strided,
                                  double bytes, double fullest)
{
    double even = profile_collective_seconds(profile, GROUP_ALL_TO_ALL, size, is_strided, bytes);
    const struct collective_table *to_one =
        table_of(profile, GROUP_ALL_TO_ALL, size, is_strided, true);
    if (to_one == NULL || !(even > 0) || isinf(even))
        return even;
    double share = fmin(fmax((fullest - 1) / (size - 1), 0), 1);
    return known_or_infinite((1 - share) * even + share * profile_message_seconds(to_one, bytes));
}
