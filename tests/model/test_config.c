#include <criterion/criterion.h>
#include <unistd.h>

#include "base/memory.h"
#include "config_texts.h"
#include "model_tools.h"

Test(config, reads_common_settings)
{
    struct model_config config = config_of(MIXTRAL_JSON, "{}");
    cr_expect_str_eq(config.architecture->class_name, "MixtralForCausalLM");
    cr_expect_eq(config.vocab_count, 256);
    cr_expect_eq(config.hidden_dim, 64);
    cr_expect_eq(config.layer_count, 4);
    cr_expect_eq(config.head_count, 4);
    cr_expect_eq(config.kv_head_count, 2);
    cr_expect_eq(config.head_dim, 16);
    cr_expect_eq(config.position_count_max, 2048);
    cr_expect_float_eq(config.norm_epsilon, 1e-5, 0);
    cr_expect_eq(config.dtype, DTYPE_BF16);
    cr_expect(config.dtype_is_stated);
    cr_expect_not(config.tied_embedding);
    cr_expect_eq(config.bos_id, 1);
    cr_expect_eq(config.eos_count, 1);
    cr_expect_eq(config.eos_ids[0], 2);
}

Test(config, reads_variants_of_common_settings)
{
    cr_expect_eq(config_of(MIXTRAL_JSON, "{'head_dim':128}").head_dim, 128);
    cr_expect_eq(config_of(MIXTRAL_JSON, "{'head_dim':null}").head_dim, 16);
    cr_expect_eq(config_of(MIXTRAL_JSON, "{'num_key_value_heads':null}").kv_head_count, 4);
    cr_expect(config_of(MIXTRAL_JSON, "{'tie_word_embeddings':true}").tied_embedding);
    cr_expect_not(config_of(MIXTRAL_JSON, "{'tie_word_embeddings':'$delete'}").tied_embedding);
    cr_expect_float_eq(config_of(MIXTRAL_JSON, "{'rms_norm_eps':'$delete'}").norm_epsilon, 1e-5, 0);
    cr_expect_float_eq(config_of(QWEN2_JSON, "{'rms_norm_eps':'$delete'}").norm_epsilon, 1e-6, 0);
    cr_expect_eq(config_of(MIXTRAL_JSON, "{'torch_dtype':'float16'}").dtype, DTYPE_F16);
    cr_expect_eq(config_of(MIXTRAL_JSON, "{'torch_dtype':'$delete','dtype':'float32'}").dtype,
                 DTYPE_F32);
    cr_expect_not(config_of(MIXTRAL_JSON, "{'torch_dtype':'$delete'}").dtype_is_stated);
    cr_expect_eq(config_of(MIXTRAL_JSON, "{'bos_token_id':null}").bos_id, -1);
    cr_expect_eq(config_of(MIXTRAL_JSON, "{'bos_token_id':-1,'eos_token_id':-1}").eos_count, 0);
    cr_expect_eq(config_of(MIXTRAL_JSON, "{'eos_token_id':null}").eos_count, 0);
    cr_expect_eq(config_of(MIXTRAL_JSON, "{'eos_token_id':[5,6,5]}").eos_count, 2);
    cr_expect_eq(config_of(MIXTRAL_JSON, "{'hidden_act':'$delete'}").hidden_dim, 64);
    cr_expect_eq(
        config_of(MIXTRAL_JSON, "{'quantization_config':null,'per_layer_config':{}}").hidden_dim,
        64);
    cr_expect_str_eq(config_of(QWEN3_JSON, "{'architectures':'$delete'}").architecture->class_name,
                     "Qwen3MoeForCausalLM");
    cr_expect_str_eq(config_of(QWEN3_JSON, "{'model_type':'$delete'}").architecture->model_type,
                     "qwen3_moe");
}

