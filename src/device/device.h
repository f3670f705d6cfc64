/* A device: memory of its own, and streams of operations that run in their order.
 *
 * No part above asks which device it is. A new operation lands with its CPU form and its cases in
 * the shared table of cases (tests/kernels/cases.h) first.
 */
#ifndef PHASOR_DEVICE_DEVICE_H
#define PHASOR_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "device/ops.h"

struct device;
struct stream;
struct event;
struct peer_ops;
struct trace;

/* What runs on a low stream gives way to everything else: on the CPU a thread that the system runs
 * only where a core would be idle. */
enum stream_priority { STREAM_NORMAL, STREAM_LOW };

struct device_memory {
    uint64_t bytes; /* held now, as they were asked for */
    uint64_t peak_bytes;
};

/* Stages that a stream's time is told apart by; 0 is what nobody has named. */
#define DEVICE_STAGES 16

/* The largest argument of `call`; it is copied. */
#define STREAM_CALL_BYTES 256

/* Operations are put on a stream and run in its order; they may have run when the call returns, or
 * not. The argument struct is copied, what it points to is borrowed until the stream has passed the
 * operation. They cannot fail in sight of their caller: the first failure stays with the stream,
 * later operations on it do nothing (but events are still recorded, so that nobody waits for ever),
 * and `synchronize` reports it, now and ever after. One host thread at a time uses a stream. */
struct stage_total {
    double seconds;
    uint64_t weight_bytes; /* packed weights and scales, once for each operation that needs them */
};

struct device_ops {
    const char *name; /* "cpu (avx512)" */

    void (*embed)(struct stream *stream, const struct op_embed *op);
    void (*rms_norm)(struct stream *stream, const struct op_rms_norm *op);
    void (*add)(struct stream *stream, const struct op_add *op);
    void (*matmul)(struct stream *stream, const struct op_matmul *op);
    void (*rope_append)(struct stream *stream, const struct op_rope_append *op);
    void (*attention)(struct stream *stream, const struct op_attention *op);
    void (*route)(struct stream *stream, const struct op_route *op);
    void (*dispatch)(struct stream *stream, const struct op_dispatch *op);
    void (*group)(struct stream *stream, const struct op_group *op);
    void (*ffn_up)(struct stream *stream, const struct op_ffn_up *op);
    void (*ffn_down)(struct stream *stream, const struct op_ffn_down *op);
    void (*combine)(struct stream *stream, const struct op_combine *op);
    void (*shared_add)(struct stream *stream, const struct op_shared_add *op);
    void (*choose)(struct stream *stream, const struct op_choose *op);
    void (*candidates)(struct stream *stream, const struct op_candidates *op);
    void (*gather)(struct stream *stream, const struct op_gather *op);
    void (*dequantize)(struct stream *stream, const struct op_dequantize *op);

    /* Bytes from any memory (this device's, or the host's from host_memory_get) to any. */
    void (*copy)(struct stream *stream, const struct op_copy *op);
    void (*fill)(struct stream *stream, const struct op_fill *op);

    /* Runs work(argument, err) in the stream's order, on a thread of the device; its failure is
     * the stream's. `bytes` of the argument (<= STREAM_CALL_BYTES) are copied. Reads stand on this,
     * and collectives where there are no `peers`. */
    void (*call)(struct stream *stream, enum status (*work)(void *argument, struct error *err),
                 const void *argument, size_t bytes);

    /* What is put on the stream from here on, until the same with false, is likely to be put there
     * again in the same order and with the same arguments, but for what stands in memory: a step of
     * decode. A device may put off what it does of it until somebody could tell, learn it, and do
     * it at once the next times. Nothing else changes, and it may be said of what never comes
     * again. NULL: the device makes nothing of it. */
    void (*repeat)(struct stream *stream, bool begins);

    /* What communicators stand on where the work of a stream runs behind its thread
     * (device/peers.h); NULL: it runs on that thread, which may touch the memory of other such
     * devices, too. */
    const struct peer_ops *peers;

    /* Returns when everything put on the stream has run. */
    enum status (*synchronize)(struct stream *stream, struct error *err) MUST_CHECK;

    /* Operations finished, and pieces of the one that runs: it grows while the stream works. Any
     * thread. */
    uint64_t (*progress)(const struct stream *stream);

