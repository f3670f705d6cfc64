#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "model/checkpoint.h"
#include "model/safetensors.h"
#include "model_tools.h"

#define TINY                                                                                       \
    (struct synth_params)                                                                          \
    {                                                                                              \
        .preset = "tiny-mixtral", .dtype = DTYPE_BF16, .seed = 1                                   \
    }
#define INDEX_NAME "model.safetensors.index.json"

static struct synth_params tiny_sharded(void)
{
    struct synth_params params = TINY;
    params.shard_bytes_max = 100000;
    return params;
}

static void expect_refusal(const char *label, const char *dir, enum status wanted,
                           const char *fragments)
{
    struct checkpoint *checkpoint = NULL;
    struct error err;
    struct resources before = resources_now();
    enum status status = checkpoint_open(&checkpoint, dir, &err);
    expect_failure(label, status, &err, wanted, fragments);
    cr_expect_null(checkpoint, "%s", label);
    expect_resources(label, before);
}

static void expect_open(const char *label, const char *dir)
{
    struct checkpoint *checkpoint;
    struct error err;
    enum status status = checkpoint_open(&checkpoint, dir, &err);
    cr_assert_eq(status, STATUS_OK, "%s: %s", label, status == STATUS_OK ? "" : err.message);
    checkpoint_close(checkpoint);
}

Test(checkpoint, opens_single_and_sharded)
{
    char *root = temp_dir_make();
    struct error err;
    static const char *const names[] = {"single", "sharded"};
    struct resources before = resources_now();
    for (int i = 0; i < 2; i++) {
        struct checkpoint *checkpoint;
        const char *dir = path_of(root, names[i]);
        checkpoint_make(dir, i == 0 ? TINY : tiny_sharded());
        cr_assert_eq(checkpoint_open(&checkpoint, dir, &err), STATUS_OK, "%s", err.message);
        cr_expect_str_eq(checkpoint_dir(checkpoint), dir);
        cr_expect_eq(checkpoint_config(checkpoint)->layer_count, 2);
        /* 3 + 2 layers x (2 norms, 4 attention, router, 4 experts x 3) */
        cr_expect_eq(checkpoint_tensor_count(checkpoint), 3 + 2 * 19);
        const struct tensor_info *tensor =
            checkpoint_find(checkpoint, "model.layers.1.block_sparse_moe.experts.3.w2.weight");
        cr_assert_not_null(tensor);
        cr_expect_eq(tensor->shape[0], 64);
        cr_expect_eq(tensor->shape[1], 96);
        cr_expect_eq(tensor->shard > 0, i == 1);
        cr_expect_null(checkpoint_find(checkpoint, "nothing"));
        for (int64_t t = 0; t < checkpoint_tensor_count(checkpoint); t++) {
            tensor = checkpoint_tensor(checkpoint, t);
            cr_expect_eq(checkpoint_find(checkpoint, tensor->name), tensor);
        }
        checkpoint_close(checkpoint);
    }
    checkpoint_close(NULL);
    expect_resources("open and close", before);
    temp_dir_remove(root);
}

/* A7 */
Test(checkpoint, refuses_shards_outside_the_directory)
{
    char *root = temp_dir_make();
    char dir[512];
    snprintf(dir, sizeof dir, "%s/m", root);
    checkpoint_make(dir, tiny_sharded());
    static const struct {
        const char *shard;
        enum status status;
        const char *fragments;
    } rows[] = {
        {"../../x", STATUS_FORMAT, "../../x|no plain file name"},
        {"/etc/passwd", STATUS_FORMAT, "/etc/passwd|no plain file name"},
        {"a/b.safetensors", STATUS_FORMAT, "no plain file name"},
        {"away.safetensors", STATUS_FORMAT, "away.safetensors|leads out"},
        {"gone.safetensors", STATUS_NOT_FOUND, "gone.safetensors|shard "},
        {"pipe.safetensors", STATUS_FORMAT, "pipe.safetensors|regular file"},
    };
    cr_assert_eq(symlink("/etc/passwd", path_of(dir, "away.safetensors")), 0);
    cr_assert_eq(mkfifo(path_of(dir, "pipe.safetensors"), 0600), 0);
    json_t *index = json_load_file(path_of(dir, INDEX_NAME), 0, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_object_set_new(json_object_get(index, "weight_map"), "extra",
                            json_string(rows[i].shard));
        json_dump_file(index, path_of(dir, INDEX_NAME), 0);
        expect_refusal(rows[i].shard, dir, rows[i].status, rows[i].fragments);
    }
    json_decref(index);
    temp_dir_remove(root);
}

