#include "bench_summary.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- Sums ------------------------------------------------------------------------------------ */

/* Values of all rounds, and those of static TP in the same. */
struct rounds {
    double *prefill, *decode, *between, *total, *ttft, *tpot;
    double *own, *tp; /* [paired] */
    int count, paired;
};

static bool rounds_init(struct rounds *out, size_t count)
{
    double *values = calloc(8 * (count + 1), sizeof *values);
    double **at[] = {&out->prefill, &out->decode, &out->between, &out->total,
                     &out->ttft,    &out->tpot,   &out->own,     &out->tp};
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

static void pair_add(struct rounds *to, const struct bench_run *run, const struct bench_run *tp,
                     double planning)
{
    if (tp == NULL || tp->has_failed)
        return;
    to->own[to->paired] = run->total + planning;
    to->tp[to->paired++] = tp->total;
}

static void medians_put(struct bench_summary *out, struct rounds *rounds)
{
    out->rounds = rounds->count;
    out->prefill = bench_spread_of(rounds->prefill, rounds->count);
    out->decode = bench_spread_of(rounds->decode, rounds->count);
    out->between = bench_spread_of(rounds->between, rounds->count);
    out->total = bench_spread_of(rounds->total, rounds->count);
    out->ttft = bench_spread_of(rounds->ttft, rounds->count).median;
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
    const struct bench_plan *tp = bench_plan_of(cell, BENCH_STATIC_TP);
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
        if (tp != NULL)
            pair_add(rounds, run,
                     bench_run_find(results, index, (int)(tp - cell->plans), run->round), planning);
        uint64_t tokens = run->prompt_tokens + run->completion_tokens;
        out->tokens_per_second = (double)tokens; /* the same in each round */
        if (run->peak_bytes > out->peak_bytes)
            out->peak_bytes = run->peak_bytes;
        if (run->collective_bytes > out->collective_bytes)
            out->collective_bytes = run->collective_bytes;
    }
}

bool bench_summarize(struct bench_summary *out, const struct bench_results *results, int index,
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
    /* What has static TP's plan is static TP: it takes no more than that does. */
    out->is_static_tp = out->plan == bench_plan_of(cell, BENCH_STATIC_TP);
    /* The planner's time is this machine's: where others are a box's it is left out. */
    bool plans = bench_mode_plans(mode) && !out->is_static_tp && !results->question.is_modelled;
    rounds_fill(&rounds, out, results, index, plans ? cell->planning_seconds : 0);
    if (rounds.count > 0) {
        medians_put(out, &rounds);
        out->tokens_per_second /= out->total.median;
    }
    out->has_ratio = rounds.paired > 0;
    if (out->is_static_tp)
        out->ratio = (struct bench_ratio){1, 1, 1};
    else if (out->has_ratio)
        out->ratio = bench_ratio_of(rounds.tp, rounds.own, rounds.paired);
    rounds_free(&rounds);
    return true;
}
