/* A profile through its file and back; and files that are none. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "engine/calibrate_store.h"
#include "engine/profile_file.h"
#include "engine_tools.h"

TestSuite(profile_file, .timeout = 60);

static const char whole[] =
    "{\"phasor_profile\":1,\"phasor\":\"0.1.0\","
    "\"box\":{\"processor\":\"A \\\"B\\\"\",\"cores\":2,\"kernels\":\"cpu (plain)\",\"ranks\":2,"
    "\"threads\":2},"
    "\"rates\":{\"memory_read\":1e10,\"host_to_device\":5e9,\"host_to_device_busy\":4e9,\"disk_"
    "read\":1e9,\"check\":3e9,"
    "\"host_step_seconds\":1e-5,\"compute_probe_seconds\":3e-4,"
    "\"memory_probe_seconds\":4e-4},"
    "\"work\":[{\"kind\":\"matmul\",\"dtype\":\"bfloat16\",\"flops_per_second\":1e11,"
    "\"bytes_per_second\":1e10,\"fixed_seconds\":1e-6,\"axes\":[{\"size\":\"rows\",\"values\":"
    "[1,8]},{\"size\":\"outputs\",\"values\":[64,128,256]}],\"log_ratios\":[0,0.1,0.2,0.3,0.4,0.5],"
    "\"seconds\":[1,2,3,4,5,0],\"spreads\":[0,0.1,0,0,0,0],\"repeats\":[3,3,3,3,9,0]},"
    "{\"kind\":\"ffn_up\",\"dtype\":\"int4\",\"flops_per_second\":1e11,"
    "\"bytes_per_second\":1e10,\"fixed_seconds\":0,\"axes\":[{\"size\":\"rows\",\"over\":"
    "\"experts\",\"values\":[1]}],\"log_ratios\":[0.25],\"seconds\":[1],\"spreads\":[0],"
    "\"repeats\":[3]}],"
    "\"collectives\":[{\"op\":\"all_gather\",\"size\":2,\"strided\":false,\"bytes\":[64,1024],"
    "\"seconds\":[1e-6,2e-6],\"spreads\":[0,0],\"repeats\":[3,4]},"
    "{\"op\":\"all_to_all\",\"size\":2,\"strided\":false,\"bytes\":[64],"
    "\"seconds\":[3e-6],\"spreads\":[0],\"repeats\":[3]},"
    "{\"op\":\"all_to_all\",\"size\":2,\"strided\":false,\"to_one\":true,\"bytes\":[64],"
    "\"seconds\":[2e-6],\"spreads\":[0],\"repeats\":[3]}]}";

static void parse(struct profile_file *out, const char *text)
{
    struct error err;
    cr_assert_eq(profile_file_parse(out, text, strlen(text), "box.json", &err), STATUS_OK, "%s",
                 err.message);
}

Test(profile_file, is_read)
{
    struct profile_file file;
    parse(&file, whole);
    const struct work_table *matmul = &file.profile.work[0];
    cr_expect_str_eq(file.identity.processor, "A \"B\"");
    cr_expect_eq(file.identity.threads, 2);
    cr_expect_eq(file.profile.work_count, 2);
    cr_expect_eq(matmul->axis_count, 2);
    cr_expect_eq(matmul->axes[1].count, 3);
    cr_expect_eq(matmul->axes[1].over, -1);
    cr_expect_eq(matmul->log_ratios[5], 0.5);
    cr_expect_eq(file.profile.work[1].axes[0].over, 1);
    cr_expect_eq(file.work_points[0][4].repeats, 9);
    cr_expect_eq(file.work_points[0][5].repeats, 0);
    cr_expect_eq(file.profile.collectives[0].seconds[1], 2e-6);
    cr_expect_eq(profile_all_to_all_seconds(&file.profile, 2, false, 64, 1), 3e-6);
    cr_expect_eq(profile_all_to_all_seconds(&file.profile, 2, false, 64, 2), 2e-6);
    cr_expect_eq(file.profile.disk_read, 1e9);
    cr_expect_eq(file.profile.host_to_device_busy, 4e9);
    cr_expect_eq(file.profile.repack, PROFILE_NO_RATE);
    cr_expect_eq(file.probe_seconds[CALM_MEMORY], 4e-4);
    cr_expect_eq(file.probe_seconds[CALM_COMPUTE], 3e-4);
    cr_expect_eq(file.profile.sharing, 1); /* two threads, two cores */
    struct work_shape work = {WORK_MATMUL, DTYPE_BF16, {8, 256, 64}};
    cr_expect(isfinite(profile_work_seconds(&file.profile, &work)));
    profile_file_deinit(&file);
}

