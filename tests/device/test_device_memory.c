/* The pools of a CPU device, and closing what is in one. */
#include <criterion/criterion.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>

#include "base/memory.h"
#include "device_tools.h"

static void *get(struct device *device, size_t bytes)
{
    struct error err;
    void *memory;
    cr_assert_eq(device->ops->memory_get(device, &memory, bytes, "a test", &err), STATUS_OK, "%s",
                 err.message);
    cr_assert_eq((uintptr_t)memory % 64, 0);
    return memory;
}

static void check_use(struct device *device, uint64_t bytes, uint64_t peak)
{
    struct device_memory use = device->ops->memory_use(device);
    cr_assert(use.bytes == bytes && use.peak_bytes == peak, "%d bytes, peak %d", (int)use.bytes,
              (int)use.peak_bytes);
}

Test(device_memory, is_counted_as_asked_for)
{
    struct device *device = device_open(1), *other = device_open(1);
    struct memory_counters before = memory_counters_get();
    check_use(device, 0, 0);
    void *a = get(device, 100), *b = get(device, 10000), *none = get(device, 0);
    memset(a, 1, 100);
    memset(b, 1, 10000);
    cr_assert(none != NULL && none != a && none != b);
    check_use(device, 10100, 10100);
    check_use(other, 0, 0);
    cr_assert_geq(memory_counters_get().live_bytes, before.live_bytes + 10100);
    device->ops->memory_free(device, b);
    check_use(device, 100, 10100);
    void *c = get(device, 5000);
    check_use(device, 5100, 10100);
    device->ops->memory_free(device, a);
    device->ops->memory_free(device, none);
    device->ops->memory_free(device, c);
    device->ops->memory_free(device, NULL);
    check_use(device, 0, 10100);
    device_destroy(device);
    device_destroy(other);
}

Test(device_memory, that_cannot_be_had)
{
    struct device *device = device_open(1);
    struct error err;
    void *out = &err;
    for (int n = 1; n <= 2; n++) { /* the list, and the memory */
        memory_fail_at((uint64_t)n, 0);
        cr_assert_eq(device->ops->memory_get(device, &out, 100, "a test", &err), STATUS_NO_MEMORY);
        check_use(device, 0, 0);
    }
    memory_fail_at(1, 0);
    cr_assert_eq(device->ops->host_memory_get(device, &out, 100, "a test", &err), STATUS_NO_MEMORY);
    cr_assert_str_eq(err.message, "cannot allocate 100 bytes for a test");
    cr_assert_eq(device->ops->memory_get(device, &out, SIZE_MAX, "a test", &err), STATUS_NO_MEMORY);
    cr_assert_not_null(strstr(err.message, "a test"));
    cr_assert_eq(out, &err);
    device_destroy(device);
}

Test(device_memory, of_the_host_is_another_pool)
{
    struct device *device = device_open(1);
    struct error err;
    uint64_t live = memory_counters_get().live_count;
    void *memory;
    cr_assert_eq(device->ops->host_memory_get(device, &memory, 1000, "a test", &err), STATUS_OK);
    cr_assert_eq((uintptr_t)memory % 64, 0);
    check_use(device, 0, 0);
    device_cpu_protect(device, true);
    memset(memory, 1, 1000); /* it is not closed */
    device_cpu_protect(device, false);
    device->ops->host_memory_free(device, memory);
    device->ops->host_memory_free(device, NULL);
    cr_assert_eq(memory_counters_get().live_count, live);
    device_destroy(device);
}

/* Any memory of the host is as good for copies as that pool's. */
Test(device_memory, what_there_is)
{
    struct device *device = device_open(1);
    struct error err;
    char page;
    cr_assert_gt(device->ops->memory_left(device), 0);
    cr_assert_gt(device->ops->stream_bytes(), 0);
    cr_assert_eq(device->ops->host_memory_pin(device, &page, 1, "a test", &err), STATUS_OK);
    cr_assert(device->ops->host_memory_unpin(device, &page));
    device_destroy(device);
}

static sigjmp_buf fault;

static void on_fault(int signal_number)
{
    (void)signal_number;
    siglongjmp(fault, 1);
}

static bool write_faults(volatile char *at)
{
    if (sigsetjmp(fault, 1) != 0)
        return true;
    *at = 7;
    return false;
}

static bool read_faults(volatile char *at)
{
    if (sigsetjmp(fault, 1) != 0)
        return true;
    char value = *at;
    (void)value;
    return false;
}

Test(device_memory, closed_it_is_a_fault)
{
    struct sigaction action = {.sa_handler = on_fault}, old;
    struct device *device = device_open(1), *other = device_open(1);
    char *a = get(device, 10000), *b = get(device, 1), *open = get(other, 100);
    memset(a, 5, 10000);
    cr_assert_eq(sigaction(SIGSEGV, &action, &old), 0);
    device_cpu_protect(device, true);
    for (int i = 0; i < 10000; i += 3333)
        cr_assert(write_faults(a + i) && read_faults(a + i));
    cr_assert(write_faults(b) && read_faults(b));
    cr_assert(!write_faults(open) && !read_faults(open));
    char *later = get(device, 100); /* closed from the beginning */
    cr_assert(write_faults(later));
    device->ops->memory_free(device, b);
    device_cpu_protect(device, false);
    cr_assert(!write_faults(a + 1) && !read_faults(a) && !write_faults(later));
    cr_assert(a[0] == 5 && a[1] == 7 && a[9999] == 5);
    cr_assert_eq(sigaction(SIGSEGV, &old, NULL), 0);
    device->ops->memory_free(device, a);
    device->ops->memory_free(device, later);
    other->ops->memory_free(other, open);
    device_destroy(device);
    device_destroy(other);
}
