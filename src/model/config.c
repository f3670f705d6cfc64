#include "model/config.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "model/config_read.h"
#include "model/model_path.h"

#define CONFIG_BYTES_MAX (1u << 20) /* published ones have under 100 KiB */
#define HEAD_DIM_MAX     512 /* attention kernels keep one head in registers or on the stack */
#define HIDDEN_UNIT      32  /* the smallest group of an INT4 backup runs along this dimension */

/* A new architecture is one file and one line here. */
const struct architecture *const architectures[] = {
    &architecture_mixtral,
    &architecture_qwen2_moe,
    &architecture_qwen3_moe,
    NULL,
};

bool config_key_is_silent(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (value == NULL || json_is_null(value) || json_is_false(value))
        return true;
    return (json_is_object(value) && json_object_size(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_string(value) && json_string_length(value) == 0);
}

static const struct architecture *find_architecture(const char *class_name, const char *model_type)
{
    for (const struct architecture *const *at = architectures; *at != NULL; at++) {
        if (class_name != NULL ? strcmp((*at)->class_name, class_name) == 0
                               : strcmp((*at)->model_type, model_type) == 0)
            return *at;
    }
    return NULL;
}

static enum status unknown_architecture(struct config_source source, const char *key,
                                        const char *value, struct error *err)
{
    char known[256];
    size_t length = 0;
    for (const struct architecture *const *at = architectures; *at != NULL; at++)
        length += (size_t)snprintf(known + length, sizeof known - length, "%s%s",
                                   length == 0 ? "" : ", ", (*at)->class_name);
    return error_set(err, STATUS_UNSUPPORTED, "%s: \"%s\": %s is not supported; phasor knows %s",
                     source.file, key, value, known);
}

/* By "architectures"; by "model_type" only where that is silent. */
static enum status read_architecture(const struct architecture **out, struct config_source source,
                                     struct error *err)
{
    const char *model_type, *class_name = NULL;
    TRY(json_get_string_or(&model_type, source.object, source.file, "model_type", NULL, err));
    if (!config_key_is_silent(source.object, "architectures")) {
        const json_t *list = json_object_get(source.object, "architectures");
        class_name = json_string_value(json_array_get(list, 0));
        if (class_name == NULL || json_array_size(list) != 1)
            return error_set(err, STATUS_FORMAT,
                             "%s: \"architectures\": expected an array with one name", source.file);
    }
    if (class_name == NULL && model_type == NULL)
        return error_set(err, STATUS_FORMAT,
                         "%s: \"architectures\" and \"model_type\" are both missing", source.file);
    const struct architecture *found = find_architecture(class_name, model_type);
    if (found == NULL)
        return unknown_architecture(source, class_name != NULL ? "architectures" : "model_type",
                                    class_name != NULL ? class_name : model_type, err);
    if (model_type != NULL && strcmp(model_type, found->model_type) != 0)
        return error_set(err, STATUS_FORMAT,
                         "%s: \"model_type\" is %s, but \"architectures\" says %s (%s)",
                         source.file, model_type, found->class_name, found->model_type);
    *out = found;
    return STATUS_OK;
}

/* Settings that would change the result and that phasor does not follow. */
static enum status refuse_unknown_settings(struct config_source source, struct error *err)
{
    static const struct {
        const char *key, *cure;
    } refused[] = {
        {"quantization_config", "phasor reads float32, bfloat16 and float16 checkpoints: use the "
                                "model's unquantized one"},
        {"compression_config", "phasor reads float32, bfloat16 and float16 checkpoints"},
        {"per_layer_config", "phasor needs the same settings in all layers"},
        {"pruned_heads", "phasor runs all heads of all layers"},
        {"clip_qkv", "phasor does not clip queries, keys and values"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (!config_key_is_silent(source.object, refused[i].key))
            return error_set(err, STATUS_UNSUPPORTED, "%s: \"%s\" is not supported: %s",
                             source.file, refused[i].key, refused[i].cure);
    }
    const char *activation;
    TRY(json_get_string_or(&activation, source.object, source.file, "hidden_act", "silu", err));
    if (strcmp(activation, "silu") != 0)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: \"hidden_act\": %s is not supported; phasor knows silu", source.file,
                         activation);
    return STATUS_OK;
}

static enum status read_dtype(struct model_config *config, struct config_source source,
                              struct error *err)
{
    const char *old_name, *name;
    TRY(json_get_string_or(&old_name, source.object, source.file, "torch_dtype", NULL, err));
    TRY(json_get_string_or(&name, source.object, source.file, "dtype", old_name, err));
    config->dtype = DTYPE_BF16;
    config->dtype_is_stated = name != NULL;
    if (name == NULL)
        return STATUS_OK;
    for (enum dtype dtype = DTYPE_F32; dtype <= DTYPE_F16; dtype++) {
        if (strcmp(name, dtype_name(dtype)) == 0) {
            config->dtype = dtype;
            return STATUS_OK;
        }
    }
    return error_set(err, STATUS_UNSUPPORTED,
                     "%s: \"%s\": %s is not supported; phasor knows float32, bfloat16 and float16",
                     source.file, name == old_name ? "torch_dtype" : "dtype", name);
}

static enum status read_head_dim(struct model_config *config, struct config_source source,
                                 struct error *err)
{
    int64_t head_dim;
    TRY(json_get_int_or(&head_dim, source.object, source.file, "head_dim", 2, HEAD_DIM_MAX, 0,
                        err));
    if (head_dim == 0) {
        if (config->hidden_dim % config->head_count != 0)
            return error_set(err, STATUS_FORMAT,
                             "%s: \"hidden_size\" (%lld) is not divisible by "
                             "\"num_attention_heads\" (%lld), and \"head_dim\" is missing",
                             source.file, (long long)config->hidden_dim,
                             (long long)config->head_count);
        head_dim = config->hidden_dim / config->head_count;
    }
    if (head_dim % 2 != 0 || head_dim > HEAD_DIM_MAX)
        return error_set(err, STATUS_FORMAT,
                         "%s: \"head_dim\" (or \"hidden_size\" / \"num_attention_heads\") is %lld; "
                         "phasor needs an even number of at most %d",
                         source.file, (long long)head_dim, HEAD_DIM_MAX);
    config->head_dim = head_dim;
    return STATUS_OK;
}

static enum status read_heads(struct model_config *config, struct config_source source,
                              struct error *err)
{
    const json_t *object = source.object;
    TRY(json_get_int(&config->head_count, object, source.file, "num_attention_heads", 1,
                     MODEL_HEADS_MAX, err));
    if (json_is_null(json_object_get(object, "num_key_value_heads")))
        config->kv_head_count = config->head_count; /* as in transformers; absent is refused */
    else
        TRY(json_get_int(&config->kv_head_count, object, source.file, "num_key_value_heads", 1,
                         MODEL_HEADS_MAX, err));
    if (config->head_count % config->kv_head_count != 0)
        return error_set(err, STATUS_FORMAT,
                         "%s: \"num_attention_heads\" (%lld) is not divisible by "
                         "\"num_key_value_heads\" (%lld)",
                         source.file, (long long)config->head_count,
                         (long long)config->kv_head_count);
    TRY(read_head_dim(config, source, err));
    if (config->head_count * config->head_dim > MODEL_WIDTH_MAX)
        return error_set(err, STATUS_LIMIT,
                         "%s: \"num_attention_heads\" (%lld) x \"head_dim\" (%lld): expected at "
                         "most %d",
                         source.file, (long long)config->head_count, (long long)config->head_dim,
                         MODEL_WIDTH_MAX);
    return STATUS_OK;
}

/* Sizes have no defaults: a file that omits one was not saved by transformers. */
static enum status read_common(struct model_config *config, struct config_source source,
                               struct error *err)
{
    const json_t *object = source.object;
    const char *file = source.file;
    TRY(json_get_int(&config->vocab_count, object, file, "vocab_size", 1, MODEL_VOCAB_MAX, err));
    TRY(json_get_int(&config->layer_count, object, file, "num_hidden_layers", 1, MODEL_LAYERS_MAX,
                     err));
    TRY(json_get_int(&config->hidden_dim, object, file, "hidden_size", 1, MODEL_WIDTH_MAX, err));
    if (config->hidden_dim % HIDDEN_UNIT != 0)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: \"hidden_size\" is %lld; phasor needs a multiple of %d, because its "
                         "number formats group weights along this dimension",
                         file, (long long)config->hidden_dim, HIDDEN_UNIT);
    TRY(read_heads(config, source, err));
    TRY(json_get_int(&config->position_count_max, object, file, "max_position_embeddings", 1,
                     POSITIONS_MAX, err));
    TRY(json_get_real_or(&config->norm_epsilon, object, file, "rms_norm_eps", 0, 1,
                         config->architecture->norm_epsilon_default, err));
    TRY(json_get_bool_or(&config->tied_embedding, object, file, "tie_word_embeddings", false, err));
    TRY(read_dtype(config, source, err));
    for (int64_t layer = 0; layer < config->layer_count; layer++)
        config->layers[layer] = (struct layer_config){.ffn = FFN_MOE};
    return config_read_rope(config, source, err);
}

