/* Rows that are wrong in every way: each gets its error, and its neighbours are as if it were not
 * there. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "engine/batch_reader.h"
#include "engine_tools.h"
#include "resume_tools.h"

static struct job job;
static struct phasor_model *model;

static void open_job(void)
{
    job_init(&job);
    model = job_model(JOB_MODEL);
}
static void close_job(void)
{
    phasor_model_close(model);
}
TestSuite(hostile_rows, .init = open_job, .fini = close_job, .timeout = 120);

#define GOOD(id) ROW(id, "\"prompt\":[5,6,7],\"max_tokens\":6,\"ignore_eos\":true,\"seed\":3")

/* A row of `length` bytes between two good ones. */
struct hostile {
    const char *code; /* of its error; NULL: it is good, too */
    const char *row;
    size_t length; /* 0: strlen */
};

static json_t *choices(const json_t *row)
{
    return json_object_get(json_object_get(json_object_get(row, "response"), "body"), "choices");
}

static const char *code_of(const json_t *row)
{
    return json_string_value(json_object_get(json_object_get(row, "error"), "code"));
}

/* Whether it is one of the good rows around the hostile one; a wrong row may have their id. */
static bool is_neighbour(const json_t *row, const char *wanted)
{
    const char *id = json_string_value(json_object_get(row, "custom_id"));
    return id != NULL && strcmp(id, wanted) == 0 && code_of(row) == NULL;
}

struct three {
    const json_t *before, *hostile, *behind;
};

static struct three tell_apart(const json_t *rows)
{
    struct three three = {.hostile = NULL};
    const json_t *row;
    size_t i;
    json_array_foreach(rows, i, row)
    {
        if (is_neighbour(row, "before"))
            three.before = row;
        else if (is_neighbour(row, "behind"))
            three.behind = row;
        else
            three.hostile = row;
    }
    return three;
}

static json_t *run_between(const char *row, size_t length)
{
    static const char before[] = GOOD("before"), behind[] = GOOD("behind");
    struct phasor_batch_params params = job_params(&job);
    struct phasor_error err;
    FILE *file = fopen(job.input, "wb");
    fwrite(before, 1, sizeof before - 1, file);
    fwrite(row, 1, length, file);
    fputc('\n', file);
    fwrite(behind, 1, sizeof behind - 1, file);
    fclose(file);
    params.error_path = NULL;
    params.overwrite = true;
    cr_assert_eq(job_run(model, &params, NULL, &err), PHASOR_OK, "%s", err.message);
    return tools_read_rows(job.output);
}

static void check(const struct hostile *hostile)
{
    size_t length = hostile->length > 0 ? hostile->length : strlen(hostile->row);
    json_t *rows = run_between(hostile->row, length);
    struct three three = tell_apart(rows);
    const json_t *row = three.hostile, *a = choices(three.before), *b = choices(three.behind);
    cr_assert_eq(json_array_size(rows), 3, "%.80s", hostile->row);
    cr_assert_not_null(row, "%.80s", hostile->row);
    const char *code = code_of(row);
    cr_expect((code == NULL) == (hostile->code == NULL) &&
                  (code == NULL || strcmp(code, hostile->code) == 0),
              "%.80s: found %s, expected %s", hostile->row, code, hostile->code);
    const char *message =
        json_string_value(json_object_get(json_object_get(row, "error"), "message"));
    cr_expect(code == NULL || strstr(message, "line 2") == message, "%s", message);
    cr_expect(json_array_size(a) == 1 && json_equal(a, b), "%.80s: a neighbour", hostile->row);
    json_decref(rows);
}

#define CHECK_ALL(table)                                                                           \
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)                                      \
    check(&table[i])

#define HEAD   "{\"custom_id\":\"x\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{"
#define BODY   HEAD "\"prompt\":[1]"
#define JSON   "invalid_json"
#define VALUE  "invalid_value"
#define LENGTH "context_length_exceeded"
#define SIZED(code, text)                                                                          \
    {                                                                                              \
        code, text, sizeof text - 1                                                                \
    }

