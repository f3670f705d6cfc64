/* The published shapes, cut to one or two layers, on 4 and 8 ranks: logits as on one rank, and each
 * rank's memory as the formulas say that `inspect --plan` prints. The full tier takes them at full
 * width with the whole vocabulary; the quick tier divides the widths, so that the numbers of heads
 * and experts still give each model its own rules. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/system.h"
#include "exec/weight_slices.h"
#include "model/synth.h"
#include "scenarios.h"

static const struct {
    const char *preset;
    int64_t layers;
} models[] = {
    {"mixtral-8x7b", 1}, {"qwen1.5-moe-a2.7b", 2}, {"qwen2-57b-a14b", 1}, {"qwen3-30b-a3b", 2}};

/* bf16 keeps 8 bits: the root of the mean square error within 2^-6 of the logits' spread, as in
 * test_goldens.c. */
#define ERROR_BOUND 0x1p-6

static const struct scenario prompts = {"three prompts", 3, {40, 9, 17}, false};

static const struct weight_types bf16 = {DTYPE_BF16, DTYPE_BF16};

static bool is_full(void)
{
    return getenv("PHASOR_TEST_FULL") != NULL;
}

static void checkpoint_make(const char *dir, const char *preset, int64_t layers)
{
    struct error err;
    enum status status = synth_write(&(struct synth_params){.preset = preset,
                                                            .dir = dir,
                                                            .layer_count = layers,
                                                            .scale = is_full() ? 1 : 16,
                                                            .dtype = DTYPE_BF16,
                                                            .seed = 1},
                                     &err);
    cr_assert_eq(status, STATUS_OK, "%s", status == STATUS_OK ? "" : err.message);
}

static void checkpoint_remove(const char *dir)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    cr_assert_eq(system(command), 0);
}

static enum status add_bytes(void *context, const struct weight_slice *slice, struct error *err)
{
    (void)err;
    *(uint64_t *)context += (uint64_t)(slice->block.row_count * slice->block.column_count * 2);
    return STATUS_OK;
}

/* Of the rank's slices in the file, all bf16. */
static uint64_t bytes_on_disk(const struct model_runner *runner, int rank)
{
    uint64_t bytes = 0;
    struct error err;
    cr_assert_eq(
        weight_slices_each(runner->config, &runner->layout, rank, &bf16, add_bytes, &bytes, &err),
        STATUS_OK);
    return bytes;
}

/* By the device's own count; and the files are read for the rank's slices alone. */
static void check_memory(const struct model_runner *runner, int64_t token_max, const char *label)
{
    for (int r = 0; r < runner->layout.rank_count; r++) {
        struct weights_bytes weights;
        struct device *device = box_device(runner->box, r);
        struct weights_share share = model_runner_share(runner, r);
        weights_bytes(&weights, runner->config, &share);
        cr_assert_eq(weights.resident, runner->weights[r].resident_bytes);
        cr_assert_eq(weights.experts, runner->weights[r].expert_bytes);
        uint64_t said =
            weights.resident + weights.experts +
            exec_bytes(runner->config, &runner->layouts, token_max, SCENARIO_SEQUENCES_MAX) +
            (uint64_t)runner->cache.page_count *
                kv_page_bytes(runner->config, &runner->layout, DTYPE_BF16);
        uint64_t peak = device->ops->memory_use(device).peak_bytes;
        cr_assert_eq(peak, said, "%s, rank %d: %llu bytes at the peak, not %llu", label, r,
                     (unsigned long long)peak, (unsigned long long)said);
        cr_assert_eq(runner->weights[r].bytes_read, bytes_on_disk(runner, r), "%s, rank %d", label,
                     r);
        if (r == 0)
            printf("%s: rank 0 holds %.1f MiB of weights (%.1f of experts), read %.1f MiB\n", label,
                   (double)(weights.resident + weights.experts) / 0x1p20,
                   (double)weights.experts / 0x1p20,
                   (double)runner->weights[r].bytes_read / 0x1p20);
    }
}

