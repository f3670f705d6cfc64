#include "engine/plan_inputs.h"

#include <string.h>

#include "base/memory.h"
#include "engine/engine_backup.h"
#include "engine/routing_counts.h"
#include "model/hub.h"

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

/* The load, where it is one of rows. */
static enum status rows_read(struct plan_params *params, struct plan_inputs *inputs,
                             struct error *err)
{
    if (params->input == NULL)
        return STATUS_OK;
    TRY(plan_rows_read(&inputs->rows, params->input, inputs->dir, &inputs->config,
                       params->shares_prefixes, err));
    params->load = inputs->rows.load;
    return STATUS_OK;
}

static enum status routing_read(struct plan_inputs *inputs, const struct plan_params *params,
                                struct error *err)
{
    inputs->routing = (struct routing){.deviation = params->routing_deviation};
    return params->routing == NULL
               ? STATUS_OK
               : routing_counts_read(&inputs->routing, params->routing, &inputs->config, err);
}

/* The one in the cache, if any; of a config alone there is none. */
static bool has_backup_in_cache(struct backup_settings *settings, const struct plan_params *params,
                                const char *dir)
{
    const struct engine_params engine = {.is_exact = !params->allows_int4,
                                         .has_int4_experts = params->has_int4_experts};
    struct checkpoint *checkpoint;
    struct error ignored;
    if (engine.is_exact || engine.has_int4_experts ||
        checkpoint_open(&checkpoint, dir, &ignored) != STATUS_OK)
        return false;
    bool is_there = engine_backup_is_at_hand(settings, &engine, checkpoint);
    checkpoint_close(checkpoint);
    return is_there;
}

/* One that was named has to be this checkpoint's, or a run would end with it. */
static enum status backup_find(struct plan_inputs *inputs, const struct plan_params *params,
                               struct error *err)
{
    struct checkpoint *checkpoint;
    if (params->backup == NULL) {
        inputs->has_backup = has_backup_in_cache(&inputs->backup, params, inputs->dir);
        return STATUS_OK;
    }
    TRY(checkpoint_open(&checkpoint, inputs->dir, err));
    enum status status = engine_backup_check(&inputs->backup, params->backup, checkpoint, err);
    checkpoint_close(checkpoint);
    inputs->has_backup = status == STATUS_OK;
    return status;
}

enum status plan_inputs_read_model(struct plan_inputs *out, struct plan_params *params,
                                   struct error *err)
{
    out->backup = engine_backup_settings;
    TRY(config_read(out, params, err));
    TRY(routing_read(out, params, err));
    return rows_read(params, out, err);
}

enum status plan_inputs_read_box(struct plan_inputs *out, const struct plan_params *params,
                                 struct error *err)
{
    TRY(backup_find(out, params, err));
    TRY(plan_source_read(&out->source, params->box, params->draw, err));
    if (params->memory_bytes > 0)
        plan_source_limit(&out->source, params->memory_bytes);
    return STATUS_OK;
}

void plan_inputs_deinit(struct plan_inputs *inputs)
{
    plan_source_deinit(&inputs->source);
    batch_lengths_deinit(&inputs->rows);
    memory_free(inputs->dir);
    *inputs = (struct plan_inputs){.dir = NULL};
}
