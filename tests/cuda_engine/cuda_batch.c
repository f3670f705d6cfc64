#include "cuda_batch.h"

#include <criterion/criterion.h>

#include "wave_tools.h"

json_t *cuda_batch_rows(const struct phasor_model_params *params,
                        struct phasor_batch_result *result)
{
    struct phasor_batch_params batch = wave_batch(wave_rows);
    struct phasor_model_params with_batch = *params;
    struct phasor_batch_result ignored;
    struct phasor_model *model;
    struct phasor_error err;
    batch.max_num_batched_tokens = 32;
    batch.overwrite = true;
    with_batch.batch = &batch;
    cr_assert_eq(phasor_model_open(&model, &with_batch, &err), PHASOR_OK, "%s: %s", params->devices,
                 err.message);
    cr_assert_eq(phasor_batch_run(model, &batch, result == NULL ? &ignored : result, &err),
                 PHASOR_OK, "%s: %s", params->devices, err.message);
    phasor_model_close(model);
    return tools_read_rows(batch.output_path);
}

static const char *text_of(const json_t *rows, const char *id)
{
    const json_t *body = json_object_get(json_object_get(tools_row(rows, id), "response"), "body");
    const json_t *choice = json_array_get(json_object_get(body, "choices"), 0);
    return wave_text(choice, "text");
}

void cuda_batch_compare(json_t *found, json_t *expected, const char *label)
{
    for (const char *id = "abcde"; *id != 0; id++) {
        const char name[] = {*id, 0};
        cr_assert_str_eq(text_of(found, name), text_of(expected, name), "%s, row %s", label, name);
    }
    json_decref(found);
    json_decref(expected);
}
