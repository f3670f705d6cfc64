/* A batch on several ranks: what a user asks for on the command line, through the public interface.
 * In f32 the text does not depend on how the weights lie. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "engine_tools.h"
#include "phasor.h"

#define MODEL MODELS_DIR "/kjv-moe"

#define ROW(id, body)                                                                              \
    "{\"custom_id\":\"" id "\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{" body    \
    "}}\n"

/* Lengths and sampling of all kinds; more rows than run at once, a number that no Ad divides. */
static const char lines[] =
    ROW("greedy", "\"prompt\":\"In the beginning\",\"max_tokens\":20,\"temperature\":0") ROW(
        "sampled", "\"prompt\":\"And Moses said\",\"max_tokens\":16,\"temperature\":0.8,"
                   "\"top_p\":0.9,\"seed\":11")
        ROW("twice", "\"prompt\":\"Behold\",\"max_tokens\":8,\"temperature\":1,\"n\":2,\"seed\":3")
            ROW("short", "\"prompt\":\"the\",\"max_tokens\":1,\"temperature\":0") ROW(
                "scored",
                "\"prompt\":\"The LORD is my shepherd; I shall not want.\",\"max_tokens\":4,"
                "\"temperature\":0,\"logprobs\":2,\"echo\":true")
                ROW("ids",
                    "\"prompt\":[5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21],\"max_tokens\":9,"
                    "\"temperature\":0.5,\"seed\":1");

static struct phasor_model_params params_of(const char *devices, const char *plan)
{
    struct phasor_model_params params = phasor_model_params_default();
    params.model = MODEL;
    params.dtype = PHASOR_DTYPE_FLOAT32;
    params.devices = devices;
    params.plan = plan;
    return params;
}

static json_t *rows_of(const char *devices, const char *plan, enum phasor_transition transition)
{
    const char *input = tools_path(tools_folder(), "in");
    const char *output = tools_path(tools_folder(), "out");
    struct phasor_batch_result result;
    struct phasor_model *model;
    struct phasor_error err;
    struct phasor_model_params params = params_of(devices, plan);
    params.transition = transition;
    tools_write_file(input, lines, sizeof lines - 1);
    unlink(output);
    cr_assert_eq(phasor_model_open(&model, &params, &err), PHASOR_OK, "%s", err.message);
    struct phasor_batch_params batch = phasor_batch_params_default();
    batch.input_path = input;
    batch.output_path = output;
    batch.max_num_seqs = 4;
    batch.max_num_batched_tokens = 24; /* prompts go in chunks */
    batch.max_model_len = 64;
    cr_assert_eq(phasor_batch_run(model, &batch, &result, &err), PHASOR_OK, "%s", err.message);
    cr_assert_eq(result.completed, 6);
    bool has_two = plan != NULL && strchr(plan, '>') != NULL;
    cr_assert_eq(result.transitions > 0, has_two);
    bool sends = has_two && transition == PHASOR_TRANSITION_RESHARD;
    cr_assert(!sends || result.collective_bytes[PHASOR_COLLECTIVE_COUNT - 1] > 0);
    phasor_model_close(model);
    return tools_read_rows(output);
}

static const json_t *choices_of(const json_t *rows, const char *id)
{
    const json_t *response = json_object_get(tools_row(rows, id), "response");
    return json_object_get(json_object_get(response, "body"), "choices");
}

/* Equal but for numbers, which may differ by rounding. */
static bool is_like(const json_t *a, const json_t *b)
{
    if (json_is_real(a) && json_is_real(b))
        return fabs(json_real_value(a) - json_real_value(b)) < 1e-3;
    if (json_typeof(a) != json_typeof(b))
        return false;
    if (json_is_array(a)) {
        for (size_t i = 0; i < json_array_size(a); i++) {
            if (i >= json_array_size(b) || !is_like(json_array_get(a, i), json_array_get(b, i)))
                return false;
        }
        return json_array_size(a) == json_array_size(b);
    }
    if (json_is_object(a)) {
        const char *key;
        json_t *value;
        json_object_foreach((json_t *)a, key, value)
        {
            const json_t *other = json_object_get(b, key);
            if (other == NULL || !is_like(value, other))
                return false;
        }
        return json_object_size(a) == json_object_size(b);
    }
    return json_equal(a, b);
}

