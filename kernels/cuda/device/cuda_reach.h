/* Whether GPUs that say that they reach each other do: a copy between the two is tried, with what
 * it brings, and for a limited time. */
#ifndef PHASOR_KERNELS_CUDA_DEVICE_CUDA_REACH_H
#define PHASOR_KERNELS_CUDA_DEVICE_CUDA_REACH_H

#include <stdbool.h>

#include "base/status.h"

/* From the memory of the GPU `from` to that of `to`, on a stream of `to`: STATUS_IO, with the cure,
 * where what came is not what was sent, or nothing came for `patience_seconds`. Then cuda_is_stuck.
 */
enum status cuda_reach_try(int to, int from, double patience_seconds, struct error *err) MUST_CHECK;

/* Whether something on a GPU hangs in this process, a copy or what a library has put there: then
 * whatever waits for a GPU waits for ever, as freeing memory does. So nothing of a GPU is given
 * back any more, and no device is opened. */
bool cuda_is_stuck(void);

/* From here on it does. */
void cuda_give_up(void);

#endif
