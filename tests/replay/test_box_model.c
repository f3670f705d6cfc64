/* What a box file says, and what it may not say. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "builder.h"

static char *text;
static size_t length;
static struct box_model box;

/* The example of the documentation, between the line that begins it and the one that ends it. */
static void begin(void)
{
    struct error err;
    char *page, *from;
    cr_assert_eq(
        file_read_whole(&page, &length, TEST_DATA "/../../docs/box-format.md", 1 << 20, &err),
        STATUS_OK, "%s", err.message);
    from = strstr(page, "```json\n{\n  \"format\"");
    cr_assert_not_null(from);
    from += strlen("```json\n");
    length = (size_t)(strstr(from, "```") - from);
    text = memory_copy_text(from, length);
    memory_free(page);
}

static void end(void)
{
    memory_free(text);
}

TestSuite(box_file, .init = begin, .fini = end);

static enum status parse(struct error *err)
{
    json_t *json;
    TRY(json_parse_object(&json, text, strlen(text), "box.json", err));
    enum status status = box_model_of(&box, json, "box.json", 0, err);
    json_decref(json);
    return status;
}

/* Puts `with` in the place of the first `what`. */
static void change(const char *what, const char *with)
{
    char *at = strstr(text, what);
    cr_assert_not_null(at, "%s", what);
    size_t before = (size_t)(at - text), bytes = strlen(text) + strlen(with) + 1;
    char *changed = memory_alloc(bytes, 1);
    snprintf(changed, bytes, "%.*s%s%s", (int)before, text, with, at + strlen(what));
    memory_free(text);
    text = changed;
}

Test(box_file, the_example_of_the_documentation)
{
    struct error err;
    cr_assert_eq(parse(&err), STATUS_OK, "%s", err.message);
    cr_assert_str_eq(box.name, "example4");
    cr_assert_eq(box.rank_count, 4);
    cr_assert_eq(box.end_count, 8);
    cr_assert_str_eq(box.end_names[2], "gpu2");
    cr_assert_str_eq(box.end_names[box.host], "host");
    cr_assert_str_eq(box.end_names[box.disk], "disk");
    cr_assert_eq(box.link_count, 7);
    cr_assert_str_eq(box.links[4].name, "uplink0");
    cr_assert_eq(box.links[0].bytes_per_second, 25e9);
    cr_assert_float_eq(box.links[6].latency, 80e-6, 1e-18);
    cr_assert(box.links[6].is_half_duplex && !box.links[0].is_half_duplex);
    cr_assert_float_eq(box.device.peak_flops, 154.8e12, 1);
    cr_assert_eq(box.device.memory_bytes, 48ULL << 30);
    cr_assert_eq(box.device.flops_efficiency[WORK_FFN_UP], 0.7);
    cr_assert_eq(box.device.bytes_efficiency[WORK_DEQUANTIZE], 0.85);
    cr_assert_eq(box.collectives[COLLECTIVE_OP_ALL_REDUCE].algorithm, ALGORITHM_RING);
    cr_assert_eq(box.collectives[COLLECTIVE_OP_ALL_REDUCE].protocol_count, 2);
    cr_assert_str_eq(box.collectives[COLLECTIVE_OP_ALL_TO_ALL].protocols[0].name, "simple");
    cr_assert_float_eq(box.collectives[COLLECTIVE_OP_EXCHANGE].protocols[0].step_latency, 5e-6,
                       1e-18);
    cr_assert_eq(box.memory_count, 0);
    for (int rank = 0; rank < RECORDING_RANKS_MAX; rank++)
        cr_assert_eq(box.memory_of[rank], -1);
    cr_assert_not(box.has_one_slot);
}

Test(box_file, memories_and_one_slot)
{
    struct error err;
    change("\"numbers\"", "\"compute_slots\": \"one\", \"memories\": [{\"ranks\": [1, 2], "
                          "\"bandwidth\": {\"value\": 2, \"unit\": \"MiB/s\", \"source\": \"s\"}}],"
                          "\"numbers\"");
    change("\"between\": [\"gpu1\"", "\"between\": [\"rank1\"");
    cr_assert_eq(parse(&err), STATUS_OK, "%s", err.message);
    cr_assert(box.has_one_slot);
    cr_assert_eq(box.memory_of[0], -1);
    cr_assert_eq(box.memory_of[2], 0);
    cr_assert_eq(box.memory_bytes_per_second[0], 2097152);
    cr_assert_eq(box.links[1].ends[0], 1);
    cr_assert_eq(box.host_bytes, 0);
}

