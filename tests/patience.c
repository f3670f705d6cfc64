#include "patience.h"

#include <math.h>
#include <time.h>

#include "base/system.h"
#include "clock.h"
#include "comm/group.h"

static void sleep_a_moment(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

static bool has_ended(const struct comm_domain *domain)
{
    return comm_domain_failure(domain, NULL) != STATUS_OK;
}

static bool waits_in(struct comm_group *group, int rank)
{
    for (int m = 0; m < group->size; m++) {
        unsigned arrived = atomic_load(&group->ends[m].arrived);
        if (group->ranks[m] != rank || atomic_load(&group->ends[m].finished) == arrived)
            continue;
        for (int other = 0; other < group->size; other++) {
            if (atomic_load(&group->ends[other].arrived) < arrived)
                return true;
        }
    }
    return false;
}

bool rank_waits(struct comm_domain *domain, int rank)
{
    bool waits = false;
    pthread_mutex_lock(&domain->lock);
    for (struct comm_group *group = domain->groups; group != NULL; group = group->next)
        waits |= waits_in(group, rank);
    pthread_mutex_unlock(&domain->lock);
    return waits;
}

void until_ranks_wait(struct comm_domain *domain, unsigned ranks)
{
    for (int r = 0; r < domain->rank_count; r++) {
        while ((ranks >> r & 1) != 0 && !rank_waits(domain, r) && !has_ended(domain))
            sleep_a_moment();
    }
}

static double looked_at(struct comm_domain *domain)
{
    pthread_mutex_lock(&domain->watch_lock);
    double at = domain->looked_at;
    pthread_mutex_unlock(&domain->watch_lock);
    return at;
}

/* Since anything was seen to move. */
static bool is_patience_over(struct comm_domain *domain)
{
    pthread_mutex_lock(&domain->watch_lock);
    bool is_over = domain->quiet_seconds > domain->patience_seconds;
    pthread_mutex_unlock(&domain->watch_lock);
    return is_over;
}

static bool do_any_wait(struct comm_domain *domain)
{
    bool do_any = false;
    for (int r = 0; r < domain->rank_count; r++)
        do_any |= rank_waits(domain, r);
    return do_any;
}

/* One look sees no more than two polls. */
void time_passes(struct comm_domain *domain, double seconds)
{
    int steps = (int)ceil(seconds / (2 * domain->poll_seconds));
    for (int i = 0; i < steps && !has_ended(domain); i++) {
        clock_advance(seconds / steps);
        double now = system_seconds();
        while (looked_at(domain) < now && !has_ended(domain))
            sleep_a_moment();
    }
}

void time_passes_to_the_end(struct comm_domain *domain)
{
    while (!has_ended(domain)) {
        if (is_patience_over(domain) && do_any_wait(domain))
            sleep_a_moment();
        else
            time_passes(domain, 2 * domain->poll_seconds);
    }
}
