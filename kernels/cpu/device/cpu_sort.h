/* Counting sorts of tokens by expert and by group of experts: linear, and not worth a second
 * thread. */
#ifndef PHASOR_KERNELS_CPU_DEVICE_CPU_SORT_H
#define PHASOR_KERNELS_CPU_DEVICE_CPU_SORT_H

#include "base/status.h"
#include "device/ops.h"

void cpu_sort_dispatch(const struct op_dispatch *op);
void cpu_sort_group(const struct op_group *op);

#endif
