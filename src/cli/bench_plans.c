#include "bench_plans.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "answer.h"
#include "phasor.h"
#include "progress.h"
#include "table.h"

#define INT4_SUFFIX ":int4"

/* ---- Choosing -------------------------------------------------------------------------------- */

/* One layout for both phases. */
static bool is_static(const json_t *row)
{
    return strchr(table_text(row, "plan"), '>') == NULL;
}

/* HAP has one form of the shared expert, moves weights by redistribution or by its INT4 backup, and
 * decodes on what that is dequantized to (sections III-A and III-D). */
static bool is_of_hap(const json_t *row)
{
    const char *plan = table_text(row, "plan"), *way = table_text(row, "way");
    return strstr(plan, INT4_SUFFIX) == NULL && strstr(plan, ":rep") == NULL &&
           (strcmp(way, "none") == 0 || strcmp(way, "reshard") == 0 || strcmp(way, "upload") == 0);
}

/* Its equation 4: a batch alone, without the way back. */
static double hap_seconds(const json_t *row)
{
    return table_seconds(row, "prefill_s") + table_seconds(row, "transition_s") +
           table_seconds(row, "decode_s");
}

/* Of equal ones the first, as the planner has it. */
static const json_t *best_of_hap(const json_t *plans)
{
    const json_t *best = NULL;
    for (size_t i = 0; i < json_array_size(plans); i++) {
        const json_t *row = json_array_get(plans, i);
        if (table_plan_is_possible(row) && is_of_hap(row) &&
            (best == NULL || hap_seconds(row) < hap_seconds(best)))
            best = row;
    }
    return best;
}

static const json_t *named(const json_t *root, const char *key)
{
    const json_t *index = json_object_get(root, key);
    if (!json_is_integer(index))
        return NULL;
    return json_array_get(json_object_get(root, "plans"), (size_t)json_integer_value(index));
}

/* Of "tp2dp4|ep8" the number behind `name`, in the part that begins at `part`; 1 where it is left
 * out. */
static int degree_of(const char *part, const char *name)
{
    size_t length = strcspn(part, "|");
    const char *at = strstr(part, name);
    return at == NULL || at >= part + length ? 1 : atoi(at + strlen(name));
}

/* The largest legal expert parallelism, and beside it the largest legal data parallelism. */
static const json_t *static_ep_dp(const json_t *root)
{
    const json_t *plans = json_object_get(root, "plans"), *best = NULL;
    int experts_most = 0, groups_most = 0;
    for (size_t i = 0; i < json_array_size(plans); i++) {
        const json_t *row = json_array_get(plans, i);
        const char *plan = table_text(row, "plan"), *bar = strchr(plan, '|');
        if (!table_plan_is_possible(row) || !is_static(row) || bar == NULL)
            continue;
        int experts = degree_of(bar + 1, "ep"), groups = degree_of(plan, "dp");
        if (experts < experts_most || (experts == experts_most && groups <= groups_most))
            continue;
        experts_most = experts;
        groups_most = groups;
        best = row;
    }
    return best;
}

/* Static TP's experts, and the attention that is the fastest with them. */
static const json_t *best_attention(const json_t *root)
{
    const json_t *plans = json_object_get(root, "plans"), *best = NULL;
    const char *experts = strchr(table_text(named(root, "static_tp"), "plan"), '|');
    for (size_t i = 0; i < json_array_size(plans) && experts != NULL; i++) {
        const json_t *row = json_array_get(plans, i);
        const char *own = strchr(table_text(row, "plan"), '|');
        if (table_plan_is_possible(row) && is_static(row) && own != NULL &&
            strcmp(own, experts) == 0 &&
            (best == NULL || table_seconds(row, "total_s") < table_seconds(best, "total_s")))
            best = row;
    }
    return best;
}

/* Static TP whose decode runs on the packed weights, both in memory: "tp4|tp4>tp4:int4" by keep. */
static const json_t *static_tp_int4(const json_t *root)
{
    const json_t *plans = json_object_get(root, "plans"), *tp = named(root, "static_tp");
    char wanted[2 * BENCH_PLAN_BYTES];
    const char *plan = table_text(tp, "plan"), *experts = strchr(plan, '|');
    if (experts == NULL)
        return NULL;
    snprintf(wanted, sizeof wanted, "%s>%s" INT4_SUFFIX, plan, experts + 1);
    for (size_t i = 0; i < json_array_size(plans); i++) {
        const json_t *row = json_array_get(plans, i);
        if (table_plan_is_possible(row) && strcmp(table_text(row, "plan"), wanted) == 0 &&
            strcmp(table_text(row, "way"), "keep") == 0)
            return row;
    }
    return NULL;
}

/* What the planner says under each policy: objects of phasor_plan. */
struct answers {
    json_t *int4, *exact;
};

