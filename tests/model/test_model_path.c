#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "model/model_path.h"
#include "model_tools.h"

/* A7: the rules, before anything is opened. */
Test(model_path, resolves_only_beneath_the_directory)
{
    char *root = temp_dir_make(), *path;
    struct error err;
    char dir[1024];
    snprintf(dir, sizeof dir, "%s/model", root);
    cr_assert_eq(mkdir(dir, 0700), 0);
    file_write_text(path_of(dir, "plain"), "x");
    file_write_text(path_of(root, "outside"), "x");
    cr_assert_eq(mkdir(path_of(root, "model-b"), 0700), 0);
    file_write_text(path_of(root, "model-b/sibling"), "x");
    cr_assert_eq(symlink("plain", path_of(dir, "inner")), 0);
    cr_assert_eq(symlink("../outside", path_of(dir, "outer")), 0);
    cr_assert_eq(symlink("../model-b/sibling", path_of(dir, "sibling")), 0);
    cr_assert_eq(symlink("/etc/passwd", path_of(dir, "absolute")), 0);
    cr_assert_eq(symlink("nowhere", path_of(dir, "dangling")), 0);
    cr_assert_eq(symlink("loop", path_of(dir, "loop")), 0);
    static const struct {
        const char *name;
        enum status status;
        const char *fragments;
    } rows[] = {
        {"plain", STATUS_OK, NULL},
        {"inner", STATUS_OK, NULL},
        {"../../x", STATUS_FORMAT, "../../x|no plain file name"},
        {"../model/plain", STATUS_FORMAT, "no plain file name"},
        {"sub/plain", STATUS_FORMAT, "no plain file name"},
        {"/etc/passwd", STATUS_FORMAT, "/etc/passwd|no plain file name"},
        {"..", STATUS_FORMAT, "no plain file name"},
        {".", STATUS_FORMAT, "no plain file name"},
        {"", STATUS_FORMAT, "no plain file name"},
        {"outer", STATUS_FORMAT, "/model/outer|leads out|/outside"},
        {"sibling", STATUS_FORMAT, "/model/sibling|leads out"},
        {"absolute", STATUS_FORMAT, "/model/absolute|leads out|/etc/passwd"},
        {"dangling", STATUS_NOT_FOUND, "/model/dangling|does not exist|incomplete"},
        {"loop", STATUS_IO, "/model/loop"},
        {"missing", STATUS_NOT_FOUND, "/model/missing"},
    };
    struct resources before = resources_now();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        enum status status = model_path_resolve(&path, dir, rows[i].name, &err);
        if (rows[i].status != STATUS_OK)
            expect_failure(rows[i].name, status, &err, rows[i].status, rows[i].fragments);
        else
            cr_expect_eq(status, STATUS_OK, "%s", rows[i].name);
        if (status == STATUS_OK)
            memory_free(path);
        expect_resources(rows[i].name, before);
    }
    temp_dir_remove(root);
}

Test(model_path, a_cache_snapshot_may_link_to_its_own_blobs)
{
    char *root = temp_dir_make(), *path;
    struct error err;
    char entry[512], dir[1024];
    snprintf(entry, sizeof entry, "%s/models--org--name", root);
    snprintf(dir, sizeof dir, "%s/snapshots/abc", entry);
    mkdir(entry, 0700);
    mkdir(path_of(entry, "blobs"), 0700);
    mkdir(path_of(entry, "snapshots"), 0700);
    mkdir(dir, 0700);
    mkdir(path_of(root, "models--other--name"), 0700);
    mkdir(path_of(root, "models--other--name/blobs"), 0700);
    file_write_text(path_of(entry, "blobs/123"), "x");
    file_write_text(path_of(entry, "secret"), "x");
    file_write_text(path_of(root, "models--other--name/blobs/456"), "x");
    cr_assert_eq(symlink("../../blobs/123", path_of(dir, "good")), 0);
    cr_assert_eq(symlink("../../secret", path_of(dir, "bad")), 0);
    cr_assert_eq(symlink("../../../models--other--name/blobs/456", path_of(dir, "other")), 0);

    cr_assert_eq(model_path_resolve(&path, dir, "good", &err), STATUS_OK);
    cr_expect_not_null(strstr(path, "/models--org--name/blobs/123"));
    memory_free(path);
    expect_failure("bad", model_path_resolve(&path, dir, "bad", &err), &err, STATUS_FORMAT,
                   "leads out");
    expect_failure("other", model_path_resolve(&path, dir, "other", &err), &err, STATUS_FORMAT,
                   "leads out");
    /* The same links elsewhere are no cache snapshot. */
    cr_assert_eq(rename(path_of(entry, "snapshots"), path_of(entry, "elsewhere")), 0);
    snprintf(dir, sizeof dir, "%s/elsewhere/abc", entry);
    expect_failure("no snapshot", model_path_resolve(&path, dir, "good", &err), &err, STATUS_FORMAT,
                   "leads out");
    temp_dir_remove(root);
}

Test(model_path, opens_regular_files_only)
{
    char *dir = temp_dir_make();
    struct error err;
    int fd;
    mkfifo(path_of(dir, "fifo"), 0600);
    expect_failure("fifo", model_path_open(&fd, path_of(dir, "fifo"), &err), &err, STATUS_FORMAT,
                   "fifo|regular file");
    expect_failure("directory", model_path_open(&fd, dir, &err), &err, STATUS_FORMAT,
                   "regular file");
    file_write_text(path_of(dir, "file"), "x");
    cr_expect(model_path_exists(dir, "file"));
    cr_expect_not(model_path_exists(dir, "none"));
    cr_expect_not(model_path_exists("/nowhere/at/all", "none"));
    cr_assert_eq(model_path_open(&fd, path_of(dir, "file"), &err), STATUS_OK);
    close(fd);
    temp_dir_remove(dir);
}
