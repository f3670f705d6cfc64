/* How often experts were chosen: what is counted, the file, and what a plan makes of it. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "engine/routing_counts.h"
#include "engine_tools.h"
#include "phasor.h"

#define MODEL   MODELS_DIR "/kjv-moe"
#define EXPERTS 8
#define TOP_K   2
#define TOKENS  4096

TestSuite(routing_counts, .timeout = 120);

/* Two layers of experts around a dense one. */
static const struct model_config *config_get(void)
{
    static struct model_config config = {
        .layer_count = 3,
        .expert_count = EXPERTS,
        .expert_top_k = TOP_K,
        .layers = {{.ffn = FFN_MOE}, {.ffn = FFN_DENSE}, {.ffn = FFN_MOE}},
    };
    return &config;
}

static struct routing_counts *counts_make(void)
{
    struct routing_counts *counts;
    struct error err;
    cr_assert_eq(routing_counts_create(&counts, config_get(), TOKENS, &err), STATUS_OK, "%s",
                 err.message);
    return counts;
}

static json_t *counts_json(struct routing_counts *counts)
{
    struct text text = {0};
    json_error_t at;
    routing_counts_write(&text, counts, "m");
    cr_assert_eq(strncmp(text.bytes, ROUTING_COUNTS_HEAD, sizeof ROUTING_COUNTS_HEAD - 1), 0);
    json_t *root = json_loads(text.bytes, 0, &at);
    cr_assert_not_null(root, "%s: %s", at.text, text.bytes);
    text_deinit(&text);
    return root;
}

static double of_passes(const json_t *root, const char *passes, int groups, const char *key)
{
    size_t index;
    const json_t *entry;
    json_array_foreach(json_object_get(root, passes), index, entry)
    {
        if (json_integer_value(json_object_get(entry, "groups")) == groups)
            return json_number_value(json_object_get(entry, key));
    }
    cr_assert_fail("no %d groups in %s", groups, passes);
    return 0;
}

static double of_groups(const json_t *root, int groups, const char *key)
{
    return of_passes(root, "fullest_group", groups, key);
}

/* ---- Counting -------------------------------------------------------------------------------- */

/* A token's second expert is another one of the same `span` experts. */
static void tokens_draw(int32_t *ids, int64_t count, int span, struct random *random)
{
    for (int64_t t = 0; t < count; t++) {
        ids[TOP_K * t] = (int32_t)random_below(random, (uint64_t)span);
        ids[TOP_K * t + 1] =
            (int32_t)((ids[TOP_K * t] + 1 + (int32_t)random_below(random, (uint64_t)span - 1)) %
                      span);
    }
}

/* Passes of many sizes whose tokens choose among the first experts of each layer alone. */
static struct routing_counts *counts_of(const int span[2])
{
    static const int64_t passes[] = {1, 32, 4096, 7, 2048, 100, 1000, 3000};
    struct routing_counts *counts = counts_make();
    struct random random = {.seed = 11};
    int32_t *ids = routing_counts_ids(counts);
    for (int repeat = 0; repeat < 100; repeat++) {
        for (size_t p = 0; p < sizeof passes / sizeof *passes; p++) {
            tokens_draw(ids, passes[p], span[0], &random);
            tokens_draw(ids + (size_t)2 * TOKENS * TOP_K, passes[p], span[1], &random);
            routing_counts_add(counts, PHASE_PREFILL, passes[p]);
        }
    }
    return counts;
}

Test(routing_counts, even_routing_has_what_chance_gives)
{
    struct routing_counts *counts = counts_of((int[]){EXPERTS, EXPERTS});
    json_t *root = counts_json(counts);
    for (int groups = 2; groups <= EXPERTS; groups *= 2) {
        double over = of_groups(root, groups, "over_mean"),
               by_chance = of_groups(root, groups, "by_chance");
        /* A token takes two different experts: the variance is 6/7 of that of draws apart. */
        double apart = (over - 1) / (by_chance - 1);
        cr_expect_gt(by_chance, 1.005);
        cr_expect_float_eq(apart, sqrt(6.0 / 7), 0.12, "%d groups: %g, by chance %g", groups, over,
                           by_chance);
        cr_expect_lt(of_groups(root, groups, "excess"), 0.02);
    }
    json_decref(root);
    routing_counts_destroy(counts);
}

