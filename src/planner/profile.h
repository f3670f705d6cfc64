/* How long operations and collectives take on one box, as they were measured there.
 *
 * An operation's time is that of a roofline, times a ratio that is interpolated between measured
 * points, linearly in the logarithms of the ratio and of the sizes; outside of what was measured
 * the ratio is that of the nearest point, and the roofline goes on. So doubling a large product
 * doubles its time whatever was measured. A collective's time is interpolated between bytes in the
 * same way.
 *
 * All arrays are borrowed. Pure functions; any thread.
 */
#ifndef PHASOR_PLANNER_PROFILE_H
#define PHASOR_PLANNER_PROFILE_H

#include <stdbool.h>

#include "layout/work_shape.h"

#define PROFILE_AXES_MAX 5

/* A size by which the ratio changes (work_shape_size), or the quotient of two ("rows of each
 * expert"). */
struct profile_axis {
    int size, over; /* over -1: none */
    int count;
    const double *values; /* [count], > 0, rising */
};

/* The longest of flops / flops_per_second and bytes / bytes_per_second, and `fixed` beside. */
struct work_table {
    enum work_kind kind;
    enum dtype dtype;
    double flops_per_second, bytes_per_second, fixed;
    int axis_count; /* 0: `log_ratios` has one value */
    struct profile_axis axes[PROFILE_AXES_MAX];
    const double *log_ratios; /* log(measured / roofline), the last axis fastest */
};

enum group_op { GROUP_ALL_GATHER, GROUP_REDUCE_SCATTER, GROUP_ALL_REDUCE, GROUP_ALL_TO_ALL };

/* A collective in all groups of `size` ranks at once, neighbours or those N / size apart. */
struct collective_shape {
    enum group_op op;
    int size;
    bool is_strided;
    int64_t bytes; /* the most that leave or reach one rank */
    /* Of an all-to-all: how many times as much as its group's mean reaches the first member, from
     * 1 (all have the same) to `size` (all goes to one, as tokens to the group that has their
     * experts). Of others 1. */
    double fullest;
};

/* All groups of `size` ranks at a time, neighbours or those N / size apart. */
struct collective_table {
    enum group_op op;
    int size;
    bool is_strided;
    int point_count;
    const double *bytes;   /* [point_count], > 0, rising: the most that leave or reach one rank */
    const double *seconds; /* [point_count] */
    bool to_one; /* an all-to-all of which everything reaches one member; else all have the same */
};

/* A rate of 0 is not known, and what needs it has no time. */
struct profile {
    int work_count, collective_count;
    const struct work_table *work;              /* at most one of a kind and dtype */
    const struct collective_table *collectives; /* at most one of an op, size, stride and
                                                 * evenness */
    double host_to_device;                      /* bytes per second, all ranks at once, each */
    double host_to_device_busy;                 /* the same while ranks exchange; 0: not known */
    double disk_read;                           /* bytes per second, all ranks together */
    double page_cache_read;                     /* likewise, of a file that is in the page cache */
    double host_bytes; /* of the host's memory that a backup which is read again and again may have,
                        * to be there already; 0: there is none */
    double cache_bytes; /* of files that stay in the page cache; 0: none do */
    double check;       /* granules' checksums, bytes per second of a rank */
    double repack;      /* native weights as they are read from a checkpoint, likewise */
    double host_step;   /* seconds of the host for a pass */
    /* Devices that compute on the same core, as they did when work was measured on all of them at
     * once: who has less to do leaves it to the others. 0 or 1: each has its own. */
    double sharing;
};

/* These are never below zero, and never no number: infinite where the profile has no table, or no
 * sensible number in it. */

/* Of `amount` at `rate` a second: of none 0, whatever the rate; infinite where the rate is none. */
double profile_rate_seconds(double amount, double rate);

/* By how much a copy from the host and an exchange hold up one another: 0 (not at all, or not
 * known) to 1 (one link, each has half of it). */
double profile_link_sharing(const struct profile *profile);

double profile_work_seconds(const struct profile *profile, const struct work_shape *work);

/* Whether there is a table of that operation on such numbers. */
bool profile_has_work(const struct profile *profile, enum work_kind kind, enum dtype dtype);

/* Of a group of one, or of no bytes: 0. */
double profile_collective_seconds(const struct profile *profile, enum group_op op, int size,
                                  bool is_strided, double bytes);

/* Of an all-to-all whose fullest member is reached by `bytes`, which is `fullest` times the mean
 * (where it is who sends most, as back from the experts, the same is taken): between one that is
 * even, 1, and one to a single member, `size`. What ranks share, as memory or an uplink, has less
 * to carry then. Where no table tells of the latter it is as long as an even one. */
double profile_all_to_all_seconds(const struct profile *profile, int size, bool is_strided,
                                  double bytes, double fullest);

/* Of a message of so many bytes by one table. */
double profile_message_seconds(const struct collective_table *table, double bytes);

#endif
