#include "comm/domain.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/perturb.h"
#include "base/system.h"
#include "comm/gpus.h"
#include "comm/group.h"
#include "comm/links.h"
#include "device/thread_team.h"

#define PATIENCE_SECONDS      10.0
#define SLOW_PATIENCE_SECONDS 100.0 /* where a GPU waits for slow links, and nothing moves */

/* Often enough that a short patience is kept, seldom enough that waiting costs nothing. */
#define POLL_SECONDS_MAX  0.1
#define POLLS_OF_PATIENCE 4

/* Whoever waits then spins for a moment, which otherwise would take the CPU from whom it waits
 * for. */
static bool each_thread_has_a_cpu(const struct comm_domain *domain)
{
    int thread_count = 0;
    for (int r = 0; r < domain->rank_count; r++)
        thread_count += domain->devices[r]->ops->host_workers(domain->devices[r]);
    return thread_count <= thread_team_cpu_count();
}

static void stream_failed(void *context, const struct error *err)
{
    struct domain_rank *rank = context;
    comm_domain_abort(rank->domain, rank->rank, err);
}

static void domain_init(struct comm_domain *domain, const struct comm_domain_params *params)
{
    domain->rank_count = params->rank_count;
    bool waits_for_links =
        params->links.bytes_per_second > 0 && params->devices[0]->ops->peers != NULL;
    double patience = waits_for_links ? SLOW_PATIENCE_SECONDS : PATIENCE_SECONDS;
    domain->patience_seconds = params->patience_seconds > 0 ? params->patience_seconds : patience;
    domain->poll_seconds = domain->patience_seconds / POLLS_OF_PATIENCE;
    if (domain->poll_seconds > POLL_SECONDS_MAX)
        domain->poll_seconds = POLL_SECONDS_MAX;
    for (int tag = 0; tag < params->tag_count; tag++)
        domain->tag_names[tag] = params->tag_names[tag];
    memcpy(domain->devices, params->devices,
           (size_t)params->rank_count * sizeof domain->devices[0]);
    for (int r = 1; r < params->rank_count; r++)
        ASSERT(params->devices[r]->ops->peers == params->devices[0]->ops->peers);
    domain->may_spin = each_thread_has_a_cpu(domain);
    domain->looked_at = system_seconds();
    pthread_mutex_init(&domain->lock, NULL);
    pthread_mutex_init(&domain->watch_lock, NULL);
}

/* Of one that has its ranks. */
static void domain_free(struct comm_domain *domain)
{
    gpus_part(domain);
    links_destroy(domain->links);
    pthread_mutex_destroy(&domain->watch_lock);
    pthread_mutex_destroy(&domain->lock);
    memory_free(domain);
}

enum status comm_domain_create(struct comm_domain **out, const struct comm_domain_params *params,
                               struct error *err)
{
    ASSERT(params->rank_count >= 1 && params->rank_count <= COMM_RANKS_MAX);
    ASSERT(params->tag_count >= 0 && params->tag_count <= COMM_TAGS_MAX);
    struct comm_domain *domain;
    TRY(memory_get((void **)&domain, 1,
                   sizeof *domain + (size_t)params->rank_count * sizeof domain->ranks[0],
                   "what the ranks share", err));
    domain->speed = params->links;
    if (params->links.bytes_per_second > 0 && params->devices[0]->ops->peers == NULL) {
        enum status status = links_create(&domain->links, params->rank_count, &params->links, err);
        if (status != STATUS_OK) {
            memory_free(domain);
            return status;
        }
    }
    domain_init(domain, params);
    enum status joined = gpus_join(domain, &params->log, err);
    if (joined != STATUS_OK) {
        domain_free(domain);
        return joined;
    }
    for (int r = 0; r < domain->rank_count; r++) {
        domain->ranks[r].domain = domain;
        domain->ranks[r].rank = r;
        domain->devices[r]->ops->on_failure(domain->devices[r], stream_failed, &domain->ranks[r]);
    }
    *out = domain;
    return STATUS_OK;
}

void comm_domain_destroy(struct comm_domain *domain)
{
    if (domain == NULL)
        return;
    ASSERT(domain->groups == NULL);
    for (int r = 0; r < domain->rank_count; r++)
        domain->devices[r]->ops->on_failure(domain->devices[r], NULL, NULL);
    domain_free(domain);
}

void domain_end(struct comm_domain *domain, const struct error *cause)
{
    perturb();
    pthread_mutex_lock(&domain->lock);
    if (!atomic_load(&domain->ended)) {
        domain->failure = *cause;
        atomic_store(&domain->ended, true);
        for (struct comm_group *group = domain->groups; group != NULL; group = group->next)
            group_end(group);
    }
    pthread_mutex_unlock(&domain->lock);
}

void comm_domain_abort(struct comm_domain *domain, int rank, const struct error *cause)
{
    char prefix[32];
    struct error named = *cause;
    int length = snprintf(prefix, sizeof prefix, "rank %d: ", rank);
    if (strncmp(named.message, prefix, (size_t)length) != 0)
        error_prefix(&named, named.status, "rank %d", rank);
    domain_end(domain, &named);
}

enum status comm_domain_failure(const struct comm_domain *domain, struct error *cause)
{
    if (!atomic_load(&domain->ended))
        return STATUS_OK;
    if (cause != NULL)
        *cause = domain->failure;
    return domain->failure.status;
}

uint64_t comm_domain_bytes(const struct comm_domain *domain, int rank, int tag)
{
    return atomic_load(&domain->ranks[rank].bytes[tag]);
}

void domain_add(struct comm_domain *domain, struct comm_group *group)
{
    pthread_mutex_lock(&domain->lock);
    group->id = ++domain->group_count_ever;
    group->next = domain->groups;
    domain->groups = group;
    if (atomic_load(&domain->ended))
        group_end(group);
    pthread_mutex_unlock(&domain->lock);
}

void domain_remove(struct comm_domain *domain, struct comm_group *group)
{
    pthread_mutex_lock(&domain->lock);
    struct comm_group **link = &domain->groups;
    while (*link != group)
        link = &(*link)->next;
    *link = group->next;
    pthread_mutex_unlock(&domain->lock);
}
