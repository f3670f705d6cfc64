#include "wave_tools.h"

#include <string.h>

const char wave_rows[] =
    WAVE_ROW("a", "4") WAVE_ROW("b", "9") WAVE_ROW("c", "1") WAVE_ROW("d", "7") WAVE_ROW("e", "3");

struct phasor_model_params wave_model(const char *dir, const char *plan,
                                      enum phasor_transition transition)
{
    struct phasor_model_params params = phasor_model_params_default();
    params.model = dir;
    params.dtype = PHASOR_DTYPE_FLOAT32;
    params.plan = plan;
    params.transition = transition;
    return params;
}

struct phasor_batch_params wave_batch(const char *rows)
{
    struct phasor_batch_params batch = phasor_batch_params_default();
    tools_write_file(tools_path(tools_folder(), "in"), rows, strlen(rows));
    batch.input_path = tools_path(tools_folder(), "in");
    batch.output_path = tools_path(tools_folder(), "out");
    batch.max_num_seqs = 2;
    batch.max_model_len = 64;
    return batch;
}

const char *wave_text(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}
