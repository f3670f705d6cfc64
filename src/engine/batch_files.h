/* The files of a run: output, errors, and the record by which the run can be resumed.
 *
 * In the order in which a run begins: files are opened and locked; lines of an earlier run are cut
 * off, on the disk, too; only then the new record takes the place of the old one; only then a line
 * is written. So no line ever stands beside the record of another run. The record stays when the
 * run is done: it says what the output was made with, and that nothing is left to do. */
#ifndef PHASOR_ENGINE_BATCH_FILES_H
#define PHASOR_ENGINE_BATCH_FILES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/json.h"
#include "base/log.h"
#include "base/status.h"
#include "engine/batch_past.h"
#include "engine/batch_reader.h"
#include "engine/batch_record.h"
#include "engine/batch_writer.h"

struct batch_files {
    struct batch_writer *writer;
    struct batch_past past; /* rows that an earlier run has done; empty in a new one */
    json_t *record;         /* NULL: the output is no regular file, and cannot be resumed */
    int64_t begun_at;       /* seconds since 1970; an earlier run's when that is resumed */
    const char *model_name; /* as of then */
};

struct batch_files_params {
    const char *output_path, *error_path;
    enum batch_files_mode mode;
    struct batch_reader *reader;
    const struct row_names *names; /* of the reader's rows, with BATCH_FILES_RESUME */
    struct watch watch;            /* asked while an earlier run's lines are read */
    struct batch_facts facts;      /* all but error_path and begun_at */
    const struct log_sink *log;
};

/* On failure nothing is open, and files are as they were unless one of them could not be written
 * to. Start with {0}. */
enum status batch_files_open(struct batch_files *files, const struct batch_files_params *params,
                             struct error *err) MUST_CHECK;

/* Brings all lines to the disk. */
enum status batch_files_finish(struct batch_files *files, struct error *err) MUST_CHECK;

/* Closes; after batch_files_finish, too. */
void batch_files_close(struct batch_files *files);

#endif
