/* The file of --trace: what a viewer must be able to rely on, and that it tells of what ran. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "engine_tools.h"
#include "exec/stage.h"
#include "phasor.h"

#define MODEL  MODELS_DIR "/kjv-moe"
#define LAYERS 6
#define RANKS  2

static json_t *trace_of(const char *plan, enum phasor_transition transition,
                        struct phasor_batch_result *result)
{
    static const char rows[] =
        "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\","
        "\"body\":{\"prompt\":[3,1,4,1,5,9,2,6],\"max_tokens\":4,\"ignore_eos\":true}}\n"
        "{\"custom_id\":\"b\",\"method\":\"POST\",\"url\":\"/v1/completions\","
        "\"body\":{\"prompt\":[2,7,1,8],\"max_tokens\":4,\"ignore_eos\":true}}\n";
    const char *folder = tools_folder();
    struct phasor_model *model;
    struct phasor_error err;
    size_t length;
    setenv("PHASOR_CACHE", tools_path(folder, "cache"), 1);
    tools_write_file(tools_path(folder, "in"), rows, sizeof rows - 1);
    struct phasor_model_params params = phasor_model_params_default();
    params.model = MODEL;
    params.devices = "cpu:2";
    params.plan = plan;
    params.transition = transition;
    struct phasor_batch_params batch = phasor_batch_params_default();
    batch.input_path = tools_path(folder, "in");
    batch.output_path = tools_path(folder, "out");
    batch.trace_path = tools_path(folder, "trace");
    batch.overwrite = true;
    batch.max_num_seqs = 4;
    batch.kv_bytes = 1 << 24;
    cr_assert_eq(phasor_model_open(&model, &params, &err), PHASOR_OK, "%s", err.message);
    cr_assert_eq(phasor_batch_run(model, &batch, result, &err), PHASOR_OK, "%s", err.message);
    phasor_model_close(model);
    char *text = tools_read_file(batch.trace_path, &length);
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    cr_assert_not_null(root, "the trace is no JSON: %.200s", text);
    free(text);
    return root;
}

static const char *text_in(const json_t *event, const char *key)
{
    const char *text = json_string_value(json_object_get(event, key));
    return text == NULL ? "" : text;
}

static double number_in(const json_t *event, const char *key)
{
    return json_number_value(json_object_get(event, key));
}

static int64_t int_in(const json_t *event, const char *key)
{
    const json_t *value = json_object_get(event, key);
    cr_assert(json_is_integer(value), "\"%s\" is missing", key);
    return json_integer_value(value);
}

static bool is_span(const json_t *event, const char *kind, const char *name)
{
    return strcmp(text_in(event, "ph"), "X") == 0 && strcmp(text_in(event, "cat"), kind) == 0 &&
           (name == NULL || strcmp(text_in(event, "name"), name) == 0);
}

/* Spans on a rank (-1: of none; -2: of any). */
static int64_t spans_of(const json_t *root, int rank, const char *kind, const char *name)
{
    const json_t *events = json_object_get(root, "traceEvents");
    int64_t count = 0;
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *event = json_array_get(events, i);
        count += is_span(event, kind, name) && (rank == -2 || int_in(event, "pid") == rank + 1);
    }
    return count;
}

/* Bytes of spans on a rank. */
static int64_t bytes_of(const json_t *root, int rank, const char *name)
{
    const json_t *events = json_object_get(root, "traceEvents");
    int64_t bytes = 0;
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *event = json_array_get(events, i);
        if (is_span(event, "operation", name) && int_in(event, "pid") == rank + 1)
            bytes += json_integer_value(json_object_get(json_object_get(event, "args"), "bytes"));
    }
    return bytes;
}

/* A viewer nests spans of a lane by their times alone, the earlier line outside: so each begins
 * behind the end of an open one, or ends with or before it. Sorted by begin, as a viewer does. */
struct placed {
    double begin, end;
    size_t line;
};

static int earlier(const void *a, const void *b)
{
    const struct placed *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->line < y->line ? -1 : 1;
}

