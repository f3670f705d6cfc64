#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/memory.h"
#include "model/checkpoint.h"
#include "model/synth_parts.h"
#include "model_tools.h"

/* Totals of the published checkpoints, in bf16. */
Test(synth, presets_have_their_published_sizes)
{
    static const struct {
        const char *preset;
        double parameters;
    } rows[] = {
        {"mixtral-8x7b", 46702792704},      {"mixtral-8x22b", 140620634112},
        {"qwen1.5-moe-a2.7b", 14315784192}, {"qwen2-57b-a14b", 57408658944},
        {"qwen3-30b-a3b", 30532122624},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint64_t bytes = 0;
        struct error err;
        struct synth_params params = {.preset = rows[i].preset, .dtype = DTYPE_BF16};
        cr_assert_eq(synth_size(&bytes, &params, &err), STATUS_OK);
        cr_expect_eq((double)bytes, 2 * rows[i].parameters, "%s: %.0f", rows[i].preset,
                     (double)bytes / 2);
    }
}

Test(synth, every_preset_scales_and_opens)
{
    for (const char *const *preset = synth_presets(); *preset != NULL; preset++) {
        for (int fused = 0; fused < 2; fused++) {
            char *root = temp_dir_make();
            struct checkpoint *checkpoint;
            struct error err;
            checkpoint_make(path_of(root, "m"),
                            (struct synth_params){.preset = *preset,
                                                  .scale = strncmp(*preset, "tiny", 4) ? 64 : 1,
                                                  .layer_count = 2,
                                                  .dtype = DTYPE_F16,
                                                  .fused = fused != 0});
            enum status status = checkpoint_open(&checkpoint, path_of(root, "m"), &err);
            cr_assert_eq(status, STATUS_OK, "%s", status == STATUS_OK ? "" : err.message);
            cr_expect_eq(checkpoint_config(checkpoint)->layer_count, 2);
            checkpoint_close(checkpoint);
            temp_dir_remove(root);
        }
    }
}

Test(synth, scale_divides_what_it_says)
{
    struct model_config config;
    struct error err;
    json_t *object;
    struct synth_params params = {.preset = "qwen2-57b-a14b", .scale = 4, .dtype = DTYPE_BF16};
    cr_assert_eq(synth_config(&object, &config, &params, &err), STATUS_OK);
    cr_expect_eq(config.hidden_dim, 896);
    cr_expect_eq(config.head_count, 7);
    cr_expect_eq(config.kv_head_count, 1);
    cr_expect_eq(config.head_dim, 128);
    cr_expect_eq(config.expert_dim, 640);
    cr_expect_eq(config.shared_expert_dim, 5120);
    cr_expect_eq(config.vocab_count, 37984);
    cr_expect_eq(config.expert_count, 64);
    cr_expect_eq(config.layer_count, 28);
    cr_expect_eq(config.eos_ids[0], 37983);
    json_decref(object);
}

/* null heads of keys, whole numbers with a fraction and several ends of a text are legal. */
Test(synth, scales_any_config_that_is_read)
{
    static const char *const reals[] = {"num_attention_heads", "hidden_size",
                                        "moe_intermediate_size", "vocab_size"};
    struct model_config config;
    struct error err;
    json_t *object, *scaled;
    char *root = temp_dir_make(), path[512];
    snprintf(path, sizeof path, "%s/config.json", root);
    struct synth_params params = {.preset = "tiny-qwen3moe", .dtype = DTYPE_BF16};
    cr_assert_eq(synth_config(&object, &config, &params, &err), STATUS_OK);
    struct model_config whole = config;
    json_object_set_new(object, "num_key_value_heads", json_null());
    json_object_set_new(object, "eos_token_id", json_pack("[I,i]", whole.vocab_count - 1, 3));
    json_object_del(object, "head_dim");
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) {
        json_int_t value = json_integer_value(json_object_get(object, reals[i]));
        json_object_set_new(object, reals[i], json_real((double)value));
    }
    cr_assert_eq(json_dump_file(object, path, 0), 0);
    params.preset = path;
    params.scale = 2;
    cr_assert_eq(synth_config(&scaled, &config, &params, &err), STATUS_OK, "%s", err.message);
    cr_expect_eq(config.head_count, whole.head_count / 2);
    cr_expect_eq(config.kv_head_count, whole.head_count / 2);
    cr_expect_eq(config.head_dim, whole.hidden_dim / whole.head_count);
    cr_expect_eq(config.hidden_dim, round_up(whole.hidden_dim / 2, 32));
    cr_expect_eq(config.expert_dim, whole.expert_dim / 2);
    cr_expect_eq(config.vocab_count, whole.vocab_count / 2);
    cr_expect_eq(config.eos_ids[0], config.vocab_count - 1);
    cr_expect_eq(config.eos_ids[1], 3);
    json_decref(scaled);
    json_decref(object);
    temp_dir_remove(root);
}

