#include "parts.h"

#include <stdio.h>

#include "exec/stage.h"

const char *const part_words[PART_COUNT] = {"projection", "attention", "experts", "shared", "rows",
                                            "head",       "exchange",  "others",  "host"};

enum part part_of_stage(int stage)
{
    static const enum part parts[STAGE_KIND_COUNT] = {
        [STAGE_BETWEEN] = PART_HOST,    [STAGE_PROJECTION] = PART_PROJECTION,
        [STAGE_EXPERTS] = PART_EXPERTS, [STAGE_ATTENTION] = PART_ATTENTION,
        [STAGE_SHARED] = PART_SHARED,   [STAGE_HEAD] = PART_HEAD,
        [STAGE_EMBEDDING] = PART_ROWS,  [STAGE_NORM] = PART_ROWS,
        [STAGE_ROPE] = PART_ROWS,       [STAGE_ROUTER] = PART_ROWS,
        [STAGE_COMBINE] = PART_ROWS,    [STAGE_COLLECTIVE] = PART_EXCHANGE,
        [STAGE_TRANSITION] = PART_HOST,
    };
    return parts[stage];
}

void parts_of_cost(double parts[PART_COUNT], const struct pass_cost *cost)
{
    static const enum part of[COST_EXCHANGE] = {
        [COST_PROJECTION] = PART_PROJECTION,
        [COST_ATTENTION] = PART_ATTENTION,
        [COST_EXPERTS] = PART_EXPERTS,
        [COST_SHARED] = PART_SHARED,
        [COST_ROWS] = PART_ROWS,
        [COST_HEAD] = PART_HEAD,
        [COST_HOST] = PART_HOST,
    };
    for (int part = 0; part < COST_PART_COUNT; part++)
        parts[part < COST_EXCHANGE ? of[part] : PART_EXCHANGE] += cost->seconds[part];
}

void parts_print(const double predicted[PART_COUNT], const double found[PART_COUNT])
{
    for (int part = 0; part < PART_COUNT; part++) {
        if (found[part] > 0 || predicted[part] > 0)
            printf("  %s %.4g/%.4g", part_words[part], predicted[part] * 1e3, found[part] * 1e3);
    }
    printf("\n");
}
