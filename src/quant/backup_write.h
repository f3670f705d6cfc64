/* Making a backup of all routed experts of a checkpoint, and checking one. */
#ifndef PHASOR_QUANT_BACKUP_WRITE_H
#define PHASOR_QUANT_BACKUP_WRITE_H

#include "model/checkpoint.h"
#include "quant/backup_file.h"

/* Groups of 64 with a scale alone: 4.25 bits a weight. docs/backup-format.md has what was measured.
 */
#define BACKUP_GROUP_DEFAULT 64

struct backup_report {
    uint64_t file_bytes;
    uint64_t weight_count;
    uint64_t matrix_count;
    double cosine_min, cosine_mean; /* over matrices, of weights and what became of them; 1 when
                                     * there are none */
    uint64_t bytes_found;           /* of `file_bytes`: were there before */
};

struct backup_write_params {
    const char *path;
    struct backup_settings settings;
    bool overwrites;  /* an older backup is made anew, even if it is this one */
    int thread_count; /* 0: one for each core */
    /* Bytes of weights done, or checked, and of all; from the calling thread. A status other than
     * OK stops. Or NULL. */
    enum status (*progress)(void *context, uint64_t bytes_done, uint64_t bytes_total);
    void *progress_context;
};

/* Writes the backup, beside `path` and then renamed; goes on with what an interrupted run left. A
 * whole backup of the same checkpoint and settings is left as it is. Another one there is refused
 * unless `overwrites`; a file that is no backup always. A link stays, and leads to what is written.
 * Any number of threads gives the same bytes. Memory, for each thread: backup_encode_parts granules
 * (with zstd twice) and a few rows; besides 72 bytes a granule. After a failure the part that is
 * written stays, and the next call goes on with it. */
enum status backup_write(struct backup_report *out, const struct checkpoint *checkpoint,
                         const struct backup_write_params *params, struct error *err) MUST_CHECK;

/* Reads the whole backup and checks every granule; of `params` path, thread_count and progress
 * count. That it is this checkpoint's is checked first. */
enum status backup_verify(struct backup_report *out, const struct checkpoint *checkpoint,
                          const struct backup_write_params *params, struct error *err) MUST_CHECK;

#endif
