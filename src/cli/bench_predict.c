#include "bench_predict.h"

#include <stdio.h>
#include <string.h>

#include "bench_plans.h"
#include "table.h"

/* Every plan of the cell, by the numbers of the round. They are not the box's own: 0 is those. */
static enum phasor_status round_price(struct bench_predictor *predictor, int cell, int round,
                                      struct phasor_error *err)
{
    const struct bench_question *question = &predictor->results->question;
    struct phasor_plan_params params =
        bench_plan_params(question, &predictor->results->cells[cell]);
    char *text;
    bench_predictor_deinit(predictor);
    params.draw = question->seed * (BENCH_ROUNDS_MAX + 1) + (uint64_t)round;
    enum phasor_status status = phasor_plan(&text, &params, err);
    if (status != PHASOR_OK)
        return status;
    predictor->root = json_loads(text, 0, NULL);
    predictor->cell = cell;
    predictor->round = round;
    phasor_text_free(text);
    return PHASOR_OK;
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

static double seconds_of(const json_t *row, const char *key)
{
    return json_real_value(json_object_get(row, key));
}

static enum phasor_status row_take(struct bench_run *out, const json_t *row,
                                   const struct bench_plan *plan, struct phasor_error *err)
{
    out->has_failed = !json_is_real(json_object_get(row, "total_s"));
    if (out->has_failed) {
        err->status = PHASOR_NO_MEMORY;
        snprintf(err->message, sizeof err->message, "%s cannot be with the numbers that were drawn",
                 plan->plan);
        return err->status;
    }
    out->prefill = seconds_of(row, "prefill_s");
    out->between = seconds_of(row, "transition_s") + seconds_of(row, "way_back_s");
    out->decode = seconds_of(row, "decode_s");
    out->total = seconds_of(row, "total_s");
    return PHASOR_OK;
}

enum phasor_status bench_predictor_run(struct bench_predictor *predictor, struct bench_run *out,
                                       struct phasor_error *err)
{
    const struct bench_question *question = &predictor->results->question;
    const struct bench_cell *cell = &predictor->results->cells[out->cell];
    const struct bench_plan *plan = &cell->plans[out->plan];
    enum phasor_status status = PHASOR_OK;
    if (predictor->root == NULL || predictor->cell != out->cell || predictor->round != out->round)
        status = round_price(predictor, out->cell, out->round, err);
    if (status == PHASOR_OK)
        status = row_take(out, row_find(predictor->root, plan), plan, err);
    out->has_failed = status != PHASOR_OK;
    bench_run_count(out, question, cell);
    return status;
}

void bench_predictor_deinit(struct bench_predictor *predictor)
{
    json_decref(predictor->root);
    predictor->root = NULL;
}
