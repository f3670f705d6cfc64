#include "report_page.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench_overall.h"
#include "page.h"
#include "report_shown.h"

/* ---- What tables share ----------------------------------------------------------------------- */

void report_put_made(FILE *file, const struct shown *shown)
{
    page_made(file, bench_clock_label(&shown->results->question), shown->command);
}

void report_put_load(FILE *file, const struct shown *shown, int cell)
{
    const struct bench_scenario *scenario = scenario_of(shown->results, cell);
    char name[BENCH_NAME_BYTES];
    bench_model_name(name, &shown->results->question, shown->results->cells[cell].model);
    fputs("<td>", file);
    page_text(file, name);
    fprintf(file, "</td><td>%lld/%lld x %lld</td>", (long long)scenario->prompt_tokens,
            (long long)scenario->output_tokens, batch_of(shown->results, cell));
}

void report_put_plan(FILE *file, const struct bench_plan *plan)
{
    fputs("<code>", file);
    page_text(file, plan->plan);
    fputs("</code>", file);
    if (strcmp(plan->way, "none") != 0) {
        fputs(" by ", file);
        page_text(file, plan->way);
    }
}

/* ---- Which plans, and the numbers ------------------------------------------------------------ */

static void put_seconds(FILE *file, double value)
{
    fprintf(file, "<td class=\"n\">%.4g</td>", value);
}

static void put_against(FILE *file, const struct bench_against *of)
{
    fputs("<td class=\"n\">", file);
    if (of->is_same)
        fputs("1", file);
    else if (of->is_known)
        fprintf(file, "%.3f", of->ratio.middle);
    fputs("</td><td>", file);
    if (of->is_same)
        fputs("the same plan", file);
    else if (of->is_known && isfinite(of->ratio.high))
        fprintf(file, "%.3f to %.3f", of->ratio.low, of->ratio.high);
    fputs("</td>", file);
}

static void put_row(FILE *file, const struct shown *shown, int cell, enum bench_mode mode)
{
    const struct bench_summary *of = summary_of(shown, cell, mode);
    char bytes[BENCH_BYTES_WORDS], memory[32];
    fputs("<tr>", file);
    report_put_load(file, shown, cell);
    fprintf(file, "<td>%s</td><td%s>", bench_mode_names[mode],
            of->plan == NULL ? " class=\"why\" colspan=\"14\"" : "");
    if (of->plan == NULL) {
        page_text(file, of->why);
        fputs("</td></tr>\n", file);
        return;
    }
    report_put_plan(file, of->plan);
    fprintf(file, "</td><td class=\"n\">%d%s</td>", of->rounds,
            of->failures > 0 ? " <small>and failures</small>" : "");
    if (of->rounds == 0 && of->why != NULL) {
        fputs("<td class=\"why\" colspan=\"12\">", file);
        page_text(file, of->why);
        fputs("</td>", file);
    }
    if (of->rounds > 0) {
        put_seconds(file, of->prefill.median);
        put_seconds(file, of->decode.median);
        put_seconds(file, of->total.median);
        if (of->planning > 0)
            put_seconds(file, of->planning);
        else
            fputs("<td></td>", file);
        bench_bytes_format(bytes, of);
        bench_memory_format(memory, &shown->results->question, of);
        fprintf(file, "<td class=\"n\">%.1f %%</td><td class=\"n\">%.0f</td>",
                100 * of->total.spread, of->tokens_per_second);
        put_against(file, &of->static_tp);
        put_against(file, &of->static_tp_int4);
        fprintf(file, "<td class=\"n\">%s</td><td>%s</td>", memory, bytes);
    }
    fputs("</tr>\n", file);
}

/* What stands in parentheses below the rest. */
static void put_head_words(FILE *file, const char *words, bool is_number)
{
    int name = (int)strcspn(words, "(");
    fprintf(file, "<th%s>%.*s<br><small>%.*s</small></th>", is_number ? " class=\"n\"" : "", name,
            words, (int)strcspn(words + name + 1, ")"), words + name + 1);
}

static void put_time_head(FILE *file, const struct shown *shown, const char *name,
                          enum bench_time time)
{
    fprintf(file, "<th class=\"n\">%s<br><small>%s</small></th>", name,
            bench_time_clock(&shown->results->question, time));
}

