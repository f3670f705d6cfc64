#include "engine/plan.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/seconds_text.h"
#include "engine/auto_pick.h"
#include "engine/engine_backup.h"
#include "engine/plan_answer.h"
#include "engine/plan_inputs.h"
#include "engine/plan_parts.h"
#include "engine/plan_problem.h"
#include "engine/plan_report.h"

/* ---- What was asked -------------------------------------------------------------------------- */

struct answered {
    struct plan_answer answer;
    struct plan_class alone[PLAN_BINS_MAX]; /* each of its classes */
    int runnable;                           /* the candidate that a run here would have; -1: none */
    struct plan_parts parts;                /* of a run here */
};

static void put_lengths(struct description *to, json_t *object, const struct plan_load *load)
{
    description_put_int(to, object, "sequences", (uint64_t)load->sequences);
    description_put_int(to, object, "prompt_tokens", (uint64_t)load->prompt_tokens);
    description_put_int(to, object, "output_tokens", (uint64_t)load->output_tokens);
    description_put_int(to, object, "shared_tokens", (uint64_t)(load->shared.tokens + 0.5));
}

static json_t *seconds_or_null(double seconds)
{
    return isfinite(seconds) ? json_real(seconds) : json_null();
}

/* Rows that run together, and what each would take alone. */
static void put_class(struct description *to, json_t *list, const struct plan_answer *answer,
                      const struct plan_class *class, bool stays)
{
    char text[LAYOUT_TEXT_BYTES];
    json_t *object = description_append_object(to, list);
    put_lengths(to, object, &class->load);
    description_put(to, object, "stays", json_boolean(stays));
    if (class->best >= 0)
        plan_layouts_format(text, &answer->table.candidates[class->best].layouts);
    description_put(to, object, "best_plan", class->best < 0 ? json_null() : json_string(text));
    description_put(to, object, "best_s", seconds_or_null(class->seconds));
}

/* One paragraph, beside the one plan that a run here would have. */
static json_t *parts_why(const struct plan_parts *parts, const struct answered *answered)
{
    char text[LAYOUT_TEXT_BYTES];
    struct text out = {0};
    if (parts->count == 0)
        return json_null();
    const struct plan_candidate *one = &answered->answer.table.candidates[answered->runnable];
    bool has_less = answered->runnable != answered->answer.table.best;
    plan_layouts_format(text, &one->layouts);
    text_append_format(&out,
                       "%s run would be done %.2f times as fast as under %s for all rows, with "
                       "plans for parts of them, one after another: ",
                       has_less ? "Without an INT4 backup a" : "A",
                       plan_candidate_total(one) / parts->seconds, text);
    for (int p = 0; p < parts->count; p++) {
        text_append_string(&out, p == 0 ? "" : ", then ");
        plan_part_tell(&out, &parts->of[p]);
    }
    text_append_format(&out, "; together %s, %s of that to load all weights in between.",
                       SECONDS_TEXT(parts->seconds), SECONDS_TEXT(parts->reloaded));
    json_t *why = out.failed ? NULL : description_text(out.bytes);
    text_deinit(&out);
    return why;
}

/* Rows with plans of their own, in the order in which they would run. */
static void put_parts(struct description *to, json_t *object, const struct answered *answered)
{
    const struct plan_parts *parts = &answered->parts;
    json_t *list = description_put_array(to, object, "parts");
    for (int p = 0; p < parts->count; p++) {
        char text[LAYOUT_TEXT_BYTES];
        const struct plan_part *part = &parts->of[p];
        json_t *row = description_append_object(to, list);
        plan_layouts_format(text, &part->candidate.layouts);
        put_lengths(to, row, &part->load);
        description_put(to, row, "plan", json_string(text));
        description_put(to, row, "way", json_string(plan_way_names[part->candidate.way]));
        description_put_int(to, row, "pass_tokens", (uint64_t)part->candidate.pass_tokens);
        description_put(to, row, "prefill_s", json_real(part->candidate.prefill));
        description_put(to, row, "decode_s", json_real(part->candidate.decode));
        description_put(to, row, "total_s", json_real(plan_candidate_total(&part->candidate)));
        description_put(to, row, "load_s", json_real(p == 0 ? 0 : part->reload));
    }
    description_put(to, object, "in_parts_s",
                    parts->count > 0 ? json_real(parts->seconds) : json_null());
    description_put(to, object, "parts_why", parts_why(parts, answered));
}

