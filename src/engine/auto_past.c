#include "engine/auto_past.h"

#include <string.h>
#include <sys/stat.h>

#include "engine/batch_record.h"

/* As batch_files.c decides it. */
static bool has_lines(const char *path)
{
    struct stat about;
    return path != NULL && strcmp(path, "-") != 0 && stat(path, &about) == 0 &&
           S_ISREG(about.st_mode) && about.st_size > 0;
}

static void tell(const struct auto_past *past, const struct engine_basis *basis)
{
    const struct engine_choice *choice = &past->choice;
    struct text name = {0};
    char layouts[LAYOUT_TEXT_BYTES];
    plan_layouts_format(layouts, &choice->layouts);
    if (past->parts.count > 0)
        batch_parts_name(&name, &past->parts);
    else
        text_append_format(&name, "%s%s%s", layouts, choice->has_way ? " by " : "",
                           choice->has_way ? way_names[choice->way] : "");
    if (!name.failed)
        log_write(&basis->params->log, basis->devices->rank_count > 1 ? LOG_INFO : LOG_DEBUG,
                  "plan: %s, with which the run was begun", name.bytes);
    text_deinit(&name);
}

/* A way that is named now is that of all plans; of one that named none, and has none by now, the
 * ways are tried as if nobody had chosen. */
static void way_take(struct engine_choice *choice, const struct engine_params *params)
{
    if (params->transition_is_auto || !plan_layouts_differ(&choice->layouts))
        return;
    choice->has_way = true;
    choice->way = params->transition;
}

/* Another number of devices, or another model: that is not the run's plan any more. Of what cannot
 * be read of the rest there is nothing, and the run is refused. */
static void take(struct auto_past *out, const json_t *record, const struct engine_basis *basis)
{
    const struct engine_params *params = basis->params;
    struct model_shape shape = weights_shape(checkpoint_config(basis->checkpoint));
    int ranks = basis->devices->rank_count;
    if (!batch_choice_parse(&out->choice, record, &shape, ranks))
        return;
    way_take(&out->choice, params);
    const char *order = json_string_value(json_object_get(record, "staying"));
    if (order != NULL && !batch_staying_parse(&out->staying, order))
        out->staying = (struct batch_staying){.bin_count = 0};
    if (batch_parts_parse(&out->parts, json_object_get(record, "parts"), &shape, ranks)) {
        for (int p = 0; p < out->parts.count; p++)
            way_take(&out->parts.of[p], params);
        out->choice = out->parts.of[0];
    }
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

enum status auto_past_find(struct auto_past *out, const struct phasor_batch_params *batch,
                           const struct engine_basis *basis, struct error *err)
{
    json_t *record;
    *out = (struct auto_past){.choice = {.is_made = false}};
    if (batch == NULL || !batch->resume || batch->output_path == NULL ||
        (!has_lines(batch->output_path) && !has_lines(batch->error_path)))
        return STATUS_OK;
    enum status status = load(&record, batch->output_path, err);
    if (status == STATUS_NOT_FOUND)
        return STATUS_OK; /* the run is refused, with its cure */
    TRY(status);
    take(out, record, basis);
    json_decref(record);
    return STATUS_OK;
}
