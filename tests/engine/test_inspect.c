/* phasor_inspect: checkpoints that are there, and plans for configs of published models. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_tools.h"
#include "phasor.h"

#define MODEL MODELS_DIR "/kjv-moe"
#define MIB   ((json_int_t)1 << 20)

static const char *folder;
static void make_folder(void)
{
    folder = tools_folder();
}
TestSuite(inspect, .init = make_folder, .timeout = 60);

static json_t *inspect_params(const struct phasor_inspect_params *params)
{
    char *text;
    struct phasor_error err = {.message = ""};
    cr_assert_eq(phasor_inspect(&text, params, &err), PHASOR_OK, "%s", err.message);
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    cr_assert_not_null(root, "%s", text);
    phasor_text_free(text);
    return root;
}

static json_t *inspect(const char *path)
{
    struct phasor_inspect_params params = phasor_inspect_params_default();
    params.model = path;
    return inspect_params(&params);
}

static json_int_t int_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    cr_assert(json_is_integer(value), "no number \"%s\"", key);
    return json_integer_value(value);
}

static json_int_t int_at(const json_t *root, const char *outer, const char *key)
{
    return int_of(json_object_get(root, outer), key);
}

static json_int_t sum_of(const json_t *object)
{
    json_int_t sum = 0;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value) sum += json_integer_value(value);
    return sum;
}

/* ---- Checkpoints ----------------------------------------------------------------------------- */

Test(inspect, numbers_add_up)
{
    static const char *const models[] = {MODEL,
                                         TEST_DATA "/models/mixtral-fused",
                                         TEST_DATA "/models/mixtral-tied",
                                         TEST_DATA "/models/qwen2moe",
                                         TEST_DATA "/models/qwen2moe-norm",
                                         TEST_DATA "/models/qwen3moe"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        json_t *root = inspect(models[i]);
        const json_t *parameters = json_object_get(root, "parameters");
        const json_t *disk = json_object_get(root, "disk");
        json_int_t bytes = int_at(root, "disk", "bytes");
        cr_expect_eq(sum_of(json_object_get(parameters, "by_part")),
                     int_at(root, "parameters", "total"));
        cr_expect_lt(int_at(root, "parameters", "active"), int_at(root, "parameters", "total"));
        cr_expect_eq(sum_of(json_object_get(disk, "by_dtype")), bytes);
        cr_expect_eq(sum_of(json_object_get(disk, "by_part")), bytes, "%s", models[i]);
        cr_expect_eq(json_array_size(json_object_get(root, "unsupported")), 0);
        cr_expect_null(json_object_get(root, "plans"), "nobody asked");
        json_decref(root);
    }
}

static void write_config(const char *json_with_quotes)
{
    char text[2048];
    snprintf(text, sizeof text, "%s", json_with_quotes);
    for (char *c = text; *c != 0; c++)
        *c = *c == '\'' ? '"' : *c;
    tools_write_file(tools_path(folder, "config.json"), text, strlen(text));
}

Test(inspect, tells_what_is_not_supported)
{
    struct phasor_inspect_params params = phasor_inspect_params_default();
    char *out;
    struct phasor_error err;
    write_config("{'architectures':['OtherForCausalLM'],'model_type':'other'}");
    params.model = folder;
    params.plan = "tp2|ep2"; /* of what? the description goes without */
    json_t *root = inspect_params(&params);
    cr_expect_str_eq(json_string_value(json_object_get(root, "architecture")), "OtherForCausalLM");
    cr_expect_geq(json_array_size(json_object_get(root, "unsupported")), 1);
    cr_expect_null(json_object_get(root, "plans"));
    json_decref(root);
    params.model = "/nonexistent/model";
    cr_expect_eq(phasor_inspect(&out, &params, &err), PHASOR_NOT_FOUND);
}

