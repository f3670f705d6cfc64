#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "model/safetensors.h"
#include "model_tools.h"

static enum status read_file(const char *path, struct safetensors *out, struct arena *arena,
                             struct error *err)
{
    int fd = open(path, O_RDONLY);
    cr_assert(fd >= 0);
    enum status status = safetensors_read_header(out, arena, fd, "f.safetensors", err);
    close(fd);
    return status;
}

struct row {
    const char *label;
    const char *header;
    size_t data_bytes;
    enum status status;
    const char *fragments;
};

static void check_rows(const struct row *rows, size_t count)
{
    char *dir = temp_dir_make();
    for (size_t i = 0; i < count; i++) {
        struct resources before = resources_now();
        struct safetensors file;
        struct arena arena = {0};
        struct error err;
        safetensors_file(path_of(dir, "f"), 0, rows[i].header, rows[i].data_bytes);
        enum status status = read_file(path_of(dir, "f"), &file, &arena, &err);
        if (rows[i].status != STATUS_OK)
            expect_failure(rows[i].label, status, &err, rows[i].status, rows[i].fragments);
        else
            cr_expect_eq(status, STATUS_OK, "%s: %s", rows[i].label,
                         status == STATUS_OK ? "" : err.message);
        arena_deinit(&arena);
        expect_resources(rows[i].label, before);
    }
    temp_dir_remove(dir);
}
#define CHECK_ROWS(rows) check_rows(rows, sizeof rows / sizeof *rows)

#define T(name, dtype, shape, begin, end)                                                          \
    "'" name "':{'dtype':'" dtype "','shape':" shape ",'data_offsets':[" begin "," end "]}"

Test(safetensors, reads_what_is_well_formed)
{
    char *dir = temp_dir_make();
    struct safetensors file;
    struct arena arena = {0};
    struct error err;
    /* out of order, with metadata, an empty tensor, an escaped name and padding */
    const char *header = " {" + 1;
    char text[1024];
    snprintf(text, sizeof text, "%s'__metadata__':{'format':'pt'},%s,%s,%s,%s}   ", header,
             T("b", "F32", "[2,3]", "8", "32"), T("a", "BF16", "[4]", "0", "8"),
             T("e\\u0041\\n\\ud83d\\ude00", "I64", "[0,7]", "32", "32"),
             T("s", "F16", "[]", "32", "34"));
    safetensors_file(path_of(dir, "f"), 0, text, 34);
    enum status status = read_file(path_of(dir, "f"), &file, &arena, &err);
    cr_assert_eq(status, STATUS_OK, "%s", err.message);
    cr_assert_eq(file.tensor_count, 4);
    uint64_t data = 8 + strlen(text);
    cr_expect_str_eq(file.tensors[0].name, "a");
    cr_expect_eq(file.tensors[0].dtype, TENSOR_BF16);
    cr_expect_str_eq(file.tensors[0].dtype_text, "BF16");
    cr_expect_eq(file.tensors[0].offset, data);
    cr_expect_str_eq(file.tensors[1].name, "b");
    cr_expect_eq(file.tensors[1].rank, 2);
    cr_expect_eq(file.tensors[1].shape[1], 3);
    cr_expect_eq(file.tensors[1].offset, data + 8);
    cr_expect_eq(file.tensors[1].bytes, 24);
    cr_expect_str_eq(file.tensors[2].name, "eA\n\xF0\x9F\x98\x80");
    cr_expect_eq(file.tensors[2].dtype, TENSOR_OTHER);
    cr_expect_eq(file.tensors[2].bytes, 0);
    cr_expect_eq(file.tensors[3].rank, 0);
    cr_expect_eq(file.tensors[3].bytes, 2);
    arena_deinit(&arena);
    temp_dir_remove(dir);
}

