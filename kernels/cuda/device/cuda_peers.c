/* Copies and sums over the memory of several GPUs, or of several ranks on one. A copy may read any
 * GPU's: the driver takes the way that there is between the two. A kernel reads its own GPU's
 * alone, as others' need not be in its reach. */
#include "kernels/cuda/device/cuda_peers.h"

#include "kernels/cuda/device/cuda_error.h"
#include "kernels/cuda/device/cuda_reach.h"
#include "kernels/cuda/device/cuda_stream.h"

_Static_assert(CUDA_SUM_MAX >= PEERS_MAX, "a kernel sums all peers");

/* Of each peer's values on another GPU, brought at a time: large enough that a copy has the link's
 * whole rate, and 63 MiB for 64 ranks. */
#define STAGE_VALUES ((int64_t)1 << 18)

static enum status copy(struct stream *stream, void *out, const void *in, int64_t bytes,
                        struct error *err)
{
    const struct cuda_stream *cuda = cuda_stream_of(stream);
    CUDA_TRY(cuda->common->ordinal,
             cudaMemcpyAsync(out, in, (size_t)bytes, cudaMemcpyDefault, cuda->launch.stream), err);
    return STATUS_OK;
}

static int ordinal(const struct device *device)
{
    return cuda_stream_of(device->stream)->common->ordinal;
}

static const char *bus_id(const struct device *device)
{
    return cuda_stream_of(device->stream)->common->bus_id;
}

static bool is_far(const struct cuda_stream *cuda, const struct device *device)
{
    return ordinal(device) != cuda->common->ordinal;
}

/* The values first .. first + count - 1: those of other GPUs are brought to scratch before. */
static enum status piece_sum(struct stream *stream, const struct peer_sum *op, int64_t first,
                             int64_t count, struct error *err)
{
    const struct cuda_stream *cuda = cuda_stream_of(stream);
    struct cuda_sum sum = {.out = op->out + first, .in_count = op->in_count, .count = count};
    float *stage = cuda->launch.scratch;
    for (int k = 0; k < op->in_count; k++) {
        sum.in[k] = op->in[k] + first;
        if (!is_far(cuda, op->devices[k]))
            continue;
        TRY(copy(stream, stage, sum.in[k], count * (int64_t)sizeof *stage, err));
        sum.in[k] = stage;
        stage += STAGE_VALUES;
    }
    CUDA_TRY(cuda->common->ordinal, cuda_sum(&cuda->launch, &sum), err);
    return STATUS_OK;
}

static enum status sum(struct stream *stream, const struct peer_sum *op, struct error *err)
{
    struct cuda_stream *cuda = cuda_stream_of(stream);
    int far_count = 0;
    for (int k = 0; k < op->in_count; k++)
        far_count += is_far(cuda, op->devices[k]);
    TRY(cuda_stream_scratch(cuda, (size_t)(far_count * STAGE_VALUES) * sizeof *op->out, err));
    int64_t step = far_count > 0 ? STAGE_VALUES : op->count;
    for (int64_t first = 0; first < op->count; first += step) {
        int64_t left = op->count - first;
        TRY(piece_sum(stream, op, first, left < step ? left : step, err));
    }
    return STATUS_OK;
}

/* Free, and seen so by all streams. */
static enum status link_make(uint64_t **out, const struct cuda_stream *cuda, struct error *err)
{
    uint64_t *until;
    CUDA_TRY(cuda->common->ordinal, cudaMalloc((void **)&until, sizeof *until), err);
    cudaError_t error = cudaMemsetAsync(until, 0, sizeof *until, cuda->launch.stream);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(cuda->launch.stream);
    if (error != cudaSuccess) {
        (void)cudaFree(until);
        return cuda_error_set(err, cuda->common->ordinal, "cudaMemsetAsync", error);
    }
    *out = until;
    return STATUS_OK;
}

static enum status link_get(uint64_t **out, const struct cuda_stream *cuda, struct error *err)
{
    struct cuda_link *link = cuda->common->link;
    pthread_mutex_lock(&link->lock);
    enum status status = link->until == NULL ? link_make(&link->until, cuda, err) : STATUS_OK;
    *out = link->until;
    pthread_mutex_unlock(&link->lock);
    return status;
}

static uint64_t nanoseconds_of(double seconds)
{
    return (uint64_t)(seconds * 1e9);
}

static enum status pace_begin(struct stream *stream, double seconds, struct error *err)
{
    struct cuda_stream *cuda = cuda_stream_of(stream);
    uint64_t *link;
    TRY(link_get(&link, cuda, err));
    if (cuda->pace == NULL)
        CUDA_TRY(cuda->common->ordinal, cudaMalloc((void **)&cuda->pace, sizeof *cuda->pace), err);
    CUDA_TRY(cuda->common->ordinal,
             cuda_pace_begin(&cuda->launch, cuda->pace, link, nanoseconds_of(seconds)), err);
    return STATUS_OK;
}

static enum status pace_end(struct stream *stream, double delay_seconds, struct error *err)
{
    const struct cuda_stream *cuda = cuda_stream_of(stream);
    CUDA_TRY(cuda->common->ordinal,
             cuda_pace_end(&cuda->launch, cuda->pace, nanoseconds_of(delay_seconds)), err);
    return STATUS_OK;
}

static enum status scratch(struct stream *stream, size_t bytes, void **out, struct error *err)
{
    struct cuda_stream *cuda = cuda_stream_of(stream);
    TRY(cuda_stream_scratch(cuda, bytes, err));
    *out = cuda->launch.scratch;
    return STATUS_OK;
}

static void *native(struct stream *stream)
{
    return cuda_stream_of(stream)->launch.stream;
}

static enum status use(const struct device *device, struct error *err)
{
    CUDA_TRY(ordinal(device), cudaSetDevice(ordinal(device)), err);
    return STATUS_OK;
}

/* With too many others, or already. */
static bool is_no_failure(cudaError_t error)
{
    return error == cudaErrorPeerAccessAlreadyEnabled || error == cudaErrorTooManyPeers;
}

static enum status reach(bool *can, const struct device *device, const struct device *other,
                         double patience_seconds, struct error *err)
{
    int says = 0;
    TRY(use(device, err));
    CUDA_TRY(ordinal(device), cudaDeviceCanAccessPeer(&says, ordinal(device), ordinal(other)), err);
    *can = says != 0;
    cudaError_t error = *can ? cudaDeviceEnablePeerAccess(ordinal(other), 0) : cudaSuccess;
    if (error != cudaSuccess && !is_no_failure(error))
        return cuda_error_set(err, ordinal(device), "cudaDeviceEnablePeerAccess", error);
    (void)cudaGetLastError();
    return *can ? cuda_reach_try(ordinal(device), ordinal(other), patience_seconds, err)
                : STATUS_OK;
}

const struct peer_ops cuda_peers = {
    .bus_id = bus_id,
    .call = command_stream_call_ahead,
    .record = cuda_event_record,
    .wait = cuda_event_follow,
    .copy = copy,
    .sum = sum,
    .pace_begin = pace_begin,
    .pace_end = pace_end,
    .settle = cuda_stream_settle,
    .scratch = scratch,
    .on_settled = cuda_on_settled,
    .reached = cuda_event_reached,
    .ordinal = ordinal,
    .native = native,
    .use = use,
    .reach = reach,
    .give_up = cuda_give_up,
};
