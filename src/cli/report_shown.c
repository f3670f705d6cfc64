#include "report_shown.h"

#include <stdlib.h>

static int rounds_of(const struct bench_results *results)
{
    int most = 0;
    for (size_t i = 0; i < results->run_count; i++)
        most = results->runs[i].round > most ? results->runs[i].round : most;
    return most;
}

void report_shown_free(struct shown *shown)
{
    free(shown->of);
    free(shown->command);
}

bool report_shown_make(struct shown *out, const struct bench_results *results, const char *path)
{
    *out = (struct shown){.results = results};
    out->command = bench_question_command(&results->question, rounds_of(results), path);
    if (out->command == NULL)
        fprintf(stderr, "phasor: out of memory for the results\n");
    if (out->command == NULL || !bench_summarize(&out->of, results))
        return false;
    for (int i = 0; i < results->cell_count * BENCH_MODE_COUNT; i++) {
        if (out->of[i].plan != NULL)
            out->modes |= 1u << i % BENCH_MODE_COUNT;
    }
    return true;
}