/* A12 and what else cannot be run */
Test(config, refuses_by_key)
{
    static const struct config_row rows[] = {
        {MIXTRAL_JSON, "{'num_local_experts':0}", STATUS_FORMAT, "\"num_local_experts\"|found 0"},
        {QWEN2_JSON, "{'num_experts':0}", STATUS_FORMAT, "\"num_experts\"|found 0"},
        {MIXTRAL_JSON, "{'num_local_experts':4097}", STATUS_FORMAT, "\"num_local_experts\""},
        {MIXTRAL_JSON, "{'num_experts_per_tok':9}", STATUS_FORMAT,
         "\"num_experts_per_tok\" (9)|\"num_local_experts\" (8)"},
        {QWEN2_JSON, "{'num_experts_per_tok':7}", STATUS_FORMAT,
         "\"num_experts_per_tok\" (7)|\"num_experts\" (6)"},
        {MIXTRAL_JSON, "{'num_experts_per_tok':0}", STATUS_FORMAT, "\"num_experts_per_tok\""},
        {MIXTRAL_JSON, "{'num_key_value_heads':3}", STATUS_FORMAT,
         "\"num_attention_heads\" (4)|\"num_key_value_heads\" (3)|not divisible"},
        {MIXTRAL_JSON, "{'num_key_value_heads':'$delete'}", STATUS_FORMAT,
         "\"num_key_value_heads\"|found nothing"},
        {MIXTRAL_JSON, "{'num_key_value_heads':0}", STATUS_FORMAT, "\"num_key_value_heads\""},
        {MIXTRAL_JSON, "{'num_hidden_layers':1000000000}", STATUS_FORMAT,
         "\"num_hidden_layers\"|1 to 1024|1000000000"},
        {MIXTRAL_JSON, "{'num_hidden_layers':0}", STATUS_FORMAT, "\"num_hidden_layers\""},
        {MIXTRAL_JSON, "{'num_hidden_layers':'four'}", STATUS_FORMAT,
         "\"num_hidden_layers\"|a string"},
        {MIXTRAL_JSON, "{'num_hidden_layers':1.5}", STATUS_FORMAT, "\"num_hidden_layers\""},
        {MIXTRAL_JSON, "{'hidden_size':72,'head_dim':16}", STATUS_UNSUPPORTED,
         "\"hidden_size\"|72|multiple of 32"},
        {MIXTRAL_JSON, "{'hidden_size':64,'num_attention_heads':6}", STATUS_FORMAT,
         "\"hidden_size\" (64)|\"num_attention_heads\" (6)|\"head_dim\""},
        {MIXTRAL_JSON, "{'hidden_size':-64}", STATUS_FORMAT, "\"hidden_size\""},
        {MIXTRAL_JSON, "{'hidden_size':2097152}", STATUS_FORMAT, "\"hidden_size\""},
        {MIXTRAL_JSON, "{'head_dim':15}", STATUS_FORMAT, "\"head_dim\"|15|even"},
        {MIXTRAL_JSON, "{'head_dim':1024}", STATUS_FORMAT, "\"head_dim\"|512"},
        {MIXTRAL_JSON, "{'hidden_size':2048,'num_attention_heads':2}", STATUS_FORMAT,
         "\"head_dim\"|1024|512"},
        {MIXTRAL_JSON, "{'hidden_size':9223372036854775807}", STATUS_FORMAT, "\"hidden_size\""},
        {MIXTRAL_JSON, "{'vocab_size':0}", STATUS_FORMAT, "\"vocab_size\""},
        {MIXTRAL_JSON, "{'vocab_size':'$delete'}", STATUS_FORMAT, "\"vocab_size\""},
        {MIXTRAL_JSON, "{'intermediate_size':0}", STATUS_FORMAT, "\"intermediate_size\""},
        {QWEN2_JSON, "{'moe_intermediate_size':'$delete'}", STATUS_FORMAT,
         "\"moe_intermediate_size\""},
        {QWEN2_JSON, "{'shared_expert_intermediate_size':'$delete'}", STATUS_FORMAT,
         "\"shared_expert_intermediate_size\""},
        {QWEN2_JSON, "{'shared_expert_intermediate_size':-1}", STATUS_FORMAT,
         "\"shared_expert_intermediate_size\""},
        {MIXTRAL_JSON, "{'max_position_embeddings':0}", STATUS_FORMAT,
         "\"max_position_embeddings\""},
        {MIXTRAL_JSON, "{'rms_norm_eps':-1}", STATUS_FORMAT, "\"rms_norm_eps\""},
        {MIXTRAL_JSON, "{'tie_word_embeddings':1}", STATUS_FORMAT, "\"tie_word_embeddings\""},
        {QWEN3_JSON, "{'num_local_experts':7}", STATUS_FORMAT,
         "\"num_experts\" (8)|\"num_local_experts\" (7)|contradict"},
        {MIXTRAL_JSON, "{'hidden_act':'gelu'}", STATUS_UNSUPPORTED, "\"hidden_act\"|gelu|silu"},
        {MIXTRAL_JSON, "{'torch_dtype':'float8_e4m3fn'}", STATUS_UNSUPPORTED,
         "\"torch_dtype\"|float8_e4m3fn"},
        {MIXTRAL_JSON, "{'dtype':'int8'}", STATUS_UNSUPPORTED, "\"dtype\": int8"},
        {MIXTRAL_JSON, "{'quantization_config':{'quant_method':'gptq'}}", STATUS_UNSUPPORTED,
         "\"quantization_config\"|bfloat16"},
        {MIXTRAL_JSON, "{'compression_config':{'format':'x'}}", STATUS_UNSUPPORTED,
         "\"compression_config\""},
        {MIXTRAL_JSON, "{'per_layer_config':{'0':{'hidden_size':3}}}", STATUS_UNSUPPORTED,
         "\"per_layer_config\""},
        {MIXTRAL_JSON, "{'architectures':['LlamaForCausalLM']}", STATUS_UNSUPPORTED,
         "\"architectures\"|LlamaForCausalLM|MixtralForCausalLM, Qwen2MoeForCausalLM, "
         "Qwen3MoeForCausalLM"},
        {MIXTRAL_JSON, "{'architectures':['MixtralModel']}", STATUS_UNSUPPORTED, "MixtralModel"},
        {MIXTRAL_JSON, "{'architectures':'MixtralForCausalLM'}", STATUS_FORMAT,
         "\"architectures\"|array"},
        {MIXTRAL_JSON, "{'architectures':'$delete','model_type':'llama'}", STATUS_UNSUPPORTED,
         "\"model_type\"|llama"},
        {MIXTRAL_JSON, "{'architectures':'$delete','model_type':'$delete'}", STATUS_FORMAT,
         "\"architectures\"|\"model_type\"|missing"},
        {MIXTRAL_JSON, "{'model_type':'qwen2_moe'}", STATUS_FORMAT,
         "\"model_type\"|qwen2_moe|MixtralForCausalLM"},
        {MIXTRAL_JSON, "{'eos_token_id':256}", STATUS_FORMAT,
         "\"eos_token_id\"|256|\"vocab_size\" 256"},
        {MIXTRAL_JSON, "{'eos_token_id':[2,'x']}", STATUS_FORMAT, "\"eos_token_id\"|a string"},
        {MIXTRAL_JSON, "{'bos_token_id':-2}", STATUS_FORMAT, "\"bos_token_id\"|-2"},
        {MIXTRAL_JSON, "{'eos_token_id':[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}", STATUS_LIMIT,
         "\"eos_token_id\"|16"},
    };
    CHECK_CONFIG_ROWS(rows);
}

