/* A pass that is recorded by itself is that of a run: the same operations, collectives and sizes.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "engine/pass_recorder.h"
#include "engine_tools.h"
#include "phasor.h"
#include "replay/recording.h"

#define SEQUENCES 4
#define PROMPT    48

static struct phasor_model *model_open_as(const char *plan, bool records, enum phasor_dtype dtype)
{
    struct phasor_model_params params = phasor_model_params_default();
    struct phasor_model *model;
    struct phasor_error err;
    params.model = MODELS_DIR "/kjv-moe";
    params.devices = "cpu:2";
    params.plan = plan;
    params.dtype = dtype;
    params.transition = PHASOR_TRANSITION_KEEP;
    params.records = records;
    if (strstr(plan, ":int4") != NULL)
        params.backup_path = tools_path(tools_folder(), "backup");
    cr_assert_eq(phasor_model_open(&model, &params, &err), PHASOR_OK, "%s", err.message);
    return model;
}

static struct phasor_model *model_open(const char *plan, bool records)
{
    return model_open_as(plan, records, PHASOR_DTYPE_AUTO);
}

/* A plan with ":int4" has a backup of the test's own. */
static void backup_make(void)
{
    struct phasor_quantize_params params = phasor_quantize_params_default();
    struct phasor_error err;
    params.model = MODELS_DIR "/kjv-moe";
    params.output_path = tools_path(tools_folder(), "backup");
    cr_assert_eq(phasor_quantize(&params, NULL, &err), PHASOR_OK, "%s", err.message);
}

static void read_back(struct recording *out, const char *path)
{
    struct error err;
    cr_assert_eq(recording_read(out, path, &err), STATUS_OK, "%s", err.message);
}

/* ---- Beside a run ---------------------------------------------------------------------------- */

/* A run of a pass of prefill and one of decode. */
static void run_record(struct recording *out, struct phasor_model *model)
{
    struct phasor_batch_params batch = phasor_batch_params_default();
    struct phasor_error err;
    char rows[8192];
    size_t length = 0;
    for (int row = 0; row < SEQUENCES; row++) {
        length += (size_t)snprintf(rows + length, sizeof rows - length,
                                   "{\"custom_id\":\"%d\",\"method\":\"POST\",\"url\":"
                                   "\"/v1/completions\",\"body\":{\"max_tokens\":2,\"ignore_eos\":"
                                   "true,\"temperature\":1,\"prompt\":[%d",
                                   row, 7 + row);
        for (int i = 1; i < PROMPT; i++)
            length += (size_t)snprintf(rows + length, sizeof rows - length, ",%d",
                                       (row * PROMPT + i) % 999);
        length += (size_t)snprintf(rows + length, sizeof rows - length, "]}}\n");
    }
    tools_write_file(tools_path(tools_folder(), "in"), rows, length);
    batch.input_path = tools_path(tools_folder(), "in");
    batch.output_path = tools_path(tools_folder(), "out");
    batch.record_path = tools_path(tools_folder(), "whole");
    batch.overwrite = true;
    batch.max_num_seqs = SEQUENCES;
    batch.max_num_batched_tokens = SEQUENCES * PROMPT;
    cr_assert_eq(phasor_batch_run(model, &batch, NULL, &err), PHASOR_OK, "%s", err.message);
    read_back(out, batch.record_path);
}

/* One node as text; with `hides_experts` of experts only that they were there: which rows they
 * have, tokens decide. */
static void node_text(char out[192], const struct recording *of, const struct recording_lane *lane,
                      const struct recording_node *node, bool hides_experts)
{
    bool is_routed = node->work == WORK_FFN_UP || node->work == WORK_FFN_DOWN;
    const char *name = of->strings[node->name];
    int length = snprintf(out, 192, "rank %d %s kind %d work %d stage %d layer %d", lane->rank,
                          name, node->kind, node->work, node->stage, node->layer);
    if (node->kind == NODE_COLLECTIVE) {
        const struct recording_collective *call = &of->collectives[node->collective];
        snprintf(out + length, 192 - (size_t)length, " op %d tag %d", call->op, call->tag);
    } else if (is_routed ? !hides_experts
                         : node->work == WORK_MATMUL || node->work == WORK_ATTENTION) {
        snprintf(out + length, 192 - (size_t)length, " of %d %d %d %d %d", node->dims[0],
                 node->dims[1], node->dims[2], node->dims[3], node->dims[4]);
    }
}