Test(synth, same_seed_same_bytes)
{
    char *root = temp_dir_make();
    static const char *const names[] = {"a", "b", "c"};
    size_t lengths[3];
    char *bytes[3];
    for (int i = 0; i < 3; i++) {
        checkpoint_make(path_of(root, names[i]), (struct synth_params){.preset = "tiny-qwen2moe",
                                                                       .dtype = DTYPE_BF16,
                                                                       .seed = i == 2 ? 2 : 1});
        bytes[i] = file_read(path_of(path_of(root, names[i]), "model.safetensors"), &lengths[i]);
    }
    cr_assert_eq(lengths[0], lengths[1]);
    cr_expect_eq(memcmp(bytes[0], bytes[1], lengths[0]), 0);
    cr_expect_neq(memcmp(bytes[0], bytes[2], lengths[0]), 0);
    for (int i = 0; i < 3; i++)
        free(bytes[i]);
    temp_dir_remove(root);
}

/* A change of the generator would silently change every measurement made with it. */
Test(synth, values_are_fixed_and_near_normal)
{
    enum { COUNT = 200000 };
    static float values[COUNT];
    int64_t shape[] = {1000, 200};
    struct synth_values how = synth_values_of(WEIGHT_Q, shape, 2, "w", 7);
    synth_fill(values, DTYPE_F32, &how, 0, COUNT);
    double sum = 0, squares = 0, within = 0, scale = sqrt(200);
    for (int i = 0; i < COUNT; i++) {
        double value = values[i] * scale;
        sum += value;
        squares += value * value;
        within += fabs(value) < 1;
        cr_assert(fabs(value) < 3.47);
    }
    cr_expect_float_eq(sum / COUNT, 0, 0.01);
    cr_expect_float_eq(squares / COUNT, 1, 0.01);
    cr_expect_float_eq(within / COUNT, 0.68, 0.02);
    float part[3];
    synth_fill(part, DTYPE_F32, &how, 1001, 3);
    cr_expect_eq(memcmp(part, values + 1001, sizeof part), 0, "any part can be made alone");
    how = synth_values_of(WEIGHT_FINAL_NORM, shape, 1, "n", 7);
    synth_fill(values, DTYPE_F32, &how, 0, 1000);
    for (int i = 0; i < 1000; i++)
        cr_assert(values[i] > 0.8f && values[i] < 1.2f);
    how = (struct synth_values){.seed = 42, .mean = 0, .deviation = 1};
    synth_fill(part, DTYPE_F32, &how, 0, 3);
    cr_expect_float_eq(part[0], -0.7679474, 1e-6);
    cr_expect_float_eq(part[1], 2.6103921, 1e-6);
}

