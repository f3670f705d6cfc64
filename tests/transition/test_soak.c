/* Ten thousand transitions between random layouts, by random ways, between passes and beside them:
 * each layer is to the byte what a cold start has, each time, and nothing is left over; and now and
 * then passes find, to the bit, the likelihood of a cold start. */
#include <criterion/criterion.h>
#include <stdio.h>

#include "base/memory.h"
#include "base/random.h"
#include "base/system.h"
#include "expected.h"
#include "rig.h"
#include "rig_gpus.h"
#include "sweep.h"

#define TRANSITIONS 10000
#define OF_ONE_RIG  50
#define QUICK_STEP  20 /* the quick tier's part of them */
#define OF_ONE_PASS 25 /* a likelihood for so many */

static const char *const models[] = {"mixtral", "qwen2moe", "qwen3moe"};
#define MODEL_COUNT (sizeof models / sizeof *models)

static int power_of_two(struct random *random, int most)
{
    int out = 1;
    while (out < most && random_below(random, 2) > 0)
        out *= 2;
    return out;
}

/* A legal plan that moves something, at random, and a way for it. */
static void draw(struct rig_params *out, char plan[LAYOUT_TEXT_BYTES], struct random *random)
{
    struct plan_layouts layouts;
    struct model_shape shape;
    do {
        int ranks = 1 << random_below(random, 4);
        *out = (struct rig_params){.model = models[random_below(random, MODEL_COUNT)],
                                   .dtype = random_below(random, 2) > 0 ? DTYPE_BF16 : DTYPE_F32,
                                   .has_int4_experts = random_below(random, 8) == 0,
                                   .rank_count = ranks,
                                   .plan = plan,
                                   .way = (enum way)random_below(random, WAY_COUNT),
                                   .spare_count = 1 + (int64_t)random_below(random, 3)};
        layouts.decode_is_packed = !out->has_int4_experts && random_below(random, 3) == 0;
        int attention = power_of_two(random, ranks);
        for (int phase = 0; phase < PHASE_COUNT; phase++) {
            int tp = power_of_two(random, ranks);
            layouts.of[phase] =
                (struct layout){ranks, {attention, ranks / attention, false}, {tp, ranks / tp}};
        }
        shape = rig_shape(out->model);
        plan_layouts_format(plan, &layouts);
    } while (!plan_layouts_differ(&layouts) || !rig_can(out, out->way) ||
             plan_layouts_check(&layouts, &shape, NULL) != STATUS_OK);
}

static int nll_count;

/* Of random requests, in the layout of the phase. */
static void check_nll(struct rig *rig, const struct expected *expected, enum phase phase,
                      const struct scenario *scenario, const char *label)
{
    bool is_int4 = transition_layer(rig->transition, rig->shape.layer_count - 1).is_int4;
    const struct scenario_result *cold = expected_of(expected, phase, is_int4);
    struct scenario_result found;
    scenario_run(&found, &rig->runner, scenario);
    cr_assert_gt(found.nll, 0);
    cr_assert_eq(found.nll, cold->nll, "%s: %.17g, not %.17g", label, found.nll, cold->nll);
    memory_free(found.logits);
    nll_count++;
}

static int64_t run_rig(const struct rig_params *params, struct random *random, const char *label)
{
    /* Many different tokens, or one; a likelihood of none says nothing. */
    const struct scenario *scenario = &scenarios[random_below(random, 2) > 0 ? 0 : 2];
    struct expected expected;
    struct cold cold;
    struct rig rig;
    struct error err;
    cold_open(&cold, params);
    rig_open(&rig, params);
    expected_open(&expected, &cold, params, &rig, scenario);
    uint64_t held = memory_counters_get().live_bytes;
    enum phase phase = PHASE_PREFILL;
    for (int i = 0; i < OF_ONE_RIG; i++) {
        phase = phase == PHASE_PREFILL ? PHASE_DECODE : PHASE_PREFILL;
        cr_assert_eq(rig_move(&rig, rig.transition, phase, random_below(random, 2) > 0, &err),
                     STATUS_OK, "%s: %s", label, err.message);
        cr_assert_eq(rig_check(&rig, &cold, phase, label), rig_moe_layers(&rig));
        cr_assert_eq(memory_counters_get().live_bytes, held, "%s, transition %d", label, i);
        if (random_below(random, OF_ONE_PASS) == 0 || i + 1 == OF_ONE_RIG)
            check_nll(&rig, &expected, phase, scenario, label);
    }
    int64_t count = transition_counters_get(rig.transition).transition_count;
    cr_assert_eq(count, OF_ONE_RIG);
    expected_close(&expected);
    rig_close(&rig);
    cold_close(&cold);
    return count;
}

TestSuite(soak, .fini = scenario_checkpoints_remove);

Test(soak, ten_thousand_transitions, .timeout = 1200)
{
    struct random random = {.seed = sweep_first(1000)};
    int64_t wanted = TRANSITIONS / ((int64_t)sweep_step(QUICK_STEP) * rig_repeat_step()), count = 0;
    uint64_t live = memory_counters_get().live_count;
    double start = system_seconds();
    while (count < wanted) {
        struct rig_params params;
        char plan[LAYOUT_TEXT_BYTES], label[256];
        draw(&params, plan, &random);
        snprintf(label, sizeof label, "%s %s, %s by %s, %d spare%s", params.model,
                 dtype_name(params.dtype), plan, way_names[params.way], (int)params.spare_count,
                 params.has_int4_experts ? ", int4 experts" : "");
        count += run_rig(&params, &random, label);
        cr_assert_eq(memory_counters_get().live_count, live, "%s", label);
    }
    printf("%lld transitions and %d likelihoods in %.1f s\n", (long long)count, nll_count,
           system_seconds() - start);
    cr_assert_gt(nll_count, 0);
}
