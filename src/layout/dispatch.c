/* How many rows an expert group takes at a time, and in how many rounds they come. */
#include <math.h>

#include "layout/traffic.h"

/* How likely a token is to have at least one of its experts among the `held` of a group: one minus
 * the chance that top_k draws without return all miss them. */
static double group_chance(int64_t expert_count, int64_t held, int64_t top_k)
{
    double misses = 1;
    for (int64_t draw = 0; draw < top_k; draw++) {
        if (expert_count - held <= draw)
            return 1;
        misses *= (double)(expert_count - held - draw) / (double)(expert_count - draw);
    }
    return 1 - misses;
}

int64_t dispatch_capacity(const struct layout *layout, const struct model_shape *shape,
                          int64_t token_count)
{
    int64_t held = shape->expert_count / layout->experts.ep;
    double chance = group_chance(shape->expert_count, held, shape->expert_top_k);
    int64_t rows = (int64_t)ceil(2 * chance * (double)token_count) + layout->rank_count;
    if (rows > token_count)
        rows = token_count;
    return rows > layout->rank_count ? rows : layout->rank_count;
}

/* Whether each group's rows of every round fit. The first piece of a share is its largest, so the
 * first round is the fullest. */
static bool rounds_fit(const int64_t *sent, int rank_count, int group_count, int64_t capacity,
                       int64_t rounds)
{
    for (int group = 0; group < group_count; group++) {
        int64_t rows = 0;
        for (int rank = 0; rank < rank_count; rank++)
            rows += dispatch_piece(sent[rank * group_count + group], rounds, 0).count;
        if (rows > capacity)
            return false;
    }
    return true;
}

int64_t dispatch_rounds(const int64_t *sent, int rank_count, int group_count, int64_t capacity)
{
    int64_t low = 1, high = 1;
    ASSERT(capacity >= rank_count);
    for (int i = 0; i < rank_count * group_count; i++)
        high = sent[i] > high ? sent[i] : high;
    /* With `high` rounds nobody sends a group more than one row in a round, which fits; more rounds
     * never make the fullest fuller. */
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (rounds_fit(sent, rank_count, group_count, capacity, middle))
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

struct range dispatch_piece(int64_t sent, int64_t rounds, int64_t round)
{
    return layout_share(sent, rounds, round);
}
