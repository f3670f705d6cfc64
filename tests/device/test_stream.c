/* Streams of any device: order, concurrency, the ring, time, and how they end. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>

#include "base/memory.h"
#include "base/system.h"
#include "device_tools.h"

TestSuite(stream, .timeout = 60);

struct journal {
    int count;
    int numbers[MANY_CALLS];
};

struct entry {
    struct journal *journal;
    int number;
};

static enum status write_work(void *argument, struct error *err)
{
    (void)err;
    struct entry *entry = argument;
    entry->journal->numbers[entry->journal->count++] = entry->number;
    return STATUS_OK;
}

Test(stream, runs_in_order_beyond_its_ring)
{
    static struct journal journal;
    struct device *device = device_open(2);
    for (int i = 0; i < MANY_CALLS; i++)
        device->ops->call(device->stream, write_work, &(struct entry){&journal, i},
                          sizeof(struct entry));
    synchronize_ok(device, device->stream);
    cr_assert_eq(journal.count, MANY_CALLS);
    for (int i = 0; i < MANY_CALLS; i++)
        cr_assert_eq(journal.numbers[i], i);
    device_destroy(device);
}

/* The host and the stream at every distance, with and without sleep between. */
Test(stream, bursts_of_every_length)
{
    struct device *device = device_open(1);
    atomic_int count = 0;
    int expected = 0;
    for (int length = 0; length < 600; length += 1 + length / 8) {
        for (int i = 0; i < length; i++)
            put_count(device, device->stream, &count);
        synchronize_ok(device, device->stream);
        expected += length;
        cr_assert_eq(atomic_load(&count), expected);
        if (length % 3 == 0)
            sleep_ms(1);
    }
    device_destroy(device);
}

struct filling {
    struct device *device;
    atomic_int *count;
    atomic_int put;
};

static void *fill(void *context)
{
    struct filling *filling = context;
    for (int i = 0; i < MANY_CALLS; i++) {
        put_count(filling->device, filling->device->stream, filling->count);
        atomic_fetch_add(&filling->put, 1);
    }
    return NULL;
}

Test(stream, a_full_ring_holds_the_host)
{
    struct device *device = device_open(1);
    atomic_int opened = 0, count = 0;
    struct filling filling = {.device = device, .count = &count};
    pthread_t host;
    put_gate(device, device->stream, NULL, &opened);
    cr_assert_eq(pthread_create(&host, NULL, fill, &filling), 0);
    sleep_ms(100);
    cr_assert_lt(atomic_load(&filling.put), 1000);
    cr_assert_eq(atomic_load(&count), 0);
    atomic_store(&opened, 1);
    pthread_join(host, NULL);
    synchronize_ok(device, device->stream);
    cr_assert_eq(atomic_load(&count), MANY_CALLS);
    device_destroy(device);
}

static enum status look_work(void *argument, struct error *err)
{
    unsigned char *bytes = argument;
    for (int i = 0; i < STREAM_CALL_BYTES; i++) {
        if (bytes[i] != (unsigned char)(i * 7))
            return error_set(err, STATUS_INTERNAL, "byte %d of the argument is %d", i, bytes[i]);
        bytes[i] = 0; /* it is the call's own */
    }
    return (uintptr_t)argument % _Alignof(max_align_t) == 0 ? STATUS_OK : STATUS_INTERNAL;
}

Test(stream, the_argument_of_a_call_is_copied)
{
    struct device *device = device_open(1);
    unsigned char bytes[STREAM_CALL_BYTES];
    atomic_int opened = 0;
    put_gate(device, device->stream, NULL, &opened);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < STREAM_CALL_BYTES; i++)
            bytes[i] = (unsigned char)(i * 7);
        device->ops->call(device->stream, look_work, bytes, sizeof bytes);
    }
    memset(bytes, 1, sizeof bytes);
    atomic_store(&opened, 1);
    synchronize_ok(device, device->stream);
    device_destroy(device);
}

Test(stream, two_run_at_the_same_time)
{
    struct device *device = device_open(1);
    struct stream *other = stream_open(device, STREAM_NORMAL);
    atomic_int first = 0, second = 0;
    put_gate(device, device->stream, &first, &second); /* each opens the other's gate */
    put_gate(device, other, &second, &first);
    synchronize_ok(device, device->stream);
    synchronize_ok(device, other);
    device->ops->stream_destroy(device, other);
    device_destroy(device);
}

