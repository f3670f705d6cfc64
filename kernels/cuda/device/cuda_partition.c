#include "kernels/cuda/device/cuda_partition.h"

#include <string.h>

#include "device/peers.h"
#include "kernels/cuda/launch.h"

/* Green contexts are the driver's, which the runtime opens, since CUDA 12.4, and streams of any
 * priority in them since 12.5, as is the runtime's way to ask for an entry by its version. The
 * tests also build what older ones have. */
#ifndef CUDA_PARTITION_IS_BUILT
#define CUDA_PARTITION_IS_BUILT (CUDART_VERSION >= 12050)
#endif

/* ---- What the driver has of them ------------------------------------------------------------- */

#if CUDA_PARTITION_IS_BUILT
#include <cuda.h>
#include <pthread.h>

struct driver {
    CUresult (*device_get)(CUdevice *, int);
    CUresult (*resource_get)(CUdevice, CUdevResource *, CUdevResourceType);
    CUresult (*split)(CUdevResource *, unsigned *, const CUdevResource *, CUdevResource *, unsigned,
                      unsigned);
    CUresult (*describe)(CUdevResourceDesc *, CUdevResource *, unsigned);
    CUresult (*context_create)(CUgreenCtx *, CUdevResourceDesc, CUdevice, unsigned);
    CUresult (*context_destroy)(CUgreenCtx);
    CUresult (*stream_create)(CUstream *, CUgreenCtx, unsigned, int);
};

/* `since`: the version of CUDA that introduced it, as cudaTypedefs.h has it. One asked for by an
 * older is not found, and one asked for by a newer may take other arguments. */
static bool entry_get(void *out, const char *name, unsigned since)
{
    void *entry = NULL;
    enum cudaDriverEntryPointQueryResult found;
    cudaError_t error =
        cudaGetDriverEntryPointByVersion(name, &entry, since, cudaEnableDefault, &found);
    if (error != cudaSuccess || found != cudaDriverEntryPointSuccess || entry == NULL)
        return false;
    memcpy(out, &entry, sizeof entry);
    return true;
}

static bool driver_find(struct driver *out)
{
    return entry_get(&out->device_get, "cuDeviceGet", 2000) &&
           entry_get(&out->resource_get, "cuDeviceGetDevResource", 12040) &&
           entry_get(&out->split, "cuDevSmResourceSplitByCount", 12040) &&
           entry_get(&out->describe, "cuDevResourceGenerateDesc", 12040) &&
           entry_get(&out->context_create, "cuGreenCtxCreate", 12040) &&
           entry_get(&out->context_destroy, "cuGreenCtxDestroy", 12040) &&
           entry_get(&out->stream_create, "cuGreenCtxStreamCreate", 12050);
}

/* The process's: a driver does not change while it is used. */
static struct driver driver_here;
static bool driver_has_parts;

static void driver_find_here(void)
{
    driver_has_parts = driver_find(&driver_here);
}

/* NULL: it has no green contexts, or no streams in them. */
static const struct driver *driver_get(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, driver_find_here);
    return driver_has_parts ? &driver_here : NULL;
}

/* A part has a multiple of so many multiprocessors: of the CUDA driver's manual, "Green Contexts".
 */
static unsigned multiple_of(int capability)
{
    return capability >= 90 ? 8 : 2;
}

static unsigned least_of(int capability)
{
    return capability >= 90 ? 8 : capability >= 80 ? 4 : 2;
}

/* As large as they can be, all alike; false: there are not so many. Every sharer finds the same. */
static bool parts_find(CUdevResource parts[PEERS_MAX], const struct driver *driver,
                       const CUdevResource *all, const struct gpu_share *share, int capability)
{
    unsigned wanted = (unsigned)share->sharer_count, step = multiple_of(capability);
    unsigned each = all->sm.smCount / wanted / step * step;
    for (; each >= least_of(capability); each -= step) {
        unsigned count = wanted;
        if (driver->split(parts, &count, all, NULL, 0, each) == CUDA_SUCCESS && count == wanted)
            return true;
    }
    return false;
}

/* The share's own. */
static bool part_get(CUdevResource *out, CUdevice *device, const struct gpu_share *share,
                     int capability)
{
    CUdevResource all, parts[PEERS_MAX];
    const struct driver *driver = driver_get();
    if (driver == NULL || driver->device_get(device, share->ordinal) != CUDA_SUCCESS ||
        driver->resource_get(*device, &all, CU_DEV_RESOURCE_TYPE_SM) != CUDA_SUCCESS ||
        !parts_find(parts, driver, &all, share, capability))
        return false;
    *out = parts[share->sharer_index];
    return true;
}

static bool context_get(struct cuda_partition *out, const struct gpu_share *share, int capability)
{
    CUdevice device;
    CUdevResource own;
    CUdevResourceDesc description;
    CUgreenCtx context;
    const struct driver *driver = driver_get();
    if (!part_get(&own, &device, share, capability))
        return false;
    if (driver->describe(&description, &own, 1) != CUDA_SUCCESS ||
        driver->context_create(&context, description, device, CU_GREEN_CTX_DEFAULT_STREAM) !=
            CUDA_SUCCESS)
        return false;
    out->context = context;
    out->multiprocessors = (int)own.sm.smCount;
    return true;
}

static void context_destroy(void *context)
{
    (void)driver_get()->context_destroy(context);
}

/* Nothing in a green context is locked by itself; streams go on without it once they are there. */
static cudaError_t context_stream(void *context, cudaStream_t *out, int priority)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    CUresult result = driver_get()->stream_create(out, context, CU_STREAM_NON_BLOCKING, priority);
    pthread_mutex_unlock(&lock);
    /* What both know has the same number. */
    return (cudaError_t)result;
}

