#include "engine/calibrate.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "base/memory.h"
#include "base/size_text.h"
#include "base/system.h"
#include "engine/calibrate_state.h"
#include "engine/profile_names.h"
#include "layout/traffic.h"
#include "measure/rates.h"

#define SAVE_SECONDS     5.0
#define READ_FILE_SUFFIX ".partial-read"

/* Of a rank: weights that no cache holds, and shapes as large as a model's. A GPU has all shapes.
 */
#define RANK_BYTES       ((uint64_t)384 << 20)
#define GPU_BYTES        ((uint64_t)8 << 30)
#define CACHES_OF_MEMORY 4

/* ---- What the tables ask for ----------------------------------------------------------------- */

enum status calibration_get(void *out, struct calibration *now, size_t count, size_t size,
                            struct error *err)
{
    void *memory = arena_alloc(&now->out->arena, count, size);
    if (memory == NULL)
        return error_set(err, STATUS_NO_MEMORY, "out of memory for the profile");
    memcpy(out, &memory, sizeof memory);
    return STATUS_OK;
}

void calibration_expect(struct calibration *now, int points)
{
    uint64_t most = now->done + (uint64_t)points;
    now->done_max = most < now->total ? most : now->total;
}

enum status calibration_step(struct calibration *now, const char *what, struct error *err)
{
    const struct calibrate_params *params = &now->params;
    double moment = system_seconds();
    if (moment - now->saved_at > SAVE_SECONDS) {
        TRY(calibrate_store_write(&now->store, now->partial_path, err));
        now->saved_at = moment;
    }
    if (params->progress == NULL ||
        params->progress(params->progress_context, now->done, now->total, what) == 0)
        return STATUS_OK;
    return error_set(err, STATUS_CANCELLED,
                     "the calibration was stopped; the same command goes on with what %s has",
                     now->partial_path);
}

enum status calibration_keep(struct calibration *now, const struct calibrate_entry *entry,
                             struct error *err)
{
    now->done += now->done < now->done_max;
    now->report.points_measured++;
    return calibrate_store_add(&now->store, entry, err);
}

static enum status point_keep(struct calibration *now, const struct calibrate_key *key,
                              const struct calm_point *found, struct error *err)
{
    const struct measured *measured = &found->measured;
    return calibration_keep(
        now,
        &(struct calibrate_entry){*key,
                                  {measured->seconds, measured->spread, measured->repeats},
                                  found->probe,
                                  found->probe_seconds},
        err);
}

static struct calm_point calm_point_of(const struct calibrate_entry *entry)
{
    const struct profile_point *point = &entry->point;
    return (struct calm_point){
        {point->seconds, point->spread, (int)point->repeats}, entry->probe, entry->probe_seconds};
}

/* What else runs on the machine changes how long a point takes, often for seconds: so when all have
 * been looked at, each is for a second time, and the better look counts. */
static const struct profile_point *point_find(const struct calibration *now,
                                              const struct calibrate_key *key)
{
    struct calibrate_key again = calibrate_key_again(key);
    const struct calibrate_entry *first = calibrate_store_find(&now->store, key);
    const struct calibrate_entry *second = calibrate_store_find(&now->store, &again);
    if (second == NULL)
        return &first->point;
    struct calm_point a = calm_point_of(first), b = calm_point_of(second);
    return calm_better(&now->calm.calm, &a, &b) == &a ? &first->point : &second->point;
}

/* The next look at a point that is due; false: it had them all. What the first round did not ask
 * for has one: two in a row would be as one. */
static bool look_next(struct calibrate_key *out, const struct calibration *now,
                      const struct calibrate_key *key)
{
    const struct calibrate_entry *first = calibrate_store_find(&now->store, key);
    *out = *key;
    if (first == NULL)
        return true;
    *out = calibrate_key_again(key);
    return (size_t)(first - now->store.entries) < now->looked_once &&
           calibrate_store_find(&now->store, out) == NULL;
}

