#include "device_tools.h"

#include <criterion/criterion.h>
#include <time.h>

struct stream *stream_open(struct device *device, enum stream_priority priority)
{
    struct stream *stream;
    struct error err;
    cr_assert_eq(device->ops->stream_create(device, &stream, priority, &err), STATUS_OK, "%s",
                 err.message);
    return stream;
}

struct event *event_open(struct device *device)
{
    struct event *event;
    struct error err;
    cr_assert_eq(device->ops->event_create(device, &event, &err), STATUS_OK, "%s", err.message);
    return event;
}

void synchronize_ok(struct device *device, struct stream *stream)
{
    struct error err;
    cr_assert_eq(device->ops->synchronize(stream, &err), STATUS_OK, "%s", err.message);
}

void event_synchronize_ok(struct device *device, struct event *event)
{
    struct error err;
    cr_assert_eq(device->ops->event_synchronize(event, &err), STATUS_OK, "%s", err.message);
}

void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

void flag_wait(atomic_int *flag, int value)
{
    while (atomic_load(flag) != value)
        sleep_ms(1);
}

static enum status count_work(void *argument, struct error *err)
{
    (void)err;
    atomic_fetch_add(*(atomic_int **)argument, 1);
    return STATUS_OK;
}

void put_count(struct device *device, struct stream *stream, atomic_int *flag)
{
    device->ops->call(stream, count_work, &flag, sizeof flag);
}

struct gate {
    atomic_int *entered, *opened;
};

static enum status gate_work(void *argument, struct error *err)
{
    struct gate *gate = argument;
    (void)err;
    if (gate->entered != NULL)
        atomic_store(gate->entered, 1);
    flag_wait(gate->opened, 1);
    return STATUS_OK;
}

void put_gate(struct device *device, struct stream *stream, atomic_int *entered, atomic_int *opened)
{
    device->ops->call(stream, gate_work, &(struct gate){entered, opened}, sizeof(struct gate));
}

static enum status failure_work(void *argument, struct error *err)
{
    return error_set(err, STATUS_IO, "%s", *(const char **)argument);
}

void put_failure(struct device *device, struct stream *stream, const char *sentence)
{
    device->ops->call(stream, failure_work, &sentence, sizeof sentence);
}