/* Which the device reaches, and the host looks at. */
static float *memory_of(struct device *device, size_t count)
{
    struct error err;
    void *memory;
    cr_assert_eq(
        device->ops->host_memory_get(device, &memory, count * sizeof(float), "a test", &err),
        STATUS_OK, "%s", err.message);
    return memory;
}

Test(stream, every_stream_computes)
{
    struct device *device = device_open(2);
    struct stream *streams[3] = {device->stream, stream_open(device, STREAM_NORMAL),
                                 stream_open(device, STREAM_LOW)};
    enum { COUNT = 64 * 1000 };
    float *out[3], *in = memory_of(device, COUNT);
    for (int i = 0; i < COUNT; i++)
        in[i] = (float)i;
    for (int s = 0; s < 3; s++) {
        out[s] = memory_of(device, COUNT);
        memset(out[s], 0, COUNT * sizeof(float));
    }
    for (int s = 0; s < 3; s++) {
        for (int round = 0; round < 3; round++)
            device->ops->add(streams[s], &(struct op_add){out[s], in, 1000, 64});
    }
    for (int s = 0; s < 3; s++)
        synchronize_ok(device, streams[s]);
    for (int s = 0; s < 3; s++) {
        for (int i = 0; i < COUNT; i++)
            cr_assert_eq(out[s][i], 3 * in[i]);
        device->ops->host_memory_free(device, out[s]);
    }
    device->ops->host_memory_free(device, in);
    device->ops->stream_destroy(device, streams[1]);
    device->ops->stream_destroy(device, streams[2]);
    device->ops->stream_destroy(device, NULL);
    device_destroy(device);
}

#define UPLOAD_ROWS    5
#define UPLOAD_BYTES   300 /* of a row */
#define UPLOAD_WORKERS 3
#define UPLOAD_ROUNDS  20

struct uploads {
    struct device *device;
    unsigned char *out[UPLOAD_WORKERS], *in[UPLOAD_WORKERS];
    enum status status[UPLOAD_WORKERS];
};

/* Every other 300 bytes of a block, again and again; the last round is what stays. */
static void upload_rows(void *context, int worker)
{
    struct uploads *uploads = context;
    struct op_copy copy = {.out = uploads->out[worker],
                           .in = uploads->in[worker],
                           .bytes = UPLOAD_BYTES,
                           .more_rows = UPLOAD_ROWS - 1,
                           .out_stride = 2 * UPLOAD_BYTES,
                           .in_stride = UPLOAD_BYTES};
    struct error err;
    if (worker >= UPLOAD_WORKERS)
        return;
    for (int round = 0; round < UPLOAD_ROUNDS; round++) {
        for (int i = 0; i < UPLOAD_ROWS * UPLOAD_BYTES; i++)
            uploads->in[worker][i] = (unsigned char)(i % 251 + worker + round);
        enum status status = uploads->device->ops->upload(uploads->device, &copy, &err);
        uploads->status[worker] = status != STATUS_OK ? status : uploads->status[worker];
        memset(uploads->in[worker], 0, (size_t)UPLOAD_ROWS * UPLOAD_BYTES); /* they are there */
    }
}

static void uploads_check(const struct uploads *uploads, int worker, unsigned char *found)
{
    struct device *device = uploads->device;
    const int64_t bytes = 2 * UPLOAD_ROWS * UPLOAD_BYTES;
    device->ops->copy(device->stream,
                      &(struct op_copy){.out = found, .in = uploads->out[worker], .bytes = bytes});
    synchronize_ok(device, device->stream);
    cr_assert_eq(uploads->status[worker], STATUS_OK);
    for (int i = 0; i < bytes; i++) {
        int row = i / (2 * UPLOAD_BYTES), at = i % (2 * UPLOAD_BYTES);
        int expected =
            at < UPLOAD_BYTES ? (row * UPLOAD_BYTES + at) % 251 + worker + UPLOAD_ROUNDS - 1 : 77;
        cr_assert_eq(found[i], (unsigned char)expected, "worker %d, byte %d", worker, i);
    }
}

