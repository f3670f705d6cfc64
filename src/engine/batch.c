/* The run of a batch file: reader -> rows in flight -> generator -> writer. One thread drives it.
 * At most IN_FLIGHT_FACTOR times --max-num-seqs sequences are in flight, so that the generator
 * always has some to admit and memory does not grow with the file; fewer where the KV cache lets
 * fewer run. */
#include "engine/batch.h"

#include <string.h>
#include <time.h>

#include "base/system.h"
#include "engine/batch_files.h"
#include "engine/batch_reader.h"
#include "engine/batch_row.h"
#include "engine/response.h"
#include "engine/session.h"

#define IN_FLIGHT_FACTOR   2
#define FIRST_IN_FLIGHT    64
#define PROGRESS_SECONDS   0.2
#define STRICT_NOTICES_MAX 20

struct batch {
    struct engine *engine;
    const struct phasor_batch_params *params;
    const struct log_sink *log;
    struct phasor_batch_result *result;
    struct batch_reader *reader;
    struct batch_files files;
    struct session session;
    struct batch_world world;
    struct error chat_refusal;
    struct field_notes notes;
    struct text line; /* the output line that is being built */
    bool has_told_model;
    bool has_all_rows; /* the reader is at its end */
    bool is_draining;  /* no more rows are started, and those in flight have until */
    double drain_until;
    double started_at, progress_at;
    /* A failure within a callback of the generator, to be returned behind it. */
    enum status failure;
    struct error failure_reason;
};

/* ---- Writing rows -------------------------------------------------------------------------- */

static enum status write_line(struct batch *batch, enum batch_file file, struct error *err)
{
    TRY(text_check(&batch->line, "an output line", err));
    return batch_writer_line(batch->files.writer, file, batch->line.bytes, batch->line.length, err);
}

static enum status write_error(struct batch *batch, const struct row_identity *identity,
                               const struct row_error *error, struct error *err)
{
    if (batch->params->strict)
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s (--strict ends the run)",
                         error->message);
    text_clear(&batch->line);
    response_write_error(&batch->line, identity, error);
    TRY(write_line(batch, BATCH_ERRORS, err));
    batch->result->failed++;
    return STATUS_OK;
}

static struct row_identity identify(const struct batch *batch, int64_t line, const char *custom_id,
                                    size_t custom_id_length)
{
    return (struct row_identity){.run_seed = batch->params->seed,
                                 .line = line,
                                 .custom_id = custom_id,
                                 .custom_id_length = custom_id_length};
}

/* A prompt's tokens have offsets only where they are shown: with echo and logprobs. */
static enum status place_prompt_tokens(const struct batch_row_run *row, struct error *err)
{
    const struct request *request = &row->request;
    if (!request->echo || request->logprobs < 0 || row->world->tokenizer == NULL)
        return STATUS_OK;
    for (int64_t p = 0; p < request->prompt_count; p++)
        TRY(prompt_result_place(&row->prompts[p], row->world->tokenizer,
                                request->skip_special_tokens, err));
    return STATUS_OK;
}

/* One moment for all rows, whenever they are run, where every byte is to be the same. */
static int64_t creation_time(const struct batch *batch)
{
    return batch->params->deterministic ? batch->files.begun_at : (int64_t)time(NULL);
}

static enum status write_response(struct batch *batch, const struct batch_row_run *row,
                                  struct error *err)
{
    const struct request *request = &row->request;
    struct response response = {
        .identity = identify(batch, row->line, request->custom_id, request->custom_id_length),
        .request = request,
        .tokenizer = batch->world.tokenizer,
        .model = batch->files.model_name,
        .created = creation_time(batch),
        .prompts = row->prompts,
        .choices = row->choices,
    };
    if (row->has_failed)
        return write_error(batch, &response.identity, &row->error, err);
    TRY(place_prompt_tokens(row, err));
    text_clear(&batch->line);
    response_write(&batch->line, &response);
    TRY(write_line(batch, BATCH_OUTPUT, err));
    struct usage usage = response_usage(&response);
    batch->result->completed++;
    batch->result->prompt_tokens += (uint64_t)usage.prompt_tokens;
    batch->result->completion_tokens += (uint64_t)usage.completion_tokens;
    return STATUS_OK;
}

