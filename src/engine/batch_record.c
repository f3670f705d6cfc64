#include "engine/batch_record.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/disk.h"
#include "base/new_file.h"
#include "phasor.h"

#define RECORD_FORMAT    1
#define RECORD_BYTES_MAX (64 * 1024)

/* ---- What stands in it --------------------------------------------------------------------- */

#define NAME_HASH_PREFIX "xxh3:"

/* Names of files may be any bytes, JSON texts may not: those are told apart by their hash. */
static json_t *name_json(const char *name)
{
    char hashed[32];
    if (name == NULL)
        return json_null();
    if (utf8_is_valid(name, strlen(name)))
        return json_string(name);
    snprintf(hashed, sizeof hashed, NAME_HASH_PREFIX "%016" PRIx64,
             (uint64_t)XXH3_64bits(name, strlen(name)));
    return json_string(hashed);
}

static json_t *fingerprint_json(const struct fingerprint *fingerprint)
{
    char digits[FINGERPRINT_DIGITS + 1];
    fingerprint_format(digits, fingerprint);
    return json_string(digits);
}

/* As text: JSON numbers of 64 bits have a sign. */
static json_t *seed_json(uint64_t seed)
{
    char digits[24];
    snprintf(digits, sizeof digits, "%" PRIu64, seed);
    return json_string(digits);
}

/* Folders may be named anew between a run and its resumption: the last part counts. */
static const char *last_part(const char *path)
{
    const char *slash = path == NULL ? NULL : strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

enum status batch_record_create(json_t **out, const struct batch_facts *facts, struct error *err)
{
    json_t *record = json_pack(
        "{s:i, s:s, s:I, s:o, s:o, s:I, s:o, s:o, s:o, s:s, s:s, s:o, s:o, s:I, s:b, s:b, s:b, "
        "s:I, s:s, s:s, s:s, s:s?, s:s?, s:o, s:I, s:I}",
        "phasor_run", RECORD_FORMAT, "version", PHASOR_VERSION, "begun",
        (json_int_t)facts->begun_at, "input", name_json(facts->input_name), "input_xxh3_128",
        fingerprint_json(&facts->input), "rows", (json_int_t)facts->row_count, "error_file",
        name_json(last_part(facts->error_path)), "model", name_json(facts->model_name),
        "model_xxh3_128", fingerprint_json(&facts->model), "dtype", facts->dtype, "expert_dtype",
        facts->expert_dtype, "chat_template", name_json(facts->chat_template), "seed",
        seed_json(facts->seed), "max_model_len", (json_int_t)facts->context_max, "ignore_eos",
        facts->ignore_eos, "prompt_logprobs", facts->prompt_logprobs, "deterministic",
        facts->deterministic, "longest_sequence", (json_int_t)facts->token_max, "plan", facts->plan,
        "kernels", facts->kernels, "decode_weights", facts->decode_weights, "transition",
        facts->transition, "staying", facts->staying, "parts", batch_parts_json(facts->parts),
        "pass_tokens", (json_int_t)facts->pass_tokens, "planned_cache_bytes",
        (json_int_t)facts->cache_bytes);
    if (record == NULL)
        return error_set(err, STATUS_NO_MEMORY, "out of memory for the record of the run");
    *out = record;
    return STATUS_OK;
}

/* ---- Whether it is the same run ------------------------------------------------------------ */

struct record_key {
    const char *key;
    const char *what;                                 /* in the sentence; "--x" for options */
    enum { COUNTS, COUNTS_EXACTLY, IS_NOTED } weight; /* EXACTLY: with --deterministic */
};

static const struct record_key record_keys[] = {
    {"input_xxh3_128", "the input file", COUNTS},
    {"model_xxh3_128", "the model", COUNTS},
    {"error_file", "--error-file", COUNTS},
    {"dtype", "--dtype", COUNTS},
    {"expert_dtype", "--expert-dtype", COUNTS},
    {"decode_weights", "what decode computes with (--plan, --transition, --backup, --policy)",
     COUNTS},
    {"staying", "which rows decode in prefill's layout (--plan auto)", COUNTS},
    {"parts", "which rows run under which plan (--plan auto)", COUNTS},
    {"chat_template", "--chat-template", COUNTS},
    {"seed", "--seed", COUNTS},
    {"max_model_len", "--max-model-len", COUNTS},
    {"ignore_eos", "--ignore-eos", COUNTS},
    {"prompt_logprobs", "--prompt-logprobs", COUNTS},
    {"deterministic", "--deterministic", COUNTS},
    {"longest_sequence", "the longest sequence that the KV cache holds (--kv-memory)",
     COUNTS_EXACTLY},
    {"plan", "--plan", COUNTS_EXACTLY},
    {"kernels", "the kind of processor", COUNTS_EXACTLY},
    {"version", "phasor's version", IS_NOTED},
};

/* A value as it is shown: without quotes, cut where it is long. */
struct shown {
    char text[160];
};

/* Parts: their plans. */
static struct shown show_parts(const json_t *parts)
{
    struct shown shown = {""};
    const json_t *of = json_object_get(parts, "of");
    size_t length = 0;
    for (size_t p = 0; p < json_array_size(of) && length < sizeof shown.text; p++) {
        const char *plan = json_string_value(json_object_get(json_array_get(of, p), "plan"));
        length += (size_t)snprintf(shown.text + length, sizeof shown.text - length, "%s%s",
                                   p > 0 ? ", then " : "", plan == NULL ? "none" : plan);
    }
    return shown;
}

static struct shown show(const json_t *value)
{
    struct shown shown;
    if (json_is_object(value))
        return show_parts(value);
    char *dump = json_is_string(value) ? NULL : json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    const char *text = json_is_string(value) ? json_string_value(value) : dump;
    snprintf(shown.text, sizeof shown.text, "%s",
             text == NULL || json_is_null(value) ? "none" : text);
    free(dump);
    return shown;
}

static enum status refuse(const struct record_key *key, const json_t *then, const json_t *now,
                          const char *path, struct error *err)
{
    bool is_content = strstr(key->key, "xxh3") != NULL;
    if (is_content)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--resume: %s is not the one with which the run began (%s); give the one "
                         "of then, or start anew with --overwrite",
                         key->what, path);
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "--resume: %s is not as when the run began (%s): then %s, now %s; give the "
                     "one of then, or start anew with --overwrite",
                     key->what, path, show(then).text, show(now).text);
}

