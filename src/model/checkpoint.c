#include "model/checkpoint.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/file.h"
#include "base/memory.h"
#include "model/checkpoint_parts.h"
#include "model/model_path.h"

static bool has_suffix(const char *name, const char *suffix)
{
    size_t length = strlen(name), suffix_length = strlen(suffix);
    return length >= suffix_length && strcmp(name + length - suffix_length, suffix) == 0;
}

/* A directory without weights that phasor can read: says what it has and what is needed. */
static enum status explain_no_weights(const char *dir, struct error *err)
{
    static const struct {
        const char *suffix, *cure;
    } forms[] = {
        {".gguf", "GGUF files are not read; phasor needs the original checkpoint: config.json and "
                  "model*.safetensors"},
        {".bin", "PyTorch files are not read; convert them with transformers: "
                 "model.save_pretrained(DIR, safe_serialization=True)"},
        {".pth", "PyTorch files are not read; convert them to the safetensors form of "
                 "transformers"},
        {".safetensors", "phasor needs the form of transformers: " SHARD_SINGLE_NAME
                         " or " SHARD_INDEX_NAME " with its shards"},
    };
    DIR *listing = opendir(dir);
    if (listing == NULL)
        return error_set(err, STATUS_NOT_FOUND, "%s is no directory that can be read", dir);
    enum status status = STATUS_OK;
    for (struct dirent *entry = readdir(listing); entry != NULL && status == STATUS_OK;
         entry = readdir(listing)) {
        for (size_t i = 0; i < sizeof forms / sizeof *forms && status == STATUS_OK; i++) {
            if (has_suffix(entry->d_name, forms[i].suffix))
                status = error_set(err, STATUS_UNSUPPORTED, "%s has %s, but no %s: %s", dir,
                                   entry->d_name, SHARD_SINGLE_NAME, forms[i].cure);
        }
    }
    closedir(listing);
    if (status != STATUS_OK)
        return status;
    return error_set(err, STATUS_NOT_FOUND,
                     "%s has neither " SHARD_SINGLE_NAME " nor " SHARD_INDEX_NAME, dir);
}

static enum status open_shard(struct checkpoint *checkpoint, struct shard *shard, const char *name,
                              struct error *err)
{
    char *real = NULL;
    enum status status;
    TRY_GOTO(model_path_resolve(&real, checkpoint->dir, name, err), done);
    TRY_GOTO(model_path_join(&shard->path, checkpoint->dir, name, err), done);
    shard->name = shard->path + strlen(shard->path) - strlen(name);
    TRY_GOTO(model_path_open(&shard->fd, real, err), done);
    TRY_GOTO(
        safetensors_read_header(&shard->contents, &checkpoint->arena, shard->fd, shard->path, err),
        done);
    int32_t number = (int32_t)(shard - checkpoint->shards);
    for (int64_t i = 0; i < shard->contents.tensor_count; i++)
        shard->contents.tensors[i].shard = number;
    checkpoint->tensor_count += shard->contents.tensor_count;
done:
    memory_free(real);
    return status;
}

