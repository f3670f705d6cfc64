/* What each part of an adaptive plan is worth: the ablation, as bars and as a table. */
#include <math.h>

#include "bench_parts.h"
#include "report_shown.h"

/* ---- A bar for each load, from static TP's 1 on ---------------------------------------------- */

#define WIDTH      940
#define LEFT       264 /* room for a model and a load */
#define RIGHT      60  /* and for "10.23x" */
#define TOP        24
#define ROW        17
#define GAIN       9  /* how thick what a part gains is drawn */
#define LOSS       4  /* and, below it, what it loses */
#define NAME_BYTES 24 /* of a model's name, which is shown */

/* Of page_colours. */
static const int part_colours[BENCH_PARTS] = {0, 4, 7, 2};

struct axis {
    double low, high, step; /* in times static TP's rate */
};

static double place_of(const struct axis *axis, double times)
{
    return LEFT + (times - axis->low) / (axis->high - axis->low) * (WIDTH - LEFT - RIGHT);
}

/* False: not all parts are known, or times are so far apart that no picture would show them. */
static bool worth_of(struct bench_parts_worth *out, const struct shown *shown, int cell)
{
    *out = bench_parts_of(summary_of(shown, cell, 0));
    double at = 1;
    bool is_shown = bench_parts_are_known(out);
    for (int i = 0; i < BENCH_PARTS && is_shown; i++) {
        at *= out->of[i];
        is_shown = at > 1e-6 && at < 1e6;
    }
    return is_shown;
}

/* Ends on whole steps, of which there are few. How many loads there are to show. */
static int axis_make(struct axis *out, const struct shown *shown)
{
    double low = 1, high = 1.01;
    int count = 0;
    for (int cell = 0; cell < shown->results->cell_count; cell++) {
        struct bench_parts_worth worth;
        double at = 1;
        if (!worth_of(&worth, shown, cell))
            continue;
        for (int i = 0; i < BENCH_PARTS; i++) {
            at *= worth.of[i];
            low = fmin(low, at);
            high = fmax(high, at);
        }
        count++;
    }
    double step = pow(10, floor(log10(high - low)));
    step *= (high - low) / step < 2 ? 0.2 : (high - low) / step < 5 ? 0.5 : 1;
    *out = (struct axis){floor(low / step) * step, ceil(high / step) * step, step};
    return count;
}

static void put_axis(FILE *file, const struct axis *axis, int count)
{
    int steps = (int)lround((axis->high - axis->low) / axis->step);
    for (int i = 0; i <= steps; i++) {
        double x = place_of(axis, axis->low + i * axis->step);
        char text[16];
        snprintf(text, sizeof text, "%.4g", axis->low + i * axis->step);
        page_line(file, x, TOP, x, TOP + count * ROW, "grid");
        page_label(file, x, TOP - 8, "middle", text);
    }
    page_line(file, place_of(axis, 1), TOP, place_of(axis, 1), TOP + count * ROW, "mark");
}

/* A loss is drawn as far to the left as it takes, below the gains that it is taken from. */
static void put_bar(FILE *file, const struct axis *axis, const struct bench_parts_worth *worth,
                    double y)
{
    double at = 1;
    for (int i = 0; i < BENCH_PARTS; i++) {
        double next = at * worth->of[i], from = place_of(axis, fmin(at, next));
        double width = place_of(axis, fmax(at, next)) - from;
        char text[128];
        snprintf(text, sizeof text, "%s: %.3f times as fast as without", bench_parts[i].adds,
                 worth->of[i]);
        if (next >= at)
            page_rect(file, from, y, width, GAIN, page_colours[part_colours[i]], text);
        else
            page_rect(file, from, y + GAIN, width, LOSS, page_colours[part_colours[i]], text);
        at = next;
    }
}

static void put_load(FILE *file, const struct shown *shown, const struct axis *axis, int cell,
                     const struct bench_parts_worth *worth, double y)
{
    const struct bench_scenario *scenario = scenario_of(shown->results, cell);
    char name[BENCH_NAME_BYTES], text[NAME_BYTES + 80];
    bench_model_name(name, &shown->results->question, shown->results->cells[cell].model);
    snprintf(text, sizeof text, "%.*s %lld/%lld x %lld", NAME_BYTES, name,
             (long long)scenario->prompt_tokens, (long long)scenario->output_tokens,
             batch_of(shown->results, cell));
    page_label(file, LEFT - 8, y + GAIN + 1, "end", text);
    put_bar(file, axis, worth, y);
    snprintf(text, sizeof text, "%.2fx", worth->all);
    page_label(file, WIDTH - 6, y + GAIN + 1, "end", text);
}

