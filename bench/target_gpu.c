/* A GPU: the card's own limits are a product of cuBLAS, which is loaded where it is, and a copy. */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <library_types.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "base/system.h"
#include "target.h"

#define GEMM_DIM   8192
#define COPY_BYTES ((size_t)1 << 30)
#define HOST_BYTES ((size_t)256 << 20)
#define ROUNDS     9

/* As cublas_v2.h and cublas_api.h have them: neither need be there to build. */
#define CUBLAS_NO_TRANSPOSE 0
#define CUBLAS_TRANSPOSE    1
#define CUBLAS_COMPUTE_F32  68
#define CUBLAS_DEFAULT      (-1)
typedef int cublas_create(void **handle);
typedef int cublas_gemm(void *handle, int a_form, int b_form, int m, int n, int k,
                        const void *alpha, const void *a, int a_type, int a_stride, const void *b,
                        int b_type, int b_stride, const void *beta, void *c, int c_type,
                        int c_stride, int compute_type, int algorithm);

static bool is_fine(cudaError_t error, const char *what)
{
    if (error != cudaSuccess)
        fprintf(stderr, "bench_gpu: %s: %s\n", what, cudaGetErrorString(error));
    return error == cudaSuccess;
}

static void *cublas_open(void)
{
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so"};
    void *library = NULL;
    for (int i = 0; library == NULL && i < 3; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return library;
}

/* Numbers of 16 bits at random, of either sign and between 0.5 and 2 (bf16) or 1.75 and 2 (f16):
 * of zeros or of one number again and again a product takes less power, and so less time. */
static bool fill_at_random(void *memory, size_t bytes)
{
    enum { COUNT = 8 << 20 };
    uint16_t *values = malloc(COUNT * sizeof *values);
    bool fine = values != NULL;
    for (size_t i = 0; fine && i < COUNT; i++)
        values[i] = (uint16_t)((random_mix(i) & 0x80ff) | 0x3f00);
    for (size_t at = 0; fine && at < bytes; at += COUNT * sizeof *values)
        fine = cudaMemcpy((char *)memory + at, values, COUNT * sizeof *values,
                          cudaMemcpyHostToDevice) == cudaSuccess;
    free(values);
    return fine;
}

/* 1e9 flops a second of a product of 16-bit numbers; NaN: there is no cuBLAS, or it fails. */
static double measure_gflops(int capability)
{
    void *library = cublas_open(), *handle = NULL, *memory[3] = {NULL};
    if (library == NULL)
        return NAN;
    cublas_create *create = (cublas_create *)dlsym(library, "cublasCreate_v2");
    cublas_gemm *gemm = (cublas_gemm *)dlsym(library, "cublasGemmEx");
    const size_t bytes = (size_t)GEMM_DIM * GEMM_DIM * 2;
    const int type = capability >= 80 ? CUDA_R_16BF : CUDA_R_16F;
    const float one = 1, zero = 0;
    bool fine = create != NULL && gemm != NULL && create(&handle) == 0;
    for (int i = 0; i < 3; i++)
        fine = fine && cudaMalloc(&memory[i], bytes) == cudaSuccess &&
               fill_at_random(memory[i], bytes);
    double best = INFINITY;
    for (int round = 0; fine && round < ROUNDS; round++) {
        double start = system_seconds();
        fine = gemm(handle, CUBLAS_TRANSPOSE, CUBLAS_NO_TRANSPOSE, GEMM_DIM, GEMM_DIM, GEMM_DIM,
                    &one, memory[0], type, GEMM_DIM, memory[1], type, GEMM_DIM, &zero, memory[2],
                    type, GEMM_DIM, CUBLAS_COMPUTE_F32, CUBLAS_DEFAULT) == 0 &&
               cudaDeviceSynchronize() == cudaSuccess;
        best = fmin(best, system_seconds() - start);
    }
    for (int i = 0; i < 3; i++)
        (void)cudaFree(memory[i]);
    return fine ? 2.0 * GEMM_DIM * GEMM_DIM * GEMM_DIM / best * 1e-9 : NAN;
}

/* 1e9 bytes a second, read and written, of a copy within the card; 0: it fails. */
static double measure_gbytes(void)
{
    void *from = NULL, *to = NULL;
    bool fine = is_fine(cudaMalloc(&from, COPY_BYTES), "cudaMalloc") &&
                is_fine(cudaMalloc(&to, COPY_BYTES), "cudaMalloc") &&
                is_fine(cudaMemset(from, 1, COPY_BYTES), "cudaMemset") &&
                is_fine(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    double best = INFINITY;
    for (int round = 0; fine && round < ROUNDS; round++) {
        double start = system_seconds();
        fine = is_fine(cudaMemcpy(to, from, COPY_BYTES, cudaMemcpyDeviceToDevice), "cudaMemcpy") &&
               is_fine(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
        best = fmin(best, system_seconds() - start);
    }
    (void)cudaFree(from);
    (void)cudaFree(to);
    return fine ? 2.0 * (double)COPY_BYTES / best * 1e-9 : 0;
}

/* 1e9 bytes a second from pinned memory of the host to the card; 0: it fails. */
static double measure_host_gbytes(void)
{
    void *from = NULL, *to = NULL;
    bool fine = is_fine(cudaMallocHost(&from, HOST_BYTES), "cudaMallocHost") &&
                is_fine(cudaMalloc(&to, HOST_BYTES), "cudaMalloc");
    if (fine)
        memset(from, 1, HOST_BYTES);
    double best = INFINITY;
    for (int round = 0; fine && round < ROUNDS; round++) {
        double start = system_seconds();
        fine = is_fine(cudaMemcpy(to, from, HOST_BYTES, cudaMemcpyHostToDevice), "cudaMemcpy") &&
               is_fine(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
        best = fmin(best, system_seconds() - start);
    }
    (void)cudaFreeHost(from);
    (void)cudaFree(to);
    return fine ? (double)HOST_BYTES / best * 1e-9 : 0;
}

static double copy_gbytes;

int target_open(struct target *out, int argc, char **argv)
{
    struct cudaDeviceProp card;
    struct error err;
    if (argc > 3 || (argc > 1 && strcmp(argv[1], "cuda:0") != 0)) {
        fprintf(stderr, "usage: bench_gpu [cuda:0] [operation or \"\"]\n");
        return 2;
    }
    if (device_cuda_create(&out->device, &(struct gpu_share){.ordinal = 0}, &err) != STATUS_OK) {
        fprintf(stderr, "bench_gpu: %s\n", err.message);
        return 1;
    }
    if (!is_fine(cudaSetDevice(0), "cudaSetDevice") ||
        !is_fine(cudaGetDeviceProperties(&card, 0), "cudaGetDeviceProperties"))
        return 1;
    out->use = FOR_GPU_BENCH;
    out->copy_bytes = 0; /* the cases are larger than its caches */
    out->case_seconds = 0.2;
    int capability = 10 * card.major + card.minor;
    out->gflops = measure_gflops(capability);
    out->gflops_how = isnan(out->gflops) ? "no product by cuBLAS could be had"
                      : capability >= 80 ? "product of bf16 by cuBLAS, 8,192 each way"
                                         : "product of f16 by cuBLAS, 8,192 each way";
    copy_gbytes = measure_gbytes();
    out->gbytes_how = "copy of 1 GiB, read and written";
    snprintf(out->description, sizeof out->description,
             "%.100s, sm_%d, %d multiprocessors, %.1f GB/s from the host's pinned memory",
             card.name, capability, card.multiProcessorCount, measure_host_gbytes());
    return copy_gbytes > 0 ? 0 : 1;
}

double target_read_gbytes(const struct target *target)
{
    (void)target;
    return copy_gbytes;
}

void target_close(struct target *target)
{
    device_destroy(target->device);
}