static void on_row_done(void *context, struct batch_row_run *row)
{
    struct batch *batch = context;
    if (batch->failure == STATUS_OK)
        batch->failure = write_response(batch, row, &batch->failure_reason);
}

static enum status take_failure(const struct batch *batch, struct error *err)
{
    if (batch->failure == STATUS_OK)
        return STATUS_OK;
    return error_set(err, batch->failure, "%s", batch->failure_reason.message);
}

/* ---- Reading rows -------------------------------------------------------------------------- */

static bool parse_row(struct batch *batch, const struct batch_row *row, struct request *request,
                      struct row_error *error)
{
    const struct request_defaults defaults = {.ignore_eos = batch->params->ignore_eos,
                                              .prompt_logprobs = batch->params->prompt_logprobs};
    if (row->is_wrong) {
        *error = row->error;
        return false;
    }
    return request_parse(request, row->bytes, row->length, row->line, &defaults, &batch->notes,
                         error);
}

/* Rows may ask for any model; that there is only one is said once. */
static void note_model(struct batch *batch, const struct request *request)
{
    const char *name = engine_model_name(batch->engine);
    if (batch->has_told_model || request->model == NULL || strcmp(request->model, name) == 0)
        return;
    batch->has_told_model = true;
    log_write(batch->log, LOG_INFO, "rows ask for the model \"%s\" and are run with %s",
              request->model, name);
}

static enum status start_row(struct batch *batch, struct batch_row *row, struct error *err)
{
    struct request request;
    struct row_error error;
    struct row_identity identity =
        identify(batch, row->line, row->custom_id, row->custom_id_length);
    if (batch_past_has(&batch->files.past, &identity))
        return STATUS_OK; /* done before the run was interrupted */
    batch_reader_check(batch->reader, row);
    if (!parse_row(batch, row, &request, &error))
        return write_error(batch, &identity, &error, err);
    note_model(batch, &request);
    TRY(batch_row_start(&batch->world, &request, row->line, err));
    return take_failure(batch, err);
}

/* --strict: reads all rows before anything is run or written. */
static enum status check_all_rows(struct batch *batch, struct error *err)
{
    int64_t wrong_count = 0;
    struct row_error first;
    for (;;) {
        struct batch_row row;
        struct request request;
        struct row_error error;
        bool found;
        TRY(batch_reader_next(batch->reader, &row, &found, err));
        if (!found)
            break;
        if (parse_row(batch, &row, &request, &error)) {
            request_deinit(&request);
            continue;
        }
        if (wrong_count++ == 0)
            first = error;
        if (wrong_count <= STRICT_NOTICES_MAX)
            log_write(batch->log, LOG_WARNING, "%s", error.message);
    }
    if (wrong_count > 0)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%lld of %lld rows are wrong and --strict allows none; the first: %s",
                         (long long)wrong_count, (long long)batch_reader_row_count(batch->reader),
                         first.message);
    return batch_reader_rewind(batch->reader, err);
}

/* ---- Progress ------------------------------------------------------------------------------ */

static double rate(double count, double seconds)
{
    return seconds > 0 ? count / seconds : 0;
}

/* Rows that are in the files. */
static uint64_t done_count(const struct batch *batch)
{
    const struct phasor_batch_result *result = batch->result;
    return result->completed + result->failed + result->completed_before + result->failed_before;
}

static struct phasor_batch_progress measure(const struct batch *batch)
{
    struct generator_counters counters = {0};
    const struct phasor_batch_result *result = batch->result;
    if (batch->session.generator != NULL)
        counters = generator_counters_get(batch->session.generator);
    double elapsed = batch->started_at > 0 ? system_seconds() - batch->started_at : 0;
    uint64_t done = done_count(batch), done_now = result->completed + result->failed;
    struct phasor_batch_progress progress = {
        .requests_total = result->total,
        .requests_done = done,
        .requests_failed = result->failed + result->failed_before,
        .prompt_tokens = (uint64_t)counters.prefill_tokens,
        .completion_tokens = batch->world.completion_tokens,
        .prefill_tokens_per_second =
            rate((double)counters.prefill_tokens, counters.prefill_seconds),
        .decode_tokens_per_second = rate((double)counters.decode_tokens, counters.decode_seconds),
        .elapsed_seconds = elapsed,
        .remaining_seconds = -1,
    };
    if (done_now > 0 && done <= result->total)
        progress.remaining_seconds = elapsed * (double)(result->total - done) / (double)done_now;
    return progress;
}