/* Of the one layer half of the experts have everything, of the other all have as much: half of the
 * groups are twice as full as they should be in the one, so the mean over layers is half of that.
 */
Test(routing_counts, uneven_routing_shows_in_the_groups)
{
    struct routing_counts *counts = counts_of((int[]){EXPERTS / 2, EXPERTS});
    json_t *root = counts_json(counts);
    cr_expect_float_eq(of_groups(root, 2, "over_mean"), 1.5, 0.02);
    cr_expect_float_eq(of_groups(root, 2, "excess"), 0.5, 0.02);
    cr_expect_float_eq(of_groups(root, 4, "over_mean"), 1.5, 0.05);
    cr_expect_float_eq(of_groups(root, 8, "excess"), 0.5, 0.05);
    json_decref(root);
    routing_counts_destroy(counts);
}

/* One expert, always the same, gets a fifth more than its share: so does its group of one. */
Test(routing_counts, a_favourite_shows_as_such)
{
    struct routing_counts *counts = counts_make();
    struct random random = {.seed = 7};
    int32_t *ids = routing_counts_ids(counts);
    for (int pass = 0; pass < 100; pass++) {
        for (int l = 0; l < 2; l++) {
            int32_t *of_layer = ids + (size_t)(2 * l) * TOKENS * TOP_K;
            tokens_draw(of_layer, TOKENS, EXPERTS, &random);
            for (int64_t i = 0; i < TOKENS; i++) {
                int32_t *token = of_layer + i * TOP_K;
                if (token[0] != 5 && token[1] != 5 && random_below(&random, 15) == 0)
                    token[0] = 5; /* of 3/4 of the tokens that did not choose it: 5 % of all */
            }
        }
        routing_counts_add(counts, PHASE_PREFILL, TOKENS);
    }
    json_t *root = counts_json(counts);
    cr_expect_float_eq(of_groups(root, 8, "excess"), 0.2, 0.02);
    cr_expect_float_eq(of_groups(root, 8, "over_mean"), 1.2, 0.02);
    json_decref(root);
    routing_counts_destroy(counts);
}

Test(routing_counts, each_choice_is_counted_once)
{
    struct routing_counts *counts = counts_make();
    int32_t *ids = routing_counts_ids(counts);
    uint64_t expected[2][EXPERTS] = {{0}};
    struct random random = {.seed = 3};
    for (int pass = 0; pass < 9; pass++) {
        int64_t tokens = pass * 100 + 1;
        memset(ids, 0xff, (size_t)3 * TOKENS * TOP_K * sizeof *ids); /* what no token left */
        for (int l = 0; l < 2; l++) {
            int32_t *of_layer = ids + (size_t)(2 * l) * TOKENS * TOP_K;
            tokens_draw(of_layer, tokens, EXPERTS, &random);
            for (int64_t i = 0; i < tokens * TOP_K; i++)
                expected[l][of_layer[i]]++;
        }
        routing_counts_add(counts, pass % 2 == 0 ? PHASE_PREFILL : PHASE_DECODE, tokens);
    }
    json_t *root = counts_json(counts), *layers = json_object_get(root, "layers");
    cr_assert_eq(json_array_size(layers), 2);
    for (size_t l = 0; l < 2; l++) {
        const json_t *layer = json_array_get(layers, l), *choices;
        choices = json_object_get(layer, "choices");
        cr_expect_eq(json_integer_value(json_object_get(layer, "layer")), (json_int_t)(2 * l));
        cr_assert_eq(json_array_size(choices), EXPERTS);
        for (size_t e = 0; e < EXPERTS; e++)
            cr_expect_eq((uint64_t)json_integer_value(json_array_get(choices, e)), expected[l][e]);
    }
    cr_expect_eq(json_integer_value(json_object_get(root, "tokens")), 3609);
    cr_expect_eq(json_integer_value(json_object_get(root, "passes")), 9);
    json_decref(root);
    routing_counts_destroy(counts);
}