static enum status work_measure(struct calibration *now, const struct calibrate_key *key,
                                const struct work_shape *work, struct error *err)
{
    struct calm_point found;
    char what[64];
    snprintf(what, sizeof what, "%s %s", profile_kind_name(work->kind),
             profile_dtype_name(work->dtype));
    TRY(calibration_step(now, what, err));
    if (!meter_holds(now->meter, work)) /* memory_check has looked, and so has who adds points */
        return error_set(err, STATUS_INTERNAL, "there is no room for measuring %s", what);
    TRY(calm_work(&found, &now->calm, work, err));
    return point_keep(now, key, &found, err);
}

static enum status collective_measure(struct calibration *now, const struct calibrate_key *key,
                                      const struct collective_shape *shape, struct error *err)
{
    struct calm_point found;
    TRY(calibration_step(now, profile_group_op_name(shape->op), err));
    TRY(calm_collective(&found, &now->calm, shape, err));
    return point_keep(now, key, &found, err);
}

enum status calibration_work(struct profile_point *out, struct calibration *now,
                             const struct work_shape *work, struct error *err)
{
    struct calibrate_key look, key = calibrate_key_of_work(work);
    while (look_next(&look, now, &key))
        TRY(work_measure(now, &look, work, err));
    *out = *point_find(now, &key);
    return STATUS_OK;
}

enum status calibration_collective(struct profile_point *out, struct calibration *now,
                                   const struct collective_shape *shape, struct error *err)
{
    struct calibrate_key look, key = calibrate_key_of_collective(shape);
    while (look_next(&look, now, &key))
        TRY(collective_measure(now, &look, shape, err));
    *out = *point_find(now, &key);
    return STATUS_OK;
}

/* ---- Rates ----------------------------------------------------------------------------------- */

static enum status reads_measure(struct read_rates *out, struct calibration *now, struct error *err)
{
    return rates_read(out, now->box, now->read_path, now->plan->file_bytes, err);
}

static enum status rate_measure(double *out, struct calibration *now, enum calibrate_rate rate,
                                struct error *err)
{
    struct measured step;
    enum status status = STATUS_OK;
    switch (rate) {
    case RATE_MEMORY:
        return meter_memory(out, now->meter, err);
    case RATE_HOST_TO_DEVICE:
        return meter_host_to_device(out, now->meter, err);
    case RATE_HOST_TO_DEVICE_BUSY:
        return meter_host_to_device_busy(out, now->meter, now->out->profile.host_to_device, err);
    case RATE_CHECK:
        return rates_check(out, now->box, err);
    case RATE_REPACK:
        return rates_repack(out, now->box, err);
    case RATE_HOST_STEP:
        status = meter_host_step(&step, now->meter, err);
        *out = step.seconds;
        return status;
    default:
        return error_set(err, STATUS_INTERNAL, "no such rate");
    }
}

static enum status rate_keep(struct calibration *now, enum calibrate_rate rate, double value,
                             struct error *err)
{
    return calibration_keep(
        now, &(struct calibrate_entry){.key = calibrate_key_of_rate(rate), .point = {value, 0, 1}},
        err);
}

/* NULL: it was not measured. */
static const struct profile_point *rate_find(const struct calibration *now,
                                             enum calibrate_rate rate)
{
    struct calibrate_key key = calibrate_key_of_rate(rate);
    const struct calibrate_entry *found = calibrate_store_find(&now->store, &key);
    return found == NULL ? NULL : &found->point;
}

/* Both come from one file. */
static enum status reads_get(struct calibration *now, struct error *err)
{
    struct read_rates reads;
    if (rate_find(now, RATE_DISK) != NULL && rate_find(now, RATE_PAGE_CACHE) != NULL)
        return STATUS_OK;
    TRY(calibration_step(now, "reading", err));
    TRY(reads_measure(&reads, now, err));
    TRY(rate_keep(now, RATE_DISK, reads.disk, err));
    return rate_keep(now, RATE_PAGE_CACHE, reads.page_cache, err);
}

