#include "transition/exposed.h"

double exposed_seconds(const struct exposure *exposure, double layer_seconds)
{
    double first = exposure->prefill_seconds - exposure->last_pass_seconds, end = 0;
    for (int64_t layer = 0; layer < exposure->layer_count; layer++) {
        int64_t freeing = layer - exposure->spare_count;
        double free = freeing < 0 ? 0
                                  : first + exposure->last_pass_seconds * (double)(freeing + 1) /
                                                (double)exposure->layer_count;
        end = (end > free ? end : free) + layer_seconds;
    }
    return end > exposure->prefill_seconds ? end - exposure->prefill_seconds : 0;
}

void ways_exposed(double out[WAY_COUNT], const double seconds[WAY_COUNT],
                  const struct exposure *exposure)
{
    out[WAY_KEEP] = -1;
    for (int way = WAY_RESHARD; way < WAY_COUNT; way++) {
        double back = seconds[way_back((enum way)way)];
        bool is_possible = seconds[way] >= 0 && back >= 0;
        out[way] = is_possible ? exposed_seconds(exposure, seconds[way]) +
                                     (double)exposure->layer_count * back
                               : -1;
    }
}

enum way way_least(const double exposed[WAY_COUNT])
{
    enum way least = WAY_RESHARD;
    for (int way = WAY_RESHARD; way < WAY_COUNT; way++) {
        if (exposed[way] >= 0 && (exposed[least] < 0 || exposed[way] < exposed[least]))
            least = (enum way)way;
    }
    return least;
}
