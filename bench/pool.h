/* How long operations take, pooled over many recordings: those of one shape are nearly the same work
 * (rows may fall on experts in other ways), and the machine is in another state at every recording.
 * Median durations put into a recording make its replay one of the work, and not of the moment. */
#ifndef PHASOR_BENCH_POOL_H
#define PHASOR_BENCH_POOL_H

#include <stddef.h>

#include "base/status.h"
#include "replay/recording.h"

struct pooled;

/* Zero: empty. */
struct pool {
    struct pooled *of; /* [count]: each operation's, or, settled, each shape's */
    size_t count, room;
    size_t node_count; /* operations that were added */
};

/* Adds the operations whose shape is recorded (all but WORK_OTHER). Before pool_settle. */
enum status pool_add(struct pool *pool, const struct recording *recording,
                     struct error *err) MUST_CHECK;

void pool_settle(struct pool *pool);

/* Gives them the median of their shape; those of shapes that the pool has not keep their own. */
void pool_apply(const struct pool *pool, struct recording *recording);

void pool_deinit(struct pool *pool);

#endif
