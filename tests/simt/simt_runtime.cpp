/* A stand-in for the CUDA runtime: those calls that kernels/cuda makes. A call that is missing does
 * not link. */
#include "simt_control.h"
#include "simt_engine.h"
#include "simt_memory.h"
#include "simt_stream.h"

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <set>
#include <utility>
#include <vector>

using simt::answer;
using simt::call_begin;
using simt::capture_check;
using simt::capture_forbids;
using simt::enqueue;
using simt::item;
using simt::lock;
using simt::locked;

std::mutex simt::lock;

namespace {

/* The kinds of GPU that are meant; the first at the start. */
struct gpu_kind {
    int capability, shared_optin_bytes;
};
const gpu_kind gpu_kinds[] = {
    {75, 64 << 10}, {70, 96 << 10}, {80, 163 << 10},
    {86, 99 << 10}, {89, 99 << 10}, {90, 227 << 10},
};

#define SHARED_BYTES      (48 << 10)
#define BLOCK_THREADS_MAX 1024
#define GLOBAL_BYTES      ((size_t)16 << 30) /* unless a test says another */

std::condition_variable moved; /* what is held may be ready */

std::vector<CUstream_st *> streams;
std::map<const void *, size_t> shared_allowed;
uint64_t stream_seed, random_state = simt::random_start(0);
int device_count = 1, multiprocessors = 4;
size_t global_bytes = GLOBAL_BYTES;
gpu_kind gpu = gpu_kinds[0];
bool free_waits = true;
void (*on_pinned)(int device);
struct piece {
    size_t bytes;
    int device; /* NO_DEVICE: of the host */
    bool is_registered = false;
};
#define NO_DEVICE (-1)
std::map<const void *, piece> allocated;

/* What was freed while queues may name it, until they are empty: memory, or an event. */
struct buried {
    void *memory;
    piece of_memory;
    CUevent_st *event;
};
std::vector<buried> graves;
uint64_t kernel_count, wait_count, free_count, live_count, peer_bytes, direct_bytes, pageable_bytes;
bool peers_reach = true;
simt_peer_copies peer_copies = SIMT_PEER_SOUND;
std::set<std::pair<int, int>> peers_reached; /* the second by the first */
uint64_t fail_in, fail_kernel_in;            /* calls, kernels until then; 0: never */
bool clock_stands;
uint64_t clock_moved; /* what it is ahead of the host's, or where it stands: modulo 2^64 */
cudaError_t failure, kernel_failure, broken;
thread_local cudaError_t last_error;
thread_local int current_device;

} // namespace

cudaError_t simt::answer(cudaError_t error)
{
    if (error != cudaSuccess)
        last_error = error;
    return error;
}

cudaError_t simt::call_begin()
{
    if (device_count == 0)
        return cudaErrorNoDevice;
    if (fail_in > 0 && --fail_in == 0)
        return failure;
    return broken;
}

int simt::streams_of(const void *part)
{
    locked guard;
    return (int)std::count_if(streams.begin(), streams.end(),
                              [=](const CUstream_st *stream) { return stream->part == part; });
}

void simt::live_count_add(int more)
{
    live_count += (uint64_t)more;
}

namespace {

/* ---- Streams --------------------------------------------------------------------------------- */

bool is_ready(const CUstream_st *stream)
{
    if (stream->queue.empty())
        return false;
    const item &next = stream->queue.front();
    if (next.ready && broken == cudaSuccess)
        return next.ready();
    return next.event == nullptr || next.event->reached >= next.number;
}

/* Whether a stream waits for what another thread is yet to say. */
bool is_anything_held()
{
    return std::any_of(streams.begin(), streams.end(), [](const CUstream_st *stream) {
        return !stream->queue.empty() && stream->queue.front().ready != nullptr;
    });
}

/* Runs what is next on one of the streams that can go on; false: none can. */
bool step()
{
    std::vector<CUstream_st *> ready;
    std::copy_if(streams.begin(), streams.end(), std::back_inserter(ready), is_ready);
    if (ready.empty())
        return false;
    CUstream_st *stream =
        ready[stream_seed == 0 ? 0 : simt::random_next(random_state) % ready.size()];
    item next = std::move(stream->queue.front());
    stream->queue.pop_front();
    bool touches_memory = next.work && !next.always; /* the others are of events */
    if (touches_memory)
        simt::device_memory_open();
    for (const buried &of : graves) {
        if (touches_memory && of.memory != nullptr)
            std::memset(of.memory, 0xFF, of.of_memory.bytes);
    }
    if (next.work && (next.always || broken == cudaSuccess))
        next.work();
    moved.notify_all();
    return true;
}

} // namespace