enum status calibration_rates(struct calibration *now, struct error *err)
{
    double *places[RATE_COUNT] = {
        [RATE_MEMORY] = &now->out->memory_read,
        [RATE_HOST_TO_DEVICE] = &now->out->profile.host_to_device,
        [RATE_HOST_TO_DEVICE_BUSY] = &now->out->profile.host_to_device_busy,
        [RATE_DISK] = &now->out->profile.disk_read,
        [RATE_PAGE_CACHE] = &now->out->profile.page_cache_read,
        [RATE_CHECK] = &now->out->profile.check,
        [RATE_REPACK] = &now->out->profile.repack,
        [RATE_HOST_STEP] = &now->out->profile.host_step,
    };
    for (int rate = 0; rate < RATE_COUNT; rate++)
        *places[rate] =
            rate == RATE_HOST_STEP || rate == RATE_HOST_TO_DEVICE_BUSY ? 0 : PROFILE_NO_RATE;
    if (now->plan->file_bytes == 0)
        return STATUS_OK;
    calibration_expect(now, RATE_COUNT);
    TRY(reads_get(now, err));
    for (int rate = 0; rate < RATE_COUNT; rate++) {
        if (rate_find(now, (enum calibrate_rate)rate) == NULL) {
            double value;
            TRY(calibration_step(now, "rates", err));
            TRY(rate_measure(&value, now, (enum calibrate_rate)rate, err));
            TRY(rate_keep(now, (enum calibrate_rate)rate, value, err));
        }
        *places[rate] = rate_find(now, (enum calibrate_rate)rate)->seconds;
    }
    now->done = now->done_max;
    return STATUS_OK;
}

/* ---- Files ----------------------------------------------------------------------------------- */

static bool has_file(const char *path)
{
    struct stat about;
    return lstat(path, &about) == 0;
}

/* A profile may be replaced where that is asked for, of whatever version; nothing else ever. */
static enum status check_output(const struct calibrate_params *params, struct error *err)
{
    json_t *root;
    struct error ignored;
    if (!has_file(params->output_path))
        return STATUS_OK;
    enum status status =
        json_load_object(&root, params->output_path, PROFILE_FILE_BYTES_MAX, &ignored);
    bool is_profile = status == STATUS_OK && json_object_get(root, "phasor_profile") != NULL;
    if (status == STATUS_OK)
        json_decref(root);
    if (!is_profile)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s is there and is no profile; it is left as it is: give another name",
                         params->output_path);
    if (!params->overwrites)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "there is a profile %s; --overwrite measures it anew",
                         params->output_path);
    return STATUS_OK;
}

static enum status store_open(struct calibration *now, struct error *err)
{
    struct error difference;
    struct profile_identity here = now->store.identity;
    struct calibrate_store found;
    if (!has_file(now->partial_path))
        return calibrate_store_write(&now->store, now->partial_path, err);
    enum status status = calibrate_store_read(&found, now->partial_path, err);
    if (status != STATUS_OK)
        return error_prefix(err, status,
                            "what an earlier calibration measured cannot be gone on with (remove "
                            "the file to begin anew)");
    if (profile_identity_fit(&found.identity, &here, &difference) != PROFILE_FITS) {
        log_write(&now->params.log, LOG_WARNING, "%s is not gone on with: %s", now->partial_path,
                  difference.message);
        calibrate_store_deinit(&found);
        return STATUS_OK;
    }
    now->store = found;
    now->report.points_found = found.count;
    for (size_t i = 0; i < found.count; i++) {
        struct calm_point point = calm_point_of(&found.entries[i]);
        calm_remember(&now->calm.calm, &point);
    }
    return STATUS_OK;
}

