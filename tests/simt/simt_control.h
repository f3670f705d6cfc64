/* What a test says to the emulated GPU: tests/simt runs CUDA sources on the host.
 *
 * simt.h gives a .cu source a host meaning, simt_engine.cpp runs each thread of a block as a fiber,
 * blocks one after another, and simt_runtime.cpp stands in for the CUDA runtime: a stream is a
 * queue that runs when somebody waits, so that a missing event becomes a wrong result for some
 * seed. Memory of cudaMalloc is filled with 0xff, and closed but while GPUs work: a host that
 * touches it ends the process, with a sentence and where it was. Pinned memory is both's.
 *
 * Of several GPUs (simt_device_count_set) each stream and event belongs to that which was its
 * thread's, and is refused where CUDA refuses it; but a kernel reaches the memory of all.
 *
 * A stream that captures (simt_graph.cpp) runs nothing of what is put on it until the graph is
 * launched; what CUDA forbids meanwhile fails as it does there, and makes the capture invalid.
 *
 * What is undefined on a GPU ends the process, with a sentence, file and line on standard error: a
 * barrier that not all threads of the block reach or that they reach at different places, a warp
 * operation whose lanes disagree or are not there, threads that wait for each other for ever. The
 * address sanitizer finds what is read and written out of bounds.
 *
 * Not emulated: PTX (mma has a meaning for the host of its own: kernels/cuda/mma.cuh), cp.async;
 * blocks that wait for other blocks; the default stream.
 */
#ifndef PHASOR_TESTS_SIMT_SIMT_CONTROL_H
#define PHASOR_TESTS_SIMT_SIMT_CONTROL_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* In which order the threads of a block, and the blocks of a grid, come to run. */
enum simt_order { SIMT_FORWARD, SIMT_REVERSE, SIMT_RANDOM };

/* At the start SIMT_FORWARD; the seed is that of SIMT_RANDOM. */
void simt_order_set(enum simt_order order, uint64_t seed);

/* Which of the streams that have something to do comes next. 0, as at the start: nothing runs
 * before somebody waits, and then the oldest stream first; otherwise some of it runs at once, and
 * the streams are drawn. */
void simt_stream_seed_set(uint64_t seed);

/* The n-th call of the runtime from here on, launches included, returns `error` and does nothing
 * (but what is freed or destroyed is gone); 0: none. */
void simt_fail_at(uint64_t n, cudaError_t error);

/* Whether it is yet to come. */
bool simt_fail_is_ahead(void);

/* The n-th kernel that runs from here on breaks its device: this and every later call returns
 * `error` (as after an access to memory that is not there); 0: none, and the device is whole again.
 */
void simt_fail_kernel_at(uint64_t n, cudaError_t error);

/* Whether it is yet to come. */
bool simt_fail_kernel_is_ahead(void);

/* How many GPUs there are, 1 at the start; with 0 every call returns cudaErrorNoDevice. */
void simt_device_count_set(int count);

/* The first has this number of a bus of PCI, others those behind it. */
#define SIMT_FIRST_BUS 0x1a

/* Is called by each thread that allocates pinned memory, with the GPU that is its own; NULL: nobody
 * is. */
void simt_on_pinned(void (*look)(int device));

/* How much memory each has, 16 GiB at the start; what is there already stays, and more than is left
 * is not to be had. */
void simt_global_bytes_set(size_t bytes);

/* What kind of GPU a device that is opened from here on is: 75 (the start), 70, 80, 86, 89 or 90,
 * as 10 x major + minor, with the shared memory that such a one has. False: it is none of these. */
bool simt_capability_set(int capability);

/* How many multiprocessors each has, 4 at the start. */
void simt_multiprocessors_set(int count);
int simt_multiprocessors(void);

/* Whether the driver has green contexts, as at the start; or those of CUDA 12.4, which have no
 * streams, or such as are of no use, as their streams cannot record an event or wait for one. */