void simt::enqueue(CUstream_st *stream, item next)
{
    if (stream->capture != nullptr) {
        stream->capture->nodes.push_back([=] { return next; });
        return;
    }
    if (std::find(streams.begin(), streams.end(), stream) == streams.end()) {
        std::fprintf(stderr, "simt: no such stream (the default stream is not used)\n");
        std::abort();
    }
    stream->queue.push_back(std::move(next));
    moved.notify_all();
    if (stream_seed == 0)
        return;
    for (uint64_t n = simt::random_next(random_state) % 3; n > 0 && step(); n--)
        ;
}

namespace {

/* Runs streams until `done`; what was put on them can always be run, but for what is held. */
template <class Done> cudaError_t run_until(Done done)
{
    while (!done()) {
        if (step())
            continue;
        if (!is_anything_held()) {
            std::fprintf(stderr, "simt: streams wait for each other for ever\n");
            std::abort();
        }
        simt::device_memory_close(); /* for others, who may have the lock meanwhile */
        std::unique_lock<std::mutex> within(lock, std::adopt_lock);
        moved.wait(within);
        within.release();
    }
    return broken;
}

bool all_are_empty()
{
    return std::all_of(streams.begin(), streams.end(),
                       [](const CUstream_st *stream) { return stream->queue.empty(); });
}

/* ---- Memory ---------------------------------------------------------------------------------- */

void *host_memory_get(size_t bytes)
{
    void *memory;
    if (bytes > (size_t)1 << 40 || posix_memalign(&memory, 256, std::max<size_t>(bytes, 1)) != 0)
        return nullptr;
    return std::memset(memory, 0xFF, bytes);
}

size_t bytes_left(int device)
{
    size_t left = global_bytes;
    for (const auto &[memory, of] : allocated)
        left -= of.device == device ? std::min(left, of.bytes) : 0;
    return left;
}

cudaError_t memory_get(void **out, size_t bytes, int device)
{
    locked guard;
    cudaError_t error = call_begin();
    if (error == cudaSuccess)
        error = capture_forbids();
    if (error != cudaSuccess)
        return answer(error);
    if (device != NO_DEVICE && bytes > bytes_left(device))
        return answer(cudaErrorMemoryAllocation);
    void *memory = device == NO_DEVICE ? host_memory_get(bytes) : simt::device_memory_get(bytes);
    if (memory == nullptr)
        return answer(cudaErrorMemoryAllocation);
    allocated[memory] = {bytes, device, false};
    live_count++;
    if (device == NO_DEVICE && on_pinned != nullptr)
        on_pinned(current_device);
    *out = memory;
    return cudaSuccess;
}

/* That a byte is in; nullptr: nobody has told of it. */
const piece *piece_of(const void *memory)
{
    auto next = allocated.upper_bound(memory);
    if (next == allocated.begin())
        return nullptr;
    const auto &[begin, of] = *std::prev(next);
    return memory < static_cast<const char *>(begin) + of.bytes ? &of : nullptr;
}

int device_of(const void *memory)
{
    const piece *of = piece_of(memory);
    return of == nullptr ? NO_DEVICE : of->device;
}

/* Frees it when the GPU has nothing to do. */
void bury(const buried &of)
{
    if (free_waits)
        run_until(all_are_empty);
    graves.push_back(of);
    if (!all_are_empty())
        return;
    for (const buried &grave : graves) {
        if (grave.memory != nullptr && grave.of_memory.device != NO_DEVICE)
            simt::device_memory_free(grave.memory);
        else
            std::free(grave.memory);
        delete grave.event;
    }
    graves.clear();
}

/* Of either kind. */
cudaError_t memory_free(void *memory)
{
    locked guard;
    if (memory == nullptr)
        return cudaSuccess;
    if (allocated[memory].is_registered) {
        std::fprintf(stderr, "simt: %p is registered, and freed\n", memory);
        std::abort();
    }
    cudaError_t error = call_begin();
    if (capture_forbids() != cudaSuccess)
        return answer(cudaErrorStreamCaptureUnsupported);
    free_count++;
    bury({memory, allocated[memory], nullptr});
    allocated.erase(memory);
    live_count--;
    return answer(error);
}

} // namespace

