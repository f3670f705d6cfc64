/* The CPU as a device: its streams, its team of threads, its memory. */
#include <string.h>

#include "base/memory.h"
#include "base/system.h"
#include "device/command_event.h"
#include "device/device.h"
#include "device/thread_team.h"
#include "kernels/cpu/device/cpu_launch.h"
#include "kernels/cpu/device/cpu_pool.h"
#include "kernels/cpu/device/cpu_stream.h"
#include "kernels/cpu/kernels.h"

struct cpu_device {
    struct device device;
    struct device_ops ops; /* the table with the name of the chosen kernels */
    struct cpu_common common;
    struct thread_team *team; /* of device.stream */
    struct cpu_pool pool;
    int stream_count; /* beside device.stream */
};

static struct cpu_device *cpu_of(const struct device *device)
{
    return (struct cpu_device *)device;
}

static enum status cpu_stream_create_beside(struct device *device, struct stream **out,
                                            enum stream_priority priority, struct error *err)
{
    struct cpu_device *cpu = cpu_of(device);
    struct cpu_stream_params params = {.common = &cpu->common, .priority = priority, .cpu = -1};
    TRY(cpu_stream_create(out, &params, err));
    cpu->stream_count++;
    return STATUS_OK;
}

static void cpu_stream_destroy_beside(struct device *device, struct stream *stream)
{
    if (stream == NULL)
        return;
    cpu_stream_destroy(stream);
    cpu_of(device)->stream_count--;
}

static enum status cpu_event_create(struct device *device, struct event **out, struct error *err)
{
    (void)device;
    TRY(memory_get((void **)out, 1, sizeof **out, "an event", err));
    command_event_init(*out, NULL);
    return STATUS_OK;
}

static void cpu_event_destroy(struct device *device, struct event *event)
{
    (void)device;
    if (event == NULL)
        return;
    command_event_deinit(event);
    memory_free(event);
}

static void cpu_on_failure(struct device *device,
                           void (*handler)(void *context, const struct error *err), void *context)
{
    cpu_of(device)->common.owner.on_failure = handler;
    cpu_of(device)->common.owner.on_failure_context = context;
}

static enum status cpu_memory_get(struct device *device, void **out, size_t bytes, const char *what,
                                  struct error *err)
{
    return cpu_pool_get(&cpu_of(device)->pool, out, bytes, what, err);
}

static enum status cpu_memory_map(struct device *device, void *memory, size_t bytes, int fd,
                                  uint64_t offset, struct error *err)
{
    return cpu_pool_map(&cpu_of(device)->pool, memory, bytes, fd, offset, err);
}

static void cpu_memory_free(struct device *device, void *memory)
{
    cpu_pool_free(&cpu_of(device)->pool, memory);
}

static struct device_memory cpu_memory_use(const struct device *device)
{
    return cpu_pool_use(&cpu_of(device)->pool);
}

static uint64_t cpu_memory_left(const struct device *device)
{
    uint64_t available = system_memory_available(), mapped = memory_counters_get().mapped_bytes;
    (void)device;
    if (available == UINT64_MAX)
        return available;
    return available > mapped ? available - mapped : 0; /* whose pages count as available */
}

static enum status cpu_host_memory_get(struct device *device, void **out, size_t bytes,
                                       const char *what, struct error *err)
{
    (void)device;
    return memory_get_raw(out, bytes, 1, what, err);
}

static void cpu_host_memory_free(struct device *device, void *memory)
{
    (void)device;
    memory_free(memory);
}

/* No copy is faster for it. */
static enum status cpu_host_memory_pin(struct device *device, void *memory, size_t bytes,
                                       const char *what, struct error *err)
{
    (void)device;
    (void)memory;
    (void)bytes;
    (void)what;
    (void)err;
    return STATUS_OK;
}

static bool cpu_host_memory_unpin(struct device *device, void *memory)
{
    (void)device;
    (void)memory;
    return true;
}

static enum status cpu_upload(struct device *device, const struct op_copy *op, struct error *err)
{
    (void)device;
    (void)err;
    for (int64_t row = 0; row <= op->more_rows; row++)
        memcpy((char *)op->out + row * op->out_stride, (const char *)op->in + row * op->in_stride,
               (size_t)op->bytes);
    return STATUS_OK;
}

