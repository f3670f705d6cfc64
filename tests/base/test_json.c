/* Getters: what they take, and the sentence for everything else. */
#include <criterion/criterion.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/memory.h"

static const char document[] =
    "{\"int\": 7, \"whole\": 1e6, \"negative\": -3.0, \"fraction\": 1.5, \"huge\": 1e30,"
    " \"most\": 9223372036854775807, \"text\": \"abc\", \"empty\": \"\", \"cut\": \"a\\u0000b\","
    " \"yes\": true, \"no\": false, \"null\": null, \"list\": [], \"object\": {}}";

static json_t *parsed(void)
{
    json_t *json;
    struct error err;
    cr_assert_eq(json_parse_object(&json, document, strlen(document), "doc.json", &err), STATUS_OK,
                 "%s", err.message);
    return json;
}

#define RANGE_MIN -10
#define RANGE_MAX 2000000

Test(json, integers)
{
    static const struct {
        const char *key;
        int64_t value;
        const char *message; /* NULL: taken */
    } cases[] = {
        {"int", 7, NULL},
        {"whole", 1000000, NULL},
        {"negative", -3, NULL},
        {"fraction", 0,
         "doc.json: \"fraction\": expected an integer, found a number with a fraction"},
        {"huge", 0, "doc.json: \"huge\": expected an integer, found a number with a fraction"},
        {"most", 0, "doc.json: \"most\": expected -10 to 2000000, found 9223372036854775807"},
        {"text", 0, "doc.json: \"text\": expected an integer, found a string"},
        {"yes", 0, "doc.json: \"yes\": expected an integer, found true"},
        {"no", 0, "doc.json: \"no\": expected an integer, found false"},
        {"null", 0, "doc.json: \"null\": expected an integer, found null"},
        {"list", 0, "doc.json: \"list\": expected an integer, found an array"},
        {"object", 0, "doc.json: \"object\": expected an integer, found an object"},
        {"absent", 0, "doc.json: \"absent\": expected an integer, found nothing"},
    };
    json_t *json = parsed();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct error err;
        int64_t out = 55;
        enum status status =
            json_get_int(&out, json, "doc.json", cases[i].key, RANGE_MIN, RANGE_MAX, &err);
        cr_assert_eq(status, cases[i].message == NULL ? STATUS_OK : STATUS_FORMAT);
        if (cases[i].message != NULL)
            cr_assert_str_eq(err.message, cases[i].message);
        cr_assert_eq(out, cases[i].message == NULL ? cases[i].value : 55, "%s", cases[i].key);
        /* The form with a fallback differs only where there is nothing. */
        bool nothing = strcmp(cases[i].key, "null") == 0 || strcmp(cases[i].key, "absent") == 0;
        out = 55;
        status =
            json_get_int_or(&out, json, "doc.json", cases[i].key, RANGE_MIN, RANGE_MAX, 99, &err);
        cr_assert_eq(status, cases[i].message == NULL || nothing ? STATUS_OK : STATUS_FORMAT);
        cr_assert_eq(out, nothing ? 99 : cases[i].message == NULL ? cases[i].value : 55);
    }
    int64_t limit;
    struct error err;
    cr_assert_eq(json_get_int(&limit, json, "f", "int", 7, 7, &err), STATUS_OK);
    cr_assert_eq(json_get_int(&limit, json, "f", "int", 8, 9, &err), STATUS_FORMAT);
    cr_assert_eq(json_get_int(&limit, json, "f", "int", 5, 6, &err), STATUS_FORMAT);
    cr_assert_eq(json_get_int(&limit, json, "f", "most", 0, INT64_MAX, &err), STATUS_OK);
    cr_assert_eq(limit, INT64_MAX);
    json_decref(json);
}

Test(json, numbers)
{
    static const struct {
        const char *key;
        double value;
        const char *message;
    } cases[] = {
        {"int", 7, NULL},
        {"fraction", 1.5, NULL},
        {"huge", 0, "doc.json: \"huge\": expected -10 to 2e+06, found 1e+30"},
        {"text", 0, "doc.json: \"text\": expected a number, found a string"},
        {"yes", 0, "doc.json: \"yes\": expected a number, found true"},
        {"null", 0, "doc.json: \"null\": expected a number, found null"},
        {"absent", 0, "doc.json: \"absent\": expected a number, found nothing"},
    };
    json_t *json = parsed();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct error err;
        double out = 55;
        enum status status =
            json_get_real(&out, json, "doc.json", cases[i].key, RANGE_MIN, RANGE_MAX, &err);
        cr_assert_eq(status, cases[i].message == NULL ? STATUS_OK : STATUS_FORMAT);
        if (cases[i].message != NULL)
            cr_assert_str_eq(err.message, cases[i].message);
        cr_assert_eq(out, cases[i].message == NULL ? cases[i].value : 55);
        bool nothing = strcmp(cases[i].key, "null") == 0 || strcmp(cases[i].key, "absent") == 0;
        out = 55;
        status =
            json_get_real_or(&out, json, "doc.json", cases[i].key, RANGE_MIN, RANGE_MAX, 0.5, &err);
        cr_assert_eq(status, cases[i].message == NULL || nothing ? STATUS_OK : STATUS_FORMAT);
        cr_assert_eq(out, nothing ? 0.5 : cases[i].message == NULL ? cases[i].value : 55);
    }
    json_decref(json);
}

