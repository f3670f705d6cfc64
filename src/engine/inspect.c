#include "engine/inspect.h"

#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "base/text.h"
#include "engine/description.h"
#include "engine/inspect_sizes.h"
#include "model/hub.h"
#include "tokenizer/chat.h"
#include "tokenizer/tokenizer.h"

#define CONFIG_BYTES_MAX (16u * 1024 * 1024)

/* ---- From the config ----------------------------------------------------------------------- */

static void put_dimensions(struct description *to, const struct model_config *config)
{
    const struct {
        const char *key;
        int64_t value;
    } dimensions[] = {
        {"vocab_count", config->vocab_count},
        {"hidden_dim", config->hidden_dim},
        {"layer_count", config->layer_count},
        {"head_count", config->head_count},
        {"kv_head_count", config->kv_head_count},
        {"head_dim", config->head_dim},
        {"expert_count", config->expert_count},
        {"expert_top_k", config->expert_top_k},
        {"expert_dim", config->expert_dim},
        {"shared_expert_dim", config->shared_expert_dim},
        {"dense_dim", config->dense_dim},
        {"context_max", config->position_count_max},
        {"sliding_window", config->sliding_window},
    };
    for (size_t i = 0; i < sizeof dimensions / sizeof *dimensions; i++)
        description_put_int(to, to->root, dimensions[i].key, (uint64_t)dimensions[i].value);
    int64_t moe_count = 0, sliding_count = 0;
    for (int64_t i = 0; i < config->layer_count; i++) {
        moe_count += config->layers[i].ffn == FFN_MOE;
        sliding_count += config->layers[i].sliding;
    }
    description_put_int(to, to->root, "moe_layer_count", (uint64_t)moe_count);
    description_put_int(to, to->root, "sliding_layer_count", (uint64_t)sliding_count);
}

static void put_settings(struct description *to, const struct model_config *config)
{
    static const char *const kinds[] = {[ROPE_PLAIN] = "default",
                                        [ROPE_LINEAR] = "linear",
                                        [ROPE_YARN] = "yarn",
                                        [ROPE_LLAMA3] = "llama3"};
    json_t *root = to->root;
    description_put(to, root, "norm_epsilon", json_real(config->norm_epsilon));
    description_put(to, root, "norm_topk_prob", json_boolean(config->norm_topk_prob));
    description_put(to, root, "qkv_bias", json_boolean(config->qkv_bias));
    description_put(to, root, "output_bias", json_boolean(config->output_bias));
    description_put(to, root, "qk_norm", json_boolean(config->qk_norm));
    description_put(to, root, "tied_embedding", json_boolean(config->tied_embedding));
    json_t *rope = description_put_object(to, root, "rope");
    description_put(to, rope, "kind", json_string(kinds[config->rope.kind]));
    description_put(to, rope, "theta", json_real(config->rope.theta));
    if (config->rope.kind != ROPE_PLAIN)
        description_put(to, rope, "factor", json_real(config->rope.factor));
    description_put(to, root, "bos_id",
                    config->bos_id < 0 ? json_null() : json_integer(config->bos_id));
    json_t *eos = description_put_array(to, root, "eos_ids");
    for (int64_t i = 0; i < config->eos_count; i++)
        description_append(to, eos, json_integer(config->eos_ids[i]));
}

static void put_parts(struct description *to, json_t *object, const uint64_t *values)
{
    for (int part = 0; part < PART_COUNT; part++)
        description_put_int(to, object, model_part_name((enum model_part)part), values[part]);
}

static uint64_t sum_parts(const uint64_t *values)
{
    uint64_t sum = 0;
    for (int part = 0; part < PART_COUNT; part++)
        sum += values[part];
    return sum;
}

static void put_config(struct description *to, const struct model_config *config)
{
    struct model_sizes sizes = model_sizes_count(config);
    uint64_t kv_values =
        2 * (uint64_t)(config->layer_count * config->kv_head_count * config->head_dim);
    description_put(to, to->root, "architecture", json_string(config->architecture->class_name));
    description_put(to, to->root, "model_type", json_string(config->architecture->model_type));
    description_put(to, to->root, "dtype", json_string(dtype_name(config->dtype)));
    put_dimensions(to, config);
    put_settings(to, config);
    json_t *parameters = description_put_object(to, to->root, "parameters");
    description_put_int(to, parameters, "total", sum_parts(sizes.parameters));
    description_put_int(to, parameters, "active", model_sizes_active(&sizes, config));
    put_parts(to, description_put_object(to, parameters, "by_part"), sizes.parameters);
    json_t *kv = description_put_object(to, to->root, "kv_bytes_per_token");
    description_put_int(to, kv, "bfloat16", 2 * kv_values);
    description_put_int(to, kv, "float32", 4 * kv_values);
}

/* What an unsupported config.json still says of itself. */
static enum status put_raw_config(struct description *to, const char *dir, struct error *err)
{
    struct text path = {0};
    json_t *config = NULL;
    text_append_format(&path, "%s/config.json", dir);
    enum status status = text_check(&path, "a path", err);
    if (status == STATUS_OK)
        status = json_load_object(&config, path.bytes, CONFIG_BYTES_MAX, err);
    text_deinit(&path);
    if (status != STATUS_OK)
        return status;
    const json_t *name = json_array_get(json_object_get(config, "architectures"), 0);
    const json_t *type = json_object_get(config, "model_type");
    description_put(to, to->root, "architecture",
                    json_is_string(name) ? json_string(json_string_value(name)) : json_null());
    description_put(to, to->root, "model_type",
                    json_is_string(type) ? json_string(json_string_value(type)) : json_null());
    json_decref(config);
    return STATUS_OK;
}