Test(checkpoint, refuses_a_broken_index)
{
    char *root = temp_dir_make();
    char dir[512];
    snprintf(dir, sizeof dir, "%s/m", root);
    checkpoint_make(dir, tiny_sharded());
    static const struct {
        const char *text;
        enum status status;
        const char *fragments;
    } rows[] = {
        {"", STATUS_FORMAT, INDEX_NAME "|not valid JSON"},
        {"{}", STATUS_FORMAT, INDEX_NAME "|\"weight_map\"|found nothing"},
        {"{\"weight_map\":[]}", STATUS_FORMAT, INDEX_NAME "|\"weight_map\"|an array"},
        {"{\"weight_map\":{}}", STATUS_FORMAT, INDEX_NAME "|\"weight_map\"|empty"},
        {"{\"weight_map\":{\"a\":1}}", STATUS_FORMAT, "\"weight_map\"|\"a\"|an integer"},
        {"{\"weight_map\":{\"a\":\"x\\u0000y\"}}", STATUS_FORMAT, "\"weight_map\"|\"a\""},
        {"{\"weight_map\":{\"a\":\"x\",\"a\":\"y\"}}", STATUS_FORMAT, INDEX_NAME "|duplicate"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        file_write_text(path_of(dir, INDEX_NAME), rows[i].text);
        expect_refusal(rows[i].text, dir, rows[i].status, rows[i].fragments);
    }
    json_t *map = json_object();
    for (int i = 0; i < 1001; i++) {
        char name[32];
        snprintf(name, sizeof name, "s%d", i);
        json_object_set_new(map, name, json_string(name));
    }
    json_t *index = json_pack("{s:o}", "weight_map", map);
    json_dump_file(index, path_of(dir, INDEX_NAME), 0);
    json_decref(index);
    expect_refusal("1001 shards", dir, STATUS_LIMIT, INDEX_NAME "|1001 shards|1000");
    cr_assert_eq(truncate(path_of(dir, INDEX_NAME), (16 << 20) + 1), 0);
    expect_refusal("16 MiB", dir, STATUS_LIMIT, INDEX_NAME "|at most");
    temp_dir_remove(root);
}

/* A9: whatever is cut off the end is seen from the sizes. */
static void sweep_cuts(const char *dir, const char *path)
{
    int64_t full = file_size(path);
    int64_t last = full > 1 << 20 ? full - (1 << 20) : 0;
    cr_assert_eq(truncate(path, full - 1), 0);
    expect_refusal("one byte", dir, STATUS_FORMAT, ".safetensors|cut");
    for (int64_t cut = full / 4096 * 4096; cut >= last; cut -= 4096) {
        if (cut == full)
            continue;
        cr_assert_eq(truncate(path, cut), 0);
        expect_refusal("cut", dir, STATUS_FORMAT, ".safetensors|cut");
    }
}

Test(checkpoint, sees_every_cut)
{
    char *root = temp_dir_make();
    char dir[512];
    struct synth_params params = TINY;
    snprintf(dir, sizeof dir, "%s/single", root);
    params.vocab_count = 8192;
    checkpoint_make(dir, params);
    cr_assert(file_size(path_of(dir, "model.safetensors")) > 2 << 20);
    sweep_cuts(dir, path_of(dir, "model.safetensors"));

    snprintf(dir, sizeof dir, "%s/sharded", root);
    params.shard_bytes_max = 1500000;
    checkpoint_make(dir, params);
    expect_open("whole", dir);
    sweep_cuts(dir, path_of(dir, "model-00002-of-00002.safetensors"));
    temp_dir_remove(root);
}

Test(checkpoint, sees_every_cut_of_the_header)
{
    char *root = temp_dir_make();
    const char *dir = path_of(root, "m");
    checkpoint_make(dir, TINY);
    for (int64_t cut = 4400; cut >= 0; cut -= cut > 16 ? 37 : 1) {
        cr_assert_eq(truncate(path_of(dir, "model.safetensors"), cut), 0);
        expect_refusal("cut", dir, STATUS_FORMAT, "model.safetensors");
        dir = path_of(root, "m");
    }
    temp_dir_remove(root);
}

Test(checkpoint, explains_other_forms)
{
    static const struct {
        const char *file, *fragments;
        enum status status;
    } rows[] = {
        {"model.Q4_K_M.gguf", "model.Q4_K_M.gguf|GGUF|config.json and model*.safetensors",
         STATUS_UNSUPPORTED},
        {"pytorch_model.bin", "pytorch_model.bin|safe_serialization=True", STATUS_UNSUPPORTED},
        {"consolidated.00.pth", "consolidated.00.pth|safetensors form", STATUS_UNSUPPORTED},
        {"consolidated.safetensors", "consolidated.safetensors|model.safetensors",
         STATUS_UNSUPPORTED},
        {"readme.txt", "neither model.safetensors nor " INDEX_NAME, STATUS_NOT_FOUND},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *dir = temp_dir_make();
        file_write_text(path_of(dir, rows[i].file), "x");
        expect_refusal(rows[i].file, dir, rows[i].status, rows[i].fragments);
        temp_dir_remove(dir);
    }
    expect_refusal("no directory", "/nowhere/at/all", STATUS_NOT_FOUND,
                   "/nowhere/at/all|no directory");
    char *dir = temp_dir_make();
    file_write_text(path_of(dir, "model.safetensors"), "x");
    expect_refusal("no config", dir, STATUS_NOT_FOUND, "/config.json");
    temp_dir_remove(dir);
}

/* A26, in the window of opening */
static void sweep_memory(const char *dir, int sticky)
{
    struct resources before = resources_now();
    enum status status = STATUS_NO_MEMORY;
    uint64_t n = 1;
    for (; n < 1000 && status != STATUS_OK; n++) {
        struct checkpoint *checkpoint;
        struct error err = {0};
        memory_fail_at(n, sticky);
        status = checkpoint_open(&checkpoint, dir, &err);
        memory_fail_at(0, 0);
        if (status == STATUS_OK)
            checkpoint_close(checkpoint);
        else
            cr_expect_eq(status, STATUS_NO_MEMORY, "allocation %llu: %s", (unsigned long long)n,
                         err.message);
        expect_resources("n-th allocation", before);
    }
    cr_expect(status == STATUS_OK && n > 10, "%llu", (unsigned long long)n);
}

Test(checkpoint, fails_cleanly_when_memory_ends)
{
    char *root = temp_dir_make();
    checkpoint_make(path_of(root, "single"), TINY);
    checkpoint_make(path_of(root, "sharded"), tiny_sharded());
    for (int sticky = 0; sticky < 2; sticky++) {
        sweep_memory(path_of(root, "single"), sticky);
        sweep_memory(path_of(root, "sharded"), sticky);
    }
    temp_dir_remove(root);
}

/* 100,000 tensors are nothing special. */
Test(checkpoint, many_tensors_are_fast, .timeout = 60)
{
    char *root = temp_dir_make();
    struct checkpoint *checkpoint;
    struct safetensors_writer *writer;
    struct error err;
    const char *dir = path_of(root, "m");
    struct synth_params params = tiny_sharded();
    checkpoint_make(dir, params);
    static const int64_t shape[] = {1};
    cr_assert_eq(safetensors_writer_create(&writer, path_of(dir, "many.safetensors"), &err), 0);
    for (int i = 0; i < 100000; i++) {
        char name[64];
        snprintf(name, sizeof name, "extra.%d.weight", i);
        cr_assert_eq(safetensors_writer_add(writer, name, DTYPE_BF16, shape, 1, &err), 0);
    }
    cr_assert_eq(safetensors_writer_begin(writer, &err), 0);
    for (int i = 0; i < 100000; i++)
        cr_assert_eq(safetensors_writer_data(writer, &i, 2, &err), 0);
    cr_assert_eq(safetensors_writer_finish(writer, &err), 0);
    json_t *index = json_load_file(path_of(dir, INDEX_NAME), 0, NULL);
    json_object_set_new(json_object_get(index, "weight_map"), "extra.99999.weight",
                        json_string("many.safetensors"));
    json_dump_file(index, path_of(dir, INDEX_NAME), 0);
    json_decref(index);
    clock_t start = clock();
    cr_assert_eq(checkpoint_open(&checkpoint, dir, &err), STATUS_OK, "%s", err.message);
    cr_expect(clock() - start < 5 * CLOCKS_PER_SEC);
    cr_expect_eq(checkpoint_tensor_count(checkpoint), 100000 + 41);
    uint16_t value;
    const struct tensor_info *tensor = checkpoint_find(checkpoint, "extra.4660.weight");
    cr_assert_eq(checkpoint_read(checkpoint, tensor, 0, &value, 2, &err), STATUS_OK);
    cr_expect_eq(value, 4660);
    checkpoint_close(checkpoint);
    temp_dir_remove(root);
}