static void draw_parts(FILE *file, const struct shown *shown, const struct axis *axis, int count)
{
    double y = TOP + 2;
    put_axis(file, axis, count);
    for (int cell = 0; cell < shown->results->cell_count; cell++) {
        struct bench_parts_worth worth;
        if (!worth_of(&worth, shown, cell))
            continue;
        put_load(file, shown, axis, cell, &worth, y);
        y += ROW;
    }
}

static void patches_make(struct page_patch out[BENCH_PARTS])
{
    for (int i = 0; i < BENCH_PARTS; i++) {
        out[i].colour = part_colours[i];
        snprintf(out[i].name, sizeof out[i].name, "%s", bench_parts[i].adds);
    }
}

bool report_has_parts(const struct shown *shown)
{
    struct axis axis;
    return bench_parts_asked(&shown->results->question) && axis_make(&axis, shown) > 0;
}

void report_plot_parts(FILE *file, const struct shown *shown)
{
    struct axis axis;
    int count = axis_make(&axis, shown);
    struct page_plot plot = {.width = WIDTH,
                             .height = TOP + count * ROW + 6,
                             .title = "What each part is worth, in times static TP's rate",
                             .label = bench_clock_label(&shown->results->question),
                             .command = shown->command,
                             .patch_count = BENCH_PARTS};
    patches_make(plot.patches);
    page_plot_begin(file, &plot);
    draw_parts(file, shown, &axis, count);
    page_plot_end(file);
}

static void put_picture(FILE *file, const struct shown *shown)
{
    struct page_patch patches[BENCH_PARTS];
    struct axis axis;
    int count = axis_make(&axis, shown);
    if (count == 0)
        return;
    fputs("<p>Bars begin at static TP's rate, 1. The thin ones below them lead back by what a part "
          "loses, to where the next begins.</p>\n",
          file);
    patches_make(patches);
    page_patches(file, patches, BENCH_PARTS);
    page_picture_begin(file, WIDTH, TOP + count * ROW + 6);
    draw_parts(file, shown, &axis, count);
    page_picture_end(file);
}

/* ---- And as numbers -------------------------------------------------------------------------- */

static void put_worth(FILE *file, const struct bench_parts_worth *of)
{
    for (int i = 0; i < BENCH_PARTS; i++) {
        if (of->of[i] > 0)
            fprintf(file, "<td class=\"n\">%.3f</td>", of->of[i]);
        else
            fputs("<td></td>", file);
    }
    if (of->all > 0)
        fprintf(file, "<td class=\"n\"><b>%.3f</b></td>", of->all);
    fputs("</tr>\n", file);
}

void report_put_parts(FILE *file, const struct shown *shown)
{
    int cells = shown->results->cell_count;
    if (!bench_parts_asked(&shown->results->question))
        return;
    fputs("<h2>What each part is worth</h2>\n", file);
    report_put_made(file, shown);
    fputs(
        "<p>How many times as fast with it as without, one on "
        "top of the other, by medians; the last column is their product, against static TP.</p>\n",
        file);
    put_picture(file, shown);
    fputs("<div class=\"wide\"><table><tr><th>model</th><th>load</th>", file);
    for (int i = 0; i < BENCH_PARTS; i++)
        fprintf(file, "<th class=\"n\">%s</th>", bench_parts[i].adds);
    fputs("<th class=\"n\">all</th></tr>\n", file);
    for (int cell = 0; cell < cells; cell++) {
        struct bench_parts_worth worth = bench_parts_of(summary_of(shown, cell, 0));
        fputs("<tr>", file);
        report_put_load(file, shown, cell);
        put_worth(file, &worth);
    }
    struct bench_parts_worth mean = bench_parts_mean(shown->of, cells);
    fputs("<tr><td colspan=\"2\">geometric mean</td>", file);
    put_worth(file, &mean);
    fputs("</table></div>\n", file);
}
