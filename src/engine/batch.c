/* The run of a batch file: reader -> rows in flight -> generator -> writer. One thread drives it.
 * At most IN_FLIGHT_FACTOR times --max-num-seqs sequences are in flight, so that the generator
 * always has some to admit and memory does not grow with the file; fewer where the KV cache lets
 * fewer run, and no weights move between waves of them. */
#include "engine/batch.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/system.h"
#include "base/trace.h"
#include "engine/batch_files.h"
#include "engine/batch_order.h"
#include "engine/batch_progress.h"
#include "engine/batch_reader.h"
#include "engine/batch_report.h"
#include "engine/batch_row.h"
#include "engine/response.h"
#include "engine/session.h"

#define IN_FLIGHT_FACTOR   2
#define FIRST_IN_FLIGHT    64
#define STRICT_NOTICES_MAX 20
#define STRICT_WATCH_ROWS  4096 /* that are checked before somebody is asked whether to go on */

/* Rows are read ahead only while those in flight keep less than this, or less than a part of
 * --memory: a prompt may be as long as the context, far more than session.c counts for a row. */
#define KEPT_BYTES_MAX   (UINT64_C(64) << 20)
#define KEPT_MEMORY_PART 4

struct batch {
    struct engine *engine;
    const struct phasor_batch_params *params;
    struct auto_plan *plan;
    const struct log_sink *log;
    struct phasor_batch_result *result;
    struct batch_reader *reader;
    struct batch_order order;
    const struct batch_parts *parts; /* NULL: all rows have the engine's plan */
    struct row_names names; /* of all rows, while the files of a run that is resumed are opened */
    struct batch_files files;
    bool names_passes; /* params do; else passes are as the plan has them */
    struct session session;
    struct batch_world world;
    struct error chat_refusal;
    struct field_notes notes;
    struct text line; /* the output line that is being built */
    bool has_told_model;
    bool has_all_rows; /* the reader is at its end */
    struct batch_progress progress;
    struct batch_report *report;
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
    batch_meter_row(batch->world.meter, usage.prompt_tokens, usage.completion_tokens);
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
    log_write(batch->log, LOG_DEBUG, "rows ask for the model \"%s\" and are run with %s",
              request->model, name);
}

static enum status start_row(struct batch *batch, struct batch_row *row, struct error *err)
{
    struct request request;
    struct row_error error;
    struct row_identity identity =
        identify(batch, row->line, row->custom_id, row->custom_id_length);
    if (batch_past_has(&batch->files.past, row->index))
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
    for (int64_t count = 1;; count++) {
        struct batch_row row;
        struct request request;
        struct row_error error;
        bool found;
        TRY(batch_reader_next(batch->reader, &row, &found, err));
        if (!found)
            break;
        if (count % STRICT_WATCH_ROWS == 0)
            TRY(batch_progress_reading(&batch->progress, err));
        if (parse_row(batch, &row, &request, &error)) {
            request_deinit(&request);
            continue;
        }
        if (wrong_count++ == 0)
            first = error;
        if (wrong_count <= STRICT_NOTICES_MAX)
            log_write(batch->log, LOG_WARNING, "%s", error.message);
    }
    if (wrong_count > STRICT_NOTICES_MAX)
        log_write(batch->log, LOG_WARNING, "%lld more rows are wrong",
                  (long long)(wrong_count - STRICT_NOTICES_MAX));
    if (wrong_count > 0)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%lld of %lld rows are wrong and --strict allows none; the first: %s",
                         (long long)wrong_count, (long long)batch_reader_row_count(batch->reader),
                         first.message);
    return batch_reader_rewind(batch->reader, err);
}

/* ---- The run ------------------------------------------------------------------------------- */

/* Whether a row of the part is to be run: of a run that is resumed all may be done. */
static bool part_has_rows(const struct batch *batch, int part)
{
    int first = part > 0 ? batch->parts->class_end[part - 1] : 0;
    int64_t count = batch_reader_row_count(batch->reader);
    for (int64_t row = 0; row < count; row++) {
        int class = batch->order.class_of[row];
        if (class >= first && class < batch->parts->class_end[part] &&
            !batch_past_has(&batch->files.past, row))
            return true;
    }
    return false;
}

