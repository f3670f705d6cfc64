/* The times of a box as a file (docs/profile-format.md): what `phasor calibrate` writes, and the
 * planner reads. */
#ifndef PHASOR_ENGINE_PROFILE_FILE_H
#define PHASOR_ENGINE_PROFILE_FILE_H

#include <jansson.h>

#include "base/arena.h"
#include "base/text.h"
#include "engine/engine_devices.h"
#include "measure/calm.h"
#include "planner/profile.h"

#define PROFILE_FORMAT 1

/* Limits of a file. */
#define PROFILE_FILE_BYTES_MAX   ((size_t)16 << 20)
#define PROFILE_AXIS_VALUES_MAX  256
#define PROFILE_TABLE_POINTS_MAX 65536
#define PROFILE_TABLES_MAX       1024

/* Of a rate that was not measured. */
#define PROFILE_NO_RATE 0.0

/* Which box it is, and what computes there: the fingerprint of its hardware, and of phasor. */
#define PROFILE_NAME_BYTES 128
#define PROFILE_GPUS_BYTES 512
struct profile_identity {
    char processor[PROFILE_NAME_BYTES]; /* "Intel(R) Xeon(R) ..."; "" where nothing tells */
    char kernels[PROFILE_NAME_BYTES];   /* of the first rank: "cpu (avx512vnni)", "cuda (sm_90)" */
    char version[PROFILE_NAME_BYTES];   /* of phasor: PHASOR_VERSION */
    int cores;                          /* that the process may use */
    int threads;                        /* of the host, of all ranks together */
    struct engine_devices devices;      /* the ranks */
    /* Of GPUs; empty where the ranks are the CPU's. */
    char gpus[PROFILE_GPUS_BYTES]; /* each once: "4 x NVIDIA A100-SXM4-80GB (sm_80)"; and what its
                                    * ranks have of it where it is cut for them: "NVIDIA H200
                                    * (sm_90, 32 of 132 multiprocessors)" */
    char cuda[PROFILE_NAME_BYTES]; /* its versions: "runtime 13.0, driver 13.0" */
    uint64_t memory_bytes;         /* of the rank with the least: of its GPU, over those on it */
};

struct profile_point {
    double seconds;  /* the median; 0 where repeats is */
    double spread;   /* from the first quartile to the third, relative to it */
    int64_t repeats; /* samples; 0: nothing was measured here, the ratio is that of neighbours */
};

struct box;

struct profile_file {
    struct profile_identity identity;
    struct profile profile;
    double memory_read; /* bytes a second of each rank, all at once; PROFILE_NO_RATE: unknown */
    /* Seconds of a probe (measure/calm.h) on the machine as it usually was; 0: unknown. */
    double probe_seconds[CALM_PROBES];
    /* In the order of the profile's tables and of their points. */
    const struct profile_point *const *work_points;
    const struct profile_point *const *collective_points;
    struct arena arena; /* has all arrays */
};

/* The file's arrays are its own. STATUS_NOT_FOUND, STATUS_IO; STATUS_FORMAT for what breaks a rule
 * of the format; STATUS_UNSUPPORTED for another version of the format, which is stale: to
 * calibrate again is the cure. */
enum status profile_file_read(struct profile_file *out, const char *path,
                              struct error *err) MUST_CHECK;
enum status profile_file_parse(struct profile_file *out, const char *bytes, size_t length,
                               const char *name, struct error *err) MUST_CHECK;
/* Of a text that was parsed already, which is borrowed for the call. */
enum status profile_file_of(struct profile_file *out, const json_t *root, const char *name,
                            struct error *err) MUST_CHECK;
void profile_file_deinit(struct profile_file *file); /* a zero one is allowed */

/* Appends the file's text. STATUS_NO_MEMORY. */
enum status profile_file_format(struct text *out, const struct profile_file *file,
                                struct error *err) MUST_CHECK;

/* Writes it beside `path`, brings it to the disk and renames it: there is the old file or the new
 * one. */
enum status profile_file_write(const struct profile_file *file, const char *path,
                               struct error *err) MUST_CHECK;

/* The same for any text. */
enum status profile_text_write(const struct text *text, const char *path,
                               struct error *err) MUST_CHECK;

/* Of a table: the product of its axes' counts. */
int64_t profile_table_points(const struct work_table *table);

/* ---- Whose it is ----------------------------------------------------------------------------- */

enum profile_fit {
    PROFILE_FITS,
    PROFILE_STALE,  /* of this box, by another version of phasor or CUDA, or by other kernels */
    PROFILE_FOREIGN /* of another box, or of other ranks */
};

/* `difference` has a sentence where they do not fit; it may be NULL. */
enum profile_fit profile_identity_fit(const struct profile_identity *file,
                                      const struct profile_identity *here,
                                      struct error *difference);

/* This machine with so many of the CPU's ranks, of these kernels (device_ops.name), and so many
 * threads of all of them together; 0: one for each core. A rank has one at least. */
void profile_identity_here(struct profile_identity *out, const char *kernels, int ranks,
                           int thread_count);

/* The same with any devices and the kernels that they would have: of the CPU one is opened to ask,
 * GPUs are described. STATUS_UNSUPPORTED for GPUs that are not there. */
enum status profile_identity_of(struct profile_identity *out, const struct engine_devices *devices,
                                int thread_count, struct error *err) MUST_CHECK;

/* What this machine, of whose memory a profile does not tell, has for files: half of its memory for
 * the page cache; and for a backup what may be locked, up to seven eighths of half of `budget`, what a
 * run may take (0: all there is), as a run has it that does not say what its cache will need
 * (engine/engine_room.h). So a plan does not depend on what else runs. */
void profile_host_take(struct profile *profile, uint64_t budget);

/* What profile_identity.gpus is of the ranks of a box that was opened on these devices. Usually it
 * is as profile_identity_of has said before, which has tried it: a GPU that gives no parts has none
 * in either. But what was given then may not be given now. So a profile is of what it was measured
 * on, whatever was expected; a run is planned by what is expected, and tells where its ranks have
 * something else. Empty for the CPU's. */
enum status profile_identity_opened(char gpus[PROFILE_GPUS_BYTES],
                                    const struct profile_identity *identity, const struct box *box,
                                    struct error *err) MUST_CHECK;

/* Ranks for each that computes: threads over cores, or ranks over GPUs. */
double profile_identity_sharing(const struct profile_identity *identity);

/* Where its profile lies when nobody says: in the cache (base/cache_folder.h),
 * "profile-cpu<ranks>-<hash of processor, cores and threads>.json", and "profile-cuda<ranks>-..."
 * whose hash is of the GPUs, too: so that a stale one is found and a foreign one is not. Kernels
 * and versions do not matter. `*out` is freed by memory_free; STATUS_NOT_FOUND when there is no
 * cache. */
enum status profile_path_in_cache(char **out, const struct profile_identity *here,
                                  struct error *err) MUST_CHECK;

#endif
