#include "engine/engine.h"

#include <string.h>

#include "base/memory.h"
#include "device/thread_team.h"
#include "exec/exec.h"
#include "model/checkpoint.h"
#include "model/hub.h"

struct engine {
    char *name;
    char *dir;
    struct checkpoint *checkpoint;
    struct tokenizer *tokenizer;
    struct device *device;
    struct weights weights;
};

static enum dtype choose_dtype(const struct engine_params *params,
                               const struct model_config *config)
{
    if (!params->dtype_is_auto)
        return params->dtype;
    if (config->dtype == DTYPE_F16)
        log_write(&params->log, LOG_INFO,
                  "the checkpoint is float16 and runs as bfloat16 on this device; --dtype float32 "
                  "keeps every bit");
    return config->dtype == DTYPE_F32 ? DTYPE_F32 : DTYPE_BF16;
}

static enum status tokenizer_load(struct engine *engine, const struct engine_params *params,
                                  struct error *err)
{
    enum status status = tokenizer_open(&engine->tokenizer, engine->dir, err);
    if (status == STATUS_NOT_FOUND && !params->needs_tokenizer)
        return STATUS_OK;
    if (status != STATUS_OK)
        return status;
    int64_t known = tokenizer_vocab_count(engine->tokenizer);
    int64_t vocab = checkpoint_config(engine->checkpoint)->vocab_count;
    if (known > vocab)
        return error_set(err, STATUS_FORMAT,
                         "%s: tokenizer.json has ids up to %lld, config.json a vocab_size of %lld; "
                         "they belong to different models",
                         engine->dir, (long long)known - 1, (long long)vocab);
    return STATUS_OK;
}

static enum status engine_load(struct engine *engine, const struct engine_params *params,
                               struct error *err)
{
    int thread_count = params->thread_count > 0 ? params->thread_count : thread_team_cpu_count();
    struct weights_progress progress = {params->load_progress, params->load_context};
    TRY(hub_resolve(&engine->dir, params->model, params->revision, err));
    TRY(checkpoint_open(&engine->checkpoint, engine->dir, err));
    TRY(tokenizer_load(engine, params, err));
    TRY(device_cpu_create(&engine->device, thread_count, err));
    enum dtype dtype = choose_dtype(params, checkpoint_config(engine->checkpoint));
    return weights_load(&engine->weights, engine->device, engine->checkpoint, dtype, &progress,
                        err);
}

enum status engine_open(struct engine **out, const struct engine_params *params, struct error *err)
{
    struct engine *engine;
    TRY(memory_get((void **)&engine, 1, sizeof *engine, "the engine", err));
    enum status status = STATUS_OK;
    engine->name = memory_copy_text(params->model, strlen(params->model));
    if (engine->name == NULL)
        status = error_set(err, STATUS_NO_MEMORY, "out of memory");
    else
        status = engine_load(engine, params, err);
    if (status != STATUS_OK) {
        engine_close(engine);
        return status;
    }
    *out = engine;
    return STATUS_OK;
}

void engine_close(struct engine *engine)
{
    if (engine == NULL)
        return;
    if (engine->device != NULL)
        weights_deinit(&engine->weights);
    device_destroy(engine->device);
    tokenizer_close(engine->tokenizer);
    checkpoint_close(engine->checkpoint);
    memory_free(engine->dir);
    memory_free(engine->name);
    memory_free(engine);
}

const struct model_config *engine_config(const struct engine *engine)
{
    return checkpoint_config(engine->checkpoint);
}

const struct tokenizer *engine_tokenizer(const struct engine *engine)
{
    return engine->tokenizer;
}

const char *engine_model_name(const struct engine *engine)
{
    return engine->name;
}

enum status engine_exec_create(struct exec **out, struct engine *engine, int64_t token_max,
                               int64_t segment_max, struct error *err)
{
    return exec_create(out, engine->device, engine_config(engine), &engine->weights, token_max,
                       segment_max, err);
}
