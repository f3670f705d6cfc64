#include <math.h>
#include <stdio.h>
#include <string.h>

#include "page.h"
#include "report_shown.h"

#define WIDTH       940
#define LEFT        56
#define RIGHT       16
#define BARS_HEIGHT 260 /* of a picture of bars, from the axis to the top */
#define BARS_TOP    18
#define BARS_BELOW  76 /* ratios, and names of groups */

/* ---- Bars: a group for each batch, a bar for each mode --------------------------------------- */

#define PART_COUNT 4
static const char *const part_names[PART_COUNT] = {"prefill", "between the phases", "decode",
                                                   "the rest: rows, answers, planning"};
static const enum bench_time part_times[PART_COUNT] = {BENCH_PREFILL, BENCH_BETWEEN, BENCH_DECODE,
                                                       BENCH_TOTAL};
/* Of page_colours. */
static const int part_colours[PART_COUNT] = {0, 5, 1, 7};

static void parts_of(double parts[PART_COUNT], const struct bench_summary *of)
{
    parts[0] = of->prefill.median;
    parts[1] = of->between.median;
    parts[2] = of->decode.median;
    parts[3] = fmax(of->total.median - parts[0] - parts[1] - parts[2], 0);
}

/* Seconds that a bar of height 1 stands for: static TP's, else the longest's. */
static double unit_of(const struct shown *shown, int cell)
{
    const struct bench_summary *tp = summary_of(shown, cell, BENCH_STATIC_TP);
    double most = 0;
    if (tp->rounds > 0)
        return tp->total.median;
    for (int mode = 0; mode < BENCH_MODE_COUNT; mode++)
        most = fmax(most, summary_of(shown, cell, mode)->total.median);
    return most;
}

static double highest_of(const struct shown *shown, int first, int count)
{
    double most = 1;
    for (int i = first * BENCH_MODE_COUNT; i < (first + count) * BENCH_MODE_COUNT; i++) {
        double unit = unit_of(shown, i / BENCH_MODE_COUNT);
        if (shown->of[i].rounds > 0 && unit > 0)
            most = fmax(most, shown->of[i].total.median / unit);
    }
    return most;
}

static void title_format(char *out, size_t capacity, const struct bench_summary *of,
                         enum bench_mode mode, const char *part, double seconds)
{
    snprintf(out, capacity, "%s, %s%s%s; %s: %.4g s of %.4g s (spread %.1f %%), %d rounds",
             bench_mode_names[mode], of->plan->plan,
             strcmp(of->plan->way, "none") == 0 ? "" : " by ",
             strcmp(of->plan->way, "none") == 0 ? "" : of->plan->way, part, seconds,
             of->total.median, 100 * of->total.spread, of->rounds);
}

/* The interval of the ratio, as times of static TP's. */
static void put_whisker(FILE *file, const struct bench_summary *of, double x, double scale)
{
    const struct bench_against *tp = &of->static_tp;
    if (!tp->is_known || tp->is_same || isinf(tp->ratio.high) || tp->ratio.low <= 0)
        return;
    double bottom = BARS_TOP + BARS_HEIGHT;
    double y1 = fmax(bottom - scale / tp->ratio.low, 2), y2 = bottom - scale / tp->ratio.high;
    page_line(file, x, y1, x, y2, "mark");
    if (y1 > 2) /* else it goes on beyond the picture */
        page_line(file, x - 3, y1, x + 3, y1, "mark");
    page_line(file, x - 3, y2, x + 3, y2, "mark");
}

static void put_times_as_fast(FILE *file, const struct bench_summary *of, double x)
{
    if (of->static_tp.is_known)
        fprintf(file,
                "<text class=\"below\" transform=\"translate(%.1f %.1f) "
                "rotate(-90)\">%.2fx</text>\n",
                x + 3.5, BARS_TOP + BARS_HEIGHT + 5.0, of->static_tp.ratio.middle);
}

static void put_bar(FILE *file, const struct bench_summary *of, enum bench_mode mode, double unit,
                    double x, double width, double scale)
{
    double parts[PART_COUNT], y = BARS_TOP + BARS_HEIGHT;
    char text[400];
    parts_of(parts, of);
    for (int part = 0; part < PART_COUNT; part++) {
        double height = parts[part] / unit * scale;
        title_format(text, sizeof text, of, mode, part_names[part], parts[part]);
        page_rect(file, x, y - height, width, height, page_colours[part_colours[part]], text);
        y -= height;
    }
    put_whisker(file, of, x + width / 2, scale);
    put_times_as_fast(file, of, x + width / 2);
    fprintf(file, "<text class=\"tiny\" transform=\"translate(%.1f %.1f) rotate(-90)\">%s</text>\n",
            x + width / 2 + 3.5, BARS_TOP + BARS_HEIGHT - 5.0, bench_mode_names[mode]);
}