static void expect_nested(const json_t *root, int64_t lane)
{
    const json_t *events = json_object_get(root, "traceEvents");
    struct placed *placed = malloc((json_array_size(events) + 1) * sizeof *placed);
    double open[16];
    size_t count = 0, depth = 0;
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *event = json_array_get(events, i);
        if (strcmp(text_in(event, "ph"), "X") != 0 || int_in(event, "tid") != lane)
            continue;
        double begin = number_in(event, "ts"), length = number_in(event, "dur");
        cr_expect_geq(begin, 0);
        cr_expect_geq(length, 0);
        placed[count++] = (struct placed){begin, begin + length, i};
    }
    qsort(placed, count, sizeof *placed, earlier);
    for (size_t i = 0; i < count; i++) {
        while (depth > 0 && open[depth - 1] <= placed[i].begin + 0.0015) /* it is to the ns */
            depth--;
        cr_expect(depth == 0 || placed[i].end <= open[depth - 1] + 0.0015,
                  "lane %lld: line %zu ends at %.3f, and the one around it at %.3f",
                  (long long)lane, placed[i].line, placed[i].end, open[depth - 1]);
        cr_assert_lt(depth, 16);
        open[depth++] = placed[i].end;
    }
    free(placed);
}

static bool lane_has_span(const json_t *root, int64_t lane)
{
    const json_t *events = json_object_get(root, "traceEvents");
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *event = json_array_get(events, i);
        if (strcmp(text_in(event, "ph"), "X") == 0 && int_in(event, "tid") == lane)
            return true;
    }
    return false;
}

/* A rank whose device was made anew has lanes that nothing runs on: none of them is in the file. */
static void expect_no_empty_lane(const json_t *root, int64_t lanes)
{
    for (int64_t lane = 1; lane <= lanes; lane++)
        cr_expect(lane_has_span(root, lane), "lane %lld has no span", (long long)lane);
}

/* Each lane has a name, and each rank. */
static int64_t expect_names(const json_t *root)
{
    const json_t *events = json_object_get(root, "traceEvents");
    int64_t lanes = 0;
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *event = json_array_get(events, i);
        lanes += strcmp(text_in(event, "ph"), "M") == 0 &&
                 strcmp(text_in(event, "name"), "thread_name") == 0;
        cr_expect_neq(*text_in(event, "name"), 0);
        if (strcmp(text_in(event, "ph"), "X") == 0)
            cr_expect_leq(int_in(event, "tid"), lanes, "a span on a lane that has no name");
    }
    return lanes;
}

struct trace_case {
    const char *plan;
    enum phasor_transition transition;
    const char *moves; /* what brings experts; NULL: they stay */
};

static const struct trace_case cases[] = {
    {"tp2|tp2", PHASOR_TRANSITION_AUTO, NULL},
    {"dp2|ep2>tp2", PHASOR_TRANSITION_KEEP, NULL},
    {"dp2|ep2>tp2", PHASOR_TRANSITION_RELOAD, "read again"},
    {"dp2|ep2>tp2", PHASOR_TRANSITION_RESHARD, "transition"},
    {"dp2|ep2>tp2", PHASOR_TRANSITION_MIXED, "read again"},
    {"dp2|ep2>tp2", PHASOR_TRANSITION_UPLOAD, "check"},
    {"dp2|ep2>tp2", PHASOR_TRANSITION_UPLOAD, "check"},
};

