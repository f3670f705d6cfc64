/* phasor_replay: the library's call; what the command makes of it is tests/cli/test_replay.sh.
 *
 *   parameters   are refused by name; a struct of an older program is completed
 *   result       is JSON, the same each time
 *   failures     of any allocation leave nothing behind, neither result nor memory
 */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "engine_tools.h"
#include "example.h"
#include "phasor.h"

#define BOX BOXES_DIR "/h200x2.json"

static char recording[512], trace[512];

static void make_recording(void)
{
    static struct rig rig;
    struct error err;
    const char *folder = tools_folder();
    snprintf(recording, sizeof recording, "%s/r.bin", folder);
    snprintf(trace, sizeof trace, "%s/t.json", folder);
    example_fill(&rig);
    cr_assert_eq(recording_write(&rig.recording, recording, &err), STATUS_OK, "%s", err.message);
}
TestSuite(replay, .init = make_recording, .timeout = 60);

static struct phasor_replay_params example(void)
{
    struct phasor_replay_params params = phasor_replay_params_default();
    params.recording_path = recording;
    params.box = BOX;
    return params;
}

static void expect_refused(const struct phasor_replay_params *params, const char *word)
{
    struct phasor_error err = {.message = ""};
    char *text = NULL;
    cr_expect_eq(phasor_replay(&text, params, &err), PHASOR_INVALID_ARGUMENT);
    cr_expect_not_null(strstr(err.message, word), "%s", err.message);
    cr_expect_null(text);
}

Test(replay, refuses_parameters_by_name)
{
    struct phasor_replay_params params = example();
    params.size = 0;
    expect_refused(&params, "size");
    expect_refused(NULL, "size");
    params = example();
    params.recording_path = NULL;
    expect_refused(&params, "recording");
    params = example();
    params.box = NULL;
    params.modelled = true;
    expect_refused(&params, "--modelled");
    params = example();
    params.box = NULL;
    params.scale = true;
    expect_refused(&params, "--scale");
    params = example();
    params.box = "none-such";
    expect_refused(&params, "--box");
    params = example();
    params.box = BOXES_DIR "/a6000x4.json";
    expect_refused(&params, "2");
}

Test(replay, completes_an_older_struct)
{
    struct phasor_replay_params params = example();
    char *text;
    params.modelled = true; /* behind what this program knows */
    params.size = offsetof(struct phasor_replay_params, modelled);
    cr_assert_eq(phasor_replay(&text, &params, NULL), PHASOR_OK);
    cr_expect_not_null(strstr(text, "\"label\":\"replay\""), "%s", text);
    phasor_text_free(text);
}

Test(replay, tells_the_same_each_time)
{
    struct phasor_replay_params params = example();
    char *texts[2];
    for (int i = 0; i < 2; i++)
        cr_assert_eq(phasor_replay(&texts[i], &params, NULL), PHASOR_OK);
    cr_assert_str_eq(texts[0], texts[1]);
    json_t *root = json_loads(texts[0], JSON_REJECT_DUPLICATES, NULL);
    cr_assert_not_null(root);
    cr_expect_eq(json_integer_value(json_object_get(root, "ranks")), 2);
    json_decref(root);
    phasor_text_free(texts[0]);
    phasor_text_free(texts[1]);
}

/* jansson's own allocations do not fail here. */
Test(replay, each_allocation_may_fail)
{
    struct phasor_replay_params params = example();
    struct phasor_error err;
    enum phasor_status status = PHASOR_NO_MEMORY;
    uint64_t n = 0, live = memory_counters_get().live_count;
    params.trace_path = trace;
    params.scale = true;
    while (status != PHASOR_OK && ++n < 10000) {
        char *text = NULL;
        memory_fail_at(n, 0);
        status = phasor_replay(&text, &params, &err);
        memory_fail_at(0, 0);
        cr_assert(status == PHASOR_OK || status == PHASOR_NO_MEMORY, "allocation %d: %s", (int)n,
                  err.message);
        cr_assert_eq(text != NULL, status == PHASOR_OK);
        phasor_text_free(text);
        cr_assert_eq(memory_counters_get().live_count, live, "allocation %d", (int)n);
    }
    cr_expect_gt(n, 20);
    cr_expect_eq(status, PHASOR_OK);
}