Test(inspect, refuses_bad_parameters)
{
    char *out;
    struct phasor_error err;
    struct phasor_inspect_params params = phasor_inspect_params_default();
    cr_expect_eq(phasor_inspect(&out, NULL, &err), PHASOR_INVALID_ARGUMENT);
    cr_expect_eq(phasor_inspect(&out, &params, &err), PHASOR_INVALID_ARGUMENT); /* no model */
    params.model = MODEL;
    params.dtype = (enum phasor_dtype)9;
    cr_expect_eq(phasor_inspect(&out, &params, &err), PHASOR_INVALID_ARGUMENT);
}

/* ---- Plans of published models, from config.json alone --------------------------------------- */

static const char mixtral_8x7b[] =
    "{'architectures':['MixtralForCausalLM'],'model_type':'mixtral','vocab_size':32000,"
    "'hidden_size':4096,'intermediate_size':14336,'num_hidden_layers':32,"
    "'num_attention_heads':32,'num_key_value_heads':8,'num_local_experts':8,"
    "'num_experts_per_tok':2,'max_position_embeddings':32768,'rms_norm_eps':1e-05,"
    "'rope_theta':1000000.0,'hidden_act':'silu','sliding_window':null,"
    "'tie_word_embeddings':false,'bos_token_id':1,'eos_token_id':2,'torch_dtype':'bfloat16'}";

static const char qwen2_57b[] =
    "{'architectures':['Qwen2MoeForCausalLM'],'model_type':'qwen2_moe','vocab_size':151936,"
    "'hidden_size':3584,'intermediate_size':18944,'num_hidden_layers':28,"
    "'num_attention_heads':28,'num_key_value_heads':4,'num_experts':64,'num_experts_per_tok':8,"
    "'moe_intermediate_size':2560,'shared_expert_intermediate_size':20480,"
    "'decoder_sparse_step':1,'max_position_embeddings':131072,'rms_norm_eps':1e-06,"
    "'rope_theta':1000000.0,'use_sliding_window':false,'hidden_act':'silu',"
    "'tie_word_embeddings':false,'torch_dtype':'bfloat16'}";

/* The inspection of `config` under a plan; "plans" is owned by `*root`. */
static const json_t *plans_of(json_t **root, const char *config, const char *devices,
                              const char *plan)
{
    struct phasor_inspect_params params = phasor_inspect_params_default();
    write_config(config);
    params.model = folder;
    params.devices = devices;
    params.plan = plan;
    *root = inspect_params(&params);
    const json_t *plans = json_object_get(*root, "plans");
    cr_assert(json_is_object(plans));
    return plans;
}

static const json_t *row_at(const json_t *plans, size_t index)
{
    const json_t *row = json_array_get(json_object_get(plans, "list"), index);
    cr_assert_not_null(row, "no plan %zu", index);
    return row;
}

static const json_t *rank_at(const json_t *row, size_t rank)
{
    const json_t *object = json_array_get(json_object_get(row, "ranks"), rank);
    cr_assert_not_null(object, "no rank %zu", rank);
    return object;
}

static void check_groups(const json_t *part, const char *expected)
{
    char *text = json_dumps(json_object_get(part, "groups"), JSON_COMPACT);
    cr_assert_str_eq(text, expected);
    free(text);
}

/* By hand: a matrix of the attention has 4096 x 4096 or 1024 x 4096 values, one of an expert 14336
 * x 4096, a table of the vocabulary 32000 x 4096, each of 2 bytes. */
