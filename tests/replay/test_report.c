/* What a report says of times that were put together by hand.
 *
 *   walls        time is that of the lane that drives, by the phase of its nodes; what is behind
 * its last node is between phases; without such a lane it is the first one's streams computation by
 * stage, collectives by tag, as a mean over the ranks; who comes early to a collective waits for
 * others, and the rest of a gap is waiting bytes        each kind of collective counts what its
 * members send transition   what other lanes bring is hidden, but for the time in which the stream
 * waited for experts; lanes that overlap count once path         walks back from the node that ends
 * last, adds up to the whole, longest part first steps        the longest ones, and never more than
 * fit tokens       are the recording's; an `about` that is no object has none json         keys,
 * label and notes, utilisation of full and half duplex links scale        is the ratio of rates, of
 * products of prefill alone timeline     is JSON of the nodes that take time
 */
#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "replay/link_scale.h"
#include "replay/report.h"
#include "replay/timeline.h"
#include "report_tools.h"

static struct rig rig;
static struct report report;

static void make(void)
{
    struct error err;
    cr_assert_eq(report_make(&report, &rig.recording, &rig.simulation, &err), STATUS_OK);
}

static void near(double found, double expected)
{
    cr_assert(fabs(found - expected) <= 1e-12, "found %.15g, expected %.15g", found, expected);
}

/* ---- Walls ----------------------------------------------------------------------------------- */

Test(report, walls_are_of_the_lane_that_drives)
{
    rig_init(&rig, 1);
    rig_lane(&rig, LANE_STREAM, 0);
    rig_node(&rig, RECORD_DECODE, RIG_EXPERTS, 0, 9);
    rig_lane(&rig, LANE_HOST, 0); /* drives its rank alone */
    rig_node(&rig, RECORD_DECODE, 0, 0, 8);
    rig_lane(&rig, LANE_HOST, -1);
    rig_node(&rig, RECORD_BETWEEN, 0, 0, 1);
    rig_node(&rig, RECORD_PREFILL, 0, 3, 3);
    rig_node(&rig, RECORD_DECODE, 0, 4, 7);
    make();
    near(report.seconds, 9);
    near(report.phases[RECORD_PREFILL].wall_seconds, 2);
    near(report.phases[RECORD_DECODE].wall_seconds, 4);
    near(report.phases[RECORD_BETWEEN].wall_seconds, 1 + 2);
    report_deinit(&report);
}

Test(report, without_a_lane_that_drives_walls_are_of_the_first)
{
    rig_init(&rig, 1);
    rig_lane(&rig, LANE_STREAM, 0);
    rig_node(&rig, RECORD_PREFILL, RIG_EXPERTS, 0, 2);
    rig_node(&rig, RECORD_DECODE, RIG_EXPERTS, 2, 5);
    make();
    near(report.phases[RECORD_PREFILL].wall_seconds, 2);
    near(report.phases[RECORD_DECODE].wall_seconds, 3);
    near(report.phases[RECORD_BETWEEN].wall_seconds, 0);
    report_deinit(&report);
}

Test(report, of_nothing_is_nothing)
{
    rig_init(&rig, 1);
    make();
    near(report.seconds, 0);
    cr_assert_eq(report.path_count, 0);
    cr_assert_eq(report.step_count, 0);
    report_deinit(&report);
}

/* ---- Streams --------------------------------------------------------------------------------- */

Test(report, streams_are_a_mean_over_the_ranks)
{
    const struct report_phase *phase = &report.phases[RECORD_PREFILL];
    rig_init(&rig, 2);
    rig_lane(&rig, LANE_STREAM, 0);
    rig_node(&rig, RECORD_PREFILL, RIG_ATTENTION, 0, 1);
    rig_call(&rig, COLLECTIVE_OP_ALL_TO_ALL, 0, 100, RECORD_PREFILL, 3, 4);
    uint32_t first = rig_node(&rig, RECORD_PREFILL, RIG_EXPERTS, 4, 6);
    rig_lane(&rig, LANE_STREAM, 1);
    rig_node(&rig, RECORD_PREFILL, RIG_ATTENTION, 0, 3);
    rig_call(&rig, COLLECTIVE_OP_ALL_TO_ALL, 0, 100, RECORD_PREFILL, 3, 4);
    rig_node(&rig, RECORD_PREFILL, RIG_EXPERTS, 6, 7);
    rig_need(&rig, first);
    make();
    near(phase->compute_seconds[RIG_ATTENTION], (1 + 3) / 2.0);
    near(phase->compute_seconds[RIG_EXPERTS], (2 + 1) / 2.0);
    near(phase->collective_seconds[0], 1);
    near(phase->collective_seconds[1], 0);
    near(phase->others_seconds, 2 / 2.0);
    near(phase->wait_seconds, 2 / 2.0);
    near(phase->transition_seconds, 0);
    report_deinit(&report);
}

