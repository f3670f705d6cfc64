/* How long operations and collectives take on a box, as a run has them: all ranks at the same time,
 * each with its own threads, and weights and caches that come from memory, not from a processor's
 * cache. For what calibrates, and for benchmarks.
 *
 * A sample is as many launches in a row as take some milliseconds, behind a collective that lets
 * all ranks begin together; its time is that of the slowest rank, for the others wait for it. Where
 * ranks share cores or a GPU, it is the time until all ranks are done. On a GPU it begins when the
 * collective has run there, and ends when the last launch has.
 * A point is the median of samples.
 */
#ifndef PHASOR_MEASURE_METER_H
#define PHASOR_MEASURE_METER_H

#include "comm/box.h"
#include "layout/work_shape.h"
#include "planner/profile.h"

#define METER_SAMPLES_MIN 3
#define METER_SAMPLES_MAX 40

struct meter_params {
    struct box *box;       /* borrowed; nobody else uses it meanwhile */
    uint64_t memory_bytes; /* of all ranks together: METER_RANK_BYTES_MIN for each, or more */
    bool shares_cores;     /* ranks have more threads than there are cores, or one GPU */
    double settled;        /* a point is done when its median is known to about this share ... */
    double point_seconds;  /* ... or after so long, with METER_SAMPLES_MIN samples at least */
    double
        sample_seconds; /* launches of a sample take so long together, or are METER_LAUNCHES_MAX */
};

#define METER_RANK_BYTES_MIN ((uint64_t)4 << 20)
#define METER_LAUNCHES_MAX   256

/* Settled to 1 %, 0.25 s a point, samples of 2 ms. */
struct meter_params meter_params_default(struct box *box, uint64_t memory_bytes);

struct measured {
    double seconds; /* the median */
    double spread;  /* from the first quartile to the third, relative to it */
    int repeats;    /* samples */
};

struct meter;

/* Takes all memory that it will need, and fills it. */
enum status meter_create(struct meter **out, const struct meter_params *params,
                         struct error *err) MUST_CHECK;
void meter_destroy(struct meter *meter); /* NULL is allowed */

/* What each rank has to have for it (of meter_params.memory_bytes), so that there is room for its
 * weights and its activations. UINT64_MAX for what no operation is: sizes below 1, or types that a
 * device has not. */
uint64_t meter_rank_bytes(const struct work_shape *work);

/* Whether there is so much: for no other work may meter_work be called. */
bool meter_holds(const struct meter *meter, const struct work_shape *work);

/* A point. WORK_ROWS is a norm and the sum of its result into the residual; the rows of experts are
 * spread at random, one for each at least; WORK_ATTENTION is of as many segments, alike, as give
 * these rows, pairs and tokens. Of segments of one row (decode) the contexts are spread over a page
 * of the KV cache about the mean, over segments and launches, for a page that has been begun takes
 * most of a full one's time and nobody asks about sequences that all begin one at once. A failure
 * is of the box, which is of no more use. */
enum status meter_work(struct measured *out, struct meter *meter, const struct work_shape *work,
                       struct error *err) MUST_CHECK;

/* The largest `bytes` of a collective. */
int64_t meter_collective_bytes_max(const struct meter *meter);

/* The least bytes of a collective that are `bytes` or more, in even parts of whole vectors. */
int64_t meter_collective_bytes(enum group_op op, int size, int64_t bytes);

/* A point of a collective, of which the fullest member of each group sends or receives `bytes` (of
 * meter_collective_bytes). 2 <= size, a divisor of the ranks; strided groups are smaller than all.
 */
enum status meter_collective(struct measured *out, struct meter *meter,
                             const struct collective_shape *shape, struct error *err) MUST_CHECK;

/* Bytes a second of each rank, all at once, from host memory to the device. */
enum status meter_host_to_device(double *out, struct meter *meter, struct error *err) MUST_CHECK;

/* The same while all ranks exchange: `alone`, of meter_host_to_device, or less where both go over
 * one link. */
enum status meter_host_to_device_busy(double *out, struct meter *meter, double alone,
                                      struct error *err) MUST_CHECK;

/* Bytes a second of each rank, all at once, that a sum over its weights reads: what the largest
 * product of one row reaches. */
enum status meter_memory(double *out, struct meter *meter, struct error *err) MUST_CHECK;

/* Seconds from one pass without work to the next: all ranks are called, and are waited for. */
enum status meter_host_step(struct measured *out, struct meter *meter,
                            struct error *err) MUST_CHECK;

#endif