static int bits_of(unsigned bits)
{
    int count = 0;
    for (; bits != 0; bits &= bits - 1)
        count++;
    return count;
}

static void put_group(FILE *file, const struct shown *shown, int cell, double x, double width,
                      double scale)
{
    int count = bits_of(shown->modes), at = 0;
    double bar = width * 0.92 / count, unit = unit_of(shown, cell);
    char text[64];
    for (int mode = 0; mode < BENCH_MODE_COUNT; mode++) {
        const struct bench_summary *of = summary_of(shown, cell, mode);
        if ((shown->modes & 1u << mode) == 0)
            continue;
        if (of->rounds > 0 && unit > 0)
            put_bar(file, of, mode, unit, x + at * bar, bar * 0.9, scale);
        at++;
    }
    snprintf(text, sizeof text, "batch of %lld", batch_of(shown->results, cell));
    page_label(file, x + width * 0.46, BARS_TOP + BARS_HEIGHT + 50, "middle", text);
    if (unit > 0) {
        snprintf(text, sizeof text, "1 = %.3g s", unit);
        page_label(file, x + width * 0.46, BARS_TOP + BARS_HEIGHT + 67, "middle", text);
    }
}

static void put_axis(FILE *file, double most, double scale)
{
    double step = most > 2.4 ? 1 : most > 1.2 ? 0.5 : 0.25;
    if (most > 8)
        step = pow(10, floor(log10(most)));
    for (int i = 0; i * step <= most * 1.0001; i++) {
        double value = i * step;
        double y = BARS_TOP + BARS_HEIGHT - value * scale;
        char text[16];
        snprintf(text, sizeof text, "%.3g", value);
        page_line(file, LEFT, y, WIDTH - RIGHT, y, value == 1 ? "mark" : "grid");
        page_label(file, LEFT - 8, y + 4, "end", text);
    }
}

#define BARS_PICTURE (BARS_TOP + BARS_HEIGHT + BARS_BELOW)

/* The cells of one model and scenario, from `first` on: one for each batch. */
static void draw_bars(FILE *file, const struct shown *shown, int first)
{
    int count = shown->results->question.batch_size_count;
    double most = highest_of(shown, first, count), scale = BARS_HEIGHT / most;
    double width = (double)(WIDTH - LEFT - RIGHT) / count;
    put_axis(file, most, scale);
    for (int i = 0; i < count; i++)
        put_group(file, shown, first + i, LEFT + (i + 0.04) * width, width, scale);
}

static void put_bars(FILE *file, const struct shown *shown, int first)
{
    const struct bench_scenario *scenario = scenario_of(shown->results, first);
    fprintf(file, "<h3>%lld prompt tokens, %lld generated</h3>\n",
            (long long)scenario->prompt_tokens, (long long)scenario->output_tokens);
    page_picture_begin(file, WIDTH, BARS_PICTURE);
    draw_bars(file, shown, first);
    page_picture_end(file);
}

/* With the clock that each part is of. How many there are: what nobody ran has no rest. */
static int patches_make(struct page_patch out[PART_COUNT], const struct bench_question *question)
{
    int count = question->clock == BENCH_WALL ? PART_COUNT : PART_COUNT - 1;
    for (int part = 0; part < count; part++) {
        out[part].colour = part_colours[part];
        snprintf(out[part].name, sizeof out[part].name, "%s (%s)", part_names[part],
                 bench_time_clock(question, part_times[part]));
    }
    return count;
}

void report_plot_times(FILE *file, const struct shown *shown, int first)
{
    const struct bench_question *question = &shown->results->question;
    const struct bench_scenario *scenario = scenario_of(shown->results, first);
    struct page_plot plot = {.width = WIDTH,
                             .height = BARS_PICTURE,
                             .label = bench_clock_label(question),
                             .command = shown->command};
    char name[BENCH_NAME_BYTES];
    bench_model_name(name, question, shown->results->cells[first].model);
    snprintf(plot.title, sizeof plot.title,
             "%s, %lld prompt tokens, %lld generated: times, static TP's is 1", name,
             (long long)scenario->prompt_tokens, (long long)scenario->output_tokens);
    plot.patch_count = patches_make(plot.patches, question);
    page_plot_begin(file, &plot);
    draw_bars(file, shown, first);
    page_plot_end(file);
}

