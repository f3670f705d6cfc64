/* Memory of the host that a GPU's copies read and write: pinned, and on the node of the host (NUMA)
 * that the GPU is on, so that they cross no link between processors. */
#ifndef PHASOR_KERNELS_CUDA_DEVICE_CUDA_PINNED_H
#define PHASOR_KERNELS_CUDA_DEVICE_CUDA_PINNED_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

/* Where a GPU is on PCI, in small letters, as in /sys. */
#define CUDA_BUS_ID_BYTES 32
void cuda_bus_id(char out[CUDA_BUS_ID_BYTES], const struct cudaDeviceProp *properties);

/* Its node, which is looked up once; all below then know it. */
void cuda_node_note(int ordinal, const char *bus_id);
int cuda_node(int ordinal); /* -1: unknown */

/* cudaMallocHost on its node while that has any; the thread's own policy for memory stays. */
enum status cuda_pinned_malloc(int ordinal, void **out, size_t bytes, struct error *err) MUST_CHECK;

/* As host_memory_get, host_memory_free, host_memory_pin and host_memory_unpin of device_ops. What
 * is freed first waits for the GPU. */
enum status cuda_pinned_get(int ordinal, void **out, size_t bytes, const char *what,
                            struct error *err) MUST_CHECK;
void cuda_pinned_free(int ordinal, void *memory); /* NULL is allowed */
enum status cuda_pinned_keep(int ordinal, void *memory, size_t bytes, const char *what,
                             struct error *err) MUST_CHECK;
bool cuda_pinned_leave(int ordinal, void *memory) MUST_CHECK;

#endif
