/* Ranks of one process whose links are as slow as they are told (struct comm_links), so that what
 * replay says of a box can be held against a run that took its time.
 *
 * Bytes move as by local.c; then each member sleeps until they would have come over the links
 * (links.h) from when the last member came: between each two members collective_bytes, as replay
 * lets flow (replay/collective_flows.h, `direct`). Copying and adding is done within that time, or
 * takes longer than it: links should be slower than memory.
 */
#include <errno.h>
#include <sys/prctl.h>
#include <time.h>

#include "base/memory.h"
#include "base/record.h"
#include "base/system.h"
#include "comm/group.h"

/* For all members, by the last of them to come. */
static void send(struct comm_group *group)
{
    int steps = collective_steps(group->ends[0].call), count = 0;
    for (int from = 0; from < group->size; from++) {
        for (int to = 0; to < group->size; to++) {
            double bytes =
                to == from ? 0 : collective_bytes(group->ends[from].call, group->ends[to].call);
            if (bytes > 0)
                group->sent[count++] =
                    (struct link_bytes){group->ranks[from], group->ranks[to], bytes};
        }
    }
    links_send(group->domain->links, &group->transfer, system_seconds(), steps, group->sent, count);
}

/* Until a time of system_seconds, but no longer than a watchdog has patience. The system is asked
 * to be on time: it may else be late by 50 us, to save wakings. */
static void sleep_until(double when, const struct comm_domain *domain)
{
    double latest = system_seconds() + domain->poll_seconds;
    double seconds = when < latest ? when : latest;
    struct timespec until = {.tv_sec = (time_t)seconds};
    until.tv_nsec = (long)((seconds - (double)until.tv_sec) * 1e9);
    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        ;
}

/* Others may work meanwhile. The end of the run is no reason to go on sleeping. */
static void await(const struct collective *call)
{
    struct comm_group *group = call->comm->group;
    struct comm_domain *domain = group->domain;
    double when;
    record_pause();
    group_turn_give(call->comm);
    while (!links_have_brought(&when, domain->links, &group->transfer, system_seconds()) &&
           !atomic_load(&domain->ended)) {
        sleep_until(when, domain);
        comm_domain_moved(domain, collective_rank(call));
    }
    group_turn_take(call->comm);
    record_resume();
}

static enum status move(const struct collective *call, struct error *err)
{
    TRY(moves_run(call, err));
    if (call->comm->group->size > 1)
        await(call);
    return STATUS_OK;
}

static enum status init(struct comm_group *group, struct error *err)
{
    int pair_count = group->size * (group->size - 1);
    TRY(links_transfer_init(&group->transfer, pair_count, err));
    return memory_get((void **)&group->sent, (size_t)pair_count, sizeof *group->sent,
                      "a communicator", err);
}

static void deinit(struct comm_group *group)
{
    links_transfer_deinit(group->domain->links, &group->transfer);
    memory_free(group->sent);
}

const struct comm_backend comm_backend_slow = {
    .name = "slow",
    .init = init,
    .deinit = deinit,
    .met = send,
    .move = move,
    .reach = &comm_reach_local,
};
