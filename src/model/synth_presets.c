/* config.json as published, and how a scale or other sizes change it. */
#include <string.h>

#include "base/checked.h"
#include "base/json.h"
#include "model/config_read.h"
#include "model/synth_parts.h"

#define SCALE_MAX 64

struct preset {
    const char *name;
    const char *json; /* with ' for " */
};

static const struct preset presets[] = {
    {"mixtral-8x7b",
     "{'architectures':['MixtralForCausalLM'],'attention_dropout':0.0,'bos_token_id':1,"
     "'eos_token_id':2,'hidden_act':'silu','hidden_size':4096,'initializer_range':0.02,"
     "'intermediate_size':14336,'max_position_embeddings':32768,'model_type':'mixtral',"
     "'num_attention_heads':32,'num_experts_per_tok':2,'num_hidden_layers':32,"
     "'num_key_value_heads':8,'num_local_experts':8,'output_router_logits':false,"
     "'rms_norm_eps':1e-05,'rope_theta':1000000.0,'router_aux_loss_coef':0.02,"
     "'sliding_window':null,'tie_word_embeddings':false,'torch_dtype':'bfloat16',"
     "'use_cache':true,'vocab_size':32000}"},
    {"mixtral-8x22b",
     "{'architectures':['MixtralForCausalLM'],'attention_dropout':0.0,'bos_token_id':1,"
     "'eos_token_id':2,'hidden_act':'silu','hidden_size':6144,'initializer_range':0.02,"
     "'intermediate_size':16384,'max_position_embeddings':65536,'model_type':'mixtral',"
     "'num_attention_heads':48,'num_experts_per_tok':2,'num_hidden_layers':56,"
     "'num_key_value_heads':8,'num_local_experts':8,'output_router_logits':false,"
     "'rms_norm_eps':1e-05,'rope_theta':1000000,'router_aux_loss_coef':0.001,"
     "'router_jitter_noise':0.0,'sliding_window':null,'tie_word_embeddings':false,"
     "'torch_dtype':'bfloat16','use_cache':true,'vocab_size':32000}"},
    {"qwen1.5-moe-a2.7b",
     "{'architectures':['Qwen2MoeForCausalLM'],'attention_dropout':0.0,'bos_token_id':151643,"
     "'eos_token_id':151643,'hidden_act':'silu','hidden_size':2048,'initializer_range':0.02,"
     "'intermediate_size':5632,'max_position_embeddings':8192,'max_window_layers':21,"
     "'model_type':'qwen2_moe','num_attention_heads':16,'num_hidden_layers':24,"
     "'num_key_value_heads':16,'rms_norm_eps':1e-06,'rope_theta':1000000.0,"
     "'sliding_window':32768,'tie_word_embeddings':false,'torch_dtype':'bfloat16',"
     "'use_cache':true,'use_sliding_window':false,'vocab_size':151936,'decoder_sparse_step':1,"
     "'moe_intermediate_size':1408,'shared_expert_intermediate_size':5632,"
     "'num_experts_per_tok':4,'num_experts':60,'norm_topk_prob':false,"
     "'output_router_logits':false,'router_aux_loss_coef':0.001}"},
    {"qwen2-57b-a14b",
     "{'architectures':['Qwen2MoeForCausalLM'],'attention_dropout':0.0,'bos_token_id':151643,"
     "'decoder_sparse_step':1,'eos_token_id':151643,'hidden_act':'silu','hidden_size':3584,"
     "'initializer_range':0.02,'intermediate_size':18944,'max_position_embeddings':131072,"
     "'max_window_layers':28,'model_type':'qwen2_moe','moe_intermediate_size':2560,"
     "'norm_topk_prob':false,'num_attention_heads':28,'num_experts':64,"
     "'num_experts_per_tok':8,'num_hidden_layers':28,'num_key_value_heads':4,"
     "'output_router_logits':false,'rms_norm_eps':1e-06,'rope_theta':1000000.0,"
     "'router_aux_loss_coef':0.001,'shared_expert_intermediate_size':20480,"
     "'sliding_window':131072,'tie_word_embeddings':false,'torch_dtype':'bfloat16',"
     "'use_cache':true,'use_sliding_window':false,'vocab_size':151936}"},
    {"qwen3-30b-a3b",
     "{'architectures':['Qwen3MoeForCausalLM'],'attention_bias':false,'attention_dropout':0.0,"
     "'bos_token_id':151643,'decoder_sparse_step':1,'eos_token_id':151645,'head_dim':128,"
     "'hidden_act':'silu','hidden_size':2048,'initializer_range':0.02,"
     "'intermediate_size':6144,'max_position_embeddings':40960,'max_window_layers':48,"
     "'mlp_only_layers':[],'model_type':'qwen3_moe','moe_intermediate_size':768,"
     "'norm_topk_prob':true,'num_attention_heads':32,'num_experts':128,"
     "'num_experts_per_tok':8,'num_hidden_layers':48,'num_key_value_heads':4,"
     "'output_router_logits':false,'rms_norm_eps':1e-06,'rope_scaling':null,"
     "'rope_theta':1000000.0,'router_aux_loss_coef':0.001,'sliding_window':null,"
     "'tie_word_embeddings':false,'torch_dtype':'bfloat16','use_cache':true,"
     "'use_sliding_window':false,'vocab_size':151936}"},
    {"tiny-mixtral",
     "{'architectures':['MixtralForCausalLM'],'bos_token_id':1,'eos_token_id':2,"
     "'hidden_act':'silu','hidden_size':64,'intermediate_size':96,"
     "'max_position_embeddings':2048,'model_type':'mixtral','num_attention_heads':4,"
     "'num_experts_per_tok':2,'num_hidden_layers':2,'num_key_value_heads':2,"
     "'num_local_experts':4,'rms_norm_eps':1e-05,'rope_theta':1000000.0,"
     "'sliding_window':null,'tie_word_embeddings':false,'torch_dtype':'bfloat16',"
     "'vocab_size':256}"},
    {"tiny-qwen2moe",
     "{'architectures':['Qwen2MoeForCausalLM'],'bos_token_id':253,'eos_token_id':253,"
     "'decoder_sparse_step':1,'hidden_act':'silu','hidden_size':64,'intermediate_size':128,"
     "'max_position_embeddings':2048,'max_window_layers':2,'model_type':'qwen2_moe',"
     "'moe_intermediate_size':48,'norm_topk_prob':false,'num_attention_heads':4,"
     "'num_experts':6,'num_experts_per_tok':3,'num_hidden_layers':2,'num_key_value_heads':2,"
     "'rms_norm_eps':1e-06,'rope_theta':1000000.0,'shared_expert_intermediate_size':80,"
     "'sliding_window':32768,'tie_word_embeddings':false,'torch_dtype':'bfloat16',"
     "'use_sliding_window':false,'vocab_size':256}"},
    {"tiny-qwen3moe",
     "{'architectures':['Qwen3MoeForCausalLM'],'attention_bias':false,'bos_token_id':253,"
     "'eos_token_id':254,'decoder_sparse_step':1,'head_dim':32,'hidden_act':'silu',"
     "'hidden_size':64,'intermediate_size':128,'max_position_embeddings':2048,"
     "'mlp_only_layers':[],'model_type':'qwen3_moe','moe_intermediate_size':32,"
     "'norm_topk_prob':true,'num_attention_heads':4,'num_experts':8,'num_experts_per_tok':2,"
     "'num_hidden_layers':2,'num_key_value_heads':2,'rms_norm_eps':1e-06,"
     "'rope_scaling':null,'rope_theta':1000000.0,'sliding_window':null,"
     "'tie_word_embeddings':false,'torch_dtype':'bfloat16','use_sliding_window':false,"
     "'vocab_size':256}"},
};

