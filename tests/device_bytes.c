#include "device_bytes.h"

#include <criterion/criterion.h>
#include <string.h>

#include "base/memory.h"

static void move(struct device *device, void *out, const void *in, size_t bytes)
{
    const struct device_ops *ops = device->ops;
    struct stream *stream;
    struct error err;
    if (ops->host_reaches) {
        memcpy(out, in, bytes);
        return;
    }
    cr_assert_eq(ops->stream_create(device, &stream, STREAM_NORMAL, &err), STATUS_OK, "%s",
                 err.message);
    ops->copy(stream, &(struct op_copy){.out = out, .in = in, .bytes = (int64_t)bytes});
    cr_assert_eq(ops->synchronize(stream, &err), STATUS_OK, "%s", err.message);
    ops->stream_destroy(device, stream);
}

void device_read(struct device *device, void *out, const void *in, size_t bytes)
{
    move(device, out, in, bytes);
}

void device_write(struct device *device, void *out, const void *in, size_t bytes)
{
    move(device, out, in, bytes);
}

void *device_copy(struct device *device, const void *in, size_t bytes)
{
    void *out = memory_alloc_raw(bytes, 1);
    cr_assert_not_null(out);
    device_read(device, out, in, bytes);
    return out;
}
