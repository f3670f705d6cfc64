#include "engine/batch_names.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/new_file.h"
#include "engine/batch_record.h"
#include "engine/routing_counts.h"
#include "replay/recording.h"

static bool is_stream(const char *path)
{
    return strcmp(path, "-") == 0;
}

struct side_file batch_names_side(const struct phasor_batch_params *params, enum batch_side side)
{
    const struct side_file files[SIDE_COUNT] = {
        [SIDE_METRICS] = {.path = params->metrics_path,
                          .flag = "--metrics-file",
                          .head = "# HELP phasor:"},
        [SIDE_SUMMARY] = {.path = params->summary_path,
                          .flag = "--summary-file",
                          .head = "{\"model_id\":"},
        [SIDE_TRACE] = {.path = params->trace_path,
                        .flag = "--trace",
                        .head = "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"program\":\"phasor"},
        [SIDE_RECORD] = {.path = params->record_path, .flag = "--record", .head = RECORDING_MAGIC},
        [SIDE_ROUTING] = {.path = params->routing_counts_path,
                          .flag = "--routing-counts",
                          .head = ROUTING_COUNTS_HEAD},
    };
    return files[side];
}

/* ---- One file under two names -------------------------------------------------------------- */

/* Empty for standard output, which has no record. */
static enum status record_name(char out[PATH_MAX], const char *output, struct error *err)
{
    *out = 0;
    if (is_stream(output) || snprintf(out, PATH_MAX, "%s" BATCH_RECORD_SUFFIX, output) < PATH_MAX)
        return STATUS_OK;
    return error_set_errno(err, ENAMETOOLONG, "the output file %s", output);
}

static enum status check_output_name(const char *path, const char *input, const char *record,
                                     struct error *err)
{
    if (path == NULL || is_stream(path))
        return STATUS_OK;
    if (*path == 0)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "expected the name of an output file, found \"\"");
    if (!is_stream(input) && side_file_is_same(path, input))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "the output file %s is the input file; choose another", path);
    if (*record != 0 && side_file_is_same(path, record))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "the output file %s is the record of this run; choose another", path);
    return STATUS_OK;
}

enum status batch_names_check(const struct phasor_batch_params *params, struct error *err)
{
    char record[PATH_MAX];
    TRY(record_name(record, params->output_path, err));
    const char *const others[] = {params->input_path,   params->output_path,
                                  params->error_path,   *record == 0 ? NULL : record,
                                  params->metrics_path, params->summary_path,
                                  params->trace_path,   params->record_path};
    TRY(check_output_name(params->output_path, params->input_path, record, err));
    TRY(check_output_name(params->error_path, params->input_path, record, err));
    for (int side = 0; side < SIDE_COUNT; side++) {
        struct side_file file = batch_names_side(params, (enum batch_side)side);
        TRY(side_file_check(&file, others, 4 + side, err)); /* and not one before it */
    }
    return STATUS_OK;
}

/* ---- The model's files --------------------------------------------------------------------- */

/* Whether the directory has it, by whatever name and links; a published checkpoint is flat. */
static bool is_in_directory(const struct stat *about, const char *dir)
{
    bool is_found = false;
    DIR *listing = opendir(dir);
    if (listing == NULL)
        return false;
    for (struct dirent *entry = readdir(listing); entry != NULL && !is_found;
         entry = readdir(listing)) {
        struct stat other;
        is_found = fstatat(dirfd(listing), entry->d_name, &other, 0) == 0 &&
                   other.st_dev == about->st_dev && other.st_ino == about->st_ino;
    }
    closedir(listing);
    return is_found;
}

/* Begins as lines of an output do. */
static bool is_output_of_phasor(const char *path)
{
    static const char head[] = "{\"id\":\"batch_req_"; /* as response.c writes it */
    char begin[sizeof head - 1];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t got = read(fd, begin, sizeof begin);
    close(fd);
    return got >= 0 && memcmp(begin, head, (size_t)got) == 0;
}

enum status batch_names_check_model(const struct phasor_batch_params *params, const char *model_dir,
                                    struct error *err)
{
    const char *const paths[] = {params->output_path, params->error_path};
    for (int i = 0; i < 2; i++) {
        struct stat about;
        if (paths[i] == NULL || is_stream(paths[i]) || stat(paths[i], &about) != 0 ||
            !S_ISREG(about.st_mode) || !is_in_directory(&about, model_dir) ||
            is_output_of_phasor(paths[i]))
            continue;
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "the output file %s is a file of the model %s; choose another", paths[i],
                         model_dir);
    }
    return STATUS_OK;
}

/* ---- Before the model is loaded ------------------------------------------------------------ */

static enum status check_input(const char *path, struct error *err)
{
    struct stat about;
    if (is_stream(path))
        return STATUS_OK;
    if (access(path, R_OK) != 0)
        return error_set_errno(err, errno, "cannot open the input file %s", path);
    if (stat(path, &about) == 0 && S_ISDIR(about.st_mode))
        return error_set_errno(err, EISDIR, "cannot read the input file %s", path);
    return STATUS_OK;
}

static enum status check_missing(const char *path, struct error *err)
{
    char name[PATH_MAX];
    if (file_is_dangling(path))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "the output file %s is a link to a file that is not there; remove it, or "
                         "choose another",
                         path);
    int fd = new_file_open(name, path);
    if (fd < 0)
        return error_set_errno(err, errno, "cannot create the output file %s in its folder", path);
    close(fd);
    unlink(name);
    return STATUS_OK;
}

static enum status check_output(const char *path, const struct phasor_batch_params *params,
                                struct error *err)
{
    struct stat about;
    if (path == NULL || is_stream(path))
        return STATUS_OK;
    if (stat(path, &about) != 0)
        return check_missing(path, err);
    if (S_ISDIR(about.st_mode))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "the output file %s is a folder; name a file in it", path);
    if (!S_ISREG(about.st_mode))
        return STATUS_OK;
    if (about.st_size > 0 && !params->overwrite && !params->resume)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "the output file %s exists and is not empty; finish the run that wrote "
                         "it with --resume, replace it with --overwrite, or choose another",
                         path);
    int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd < 0)
        return error_set_errno(err, errno, "cannot open the output file %s", path);
    close(fd);
    return STATUS_OK;
}

enum status batch_names_check_early(const struct phasor_batch_params *params, struct error *err)
{
    if (params->input_path == NULL || params->output_path == NULL)
        return error_set(err, STATUS_INVALID_ARGUMENT, "an input and an output file are needed");
    TRY(check_input(params->input_path, err));
    TRY(batch_names_check(params, err)); /* before any advice to overwrite what is the input */
    TRY(check_output(params->output_path, params, err));
    return check_output(params->error_path, params, err);
}
