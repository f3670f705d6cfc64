/* What classes of rows take under every plan, each priced once. Into however many classes a batch
 * is dealt, most of them are the same few; and what may be taken of their plans is asked more than
 * once, with a backup and without, of the same prices. */
#ifndef PHASOR_ENGINE_PLAN_PRICES_H
#define PHASOR_ENGINE_PLAN_PRICES_H

#include "engine/plan_problem.h"

struct plan_price;

/* Of one batch's questions; a zero one has nothing yet. */
struct plan_prices {
    struct plan_price *of; /* [count] */
    size_t count, capacity;
};

/* The table of plan_find for those of the batch's bins whose bits are in `bins`. `params` is of
 * them, and but for load, mix, may_stay, moves_only, is_queue, max_num_batched_tokens and
 * longest_tokens the same whenever these prices are asked. `out` is borrowed, until they are
 * deinitialised. */
enum status plan_prices_find(struct plan_table *out, struct plan_prices *prices, unsigned bins,
                             const struct plan_subject_params *params,
                             struct error *err) MUST_CHECK;
void plan_prices_deinit(struct plan_prices *prices);

#endif