/* A1 */
Test(safetensors, refuses_header_lengths_without_allocating)
{
    const struct {
        uint64_t length;
        enum status status;
        const char *fragments;
    } rows[] = {
        {UINT64_MAX, STATUS_LIMIT, "f.safetensors|header length 18446744073709551615|100000000"},
        {UINT64_C(1) << 63, STATUS_LIMIT, "f.safetensors|header length 9223372036854775808"},
        {100000001, STATUS_LIMIT, "f.safetensors|header length 100000001|at most"},
        {100000000, STATUS_FORMAT, "f.safetensors|header length 100000000|does not fit the file"},
        {1000 - 8 + 1, STATUS_FORMAT, "f.safetensors|header length 993|does not fit"},
        {0, STATUS_FORMAT, "f.safetensors|header length 0"},
        {1, STATUS_FORMAT, "f.safetensors|header length 1"},
    };
    char *dir = temp_dir_make();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        unsigned char bytes[1000] = {0};
        struct safetensors file;
        struct arena arena = {0};
        struct error err;
        memcpy(bytes, &rows[i].length, 8);
        file_write(path_of(dir, "f"), bytes, sizeof bytes);
        uint64_t allocations = memory_counters_get().alloc_count;
        enum status status = read_file(path_of(dir, "f"), &file, &arena, &err);
        expect_failure(rows[i].fragments, status, &err, rows[i].status, rows[i].fragments);
        cr_expect_eq(memory_counters_get().alloc_count, allocations, "%s", rows[i].fragments);
    }
    for (size_t length = 0; length < 8; length++) {
        struct safetensors file;
        struct arena arena = {0};
        struct error err;
        file_write(path_of(dir, "f"), "\2\0\0\0\0\0\0\0", length);
        enum status status = read_file(path_of(dir, "f"), &file, &arena, &err);
        expect_failure("short file", status, &err, STATUS_FORMAT, "f.safetensors|too short");
    }
    temp_dir_remove(dir);
}

Test(safetensors, length_seven_is_read_as_json)
{
    static const struct row rows[] = {
        {"seven bytes", "{'a':1}", 0, STATUS_FORMAT, "f.safetensors|expected '{'"},
        {"empty object", "{}", 0, STATUS_OK, ""},
    };
    CHECK_ROWS(rows);
}

/* A2, A3, A4, A5 */
Test(safetensors, refuses_shapes_and_offsets)
{
    static const struct row rows[] = {
        {"product wraps to 16 bytes",
         "{" T("t", "F32", "[4194305,4194305,211106198978564]", "0", "16") "}", 16, STATUS_FORMAT,
         "f.safetensors|\"t\"|overflow"},
        {"one size past int64", "{" T("t", "U8", "[9223372036854775808]", "0", "16") "}", 16,
         STATUS_FORMAT, "\"t\"|overflow"},
        {"begin > end", "{" T("t", "U8", "[4]", "8", "4") "}", 8, STATUS_FORMAT,
         "f.safetensors|\"t\"|data_offsets|begin at 8 and end at 4"},
        {"-1", "{" T("t", "U8", "[4]", "-1", "4") "}", 8, STATUS_FORMAT,
         "\"t\"|data_offsets|non-negative integers"},
        {"1e3", "{" T("t", "U8", "[1000]", "0", "1e3") "}", 1000, STATUS_FORMAT,
         "\"t\"|data_offsets|plain digits"},
        {"4.0", "{" T("t", "U8", "[4]", "0", "4.0") "}", 4, STATUS_FORMAT,
         "\"t\"|data_offsets|plain digits"},
        {"a string", "{" T("t", "U8", "[4]", "'0'", "4") "}", 4, STATUS_FORMAT,
         "\"t\"|data_offsets|non-negative integers"},
        {"leading zero", "{" T("t", "U8", "[4]", "00", "4") "}", 4, STATUS_FORMAT,
         "\"t\"|data_offsets"},
        {"2^63", "{" T("t", "U8", "[4]", "0", "9223372036854775808") "}", 4, STATUS_FORMAT,
         "\"t\"|past the end of the file"},
        {"2^64", "{" T("t", "U8", "[4]", "0", "18446744073709551616") "}", 4, STATUS_FORMAT,
         "\"t\"|data_offsets|below 2^64"},
        {"three entries", "{" T("t", "U8", "[4]", "0,4", "4") "}", 4, STATUS_FORMAT,
         "\"t\"|data_offsets|two entries"},
        {"one entry", "{'t':{'dtype':'U8','shape':[0],'data_offsets':[0]}}", 0, STATUS_FORMAT,
         "expected ','"},
        {"sizes disagree", "{" T("t", "F32", "[2]", "0", "4") "}", 4, STATUS_FORMAT,
         "\"t\"|need 8 bytes|span 4"},
        {"half a byte", "{" T("t", "F4", "[3]", "0", "2") "}", 2, STATUS_FORMAT, "\"t\"|F4"},
        {"overlap", "{" T("a", "U8", "[4]", "0", "4") "," T("b", "U8", "[4]", "2", "6") "}", 6,
         STATUS_FORMAT, "f.safetensors|\"a\"|\"b\"|overlap"},
        {"same place", "{" T("a", "U8", "[4]", "0", "4") "," T("b", "U8", "[4]", "0", "4") "}", 4,
         STATUS_FORMAT, "\"a\"|\"b\"|overlap"},
        {"hole", "{" T("a", "U8", "[4]", "0", "4") "," T("b", "U8", "[4]", "6", "10") "}", 10,
         STATUS_FORMAT, "f.safetensors|hole of 2 bytes|\"b\""},
        {"hole at the start", "{" T("a", "U8", "[4]", "1", "5") "}", 5, STATUS_FORMAT,
         "hole of 1 bytes|\"a\""},
        {"bytes behind", "{" T("a", "U8", "[4]", "0", "4") "}", 5, STATUS_FORMAT,
         "f.safetensors|1 bytes lie behind the last tensor"},
        {"bytes without tensors", "{}", 3, STATUS_FORMAT, "3 bytes lie behind"},
        {"past the end", "{" T("a", "U8", "[4]", "0", "4") "}", 3, STATUS_FORMAT,
         "f.safetensors|\"a\"|past the end of the file"},
        {"one name, two types",
         "{" T("layer.w", "BF16", "[4]", "0", "8") "," T("layer.w", "F16", "[4]", "0", "8") "}", 8,
         STATUS_FORMAT, "f.safetensors|\"layer.w\"|twice"},
        {"one name, one escaped",
         "{" T("w", "U8", "[4]", "0", "4") "," T("\\u0077", "U8", "[4]", "4", "8") "}", 8,
         STATUS_FORMAT, "\"w\"|twice"},
        {"nine dimensions", "{" T("t", "U8", "[1,1,1,1,1,1,1,1,1]", "0", "1") "}", 1, STATUS_LIMIT,
         "\"t\"|shape|8 dimensions"},
        {"eight dimensions", "{" T("t", "U8", "[1,1,1,1,1,1,1,1]", "0", "1") "}", 1, STATUS_OK, ""},
    };
    CHECK_ROWS(rows);
}

