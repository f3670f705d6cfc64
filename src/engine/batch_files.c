#include "engine/batch_files.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/disk.h"

static bool has_lines(const struct batch_writer *writer)
{
    int64_t bytes = 0;
    for (int i = 0; i < BATCH_FILE_COUNT; i++)
        bytes += batch_writer_file(writer, (enum batch_file)i)->bytes;
    return bytes > 0;
}

/* ---- A new run ----------------------------------------------------------------------------- */

static enum status sync_names(const struct batch_writer *writer, struct error *err)
{
    for (int i = 0; i < BATCH_FILE_COUNT; i++) {
        const struct batch_writer_file *file = batch_writer_file(writer, (enum batch_file)i);
        if (file->is_regular && file->was_created && disk_sync_folder_of(file->name) != 0)
            return error_set_errno(err, errno, "cannot bring the folder of %s to the disk",
                                   file->name);
    }
    return STATUS_OK;
}

static enum status empty_files(const struct batch_files *files, struct error *err)
{
    for (int i = 0; i < BATCH_FILE_COUNT; i++) {
        if (batch_writer_file(files->writer, (enum batch_file)i)->bytes > 0)
            TRY(batch_writer_cut(files->writer, (enum batch_file)i, 0, err));
    }
    return STATUS_OK;
}

static enum status begin_anew(struct batch_files *files, const char *record_path, struct error *err)
{
    TRY(batch_record_check(record_path, err));
    TRY(empty_files(files, err));
    TRY(sync_names(files->writer, err));
    return batch_record_save(files->record, record_path, err);
}

/* A run that cannot be resumed: the record of an earlier one would be believed of its output. */
static enum status begin_without_record(struct batch_files *files, const char *record_path,
                                        struct error *err)
{
    TRY(empty_files(files, err));
    return batch_writer_file(files->writer, BATCH_OUTPUT)->is_regular
               ? batch_record_remove(record_path, err)
               : STATUS_OK;
}

/* ---- An interrupted run -------------------------------------------------------------------- */

static enum status load_record(json_t **then, const struct batch_files *files,
                               const char *record_path, struct error *err)
{
    enum status status = batch_record_load(then, record_path, err);
    if (status != STATUS_NOT_FOUND)
        return status;
    return error_set(err, STATUS_NOT_FOUND,
                     "--resume: %s is not empty, and the record of the run that wrote it (%s) is "
                     "not there; choose another output file, or start anew with --overwrite",
                     batch_writer_file(files->writer, BATCH_OUTPUT)->name, record_path);
}

/* Failed rows that an error file held would be run again, and stand twice in the end. */
static enum status check_error_file(const struct batch_files *files, struct error *err)
{
    const struct batch_writer_file *errors = batch_writer_file(files->writer, BATCH_ERRORS);
    if (!errors->is_regular || !errors->was_created)
        return STATUS_OK;
    return error_set(err, STATUS_NOT_FOUND,
                     "--resume: the error file %s of the run is not there; put it back, or make an "
                     "empty one to run its rows again",
                     errors->name);
}

/* All checks come before the first change. */
static enum status take_up(struct batch_files *files, const char *record_path,
                           const struct batch_files_params *params, struct error *err)
{
    json_t *then;
    TRY(load_record(&then, files, record_path, err));
    enum status status = batch_record_compare(then, files->record, record_path, params->log, err);
    json_decref(files->record);
    files->record = then;
    if (status == STATUS_OK)
        status = batch_record_begun(&files->begun_at, &files->model_name, then, record_path, err);
    if (status == STATUS_OK)
        status = check_error_file(files, err);
    files->past.watch = params->watch;
    if (status == STATUS_OK)
        status = batch_past_read(&files->past, files->writer, params->facts.row_count, err);
    if (status == STATUS_OK)
        status = batch_past_match(&files->past, params->names, err);
    for (int i = 0; i < BATCH_FILE_COUNT && status == STATUS_OK; i++) {
        if (batch_writer_file(files->writer, (enum batch_file)i)->bytes >
            files->past.whole_bytes[i])
            status = batch_writer_cut(files->writer, (enum batch_file)i, files->past.whole_bytes[i],
                                      err);
    }
    return status;
}

/* ---- Life ---------------------------------------------------------------------------------- */

static bool can_be_resumed(const struct batch_files *files)
{
    const struct batch_writer_file *errors = batch_writer_file(files->writer, BATCH_ERRORS);
    return batch_writer_file(files->writer, BATCH_OUTPUT)->is_regular &&
           (errors->fd < 0 || errors->is_regular);
}

static enum status begin_at(struct batch_files *files, const struct batch_files_params *params,
                            const char *record_path, struct error *err)
{
    struct batch_facts facts = params->facts;
    const struct batch_writer_file *errors = batch_writer_file(files->writer, BATCH_ERRORS);
    bool resumes = params->mode == BATCH_FILES_RESUME;
    facts.error_path = errors->fd >= 0 ? errors->name : NULL;
    facts.begun_at = files->begun_at;
    if (!can_be_resumed(files)) {
        if (resumes)
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "--resume: output and errors must be files; standard output, pipes "
                             "and devices cannot be gone on with");
        return begin_without_record(files, record_path, err);
    }
    TRY(batch_record_create(&files->record, &facts, err));
    return resumes && has_lines(files->writer) ? take_up(files, record_path, params, err)
                                               : begin_anew(files, record_path, err);
}

static enum status begin(struct batch_files *files, const struct batch_files_params *params,
                         struct error *err)
{
    struct text record_path = {0};
    text_append_format(&record_path, "%s" BATCH_RECORD_SUFFIX, params->output_path);
    enum status status = text_check(&record_path, "the name of a file", err);
    if (status == STATUS_OK)
        status = begin_at(files, params, record_path.bytes, err);
    text_deinit(&record_path);
    return status;
}

enum status batch_files_open(struct batch_files *files, const struct batch_files_params *params,
                             struct error *err)
{
    const struct batch_writer_params writer = {
        .output_path = params->output_path,
        .error_path = params->error_path,
        .mode = params->mode,
        .input_fd = batch_reader_fd(params->reader),
    };
    files->begun_at = (int64_t)time(NULL);
    files->model_name = params->facts.model_name;
    TRY(batch_writer_open(&files->writer, &writer, err));
    enum status status = begin(files, params, err);
    if (status != STATUS_OK) {
        batch_writer_discard(files->writer);
        files->writer = NULL;
        batch_files_close(files);
    }
    return status;
}

enum status batch_files_finish(struct batch_files *files, struct error *err)
{
    struct batch_writer *writer = files->writer;
    files->writer = NULL;
    return batch_writer_finish(writer, err);
}

void batch_files_close(struct batch_files *files)
{
    batch_writer_abandon(files->writer);
    batch_past_deinit(&files->past);
    json_decref(files->record);
    *files = (struct batch_files){0};
}
