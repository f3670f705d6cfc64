#include "engine/plan_source.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/checked.h"
#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/system.h"
#include "engine/box_files.h"

const char *const profile_fit_names[] = {
    [PROFILE_FITS] = "fits", [PROFILE_STALE] = "stale", [PROFILE_FOREIGN] = "foreign"};

/* Read once: its hash is of what is taken, whatever becomes of it meanwhile. */
struct source_file {
    const char *path;
    char *bytes;
    size_t length;
    json_t *root;
};

/* ---- A box file ------------------------------------------------------------------------------ */

static enum status box_take(struct plan_source *out, const struct box_model *model,
                            struct error *err)
{
    TRY(plan_box_init(&out->box, model, err));
    out->profile = &out->box.profile;
    out->rank_count = model->rank_count;
    out->is_gpu = model->memory_count == 0;
    out->memory_bytes = (uint64_t)((double)model->device.memory_bytes * PLAN_USABLE_SHARE);
    snprintf(out->name, sizeof out->name, "%s", model->name);
    snprintf(out->title, sizeof out->title, "%s", model->title);
    return STATUS_OK;
}

static enum status box_read(struct plan_source *out, const struct source_file *file, uint64_t draw,
                            struct error *err)
{
    struct box_model *model;
    if (file->length > BOX_FILE_BYTES_MAX)
        return error_set(err, STATUS_LIMIT, "%s has %zu bytes; at most %zu are accepted of a box",
                         file->path, file->length, BOX_FILE_BYTES_MAX);
    TRY(memory_get((void **)&model, 1, sizeof *model, "the box", err));
    enum status status = box_model_of(model, file->root, file->path, draw, err);
    if (status == STATUS_OK)
        status = box_take(out, model, err);
    memory_free(model);
    return status;
}

/* ---- A profile ------------------------------------------------------------------------------- */

/* Ranks and threads are the plan's, whatever this machine would take for a run. */
static enum status fit_find(struct plan_source *out, struct error *err)
{
    const struct profile_identity *file = &out->file.identity;
    struct profile_identity here;
    enum status status = profile_identity_of(&here, &file->devices, file->threads, &out->misfit);
    if (status == STATUS_UNSUPPORTED) { /* the GPUs are not here */
        out->fit = PROFILE_FOREIGN;
        return STATUS_OK;
    }
    if (status != STATUS_OK)
        return error_set(err, status, "%s", out->misfit.message);
    here.threads = file->threads;
    out->fit = profile_identity_fit(file, &here, &out->misfit);
    return STATUS_OK;
}

/* Of each rank: a GPU's was measured, the CPU's are this machine's. */
static uint64_t memory_of(const struct profile_identity *identity)
{
    uint64_t ranks = (uint64_t)identity->devices.rank_count;
    uint64_t bytes =
        identity->devices.cuda ? identity->memory_bytes : system_memory_total() / ranks;
    return (uint64_t)((double)bytes * PLAN_USABLE_SHARE);
}

static void title_make(char out[PLAN_TITLE_BYTES], const struct profile_identity *identity)
{
    const char *processor = *identity->processor != 0 ? identity->processor : "a processor";
    if (identity->devices.cuda)
        snprintf(out, PLAN_TITLE_BYTES, "%d ranks on %s, %s with %d threads",
                 identity->devices.rank_count, identity->gpus, processor, identity->threads);
    else
        snprintf(out, PLAN_TITLE_BYTES, "%d x %s on %s, %d threads", identity->devices.rank_count,
                 identity->kernels, processor, identity->threads);
}

static enum status profile_read(struct plan_source *out, const struct source_file *file,
                                struct error *err)
{
    const char *slash = strrchr(file->path, '/');
    const struct profile_identity *identity = &out->file.identity;
    TRY(profile_file_of(&out->file, file->root, file->path, err));
    out->is_measured = true;
    out->profile = &out->file.profile;
    out->rank_count = identity->devices.rank_count;
    out->worker_count = (int)ceil_div(identity->threads, out->rank_count);
    out->is_gpu = identity->devices.cuda;
    out->memory_bytes = memory_of(identity);
    snprintf(out->name, sizeof out->name, "%.*s", (int)sizeof out->name - 1,
             slash == NULL ? file->path : slash + 1);
    title_make(out->title, identity);
    TRY(fit_find(out, err));
    if (out->fit != PROFILE_FOREIGN)
        profile_host_take(&out->file.profile, 0);
    return STATUS_OK;
}

void plan_source_limit(struct plan_source *source, uint64_t memory_bytes)
{
    uint64_t all = UINT64_MAX; /* more than any machine has */
    (void)checked_mul(&all, memory_bytes, (uint64_t)source->rank_count);
    if (source->is_measured && source->fit != PROFILE_FOREIGN &&
        !source->file.identity.devices.cuda)
        profile_host_take(&source->file.profile, all);
}

/* ---- Either ---------------------------------------------------------------------------------- */

static enum status file_take(struct plan_source *out, const struct source_file *file, uint64_t draw,
                             struct error *err)
{
    snprintf(out->hash, sizeof out->hash, "%016" PRIx64,
             (uint64_t)XXH3_64bits(file->bytes, file->length));
    if (json_object_get(file->root, "phasor_profile") == NULL) {
        if (json_object_get(file->root, "format") != NULL)
            return box_read(out, file, draw, err);
        return error_set(err, STATUS_FORMAT,
                         "--box: %s is neither a box file, which says \"format\": \"phasor box\", "
                         "nor a profile of phasor calibrate, which says \"phasor_profile\"",
                         file->path);
    }
    if (draw != 0)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s is measured: only the numbers of a box file have ranges to be drawn "
                         "from",
                         file->path);
    return profile_read(out, file, err);
}

static enum status file_read(struct plan_source *out, const char *path, uint64_t draw,
                             struct error *err)
{
    struct source_file file = {.path = path};
    TRY(file_read_whole(&file.bytes, &file.length, path, PROFILE_FILE_BYTES_MAX, err));
    enum status status = json_parse_object(&file.root, file.bytes, file.length, path, err);
    if (status == STATUS_OK)
        status = file_take(out, &file, draw, err);
    json_decref(file.root);
    memory_free(file.bytes);
    return status;
}

enum status plan_source_read(struct plan_source *out, const char *box, uint64_t draw,
                             struct error *err)
{
    struct text path = {0};
    *out = (struct plan_source){.profile = NULL};
    enum status status = box_files_find(&path, box, err);
    if (status == STATUS_OK)
        status = file_read(out, path.bytes, draw, err);
    text_deinit(&path);
    if (status != STATUS_OK)
        plan_source_deinit(out);
    return status;
}

void plan_source_deinit(struct plan_source *source)
{
    plan_box_deinit(&source->box);
    profile_file_deinit(&source->file);
    *source = (struct plan_source){.profile = NULL};
}