/* Behind the part that is under way; -1: there is none. */
static int part_behind(const struct batch *batch)
{
    if (batch->parts == NULL)
        return -1;
    for (int part = batch->plan->part + 1; part < batch->parts->count; part++) {
        if (part_has_rows(batch, part))
            return part;
    }
    return -1;
}

/* What has to happen often: a look at whether lines come to the disk, and whether to go on. */
static enum status tick(void *context, struct error *err)
{
    struct batch *batch = context;
    TRY(batch_writer_check(batch->files.writer, err));
    batch_report_tick(batch->report);
    return batch_progress_tell(&batch->progress, false, err);
}

/* One row always runs, however large. */
static bool has_room(const struct batch *batch)
{
    uint64_t share = engine_memory_bytes(batch->engine) / KEPT_MEMORY_PART;
    uint64_t limit = share > 0 && share < KEPT_BYTES_MAX ? share : KEPT_BYTES_MAX;
    return batch->world.sequence_count == 0 || batch->world.kept_bytes < limit;
}

/* Sequences that are read ahead: few at first, so that the first pass is soon; but where weights
 * move, a wave is closed by whom nobody waits behind, and it is to be as large as there is room. */
static int64_t in_flight_most(const struct batch *batch)
{
    int64_t most = IN_FLIGHT_FACTOR * batch->params->max_num_seqs;
    int64_t running = generator_counters_get(batch->session.generator).running;
    int64_t limit = IN_FLIGHT_FACTOR * running + FIRST_IN_FLIGHT;
    return engine_moves_weights(batch->engine) || limit > most ? most : limit;
}

static enum status fill_up(struct batch *batch, struct error *err)
{
    int64_t limit = in_flight_most(batch);
    while (!batch->has_all_rows && !batch->progress.is_draining &&
           batch->world.sequence_count < limit && has_room(batch)) {
        struct batch_row row;
        bool found;
        TRY(batch_order_skim(&batch->order, batch->reader, &row, &found, err));
        batch->has_all_rows = !found;
        batch->world.stays = batch_order_stays(&batch->order);
        if (found)
            TRY(start_row(batch, &row, err));
        TRY(tick(batch, err));
    }
    return STATUS_OK;
}

/* Of the part that is under way; of all where there are no parts. */
static enum status run_rows(struct batch *batch, struct error *err)
{
    for (;;) {
        TRY(fill_up(batch, err));
        bool is_idle = batch->world.sequence_count == 0;
        if (is_idle &&
            (batch->has_all_rows || batch_progress_done(&batch->progress) >= batch->result->total))
            return batch_progress_tell(&batch->progress, part_behind(batch) < 0, err);
        if (batch->progress.is_draining) {
            generator_stop_admitting(batch->session.generator);
            if (generator_is_idle(batch->session.generator))
                return batch_progress_stopped(&batch->progress, err);
        }
        TRY(generator_step(batch->session.generator, err));
        TRY(take_failure(batch, err));
        TRY(tick(batch, err));
    }
}

/* By its bytes: English has four to five for each token, ids have up to seven with their commas. */
#define INPUT_TOKEN_BYTES 5

/* Rough, and too much where rows were done before. */
static int64_t tokens_expected(const struct batch *batch)
{
    return batch_reader_bytes(batch->reader) / INPUT_TOKEN_BYTES;
}

static enum status open_session(struct batch *batch, struct error *err)
{
    const struct phasor_batch_params *params = batch->params;
    int64_t pass_tokens = batch->names_passes
                              ? params->max_num_batched_tokens
                              : engine_pass_tokens(batch->engine, params->max_num_seqs);
    struct session_params session = {
        .max_num_seqs = params->max_num_seqs,
        .max_num_batched_tokens = pass_tokens,
        .max_model_len = params->max_model_len,
        .kv_bytes = params->kv_bytes,
        .before = batch_report_counters(batch->report),
        .aside_bytes = batch_past_bytes(batch_reader_row_count(batch->reader), &batch->names),
        .tokens_expected = tokens_expected(batch),
        .shares_prefixes = params->shares_prefixes,
        .counts_routing = params->routing_counts_path != NULL,
        .watch = {.ask = tick, .context = batch},
        .log = *batch->log,
    };
    const struct session *opened = &batch->session;
    const struct chat_template *chat_template = NULL;
    enum status status = session_chat_template(&chat_template, batch->engine, params->chat_template,
                                               &batch->chat_refusal);
    if (status != STATUS_OK && params->chat_template != NULL)
        return error_set(err, status, "%s", batch->chat_refusal.message);
    log_write(batch->log, LOG_DEBUG, "passes of %lld tokens, %lld sequences together at most",
              (long long)pass_tokens, (long long)params->max_num_seqs);
    TRY(session_open(&batch->session, batch->engine, &session, err));
    if (opened->kv_token_max < opened->context_max)
        log_write(batch->log, LOG_WARNING,
                  "the KV cache holds sequences of %lld tokens, and the context is %lld; "
                  "--kv-memory makes room",
                  (long long)opened->kv_token_max, (long long)opened->context_max);
    batch->world = (struct batch_world){
        .generator = batch->session.generator,
        .tokenizer = engine_tokenizer(batch->engine),
        .chat_template = chat_template,
        .chat_refusal = &batch->chat_refusal,
        .meter = batch_report_meter(batch->report),
        .seed = params->seed,
        .completion_tokens = batch->world.completion_tokens,
        .context_max = batch->session.context_max,
        .kv_token_max = batch->session.kv_token_max,
        .done = on_row_done,
        .context = batch,
    };
    return STATUS_OK;
}

