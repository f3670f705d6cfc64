/* The record of a run: a small JSON file beside the output, from which --resume knows whether it
 * would go on with the same run. docs/batch-format.md describes it. */
#ifndef PHASOR_ENGINE_BATCH_RECORD_H
#define PHASOR_ENGINE_BATCH_RECORD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/json.h"
#include "base/log.h"
#include "base/status.h"
#include "base/text.h"
#include "engine/batch_parts.h"
#include "model/fingerprint.h"

#define BATCH_RECORD_SUFFIX ".phasor-run"

/* What a run depends on. */
struct batch_facts {
    const char *input_name;
    struct fingerprint input;
    int64_t row_count;
    const char *error_path; /* NULL: failed rows go to the output */
    const char *model_name;
    struct fingerprint model;
    const char *dtype;
    const char *expert_dtype;
    const char *decode_weights; /* see engine_decode_weights */
    const char *chat_template;  /* NULL: the checkpoint's own */
    uint64_t seed;
    int64_t context_max;
    bool ignore_eos, prompt_logprobs, deterministic;
    /* These change results only a little, and count only with `deterministic`. */
    int64_t token_max; /* the longest sequence that the KV cache holds */
    const char *plan;
    const char *transition; /* by which way its layouts change; NULL: they do not. Not held against
                             * anything, but kept where nobody names one */
    const char *staying;    /* rows that decode as prefill has the experts (batch_staying_format),
                             * which    changes their results; NULL: none */
    const struct batch_parts *parts; /* rows that have plans of their own; NULL: none have. `plan`,
                                      * `transition` and what follows are the first part's */
    int64_t pass_tokens;  /* chosen with the plan, where nobody named them; 0: were not */
    uint64_t cache_bytes; /* of all ranks, with which the plan was priced; 0: not known */
    const char *kernels;  /* which the kind of processor chooses */
    int64_t begun_at;     /* seconds since 1970 */
};

/* A new reference, to be released by json_decref. */
enum status batch_record_create(json_t **out, const struct batch_facts *facts,
                                struct error *err) MUST_CHECK;

/* STATUS_NOT_FOUND when there is no file, STATUS_FORMAT when it is no record. */
enum status batch_record_load(json_t **out, const char *path, struct error *err) MUST_CHECK;

/* Whether `now` is the run of `then`, which `path` holds; else STATUS_INVALID_ARGUMENT, and the
 * sentence tells the first difference. */
enum status batch_record_compare(const json_t *then, const json_t *now, const char *path,
                                 const struct log_sink *log, struct error *err) MUST_CHECK;

/* Tokens of the longest sequence that the run may have, whatever cache it goes on with: with
 * --deterministic as many as when it began; else INT64_MAX. Of a record that was compared. */
int64_t batch_record_longest(const json_t *record);

/* When the run began, and the name under which it knows its model; borrowed. The name stays as it
 * is where the record has but its hash. */
enum status batch_record_begun(int64_t *begun_at, const char **model_name, const json_t *record,
                               const char *path, struct error *err) MUST_CHECK;

/* Replaces the file at once and durably: afterwards there is the old one or the new one, whatever
 * happens in between. */
enum status batch_record_save(const json_t *record, const char *path, struct error *err) MUST_CHECK;

/* STATUS_INVALID_ARGUMENT when there is a file that is no record: it is not ours to replace. */
enum status batch_record_check(const char *path, struct error *err) MUST_CHECK;

/* Removes the file if it is a record, durably; anything else stays. */
enum status batch_record_remove(const char *path, struct error *err) MUST_CHECK;

#endif
