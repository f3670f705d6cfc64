/* A GPU as a device: its streams and its memory. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "device/device.h"
#include "device/thread_team.h"
#include "kernels/cuda/device/cuda_copy.h"
#include "kernels/cuda/device/cuda_error.h"
#include "kernels/cuda/device/cuda_operations.h"
#include "kernels/cuda/device/cuda_peers.h"
#include "kernels/cuda/device/cuda_pinned.h"
#include "kernels/cuda/device/cuda_pool.h"
#include "kernels/cuda/device/cuda_reach.h"
#include "kernels/cuda/device/cuda_stream.h"

struct cuda_device {
    struct device device;
    struct device_ops ops; /* the table with the name of this GPU */
    struct cuda_common common;
    struct cuda_link link;
    struct thread_team *team; /* of host_run */
    struct cuda_pool pool;
    struct cuda_upload upload;
    int stream_count; /* beside device.stream */
    char name[320];
};

static struct cuda_device *cuda_of(const struct device *device)
{
    return (struct cuda_device *)device;
}

/* ---- Streams --------------------------------------------------------------------------------- */

static enum status stream_create_beside(struct device *device, struct stream **out,
                                        enum stream_priority priority, struct error *err)
{
    struct cuda_device *cuda = cuda_of(device);
    TRY(cuda_stream_create(out, &cuda->common, priority, err));
    cuda->stream_count++;
    return STATUS_OK;
}

static void stream_destroy_beside(struct device *device, struct stream *stream)
{
    if (stream == NULL)
        return;
    cuda_stream_destroy(stream);
    cuda_of(device)->stream_count--;
}

static void on_failure(struct device *device,
                       void (*handler)(void *context, const struct error *err), void *context)
{
    cuda_of(device)->common.owner.on_failure = handler;
    cuda_of(device)->common.owner.on_failure_context = context;
}

void cuda_on_settled(struct device *device, enum status (*check)(void *context, struct error *err),
                     void *context)
{
    cuda_of(device)->common.owner.on_settled = check;
    cuda_of(device)->common.owner.on_settled_context = context;
}

/* ---- Memory and host work -------------------------------------------------------------------- */

static enum status pool_get(struct device *device, void **out, size_t bytes, const char *what,
                            struct error *err)
{
    return cuda_pool_get(&cuda_of(device)->pool, out, bytes, what, err);
}

static void pool_free(struct device *device, void *memory)
{
    atomic_fetch_add(&cuda_of(device)->common.freed, 1);
    cuda_pool_free(&cuda_of(device)->pool, memory);
}

static struct device_memory pool_use(const struct device *device)
{
    return cuda_pool_use(&cuda_of(device)->pool);
}

static uint64_t pool_left(const struct device *device)
{
    const struct cuda_pool *pool = &cuda_of(device)->pool;
    return pool->limit_bytes - pool_use(device).bytes;
}

static enum status pinned_get(struct device *device, void **out, size_t bytes, const char *what,
                              struct error *err)
{
    return cuda_pinned_get(cuda_of(device)->common.ordinal, out, bytes, what, err);
}

static void pinned_free(struct device *device, void *memory)
{
    atomic_fetch_add(&cuda_of(device)->common.freed, 1);
    cuda_pinned_free(cuda_of(device)->common.ordinal, memory);
}

static enum status pinned_keep(struct device *device, void *memory, size_t bytes, const char *what,
                               struct error *err)
{
    return cuda_pinned_keep(cuda_of(device)->common.ordinal, memory, bytes, what, err);
}

static bool pinned_leave(struct device *device, void *memory)
{
    atomic_fetch_add(&cuda_of(device)->common.freed, 1);
    return cuda_pinned_leave(cuda_of(device)->common.ordinal, memory);
}

static int host_node(const struct device *device)
{
    return cuda_node(cuda_of(device)->common.ordinal);
}

static enum status upload(struct device *device, const struct op_copy *op, struct error *err)
{
    return cuda_upload(&cuda_of(device)->upload, op, err);
}

static void host_run(struct device *device, void (*work)(void *context, int worker), void *context)
{
    command_stream_host_run(device->stream, cuda_of(device)->team, work, context);
}

static int host_workers(const struct device *device)
{
    return thread_team_size(cuda_of(device)->team);
}

/* ---- Life ------------------------------------------------------------------------------------ */

