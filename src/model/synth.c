#include "model/synth.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/text.h"
#include "model/model_path.h"
#include "model/safetensors.h"
#include "model/shard_index.h"
#include "model/synth_parts.h"

#define SHARD_BYTES_DEFAULT 5000000000u
#define CHUNK_BYTES         (4u << 20)

/* One tensor to write. */
struct item {
    enum weight weight;
    int64_t layer;
    int64_t expert;
    uint64_t bytes;
    int64_t shard;
};

struct job {
    const struct synth_params *params;
    json_t *config_json;
    struct model_config config;
    struct item *items;
    size_t item_count;
    size_t item_capacity;
    int64_t shard_count;
    uint64_t shard_bytes; /* of the last shard */
    uint64_t total_bytes;
    uint64_t done_bytes;
    void *chunk;
};

static void item_name(char name[WEIGHT_NAME_BYTES], const struct job *job, const struct item *item)
{
    /* Fused tensors come from transformers 5, with its names. */
    if (!job->params->fused || !weight_alternative_name(name, WEIGHT_NAME_BYTES, &job->config,
                                                        item->weight, item->layer, item->expert))
        weight_name(name, WEIGHT_NAME_BYTES, &job->config, item->weight, item->layer, item->expert);
}

static enum status add_item(struct job *job, enum weight weight, int64_t layer, int64_t expert,
                            struct error *err)
{
    int64_t shape[3];
    uint64_t limit = job->params->shard_bytes_max,
             bytes = (uint64_t)dtype_bytes(job->params->dtype);
    int rank = weight_shape(shape, &job->config, weight);
    for (int i = 0; i < rank; i++)
        bytes *= (uint64_t)shape[i]; /* the limits of a config keep this below 2^60 */
    TRY(memory_reserve(&job->items, &job->item_capacity, job->item_count + 1, sizeof *job->items,
                       "the list of tensors", err));
    if (limit == 0)
        limit = SHARD_BYTES_DEFAULT;
    if (job->shard_count == 0 || (job->shard_bytes > 0 && job->shard_bytes + bytes > limit)) {
        job->shard_count++;
        job->shard_bytes = 0;
    }
    job->shard_bytes += bytes;
    job->items[job->item_count++] =
        (struct item){weight, layer, expert, bytes, job->shard_count - 1};
    job->total_bytes += bytes;
    return STATUS_OK;
}

static bool is_single_expert(enum weight weight)
{
    return weight >= WEIGHT_EXPERT_GATE && weight <= WEIGHT_EXPERT_DOWN;
}

static bool is_fused(enum weight weight)
{
    return weight == WEIGHT_FUSED_GATE_UP || weight == WEIGHT_FUSED_DOWN;
}

static enum status list_layer(struct job *job, int64_t layer, struct error *err)
{
    for (enum weight weight = WEIGHT_INPUT_NORM; weight < WEIGHT_KIND_COUNT; weight++) {
        bool skipped = job->params->fused ? is_single_expert(weight) : is_fused(weight);
        int64_t count = is_single_expert(weight) ? job->config.expert_count : 1;
        if (skipped || !weight_is_present(&job->config, weight, layer))
            continue;
        for (int64_t expert = 0; expert < count; expert++)
            TRY(add_item(job, weight, layer, expert, err));
    }
    return STATUS_OK;
}

static enum status list_items(struct job *job, struct error *err)
{
    TRY(add_item(job, WEIGHT_EMBEDDING, 0, 0, err));
    for (int64_t layer = 0; layer < job->config.layer_count; layer++)
        TRY(list_layer(job, layer, err));
    TRY(add_item(job, WEIGHT_FINAL_NORM, 0, 0, err));
    if (weight_is_present(&job->config, WEIGHT_HEAD, 0))
        TRY(add_item(job, WEIGHT_HEAD, 0, 0, err));
    return STATUS_OK;
}

static enum status write_item(struct job *job, struct safetensors_writer *writer,
                              const struct item *item, struct error *err)
{
    char name[WEIGHT_NAME_BYTES];
    int64_t shape[3];
    const struct synth_params *params = job->params;
    int rank = weight_shape(shape, &job->config, item->weight);
    item_name(name, job, item);
    struct synth_values values = synth_values_of(item->weight, shape, rank, name, params->seed);
    uint64_t unit = (uint64_t)dtype_bytes(params->dtype);
    for (uint64_t at = 0; at < item->bytes; at += CHUNK_BYTES) {
        uint64_t bytes = item->bytes - at < CHUNK_BYTES ? item->bytes - at : CHUNK_BYTES;
        synth_fill(job->chunk, params->dtype, &values, at / unit, (int64_t)(bytes / unit));
        TRY(safetensors_writer_data(writer, job->chunk, bytes, err));
        job->done_bytes += bytes;
        if (params->progress == NULL)
            continue;
        enum status status =
            params->progress(params->progress_context, job->done_bytes, job->total_bytes);
        if (status != STATUS_OK)
            return error_set(err, status, "writing %s was stopped", params->dir);
    }
    return STATUS_OK;
}

static void shard_name(char name[64], const struct job *job, int64_t shard)
{
    if (job->shard_count == 1)
        snprintf(name, 64, SHARD_SINGLE_NAME);
    else
        snprintf(name, 64, "model-%05lld-of-%05lld.safetensors", (long long)shard + 1,
                 (long long)job->shard_count);
}