Test(inspect, a_plan_by_hand)
{
    json_t *root;
    const json_t *plans = plans_of(&root, mixtral_8x7b, NULL, "tp4|tp2ep2");
    const json_t *row = row_at(plans, 0);
    cr_expect_eq(json_array_size(json_object_get(plans, "list")), 1);
    cr_expect_eq(int_of(plans, "device_count"), 4);
    cr_expect_eq(int_of(plans, "max_num_seqs"), 256);
    cr_expect_eq(int_of(plans, "max_num_batched_tokens"), 2048);
    cr_expect_str_eq(json_string_value(json_object_get(row, "plan")), "tp4|tp2ep2");
    cr_expect(json_is_null(json_object_get(row, "refused")));
    cr_expect_eq(json_array_size(json_object_get(row, "baselines")), 0);
    check_groups(json_object_get(row, "attention"), "[[0,1,2,3]]");
    check_groups(json_object_get(row, "experts"), "[[0,1],[2,3]]");
    cr_expect_eq(int_at(row, "attention", "heads"), 8);
    cr_expect_eq(int_at(row, "attention", "kv_heads"), 2);
    cr_expect_eq(int_at(row, "experts", "count"), 4);
    cr_expect_eq(int_at(row, "experts", "width"), 7168);
    /* 32 layers of 2 heads of 128, keys and values of 2 bytes */
    cr_expect_eq(int_of(row, "kv_bytes_per_token"), 32 * 2 * 128 * 2 * 2);
    cr_expect_eq(json_array_size(json_object_get(row, "ranks")), 4);
    for (size_t r = 0; r < 4; r++) {
        const json_t *rank = rank_at(row, r);
        const json_t *by_part = json_object_get(rank, "by_part");
        cr_expect_eq(int_of(rank, "rank"), (json_int_t)r);
        cr_expect_eq(int_of(by_part, "embedding"), 2 * 8000 * 4096 * 2);
        cr_expect_eq(int_of(by_part, "attention"), 32 * 2 * (1024 + 256) * 4096 * 2);
        cr_expect_eq(int_of(by_part, "experts"), (json_int_t)32 * 4 * 3 * 7168 * 4096 * 2);
        cr_expect_eq(int_of(by_part, "shared_experts"), 0);
        cr_expect_eq(int_of(by_part, "dense_ffn"), 0);
        cr_expect_eq(int_of(by_part, "norms"), (2 * 32 + 1) * 4096 * 4);
        cr_expect_eq(int_of(rank, "weights"), sum_of(by_part));
        cr_expect_gt(int_of(rank, "activations"), 0);
        cr_expect_eq(int_of(rank, "total"), int_of(rank, "weights") + int_of(rank, "activations"));
    }
    json_decref(root);
}

/* Over all ranks experts and vocabulary are there once, whatever the plan; attention once for each
 * of its groups; router and norms on every rank. */
static void check_sums(const json_t *row, const json_t *whole, json_int_t rank_count)
{
    json_int_t experts = 0, embedding = 0, attention = 0, router = 0;
    json_int_t groups =
        (json_int_t)json_array_size(json_object_get(json_object_get(row, "attention"), "groups"));
    for (json_int_t r = 0; r < rank_count; r++) {
        const json_t *rank = rank_at(row, (size_t)r);
        experts += int_at(rank, "by_part", "experts");
        embedding += int_at(rank, "by_part", "embedding");
        attention += int_at(rank, "by_part", "attention");
        router += int_at(rank, "by_part", "router");
    }
    const char *plan = json_string_value(json_object_get(row, "plan"));
    cr_expect_eq(experts, int_at(whole, "by_part", "experts"), "%s", plan);
    cr_expect_eq(embedding, int_at(whole, "by_part", "embedding"), "%s", plan);
    cr_expect_eq(attention, groups * int_at(whole, "by_part", "attention"), "%s", plan);
    cr_expect_eq(router, rank_count * int_at(whole, "by_part", "router"), "%s", plan);
}

Test(inspect, every_plan_holds_the_model_once)
{
    static const struct {
        const char *devices;
        size_t plans, legal;
    } rows[] = {{"cpu:1", 1, 1}, {"cpu:2", 4, 4}, {"cpu:4", 9, 9}, {"cpu:8", 16, 12}};
    json_t *whole_root, *root;
    const json_t *whole = rank_at(row_at(plans_of(&whole_root, qwen2_57b, NULL, "tp1|tp1"), 0), 0);
    for (size_t i = 0; i < 4; i++) {
        const json_t *plans = plans_of(&root, qwen2_57b, rows[i].devices, "list");
        const json_t *list = json_object_get(plans, "list");
        size_t legal = 0;
        cr_expect_eq(json_array_size(list), rows[i].plans);
        for (size_t p = 0; p < json_array_size(list); p++) {
            const json_t *row = json_array_get(list, p);
            const json_t *refused = json_object_get(row, "refused");
            legal += json_is_null(refused);
            if (json_is_null(refused))
                check_sums(row, whole, int_of(plans, "device_count"));
            else
                cr_expect_str_eq(json_string_value(refused), "28 query heads cannot be cut 8 ways");
        }
        cr_expect_eq(legal, rows[i].legal);
        json_decref(root);
    }
    json_decref(whole_root);
}