Test(hostile_rows, A16_bytes_of_lines)
{
    static const struct hostile rows[] = {
        {NULL, BODY "}}\r", 0}, /* CRLF */
        SIZED(JSON, BODY ",\"user\":\"\0\"}}"),
        SIZED(JSON, "\0\0\0"),
        {JSON, BODY ",\"user\":\"\xff\xfe\"}}", 0},
        {JSON, BODY ",\"user\":\"\xed\xa0\x80\"}}", 0},
        {JSON, BODY ",\"user\":\"\\ud800\"}}", 0},
        {JSON, "\xEF\xBB\xBF" BODY "}}", 0}, /* a byte order mark that is not at the beginning */
        {JSON, "[]", 0},
        {JSON, "null", 0},
        {JSON, "\"\"", 0},
        {JSON, BODY "}", 0},
        {JSON, BODY "}} {}", 0},
    };
    CHECK_ALL(rows);
}

Test(hostile_rows, A16_the_ends_of_the_file)
{
    struct phasor_batch_params params = job_params(&job);
    struct phasor_batch_result result;
    struct phasor_error err;
    static const char text[] = "\xEF\xBB\xBF" GOOD("a") "\r\n" GOOD("b");
    params.overwrite = true;
    tools_write_file(job.input, text, sizeof text - 2); /* no newline at the end */
    cr_assert_eq(job_run(model, &params, &result, &err), PHASOR_OK, "%s", err.message);
    cr_expect(result.total == 2 && result.completed == 2);
}

/* Which would take a hundred times its bytes. */
Test(hostile_rows, A16_a_line_of_empty_objects)
{
    static const char head[] = BODY ",\"user\":[{}", tail[] = "]}}";
    size_t count = 2 << 20, length = sizeof head - 1 + 3 * count + sizeof tail - 1;
    char *row = memory_alloc(length + 1, 1), *end = row + sizeof head - 1;
    memcpy(row, head, sizeof head);
    for (size_t i = 0; i < count; i++, end += 3)
        memcpy(end, ",{}", 3);
    memcpy(end, tail, sizeof tail);
    check(&(struct hostile){JSON, row, length});
    memory_free(row);
}

Test(hostile_rows, A16_a_line_of_256_MiB)
{
    static const char before[] = GOOD("before"), behind[] = "\n" GOOD("behind");
    struct phasor_batch_params params = job_params(&job);
    struct phasor_batch_result result;
    struct phasor_error err;
    int fd = open(job.input, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    cr_assert_eq(write(fd, before, sizeof before - 1), (ssize_t)sizeof before - 1);
    /* A hole reads as NUL bytes. */
    cr_assert_eq(pwrite(fd, behind, sizeof behind - 1, 256 << 20), (ssize_t)sizeof behind - 1);
    close(fd);
    uint64_t peak = memory_counters_get().peak_bytes;
    cr_assert_eq(job_run(model, &params, &result, &err), PHASOR_OK, "%s", err.message);
    peak = memory_counters_get().peak_bytes - peak;
    cr_expect_lt(peak, BATCH_LINE_BYTES_MAX / 4 * 5 + (8u << 20), "%llu MiB",
                 (unsigned long long)(peak >> 20));
    cr_expect(result.completed == 2 && result.failed == 1);
    size_t length;
    char *errors = tools_read_file(job.errors, &length);
    cr_expect_not_null(strstr(errors, "line 2 is longer than the limit"), "%s", errors);
    free(errors);
}

/* An id of so many bytes. */
static void check_id(const char *code, size_t id_length)
{
    char *row = malloc(id_length + 200);
    strcpy(row, "{\"custom_id\":\"");
    memset(row + 14, 'i', id_length);
    strcpy(row + 14 + id_length,
           "\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":[1]}}");
    check(&(struct hostile){code, row, 0});
    free(row);
}

