#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/disk.h"
#include "engine/batch_writer.h"
#include "engine_tools.h"

static const char *folder;
static void make_folder(void)
{
    folder = tools_folder();
}
TestSuite(batch_writer, .init = make_folder);

static enum status open_both(struct batch_writer **out, const char *output, const char *errors,
                             bool overwrite, struct error *err)
{
    const struct batch_writer_params params = {
        .output_path = output,
        .error_path = errors,
        .mode = overwrite ? BATCH_FILES_OVERWRITE : BATCH_FILES_NEW,
        .input_fd = -1,
    };
    return batch_writer_open(out, &params, err);
}

static void expect_content(const char *path, const char *wanted)
{
    size_t length;
    char *found = tools_read_file(path, &length);
    cr_expect_str_eq(found, wanted);
    free(found);
}

static void put(struct batch_writer *writer, enum batch_file file, const char *line)
{
    cr_assert_eq(batch_writer_line(writer, file, line, strlen(line), NULL), STATUS_OK);
}

Test(batch_writer, errors_go_where_they_were_told)
{
    for (int own = 0; own < 2; own++) {
        const char *output = tools_path(folder, own ? "o1" : "o2");
        const char *errors = tools_path(folder, "e");
        struct batch_writer *writer;
        cr_assert_eq(open_both(&writer, output, own ? errors : NULL, false, NULL), STATUS_OK);
        put(writer, BATCH_OUTPUT, "one\n");
        put(writer, BATCH_ERRORS, "two\n");
        cr_assert_eq(batch_writer_finish(writer, NULL), STATUS_OK);
        expect_content(output, own ? "one\n" : "one\ntwo\n");
        if (own)
            expect_content(errors, "two\n");
    }
}

Test(batch_writer, an_old_output_is_kept_unless_told_otherwise)
{
    const char *output = tools_path(folder, "o"), *errors = tools_path(folder, "e");
    struct batch_writer *writer;
    struct error err;
    tools_write_file(output, "old\n", 4);
    cr_expect_eq(open_both(&writer, output, NULL, false, &err), STATUS_INVALID_ARGUMENT);
    cr_expect_not_null(strstr(err.message, "--overwrite"), "%s", err.message);
    /* The other file of a pair that is refused is not made. */
    cr_expect_eq(open_both(&writer, errors, output, false, &err), STATUS_INVALID_ARGUMENT);
    cr_expect_neq(access(errors, F_OK), 0);
    expect_content(output, "old\n");
    cr_assert_eq(open_both(&writer, output, NULL, true, &err), STATUS_OK);
    expect_content(output, "old\n"); /* until it is cut */
    cr_assert_eq(batch_writer_cut(writer, BATCH_OUTPUT, 0, &err), STATUS_OK);
    put(writer, BATCH_OUTPUT, "new\n");
    cr_assert_eq(batch_writer_finish(writer, NULL), STATUS_OK);
    expect_content(output, "new\n");
}

Test(batch_writer, an_empty_file_is_taken)
{
    const char *output = tools_path(folder, "o");
    struct batch_writer *writer;
    tools_write_file(output, "", 0);
    cr_assert_eq(open_both(&writer, output, NULL, false, NULL), STATUS_OK);
    batch_writer_abandon(writer);
}

Test(batch_writer, the_input_is_never_overwritten)
{
    const char *path = tools_path(folder, "io");
    struct batch_writer *writer;
    struct error err;
    tools_write_file(path, "input\n", 6);
    int fd = open(path, O_RDONLY);
    const struct batch_writer_params params = {
        .output_path = path, .mode = BATCH_FILES_OVERWRITE, .input_fd = fd};
    cr_expect_eq(batch_writer_open(&writer, &params, &err), STATUS_INVALID_ARGUMENT);
    expect_content(path, "input\n");
    close(fd);
}

Test(batch_writer, two_runs_do_not_share_a_file)
{
    const char *path = tools_path(folder, "o");
    struct batch_writer *first, *second;
    struct error err;
    cr_assert_eq(open_both(&first, path, NULL, false, &err), STATUS_OK);
    cr_expect_eq(open_both(&second, path, NULL, false, &err), STATUS_INVALID_ARGUMENT);
    cr_expect_not_null(strstr(err.message, "another run"), "%s", err.message);
    batch_writer_abandon(first);
}

Test(batch_writer, a_full_device_is_told)
{
    struct batch_writer *writer;
    struct error err;
    cr_assert_eq(open_both(&writer, "/dev/full", NULL, false, &err), STATUS_OK);
    cr_expect_eq(batch_writer_line(writer, BATCH_OUTPUT, "x\n", 2, &err), STATUS_IO);
    batch_writer_abandon(writer);
}