/* A pass whose tokens choose among the first experts alone, in both layers. */
static void pass_add(struct routing_counts *counts, enum phase phase, int64_t tokens, int span,
                     struct random *random)
{
    int32_t *ids = routing_counts_ids(counts);
    tokens_draw(ids, tokens, span, random);
    tokens_draw(ids + (size_t)2 * TOKENS * TOP_K, tokens, span, random);
    routing_counts_add(counts, phase, tokens);
}

/* Prompts choose among all experts, answers among the first half, behind each other and in turns.
 */
static struct routing_counts *counts_of_phases(int64_t prompts, int64_t steps, int64_t step_tokens)
{
    struct routing_counts *counts = counts_make();
    struct random random = {.seed = 5};
    for (int64_t prompt = 0; prompt < prompts; prompt++) {
        pass_add(counts, PHASE_PREFILL, TOKENS, EXPERTS, &random);
        for (int64_t step = 0; step < steps; step++)
            pass_add(counts, PHASE_DECODE, step_tokens, EXPERTS / 2, &random);
    }
    return counts;
}

/* Of the passes between those of the other phase: a window goes on behind them. Of all rows a
 * quarter are of decode, so that the fuller half has 5/8 of them, which is a quarter above a half.
 */
Test(routing_counts, phases_are_counted_apart)
{
    struct routing_counts *counts = counts_of_phases(48, 40, TOKENS / 3 / 40);
    json_t *root = counts_json(counts);
    cr_expect_float_eq(of_passes(root, "fullest_group_decode", 2, "over_mean"), 2, 1e-9);
    cr_expect_float_eq(of_passes(root, "fullest_group_decode", 2, "excess"), 1, 0.01);
    cr_expect_float_eq(of_passes(root, "fullest_group_decode", 4, "excess"), 1, 0.05);
    cr_expect_lt(of_passes(root, "fullest_group_prefill", 2, "excess"), 0.02);
    cr_expect_lt(of_passes(root, "fullest_group_prefill", 8, "excess"), 0.02);
    cr_expect_float_eq(of_groups(root, 2, "excess"), 0.25, 0.02);
    json_decref(root);
    routing_counts_destroy(counts);
}

/* A phase of too few tokens has no figures of its own, nor one that is all there was. */
Test(routing_counts, a_phase_has_figures_where_it_chose_often_enough)
{
    const int64_t least = routing_counts_least(config_get());
    static const struct {
        int64_t prompts, too_few, steps;
        bool prefill, decode;
    } cases[] = {{1, 0, 0, false, false}, {1, 1, 1, true, false}, {1, 0, 1, true, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct routing_counts *counts =
            counts_of_phases(cases[i].prompts, cases[i].steps, least - cases[i].too_few);
        json_t *root = counts_json(counts);
        cr_expect_eq(json_object_get(root, "fullest_group_prefill") != NULL, cases[i].prefill,
                     "%zu", i);
        cr_expect_eq(json_object_get(root, "fullest_group_decode") != NULL, cases[i].decode, "%zu",
                     i);
        cr_expect_gt(json_array_size(json_object_get(root, "fullest_group")), 0);
        json_decref(root);
        routing_counts_destroy(counts);
    }
}

/* ---- The file -------------------------------------------------------------------------------- */

/* The excess of each phase is that of its own passes where there is one. */
static void check_read_back(struct routing_counts *counts, bool is_own)
{
    static const char *const own_keys[] = {"fullest_group_prefill", "fullest_group_decode"};
    struct text text = {0};
    struct routing routing;
    struct error err;
    const char *path = tools_path(tools_folder(), "counts.json");
    routing_counts_write(&text, counts, "m");
    tools_write_file(path, text.bytes, text.length);
    cr_assert_eq(routing_counts_read(&routing, path, config_get(), &err), STATUS_OK, "%s",
                 err.message);
    json_t *root = json_loads(text.bytes, 0, NULL);
    cr_expect(routing.is_counted && routing.deviation > 0);
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        cr_expect_eq(routing.is_own[phase], is_own);
        for (int groups = 2; groups <= EXPERTS; groups *= 2)
            cr_expect_float_eq(
                routing.excess[phase][groups],
                of_passes(root, is_own ? own_keys[phase] : "fullest_group", groups, "excess"),
                1e-9);
    }
    cr_expect_gt(routing.excess[PHASE_DECODE][2], 0.5);
    json_decref(root);
    text_deinit(&text);
    routing_counts_destroy(counts);
}