Test(ranks, a_batch_does_not_depend_on_the_layout, .timeout = 300)
{
    static const struct {
        const char *devices, *plan;
        enum phasor_transition transition;
    } cases[] = {
        {"cpu:2", NULL, 0},
        {"cpu:2", "dp2|ep2", 0},
        {"cpu:4", "tp4|ep4", 0},
        {"cpu:4", "dp4|tp4", 0},
        {"cpu:4", "tp2dp2|tp2ep2", 0},
        {"cpu:8", "dp8|ep8", 0},
        {"cpu:8", "tp8|tp2ep4", 0},
        {"cpu:8", "tp2dp4|tp8", 0},
        {"cpu:2", "dp2|ep2>tp2", PHASOR_TRANSITION_AUTO},
        {"cpu:4", "dp4|ep4>tp4", PHASOR_TRANSITION_KEEP},
        {"cpu:4", "dp4|ep4>tp4", PHASOR_TRANSITION_RESHARD},
        {"cpu:8", "tp2dp4|tp8>tp2ep4", PHASOR_TRANSITION_RELOAD},
    };
    static const char *const ids[] = {"greedy", "sampled", "twice", "short", "scored", "ids"};
    json_t *alone = rows_of(NULL, NULL, 0);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        json_t *rows = rows_of(cases[c].devices, cases[c].plan, cases[c].transition);
        for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
            const json_t *found = choices_of(rows, ids[i]), *expected = choices_of(alone, ids[i]);
            cr_assert(json_array_size(expected) > 0 && is_like(found, expected), "%s %s, row %s",
                      cases[c].devices, cases[c].plan, ids[i]);
        }
        json_decref(rows);
    }
    json_decref(alone);
}

/* What cannot be is told before anything is loaded, with its rule. */
Test(ranks, what_cannot_be_is_told)
{
    static const struct {
        const char *devices, *plan, *fragment;
    } cases[] = {
        {"cpu:0", NULL, "--devices: expected cpu, cpu:N"},
        {"cuda", NULL, "found \"cuda\""},
        {"cuda:", NULL, "GPUs such as cuda:0, cuda:0-3, cuda:0,2 or cuda:0x4"},
        {"cpu:65", NULL, "from 1 to 64"},
        {"cpu:-1", NULL, "found \"cpu:-1\""},
        {"cpu:2x", NULL, "--devices"},
        {"gpu", NULL, "--devices"},
        {"cpu:999999999999", NULL, "--devices"},
        {"cpu:16", "tp16|tp16", "cannot be cut 16 ways"},
        {"cpu:4", "tp2|tp4", "--plan"},
        {"cpu:4", "nonsense", "--plan"},
        {"cpu:4", "dp4|ep4>tp2", "--plan"},
        {"cpu:4", "dp4|ep4:int4>tp4", "--plan"},
        {"cpu:16", "tp8dp2|tp2ep8>tp16",
         "in decode: an expert's width of 256 cannot be cut 16 ways"},
        {"cpu", "tp4|tp4", "--plan"},
        {"cpu:3", "dp3|ep3", "cannot"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct phasor_model *model = NULL;
        struct phasor_error err;
        struct phasor_model_params params = params_of(cases[c].devices, cases[c].plan);
        enum phasor_status status = phasor_model_open(&model, &params, &err);
        cr_assert(status == PHASOR_INVALID_ARGUMENT || status == PHASOR_UNSUPPORTED, "%s %s: %s",
                  cases[c].devices, cases[c].plan, err.message);
        cr_assert_null(model);
        cr_assert_not_null(strstr(err.message, cases[c].fragment), "%s", err.message);
        printf("%s %s: %s\n", cases[c].devices, cases[c].plan, err.message);
    }
}
