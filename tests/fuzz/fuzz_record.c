/* The record beside an output through what --resume and --plan auto read of it. Plans that are
 * taken are legal ones of the model, parts have classes each, and both are written and read as the
 * same. */
#include <string.h>
#include <unistd.h>

#include "engine/batch_order.h"
#include "engine/batch_record.h"
#include "fuzz.h"

#define RANKS 2

static const struct model_shape shape = {.layer_count = 2,
                                         .moe_layer_count = 2,
                                         .vocab_count = 512,
                                         .hidden_dim = 64,
                                         .head_count = 4,
                                         .kv_head_count = 2,
                                         .head_dim = 16,
                                         .expert_count = 4,
                                         .expert_top_k = 2,
                                         .expert_dim = 64};

static void check_choice(const struct engine_choice *choice)
{
    struct error err;
    FUZZ_CHECK(choice->is_made);
    FUZZ_CHECK(choice->layouts.of[PHASE_PREFILL].rank_count == RANKS);
    FUZZ_CHECK(plan_layouts_check(&choice->layouts, &shape, &err) == STATUS_OK);
    FUZZ_CHECK(choice->pass_tokens >= 0);
}

static void check_parts(const struct batch_parts *parts)
{
    struct batch_parts again;
    int first = 0;
    FUZZ_CHECK(parts->count >= 2 && parts->count <= PLAN_BINS_MAX);
    FUZZ_CHECK(parts->bin_count >= parts->classes.count && parts->bin_count <= PLAN_BINS_MAX);
    for (int p = 0; p < parts->count; first = parts->class_end[p++]) {
        check_choice(&parts->of[p]);
        FUZZ_CHECK(parts->class_end[p] > first);
    }
    FUZZ_CHECK(first == parts->classes.count);
    for (int i = 0; i < parts->bin_count; i++)
        FUZZ_CHECK(parts->classes.of_bin[i] >= 0 && parts->classes.of_bin[i] < first);
    json_t *json = batch_parts_json(parts);
    FUZZ_CHECK(json != NULL && batch_parts_parse(&again, json, &shape, RANKS));
    json_t *twice = batch_parts_json(&again);
    FUZZ_CHECK(json_equal(json, twice) && batch_parts_are_alike(json, twice));
    json_decref(twice);
    json_decref(json);
}

static void check_staying(const char *text)
{
    struct batch_staying staying;
    char again[BATCH_STAYING_TEXT_BYTES];
    if (!batch_staying_parse(&staying, text))
        return;
    FUZZ_CHECK(staying.bin_count >= 1 && staying.bin_count <= PLAN_BINS_MAX);
    batch_staying_format(again, &staying);
    struct batch_staying parsed;
    FUZZ_CHECK(batch_staying_parse(&parsed, again) && parsed.stays == staying.stays);
}

static void ignore(void *context, enum log_level level, const char *message)
{
    (void)context;
    (void)level;
    (void)message;
}

static void check_record(const json_t *record, const char *path)
{
    struct engine_choice choice;
    struct batch_parts parts;
    struct error err;
    const struct log_sink log = {ignore, NULL};
    const char *name = NULL, *staying = json_string_value(json_object_get(record, "staying"));
    int64_t begun;
    if (batch_choice_parse(&choice, record, &shape, RANKS))
        check_choice(&choice);
    if (batch_parts_parse(&parts, json_object_get(record, "parts"), &shape, RANKS))
        check_parts(&parts);
    if (staying != NULL)
        check_staying(staying);
    FUZZ_CHECK(batch_record_compare(record, record, path, &log, &err) == STATUS_OK);
    FUZZ_CHECK(batch_record_longest(record) >= INT64_MIN);
    enum status status = batch_record_begun(&begun, &name, record, path, &err);
    if (status != STATUS_OK)
        fuzz_check_error(status, &err);
    else
        FUZZ_CHECK(begun >= 0);
}

/* What another record has differs, or does not, but never breaks. */
static void check_beside(const json_t *record, const char *path)
{
    const struct log_sink log = {ignore, NULL};
    struct error err;
    json_t *other = json_object();
    FUZZ_CHECK(other != NULL);
    enum status status = batch_record_compare(record, other, path, &log, &err);
    if (status != STATUS_OK)
        fuzz_check_error(status, &err);
    status = batch_record_compare(other, record, path, &log, &err);
    if (status != STATUS_OK)
        fuzz_check_error(status, &err);
    json_decref(other);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_account account = fuzz_begin(size);
    int fd = fuzz_file(data, size);
    struct fuzz_path path = fuzz_file_path(fd);
    struct error err;
    json_t *record;
    enum status status = batch_record_load(&record, path.text, &err);
    if (status == STATUS_OK) {
        check_record(record, path.text);
        check_beside(record, path.text);
        json_decref(record);
    } else {
        fuzz_check_error(status, &err);
    }
    close(fd);
    fuzz_end(&account);
    return 0;
}
