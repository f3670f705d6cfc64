#include "run_files.h"

#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "options.h"

static bool is_stream(const char *path)
{
    return strcmp(path, "-") == 0;
}

static bool is_folder_writable(const char *path)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    return access(dirname(folder), W_OK) == 0;
}

static int fail_in_folder(const char *what, const char *path)
{
    fprintf(stderr, "phasor: cannot write the %s file %s: its folder: %s\n", what, path,
            strerror(errno));
    return EXIT_FATAL;
}

static int fail_as_folder(const char *what, const char *path)
{
    fprintf(stderr, "phasor: the %s file %s is a folder; name a file in it\n", what, path);
    return EXIT_FATAL;
}

/* Whether a file could be written there; made if need be. */
static int check_output(const char *path, bool keeps_output)
{
    struct stat about;
    if (path == NULL || is_stream(path))
        return -1;
    if (stat(path, &about) != 0)
        return is_folder_writable(path) ? -1 : fail_in_folder("output", path);
    if (S_ISDIR(about.st_mode))
        return fail_as_folder("output", path);
    if (keeps_output || !S_ISREG(about.st_mode) || about.st_size == 0)
        return -1;
    fprintf(stderr,
            "phasor: the output file %s exists and is not empty; finish the run that wrote it with "
            "--resume, replace it with --overwrite, or choose another\n",
            path);
    return EXIT_FATAL;
}

/* Two names of one file, as far as it is there. */
static bool is_same(const char *a, const char *b)
{
    struct stat about_a, about_b;
    if (strcmp(a, b) == 0)
        return true;
    return stat(a, &about_a) == 0 && stat(b, &about_b) == 0 && S_ISREG(about_a.st_mode) &&
           about_a.st_dev == about_b.st_dev && about_a.st_ino == about_b.st_ino;
}

/* A file that is replaced whole, so that its folder has to be writable. */
static int check_side_file(const char *what, const char *path, const struct run_files *files)
{
    const char *const others[] = {files->input, files->output, files->errors,
                                  path == files->metrics ? NULL : files->metrics};
    struct stat about;
    if (path == NULL)
        return -1;
    if (is_stream(path)) {
        fprintf(stderr, "phasor: the %s file must be a file, not a stream; name one\n", what);
        return EXIT_FATAL;
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (others[i] == NULL || !is_same(path, others[i]))
            continue;
        fprintf(stderr, "phasor: the %s file %s is another file of this run; choose another name\n",
                what, path);
        return EXIT_FATAL;
    }
    bool is_there = stat(path, &about) == 0;
    if (is_there && S_ISDIR(about.st_mode))
        return fail_as_folder(what, path);
    if ((!is_there || S_ISREG(about.st_mode)) && !is_folder_writable(path))
        return fail_in_folder(what, path);
    return -1;
}

int run_files_check(const struct run_files *files)
{
    if (!is_stream(files->input) && access(files->input, R_OK) != 0) {
        fprintf(stderr, "phasor: cannot open the input file %s: %s\n", files->input,
                strerror(errno));
        return EXIT_FATAL;
    }
    int mistake = check_output(files->output, files->keeps_output);
    if (mistake < 0)
        mistake = check_output(files->errors, files->keeps_output);
    if (mistake < 0)
        mistake = check_side_file("metrics", files->metrics, files);
    return mistake >= 0 ? mistake : check_side_file("summary", files->summary, files);
}
