#include "report_plots.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "page_file.h"
#include "report_shown.h"

#define PATH_BYTES 1536

/* What a picture is of. */
struct plotted {
    const struct shown *shown;
    const struct report_trace *trace;
    int cell;
};

/* False: told, but for failures of the file. */
typedef bool plot_fn(FILE *file, const struct plotted *of);

static bool plot_times(FILE *file, const struct plotted *of)
{
    report_plot_times(file, of->shown, of->cell);
    return true;
}

static bool plot_errors(FILE *file, const struct plotted *of)
{
    report_plot_errors(file, of->shown);
    return true;
}

static bool plot_parts(FILE *file, const struct plotted *of)
{
    report_plot_parts(file, of->shown);
    return true;
}

static bool plot_trace(FILE *file, const struct plotted *of)
{
    return report_plot_trace(file, of->trace);
}

static bool plot_write(const char *folder, const char *name, plot_fn *plot,
                       const struct plotted *of)
{
    char path[PATH_BYTES];
    int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    if (length < 0 || (size_t)length >= sizeof path) {
        fprintf(stderr, "phasor: --plots: the folder's path is too long\n");
        return false;
    }
    struct page_file page;
    if (!page_file_check(path, PAGE_PLOT_HEAD, "--plots") || !page_file_open(&page, path))
        return false;
    bool is_good = plot(page.file, of);
    return page_file_close(&page, is_good);
}

static bool folder_make(const char *folder)
{
    if (mkdir(folder, 0777) == 0 || errno == EEXIST)
        return true;
    fprintf(stderr, "phasor: --plots: %s: cannot be made: %s\n", folder, strerror(errno));
    return false;
}

/* Models may be called alike, or by what a file's name had better not have. */
static void times_name(char out[BENCH_NAME_BYTES + 80], const struct shown *shown, int cell)
{
    const struct bench_scenario *scenario = scenario_of(shown->results, cell);
    int model = shown->results->cells[cell].model;
    char name[BENCH_NAME_BYTES];
    bench_model_name(name, &shown->results->question, model);
    name[BENCH_NAME_BYTES / 2] = 0; /* of a file's name 255 bytes are allowed */
    for (char *at = name; *at != 0; at++) {
        bool is_plain = (*at >= 'a' && *at <= 'z') || (*at >= 'A' && *at <= 'Z') ||
                        (*at >= '0' && *at <= '9') || *at == '-' || *at == '.';
        *at = is_plain ? *at : '_';
    }
    snprintf(out, BENCH_NAME_BYTES + 80, "times-%d-%s-%lld-%lld.svg", model + 1, name,
             (long long)scenario->prompt_tokens, (long long)scenario->output_tokens);
}

static bool plots_write(const char *folder, const struct plotted *all)
{
    struct plotted of = *all;
    int cells = of.shown->results->cell_count, sizes = of.shown->results->question.batch_size_count;
    bool is_good = true;
    for (of.cell = 0; of.cell + sizes <= cells && is_good; of.cell += sizes) {
        char name[BENCH_NAME_BYTES + 80];
        times_name(name, of.shown, of.cell);
        is_good = plot_write(folder, name, plot_times, &of);
    }
    if (is_good && report_has_errors(of.shown))
        is_good = plot_write(folder, "errors.svg", plot_errors, &of);
    if (is_good && report_has_parts(of.shown))
        is_good = plot_write(folder, "parts.svg", plot_parts, &of);
    if (is_good && of.trace != NULL)
        is_good = plot_write(folder, "trace.svg", plot_trace, &of);
    return is_good;
}

bool report_plots_write(const char *folder, const struct bench_results *results, const char *path,
                        const struct report_trace *trace)
{
    struct shown shown;
    struct plotted of = {.shown = &shown, .trace = trace};
    bool is_good =
        report_shown_make(&shown, results, path) && folder_make(folder) && plots_write(folder, &of);
    report_shown_free(&shown);
    return is_good;
}