static const json_t *row_of(const struct answers *answers, enum bench_mode mode)
{
    const json_t *root = answers->int4;
    switch (mode) {
    case BENCH_STATIC_TP:
        return named(root, "static_tp");
    case BENCH_STATIC_EP:
        return named(root, "static_ep");
    case BENCH_STATIC_EP_DP:
        return static_ep_dp(root);
    case BENCH_BEST_ATTENTION:
        return best_attention(root);
    case BENCH_BEST_STATIC:
        return named(root, "best_static");
    case BENCH_STATIC_TP_INT4:
        return static_tp_int4(root);
    case BENCH_HAP:
        return best_of_hap(json_object_get(root, "plans"));
    case BENCH_ADAPTIVE_EXACT:
        return named(answers->exact, "best");
    case BENCH_ADAPTIVE:
        return named(root, "best");
    case BENCH_MODE_COUNT:
        break;
    }
    return NULL;
}

static struct bench_plan plan_of(const json_t *row)
{
    const json_t *memory = json_object_get(row, "memory");
    struct bench_plan plan = {
        .wave = table_int(row, "wave"),
        .pass_tokens = table_int(row, "pass_tokens"),
        .predicted_prefill = table_seconds(row, "prefill_s"),
        .predicted_between = table_seconds(row, "transition_s") + table_seconds(row, "way_back_s"),
        .predicted_decode = table_seconds(row, "decode_s"),
        .memory = (uint64_t)table_int(memory, "total"),
        .kv_cache = (uint64_t)table_int(memory, "kv_cache"),
    };
    snprintf(plan.plan, sizeof plan.plan, "%s", table_text(row, "plan"));
    snprintf(plan.way, sizeof plan.way, "%s", table_text(row, "way"));
    return plan;
}

static struct bench_plan no_plan(const char *why)
{
    struct bench_plan plan = {.plan = ""};
    bench_text_keep(plan.why, sizeof plan.why, why);
    return plan;
}

/* Plans that are the same text and way are the same. */
static void plan_add(struct bench_cell *cell, enum bench_mode mode, const struct bench_plan *plan)
{
    int i = 0;
    while (i < cell->plan_count && (strcmp(cell->plans[i].plan, plan->plan) != 0 ||
                                    strcmp(cell->plans[i].way, plan->way) != 0))
        i++;
    if (i == cell->plan_count)
        cell->plans[cell->plan_count++] = *plan;
    cell->plans[i].modes |= 1u << mode;
}

static const char *reason_of(const json_t *root)
{
    return named(root, "best") == NULL ? table_text(root, "why")
                                       : "no plan of this mode fits the memory, or is legal";
}

static void plans_choose(struct bench_cell *cell, const struct bench_question *question,
                         const struct answers *answers)
{
    cell->plan_count = 0;
    for (int mode = 0; mode < BENCH_MODE_COUNT; mode++) {
        if ((question->modes & 1u << mode) == 0)
            continue;
        const json_t *row = row_of(answers, mode);
        bool is_there = row != NULL && table_plan_is_possible(row);
        struct bench_plan plan = is_there ? plan_of(row) : no_plan(reason_of(answers->int4));
        plan_add(cell, mode, &plan);
    }
}

int64_t bench_pass_tokens(const struct bench_question *question, const struct bench_cell *cell)
{
    int64_t all =
        question->batch_sizes[cell->batch_size] * question->scenarios[cell->scenario].prompt_tokens;
    return all < BENCH_PASS_TOKENS_MAX ? all : BENCH_PASS_TOKENS_MAX;
}

/* ---- Asking ---------------------------------------------------------------------------------- */

static void warn_once(const json_t *box)
{
    static bool has_warned;
    const json_t *warning = json_object_get(box, "warning");
    if (json_is_string(warning) && !has_warned)
        fprintf(stderr, "warning: %s\n", json_string_value(warning));
    has_warned |= json_is_string(warning);
}

struct phasor_plan_params bench_plan_params(const struct bench_question *question,
                                            const struct bench_cell *cell)
{
    const struct bench_scenario *scenario = &question->scenarios[cell->scenario];
    struct phasor_plan_params params = phasor_plan_params_default();
    params.model = question->models[cell->model];
    params.box = question->box;
    params.memory_bytes = question->memory;
    if (question->routing_count > 0)
        params.routing_path = question->routing[cell->model];
    params.sequences = question->batch_sizes[cell->batch_size];
    params.prompt_tokens = scenario->prompt_tokens;
    params.output_tokens = scenario->output_tokens;
    if (question->clock == BENCH_MODELLED) {
        params.max_num_seqs = params.sequences;
        params.max_num_batched_tokens = bench_pass_tokens(question, cell);
    }
    return params;
}

void bench_box_words(struct bench_cell *cell, const json_t *box)
{
    char words[2 * sizeof cell->box];
    snprintf(words, sizeof words, "%s: %s, %s (file %s)", table_text(box, "name"),
             table_text(box, "title"), table_text(box, "times"), table_text(box, "hash"));
    bench_text_keep(cell->box, sizeof cell->box, words);
}