static void link_deinit(struct cuda_link *link, int ordinal)
{
    pthread_mutex_destroy(&link->lock);
    if (link->until == NULL || cuda_is_stuck())
        return;
    (void)cudaSetDevice(ordinal);
    (void)cudaFree(link->until);
    (void)cudaGetLastError();
}

static void cuda_destroy(struct device *device)
{
    struct cuda_device *cuda = cuda_of(device);
    ASSERT(cuda->stream_count == 0);
    cuda_stream_destroy(device->stream);
    cuda_upload_deinit(&cuda->upload);
    thread_team_destroy(cuda->team);
    cuda_pool_deinit(&cuda->pool);
    link_deinit(&cuda->link, cuda->common.ordinal);
    if (!cuda_is_stuck())
        cuda_partition_deinit(&cuda->common.partition);
    memory_free(cuda);
}

static const struct device_ops cuda_ops = {
    .embed = cuda_put_embed,
    .rms_norm = cuda_put_rms_norm,
    .add = cuda_put_add,
    .matmul = cuda_put_matmul,
    .rope_append = cuda_put_rope_append,
    .attention = cuda_put_attention,
    .route = cuda_put_route,
    .dispatch = cuda_put_dispatch,
    .group = cuda_put_group,
    .ffn_up = cuda_put_ffn_up,
    .ffn_down = cuda_put_ffn_down,
    .combine = cuda_put_combine,
    .shared_add = cuda_put_shared_add,
    .choose = cuda_put_choose,
    .candidates = cuda_put_candidates,
    .gather = cuda_put_gather,
    .dequantize = cuda_put_dequantize,
    .copy = cuda_put_copy,
    .fill = cuda_put_fill,
    .call = command_stream_call,
    .repeat = cuda_stream_repeat,
    .peers = &cuda_peers,
    .synchronize = command_stream_synchronize,
    .progress = command_stream_progress,
    .stage = cuda_stream_stage,
    .stage_totals = cuda_stream_stage_totals,
    .stream_create = stream_create_beside,
    .stream_destroy = stream_destroy_beside,
    .stream_bytes = cuda_stream_bytes,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = command_event_record,
    .event_wait = command_event_wait,
    .event_synchronize = cuda_event_synchronize,
    .on_failure = on_failure,
    .memory_get = pool_get,
    .memory_free = pool_free,
    .memory_use = pool_use,
    .memory_left = pool_left,
    .host_memory_get = pinned_get,
    .host_memory_free = pinned_free,
    .host_memory_pin = pinned_keep,
    .host_memory_unpin = pinned_leave,
    .host_node = host_node,
    .upload = upload,
    .host_run = host_run,
    .host_workers = host_workers,
    .destroy = cuda_destroy,
};

/* A GPU has so many queues for the streams of a process, 8 unless it is told: streams that share
 * one wait for each other, and several ranks have more. The driver asks at its first call. */
static void queues_ask_for(void)
{
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

/* The driver is missing, too old, or sees no GPU; or not that many. */
static enum status gpu_find(int ordinal, struct error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int count = 0;
    (void)pthread_once(&once, queues_ask_for);
    if (cuda_is_stuck())
        return error_set(err, STATUS_IO,
                         "cuda:%d cannot be used: a GPU hangs in this process; start another one",
                         ordinal);
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return error_set(err, STATUS_UNSUPPORTED,
                         "cuda:%d cannot be used: %s; it needs an NVIDIA GPU and its driver "
                         "(nvidia-smi shows them), of version 525 or newer for CUDA 12, 580 for 13",
                         ordinal, cudaGetErrorString(error));
    }
    if (ordinal < 0 || ordinal >= count)
        return error_set(err, STATUS_UNSUPPORTED,
                         "there is no cuda:%d: this machine has %d GPUs, counted from 0 "
                         "(CUDA_VISIBLE_DEVICES may hide some)",
                         ordinal, count);
    return STATUS_OK;
}

/* This rank's share of what is free on the GPU, but for a sixteenth: NCCL, local memory of kernels
 * and the driver want some of it later. */
static enum status memory_find(size_t *out, const struct gpu_share *share, struct error *err)
{
    size_t left, all, sharer_count = share->sharer_count > 1 ? (size_t)share->sharer_count : 1;
    CUDA_TRY(share->ordinal, cudaSetDevice(share->ordinal), err);
    CUDA_TRY(share->ordinal, cudaMemGetInfo(&left, &all), err);
    *out = (left - left / 16) / sharer_count;
    return STATUS_OK;
}