Test(routing_counts, what_was_written_is_read)
{
    check_read_back(counts_of((int[]){EXPERTS / 2, 3}), false);
    check_read_back(counts_of_phases(8, 40, 64), true);
}

#define HEAD_OF(experts, tokens, layers)                                                           \
    "{\"format\":\"phasor-routing\",\"version\":1,\"experts\":" experts                            \
    ",\"top_k\":2,\"layers\":[" layers "],\"tokens\":" tokens
#define HEAD(experts)          HEAD_OF(experts, "10000", "{},{}")
#define HEAD_OF_MODEL          HEAD_OF("8", "10000", "{},{},{},{},{},{}")
#define GROUP(groups, excess)  "{\"groups\":" groups ",\"excess\":" excess "}"
#define ALL_GROUPS(e2, e4, e8) ":[" GROUP("2", e2) "," GROUP("4", e4) "," GROUP("8", e8) "]"
#define WITH_ALL(phases)       HEAD("8") ",\"fullest_group\"" ALL_GROUPS("0", "0", "0") "," phases "}"
#define WITH_LAYERS(layers)                                                                        \
    HEAD_OF("8", "10000", layers) ",\"fullest_group\"" ALL_GROUPS("0", "0", "0") "}"

/* Of two layers, of which each token chooses two of eight experts: beyond what chance makes of a
 * thousand for each. */
Test(routing_counts, experts_differ_as_they_were_chosen)
{
#define ALIKE  "{\"choices\":[1000,1000,1000,1000,1000,1000,1000,1000]}"
#define APART  "{\"choices\":[500,500,500,500,1500,1500,1500,1500]}"
#define NOBODY "{\"choices\":[0,0,0,0,0,0,0,0]}"
    static const struct {
        const char *content;
        double deviation;
    } files[] = {
        {WITH_LAYERS(ALIKE "," ALIKE), 0},       {WITH_LAYERS(APART "," APART), 0.49925},
        {WITH_LAYERS(APART "," ALIKE), 0.35302}, {WITH_LAYERS(APART ",{}"), 0},
        {WITH_LAYERS(APART "," NOBODY), 0},      {WITH_LAYERS("{},{}"), 0},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct routing routing;
        struct error err;
        const char *path = tools_path(tools_folder(), "differ.json");
        tools_write_file(path, files[i].content, strlen(files[i].content));
        cr_assert_eq(routing_counts_read(&routing, path, config_get(), &err), STATUS_OK, "%s",
                     err.message);
        cr_expect_float_eq(routing.deviation, files[i].deviation, 1e-5, "%zu: %g", i,
                           routing.deviation);
    }
}