/* ---- Launches -------------------------------------------------------------------------------- */

namespace simt {

static cudaError_t launch_check(const void *kernel, dim3 grid, dim3 block, size_t shared_bytes)
{
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    size_t allowed = std::max(shared_allowed[kernel], (size_t)SHARED_BYTES);
    if (threads == 0 || threads > BLOCK_THREADS_MAX || block.z > 64 || grid.x == 0 ||
        grid.x > INT32_MAX || grid.y == 0 || grid.y > UINT16_MAX || grid.z == 0 ||
        grid.z > UINT16_MAX)
        return cudaErrorInvalidConfiguration;
    return shared_bytes > allowed ? cudaErrorInvalidValue : cudaSuccess;
}

void launch_grid(const void *kernel, dim3 grid, dim3 block, size_t shared_bytes,
                 cudaStream_t stream, std::function<void()> thread)
{
    locked guard;
    cudaError_t error = call_begin();
    if (error == cudaSuccess && stream->device != current_device)
        error = cudaErrorInvalidResourceHandle;
    if (error == cudaSuccess)
        error = capture_check(stream);
    if (error == cudaSuccess)
        error = launch_check(kernel, grid, block, shared_bytes);
    if (answer(error) != cudaSuccess)
        return;
    auto work = [=] {
        kernel_count++;
        run_grid(grid, block, shared_bytes, thread);
        if (fail_kernel_in > 0 && --fail_kernel_in == 0)
            broken = kernel_failure;
    };
    enqueue(stream, {work, nullptr, 0, false});
}

} // namespace simt

/* ---- The runtime's calls --------------------------------------------------------------------- */

#define GUARDED()                                                                                  \
    locked guard;                                                                                  \
    cudaError_t begun = call_begin();                                                              \
    if (begun != cudaSuccess)                                                                      \
        return answer(begun);

/* Of one that puts something on a stream, and of one that waits or asks. */
#define GUARDED_ON(stream)                                                                         \
    GUARDED()                                                                                      \
    if ((begun = capture_check(stream)) != cudaSuccess)                                            \
        return answer(begun);
#define GUARDED_OUTSIDE()                                                                          \
    GUARDED()                                                                                      \
    if ((begun = capture_forbids()) != cudaSuccess)                                                \
        return answer(begun);

cudaError_t cudaGetDeviceCount(int *count)
{
    GUARDED()
    *count = device_count;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    GUARDED()
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    GUARDED()
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    GUARDED()
    if (device < 0 || device >= device_count)
        return answer(cudaErrorInvalidDevice);
    current_device = device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int device)
{
    GUARDED()
    if (device < 0 || device >= device_count)
        return answer(cudaErrorInvalidDevice);
    *out = {};
    std::strcpy(out->name, "emulated GPU");
    out->major = gpu.capability / 10;
    out->minor = gpu.capability % 10;
    out->multiProcessorCount = multiprocessors;
    out->totalGlobalMem = global_bytes;
    out->sharedMemPerBlockOptin = (size_t)gpu.shared_optin_bytes;
    out->pciBusID = SIMT_FIRST_BUS + device;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
    GUARDED()
    *all = global_bytes;
    *left = bytes_left(current_device);
    return cudaSuccess;
}

/* It is the process's: models and ranks that share a GPU would take from each other, between the
 * call and the launch, what they allow. A driver lets them; here a kernel is never allowed less. */
cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value)
{
    GUARDED()
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        value > gpu.shared_optin_bytes || (size_t)value < shared_allowed[kernel])
        return answer(cudaErrorInvalidValue);
    shared_allowed[kernel] = (size_t)value;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    return memory_get(out, bytes, current_device);
}

cudaError_t cudaMallocHost(void **out, size_t bytes)
{
    return memory_get(out, bytes, NO_DEVICE);
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags)
{
    (void)flags;
    GUARDED_OUTSIDE()
    if (bytes == 0 || piece_of(memory) != nullptr)
        return answer(bytes == 0 ? cudaErrorInvalidValue : cudaErrorHostMemoryAlreadyRegistered);
    allocated[memory] = {bytes, NO_DEVICE, true};
    live_count++;
    return cudaSuccess;
}

/* What is queued may still name it. */
cudaError_t cudaHostUnregister(void *memory)
{
    locked guard;
    cudaError_t error = call_begin();
    if (capture_forbids() != cudaSuccess)
        return answer(cudaErrorStreamCaptureUnsupported);
    auto found = allocated.find(memory);
    if (found == allocated.end() || !found->second.is_registered) {
        std::fprintf(stderr, "simt: %p was not registered\n", memory);
        std::abort();
    }
    run_until(all_are_empty);
    allocated.erase(found);
    live_count--;
    return answer(error);
}

cudaError_t cudaFree(void *memory)
{
    return memory_free(memory);
}

cudaError_t cudaFreeHost(void *memory)
{
    return memory_free(memory);
}

cudaError_t cudaMemcpyAsync(void *out, const void *in, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    (void)kind;
    GUARDED_ON(stream)
    int from = device_of(in), to = device_of(out);
    pageable_bytes += piece_of(in) == nullptr || piece_of(out) == nullptr ? bytes : 0;
    bool between = from != to && from != NO_DEVICE && to != NO_DEVICE;
    int other = from == stream->device ? to : from;
    bool is_direct = between && peers_reached.count({stream->device, other}) != 0;
    peer_bytes += between ? bytes : 0;
    direct_bytes += is_direct ? bytes : 0;
    auto copy = [=] {
        std::memcpy(out, in, bytes);
        if (is_direct && peer_copies == SIMT_PEER_WRONG && bytes > 0)
            static_cast<char *>(out)[bytes / 2] ^= 1;
    };
    if (is_direct && peer_copies == SIMT_PEER_HANGING)
        enqueue(stream, {copy, nullptr, 0, false, [] { return peer_copies != SIMT_PEER_HANGING; }});
    else
        enqueue(stream, {copy, nullptr, 0, false});
    return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void *out, size_t out_stride, const void *in, size_t in_stride,
                              size_t bytes, size_t rows, cudaMemcpyKind kind, cudaStream_t stream)
{
    (void)kind;
    GUARDED_ON(stream)
    if (bytes > out_stride || bytes > in_stride)
        return answer(cudaErrorInvalidPitchValue);
    auto copy = [=] {
        for (size_t row = 0; row < rows; row++)
            std::memcpy(static_cast<char *>(out) + row * out_stride,
                        static_cast<const char *>(in) + row * in_stride, bytes);
    };
    enqueue(stream, {copy, nullptr, 0, false});
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *out, int device, int peer)
{
    GUARDED()
    *out = peers_reach && device != peer;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    GUARDED()
    if (flags != 0 || !peers_reach || peer == current_device)
        return answer(cudaErrorInvalidValue);
    bool is_new = peers_reached.insert({current_device, peer}).second;
    return answer(is_new ? cudaSuccess : cudaErrorPeerAccessAlreadyEnabled);
}

cudaError_t cudaMemsetAsync(void *out, int byte, size_t bytes, cudaStream_t stream)
{
    GUARDED_ON(stream)
    enqueue(stream, {[=] { std::memset(out, byte, bytes); }, nullptr, 0, false});
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    GUARDED()
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
    GUARDED()
    if (flags != cudaStreamNonBlocking || priority > 0 || priority < -5)
        return answer(cudaErrorInvalidValue);
    *out = new CUstream_st{current_device, {}, nullptr};
    streams.push_back(*out);
    live_count++;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    GUARDED_OUTSIDE()
    if (stream->capture != nullptr) {
        stream->capture->is_invalid = true;
        return answer(cudaErrorStreamCaptureUnsupported);
    }
    wait_count++;
    return answer(run_until([=] { return stream->queue.empty(); }));
}