static char *text_of(const struct profile_file *file)
{
    struct text text = {0};
    struct error err;
    cr_assert_eq(profile_file_format(&text, file, &err), STATUS_OK);
    char *copy = strdup(text.bytes);
    text_deinit(&text);
    return copy;
}

/* What is written says the same as what was read, and is written the same again. */
Test(profile_file, goes_round)
{
    struct profile_file one, two;
    parse(&one, whole);
    char *first = text_of(&one);
    parse(&two, first);
    char *second = text_of(&two);
    cr_expect_str_eq(first, second);
    json_error_t ignored;
    json_t *a = json_loads(whole, JSON_DECODE_INT_AS_REAL, &ignored);
    json_t *b = json_loads(first, JSON_DECODE_INT_AS_REAL, &ignored);
    cr_expect(json_equal(a, b), "%s", first);
    json_decref(a);
    json_decref(b);
    free(first);
    free(second);
    profile_file_deinit(&one);
    profile_file_deinit(&two);
}

/* Points have six digits; axes have all that tell them apart. */
Test(profile_file, has_six_digits_of_what_was_measured)
{
    static const double axis[1] = {1234567.25}, ratio[1] = {-0.0123456789};
    static const struct profile_point point = {1.23456789e-5, 0.987654321, 3};
    static const struct profile_point *const points[1] = {&point};
    struct work_table table = {.kind = WORK_MATMUL,
                               .dtype = DTYPE_BF16,
                               .axis_count = 1,
                               .axes = {{.size = 0, .over = -1, .count = 1, .values = axis}},
                               .flops_per_second = 1e11,
                               .bytes_per_second = 1e10,
                               .log_ratios = ratio};
    struct profile_file file, again;
    parse(&file, whole);
    file.profile.work = &table;
    file.profile.work_count = 1;
    file.work_points = points;
    char *text = text_of(&file);
    parse(&again, text);
    cr_expect_eq(again.profile.work[0].log_ratios[0], -0.0123457);
    cr_expect_eq(again.profile.work[0].axes[0].values[0], axis[0]);
    cr_expect_eq(again.work_points[0][0].seconds, 1.23457e-5);
    cr_expect_eq(again.work_points[0][0].spread, 0.987654);
    free(text);
    profile_file_deinit(&again);
    profile_file_deinit(&file);
}

