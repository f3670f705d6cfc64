/* Streams under a turn: taken before work, given when there is none or others are waited for. */
#include <criterion/criterion.h>
#include <pthread.h>

#include "device_tools.h"

TestSuite(turn, .timeout = 60);

/* One holder at a time. */
struct test_turn {
    struct turn turn;
    pthread_mutex_t lock;
    atomic_int holders, takes, gives;
};

static void test_take(struct turn *turn, struct device *device)
{
    (void)device;
    struct test_turn *of = (struct test_turn *)turn;
    pthread_mutex_lock(&of->lock);
    atomic_fetch_add(&of->holders, 1);
    atomic_fetch_add(&of->takes, 1);
}

static void test_give(struct turn *turn, struct device *device)
{
    (void)device;
    struct test_turn *of = (struct test_turn *)turn;
    atomic_fetch_sub(&of->holders, 1);
    atomic_fetch_add(&of->gives, 1);
    pthread_mutex_unlock(&of->lock);
}

static struct test_turn test_turn(void)
{
    return (struct test_turn){.turn = {.take = test_take, .give = test_give},
                              .lock = PTHREAD_MUTEX_INITIALIZER};
}

static struct device *open_with(struct test_turn *turn)
{
    struct device *device;
    struct error err;
    struct cpu_share share = {.thread_count = 1, .first_cpu = -1, .turn = &turn->turn};
    cr_assert_eq(device_cpu_create(&device, &share, &err), STATUS_OK);
    cr_assert_eq(device->turn, &turn->turn);
    return device;
}

struct visit {
    struct test_turn *turn;
    int *value; /* plain memory: the turn keeps the visits apart */
};

static enum status visit_work(void *argument, struct error *err)
{
    struct visit *visit = argument;
    if (atomic_load(&visit->turn->holders) != 1)
        return error_set(err, STATUS_INTERNAL, "without the turn");
    int value = *visit->value;
    sched_yield();
    *visit->value = value + 1;
    return STATUS_OK;
}

Test(turn, keeps_devices_apart)
{
    struct test_turn turn = test_turn();
    struct device *devices[3];
    int value = 0;
    for (int d = 0; d < 3; d++)
        devices[d] = open_with(&turn);
    for (int i = 0; i < 300; i++)
        devices[i % 3]->ops->call(devices[i % 3]->stream, visit_work,
                                  &(struct visit){&turn, &value}, sizeof(struct visit));
    for (int d = 0; d < 3; d++)
        synchronize_ok(devices[d], devices[d]->stream);
    cr_assert_eq(value, 300);
    for (int d = 0; d < 3; d++)
        device_destroy(devices[d]);
    cr_assert_eq(atomic_load(&turn.takes), atomic_load(&turn.gives));
}

Test(turn, is_given_by_who_has_nothing_to_do)
{
    struct test_turn turn = test_turn();
    struct device *device = open_with(&turn);
    atomic_int count = 0;
    cr_assert_eq(atomic_load(&turn.takes), 0, "before anything is put");
    put_count(device, device->stream, &count);
    flag_wait(&turn.gives, 1);
    cr_assert_eq(atomic_load(&turn.takes), 1);
    device_destroy(device);
    cr_assert_eq(atomic_load(&turn.gives), 1);
}

/* The stream that waits gives the turn: else the one that it waits for could not run. */
Test(turn, is_given_by_who_waits_for_another_stream)
{
    struct test_turn turn = test_turn();
    struct device *one = open_with(&turn), *other = open_with(&turn);
    struct event *event = event_open(one);
    atomic_int opened = 0, entered = 0, count = 0;
    put_gate(one, one->stream, &entered, &opened);
    one->ops->event_record(one->stream, event);
    flag_wait(&entered, 1); /* it has the turn */
    other->ops->event_wait(other->stream, event);
    put_count(other, other->stream, &count);
    atomic_store(&opened, 1);
    synchronize_ok(other, other->stream);

    opened = entered = 0;
    struct stream *beside = stream_open(other, STREAM_NORMAL);
    put_gate(one, one->stream, &entered, &opened);
    one->ops->event_record(one->stream, event);
    other->ops->event_wait(other->stream, event);
    flag_wait(&entered, 1);
    atomic_store(&opened, 1);
    put_count(other, beside, &count);
    synchronize_ok(other, other->stream);
    synchronize_ok(other, beside);
    cr_assert_eq(atomic_load(&count), 2);
    other->ops->stream_destroy(other, beside);
    one->ops->event_destroy(one, event);
    device_destroy(one);
    device_destroy(other);
    cr_assert_eq(atomic_load(&turn.takes), atomic_load(&turn.gives));
}

/* The other order: who waits has the turn first. */
Test(turn, a_wait_that_comes_first_does_not_block)
{
    struct test_turn turn = test_turn();
    struct device *one = open_with(&turn), *other = open_with(&turn);
    struct event *event = event_open(one);
    atomic_int opened = 0, entered = 0, count = 0;
    put_gate(other, other->stream, &entered, &opened);
    flag_wait(&entered, 1);
    put_count(one, one->stream, &count); /* must wait for the turn */
    one->ops->event_record(one->stream, event);
    other->ops->event_wait(other->stream, event);
    sleep_ms(20);
    cr_assert_eq(atomic_load(&count), 0);
    atomic_store(&opened, 1);
    synchronize_ok(other, other->stream);
    cr_assert_eq(atomic_load(&count), 1);
    one->ops->event_destroy(one, event);
    device_destroy(one);
    device_destroy(other);
}

Test(turn, there_may_be_none)
{
    struct device *device = device_open(1);
    cr_assert_null(device->turn);
    device_destroy(device);
}
