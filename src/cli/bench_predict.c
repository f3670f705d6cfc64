#include "bench_predict.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "answer.h"
#include "bench_plans.h"
#include "table.h"

/* The rounds of a seed have different draws; 0 would be the box's own numbers. */
static uint64_t draw_of(uint64_t seed, int round)
{
    uint64_t draw = seed * UINT64_C(0x9E3779B97F4A7C15) + (uint64_t)round;
    return draw != 0 ? draw : 1;
}

/* Every plan of the cell in such waves and passes, by the numbers of the round. */
static enum phasor_status round_price(struct bench_predictor *predictor, int cell, int round,
                                      const struct bench_plan *plan, struct phasor_error *err)
{
    const struct bench_question *question = &predictor->results->question;
    struct phasor_plan_params params =
        bench_plan_params(question, &predictor->results->cells[cell]);
    char *text;
    bench_predictor_deinit(predictor);
    params.max_num_seqs = plan->wave;
    params.max_num_batched_tokens = plan->pass_tokens;
    params.draw = draw_of(question->seed, round);
    enum phasor_status status = phasor_plan(&text, &params, err);
    if (status != PHASOR_OK)
        return status;
    status = answer_read(&predictor->root, text, err);
    phasor_text_free(text);
    predictor->cell = cell;
    predictor->round = round;
    predictor->wave = plan->wave;
    predictor->pass_tokens = plan->pass_tokens;
    return status;
}

static const json_t *row_find(const json_t *root, const struct bench_plan *plan)
{
    const json_t *rows = json_object_get(root, "plans");
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        if (strcmp(table_text(row, "plan"), plan->plan) == 0 &&
            strcmp(table_text(row, "way"), plan->way) == 0)
            return row;
    }
    return NULL;
}

static enum phasor_status row_take(struct bench_run *out, const json_t *row,
                                   const struct bench_plan *plan, struct phasor_error *err)
{
    if (!table_plan_is_possible(row)) {
        err->status = PHASOR_NO_MEMORY;
        snprintf(err->message, sizeof err->message,
                 "with the numbers that were drawn %s is out of the question: %s", plan->plan,
                 table_text(row, "reason"));
        return err->status;
    }
    out->prefill = table_seconds(row, "prefill_s");
    out->between = table_seconds(row, "transition_s") + table_seconds(row, "way_back_s");
    out->decode = table_seconds(row, "decode_s");
    out->total = table_seconds(row, "total_s");
    return PHASOR_OK;
}

enum phasor_status bench_predictor_run(struct bench_predictor *predictor, struct bench_run *out,
                                       struct phasor_error *err)
{
    const struct bench_question *question = &predictor->results->question;
    const struct bench_cell *cell = &predictor->results->cells[out->cell];
    const struct bench_plan *plan = &cell->plans[out->plan];
    bool is_priced = predictor->root != NULL && predictor->cell == out->cell &&
                     predictor->round == out->round && predictor->wave == plan->wave &&
                     predictor->pass_tokens == plan->pass_tokens;
    enum phasor_status status =
        is_priced ? PHASOR_OK : round_price(predictor, out->cell, out->round, plan, err);
    if (status == PHASOR_OK)
        status = row_take(out, row_find(predictor->root, plan), plan, err);
    out->has_failed = status != PHASOR_OK;
    bench_run_count(out, question, cell);
    return status;
}

bool bench_predictor_agrees(struct bench_predictor *predictor)
{
    const struct bench_results *results = predictor->results;
    for (size_t i = 0; i < results->run_count; i++) {
        const struct bench_run *was = &results->runs[i];
        struct bench_run run = {.cell = was->cell, .plan = was->plan, .round = was->round};
        struct bench_cell now;
        struct phasor_error err;
        if (was->has_failed)
            continue;
        if (bench_predictor_run(predictor, &run, &err) != PHASOR_OK)
            return false;
        bench_box_words(&now, json_object_get(predictor->root, "box"));
        return strcmp(now.box, results->cells[was->cell].box) == 0 &&
               fabs(run.total / was->total - 1) < 1e-9;
    }
    return true;
}

void bench_predictor_deinit(struct bench_predictor *predictor)
{
    json_decref(predictor->root);
    predictor->root = NULL;
}