enum simt_green {
    SIMT_GREEN_NONE,
    SIMT_GREEN_12_4,
    SIMT_GREEN_SOUND,
    SIMT_GREEN_WITHOUT_RECORDS,
    SIMT_GREEN_WITHOUT_WAITS
};
void simt_green_set(enum simt_green green);

/* The n-th call of the driver for them, from here on, fails; 0: none. */
void simt_green_fail_at(uint64_t n);
bool simt_green_fail_is_ahead(void);

/* Parts of more multiprocessors than these are one fewer than there would be. */
void simt_green_uneven_above(unsigned count);

/* The part of its GPU that a stream has; false: all. */
bool simt_stream_part(cudaStream_t stream, unsigned *first, unsigned *count);

/* Whether what frees memory or an event waits until the GPU has nothing to do, as at the start, and
 * as CUDA does but does not promise. If not, what is queued finds 0xff in memory that was freed. */
void simt_free_waits_set(bool waits);

/* Since the start of the process. */
uint64_t simt_kernel_count(void);

/* Calls of cudaStreamSynchronize, likewise. */
uint64_t simt_wait_count(void);

/* Of cudaFree and cudaFreeHost with something to free, likewise. */
uint64_t simt_free_count(void);

/* Brought by copies from the memory of one GPU to that of another, likewise. */
uint64_t simt_peer_bytes(void);

/* Copied from the host's memory or to it where that was neither allocated for copies nor
 * registered: CUDA takes it through memory of its own, and the host waits. */
uint64_t simt_pageable_bytes(void);

/* Memory is closed behind every n-th call of the runtime that had opened it, 1 from the beginning.
 * To close it is dear where a process has many threads, all of whose processors have to hear of it.
 */
void simt_close_every(unsigned n);

/* Of these what has gone directly, by cudaDeviceEnablePeerAccess. Whether GPUs can reach each
 * other: they can at the start. */
uint64_t simt_direct_bytes(void);
void simt_peer_access_set(bool can);

/* What comes of copies that go directly, as where something between the GPUs is in their way: a
 * wrong byte, or nothing, until this is said again. Sound at the start. */
enum simt_peer_copies { SIMT_PEER_SOUND, SIMT_PEER_WRONG, SIMT_PEER_HANGING };
void simt_peer_copies_set(enum simt_peer_copies copies);

/* The clock of the GPUs (%globaltimer), which is the host's at the start. From the first on it
 * stands but while a kernel naps, and for so long as that asks for: what a kernel waits for is then
 * a matter of order alone. The second sets it forward, or back. */
void simt_clock_by_naps(void);
void simt_clock_move(int64_t nanoseconds);
uint64_t simt_clock_nanoseconds(void);

/* Graphs that were made ready to run, and launches of them, since the start of the process. */
uint64_t simt_graph_instances(void);
uint64_t simt_graph_launches(void);

/* Allocations of device and pinned memory, streams, events and graphs that are there now. */
uint64_t simt_live_count(void);

/* ---- For a library that puts work of its own on streams (tests/nccl_stub) --------------------
 *
 * Between these two nothing on any GPU moves, and no other thread is between them; what is said
 * behind the second is seen by all who wait for a stream. */
void simt_lock(void);
void simt_unlock(void);

/* Within: puts `work` on a stream, where it and all behind it wait until `ready`. Both are called
 * within, too; on a device that is broken neither is. */
void simt_hold(cudaStream_t stream, bool (*ready)(void *context), void (*work)(void *context),
               void *context);

/* Within: runs what is next on one of the streams that can go on; false: none can. */
bool simt_step(void);

/* Within: whether a kernel has broken the device; what is put on streams then does nothing. */
bool simt_is_broken(void);

/* Within: so many bytes of one GPU were brought to another. */
void simt_peer_bytes_add(uint64_t bytes);

/* The GPU of a stream, and the calling thread's. */
int simt_stream_device(cudaStream_t stream);
int simt_current_device(void);

#ifdef __cplusplus
}
#endif

#endif
