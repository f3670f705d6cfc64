/* What the emulated driver has of green contexts: parts of a GPU's multiprocessors, and streams in
 * them, which are as all others. */
#include "simt_control.h"
#include "simt_memory.h"
#include "simt_stream.h"

#include <cstring>
#include <cuda.h>

#if CUDART_VERSION >= 12050

namespace {

simt_green green = SIMT_GREEN_SOUND;
uint64_t fail_in; /* calls of the driver until then; 0: never */
unsigned uneven_above = ~0u;

/* A green context, or the description of one: multiprocessors first .. first + count - 1. */
struct part {
    unsigned first, count;
};

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

/* Parts of `least`, as many as are wanted or as there are, but one fewer where clusters are said
 * not to come out even. A resource's padding says where it begins. */
CUresult split(CUdevResource *out, unsigned *count, const CUdevResource *all, CUdevResource *,
               unsigned flags, unsigned least)
{
    if (flags != 0 || least == 0 || least > all->sm.smCount)
        return CUDA_ERROR_INVALID_VALUE;
    unsigned there = all->sm.smCount / least - (least > uneven_above);
    *count = there < *count ? there : *count;
    for (unsigned i = 0; i < *count; i++) {
        unsigned first = i * least;
        out[i] = *all;
        out[i].sm.smCount = least;
        std::memcpy(out[i]._internal_padding, &first, sizeof first);
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
    std::memcpy(&described.first, own->_internal_padding, sizeof described.first);
    *out = reinterpret_cast<CUdevResourceDesc>(&described);
    return begin();
}

CUresult context_create(CUgreenCtx *out, CUdevResourceDesc description, CUdevice, unsigned flags)
{
    CUresult result = begin();
    if (flags != CU_GREEN_CTX_DEFAULT_STREAM)
        return CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    simt::live_count_add(1);
    *out = reinterpret_cast<CUgreenCtx>(new part(*reinterpret_cast<part *>(description)));
    return CUDA_SUCCESS;
}

/* One that has streams is lost, and stays in the count of what is there. */
CUresult context_destroy(CUgreenCtx context)
{
    part *own = reinterpret_cast<part *>(context);
    if (simt::streams_of(own) == 0) {
        simt::live_count_add(-1);
        delete own;
    }
    return begin();
}

CUresult stream_create(CUstream *out, CUgreenCtx context, unsigned flags, int priority)
{
    CUresult result = begin();
    if (flags != CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    if (cudaStreamCreateWithPriority(out, cudaStreamNonBlocking, priority) != cudaSuccess)
        return CUDA_ERROR_UNKNOWN;
    (*out)->part = context;
    return CUDA_SUCCESS;
}

/* `since`: as cudaTypedefs.h has it. */
struct entry {
    const char *name;
    unsigned since;
    void *function;
};
const entry entries[] = {
    {"cuDeviceGet", 2000, reinterpret_cast<void *>(device_get)},
    {"cuDeviceGetDevResource", 12040, reinterpret_cast<void *>(resource_get)},
    {"cuDevSmResourceSplitByCount", 12040, reinterpret_cast<void *>(split)},
    {"cuDevResourceGenerateDesc", 12040, reinterpret_cast<void *>(describe)},
    {"cuGreenCtxCreate", 12040, reinterpret_cast<void *>(context_create)},
    {"cuGreenCtxDestroy", 12040, reinterpret_cast<void *>(context_destroy)},
    {"cuGreenCtxStreamCreate", 12050, reinterpret_cast<void *>(stream_create)},
};

} // namespace

bool simt::parts_are(simt_green kind)
{
    return green == kind;
}

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

void simt_green_uneven_above(unsigned count)
{
    uneven_above = count;
}

bool simt_stream_part(cudaStream_t stream, unsigned *first, unsigned *count)
{
    const part *own = static_cast<const part *>(stream->part);
    if (own == nullptr)
        return false;
    *first = own->first;
    *count = own->count;
    return true;
}

/* An entry that is newer than the version asked for is not given, nor one newer than the driver. */
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult *found)
{
    unsigned newest = green == SIMT_GREEN_NONE ? 2000 : green == SIMT_GREEN_12_4 ? 12040 : ~0u;
    *out = nullptr;
    *found = cudaDriverEntryPointSymbolNotFound;
    for (const entry &each : entries) {
        if (std::strcmp(name, each.name) != 0 || each.since > newest)
            continue;
        bool is_given = each.since <= version;
        *out = is_given ? each.function : nullptr;
        *found = is_given ? cudaDriverEntryPointSuccess : cudaDriverEntryPointVersionNotSufficent;
    }
    return cudaSuccess;
}

#else

bool simt::parts_are(simt_green)
{
    return false;
}
void simt_green_set(enum simt_green)
{
}
void simt_green_fail_at(uint64_t)
{
}
bool simt_green_fail_is_ahead(void)
{
    return true;
}
void simt_green_uneven_above(unsigned)
{
}
bool simt_stream_part(cudaStream_t, unsigned *, unsigned *)
{
    return false;
}

#endif
