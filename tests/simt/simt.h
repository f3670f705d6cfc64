/* Gives a CUDA source of kernels/cuda a meaning for a host's compiler: see simt_control.h.
 *
 * What is missing here is missing on purpose until a kernel needs it; what only nvcc has (PTX, mma,
 * arithmetic on bf16) has no place in the part of a source that the host sees. */
#ifndef PHASOR_TESTS_SIMT_SIMT_H
#define PHASOR_TESTS_SIMT_SIMT_H

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include "simt_engine.h"

/* NVIDIA's headers gave them meanings of which the host's compiler knows nothing. A block's static
 * shared memory is one static variable, as blocks run one after another. */
#undef __shared__
#undef __global__
#undef __device__
#undef __host__
#undef __constant__
#undef __forceinline__
#undef __launch_bounds__
#undef __grid_constant__
#define __shared__ static
#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__

#define threadIdx (::simt::thread_index)
#define blockIdx  (::simt::block_index)
#define blockDim  (::simt::block_size)
#define gridDim   (::simt::grid_size)
#define warpSize  32

#define KERNEL_PLAIN(...) __VA_ARGS__
#define KERNEL_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                              \
    ::simt::launch(KERNEL_PLAIN kernel, (grid), (block), (shared_bytes), (stream), __VA_ARGS__)
#define KERNEL_SHARED(type, name) type *name = reinterpret_cast<type *>(::simt::dynamic_shared)

/* The place of the call, as last parameters that nobody gives. */
#define SIMT_SITE const char *file_ = __builtin_FILE(), int line_ = __builtin_LINE()

namespace simt {

/* Arguments are converted and copied now, as <<<>>> does. */
template <class... P, class... A>
inline void launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                   cudaStream_t stream, A &&...arguments)
{
    std::tuple<std::decay_t<P>...> copies(std::forward<A>(arguments)...);
    launch_grid(reinterpret_cast<const void *>(kernel), grid, block, shared_bytes, stream,
                [=] { std::apply(kernel, copies); });
}

template <class T>
inline T shuffle(warp_kind kind, unsigned mask, T value, int lane_or_delta, int width, site at)
{
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    bits = warp({kind, mask, bits, lane_or_delta, width}, at);
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

template <class T> using same = std::common_type_t<T>; /* a parameter that others are deduced by */

} // namespace simt

/* ---- Threads of a block, lanes of a warp ----------------------------------------------------- */

inline void __syncthreads(SIMT_SITE)
{
    simt::barrier(0, {file_, line_});
}
inline int __syncthreads_or(int predicate, SIMT_SITE)
{
    return simt::barrier(predicate, {file_, line_}).any;
}
inline int __syncthreads_and(int predicate, SIMT_SITE)
{
    return simt::barrier(predicate, {file_, line_}).all;
}
inline int __syncthreads_count(int predicate, SIMT_SITE)
{
    return simt::barrier(predicate, {file_, line_}).count;
}
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu, SIMT_SITE)
{
    simt::warp({simt::WARP_SYNC, mask, 0, 0, 32}, {file_, line_});
}
inline unsigned __ballot_sync(unsigned mask, int predicate, SIMT_SITE)
{
    return (unsigned)simt::warp({simt::WARP_BALLOT, mask, predicate != 0, 0, 32}, {file_, line_});
}
inline int __any_sync(unsigned mask, int predicate, SIMT_SITE)
{
    return __ballot_sync(mask, predicate, file_, line_) != 0;
}
inline int __all_sync(unsigned mask, int predicate, SIMT_SITE)
{
    return __ballot_sync(mask, predicate, file_, line_) == mask;
}
template <class T> inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32, SIMT_SITE)
{
    return simt::shuffle(simt::WARP_SHUFFLE, mask, value, lane, width, {file_, line_});
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, SIMT_SITE)
{
    return simt::shuffle(simt::WARP_SHUFFLE_UP, mask, value, (int)delta, width, {file_, line_});
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, SIMT_SITE)
{
    return simt::shuffle(simt::WARP_SHUFFLE_DOWN, mask, value, (int)delta, width, {file_, line_});
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, SIMT_SITE)
{
    return simt::shuffle(simt::WARP_SHUFFLE_XOR, mask, value, lanes, width, {file_, line_});
}

