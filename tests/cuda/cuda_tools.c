#include "cuda_tools.h"

#include <criterion/criterion.h>

struct device *device_open(int thread_count)
{
    (void)thread_count;
    struct device *device;
    struct error err;
    cr_assert_eq(device_cuda_create(&device, &(struct gpu_share){.ordinal = 0}, &err), STATUS_OK,
                 "%s", err.message);
    return device;
}
