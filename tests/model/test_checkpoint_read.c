#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "model/checkpoint.h"
#include "model/synth_parts.h"
#include "model_tools.h"

static struct checkpoint *open_new(const char *dir, struct synth_params params)
{
    struct checkpoint *checkpoint;
    struct error err;
    checkpoint_make(dir, params);
    enum status status = checkpoint_open(&checkpoint, dir, &err);
    cr_assert_eq(status, STATUS_OK, "%s", status == STATUS_OK ? "" : err.message);
    return checkpoint;
}

/* What synth must have written at those rows, as f32. */
static void expected_rows(float *out, const struct weight_location *where, enum weight weight,
                          uint64_t seed, enum dtype stored, int64_t row, int64_t count)
{
    struct synth_values values = synth_values_of(weight, where->tensor->shape, where->tensor->rank,
                                                 where->tensor->name, seed);
    int64_t values_count = count * where->column_count;
    void *raw = malloc((size_t)(values_count * 4));
    synth_fill(raw, stored, &values, (uint64_t)((where->first_row + row) * where->column_count),
               values_count);
    numeric_convert(out, DTYPE_F32, raw, stored, values_count);
    free(raw);
}

static void check_weight(const struct checkpoint *checkpoint, enum weight weight, int64_t layer,
                         int64_t expert, uint64_t seed, enum dtype stored)
{
    struct weight_location where;
    struct error err;
    static float expected[65536], found[65536];
    static char staging[600];
    cr_assert_eq(checkpoint_locate(&where, checkpoint, weight, layer, expert, &err), STATUS_OK);
    int64_t first = where.row_count / 3, count = where.row_count - first;
    expected_rows(expected, &where, weight, seed, stored, first, count);
    enum status status = checkpoint_read_rows(checkpoint, &where, first, count, found, DTYPE_F32,
                                              staging, sizeof staging, &err);
    cr_assert_eq(status, STATUS_OK, "%s", err.message);
    cr_expect_eq(memcmp(found, expected, (size_t)(count * where.column_count) * 4), 0, "%s",
                 where.tensor->name);
}

Test(checkpoint_read, what_synth_wrote)
{
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    static const char *const presets[] = {"tiny-mixtral", "tiny-qwen2moe", "tiny-qwen3moe"};
    for (size_t i = 0; i < 3; i++) {
        char *root = temp_dir_make();
        struct checkpoint *checkpoint =
            open_new(path_of(root, "m"), (struct synth_params){.preset = presets[i],
                                                               .dtype = dtypes[i],
                                                               .seed = 40 + i,
                                                               .shard_bytes_max = 90000});
        const struct model_config *config = checkpoint_config(checkpoint);
        for (enum weight weight = 0; weight < WEIGHT_KIND_COUNT; weight++) {
            if (weight_is_present(config, weight, 1) && weight != WEIGHT_FUSED_DOWN &&
                weight != WEIGHT_FUSED_GATE_UP)
                check_weight(checkpoint, weight, 1, 2, 40 + i, dtypes[i]);
        }
        checkpoint_close(checkpoint);
        temp_dir_remove(root);
    }
}