static void put_load(struct description *to, const struct plan_params *params,
                     const struct plan_load *load, const struct answered *answered)
{
    const struct plan_answer *answer = &answered->answer;
    json_t *object = description_put_object(to, to->root, "load");
    put_lengths(to, object, load);
    description_put(to, object, "is_queue", json_boolean(params->is_queue));
    description_put(to, object, "input",
                    params->input == NULL ? json_null() : description_text(params->input));
    json_t *list = description_put_array(to, object, "classes");
    for (int class = 0; class < answer->classes.count; class ++)
        put_class(to, list, answer, &answered->alone[class], plan_answer_stays(answer, class));
    description_put(to, object, "in_file_order_s", seconds_or_null(answer->in_file_order));
    put_parts(to, object, answered);
}

/* Null where there is nothing to warn of. */
static json_t *warning_of(const struct plan_source *source)
{
    char sentence[sizeof source->name + sizeof source->misfit.message + 64];
    if (source->fit == PROFILE_FITS)
        return json_null();
    snprintf(sentence, sizeof sentence, "the profile %s is %s: %s", source->name,
             profile_fit_names[source->fit], source->misfit.message);
    return description_text(sentence);
}

static void put_box(struct description *to, const struct plan_source *source, uint64_t memory_bytes)
{
    json_t *box = description_put_object(to, to->root, "box");
    description_put(to, box, "name", description_text(source->name));
    description_put(to, box, "title", description_text(source->title));
    description_put_int(to, box, "devices", (uint64_t)source->rank_count);
    description_put_int(to, box, "memory_of_device", memory_bytes);
    description_put(to, box, "hash", json_string(source->hash));
    description_put(to, box, "host_step_s", json_real(source->profile->host_step));
    description_put(to, box, "times", json_string(source->is_measured ? "measured" : "assumed"));
    description_put(to, box, "warning", warning_of(source));
}

/* The passes whose counts a phase is priced by. */
static json_t *phases_counted(const struct routing *routing)
{
    return json_pack("{s:s, s:s}", "prefill", routing->is_own[PHASE_PREFILL] ? "prefill" : "all",
                     "decode", routing->is_own[PHASE_DECODE] ? "decode" : "all");
}

static void put_question(struct description *to, const struct plan_params *params,
                         const struct plan_subject *subject, const struct plan_source *source,
                         const struct answered *answered)
{
    const struct routing *routing = &subject->problem.routing;
    description_put(to, to->root, "model", description_text(params->model));
    put_box(to, source, subject->problem.memory_bytes);
    put_load(to, params, &subject->problem.load, answered);
    description_put(to, to->root, "dtype", json_string(dtype_name(subject->dtype)));
    description_put(to, to->root, "expert_dtype",
                    json_string(dtype_name(subject->problem.native.dtype)));
    description_put(to, to->root, "policy",
                    json_string(params->allows_int4 ? "int4-decode" : "exact"));
    description_put(to, to->root, "backup",
                    params->backup == NULL ? json_null() : description_text(params->backup));
    description_put(to, to->root, "routing_deviation",
                    params->routing == NULL ? json_real(params->routing_deviation) : json_null());
    description_put(to, to->root, "routing",
                    params->routing == NULL ? json_null() : description_text(params->routing));
    description_put(to, to->root, "routing_of",
                    routing->is_counted ? phases_counted(routing) : json_null());
}

/* ---- The answer ------------------------------------------------------------------------------ */

static enum dtype dtype_of(const struct plan_params *params, const struct model_config *config)
{
    enum dtype dtype = params->dtype_is_auto ? config->dtype : params->dtype;
    return dtype == DTYPE_F16 ? DTYPE_BF16 : dtype; /* as it runs */
}

static struct plan_subject_params subject_of(const struct plan_params *params,
                                             const struct plan_inputs *inputs)
{
    const struct plan_source *source = &inputs->source;
    return (struct plan_subject_params){
        .config = &inputs->config,
        .profile = source->profile,
        .rank_count = source->rank_count,
        .dtype = dtype_of(params, &inputs->config),
        .has_int4_experts = params->has_int4_experts,
        .backup = &inputs->backup,
        .memory_bytes = params->memory_bytes > 0 ? params->memory_bytes : source->memory_bytes,
        .load = params->load,
        .longest_tokens = inputs->rows.longest_tokens,
        .is_queue = params->is_queue,
        .allows_int4 = params->allows_int4,
        .max_num_seqs = params->max_num_seqs,
        .max_num_batched_tokens = params->max_num_batched_tokens,
        .worker_count = source->worker_count,
        .is_gpu = source->is_gpu,
        .routing = &inputs->routing,
    };
}