/* What --resume holds against the record of the interrupted run. */
static enum status gather_facts(struct batch_facts *out, const struct batch *batch,
                                char plan[LAYOUT_TEXT_BYTES],
                                char decode_weights[ENGINE_DECODE_WEIGHTS_BYTES], struct error *err)
{
    const struct phasor_batch_params *params = batch->params;
    const struct session *session = &batch->session;
    const struct transition *transition = engine_transition(batch->engine);
    plan_layouts_format(plan, engine_layouts(batch->engine));
    engine_decode_weights(decode_weights, batch->engine);
    *out = (struct batch_facts){
        .input_name = params->input_path,
        .input = batch_reader_fingerprint(batch->reader),
        .row_count = batch_reader_row_count(batch->reader),
        .model_name = engine_model_name(batch->engine),
        .dtype = dtype_name(engine_types(batch->engine)->matrices),
        .expert_dtype = dtype_name(engine_types(batch->engine)->experts),
        .decode_weights = decode_weights,
        .chat_template = params->chat_template,
        .seed = params->seed,
        .context_max = session->context_max,
        .ignore_eos = params->ignore_eos,
        .prompt_logprobs = params->prompt_logprobs,
        .deterministic = params->deterministic,
        .token_max = session->kv_token_max < session->context_max ? session->kv_token_max
                                                                  : session->context_max,
        .plan = plan,
        .transition = transition == NULL ? NULL : way_names[transition_way(transition)],
        .pass_tokens =
            batch->names_passes ? 0 : engine_pass_tokens(batch->engine, params->max_num_seqs),
        .cache_bytes = engine_cache_bytes(batch->engine),
        .kernels = engine_kernels(batch->engine),
    };
    return fingerprint_checkpoint(&out->model, engine_checkpoint(batch->engine), err);
}

/* What was too long when the run began is now, too. */
static void limit_as_then(struct batch *batch, int64_t longest)
{
    struct session *session = &batch->session;
    int64_t there = session->kv_token_max, context = session->context_max;
    generator_limit_sequences(session->generator, longest);
    session->kv_token_max = generator_counters_get(session->generator).kv_token_max;
    batch->world.kv_token_max = session->kv_token_max;
    if (session->kv_token_max < there && session->kv_token_max < context)
        log_write(batch->log, LOG_WARNING,
                  "sequences have at most %lld tokens, as when the run began, though the KV cache "
                  "holds %lld now; --overwrite begins anew with these",
                  (long long)session->kv_token_max, (long long)(there < context ? there : context));
}