static enum status open_shards(struct checkpoint *checkpoint, const char *const *names,
                               size_t count, struct error *err)
{
    TRY(memory_get((void **)&checkpoint->shards, count, sizeof *checkpoint->shards,
                   "the table of shards", err));
    for (size_t i = 0; i < count; i++)
        checkpoint->shards[i].fd = -1;
    checkpoint->shard_count = (int64_t)count;
    for (size_t i = 0; i < count; i++) {
        enum status status = open_shard(checkpoint, &checkpoint->shards[i], names[i], err);
        if (status == STATUS_NOT_FOUND)
            return error_prefix(err, status, "shard %zu of %zu", i + 1, count);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp((*(const struct tensor_info *const *)a)->name,
                  (*(const struct tensor_info *const *)b)->name);
}

static enum status build_tables(struct checkpoint *checkpoint, struct error *err)
{
    size_t count = (size_t)checkpoint->tensor_count, at = 0;
    TRY(memory_get((void **)&checkpoint->tensors, count, sizeof *checkpoint->tensors,
                   "the table of tensors", err));
    TRY(memory_get((void **)&checkpoint->by_name, count, sizeof *checkpoint->by_name,
                   "the table of tensors", err));
    for (int64_t i = 0; i < checkpoint->shard_count; i++) {
        const struct safetensors *contents = &checkpoint->shards[i].contents;
        for (int64_t j = 0; j < contents->tensor_count; j++)
            checkpoint->tensors[at++] = &contents->tensors[j];
    }
    if (count == 0)
        return STATUS_OK;
    memcpy(checkpoint->by_name, checkpoint->tensors, count * sizeof *checkpoint->tensors);
    qsort(checkpoint->by_name, count, sizeof *checkpoint->by_name, compare_names);
    for (size_t i = 1; i < count; i++) {
        const struct tensor_info *a = checkpoint->by_name[i - 1], *b = checkpoint->by_name[i];
        if (strcmp(a->name, b->name) != 0)
            continue;
        char note[LAYER_NOTE_BYTES];
        layer_note(note, a->name);
        return error_set(err, STATUS_FORMAT, "tensor \"%s\"%s lies in two shards, %s and %s",
                         a->name, note, checkpoint->shards[a->shard].path,
                         checkpoint->shards[b->shard].path);
    }
    return STATUS_OK;
}

/* Where the config does not state a type, the embedding's holds. */
static void settle_dtype(struct checkpoint *checkpoint)
{
    if (!checkpoint->config.dtype_is_stated)
        checkpoint->config.dtype =
            (enum dtype)checkpoint_find_weight(checkpoint, WEIGHT_EMBEDDING, 0, 0)->dtype;
}

static enum status build(struct checkpoint *checkpoint, struct error *err)
{
    const char *dir = checkpoint->dir;
    bool single = model_path_exists(dir, SHARD_SINGLE_NAME);
    if (!single && !model_path_exists(dir, SHARD_INDEX_NAME))
        return explain_no_weights(dir, err);
    TRY(model_config_load(&checkpoint->config, dir, err));
    struct shard_index index = {0};
    enum status status;
    if (single) {
        static const char *const names[] = {SHARD_SINGLE_NAME};
        TRY_GOTO(open_shards(checkpoint, names, 1, err), done);
    } else {
        TRY_GOTO(shard_index_load(&index, dir, err), done);
        TRY_GOTO(open_shards(checkpoint, index.shard_names, index.shard_count, err), done);
    }
    TRY_GOTO(build_tables(checkpoint, err), done);
    if (!single)
        TRY_GOTO(checkpoint_check_index(checkpoint, &index, err), done);
    TRY_GOTO(checkpoint_check_weights(checkpoint, err), done);
    settle_dtype(checkpoint);
done:
    shard_index_deinit(&index);
    return status;
}

enum status checkpoint_open(struct checkpoint **out, const char *dir, struct error *err)
{
    struct checkpoint *checkpoint;
    TRY(memory_get((void **)&checkpoint, 1, sizeof *checkpoint, "the checkpoint", err));
    checkpoint->dir = memory_copy_text(dir, strlen(dir));
    enum status status = STATUS_OK;
    if (checkpoint->dir == NULL)
        status = error_set(err, STATUS_NO_MEMORY, "cannot allocate a path for %s", dir);
    if (status == STATUS_OK)
        status = build(checkpoint, err);
    if (status != STATUS_OK) {
        checkpoint_close(checkpoint);
        return status;
    }
    *out = checkpoint;
    return STATUS_OK;
}

void checkpoint_close(struct checkpoint *checkpoint)
{
    if (checkpoint == NULL)
        return;
    memory_free(checkpoint->by_name);
    memory_free(checkpoint->tensors);
    for (int64_t i = 0; i < checkpoint->shard_count; i++) {
        if (checkpoint->shards[i].fd >= 0)
            close(checkpoint->shards[i].fd);
        memory_free(checkpoint->shards[i].path);
    }
    memory_free(checkpoint->shards);
    arena_deinit(&checkpoint->arena);
    memory_free(checkpoint->dir);
    memory_free(checkpoint);
}

const struct model_config *checkpoint_config(const struct checkpoint *checkpoint)
{
    return &checkpoint->config;
}

const char *checkpoint_dir(const struct checkpoint *checkpoint)
{
    return checkpoint->dir;
}

int64_t checkpoint_tensor_count(const struct checkpoint *checkpoint)
{
    return checkpoint->tensor_count;
}

const struct tensor_info *checkpoint_tensor(const struct checkpoint *checkpoint, int64_t index)
{
    ASSERT(index >= 0 && index < checkpoint->tensor_count);
    return checkpoint->tensors[index];
}

const struct tensor_info *checkpoint_find(const struct checkpoint *checkpoint, const char *name)
{
    struct tensor_info key = {.name = name};
    const struct tensor_info *key_at = &key;
    if (checkpoint->tensor_count == 0)
        return NULL;
    const struct tensor_info **found =
        bsearch(&key_at, checkpoint->by_name, (size_t)checkpoint->tensor_count,
                sizeof *checkpoint->by_name, compare_names);
    return found != NULL ? *found : NULL;
}
