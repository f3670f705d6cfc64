#include "bench_overall.h"

#include <math.h>

/* ---- Ratios of cells ------------------------------------------------------------------------- */

static bool has_interval(const struct bench_against *of)
{
    return of->is_known && !of->is_same && isfinite(of->ratio.high);
}

bool bench_falls_short(const struct bench_against *of)
{
    return has_interval(of) && of->ratio.high < BENCH_REACHES;
}

static void interval_add(struct bench_overall *to, const struct bench_against *cell)
{
    double high = cell->ratio.high;
    if (!has_interval(cell))
        return;
    to->least_high = to->timed > 0 ? fmin(to->least_high, high) : high;
    to->short_of += bench_falls_short(cell);
    to->timed++;
}

static void overall_add(struct bench_overall *to, const struct bench_against *cell)
{
    double ratio = cell->ratio.middle;
    if (!cell->is_known)
        return;
    double logs = to->cells > 0 ? to->cells * log(to->mean) : 0;
    to->least = to->cells > 0 ? fmin(to->least, ratio) : ratio;
    to->most = to->cells > 0 ? fmax(to->most, ratio) : ratio;
    to->cells++;
    to->mean = exp((logs + log(ratio)) / to->cells);
    interval_add(to, cell);
}

/* ---- Of each draw the worst -------------------------------------------------------------------
 */

static double total_of(const struct bench_results *results, int cell, const struct bench_plan *plan,
                       int round)
{
    int place = (int)(plan - results->cells[cell].plans);
    const struct bench_run *run = bench_run_find(results, cell, place, round);
    return run == NULL || run->has_failed ? 0 : run->total;
}

/* 0: not every cell that has both plans has their runs, or none has. */
static double worst_of(const struct bench_results *results, enum bench_mode mode,
                       enum bench_mode other, int round)
{
    double worst = 0;
    for (int i = 0; i < results->cell_count; i++) {
        const struct bench_plan *own = bench_plan_of(&results->cells[i], mode);
        const struct bench_plan *beside = bench_plan_of(&results->cells[i], other);
        if (own == NULL || beside == NULL)
            continue;
        double took = total_of(results, i, own, round), takes = total_of(results, i, beside, round);
        if (!(took > 0) || !(takes > 0))
            return 0;
        worst = worst > 0 ? fmin(worst, takes / took) : takes / took;
    }
    return worst;
}

static void draws_add(struct bench_overall *to, const struct bench_results *results,
                      enum bench_mode mode, enum bench_mode other)
{
    double worst[BENCH_ROUNDS_MAX];
    for (int round = 1; round <= BENCH_ROUNDS_MAX; round++) {
        worst[to->draws] = worst_of(results, mode, other, round);
        to->draws += worst[to->draws] > 0;
    }
    if (to->draws == 0)
        return;
    to->worst_median = bench_spread_of(worst, to->draws).median; /* which sorts */
    to->worst_least = worst[0];
}

/* ---- Over cells ------------------------------------------------------------------------------ */

void bench_overalls_make(struct bench_overalls *out, const struct bench_results *results,
                         const struct bench_summary *of)
{
    *out = (struct bench_overalls){.static_tp = {{.cells = 0}}};
    for (int i = 0; i < results->cell_count * BENCH_MODE_COUNT; i++) {
        overall_add(&out->static_tp[i % BENCH_MODE_COUNT], &of[i].static_tp);
        overall_add(&out->static_tp_int4[i % BENCH_MODE_COUNT], &of[i].static_tp_int4);
    }
    for (int mode = 0; mode < BENCH_MODE_COUNT && results->question.clock == BENCH_PREDICTED;
         mode++) {
        draws_add(&out->static_tp[mode], results, mode, BENCH_STATIC_TP);
        draws_add(&out->static_tp_int4[mode], results, mode, BENCH_STATIC_TP_INT4);
    }
}

static void interval_tell(FILE *file, const struct bench_overall *of)
{
    if (of->timed > 0)
        fprintf(file,
                "; the interval's upper end is below %.2f in %d of %d that have one, the least "
                "upper end %.3f",
                BENCH_REACHES, of->short_of, of->timed, of->least_high);
}

static void overall_tell(FILE *file, enum bench_mode mode, const char *other,
                         const struct bench_overall *of, bool has_intervals)
{
    fprintf(file, "%s: %.3f to %.3f times %s, %.3f in the geometric mean of %d loads",
            bench_mode_names[mode], of->least, of->most, other, of->mean, of->cells);
    if (has_intervals)
        interval_tell(file, of);
    if (of->draws > 0)
        fprintf(file,
                "; the worst load of a draw: %.3f in the median of %d draws, %.3f at the least",
                of->worst_median, of->draws, of->worst_least);
}

void bench_overalls_tell(const struct bench_overalls *of, const struct bench_question *question,
                         FILE *file, const char *before, const char *behind)
{
    bool has_intervals = question->clock != BENCH_PREDICTED;
    for (int mode = BENCH_STATIC_TP + 1; mode <= BENCH_MODE_COUNT; mode++) {
        bool is_again = mode == BENCH_MODE_COUNT; /* adaptive, beside another */
        enum bench_mode own = is_again ? BENCH_ADAPTIVE : (enum bench_mode)mode;
        const struct bench_overall *one = is_again ? &of->static_tp_int4[own] : &of->static_tp[own];
        if (one->cells == 0)
            continue;
        fputs(before, file);
        overall_tell(file, own, is_again ? "static TP on INT4" : "static TP", one, has_intervals);
        fprintf(file, "%s\n", behind);
    }
}
