/* The bytes of a batch file through the reader of lines and the parser of requests, with the real
 * limit for lines, and with a short one where that makes a difference. Every row is a request or
 * has an error. */
#include <string.h>

#include "base/text.h"
#include "engine/batch_reader.h"
#include "engine/request.h"
#include "fuzz.h"

#define SHORT_LINE_BYTES 512

static void check_row_error(const struct row_error *error)
{
    size_t length = strnlen(error->message, sizeof error->message);
    FUZZ_CHECK(error->http_status == 400); /* a 500 is nothing that an input may cause */
    FUZZ_CHECK(error->code != NULL && error->code[0] != 0);
    FUZZ_CHECK(length > 0 && length < sizeof error->message);
    FUZZ_CHECK(utf8_is_valid(error->message, length));
    FUZZ_CHECK(strncmp(error->message, "line ", 5) == 0);
    length = strnlen(error->param, sizeof error->param);
    FUZZ_CHECK(length < sizeof error->param && utf8_is_valid(error->param, length));
    FUZZ_CHECK(row_error_type(error) != NULL);
}

static void check_prompts(const struct request *request)
{
    if (request->endpoint == ENDPOINT_CHAT) {
        FUZZ_CHECK(request->message_count > 0 && request->messages != NULL);
        FUZZ_CHECK(request->prompt_count == 1);
        return;
    }
    FUZZ_CHECK(request->prompt_count > 0 && request->prompts != NULL);
    for (int64_t i = 0; i < request->prompt_count; i++) {
        const struct prompt_source *prompt = &request->prompts[i];
        FUZZ_CHECK((prompt->ids != NULL) != (prompt->text != NULL));
        for (size_t j = 0; j < json_array_size(prompt->ids); j++) {
            const json_t *id = json_array_get(prompt->ids, j);
            FUZZ_CHECK(json_is_integer(id) && json_integer_value(id) >= 0 &&
                       json_integer_value(id) <= INT32_MAX);
        }
        if (prompt->text != NULL)
            FUZZ_CHECK(utf8_is_valid(prompt->text, prompt->text_length));
    }
}

static void check_request(const struct request *request)
{
    FUZZ_CHECK(request->custom_id != NULL && request->custom_id_length > 0 &&
               request->custom_id_length <= CUSTOM_ID_BYTES_MAX);
    FUZZ_CHECK(request->n >= 1 && request->n <= REQUEST_N_MAX);
    FUZZ_CHECK(request->n * request->prompt_count <= REQUEST_CHOICES_MAX);
    FUZZ_CHECK(request->max_tokens >= -1 && request->max_tokens <= INT32_MAX);
    FUZZ_CHECK(request->temperature >= 0 && request->temperature <= 100); /* no NaN */
    FUZZ_CHECK(request->top_p > 0 && request->top_p <= 1);
    FUZZ_CHECK(request->min_p >= 0 && request->min_p <= 1);
    FUZZ_CHECK(request->top_k >= 0);
    FUZZ_CHECK(request->logprobs >= -1 && request->logprobs <= 1000);
    FUZZ_CHECK(request->prompt_logprobs >= -1 && request->prompt_logprobs <= 1000);
    FUZZ_CHECK(request->stop_id_count >= 0 && request->stop_id_count <= REQUEST_STOP_IDS_MAX);
    for (int64_t i = 0; i < request->stop_id_count; i++)
        FUZZ_CHECK(request->stop_ids[i] >= 0);
    check_prompts(request);
}

static void try_row(const struct batch_row *row, struct field_notes *notes)
{
    struct request_defaults defaults = {0};
    struct request request;
    struct row_error error;
    if (row->is_wrong) {
        check_row_error(&row->error);
        return;
    }
    /* A copy without a byte behind it. */
    char *line = memory_alloc_raw(row->length, 1);
    FUZZ_CHECK(line != NULL);
    memcpy(line, row->bytes, row->length);
    bool is_good = request_parse(&request, line, row->length, row->line, &defaults, notes, &error);
    memory_free(line); /* the request points nowhere into it */
    if (!is_good) {
        check_row_error(&error);
        return;
    }
    check_request(&request);
    /* The quick search of the first pass must see what the parser sees. */
    FUZZ_CHECK(row->custom_id != NULL && row->custom_id_length == request.custom_id_length &&
               memcmp(row->custom_id, request.custom_id, row->custom_id_length) == 0);
    request_deinit(&request);
}

/* `notes` NULL: rows are counted, and not parsed. */
static int64_t count_rows(struct batch_reader *reader, struct field_notes *notes)
{
    int64_t count = 0, line_before = 0;
    for (;;) {
        struct batch_row row;
        struct error err;
        bool found;
        FUZZ_CHECK(batch_reader_next(reader, &row, &found, &err) == STATUS_OK);
        if (!found)
            return count;
        FUZZ_CHECK(row.line > line_before && row.length > 0);
        FUZZ_CHECK(row.custom_id == NULL || utf8_is_valid(row.custom_id, row.custom_id_length));
        line_before = row.line;
        if (notes != NULL)
            try_row(&row, notes);
        count++;
    }
}

static void try_file(const char *path, size_t line_bytes_max)
{
    struct batch_reader *reader = NULL;
    struct field_notes notes = {0};
    struct error err;
    FUZZ_CHECK(batch_reader_open(&reader, path, line_bytes_max, NULL, NULL, &err) == STATUS_OK);
    int64_t count = batch_reader_row_count(reader);
    FUZZ_CHECK(count_rows(reader, &notes) == count);
    FUZZ_CHECK(batch_reader_rewind(reader, &err) == STATUS_OK);
    FUZZ_CHECK(count_rows(reader, NULL) == count);
    batch_reader_close(reader);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_account account = fuzz_begin(size);
    static int fd = -1; /* kept: making a file takes longer than reading it */
    fd = fuzz_file_rewrite(fd, data, size);
    struct fuzz_path path = fuzz_file_path(fd);
    try_file(path.text, BATCH_LINE_BYTES_MAX);
    if (size > SHORT_LINE_BYTES)
        try_file(path.text, SHORT_LINE_BYTES);
    fuzz_end(&account);
    return 0;
}
