/* The device that the tests of this folder are about. */
#include <criterion/criterion.h>

#include "device_tools.h"

struct device *device_open(int thread_count)
{
    struct device *device;
    struct error err;
    struct cpu_share share = {.thread_count = thread_count, .first_cpu = -1};
    cr_assert_eq(device_cpu_create(&device, &share, &err), STATUS_OK, "%s", err.message);
    return device;
}
