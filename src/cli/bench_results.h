/* The results of phasor bench: what was asked, the plans that were chosen for it, and a line for
 * each run, as they are made. Lines of JSON (docs/bench.md), written whole and at once, so
 * that a bench which is killed loses the run under way alone.
 */
#ifndef PHASOR_CLI_BENCH_RESULTS_H
#define PHASOR_CLI_BENCH_RESULTS_H

#include <stdio.h>

#include "bench_question.h"
#include "phasor.h"

#define BENCH_PLAN_BYTES    96
#define BENCH_WHY_BYTES     1024
#define BENCH_ROUNDS_MAX    1000
#define BENCH_MESSAGE_BYTES 256 /* of a sentence the beginning */

/* A plan that one mode or more has for a cell. */
struct bench_plan {
    unsigned modes;
    char plan[BENCH_PLAN_BYTES]; /* "": these modes have none */
    char way[16];                /* "none", "keep" ...: of its change of layout */
    char why[BENCH_WHY_BYTES];   /* it is none */
    int64_t wave, pass_tokens;   /* sequences at a time; tokens of a pass */
    /* Seconds. */
    double predicted_prefill, predicted_between, predicted_decode;
    uint64_t memory;   /* of the fullest device, that the planner counts on */
    uint64_t kv_cache; /* of it, for keys and values; 0: not known, as in older files */
};

/* A model and a load. */
struct bench_cell {
    int model, scenario, batch_size; /* of the question */
    char box[BENCH_WHY_BYTES];       /* whose times the plans are chosen by, in words */
    int device_count;                /* of that box */
    double planning_seconds;
    double host_step; /* seconds of that box's host for each pass */
    struct bench_plan plans[BENCH_MODE_COUNT];
    int plan_count;
    size_t
        last_run[BENCH_MODE_COUNT]; /* of each plan: 1 + its place in the results' runs; 0: none */
};

/* What came of a plan in one round; seconds by the clock. */
struct bench_run {
    int cell, plan, round; /* rounds from 1 */
    bool has_failed;       /* then the rest is not known, but why */
    char message[BENCH_MESSAGE_BYTES];
    size_t before; /* 1 + the place of the run of the same plan before it; 0: it is the first */
    double prefill, decode;
    double between; /* changes of layout that no pass hides */
    double total;   /* from the first row to the last; planning is not in it */
    double ttft, ttft_p99, tpot, tpot_p99; /* median, 99th percentile */
    uint64_t prompt_tokens, completion_tokens;
    /* Of all ranks together: what they sent one another, in all and by kind (modelled: in the
     * passes that were composed), and what their devices held since the model was loaded (0:
     * nothing ran by the clock). */
    uint64_t bytes_of[PHASOR_COLLECTIVE_COUNT], collective_bytes, peak_bytes;
};

struct bench_results {
    struct bench_question question;
    char *began;   /* "2026-11-23T12:00:00Z" */
    char *version; /* of phasor */
    /* Of the question's models, "": not known, as in older files, or where weights do not matter.
     */
    char identities[BENCH_LIST_MAX][PHASOR_FINGERPRINT_BYTES];
    char plans_hash[17];       /* of all lines of plans, "": not all are chosen yet */
    struct bench_cell *cells;  /* in the order of models, scenarios, batch sizes */
    int cell_count, cell_room; /* of those that have their plans */
    struct bench_run *runs;
    size_t run_count, run_room;
    FILE *file;  /* NULL: nothing is written */
    char *path;  /* for sentences */
    bool is_new; /* the file: it was begun by this call */
};

int bench_cells_of(const struct bench_question *question);

/* A cell's place in the order of models, scenarios, batch sizes. */
int bench_cell_number(const struct bench_question *question, const struct bench_cell *cell);

/* The mode's plan of a cell; NULL: it has none, or was not asked for. */
const struct bench_plan *bench_plan_of(const struct bench_cell *cell, enum bench_mode mode);

/* The last run of a plan in a round; NULL: it was not made. */
const struct bench_run *bench_run_find(const struct bench_results *results, int cell, int plan,
                                       int round);

/* The tokens of a run that nobody ran, and what each of its steps of decode took. */
void bench_run_count(struct bench_run *run, const struct bench_question *question,
                     const struct bench_cell *cell);

/* Keeps the beginning of a text, whole characters of UTF-8. */
void bench_text_keep(char *out, size_t capacity, const char *text);

/* All functions below tell on standard error what is wrong and return false then. */

/* Reads a file that was written before. */
bool bench_results_read(struct bench_results *out, const char *path);

/* Begins with what is asked, which is the results' from then on. `path` NULL: no file. One that is
 * there is refused; one that cannot be begun is not left. */
bool bench_results_begin(struct bench_results *out, struct bench_question *question,
                         const char *path);

/* Goes on with the file of the same question: what is in it is read, and a line that is cut off at
 * its end removed. An empty file is begun. */
bool bench_results_resume(struct bench_results *out, struct bench_question *question,
                          const char *path);

/* Each is written to the disk before it returns. Cells come in their order; behind the last of them
 * stands the hash. A run of a plan and round that has failed may come again. */
bool bench_results_add_cell(struct bench_results *results, const struct bench_cell *cell);
bool bench_results_add_run(struct bench_results *results, const struct bench_run *run);

void bench_results_free(struct bench_results *results); /* a zero one is allowed */

#endif