Test(report, copies_and_host_lanes_are_told_apart)
{
    const struct report_phase *phase = &report.phases[RECORD_PREFILL];
    rig_init(&rig, 1);
    rig_lane(&rig, LANE_HOST, 0);
    rig_node(&rig, RECORD_PREFILL, RIG_ATTENTION, 0, 5);
    rig_lane(&rig, LANE_STREAM, 0);
    rig.nodes[rig_node(&rig, RECORD_PREFILL, RIG_ATTENTION, 0, 2)].kind = NODE_COPY;
    make();
    near(phase->copy_seconds, 2);
    near(phase->compute_seconds[RIG_ATTENTION], 0);
    near(phase->hidden_seconds, 0);
    report_deinit(&report);
}

static uint64_t bytes_of(enum collective_op op)
{
    rig_init(&rig, 4);
    for (int r = 0; r < 4; r++) {
        rig_lane(&rig, LANE_STREAM, r);
        rig_call(&rig, op, 1, 1000, RECORD_DECODE, 0, 1);
    }
    make();
    uint64_t bytes = report.phases[RECORD_DECODE].collective_bytes[1];
    report_deinit(&report);
    return bytes;
}

Test(report, collectives_count_what_is_sent)
{
    cr_assert_eq(bytes_of(COLLECTIVE_OP_ALL_GATHER), 4 * 3 * 1000);
    cr_assert_eq(bytes_of(COLLECTIVE_OP_REDUCE_SCATTER), 4 * 3 * 1000);
    cr_assert_eq(bytes_of(COLLECTIVE_OP_ALL_REDUCE), 2 * 3 * 1000);
    cr_assert_eq(bytes_of(COLLECTIVE_OP_ALL_TO_ALL), 4 * 3 * 1000);
    cr_assert_eq(bytes_of(COLLECTIVE_OP_EXCHANGE), 4 * 4 * 1000);
}

/* ---- Transition ------------------------------------------------------------------------------ */

/* The stream computes for 3 s and then waits 1 s for what a low lane brings in 4 s. */
Test(report, a_transition_is_hidden_and_exposed)
{
    const struct report_phase *phase = &report.phases[RECORD_DECODE];
    rig_init(&rig, 1);
    rig_lane(&rig, LANE_LOW, 0);
    uint32_t brought = rig_node(&rig, RECORD_DECODE, RIG_TRANSITION, 0, 4);
    rig_lane(&rig, LANE_STREAM, 0);
    rig_node(&rig, RECORD_DECODE, RIG_EXPERTS, 0, 3);
    rig_node(&rig, RECORD_DECODE, RIG_TRANSITION, 4, 4);
    rig_need(&rig, brought);
    make();
    near(phase->transition_seconds, 1);
    near(phase->hidden_seconds, 3);
    near(phase->wait_seconds, 0);
    report_deinit(&report);
}

Test(report, lanes_beside_that_overlap_count_once)
{
    rig_init(&rig, 2);
    rig_lane(&rig, LANE_STREAM, 0);
    rig_node(&rig, RECORD_PREFILL, RIG_EXPERTS, 0, 10);
    rig_lane(&rig, LANE_LOW, 0);
    rig_node(&rig, RECORD_PREFILL, RIG_TRANSITION, 1, 4);
    rig_node(&rig, RECORD_PREFILL, RIG_TRANSITION, 6, 7);
    rig_lane(&rig, LANE_READS, 0);
    rig_node(&rig, RECORD_PREFILL, RIG_TRANSITION, 2, 5);
    make();
    near(report.phases[RECORD_PREFILL].hidden_seconds, (4 + 1) / 2.0);
    report_deinit(&report);
}

/* ---- The critical path ----------------------------------------------------------------------- */