Test(profile_file, is_replaced_whole)
{
    struct profile_file one, two;
    struct error err;
    const char *path = tools_path(tools_folder(), "box.json");
    parse(&one, whole);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(profile_file_write(&one, path, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(profile_file_read(&two, path, &err), STATUS_OK, "%s", err.message);
    cr_expect_str_eq(two.identity.kernels, "cpu (plain)");
    profile_file_deinit(&two);
    cr_expect_eq(profile_file_write(&one, tools_path(tools_folder(), "no/box.json"), &err),
                 STATUS_NOT_FOUND);
    cr_expect(strstr(err.message, "no/box.json") != NULL);
    profile_file_deinit(&one);
}

/* ---- What a file may not say ----------------------------------------------------------------- */

/* The member at `path` becomes `value` (JSON; NULL: it is taken away). */
static const struct mistake {
    const char *path, *value;
    enum status status;
    const char *sentence;
} mistakes[] = {
    {"phasor_profile", NULL, STATUS_FORMAT, "\"phasor_profile\": expected an integer"},
    {"phasor_profile", "2", STATUS_UNSUPPORTED, "format 2, and this phasor reads format 1"},
    {"phasor_profile", "\"1\"", STATUS_FORMAT, "expected an integer, found a string"},
    {"phasor", NULL, STATUS_FORMAT, "box.json: \"phasor\": expected a string"},
    {"box", NULL, STATUS_FORMAT, "\"box\": expected an object"},
    {"box/processor", "7", STATUS_FORMAT, "\"processor\": expected a string"},
    {"box/kernels", NULL, STATUS_FORMAT, "\"kernels\": expected a string"},
    {"box/cores", "0", STATUS_FORMAT, "\"cores\": expected 1 to"},
    {"box/ranks", "65", STATUS_FORMAT, "\"ranks\": expected 1 to 64, found 65"},
    {"box/threads", "-1", STATUS_FORMAT, "\"threads\": expected 1 to"},
    {"rates", "[]", STATUS_FORMAT, "\"rates\": expected an object, found an array"},
    {"rates/disk_read", "0", STATUS_FORMAT, "\"disk_read\": expected 1 to 1e+24, found 0"},
    {"rates/host_to_device_busy", "0", STATUS_FORMAT, "\"host_to_device_busy\": expected 1 to"},
    {"rates/check", "\"fast\"", STATUS_FORMAT, "\"check\": expected a number"},
    {"rates/compute_probe_seconds", "-1", STATUS_FORMAT,
     "\"compute_probe_seconds\": expected 0 to"},
    {"rates/host_step_seconds", "-1", STATUS_FORMAT, "\"host_step_seconds\": expected 0 to"},
    {"work", NULL, STATUS_FORMAT, "\"work\": expected an array"},
    {"work/0", "7", STATUS_FORMAT, "work 1: expected an object, found an integer"},
    {"work/0/kind", NULL, STATUS_FORMAT, "work 1: \"kind\": expected a string"},
    {"work/0/kind", "\"conv\"", STATUS_FORMAT, "\"conv\" is not known; calibrate again"},
    {"work/0/dtype", "\"float16\"", STATUS_FORMAT, "\"float16\" is not known"},
    {"work/0/flops_per_second", "0", STATUS_FORMAT, "\"flops_per_second\": expected 1 to"},
    {"work/0/bytes_per_second", "1e300", STATUS_FORMAT, "\"bytes_per_second\": expected 1 to"},
    {"work/0/fixed_seconds", "-1e-9", STATUS_FORMAT, "\"fixed_seconds\": expected 0 to"},
    {"work/0/axes", NULL, STATUS_FORMAT, "\"axes\": expected an array"},
    {"work/0/axes", "[1,2,3,4,5,6]", STATUS_FORMAT, "an array of at most 5, found more"},
    {"work/0/axes/0", "null", STATUS_FORMAT, "work 1: expected an object, found null"},
    {"work/0/axes/0/size", "\"width\"", STATUS_FORMAT, "\"width\" is no size of matmul"},
    {"work/1/axes/0/over", "\"inputs\"", STATUS_FORMAT, "\"inputs\" is no size of ffn_up"},
    {"work/0/axes/0/values", "[]", STATUS_FORMAT, "expected 1 to 256 values, found 0"},
    {"work/0/axes/0/values", "[8,8]", STATUS_FORMAT, "\"values\" must rise, found 8 behind 8"},
    {"work/0/axes/0/values", "[0,8]", STATUS_FORMAT, "value 1: expected a number from 1e-09"},
    {"work/0/axes/0/values", "[1,\"8\"]", STATUS_FORMAT, "value 2: expected a number"},
    {"work/0/axes/0/values", "[1]", STATUS_FORMAT, "\"log_ratios\": expected 3 values, found 6"},
    {"work/0/log_ratios", NULL, STATUS_FORMAT, "\"log_ratios\": expected an array"},
    {"work/0/log_ratios/3", "51", STATUS_FORMAT, "\"log_ratios\", value 4: expected a number"},
    {"work/0/seconds", "[1]", STATUS_FORMAT, "\"seconds\": expected 6 values, found 1"},
    {"work/0/seconds/0", "0", STATUS_FORMAT, "value 1: expected more than 0 of what was measured"},
    {"work/0/spreads/1", "-0.1", STATUS_FORMAT, "\"spreads\", value 2"},
    {"work/0/repeats", NULL, STATUS_FORMAT, "\"repeats\": expected an array"},
    {"work/1/kind", "\"matmul\"", STATUS_FORMAT, "work 2: \"over\": \"experts\" is no size"},
    {"collectives", "{}", STATUS_FORMAT, "\"collectives\": expected an array"},
    {"collectives/0/op", "\"broadcast\"", STATUS_FORMAT, "\"broadcast\" is not known"},
    {"collectives/0/size", "1", STATUS_FORMAT, "\"size\": expected 2 to 64, found 1"},
    {"collectives/0/strided", "1", STATUS_FORMAT, "\"strided\": expected true or false"},
    {"collectives/0/to_one", "1", STATUS_FORMAT, "\"to_one\": expected true or false"},
    {"collectives/0/to_one", "true", STATUS_FORMAT,
     "expected of all_to_all alone, found of all_gather"},
    {"collectives/0/to_one", "false", STATUS_OK, ""},
    {"collectives/0/bytes", "[1024,64]", STATUS_FORMAT, "\"bytes\" must rise"},
    {"collectives/0/seconds/0", "0", STATUS_FORMAT, "collective 1: \"seconds\", value 1"},
    {"collectives/0/repeats/0", "0.5", STATUS_OK, ""},
};

/* The container of the last part of a path, and that part. */
static json_t *container_of(json_t *root, const char *path, const char **last)
{
    const char *slash;
    while ((slash = strchr(path, '/')) != NULL) {
        char part[64];
        snprintf(part, sizeof part, "%.*s", (int)(slash - path), path);
        root = json_is_array(root) ? json_array_get(root, (size_t)atoi(part))
                                   : json_object_get(root, part);
        cr_assert_not_null(root, "%s", path);
        path = slash + 1;
    }
    *last = path;
    return root;
}

static char *with_mistake(const struct mistake *mistake)
{
    const char *last;
    json_error_t ignored;
    json_t *root = json_loads(whole, 0, &ignored);
    json_t *in = container_of(root, mistake->path, &last);
    if (mistake->value == NULL) {
        cr_assert_eq(json_object_del(in, last), 0, "%s", mistake->path);
    } else {
        json_t *value = json_loads(mistake->value, JSON_DECODE_ANY, &ignored);
        cr_assert_not_null(value);
        cr_assert_eq(json_is_array(in) ? json_array_set_new(in, (size_t)atoi(last), value)
                                       : json_object_set_new(in, last, value),
                     0);
    }
    char *text = json_dumps(root, 0);
    json_decref(root);
    return text;
}

Test(profile_file, mistakes_are_told)
{
    struct memory_counters before = memory_counters_get();
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        struct profile_file file = {0};
        struct error err = {.message = ""};
        char *text = with_mistake(&mistakes[i]);
        enum status status = profile_file_parse(&file, text, strlen(text), "box.json", &err);
        cr_expect_eq(status, mistakes[i].status, "%s = %s: %s", mistakes[i].path, mistakes[i].value,
                     err.message);
        cr_expect(status == STATUS_OK || strstr(err.message, mistakes[i].sentence) != NULL,
                  "%s = %s: %s", mistakes[i].path, mistakes[i].value, err.message);
        profile_file_deinit(&file);
        free(text);
    }
    cr_expect_eq(memory_counters_get().live_count, before.live_count);
}

/* Axes whose product is more than a table may have. */
Test(profile_file, points_have_a_limit)
{
    struct text text = {0};
    struct profile_file file;
    struct error err;
    text_append_string(&text, "{\"phasor_profile\":1,\"phasor\":\"0.1.0\",\"box\":{\"processor\":"
                              "\"\",\"cores\":1,\"kernels\":\"\",\"ranks\":1,\"threads\":1},"
                              "\"rates\":{},\"work\":[{\"kind\":\"matmul\",\"dtype\":\"float32\","
                              "\"flops_per_second\":1,\"bytes_per_second\":1,\"fixed_seconds\":0,"
                              "\"axes\":[");
    for (int a = 0; a < 3; a++) {
        text_append_format(&text, "%s{\"size\":\"rows\",\"values\":[1", a > 0 ? "," : "");
        for (int i = 2; i <= 256; i++)
            text_append_format(&text, ",%d", i);
        text_append_string(&text, "]}");
    }
    text_append_string(&text, "]}],\"collectives\":[]}");
    cr_expect_eq(profile_file_parse(&file, text.bytes, text.length, "box.json", &err),
                 STATUS_LIMIT);
    cr_expect_str_eq(err.message, "box.json: work 1: more than 65536 points");
    text_deinit(&text);
}

Test(profile_file, no_table_stands_twice)
{
    struct profile_file file;
    struct error err;
    static const char *const paths[] = {"work", "collectives"};
    for (int i = 0; i < 2; i++) {
        json_error_t ignored;
        json_t *root = json_loads(whole, 0, &ignored), *list = json_object_get(root, paths[i]);
        json_array_append(list, json_array_get(list, 0));
        char *text = json_dumps(root, 0);
        cr_expect_eq(profile_file_parse(&file, text, strlen(text), "box.json", &err),
                     STATUS_FORMAT);
        cr_expect(strstr(err.message, "there is a table of the same before it") != NULL, "%s",
                  err.message);
        free(text);
        json_decref(root);
    }
}

/* Every allocation may fail. */
Test(profile_file, memory_may_end_anywhere)
{
    for (uint64_t n = 1; n < 10000; n++) {
        struct profile_file file;
        struct error err;
        memory_fail_at(n, 0);
        enum status status = profile_file_parse(&file, whole, strlen(whole), "box.json", &err);
        memory_fail_at(0, 0);
        if (status == STATUS_OK) {
            profile_file_deinit(&file);
            cr_expect_gt(n, 1);
            return;
        }
        cr_assert_eq(status, STATUS_NO_MEMORY, "%llu: %s", (unsigned long long)n, err.message);
    }
}

/* ---- Whose it is ----------------------------------------------------------------------------- */

Test(profile_file, stale_and_foreign_are_told_apart)
{
    struct error why;
    struct profile_identity here, other;
    profile_identity_here(&here, "cpu (plain)", 2, 4);
    other = here;
    cr_expect_eq(profile_identity_fit(&other, &here, &why), PROFILE_FITS);
    snprintf(other.version, sizeof other.version, "0.0.9");
    cr_expect_eq(profile_identity_fit(&other, &here, &why), PROFILE_STALE);
    cr_expect(strstr(why.message, "version of phasor \"0.0.9\"") != NULL, "%s", why.message);
    other = here;
    snprintf(other.kernels, sizeof other.kernels, "cpu (avx2)");
    cr_expect_eq(profile_identity_fit(&other, &here, NULL), PROFILE_STALE);
    snprintf(other.processor, sizeof other.processor, "another");
    cr_expect_eq(profile_identity_fit(&other, &here, &why), PROFILE_FOREIGN);
    cr_expect(strstr(why.message, "processor \"another\"") != NULL);
    for (int i = 0; i < 3; i++) {
        other = here;
        *(int *[]){&other.cores, &other.devices.rank_count, &other.threads}[i] += 1;
        cr_expect_eq(profile_identity_fit(&other, &here, &why), PROFILE_FOREIGN);
    }
}

/* ---- What a calibration kept ----------------------------------------------------------------- */

Test(profile_file, a_store_goes_round)
{
    struct calibrate_store store = {0}, found;
    struct error err;
    const char *path = tools_path(tools_folder(), "box.json.partial");
    struct work_shape work = {WORK_ATTENTION, DTYPE_BF16, {1, 2, 3, 4, 5, 6}};
    struct collective_shape exchange = {GROUP_ALL_TO_ALL, 4, true, 1 << 20, 1};
    struct calibrate_key keys[] = {
        calibrate_key_of_work(&work),
        calibrate_key_of_collective(&exchange),
        calibrate_key_of_rate(RATE_CHECK),
    };
    profile_identity_here(&store.identity, "cpu (plain)", 2, 4);
    for (int i = 0; i < 3; i++) {
        struct calibrate_entry entry = {keys[i],
                                        {1.0 / (3 + i), 0.1 * i, 5 + i},
                                        i == 1 ? CALM_MEMORY : CALM_COMPUTE,
                                        1e-3 / 7 * i};
        cr_assert_null(calibrate_store_find(&store, &keys[i]));
        cr_assert_eq(calibrate_store_add(&store, &entry, &err), STATUS_OK);
    }
    cr_assert_eq(calibrate_store_write(&store, path, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(calibrate_store_read(&found, path, &err), STATUS_OK, "%s", err.message);
    cr_expect_eq(profile_identity_fit(&found.identity, &store.identity, NULL), PROFILE_FITS);
    cr_assert_eq(found.count, 3);
    for (int i = 0; i < 3; i++) {
        const struct calibrate_entry *entry = calibrate_store_find(&found, &keys[i]);
        cr_assert_not_null(entry);
        cr_expect(entry->point.seconds == 1.0 / (3 + i) && entry->point.spread == 0.1 * i &&
                  entry->point.repeats == 5 + i &&
                  entry->probe == (i == 1 ? CALM_MEMORY : CALM_COMPUTE) &&
                  entry->probe_seconds == 1e-3 / 7 * i);
    }
    calibrate_store_deinit(&store);
    calibrate_store_deinit(&found);
}

static const struct {
    const char *text;
    enum status status;
    const char *sentence;
} bad_stores[] = {
#define STORE(format, points)                                                                      \
    "{\"phasor_calibration\":" format ",\"phasor\":\"0.1.0\",\"box\":{\"processor\":\"\","         \
    "\"cores\":1,\"kernels\":\"\",\"ranks\":1,\"threads\":1},\"points\":" points "}"
    {STORE("2", "[]"), STATUS_UNSUPPORTED, "another version"},
    {"{}", STATUS_FORMAT, "\"phasor_calibration\": expected an integer"},
    {STORE("3", "7"), STATUS_FORMAT, "\"points\": expected an array"},
    {STORE("3", "[[1]]"), STATUS_FORMAT, "point 1: expected 9 whole numbers"},
    {STORE("3", "[7]"), STATUS_FORMAT, "point 1"},
    {STORE("3", "[[0,1,1,1,1,1,0,0,0.5,1,0,3,1,0.001]]"), STATUS_FORMAT, "point 1"},
    {STORE("3", "[[0,1,1,1,1,1,0,0,0,0,0,3,1,0.001]]"), STATUS_FORMAT, "point 1"},
    {STORE("3", "[[0,1,1,1,1,1,0,0,0,1,-1,3,1,0.001]]"), STATUS_FORMAT, "point 1"},
    {STORE("3", "[[0,1,1,1,1,1,0,0,0,1,0,0,1,0.001]]"), STATUS_FORMAT, "point 1"},
    {STORE("3", "[[0,1,1,1,1,1,0,0,0,1,0,3]]"), STATUS_FORMAT, "point 1"},
    {STORE("3", "[[0,1,1,1,1,1,0,0,0,1,0,3,2,0.001]]"), STATUS_FORMAT, "point 1"},
    {STORE("3", "[[0,1,1,1,1,1,0,0,0,1,0,3,0.5,0.001]]"), STATUS_FORMAT, "point 1"},
    {STORE("3", "[[0,1,1,1,1,1,0,0,0,1,0,3,1,-1]]"), STATUS_FORMAT, "point 1"},
    {STORE("3", "[[0,1,1,1,1,1,0,0,0,1,0,3,1,\"\"]]"), STATUS_FORMAT, "point 1"},
    {STORE("3", "[[0,1,1,1,1,1,0,0,0,1,0,3,1,0.001]]"), STATUS_OK, ""},
};

Test(profile_file, a_store_that_is_none_is_told)
{
    for (size_t i = 0; i < sizeof bad_stores / sizeof *bad_stores; i++) {
        struct calibrate_store store = {0};
        struct error err = {.message = ""};
        enum status status = calibrate_store_parse(
            &store, bad_stores[i].text, strlen(bad_stores[i].text), "box.json.partial", &err);
        cr_expect_eq(status, bad_stores[i].status, "%zu: %s", i, err.message);
        cr_expect(status == STATUS_OK || strstr(err.message, bad_stores[i].sentence) != NULL,
                  "%zu: %s", i, err.message);
        calibrate_store_deinit(&store);
    }
}
