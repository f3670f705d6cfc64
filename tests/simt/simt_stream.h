/* Streams and events of the emulated GPUs, for simt_runtime.cpp and simt_graph.cpp; all under the
 * lock. */
#ifndef PHASOR_TESTS_SIMT_SIMT_STREAM_H
#define PHASOR_TESTS_SIMT_SIMT_STREAM_H

#include "simt_control.h"
#include "simt_memory.h"

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

/* Recorded and reached are counted, as records of one event may be on several streams. */
struct CUevent_st {
    int device;
    uint64_t recorded, reached;
    std::chrono::steady_clock::time_point when;
    bool has_time; /* it was not made without */
};

namespace simt {

/* Work, or where `event` is given the wait for its record of that number. */
struct item {
    std::function<void()> work;
    CUevent_st *event;
    uint64_t number;
    bool always;                           /* also on a device that is broken */
    std::function<bool()> ready = nullptr; /* of what is held: simt_hold */
};

/* What each launch of a graph puts on its stream, in this order. */
using nodes = std::vector<std::function<item()>>;

/* What a stream captures instead of having it run. */
struct capture {
    std::thread::id by;
    bool is_invalid; /* something was asked of it that a capture forbids */
    simt::nodes nodes;
};

} // namespace simt

struct CUstream_st {
    int device;
    std::deque<simt::item> queue;
    simt::capture *capture;     /* nullptr: none */
    const void *part = nullptr; /* of the GPU's multiprocessors: simt_partition.cpp; all */
};

namespace simt {

extern std::mutex lock; /* of all here, of the engine, and of the GPUs' memory */

/* Who has the lock may let the GPUs work; behind it their memory is closed. */
struct locked {
    std::lock_guard<std::mutex> guard{lock};
    ~locked()
    {
        device_memory_close();
    }
};

/* What a call has to say before it does anything. */
cudaError_t call_begin();

/* The error is the thread's last, too. */
cudaError_t answer(cudaError_t error);

void enqueue(CUstream_st *stream, item next);

/* How many streams are in that part of a GPU. */
int streams_of(const void *part);

/* Whether green contexts are of that kind: simt_green_set. */
bool parts_are(simt_green kind);

/* Of what simt_live_count says. */
void live_count_add(int more);

/* Whether something can be put on the stream: not where its capture is invalid. */
cudaError_t capture_check(const CUstream_st *stream);

/* What waits, asks or allocates is forbidden to a thread that captures, and makes its captures
 * invalid. */
cudaError_t capture_forbids();

/* The capture of a stream that is destroyed. */
void capture_drop(CUstream_st *stream);

} // namespace simt

#endif