static int by_text(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* What streams of normal priority do in the phase, sorted. */
static size_t texts_of(char (**out)[192], const struct recording *of, enum record_phase phase,
                       bool hides_experts)
{
    size_t count = 0;
    *out = calloc(of->node_count + 1, sizeof **out);
    for (uint32_t l = 0; l < of->lane_count; l++) {
        const struct recording_lane *lane = &of->lanes[l];
        for (uint32_t n = lane->first; n < lane->first + lane->count; n++) {
            const struct recording_node *node = &of->nodes[n];
            if (lane->kind == LANE_STREAM && node->phase == phase && node->kind != NODE_WAIT)
                node_text((*out)[count++], of, lane, node, hides_experts);
        }
    }
    qsort(*out, count, sizeof **out, by_text);
    return count;
}

static void expect_same(const struct recording *run, const struct recording *pass,
                        enum record_phase phase, bool hides_experts, const char *what)
{
    char(*expected)[192], (*found)[192];
    size_t expected_count = texts_of(&expected, run, phase, hides_experts);
    size_t count = texts_of(&found, pass, phase, hides_experts);
    cr_assert_gt(count, 20);
    for (size_t i = 0; i < expected_count && i < count; i++)
        cr_assert_str_eq(found[i], expected[i], "%s", what);
    cr_expect_eq(count, expected_count, "%s: %zu nodes, %zu of a run; the first more: %s", what,
                 count, expected_count,
                 count > expected_count ? found[expected_count] : expected[count]);
    free(expected);
    free(found);
}

static struct phasor_pass_params pass_of(enum phasor_phase phase)
{
    struct phasor_pass_params params = phasor_pass_params_default();
    params.phase = phase;
    params.sequences = SEQUENCES;
    params.context_tokens = PROMPT + 1;
    params.prompt_tokens = PROMPT;
    params.pass_tokens = SEQUENCES * PROMPT;
    params.recording_path = tools_path(tools_folder(), "pass");
    return params;
}

static void check_plan(const char *plan)
{
    struct recording run, pass;
    struct phasor_error err;
    struct phasor_model *model = model_open(plan, true);
    run_record(&run, model);
    for (int modelled = 0; modelled < 2; modelled++) {
        for (int phase = 0; phase < 2; phase++) {
            struct phasor_pass_params params = pass_of((enum phasor_phase)phase);
            params.is_modelled = modelled;
            cr_assert_eq(phasor_pass_record(model, &params, &err), PHASOR_OK, "%s", err.message);
            read_back(&pass, params.recording_path);
            expect_same(&run, &pass, phase == 0 ? RECORD_PREFILL : RECORD_DECODE, true, plan);
            recording_deinit(&pass);
        }
    }
    recording_deinit(&run);
    phasor_model_close(model);
}

Test(pass_record, is_the_pass_of_a_run, .timeout = 300)
{
    backup_make();
    static const char *const plans[] = {"tp2|tp2", "tp2|ep2",     "dp2|ep2",
                                        "dp2|tp2", "tp2:rep|ep2", "tp2|ep2>ep2:int4"};
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++)
        check_plan(plans[i]);
}

/* ---- Beside itself --------------------------------------------------------------------------- */

static void step_record(struct recording *out, struct phasor_model *model, int64_t sequences,
                        int64_t context, bool is_modelled)
{
    struct phasor_pass_params params = pass_of(PHASOR_PHASE_DECODE);
    struct phasor_error err;
    params.sequences = sequences;
    params.context_tokens = context;
    params.is_modelled = is_modelled;
    cr_assert_eq(phasor_pass_record(model, &params, &err), PHASOR_OK, "%s", err.message);
    read_back(out, params.recording_path);
}

/* A step behind others of fewer sequences, or more, and of shorter contexts, and behind a pass of
 * prefill, on keys and values that its sequences share or each has of its own: the experts have the
 * rows that they have when it is the first. */