static enum status stopped(const struct batch *batch, struct error *err)
{
    return error_set(err, STATUS_CANCELLED, "the run was stopped; %llu of %llu rows are done%s",
                     (unsigned long long)done_count(batch),
                     (unsigned long long)batch->result->total,
                     batch->files.record != NULL ? ", and --resume runs the rest" : "");
}

static enum status tell_progress(struct batch *batch, bool is_last, struct error *err)
{
    double now = system_seconds();
    if (batch->params->progress == NULL ||
        (!is_last && now - batch->progress_at < PROGRESS_SECONDS))
        return STATUS_OK;
    batch->progress_at = now;
    struct phasor_batch_progress progress = measure(batch);
    int answer = batch->params->progress(batch->params->progress_context, &progress);
    if (answer == PHASOR_GO_ON || is_last)
        return STATUS_OK;
    if (answer != PHASOR_DRAIN)
        return stopped(batch, err);
    if (!batch->is_draining)
        batch->drain_until = now + batch->params->drain_seconds;
    batch->is_draining = true;
    return STATUS_OK;
}

/* While the input is read there is nothing to drain. */
static enum status watch_reading(void *context, struct error *err)
{
    struct batch *batch = context;
    TRY(tell_progress(batch, false, err));
    return batch->is_draining
               ? error_set(err, STATUS_CANCELLED, "the run was stopped before it began")
               : STATUS_OK;
}

/* What has to happen often: lines to the disk, a look at whether to go on. */
static enum status tick(struct batch *batch, struct error *err)
{
    TRY(batch_writer_tick(batch->files.writer, err));
    return tell_progress(batch, false, err);
}

/* ---- The run ------------------------------------------------------------------------------- */

static enum status fill_up(struct batch *batch, struct error *err)
{
    int64_t running = generator_counters_get(batch->session.generator).running;
    int64_t limit = IN_FLIGHT_FACTOR * running + FIRST_IN_FLIGHT;
    if (limit > IN_FLIGHT_FACTOR * batch->params->max_num_seqs)
        limit = IN_FLIGHT_FACTOR * batch->params->max_num_seqs;
    while (!batch->has_all_rows && !batch->is_draining && batch->world.sequence_count < limit) {
        struct batch_row row;
        bool found;
        TRY(batch_reader_skim(batch->reader, &row, &found, err));
        batch->has_all_rows = !found;
        if (found)
            TRY(start_row(batch, &row, err));
        TRY(tick(batch, err));
    }
    return STATUS_OK;
}

static enum status run_all(struct batch *batch, struct error *err)
{
    for (;;) {
        TRY(fill_up(batch, err));
        bool is_idle = batch->world.sequence_count == 0;
        if (is_idle && (batch->has_all_rows || done_count(batch) >= batch->result->total))
            return tell_progress(batch, true, err);
        if (batch->is_draining && (is_idle || system_seconds() >= batch->drain_until))
            return stopped(batch, err);
        TRY(generator_step(batch->session.generator, err));
        TRY(take_failure(batch, err));
        TRY(tick(batch, err));
    }
}

static enum status open_session(struct batch *batch, struct error *err)
{
    const struct phasor_batch_params *params = batch->params;
    struct session_params session = {
        .max_num_seqs = params->max_num_seqs,
        .max_num_batched_tokens = params->max_num_batched_tokens,
        .max_model_len = params->max_model_len,
        .kv_bytes = params->kv_bytes,
        .shares_prefixes = params->shares_prefixes,
        .log = *batch->log,
    };
    const struct chat_template *chat_template = NULL;
    enum status status = session_chat_template(&chat_template, batch->engine, params->chat_template,
                                               &batch->chat_refusal);
    if (status != STATUS_OK && params->chat_template != NULL)
        return error_set(err, status, "%s", batch->chat_refusal.message);
    TRY(session_open(&batch->session, batch->engine, &session, err));
    batch->world = (struct batch_world){
        .generator = batch->session.generator,
        .tokenizer = engine_tokenizer(batch->engine),
        .chat_template = chat_template,
        .chat_refusal = &batch->chat_refusal,
        .seed = params->seed,
        .context_max = batch->session.context_max,
        .kv_token_max = batch->session.kv_token_max,
        .done = on_row_done,
        .context = batch,
    };
    return STATUS_OK;
}