void report_put_times(FILE *file, const struct shown *shown)
{
    const struct bench_results *results = shown->results;
    int sizes = results->question.batch_size_count, model = -1;
    struct page_patch patches[PART_COUNT];
    fputs("<h2>Times beside static tensor parallelism</h2>\n", file);
    report_put_made(file, shown);
    fputs("<p>Lower is faster; 1 is static TP's "
          "median of the same load, where it ran. Below each bar how many times as fast as static "
          "TP it is, ",
          file);
    fputs(bench_interval_words(&results->question), file);
    fputs(" as the mark across it. <span class=\"label\">", file);
    page_text(file, bench_clock_sentence(&results->question));
    fputs("</span></p>\n", file);
    page_patches(file, patches, patches_make(patches, &results->question));
    for (int cell = 0; cell + sizes <= results->cell_count; cell += sizes) {
        if (results->cells[cell].model != model) {
            model = results->cells[cell].model;
            char name[BENCH_NAME_BYTES];
            bench_model_name(name, &results->question, model);
            fputs("<h3>", file);
            page_text(file, name);
            fputs("</h3>\n", file);
        }
        put_bars(file, shown, cell);
    }
}

/* ---- Predicted against measured -------------------------------------------------------------- */

#define DOTS_SIDE 380
#define DOTS_LEFT 76 /* room for "0.0001 s" */

struct range {
    double low, high; /* powers of ten; low < high */
};

static void range_add(struct range *range, double seconds)
{
    if (!(seconds > 0))
        return;
    range->low = fmin(range->low, floor(log10(seconds)));
    range->high = fmax(range->high, ceil(log10(seconds)));
}

static double place_of(const struct range *range, double seconds)
{
    return (log10(seconds) - range->low) / (range->high - range->low) * DOTS_SIDE;
}

/* Each plan of each cell once, with the first of its modes. */
typedef void pair_fn(void *context, int phase, double predicted, double measured,
                     const char *title);

static void pairs_each(const struct shown *shown, pair_fn *each, void *context)
{
    for (int i = 0; i < shown->results->cell_count * BENCH_MODE_COUNT; i++) {
        const struct bench_summary *of = &shown->of[i];
        int cell = i / BENCH_MODE_COUNT, mode = i % BENCH_MODE_COUNT;
        const struct bench_scenario *scenario = scenario_of(shown->results, cell);
        char title[256];
        if (of->rounds == 0 || (of->plan->modes & ((1u << mode) - 1)) != 0)
            continue;
        snprintf(title, sizeof title, "%s, %lld/%lld x %lld", of->plan->plan,
                 (long long)scenario->prompt_tokens, (long long)scenario->output_tokens,
                 batch_of(shown->results, cell));
        each(context, 0, of->plan->predicted_prefill, of->prefill.median, title);
        each(context, 1, of->plan->predicted_decode, of->decode.median, title);
    }
}

struct dots {
    FILE *file;
    struct range range;
    double errors[2];
    int counts[2], within[2];
};

static void dot_measure(void *context, int phase, double predicted, double measured,
                        const char *title)
{
    struct dots *dots = context;
    (void)title;
    if (!(predicted > 0) || !(measured > 0))
        return;
    double error = fabs(predicted / measured - 1);
    range_add(&dots->range, predicted);
    range_add(&dots->range, measured);
    dots->errors[phase] += error;
    dots->within[phase] += error <= 0.1;
    dots->counts[phase]++;
}

static void dot_put(void *context, int phase, double predicted, double measured, const char *title)
{
    struct dots *dots = context;
    if (!(predicted > 0) || !(measured > 0))
        return;
    fprintf(dots->file,
            "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\" fill-opacity=\"0.8\"><title>",
            DOTS_LEFT + place_of(&dots->range, measured),
            10 + DOTS_SIDE - place_of(&dots->range, predicted), page_colours[phase == 0 ? 0 : 5]);
    page_text(dots->file, title);
    fprintf(dots->file, ": predicted %.4g s, came out %.4g s</title></circle>\n", predicted,
            measured);
}

