/* A8: whether the tensors are the ones that the config calls for. */
#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#include "model/checkpoint.h"
#include "model/safetensors.h"
#include "model_tools.h"

#define INDEX_NAME "model.safetensors.index.json"

static const char *make(const char *root, const char *name, const char *preset, bool fused,
                        uint64_t shard_bytes_max)
{
    const char *dir = path_of(root, name);
    checkpoint_make(dir, (struct synth_params){.preset = preset,
                                               .dtype = DTYPE_BF16,
                                               .fused = fused,
                                               .shard_bytes_max = shard_bytes_max});
    return dir;
}

static void expect_refusal(const char *label, const char *dir, enum status wanted,
                           const char *fragments)
{
    struct checkpoint *checkpoint;
    struct error err;
    struct resources before = resources_now();
    enum status status = checkpoint_open(&checkpoint, dir, &err);
    expect_failure(label, status, &err, wanted, fragments);
    expect_resources(label, before);
}

/* One name of the header is changed in place: that tensor is missing. */
Test(checkpoint_check, names_what_is_missing)
{
    static const struct {
        const char *preset;
        bool fused;
        const char *from, *to, *fragments;
    } rows[] = {
        {"tiny-mixtral", false, "model.layers.1.block_sparse_moe.experts.2.w3",
         "model.layers.1.block_sparse_moe.experts.9.w3",
         "\"model.layers.1.block_sparse_moe.experts.2.w3.weight\" (layer 1)|missing"},
        {"tiny-qwen3moe", false, "model.layers.0.mlp.experts.7.down_proj",
         "model.layers.0.mlp.experts.8.down_proj",
         "\"model.layers.0.mlp.experts.7.down_proj.weight\" (layer 0)|missing"},
        {"tiny-mixtral", false, "model.layers.0.block_sparse_moe.gate",
         "model.layers.5.block_sparse_moe.gate",
         "\"model.layers.0.block_sparse_moe.gate.weight\" (layer 0)|missing"},
        {"tiny-qwen2moe", false, "model.layers.1.self_attn.q_proj.bias",
         "model.layers.1.self_attn.q_proj.xxxx",
         "\"model.layers.1.self_attn.q_proj.bias\" (layer 1)|missing"},
        {"tiny-qwen2moe", false, "model.layers.1.mlp.shared_expert_gate",
         "model.layers.1.mlp.shared_expert_xxxx", "shared_expert_gate.weight\" (layer 1)|missing"},
        {"tiny-qwen3moe", false, "model.layers.1.self_attn.k_norm",
         "model.layers.1.self_attn.x_norm", "k_norm.weight\" (layer 1)|missing"},
        {"tiny-mixtral", false, "lm_head", "lm_xxxx",
         "\"lm_head.weight\"|missing|\"tie_word_embeddings\""},
        {"tiny-mixtral", false, "model.norm", "model.xxxx", "\"model.norm.weight\"|missing"},
        {"tiny-mixtral", false, "model.embed_tokens", "model.xxxxx_tokens",
         "\"model.embed_tokens.weight\"|missing"},
        {"tiny-qwen3moe", true, "model.layers.1.mlp.experts.down_proj",
         "model.layers.1.mlp.experts.xxxx_proj", "experts.down_proj\" (layer 1)|missing"},
        {"tiny-qwen3moe", true, "model.layers.1.mlp.experts.gate_up_proj",
         "model.layers.1.mlp.experts.xxxx_up_proj", "experts.gate_up_proj\" (layer 1)|missing"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *root = temp_dir_make();
        const char *dir = make(root, "m", rows[i].preset, rows[i].fused, 0);
        file_patch(path_of(dir, "model.safetensors"), rows[i].from, rows[i].from, rows[i].to);
        expect_refusal(rows[i].from, dir, STATUS_NOT_FOUND, rows[i].fragments);
        temp_dir_remove(root);
    }
}

Test(checkpoint_check, names_wrong_types)
{
    static const struct {
        const char *from, *to;
        enum status status;
        const char *fragments;
    } rows[] = {
        {"\"BF16\"", "\"I16\" ", STATUS_UNSUPPORTED,
         "model.safetensors|experts.1.w1.weight\" (layer 1)|I16|F32, BF16 and F16"},
        {"\"BF16\"", "\"F16\" ", STATUS_OK, NULL},
        {"[96,64]", "[64,96]", STATUS_FORMAT,
         "model.safetensors|experts.1.w1.weight\" (layer 1)|shape [96, 64], found [64, 96]"},
        {"[96,64]", "[6144 ]", STATUS_FORMAT, "(layer 1)|[96, 64], found [6144]"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *root = temp_dir_make();
        const char *dir = make(root, "m", "tiny-mixtral", false, 0);
        file_patch(path_of(dir, "model.safetensors"),
                   "model.layers.1.block_sparse_moe.experts.1.w1.weight", rows[i].from, rows[i].to);
        if (rows[i].status != STATUS_OK) {
            expect_refusal(rows[i].to, dir, rows[i].status, rows[i].fragments);
        } else {
            struct checkpoint *checkpoint;
            struct error err;
            cr_assert_eq(checkpoint_open(&checkpoint, dir, &err), STATUS_OK, "%s", err.message);
            checkpoint_close(checkpoint);
        }
        temp_dir_remove(root);
    }
}

/* The config says one thing, the tensors another. */
Test(checkpoint_check, names_sizes_that_disagree_with_the_config)
{
    static const struct {
        const char *preset;
        bool fused;
        const char *changes;
        enum status status;
        const char *fragments;
    } rows[] = {
        {"tiny-mixtral", false, "{'vocab_size':512}", STATUS_FORMAT,
         "model.embed_tokens.weight|shape [512, 64], found [256, 64]"},
        {"tiny-mixtral", false, "{'intermediate_size':80}", STATUS_FORMAT,
         "experts.0.w1.weight\" (layer 0)|[80, 64], found [96, 64]"},
        {"tiny-mixtral", false, "{'num_local_experts':5}", STATUS_FORMAT,
         "gate.weight\" (layer 0)|[5, 64], found [4, 64]"},
        {"tiny-mixtral", false, "{'num_key_value_heads':4}", STATUS_FORMAT,
         "k_proj.weight\" (layer 0)|[64, 64], found [32, 64]"},
        {"tiny-mixtral", false, "{'num_hidden_layers':3}", STATUS_NOT_FOUND,
         "\"model.layers.2.input_layernorm.weight\" (layer 2)|missing"},
        {"tiny-qwen3moe", true, "{'moe_intermediate_size':64}", STATUS_FORMAT,
         "gate_up_proj\" (layer 0)|[8, 128, 64], found [8, 64, 64]"},
        {"tiny-qwen2moe", false, "{'mlp_only_layers':[1]}", STATUS_NOT_FOUND,
         "model.layers.1.mlp.gate_proj.weight\" (layer 1)|missing"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *root = temp_dir_make();
        const char *dir = make(root, "m", rows[i].preset, rows[i].fused, 0);
        json_file_change(path_of(dir, "config.json"), rows[i].changes);
        expect_refusal(rows[i].changes, dir, rows[i].status, rows[i].fragments);
        temp_dir_remove(root);
    }
}

static void index_set(const char *dir, const char *tensor, const char *shard)
{
    json_t *index = json_load_file(path_of(dir, INDEX_NAME), 0, NULL);
    cr_assert_not_null(index);
    json_object_set_new(json_object_get(index, "weight_map"), tensor, json_string(shard));
    cr_assert_eq(json_dump_file(index, path_of(dir, INDEX_NAME), 0), 0);
    json_decref(index);
}

Test(checkpoint_check, index_and_shards_must_agree)
{
    char *root = temp_dir_make();
    const char *dir = make(root, "m", "tiny-mixtral", false, 100000);
    index_set(dir, "model.layers.1.block_sparse_moe.experts.3.w1.weight",
              "model-00001-of-00005.safetensors");
    expect_refusal("other shard", dir, STATUS_FORMAT,
                   INDEX_NAME
                   "|\"model.layers.1.block_sparse_moe.experts.3.w1.weight\" (layer 1)|"
                   "should lie in model-00001-of-00005.safetensors|it lies in model-0000");
    dir = make(root, "n", "tiny-mixtral", false, 100000);
    index_set(dir, "model.layers.7.absent", "model-00001-of-00005.safetensors");
    expect_refusal("nowhere", dir, STATUS_FORMAT,
                   INDEX_NAME "|\"model.layers.7.absent\" (layer 7)|does not have it");
    temp_dir_remove(root);
}

/* A shard with that tensor, [64] or with a further dimension of 1, and one named "extra". */
static void write_tensor(const char *path, const char *name, int rank)
{
    struct safetensors_writer *writer;
    struct error err;
    static const int64_t shape[] = {64, 1};
    uint16_t values[64] = {0};
    cr_assert_eq(safetensors_writer_create(&writer, path, &err), STATUS_OK);
    cr_assert_eq(safetensors_writer_add(writer, name, DTYPE_BF16, shape, rank, &err), STATUS_OK);
    cr_assert_eq(safetensors_writer_add(writer, "extra", DTYPE_BF16, shape, 1, &err), STATUS_OK);
    cr_assert_eq(safetensors_writer_begin(writer, &err), STATUS_OK);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(safetensors_writer_data(writer, values, sizeof values, &err), STATUS_OK);
    cr_assert_eq(safetensors_writer_finish(writer, &err), STATUS_OK);
}

Test(checkpoint_check, a_tensor_in_two_shards)
{
    char *root = temp_dir_make();
    const char *dir = make(root, "m", "tiny-mixtral", false, 100000);
    write_tensor(path_of(dir, "more.safetensors"), "model.layers.1.input_layernorm.weight", 1);
    index_set(dir, "extra", "more.safetensors");
    expect_refusal("twice", dir, STATUS_FORMAT,
                   "\"model.layers.1.input_layernorm.weight\" (layer 1)|two shards|"
                   "more.safetensors|/model-0000");
    temp_dir_remove(root);
}

Test(checkpoint_check, a_further_dimension_is_another_shape)
{
    static const char name[] = "model.layers.1.input_layernorm.weight";
    char *root = temp_dir_make();
    const char *dir = make(root, "m", "tiny-mixtral", false, 100000);
    json_t *index = json_load_file(path_of(dir, INDEX_NAME), 0, NULL);
    json_t *map = json_object_get(index, "weight_map");
    file_patch(path_of(dir, json_string_value(json_object_get(map, name))), name, "input_layernorm",
               "other_layernorm");
    json_decref(index);
    write_tensor(path_of(dir, "more.safetensors"), name, 2);
    index_set(dir, name, "more.safetensors");
    expect_refusal("rank", dir, STATUS_FORMAT,
                   "more.safetensors|input_layernorm.weight\" (layer 1)|[64], found [64, 1]");
    temp_dir_remove(root);
}

Test(checkpoint_check, experts_fused_and_single)
{
    char *root = temp_dir_make();
    const char *dir = make(root, "m", "tiny-mixtral", false, 100000);
    write_tensor(path_of(dir, "more.safetensors"), "model.layers.1.mlp.experts.down_proj", 1);
    index_set(dir, "extra", "more.safetensors");
    expect_refusal("both", dir, STATUS_FORMAT,
                   "layer 1|twice|model.layers.1.mlp.experts.down_proj|experts.0.w1.weight");
    temp_dir_remove(root);
}

/* Tensors that nobody asked for do no harm: old rotary tables, other heads. */
Test(checkpoint_check, extra_tensors_are_allowed)
{
    char *root = temp_dir_make();
    struct checkpoint *checkpoint;
    struct error err;
    const char *dir = make(root, "m", "tiny-mixtral", false, 100000);
    write_tensor(path_of(dir, "more.safetensors"), "model.layers.0.self_attn.rotary_emb.inv_freq",
                 1);
    index_set(dir, "extra", "more.safetensors");
    cr_assert_eq(checkpoint_open(&checkpoint, dir, &err), STATUS_OK, "%s", err.message);
    cr_expect_not_null(checkpoint_find(checkpoint, "extra"));
    checkpoint_close(checkpoint);
    temp_dir_remove(root);
}

Test(checkpoint_check, the_embedding_decides_an_unstated_type)
{
    char *root = temp_dir_make();
    struct checkpoint *checkpoint;
    struct error err;
    checkpoint_make(path_of(root, "m"),
                    (struct synth_params){.preset = "tiny-mixtral", .dtype = DTYPE_F16});
    const char *dir = path_of(root, "m");
    json_file_change(path_of(dir, "config.json"), "{'torch_dtype':'$delete'}");
    cr_assert_eq(checkpoint_open(&checkpoint, dir, &err), STATUS_OK, "%s", err.message);
    cr_expect_eq(checkpoint_config(checkpoint)->dtype, DTYPE_F16);
    checkpoint_close(checkpoint);
    temp_dir_remove(root);
}