static const struct {
    const char *content;
    enum status status;
    const char *says;
} wrong[] = {
    {"", STATUS_FORMAT, ""},
    {"[]", STATUS_FORMAT, ""},
    {"{\"format\":\"phasor-profile\"}", STATUS_FORMAT, "--routing-counts writes what it takes"},
    {"{\"format\":\"phasor-routing\",\"version\":2}", STATUS_FORMAT, "version"},
    {HEAD("0") "}", STATUS_FORMAT, "experts"},
    {HEAD("8") ",\"layers\":[{},{}]}", STATUS_FORMAT, "not valid JSON"},
    {HEAD_OF("8", "10000", "{}") ",\"fullest_group\":[]}", STATUS_INVALID_ARGUMENT, "of 1 layers"},
    {HEAD("60") ",\"fullest_group\":[]}", STATUS_INVALID_ARGUMENT, "takes 2 of 60"},
    {HEAD_OF("8", "255", "{},{}") "}", STATUS_INVALID_ARGUMENT, "over 255 tokens"},
    {HEAD_OF("8", "-1", "{},{}") "}", STATUS_FORMAT, "tokens"},
    {HEAD("8") "}", STATUS_FORMAT, "found nothing"},
    {HEAD("8") ",\"fullest_group\":7}", STATUS_FORMAT, "found an integer"},
    {HEAD("8") ",\"fullest_group\":[7]}", STATUS_FORMAT, "expected objects"},
    {HEAD("8") ",\"fullest_group\":[" GROUP("65", "0") "]}", STATUS_FORMAT, "groups"},
    {HEAD("8") ",\"fullest_group\":[" GROUP("-1", "0") "]}", STATUS_FORMAT, "groups"},
    {HEAD("8") ",\"fullest_group\":[" GROUP("2", "-0.1") "]}", STATUS_FORMAT, "excess"},
    {HEAD("8") ",\"fullest_group\":[" GROUP("2", "1e300") "]}", STATUS_FORMAT, "excess"},
    {HEAD("8") ",\"fullest_group\":[" GROUP("2", "0") "," GROUP("8", "0") "," GROUP("8", "0") "]}",
     STATUS_FORMAT, "2 of the 3"},
    {WITH_ALL("\"fullest_group_decode\":null"), STATUS_FORMAT,
     "\"fullest_group_decode\": expected"},
    {WITH_ALL("\"fullest_group_decode\":[]"), STATUS_FORMAT,
     "\"fullest_group_decode\" has 0 of the 3"},
    {WITH_ALL("\"fullest_group_decode\"" ALL_GROUPS("0", "-1", "0")), STATUS_FORMAT, "excess"},
    {WITH_ALL("\"fullest_group_prefill\":{}"), STATUS_FORMAT,
     "\"fullest_group_prefill\": expected"},
    {WITH_LAYERS("{\"choices\":[1,2]},{}"), STATUS_FORMAT, "expected 8 counts, found 2"},
    {WITH_LAYERS("{},{\"choices\":[1,2,3,4,5,6,7,-8]}"), STATUS_FORMAT, "\"choices\""},
    {WITH_LAYERS("{},{\"choices\":[1,2,3,4,5,6,7,\"8\"]}"), STATUS_FORMAT, "found a string"},
    {HEAD("8") ",\"fullest_group_decode\"" ALL_GROUPS("0", "0", "0") "}", STATUS_FORMAT,
     "\"fullest_group\": expected"},
};

Test(routing_counts, other_files_are_refused)
{
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct routing routing;
        struct error err;
        const char *path = tools_path(tools_folder(), "wrong.json");
        tools_write_file(path, wrong[i].content, strlen(wrong[i].content));
        cr_expect_eq(routing_counts_read(&routing, path, config_get(), &err), wrong[i].status, "%s",
                     wrong[i].content);
        cr_expect(strstr(err.message, path) != NULL &&
                      strncmp(err.message, "--routing: ", 11) == 0 &&
                      strstr(err.message, wrong[i].says) != NULL,
                  "%s: %s", wrong[i].content, err.message);
    }
}

/* ---- In a run, and in a plan ----------------------------------------------------------------- */

#define ROWS 3

static const char rows[] =
    "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":"
    "\"In the beginning God created\",\"max_tokens\":12,\"temperature\":0,\"ignore_eos\":true}}\n"
    "{\"custom_id\":\"b\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":"
    "\"And Moses said unto the people\",\"max_tokens\":7,\"temperature\":0,\"ignore_eos\":true}}\n"
    "{\"custom_id\":\"c\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":"
    "\"Behold\",\"max_tokens\":1,\"temperature\":0,\"ignore_eos\":true}}\n";

static json_t *run_counted(const char *devices, const char *plan, const char *counts,
                           const char *input, struct phasor_batch_result *result)
{
    struct phasor_model *model;
    struct phasor_error err;
    struct phasor_model_params params = phasor_model_params_default();
    struct phasor_batch_params batch = phasor_batch_params_default();
    params.model = MODEL;
    params.dtype = PHASOR_DTYPE_FLOAT32;
    params.devices = devices;
    params.plan = plan;
    batch.input_path = tools_path(tools_folder(), "in");
    batch.output_path = tools_path(tools_folder(), "out");
    batch.routing_counts_path = counts;
    batch.overwrite = true;
    batch.max_num_seqs = 4;
    batch.max_num_batched_tokens = 16;
    batch.kv_bytes = 16 << 20;
    tools_write_file(batch.input_path, input, strlen(input));
    cr_assert_eq(phasor_model_open(&model, &params, &err), PHASOR_OK, "%s", err.message);
    cr_assert_eq(phasor_batch_run(model, &batch, result, &err), PHASOR_OK, "%s", err.message);
    phasor_model_close(model);
    cr_assert_eq(result->failed, 0);
    size_t length;
    char *text = tools_read_file(counts, &length);
    json_t *root = json_loads(text, 0, NULL);
    free(text);
    cr_assert_not_null(root);
    return root;
}

