#include "replay/modelled.h"

#include <math.h>

double modelled_seconds(const struct box_device *device, const struct recording_node *node)
{
    double computing =
        (double)node->flops / (device->peak_flops * device->flops_efficiency[node->work]);
    double moving = (double)node->bytes /
                    (device->memory_bytes_per_second * device->bytes_efficiency[node->work]);
    return device->launch + fmax(computing, moving);
}