Test(box_file, the_host_may_have_memory)
{
    struct error err;
    change("\"numbers\"",
           "\"host_memory\": {\"value\": 256, \"unit\": \"GiB\", \"source\": \"s\"}, "
           "\"numbers\"");
    cr_assert_eq(parse(&err), STATUS_OK, "%s", err.message);
    cr_assert_eq(box.host_bytes, 256ULL << 30);
}

Test(box_file, messages_may_have_latency)
{
    struct error err;
    change("\"efficiency\": {\"value\": 0.95,",
           "\"message_latency\": {\"value\": 3, \"unit\": \"us\", \"source\": \"s\"}, "
           "\"efficiency\": {\"value\": 0.95,");
    cr_assert_eq(parse(&err), STATUS_OK, "%s", err.message);
    cr_assert_float_eq(box.collectives[COLLECTIVE_OP_EXCHANGE].protocols[0].message_latency, 3e-6,
                       1e-18);
    cr_assert_eq(box.collectives[COLLECTIVE_OP_ALL_GATHER].protocols[0].message_latency, 0);
}

Test(box_file, is_read)
{
    struct error err;
    char path[] = "/tmp/phasor-box-XXXXXX";
    int fd = mkstemp(path);
    cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    cr_assert_eq(box_model_read(&box, path, &err), STATUS_OK, "%s", err.message);
    unlink(path);
    cr_assert_eq(box_model_read(&box, path, &err), STATUS_NOT_FOUND);
}

