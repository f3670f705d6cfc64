/* What a build without CUDA says. */
#include "device/device.h"

enum status device_cuda_create(struct device **out, const struct gpu_share *share,
                               struct error *err)
{
    (void)out;
    return error_set(err, STATUS_UNSUPPORTED,
                     "this build of phasor cannot use cuda:%d: it was configured without CUDA "
                     "(cmake --preset cuda builds it with)",
                     share->ordinal);
}

bool device_cuda_is_built(void)
{
    return false;
}