Test(safetensors, refuses_what_is_no_header)
{
    static const struct row rows[] = {
        {"array", "[1,2]", 0, STATUS_FORMAT, "does not begin with '{'"},
        {"space first", " {}", 0, STATUS_FORMAT, "does not begin with '{'"},
        {"cut", "{'a':{'dtype':", 0, STATUS_FORMAT, "header ends"},
        {"cut in a string", "{'a", 0, STATUS_FORMAT, "ends inside a string"},
        {"cut in an escape", "{'a\\u00", 0, STATUS_FORMAT, "invalid escape"},
        {"behind the brace", "{} x", 0, STATUS_FORMAT, "goes on behind"},
        {"trailing comma", "{" T("t", "U8", "[1]", "0", "1") ",}", 1, STATUS_FORMAT,
         "expected '\"'"},
        {"comma in shape", "{" T("t", "U8", "[1,]", "0", "1") "}", 1, STATUS_FORMAT, "\"t\"|shape"},
        {"negative size", "{" T("t", "U8", "[-1]", "0", "1") "}", 1, STATUS_FORMAT, "\"t\"|shape"},
        {"unknown dtype", "{" T("t", "Q9", "[1]", "0", "1") "}", 1, STATUS_UNSUPPORTED,
         "\"t\"|unknown dtype \"Q9\""},
        {"missing field", "{'t':{'dtype':'U8','shape':[1]}}", 1, STATUS_FORMAT,
         "\"t\"|\"data_offsets\" is missing"},
        {"field twice", "{'t':{'dtype':'U8','dtype':'U8'}}", 1, STATUS_FORMAT,
         "\"t\"|\"dtype\" stands twice"},
        {"unknown field", "{'t':{'color':'U8'}}", 1, STATUS_FORMAT,
         "\"t\"|unknown field \"color\""},
        {"null", "{'t':null}", 0, STATUS_FORMAT, "expected '{'"},
        {"metadata number", "{'__metadata__':{'a':1}}", 0, STATUS_FORMAT,
         "__metadata__|\"a\"|expected a string"},
        {"metadata twice", "{'__metadata__':{},'__metadata__':{}}", 0, STATUS_FORMAT,
         "__metadata__|twice"},
        {"lone surrogate", "{'\\ud800':{}}", 0, STATUS_FORMAT, "invalid escape"},
        {"NUL in a name", "{'a\\u0000b':{}}", 0, STATUS_FORMAT, "invalid escape"},
        {"control character", "{'a\tb':{}}", 0, STATUS_FORMAT, "control character"},
        {"invalid UTF-8", "{'a\xff':{}}", 0, STATUS_FORMAT, "not valid UTF-8"},
    };
    CHECK_ROWS(rows);
}

