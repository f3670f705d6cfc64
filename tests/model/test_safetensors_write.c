#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/memory.h"
#include "model/safetensors.h"
#include "model_tools.h"

static enum status write_two(const char *path, struct error *err)
{
    struct safetensors_writer *writer;
    static const int64_t shape_a[] = {2, 3}, shape_b[] = {1000, 1000};
    static float a[6] = {1, 2, 3, 4, 5, 6};
    uint16_t *b = calloc(1000 * 1000, 2);
    b[999999] = 0x4242;
    enum status status = safetensors_writer_create(&writer, path, err);
    if (status == STATUS_OK) {
        status = safetensors_writer_add(writer, "a \"quoted\"\n", DTYPE_F32, shape_a, 2, err);
        if (status == STATUS_OK)
            status = safetensors_writer_add(writer, "b", DTYPE_BF16, shape_b, 2, err);
        if (status == STATUS_OK)
            status = safetensors_writer_begin(writer, err);
        for (int i = 0; i < 6 && status == STATUS_OK; i++)
            status = safetensors_writer_data(writer, &a[i], sizeof a[i], err);
        if (status == STATUS_OK)
            status = safetensors_writer_data(writer, b, 2000000, err);
        if (status == STATUS_OK)
            status = safetensors_writer_finish(writer, err);
        else
            safetensors_writer_abort(writer);
    }
    free(b);
    return status;
}

Test(safetensors_write, writes_what_the_reader_reads)
{
    char *dir = temp_dir_make();
    struct safetensors file;
    struct arena arena = {0};
    struct error err;
    struct resources before = resources_now();
    cr_assert_eq(write_two(path_of(dir, "out"), &err), STATUS_OK);
    int fd = open(path_of(dir, "out"), O_RDONLY);
    enum status status = safetensors_read_header(&file, &arena, fd, "out", &err);
    cr_assert_eq(status, STATUS_OK, "%s", err.message);
    close(fd);
    cr_assert_eq(file.tensor_count, 2);
    cr_expect_str_eq(file.tensors[0].name, "a \"quoted\"\n");
    cr_expect_eq(file.tensors[1].shape[0], 1000);
    cr_expect_eq(file.tensors[0].offset % 8, 0);
    size_t length;
    char *bytes = file_read(path_of(dir, "out"), &length);
    float third;
    memcpy(&third, bytes + file.tensors[0].offset + 8, 4);
    cr_expect_float_eq(third, 3.0f, 0);
    cr_expect_eq((unsigned char)bytes[length - 1], 0x42);
    free(bytes);
    arena_deinit(&arena);
    expect_resources("write and read", before);
    temp_dir_remove(dir);
}

Test(safetensors_write, abort_leaves_nothing_behind)
{
    char *dir = temp_dir_make();
    struct safetensors_writer *writer;
    struct error err;
    static const int64_t shape[] = {4};
    struct resources before = resources_now();
    cr_assert_eq(safetensors_writer_create(&writer, path_of(dir, "out"), &err), STATUS_OK);
    cr_assert_eq(safetensors_writer_add(writer, "a", DTYPE_F32, shape, 1, &err), STATUS_OK);
    cr_assert_eq(safetensors_writer_begin(writer, &err), STATUS_OK);
    safetensors_writer_abort(writer);
    safetensors_writer_abort(NULL);
    cr_expect_eq(rmdir(dir), 0, "the directory must be empty");
    expect_resources("abort", before);
    free(dir);
}

Test(safetensors_write, refuses_sizes_and_places)
{
    struct safetensors_writer *writer;
    struct error err;
    static const int64_t huge[] = {INT64_MAX, 2};
    char *dir = temp_dir_make();
    struct resources before = resources_now();
    enum status status = safetensors_writer_create(&writer, path_of(dir, "missing/out"), &err);
    expect_failure("no directory", status, &err, STATUS_NOT_FOUND, "missing/out|cannot create");
    cr_assert_eq(safetensors_writer_create(&writer, path_of(dir, "out"), &err), STATUS_OK);
    status = safetensors_writer_add(writer, "w", DTYPE_F32, huge, 2, &err);
    expect_failure("too large", status, &err, STATUS_LIMIT, "out|\"w\"|too large");
    safetensors_writer_abort(writer);
    expect_resources("refusals", before);
    temp_dir_remove(dir);
}

Test(safetensors_write, fails_cleanly_when_memory_ends)
{
    char *dir = temp_dir_make();
    struct resources before = resources_now();
    enum status status = STATUS_NO_MEMORY;
    uint64_t n = 1;
    for (; n < 50 && status != STATUS_OK; n++) {
        struct error err;
        memory_fail_at(n, 0);
        status = write_two(path_of(dir, "out"), &err);
        memory_fail_at(0, 0);
        if (status != STATUS_OK)
            cr_expect_eq(status, STATUS_NO_MEMORY, "%s", err.message);
        expect_resources("n-th allocation", before);
    }
    cr_expect(status == STATUS_OK && n > 4);
    temp_dir_remove(dir);
}

Test(safetensors_write, a_full_disk_leaves_no_file)
{
    char *dir = temp_dir_make();
    struct error err;
    struct resources before = resources_now();
    struct rlimit limit = {100000, 100000};
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    enum status status = write_two(path_of(dir, "out"), &err);
    expect_failure("file size limit", status, &err, STATUS_IO, "cannot write|out");
    cr_expect_eq(rmdir(dir), 0, "the directory must be empty");
    expect_resources("full disk", before);
    free(dir);
}