static enum status check_token_id(const struct model_config *config, const json_t *value,
                                  const char *file, const char *key, struct error *err)
{
    if (json_is_integer(value) && json_integer_value(value) >= -1 &&
        json_integer_value(value) < config->vocab_count)
        return STATUS_OK;
    if (json_is_integer(value))
        return error_set(err, STATUS_FORMAT,
                         "%s: \"%s\": %lld is no token of the vocabulary (\"vocab_size\" %lld)",
                         file, key, (long long)json_integer_value(value),
                         (long long)config->vocab_count);
    return error_set(err, STATUS_FORMAT, "%s: \"%s\": expected a token id, found %s", file, key,
                     json_kind(value));
}

static enum status add_eos(struct model_config *config, const json_t *value,
                           struct config_source source, struct error *err)
{
    TRY(check_token_id(config, value, source.file, "eos_token_id", err));
    int64_t id = json_integer_value(value);
    for (int64_t i = 0; i < config->eos_count; i++) {
        if (config->eos_ids[i] == id)
            return STATUS_OK;
    }
    if (id < 0) /* -1: none */
        return STATUS_OK;
    if (config->eos_count == MODEL_EOS_IDS_MAX)
        return error_set(err, STATUS_LIMIT, "%s: \"eos_token_id\": more than %d ids", source.file,
                         MODEL_EOS_IDS_MAX);
    config->eos_ids[config->eos_count++] = id;
    return STATUS_OK;
}