/* The diagonal for predicted = `times` measured. */
static void put_diagonal(const struct dots *dots, double times, const char *style)
{
    double shift = log10(times) / (dots->range.high - dots->range.low) * DOTS_SIDE;
    double from = fmax(0, -shift), to = fmin(DOTS_SIDE, DOTS_SIDE - shift);
    page_line(dots->file, DOTS_LEFT + from, 10 + DOTS_SIDE - from - shift, DOTS_LEFT + to,
              10 + DOTS_SIDE - to - shift, style);
}

static void put_powers(const struct dots *dots)
{
    for (double power = dots->range.low; power <= dots->range.high; power++) {
        double at = place_of(&dots->range, pow(10, power));
        char text[32];
        snprintf(text, sizeof text, "%.3g s", pow(10, power));
        page_line(dots->file, DOTS_LEFT, 10 + DOTS_SIDE - at, DOTS_LEFT + DOTS_SIDE,
                  10 + DOTS_SIDE - at, "grid");
        page_line(dots->file, DOTS_LEFT + at, 10, DOTS_LEFT + at, 10 + DOTS_SIDE, "grid");
        page_label(dots->file, DOTS_LEFT - 6, 14 + DOTS_SIDE - at, "end", text);
        page_label(dots->file, DOTS_LEFT + at, 28 + DOTS_SIDE, "middle", text);
    }
}

/* False: there is nothing to show. */
static bool dots_make(struct dots *out, FILE *file, const struct shown *shown)
{
    *out = (struct dots){.file = file, .range = {INFINITY, -INFINITY}};
    pairs_each(shown, dot_measure, out);
    return out->range.low < out->range.high;
}

static void draw_dots(struct dots *dots, const struct shown *shown)
{
    put_powers(dots);
    put_diagonal(dots, 1, "mark");
    put_diagonal(dots, 1.1, "grid");
    put_diagonal(dots, 1 / 1.1, "grid");
    pairs_each(shown, dot_put, dots);
}

static void phases_make(struct page_patch out[2], const struct bench_question *question)
{
    for (int phase = 0; phase < 2; phase++) {
        out[phase].colour = phase == 0 ? 0 : 5;
        snprintf(out[phase].name, sizeof out[phase].name, "%s (%s)",
                 phase == 0 ? "prefill" : "decode",
                 bench_time_clock(question, phase == 0 ? BENCH_PREFILL : BENCH_DECODE));
    }
}

static const char *measured_of(const struct shown *shown)
{
    return shown->results->question.clock == BENCH_WALL ? "measured" : "modelled";
}

bool report_has_errors(const struct shown *shown)
{
    struct dots dots;
    return shown->results->question.clock != BENCH_PREDICTED && dots_make(&dots, NULL, shown);
}

void report_plot_errors(FILE *file, const struct shown *shown)
{
    struct page_plot plot = {.width = WIDTH,
                             .height = DOTS_SIDE + 40,
                             .label = bench_clock_label(&shown->results->question),
                             .command = shown->command,
                             .patch_count = 2};
    struct dots dots;
    snprintf(plot.title, sizeof plot.title, "Across %s, up predicted; the thin lines are 10 %% off",
             measured_of(shown));
    phases_make(plot.patches, &shown->results->question);
    page_plot_begin(file, &plot);
    if (dots_make(&dots, file, shown))
        draw_dots(&dots, shown);
    page_plot_end(file);
}

void report_put_errors(FILE *file, const struct shown *shown)
{
    const char *measured = measured_of(shown);
    struct page_patch patches[2];
    struct dots dots;
    if (!report_has_errors(shown) || !dots_make(&dots, file, shown))
        return;
    fprintf(file, "<h2>Predicted and %s</h2>\n", measured);
    report_put_made(file, shown);
    fprintf(file,
            "<p>Each plan that ran, medians; across %s, up predicted seconds; the thin lines are "
            "10 %% off.",
            measured);
    for (int phase = 0; phase < 2; phase++) {
        if (dots.counts[phase] > 0)
            fprintf(file, " %s: %d of %d within 10 %%, off by %.1f %% on the mean.",
                    phase == 0 ? "Prefill" : "Decode", dots.within[phase], dots.counts[phase],
                    100 * dots.errors[phase] / dots.counts[phase]);
    }
    fputs("</p>\n", file);
    phases_make(patches, &shown->results->question);
    page_patches(file, patches, 2);
    page_picture_begin(file, WIDTH, DOTS_SIDE + 40);
    draw_dots(&dots, shown);
    page_picture_end(file);
}