static bool may_have_backup(const struct plan_params *params, const struct plan_inputs *inputs)
{
    return inputs->has_backup && params->allows_int4;
}

static bool needs_no_backup(const void *context, const struct plan_candidate *candidate)
{
    (void)context;
    return !auto_takes_int4(candidate);
}

/* A run without a backup has classes, and passes, of its own: its plan's candidate becomes what
 * that run would have. Where that is the fastest after all it is the answer, but for what takes a
 * backup: of that no run has those classes. */
static void runnable_take(struct answered *answered, struct plan_answer *own)
{
    struct plan_answer *answer = &answered->answer;
    const struct plan_candidate *candidate = &own->table.candidates[own->chosen];
    double best = plan_candidate_total(&answer->table.candidates[answer->chosen]);
    answered->runnable = own->chosen;
    if (plan_candidate_total(candidate) < best) {
        struct plan_answer slower = *answer;
        for (int i = 0; i < own->table.count; i++) {
            if (auto_takes_int4(&own->table.candidates[i]))
                own->table.candidates[i] = answer->table.candidates[i];
        }
        *answer = *own;
        *own = slower;
    } else {
        answer->table.candidates[own->chosen] = *candidate;
    }
    plan_table_choose(&answer->table);
    answer->chosen = answer->table.best;
}

static enum status runnable_find(struct answered *answered, const struct plan_question *question,
                                 bool has_backup, struct error *err)
{
    struct plan_answer own;
    struct plan_question of_run = *question;
    const struct plan_subject_params *subject = question->subject;
    answered->runnable = answered->answer.chosen;
    if (has_backup || !subject->allows_int4 || subject->has_int4_experts || answered->runnable < 0)
        return STATUS_OK;
    if (!plan_question_has_classes(question)) {
        answered->runnable = plan_table_pick(&answered->answer.table, needs_no_backup, NULL);
        return STATUS_OK;
    }
    of_run.may = needs_no_backup;
    TRY(plan_answer_find(&own, &of_run, err));
    /* With a backup there was room for the longest sequence. */
    bool is_less = own.longest_tokens < answered->answer.longest_tokens;
    if (own.chosen < 0 || is_less)
        answered->runnable = -1;
    else
        runnable_take(answered, &own);
    plan_answer_deinit(&own);
    return STATUS_OK;
}

/* As a run here would have them: by what it may have, against the plan that it would have. */
static enum status parts_find(struct answered *answered, const struct plan_question *question,
                              bool has_backup, struct error *err)
{
    struct plan_question of_run = *question;
    if (answered->runnable < 0)
        return STATUS_OK;
    of_run.may = has_backup ? NULL : needs_no_backup;
    const struct plan_candidate *one = &answered->answer.table.candidates[answered->runnable];
    return plan_parts_find(&answered->parts, &of_run, one, err);
}

static enum status answer_put(char **out, const struct plan_params *params,
                              const struct plan_inputs *inputs,
                              const struct plan_subject_params *of_all,
                              const struct answered *answered, struct error *err)
{
    struct plan_subject subject;
    struct description to = {.root = NULL, .reasons = NULL};
    TRY(plan_subject_init(&subject, of_all, err));
    to.root = json_object();
    put_question(&to, params, &subject, &inputs->source, answered);
    plan_report_put(&to, &subject.problem, &answered->answer.table, answered->runnable,
                    may_have_backup(params, inputs));
    enum status status = description_dump(out, &to, "planning", err);
    json_decref(to.root);
    return status;
}

static enum status answer(char **out, const struct plan_params *params,
                          const struct plan_inputs *inputs, struct error *err)
{
    struct plan_subject_params of_all = subject_of(params, inputs);
    struct plan_prices prices = {.of = NULL};
    const struct plan_question question = {
        .subject = &of_all,
        .mix = &inputs->rows.mix,
        .prices = &prices,
        .context_max = inputs->config.position_count_max,
        .is_one_class = inputs->rows.is_sample,
        .may_stay = true,
    };
    struct answered answered = {.runnable = -1};
    enum status status = plan_answer_find(&answered.answer, &question, err);
    of_all.longest_tokens = answered.answer.longest_tokens;
    if (status == STATUS_OK)
        status = runnable_find(&answered, &question, may_have_backup(params, inputs), err);
    if (status == STATUS_OK)
        status = parts_find(&answered, &question, may_have_backup(params, inputs), err);
    if (status == STATUS_OK)
        status = plan_answer_alone(answered.alone, &answered.answer, &question, err);
    if (status == STATUS_OK)
        status = answer_put(out, params, inputs, &of_all, &answered, err);
    plan_answer_deinit(&answered.answer);
    plan_prices_deinit(&prices);
    return status;
}