Test(stream, threads_of_the_host_upload)
{
    struct device *device = device_open(UPLOAD_WORKERS);
    struct uploads uploads = {.device = device};
    const size_t bytes = (size_t)2 * UPLOAD_ROWS * UPLOAD_BYTES;
    struct error err;
    void *found;
    int workers = device->ops->host_workers(device);
    workers = workers < UPLOAD_WORKERS ? workers : UPLOAD_WORKERS;
    cr_assert_eq(device->ops->host_memory_get(device, &found, bytes, "a test", &err), STATUS_OK);
    for (int w = 0; w < UPLOAD_WORKERS; w++) {
        void **out = (void **)&uploads.out[w], **in = (void **)&uploads.in[w];
        cr_assert_eq(device->ops->memory_get(device, out, bytes, "a test", &err), STATUS_OK);
        cr_assert_eq(device->ops->host_memory_get(device, in, bytes, "a test", &err), STATUS_OK);
        device->ops->fill(device->stream,
                          &(struct op_fill){uploads.out[w], (int64_t)bytes, .byte = 77});
    }
    synchronize_ok(device, device->stream);
    device->ops->host_run(device, upload_rows, &uploads);
    for (int w = 0; w < workers; w++)
        uploads_check(&uploads, w, found);
    for (int w = 0; w < UPLOAD_WORKERS; w++) {
        device->ops->memory_free(device, uploads.out[w]);
        device->ops->host_memory_free(device, uploads.in[w]);
    }
    device->ops->host_memory_free(device, found);
    device_destroy(device);
}

static enum status nap(void *argument, struct error *err)
{
    (void)argument;
    (void)err;
    sleep_ms(20);
    return STATUS_OK;
}

Test(stream, time_counts_for_the_stage_that_stands)
{
    struct device *device = device_open(2);
    struct stage_total totals[DEVICE_STAGES];
    double before = system_seconds();
    device->ops->stage(device->stream, 3, -1);
    device->ops->call(device->stream, nap, NULL, 0);
    device->ops->stage(device->stream, DEVICE_STAGES - 1, -1);
    device->ops->call(device->stream, nap, NULL, 0);
    device->ops->call(device->stream, nap, NULL, 0);
    device->ops->stage(device->stream, 3, -1);
    device->ops->call(device->stream, nap, NULL, 0);
    device->ops->stage(device->stream, 0, -1);
    synchronize_ok(device, device->stream);
    double whole = system_seconds() - before;
    device->ops->stage_totals(device->stream, totals);
    cr_expect_geq(totals[3].seconds, 0.04);
    cr_expect_geq(totals[DEVICE_STAGES - 1].seconds, 0.04);
    cr_expect_leq(totals[3].seconds + totals[DEVICE_STAGES - 1].seconds, whole);
    for (int stage = 1; stage < DEVICE_STAGES - 1; stage++)
        cr_expect(stage == 3 || totals[stage].seconds == 0, "%d", stage);
    device_destroy(device);
}

Test(stream, destroying_runs_what_is_queued)
{
    uint64_t live = memory_counters_get().live_count;
    for (int of_device = 0; of_device < 2; of_device++) {
        struct device *device = device_open(2);
        struct stream *stream = of_device ? device->stream : stream_open(device, STREAM_LOW);
        atomic_int opened = 0, count = 0;
        put_gate(device, stream, NULL, &opened);
        for (int i = 0; i < 200; i++)
            put_count(device, stream, &count);
        atomic_store(&opened, 1);
        if (!of_device) {
            device->ops->stream_destroy(device, stream);
            cr_assert_eq(atomic_load(&count), 200);
        }
        device_destroy(device);
        cr_assert_eq(atomic_load(&count), 200);
    }
    cr_assert_eq(memory_counters_get().live_count, live);
}

Test(stream, opens_and_closes_at_once)
{
    uint64_t live = memory_counters_get().live_count;
    for (int i = 0; i < 50; i++) {
        struct device *device = device_open(1 + i % 3);
        struct stream *stream = stream_open(device, i % 2 ? STREAM_LOW : STREAM_NORMAL);
        if (i % 5 == 0)
            sleep_ms(1);
        device->ops->stream_destroy(device, stream);
        device_destroy(device);
    }
    device_destroy(NULL);
    cr_assert_eq(memory_counters_get().live_count, live);
}
