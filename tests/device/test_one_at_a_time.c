/* Ranks that take turns: one at a time, each in its time, and nobody for ever. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>

#include "device/one_at_a_time.h"
#include "device_tools.h"

#define DEVICES 3
#define CALLS   200

static atomic_int at_work, most_at_work;

static enum status work(void *argument, struct error *err)
{
    (void)argument;
    (void)err;
    int count = atomic_fetch_add(&at_work, 1) + 1;
    if (count > atomic_load(&most_at_work))
        atomic_store(&most_at_work, count);
    for (int i = 0; i < 100; i++)
        atomic_load(&at_work);
    atomic_fetch_sub(&at_work, 1);
    return STATUS_OK;
}

struct ranks {
    struct turn *turn;
    struct device *devices[DEVICES];
    struct stream *low[DEVICES];
};

static void ranks_open(struct ranks *ranks)
{
    struct error err;
    cr_assert_eq(one_at_a_time_create(&ranks->turn, &err), STATUS_OK);
    for (int d = 0; d < DEVICES; d++) {
        struct cpu_share share = {
            .thread_count = 1 + d % 2, .first_cpu = -1, .turn = ranks->turn, .rank = d};
        cr_assert_eq(device_cpu_create(&ranks->devices[d], &share, &err), STATUS_OK);
        cr_assert_eq(ranks->devices[d]->ops->stream_create(ranks->devices[d], &ranks->low[d],
                                                           STREAM_LOW, &err),
                     STATUS_OK);
    }
}

static void ranks_synchronize(struct ranks *ranks)
{
    struct error err;
    for (int d = 0; d < DEVICES; d++) {
        const struct device_ops *ops = ranks->devices[d]->ops;
        cr_assert_eq(ops->synchronize(ranks->devices[d]->stream, &err), STATUS_OK);
        cr_assert_eq(ops->synchronize(ranks->low[d], &err), STATUS_OK);
    }
}

static void ranks_close(struct ranks *ranks)
{
    for (int d = 0; d < DEVICES; d++) {
        ranks->devices[d]->ops->stream_destroy(ranks->devices[d], ranks->low[d]);
        ranks->devices[d]->ops->destroy(ranks->devices[d]);
    }
    one_at_a_time_destroy(ranks->turn);
}

Test(one_at_a_time, no_two_streams_of_any_rank_work_at_once)
{
    struct ranks ranks;
    ranks_open(&ranks);
    for (int i = 0; i < CALLS; i++) {
        for (int d = 0; d < DEVICES; d++) {
            const struct device_ops *ops = ranks.devices[d]->ops;
            ops->call(ranks.devices[d]->stream, work, NULL, 0);
            ops->call(ranks.low[d], work, NULL, 0);
        }
    }
    ranks_synchronize(&ranks);
    cr_expect_eq(atomic_load(&most_at_work), 1);
    ranks_close(&ranks);
}

/* Who waits for another lets it work: streams that wait for one another in a circle of events come
 * to an end. */
Test(one_at_a_time, who_waits_gives_its_turn)
{
    struct ranks ranks;
    struct event *events[DEVICES];
    struct error err;
    ranks_open(&ranks);
    for (int d = 0; d < DEVICES; d++)
        cr_assert_eq(ranks.devices[d]->ops->event_create(ranks.devices[d], &events[d], &err),
                     STATUS_OK);
    for (int i = 0; i < CALLS; i++) {
        for (int d = 0; d < DEVICES; d++) {
            const struct device_ops *ops = ranks.devices[d]->ops;
            ops->event_wait(ranks.devices[d]->stream, events[(d + 1) % DEVICES]);
            ops->call(ranks.devices[d]->stream, work, NULL, 0);
            ops->event_record(ranks.devices[d]->stream, events[d]);
            ops->event_wait(ranks.low[d], events[d]);
            ops->call(ranks.low[d], work, NULL, 0);
        }
    }
    ranks_synchronize(&ranks);
    cr_expect_eq(atomic_load(&most_at_work), 1);
    for (int d = 0; d < DEVICES; d++)
        ranks.devices[d]->ops->event_destroy(ranks.devices[d], events[d]);
    ranks_close(&ranks);
}

/* ---- In the order in which they ask ---------------------------------------------------------- */

#define ASKING 4

static struct {
    struct turn *turn;
    atomic_int served;
    int order[ASKING];
} queue;

static void *ask(void *context)
{
    int own = (int)(intptr_t)context;
    queue.turn->take(queue.turn, NULL);
    queue.order[atomic_fetch_add(&queue.served, 1)] = own;
    queue.turn->give(queue.turn, NULL);
    return NULL;
}

Test(one_at_a_time, turns_come_in_the_order_in_which_they_were_asked_for)
{
    pthread_t threads[ASKING];
    struct error err;
    cr_assert_eq(one_at_a_time_create(&queue.turn, &err), STATUS_OK);
    queue.turn->take(queue.turn, NULL);
    for (int t = 0; t < ASKING; t++) {
        cr_assert_eq(pthread_create(&threads[t], NULL, ask, (void *)(intptr_t)t), 0);
        while (one_at_a_time_asking(queue.turn) <= t)
            sleep_ms(1);
    }
    cr_expect_eq(atomic_load(&queue.served), 0);
    queue.turn->give(queue.turn, NULL);
    for (int t = 0; t < ASKING; t++)
        pthread_join(threads[t], NULL);
    for (int t = 0; t < ASKING; t++)
        cr_expect_eq(queue.order[t], t);
    one_at_a_time_destroy(queue.turn);
}