static void expect_run(const json_t *root, const struct trace_case *of,
                       const struct phasor_batch_result *result)
{
    int64_t prefills = spans_of(root, -1, "operation", "prefill pass");
    int64_t decodes = spans_of(root, -1, "operation", "decode pass");
    cr_expect_geq(prefills, 1);
    cr_expect_eq(decodes, 3, "%s: %lld decode passes", of->plan, (long long)decodes);
    for (int r = 0; r < RANKS; r++) {
        int64_t passes = (prefills + decodes) * LAYERS;
        cr_expect_eq(spans_of(root, r, "operation", "ffn_up"), passes);
        cr_expect_eq(spans_of(root, r, "operation", "ffn_down"), passes);
        cr_expect_eq(spans_of(root, r, "operation", "attention"), passes);
        cr_expect_eq(spans_of(root, r, "stage", "experts"), passes);
        cr_expect_geq(spans_of(root, r, "stage", "collective"), passes);
        cr_expect_geq(spans_of(root, r, "layer", "layer 5"), prefills + decodes);
        cr_expect_eq(spans_of(root, r, "operation", "call"), 0, "work without a name");
        if (of->moves != NULL)
            cr_expect_gt(spans_of(root, r, "operation", of->moves), 0);
    }
    bool is_upload = of->transition == PHASOR_TRANSITION_UPLOAD;
    for (int r = 0; r < RANKS; r++) {
        cr_expect_eq(bytes_of(root, r, "read") > 0, is_upload);
        cr_expect_geq(bytes_of(root, r, "check"), bytes_of(root, r, "read"));
    }
    int64_t waits = spans_of(root, -2, "operation", "wait for the others");
    cr_expect_gt(waits, 0);
    cr_expect(of->transition == PHASOR_TRANSITION_UPLOAD || /* whose way back it is */
              (spans_of(root, -1, "operation", "reload") > 0) ==
                  (of->transition == PHASOR_TRANSITION_RELOAD));
    cr_expect((spans_of(root, -1, "operation", "upload") > 0) ==
              (of->transition == PHASOR_TRANSITION_UPLOAD));
    for (int kind = 0; kind < PHASOR_COLLECTIVE_COUNT; kind++) {
        int64_t bytes = 0;
        for (int r = 0; r < RANKS; r++)
            bytes += bytes_of(root, r, phasor_collective_name(kind));
        cr_expect_eq(bytes, (int64_t)result->collective_bytes[kind], "%s: %s: %lld bytes, not %lld",
                     of->plan, phasor_collective_name(kind), (long long)bytes,
                     (long long)result->collective_bytes[kind]);
    }
}

Test(trace_file, tells_what_ran_on_each_rank)
{
    setenv("PHASOR_CACHE", tools_path(tools_folder(), "cache"), 1); /* for the backup */
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct phasor_batch_result result;
        json_t *root = trace_of(cases[c].plan, cases[c].transition, &result);
        cr_expect_str_eq(text_in(json_object_get(root, "otherData"), "plan"), cases[c].plan);
        int64_t lanes = expect_names(root);
        expect_no_empty_lane(root, lanes);
        cr_expect_geq(lanes, 1 + RANKS);
        for (int64_t lane = 1; lane <= lanes; lane++)
            expect_nested(root, lane);
        expect_run(root, &cases[c], &result);
        json_decref(root);
    }
}

/* As for the other files about a run (test_run_files.c): it destroys nothing of others. */
Test(trace_file, replaces_only_what_phasor_wrote)
{
    static const char *const found[] = {"",
                                        "{\"displayTimeUnit\":\"ms\",\"otherData\":"
                                        "{\"program\":\"phasor 0.0.9\"}}",
                                        "{\"displayTimeUnit\":\"ms\"}"};
    const bool is_own[] = {true, true, false};
    const char *folder = tools_folder();
    struct phasor_error err;
    struct phasor_batch_params batch = phasor_batch_params_default();
    tools_write_file(tools_path(folder, "in"), "", 0);
    batch.input_path = tools_path(folder, "in");
    batch.output_path = tools_path(folder, "out");
    batch.trace_path = tools_path(folder, "trace");
    for (int i = 0; i < 3; i++) {
        tools_write_file(batch.trace_path, found[i], strlen(found[i]));
        cr_expect_eq(phasor_batch_check(&batch, &err),
                     is_own[i] ? PHASOR_OK : PHASOR_INVALID_ARGUMENT, "%s", found[i]);
    }
    cr_expect_not_null(strstr(err.message, "--trace: "), "%s", err.message);
    batch.summary_path = batch.trace_path = tools_path(folder, "both");
    cr_expect_eq(phasor_batch_check(&batch, &err), PHASOR_INVALID_ARGUMENT);
    cr_expect_not_null(strstr(err.message, "another file of this run"), "%s", err.message);
}