    /* From here on the stream's time, waiting for others and for commands included, and the weights
     * that its operations read count for `stage` (0 .. DEVICE_STAGES - 1). What each has had so far
     * is read when the stream has been synchronized; the stage that stands then has its time up to
     * its beginning. `layer` is for the trace; -1: of none. */
    void (*stage)(struct stream *stream, int stage, int64_t layer);
    void (*stage_totals)(const struct stream *stream, struct stage_total totals[DEVICE_STAGES]);

    /* Streams beside device->stream. Destroying waits for what is on it. */
    enum status (*stream_create)(struct device *device, struct stream **out,
                                 enum stream_priority priority, struct error *err) MUST_CHECK;
    void (*stream_destroy)(struct device *device, struct stream *stream); /* NULL is allowed */
    uint64_t (*stream_bytes)(void); /* of the host's memory, of one */

    /* An event is passed once the last `event_record` put on a stream has been reached; an event
     * that was never recorded is passed. `event_wait` holds what comes later on its stream until
     * then; `event_synchronize` holds the host thread. It fails where the device cannot say that
     * the event is passed; that a stream has failed is told by `synchronize` alone. */
    enum status (*event_create)(struct device *device, struct event **out,
                                struct error *err) MUST_CHECK;
    void (*event_destroy)(struct device *device, struct event *event); /* NULL is allowed */
    void (*event_record)(struct stream *stream, struct event *event);
    void (*event_wait)(struct stream *stream, struct event *event);
    enum status (*event_synchronize)(struct event *event, struct error *err) MUST_CHECK;

    /* Called on the stream's thread when a stream of this device fails, once for each stream, so
     * that whoever waits for this rank can be told. Set before anything is put on a stream. */
    void (*on_failure)(struct device *device,
                       void (*handler)(void *context, const struct error *err), void *context);

    /* The pool of the device: memory aligned to 64, not zeroed; only this device's operations and
     * collectives touch it, and the host where `host_reaches`. `what` names it in the sentence. */
    enum status (*memory_get)(struct device *device, void **out, size_t bytes, const char *what,
                              struct error *err) MUST_CHECK;
    void (*memory_free)(struct device *device, void *memory); /* NULL is allowed */
    struct device_memory (*memory_use)(const struct device *device);

    /* memory_pages_map for memory from memory_get, from its beginning on: a file's pages take the
     * place of the device's own. Nothing on a stream uses it. Behind a failure the memory is good
     * for memory_free alone. NULL: there is no such thing. */
    enum status (*memory_map)(struct device *device, void *memory, size_t bytes, int fd,
                              uint64_t offset, struct error *err) MUST_CHECK;

    /* Bytes that memory_get may have to give, as of now: of the CPU what the machine has free, for
     * all its ranks and for others; of a GPU what is left of this rank's share. */
    uint64_t (*memory_left)(const struct device *device);

    /* The pool of the host for copies from and to the device (pinned, where that means something):
     * aligned to 64, not zeroed. */
    enum status (*host_memory_get)(struct device *device, void **out, size_t bytes,
                                   const char *what, struct error *err) MUST_CHECK;
    void (*host_memory_free)(struct device *device, void *memory); /* NULL is allowed */

    /* Makes memory that the host has, whole pages of it, as good for copies as that of
     * host_memory_get, for all devices of this one's kind, until it is let go, before it is freed.
     */
    enum status (*host_memory_pin)(struct device *device, void *memory, size_t bytes,
                                   const char *what, struct error *err) MUST_CHECK;
    /* False: it cannot be, and the memory must stay as it is. */
    bool (*host_memory_unpin)(struct device *device, void *memory) MUST_CHECK;

    /* The node of the host's memory (NUMA) that is beside the device; -1: unknown. Memory of
     * host_memory_get is there already. NULL: none is nearer than others. */
    int (*host_node)(const struct device *device);

    /* The host's threads may read and write memory of memory_get, too (a CPU's), where nothing on a
     * stream does. */
    bool host_reaches;

    /* Copies from host_memory_get's memory to such of memory_get that nothing on a stream uses, and
     * returns when they are there. Any thread, several at once: where host_reaches is false this is
     * how weights come to the device. A failure is of the device. */
    enum status (*upload)(struct device *device, const struct op_copy *op,
                          struct error *err) MUST_CHECK;

