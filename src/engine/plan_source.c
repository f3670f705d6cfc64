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

static enum status box_read(struct plan_source *out, const char *path, uint64_t draw,
                            struct error *err)
{
    struct box_model *model;
    TRY(memory_get((void **)&model, 1, sizeof *model, "the box", err));
    enum status status = box_model_read_drawn(model, path, draw, err);
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

static enum status profile_read(struct plan_source *out, const char *path, struct error *err)
{
    const char *slash = strrchr(path, '/');
    const struct profile_identity *identity = &out->file.identity;
    TRY(profile_file_read(&out->file, path, err));
    out->is_measured = true;
    out->profile = &out->file.profile;
    out->rank_count = identity->devices.rank_count;
    out->worker_count = (int)ceil_div(identity->threads, out->rank_count);
    out->is_gpu = identity->devices.cuda;
    out->memory_bytes = memory_of(identity);
    snprintf(out->name, sizeof out->name, "%.*s", (int)sizeof out->name - 1,
             slash == NULL ? path : slash + 1);
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

enum kind { IS_BOX, IS_PROFILE, IS_NEITHER };

static enum status kind_find(enum kind *out, const char *path, struct error *err)
{
    json_t *root;
    TRY(json_load_object(&root, path, PROFILE_FILE_BYTES_MAX, err));
    *out = json_object_get(root, "phasor_profile") != NULL ? IS_PROFILE
           : json_object_get(root, "format") != NULL       ? IS_BOX
                                                           : IS_NEITHER;
    json_decref(root);
    return STATUS_OK;
}

static enum status hash_find(struct plan_source *out, const char *path, struct error *err)
{
    char *bytes;
    size_t length;
    TRY(file_read_whole(&bytes, &length, path, PROFILE_FILE_BYTES_MAX, err));
    snprintf(out->hash, sizeof out->hash, "%016" PRIx64, (uint64_t)XXH3_64bits(bytes, length));
    memory_free(bytes);
    return STATUS_OK;
}

static enum status file_read(struct plan_source *out, const char *path, uint64_t draw,
                             struct error *err)
{
    enum kind kind;
    TRY(kind_find(&kind, path, err));
    TRY(hash_find(out, path, err));
    if (kind == IS_NEITHER)
        return error_set(err, STATUS_FORMAT,
                         "--box: %s is neither a box file, which says \"format\": \"phasor box\", "
                         "nor a profile of phasor calibrate, which says \"phasor_profile\"",
                         path);
    if (kind == IS_BOX)
        return box_read(out, path, draw, err);
    if (draw != 0)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s is measured: only the numbers of a box file have ranges to be drawn "
                         "from",
                         path);
    return profile_read(out, path, err);
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
