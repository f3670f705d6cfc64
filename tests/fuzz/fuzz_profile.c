/* A profile of a box, or what a calibration that was stopped has kept. */
#include <math.h>
#include <string.h>

#include "engine/calibrate_store.h"
#include "engine/profile_file.h"
#include "fuzz.h"

static void check_rate(double rate)
{
    FUZZ_CHECK(rate >= PROFILE_NO_RATE && rate <= 1e24);
}

/* Shapes within the table and beyond have a time. */
static void check_work(const struct profile *profile, const struct work_table *table)
{
    for (int64_t size = 1; size < (int64_t)1 << 24; size *= 97) {
        struct work_shape work = {.kind = table->kind, .dtype = table->dtype};
        for (int d = 0; d < WORK_SHAPE_DIMS; d++)
            work.dims[d] = d % 2 == 0 ? size : 64;
        double seconds = profile_work_seconds(profile, &work);
        FUZZ_CHECK(!isnan(seconds) && seconds >= 0);
    }
}

static void check_accepted(const struct profile_file *file)
{
    const struct profile *profile = &file->profile;
    FUZZ_CHECK(file->identity.devices.rank_count >= 1 && file->identity.devices.rank_count <= 64);
    check_rate(profile->disk_read);
    check_rate(profile->host_to_device);
    FUZZ_CHECK(profile->host_to_device_busy == 0 || profile->host_to_device_busy >= 1);
    check_rate(profile->check);
    check_rate(profile->repack);
    FUZZ_CHECK(profile->host_step >= 0 && isfinite(profile->host_step));
    for (int which = 0; which < CALM_PROBES; which++)
        FUZZ_CHECK(file->probe_seconds[which] >= 0 && isfinite(file->probe_seconds[which]));
    for (int i = 0; i < profile->work_count; i++) {
        FUZZ_CHECK(profile_table_points(&profile->work[i]) <= PROFILE_TABLE_POINTS_MAX);
        check_work(profile, &profile->work[i]);
    }
    for (int i = 0; i < profile->collective_count; i++) {
        const struct collective_table *table = &profile->collectives[i];
        for (double bytes = 1; bytes < 1e12; bytes *= 31) {
            double seconds = profile_collective_seconds(profile, table->op, table->size,
                                                        table->is_strided, bytes);
            FUZZ_CHECK(seconds > 0);
            FUZZ_CHECK(profile_all_to_all_seconds(profile, table->size, table->is_strided, bytes,
                                                  table->size) > 0);
        }
    }
}

/* What was read is written, and read again as the same. */
static void check_round(const struct profile_file *file)
{
    struct text one = {0}, two = {0};
    struct profile_file again;
    struct error err;
    FUZZ_CHECK(profile_file_format(&one, file, &err) == STATUS_OK);
    FUZZ_CHECK(profile_file_parse(&again, one.bytes, one.length, "again", &err) == STATUS_OK);
    FUZZ_CHECK(profile_file_format(&two, &again, &err) == STATUS_OK);
    FUZZ_CHECK(one.length == two.length && memcmp(one.bytes, two.bytes, one.length) == 0);
    text_deinit(&one);
    text_deinit(&two);
    profile_file_deinit(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_account account = fuzz_begin(size);
    struct profile_file file;
    struct calibrate_store store;
    struct error err;
    enum status status = profile_file_parse(&file, (const char *)data, size, "box.json", &err);
    if (status == STATUS_OK) {
        check_accepted(&file);
        check_round(&file);
        profile_file_deinit(&file);
    } else {
        fuzz_check_error(status, &err);
    }
    status = calibrate_store_parse(&store, (const char *)data, size, "box.json.partial", &err);
    if (status == STATUS_OK) {
        for (size_t i = 0; i < store.count; i++)
            FUZZ_CHECK(calibrate_store_find(&store, &store.entries[i].key) != NULL);
        calibrate_store_deinit(&store);
    } else {
        fuzz_check_error(status, &err);
    }
    fuzz_end(&account);
    return 0;
}
