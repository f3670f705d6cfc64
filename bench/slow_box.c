#include "slow_box.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/text.h"
#include "engine/box_files.h"

static void fail(const char *what)
{
    fprintf(stderr, "bench: %s\n", what);
    exit(1);
}

static void check(enum status status, const struct error *err)
{
    if (status != STATUS_OK)
        fail(err->message);
}

/* Of a large product. */
static double flops_per_second(const struct profile *profile)
{
    struct work_shape work = {WORK_MATMUL, DTYPE_BF16, {2048, 4096, 4096}};
    return work_shape_flops(&work) / profile_work_seconds(profile, &work);
}

/* Of one row's product with weights that no cache holds. */
static double bytes_per_second(const struct profile *profile)
{
    struct work_shape work = {WORK_MATMUL, DTYPE_BF16, {1, 8192, 4096}};
    return work_shape_bytes(&work) / profile_work_seconds(profile, &work);
}

static void links_slow(struct box_model *box, double compute, double memory)
{
    for (int i = 0; i < box->link_count; i++) {
        box->links[i].bytes_per_second /= compute;
        box->links[i].latency *= memory;
    }
    for (int op = 0; op < COLLECTIVE_OP_COUNT; op++) {
        for (int p = 0; p < box->collectives[op].protocol_count; p++) {
            struct box_protocol *protocol = &box->collectives[op].protocols[p];
            protocol->base_latency *= memory;
            protocol->step_latency *= memory;
            protocol->message_latency *= memory;
        }
    }
}

static void print_speeds(const struct slow_box *of, double compute, double memory)
{
    const struct box_collective *gather = &of->box.collectives[COLLECTIVE_OP_ALL_GATHER];
    printf("# %d devices of one thread, %s: %.4g GFLOP/s and %.4g GB/s\n"
           "# links of %s, bandwidth / %.4g, latency x %.4g: %s %.4g MB/s and %.4g us\n",
           of->box.rank_count, of->file.identity.kernels, flops_per_second(&of->file.profile) / 1e9,
           bytes_per_second(&of->file.profile) / 1e9, of->box.name, compute, memory,
           of->box.links[0].name, of->box.links[0].bytes_per_second / 1e6,
           of->box.links[0].latency * 1e6);
    for (int p = 0; p < gather->protocol_count; p++)
        printf("# an all-gather by %s: %.4g us, %.4g us a step, %.3g of the bandwidth\n",
               gather->protocols[p].name, gather->protocols[p].base_latency * 1e6,
               gather->protocols[p].step_latency * 1e6, gather->protocols[p].efficiency);
}

static void box_get(struct slow_box *out, const char *name)
{
    struct text path = {0};
    struct error err;
    const struct box_device *device = &out->box.device;
    check(box_files_find(&path, name, &err), &err);
    check(box_model_read(&out->box, path.bytes, &err), &err);
    text_deinit(&path);
    double compute = device->peak_flops * device->flops_efficiency[WORK_MATMUL] /
                     flops_per_second(&out->file.profile);
    double memory = device->memory_bytes_per_second * device->bytes_efficiency[WORK_MATMUL] /
                    bytes_per_second(&out->file.profile);
    links_slow(&out->box, compute, memory);
    print_speeds(out, compute, memory);
}

void slow_box_get(struct slow_box *out, const char *profile_path, const char *box_name)
{
    struct error err;
    const struct profile *links = &out->links.profile;
    check(profile_file_read(&out->file, profile_path, &err), &err);
    if (out->file.identity.devices.rank_count != 1 || out->file.identity.threads != 1)
        fail("the profile has to be of one device with one thread: phasor calibrate --devices "
             "cpu:1 --threads 1");
    box_get(out, box_name);
    check(plan_box_init(&out->links, &out->box, &err), &err);
    out->profile = out->file.profile;
    out->profile.collectives = links->collectives;
    out->profile.collective_count = links->collective_count;
    out->profile.host_to_device = links->host_to_device;
    out->profile.disk_read = links->disk_read;
}