Test(inspect, without_a_plan_it_is_what_a_run_takes)
{
    json_t *root;
    const json_t *row = row_at(plans_of(&root, qwen2_57b, "cpu:8", NULL), 0);
    cr_expect_str_eq(json_string_value(json_object_get(row, "plan")), "tp4dp2|tp8");
    cr_expect_str_eq(json_string_value(json_array_get(json_object_get(row, "baselines"), 0)),
                     "static_tp");
    check_groups(json_object_get(row, "attention"), "[[0,1,2,3],[4,5,6,7]]");
    check_groups(json_object_get(row, "experts"), "[[0,1,2,3,4,5,6,7]]");
    cr_expect_eq(int_at(row, "experts", "count"), 64);
    cr_expect_eq(int_at(row, "experts", "width"), 320);
    cr_expect_eq(int_of(row, "shared_expert_width"), 5120);
    json_decref(root);
    row = row_at(plans_of(&root, qwen2_57b, "cpu:8", "tp4dp2:rep|tp8"), 0);
    cr_expect_eq(int_of(row, "shared_expert_width"), 20480);
    cr_expect_eq(json_array_size(json_object_get(row, "baselines")), 0);
    json_decref(root);
}

/* A vocabulary that does not divide: the last rank has less, others as much as the first. */
Test(inspect, the_last_rank_may_hold_less)
{
    json_t *root;
    const json_t *row = row_at(plans_of(&root, qwen2_57b, NULL, "dp32|ep32"), 0);
    json_int_t first = int_at(rank_at(row, 0), "by_part", "embedding");
    cr_expect_eq(first, 2 * 4752 * 3584 * 2);
    cr_expect_eq(int_at(rank_at(row, 30), "by_part", "embedding"), first);
    cr_expect_eq(int_at(rank_at(row, 31), "by_part", "embedding"),
                 2 * (151936 - 31 * 4752) * 3584 * 2);
    json_decref(root);
}

Test(inspect, settings_of_a_run_change_the_bytes)
{
    struct phasor_inspect_params params = phasor_inspect_params_default();
    write_config(mixtral_8x7b);
    params.model = folder;
    params.plan = "tp2|ep2";
    json_t *usual = inspect_params(&params);
    params.dtype = PHASOR_DTYPE_FLOAT32;
    params.max_num_seqs = 8;
    params.max_num_batched_tokens = 64;
    json_t *other = inspect_params(&params);
    const json_t *usual_row = row_at(json_object_get(usual, "plans"), 0);
    const json_t *other_row = row_at(json_object_get(other, "plans"), 0);
    cr_expect_str_eq(json_string_value(json_object_get(json_object_get(other, "plans"), "dtype")),
                     "float32");
    cr_expect_eq(int_of(other_row, "kv_bytes_per_token"),
                 2 * int_of(usual_row, "kv_bytes_per_token"));
    cr_expect_eq(int_at(rank_at(other_row, 0), "by_part", "experts"),
                 2 * int_at(rank_at(usual_row, 0), "by_part", "experts"));
    cr_expect_lt(int_of(rank_at(other_row, 0), "activations"),
                 int_of(rank_at(usual_row, 0), "activations"));
    cr_expect_gt(int_of(rank_at(usual_row, 0), "activations"), 64 * MIB);
    json_decref(usual);
    json_decref(other);
}