/* ---- The whole ------------------------------------------------------------------------------- */

static uint64_t memory_of(const struct calibration *now)
{
    uint64_t caches = system_cache_bytes() * CACHES_OF_MEMORY;
    uint64_t ranks = (uint64_t)now->params.devices.rank_count, each = RANK_BYTES;
    uint64_t most = box_memory_left(now->box) / 4;
    if (now->params.memory_bytes > 0)
        return now->params.memory_bytes;
    each = caches / ranks > each ? caches / ranks : each;
    if (now->params.devices.cuda)
        each = GPU_BYTES;
    return each * ranks < most ? each * ranks : most;
}

/* It is of what the ranks have, whatever they were to have. */
static enum status identity_settle(struct calibration *now, struct error *err)
{
    char gpus[PROFILE_GPUS_BYTES];
    struct profile_identity *identity = &now->store.identity;
    TRY(profile_identity_opened(gpus, identity, now->box, err));
    if (strcmp(gpus, identity->gpus) != 0)
        log_write(&now->params.log, LOG_WARNING,
                  "the ranks were to be on %s, but they are on %s: what is measured is of these, "
                  "and runs that have the others do not take it for their own",
                  identity->gpus, gpus);
    memcpy(identity->gpus, gpus, sizeof gpus);
    return STATUS_OK;
}

static enum status box_get(struct calibration *now, struct error *err)
{
    const struct engine_devices *devices = &now->params.devices;
    struct box_params box = {.rank_count = devices->rank_count,
                             .thread_count = now->params.thread_count,
                             .gpus = devices->cuda ? devices->gpus : NULL,
                             .links = engine_devices_links(devices),
                             .log = now->params.log};
    TRY(profile_identity_of(&now->store.identity, devices, box.thread_count, err));
    TRY(box_open(&now->box, &box, err));
    return identity_settle(now, err);
}

/* While the machine is not as usual: what was measured is kept, and who stops it is heard. */
static enum status waits(void *context, struct error *err)
{
    return calibration_step(context, "waiting: the machine is slower or faster than it was", err);
}

/* Of a rank: what may not be left out. */
static uint64_t rank_bytes_least(const struct calibrate_plan *plan)
{
    uint64_t least = METER_RANK_BYTES_MIN;
    for (int g = 0; g < plan->grid_count; g++) {
        const struct grid *grid = &plan->grids[g];
        const struct work_shape *const needed[] = {&grid->most_flops, &grid->most_bytes,
                                                   &grid->least};
        for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
            uint64_t bytes = meter_rank_bytes(needed[i]);
            least = bytes > least ? bytes : least;
        }
    }
    return least;
}

/* Before anything is measured. A named number is rounded up, for it is to be given to --memory. */
static enum status memory_check(const struct calibration *now, bool is_named, struct error *err)
{
    int ranks = now->params.devices.rank_count;
    uint64_t there = now->params.memory_bytes, mebibyte = (uint64_t)1 << 20;
    uint64_t needed = rank_bytes_least(now->plan) * (uint64_t)ranks;
    unsigned long long told = (needed + mebibyte - 1) / mebibyte;
    const char *of = ranks == 1 ? "device" : "devices";
    if (there >= needed)
        return STATUS_OK;
    if (is_named)
        return error_set(err, STATUS_NO_MEMORY,
                         "--memory: expected at least %llu MiB to measure %d %s, found %s; raise "
                         "it, or use fewer devices",
                         told, ranks, of, SIZE_TEXT(there));
    return error_set(err, STATUS_NO_MEMORY,
                     "%s, a quarter of the memory that is free, are too little to measure %d %s, "
                     "which takes %llu MiB; name that by --memory, free some, or use fewer devices",
                     SIZE_TEXT(there), ranks, of, told);
}

