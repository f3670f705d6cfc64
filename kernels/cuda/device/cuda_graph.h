/* Steps that repeat, as graphs of CUDA. What a stream is told repeats (device_ops.repeat) is put
 * off, up to a piece of so many launches or to whatever else is on the stream: a collective, an
 * event, the end. A piece that comes to its place in the step for the second time is captured; from
 * then on it is one launch of a graph, when its operations are the same to the byte and its arrays
 * of the host have the same facts. These are copied anew before, to where the graph's kernels look
 * for them. What has come once, or cannot be captured, is launched one by one.
 *
 * A graph is kept as it was captured, never updated: to capture each step anew and to update the
 * graph by it would spend the host's time on each launch, which is what a step has too little of.
 * And pieces, not steps: the GPU begins with the first while the host is at the next. Several
 * variants of a piece are kept, as batches grow and shrink. */
#ifndef PHASOR_KERNELS_CUDA_DEVICE_CUDA_GRAPH_H
#define PHASOR_KERNELS_CUDA_DEVICE_CUDA_GRAPH_H

#include <cuda_runtime_api.h>

#include "kernels/cuda/device/cuda_blocks.h"
#include "kernels/cuda/device/cuda_stages.h"
#include "kernels/cuda/device/cuda_work.h"

/* Some ten layers: of what a launch costs nothing is left then. The first piece of a step is
 * shorter, since the GPU has nothing to do until it comes. Where a piece has but a few launches
 * they are launched. */
#define CUDA_PIECE_LAUNCHES 256
#define CUDA_PIECE_FIRST    64
#define CUDA_PIECE_LEAST    4
#define CUDA_PIECE_VARIANTS 8

/* What was at a place of a step. */
struct cuda_piece {
    struct cuda_work work;
    uint64_t used;         /* the step that had it last */
    uint64_t launched;     /* as of cuda_graphs.settled, when its graph was; 0: never */
    uint64_t launch_count; /* of the graphs that it has */
    cudaGraphExec_t graph; /* with all marks of its stages; NULL: not captured */
    cudaGraphExec_t plain; /* with the first alone (cuda_stages.h), likewise */
    const void *scratch;   /* that its kernels know, of so many bytes */
    size_t scratch_bytes;
    unsigned freed;           /* as of cuda_common: another piece of memory may stand there since */
    struct cuda_block *block; /* its arrays, at array_at; NULL: it has none */
    size_t *array_at;
    size_t bytes;
    bool is_new; /* nothing stands there yet */
    struct cuda_stages_part part;
};

struct cuda_graphs {
    bool is_on;      /* what comes repeats */
    bool is_refused; /* something could not be captured, and nothing is any more */
    struct cuda_work pending;
    struct cuda_blocks blocks;
    struct cuda_piece **places; /* [place_count][CUDA_PIECE_VARIANTS], and room for more */
    size_t place_room;
    int place_count;
    int place;                          /* of the piece that comes next */
    uint64_t step;                      /* that runs: 1, 2 ... */
    uint64_t settled;                   /* how often the stream has: 1, 2 ... */
    const struct cuda_piece *capturing; /* NULL: none */
};

/* Of zeros; deinit when nothing is on the stream. */
void cuda_graphs_init(struct cuda_graphs *graphs);
void cuda_graphs_deinit(struct cuda_graphs *graphs);

/* For commands, on the stream's thread. */
void cuda_graphs_repeat(struct cuda_stream *cuda, bool begins);

/* Takes a launch over; false: it is to be done now. */
bool cuda_graphs_put_off(struct cuda_stream *cuda, const struct cuda_launch_once *launch);

/* Does what was put off. */
void cuda_graphs_catch_up(struct cuda_stream *cuda);

/* While a piece is captured: where its kernels find an array. NULL: nothing is captured. */
const void *cuda_graphs_array(const struct cuda_graphs *graphs, const struct cuda_array *array);

#endif