Test(box_file, refuses_what_it_does_not_mean)
{
    static const struct {
        const char *what, *with, *word;
    } cases[] = {
        {"{", "[", "JSON"},
        {"\"phasor box\"", "\"box\"", "\"format\": expected \"phasor box\""},
        {"\"version\": 1", "\"version\": 2", "\"version\""},
        {"\"example4\"", "\"a b\"", "\"name\""},
        {"\"example4\"", "\"abcdefghijklmnopqrstuvwxyz0123456\"", "1 to 31 bytes"},
        {"\"example4\"", "\"\"", "1 to 31 bytes"},
        {"\"ranks\": 4", "\"ranks\": 65", "\"ranks\""},
        {"\"ranks\": 4", "\"ranks\": 3", "there is no gpu3"},
        {"\"ranks\": 4", "\"ranks\": 5", "joins gpu4"},
        {"\"title\"", "\"titel\"", "\"titel\" is no key"},
        {"\"duplex\": \"full\"", "\"duplex\": \"both\"",
         "box.json: links[0]: \"duplex\": \"both\""},
        {"\"duplex\": \"full\",", "", "links[0]: \"duplex\": expected a string, found nothing"},
        {"\"name\": \"gpu1\"", "\"name\": \"gpu0\"", "links[1]: \"name\": another link"},
        {"[\"gpu0\", \"switch0\"]", "[\"gpu0\", \"swich0\"]", "swich0 is the end of one link"},
        {"[\"gpu0\", \"switch0\"]", "[\"gpu0\", \"gpu0\"]", "are one"},
        {"[\"gpu0\", \"switch0\"]", "[\"gpu0\"]", "expected 2 to 2 entries"},
        {"[\"gpu0\", \"switch0\"]", "[\"gpu0\", 7]", "expected two strings"},
        {"[\"gpu0\", \"switch0\"]", "[\"gpu0\", \"Switch\"]", "expected names"},
        {"[\"switch0\", \"host\"]", "[\"switch0\", \"switch1\"]", ""}, /* is allowed */
        {"[\"disk\", \"host\"]", "[\"disk\", \"gpu0\"]", "joins disk and host"},
        {"\"latency\": \"pcie_hop\"", "\"latency\": \"hop\"", "\"numbers\" has no \"hop\""},
        {"\"latency\": \"pcie_hop\"", "\"latency\": 3", "expected an object"},
        {"\"latency\": \"pcie_hop\"", "\"latency\": \"pcie4_x16\"", "none for this number"},
        {"\"unit\": \"GB/s\"", "\"unit\": \"Gb/s\"", "pcie4_x16: \"unit\": \"Gb/s\""},
        {"\"unit\": \"GB/s\", ", "", "\"unit\": is missing"},
        {"\"value\": 0.7,", "\"value\": 0.7, \"unit\": \"s\",", "a share has none"},
        {"\"value\": 0.7", "\"value\": 1.1", "expected 0 to 1"},
        {"\"value\": 0.7", "\"value\": 0", "above 0"},
        {"\"value\": 25.0", "\"value\": -25.0", "\"value\""},
        {"\"value\": 25.0", "\"value\": \"25\"", "expected a number"},
        {"\"value\": 0.5, \"unit\": \"us\"", "\"value\": 2e6, \"unit\": \"s\"", "million seconds"},
        {"\"assumed\": true, ", "", "expected either a \"source\""},
        {"\"assumed\": true", "\"assumed\": false", "expected either a \"source\""},
        {"\"assumed\": true", "\"source\": \"s\", \"assumed\": true",
         "expected either a \"source\""},
        {"\"reason\": \"half of a switch's ...\"", "\"reason\": \"\"",
         "expected either a \"source\""},
        {"\"source\": \"p2p", "\"sauce\": \"p2p", "\"sauce\" is no key"},
        {"\"ffn_up\": \"dense\",", "", "\"ffn_up\""},
        {"\"value\": 48,", "\"value\": 1e12,", "more than a machine"},
        {"\"efficiency\": {\"value\": 0.95,",
         "\"message_latency\": 1, \"efficiency\": {\"value\": 0.95,", "expected an object"},
        {"\"algorithm\": \"ring\"", "\"algorithm\": \"tree\"",
         "all_gather: \"algorithm\": \"tree\""},
        {"\"all_to_all\": {\"algorithm\": \"direct\"", "\"all_to_all\": {\"algorithm\": \"ring\"",
         "expected \"direct\""},
        {"[\"ll\", \"simple\"]", "[]", "1 to 4 entries"},
        {"[\"ll\", \"simple\"]", "[\"ll\", \"tcp\"]", "\"tcp\""},
        {"[\"ll\", \"simple\"]", "[\"ll\", \"abcdefghijklmnop\"]", "longer"},
        {"[\"ll\", \"simple\"]", "[\"ll\", 1]", "names of protocols"},
        {"\"exchange\": {\"algorithm\": \"direct\", \"protocols\": [\"simple\"]}", "\"x\": 1",
         "\"x\" is no key"},
        {"\"numbers\"", "\"compute_slots\": \"two\", \"numbers\"", "\"compute_slots\""},
        {"\"numbers\"", "\"memories\": 1, \"numbers\"", "\"memories\": expected an array"},
        {"\"numbers\"",
         "\"memories\": [{\"bandwidth\": \"pcie4_x16\", \"ranks\": [4]}], \"numbers\"",
         "numbers of ranks"},
        {"\"numbers\"",
         "\"memories\": [{\"bandwidth\": \"pcie4_x16\", \"ranks\": [0, 0]}], \"numbers\"",
         "in two memories"},
        {"\"value\": 0.7,", "\"value\": 0.7, \"range\": [0.6, 0.8],", ""},
        {"\"value\": 0.7,", "\"value\": 0.7, \"range\": [0.7, 0.7],", ""},
        {"\"value\": 0.7,", "\"value\": 0.7, \"range\": [0.8, 0.9],", "dense: \"range\""},
        {"\"value\": 0.7,", "\"value\": 0.7, \"range\": [0.5, 0.6],", "two numbers above 0"},
        {"\"value\": 0.7,", "\"value\": 0.7, \"range\": [0.6, 1.1],", "what the value may be"},
        {"\"value\": 0.7,", "\"value\": 0.7, \"range\": [0, 0.8],", "two numbers above 0"},
        {"\"value\": 0.7,", "\"value\": 0.7, \"range\": [0.6],", "two numbers above 0"},
        {"\"value\": 0.7,", "\"value\": 0.7, \"range\": [0.6, 0.8, 0.9],", "two numbers above 0"},
        {"\"value\": 0.7,", "\"value\": 0.7, \"range\": 0.1,", "two numbers above 0"},
        {"\"value\": 0.7,", "\"value\": 0.7, \"range\": [\"0.6\", 0.8],", "two numbers above 0"},
        {"\"numbers\": {",
         "\"numbers\": {\"unused\": {\"value\": 1, \"range\": [2, 3], \"source\": \"s\"},",
         "unused: \"range\""},
        {"\"numbers\": {", "\"numbers\": {\"unused\": {\"value\": 1},",
         "unused: expected either a \"source\""},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct error err = {.message = ""};
        struct box_model before = {.rank_count = 77};
        box = before;
        change(cases[c].what, cases[c].with);
        if (*cases[c].word == '\0') {
            cr_expect_eq(parse(&err), STATUS_OK, "%s: %s", cases[c].with, err.message);
        } else {
            cr_expect_eq(parse(&err), STATUS_FORMAT, "%s", cases[c].with);
            cr_expect(strncmp(err.message, "box.json", 8) == 0 &&
                          strstr(err.message, cases[c].word) != NULL,
                      "%s: %s", cases[c].with, err.message);
            cr_expect_eq(box.rank_count, 77);
        }
        end();
        begin();
    }
}

