#include "engine/quantize.h"

#include "base/cache_folder.h"
#include "base/memory.h"
#include "model/hub.h"
#include "quant/backup_path.h"

static enum status open_model(struct checkpoint **out, const struct quantize_params *params,
                              struct error *err)
{
    char *dir;
    TRY(hub_resolve(&dir, params->model, params->revision, err));
    enum status status = checkpoint_open(out, dir, err);
    memory_free(dir);
    return status;
}

static enum status run_at(struct backup_report *out, const struct checkpoint *checkpoint,
                          const struct quantize_params *params, const char *path, struct error *err)
{
    struct backup_write_params write = params->write;
    write.path = path;
    return params->verifies ? backup_verify(out, checkpoint, &write, err)
                            : backup_write(out, checkpoint, &write, err);
}

static enum status run_in_cache(struct backup_report *out, const struct checkpoint *checkpoint,
                                const struct quantize_params *params, struct error *err)
{
    char *path;
    TRY(backup_path_in_cache(&path, checkpoint, &params->write.settings, err));
    enum status status = params->verifies ? STATUS_OK : cache_folder_make_above(path, err);
    if (status == STATUS_OK)
        status = run_at(out, checkpoint, params, path, err);
    memory_free(path);
    return status;
}

enum status quantize_run(struct backup_report *out, const struct quantize_params *params,
                         struct error *err)
{
    struct checkpoint *checkpoint;
    TRY(open_model(&checkpoint, params, err));
    enum status status = params->write.path == NULL
                             ? run_in_cache(out, checkpoint, params, err)
                             : run_at(out, checkpoint, params, params->write.path, err);
    checkpoint_close(checkpoint);
    return status;
}

enum status quantize_path(char **out, const struct quantize_params *params, struct error *err)
{
    struct checkpoint *checkpoint;
    TRY(open_model(&checkpoint, params, err));
    enum status status = backup_path_in_cache(out, checkpoint, &params->write.settings, err);
    checkpoint_close(checkpoint);
    return status;
}