/* What is on it runs before it goes; that of a broken device is dropped. */
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    locked guard;
    cudaError_t error = call_begin();
    simt::capture_drop(stream);
    run_until([=] { return stream->queue.empty(); });
    streams.erase(std::find(streams.begin(), streams.end(), stream));
    delete stream;
    live_count--;
    return answer(error);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    GUARDED()
    *out = new CUevent_st{current_device, 0, 0, {}, (flags & cudaEventDisableTiming) == 0};
    live_count++;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    locked guard;
    cudaError_t error = call_begin();
    bury({nullptr, {0, NO_DEVICE}, event});
    live_count--;
    return answer(error);
}

/* The next record of an event, to be put on a stream. */
static item record_make(CUevent_st *event)
{
    uint64_t number = ++event->recorded;
    auto work = [=] {
        event->reached = std::max(event->reached, number);
        event->when = std::chrono::steady_clock::now();
    };
    return {work, nullptr, 0, true};
}

/* Of a capture: a record that each launch makes anew. Without the flag it would be a mark within
 * the graph, for streams that join the capture: nobody here has that. */
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags)
{
    GUARDED_ON(stream)
    if (event->device != stream->device)
        return answer(cudaErrorInvalidResourceHandle);
    if (stream->part != nullptr && simt::parts_are(SIMT_GREEN_WITHOUT_RECORDS))
        return answer(cudaErrorNotSupported);
    if (stream->capture == nullptr && flags == cudaEventRecordDefault) {
        enqueue(stream, record_make(event));
        return cudaSuccess;
    }
    if (stream->capture == nullptr)
        return answer(cudaErrorIllegalState);
    if (flags != cudaEventRecordExternal) {
        stream->capture->is_invalid = true;
        return answer(cudaErrorStreamCaptureUnsupported);
    }
    stream->capture->nodes.push_back([=] { return record_make(event); });
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    (void)flags;
    GUARDED_ON(stream)
    if (stream->capture != nullptr) { /* the record is outside of the capture */
        stream->capture->is_invalid = true;
        return answer(cudaErrorStreamCaptureIsolation);
    }
    if (stream->part != nullptr && simt::parts_are(SIMT_GREEN_WITHOUT_WAITS))
        return answer(cudaErrorNotSupported);
    enqueue(stream, {nullptr, event, event->recorded, false});
    return cudaSuccess;
}

/* A driver takes it from any thread, and makes a context on the GPU of a thread that has chosen
 * none: here the thread is to have chosen the event's. */
cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    GUARDED_OUTSIDE()
    if (event->device != current_device)
        return answer(cudaErrorInvalidResourceHandle);
    uint64_t number = event->recorded;
    return answer(run_until([=] { return event->reached >= number; }));
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    GUARDED_OUTSIDE()
    return answer(event->reached < event->recorded ? cudaErrorNotReady : cudaSuccess);
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
    GUARDED()
    if (from->recorded == 0 || to->recorded == 0 || !from->has_time || !to->has_time)
        return answer(cudaErrorInvalidResourceHandle);
    if (from->reached < from->recorded || to->reached < to->recorded)
        return answer(cudaErrorNotReady);
    *milliseconds = std::chrono::duration<float, std::milli>(to->when - from->when).count();
    return cudaSuccess;
}

cudaError_t cudaGetLastError()
{
    return std::exchange(last_error, cudaSuccess);
}

const char *cudaGetErrorName(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation"
           : error == cudaErrorNoDevice       ? "cudaErrorNoDevice"
           : error == cudaErrorIllegalAddress ? "cudaErrorIllegalAddress"
                                              : "an emulated error";
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation ? "out of memory"
           : error == cudaErrorNoDevice       ? "no CUDA-capable device is detected"
           : error == cudaErrorIllegalAddress ? "an illegal memory access was encountered"
                                              : "emulated";
}

/* ---- Time ------------------------------------------------------------------------------------ */

