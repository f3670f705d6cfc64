/* Points measured while the machine was as it usually is.
 *
 * Who shares cores, caches or memory with a measurement makes it slower: for milliseconds, which a
 * point's median leaves out, or for seconds and minutes, in which the points of one operation are
 * all slow and those of the next are not. And where somebody always shares them, they are faster
 * for the moments in which he does not. Either is seen by a probe behind every point: something
 * short that is always the same, and calm is what takes about as long as the middle one of those so
 * far, or of an earlier run. Where the probe takes longer or less we wait until it does not, and
 * measure the point again; the one with calm behind it counts. Patience is limited in all, so that
 * a machine that is never calm is measured as it is.
 */
#ifndef PHASOR_MEASURE_CALM_H
#define PHASOR_MEASURE_CALM_H

#include "measure/meter.h"

/* What keeps the cores busy, and what the memory. */
enum calm_probe { CALM_COMPUTE, CALM_MEMORY, CALM_PROBES };

/* What was measured, and what the probe behind it took. */
struct calm_point {
    struct measured measured;
    enum calm_probe probe;
    double probe_seconds; /* 0: nothing was probed */
};

struct calm_params {
    /* Seconds that a probe takes now. */
    enum status (*probe)(double *out, void *context, enum calm_probe which, struct error *err);
    void *context;
    double tolerance; /* of a probe over what is usual of its kind, and of that over a probe */
    /* Seconds of a probe that are usual, as an earlier run has found; 0: the median of this one's.
     */
    double usual[CALM_PROBES];
    /* Asked about each time before we wait for a moment: a failure ends the point with it. NULL: we
     * wait. */
    enum status (*goes_on)(void *context, struct error *err);
    void *goes_on_context;
    /* We wait and measure again for so long at most, and for as long again as half of what was
     * measured without; 0: nothing is probed. */
    double patience_seconds;
};

/* Before so many nobody knows what is usual, if it was not given: nothing is waited for, and
 * nothing is disturbed. */
#define CALM_SEEN_MIN 10

/* Probes by the logarithm of their time, from a nanosecond on, in steps of a hundredth. */
#define CALM_STEPS 2800

struct calm {
    struct calm_params params;
    /* Of probes behind points, not of those while we wait. */
    uint32_t counts[CALM_PROBES][CALM_STEPS], seen[CALM_PROBES];
    double measured_seconds, waited_seconds;
    uint64_t disturbed; /* measurements that have had no calm */
};

void calm_init(struct calm *out, const struct calm_params *params);

/* What was given, else the median of the probes so far, to a hundredth; 0: there were none. */
double calm_usual(const struct calm *calm, enum calm_probe which);

/* Counts a point of an earlier run. */
void calm_remember(struct calm *calm, const struct calm_point *point);

/* Whether it had calm, as we know it by now; of nothing that was probed: true. */
bool calm_is_usual(const struct calm *calm, const struct calm_point *point);

/* Which of two measurements of one thing counts: one that had calm; of both, the faster; of none,
 * the one whose probe was the more usual. */
const struct calm_point *calm_better(const struct calm *calm, const struct calm_point *a,
                                     const struct calm_point *b);

/* A point by `measure`, as calm as it is to be had. A failure is that of `measure`, of the probe,
 * or of `goes_on`. */
enum status calm_measure(struct calm_point *out, struct calm *calm, enum calm_probe which,
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
 * meter has less. Of `params` its probe, context and tolerance are not
 * read. */
enum status calm_meter_init(struct calm_meter *out, struct meter *meter,
                            const struct calm_params *params, struct error *err) MUST_CHECK;

/* As meter_work and meter_collective. Behind work with more flops to a byte than the machine has,
 * and small messages, the cores are probed; behind other work, and messages of 512 KiB and more,
 * the memory. */
enum status calm_work(struct calm_point *out, struct calm_meter *calm,
                      const struct work_shape *work, struct error *err) MUST_CHECK;
enum status calm_collective(struct calm_point *out, struct calm_meter *calm,
                            const struct collective_shape *shape, struct error *err) MUST_CHECK;

#endif