Test(synth, shards_respect_the_limit)
{
    char *root = temp_dir_make();
    struct stat info;
    char dir[512];
    snprintf(dir, sizeof dir, "%s/m", root);
    checkpoint_make(dir, (struct synth_params){.preset = "tiny-qwen3moe",
                                               .dtype = DTYPE_F32,
                                               .shard_bytes_max = 200000});
    json_t *index = json_load_file(path_of(dir, "model.safetensors.index.json"), 0, NULL);
    cr_assert_not_null(index);
    const char *tensor;
    json_t *shard;
    json_object_foreach(json_object_get(index, "weight_map"), tensor, shard)
    {
        cr_assert_eq(stat(path_of(dir, json_string_value(shard)), &info), 0);
        cr_expect_leq(info.st_size, 200000 + 10000);
    }
    uint64_t bytes;
    struct error err;
    cr_assert_eq(synth_size(&bytes,
                            &(struct synth_params){.preset = "tiny-qwen3moe", .dtype = DTYPE_F32},
                            &err),
                 STATUS_OK);
    cr_expect_eq(
        json_integer_value(json_object_get(json_object_get(index, "metadata"), "total_size")),
        (json_int_t)bytes);
    json_decref(index);
    temp_dir_remove(root);
}

static enum status stop_at_half(void *context, uint64_t done_bytes, uint64_t total_bytes)
{
    ++*(int *)context;
    return done_bytes > total_bytes / 2 ? STATUS_CANCELLED : STATUS_OK;
}

Test(synth, refuses_and_stops)
{
    char *root = temp_dir_make();
    struct error err;
    int calls = 0;
    char dir[512];
    snprintf(dir, sizeof dir, "%s/m", root);
    struct synth_params good = {.preset = "tiny-mixtral", .dir = dir, .dtype = DTYPE_BF16};
    struct synth_params params = good;
    struct resources before = resources_now();
    params.preset = "gpt-5";
    expect_failure("preset", synth_write(&params, &err), &err, STATUS_INVALID_ARGUMENT,
                   "\"gpt-5\"|mixtral-8x7b|tiny-qwen3moe");
    params = good;
    params.scale = 65;
    expect_failure("scale", synth_write(&params, &err), &err, STATUS_INVALID_ARGUMENT, "scale|65");
    params = good;
    params.layer_count = 5000;
    expect_failure("layers", synth_write(&params, &err), &err, STATUS_INVALID_ARGUMENT,
                   "layers|5000");
    params = good;
    params.dir = "/proc/no/such";
    expect_failure("place", synth_write(&params, &err), &err, STATUS_NOT_FOUND, "/proc/no/such");
    params = good;
    params.progress = stop_at_half;
    params.progress_context = &calls;
    expect_failure("stopped", synth_write(&params, &err), &err, STATUS_CANCELLED, "stopped");
    cr_expect_gt(calls, 1);
    expect_resources("refusals", before);
    cr_assert_eq(rmdir(dir), 0, "nothing may be left of the unfinished shard");

    cr_assert_eq(synth_write(&good, &err), STATUS_OK);
    expect_failure("again", synth_write(&good, &err), &err, STATUS_INVALID_ARGUMENT,
                   "not empty|another directory");
    expect_resources("all", before);
    temp_dir_remove(root);
}

Test(synth, fails_cleanly_when_memory_ends)
{
    enum status status = STATUS_NO_MEMORY;
    uint64_t n = 1;
    struct resources before = resources_now();
    for (; n < 300 && status != STATUS_OK; n++) {
        char *root = temp_dir_make();
        struct error err;
        struct synth_params params = {.preset = "tiny-mixtral",
                                      .dir = path_of(root, "m"),
                                      .dtype = DTYPE_BF16,
                                      .shard_bytes_max = 200000};
        memory_fail_at(n, 0);
        status = synth_write(&params, &err);
        memory_fail_at(0, 0);
        if (status != STATUS_OK)
            cr_expect_eq(status, STATUS_NO_MEMORY, "%s", err.message);
        expect_resources("n-th allocation", before);
        temp_dir_remove(root);
    }
    cr_expect(status == STATUS_OK && n > 10);
}
