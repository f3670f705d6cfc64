/* A box file, as it stands and drawn. What is accepted has routes between all ranks, and numbers
 * that can be computed with. */
#include <math.h>

#include "base/json.h"
#include "fuzz.h"
#include "replay/box_model.h"

static void check_number(double value)
{
    FUZZ_CHECK(isfinite(value) && value > 0);
}

static void check_latency(double value)
{
    FUZZ_CHECK(isfinite(value) && value >= 0);
}

static void check_route(const struct box_model *box, int from, int to)
{
    struct box_route route;
    FUZZ_CHECK(box_model_route(&route, box, from, to, NULL) == STATUS_OK);
    FUZZ_CHECK(route.count >= (from != to) && route.count <= BOX_ROUTE_MAX);
    for (int i = 0; i < route.count; i++) {
        FUZZ_CHECK(route.link[i] < box->link_count);
        FUZZ_CHECK(box->links[route.link[i]].ends[route.direction[i]] == from);
        from = box->links[route.link[i]].ends[1 - route.direction[i]];
    }
    FUZZ_CHECK(from == to);
}

static void check_box(const struct box_model *box)
{
    check_number(box->device.peak_flops);
    check_number(box->device.memory_bytes_per_second);
    check_latency(box->device.launch);
    for (int work = 0; work < WORK_KIND_COUNT; work++) {
        check_number(box->device.flops_efficiency[work]);
        check_number(box->device.bytes_efficiency[work]);
    }
    for (int l = 0; l < box->link_count; l++) {
        check_number(box->links[l].bytes_per_second);
        check_latency(box->links[l].latency);
    }
    for (int op = 0; op < COLLECTIVE_OP_COUNT; op++) {
        const struct box_collective *collective = &box->collectives[op];
        FUZZ_CHECK(collective->protocol_count >= 1);
        for (int p = 0; p < collective->protocol_count; p++) {
            check_latency(collective->protocols[p].base_latency);
            check_latency(collective->protocols[p].step_latency);
            check_latency(collective->protocols[p].message_latency);
            check_number(collective->protocols[p].efficiency);
        }
    }
    for (int rank = 0; rank < box->rank_count; rank++) {
        FUZZ_CHECK(box->memory_of[rank] < box->memory_count);
        for (int other = 0; other < box->rank_count; other++)
            check_route(box, rank, other);
        if (box->host >= 0)
            check_route(box, box->host, rank);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_account account = fuzz_begin(size);
    for (uint64_t draw = 0; draw < 2; draw++) {
        json_t *json = NULL;
        struct box_model box;
        struct error err;
        enum status status = json_parse_object(&json, (const char *)data, size, "box.json", &err);
        if (status == STATUS_OK)
            status = box_model_of(&box, json, "box.json", draw, &err);
        json_decref(json);
        if (status == STATUS_OK)
            check_box(&box);
        else
            fuzz_check_error(status, &err);
    }
    fuzz_end(&account);
    return 0;
}