static void run(struct scenario_result *out, const char *dir, const char *label, int rank_count,
                const char *plan)
{
    struct model_runner runner;
    struct layout layout = {.attention = {.dp = 1}};
    struct error err;
    double start = system_seconds();
    if (plan != NULL)
        cr_assert_eq(layout_parse(&layout, plan, rank_count, &err), STATUS_OK);
    int64_t token_max = scenario_token_max(&prompts, layout.attention.dp);
    model_runner_open(&runner, &(struct runner_params){
                                   .dir = dir,
                                   .dtype = DTYPE_BF16,
                                   .rank_count = rank_count,
                                   .plan = plan,
                                   .token_max = token_max,
                                   .segment_max = SCENARIO_SEQUENCES_MAX,
                                   .page_count = 2 * SCENARIO_SEQUENCES_MAX,
                               });
    scenario_run(out, &runner, &prompts);
    check_memory(&runner, token_max, label);
    model_runner_close(&runner);
    printf("%s: %.1f s\n", label, system_seconds() - start);
    fflush(stdout);
}

/* Static TP, static EP, and the first legal layout that cuts and spreads experts at once. */
static int plans_of(char plans[3][LAYOUT_TEXT_BYTES], const struct model_shape *shape,
                    int rank_count)
{
    struct layout layouts[64];
    struct error reason;
    cr_assert_eq(layout_static_tp(&layouts[0], shape, rank_count, &reason), STATUS_OK);
    layout_format(plans[0], &layouts[0]);
    cr_assert_eq(layout_static_ep(&layouts[0], shape, rank_count, &reason), STATUS_OK);
    layout_format(plans[1], &layouts[0]);
    int count = layout_list(layouts, 64, rank_count);
    for (int i = 0; i < count; i++) {
        if (layouts[i].experts.tp > 1 && layouts[i].experts.ep > 1 && layouts[i].attention.dp > 1 &&
            layouts[i].attention.tp > 1 && layout_check(&layouts[i], shape, &reason) == STATUS_OK) {
            layout_format(plans[2], &layouts[i]);
            return 3;
        }
    }
    return 2;
}

static struct model_shape shape_of(const char *dir)
{
    struct checkpoint *checkpoint;
    struct error err;
    cr_assert_eq(checkpoint_open(&checkpoint, dir, &err), STATUS_OK, "%s", err.message);
    struct model_shape shape = weights_shape(checkpoint_config(checkpoint));
    checkpoint_close(checkpoint);
    return shape;
}

static void check_model(const char *preset, int64_t layers)
{
    char dir[96], plans[3][LAYOUT_TEXT_BYTES], label[512];
    struct scenario_result expected, found;
    snprintf(dir, sizeof dir, "/tmp/phasor-test-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    checkpoint_make(dir, preset, layers);
    struct model_shape shape = shape_of(dir);
    snprintf(label, sizeof label, "%s, 1 rank", preset);
    run(&expected, dir, label, 1, NULL);
    for (int rank_count = 4; rank_count <= 8; rank_count *= 2) {
        int count = plans_of(plans, &shape, rank_count);
        for (int p = 0; p < count; p++) {
            snprintf(label, sizeof label, "%s, %s", preset, plans[p]);
            run(&found, dir, label, rank_count, plans[p]);
            double error = scenario_mean(&found, &expected);
            printf("%s: logits off by %.2e of their spread, NLL by %.2e\n", label, error,
                   found.nll / expected.nll - 1);
            cr_assert(error <= ERROR_BOUND, "%s: off by %.2e", label, error);
            cr_assert(fabs(found.nll / expected.nll - 1) <= 1e-3, "%s", label);
            memory_free(found.logits);
        }
    }
    memory_free(expected.logits);
    checkpoint_remove(dir);
}

Test(full_width, mixtral_8x7b, .timeout = 3000)
{
    check_model(models[0].preset, models[0].layers);
}

Test(full_width, qwen15_moe_a27b, .timeout = 3000)
{
    check_model(models[1].preset, models[1].layers);
}

Test(full_width, qwen2_57b_a14b, .timeout = 3000)
{
    check_model(models[2].preset, models[2].layers);
}

Test(full_width, qwen3_30b_a3b, .timeout = 3000)
{
    check_model(models[3].preset, models[3].layers);
}
