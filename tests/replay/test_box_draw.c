/* Boxes whose numbers are drawn from their ranges. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>

#include "base/json.h"
#include "replay/box_draw.h"
#include "replay/box_model.h"

#define DRAWS 400

static struct box_model drawn(const char *name, uint64_t seed)
{
    char path[512];
    json_t *json;
    struct box_model box;
    struct error err;
    snprintf(path, sizeof path, BOXES_DIR "/%s.json", name);
    cr_assert_eq(json_load_object(&json, path, 1 << 20, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(box_model_of(&box, json, path, seed, &err), STATUS_OK, "%s", err.message);
    json_decref(json);
    return box;
}

/* One seed of every kind of number: those with a range move, a number that is used four times is
 * the same four times, and what was measured stays. */
Test(box_draw, is_of_what_has_a_range)
{
    struct box_model own = drawn("a6000x4", 0), box = drawn("a6000x4", 1);
    cr_assert_neq(box.device.flops_efficiency[WORK_MATMUL],
                  own.device.flops_efficiency[WORK_MATMUL]);
    cr_assert_neq(box.device.flops_efficiency[WORK_FFN_UP],
                  own.device.flops_efficiency[WORK_FFN_UP]);
    cr_assert_eq(box.device.flops_efficiency[WORK_FFN_UP],
                 box.device.flops_efficiency[WORK_FFN_DOWN]);
    cr_assert_neq(box.device.launch, own.device.launch);
    cr_assert_eq(box.device.peak_flops, own.device.peak_flops);
    cr_assert_eq(box.device.memory_bytes_per_second, own.device.memory_bytes_per_second);
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(box.links[i].bytes_per_second, own.links[i].bytes_per_second);
        cr_assert_neq(box.links[i].latency, own.links[i].latency);
        cr_assert_eq(box.links[i].latency, box.links[0].latency);
    }
}

Test(box_draw, is_the_same_for_the_same_seed)
{
    struct box_model one = drawn("v100x8", 7), again = drawn("v100x8", 7),
                     other = drawn("v100x8", 8);
    cr_assert_eq(one.device.launch, again.device.launch);
    cr_assert_eq(one.device.flops_efficiency[WORK_ATTENTION],
                 again.device.flops_efficiency[WORK_ATTENTION]);
    cr_assert_neq(one.device.launch, other.device.launch);
}

/* 3 to 14 GB/s of the file's disk: all within, a third of them in each third of the logarithms; and
 * by themselves: of two numbers both are in their upper halves a quarter of the times. */
Test(box_draw, is_uniform_in_the_logarithm)
{
    int thirds[3] = {0}, both = 0;
    for (uint64_t seed = 1; seed <= DRAWS; seed++) {
        struct box_model box = drawn("a6000x4", seed);
        double disk = box.links[box.link_count - 1].bytes_per_second, launch = box.device.launch;
        cr_assert(disk >= 3e9 && disk <= 14e9, "%g", disk);
        cr_assert(launch >= 2e-6 && launch <= 5e-6, "%g", launch);
        int third = (int)(3 * log(disk / 3e9) / log(14.0 / 3));
        thirds[third > 2 ? 2 : third]++;
        both += disk > sqrt(3e9 * 14e9) && launch > sqrt(2e-6 * 5e-6);
    }
    for (int i = 0; i < 3; i++)
        cr_assert(abs(thirds[i] - DRAWS / 3) < DRAWS / 10, "%d in third %d", thirds[i], i);
    cr_assert(abs(both - DRAWS / 4) < DRAWS / 12, "%d", both);
}

static int assumed_without_range(const json_t *place)
{
    const char *key;
    json_t *item;
    size_t index;
    int count = 0;
    if (json_is_true(json_object_get(place, "assumed")))
        count += json_object_get(place, "range") == NULL;
    json_object_foreach((json_t *)(uintptr_t)place, key, item) count += assumed_without_range(item);
    json_array_foreach(place, index, item) count += assumed_without_range(item);
    return count;
}

/* But for latencies that stand elsewhere (0), and the larger of two cards. */
Test(box_draw, what_is_assumed_of_shipped_boxes_has_a_range)
{
    static const struct {
        const char *name;
        int without;
    } boxes[] = {{"a100x4", 1}, {"a100x8", 1}, {"a6000x4", 0}, {"a6000x4-shared-uplink", 0},
                 {"h200x1", 0}, {"h200x2", 1}, {"h200x4", 1},  {"h200x8", 1},
                 {"v100x8", 1}};
    for (size_t i = 0; i < sizeof boxes / sizeof *boxes; i++) {
        char path[512];
        snprintf(path, sizeof path, BOXES_DIR "/%s.json", boxes[i].name);
        json_t *file = json_load_file(path, 0, NULL);
        cr_assert_not_null(file, "%s", path);
        cr_expect_eq(assumed_without_range(file), boxes[i].without, "%s", boxes[i].name);
        json_decref(file);
        for (uint64_t seed = 1; seed <= 3; seed++)
            drawn(boxes[i].name, seed);
    }
}
