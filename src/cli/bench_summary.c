#include "bench_summary.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "table.h"

/* ---- Sums ------------------------------------------------------------------------------------ */

/* Values of all rounds. */
struct rounds {
    double *prefill, *decode, *between, *total, *ttft, *tpot;
    double *own, *other; /* of those that another mode has, too */
    int count;
};

static bool rounds_init(struct rounds *out, size_t count)
{
    double *values = calloc(8 * (count + 1), sizeof *values);
    double **at[] = {&out->prefill, &out->decode, &out->between, &out->total,
                     &out->ttft,    &out->tpot,   &out->own,     &out->other};
    *out = (struct rounds){.count = 0};
    for (size_t i = 0; i < 8 && values != NULL; i++)
        *at[i] = values + i * (count + 1);
    if (values == NULL)
        fprintf(stderr, "phasor: out of memory for the rounds\n");
    return values != NULL;
}

static void rounds_free(struct rounds *rounds)
{
    free(rounds->prefill);
}

static void round_add(struct rounds *to, const struct bench_run *run, double planning)
{
    int i = to->count++;
    to->prefill[i] = run->prefill;
    to->decode[i] = run->decode;
    to->between[i] = run->between;
    to->total[i] = run->total + planning;
    to->ttft[i] = run->ttft;
    to->tpot[i] = run->tpot;
}

/* Modelled rounds of older files have no first tokens. */
static bool all_are_known(const double *values, int count)
{
    bool are_known = true;
    for (int i = 0; i < count; i++)
        are_known = are_known && values[i] > 0;
    return are_known;
}

static void medians_put(struct bench_summary *out, struct rounds *rounds)
{
    out->rounds = rounds->count;
    out->prefill = bench_spread_of(rounds->prefill, rounds->count);
    out->decode = bench_spread_of(rounds->decode, rounds->count);
    out->between = bench_spread_of(rounds->between, rounds->count);
    out->total = bench_spread_of(rounds->total, rounds->count);
    out->ttft = all_are_known(rounds->ttft, rounds->count)
                    ? bench_spread_of(rounds->ttft, rounds->count).median
                    : 0;
    out->tpot = bench_spread_of(rounds->tpot, rounds->count).median;
}

/* Why a mode has no plan. */
static const char *why_of(const struct bench_cell *cell, enum bench_mode mode)
{
    for (int i = 0; i < cell->plan_count; i++) {
        if ((cell->plans[i].modes & 1u << mode) != 0)
            return cell->plans[i].why;
    }
    return "it was not asked for";
}

static void rounds_fill(struct rounds *rounds, struct bench_summary *out,
                        const struct bench_results *results, int index, double planning)
{
    const struct bench_cell *cell = &results->cells[index];
    for (size_t i = 0; i < results->run_count; i++) {
        const struct bench_run *run = &results->runs[i];
        if (run->cell != index || &cell->plans[run->plan] != out->plan)
            continue;
        if (run->has_failed) { /* and was not made good since */
            bool stays = bench_run_find(results, index, run->plan, run->round) == run;
            out->failures += stays;
            out->why = stays ? run->message : out->why;
            continue;
        }
        round_add(rounds, run, planning);
        uint64_t tokens = run->prompt_tokens + run->completion_tokens;
        out->tokens_per_second = (double)tokens; /* the same in each round */
        if (run->peak_bytes > out->peak_bytes)
            out->peak_bytes = run->peak_bytes;
        if (run->collective_bytes > out->collective_bytes) {
            out->collective_bytes = run->collective_bytes;
            memcpy(out->bytes_of, run->bytes_of, sizeof out->bytes_of);
        }
    }
}

/* ---- Beside another mode --------------------------------------------------------------------- */

static bool is_of(const struct bench_results *results, const struct bench_run *run, int index,
                  const struct bench_plan *plan)
{
    return run->cell == index && &results->cells[index].plans[run->plan] == plan &&
           !run->has_failed;
}

/* `planning` is in the plan's own time alone: modes that are compared with have none to do. */
static struct bench_against against(struct rounds *rounds, const struct bench_results *results,
                                    int index, const struct bench_plan *plan, enum bench_mode mode,
                                    double planning)
{
    const struct bench_cell *cell = &results->cells[index];
    const struct bench_plan *other = bench_plan_of(cell, mode);
    int count = 0;
    for (size_t i = 0; i < results->run_count && other != NULL; i++) {
        const struct bench_run *run = &results->runs[i];
        if (!is_of(results, run, index, plan))
            continue;
        const struct bench_run *beside =
            bench_run_find(results, index, (int)(other - cell->plans), run->round);
        if (beside == NULL || beside->has_failed)
            continue;
        rounds->own[count] = run->total + planning;
        rounds->other[count++] = beside->total;
    }
    if (plan == other)
        return (struct bench_against){count > 0, true, {1, 1, 1}};
    if (count == 0)
        return (struct bench_against){.is_known = false};
    return (struct bench_against){true, false,
                                  results->question.clock == BENCH_PREDICTED
                                      ? bench_ratio_range(rounds->other, rounds->own, count)
                                      : bench_ratio_of(rounds->other, rounds->own, count)};
}