Test(report, the_path_adds_up_to_the_whole)
{
    rig_init(&rig, 2);
    rig_lane(&rig, LANE_STREAM, 0);
    uint32_t slow = rig_node(&rig, RECORD_PREFILL, RIG_ATTENTION, 0, 5);
    rig_call(&rig, COLLECTIVE_OP_ALL_GATHER, 1, 8, RECORD_PREFILL, 5, 6);
    rig_lane(&rig, LANE_STREAM, 1);
    rig_node(&rig, RECORD_PREFILL, RIG_ATTENTION, 0, 1);
    uint32_t met = rig_call(&rig, COLLECTIVE_OP_ALL_GATHER, 1, 8, RECORD_PREFILL, 5, 6);
    rig.times[met].cause = slow;
    rig_node(&rig, RECORD_PREFILL, RIG_EXPERTS, 6, 8);
    rig_lane(&rig, LANE_HOST, -1);
    rig_node(&rig, RECORD_BETWEEN, 0, 8, 8.5);
    rig_need(&rig, met + 1);
    make();
    const struct path_part expected[] = {{PATH_COMPUTE, RIG_ATTENTION, 5, 1},
                                         {PATH_COMPUTE, RIG_EXPERTS, 2, 1},
                                         {PATH_COLLECTIVE, 1, 1, 1},
                                         {PATH_HOST, 0, 0.5, 1}};
    double sum = report.path_gap_seconds;
    cr_assert_eq(report.path_count, 4);
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(report.path[i].kind, expected[i].kind, "part %d", i);
        cr_assert_eq(report.path[i].name, expected[i].name, "part %d", i);
        cr_assert_eq(report.path[i].count, expected[i].count, "part %d", i);
        near(report.path[i].seconds, expected[i].seconds);
        sum += report.path[i].seconds;
    }
    near(sum, report.seconds);
    near(report.path_gap_seconds, 0);
    report_deinit(&report);
}

Test(report, a_gap_on_the_path_is_told)
{
    rig_init(&rig, 1);
    rig_lane(&rig, LANE_STREAM, 0);
    rig_node(&rig, RECORD_PREFILL, RIG_ATTENTION, 1, 2);
    rig_node(&rig, RECORD_PREFILL, RIG_ATTENTION, 4, 5);
    make();
    near(report.path[0].seconds, 2);
    near(report.path_gap_seconds, 1 + 2);
    report_deinit(&report);
}

Test(report, keeps_the_longest_steps)
{
    double end = 0;
    rig_init(&rig, 1);
    rig_lane(&rig, LANE_STREAM, 0);
    for (int i = 1; i <= REPORT_STEPS_MAX + 5; i++) {
        rig_node(&rig, RECORD_PREFILL, RIG_ATTENTION, end, end + i);
        end += i;
    }
    make();
    cr_assert_eq(report.step_count, REPORT_STEPS_MAX);
    for (int i = 0; i < REPORT_STEPS_MAX; i++) {
        near(report.steps[i].seconds, REPORT_STEPS_MAX + 5 - i);
        cr_assert_eq(report.steps[i].node, (uint32_t)(REPORT_STEPS_MAX + 4 - i));
    }
    report_deinit(&report);
}

/* A graph whose causes lead in a circle cannot come from simulate; it must not hang the walk. */
Test(report, a_circle_of_causes_ends)
{
    rig_init(&rig, 1);
    rig_lane(&rig, LANE_STREAM, 0);
    uint32_t node = rig_node(&rig, RECORD_PREFILL, RIG_ATTENTION, 0, 1);
    rig.times[node].cause = node;
    make();
    cr_assert_eq(report.path[0].count, 1);
    report_deinit(&report);
}

/* ---- Tokens ---------------------------------------------------------------------------------- */