Test(json, truth_values)
{
    static const struct {
        const char *key;
        bool value;
        const char *message;
    } cases[] = {
        {"yes", true, NULL},
        {"no", false, NULL},
        {"null", true, NULL},
        {"absent", true, NULL},
        {"int", false, "doc.json: \"int\": expected true or false, found an integer"},
        {"text", false, "doc.json: \"text\": expected true or false, found a string"},
    };
    json_t *json = parsed();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct error err;
        bool out = false;
        enum status status = json_get_bool_or(&out, json, "doc.json", cases[i].key, true, &err);
        cr_assert_eq(status, cases[i].message == NULL ? STATUS_OK : STATUS_FORMAT);
        if (cases[i].message != NULL)
            cr_assert_str_eq(err.message, cases[i].message);
        cr_assert_eq(out, cases[i].value, "%s", cases[i].key);
    }
    json_decref(json);
}

Test(json, strings)
{
    static const struct {
        const char *key, *value, *message;
    } cases[] = {
        {"text", "abc", NULL},
        {"empty", "", NULL},
        {"cut", NULL, "doc.json: \"cut\": the string has a NUL character in it"},
        {"int", NULL, "doc.json: \"int\": expected a string, found an integer"},
        {"null", NULL, "doc.json: \"null\": expected a string, found null"},
        {"absent", NULL, "doc.json: \"absent\": expected a string, found nothing"},
    };
    json_t *json = parsed();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct error err;
        const char *out = "unchanged";
        enum status status = json_get_string(&out, json, "doc.json", cases[i].key, &err);
        cr_assert_eq(status, cases[i].message == NULL ? STATUS_OK : STATUS_FORMAT);
        if (cases[i].message != NULL)
            cr_assert_str_eq(err.message, cases[i].message);
        cr_assert_str_eq(out, cases[i].value != NULL ? cases[i].value : "unchanged");
        bool nothing = strcmp(cases[i].key, "null") == 0 || strcmp(cases[i].key, "absent") == 0;
        out = "unchanged";
        status = json_get_string_or(&out, json, "doc.json", cases[i].key, "else", &err);
        cr_assert_eq(status, cases[i].message == NULL || nothing ? STATUS_OK : STATUS_FORMAT);
        cr_assert_str_eq(out, nothing                  ? "else"
                              : cases[i].value != NULL ? cases[i].value
                                                       : "unchanged");
    }
    const char *none = "x";
    struct error err;
    cr_assert_eq(json_get_string_or(&none, json, "doc.json", "absent", NULL, &err), STATUS_OK);
    cr_assert_null(none);
    json_decref(json);
}

