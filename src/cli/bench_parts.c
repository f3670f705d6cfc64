#include "bench_parts.h"

#include <math.h>

const struct bench_part bench_parts[BENCH_PARTS] = {
    {BENCH_BEST_ATTENTION, "data-parallel attention"},
    {BENCH_BEST_STATIC, "the experts' layout"},
    {BENCH_ADAPTIVE_EXACT, "another layout in decode"},
    {BENCH_ADAPTIVE, "packed INT4 decode"},
};

bool bench_parts_asked(const struct bench_question *question)
{
    unsigned wanted = 1u << BENCH_STATIC_TP;
    for (int i = 0; i < BENCH_PARTS; i++)
        wanted |= 1u << bench_parts[i].mode;
    return (question->modes & wanted) == wanted;
}

static double ratio_of(double before, double own)
{
    return before > 0 && own > 0 ? before / own : 0;
}

struct bench_parts_worth bench_parts_of(const struct bench_summary *cell)
{
    struct bench_parts_worth out;
    double first = cell[BENCH_STATIC_TP].total.median, before = first;
    for (int i = 0; i < BENCH_PARTS; i++) {
        double own = cell[bench_parts[i].mode].total.median;
        out.of[i] = ratio_of(before, own);
        before = own;
    }
    out.all = ratio_of(first, before);
    return out;
}

bool bench_parts_are_known(const struct bench_parts_worth *of)
{
    bool is_known = of->all > 0;
    for (int i = 0; i < BENCH_PARTS; i++)
        is_known = is_known && of->of[i] > 0;
    return is_known;
}

struct bench_parts_worth bench_parts_mean(const struct bench_summary *of, int cell_count)
{
    struct bench_parts_worth out = {.all = 0};
    double logs[BENCH_PARTS] = {0}, all = 0;
    int count = 0;
    for (int cell = 0; cell < cell_count; cell++) {
        struct bench_parts_worth one = bench_parts_of(&of[cell * BENCH_MODE_COUNT]);
        if (!bench_parts_are_known(&one))
            continue;
        for (int i = 0; i < BENCH_PARTS; i++)
            logs[i] += log(one.of[i]);
        all += log(one.all);
        count++;
    }
    for (int i = 0; i < BENCH_PARTS && count > 0; i++)
        out.of[i] = exp(logs[i] / count);
    out.all = count > 0 ? exp(all / count) : 0;
    return out;
}