/* A cache that holds longer sequences does as well: see batch_record_longest; and parts under the
 * same plans, however these are run. */
static bool is_as_good(const struct record_key *key, const json_t *then, const json_t *now)
{
    if (strcmp(key->key, "parts") == 0)
        return batch_parts_are_alike(then, now);
    return strcmp(key->key, "longest_sequence") == 0 && json_is_integer(then) &&
           json_integer_value(then) >= 1 && json_integer_value(now) > json_integer_value(then);
}

int64_t batch_record_longest(const json_t *record)
{
    bool is_exact = json_is_true(json_object_get(record, "deterministic"));
    return is_exact ? json_integer_value(json_object_get(record, "longest_sequence")) : INT64_MAX;
}

/* What an earlier version did not write it did not have. */
static const json_t *value_of(const json_t *record, const char *key)
{
    const json_t *value = json_object_get(record, key);
    return value == NULL ? json_null() : value;
}

enum status batch_record_compare(const json_t *then, const json_t *now, const char *path,
                                 const struct log_sink *log, struct error *err)
{
    bool is_exact = json_is_true(json_object_get(now, "deterministic"));
    for (size_t i = 0; i < sizeof record_keys / sizeof *record_keys; i++) {
        const struct record_key *key = &record_keys[i];
        const json_t *a = value_of(then, key->key), *b = value_of(now, key->key);
        if (json_equal(a, b) || (key->weight == COUNTS_EXACTLY && !is_exact) ||
            is_as_good(key, a, b))
            continue;
        if (key->weight != IS_NOTED)
            return refuse(key, a, b, path, err);
        log_write(log, LOG_WARNING,
                  "the run was begun with %s %s and goes on with %s: rows may differ in last bits",
                  key->what, show(a).text, show(b).text);
    }
    return STATUS_OK;
}