/* Row 2 x I x e of the gate, I further for up, H x e of down. */
Test(checkpoint_read, fused_experts_are_found_inside)
{
    static const char *const presets[] = {"tiny-mixtral", "tiny-qwen3moe"};
    static const char *const names[] = {"model.layers.1.mlp.experts.gate_up_proj",
                                        "model.layers.1.mlp.experts.down_proj"};
    for (size_t i = 0; i < 2; i++) {
        char *root = temp_dir_make();
        struct error err;
        struct checkpoint *checkpoint = open_new(
            path_of(root, "m"),
            (struct synth_params){.preset = presets[i], .dtype = DTYPE_BF16, .fused = true});
        int64_t width = checkpoint_config(checkpoint)->expert_dim, hidden = 64, expert = 3;
        const struct {
            enum weight weight;
            int64_t first_row, row_count, column_count;
            const char *name;
        } rows[] = {
            {WEIGHT_EXPERT_GATE, 2 * width * expert, width, hidden, names[0]},
            {WEIGHT_EXPERT_UP, 2 * width * expert + width, width, hidden, names[0]},
            {WEIGHT_EXPERT_DOWN, hidden * expert, hidden, width, names[1]},
            {WEIGHT_FUSED_GATE_UP, 0, 2 * width * checkpoint_config(checkpoint)->expert_count,
             hidden, names[0]},
        };
        for (size_t j = 0; j < sizeof rows / sizeof *rows; j++) {
            struct weight_location where;
            cr_assert_eq(checkpoint_locate(&where, checkpoint, rows[j].weight, 1, expert, &err),
                         STATUS_OK);
            cr_expect_str_eq(where.tensor->name, rows[j].name);
            cr_expect_eq(where.first_row, rows[j].first_row);
            cr_expect_eq(where.row_count, rows[j].row_count);
            cr_expect_eq(where.column_count, rows[j].column_count);
            uint16_t direct[256], located[256];
            cr_assert_eq(
                checkpoint_read(checkpoint, where.tensor,
                                (uint64_t)((rows[j].first_row + 5) * where.column_count) * 2,
                                direct, (uint64_t)where.column_count * 2, &err),
                STATUS_OK);
            cr_assert_eq(
                checkpoint_read_rows(checkpoint, &where, 5, 1, located, DTYPE_BF16, NULL, 0, &err),
                STATUS_OK);
            cr_expect_eq(memcmp(direct, located, (size_t)where.column_count * 2), 0);
        }
        checkpoint_close(checkpoint);
        temp_dir_remove(root);
    }
}

Test(checkpoint_read, a_tied_head_is_the_embedding)
{
    char *root = temp_dir_make();
    struct weight_location head, embedding;
    struct error err;
    struct checkpoint *checkpoint;
    const char *dir = path_of(root, "m");
    checkpoint_make(dir, (struct synth_params){.preset = "tiny-mixtral", .dtype = DTYPE_BF16});
    /* also when a head lies there, as in files saved by old versions */
    json_file_change(path_of(dir, "config.json"), "{'tie_word_embeddings':true}");
    cr_assert_eq(checkpoint_open(&checkpoint, dir, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(checkpoint_locate(&head, checkpoint, WEIGHT_HEAD, 0, 0, &err), STATUS_OK);
    cr_assert_eq(checkpoint_locate(&embedding, checkpoint, WEIGHT_EMBEDDING, 0, 0, &err),
                 STATUS_OK);
    cr_expect_eq(head.tensor, embedding.tensor);
    expect_failure("not fused", checkpoint_locate(&head, checkpoint, WEIGHT_FUSED_DOWN, 1, 0, &err),
                   &err, STATUS_NOT_FOUND, "layer 1|not fused");
    checkpoint_close(checkpoint);
    temp_dir_remove(root);
}

/* A10: a file that shrinks while it is open is an error with path and offset, not a signal. */
Test(checkpoint_read, a_file_that_shrinks_is_an_error)
{
    char *root = temp_dir_make();
    struct weight_location where;
    struct error err;
    static char out[32768];
    const char *dir = path_of(root, "m");
    struct checkpoint *checkpoint =
        open_new(dir, (struct synth_params){.preset = "tiny-mixtral", .dtype = DTYPE_BF16});
    cr_assert_eq(checkpoint_locate(&where, checkpoint, WEIGHT_HEAD, 0, 0, &err), STATUS_OK);
    cr_assert_eq(truncate(path_of(dir, "model.safetensors"), (off_t)where.tensor->offset + 100), 0);
    enum status status = checkpoint_read_rows(checkpoint, &where, 0, where.row_count, out,
                                              DTYPE_BF16, NULL, 0, &err);
    char fragments[64];
    snprintf(fragments, sizeof fragments, "model.safetensors|ends at byte %llu",
             (unsigned long long)where.tensor->offset + 100);
    expect_failure("shrunk", status, &err, STATUS_FORMAT, fragments);
    checkpoint_close(checkpoint);
    temp_dir_remove(root);
}
