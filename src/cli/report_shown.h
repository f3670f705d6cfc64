/* What the parts of the page of phasor report share: the summaries that they show. */
#ifndef PHASOR_CLI_REPORT_SHOWN_H
#define PHASOR_CLI_REPORT_SHOWN_H

#include "bench_summary.h"
#include "page.h"

/* All that the pictures show: [cell][mode]. */
struct shown {
    const struct bench_results *results;
    struct bench_summary *of;
    unsigned modes; /* that have a plan anywhere */
    char *command;  /* that made the results */
};

/* `path` is of the results. False where memory is short: told on standard error; to be freed all
 * the same. */
bool report_shown_make(struct shown *out, const struct bench_results *results, const char *path);
void report_shown_free(struct shown *shown);

static inline const struct bench_summary *summary_of(const struct shown *shown, int cell, int mode)
{
    return &shown->of[cell * BENCH_MODE_COUNT + mode];
}

static inline const struct bench_scenario *scenario_of(const struct bench_results *results,
                                                       int cell)
{
    return &results->question.scenarios[results->cells[cell].scenario];
}

static inline long long batch_of(const struct bench_results *results, int cell)
{
    return results->question.batch_sizes[results->cells[cell].batch_size];
}

/* Below each heading: which clock its figures are of, and the command that made them. */
void report_put_made(FILE *file, const struct shown *shown);

/* The first two columns of a table by loads; and a plan with the way to it. */
void report_put_load(FILE *file, const struct shown *shown, int cell);
void report_put_plan(FILE *file, const struct bench_plan *plan);

/* Bars of each scenario's batches, and each plan's phases as they were predicted and came out. */
void report_put_times(FILE *file, const struct shown *shown);
void report_put_errors(FILE *file, const struct shown *shown);

/* What each part of an adaptive plan is worth (report_parts.c): a picture, where any load has all
 * of them, and a table. */
void report_put_parts(FILE *file, const struct shown *shown);

/* As files of their own: the bars of the cells from `first` on, of one model and scenario; the
 * phases, which are a picture where there are different ones; and the parts' worth. */
void report_plot_times(FILE *file, const struct shown *shown, int first);
bool report_has_errors(const struct shown *shown);
void report_plot_errors(FILE *file, const struct shown *shown);
bool report_has_parts(const struct shown *shown);
void report_plot_parts(FILE *file, const struct shown *shown);

/* Each planned run beside the fastest that ran (report_regret.c). */
void report_put_regret(FILE *file, const struct shown *shown);

#endif