#define PRESET_COUNT     (sizeof presets / sizeof *presets)
#define JSON_BYTES       2048
#define CONFIG_BYTES_MAX (1 << 20)

const char *const *synth_presets(void)
{
    static const char *const names[] = {
        "mixtral-8x7b",   "mixtral-8x22b", "qwen1.5-moe-a2.7b",
        "qwen2-57b-a14b", "qwen3-30b-a3b", "tiny-mixtral",
        "tiny-qwen2moe",  "tiny-qwen3moe", NULL,
    };
    _Static_assert(sizeof names / sizeof *names == PRESET_COUNT + 1, "one name for each preset");
    return names;
}

static void set(json_t *config, const char *key, int64_t value)
{
    json_object_set_new(config, key, json_integer(value));
}

/* What is divided below stands there, in whole numbers: a config may leave out the heads of keys
 * or say null, and write 32.0. */
static void sizes_write(json_t *object, const struct model_config *config)
{
    static const char *const widths[] = {"head_dim",
                                         "hidden_size",
                                         "intermediate_size",
                                         "moe_intermediate_size",
                                         "shared_expert_intermediate_size",
                                         "vocab_size"};
    set(object, "num_attention_heads", config->head_count);
    set(object, "num_key_value_heads", config->kv_head_count);
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        const json_t *value = json_object_get(object, widths[i]);
        if (json_is_real(value))
            set(object, widths[i], (int64_t)json_real_value(value)); /* is whole: it was parsed */
    }
}

/* A config of the user's own; what it says is checked before anything is divided by it. */
static enum status load_file(json_t **out, const char *path, struct model_config *config,
                             struct error *err)
{
    json_t *object;
    TRY(json_load_object(&object, path, CONFIG_BYTES_MAX, err));
    enum status status = model_config_parse(config, object, NULL, path, err);
    if (status != STATUS_OK) {
        json_decref(object);
        return status;
    }
    sizes_write(object, config);
    json_object_del(object, "dtype"); /* torch_dtype, which is set below, is its older name */
    *out = object;
    return STATUS_OK;
}