static void check_again(const char *plan)
{
    static const struct {
        int64_t sequences, context;
        bool is_modelled;
    } before[] = {{2, 40, true}, {8, 300, false}, {16, 130, true}};
    struct recording first, later, other;
    struct phasor_error err;
    struct phasor_model *model = model_open(plan, true);
    step_record(&first, model, SEQUENCES, 300, true);
    phasor_model_close(model);
    model = model_open(plan, true);
    for (size_t i = 0; i < sizeof before / sizeof *before; i++) {
        struct phasor_pass_params prefill = pass_of(PHASOR_PHASE_PREFILL);
        step_record(&later, model, before[i].sequences, before[i].context, before[i].is_modelled);
        recording_deinit(&later);
        cr_assert_eq(phasor_pass_record(model, &prefill, &err), PHASOR_OK, "%s", err.message);
        for (int modelled = 0; modelled < 2; modelled++) {
            step_record(&later, model, SEQUENCES, 300, modelled);
            expect_same(&first, &later, RECORD_DECODE, false, plan);
            recording_deinit(&later);
        }
    }
    /* Which says something: at another length they have other rows. */
    step_record(&other, model, SEQUENCES, 301, true);
    char(*a)[192], (*b)[192], of_experts[32];
    snprintf(of_experts, sizeof of_experts, " work %d ", WORK_FFN_UP);
    size_t count = texts_of(&a, &first, RECORD_DECODE, false);
    cr_expect_eq(texts_of(&b, &other, RECORD_DECODE, false), count);
    size_t differ = 0;
    for (size_t i = 0; i < count; i++)
        differ += strcmp(a[i], b[i]) != 0 && strstr(a[i], of_experts) != NULL;
    cr_expect_gt(differ, 0, "%s", plan);
    free(a);
    free(b);
    recording_deinit(&first);
    recording_deinit(&other);
    phasor_model_close(model);
}

/* What the first rank's experts do in f32, where rounding decides nothing. */
static void experts_of_step(char out[8192], const char *plan, int64_t sequences)
{
    struct phasor_model *model = model_open_as(plan, true, PHASOR_DTYPE_FLOAT32);
    struct recording step;
    size_t length = 0;
    step_record(&step, model, sequences, 300, true);
    for (uint32_t l = 0; l < step.lane_count; l++) {
        const struct recording_lane *lane = &step.lanes[l];
        for (uint32_t n = lane->first; n < lane->first + lane->count; n++) {
            const struct recording_node *node = &step.nodes[n];
            if (lane->rank == 0 && node->work == WORK_FFN_UP && node->phase == RECORD_DECODE)
                length +=
                    (size_t)snprintf(out + length, 8192 - length, "%d: %d of %d %d\n", node->layer,
                                     node->dims[0], node->dims[1], node->dims[2]);
        }
    }
    cr_assert_gt(length, 6 * 8);
    recording_deinit(&step);
    phasor_model_close(model);
}

/* Sequences have the same contexts and tokens in whichever group they are, and so experts the same
 * rows; groups are uneven. */
Test(pass_record, of_decode_has_the_same_rows_in_every_layout, .timeout = 300)
{
    char expected[8192], found[8192];
    experts_of_step(expected, "tp2|tp2", 5);
    experts_of_step(found, "dp2|tp2", 5);
    cr_expect_str_eq(found, expected);
}

Test(pass_record, of_decode_is_the_same_behind_others, .timeout = 300)
{
    backup_make();
    check_again("tp2|ep2>ep2:int4");
    check_again("dp2|ep2");
}

static void recorder_run(struct recording *out, struct engine *engine,
                         struct pass_contexts *contexts, const struct pass_case *cases, int count,
                         bool is_timed)
{
    struct pass_recorder *recorder;
    struct error err = {0};
    cr_assert_eq(pass_recorder_create(&recorder, engine, contexts, cases, count, is_timed, &err),
                 STATUS_OK, "%s", err.message);
    for (int i = 0; i < count; i++)
        cr_assert_eq(pass_recorder_run(recorder, &cases[i], &out[i], &err), STATUS_OK, "%s",
                     err.message);
    pass_recorder_destroy(recorder);
}

