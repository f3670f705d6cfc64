/* What a choice of plans cost: its time over the least of those that ran. */
#include <math.h>
#include <string.h>

#include "report_shown.h"

/* Whose plan is held against all of the same policy. */
static const struct chooser {
    enum bench_mode mode;
    bool is_exact; /* the checkpoint's own weights alone */
} choosers[] = {{BENCH_ADAPTIVE, false}, {BENCH_ADAPTIVE_EXACT, true}};
#define CHOOSERS (int)(sizeof choosers / sizeof *choosers)

static bool ran(const struct bench_summary *of)
{
    return of->rounds > 0 && of->total.median > 0;
}

static bool is_exact(const struct bench_plan *plan)
{
    return strstr(plan->plan, ":int4") == NULL && strcmp(plan->way, "upload") != 0;
}

/* NULL: the mode did not run in the cell. */
static const struct bench_summary *fastest_of(const struct shown *shown, int cell,
                                              const struct chooser *chooser)
{
    const struct bench_summary *best = summary_of(shown, cell, chooser->mode);
    if (!ran(best))
        return NULL;
    for (int mode = 0; mode < BENCH_MODE_COUNT; mode++) {
        const struct bench_summary *of = summary_of(shown, cell, mode);
        if (ran(of) && (!chooser->is_exact || is_exact(of->plan)) &&
            of->total.median < best->total.median)
            best = of;
    }
    return best;
}

static double regret_of(const struct shown *shown, int cell, const struct chooser *chooser,
                        const struct bench_summary *fastest)
{
    return summary_of(shown, cell, chooser->mode)->total.median / fastest->total.median;
}

/* ---- Over all loads -------------------------------------------------------------------------- */

static void put_overall(FILE *file, const struct shown *shown, const struct chooser *chooser)
{
    double worst = 1, logs = 0;
    int count = 0;
    for (int cell = 0; cell < shown->results->cell_count; cell++) {
        const struct bench_summary *fastest = fastest_of(shown, cell, chooser);
        if (fastest == NULL)
            continue;
        double regret = regret_of(shown, cell, chooser, fastest);
        worst = fmax(worst, regret);
        logs += log(regret);
        count++;
    }
    if (count > 0)
        fprintf(
            file,
            "<li><code>%s</code>: %.3f in the geometric mean, %.3f at worst, of %d loads</li>\n",
            bench_mode_names[chooser->mode], exp(logs / count), worst, count);
}

/* ---- Of each ----------------------------------------------------------------------------------
 */

static void put_choice(FILE *file, const struct shown *shown, int cell,
                       const struct chooser *chooser)
{
    const struct bench_summary *fastest = fastest_of(shown, cell, chooser);
    const struct bench_summary *own = summary_of(shown, cell, chooser->mode);
    if (fastest == NULL) {
        fputs("<td></td><td></td>", file);
        return;
    }
    fprintf(file, "<td class=\"n\">%.3f</td><td>", regret_of(shown, cell, chooser, fastest));
    if (fastest->plan == own->plan)
        fputs("the same plan", file);
    else
        report_put_plan(file, fastest->plan);
    fputs("</td>", file);
}

static void put_row(FILE *file, const struct shown *shown, int cell)
{
    fputs("<tr>", file);
    report_put_load(file, shown, cell);
    for (int c = 0; c < CHOOSERS; c++) {
        if ((shown->modes & 1u << choosers[c].mode) != 0)
            put_choice(file, shown, cell, &choosers[c]);
    }
    fputs("</tr>\n", file);
}

void report_put_regret(FILE *file, const struct shown *shown)
{
    unsigned asked = 0;
    bool have_run = false;
    for (int i = 0; i < shown->results->cell_count * CHOOSERS; i++) {
        const struct chooser *chooser = &choosers[i % CHOOSERS];
        asked |= shown->modes & 1u << chooser->mode;
        have_run |= ran(summary_of(shown, i / CHOOSERS, chooser->mode));
    }
    if (!have_run || (shown->modes & ~asked) == 0)
        return; /* nobody chose, or there was nothing else to choose */
    fputs("<h2>What the choice cost</h2>\n", file);
    report_put_made(file, shown);
    fputs("<p>Regret: a planned run's time over the least of all "
          "plans that ran with that load, by medians, with its planning. "
          "<code>adaptive-exact</code> beside plans on the checkpoint's own weights "
          "alone.</p>\n<ul>\n",
          file);
    for (int c = 0; c < CHOOSERS; c++)
        put_overall(file, shown, &choosers[c]);
    fputs("</ul>\n<div class=\"wide\"><table><tr><th>model</th><th>load</th>", file);
    for (int c = 0; c < CHOOSERS; c++) {
        if ((shown->modes & 1u << choosers[c].mode) != 0)
            fprintf(file, "<th class=\"n\">%s</th><th>the fastest</th>",
                    bench_mode_names[choosers[c].mode]);
    }
    fputs("</tr>\n", file);
    for (int cell = 0; cell < shown->results->cell_count; cell++)
        put_row(file, shown, cell);
    fputs("</table></div>\n", file);
}
