/* Memory that a stream has for what its operations leave to each other. */
#include <criterion/criterion.h>

#include "cuda_tools.h"
#include "device/peers.h"
#include "simt_control.h"

TestSuite(cuda_scratch, .timeout = 60);

struct scratch {
    struct device *device;
    void *got[4];
};

static enum status scratch_get(void *argument, struct error *err)
{
    static const size_t bytes[4] = {1000, 1001, 2000, 5000};
    struct scratch *scratch = *(struct scratch **)argument;
    for (int i = 0; i < 4; i++)
        TRY(scratch->device->ops->peers->scratch(scratch->device->stream, bytes[i],
                                                 &scratch->got[i], err));
    return STATUS_OK;
}

/* What grows by a little each time is not got anew each time: the GPU is waited for then. */
Test(cuda_scratch, scratch_memory_is_doubled)
{
    struct scratch scratch = {.device = device_open(1)}, *argument = &scratch;
    uint64_t waits = gpu_waits();
    scratch.device->ops->peers->call(scratch.device->stream, scratch_get, &argument,
                                     sizeof argument);
    synchronize_ok(scratch.device, scratch.device->stream);
    cr_expect_neq(scratch.got[1], scratch.got[0]);
    cr_expect_eq(scratch.got[2], scratch.got[1]);
    cr_expect_neq(scratch.got[3], scratch.got[2]);
    cr_expect_eq(gpu_waits() - waits, 3 + 1);
    device_destroy(scratch.device);
    gpu_check_nothing_left();
}

struct refused {
    struct device *device;
    uint64_t call; /* of the runtime, of those of the second */
    bool was_refused;
};

static enum status refused_get(void *argument, struct error *err)
{
    struct refused *refused = *(struct refused **)argument;
    struct stream *stream = refused->device->stream;
    const struct peer_ops *peers = refused->device->ops->peers;
    void *got;
    TRY(peers->scratch(stream, 1000, &got, err));
    simt_fail_at(refused->call, cudaErrorMemoryAllocation);
    enum status status = peers->scratch(stream, 1001, &got, err);
    refused->was_refused = !simt_fail_is_ahead();
    simt_fail_at(0, cudaSuccess);
    return status;
}

/* Where twice as much is not to be had, what is asked for may be: one call may fail. */
Test(cuda_scratch, that_cannot_be_doubled)
{
    int spared = 0;
    struct refused refused = {.was_refused = true}, *argument = &refused;
    for (refused.call = 1; refused.was_refused; refused.call++) {
        struct error err = {.message = ""};
        refused.device = device_open(1);
        struct stream *stream = refused.device->stream;
        refused.device->ops->peers->call(stream, refused_get, &argument, sizeof argument);
        enum status status = refused.device->ops->synchronize(stream, &err);
        spared += refused.was_refused && status == STATUS_OK;
        cr_expect(refused.was_refused || status == STATUS_OK);
        device_destroy(refused.device);
    }
    cr_expect_eq(spared, 1);
    gpu_check_nothing_left();
}