Test(config, loads_a_directory_and_merges_stop_ids)
{
    char *dir = temp_dir_make();
    struct model_config config;
    struct error err;
    struct resources before = resources_now();
    json_t *object = json_of(MIXTRAL_JSON);
    cr_assert_eq(json_dump_file(object, path_of(dir, "config.json"), 0), 0);
    json_decref(object);
    cr_assert_eq(model_config_load(&config, dir, &err), STATUS_OK);
    cr_expect_eq(config.eos_count, 1);
    file_write_text(path_of(dir, "generation_config.json"), "{\"eos_token_id\": [7, 2, 9]}");
    cr_assert_eq(model_config_load(&config, dir, &err), STATUS_OK);
    cr_expect_eq(config.eos_count, 3);
    cr_expect_eq(config.eos_ids[0], 2);
    cr_expect_eq(config.eos_ids[1], 7);
    cr_expect_eq(config.eos_ids[2], 9);

    file_write_text(path_of(dir, "generation_config.json"), "{\"eos_token_id\": 300}");
    expect_failure("eos", model_config_load(&config, dir, &err), &err, STATUS_FORMAT,
                   "/generation_config.json|\"eos_token_id\"|300");
    file_write_text(path_of(dir, "generation_config.json"), "{");
    expect_failure("cut", model_config_load(&config, dir, &err), &err, STATUS_FORMAT,
                   "/generation_config.json|not valid JSON");
    unlink(path_of(dir, "generation_config.json"));
    file_write_text(path_of(dir, "config.json"), "{\"a\":1,\"a\":2}");
    expect_failure("twice", model_config_load(&config, dir, &err), &err, STATUS_FORMAT,
                   "/config.json|duplicate");
    file_write_text(path_of(dir, "config.json"), "[]");
    expect_failure("array", model_config_load(&config, dir, &err), &err, STATUS_FORMAT,
                   "/config.json|expected a JSON object");
    unlink(path_of(dir, "config.json"));
    expect_failure("none", model_config_load(&config, dir, &err), &err, STATUS_NOT_FOUND,
                   "/config.json");
    cr_assert_eq(symlink("/etc/passwd", path_of(dir, "config.json")), 0);
    expect_failure("link", model_config_load(&config, dir, &err), &err, STATUS_FORMAT,
                   "/config.json|leads out");
    expect_resources("config", before);
    temp_dir_remove(dir);
}

Test(config, limits_the_size_of_the_file)
{
    char *dir = temp_dir_make();
    struct model_config config;
    struct error err;
    file_write_text(path_of(dir, "config.json"), "{}");
    cr_assert_eq(truncate(path_of(dir, "config.json"), 5 << 20), 0);
    uint64_t peak = memory_counters_get().peak_bytes;
    expect_failure("large", model_config_load(&config, dir, &err), &err, STATUS_LIMIT,
                   "config.json|at most");
    cr_expect_leq(memory_counters_get().peak_bytes, peak + 65536);
    temp_dir_remove(dir);
}
