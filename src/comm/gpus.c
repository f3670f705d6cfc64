#include "comm/gpus.h"

#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "base/numa.h"
#include "comm/nccl.h"
#include "device/peers.h"

/* A copy of some KiB takes microseconds; who shares a GPU, or the driver that wakes up, may keep it
 * waiting. */
#define COPY_SECONDS 10.0

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

/* Where two ranks share a GPU the order of launches would have to be that of GPUs, not of ranks. */
static bool has_each_its_own(const struct comm_domain *domain)
{
    for (int r = 1; r < domain->rank_count; r++) {
        for (int before = 0; before < r; before++) {
            if (gpu_of(domain, r) == gpu_of(domain, before))
                return false;
        }
    }
    return true;
}

#define NEVER (-1)

/* NCCL's words for how far copies may go directly. Which GPUs NVLink joins is not known here. The
 * level was a number once, of which 4 and more are SYS. */
static int level_distance(const char *level)
{
    static const struct {
        const char *word, *number;
        int distance;
    } levels[] = {{"PIX", "1", PCI_SWITCH},
                  {"PXB", "2", PCI_SWITCHES},
                  {"PHB", "3", PCI_HOST},
                  {"SYS", "4", PCI_SYSTEM}};
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
        if (strcmp(level, levels[i].word) == 0 || strcmp(level, levels[i].number) == 0)
            return levels[i].distance;
    }
    return strtol(level, NULL, 10) > 4 ? PCI_SYSTEM : NEVER;
}

static bool is_amd(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_is("amd") != 0;
#else
    return false;
#endif
}

/* Of type enum pci_distance: who joins so many GPUs goes directly so far; or NEVER. Where nobody
 * says, copies go as far as the driver lets them, and NCCL through switches, or anywhere between
 * two on a processor of AMD (2.27, src/graph/paths.cc). */
static int farthest_direct(const struct comm_domain *domain, int member_count)
{
    const char *disable = getenv("NCCL_P2P_DISABLE"), *level = getenv("NCCL_P2P_LEVEL");
    if (disable != NULL && strtol(disable, NULL, 10) != 0)
        return NEVER;
    if (level != NULL && *level != 0)
        return level_distance(level);
    return domain->nccl == NULL || (member_count == 2 && is_amd()) ? PCI_SYSTEM : PCI_SWITCHES;
}

/* Calls that wait for other ranks would do so within locks of ours. */
static bool is_made_to_block(void)
{
    const char *blocking = getenv("NCCL_COMM_BLOCKING");
    return blocking != NULL && strtol(blocking, NULL, 10) != 0;
}

static bool is_within(int farthest, const struct device *device, const struct device *other)
{
    const struct peer_ops *peers = device->ops->peers;
    return farthest == PCI_SYSTEM ||
           (farthest != NEVER &&
            (int)numa_pci_distance(peers->bus_id(device), peers->bus_id(other)) <= farthest);
}

/* Of pairs of ranks on two GPUs, each way. */
struct ways {
    int direct, by_host; /* because somebody wants it so, or they cannot */
    bool are_limited;    /* somebody wants it so */
};

static enum status reach_each_other(struct ways *out, const struct comm_domain *domain,
                                    int farthest, struct error *err)
{
    *out = (struct ways){0};
    for (int r = 0; r < domain->rank_count; r++) {
        const struct device *device = domain->devices[r];
        for (int other = 0; other < domain->rank_count; other++) {
            if (gpu_of(domain, r) == gpu_of(domain, other))
                continue;
            bool is_near = is_within(farthest, device, domain->devices[other]), can = false;
            if (is_near)
                TRY(device->ops->peers->reach(&can, device, domain->devices[other], COPY_SECONDS,
                                              err));
            out->direct += can;
            out->by_host += !can;
            out->are_limited |= !is_near;
        }
    }
    return STATUS_OK;
}

