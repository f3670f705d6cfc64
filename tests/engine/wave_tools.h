/* A batch of five rows under plans with two layouts, in waves of two. */
#ifndef WAVE_TOOLS_H
#define WAVE_TOOLS_H

#include <jansson.h>

#include "engine_tools.h"
#include "phasor.h"

#define WAVE_MODEL  MODELS_DIR "/kjv-moe"
#define WAVE_LAYERS 6

#define WAVE_ROW(id, count)                                                                        \
    "{\"custom_id\":\"" id "\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":"          \
    "{\"prompt\":[5,6,7],\"ignore_eos\":true,\"logprobs\":3,\"max_tokens\":" count "}}\n"

/* Rows a, b, c, d, e of 4, 9, 1, 7, 3 tokens. */
extern const char wave_rows[];

/* In f32. */
struct phasor_model_params wave_model(const char *dir, const char *plan,
                                      enum phasor_transition transition);

/* FOLDER/in, which holds `rows`, to FOLDER/out. */
struct phasor_batch_params wave_batch(const char *rows);

const char *wave_text(const json_t *object, const char *key);

#endif
