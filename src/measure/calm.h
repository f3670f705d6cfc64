/* Points that nobody else on the machine has slowed down.
 *
 * Who shares cores, caches or memory with a measurement makes it slower, never faster: for
 * milliseconds, which a point's median leaves out, or for seconds and minutes, in which the points
 * of one operation are all slow and those of the next are not. The latter is seen by a probe behind
 * every point: something short that is always the same, and calm is what takes about as long as the
 * middle one of those so far. Where the probe is slower we wait until it is not, and measure the
 * point again; the fastest counts. Patience is limited in all, so that a machine that is never calm
 * is measured as it is.
 */
#ifndef PHASOR_MEASURE_CALM_H
#define PHASOR_MEASURE_CALM_H

#include "measure/meter.h"

/* What keeps the cores busy, and what the memory. */
enum calm_probe { CALM_COMPUTE, CALM_MEMORY, CALM_PROBES };

struct calm_params {
    /* Seconds that a probe takes now. */
    enum status (*probe)(double *out, void *context, enum calm_probe which, struct error *err);
    void *context;
    double tolerance; /* of a probe over what is usual of its kind */
    /* Asked about each time before we wait for a moment: a failure ends the point with it. NULL: we
     * wait. */
    enum status (*goes_on)(void *context, struct error *err);
    void *goes_on_context;
    /* We wait and measure again for so long at most, and for as long again as half of what was
     * measured without; 0: nothing is probed. */
    double patience_seconds;
};

struct calm {
    struct calm_params params;
    double usual[CALM_PROBES]; /* seconds; 0: none was seen */
    double measured_seconds, waited_seconds;
    uint64_t disturbed; /* measurements that have had no calm */
};

void calm_init(struct calm *out, const struct calm_params *params);

/* A point by `measure`, as calm as it is to be had. A failure is that of `measure`, of the probe,
 * or of `goes_on`. */
enum status calm_measure(struct measured *out, struct calm *calm, enum calm_probe which,
                         enum status (*measure)(struct measured *out, void *context,
                                                struct error *err),
                         void *context, struct error *err) MUST_CHECK;

/* ---- By a meter ------------------------------------------------------------------------------ */

struct calm_meter {
    struct meter *meter; /* borrowed */
    struct calm calm;
    double flops_per_byte; /* work with more is the cores', other the memory's */
};

/* Probes are products: of 32 rows with 2 MiB of weights, and of one with 16 MiB, or less where the
 * meter has less. What is usual at first is measured as a point. Of `params` those of a probe are
 * not read. */
enum status calm_meter_init(struct calm_meter *out, struct meter *meter,
                            const struct calm_params *params, struct error *err) MUST_CHECK;

/* As meter_work and meter_collective. */
enum status calm_work(struct measured *out, struct calm_meter *calm, const struct work_shape *work,
                      struct error *err) MUST_CHECK;
enum status calm_collective(struct measured *out, struct calm_meter *calm, enum group_op op,
                            int size, bool is_strided, int64_t bytes, struct error *err) MUST_CHECK;

#endif
