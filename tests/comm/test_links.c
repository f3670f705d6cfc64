/* When bytes have come, by hand: nothing here takes any time. */
#include <criterion/criterion.h>
#include <math.h>

#include "comm/links.h"

#define TRANSFERS 4

static struct links *links;
static struct transfer transfers[TRANSFERS];

/* 100 bytes a second, a latency of a quarter of a second. */
static void begin(void)
{
    struct error err;
    struct comm_links speed = {.bytes_per_second = 100, .latency_seconds = 0.25};
    cr_assert_eq(links_create(&links, 3, &speed, &err), STATUS_OK, "%s", err.message);
    for (int t = 0; t < TRANSFERS; t++)
        cr_assert_eq(links_transfer_init(&transfers[t], 6, &err), STATUS_OK, "%s", err.message);
}

static void end(void)
{
    for (int t = 0; t < TRANSFERS; t++)
        links_transfer_deinit(links, &transfers[t]);
    links_destroy(links);
}

static void send(int transfer, double at, int from, int to, double bytes)
{
    links_send(links, &transfers[transfer], at, 1, &(struct link_bytes){from, to, bytes}, 1);
}

/* As it is known at `now`. */
static void expect(int transfer, double now, bool has_come, double when)
{
    double found;
    bool came = links_have_brought(&found, links, &transfers[transfer], now);
    cr_assert_eq(came, has_come, "transfer %d at %g has%s come", transfer, now, came ? "" : " not");
    cr_assert_float_eq(found, when, 1e-9, "transfer %d at %g: %.12g for %.12g", transfer, now,
                       found, when);
}

Test(links, a_transfer_alone_takes_latency_and_bytes)
{
    begin();
    send(0, 10, 0, 1, 200);
    expect(0, 10, false, 12.25);
    expect(0, 11, false, 12.25);
    expect(0, 12.24, false, 12.25);
    expect(0, 12.25, true, 12.25);
    expect(0, 99, true, 12.25);
    end();
}

Test(links, both_directions_and_other_pairs_are_apart)
{
    begin();
    send(0, 0, 0, 1, 100);
    send(1, 0, 1, 0, 100);
    send(2, 0, 0, 2, 100);
    for (int t = 0; t < 3; t++)
        expect(t, 9, true, 1.25);
    end();
}

/* 0 flows alone for half a second, then both at half the rate until 0 has come, then 1 alone. */
Test(links, transfers_on_one_link_share_it)
{
    begin();
    send(0, 0, 0, 1, 100);
    expect(0, 0.5, false, 1.25);
    send(1, 0.5, 0, 1, 100);
    expect(0, 1, false, 1.75);
    expect(1, 1, false, 2.25);
    expect(1, 2.2, false, 2.25);
    expect(0, 2.2, true, 1.75);
    expect(1, 2.25, true, 2.25);
    end();
}

/* It makes no difference when anybody looks. */
Test(links, who_looks_late_sees_the_same)
{
    begin();
    send(0, 0, 0, 1, 100);
    send(1, 0.5, 0, 1, 100);
    expect(1, 50, true, 2.25);
    expect(0, 50, true, 1.75);
    end();
}

Test(links, three_share_and_leave_one_after_another)
{
    begin();
    send(0, 0, 0, 1, 10);
    send(1, 0, 0, 1, 20);
    send(2, 0, 0, 1, 40);
    expect(2, 0.3, false, 0.95);
    expect(0, 0.3, false, 0.55);
    expect(1, 0.3, false, 0.75);
    expect(2, 9, true, 0.95);
    expect(1, 9, true, 0.75);
    expect(0, 9, true, 0.55);
    end();
}

Test(links, a_transfer_has_come_with_the_last_of_its_bytes)
{
    begin();
    links_send(links, &transfers[0], 0, 2,
               (struct link_bytes[]){{0, 1, 50}, {1, 0, 100}, {2, 0, 25}}, 3);
    expect(0, 0.6, false, 1.5); /* two steps */
    expect(0, 1.49, false, 1.5);
    expect(0, 1.5, true, 1.5);
    end();
}

Test(links, nothing_takes_no_time)
{
    begin();
    links_send(links, &transfers[0], 3, 2, NULL, 0);
    expect(0, 3, true, 3);
    end();
}

Test(links, what_nobody_waits_for_is_gone)
{
    begin();
    send(0, 0, 0, 1, 1e6);
    expect(0, 1, false, 10000.25);
    send(0, 1, 0, 1, 100);
    expect(0, 2.25, true, 2.25);
    links_transfer_deinit(links, &transfers[0]);
    send(1, 3, 0, 1, 100);
    expect(1, 4.25, true, 4.25);
    end();
}