static enum status fill_shard(struct job *job, struct safetensors_writer *writer, int64_t shard,
                              struct error *err)
{
    for (size_t i = 0; i < job->item_count; i++) {
        char name[WEIGHT_NAME_BYTES];
        int64_t shape[3];
        if (job->items[i].shard != shard)
            continue;
        item_name(name, job, &job->items[i]);
        int rank = weight_shape(shape, &job->config, job->items[i].weight);
        TRY(safetensors_writer_add(writer, name, job->params->dtype, shape, rank, err));
    }
    TRY(safetensors_writer_begin(writer, err));
    for (size_t i = 0; i < job->item_count; i++) {
        if (job->items[i].shard == shard)
            TRY(write_item(job, writer, &job->items[i], err));
    }
    return STATUS_OK;
}

static enum status write_shard(struct job *job, int64_t shard, struct error *err)
{
    char name[64], *path;
    struct safetensors_writer *writer;
    shard_name(name, job, shard);
    TRY(model_path_join(&path, job->params->dir, name, err));
    enum status status = safetensors_writer_create(&writer, path, err);
    memory_free(path);
    if (status != STATUS_OK)
        return status;
    status = fill_shard(job, writer, shard, err);
    if (status != STATUS_OK) {
        safetensors_writer_abort(writer);
        return status;
    }
    return safetensors_writer_finish(writer, err);
}

static enum status write_json(const struct job *job, const char *name, const json_t *value,
                              struct error *err)
{
    char *path;
    TRY(model_path_join(&path, job->params->dir, name, err));
    enum status status = STATUS_OK;
    errno = 0;
    if (json_dump_file(value, path, JSON_INDENT(2) | JSON_SORT_KEYS) != 0) {
        status = error_set_errno(err, errno != 0 ? errno : EIO, "cannot write %s", path);
        unlink(path);
    }
    memory_free(path);
    return status;
}

static enum status write_index(const struct job *job, struct error *err)
{
    json_t *map = json_object();
    for (size_t i = 0; i < job->item_count; i++) {
        char name[WEIGHT_NAME_BYTES], shard[64];
        item_name(name, job, &job->items[i]);
        shard_name(shard, job, job->items[i].shard);
        json_object_set_new(map, name, json_string(shard));
    }
    json_t *index = json_pack("{s:{s:I}, s:o}", "metadata", "total_size",
                              (json_int_t)job->total_bytes, "weight_map", map);
    enum status status =
        index == NULL ? error_set(err, STATUS_NO_MEMORY, "cannot allocate the index of shards")
                      : write_json(job, SHARD_INDEX_NAME, index, err);
    json_decref(index);
    return status;
}

/* config.json comes last: without it the directory is no checkpoint. */
static enum status write_configs(const struct job *job, struct error *err)
{
    json_t *generation = json_object();
    for (size_t i = 0; i < 2; i++) {
        static const char *const keys[] = {"bos_token_id", "eos_token_id"};
        json_object_set(generation, keys[i], json_object_get(job->config_json, keys[i]));
    }
    enum status status = write_json(job, "generation_config.json", generation, err);
    json_decref(generation);
    if (status != STATUS_OK)
        return status;
    return write_json(job, "config.json", job->config_json, err);
}

static enum status make_directory(const char *dir, struct error *err)
{
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return error_set_errno(err, errno, "cannot make the directory %s", dir);
    DIR *listing = opendir(dir);
    if (listing == NULL)
        return error_set_errno(err, errno, "cannot read the directory %s", dir);
    enum status status = STATUS_OK;
    for (struct dirent *entry = readdir(listing); entry != NULL && status == STATUS_OK;
         entry = readdir(listing)) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            status = error_set(err, STATUS_INVALID_ARGUMENT,
                               "%s is not empty (it has %s); choose another directory", dir,
                               entry->d_name);
    }
    closedir(listing);
    return status;
}

static enum status job_init(struct job *job, const struct synth_params *params, struct error *err)
{
    job->params = params;
    TRY(synth_config(&job->config_json, &job->config, params, err));
    return list_items(job, err);
}

static void job_deinit(struct job *job)
{
    memory_free(job->chunk);
    memory_free(job->items);
    json_decref(job->config_json);
}

enum status synth_size(uint64_t *out, const struct synth_params *params, struct error *err)
{
    struct job job = {0};
    enum status status = job_init(&job, params, err);
    if (status == STATUS_OK)
        *out = job.total_bytes;
    job_deinit(&job);
    return status;
}

enum status synth_write(const struct synth_params *params, struct error *err)
{
    struct job job = {0};
    enum status status;
    TRY_GOTO(job_init(&job, params, err), done);
    TRY_GOTO(memory_get_raw(&job.chunk, CHUNK_BYTES, 1, "values", err), done);
    TRY_GOTO(make_directory(params->dir, err), done);
    for (int64_t shard = 0; shard < job.shard_count; shard++)
        TRY_GOTO(write_shard(&job, shard, err), done);
    if (job.shard_count > 1)
        TRY_GOTO(write_index(&job, err), done);
    status = write_configs(&job, err);
done:
    job_deinit(&job);
    return status;
}