/* ---- Other loads ----------------------------------------------------------------------------- */

static json_t *cell_of(const struct plan_table *table)
{
    char text[LAYOUT_TEXT_BYTES];
    if (table->best < 0)
        return json_null();
    const struct plan_candidate *best = &table->candidates[table->best];
    double total = plan_candidate_total(best);
    plan_layouts_format(text, &best->layouts);
    if (table->static_tp < 0)
        return json_pack("{s:s, s:n}", "plan", text, "against_static_tp");
    double other = plan_candidate_total(&table->candidates[table->static_tp]);
    return json_pack("{s:s, s:f}", "plan", text, "against_static_tp", other / total);
}

/* A load that cannot be has an empty cell. */
static enum status put_cell(struct description *to, json_t *row, const struct plan_params *params,
                            const struct plan_inputs *inputs, struct error *err)
{
    struct plan_subject subject;
    struct plan_table table;
    struct plan_subject_params of_cell = subject_of(params, inputs);
    of_cell.longest_tokens = 0; /* of no rows */
    enum status status = plan_subject_init(&subject, &of_cell, err);
    if (status == STATUS_INVALID_ARGUMENT) {
        description_append(to, row, json_null());
        return STATUS_OK;
    }
    if (status != STATUS_OK)
        return status;
    TRY(plan_find(&table, &subject.problem, err));
    description_append(to, row, cell_of(&table));
    plan_table_deinit(&table);
    return STATUS_OK;
}

static enum status map(char **out, const struct plan_params *params, const struct plan_axes *axes,
                       const struct plan_inputs *inputs, struct error *err)
{
    struct plan_params cell = *params;
    struct description to = {.root = json_object(), .reasons = NULL};
    json_t *rows = description_put_array(&to, to.root, "cells");
    enum status status = STATUS_OK;
    for (size_t s = 0; s < axes->sequence_count && status == STATUS_OK; s++) {
        json_t *row = json_array();
        description_append(&to, rows, row);
        for (size_t p = 0; p < axes->prompt_count && status == STATUS_OK; p++) {
            cell.load = (struct plan_load)PLAN_LOAD(axes->sequences[s], axes->prompt_tokens[p],
                                                    params->load.output_tokens);
            status = put_cell(&to, row, &cell, inputs, err);
        }
    }
    if (status == STATUS_OK)
        status = description_dump(out, &to, "planning", err);
    json_decref(to.root);
    return status;
}

static enum status check_params(const struct plan_params *params, struct error *err)
{
    const struct plan_load *load = &params->load;
    bool has_load = params->input == NULL;
    if (params->box == NULL)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "for which box? --box names one that comes with phasor, a box file, or a "
                         "profile of phasor calibrate");
    if (has_load && (load->sequences < 1 || load->prompt_tokens < 1 || load->output_tokens < 1))
        return error_set(
            err, STATUS_INVALID_ARGUMENT,
            "a load is of at least one sequence of a prompt token and an output token");
    if (!(params->routing_deviation >= 0) || params->routing_deviation > 100)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--routing-deviation: expected 0 to 100, found %g",
                         params->routing_deviation);
    if (params->backup != NULL && (!params->allows_int4 || params->has_int4_experts))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--backup has INT4 weights for decode, and %s wants no plan with them; "
                         "leave one of the two out",
                         params->allows_int4 ? "--expert-dtype int4" : "--policy exact");
    return engine_exact_check(!params->allows_int4, params->has_int4_experts, err);
}

/* Before the box is read and priced, which takes most of the time. */
static enum status load_check(const struct plan_params *params, const struct model_config *config,
                              struct error *err)
{
    return plan_load_check(
        &(struct plan_subject_params){.config = config,
                                      .has_int4_experts = params->has_int4_experts,
                                      .load = params->load,
                                      .max_num_seqs = params->max_num_seqs,
                                      .max_num_batched_tokens = params->max_num_batched_tokens},
        err);
}

