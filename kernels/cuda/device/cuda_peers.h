/* What a CUDA device offers to communicators; see device/peers.h. */
#ifndef PHASOR_KERNELS_CUDA_DEVICE_CUDA_PEERS_H
#define PHASOR_KERNELS_CUDA_DEVICE_CUDA_PEERS_H

#include "device/peers.h"

extern const struct peer_ops cuda_peers;

/* Of peer_ops; cuda_device.c. */
void cuda_on_settled(struct device *device, enum status (*check)(void *context, struct error *err),
                     void *context);

#endif
