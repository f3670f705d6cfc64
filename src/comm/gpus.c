#include "comm/gpus.h"

#include <stdlib.h>
#include <string.h>

#include "comm/nccl.h"
#include "device/peers.h"

static int gpu_of(const struct comm_domain *domain, int rank)
{
    const struct device *device = domain->devices[rank];
    return device->ops->peers->ordinal(device);
}

static bool are_several(const struct comm_domain *domain)
{
    for (int r = 1; r < domain->rank_count; r++) {
        if (gpu_of(domain, r) != gpu_of(domain, 0))
            return true;
    }
    return false;
}

/* The level was a number once. */
static bool is_direct_forbidden(void)
{
    const char *disable = getenv("NCCL_P2P_DISABLE"), *level = getenv("NCCL_P2P_LEVEL");
    if (disable != NULL && strtol(disable, NULL, 10) != 0)
        return true;
    return level != NULL && (strcmp(level, "LOC") == 0 || strcmp(level, "0") == 0);
}

static enum status reach_each_other(struct comm_domain *domain, struct error *err)
{
    for (int r = 0; r < domain->rank_count; r++) {
        const struct device *device = domain->devices[r];
        for (int other = 0; other < domain->rank_count; other++) {
            if (gpu_of(domain, r) != gpu_of(domain, other))
                TRY(device->ops->peers->reach(device, domain->devices[other], err));
        }
    }
    return STATUS_OK;
}

/* What only joins several ranks on one GPU needs no NCCL, which takes some time to open. */
static enum status nccl_open(struct comm_domain *domain, const struct log_sink *log,
                             struct error *err)
{
    const struct nccl_library *library;
    struct error why;
    enum status status = nccl_library_get(&library, &why);
    if (status != STATUS_OK) {
        log_write(log, status == STATUS_NOT_FOUND ? LOG_INFO : LOG_WARNING,
                  "the GPUs are joined by copies: %s", why.message);
        return STATUS_OK;
    }
    log_write(log, LOG_INFO, "the GPUs are joined by NCCL %s (%s)", library->text, library->path);
    return nccl_domain_create(&domain->nccl, domain, library, err);
}

enum status gpus_join(struct comm_domain *domain, const struct log_sink *log, struct error *err)
{
    if (domain->devices[0]->ops->peers == NULL || !are_several(domain))
        return STATUS_OK;
    if (is_direct_forbidden())
        log_write(log, LOG_INFO,
                  "copies between GPUs go through the host: NCCL_P2P_DISABLE or NCCL_P2P_LEVEL "
                  "says so");
    else
        TRY(reach_each_other(domain, err));
    return nccl_open(domain, log, err);
}

void gpus_part(struct comm_domain *domain)
{
    nccl_domain_destroy(domain->nccl);
}

bool gpus_have_nccl(const struct comm_domain *domain, const int *ranks, int member_count)
{
    if (domain->nccl == NULL || member_count < 2)
        return false;
    for (int m = 0; m < member_count; m++) {
        for (int before = 0; before < m; before++) {
            if (gpu_of(domain, ranks[m]) == gpu_of(domain, ranks[before]))
                return false;
        }
    }
    return true;
}
