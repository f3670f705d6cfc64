/* What each arch_*.c maps, and the small checkpoints of tests/data with each of them. */
#include <criterion/criterion.h>
#include <string.h>
#include <sys/stat.h>

#include "config_texts.h"
#include "model/checkpoint.h"
#include "model_tools.h"

Test(arch, mixtral)
{
    struct model_config config = config_of(MIXTRAL_JSON, "{'norm_topk_prob':false}");
    cr_expect_eq(config.expert_count, 8);
    cr_expect_eq(config.expert_top_k, 2);
    cr_expect_eq(config.expert_dim, 96);
    cr_expect_eq(config.shared_expert_dim, 0);
    cr_expect(config.norm_topk_prob, "Mixtral always divides by the sum");
    cr_expect_not(config.qkv_bias || config.output_bias || config.qk_norm);
    cr_expect_eq(
        config_of(MIXTRAL_JSON, "{'num_local_experts':'$delete','num_experts':4}").expert_count, 4);
}

Test(arch, qwen2_moe)
{
    struct model_config config = config_of(QWEN2_JSON, "{}");
    cr_expect_eq(config.expert_count, 6);
    cr_expect_eq(config.expert_top_k, 3);
    cr_expect_eq(config.expert_dim, 48);
    cr_expect_eq(config.shared_expert_dim, 80);
    cr_expect_not(config.norm_topk_prob);
    cr_expect(config.qkv_bias);
    cr_expect_not(config.output_bias || config.qk_norm);
    cr_expect(config_of(QWEN2_JSON, "{'norm_topk_prob':true}").norm_topk_prob);
    cr_expect_not(config_of(QWEN2_JSON, "{'qkv_bias':false}").qkv_bias);
    cr_expect_eq(config_of(QWEN2_JSON, "{'shared_expert_intermediate_size':0}").shared_expert_dim,
                 0);
}

Test(arch, qwen3_moe)
{
    struct model_config config = config_of(QWEN3_JSON, "{}");
    cr_expect_eq(config.expert_count, 8);
    cr_expect_eq(config.expert_dim, 32);
    cr_expect_eq(config.head_dim, 32, "not hidden / heads");
    cr_expect(config.norm_topk_prob);
    cr_expect_not(config.qkv_bias || config.output_bias);
    cr_expect(config.qk_norm);
    cr_expect_not(config_of(QWEN3_JSON, "{'norm_topk_prob':'$delete'}").norm_topk_prob);
    config = config_of(QWEN3_JSON, "{'attention_bias':true}");
    cr_expect(config.qkv_bias && config.output_bias);
    /* transformers 5 saves it so */
    config = config_of(QWEN3_JSON, "{'num_experts':'$delete','num_local_experts':16}");
    cr_expect_eq(config.expert_count, 16);
}

Test(arch, opens_checkpoints_that_transformers_wrote)
{
    static const struct {
        const char *name;
        enum dtype dtype;
        int64_t layer_count, expert_count;
    } rows[] = {
        {"mixtral", DTYPE_BF16, 2, 8},       {"mixtral-sliding", DTYPE_F16, 2, 8},
        {"mixtral-tied", DTYPE_F32, 2, 8},   {"mixtral-sharded", DTYPE_BF16, 2, 8},
        {"mixtral-fused", DTYPE_F16, 2, 8},  {"qwen2moe", DTYPE_BF16, 2, 12},
        {"qwen3moe-fused", DTYPE_F16, 2, 8},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct checkpoint *checkpoint;
        struct error err;
        struct stat info;
        const char *dir = path_of(TEST_DATA "/models", rows[i].name);
        if (stat(dir, &info) != 0)
            continue;
        enum status status = checkpoint_open(&checkpoint, dir, &err);
        cr_assert_eq(status, STATUS_OK, "%s", status == STATUS_OK ? "" : err.message);
        const struct model_config *config = checkpoint_config(checkpoint);
        cr_expect_eq(config->dtype, rows[i].dtype, "%s", dir);
        cr_expect_eq(config->layer_count, rows[i].layer_count, "%s", dir);
        cr_expect_eq(config->expert_count, rows[i].expert_count, "%s", dir);
        checkpoint_close(checkpoint);
    }
}
