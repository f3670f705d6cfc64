#include "kernels/cuda/device/cuda_pinned.h"

#include <stdatomic.h>
#include <stdio.h>

#include "base/numa.h"
#include "kernels/cuda/device/cuda_error.h"
#include "kernels/cuda/device/cuda_reach.h"

/* ---- The node -------------------------------------------------------------------------------- */

#define GPUS_MAX 64 /* whose node is kept in mind; of others it is unknown */

/* Of each, and 2: so that 0 is what nobody has asked for. */
static atomic_int nodes[GPUS_MAX];

void cuda_bus_id(char out[CUDA_BUS_ID_BYTES], const struct cudaDeviceProp *properties)
{
    snprintf(out, CUDA_BUS_ID_BYTES, "%04x:%02x:%02x.0", (unsigned)properties->pciDomainID,
             (unsigned)properties->pciBusID, (unsigned)properties->pciDeviceID);
}

void cuda_node_note(int ordinal, const char *bus_id)
{
    if (ordinal < GPUS_MAX && atomic_load(&nodes[ordinal]) == 0)
        atomic_store(&nodes[ordinal], numa_node_of_pci(bus_id) + 2);
}

int cuda_node(int ordinal)
{
    int noted = ordinal < GPUS_MAX ? atomic_load(&nodes[ordinal]) : 0;
    return noted == 0 ? -1 : noted - 2;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

enum status cuda_pinned_malloc(int ordinal, void **out, size_t bytes, struct error *err)
{
    struct numa_policy before;
    numa_prefer(&before, cuda_node(ordinal));
    cudaError_t error = cudaMallocHost(out, bytes);
    numa_restore(&before);
    return error == cudaSuccess ? STATUS_OK : cuda_error_set(err, ordinal, "cudaMallocHost", error);
}

enum status cuda_pinned_get(int ordinal, void **out, size_t bytes, const char *what,
                            struct error *err)
{
    void *memory;
    CUDA_TRY(ordinal, cudaSetDevice(ordinal), err);
    /* No bytes are a piece of their own, too. */
    enum status status = cuda_pinned_malloc(ordinal, &memory, bytes > 0 ? bytes : 1, err);
    if (status != STATUS_OK)
        return error_prefix(err, status, "cannot allocate %zu bytes for %s", bytes, what);
    *out = memory;
    return STATUS_OK;
}

void cuda_pinned_free(int ordinal, void *memory)
{
    if (memory == NULL || cuda_is_stuck())
        return;
    (void)cudaSetDevice(ordinal);
    (void)cudaFreeHost(memory);
    (void)cudaGetLastError();
}

enum status cuda_pinned_keep(int ordinal, void *memory, size_t bytes, const char *what,
                             struct error *err)
{
    CUDA_TRY(ordinal, cudaSetDevice(ordinal), err);
    cudaError_t error = cudaHostRegister(memory, bytes, cudaHostRegisterPortable);
    if (error == cudaSuccess)
        return STATUS_OK;
    enum status status = cuda_error_set(err, ordinal, "cudaHostRegister", error);
    return error_prefix(err, status, "cannot pin %zu bytes for %s", bytes, what);
}

bool cuda_pinned_leave(int ordinal, void *memory)
{
    if (cuda_is_stuck())
        return false;
    (void)cudaSetDevice(ordinal);
    cudaError_t error = cudaHostUnregister(memory);
    (void)cudaGetLastError();
    return error == cudaSuccess;
}