/* What --resume holds against the record of the interrupted run. */
static enum status gather_facts(struct batch_facts *out, const struct batch *batch,
                                char plan[LAYOUT_TEXT_BYTES], struct error *err)
{
    const struct phasor_batch_params *params = batch->params;
    const struct session *session = &batch->session;
    layout_format(plan, engine_layout(batch->engine));
    *out = (struct batch_facts){
        .input_name = params->input_path,
        .input = batch_reader_fingerprint(batch->reader),
        .row_count = batch_reader_row_count(batch->reader),
        .model_name = engine_model_name(batch->engine),
        .dtype = dtype_name(engine_dtype(batch->engine)),
        .chat_template = params->chat_template,
        .seed = params->seed,
        .context_max = session->context_max,
        .ignore_eos = params->ignore_eos,
        .prompt_logprobs = params->prompt_logprobs,
        .deterministic = params->deterministic,
        .token_max = session->kv_token_max < session->context_max ? session->kv_token_max
                                                                  : session->context_max,
        .plan = plan,
    };
    return fingerprint_checkpoint(&out->model, engine_checkpoint(batch->engine), err);
}

static enum status open_files(struct batch *batch, struct error *err)
{
    const struct phasor_batch_params *params = batch->params;
    char plan[LAYOUT_TEXT_BYTES];
    struct batch_files_params files = {
        .output_path = params->output_path,
        .error_path = params->error_path,
        .mode = params->resume      ? BATCH_FILES_RESUME
                : params->overwrite ? BATCH_FILES_OVERWRITE
                                    : BATCH_FILES_NEW,
        .reader = batch->reader,
        .log = batch->log,
    };
    TRY(gather_facts(&files.facts, batch, plan, err));
    TRY(batch_files_open(&batch->files, &files, err));
    batch->result->completed_before = batch->files.past.completed_count;
    batch->result->failed_before = batch->files.past.failed_count;
    return STATUS_OK;
}

static enum status run(struct batch *batch, struct error *err)
{
    const struct phasor_batch_params *params = batch->params;
    const struct batch_reader_watch watch = {watch_reading, batch};
    TRY(batch_reader_open(&batch->reader, params->input_path, BATCH_LINE_BYTES_MAX, &watch, err));
    batch->result->total = (uint64_t)batch_reader_row_count(batch->reader);
    if (params->strict)
        TRY(check_all_rows(batch, err));
    TRY(open_session(batch, err));
    TRY(open_files(batch, err));
    batch->started_at = system_seconds();
    TRY(run_all(batch, err));
    return batch_files_finish(&batch->files, err);
}

static void fill_result(const struct batch *batch)
{
    if (batch->session.generator == NULL || batch->started_at == 0)
        return;
    struct generator_counters counters = generator_counters_get(batch->session.generator);
    batch->result->elapsed_seconds = system_seconds() - batch->started_at;
    batch->result->prefill_seconds = counters.prefill_seconds;
    batch->result->decode_seconds = counters.decode_seconds;
    batch->result->prefill_tokens = (uint64_t)counters.prefill_tokens;
    batch->result->decode_tokens = (uint64_t)counters.decode_tokens;
    batch->result->shared_tokens = (uint64_t)counters.shared_tokens;
}

enum status batch_run(struct engine *engine, const struct phasor_batch_params *params,
                      const struct log_sink *log, struct phasor_batch_result *result,
                      struct error *err)
{
    struct batch batch = {
        .engine = engine, .params = params, .log = log, .result = result, .notes.log = log};
    *result = (struct phasor_batch_result){0};
    if (params->input_path == NULL || params->output_path == NULL)
        return error_set(err, STATUS_INVALID_ARGUMENT, "an input and an output file are needed");
    if (params->resume && params->overwrite)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--resume keeps what --overwrite would replace; give one of them");
    enum status status = run(&batch, err);
    fill_result(&batch);
    session_close(&batch.session); /* before the rows, whose prompts the generator may hold */
    batch_rows_drop(&batch.world);
    batch_files_close(&batch.files);
    batch_reader_close(batch.reader);
    text_deinit(&batch.line);
    return status;
}
