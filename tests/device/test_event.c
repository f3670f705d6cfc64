/* Events: what is held, and until when. */
#include <criterion/criterion.h>
#include <pthread.h>

#include "base/memory.h"
#include "device_tools.h"

TestSuite(event, .timeout = 60);

struct pair {
    struct device *device;
    struct stream *one, *other;
    struct event *event;
};

static struct pair pair_open(void)
{
    struct pair pair = {.device = device_open(1)};
    pair.one = pair.device->stream;
    pair.other = stream_open(pair.device, STREAM_NORMAL);
    pair.event = event_open(pair.device);
    return pair;
}

static void pair_close(struct pair *pair)
{
    synchronize_ok(pair->device, pair->one);
    synchronize_ok(pair->device, pair->other);
    pair->device->ops->event_destroy(pair->device, pair->event);
    pair->device->ops->event_destroy(pair->device, NULL);
    pair->device->ops->stream_destroy(pair->device, pair->other);
    device_destroy(pair->device);
}

Test(event, orders_two_streams)
{
    struct pair pair = pair_open();
    const struct device_ops *ops = pair.device->ops;
    for (int round = 0; round < 20; round++) {
        atomic_int opened = 0, count = 0;
        put_gate(pair.device, pair.one, NULL, &opened);
        ops->event_record(pair.one, pair.event);
        ops->event_wait(pair.other, pair.event);
        put_count(pair.device, pair.other, &count);
        sleep_ms(round % 4);
        cr_assert_eq(atomic_load(&count), 0);
        atomic_store(&opened, 1);
        synchronize_ok(pair.device, pair.other);
        cr_assert_eq(atomic_load(&count), 1);
    }
    pair_close(&pair);
}

struct plain {
    int *values;
    int at, from;
};

static enum status plain_work(void *argument, struct error *err)
{
    struct plain *plain = argument;
    if (plain->at > 0 && plain->values[plain->from] != plain->from)
        return error_set(err, STATUS_INTERNAL, "value %d is not there", plain->from);
    plain->values[plain->at] = plain->at;
    return STATUS_OK;
}

/* Two streams hand plain memory to and fro: each waits for the other's last. */
Test(event, what_was_written_before_is_seen_behind)
{
    struct pair pair = pair_open();
    const struct device_ops *ops = pair.device->ops;
    struct event *back = event_open(pair.device);
    static int values[2000];
    for (int i = 0; i < 2000; i++) {
        struct stream *stream = i % 2 == 0 ? pair.one : pair.other;
        ops->event_wait(stream, i % 2 == 0 ? back : pair.event);
        ops->call(stream, plain_work, &(struct plain){values, i, i - 1}, sizeof(struct plain));
        ops->event_record(stream, i % 2 == 0 ? pair.event : back);
    }
    synchronize_ok(pair.device, pair.one);
    synchronize_ok(pair.device, pair.other);
    ops->event_destroy(pair.device, back);
    pair_close(&pair);
}

Test(event, one_that_was_never_recorded_is_passed)
{
    struct pair pair = pair_open();
    event_synchronize_ok(pair.device, pair.event);
    pair.device->ops->event_wait(pair.one, pair.event);
    synchronize_ok(pair.device, pair.one);
    pair_close(&pair);
}

Test(event, the_last_record_counts)
{
    struct pair pair = pair_open();
    const struct device_ops *ops = pair.device->ops;
    atomic_int first = 0, second = 0, behind_first = 0, behind_second = 0;
    put_gate(pair.device, pair.one, NULL, &first);
    ops->event_record(pair.one, pair.event);
    ops->event_wait(pair.other, pair.event); /* the record that was there when it was put */
    put_count(pair.device, pair.other, &behind_first);
    put_gate(pair.device, pair.one, NULL, &second);
    ops->event_record(pair.one, pair.event);
    ops->event_wait(pair.other, pair.event);
    put_count(pair.device, pair.other, &behind_second);
    sleep_ms(20);
    cr_assert_eq(atomic_load(&behind_first), 0);
    atomic_store(&first, 1);
    flag_wait(&behind_first, 1);
    sleep_ms(20);
    cr_assert_eq(atomic_load(&behind_second), 0);
    atomic_store(&second, 1);
    event_synchronize_ok(pair.device, pair.event);
    flag_wait(&behind_second, 1);
    pair_close(&pair);
}

/* Recorded on a stream that is held, then on one that is free: the last one is reached, and stays
 * so when the first comes. */
Test(event, records_on_two_streams)
{
    struct pair pair = pair_open();
    const struct device_ops *ops = pair.device->ops;
    atomic_int opened = 0;
    put_gate(pair.device, pair.one, NULL, &opened);
    ops->event_record(pair.one, pair.event);
    ops->event_record(pair.other, pair.event);
    event_synchronize_ok(pair.device, pair.event);
    cr_assert_eq(atomic_load(&opened), 0);
    atomic_store(&opened, 1);
    synchronize_ok(pair.device, pair.one);
    event_synchronize_ok(pair.device, pair.event);
    pair_close(&pair);
}

struct opener {
    atomic_int *opened;
    int waited;
};

static void *open_later(void *context)
{
    struct opener *opener = context;
    sleep_ms(50);
    opener->waited = 1;
    atomic_store(opener->opened, 1);
    return NULL;
}

Test(event, holds_the_host)
{
    struct pair pair = pair_open();
    atomic_int opened = 0;
    struct opener opener = {.opened = &opened};
    pthread_t thread;
    put_gate(pair.device, pair.one, NULL, &opened);
    pair.device->ops->event_record(pair.one, pair.event);
    cr_assert_eq(pthread_create(&thread, NULL, open_later, &opener), 0);
    event_synchronize_ok(pair.device, pair.event);
    cr_assert_eq(atomic_load(&opened), 1);
    pthread_join(thread, NULL);
    pair_close(&pair);
}

Test(event, holds_several_streams)
{
    struct device *device = device_open(1);
    struct event *event = event_open(device);
    struct stream *streams[5];
    atomic_int opened = 0, count = 0;
    put_gate(device, device->stream, NULL, &opened);
    device->ops->event_record(device->stream, event);
    for (int i = 0; i < 5; i++) {
        streams[i] = stream_open(device, i % 2 ? STREAM_LOW : STREAM_NORMAL);
        device->ops->event_wait(streams[i], event);
        put_count(device, streams[i], &count);
    }
    sleep_ms(20);
    cr_assert_eq(atomic_load(&count), 0);
    atomic_store(&opened, 1);
    for (int i = 0; i < 5; i++)
        device->ops->stream_destroy(device, streams[i]);
    cr_assert_eq(atomic_load(&count), 5);
    device->ops->event_destroy(device, event);
    device_destroy(device);
}

/* An event goes as soon as the host has seen it passed, while the stream may still be waking
 * others; and with a record and a wait of it still queued. */
Test(event, is_destroyed_at_once)
{
    struct pair pair = pair_open();
    const struct device_ops *ops = pair.device->ops;
    uint64_t live = memory_counters_get().live_count;
    for (int i = 0; i < 500; i++) {
        struct event *event = event_open(pair.device);
        ops->event_record(pair.one, event);
        if (i % 2 == 0)
            ops->event_wait(pair.other, event);
        if (i % 3 != 0)
            event_synchronize_ok(pair.device, event);
        ops->event_destroy(pair.device, event);
    }
    cr_assert_eq(memory_counters_get().live_count, live);
    pair_close(&pair);
}
