/* The published shapes, cut to one or two layers, from static EP to static TP and back by each way,
 * on 4 and 8 ranks: the bytes of a cold start, and how fast they came; then with packed decode, and
 * its numbers. The full tier takes them at full width; the quick tier divides the widths, so that
 * the numbers of heads and experts still give each model its own rules. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/system.h"
#include "model/synth.h"
#include "rig.h"

/* Of packed decode: the dequantized weights are rounded to bf16, packed ones are not. The first as
 * in tests/exec/test_full_width.c. NLL is of all tokens that might follow: of the 126 that do, the
 * error of the first bound alone, however it falls, is as much as the second. */
#define ERROR_BOUND 0x1p-6
#define NLL_BOUND   1e-4

static bool is_full(void)
{
    return getenv("PHASOR_TEST_FULL") != NULL;
}

static void checkpoint_make(const char *dir, const char *preset, int64_t layers)
{
    struct error err;
    struct synth_params params = {.preset = preset,
                                  .dir = dir,
                                  .layer_count = layers,
                                  .vocab_count = 1024, /* no transition moves the vocabulary */
                                  .scale = is_full() ? 1 : 16,
                                  .dtype = DTYPE_BF16,
                                  .seed = 1};
    enum status status = synth_write(&params, &err);
    cr_assert_eq(status, STATUS_OK, "%s", status == STATUS_OK ? "" : err.message);
}

/* False where the divided width cannot be cut, and the two are one. */
static bool plan_of(char plan[LAYOUT_TEXT_BYTES], const char *dir, int rank_count)
{
    struct checkpoint *checkpoint;
    struct plan_layouts layouts;
    struct error err;
    cr_assert_eq(checkpoint_open(&checkpoint, dir, &err), STATUS_OK, "%s", err.message);
    struct model_shape shape = weights_shape(checkpoint_config(checkpoint));
    checkpoint_close(checkpoint);
    cr_assert_eq(layout_static_ep(&layouts.of[PHASE_PREFILL], &shape, rank_count, &err), STATUS_OK);
    cr_assert_eq(layout_static_tp(&layouts.of[PHASE_DECODE], &shape, rank_count, &err), STATUS_OK);
    plan_layouts_format(plan, &layouts);
    return plan_layouts_differ(&layouts);
}

/* Passes on packed weights against passes on the same, dequantized, which the cold start has from
 * then on. */
static void check_packed(struct rig *rig, struct cold *cold, const char *label)
{
    struct model_runner *alone = &cold->of[PHASE_DECODE];
    struct scenario_result found, expected;
    scenario_run(&found, &rig->runner, &scenarios[0]);
    rig_dequantize(alone, rig);
    scenario_run(&expected, alone, &scenarios[0]);
    double error = scenario_mean(&found, &expected), nll = scenario_nll_change(&found, &expected);
    printf("%s: logits off by %.2e of their spread, NLL by %.2e\n", label, error, nll);
    cr_assert(error <= ERROR_BOUND && nll <= NLL_BOUND, "%s: off by %.2e, NLL by %.2e", label,
              error, nll);
    memory_free(found.logits);
    memory_free(expected.logits);
}

static void check_way(const struct rig_params *params, struct cold *cold, const char *preset)
{
    struct rig rig;
    struct error err;
    rig_open(&rig, params);
    for (int step = 0; step < 2; step++) {
        enum phase phase = step == 0 ? PHASE_DECODE : PHASE_PREFILL;
        int64_t before[COMM_RANKS_MAX], after[COMM_RANKS_MAX], sent = 0;
        rig_bytes(before, &rig);
        double start = system_seconds();
        cr_assert_eq(transition_run(rig.transition, phase, &err), STATUS_OK, "%s", err.message);
        double seconds = system_seconds() - start;
        rig_bytes(after, &rig);
        cr_assert_eq(rig_check(&rig, cold, phase, preset), rig_moe_layers(&rig));
        for (int r = 0; r < params->rank_count; r++) {
            if (params->way == WAY_RESHARD)
                cr_assert_eq(after[r] - before[r], rig_predicted_bytes(&rig, phase, r));
            sent += after[r] - before[r];
        }
        printf("%s, %s to %s by %s: %.3f s, %.1f MiB between ranks\n", preset, params->plan,
               step == 0 ? "decode" : "prefill", way_names[params->way], seconds,
               (double)sent / 0x1p20);
        if (rig_is_packed(params) && phase == PHASE_DECODE)
            check_packed(&rig, cold, preset);
    }
    rig_close(&rig);
}

static void check_model(const char *preset, int64_t layers)
{
    char dir[] = "/tmp/phasor-test-XXXXXX", command[64];
    cr_assert_not_null(mkdtemp(dir));
    checkpoint_make(dir, preset, layers);
    for (int rank_count = 4; rank_count <= 8; rank_count *= 2) {
        char plan[LAYOUT_TEXT_BYTES];
        struct cold cold;
        bool differ = plan_of(plan, dir, rank_count);
        cr_assert(differ || !is_full());
        if (!differ)
            continue;
        struct rig_params params = {
            .dir = dir, .dtype = DTYPE_BF16, .rank_count = rank_count, .plan = plan};
        cold_open(&cold, &params);
        for (int way = 0; way < WAY_COUNT; way++) {
            params.way = (enum way)way;
            check_way(&params, &cold, preset);
        }
        strcat(plan, ":int4");
        for (int way = 0; way < WAY_COUNT; way++) {
            params.way = (enum way)way;
            if (rig_can(&params, params.way))
                check_way(&params, &cold, preset);
        }
        cold_close(&cold);
    }
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    cr_assert_eq(system(command), 0);
}

Test(transition_full_width, mixtral_8x7b, .timeout = 3000)
{
    check_model("mixtral-8x7b", 1);
}

Test(transition_full_width, qwen15_moe_a27b, .timeout = 3000)
{
    check_model("qwen1.5-moe-a2.7b", 2);
}

Test(transition_full_width, qwen2_57b_a14b, .timeout = 3000)
{
    check_model("qwen2-57b-a14b", 1);
}

Test(transition_full_width, qwen3_30b_a3b, .timeout = 3000)
{
    check_model("qwen3-30b-a3b", 2);
}