static enum status open_files(struct batch *batch, struct error *err)
{
    const struct phasor_batch_params *params = batch->params;
    char plan[LAYOUT_TEXT_BYTES], decode_weights[ENGINE_DECODE_WEIGHTS_BYTES];
    char staying[BATCH_STAYING_TEXT_BYTES];
    struct batch_files_params files = {
        .output_path = params->output_path,
        .error_path = params->error_path,
        .mode = params->resume      ? BATCH_FILES_RESUME
                : params->overwrite ? BATCH_FILES_OVERWRITE
                                    : BATCH_FILES_NEW,
        .reader = batch->reader,
        .names = &batch->names,
        .watch = {.ask = batch_progress_reading, .context = &batch->progress},
        .log = batch->log,
    };
    TRY(gather_facts(&files.facts, batch, plan, decode_weights, err));
    if (batch->order.stays != 0) {
        batch_staying_format(staying, &batch->plan->staying);
        files.facts.staying = staying;
    }
    files.facts.parts = batch->parts;
    TRY(batch_files_open(&batch->files, &files, err));
    if (params->resume && batch->files.record != NULL)
        limit_as_then(batch, batch_record_longest(batch->files.record));
    row_names_deinit(&batch->names);
    batch->result->completed_before = batch->files.past.completed_count;
    batch->result->failed_before = batch->files.past.failed_count;
    /* Of a run that is finished no row is looked at again. */
    batch->has_all_rows = batch_progress_done(&batch->progress) >= batch->result->total;
    batch->progress.can_resume = batch->files.record != NULL;
    return STATUS_OK;
}

/* What was read ahead for the plan and cannot be read again, or what the params name. */
static enum status open_reader(struct batch *batch, struct error *err)
{
    const struct phasor_batch_params *params = batch->params;
    const struct watch reading = {.ask = batch_progress_reading, .context = &batch->progress};
    struct row_names *names = params->resume ? &batch->names : NULL;
    int fd = batch->plan == NULL ? -1 : auto_plan_take_input(batch->plan, params->input_path);
    enum status status = fd >= 0 ? batch_reader_open_fd(&batch->reader, fd, params->input_path,
                                                        BATCH_LINE_BYTES_MAX, &reading, names, err)
                                 : batch_reader_open(&batch->reader, params->input_path,
                                                     BATCH_LINE_BYTES_MAX, &reading, names, err);
    if (fd >= 0)
        close(fd);
    return status;
}

/* Of this input, and all of it, to its end; ranks that work one at a time, to be recorded, are not
 * as predicted. */
static void take_forecast(const struct batch *batch)
{
    const struct auto_plan *plan = batch->plan;
    struct phasor_batch_result *result = batch->result;
    struct fingerprint input = batch_reader_fingerprint(batch->reader);
    if (plan == NULL || !plan->has_forecast || memcmp(&input, &plan->input, sizeof input) != 0 ||
        result->completed_before + result->failed_before > 0 || engine_records(batch->engine) ||
        !batch->has_all_rows || batch_progress_done(&batch->progress) < result->total)
        return;
    result->has_prediction = true;
    result->predicted_prefill_seconds = plan->forecast.prefill;
    result->predicted_decode_seconds = plan->forecast.decode;
    result->predicted_between_seconds = plan->forecast.between;
    result->predicted_plan_change_seconds = plan->forecast.loads;
}

/* ---- Parts --------------------------------------------------------------------------------- */

/* No session is open. */
static enum status load_part(struct batch *batch, int part, struct error *err)
{
    char layouts[LAYOUT_TEXT_BYTES];
    const struct engine_choice *choice = &batch->parts->of[part];
    plan_layouts_format(layouts, &choice->layouts);
    log_write(batch->log, LOG_INFO, "the next rows run under %s: weights are loaded for it",
              layouts);
    batch->plan->part = part;
    double begin = trace_begin();
    enum status status = engine_change_plan(batch->engine, choice, err);
    trace_add(begin, "load", 0);
    if (status == STATUS_CANCELLED)
        return batch_progress_stopped(&batch->progress, err);
    return status == STATUS_OK
               ? status
               : error_prefix(err, status, "the weights for %s, under which the next rows run",
                              layouts);
}

static enum status change_part(struct batch *batch, int part, struct error *err)
{
    batch_report_pause(batch->report);
    session_close(&batch->session);
    batch->world.generator = NULL;
    TRY(load_part(batch, part, err));
    TRY(open_session(batch, err));
    batch_report_go_on(batch->report);
    batch->order.class_end = batch->parts->class_end[part];
    batch->has_all_rows = false;
    return STATUS_OK;
}

/* What is of a whole run under one plan. A model that was opened for such a run has no parts; one
 * that was opened for another, or goes on with one, may. */
static enum status check_parts(const struct phasor_batch_params *params, struct error *err)
{
    const char *flag = params->deterministic                 ? "--deterministic"
                       : params->record_path != NULL         ? "--record"
                       : params->routing_counts_path != NULL ? "--routing-counts"
                                                             : NULL;
    return flag == NULL
               ? STATUS_OK
               : error_set(err, STATUS_INVALID_ARGUMENT,
                           "%s is for runs under one plan, and rows of this one have plans of "
                           "their own; leave it out, or begin anew with it",
                           flag);
}