Test(batch_writer, a_torn_line_is_taken_back)
{
    const char *path = tools_path(folder, "o");
    struct batch_writer *writer;
    struct error err;
    struct rlimit limit = {.rlim_cur = 10, .rlim_max = 10};
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(open_both(&writer, path, NULL, false, &err), STATUS_OK);
    put(writer, BATCH_OUTPUT, "whole\n");
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    cr_expect_eq(batch_writer_line(writer, BATCH_OUTPUT, "not whole\n", 10, &err), STATUS_IO);
    batch_writer_abandon(writer);
    expect_content(path, "whole\n");
}

/* ---- To the disk without a further call ---------------------------------------------------- */

static _Atomic int sync_count, sync_failure;

static int before_sync(void *context, enum disk_op op, size_t *length)
{
    (void)context;
    (void)length;
    return op == DISK_SYNC ? sync_failure : 0;
}

static void after_sync(void *context, enum disk_op op)
{
    (void)context;
    sync_count += op == DISK_SYNC;
}

static const struct disk_hooks watch_syncs = {before_sync, after_sync, NULL};

static struct batch_writer *open_hasty(const char *output, const char *errors)
{
    struct batch_writer *writer;
    struct error err;
    sync_count = 0;
    const struct batch_writer_params params = {.output_path = output,
                                               .error_path = errors,
                                               .mode = BATCH_FILES_NEW,
                                               .input_fd = -1,
                                               .sync_seconds = 0.001};
    cr_assert_eq(batch_writer_open(&writer, &params, &err), STATUS_OK, "%s", err.message);
    return writer;
}

/* Waits far longer than it can take, so that only a sync that never comes fails. */
static void await_syncs(int count)
{
    for (int i = 0; sync_count < count && i < 60000; i++)
        usleep(1000);
    cr_assert_geq(sync_count, count);
}

Test(batch_writer, a_line_comes_to_the_disk_while_nobody_calls)
{
    struct batch_writer *writer;
    disk_hooks_set(&watch_syncs);
    writer = open_hasty(tools_path(folder, "o"), tools_path(folder, "e"));
    put(writer, BATCH_OUTPUT, "one\n");
    await_syncs(1);
    put(writer, BATCH_ERRORS, "two\n");
    await_syncs(2);
    put(writer, BATCH_OUTPUT, "three\n");
    await_syncs(3);
    cr_expect_eq(batch_writer_check(writer, NULL), STATUS_OK);
    int before = sync_count;
    cr_expect_eq(batch_writer_finish(writer, NULL), STATUS_OK);
    cr_expect_leq(sync_count, before + 1, "what is on the disk is not brought there again");
    disk_hooks_set(NULL);
    expect_content(tools_path(folder, "o"), "one\nthree\n");
}

Test(batch_writer, what_is_written_last_is_synced_at_the_end)
{
    const char *output = tools_path(folder, "o");
    struct batch_writer *writer;
    sync_count = 0;
    disk_hooks_set(&watch_syncs);
    cr_assert_eq(open_both(&writer, output, NULL, false, NULL), STATUS_OK);
    put(writer, BATCH_OUTPUT, "one\n");
    cr_expect_eq(batch_writer_finish(writer, NULL), STATUS_OK);
    cr_expect_geq(sync_count, 1);
    disk_hooks_set(NULL);
}

Test(batch_writer, many_lines_and_syncs_at_once)
{
    const char *output = tools_path(folder, "o");
    struct batch_writer *writer = open_hasty(output, NULL);
    size_t length;
    for (int i = 0; i < 5000; i++) {
        put(writer, i % 3 == 0 ? BATCH_ERRORS : BATCH_OUTPUT, "line\n");
        cr_assert_eq(batch_writer_check(writer, NULL), STATUS_OK);
    }
    batch_writer_abandon(writer);
    free(tools_read_file(output, &length));
    cr_expect_eq(length, 5000 * 5);
}

Test(batch_writer, a_sync_that_fails_is_told_by_the_next_call)
{
    struct batch_writer *writer;
    struct error err;
    enum status status = STATUS_OK;
    sync_failure = EIO;
    disk_hooks_set(&watch_syncs);
    writer = open_hasty(tools_path(folder, "o"), NULL);
    put(writer, BATCH_OUTPUT, "one\n");
    for (int i = 0; status == STATUS_OK && i < 60000; i++) {
        usleep(1000);
        status = batch_writer_check(writer, &err);
    }
    cr_expect_eq(status, STATUS_IO);
    cr_expect_not_null(strstr(err.message, "cannot bring"), "%s", err.message);
    cr_expect_eq(batch_writer_line(writer, BATCH_OUTPUT, "two\n", 4, &err), STATUS_IO);
    sync_failure = 0;
    cr_expect_eq(batch_writer_finish(writer, &err), STATUS_IO, "what failed stays failed");
    disk_hooks_set(NULL);
    expect_content(tools_path(folder, "o"), "one\n");
}