/* Half precision runs as bfloat16; float32 as it is. */
Test(inspect, the_type_is_that_of_a_run)
{
    static const char *const types[][2] = {
        {"float16", "bfloat16"}, {"bfloat16", "bfloat16"}, {"float32", "float32"}};
    for (size_t i = 0; i < 3; i++) {
        char config[2048];
        const char *rest = strstr(mixtral_8x7b, "'bfloat16'}");
        json_t *root;
        snprintf(config, sizeof config, "%.*s'%s'}", (int)(rest - mixtral_8x7b), mixtral_8x7b,
                 types[i][0]);
        const json_t *plans = plans_of(&root, config, NULL, "tp1|tp1");
        cr_expect_str_eq(json_string_value(json_object_get(root, "dtype")), types[i][0]);
        cr_expect_str_eq(json_string_value(json_object_get(plans, "dtype")), types[i][1]);
        json_decref(root);
    }
}

/* A spare native slot, or a packed slot for each layer: 4.25 of 16 bits in groups of 64. */
Test(inspect, packed_decode_by_each_way)
{
    json_t *root;
    const json_t *row = row_at(plans_of(&root, mixtral_8x7b, NULL, "tp4|tp4>tp4:int4"), 0);
    const json_t *rank = rank_at(row, 3);
    json_int_t slot = (json_int_t)8 * 3 * 4096 * (14336 / 4) * 2, packed = slot / 16 * 17 / 4;
    cr_expect_str_eq(json_string_value(json_object_get(row, "plan")), "tp4|tp4>tp4:int4");
    cr_expect_str_eq(
        json_string_value(json_object_get(json_object_get(row, "decode_experts"), "format")),
        "int4");
    cr_expect_eq(int_at(rank, "by_part", "experts"), 33 * slot);
    cr_expect_eq(int_of(rank, "total_with_keep") - int_of(rank, "total"), 32 * packed - slot);
    json_decref(root);
}

Test(inspect, refuses_plans_that_cannot_be)
{
    static const struct {
        const char *devices, *plan, *fragment;
        int64_t seqs, tokens;
    } rows[] = {
        {NULL, "tp8|ep8", "--plan tp8|ep8: 28 query heads cannot be cut 8 ways", 1, 1},
        {"cpu:4", "tp2|ep2", "both must lie over 4", 1, 1},
        {NULL, "tp4", "ATTENTION|EXPERTS", 1, 1},
        {NULL, "tp4|ep4:int4", "or dp4|ep4>tp4:int4", 1, 1},
        {NULL, "list", "--devices cpu:N", 1, 1},
        {NULL, "", "ATTENTION|EXPERTS", 1, 1},
        {"gpu:2", "list", "--devices: expected cpu", 1, 1},
        {"cpu:0", NULL, "--devices: expected cpu", 1, 1},
        {"cpu:65", "list", "--devices: expected cpu", 1, 1},
        {"cpu:7", NULL, "64 experts of 8 granules cannot lie on 7 devices", 1, 1},
        {NULL, "tp2|ep2", "--max-num-seqs", 0, 1},
        {NULL, "tp2|ep2", "--max-num-batched-tokens", 8, 7},
        {NULL, "tp2|ep2", "--max-num-batched-tokens", 1, (int64_t)1 << 62},
        {NULL, "tp2|ep2", "--max-num-seqs: expected 1 to 1048576", 1 << 21, 1 << 21},
        {"cpu:2", "list", "--max-num-seqs: expected 1 to 1048576", 1 << 21, 1 << 21},
    };
    write_config(qwen2_57b);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *out = NULL;
        struct phasor_error err = {.message = ""};
        struct phasor_inspect_params params = phasor_inspect_params_default();
        params.model = folder;
        params.devices = rows[i].devices;
        params.plan = rows[i].plan;
        params.max_num_seqs = rows[i].seqs;
        params.max_num_batched_tokens = rows[i].tokens;
        cr_expect_eq(phasor_inspect(&out, &params, &err), PHASOR_INVALID_ARGUMENT, "row %zu", i);
        cr_expect_eq(err.status, PHASOR_INVALID_ARGUMENT, "row %zu", i);
        cr_expect_not_null(strstr(err.message, rows[i].fragment), "row %zu: %s", i, err.message);
        cr_expect_null(out);
    }
}