    /* A helper for host work on the device's cores (loading): see thread_team_run. Not while
     * anything is on a stream, but where there are `peers`: there it waits until the thread of
     * device->stream has launched what was put there before, not until that has run. */
    void (*host_run)(struct device *device, void (*work)(void *context, int worker), void *context);
    int (*host_workers)(const struct device *device);

    void (*destroy)(struct device *device);
};

struct device {
    const struct device_ops *ops;
    struct stream *stream; /* where the passes run; of normal priority */
    struct turn *turn;     /* of the CPU; NULL: none. For who blocks on a stream's thread, too */
};

/* Who may run, where ranks are to run one at a time with the memory of all others closed: a test's
 * proof that no rank touches what is not its own. `take` is called on a stream's thread before it
 * works, `give` when it has nothing to do or waits for others; `open_all` and `close_others` stand
 * around the copying inside a collective. */
struct turn {
    void (*take)(struct turn *turn, struct device *device);
    void (*give)(struct turn *turn, struct device *device);
    void (*open_all)(struct turn *turn, struct device *device);
    void (*close_others)(struct turn *turn, struct device *device);
};

/* A share of the machine's cores. */
struct cpu_share {
    int thread_count;  /* >= 1, the thread of device->stream included */
    int first_cpu;     /* the threads are pinned to the CPUs that the process may use, counted from
                        * this one; -1: they are not pinned */
    struct turn *turn; /* NULL: none */
    struct trace *trace; /* has a lane for each stream; borrowed; NULL: none */
    int rank;            /* whose lanes they are */
    /* "plain", "avx2", "avx512", "avx512vnni", "avx512bf16", "amx"; NULL: the fastest here */
    const char *kernels;
};

/* The CPU as a device; always there. STATUS_UNSUPPORTED for kernels that this machine or build has
 * not. kernels/cpu/device */
enum status device_cpu_create(struct device **out, const struct cpu_share *share,
                              struct error *err) MUST_CHECK;

/* Opens or closes (any access is a fault) all memory that a CPU device has from memory_get. */
void device_cpu_protect(struct device *device, bool closed);

struct gpu_share {
    int ordinal;         /* as CUDA counts: cuda:0 is the first */
    int sharer_count;    /* ranks on this GPU, each with the same part of its memory, and of its
                          * multiprocessors where it can be cut; 0: one */
    int sharer_index;    /* which of them this is */
    bool is_whole;       /* shares all multiprocessors, though the GPU could be cut */
    int thread_count;    /* of host_run; 0: one for each CPU that the process may use */
    struct trace *trace; /* has a lane for each stream; borrowed; NULL: none */
    int rank;            /* whose lanes they are */
};

/* A GPU as a device. STATUS_UNSUPPORTED, with the cure, where the build has no CUDA, and where the
 * machine has no such GPU or no driver for it. kernels/cuda/device */
enum status device_cuda_create(struct device **out, const struct gpu_share *share,
                               struct error *err) MUST_CHECK;

#define GPU_NAME_BYTES 256
struct gpu_description {
    char name[GPU_NAME_BYTES]; /* as the driver calls it: "NVIDIA H100 80GB HBM3" */
    int capability;            /* 10 x major + minor */
    uint64_t memory_bytes;     /* that it has, used or not */
    uint64_t memory_left;      /* what a rank of this share would have from memory_get now */
    int multiprocessors;       /* that it has */
    int part;                  /* device_cuda_part of each rank of this share: what they are given
                                * when it is tried, all at once */
    int driver, runtime;       /* CUDA's versions as it counts them, 13000 for 13.0: the newest that
                                * the driver knows, and that of this build */
};

/* What a GPU is that is not opened; of `share`, ordinal, sharer_count and is_whole. Fails as
 * device_cuda_create does. */
enum status device_cuda_describe(struct gpu_description *out, const struct gpu_share *share,
                                 struct error *err) MUST_CHECK;

/* How many multiprocessors of its GPU a device of device_cuda_create has for itself; 0: it shares
 * all with whoever is there. A part is its own where all sharers have one of that size: who opens
 * them sees to it. */
int device_cuda_part(const struct device *device);

/* Whether this build can have one. */
bool device_cuda_is_built(void);

static inline void device_destroy(struct device *device)
{
    if (device != NULL)
        device->ops->destroy(device);
}

#endif
