/* Small checkpoints and backups of them, in a folder that vanishes. */
#ifndef PHASOR_TESTS_QUANT_BACKUP_TOOLS_H
#define PHASOR_TESTS_QUANT_BACKUP_TOOLS_H

#include "base/disk.h"
#include "model_tools.h"
#include "quant/backup_write.h"

struct bench {
    char *folder, *path; /* of the backup */
    struct checkpoint *checkpoint;
    struct fingerprint fingerprint;
};
void bench_init(struct bench *bench, const char *preset, uint64_t seed, bool fused);
void bench_deinit(struct bench *bench);

struct backup_write_params bench_params(const struct bench *bench);

/* Writes; the test fails when it fails. */
struct backup_report bench_write(const struct bench *bench,
                                 const struct backup_write_params *params);

/* The calls' own answer, with the sentence. */
enum status bench_try(const struct bench *bench, const struct backup_write_params *params,
                      struct error *err);
enum status bench_verify(const struct bench *bench, struct error *err);

/* The whole backup; malloc'ed. */
char *bench_bytes(const struct bench *bench, size_t *length);

/* The test fails unless the backup has these bytes and nothing lies beside it. */
void bench_expect_bytes(const struct bench *bench, const char *wanted, size_t length,
                        const char *label);

#endif