/* ---- From the weights ---------------------------------------------------------------------- */

static void put_dtype_bytes(struct description *to, json_t *disk,
                            const struct checkpoint *checkpoint)
{
    json_t *by_dtype = description_put_object(to, disk, "by_dtype");
    uint64_t total = 0;
    for (int64_t i = 0; i < checkpoint_tensor_count(checkpoint); i++) {
        const struct tensor_info *tensor = checkpoint_tensor(checkpoint, i);
        json_int_t before = json_integer_value(json_object_get(by_dtype, tensor->dtype_text));
        description_put_int(to, by_dtype, tensor->dtype_text, (uint64_t)before + tensor->bytes);
        total += tensor->bytes;
    }
    description_put_int(to, disk, "bytes", total);
    description_put_int(to, disk, "tensor_count", (uint64_t)checkpoint_tensor_count(checkpoint));
}

/* Where config.json does not state the type of the weights, the embedding's is the model's. */
static enum status put_weights(struct description *to, enum dtype *dtype, const char *dir,
                               struct error *err)
{
    struct checkpoint *checkpoint;
    enum status status = checkpoint_open(&checkpoint, dir, err);
    if (status == STATUS_NOT_FOUND || status == STATUS_UNSUPPORTED) {
        description_put_reason(to, err->message);
        description_put(to, to->root, "disk", json_null());
        return STATUS_OK;
    }
    if (status != STATUS_OK)
        return status;
    struct model_sizes sizes = {0};
    *dtype = checkpoint_config(checkpoint)->dtype;
    description_put(to, to->root, "dtype", json_string(dtype_name(*dtype)));
    json_t *disk = description_put_object(to, to->root, "disk");
    put_dtype_bytes(to, disk, checkpoint);
    status = model_sizes_weigh(&sizes, checkpoint, err);
    put_parts(to, description_put_object(to, disk, "by_part"), sizes.bytes);
    checkpoint_close(checkpoint);
    return status;
}

/* ---- From the tokenizer -------------------------------------------------------------------- */

static void put_template(struct description *to, const struct tokenizer *tokenizer)
{
    const struct chat_template *chat_template;
    struct error reason;
    enum status status = chat_template_of(&chat_template, tokenizer, &reason);
    description_put(to, to->root, "chat_template",
                    status == STATUS_OK ? json_string(chat_template_name(chat_template))
                                        : json_null());
    if (status != STATUS_OK && status != STATUS_NOT_FOUND)
        description_put_reason(to, reason.message);
}

static enum status put_tokenizer(struct description *to, const char *dir, struct error *err)
{
    struct tokenizer *tokenizer;
    enum status status = tokenizer_open(&tokenizer, dir, err);
    if (status == STATUS_NOT_FOUND || status == STATUS_UNSUPPORTED) {
        if (status == STATUS_UNSUPPORTED)
            description_put_reason(to, err->message);
        description_put(to, to->root, "tokenizer", json_null());
        description_put(to, to->root, "chat_template", json_null());
        return STATUS_OK;
    }
    if (status != STATUS_OK)
        return status;
    int64_t special_count = 0, count = tokenizer_vocab_count(tokenizer);
    for (int64_t id = 0; id < count; id++)
        special_count += tokenizer_is_special(tokenizer, (int32_t)id);
    json_t *summary = description_put_object(to, to->root, "tokenizer");
    description_put_int(to, summary, "vocab_count", (uint64_t)count);
    description_put_int(to, summary, "special_count", (uint64_t)special_count);
    put_template(to, tokenizer);
    tokenizer_close(tokenizer);
    return STATUS_OK;
}

/* ---- The whole ----------------------------------------------------------------------------- */

static enum status describe_config(struct description *to, const struct model_config *config,
                                   const struct inspect_params *params, const char *dir,
                                   struct error *err)
{
    enum dtype dtype = config->dtype;
    put_config(to, config);
    TRY(put_weights(to, &dtype, dir, err));
    if (params->plans.devices == NULL && params->plans.plan == NULL)
        return STATUS_OK;
    return inspect_plans_put(to, config, dtype, &params->plans, err);
}

static enum status describe(struct description *to, const struct inspect_params *params,
                            const char *dir, struct error *err)
{
    struct model_config *config;
    TRY(memory_get((void **)&config, 1, sizeof *config, "a config", err));
    enum status status = model_config_load(config, dir, err);
    if (status == STATUS_UNSUPPORTED) {
        description_put_reason(to, err->message);
        status = put_raw_config(to, dir, err);
    } else if (status == STATUS_OK) {
        status = describe_config(to, config, params, dir, err);
    }
    if (status == STATUS_OK)
        status = put_tokenizer(to, dir, err);
    memory_free(config);
    return status;
}

enum status inspect_json(char **out, const struct inspect_params *params, struct error *err)
{
    char *dir;
    TRY(hub_resolve(&dir, params->model, params->revision, err));
    struct description to = {.root = json_object(), .reasons = json_array()};
    description_put(&to, to.root, "model", description_text(params->model));
    description_put(&to, to.root, "directory", description_text(dir));
    enum status status = describe(&to, params, dir, err);
    description_put(&to, to.root, "unsupported", to.reasons);
    if (status == STATUS_OK)
        status = description_dump(out, &to, "describing a model", err);
    json_decref(to.root);
    memory_free(dir);
    return status;
}
