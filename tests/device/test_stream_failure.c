/* Failures of streams: the first one stays, and nobody waits for ever. */
#include <criterion/criterion.h>
#include <string.h>

#include "base/memory.h"
#include "device_tools.h"

TestSuite(stream_failure, .timeout = 60);

static void check_failed(struct device *device, struct stream *stream, const char *sentence)
{
    for (int i = 0; i < 2; i++) {
        struct error err = {STATUS_OK, ""};
        cr_assert_eq(device->ops->synchronize(stream, &err), STATUS_IO);
        cr_assert_eq(err.status, STATUS_IO);
        cr_assert_str_eq(err.message, sentence);
        cr_assert_eq(device->ops->synchronize(stream, NULL), STATUS_IO);
    }
}

Test(stream_failure, stays_and_stops_what_follows)
{
    struct device *device = device_open(2);
    struct stream *other = stream_open(device, STREAM_NORMAL);
    static float out[16], in[16] = {1};
    atomic_int count = 0;
    put_count(device, device->stream, &count);
    put_failure(device, device->stream, "the first");
    put_count(device, device->stream, &count);
    put_failure(device, device->stream, "the second");
    device->ops->add(device->stream, &(struct op_add){out, in, 1, 16});
    check_failed(device, device->stream, "the first");
    for (int i = 0; i < 600; i++)
        put_count(device, device->stream, &count);
    check_failed(device, device->stream, "the first");
    cr_assert_eq(atomic_load(&count), 1);
    cr_assert_eq(out[0], 0);
    put_count(device, other, &count); /* another stream is another matter */
    synchronize_ok(device, other);
    cr_assert_eq(atomic_load(&count), 2);
    device->ops->stream_destroy(device, other);
    device_destroy(device);
}

struct report {
    int count;
    struct error last;
    struct device *device;
};

static void report_failure(void *context, const struct error *err)
{
    struct report *report = context;
    report->count++;
    report->last = *err;
}

Test(stream_failure, is_told_once_for_each_stream)
{
    struct device *device = device_open(1);
    struct stream *other = stream_open(device, STREAM_LOW);
    struct report report = {0};
    device->ops->on_failure(device, report_failure, &report);
    for (int i = 0; i < 3; i++)
        put_failure(device, device->stream, "of the stream");
    check_failed(device, device->stream, "of the stream");
    cr_assert_eq(report.count, 1);
    cr_assert_eq(report.last.status, STATUS_IO);
    cr_assert_str_eq(report.last.message, "of the stream");
    put_failure(device, other, "of the other");
    put_failure(device, other, "of the other, again");
    check_failed(device, other, "of the other");
    check_failed(device, device->stream, "of the stream");
    cr_assert_eq(report.count, 2);
    cr_assert_str_eq(report.last.message, "of the other");
    device->ops->stream_destroy(device, other);
    device_destroy(device);
}

static enum status silent_work(void *argument, struct error *err)
{
    (void)argument;
    (void)err;
    return STATUS_IO;
}

Test(stream_failure, without_a_sentence)
{
    struct device *device = device_open(1);
    device->ops->call(device->stream, silent_work, NULL, 0);
    check_failed(device, device->stream, "");
    device_destroy(device);
}

Test(stream_failure, events_are_recorded_nevertheless)
{
    struct device *device = device_open(1);
    struct stream *other = stream_open(device, STREAM_NORMAL);
    struct event *event = event_open(device);
    atomic_int count = 0;
    put_failure(device, device->stream, "a failure");
    device->ops->event_record(device->stream, event);
    device->ops->event_wait(other, event);
    put_count(device, other, &count);
    synchronize_ok(device, other);
    cr_assert_eq(atomic_load(&count), 1);
    event_synchronize_ok(device, event);
    device->ops->event_destroy(device, event);
    device->ops->stream_destroy(device, other);
    device_destroy(device);
}

/* What is recorded behind a wait says that both are over, also on a stream that has failed. */
Test(stream_failure, waits_are_kept)
{
    struct device *device = device_open(1);
    struct stream *other = stream_open(device, STREAM_NORMAL);
    struct event *before = event_open(device), *behind = event_open(device);
    atomic_int opened = 0, count = 0;
    put_gate(device, other, NULL, &opened);
    device->ops->event_record(other, before);
    put_failure(device, device->stream, "a failure");
    device->ops->event_wait(device->stream, before);
    device->ops->event_record(device->stream, behind);
    struct stream *third = stream_open(device, STREAM_NORMAL);
    device->ops->event_wait(third, behind);
    put_count(device, third, &count);
    sleep_ms(50);
    cr_assert_eq(atomic_load(&count), 0);
    atomic_store(&opened, 1);
    synchronize_ok(device, third);
    cr_assert_eq(atomic_load(&count), 1);
    device->ops->event_destroy(device, before);
    device->ops->event_destroy(device, behind);
    device->ops->stream_destroy(device, third);
    device->ops->stream_destroy(device, other);
    device_destroy(device);
}

static void count_each(void *context, int worker)
{
    (void)worker;
    atomic_fetch_add((atomic_int *)context, 1);
}

Test(stream_failure, host_work_runs_nevertheless)
{
    struct device *device = device_open(2);
    atomic_int count = 0;
    put_failure(device, device->stream, "a failure");
    device->ops->host_run(device, count_each, &count);
    cr_assert_eq(atomic_load(&count), device->ops->host_workers(device));
    check_failed(device, device->stream, "a failure");
    device_destroy(device);
}

Test(stream_failure, progress_goes_on)
{
    struct device *device = device_open(1);
    atomic_int count = 0;
    put_failure(device, device->stream, "a failure");
    check_failed(device, device->stream, "a failure");
    uint64_t before = device->ops->progress(device->stream);
    put_count(device, device->stream, &count);
    check_failed(device, device->stream, "a failure");
    cr_assert_gt(device->ops->progress(device->stream), before);
    device_destroy(device);
}