/* ---- Routes ---------------------------------------------------------------------------------- */

static void expect_route(int from, int to, int count, const int *links, const int *directions)
{
    struct box_route route;
    struct error err;
    cr_assert_eq(box_model_route(&route, &box, from, to, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(route.count, count);
    for (int i = 0; i < count; i++) {
        cr_assert_eq(route.link[i], links[i]);
        cr_assert_eq(route.direction[i], directions[i]);
    }
}

Test(routes, have_the_fewest_links_and_the_lowest_numbers)
{
    box_plain(&box, 2);
    int a = box_add_end(&box, "a"), b = box_add_end(&box, "b"), c = box_add_end(&box, "c");
    box_add_link(&box, b, 1, 1, 0); /* 0 */
    box_add_link(&box, 0, a, 1, 0); /* 1 */
    box_add_link(&box, a, b, 1, 0); /* 2: 1, 2, 0 is longer */
    box_add_link(&box, 0, b, 1, 0); /* 3 */
    box_add_link(&box, c, 0, 1, 0); /* 4 */
    box_add_link(&box, c, 1, 1, 0); /* 5 */
    expect_route(0, 1, 2, (int[]){3, 0}, (int[]){0, 0});
    expect_route(1, 0, 2, (int[]){0, 3}, (int[]){1, 1});
    expect_route(a, 1, 2, (int[]){2, 0}, (int[]){0, 0});
    expect_route(0, 0, 0, NULL, NULL);
}

Test(routes, do_not_pass_through_ranks_and_disks)
{
    struct box_route route;
    struct error err;
    box_plain(&box, 3);
    box.disk = box_add_end(&box, "disk");
    box_add_link(&box, 0, 1, 1, 0);
    box_add_link(&box, 1, 2, 1, 0);
    box_add_link(&box, 0, box.disk, 1, 0);
    box_add_link(&box, 2, box.disk, 1, 0);
    cr_assert_eq(box_model_route(&route, &box, 0, 2, &err), STATUS_INVALID_ARGUMENT);
    cr_assert(strstr(err.message, "gpu0 and gpu2") != NULL, "%s", err.message);
    box.host = box_add_end(&box, "host");
    box_add_link(&box, 0, box.host, 1, 0);
    box_add_link(&box, 2, box.host, 1, 0);
    expect_route(0, 2, 2, (int[]){4, 5}, (int[]){0, 1});
}

Test(routes, have_at_most_eight_links)
{
    struct box_route route;
    box_plain(&box, 2);
    int last = 0;
    for (int i = 0; i < BOX_ROUTE_MAX - 1; i++) {
        int next = box_add_end(&box, "switch");
        box_add_link(&box, last, next, 1, 0);
        last = next;
    }
    box_add_link(&box, last, 1, 1, 0);
    cr_assert_eq(box_model_route(&route, &box, 0, 1, NULL), STATUS_OK);
    cr_assert_eq(route.count, BOX_ROUTE_MAX);
    int far = box_add_end(&box, "far");
    box_add_link(&box, far, 0, 1, 0);
    box.rank_count = 0; /* ends that forward */
    cr_assert_eq(box_model_route(&route, &box, far, 1, NULL), STATUS_INVALID_ARGUMENT);
}