Test(report, tokens_are_the_recordings)
{
    const struct {
        const char *about;
        uint64_t prefill, decode;
    } cases[] = {
        {"{\"prefill_tokens\": 1024, \"decode_tokens\": 64}", 1024, 64},
        {"{\"prefill_tokens\": -1}", 0, 0},
        {"{\"decode_tokens\": \"7\"}", 0, 0},
        {"{}", 0, 0},
        {"[1]", 0, 0},
        {"no json", 0, 0},
        {NULL, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig_init(&rig, 1);
        rig.recording.about = (char *)(uintptr_t)cases[i].about;
        make();
        cr_assert_eq(report.phases[RECORD_PREFILL].tokens, cases[i].prefill, "case %zu", i);
        cr_assert_eq(report.phases[RECORD_DECODE].tokens, cases[i].decode, "case %zu", i);
        report_deinit(&report);
    }
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static struct box_model box = {
    .name = "two",
    .title = "a title with \"quotes\"",
    .rank_count = 2,
    .link_count = 2,
    .links = {{.name = "full", .bytes_per_second = 100},
              {.name = "half", .bytes_per_second = 50, .is_half_duplex = true}},
};

static json_t *write_json(struct report_subject subject)
{
    struct text text = {0};
    make();
    subject.recording = &rig.recording;
    subject.simulation = &rig.simulation;
    report_write(&text, &report, &subject);
    report_deinit(&report);
    json_error_t error;
    json_t *root = json_loads(text.bytes, 0, &error);
    cr_assert_not_null(root, "%s: %s", error.text, text.bytes);
    text_deinit(&text);
    return root;
}

static double at(const json_t *root, const char *where)
{
    char path[128], *save = NULL;
    snprintf(path, sizeof path, "%s", where);
    for (char *key = strtok_r(path, "/", &save); key != NULL; key = strtok_r(NULL, "/", &save))
        root = json_is_array(root) ? json_array_get(root, (size_t)atoi(key))
                                   : json_object_get(root, key);
    cr_assert(json_is_number(root), "no number at %s", where);
    return json_number_value(root);
}

Test(report, json_has_phases_path_and_links)
{
    struct link_use uses[] = {{.busy_seconds = 2, .bytes = {200, 50}},
                              {.busy_seconds = 1, .bytes = {100, 0}}};
    rig_init(&rig, 2);
    rig.recording.about = (char *)(uintptr_t) "{\"model\": \"m\", \"prefill_tokens\": 30}";
    rig.recording.wall_seconds = 20;
    rig.simulation.links = uses;
    rig_lane(&rig, LANE_STREAM, 0);
    rig_node(&rig, RECORD_PREFILL, RIG_ATTENTION, 0, 3);
    rig_call(&rig, COLLECTIVE_OP_ALL_GATHER, 0, 8, RECORD_PREFILL, 3, 4);
    json_t *root = write_json((struct report_subject){.box = &box});
    cr_assert_str_eq(json_string_value(json_object_get(root, "label")), "replay");
    cr_assert_str_eq(json_string_value(json_object_get(root, "box")), "two");
    cr_assert_eq(json_array_size(json_object_get(root, "notes")), 0);
    cr_assert_null(json_object_get(root, "link_scale"));
    near(at(root, "ranks"), 2);
    near(at(root, "seconds"), 4);
    near(at(root, "recorded_seconds"), 20);
    near(at(root, "about/prefill_tokens"), 30);
    near(at(root, "phases/prefill/wall_seconds"), 4);
    near(at(root, "phases/prefill/tokens_per_second"), 7.5);
    near(at(root, "phases/prefill/compute/attention/seconds"), 1.5);
    near(at(root, "phases/prefill/collectives/dispatch/bytes"), 8);
    near(at(root, "phases/decode/waits/others"), 0);
    near(at(root, "critical_path/parts/0/seconds"), 3);
    near(at(root, "critical_path/longest/1/begin"), 3);
    near(at(root, "links/0/busy"), 0.5);
    near(at(root, "links/0/used/0"), 0.5);
    near(at(root, "links/0/used/1"), 0.125);
    near(at(root, "links/1/used/0"), 0.5);
    cr_assert_eq(
        json_array_size(json_object_get(json_array_get(json_object_get(root, "links"), 1), "used")),
        1);
    json_decref(root);
}

Test(report, json_says_what_the_times_are)
{
    struct link_use uses[2] = {{.bytes = {100, 0}}};
    rig_init(&rig, 1);
    rig.recording.about = (char *)(uintptr_t) "broken";
    rig_lane(&rig, LANE_STREAM, 0);
    rig_node(&rig, RECORD_PREFILL, RIG_ATTENTION, 0, 4);
    json_t *root = write_json((struct report_subject){.box = NULL});
    cr_assert_str_eq(json_string_value(json_object_get(root, "label")), "as recorded");
    cr_assert(json_is_null(json_object_get(root, "box")));
    cr_assert_eq(json_object_size(json_object_get(root, "about")), 0);
    json_decref(root);
    rig.simulation.links = uses;
    root = write_json((struct report_subject){.box = &box, .durations = DURATIONS_MODELLED});
    cr_assert_str_eq(json_string_value(json_object_get(root, "label")), "modelled");
    json_decref(root);
    root = write_json((struct report_subject){.box = &box, .link_scale = 0.25});
    const char *note = json_string_value(json_array_get(json_object_get(root, "notes"), 0));
    cr_assert_not_null(strstr(note, "decode are not valid"), "%s", note);
    near(at(root, "link_scale"), 0.25);
    near(at(root, "links/0/used/0"), 1);
    json_decref(root);
}

/* The file is whoever's: numbers that cannot be are no reason to fail. */
Test(report, json_says_whether_it_is_of_a_part)
{
    static const struct {
        const char *about, *note; /* NULL: of a whole run */
    } cases[] = {
        {"{\"rows\": 4, \"rows_before\": 3}", "had done 3 of its 4 rows"},
        {"{\"rows_before\": 3}", "had done 3 of its rows"},
        {"{\"rows\": 2, \"rows_before\": 3}", "had done 3 of its rows"},
        {"{\"rows\": 4, \"rows_before\": 0}", NULL},
        {"{\"rows\": 4, \"rows_before\": -3}", NULL},
        {"{\"rows\": 4, \"rows_before\": \"3\"}", NULL},
        {"{\"rows\": 4}", NULL},
        {"[]", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig_init(&rig, 1);
        rig.recording.about = (char *)(uintptr_t)cases[i].about;
        json_t *root = write_json((struct report_subject){.box = NULL});
        const json_t *notes = json_object_get(root, "notes");
        cr_assert_eq(json_is_true(json_object_get(root, "partial")), cases[i].note != NULL);
        cr_assert_eq(json_array_size(notes), cases[i].note != NULL, "case %zu", i);
        cr_assert(cases[i].note == NULL ||
                      strstr(json_string_value(json_array_get(notes, 0)), cases[i].note) != NULL,
                  "case %zu", i);
        json_decref(root);
    }
}

/* ---- Scale ----------------------------------------------------------------------------------- */

static uint32_t product(int work, enum record_phase phase, uint64_t flops, uint64_t ns)
{
    uint32_t node = rig_node(&rig, phase, RIG_EXPERTS, 0, 1);
    rig.nodes[node].work = (uint8_t)work;
    rig.nodes[node].flops = flops;
    rig.nodes[node].duration_ns = ns;
    return node;
}

Test(report, scale_is_the_ratio_of_rates)
{
    struct error err;
    double scale;
    box.device.peak_flops = 1000;
    for (int i = 0; i < WORK_KIND_COUNT; i++)
        box.device.flops_efficiency[i] = 1;
    box.device.flops_efficiency[WORK_ATTENTION] = 0.5;
    rig_init(&rig, 1);
    rig_lane(&rig, LANE_STREAM, 0);
    product(WORK_ROWS, RECORD_PREFILL, 1, 1000);
    product(WORK_MATMUL, RECORD_DECODE, 1, 1000);
    cr_assert_eq(link_scale_get(&scale, &rig.recording, &box, &err), STATUS_INVALID_ARGUMENT);
    cr_assert_not_null(strstr(err.message, "--scale"), "%s", err.message);
    /* 4 s here; on the box 100 / 1000 + 200 / (1000 x 0.5) s. */
    product(WORK_MATMUL, RECORD_PREFILL, 100, 1000000000);
    product(WORK_ATTENTION, RECORD_PREFILL, 200, 3000000000);
    cr_assert_eq(link_scale_get(&scale, &rig.recording, &box, &err), STATUS_OK);
    near(scale, (0.1 + 0.4) / 4);
}

/* ---- Timeline -------------------------------------------------------------------------------- */

Test(report, a_timeline_has_the_nodes_that_take_time)
{
    struct text text = {0};
    rig_init(&rig, 2);
    rig_lane(&rig, LANE_HOST, -1);
    rig_lane(&rig, LANE_STREAM, 1);
    rig_node(&rig, RECORD_PREFILL, RIG_ATTENTION, 1e-6, 3.5e-6);
    rig_node(&rig, RECORD_PREFILL, RIG_ATTENTION, 4e-6, 4e-6);
    timeline_write(&text, &rig.recording, &rig.simulation, "replay");
    json_t *root = json_loads(text.bytes, 0, NULL);
    cr_assert_not_null(root, "%s", text.bytes);
    const json_t *events = json_object_get(root, "traceEvents");
    cr_assert_eq(json_array_size(events), 3); /* two names, one node */
    const json_t *node = json_array_get(events, 2);
    near(at(node, "ts"), 1);
    near(at(node, "dur"), 2.5);
    near(at(node, "pid"), 2);
    cr_assert_str_eq(json_string_value(json_object_get(node, "cat")), "attention");
    cr_assert_str_eq(
        json_string_value(json_object_get(json_object_get(root, "otherData"), "times")), "replay");
    json_decref(root);
    text_deinit(&text);
}