#else

static bool context_get(struct cuda_partition *out, const struct gpu_share *share, int capability)
{
    (void)out, (void)share, (void)capability;
    return false;
}

static void context_destroy(void *context)
{
    (void)context;
}

static cudaError_t context_stream(void *context, cudaStream_t *out, int priority)
{
    (void)context, (void)out, (void)priority;
    return cudaErrorNotSupported;
}

#endif

/* ---- Whether one is of use ------------------------------------------------------------------- */

/* What is put on a stream of it: kernels, copies and events of the runtime, and a graph of them. */
struct trial {
    struct cuda_launch launch;
    cudaEvent_t event;
    cudaGraph_t graph;
    cudaGraphExec_t instance;
    struct trial_memory *memory; /* of the device */
    uint64_t words[2]; /* the first of it; here, as a copy may come when somebody has given up */
};

/* A copy writes the first, a kernel the others. */
struct trial_memory {
    uint64_t copied;
    struct cuda_pace pace;
    uint64_t link;
};

static bool work_put(const struct trial *trial)
{
    struct trial_memory *memory = trial->memory;
    return cuda_pace_begin(&trial->launch, &memory->pace, &memory->link, 0) == cudaSuccess &&
           cudaMemcpyAsync(&memory->copied, &memory->pace.until, sizeof memory->copied,
                           cudaMemcpyDeviceToDevice, trial->launch.stream) == cudaSuccess;
}

static bool graph_get(struct trial *trial)
{
    cudaStream_t stream = trial->launch.stream;
    if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess)
        return false;
    bool is_put = work_put(trial);
    return cudaStreamEndCapture(stream, &trial->graph) == cudaSuccess && is_put &&
           cudaGraphInstantiateWithFlags(&trial->instance, trial->graph, 0) == cudaSuccess;
}

/* The kernel has written the time, and the copy has brought it on. */
static bool is_done(struct trial *trial)
{
    uint64_t *words = trial->words;
    cudaStream_t stream = trial->launch.stream;
    return cudaMemcpyAsync(words, trial->memory, sizeof trial->words, cudaMemcpyDeviceToHost,
                           stream) == cudaSuccess &&
           cudaStreamSynchronize(stream) == cudaSuccess && words[0] != 0 && words[0] == words[1];
}

static bool trial_runs(struct trial *trial, const struct cuda_partition *partition)
{
    cudaStream_t *stream = &trial->launch.stream;
    size_t bytes = sizeof *trial->memory;
    return cuda_partition_stream(partition, stream, 0) == cudaSuccess &&
           cudaMalloc((void **)&trial->memory, bytes) == cudaSuccess &&
           cudaMemsetAsync(trial->memory, 0, bytes, *stream) == cudaSuccess &&
           cudaEventCreateWithFlags(&trial->event, cudaEventDisableTiming) == cudaSuccess &&
           graph_get(trial) && cudaGraphLaunch(trial->instance, *stream) == cudaSuccess &&
           cudaEventRecord(trial->event, *stream) == cudaSuccess &&
           cudaStreamWaitEvent(*stream, trial->event, 0) == cudaSuccess && is_done(trial);
}

static bool is_of_use(const struct cuda_partition *partition)
{
    struct trial trial = {.event = NULL};
    bool runs = trial_runs(&trial, partition);
    if (trial.instance != NULL)
        (void)cudaGraphExecDestroy(trial.instance);
    if (trial.graph != NULL)
        (void)cudaGraphDestroy(trial.graph);
    if (trial.event != NULL)
        (void)cudaEventDestroy(trial.event);
    if (trial.launch.stream != NULL)
        (void)cudaStreamDestroy(trial.launch.stream);
    (void)cudaFree(trial.memory);
    return runs;
}

/* ---- A share --------------------------------------------------------------------------------- */

static bool is_to_be_cut(const struct gpu_share *share)
{
    ASSERT(share->sharer_index == 0 || share->sharer_index < share->sharer_count);
    return share->sharer_count > 1 && !share->is_whole && share->sharer_count <= PEERS_MAX;
}

void cuda_partition_init(struct cuda_partition *out, const struct gpu_share *share, int capability,
                         int multiprocessors)
{
    *out = (struct cuda_partition){.multiprocessors = multiprocessors};
    if (is_to_be_cut(share) && context_get(out, share, capability) && !is_of_use(out)) {
        cuda_partition_deinit(out);
        out->multiprocessors = multiprocessors;
    }
    (void)cudaGetLastError();
}

void cuda_partition_deinit(struct cuda_partition *partition)
{
    if (partition->context != NULL)
        context_destroy(partition->context);
    *partition = (struct cuda_partition){.context = NULL};
}

int cuda_partition_expect(const struct gpu_share *share, int capability)
{
    struct cuda_partition parts[PEERS_MAX];
    struct gpu_share each = *share;
    int opened = 0;
    bool are_alike = is_to_be_cut(share);
    for (; are_alike && opened < share->sharer_count; opened++) {
        each.sharer_index = opened;
        cuda_partition_init(&parts[opened], &each, capability, 0);
        are_alike = parts[opened].context != NULL &&
                    parts[opened].multiprocessors == parts[0].multiprocessors;
    }
    int size = are_alike ? parts[0].multiprocessors : 0;
    while (opened > 0)
        cuda_partition_deinit(&parts[--opened]);
    return size;
}

cudaError_t cuda_partition_stream(const struct cuda_partition *partition, cudaStream_t *out,
                                  int priority)
{
    return partition->context == NULL
               ? cudaStreamCreateWithPriority(out, cudaStreamNonBlocking, priority)
               : context_stream(partition->context, out, priority);
}