Test(hostile_rows, A17_custom_ids)
{
    static const struct hostile rows[] = {
        {"duplicate_custom_id", "{\"custom_id\":\"before\",\"n\":1}", 0},
        {"duplicate_custom_id", "{\"custom_id\":\"b\\u0065fore\",\"n\":1}", 0},
        {VALUE, "{\"custom_id\":\"\"}", 0},
        {VALUE, "{\"custom_id\":7}", 0},
        {"missing_required_parameter", "{\"custom_id\":null}", 0},
        {"missing_required_parameter", "{}", 0},
        {JSON, "{\"custom_id\":\"y\",\"custom_id\":\"z\"}", 0},
    };
    CHECK_ALL(rows);
    check_id(NULL, CUSTOM_ID_BYTES_MAX);
    check_id(VALUE, CUSTOM_ID_BYTES_MAX + 1);
    check_id(VALUE, 1 << 20);
}

Test(hostile_rows, A18_absurd_numbers)
{
    static const struct hostile rows[] = {
        {VALUE, BODY ",\"max_tokens\":-1}}", 0},
        {VALUE, BODY ",\"max_tokens\":0}}", 0},
        {VALUE, BODY ",\"max_tokens\":2147483648}}", 0},
        {LENGTH, BODY ",\"max_tokens\":2147483647}}", 0},
        {JSON, BODY ",\"max_tokens\":1e309}}", 0},
        {JSON, BODY ",\"max_tokens\":99999999999999999999}}", 0},
        {VALUE, BODY ",\"n\":1000000000}}", 0},
        {VALUE, BODY ",\"n\":0}}", 0},
        {JSON, BODY ",\"temperature\":NaN}}", 0},
        {JSON, BODY ",\"temperature\":-Infinity}}", 0},
        {VALUE, BODY ",\"temperature\":-1}}", 0},
        {VALUE, BODY ",\"temperature\":1e300}}", 0},
        {VALUE, BODY ",\"top_p\":0}}", 0},
        {VALUE, BODY ",\"logprobs\":1000000}}", 0},
        {VALUE, BODY ",\"prompt_logprobs\":1000000}}", 0},
        {VALUE, BODY ",\"seed\":0.5}}", 0},
        {NULL, BODY ",\"max_tokens\":1,\"seed\":-9223372036854775808}}", 0},
        {VALUE, HEAD "\"prompt\":[2147483648]}}", 0},
        {VALUE, HEAD "\"prompt\":[-1]}}", 0},
        {VALUE, HEAD "\"prompt\":[2147483647]}}", 0},
    };
    uint64_t peak = memory_counters_get().peak_bytes;
    CHECK_ALL(rows);
    cr_expect_lt(memory_counters_get().peak_bytes - peak, 64 << 20);
}

/* A prompt of so many ids. */
static void check_prompt(const char *code, int64_t count)
{
    char *row = malloc((size_t)count * 2 + 200), *end = row;
    end += sprintf(end, HEAD "\"max_tokens\":1,\"prompt\":[");
    for (int64_t i = 0; i < count; i++)
        end += sprintf(end, i == 0 ? "1" : ",1");
    sprintf(end, "]}}");
    check(&(struct hostile){code, row, 0});
    free(row);
}

Test(hostile_rows, A19_lengths_of_prompts)
{
    struct phasor_inspect_params inspect = phasor_inspect_params_default();
    struct phasor_error err;
    char *description;
    inspect.model = JOB_MODEL;
    cr_assert_eq(phasor_inspect(&description, &inspect, &err), PHASOR_OK, "%s", err.message);
    json_t *object = json_loads(description, 0, NULL);
    int64_t context = json_integer_value(json_object_get(object, "context_max"));
    json_decref(object);
    phasor_text_free(description);
    check_prompt(VALUE, 0);
    check_prompt(NULL, context - 1);
    check_prompt(LENGTH, context);
    check_prompt(LENGTH, context + 1);
    check_prompt(LENGTH, 10 * context);
    check(&(struct hostile){"unsupported_parameter", HEAD "\"prompt\":\"\"}}", 0});
}
