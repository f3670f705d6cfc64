#include "engine/plan.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "engine/plan_problem.h"
#include "engine/plan_report.h"
#include "engine/plan_source.h"
#include "model/hub.h"

/* What is read before anything is priced. */
struct plan_inputs {
    struct model_config config;
    struct plan_source source;
    char *dir;
};

/* "DIR/config.json" is a model of which nothing else is there. */
static enum status config_read(struct plan_inputs *out, const struct plan_params *params,
                               struct error *err)
{
    static const char name[] = "/config.json";
    size_t length = strlen(params->model), tail = sizeof name - 1;
    if (length > tail && strcmp(params->model + length - tail, name) == 0) {
        out->dir = memory_copy_text(params->model, length - tail);
        if (out->dir == NULL)
            return error_set(err, STATUS_NO_MEMORY, "out of memory for a path");
    } else {
        TRY(hub_resolve(&out->dir, params->model, params->revision, err));
    }
    return model_config_load(&out->config, out->dir, err);
}

/* ---- What was asked -------------------------------------------------------------------------- */

static void put_load(struct description *to, const struct plan_params *params)
{
    json_t *load = description_put_object(to, to->root, "load");
    description_put_int(to, load, "sequences", (uint64_t)params->load.sequences);
    description_put_int(to, load, "prompt_tokens", (uint64_t)params->load.prompt_tokens);
    description_put_int(to, load, "output_tokens", (uint64_t)params->load.output_tokens);
    description_put(to, load, "is_queue", json_boolean(params->is_queue));
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
    description_put(to, box, "times", json_string(source->is_measured ? "measured" : "assumed"));
    description_put(to, box, "warning", warning_of(source));
}

static void put_question(struct description *to, const struct plan_params *params,
                         const struct plan_subject *subject, const struct plan_source *source)
{
    description_put(to, to->root, "model", description_text(params->model));
    put_box(to, source, subject->problem.memory_bytes);
    put_load(to, params);
    description_put(to, to->root, "dtype", json_string(dtype_name(subject->dtype)));
    description_put(to, to->root, "policy",
                    json_string(params->allows_int4 ? "int4-decode" : "exact"));
    description_put(to, to->root, "routing_deviation", json_real(params->routing_deviation));
}

/* ---- The answer ------------------------------------------------------------------------------ */

static enum dtype dtype_of(const struct plan_params *params, const struct model_config *config)
{
    enum dtype dtype = params->dtype_is_auto ? config->dtype : params->dtype;
    return dtype == DTYPE_F16 ? DTYPE_BF16 : dtype; /* as it runs */
}

static enum status find(struct description *to, const struct plan_params *params,
                        struct plan_subject *subject, const struct plan_source *source,
                        struct error *err)
{
    struct plan_table table;
    TRY(plan_find(&table, &subject->problem, err));
    put_question(to, params, subject, source);
    plan_report_put(to, &subject->problem, &table);
    plan_table_deinit(&table);
    return STATUS_OK;
}

static enum status subject_init(struct plan_subject *out, const struct plan_params *params,
                                const struct plan_inputs *inputs, struct error *err)
{
    const struct plan_source *source = &inputs->source;
    return plan_subject_init(
        out,
        &(struct plan_subject_params){
            .config = &inputs->config,
            .profile = source->profile,
            .rank_count = source->rank_count,
            .dtype = dtype_of(params, &inputs->config),
            .memory_bytes = params->memory_bytes > 0 ? params->memory_bytes : source->memory_bytes,
            .load = params->load,
            .is_queue = params->is_queue,
            .allows_int4 = params->allows_int4,
            .max_num_seqs = params->max_num_seqs,
            .max_num_batched_tokens = params->max_num_batched_tokens,
            .routing_deviation = params->routing_deviation,
        },
        err);
}

static enum status answer(char **out, const struct plan_params *params,
                          const struct plan_inputs *inputs, struct error *err)
{
    struct plan_subject subject;
    struct description to = {.root = json_object(), .reasons = NULL};
    enum status status = subject_init(&subject, params, inputs, err);
    if (status == STATUS_OK)
        status = find(&to, params, &subject, &inputs->source, err);
    if (status == STATUS_OK)
        status = description_dump(out, &to, "planning", err);
    json_decref(to.root);
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
    enum status status = subject_init(&subject, params, inputs, err);
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
            cell.load.sequences = axes->sequences[s];
            cell.load.prompt_tokens = axes->prompt_tokens[p];
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
    if (params->box == NULL)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "for which box? --box names one that comes with phasor, a box file, or a "
                         "profile of phasor calibrate");
    if (load->sequences < 1 || load->prompt_tokens < 1 || load->output_tokens < 1)
        return error_set(
            err, STATUS_INVALID_ARGUMENT,
            "a load is of at least one sequence of a prompt token and an output token");
    if (!(params->routing_deviation >= 0) || params->routing_deviation > 100)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--routing-deviation: expected 0 to 100, found %g",
                         params->routing_deviation);
    return STATUS_OK;
}

/* Before the box is read and priced, which takes most of the time. */
static enum status load_check(const struct plan_params *params, const struct model_config *config,
                              struct error *err)
{
    return plan_load_check(
        &(struct plan_subject_params){.config = config,
                                      .load = params->load,
                                      .max_num_seqs = params->max_num_seqs,
                                      .max_num_batched_tokens = params->max_num_batched_tokens},
        err);
}

/* With `axes` the map, else the answer to the one question. */
static enum status plan_read(char **out, const struct plan_params *params,
                             const struct plan_axes *axes, struct error *err)
{
    struct plan_inputs *inputs;
    TRY(check_params(params, err));
    TRY(memory_get((void **)&inputs, 1, sizeof *inputs, "the plans", err));
    enum status status = config_read(inputs, params, err);
    if (status == STATUS_OK && axes == NULL)
        status = load_check(params, &inputs->config, err);
    if (status == STATUS_OK)
        status = plan_source_read(&inputs->source, params->box, err);
    if (status == STATUS_OK)
        status =
            axes == NULL ? answer(out, params, inputs, err) : map(out, params, axes, inputs, err);
    plan_source_deinit(&inputs->source);
    memory_free(inputs->dir);
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