/* All tokens that were computed, in each layer, whatever the layout: those of prompts, and of each
 * answer all but the last. */
Test(routing_counts, a_run_counts_every_token)
{
    static const struct {
        const char *devices, *plan;
    } plans[] = {{"cpu:1", "tp1|tp1"},
                 {"cpu:2", "tp2|ep2"},
                 {"cpu:2", "dp2|ep2>tp2"},
                 {"cpu:4", "tp2dp2|tp2ep2"}};
    json_t *first = NULL;
    char counts[512];
    snprintf(counts, sizeof counts, "%s", tools_path(tools_folder(), "counts.json"));
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        struct phasor_batch_result result;
        json_t *root = run_counted(plans[i].devices, plans[i].plan, counts, rows, &result);
        json_t *layers = json_object_get(root, "layers");
        json_int_t tokens = json_integer_value(json_object_get(root, "tokens")),
                   top_k = json_integer_value(json_object_get(root, "top_k"));
        cr_assert_eq(result.completed, ROWS);
        cr_expect_eq(tokens, (json_int_t)(result.prompt_tokens + 12 + 7 + 1 - ROWS));
        cr_assert_gt(json_array_size(layers), 0);
        for (size_t l = 0; l < json_array_size(layers); l++) {
            json_int_t sum = 0;
            size_t e;
            const json_t *value;
            json_array_foreach(json_object_get(json_array_get(layers, l), "choices"), e, value)
                sum += json_integer_value(value);
            cr_expect_eq(sum, tokens * top_k);
        }
        if (first == NULL)
            first = json_incref(layers);
        cr_expect(json_equal(first, layers), "%s counts otherwise", plans[i].plan);
        json_decref(root);
    }
    json_decref(first);
}

/* A long answer to a short prompt: only the steps of decode choose often enough. Fewer than make a
 * window are compared, too: 8 experts can lie in 2, 4 or 8 groups. */
Test(routing_counts, a_run_counts_steps_as_decode)
{
    static const char row[] =
        "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":"
        "\"In the beginning God "
        "created\",\"max_tokens\":270,\"temperature\":0,\"ignore_eos\":true}}\n";
    struct phasor_batch_result result;
    char counts[512];
    snprintf(counts, sizeof counts, "%s", tools_path(tools_folder(), "counts.json"));
    json_t *root = run_counted("cpu:1", "tp1|tp1", counts, row, &result);
    cr_assert_eq(result.completed, 1);
    cr_expect_eq(json_array_size(json_object_get(root, "fullest_group")), 3);
    cr_expect_eq(json_array_size(json_object_get(root, "fullest_group_decode")), 3);
    cr_expect_null(json_object_get(root, "fullest_group_prefill"));
    json_decref(root);
}

static json_t *plan_get(const char *routing)
{
    char *text;
    struct phasor_error err;
    struct phasor_plan_params params = phasor_plan_params_default();
    params.model = MODEL;
    params.box = "a6000x4";
    params.routing_path = routing;
    cr_assert_eq(phasor_plan(&text, &params, &err), PHASOR_OK, "%s", err.message);
    json_t *root = json_loads(text, 0, NULL);
    phasor_text_free(text);
    cr_assert_not_null(root);
    return root;
}

static double seconds_of(const json_t *root, const char *plan, const char *key)
{
    size_t index;
    const json_t *candidate;
    json_array_foreach(json_object_get(root, "plans"), index, candidate)
    {
        if (strcmp(json_string_value(json_object_get(candidate, "plan")), plan) == 0)
            return json_number_value(json_object_get(candidate, key));
    }
    cr_assert_fail("no %s", plan);
    return 0;
}

