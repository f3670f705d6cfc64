#include "example_profile.h"

#include <string.h>

#define POINTS 2
#define SIZES  6 /* up to 64 ranks */

void example_profile_init(struct example_profile *out, int ranks)
{
    struct error err;
    *out = (struct example_profile){.flops_per_second = 1e11,
                                    .bytes_per_second = 1e10,
                                    .call_seconds = 1e-6,
                                    .gather_rate = 1e11,
                                    .exchange_rate = 1e11,
                                    .disk_rate = 1e9,
                                    .check_rate = 1e10};
    const struct engine_devices devices = {.rank_count = ranks};
    if (profile_identity_of(&out->identity, &devices, 0, &err) != STATUS_OK)
        memset(&out->identity, 0, sizeof out->identity);
}

void example_profile_torn(struct example_profile *out, int ranks)
{
    example_profile_init(out, ranks);
    out->gather_rate = 1e8;
    out->exchange_rate = 1e7;
    out->flops_per_second = 1e9;
    out->bytes_per_second = 1e7;
    out->call_seconds = 1e-3;
}

static int works_fill(struct work_table *tables, const struct example_profile *profile)
{
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_INT4};
    static const double ratio = 0;
    int count = 0;
    for (int kind = WORK_MATMUL; kind < WORK_KIND_COUNT; kind++) {
        for (int d = 0; d < 3; d++)
            tables[count++] = (struct work_table){.kind = (enum work_kind)kind,
                                                  .dtype = dtypes[d],
                                                  .flops_per_second = profile->flops_per_second,
                                                  .bytes_per_second = profile->bytes_per_second,
                                                  .log_ratios = &ratio};
    }
    return count;
}

struct calls {
    struct collective_table tables[4 * SIZES * 2];
    double bytes[POINTS], seconds[2][POINTS]; /* [is all-to-all] */
};

static int calls_fill(struct calls *calls, const struct example_profile *profile)
{
    int count = 0, ranks = profile->identity.devices.rank_count;
    for (int p = 0; p < POINTS; p++) {
        calls->bytes[p] = p == 0 ? 64 : 1 << 24;
        calls->seconds[0][p] = profile->call_seconds + calls->bytes[p] / profile->gather_rate;
        calls->seconds[1][p] = profile->call_seconds + calls->bytes[p] / profile->exchange_rate;
    }
    for (int op = 0; op < 4; op++) {
        for (int size = 2; size <= ranks; size *= 2) {
            for (int strided = 0; strided <= (size < ranks); strided++)
                calls->tables[count++] =
                    (struct collective_table){.op = (enum group_op)op,
                                              .size = size,
                                              .is_strided = strided == 1,
                                              .point_count = POINTS,
                                              .bytes = calls->bytes,
                                              .seconds = calls->seconds[op == GROUP_ALL_TO_ALL]};
        }
    }
    return count;
}

bool example_profile_write(const struct example_profile *profile, const char *path,
                           struct error *err)
{
    struct work_table works[WORK_KIND_COUNT * 3];
    struct calls calls;
    struct profile_point told[2][POINTS];
    static const struct profile_point once = {1, 0, 3};
    const struct profile_point *work_points[WORK_KIND_COUNT * 3], *call_points[4 * SIZES * 2];
    int work_count = works_fill(works, profile), call_count = calls_fill(&calls, profile);
    for (int i = 0; i < work_count; i++)
        work_points[i] = &once;
    for (int p = 0; p < 2 * POINTS; p++)
        told[p / POINTS][p % POINTS] =
            (struct profile_point){calls.seconds[p / POINTS][p % POINTS], 0, 3};
    for (int i = 0; i < call_count; i++)
        call_points[i] = told[calls.tables[i].op == GROUP_ALL_TO_ALL];
    struct profile_file file = {
        .identity = profile->identity,
        .profile = {.work = works,
                    .work_count = work_count,
                    .collectives = calls.tables,
                    .collective_count = call_count,
                    .host_to_device = profile->bytes_per_second,
                    .disk_read = profile->disk_rate,
                    .page_cache_read = profile->disk_rate,
                    .check = profile->check_rate,
                    .repack = 1e9},
        .memory_read = profile->bytes_per_second,
        .work_points = work_points,
        .collective_points = call_points,
    };
    return profile_file_write(&file, path, err) == STATUS_OK;
}