static void put_table(FILE *file, const struct shown *shown)
{
    fputs("<h2>Plans and numbers</h2>\n", file);
    report_put_made(file, shown);
    fputs("<p>Medians in seconds; the spread is from the first "
          "quartile to the third. Against static TP, and static TP on INT4: above 1 is faster, ",
          file);
    fputs(bench_interval_words(&shown->results->question), file);
    fputs(".</p>\n<div class=\"wide\"><table><tr><th>model</th><th>load</th><th>mode</th>"
          "<th>plan</th><th class=\"n\">rounds</th>",
          file);
    put_time_head(file, shown, "prefill", BENCH_PREFILL);
    put_time_head(file, shown, "decode", BENCH_DECODE);
    put_time_head(file, shown, "total", BENCH_TOTAL);
    put_head_words(file, bench_planning_words(&shown->results->question), true);
    fputs("<th class=\"n\">spread</th><th class=\"n\">tokens/s</th><th class=\"n\">against static "
          "TP</th><th></th><th class=\"n\">against it on INT4</th><th></th>",
          file);
    put_head_words(file, bench_memory_words(&shown->results->question), true);
    put_head_words(file, bench_bytes_words(&shown->results->question), false);
    fputs("</tr>\n", file);
    for (int i = 0; i < shown->results->cell_count * BENCH_MODE_COUNT; i++) {
        if ((shown->results->question.modes & 1u << i % BENCH_MODE_COUNT) != 0)
            put_row(file, shown, i / BENCH_MODE_COUNT, i % BENCH_MODE_COUNT);
    }
    fputs("</table></div>\n", file);
}

/* ---- The page -------------------------------------------------------------------------------- */

/* What the times are of: the devices here, or the box that is modelled by its name. */
static void put_devices(FILE *file, const struct bench_results *results)
{
    char name[64];
    if (results->question.clock == BENCH_WALL || results->cell_count == 0) {
        page_text(file, results->question.devices);
        return;
    }
    snprintf(name, sizeof name, "%.*s", (int)strcspn(results->cells[0].box, ":"),
             results->cells[0].box);
    page_text(file, name);
}

static void put_head(FILE *file, const struct bench_results *results, const char *path,
                     bool has_trace, bool has_quality)
{
    char prompts[BENCH_PROMPTS_BYTES];
    fputs(REPORT_PAGE_HEAD, file);
    put_devices(file, results);
    page_begin(file);
    fputs("<h1>Adaptive plans beside static ones, on ", file);
    put_devices(file, results);
    if (results->question.clock != BENCH_WALL)
        fprintf(file, ", %s", bench_clock_name(&results->question));
    fputs("</h1>\n<p>", file);
    if (results->cell_count > 0) {
        fputs("Plans by the times of ", file);
        page_text(file, results->cells[0].box);
        fputs(". ", file);
    }
    fprintf(file, "phasor ");
    page_text(file, results->version);
    fputs(", from ", file);
    page_text(file, results->began);
    bench_prompts_words(prompts, &results->question);
    fprintf(file, "; %s", prompts);
    fputs(*results->plans_hash == 0 ? "; not every plan is chosen yet" : "; plans ", file);
    fputs(results->plans_hash, file);
    fputs(", chosen before the first run. This page: <code>phasor report ", file);
    page_text(file, path);
    fputs(has_trace ? " --trace FILE" : "", file);
    fputs(has_quality ? " --quality FILE" : "", file);
    fputs("</code>; below each heading stands what made its figures, and by which clock.</p>\n",
          file);
}

bool report_page_write(FILE *file, const struct bench_results *results, const char *path,
                       const struct report_trace *trace, const struct report_quality *quality)
{
    struct bench_overalls overalls;
    struct shown shown;
    bool is_good = report_shown_make(&shown, results, path);
    if (is_good) {
        put_head(file, results, path, trace != NULL, quality != NULL);
        fputs("<ul>\n", file);
        bench_overalls_make(&overalls, results, shown.of);
        bench_overalls_tell(&overalls, &results->question, file, "<li>", "</li>");
        fputs("</ul>\n", file);
        report_put_times(file, &shown);
        report_put_parts(file, &shown);
        report_put_regret(file, &shown);
        report_put_errors(file, &shown);
        is_good = trace == NULL || report_put_trace(file, trace);
        if (quality != NULL)
            report_put_quality(file, quality);
        put_table(file, &shown);
        fputs("</body></html>\n", file);
    }
    report_shown_free(&shown);
    return is_good;
}