/* What launches must know of the GPU, and its name. */
static enum status gpu_describe(struct cuda_device *cuda, const struct gpu_share *share,
                                struct error *err)
{
    int ordinal = share->ordinal;
    struct cudaDeviceProp properties;
    CUDA_TRY(ordinal, cudaGetDeviceProperties(&properties, ordinal), err);
    cuda_bus_id(cuda->common.bus_id, &properties);
    cuda_node_note(ordinal, cuda->common.bus_id);
    TRY(memory_find(&cuda->pool.limit_bytes, share, err));
    int capability = 10 * properties.major + properties.minor, all = properties.multiProcessorCount;
    struct cuda_partition *partition = &cuda->common.partition;
    cuda_partition_init(partition, share, capability, all);
    cuda->common.launch = (struct cuda_launch){
        .multiprocessors = partition->multiprocessors,
        .capability = capability,
        .shared_bytes_max = (int)properties.sharedMemPerBlockOptin,
    };
    if (partition->context != NULL)
        snprintf(cuda->name, sizeof cuda->name, "cuda:%d (%s, sm_%d, %d of %d multiprocessors)",
                 ordinal, properties.name, capability, partition->multiprocessors, all);
    else
        snprintf(cuda->name, sizeof cuda->name, "cuda:%d (%s, sm_%d)", ordinal, properties.name,
                 capability);
    return STATUS_OK;
}

enum status device_cuda_create(struct device **out, const struct gpu_share *share,
                               struct error *err)
{
    struct cuda_device *cuda;
    enum status status;
    int ordinal = share->ordinal;
    int thread_count = share->thread_count > 0 ? share->thread_count : thread_team_cpu_count();
    TRY(gpu_find(ordinal, err));
    TRY(memory_get((void **)&cuda, 1, sizeof *cuda, "the CUDA device", err));
    cuda->ops = cuda_ops;
    cuda->ops.name = cuda->name;
    cuda->device.ops = &cuda->ops;
    cuda->common.owner =
        (struct stream_owner){.device = &cuda->device, .trace = share->trace, .rank = share->rank};
    cuda->common.ordinal = ordinal;
    pthread_mutex_init(&cuda->link.lock, NULL);
    cuda->common.link = &cuda->link;
    cuda_pool_init(&cuda->pool, ordinal, 0);
    TRY_GOTO(gpu_describe(cuda, share, err), failed);
    TRY_GOTO(thread_team_create(&cuda->team, thread_count, -1, err), failed);
    TRY_GOTO(cuda_upload_init(&cuda->upload, ordinal, err), failed);
    TRY_GOTO(cuda_stream_create(&cuda->device.stream, &cuda->common, STREAM_NORMAL, err), failed);
    *out = &cuda->device;
    return STATUS_OK;

failed:
    cuda_destroy(&cuda->device);
    return status;
}

enum status device_cuda_describe(struct gpu_description *out, const struct gpu_share *share,
                                 struct error *err)
{
    struct cudaDeviceProp properties;
    size_t left;
    int ordinal = share->ordinal, driver, runtime;
    TRY(gpu_find(ordinal, err));
    CUDA_TRY(ordinal, cudaGetDeviceProperties(&properties, ordinal), err);
    CUDA_TRY(ordinal, cudaDriverGetVersion(&driver), err);
    CUDA_TRY(ordinal, cudaRuntimeGetVersion(&runtime), err);
    TRY(memory_find(&left, share, err));
    int capability = 10 * properties.major + properties.minor;
    *out = (struct gpu_description){
        .capability = capability,
        .memory_bytes = properties.totalGlobalMem,
        .memory_left = left,
        .multiprocessors = properties.multiProcessorCount,
        .part = cuda_partition_expect(share, capability),
        .driver = driver,
        .runtime = runtime,
    };
    snprintf(out->name, sizeof out->name, "%s", properties.name);
    return STATUS_OK;
}

int device_cuda_part(const struct device *device)
{
    const struct cuda_partition *partition = &cuda_of(device)->common.partition;
    return partition->context != NULL ? partition->multiprocessors : 0;
}

bool device_cuda_is_built(void)
{
    return true;
}