static void cpu_host_run(struct device *device, void (*work)(void *context, int worker),
                         void *context)
{
    command_stream_host_run(device->stream, cpu_of(device)->team, work, context);
}

static int cpu_host_workers(const struct device *device)
{
    return thread_team_size(cpu_of(device)->team);
}

static void cpu_destroy(struct device *device)
{
    struct cpu_device *cpu = cpu_of(device);
    ASSERT(cpu->stream_count == 0);
    cpu_stream_destroy(device->stream);
    thread_team_destroy(cpu->team);
    cpu_pool_deinit(&cpu->pool);
    memory_free(cpu);
}

static const struct device_ops cpu_ops = {
    .embed = cpu_embed,
    .rms_norm = cpu_rms_norm,
    .add = cpu_add,
    .matmul = cpu_matmul,
    .rope_append = cpu_rope_append,
    .attention = cpu_attention,
    .route = cpu_route,
    .dispatch = cpu_dispatch,
    .group = cpu_group,
    .ffn_up = cpu_ffn_up,
    .ffn_down = cpu_ffn_down,
    .combine = cpu_combine,
    .shared_add = cpu_shared_add,
    .choose = cpu_choose,
    .candidates = cpu_candidates,
    .gather = cpu_gather,
    .dequantize = cpu_dequantize,
    .copy = cpu_copy,
    .fill = cpu_fill,
    .call = command_stream_call,
    .synchronize = command_stream_synchronize,
    .progress = cpu_stream_progress,
    .stage = cpu_stream_stage,
    .stage_totals = cpu_stream_stage_totals,
    .stream_create = cpu_stream_create_beside,
    .stream_destroy = cpu_stream_destroy_beside,
    .stream_bytes = cpu_stream_bytes,
    .event_create = cpu_event_create,
    .event_destroy = cpu_event_destroy,
    .event_record = command_event_record,
    .event_wait = command_event_wait,
    .event_synchronize = command_event_synchronize,
    .on_failure = cpu_on_failure,
    .memory_get = cpu_memory_get,
    .memory_map = cpu_memory_map,
    .memory_free = cpu_memory_free,
    .memory_use = cpu_memory_use,
    .memory_left = cpu_memory_left,
    .host_memory_get = cpu_host_memory_get,
    .host_memory_free = cpu_host_memory_free,
    .host_memory_pin = cpu_host_memory_pin,
    .host_memory_unpin = cpu_host_memory_unpin,
    .host_reaches = true,
    .upload = cpu_upload,
    .host_run = cpu_host_run,
    .host_workers = cpu_host_workers,
    .destroy = cpu_destroy,
};

enum status device_cpu_create_with(struct device **out, const struct cpu_share *share,
                                   const struct cpu_kernels *kernels, struct error *err)
{
    struct cpu_device *cpu;
    enum status status;
    TRY(memory_get((void **)&cpu, 1, sizeof *cpu, "the CPU device", err));
    cpu->ops = cpu_ops;
    cpu->ops.name = kernels->name;
    cpu->device.ops = &cpu->ops;
    cpu->device.turn = share->turn;
    cpu->common = (struct cpu_common){
        .owner = {.device = &cpu->device, .trace = share->trace, .rank = share->rank},
        .kernels = kernels,
        .pool = &cpu->pool,
    };
    cpu_pool_init(&cpu->pool);
    TRY_GOTO(thread_team_create(&cpu->team, share->thread_count, share->first_cpu, err), failed);
    struct cpu_stream_params params = {
        .common = &cpu->common,
        .team = cpu->team,
        .priority = STREAM_NORMAL,
        .cpu = share->first_cpu,
    };
    TRY_GOTO(cpu_stream_create(&cpu->device.stream, &params, err), failed);
    *out = &cpu->device;
    return STATUS_OK;

failed:
    cpu_destroy(&cpu->device);
    return status;
}

enum status device_cpu_create(struct device **out, const struct cpu_share *share, struct error *err)
{
    const struct cpu_kernels *kernels = cpu_kernels_choose(share->kernels);
    if (kernels == NULL)
        return error_set(err, STATUS_UNSUPPORTED,
                         "this machine or this build has no kernels \"%s\"", share->kernels);
    return device_cpu_create_with(out, share, kernels, err);
}

void device_cpu_protect(struct device *device, bool closed)
{
    cpu_pool_protect(&cpu_of(device)->pool, closed);
}