Test(json, what_is_refused_as_a_whole)
{
    static const struct {
        const char *bytes, *part; /* of the sentence */
    } cases[] = {
        {"", "line 1, column 0"},
        {"[1]", "x.json: expected a JSON object, found an array"},
        {"7", "x.json: expected a JSON object, found an integer"},
        {"\"s\"", "x.json: expected a JSON object, found a string"},
        {"null", "x.json: expected a JSON object, found null"},
        {"{\"a\": 1, \"a\": 2}", "duplicate object key"},
        {"{\"a\": 1} x", "end of file expected"},
        {"{\"a\": 1}{}", "end of file expected"},
        {"{\"a\": }", "line 1, column 7"},
        {"{\"a\": \"\xFF\"}", "unable to decode byte 0xff"},
        {"{\"a\": \"\xED\xA0\x80\"}", "unable to decode byte 0xed"},
        {"{\n\"a\": 01}", "line 2, column"},
        {"{\"a\": 99999999999999999999}", "too big integer"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct error err;
        json_t *out = NULL;
        cr_assert_eq(
            json_parse_object(&out, cases[i].bytes, strlen(cases[i].bytes), "x.json", &err),
            STATUS_FORMAT);
        cr_assert_eq(strncmp(err.message, "x.json", 6), 0);
        cr_assert_not_null(strstr(err.message, cases[i].part), "case %zu: %s", i, err.message);
        cr_assert_null(out);
    }
}

Test(json, nesting_has_a_limit)
{
    for (int depth = 2000; depth <= 100000; depth *= 50) {
        char *bytes = memory_alloc((size_t)depth * 6 + 8, 1);
        struct error err;
        json_t *out = NULL;
        for (int i = 0; i < depth; i++)
            memcpy(bytes + 5 * i, "{\"a\":", 5);
        bytes[5 * depth] = '1';
        memset(bytes + 5 * depth + 1, '}', (size_t)depth);
        enum status status = json_parse_object(&out, bytes, (size_t)depth * 6 + 1, "deep", &err);
        cr_assert_eq(status, depth <= 2048 ? STATUS_OK : STATUS_FORMAT);
        json_decref(out);
        memory_free(bytes);
    }
}

/* ---- What a tree takes ----------------------------------------------------------------------- */

static size_t taken;

static void *count_alloc(size_t size)
{
    void *memory = malloc(size);
    taken += memory == NULL ? 0 : malloc_usable_size(memory) + sizeof(size_t);
    return memory;
}

static void count_free(void *memory)
{
    taken -= memory == NULL ? 0 : malloc_usable_size(memory) + sizeof(size_t);
    free(memory);
}

/* `first`, then so often `repeat` (%d: a number of its own) with commas between, then `last`. */
static char *text_of(const char *first, const char *repeat, int count, const char *last)
{
    char *text = memory_alloc(64 + (size_t)count * (strlen(repeat) + 12), 1);
    size_t length = (size_t)sprintf(text, "%s", first);
    for (int i = 0; i < count; i++) {
        length += (size_t)sprintf(text + length, "%s", i == 0 ? "" : ",");
        length += (size_t)sprintf(text + length, repeat, i, i);
    }
    sprintf(text + length, "%s", last);
    return text;
}

Test(json, a_tree_takes_no_more_than_its_bound)
{
    static const char *const repeats[] = {
        "{}",         "[]",           "%d",
        "null",       "\"\"",         "\"some text, {not} [this]\"",
        "[%d]",       "[[]]",         "{\"a\":%d}",
        "{\"a\":{}}", "\"\\\"{{{\"",  "{\"a\":1,\"b\":[2,3]}",
        "%d.5e3",     "[\"a\",\"b\"]"};
    static const char *const members[] = {"\"%d\":%d", "\"%d\":\"\"", "\"k%d\":{}",
                                          "\"a long name %d\":[]"};
    json_set_alloc_funcs(count_alloc, count_free);
    for (size_t i = 0; i < sizeof repeats / sizeof *repeats + sizeof members / sizeof *members;
         i++) {
        bool is_member = i >= sizeof repeats / sizeof *repeats;
        const char *repeat = is_member ? members[i - sizeof repeats / sizeof *repeats] : repeats[i];
        for (int count = 1; count <= 100000; count = count * 7 + 1) {
            char *text =
                text_of(is_member ? "{" : "{\"a\":[", repeat, count, is_member ? "}" : "]}");
            size_t before = taken, length = strlen(text);
            struct error err;
            json_t *json;
            uint64_t bound;
            cr_assert(!json_tree_fits(&bound, text, length, 1));
            cr_assert_eq(json_parse_object(&json, text, length, "x.json", &err), STATUS_OK);
            cr_expect_leq(taken - before, bound, "%s, %d times", repeat, count);
            cr_expect(json_tree_fits(&bound, text, length, bound));
            json_decref(json);
            memory_free(text);
        }
    }
}

Test(json, a_tree_has_a_limit)
{
    char *text = text_of("{\"a\":[", "{}", 5000000, "]}"); /* 15 MB, over a GiB as a tree */
    uint64_t live = memory_counters_get().live_count;
    struct error err;
    json_t *json = NULL;
    json_set_alloc_funcs(count_alloc, count_free);
    cr_assert_eq(json_parse_object(&json, text, strlen(text), "x.json", &err), STATUS_LIMIT);
    cr_expect_eq(strncmp(err.message, "x.json has so many values", 25), 0, "%s", err.message);
    cr_expect(taken == 0 && json == NULL);
    cr_expect_eq(memory_counters_get().live_count, live);
    memory_free(text);
}

Test(json, loads_a_file)
{
    char path[] = "/tmp/phasor-test-XXXXXX";
    uint64_t live = memory_counters_get().live_count;
    struct error err;
    json_t *out = NULL;
    int fd = mkstemp(path);
    cr_assert(fd >= 0 && write(fd, document, strlen(document)) == (ssize_t)strlen(document));
    cr_assert_eq(json_load_object(&out, path, strlen(document), &err), STATUS_OK);
    cr_assert_eq(json_object_size(out), 14);
    json_decref(out);
    cr_assert_eq(json_load_object(&out, path, strlen(document) - 1, &err), STATUS_LIMIT);
    cr_assert_eq(ftruncate(fd, 20), 0);
    cr_assert_eq(json_load_object(&out, path, 1000, &err), STATUS_FORMAT);
    cr_assert_eq(strncmp(err.message, path, strlen(path)), 0);
    close(fd);
    unlink(path);
    cr_assert_eq(json_load_object(&out, path, 1000, &err), STATUS_NOT_FOUND);
    cr_assert_eq(memory_counters_get().live_count, live);
}