/* One recorder through several lengths, with a pass of prefill between, and one of each alone. */
Test(pass_record, of_decode_is_the_same_from_a_recorder_of_many, .timeout = 300)
{
    static const struct pass_case cases[] = {
        {.phase = PHASE_DECODE, .sequences = SEQUENCES, .context = 300},
        {.phase = PHASE_DECODE, .sequences = 3, .context = 40},
        {.phase = PHASE_PREFILL, .prompt = PROMPT, .tokens = SEQUENCES * PROMPT},
        {.phase = PHASE_DECODE, .sequences = 7, .context = 130},
        {.phase = PHASE_DECODE, .sequences = SEQUENCES, .context = 301},
    };
    enum { COUNT = sizeof cases / sizeof *cases };
    struct recording many[COUNT], alone;
    struct pass_contexts contexts = {0};
    struct engine *engine;
    struct error err = {0};
    struct engine_params params = {.model = MODELS_DIR "/kjv-moe",
                                   .dtype_is_auto = true,
                                   .thread_count = 2,
                                   .devices = "cpu:2",
                                   .plan = "dp2|ep2",
                                   .records = true};
    cr_assert_eq(engine_open(&engine, &params, &err), STATUS_OK, "%s", err.message);
    for (int is_timed = 0; is_timed < 2; is_timed++) {
        recorder_run(many, engine, &contexts, cases, COUNT, is_timed);
        for (int i = 0; i < COUNT; i++) {
            bool is_prefill = cases[i].phase == PHASE_PREFILL;
            recorder_run(&alone, engine, &contexts, &cases[i], 1, is_timed);
            expect_same(&alone, &many[i], is_prefill ? RECORD_PREFILL : RECORD_DECODE, is_prefill,
                        "of many");
            recording_deinit(&alone);
            recording_deinit(&many[i]);
        }
    }
    pass_contexts_deinit(&contexts);
    engine_close(engine);
}

/* A prompt in pieces: the second piece sees what the first has left. */
Test(pass_record, goes_through_a_prompt, .timeout = 100)
{
    struct phasor_error err;
    struct phasor_model *model = model_open("dp2|ep2", true);
    struct phasor_pass_params params = pass_of(PHASOR_PHASE_PREFILL);
    params.pass_tokens = 2 * PROMPT / 3;
    cr_assert_eq(phasor_pass_count(model, &params), 3);
    for (int64_t index = 0; index < 3; index++) {
        struct recording pass;
        int64_t pairs = 0, share = PROMPT / 3;
        params.pass_index = index;
        cr_assert_eq(phasor_pass_record(model, &params, &err), PHASOR_OK, "%s", err.message);
        read_back(&pass, params.recording_path);
        for (uint32_t n = 0; n < pass.node_count; n++)
            pairs += pass.nodes[n].work == WORK_ATTENTION ? pass.nodes[n].dims[1] : 0;
        int64_t layers = 0;
        for (uint32_t n = 0; n < pass.node_count; n++)
            layers += pass.nodes[n].work == WORK_ATTENTION;
        /* Of each rank and layer: one prompt's piece. */
        cr_expect_eq(pairs, layers * (share * index * share + share * (share + 1) / 2), "%lld",
                     (long long)index);
        recording_deinit(&pass);
    }
    phasor_model_close(model);
}

/* ---- What is refused ------------------------------------------------------------------------- */

static void expect_refused(struct phasor_model *model, const struct phasor_pass_params *params,
                           const char *why)
{
    struct phasor_error err;
    unlink(params->recording_path == NULL ? "" : params->recording_path);
    cr_expect_eq(phasor_pass_record(model, params, &err), PHASOR_INVALID_ARGUMENT, "%s", why);
    cr_expect_not_null(strstr(err.message, why), "%s", err.message);
    cr_expect(params->recording_path == NULL || access(params->recording_path, F_OK) != 0);
}

/* Of many ranks and layers: what is kept of a pass may be as much as of a run. */
Test(pass_record, of_a_deep_model, .timeout = 300)
{
    struct phasor_synth_params synth = phasor_synth_params_default();
    struct phasor_model_params params = phasor_model_params_default();
    struct phasor_pass_params of = pass_of(PHASOR_PHASE_PREFILL);
    struct phasor_model *model;
    struct phasor_error err;
    struct recording pass;
    synth.preset = "tiny-mixtral";
    synth.layer_count = 1000;
    params.model = synth.output_dir = tools_path(tools_folder(), "deep");
    params.devices = "cpu:4";
    params.plan = "dp4|ep4";
    params.records = true;
    of.prompt_tokens = 4;
    of.pass_tokens = 4 * of.prompt_tokens; /* a prompt in each group */
    cr_assert_eq(phasor_synth(&synth, &err), PHASOR_OK, "%s", err.message);
    cr_assert_eq(phasor_model_open(&model, &params, &err), PHASOR_OK, "%s", err.message);
    cr_assert_eq(phasor_pass_record(model, &of, &err), PHASOR_OK, "%s", err.message);
    read_back(&pass, of.recording_path);
    cr_expect_gt(pass.node_count, 4 * 1000 * 12);
    cr_expect(pass.wall_seconds > 0);
    recording_deinit(&pass);
    phasor_model_close(model);
}