/* eos_token_id is a number or a list; ids already known stay. */
static enum status read_eos(struct model_config *config, struct config_source source,
                            struct error *err)
{
    const json_t *value = json_object_get(source.object, "eos_token_id");
    if (value == NULL || json_is_null(value))
        return STATUS_OK;
    if (!json_is_array(value))
        return add_eos(config, value, source, err);
    for (size_t i = 0; i < json_array_size(value); i++)
        TRY(add_eos(config, json_array_get(value, i), source, err));
    return STATUS_OK;
}

static enum status read_bos(struct model_config *config, struct config_source source,
                            struct error *err)
{
    const json_t *value = json_object_get(source.object, "bos_token_id");
    if (value == NULL || json_is_null(value))
        return STATUS_OK;
    TRY(check_token_id(config, value, source.file, "bos_token_id", err));
    config->bos_id = json_integer_value(value);
    return STATUS_OK;
}

/* generation_config.json lies beside config.json; its path in messages replaces the last part. */
static void name_generation_file(char *out, size_t capacity, const char *file)
{
    const char *slash = strrchr(file, '/');
    int length = slash != NULL ? (int)(slash + 1 - file) : 0;
    snprintf(out, capacity, "%.*s%s", length, file, "generation_config.json");
}

enum status model_config_parse(struct model_config *config, const json_t *object,
                               const json_t *generation, const char *file, struct error *err)
{
    struct model_config read = {.bos_id = -1};
    struct config_source source = {object, file};
    TRY(read_architecture(&read.architecture, source, err));
    TRY(refuse_unknown_settings(source, err));
    TRY(read_common(&read, source, err));
    TRY(read.architecture->config_read(&read, object, file, err));
    TRY(read_bos(&read, source, err));
    TRY(read_eos(&read, source, err));
    if (generation != NULL) {
        char generation_file[512];
        name_generation_file(generation_file, sizeof generation_file, file);
        TRY(read_eos(&read, (struct config_source){generation, generation_file}, err));
    }
    *config = read;
    return STATUS_OK;
}

/* `*out_name` is the path as the user knows it, for messages: not the blob a link leads to. */
static enum status load_json(json_t **out, char **out_name, const char *dir, const char *name,
                             struct error *err)
{
    char *path = NULL, *bytes = NULL;
    size_t length;
    enum status status;
    TRY_GOTO(model_path_join(out_name, dir, name, err), done);
    TRY_GOTO(model_path_resolve(&path, dir, name, err), done);
    TRY_GOTO(file_read_whole(&bytes, &length, path, CONFIG_BYTES_MAX, err), done);
    status = json_parse_object(out, bytes, length, *out_name, err);
done:
    memory_free(bytes);
    memory_free(path);
    return status;
}

enum status model_config_load(struct model_config *config, const char *dir, struct error *err)
{
    json_t *object = NULL, *generation = NULL;
    char *name = NULL, *generation_name = NULL;
    enum status status;
    TRY_GOTO(load_json(&object, &name, dir, "config.json", err), done);
    if (model_path_exists(dir, "generation_config.json"))
        TRY_GOTO(load_json(&generation, &generation_name, dir, "generation_config.json", err),
                 done);
    status = model_config_parse(config, object, generation, name, err);
done:
    memory_free(generation_name);
    memory_free(name);
    json_decref(generation);
    json_decref(object);
    return status;
}
