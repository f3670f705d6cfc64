#include "expected.h"

#include <criterion/criterion.h>
#include <string.h>

#include "base/memory.h"

bool expected_same_bits(const struct scenario_result *a, const struct scenario_result *b)
{
    return memcmp(a->logits, b->logits, (size_t)(a->token_count * a->vocab) * sizeof(float)) == 0;
}

/* On packed slices that nothing has moved. */
static void open_packed(struct scenario_result *out, const struct rig_params *params,
                        const struct scenario *scenario)
{
    struct rig_params resident = *params;
    struct rig rig;
    struct error err;
    resident.way = WAY_KEEP;
    rig_open(&rig, &resident);
    cr_assert_eq(transition_run(rig.transition, PHASE_DECODE, &err), STATUS_OK);
    scenario_run(out, &rig.runner, scenario);
    rig_close(&rig);
}

static void open_dequantized(struct expected *out, const struct rig_params *params,
                             const struct rig *rig, const struct scenario *scenario)
{
    struct cold dequantized;
    cold_open(&dequantized, params);
    rig_dequantize(&dequantized.of[PHASE_DECODE], rig);
    scenario_run(&out->int4, &dequantized.of[PHASE_DECODE], scenario);
    cr_assert(!expected_same_bits(&out->int4, &out->of[PHASE_DECODE]));
    cold_close(&dequantized);
}

void expected_open(struct expected *out, struct cold *cold, const struct rig_params *params,
                   const struct rig *rig, const struct scenario *scenario)
{
    *out = (struct expected){.int4 = {.logits = NULL}};
    for (int phase = 0; phase < PHASE_COUNT; phase++)
        scenario_run(&out->of[phase], &cold->of[phase], scenario);
    if (rig_is_packed(params))
        open_packed(&out->int4, params, scenario);
    else if (rig->backup != NULL)
        open_dequantized(out, params, rig, scenario);
}

void expected_close(struct expected *expected)
{
    memory_free(expected->of[PHASE_PREFILL].logits);
    memory_free(expected->of[PHASE_DECODE].logits);
    memory_free(expected->int4.logits);
}

const struct scenario_result *expected_of(const struct expected *expected, enum phase phase,
                                          bool is_int4)
{
    return is_int4 ? &expected->int4 : &expected->of[phase];
}
