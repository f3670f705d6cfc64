/* The memory of the emulated GPUs: closed to the host but while their work runs. For
 * simt_runtime.cpp, under its lock. */
#ifndef PHASOR_TESTS_SIMT_SIMT_MEMORY_H
#define PHASOR_TESTS_SIMT_SIMT_MEMORY_H

#include <cstddef>

namespace simt {

/* Aligned to 256 and filled with 0xff; nullptr where there is no more. What lies around it is
 * poisoned for the address sanitizer, and so is what was freed, which is not used again soon. */
void *device_memory_get(std::size_t bytes);
void device_memory_free(void *memory);

/* Whoever touches it while it is closed ends the process, with a sentence. It stays open from the
 * first to the last thing that a call of the runtime does there: what another thread touches
 * meanwhile is not seen. */
void device_memory_open();
void device_memory_close();

/* Behind every n-th call alone, 1 from the beginning. */
void device_memory_close_every(unsigned n);

} // namespace simt

#endif