/* What a barrier in shared memory stands on (kernels/cuda/async.cuh). */
inline void simt_wait_while(const uint8_t *watched, uint8_t unwanted, SIMT_SITE)
{
    simt::wait_while(watched, unwanted, {file_, line_});
}

inline void __threadfence()
{
}
inline void __threadfence_block()
{
}

/* ---- Atomics: one thread runs at a time ------------------------------------------------------ */

template <class T> inline T atomicExch(T *at, simt::same<T> value)
{
    return std::exchange(*at, value);
}
template <class T> inline T atomicCAS(T *at, simt::same<T> expected, simt::same<T> value)
{
    T old = *at;
    if (old == expected)
        *at = value;
    return old;
}
template <class T> inline T atomicAdd(T *at, simt::same<T> value)
{
    return std::exchange(*at, (T)(*at + value));
}
template <class T> inline T atomicSub(T *at, simt::same<T> value)
{
    return std::exchange(*at, (T)(*at - value));
}
template <class T> inline T atomicMax(T *at, simt::same<T> value)
{
    return std::exchange(*at, *at < value ? value : *at);
}
template <class T> inline T atomicMin(T *at, simt::same<T> value)
{
    return std::exchange(*at, value < *at ? value : *at);
}
template <class T> inline T atomicOr(T *at, simt::same<T> value)
{
    return std::exchange(*at, (T)(*at | value));
}
template <class T> inline T atomicAnd(T *at, simt::same<T> value)
{
    return std::exchange(*at, (T)(*at & value));
}

/* ---- Time ------------------------------------------------------------------------------------ */

inline void __nanosleep(unsigned nanoseconds)
{
    simt::nap(nanoseconds);
}

/* ---- Loads, bits, arithmetic ----------------------------------------------------------------- */

template <class T> inline T __ldg(const T *at)
{
    return *at;
}
template <class T> inline T __ldcs(const T *at)
{
    return *at;
}
template <class T> inline T __ldcg(const T *at)
{
    return *at;
}
template <class T> inline void __stcs(T *at, simt::same<T> value)
{
    *at = value;
}

template <class To, class From> inline To simt_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}
inline int __float_as_int(float x)
{
    return simt_bits<int>(x);
}
inline unsigned __float_as_uint(float x)
{
    return simt_bits<unsigned>(x);
}
inline float __int_as_float(int x)
{
    return simt_bits<float>(x);
}
inline float __uint_as_float(unsigned x)
{
    return simt_bits<float>(x);
}
inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
inline int __clz(int x)
{
    return x == 0 ? 32 : __builtin_clz((unsigned)x);
}
inline int __ffs(int x)
{
    return __builtin_ffs(x);
}

inline float rsqrtf(float x)
{
    return 1 / std::sqrt(x);
}
inline float __expf(float x)
{
    return std::exp(x);
}
inline float __logf(float x)
{
    return std::log(x);
}
inline float __fdividef(float a, float b)
{
    return a / b;
}
inline float __fmaf_rn(float a, float b, float c)
{
    return std::fma(a, b, c);
}
inline float __fadd_rn(float a, float b)
{
    return a + b;
}
inline float __fmul_rn(float a, float b)
{
    return a * b;
}

template <class A, class B> inline std::common_type_t<A, B> max(A a, B b)
{
    return a < b ? b : a;
}
template <class A, class B> inline std::common_type_t<A, B> min(A a, B b)
{
    return b < a ? b : a;
}

/* ---- What cuda_runtime.h adds to the C interface --------------------------------------------- */

template <class... P>
inline cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute attribute,
                                        int value)
{
    return cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), attribute, value);
}

#endif