/* What has static TP's plan is static TP: it takes no more than that does. And the planner's time
 * is this machine's: where others are a box's it is left out. */
static double planning_of(const struct bench_results *results, int index, enum bench_mode mode,
                          const struct bench_plan *plan)
{
    bool plans = bench_mode_plans(mode) && results->question.clock == BENCH_WALL &&
                 plan != bench_plan_of(&results->cells[index], BENCH_STATIC_TP);
    return plans ? results->cells[index].planning_seconds : 0;
}

static bool summarize(struct bench_summary *out, const struct bench_results *results, int index,
                      enum bench_mode mode)
{
    const struct bench_cell *cell = &results->cells[index];
    struct rounds rounds;
    *out = (struct bench_summary){.plan = bench_plan_of(cell, mode)};
    if (out->plan == NULL) {
        out->why = why_of(cell, mode);
        return true;
    }
    if (!rounds_init(&rounds, results->run_count))
        return false;
    double planning = planning_of(results, index, mode, out->plan);
    out->planning = planning;
    rounds_fill(&rounds, out, results, index, planning);
    if (rounds.count > 0) {
        medians_put(out, &rounds);
        out->tokens_per_second /= out->total.median;
    }
    out->static_tp = against(&rounds, results, index, out->plan, BENCH_STATIC_TP, planning);
    out->static_tp_int4 =
        against(&rounds, results, index, out->plan, BENCH_STATIC_TP_INT4, planning);
    rounds_free(&rounds);
    return true;
}

bool bench_summarize(struct bench_summary **out, const struct bench_results *results)
{
    int count = results->cell_count * BENCH_MODE_COUNT;
    struct bench_summary *all = calloc((size_t)count + 1, sizeof *all);
    bool is_good = all != NULL;
    if (!is_good)
        fprintf(stderr, "phasor: out of memory for the rounds\n");
    for (int i = 0; i < count && is_good; i++)
        is_good = summarize(&all[i], results, i / BENCH_MODE_COUNT, i % BENCH_MODE_COUNT);
    if (!is_good) {
        free(all);
        return false;
    }
    *out = all;
    return true;
}

/* ---- As words -------------------------------------------------------------------------------- */

#define KINDS_SHOWN 3

static int largest_of(const uint64_t left[PHASOR_COLLECTIVE_COUNT])
{
    int largest = 0;
    for (int kind = 1; kind < PHASOR_COLLECTIVE_COUNT; kind++)
        largest = left[kind] > left[largest] ? kind : largest;
    return largest;
}

/* With `before` and the name in front of it, where it is any. */
static void bytes_append(char out[BENCH_BYTES_WORDS], const char *before, const char *name,
                         uint64_t bytes)
{
    size_t length = strlen(out);
    char words[32];
    if (bytes == 0)
        return;
    table_format_bytes(words, sizeof words, (double)bytes);
    snprintf(out + length, BENCH_BYTES_WORDS - length, "%s%s%s", before, name, words);
}

void bench_bytes_format(char out[BENCH_BYTES_WORDS], const struct bench_summary *of)
{
    uint64_t left[PHASOR_COLLECTIVE_COUNT], others = of->collective_bytes;
    const char *before = ": ";
    *out = 0;
    bytes_append(out, "", "", of->collective_bytes);
    memcpy(left, of->bytes_of, sizeof left);
    for (int shown = 0; shown < KINDS_SHOWN; shown++) {
        int kind = largest_of(left);
        char name[48];
        snprintf(name, sizeof name, "%s ", phasor_collective_name(kind));
        bytes_append(out, before, name, left[kind]);
        before = left[kind] > 0 ? ", " : before;
        others -= left[kind];
        left[kind] = 0;
    }
    if (*before == ',') /* else kinds are not known: an older file */
        bytes_append(out, before, "others ", others);
}

void bench_memory_format(char out[32], const struct bench_question *question,
                         const struct bench_summary *of)
{
    uint64_t bytes = question->clock == BENCH_WALL ? of->peak_bytes : of->plan->memory;
    *out = 0;
    if (bytes > 0)
        table_format_bytes(out, 32, (double)bytes);
}
