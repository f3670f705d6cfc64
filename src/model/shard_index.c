#include "model/shard_index.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "model/model_path.h"

/* The index of the largest published models (90,000 tensors) has 9 MB. */
#define INDEX_BYTES_MAX (16u << 20)

static int compare_strings(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* All shard names of the map, sorted, each once. */
static enum status collect_names(struct shard_index *index, const char *path, struct error *err)
{
    const char *tensor;
    json_t *value;
    size_t count = 0;
    TRY(memory_get((void **)&index->shard_names, json_object_size(index->weight_map),
                   sizeof *index->shard_names, path, err));
    json_object_foreach(index->weight_map, tensor, value)
    {
        const char *name = json_string_value(value);
        if (name == NULL || strlen(name) != json_string_length(value))
            return error_set(err, STATUS_FORMAT,
                             "%s: \"weight_map\": \"%s\": expected a file name, found %s", path,
                             tensor, json_kind(value));
        index->shard_names[count++] = name;
    }
    qsort(index->shard_names, count, sizeof *index->shard_names, compare_strings);
    for (size_t i = 0; i < count; i++) {
        const char **names = index->shard_names;
        if (index->shard_count == 0 || strcmp(names[index->shard_count - 1], names[i]) != 0)
            names[index->shard_count++] = names[i];
    }
    if (index->shard_count > SHARDS_MAX)
        return error_set(err, STATUS_LIMIT, "%s names %zu shards; at most %d are accepted", path,
                         index->shard_count, SHARDS_MAX);
    return STATUS_OK;
}

static enum status parse(struct shard_index *index, const char *bytes, size_t length,
                         const char *path, struct error *err)
{
    TRY(json_parse_object(&index->root, bytes, length, path, err));
    index->weight_map = json_object_get(index->root, "weight_map");
    if (!json_is_object(index->weight_map) || json_object_size(index->weight_map) == 0)
        return error_set(err, STATUS_FORMAT,
                         "%s: \"weight_map\": expected an object with all tensors, found %s", path,
                         json_is_object(index->weight_map) ? "an empty one"
                                                           : json_kind(index->weight_map));
    return collect_names(index, path, err);
}

enum status shard_index_load(struct shard_index *index, const char *dir, struct error *err)
{
    char *path = NULL, *real = NULL, *bytes = NULL;
    size_t length;
    enum status status;
    TRY_GOTO(model_path_join(&path, dir, SHARD_INDEX_NAME, err), done);
    TRY_GOTO(model_path_resolve(&real, dir, SHARD_INDEX_NAME, err), done);
    TRY_GOTO(file_read_whole(&bytes, &length, real, INDEX_BYTES_MAX, err), done);
    status = parse(index, bytes, length, path, err);
done:
    memory_free(bytes);
    memory_free(real);
    memory_free(path);
    return status;
}

void shard_index_deinit(struct shard_index *index)
{
    memory_free(index->shard_names);
    json_decref(index->root);
    *index = (struct shard_index){0};
}
