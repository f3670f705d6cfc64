/* What the emulated driver has of green contexts: parts of a GPU's multiprocessors, and streams in
 * them, which are as all others. */
#include "simt_control.h"
#include "simt_memory.h"
#include "simt_stream.h"

#include <cstring>
#include <cuda.h>

namespace {

simt_green green = SIMT_GREEN_SOUND;
uint64_t fail_in; /* calls of the driver until then; 0: never */

/* A green context, or the description of one. */
struct part {
    int device;
    unsigned count;
};

part *part_new(int device, unsigned count)
{
    simt::live_count_add(1);
    return new part{device, count};
}

CUresult begin()
{
    return fail_in > 0 && --fail_in == 0 ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

CUresult device_get(CUdevice *out, int ordinal)
{
    *out = ordinal;
    return begin();
}

CUresult resource_get(CUdevice, CUdevResource *out, CUdevResourceType type)
{
    if (type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_VALUE;
    std::memset(out, 0, sizeof *out);
    out->type = type;
    out->sm.smCount = (unsigned)simt_multiprocessors();
    return begin();
}

/* Parts of `least`, as many as are wanted or as there are; one more than that goes to waste, as
 * where clusters do not come out even. */
CUresult split(CUdevResource *out, unsigned *count, const CUdevResource *all, CUdevResource *,
               unsigned flags, unsigned least)
{
    if (flags != 0 || least == 0 || least > all->sm.smCount)
        return CUDA_ERROR_INVALID_VALUE;
    unsigned there = all->sm.smCount / least;
    *count = there < *count ? there : *count;
    for (unsigned i = 0; i < *count; i++) {
        out[i] = *all;
        out[i].sm.smCount = least;
    }
    return begin();
}

/* A description is the driver's; it is freed with its context. */
thread_local part described;

CUresult describe(CUdevResourceDesc *out, CUdevResource *own, unsigned count)
{
    if (count != 1)
        return CUDA_ERROR_INVALID_VALUE;
    described = {0, own->sm.smCount};
    *out = reinterpret_cast<CUdevResourceDesc>(&described);
    return begin();
}

CUresult context_create(CUgreenCtx *out, CUdevResourceDesc description, CUdevice device,
                        unsigned flags)
{
    CUresult result = begin();
    if (flags != CU_GREEN_CTX_DEFAULT_STREAM)
        return CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *out = reinterpret_cast<CUgreenCtx>(
            part_new(device, reinterpret_cast<part *>(description)->count));
    return result;
}

CUresult context_destroy(CUgreenCtx context)
{
    simt::live_count_add(-1);
    delete reinterpret_cast<part *>(context);
    return begin();
}

CUresult stream_create(CUstream *out, CUgreenCtx, unsigned flags, int priority)
{
    CUresult result = begin();
    if (flags != CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    return cudaStreamCreateWithPriority(out, cudaStreamNonBlocking, priority) == cudaSuccess
               ? CUDA_SUCCESS
               : CUDA_ERROR_UNKNOWN;
}

struct entry {
    const char *name;
    void *function;
};
const entry entries[] = {
    {"cuDeviceGet", reinterpret_cast<void *>(device_get)},
    {"cuDeviceGetDevResource", reinterpret_cast<void *>(resource_get)},
    {"cuDevSmResourceSplitByCount", reinterpret_cast<void *>(split)},
    {"cuDevResourceGenerateDesc", reinterpret_cast<void *>(describe)},
    {"cuGreenCtxCreate", reinterpret_cast<void *>(context_create)},
    {"cuGreenCtxDestroy", reinterpret_cast<void *>(context_destroy)},
    {"cuGreenCtxStreamCreate", reinterpret_cast<void *>(stream_create)},
};

} // namespace

void simt_green_set(enum simt_green kind)
{
    green = kind;
}

void simt_green_fail_at(uint64_t n)
{
    fail_in = n;
}

bool simt_green_fail_is_ahead(void)
{
    return fail_in > 0;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult *found)
{
    *out = nullptr;
    *found = cudaDriverEntryPointSymbolNotFound;
    for (const entry &each : entries) {
        if (green != SIMT_GREEN_NONE && std::strcmp(name, each.name) == 0) {
            *out = each.function;
            *found = cudaDriverEntryPointSuccess;
        }
    }
    return cudaSuccess;
}
