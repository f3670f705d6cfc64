/* The CPU's kernels: each source here is compiled once for each instruction set (KERNEL_ISA), and
 * the device picks one set when it starts. A kernel does one worker's share of an operation. */
#ifndef PHASOR_KERNELS_CPU_KERNELS_H
#define PHASOR_KERNELS_CPU_KERNELS_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/status.h"
#include "device/device.h"
#include "device/ops.h"
#include "device/thread_team.h"

/* Work that workers take in pieces: which worker takes which piece never changes a result. A stream
 * has one for its operations and one for those that it holds (cpu_stream.c), and `next` only grows,
 * so that others can read from it that the stream moves. */
struct share {
    _Alignas(64) atomic_int_fast64_t next;
    int64_t first; /* what `next` was when the operation began */
    int worker_count;
};

static inline void share_begin(struct share *share, int worker_count)
{
    share->first = atomic_load_explicit(&share->next, memory_order_relaxed);
    share->worker_count = worker_count;
}

/* Beyond every operation's pieces. */
#define PIECE_NONE (INT64_C(1) << 40)

/* The next piece, counted from 0: their count or more when none is left, or none for this worker,
 * whose turn on its CPU is over. It may come again. */
static inline int64_t share_take(struct share *share)
{
    if (thread_team_should_leave())
        return PIECE_NONE;
    return atomic_fetch_add_explicit(&share->next, 1, memory_order_relaxed) - share->first;
}

/* Rows of a piece of what works row by row: enough that taking one costs nothing, few enough to
 * spread a batch. */
#define PIECE_ROWS 8

struct cpu_kernels {
    const char *name;
    bool takes_pairs; /* products with bf16 weights, or such a cache, round inputs to bf16 */
    void (*embed)(const struct op_embed *op, struct share *share);
    void (*rms_norm)(const struct op_rms_norm *op, struct share *share);
    void (*add)(const struct op_add *op, struct share *share);
    void (*matmul)(const struct op_matmul *op, struct share *share);
    void (*rope_append)(const struct op_rope_append *op, struct share *share);
    void (*attention)(const struct op_attention *op, struct share *share);
    void (*route)(const struct op_route *op, struct share *share);
    void (*ffn_up)(const struct op_ffn_up *op, struct share *share);
    void (*ffn_down)(const struct op_ffn_down *op, struct share *share);
    void (*combine)(const struct op_combine *op, struct share *share);
    void (*shared_add)(const struct op_shared_add *op, struct share *share);
    void (*choose)(const struct op_choose *op, struct share *share);
    void (*candidates)(const struct op_candidates *op, struct share *share);
    void (*gather)(const struct op_gather *op, struct share *share);
    void (*dequantize)(const struct op_dequantize *op, struct share *share);
    void (*copy)(const struct op_copy *op, struct share *share);
};

/* One set for each instruction set that the compiler was asked for. */
extern const struct cpu_kernels cpu_kernels_plain;
#if defined(PHASOR_X86_KERNELS)
extern const struct cpu_kernels cpu_kernels_avx2;
extern const struct cpu_kernels cpu_kernels_avx512;
extern const struct cpu_kernels cpu_kernels_avx512vnni;
#endif
#if defined(PHASOR_BF16_KERNELS)
extern const struct cpu_kernels cpu_kernels_avx512bf16;
#endif
#if defined(PHASOR_AMX_KERNELS)
extern const struct cpu_kernels cpu_kernels_amx;
#endif

/* The fastest set on this machine, or the one named "plain", "avx2", "avx512", "avx512vnni",
 * "avx512bf16" or "amx"; NULL when the machine or the build has it not. For AMX Linux is asked once
 * for its registers, which from then on all threads of the process may use. */
const struct cpu_kernels *cpu_kernels_choose(const char *wanted);

/* device_cpu_create with chosen kernels: for tests and benchmarks of each set. */
enum status device_cpu_create_with(struct device **out, const struct cpu_share *share,
                                   const struct cpu_kernels *kernels, struct error *err) MUST_CHECK;

/* KERNEL(embed) is embed_avx2 where KERNEL_ISA is avx2. */
#define KERNEL_JOIN_(name, isa) name##_##isa
#define KERNEL_JOIN(name, isa)  KERNEL_JOIN_(name, isa)
#define KERNEL(name)            KERNEL_JOIN(name, KERNEL_ISA)

/* 1 in sets whose products of bf16 weights are of pairs (kernels/README.md). */
#if !defined(KERNEL_PAIRS)
#define KERNEL_PAIRS 0
#endif

#if defined(KERNEL_ISA)
void KERNEL(embed)(const struct op_embed *op, struct share *share);
void KERNEL(rms_norm)(const struct op_rms_norm *op, struct share *share);
void KERNEL(add)(const struct op_add *op, struct share *share);
void KERNEL(matmul)(const struct op_matmul *op, struct share *share);
void KERNEL(rope_append)(const struct op_rope_append *op, struct share *share);
void KERNEL(attention)(const struct op_attention *op, struct share *share);
void KERNEL(route)(const struct op_route *op, struct share *share);
void KERNEL(ffn_up)(const struct op_ffn_up *op, struct share *share);
void KERNEL(ffn_down)(const struct op_ffn_down *op, struct share *share);
void KERNEL(combine)(const struct op_combine *op, struct share *share);
void KERNEL(shared_add)(const struct op_shared_add *op, struct share *share);
void KERNEL(choose)(const struct op_choose *op, struct share *share);
void KERNEL(candidates)(const struct op_candidates *op, struct share *share);
void KERNEL(gather)(const struct op_gather *op, struct share *share);
void KERNEL(dequantize)(const struct op_dequantize *op, struct share *share);
void KERNEL(copy)(const struct op_copy *op, struct share *share);
#endif

#endif