Test(pass_record, refuses_what_is_no_pass, .timeout = 100)
{
    struct phasor_model *model = model_open("dp2|ep2", true);
    static const struct {
        int64_t sequences, context, prompt, tokens, index;
        enum phasor_phase phase;
        const char *why;
    } cases[] = {
        {1, 9, 8, 8, 0, PHASOR_PHASE_DECODE, "1 sequences of decode: expected 2"},
        {5000, 9, 8, 8, 0, PHASOR_PHASE_DECODE, "5000 sequences"},
        {4, 0, 8, 8, 0, PHASOR_PHASE_DECODE, "a context of 0 tokens"},
        {4, INT64_MAX, 8, 8, 0, PHASOR_PHASE_DECODE, "a context of"},
        {4, 9, 0, 8, 0, PHASOR_PHASE_PREFILL, "a prompt of 0 tokens"},
        {4, 9, INT64_MAX, 8, 0, PHASOR_PHASE_PREFILL, "a prompt of"},
        {4, 9, 8, 0, 0, PHASOR_PHASE_PREFILL, "a pass of 0 tokens"},
        {4, 9, 8, 7, 0, PHASOR_PHASE_PREFILL, "evenly over 2 groups"},
        {4, 9, 8, INT64_MAX, 0, PHASOR_PHASE_PREFILL, "a pass of"},
        {4, 9, 8, 24, 0, PHASOR_PHASE_PREFILL, "do not fill evenly"},
        {4, 9, 8, 6, 0, PHASOR_PHASE_PREFILL, "do not fill evenly"},
        {4, 9, 8, 8, 2, PHASOR_PHASE_PREFILL, "pass 2 of the 2 of a prompt"},
        {4, 9, 8, 8, -1, PHASOR_PHASE_PREFILL, "pass -1"},
        {4, 9, 1, 8192, 0, PHASOR_PHASE_PREFILL, "more than 4096 prompts"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct phasor_pass_params params = pass_of(cases[i].phase);
        params.sequences = cases[i].sequences;
        params.context_tokens = cases[i].context;
        params.prompt_tokens = cases[i].prompt;
        params.pass_tokens = cases[i].tokens;
        params.pass_index = cases[i].index;
        expect_refused(model, &params, cases[i].why);
        cr_expect(cases[i].index != 0 || cases[i].phase == PHASOR_PHASE_DECODE ||
                  phasor_pass_count(model, &params) == 0);
    }
    struct phasor_pass_params nowhere = pass_of(PHASOR_PHASE_PREFILL);
    nowhere.recording_path = NULL;
    expect_refused(model, &nowhere, "recording_path");
    phasor_model_close(model);
}

Test(pass_record, needs_one_layout_and_a_model_that_records, .timeout = 100)
{
    struct phasor_pass_params params = pass_of(PHASOR_PHASE_PREFILL);
    struct phasor_model *model = model_open("tp2|ep2>tp2", true);
    expect_refused(model, &params, "the plan has two");
    phasor_model_close(model);
    model = model_open("tp2|ep2", false);
    expect_refused(model, &params, "opened with `records`");
    phasor_model_close(model);
}

/* A file that is something else stays. */
Test(pass_record, replaces_recordings_alone, .timeout = 100)
{
    struct phasor_pass_params params = pass_of(PHASOR_PHASE_PREFILL);
    struct phasor_model *model = model_open("tp2|ep2", true);
    struct phasor_error err;
    char back[16] = "";
    tools_write_file(params.recording_path, "a poem", 6);
    cr_expect_neq(phasor_pass_record(model, &params, &err), PHASOR_OK);
    FILE *file = fopen(params.recording_path, "r");
    cr_assert_eq(fread(back, 1, sizeof back, file), 6);
    fclose(file);
    cr_expect_str_eq(back, "a poem");
    unlink(params.recording_path);
    for (int twice = 0; twice < 2; twice++)
        cr_expect_eq(phasor_pass_record(model, &params, &err), PHASOR_OK, "%s", err.message);
    phasor_model_close(model);
}
