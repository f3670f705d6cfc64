#include "faulty_device.h"

#include <stdatomic.h>
#include <time.h>

#include "patience.h"

static struct fault {
    struct device_ops ops;
    const struct device_ops *real;
    enum fault_kind kind;
    size_t spared_bytes;
    struct comm_domain *domain;
    bool (*do_all_wait)(void *context);
    void *context;
    atomic_llong left;    /* operations until it comes */
    atomic_int nap_count; /* on streams, and not over */
} fault;

static enum status fail(void *argument, struct error *err)
{
    (void)argument;
    return error_set(err, STATUS_IO, FAULT_SENTENCE);
}

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

static enum status hang(void *argument, struct error *err)
{
    (void)argument;
    (void)err;
    while (!fault.do_all_wait(fault.context))
        sleep_ms(1);
    time_passes_to_the_end(fault.domain);
    return STATUS_OK;
}

static enum status nap(void *argument, struct error *err)
{
    (void)argument;
    (void)err;
    sleep_ms(FAULT_LATE_MS);
    atomic_fetch_sub(&fault.nap_count, 1);
    return STATUS_OK;
}

/* What waits for the synchronize that will fail, or for the one before: where two streams are
 * synchronized in turn it is there already. */
static void make_late(struct stream *stream)
{
    long long left = atomic_load(&fault.left);
    if (left != 1 && left != 2)
        return;
    atomic_fetch_add(&fault.nap_count, 1);
    fault.real->call(stream, nap, "", 1);
}

static void count_down(struct stream *stream)
{
    if (atomic_fetch_sub(&fault.left, 1) == 1)
        fault.real->call(stream, fault.kind == FAULT_HANG ? hang : fail, "", 1);
}

#define OPERATIONS(X)                                                                              \
    X(embed)                                                                                       \
    X(rms_norm)                                                                                    \
    X(add)                                                                                         \
    X(matmul)                                                                                      \
    X(rope_append)                                                                                 \
    X(attention)                                                                                   \
    X(route)                                                                                       \
    X(dispatch)                                                                                    \
    X(group)                                                                                       \
    X(ffn_up) X(ffn_down) X(combine) X(shared_add) X(choose) X(candidates) X(gather) X(copy)
#define DEFINE_FAULTY(name)                                                                        \
    static void faulty_##name(struct stream *stream, const struct op_##name *op)                   \
    {                                                                                              \
        count_down(stream);                                                                        \
        fault.real->name(stream, op);                                                              \
    }
OPERATIONS(DEFINE_FAULTY)

/* Where calls are spared, the fills of freed slots are, too. */
static void faulty_fill(struct stream *stream, const struct op_fill *op)
{
    if (fault.spared_bytes == SIZE_MAX)
        count_down(stream);
    fault.real->fill(stream, op);
}

static void faulty_call(struct stream *stream,
                        enum status (*work)(void *argument, struct error *err),
                        const void *argument, size_t bytes)
{
    if (fault.kind == FAULT_HOST)
        make_late(stream);
    else if (bytes != fault.spared_bytes)
        count_down(stream);
    fault.real->call(stream, work, argument, bytes);
}

static enum status faulty_synchronize(struct stream *stream, struct error *err)
{
    if (atomic_fetch_sub(&fault.left, 1) == 1)
        return fail(NULL, err);
    return fault.real->synchronize(stream, err);
}

void faulty_device_install(struct device *device, enum fault_kind kind)
{
    fault.real = device->ops;
    fault.ops = *device->ops;
    fault.kind = kind;
    fault.spared_bytes = SIZE_MAX;
    atomic_store(&fault.left, INT64_MAX);
    atomic_store(&fault.nap_count, 0);
#define USE_FAULTY(name) fault.ops.name = faulty_##name;
    fault.ops.call = faulty_call;
    if (kind == FAULT_HOST) {
        fault.ops.synchronize = faulty_synchronize;
    } else {
        OPERATIONS(USE_FAULTY)
        USE_FAULTY(fill)
    }
    device->ops = &fault.ops;
}

void faulty_device_remove(struct device *device)
{
    device->ops = fault.real;
}

void faulty_device_hang(struct comm_domain *domain, bool (*do_all_wait)(void *context),
                        void *context)
{
    fault.domain = domain;
    fault.do_all_wait = do_all_wait;
    fault.context = context;
}

void faulty_device_spare(size_t bytes)
{
    fault.spared_bytes = bytes;
}

void faulty_device_arm(int64_t n)
{
    atomic_store(&fault.left, n);
}

bool faulty_device_has_failed(void)
{
    return atomic_load(&fault.left) <= 0;
}

bool faulty_device_is_busy(void)
{
    return atomic_load(&fault.nap_count) > 0;
}
