#include "engine/plan_prices.h"

#include "base/memory.h"

struct plan_price {
    unsigned bins;
    bool may_stay, moves_only, is_queue;
    int64_t max_num_batched_tokens, longest_tokens;
    struct plan_table table;
};

static bool is_of(const struct plan_price *price, unsigned bins,
                  const struct plan_subject_params *params)
{
    return price->bins == bins && price->may_stay == params->may_stay &&
           price->moves_only == params->moves_only && price->is_queue == params->is_queue &&
           price->max_num_batched_tokens == params->max_num_batched_tokens &&
           price->longest_tokens == params->longest_tokens;
}

static enum status price_make(struct plan_price *out, unsigned bins,
                              const struct plan_subject_params *params, struct error *err)
{
    struct plan_subject subject;
    *out = (struct plan_price){
        .bins = bins,
        .may_stay = params->may_stay,
        .moves_only = params->moves_only,
        .is_queue = params->is_queue,
        .max_num_batched_tokens = params->max_num_batched_tokens,
        .longest_tokens = params->longest_tokens,
    };
    TRY(plan_subject_init(&subject, params, err));
    return plan_find(&out->table, &subject.problem, err);
}

enum status plan_prices_find(struct plan_table *out, struct plan_prices *prices, unsigned bins,
                             const struct plan_subject_params *params, struct error *err)
{
    size_t i = 0;
    while (i < prices->count && !is_of(&prices->of[i], bins, params))
        i++;
    if (i == prices->count) {
        TRY(memory_reserve(&prices->of, &prices->capacity, i + 1, sizeof *prices->of, "the plans",
                           err));
        TRY(price_make(&prices->of[i], bins, params, err));
        prices->count++;
    }
    *out = prices->of[i].table;
    return STATUS_OK;
}

void plan_prices_deinit(struct plan_prices *prices)
{
    for (size_t i = 0; i < prices->count; i++)
        plan_table_deinit(&prices->of[i].table);
    memory_free(prices->of);
    *prices = (struct plan_prices){.of = NULL};
}