static enum status read_and_answer(char **out, struct plan_inputs *inputs,
                                   struct plan_params *params, const struct plan_axes *axes,
                                   struct error *err)
{
    TRY(plan_inputs_read_model(inputs, params, err));
    if (axes == NULL)
        TRY(load_check(params, &inputs->config, err));
    TRY(plan_inputs_read_box(inputs, params, err));
    return axes == NULL ? answer(out, params, inputs, err) : map(out, params, axes, inputs, err);
}

/* With `axes` the map, else the answer to the one question. */
static enum status plan_read(char **out, const struct plan_params *params,
                             const struct plan_axes *axes, struct error *err)
{
    struct plan_inputs *inputs;
    struct plan_params whole = *params;
    TRY(check_params(params, err));
    TRY(memory_get((void **)&inputs, 1, sizeof *inputs, "the plans", err));
    enum status status = read_and_answer(out, inputs, &whole, axes, err);
    plan_inputs_deinit(inputs);
    memory_free(inputs);
    return status;
}

enum status plan_json(char **out, const struct plan_params *params, struct error *err)
{
    return plan_read(out, params, NULL, err);
}

static enum status check_axes(const struct plan_axes *axes, struct error *err)
{
    for (size_t s = 0; s < axes->sequence_count; s++) {
        if (axes->sequences[s] < 1)
            return error_set(err, STATUS_INVALID_ARGUMENT, "a load is of at least one sequence");
    }
    for (size_t p = 0; p < axes->prompt_count; p++) {
        if (axes->prompt_tokens[p] < 1)
            return error_set(err, STATUS_INVALID_ARGUMENT, "a prompt has at least one token");
    }
    return STATUS_OK;
}

enum status plan_map_json(char **out, const struct plan_params *params,
                          const struct plan_axes *axes, struct error *err)
{
    TRY(check_axes(axes, err));
    return plan_read(out, params, axes, err);
}

/* ---- Asked often ----------------------------------------------------------------------------- */

struct planner {
    struct plan_params params;
    struct plan_inputs inputs;
    char *model, *box, *backup, *routing; /* copies of what params say */
};

static enum status name_keep(char **kept, const char **name, struct error *err)
{
    if (*name == NULL)
        return STATUS_OK;
    *kept = memory_copy_text(*name, strlen(*name));
    *name = *kept;
    return *kept != NULL ? STATUS_OK : error_set(err, STATUS_NO_MEMORY, "out of memory for a name");
}

static enum status planner_init(struct planner *planner, struct error *err)
{
    struct plan_params *params = &planner->params;
    if (params->input != NULL)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "a planner that stays is asked of loads, not of the rows of %s; "
                         "phasor_plan takes rows",
                         params->input);
    /* Of any load and policy: who asks for exact plans has no backup. */
    params->load = (struct plan_load)PLAN_LOAD(1, 1, 1);
    params->allows_int4 = true;
    TRY(check_params(params, err));
    TRY(name_keep(&planner->model, &params->model, err));
    TRY(name_keep(&planner->box, &params->box, err));
    TRY(name_keep(&planner->backup, &params->backup, err));
    TRY(name_keep(&planner->routing, &params->routing, err));
    TRY(plan_inputs_read_model(&planner->inputs, params, err));
    params->revision = NULL; /* the caller's, and of no more use */
    return plan_inputs_read_box(&planner->inputs, params, err);
}

enum status planner_open(struct planner **out, const struct plan_params *params, struct error *err)
{
    struct planner *planner;
    TRY(memory_get((void **)&planner, 1, sizeof *planner, "the planner", err));
    planner->params = *params;
    enum status status = planner_init(planner, err);
    if (status == STATUS_OK)
        *out = planner;
    else
        planner_close(planner);
    return status;
}

enum status planner_ask(char **out, const struct planner *planner, const struct plan_asked *asked,
                        struct error *err)
{
    struct plan_params params = planner->params;
    params.load = asked->load;
    params.is_queue = asked->is_queue;
    params.allows_int4 = asked->allows_int4;
    params.max_num_seqs = asked->max_num_seqs;
    params.max_num_batched_tokens = asked->max_num_batched_tokens;
    TRY(check_params(&params, err));
    TRY(load_check(&params, &planner->inputs.config, err));
    return answer(out, &params, &planner->inputs, err);
}

void planner_close(struct planner *planner)
{
    if (planner == NULL)
        return;
    plan_inputs_deinit(&planner->inputs);
    memory_free(planner->model);
    memory_free(planner->box);
    memory_free(planner->backup);
    memory_free(planner->routing);
    memory_free(planner);
}
