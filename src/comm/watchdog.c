/* Who is late, and the sentence about it. */
#include <stdio.h>

#include "base/system.h"
#include "comm/domain.h"
#include "comm/group.h"

/* ---- What a rank was last seen doing: one word, written by its streams and read by all ---------
 */

struct doing {
    uint32_t number;
    unsigned group_id; /* its low 16 bits; the number of a group is seldom above two digits */
    int tag;
    enum collective_kind kind;
    bool known, finished;
};

#define DOING_KNOWN    ((uint64_t)1 << 63)
#define DOING_FINISHED ((uint64_t)1 << 62)

static uint64_t doing_pack(const struct collective *call, bool finished)
{
    return DOING_KNOWN | (finished ? DOING_FINISHED : 0) | (uint64_t)call->kind << 56 |
           (uint64_t)call->tag << 48 | (uint64_t)(call->comm->group->id & 0xFFFF) << 32 |
           call->number;
}

static struct doing doing_unpack(uint64_t word)
{
    return (struct doing){
        .number = (uint32_t)word,
        .group_id = (unsigned)(word >> 32) & 0xFFFF,
        .tag = (int)(word >> 48) & 0xFF,
        .kind = (enum collective_kind)(word >> 56 & 0x3F),
        .known = (word & DOING_KNOWN) != 0,
        .finished = (word & DOING_FINISHED) != 0,
    };
}

void domain_note(const struct collective *call, bool finished)
{
    struct domain_rank *rank = &call->comm->group->domain->ranks[collective_rank(call)];
    atomic_store(&rank->doing, doing_pack(call, finished));
}

static struct doing doing_of(const struct comm_domain *domain, int rank)
{
    return doing_unpack(atomic_load(&domain->ranks[rank].doing));
}

/* ---- Names ------------------------------------------------------------------------------------
 */

const char *ranks_text(char out[RANKS_TEXT_BYTES], const int *ranks, int count)
{
    size_t length = 0;
    out[0] = 0;
    for (int i = 0, last; i < count; i = last + 1) {
        last = i;
        while (last + 1 < count && ranks[last + 1] == ranks[last] + 1)
            last++;
        const char *before = i > 0 ? ", " : count > 1 ? "ranks " : "rank ";
        length +=
            (size_t)snprintf(out + length, RANKS_TEXT_BYTES - length, "%s%d", before, ranks[i]);
        if (last > i)
            length += (size_t)snprintf(out + length, RANKS_TEXT_BYTES - length, "-%d", ranks[last]);
    }
    return out;
}

static const char *const kind_names[COLLECTIVE_KIND_COUNT] = {
    "all-gather", "reduce-scatter", "all-reduce", "all-to-all-v", "exchange",
};

/* `group` may be NULL: its communicator is gone. */
static const char *call_text(char out[COLLECTIVE_TEXT_BYTES], const struct comm_domain *domain,
                             const struct comm_group *group, struct doing doing)
{
    char ranks[RANKS_TEXT_BYTES] = "another communicator", tag[64];
    if (group != NULL)
        ranks_text(ranks, group->ranks, group->size);
    if (domain->tag_names[doing.tag] != NULL)
        snprintf(tag, sizeof tag, "\"%s\"", domain->tag_names[doing.tag]);
    else
        snprintf(tag, sizeof tag, "%d", doing.tag);
    snprintf(out, COLLECTIVE_TEXT_BYTES, "%s number %u of %s (tag %s)", kind_names[doing.kind],
             doing.number, ranks, tag);
    return out;
}

int collective_rank(const struct collective *call)
{
    return group_rank(call->comm);
}

const char *collective_name(const struct collective *call)
{
    const char *tag = call->comm->group->domain->tag_names[call->tag];
    return tag != NULL ? tag : kind_names[call->kind];
}

const char *collective_text(char out[COLLECTIVE_TEXT_BYTES], const struct collective *call)
{
    const struct comm_group *group = call->comm->group;
    return call_text(out, group->domain, group, doing_unpack(doing_pack(call, false)));
}

/* ---- Who is late ------------------------------------------------------------------------------
 */

/* A collective that some wait for, and those who have not come. Under domain->lock. */
struct wait {
    const struct comm_group *group;
    struct doing doing; /* the collective */
    int waiting[COMM_RANKS_MAX], late[COMM_RANKS_MAX];
    int waiting_count, late_count;
};

static void wait_fill(struct wait *out, const struct comm_group *group, struct doing doing)
{
    *out = (struct wait){.group = group, .doing = doing};
    for (int m = 0; m < group->size; m++) {
        /* Who has come cannot leave before all have; so a member is there, or behind. */
        if (atomic_load(&group->ends[m].arrived) == doing.number)
            out->waiting[out->waiting_count++] = group->ranks[m];
        else
            out->late[out->late_count++] = group->ranks[m];
    }
}

static const struct comm_group *group_find(const struct comm_domain *domain, unsigned id)
{
    const struct comm_group *group = domain->groups;
    while (group != NULL && (group->id & 0xFFFF) != id)
        group = group->next;
    return group;
}

