/* What a build without CUDA says. */
#include "device/device.h"

static enum status refuse(const struct gpu_share *share, struct error *err)
{
    return error_set(err, STATUS_UNSUPPORTED,
                     "this build of phasor cannot use cuda:%d: it was configured without CUDA "
                     "(cmake --preset cuda builds it with)",
                     share->ordinal);
}

enum status device_cuda_create(struct device **out, const struct gpu_share *share,
                               struct error *err)
{
    (void)out;
    return refuse(share, err);
}

enum status device_cuda_describe(struct gpu_description *out, const struct gpu_share *share,
                                 struct error *err)
{
    (void)out;
    return refuse(share, err);
}

int device_cuda_part(const struct device *device)
{
    (void)device;
    return 0;
}

bool device_cuda_is_built(void)
{
    return false;
}