static uint64_t host_nanoseconds()
{
    auto since = std::chrono::steady_clock::now().time_since_epoch();
    return (uint64_t)std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

uint64_t simt::nanoseconds()
{
    return clock_moved + (clock_stands ? 0 : host_nanoseconds());
}

void simt::nap(uint64_t nanoseconds)
{
    if (clock_stands)
        clock_moved += nanoseconds;
}

void simt_clock_by_naps(void)
{
    locked guard;
    clock_moved = simt::nanoseconds();
    clock_stands = true;
}

void simt_clock_move(int64_t nanoseconds)
{
    locked guard;
    clock_moved += (uint64_t)nanoseconds;
}

uint64_t simt_clock_nanoseconds(void)
{
    locked guard;
    return simt::nanoseconds();
}

/* ---- For tests ------------------------------------------------------------------------------- */

void simt_stream_seed_set(uint64_t seed)
{
    locked guard;
    stream_seed = seed;
    random_state = simt::random_start(seed);
}

uint64_t simt_pageable_bytes(void)
{
    locked guard;
    return pageable_bytes;
}

void simt_lock(void)
{
    lock.lock();
}

void simt_unlock(void)
{
    moved.notify_all();
    simt::device_memory_close();
    lock.unlock();
}

void simt_hold(cudaStream_t stream, bool (*ready)(void *context), void (*work)(void *context),
               void *context)
{
    enqueue(stream, {[=] { work(context); }, nullptr, 0, false, [=] { return ready(context); }});
}

bool simt_step(void)
{
    return step();
}

bool simt_is_broken(void)
{
    return broken != cudaSuccess;
}

void simt_peer_bytes_add(uint64_t bytes)
{
    peer_bytes += bytes;
}

int simt_stream_device(cudaStream_t stream)
{
    return stream->device;
}

int simt_current_device(void)
{
    return current_device;
}

void simt_fail_at(uint64_t n, cudaError_t error)
{
    locked guard;
    fail_in = n;
    failure = error;
}

bool simt_fail_is_ahead(void)
{
    locked guard;
    return fail_in > 0;
}

bool simt_fail_kernel_is_ahead(void)
{
    locked guard;
    return fail_kernel_in > 0;
}

void simt_fail_kernel_at(uint64_t n, cudaError_t error)
{
    locked guard;
    fail_kernel_in = n;
    kernel_failure = error;
    if (n == 0)
        broken = cudaSuccess;
}

void simt_on_pinned(void (*look)(int device))
{
    locked guard;
    on_pinned = look;
}

void simt_device_count_set(int count)
{
    locked guard;
    device_count = count;
}

void simt_multiprocessors_set(int count)
{
    locked guard;
    multiprocessors = count;
}

int simt_multiprocessors(void)
{
    locked guard;
    return multiprocessors;
}

void simt_global_bytes_set(size_t bytes)
{
    locked guard;
    global_bytes = bytes;
}

bool simt_capability_set(int capability)
{
    locked guard;
    for (const gpu_kind &kind : gpu_kinds) {
        if (kind.capability == capability) {
            gpu = kind;
            shared_allowed.clear();
            return true;
        }
    }
    return false;
}

void simt_free_waits_set(bool waits)
{
    locked guard;
    free_waits = waits;
}

uint64_t simt_wait_count()
{
    locked guard;
    return wait_count;
}

uint64_t simt_free_count()
{
    locked guard;
    return free_count;
}

uint64_t simt_kernel_count()
{
    locked guard;
    return kernel_count;
}

uint64_t simt_peer_bytes()
{
    locked guard;
    return peer_bytes;
}

uint64_t simt_direct_bytes()
{
    locked guard;
    return direct_bytes;
}

void simt_close_every(unsigned n)
{
    locked guard;
    simt::device_memory_close_every(n);
}

void simt_peer_access_set(bool can)
{
    locked guard;
    peers_reach = can;
}

void simt_peer_copies_set(enum simt_peer_copies copies)
{
    locked guard;
    peer_copies = copies;
    moved.notify_all();
}

uint64_t simt_live_count()
{
    locked guard;
    return live_count;
}
