#include "engine/auto_past.h"

#include <string.h>
#include <sys/stat.h>

#include "engine/batch_record.h"
#include "engine/plan_problem.h"

/* As batch_files.c decides it. */
static bool has_lines(const char *path)
{
    struct stat about;
    return path != NULL && strcmp(path, "-") != 0 && stat(path, &about) == 0 &&
           S_ISREG(about.st_mode) && about.st_size > 0;
}

/* False where there is none of that name. */
static bool way_parse(enum way *out, const char *name)
{
    for (int way = 0; name != NULL && way < WAY_COUNT; way++) {
        if (strcmp(way_names[way], name) == 0) {
            *out = (enum way)way;
            return true;
        }
    }
    return false;
}

static void tell(const struct engine_choice *choice, const struct engine_basis *basis)
{
    char layouts[LAYOUT_TEXT_BYTES];
    plan_layouts_format(layouts, &choice->layouts);
    log_write(&basis->params->log, basis->devices->rank_count > 1 ? LOG_INFO : LOG_DEBUG,
              "plan: %s%s%s, with which the run was begun", layouts, choice->has_way ? " by " : "",
              choice->has_way ? way_names[choice->way] : "");
}

/* Another number of devices, or another model: that is not the run's plan any more. */
static void take(struct engine_choice *out, struct batch_staying *staying, const json_t *record,
                 const struct engine_basis *basis)
{
    const struct engine_params *params = basis->params;
    const char *text = json_string_value(json_object_get(record, "plan"));
    const char *way = json_string_value(json_object_get(record, "transition"));
    struct model_shape shape = weights_shape(checkpoint_config(basis->checkpoint));
    struct engine_choice choice = {.is_made = true};
    struct error ignored;
    if (text == NULL ||
        plan_layouts_parse(&choice.layouts, text, basis->devices->rank_count, &ignored) !=
            STATUS_OK ||
        plan_layouts_check(&choice.layouts, &shape, &ignored) != STATUS_OK)
        return;
    if (plan_layouts_differ(&choice.layouts)) {
        choice.has_way = !params->transition_is_auto || way_parse(&choice.way, way);
        if (!params->transition_is_auto)
            choice.way = params->transition;
    }
    json_int_t pass = json_integer_value(json_object_get(record, "pass_tokens"));
    choice.pass_tokens = pass > 0 && pass <= PLAN_PASS_MOST ? pass : 0;
    json_int_t cache = json_integer_value(json_object_get(record, "planned_cache_bytes"));
    choice.cache_bytes = cache > 0 ? (uint64_t)cache : 0;
    const char *order = json_string_value(json_object_get(record, "staying"));
    if (order != NULL && !batch_staying_parse(staying, order))
        *staying = (struct batch_staying){.bin_count = 0}; /* the run is refused */
    *out = choice;
    tell(out, basis);
}

static enum status load(json_t **out, const char *output, struct error *err)
{
    struct text path = {0};
    text_append_format(&path, "%s" BATCH_RECORD_SUFFIX, output);
    enum status status = text_check(&path, "the name of a file", err);
    if (status == STATUS_OK)
        status = batch_record_load(out, path.bytes, err);
    text_deinit(&path);
    return status;
}

enum status auto_past_choose(struct engine_choice *out, struct batch_staying *staying,
                             const struct phasor_batch_params *batch,
                             const struct engine_basis *basis, struct error *err)
{
    json_t *record;
    *staying = (struct batch_staying){.bin_count = 0};
    if (batch == NULL || !batch->resume || batch->output_path == NULL ||
        (!has_lines(batch->output_path) && !has_lines(batch->error_path)))
        return STATUS_OK;
    enum status status = load(&record, batch->output_path, err);
    if (status == STATUS_NOT_FOUND)
        return STATUS_OK; /* the run is refused, with its cure */
    TRY(status);
    take(out, staying, record, basis);
    json_decref(record);
    return STATUS_OK;
}
