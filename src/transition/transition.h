/* From one layout of the experts to the other, and back.
 *
 * A layer at a time: on every rank its new slice is written to a target that nobody reads
 * (store/expert_slots.h); when all ranks have theirs, and not before, the layer is swapped on all
 * of them by one thread. So a failure leaves every layer whole, in the old layout or the new, the
 * same on all ranks, and the next way may go on where one stopped. How the bytes come is the *way*:
 * one row of the table in ways.c, one file each.
 *
 * Between passes, or while passes run: then by a thread of its own for each rank, on streams of low
 * priority, each layer as soon as the last pass that needs it as it was is done with it
 * (transition_release); a pass that needs it as it will be waits for that layer alone
 * (transition_await), and lends it its stream and its cores.
 *
 * One thread creates, runs, starts and destroys; the two for passes are called by the ranks' own
 * threads, the others by any.
 * Source: HAP, section III-D and figure 3; where it prices a transition, this executes it.
 */
#ifndef PHASOR_TRANSITION_TRANSITION_H
#define PHASOR_TRANSITION_TRANSITION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/log.h"
#include "base/watch.h"
#include "comm/box.h"
#include "model/checkpoint.h"
#include "quant/backup_file.h"
#include "store/expert_slots.h"

struct uring_calls;

enum way {
    WAY_KEEP,    /* both layouts are resident, and the other one is used */
    WAY_RESHARD, /* ranks send one another what the receiver lacks */
    WAY_RELOAD,  /* what a rank lacks is read from the checkpoint */
    WAY_UPLOAD,  /* to decode: read from the INT4 backup, and dequantized unless decode is packed;
                  * back by reload, for prefill always has the checkpoint's own weights */
    WAY_MIXED,   /* of some experts as by reshard, of the others as by reload, at the same time */
    WAY_COUNT
};

/* "keep", "reshard", "reload", "upload", "mixed". */
extern const char *const way_names[WAY_COUNT];

struct transition_params {
    struct box *box; /* its tags are traffic_names */
    const struct checkpoint *checkpoint;
    const struct backup *backup; /* of that checkpoint; NULL: no upload, no packed decode */
    const struct model_shape *shape;
    const struct plan_layouts *layouts; /* that differ */
    struct expert_slots *const *slots;  /* [rank_count], loaded; keeps_both alike on all. The array
                                         * is read by transition_create alone */
    bool is_auto; /* keep where both are resident, else the way for which passes wait least by a
                   * trial (exposed.h), or upload where decode is packed */
    bool keeps_format;      /* what numbers decode's experts have is none of a trial's nor of a
                             * fault's to say: upload is not tried, and no other way stands in for
                             * one of other numbers */
    double prefill_seconds; /* that hide a change, so far as that is known, and so its trial: what
                             * the last pass of prefill takes at least; 0: not known */
    enum way way; /* without is_auto; of packed decode keep or upload. WAY_KEEP and resident
                   * slots go together */
    /* For a copy of the backup, or the system's cache of it: what is left beside all that the run
     * takes, and what of that may be locked. See read_tier_facts. */
    uint64_t memory_available, memory_lockable;
    bool poisons_freed;              /* tests: slots that nobody needs are filled with 0xff */
    const struct uring_calls *uring; /* tests: see read_queue_params; else NULL */
    struct log_sink log;
};

/* Borrows all that is in `params`, until destroyed. Takes what moving needs, so that a transition
 * allocates nothing. With resident slots the second layout is filled, packed from the backup, every
 * granule of it checked (as reading a backup fails); with is_auto the first layer
 * with experts is written to its target by each way, and the least exposed is taken. */
struct transition;
enum status transition_create(struct transition **out, const struct transition_params *params,
                              struct error *err) MUST_CHECK;
void transition_destroy(struct transition *transition); /* NULL is allowed */

/* All layers get the layout of `phase`; those that have it stay as they are. With is_auto a way
 * that fails (a file that cannot be read) is left for another with one warning, but as keeps_format
 * allows. STATUS_OK: all
 * layers have it. Else each layer has one of the two, the same on all ranks; where the failure is
 * of the box nothing more can be run, and otherwise passes may go on and the call may be repeated.
 * What was started is finished; what was started to the other phase stops, then all go back. Not
 * while a pass runs. */
enum status transition_run(struct transition *transition, enum phase phase,
                           struct error *err) MUST_CHECK;

/* Begins to bring all layers to the layout of `phase`, while passes run that need each as it is
 * until it is released, and returns at once. Not while one to the other phase is under way. What
 * cannot be moved is told by one warning and stays for transition_run, which then has the reason;
 * until that was called nothing more is started. */
void transition_start(struct transition *transition, enum phase phase);

/* Whether that has not ended yet. */
bool transition_is_under_way(const struct transition *transition);

/* When the rank's device->stream comes to here, the rank is done with the layer as it was. */
void transition_release(struct transition *transition, int rank, int64_t layer);

/* Returns when the layer has come where it goes, or nothing more is under way; all ranks find the
 * same. It has been released by all, or will be without this thread. The transition uses the rank's
 * device->stream meanwhile. A failure is of the box. */
enum status transition_await(struct transition *transition, int rank, int64_t layer,
                             struct error *err) MUST_CHECK;

/* Who is asked, from now on, while transition_run or rank 0's transition_await wait, by the thread
 * that called (that drives the box): a failure stops what is under way behind the layer that moves,
 * and is transition_run's, as it is; a pass goes on with the layers as they are. Not while a pass
 * runs. Copied; nobody is asked at first. */
void transition_watch(struct transition *transition, const struct watch *watch);

/* How a layer came to what it has. */
struct transition_origin {
    bool has_experts; /* else the rest means nothing */
    enum phase phase;
    bool is_loaded; /* as the model was loaded: no transition yet */
    bool is_int4;   /* see struct expert_layer */
    enum way way;
};
struct transition_origin transition_layer(const struct transition *transition, int64_t layer);

enum way transition_way(const struct transition *transition); /* of the next one to decode */

/* Where upload reads the backup, as it was found to be possible: "disk, by io_uring, O_DIRECT".
 * "": there is no upload. */
#define TRANSITION_SOURCE_BYTES 64
void transition_source(char out[TRANSITION_SOURCE_BYTES], const struct transition *transition);

/* Memory that upload takes on the device of a rank and on its host beside its slots, a copy of the
 * backup aside. */
struct upload_bytes {
    uint64_t device, host;
};
struct upload_bytes transition_upload_bytes(const struct backup *backup,
                                            const struct device *device, bool is_packed);

/* The same of a backup of that form, which need not be there, and a device with so many workers of
 * the host (device_ops.host_workers) that is a GPU or not. */
struct upload_bytes transition_upload_bytes_of(const struct backup_form *form, int worker_count,
                                               bool is_gpu, bool is_packed);

/* Memory of the host that a rank with such slots takes on the device by a way, there and back,
 * beside upload_bytes; lists of moves aside, which are small. */
uint64_t transition_way_bytes(enum way way, const struct expert_slots_params *slots,
                              const struct device *device);

struct transition_counters {
    int64_t transition_count; /* of which a layer was to move */
    int64_t layer_count;      /* moved */
    int64_t early_count;      /* of them, before a later layer was released: a pass still ran */
    double seconds;           /* between passes */
};
struct transition_counters transition_counters_get(const struct transition *transition);

#endif
