/* Graphs of the stand-in for the CUDA runtime: what a stream captures between two calls, put on a
 * stream by each launch. Captures are of one stream, in the mode that binds the thread alone;
 * graphs are not updated, joined or made by hand. */
#include "simt_control.h"
#include "simt_stream.h"

#include <algorithm>
#include <vector>

struct CUgraph_st {
    int device;
    simt::nodes nodes;
};

struct CUgraphExec_st {
    int device;
    simt::nodes nodes;
};

namespace {

thread_local std::vector<CUstream_st *> capturing; /* of the thread */
uint64_t instance_count, launch_count;

} // namespace

cudaError_t simt::capture_check(const CUstream_st *stream)
{
    return stream->capture != nullptr && stream->capture->is_invalid
               ? cudaErrorStreamCaptureInvalidated
               : cudaSuccess;
}

cudaError_t simt::capture_forbids()
{
    for (CUstream_st *stream : capturing)
        stream->capture->is_invalid = true;
    return capturing.empty() ? cudaSuccess : cudaErrorStreamCaptureUnsupported;
}

void simt::capture_drop(CUstream_st *stream)
{
    capturing.erase(std::remove(capturing.begin(), capturing.end(), stream), capturing.end());
    delete stream->capture;
    stream->capture = nullptr;
}

using simt::answer;

#define GUARDED()                                                                                  \
    simt::locked guard;                                                                            \
    cudaError_t begun = simt::call_begin();                                                        \
    if (begun != cudaSuccess)                                                                      \
        return answer(begun);

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode)
{
    GUARDED()
    if (mode != cudaStreamCaptureModeThreadLocal)
        return answer(cudaErrorInvalidValue); /* no other is emulated */
    if (stream->capture != nullptr)
        return answer(cudaErrorIllegalState);
    stream->capture = new simt::capture{std::this_thread::get_id(), false, {}};
    capturing.push_back(stream);
    return cudaSuccess;
}

/* The capture is over whatever is answered, but to another thread. */
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out)
{
    simt::locked guard;
    cudaError_t error = simt::call_begin();
    if (stream->capture == nullptr)
        return answer(error != cudaSuccess ? error : cudaErrorIllegalState);
    if (stream->capture->by != std::this_thread::get_id())
        return answer(cudaErrorStreamCaptureWrongThread);
    if (error == cudaSuccess)
        error = simt::capture_check(stream);
    *out = error == cudaSuccess ? new CUgraph_st{stream->device, stream->capture->nodes} : nullptr;
    simt::live_count_add(error == cudaSuccess);
    simt::capture_drop(stream);
    return answer(error);
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t graph,
                                          unsigned long long flags)
{
    GUARDED()
    if (flags != 0)
        return answer(cudaErrorInvalidValue);
    *out = new CUgraphExec_st{graph->device, graph->nodes};
    simt::live_count_add(1);
    instance_count++;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream)
{
    GUARDED()
    if (graph->device != stream->device)
        return answer(cudaErrorInvalidResourceHandle);
    if (stream->capture != nullptr) { /* a graph within a graph: not emulated */
        stream->capture->is_invalid = true;
        return answer(cudaErrorStreamCaptureUnsupported);
    }
    for (const auto &node : graph->nodes)
        simt::enqueue(stream, node());
    launch_count++;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    simt::locked guard;
    cudaError_t error = simt::call_begin();
    delete graph;
    simt::live_count_add(-1);
    return answer(error);
}

/* What it has put on a stream stays there. */
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph)
{
    simt::locked guard;
    cudaError_t error = simt::call_begin();
    delete graph;
    simt::live_count_add(-1);
    return answer(error);
}

/* ---- For tests ------------------------------------------------------------------------------- */

uint64_t simt_graph_instances(void)
{
    simt::locked guard;
    return instance_count;
}

uint64_t simt_graph_launches(void)
{
    simt::locked guard;
    return launch_count;
}