/* The rank that is late may itself wait for another in another collective: goes on to that one, so
 * that the sentence names who holds up all. Where they wait for one another in a ring, any of them
 * will do. */
static void wait_follow(struct wait *wait, const struct comm_domain *domain)
{
    for (int step = 0; step < domain->rank_count && wait->late_count > 0; step++) {
        struct doing doing = doing_of(domain, wait->late[0]);
        const struct comm_group *group = group_find(domain, doing.group_id);
        if (!doing.known || doing.finished || group == NULL)
            return;
        struct wait next;
        wait_fill(&next, group, doing);
        if (next.late_count == 0)
            return;
        *wait = next;
    }
}

/* "rank 2: has not come to C, in which ranks 0-1 wait for it and for rank 3; no rank has moved for
 * 10 seconds; it last finished D" */
static void late_say(struct error *out, const struct comm_domain *domain, const struct wait *wait)
{
    char here[COLLECTIVE_TEXT_BYTES], there[COLLECTIVE_TEXT_BYTES] = "";
    char waiting[RANKS_TEXT_BYTES], late[RANKS_TEXT_BYTES];
    struct doing doing = doing_of(domain, wait->late[0]);
    call_text(here, domain, wait->group, wait->doing);
    if (doing.known)
        call_text(there, domain, group_find(domain, doing.group_id), doing);
    const char *seen = doing.finished ? "it last finished " : "it waits in ";
    error_set(out, STATUS_INTERNAL,
              "rank %d: has not come to %s, in which %s %s for it%s%s; no rank has moved for %g "
              "seconds; %s%s",
              wait->late[0], here, ranks_text(waiting, wait->waiting, wait->waiting_count),
              wait->waiting_count == 1 ? "waits" : "wait", wait->late_count > 1 ? " and for " : "",
              ranks_text(late, wait->late + 1, wait->late_count - 1), domain->patience_seconds,
              doing.known ? seen : "it has been in no collective", there);
}

/* ---- The watchdog -----------------------------------------------------------------------------
 */

/* Whether any rank has done anything since the last look. Under watch_lock. */
static bool anything_moved(struct comm_domain *domain)
{
    bool moved = false;
    for (int r = 0; r < domain->rank_count; r++) {
        struct domain_rank *rank = &domain->ranks[r];
        const struct device *device = domain->devices[r];
        uint64_t progress = device->ops->progress(device->stream);
        uint64_t doing = atomic_load(&rank->doing), own = atomic_load(&rank->moved);
        moved |=
            progress != rank->seen_progress || doing != rank->seen_doing || own != rank->seen_moved;
        rank->seen_progress = progress;
        rank->seen_doing = doing;
        rank->seen_moved = own;
    }
    return moved;
}

/* Time is summed from look to look, no more than two polls at once: a process that was stopped and
 * goes on has not used up its patience, and nor has one in which nobody waited for a while. */
static bool patience_is_over(struct comm_domain *domain)
{
    pthread_mutex_lock(&domain->watch_lock);
    double now = system_seconds();
    double passed = now - domain->looked_at;
    domain->looked_at = now;
    if (passed > 2 * domain->poll_seconds)
        passed = 2 * domain->poll_seconds;
    if (domain->is_away)
        passed = 0;
    domain->quiet_seconds = anything_moved(domain) ? 0 : domain->quiet_seconds + passed;
    bool over = domain->quiet_seconds > domain->patience_seconds;
    pthread_mutex_unlock(&domain->watch_lock);
    return over;
}

void comm_domain_set_away(struct comm_domain *domain, bool is_away)
{
    pthread_mutex_lock(&domain->watch_lock);
    domain->is_away = is_away;
    pthread_mutex_unlock(&domain->watch_lock);
}

void comm_domain_moved(struct comm_domain *domain, int rank)
{
    atomic_fetch_add_explicit(&domain->ranks[rank].moved, 1, memory_order_relaxed);
}

double comm_domain_poll_seconds(const struct comm_domain *domain)
{
    return domain->poll_seconds;
}

double comm_domain_quiet_seconds(struct comm_domain *domain)
{
    /* Some looks later than who waits in a collective would: that one knows who is late. */
    bool over = patience_is_over(domain);
    pthread_mutex_lock(&domain->watch_lock);
    over = over && domain->quiet_seconds > domain->patience_seconds + 3 * domain->poll_seconds;
    pthread_mutex_unlock(&domain->watch_lock);
    return over ? domain->patience_seconds : 0;
}

void domain_watch(const struct collective *call)
{
    struct comm_domain *domain = call->comm->group->domain;
    if (!patience_is_over(domain))
        return;
    struct wait wait;
    struct error cause;
    pthread_mutex_lock(&domain->lock);
    wait_fill(&wait, call->comm->group, doing_unpack(doing_pack(call, false)));
    wait_follow(&wait, domain);
    bool late = wait.late_count > 0;
    if (late)
        late_say(&cause, domain, &wait);
    pthread_mutex_unlock(&domain->lock);
    if (late)
        domain_end(domain, &cause);
}