static enum status meter_get(struct calibration *now, struct error *err)
{
    bool is_named = now->params.memory_bytes > 0;
    now->params.memory_bytes = memory_of(now);
    TRY(memory_check(now, is_named, err));
    struct meter_params meter = meter_params_default(now->box, now->params.memory_bytes);
    meter.shares_cores = profile_identity_sharing(&now->store.identity) > 1;
    meter.point_seconds = now->plan->point_seconds;
    meter.sample_seconds = now->plan->sample_seconds;
    TRY(meter_create(&now->meter, &meter, err));
    return calm_meter_init(&now->calm, now->meter,
                           &(struct calm_params){.goes_on = waits,
                                                 .goes_on_context = now,
                                                 .patience_seconds = now->plan->patience_seconds},
                           err);
}

static int compare_spreads(const void *a, const void *b)
{
    double x = ((const struct calibrate_entry *)a)->point.spread;
    double y = ((const struct calibrate_entry *)b)->point.spread;
    return (x > y) - (x < y);
}

static enum status measure_all(struct calibration *now, struct error *err)
{
    now->total = (uint64_t)calibrate_plan_points(now->plan, now->params.devices.rank_count);
    TRY(calibration_rates(now, err));
    for (int look = 0; look < 2; look++) {
        now->looked_once = look == 1 ? now->store.count : 0;
        TRY(calibration_works(now, err));
        TRY(calibration_collectives(now, err));
    }
    now->done = now->total;
    now->out->identity = now->store.identity;
    for (int which = 0; which < CALM_PROBES; which++) {
        if (now->calm.calm.seen[which] >= CALM_SEEN_MIN)
            now->out->probe_seconds[which] = calm_usual(&now->calm.calm, (enum calm_probe)which);
    }
    return profile_file_write(now->out, now->params.output_path, err);
}

static enum status paths_make(struct calibration *now, struct error *err)
{
    const char *path = now->params.output_path;
    if (snprintf(now->partial_path, PATH_MAX, "%s" CALIBRATE_PARTIAL_SUFFIX, path) >= PATH_MAX ||
        snprintf(now->read_path, PATH_MAX, "%s" READ_FILE_SUFFIX, path) >= PATH_MAX)
        return error_set(err, STATUS_INVALID_ARGUMENT, "the path %s is too long", path);
    return STATUS_OK;
}

static enum status run(struct calibration *now, struct error *err)
{
    struct error ignored;
    TRY(check_output(&now->params, err));
    unlink(now->read_path); /* of one that was killed */
    TRY(box_get(now, err));
    TRY(meter_get(now, err));
    TRY(store_open(now, err));
    now->saved_at = system_seconds();
    enum status status = measure_all(now, err);
    if (status != STATUS_OK) {
        /* The cause is told; that this fails, too, costs a part of what was measured. */
        (void)!calibrate_store_write(&now->store, now->partial_path, &ignored);
        return status;
    }
    unlink(now->partial_path);
    now->report.identity = now->store.identity;
    now->report.disturbed = now->calm.calm.disturbed;
    qsort(now->store.entries, now->store.count, sizeof *now->store.entries, compare_spreads);
    if (now->store.count > 0)
        now->report.spread_median = now->store.entries[now->store.count / 2].point.spread;
    return STATUS_OK;
}

enum status calibrate_run(struct calibrate_report *out, const struct calibrate_params *params,
                          struct error *err)
{
    struct profile_file file = {0};
    struct calibration *now;
    TRY(memory_get((void **)&now, 1, sizeof *now, "the calibration", err));
    now->params = *params;
    now->plan = params->plan != NULL ? params->plan : calibrate_plan_of(&params->devices);
    now->out = &file;
    enum status status = paths_make(now, err);
    if (status == STATUS_OK)
        status = run(now, err);
    if (status == STATUS_OK)
        *out = now->report;
    meter_destroy(now->meter);
    box_close(now->box);
    calibrate_store_deinit(&now->store);
    profile_file_deinit(&file);
    memory_free(now);
    return status;
}
