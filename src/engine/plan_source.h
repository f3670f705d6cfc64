/* The box that a plan is for, as the planner sees it: one that nobody has measured, out of a box
 * file (docs/box-format.md), or one that `phasor calibrate` has (docs/profile-format.md). */
#ifndef PHASOR_ENGINE_PLAN_SOURCE_H
#define PHASOR_ENGINE_PLAN_SOURCE_H

#include "engine/plan_box.h"
#include "engine/profile_file.h"

/* Of a device's memory: the rest is the driver's, the libraries', and what is cut into pieces. */
#define PLAN_USABLE_SHARE 0.92

#define PLAN_TITLE_BYTES 1024

struct plan_source {
    const struct profile *profile;
    int rank_count;
    int worker_count;      /* threads of the rank that has most; 0: a box file does not say */
    bool is_gpu;           /* ranks have memory of their own, not the host's */
    uint64_t memory_bytes; /* of each device: what of it can be used; of a profile of CPU devices,
                            * which does not say, this machine's over the ranks */
    char name[256], title[PLAN_TITLE_BYTES];
    char hash[17]; /* XXH3 of the file, hexadecimal */
    bool is_measured;
    /* Of a profile, against this machine; the sentence where it does not fit. */
    enum profile_fit fit;
    struct error misfit;
    struct plan_box box; /* one of the two has the profile */
    struct profile_file file;
};

/* `box` is the name of one that comes with phasor, or a file, which is told apart by its content.
 * Fails as box_files_find, box_model_read and profile_file_read do; STATUS_FORMAT for a file that
 * is neither. `draw`: as of box_model_of; STATUS_INVALID_ARGUMENT for one of a profile,
 * which has no ranges. A profile that does not fit this machine is none the worse here. */
enum status plan_source_read(struct plan_source *out, const char *box, uint64_t draw,
                             struct error *err) MUST_CHECK;

/* That each device may have `memory_bytes` of the host's, as by --memory: of CPU devices of this
 * machine the files have what that leaves them. */
void plan_source_limit(struct plan_source *source, uint64_t memory_bytes);

void plan_source_deinit(struct plan_source *source); /* a zero one is allowed */

/* "stale", "foreign", "fits". */
extern const char *const profile_fit_names[];

#endif