enum status batch_record_begun(int64_t *begun_at, const char **model_name, const json_t *record,
                               const char *path, struct error *err)
{
    const char *name;
    TRY(json_get_string(&name, record, path, "model", err));
    if (strncmp(name, NAME_HASH_PREFIX, strlen(NAME_HASH_PREFIX)) != 0)
        *model_name = name;
    return json_get_int(begun_at, record, path, "begun", 0, (int64_t)1 << 53, err);
}

/* ---- The file ------------------------------------------------------------------------------ */

enum status batch_record_load(json_t **out, const char *path, struct error *err)
{
    json_t *record;
    TRY(json_load_object(&record, path, RECORD_BYTES_MAX, err));
    int64_t format = json_integer_value(json_object_get(record, "phasor_run"));
    if (format == RECORD_FORMAT) {
        *out = record;
        return STATUS_OK;
    }
    json_decref(record);
    if (format > RECORD_FORMAT)
        return error_set(err, STATUS_UNSUPPORTED, "%s is of a later version of phasor", path);
    return error_set(err, STATUS_FORMAT, "%s is no record of a run of phasor", path);
}

static enum status write_whole(int fd, const char *bytes, size_t length, const char *path,
                               struct error *err)
{
    while (length > 0) {
        ssize_t put = disk_write(fd, bytes, length);
        if (put < 0)
            return error_set_errno(err, errno, "cannot write %s", path);
        bytes += put;
        length -= (size_t)put;
    }
    if (disk_sync(fd) != 0)
        return error_set_errno(err, errno, "cannot bring %s to the disk", path);
    return STATUS_OK;
}

static enum status put_in_place(const char *from, const char *to, struct error *err)
{
    if (disk_rename(from, to) != 0)
        return error_set_errno(err, errno, "cannot rename %s to %s", from, to);
    return STATUS_OK;
}

static enum status replace(const char *path, const char *bytes, struct error *err)
{
    char name[PATH_MAX];
    int fd = new_file_open(name, path);
    if (fd < 0)
        return error_set_errno(err, errno, "cannot create %s, which --resume needs", path);
    enum status status = write_whole(fd, bytes, strlen(bytes), name, err);
    close(fd);
    if (status == STATUS_OK)
        status = put_in_place(name, path, err);
    if (status != STATUS_OK) {
        unlink(name);
        return status;
    }
    if (disk_sync_folder_of(path) != 0)
        return error_set_errno(err, errno, "cannot bring the folder of %s to the disk", path);
    return STATUS_OK;
}

enum status batch_record_save(const json_t *record, const char *path, struct error *err)
{
    struct text content = {0};
    char *dump = json_dumps(record, JSON_INDENT(1));
    text_append_format(&content, "%s\n", dump == NULL ? "" : dump);
    content.failed |= dump == NULL;
    enum status status = text_check(&content, "the record of the run", err);
    if (status == STATUS_OK)
        status = replace(path, content.bytes, err);
    free(dump);
    text_deinit(&content);
    return status;
}

enum status batch_record_check(const char *path, struct error *err)
{
    json_t *record = NULL;
    enum status status = batch_record_load(&record, path, err);
    json_decref(record);
    if (status == STATUS_OK || status == STATUS_NOT_FOUND || status == STATUS_UNSUPPORTED)
        return STATUS_OK;
    if (status == STATUS_NO_MEMORY)
        return status;
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "%s, where the record of the run goes, is something else; move it away, or "
                     "choose another output file",
                     path);
}

enum status batch_record_remove(const char *path, struct error *err)
{
    json_t *record = NULL;
    enum status status = batch_record_load(&record, path, err);
    json_decref(record);
    if (status == STATUS_NO_MEMORY)
        return status;
    if (status != STATUS_OK && status != STATUS_UNSUPPORTED)
        return STATUS_OK; /* there is none, or it is something else */
    if (unlink(path) != 0 && errno != ENOENT)
        return error_set_errno(err, errno, "cannot remove %s, the record of another run", path);
    if (disk_sync_folder_of(path) != 0)
        return error_set_errno(err, errno, "cannot bring the folder of %s to the disk", path);
    return STATUS_OK;
}