static double prefill_of(const json_t *root, const char *plan)
{
    return seconds_of(root, plan, "prefill_s");
}

static double decode_of(const json_t *root, const char *plan)
{
    return seconds_of(root, plan, "decode_s");
}

static json_t *plan_of(const char *counts)
{
    char path[512];
    snprintf(path, sizeof path, "%s", tools_path(tools_folder(), "counts.json"));
    tools_write_file(path, counts, strlen(counts));
    return plan_get(path);
}

static void check_told(const json_t *root, const char *prefill, const char *decode)
{
    const json_t *told = json_object_get(root, "routing_of");
    cr_expect_str_eq(json_string_value(json_object_get(told, "prefill")), prefill);
    cr_expect_str_eq(json_string_value(json_object_get(told, "decode")), decode);
}

/* What spreads experts over groups gets slower where one group has three times its share, and what
 * cuts them stays as fast. */
Test(routing_counts, a_plan_goes_by_what_was_counted)
{
    static const char of_one_group[] = HEAD_OF_MODEL
        ",\"fullest_group\":[" GROUP("2", "1") "," GROUP("4", "2") "," GROUP("8", "4") "]}";
    static const char even[] = HEAD_OF_MODEL
        ",\"fullest_group\":[" GROUP("2", "0") "," GROUP("4", "0") "," GROUP("8", "0") "]}";
    char path[512];
    snprintf(path, sizeof path, "%s", tools_path(tools_folder(), "counts.json"));
    tools_write_file(path, even, sizeof even - 1);
    json_t *evenly = plan_get(path);
    tools_write_file(path, of_one_group, sizeof of_one_group - 1);
    json_t *unevenly = plan_get(path), *assumed = plan_get(NULL);
    cr_expect_gt(prefill_of(unevenly, "dp4|ep4"), prefill_of(assumed, "dp4|ep4"));
    cr_expect_gt(prefill_of(assumed, "dp4|ep4"), prefill_of(evenly, "dp4|ep4"));
    cr_expect_float_eq(prefill_of(unevenly, "tp4|tp4"), prefill_of(evenly, "tp4|tp4"), 1e-12);
    cr_expect_str_eq(json_string_value(json_object_get(unevenly, "routing")), path);
    cr_expect(json_is_null(json_object_get(unevenly, "routing_deviation")));
    cr_expect(json_is_null(json_object_get(assumed, "routing")));
    cr_expect(json_is_null(json_object_get(assumed, "routing_of")));
    json_decref(evenly);
    json_decref(unevenly);
    json_decref(assumed);
}

/* Only the phase that has counts of its own is priced by them, and the other by those of all. */
Test(routing_counts, a_plan_takes_each_phases_own_counts)
{
#define EVEN   ALL_GROUPS("0", "0", "0")
#define UNEVEN ALL_GROUPS("1", "2", "4")
    json_t *even = plan_of(HEAD_OF_MODEL ",\"fullest_group\"" EVEN "}");
    json_t *uneven = plan_of(HEAD_OF_MODEL ",\"fullest_group\"" UNEVEN "}");
    json_t *decode =
        plan_of(HEAD_OF_MODEL ",\"fullest_group\"" EVEN ",\"fullest_group_decode\"" UNEVEN "}");
    json_t *prefill =
        plan_of(HEAD_OF_MODEL ",\"fullest_group\"" EVEN ",\"fullest_group_prefill\"" UNEVEN "}");
    const char *plan = "dp4|ep4";
    cr_assert_gt(prefill_of(uneven, plan), prefill_of(even, plan));
    cr_assert_gt(decode_of(uneven, plan), decode_of(even, plan));
    cr_expect_eq(prefill_of(decode, plan), prefill_of(even, plan));
    cr_expect_eq(decode_of(decode, plan), decode_of(uneven, plan));
    cr_expect_eq(prefill_of(prefill, plan), prefill_of(uneven, plan));
    cr_expect_eq(decode_of(prefill, plan), decode_of(even, plan));
    check_told(even, "all", "all");
    check_told(decode, "all", "decode");
    check_told(prefill, "prefill", "all");
    json_decref(even);
    json_decref(uneven);
    json_decref(decode);
    json_decref(prefill);
}
