#include "backup_tools.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "quant/backup_part.h"

void bench_init(struct bench *bench, const char *preset, uint64_t seed, bool fused)
{
    struct error err;
    *bench = (struct bench){.folder = temp_dir_make()};
    const char *model = path_of(bench->folder, "model");
    checkpoint_make(
        model,
        (struct synth_params){.preset = preset, .seed = seed, .dtype = DTYPE_BF16, .fused = fused});
    cr_assert_eq(checkpoint_open(&bench->checkpoint, model, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(fingerprint_weights(&bench->fingerprint, bench->checkpoint, &err), STATUS_OK);
    bench->path = strdup(path_of(bench->folder, "b.backup"));
}

void bench_deinit(struct bench *bench)
{
    checkpoint_close(bench->checkpoint);
    temp_dir_remove(bench->folder);
    free(bench->path);
}

struct backup_write_params bench_params(const struct bench *bench)
{
    return (struct backup_write_params){
        .path = bench->path, .settings = {.group = BACKUP_GROUP_DEFAULT}, .thread_count = 1};
}

enum status bench_try(const struct bench *bench, const struct backup_write_params *params,
                      struct error *err)
{
    struct backup_report ignored;
    return backup_write(&ignored, bench->checkpoint, params, err);
}

struct backup_report bench_write(const struct bench *bench,
                                 const struct backup_write_params *params)
{
    struct error err;
    struct backup_report report;
    enum status status = backup_write(&report, bench->checkpoint, params, &err);
    cr_assert_eq(status, STATUS_OK, "%s", err.message);
    return report;
}

enum status bench_verify(const struct bench *bench, struct error *err)
{
    struct backup_report ignored;
    struct backup_write_params params = bench_params(bench);
    return backup_verify(&ignored, bench->checkpoint, &params, err);
}

char *bench_bytes(const struct bench *bench, size_t *length)
{
    return file_read(bench->path, length);
}

void bench_expect_bytes(const struct bench *bench, const char *wanted, size_t length,
                        const char *label)
{
    size_t found_length;
    char *found = bench_bytes(bench, &found_length);
    cr_assert_eq(found_length, length, "%s", label);
    cr_assert_eq(memcmp(found, wanted, length), 0, "%s: other bytes", label);
    cr_assert_neq(access(path_of(bench->folder, "b.backup" BACKUP_PART_SUFFIX), F_OK), 0,
                  "%s: a part file was left", label);
    free(found);
}