static struct phasor_plan_load load_of(const struct phasor_plan_params *params)
{
    struct phasor_plan_load load = phasor_plan_load_default();
    load.sequences = params->sequences;
    load.prompt_tokens = params->prompt_tokens;
    load.output_tokens = params->output_tokens;
    load.max_num_seqs = params->max_num_seqs;
    load.max_num_batched_tokens = params->max_num_batched_tokens;
    return load;
}

/* `seconds` is what the answer took: a run reads no text of it. */
static enum phasor_status ask(json_t **out, double *seconds, const struct bench_planner *planner,
                              struct phasor_plan_load load, enum phasor_policy policy,
                              struct phasor_error *err)
{
    char *text;
    load.policy = policy;
    double began = progress_now();
    enum phasor_status status = phasor_planner_ask(&text, planner->planner, &load, err);
    *seconds = progress_now() - began;
    if (status != PHASOR_OK)
        return status;
    status = answer_read(out, text, err);
    phasor_text_free(text);
    return status;
}

/* The time of the first question is the cell's planning time: a run asks one. */
static enum phasor_status ask_both(struct answers *out, struct bench_cell *cell,
                                   const struct bench_planner *planner,
                                   const struct phasor_plan_load *load, struct phasor_error *err)
{
    double ignored;
    enum phasor_status status =
        ask(&out->int4, &cell->planning_seconds, planner, *load, PHASOR_POLICY_INT4_DECODE, err);
    return status == PHASOR_OK
               ? ask(&out->exact, &ignored, planner, *load, PHASOR_POLICY_EXACT, err)
               : status;
}

static void no_plans_fill(struct bench_cell *cell, const struct bench_question *question,
                          const char *why)
{
    struct bench_plan none = no_plan(why);
    cell->plan_count = 0;
    for (int mode = 0; mode < BENCH_MODE_COUNT; mode++) {
        if ((question->modes & 1u << mode) != 0)
            plan_add(cell, mode, &none);
    }
}

static void answers_take(struct bench_cell *cell, const struct bench_question *question,
                         const struct answers *answers)
{
    const json_t *box = json_object_get(answers->int4, "box");
    cell->host_step = table_seconds(box, "host_step_s");
    bench_box_words(cell, box);
    cell->device_count = (int)table_int(box, "devices");
    warn_once(box);
    plans_choose(cell, question, answers);
}

/* ---- The planner of a model ------------------------------------------------------------------ */

/* Where the box's numbers are to be drawn: that they can be, before any plan is kept. */
static enum phasor_status check_draws(const struct bench_question *question,
                                      const struct phasor_plan_params *params,
                                      struct phasor_error *err)
{
    struct phasor_plan_params drawn = *params;
    struct phasor_planner *planner = NULL;
    if (question->clock != BENCH_PREDICTED)
        return PHASOR_OK;
    drawn.draw = 1;
    enum phasor_status status = phasor_planner_open(&planner, &drawn, err);
    phasor_planner_close(planner);
    return status;
}

static enum phasor_status planner_take(struct bench_planner *planner,
                                       const struct bench_question *question,
                                       const struct bench_cell *cell,
                                       const struct phasor_plan_params *params,
                                       struct phasor_error *err)
{
    if (planner->planner != NULL && planner->model == cell->model)
        return PHASOR_OK;
    bench_planner_close(planner);
    enum phasor_status status = check_draws(question, params, err);
    if (status == PHASOR_OK)
        status = phasor_planner_open(&planner->planner, params, err);
    planner->model = cell->model;
    return status;
}

void bench_planner_close(struct bench_planner *planner)
{
    phasor_planner_close(planner->planner);
    planner->planner = NULL;
}

bool bench_plans_find(struct bench_planner *planner, struct bench_cell *cell,
                      const struct bench_question *question)
{
    struct phasor_plan_params params = bench_plan_params(question, cell);
    const struct phasor_plan_load load = load_of(&params);
    struct answers answers = {.int4 = NULL, .exact = NULL};
    struct phasor_error err;
    bench_text_keep(cell->box, sizeof cell->box, question->box);
    cell->device_count = 1;
    enum phasor_status status = planner_take(planner, question, cell, &params, &err);
    bool has_planner = status == PHASOR_OK;
    if (has_planner)
        status = ask_both(&answers, cell, planner, &load, &err);
    /* Longer than the context: this cell's alone. */
    bool is_refused = has_planner && status == PHASOR_INVALID_ARGUMENT;
    if (status == PHASOR_OK)
        answers_take(cell, question, &answers);
    else if (is_refused)
        no_plans_fill(cell, question, err.message);
    else
        fprintf(stderr, "phasor: %s\n", err.message);
    json_decref(answers.int4);
    json_decref(answers.exact);
    return status == PHASOR_OK || is_refused;
}