static bool is_file(const char *name)
{
    size_t length = strlen(name);
    return length > 5 && strcmp(name + length - 5, ".json") == 0;
}

static enum status load_preset(json_t **out, const char *name, struct model_config *config,
                               struct error *err)
{
    if (is_file(name))
        return load_file(out, name, config, err);
    for (size_t i = 0; i < PRESET_COUNT; i++) {
        char json[JSON_BYTES];
        if (strcmp(presets[i].name, name) != 0)
            continue;
        size_t length = strlen(presets[i].json);
        ASSERT(length < sizeof json);
        for (size_t j = 0; j < length; j++)
            json[j] = presets[i].json[j] == '\'' ? '"' : presets[i].json[j];
        return json_parse_object(out, json, length, name, err);
    }
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "\"%s\" is no preset; known are mixtral-8x7b, mixtral-8x22b, "
                     "qwen1.5-moe-a2.7b, qwen2-57b-a14b, qwen3-30b-a3b, tiny-mixtral, "
                     "tiny-qwen2moe, tiny-qwen3moe, and any config.json by its path",
                     name);
}

static int64_t get(const json_t *config, const char *key)
{
    return json_integer_value(json_object_get(config, key));
}

/* Divides a size that the preset has; the result is a multiple of `unit`. */
static void divide(json_t *config, const char *key, int64_t scale, int64_t unit)
{
    int64_t value = get(config, key);
    if (value > 0)
        set(config, key, round_up(ceil_div(value, scale), unit));
}

/* Fewer heads of the same width, still a multiple of the key-value heads. */
static void divide_heads(json_t *config, int64_t scale)
{
    int64_t head_count = get(config, "num_attention_heads");
    int64_t kv_head_count = get(config, "num_key_value_heads");
    int64_t head_dim = get(config, "head_dim");
    if (head_dim == 0)
        head_dim = get(config, "hidden_size") / head_count;
    kv_head_count = ceil_div(kv_head_count, scale);
    set(config, "num_key_value_heads", kv_head_count);
    set(config, "num_attention_heads", round_up(ceil_div(head_count, scale), kv_head_count));
    set(config, "head_dim", head_dim);
}

static void apply_scale(json_t *config, int64_t scale)
{
    if (scale <= 1)
        return;
    divide_heads(config, scale);
    divide(config, "hidden_size", scale, 32);
    divide(config, "intermediate_size", scale, 16);
    divide(config, "moe_intermediate_size", scale, 16);
    divide(config, "shared_expert_intermediate_size", scale, 16);
    divide(config, "vocab_size", scale, 16);
}

/* Ids past a smaller vocabulary become its last token; the end of a text may have several. */
static void clamp_token_id(json_t *config, const char *key)
{
    int64_t last = get(config, "vocab_size") - 1;
    json_t *ids = json_object_get(config, key);
    if (get(config, key) > last)
        set(config, key, last);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        if (json_integer_value(json_array_get(ids, i)) > last)
            json_array_set_new(ids, i, json_integer(last));
    }
}

static enum status check_params(const struct synth_params *params, struct error *err)
{
    if (params->scale < 0 || params->scale > SCALE_MAX)
        return error_set(err, STATUS_INVALID_ARGUMENT, "scale: expected 1 to %d, found %lld",
                         SCALE_MAX, (long long)params->scale);
    if (params->layer_count < 0 || params->layer_count > MODEL_LAYERS_MAX)
        return error_set(err, STATUS_INVALID_ARGUMENT, "layers: expected 1 to %d, found %lld",
                         MODEL_LAYERS_MAX, (long long)params->layer_count);
    if (params->vocab_count < 0 || params->vocab_count > MODEL_VOCAB_MAX)
        return error_set(err, STATUS_INVALID_ARGUMENT, "vocabulary: expected 1 to %d, found %lld",
                         MODEL_VOCAB_MAX, (long long)params->vocab_count);
    return STATUS_OK;
}

enum status synth_config(json_t **out, struct model_config *config,
                         const struct synth_params *params, struct error *err)
{
    json_t *object;
    TRY(check_params(params, err));
    TRY(load_preset(&object, params->preset, config, err));
    apply_scale(object, params->scale);
    if (params->layer_count > 0)
        set(object, "num_hidden_layers", params->layer_count);
    if (params->vocab_count > 0)
        set(object, "vocab_size", params->vocab_count);
    clamp_token_id(object, "bos_token_id");
    clamp_token_id(object, "eos_token_id");
    json_object_set_new(object, "torch_dtype", json_string(dtype_name(params->dtype)));
    enum status status = model_config_parse(config, object, NULL, params->preset, err);
    if (status != STATUS_OK) {
        json_decref(object);
        return status;
    }
    *out = object;
    return STATUS_OK;
}
