/* phasor report: results of phasor bench as a page of pictures. */
#include <stdio.h>

#include "bench_print.h"
#include "commands.h"
#include "page_file.h"
#include "report_page.h"
#include "report_plots.h"

struct report_values {
    const char *output, *plots, *trace, *quality;
};

static struct report_values values;

static const struct cli_option options[] = {
    {"output", 'o', OPTION_FILE, offsetof(struct report_values, output), "FILE",
     "the page (HTML); without it the table is printed, in Markdown", 0, 0, NULL},
    {"plots", 0, OPTION_FILE, offsetof(struct report_values, plots), "DIR",
     "write each picture as a file of its own (SVG) into this folder, made if need be", 0, 0, NULL},
    {"trace", 0, OPTION_FILE, offsetof(struct report_values, trace), "FILE",
     "of phasor run --trace: the page shows that run from prefill to decode", 0, 0, NULL},
    {"quality", 0, OPTION_FILE, offsetof(struct report_values, quality), "FILE",
     "of bench_quantize: the page shows what INT4 does to predictions", 0, 0, NULL},
    {.name = NULL},
};

static int page_write_with(const struct bench_results *results, const char *path,
                           const struct report_trace *trace, const struct report_quality *quality)
{
    struct page_file page;
    if (!page_file_check(values.output, REPORT_PAGE_HEAD, "--output") ||
        !page_file_open(&page, values.output))
        return EXIT_FATAL;
    bool is_good = report_page_write(page.file, results, path, trace, quality);
    return page_file_close(&page, is_good) ? EXIT_DONE : EXIT_FATAL;
}

/* The pictures first, so that a page is of results that can be drawn. */
static int page_write(const struct bench_results *results, const char *path)
{
    struct report_trace *trace = NULL;
    struct report_quality *quality = NULL;
    bool is_good = (values.trace == NULL || report_trace_open(&trace, values.trace)) &&
                   (values.quality == NULL || report_quality_open(&quality, values.quality)) &&
                   (values.plots == NULL || report_plots_write(values.plots, results, path, trace));
    int code = is_good ? EXIT_DONE : EXIT_FATAL;
    if (is_good && values.output != NULL)
        code = page_write_with(results, path, trace, quality);
    report_quality_close(quality);
    report_trace_close(trace);
    return code;
}

static int run(const struct cli_command *command, char **operands, int operand_count)
{
    struct bench_results results;
    int code = EXIT_FATAL;
    (void)operand_count;
    if (values.trace != NULL && values.output == NULL && values.plots == NULL)
        return options_mistake(command, "--trace: the page shows it: name one with --output, or "
                                        "a folder with --plots");
    if (values.quality != NULL && values.output == NULL)
        return options_mistake(command, "--quality: the page shows it: name one with --output");
    if (bench_results_read(&results, operands[0])) {
        if (values.output != NULL || values.plots != NULL)
            code = page_write(&results, operands[0]);
        else
            code = bench_print(&results, BENCH_MARKDOWN) ? EXIT_DONE : EXIT_FATAL;
    }
    bench_results_free(&results);
    return code;
}

const struct cli_command command_report = {
    .name = "report",
    .operands = "RESULTS",
    .summary = "make a page of pictures of what phasor bench measured",
    .options = options,
    .values = &values,
    .operand_min = 1,
    .operand_max = 1,
    .run = run,
};