enum status gpus_reach_group(const struct comm_domain *domain, const int *ranks, int count,
                             struct error *err)
{
    if (count != 2 || farthest_direct(domain, count) == farthest_direct(domain, domain->rank_count))
        return STATUS_OK; /* they were tried */
    for (int m = 0; m < count; m++) {
        const struct device *device = domain->devices[ranks[m]];
        bool can;
        TRY(device->ops->peers->reach(&can, device, domain->devices[ranks[1 - m]], COPY_SECONDS,
                                      err));
    }
    return STATUS_OK;
}

/* What NCCL 2.27 takes for what goes from one GPU to another through the host: a file for each of
 * two channels, of the buffers of its three protocols at their usual sizes (src/transport/shm.cc).
 */
#define SHM_FOLDER     "/dev/shm"
#define SHM_PAIR_BYTES ((uint64_t)20 << 20)

/* It makes the files when a group first has something to send, in the midst of a run, and a
 * container has 64 MB there unless it is given more. */
static void shm_check(int pair_count, const struct log_sink *log)
{
    const char *disable = getenv("NCCL_SHM_DISABLE");
    struct statvfs about;
    uint64_t wanted = (uint64_t)pair_count * SHM_PAIR_BYTES;
    if ((disable != NULL && strtol(disable, NULL, 10) != 0) || statvfs(SHM_FOLDER, &about) != 0)
        return;
    uint64_t there = (uint64_t)about.f_bavail * about.f_frsize;
    if (there < wanted)
        log_write(log, LOG_WARNING,
                  "NCCL may take %llu MiB of " SHM_FOLDER
                  ", where %llu MiB are free, for each group of "
                  "these GPUs, unless NVLink joins them: give a container more (--shm-size, or "
                  "--ipc=host), or PHASOR_NCCL=off goes by copies",
                  (unsigned long long)wanted >> 20, (unsigned long long)there >> 20);
}

/* What only joins several ranks on one GPU needs no NCCL, which takes some time to open. */
static enum status nccl_open(struct comm_domain *domain, const struct log_sink *log,
                             struct error *err)
{
    const struct nccl_library *library;
    struct error why;
    if (is_made_to_block()) {
        log_write(log, LOG_WARNING,
                  "the GPUs are joined by copies: NCCL_COMM_BLOCKING makes NCCL's calls wait for "
                  "other ranks; leave it unset");
        return STATUS_OK;
    }
    enum status status = nccl_library_get(&library, &why);
    if (status != STATUS_OK) {
        log_write(log, status == STATUS_NOT_FOUND ? LOG_INFO : LOG_WARNING,
                  "the GPUs are joined by copies: %s", why.message);
        return STATUS_OK;
    }
    log_write(log, LOG_INFO, "the GPUs are joined by NCCL %s (%s)", library->text, library->path);
    return nccl_domain_create(&domain->nccl, domain, library, log, err);
}

enum status gpus_join(struct comm_domain *domain, const struct log_sink *log, struct error *err)
{
    if (domain->devices[0]->ops->peers == NULL || !are_several(domain))
        return STATUS_OK;
    if (has_each_its_own(domain) && domain->speed.bytes_per_second == 0)
        TRY(nccl_open(domain, log, err));
    struct ways ways;
    TRY(reach_each_other(&ways, domain, farthest_direct(domain, domain->rank_count), err));
    if (ways.by_host > 0 && domain->nccl != NULL)
        shm_check(ways.by_host, log);
    else if (ways.are_limited)
        log_write(log, LOG_INFO,
                  "copies between %sGPUs go through the host: NCCL_P2P_DISABLE or NCCL_P2P_LEVEL "
                  "says so",
                  ways.direct > 0 ? "some " : "");
    return STATUS_OK;
}

void gpus_part(struct comm_domain *domain)
{
    nccl_domain_destroy(domain->nccl);
}

bool gpus_have_nccl(const struct comm_domain *domain, int member_count)
{
    return domain->nccl != NULL && member_count > 1;
}