/* Where rows have plans of their own the engine has the first's, unless it has run such a batch. */
static enum status take_order(struct batch *batch, struct error *err)
{
    batch->order = auto_plan_order(batch->plan, (struct watch){tick, batch});
    batch->parts = auto_plan_parts(batch->plan);
    if (batch->parts == NULL)
        return STATUS_OK;
    TRY(check_parts(batch->params, err));
    batch->order.class_end = batch->parts->class_end[0];
    return batch->plan->part == 0 ? STATUS_OK : load_part(batch, 0, err);
}

static enum status run_parts(struct batch *batch, struct error *err)
{
    for (;;) {
        TRY(run_rows(batch, err));
        int part = part_behind(batch);
        if (part < 0)
            return STATUS_OK;
        if (batch->progress.is_draining)
            return batch_progress_stopped(&batch->progress, err);
        TRY(change_part(batch, part, err));
    }
}

static enum status run(struct batch *batch, struct error *err)
{
    const struct phasor_batch_params *params = batch->params;
    TRY(open_reader(batch, err));
    struct fingerprint input = batch_reader_fingerprint(batch->reader);
    batch->result->total = (uint64_t)batch_reader_row_count(batch->reader);
    if (params->strict)
        TRY(check_all_rows(batch, err));
    if (batch->plan != NULL && auto_plan_has_order(batch->plan, &input))
        TRY(take_order(batch, err));
    /* What an earlier run began would be recorded without its beginning. */
    if (params->record_path != NULL)
        TRY(engine_settle(batch->engine, err));
    TRY(open_session(batch, err));
    TRY(open_files(batch, err));
    batch->progress.started_at = system_seconds();
    batch_report_begin(batch->report, batch->parts);
    TRY(run_parts(batch, err));
    take_forecast(batch);
    return batch_files_finish(&batch->files, err);
}

static enum status open_report(struct batch *batch, struct error *err)
{
    return batch_report_create(&batch->report,
                               &(struct batch_report_params){
                                   .params = batch->params,
                                   .engine = batch->engine,
                                   .session = &batch->session,
                                   .world = &batch->world,
                                   .log = batch->log,
                                   .result = batch->result,
                               },
                               err);
}

enum status batch_run(struct engine *engine, const struct phasor_batch_params *params,
                      const struct log_sink *log, struct phasor_batch_result *result,
                      struct error *err)
{
    return batch_run_planned(engine, params, NULL, log, result, err);
}

enum status batch_run_planned(struct engine *engine, const struct phasor_batch_params *params,
                              struct auto_plan *plan, const struct log_sink *log,
                              struct phasor_batch_result *result, struct error *err)
{
    struct batch batch = {.engine = engine,
                          .params = params,
                          .plan = plan,
                          .log = log,
                          .result = result,
                          .names_passes = params->max_num_batched_tokens != 0,
                          .notes.log = log};
    *result = (struct phasor_batch_result){0};
    TRY(engine_check(engine, err));
    if (params->input_path == NULL || params->output_path == NULL)
        return error_set(err, STATUS_INVALID_ARGUMENT, "an input and an output file are needed");
    if (params->resume && params->overwrite)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--resume keeps what --overwrite would replace; give one of them");
    if (params->record_path != NULL && !engine_records(engine))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--record: the model was not opened to be recorded; its params say "
                         "`records`");
    if (params->routing_counts_path != NULL && engine_config(engine)->expert_count == 0)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--routing-counts: the model has no routed experts; leave it out");
    batch.names.run_seed = params->seed;
    batch.progress =
        (struct batch_progress){.params = params, .result = result, .world = &batch.world};
    TRY(open_report(&batch, err));
    trace_lane_use(engine_lane(engine));
    enum status status = run(&batch, err);
    trace_lane_use(NULL);
    batch_report_end(batch.report, status);
    session_close(&batch.session); /* before the rows, whose prompts the generator may hold */
    batch_rows_drop(&batch.world);
    batch_files_close(&batch.files);
    row_names_deinit(&batch.names);
    batch_reader_close(batch.reader);
    batch_report_destroy(batch.report);
    text_deinit(&batch.line);
    return status;
}