static char *repeated(const char *before, const char *unit, size_t count, const char *after)
{
    size_t unit_length = strlen(unit), before_length = strlen(before);
    char *text = malloc(before_length + unit_length * count + strlen(after) + 1);
    memcpy(text, before, before_length);
    for (size_t i = 0; i < count; i++)
        memcpy(text + before_length + i * unit_length, unit, unit_length);
    strcpy(text + before_length + unit_length * count, after);
    return text;
}

/* A6 */
Test(safetensors, refuses_depth_and_long_literals)
{
    char *headers[] = {
        repeated("{'__metadata__':{'a':", "[", 100000, "}}"),
        repeated("{'__metadata__':{'a':", "{'a':", 100000, "}}"),
        repeated("{'__metadata__':{'a':", "1", 10000000, "}}"),
        repeated("{'t':{'dtype':'U8','shape':[", "1", 10000000, "],'data_offsets':[0,0]}}"),
        repeated("{'t':{'dtype':'U8','shape':[", "[", 100000, "],'data_offsets':[0,0]}}"),
    };
    static const char *const fragments[] = {
        "__metadata__|expected a string", "__metadata__|expected a string",
        "__metadata__|expected a string", "\"t\"|shape|below 2^64", "\"t\"|shape"};
    char *dir = temp_dir_make();
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        struct safetensors file;
        struct arena arena = {0};
        struct error err;
        safetensors_file(path_of(dir, "f"), 0, headers[i], 0);
        uint64_t allocations = memory_counters_get().alloc_count;
        enum status status = read_file(path_of(dir, "f"), &file, &arena, &err);
        expect_failure(fragments[i], status, &err, STATUS_FORMAT, fragments[i]);
        /* the header itself and nothing else */
        cr_expect_eq(memory_counters_get().alloc_count, allocations + 1);
        free(headers[i]);
    }
    temp_dir_remove(dir);
}

/* Every prefix and every single-byte change either parses or is refused; sanitizers watch. */
Test(safetensors, is_total_on_damaged_headers)
{
    char header[] =
        "{\"__metadata__\":{\"f\":\"p\\u00e9\"},\"a\":{\"dtype\":\"BF16\",\"shape\":[2,2],"
        "\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":[],"
        "\"data_offsets\":[8,12]}}";
    size_t length = sizeof header - 1;
    struct resources before = resources_now();
    for (size_t i = 0; i < length; i++) {
        for (int byte = -1; byte < 256; byte++) {
            struct safetensors file;
            struct arena arena = {0};
            struct error err;
            size_t used = byte < 0 ? i : length;
            char *copy = memory_copy_text(header, used);
            if (byte >= 0)
                copy[i] = (char)byte;
            /* an exact block, so that a read past its end is seen */
            char *exact = malloc(used + 1);
            memcpy(exact, copy, used);
            exact = realloc(exact, used > 0 ? used : 1);
            enum status status =
                safetensors_parse(&file, &arena, exact, used, 8 + used + 12, "f", &err);
            if (byte < 0)
                cr_expect_neq(status, STATUS_OK, "prefix of %zu bytes", i);
            free(exact);
            memory_free(copy);
            arena_deinit(&arena);
        }
    }
    expect_resources("damaged headers", before);
}

Test(safetensors, fails_cleanly_when_memory_ends)
{
    char *dir = temp_dir_make();
    safetensors_file(path_of(dir, "f"), 0, "{" T("a", "U8", "[4]", "0", "4") "}", 4);
    struct resources before = resources_now();
    enum status status = STATUS_NO_MEMORY;
    uint64_t n = 1;
    for (; n < 20 && status != STATUS_OK; n++) {
        struct safetensors file;
        struct arena arena = {0};
        struct error err;
        memory_fail_at(n, 0);
        status = read_file(path_of(dir, "f"), &file, &arena, &err);
        memory_fail_at(0, 0);
        if (status != STATUS_OK)
            expect_failure("n-th allocation", status, &err, STATUS_NO_MEMORY, "f.safetensors");
        arena_deinit(&arena);
        expect_resources("n-th allocation", before);
    }
    cr_expect(status == STATUS_OK && n > 2);
    temp_dir_remove(dir);
}
