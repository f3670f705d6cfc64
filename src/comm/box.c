#include "comm/box.h"

#include <limits.h>

#include "base/memory.h"
#include "base/record.h"
#include "base/trace.h"
#include "device/thread_team.h"

struct box {
    int rank_count;
    struct device *devices[COMM_RANKS_MAX];
    struct comm_domain *domain;
    struct box_hosts hosts;
    struct trace *trace;
};

enum status box_hosts_init(struct box_hosts *out, const struct box *box, const char *lane_name,
                           struct error *err)
{
    for (int r = 0; r < box->rank_count; r++) {
        out->lanes[r] = trace_lane_add(box->trace, r, lane_name);
        record_lane_set(out->lanes[r], RECORD_LANE_HOST);
    }
    return thread_team_create(&out->team, box->rank_count, -1, err);
}

void box_hosts_deinit(struct box_hosts *hosts)
{
    thread_team_destroy(hosts->team);
}

static int threads_wanted(const struct box_params *params)
{
    return params->thread_count > 0 ? params->thread_count : thread_team_cpu_count();
}

static int sharers_of(const struct box_params *params, int gpu)
{
    int count = 0;
    for (int r = 0; r < params->rank_count; r++)
        count += params->gpus[r] == gpu;
    return count;
}

/* Ranks before this one on its GPU. */
static int sharers_before(const struct box_params *params, int rank)
{
    int count = 0;
    for (int r = 0; r < rank; r++)
        count += params->gpus[r] == params->gpus[rank];
    return count;
}

static enum status gpu_create(struct box *box, const struct box_params *params, int rank,
                              bool is_whole, struct error *err)
{
    int threads = threads_wanted(params) / params->rank_count;
    struct gpu_share share = {.ordinal = params->gpus[rank],
                              .sharer_count = sharers_of(params, params->gpus[rank]),
                              .sharer_index = sharers_before(params, rank),
                              .is_whole = is_whole,
                              .thread_count = threads > 1 ? threads : 1,
                              .trace = params->trace,
                              .rank = rank};
    return device_cuda_create(&box->devices[rank], &share, err);
}

/* All ranks on a GPU anew, without parts of it. */
static enum status gpu_make_whole(struct box *box, const struct box_params *params, int gpu,
                                  struct error *err)
{
    for (int r = 0; r < params->rank_count; r++) {
        if (params->gpus[r] != gpu)
            continue;
        device_destroy(box->devices[r]);
        box->devices[r] = NULL;
    }
    for (int r = 0; r < params->rank_count; r++) {
        if (params->gpus[r] == gpu)
            TRY(gpu_create(box, params, r, true, err));
    }
    return STATUS_OK;
}

/* One that has no part, or one of another size, would compute on the others' multiprocessors. */
static enum status parts_settle(struct box *box, const struct box_params *params, int gpu,
                                struct error *err)
{
    int least = INT_MAX, most = 0, sharers = sharers_of(params, gpu);
    for (int r = 0; r < params->rank_count; r++) {
        int part = params->gpus[r] == gpu ? device_cuda_part(box->devices[r]) : -1;
        if (part < 0)
            continue;
        least = part < least ? part : least;
        most = part > most ? part : most;
    }
    if (sharers > 1 && most == 0)
        log_write(&params->log, LOG_INFO,
                  "the %d ranks on cuda:%d share its multiprocessors: it is not cut into parts",
                  sharers, gpu);
    if (least == most)
        return STATUS_OK;
    log_write(
        &params->log, LOG_WARNING,
        "cuda:%d gave not all of its %d ranks an equal part of its multiprocessors: they share "
        "all of them, and stand in each other's way",
        gpu, sharers);
    return gpu_make_whole(box, params, gpu, err);
}

static enum status gpus_create(struct box *box, const struct box_params *params, struct error *err)
{
    for (int r = 0; r < params->rank_count; r++)
        TRY(gpu_create(box, params, r, false, err));
    for (int r = 0; r < params->rank_count; r++) {
        if (sharers_before(params, r) == 0)
            TRY(parts_settle(box, params, params->gpus[r], err));
    }
    return STATUS_OK;
}

static enum status cpus_create(struct box *box, const struct box_params *params, struct error *err)
{
    int cpu_count = thread_team_cpu_count(), wanted = threads_wanted(params);
    int total = wanted < params->rank_count ? params->rank_count : wanted;
    /* Fewer threads than CPUs are left to the system: another process that pinned its few would
     * meet them on the first CPUs while the last are idle. So are more: prefill of four ranks on
     * two CPUs took as long pinned as not. */
    bool pinned = total == cpu_count;
    int next_cpu = 0;
    for (int r = 0; r < params->rank_count; r++) {
        int threads = total / params->rank_count + (r < total % params->rank_count);
        struct cpu_share share = {.thread_count = threads,
                                  .first_cpu = pinned ? next_cpu : -1,
                                  .turn = params->turn,
                                  .trace = params->trace,
                                  .rank = r,
                                  .kernels = params->kernels};
        TRY(device_cpu_create(&box->devices[r], &share, err));
        next_cpu += threads;
    }
    return STATUS_OK;
}

static enum status box_fill(struct box *box, const struct box_params *params, struct error *err)
{
    TRY(params->gpus != NULL ? gpus_create(box, params, err) : cpus_create(box, params, err));
    struct comm_domain_params shared = {
        .devices = box->devices,
        .rank_count = params->rank_count,
        .patience_seconds = params->patience_seconds,
        .tag_names = params->tag_names,
        .tag_count = params->tag_count,
        .links = params->links,
        .log = params->log,
    };
    TRY(comm_domain_create(&box->domain, &shared, err));
    return box_hosts_init(&box->hosts, box, "host", err);
}

enum status box_open(struct box **out, const struct box_params *params, struct error *err)
{
    if (params->rank_count < 1 || params->rank_count > COMM_RANKS_MAX)
        return error_set(err, STATUS_INVALID_ARGUMENT, "%d ranks: 1 to %d are possible",
                         params->rank_count, COMM_RANKS_MAX);
    struct box *box;
    TRY(memory_get((void **)&box, 1, sizeof *box, "the box", err));
    box->rank_count = params->rank_count;
    box->trace = params->trace;
    enum status status = box_fill(box, params, err);
    if (status != STATUS_OK) {
        box_close(box);
        return status;
    }
    *out = box;
    return STATUS_OK;
}

/* What is still on the streams has run behind this, or was passed over. */
static void streams_drain(struct box *box)
{
    for (int r = 0; r < box->rank_count; r++) {
        struct device *device = box->devices[r];
        struct error known; /* the domain has it already */
        if (device != NULL && device->ops->synchronize(device->stream, &known) != STATUS_OK)
            continue;
    }
}

void box_close(struct box *box)
{
    if (box == NULL)
        return;
    box_hosts_deinit(&box->hosts);
    /* A stream that fails tells the domain: first the streams come to rest, then the domain goes,
     * which the devices must outlive. */
    streams_drain(box);
    comm_domain_destroy(box->domain);
    for (int r = 0; r < box->rank_count; r++)
        device_destroy(box->devices[r]);
    memory_free(box);
}

int box_rank_count(const struct box *box)
{
    return box->rank_count;
}

struct device *box_device(const struct box *box, int rank)
{
    return box->devices[rank];
}

struct comm_domain *box_domain(const struct box *box)
{
    return box->domain;
}

bool box_memory_is_apart(const struct box *box)
{
    return !box->devices[0]->ops->host_reaches;
}

uint64_t box_memory_left(const struct box *box)
{
    uint64_t least = UINT64_MAX;
    for (int r = 0; r < box->rank_count; r++) {
        uint64_t left = box->devices[r]->ops->memory_left(box->devices[r]);
        least = left < least ? left : least;
    }
    return box_memory_is_apart(box) ? least * (uint64_t)box->rank_count : least;
}

uint64_t box_memory_held(const struct box *box)
{
    uint64_t most = 0;
    for (int r = 0; r < box->rank_count; r++) {
        uint64_t bytes = box->devices[r]->ops->memory_use(box->devices[r]).bytes;
        most = bytes > most ? bytes : most;
    }
    return box_memory_is_apart(box) ? most * (uint64_t)box->rank_count
                                    : memory_counters_get().live_bytes;
}

struct trace *box_trace(const struct box *box)
{
    return box->trace;
}

struct box_job {
    struct box *box;
    const struct box_hosts *hosts;
    struct record_mark began, ended[COMM_RANKS_MAX];
    enum status (*work)(void *context, int rank, struct error *err);
    void *context;
};

static void rank_work(void *context, int rank)
{
    struct box_job *job = context;
    struct error err;
    struct trace_lane *before = trace_lane_use(job->hosts->lanes[rank]);
    record_need(job->began);
    record_resume();
    if (job->work(job->context, rank, &err) != STATUS_OK)
        comm_domain_abort(job->box->domain, rank, &err);
    record_pause();
    job->ended[rank] = record_mark();
    trace_lane_use(before);
}

enum status box_run_on(struct box *box, const struct box_hosts *hosts,
                       enum status (*work)(void *context, int rank, struct error *err),
                       void *context, struct error *err)
{
    TRY(comm_domain_failure(box->domain, err));
    struct box_job job = {.box = box, .hosts = hosts, .work = work, .context = context};
    ASSERT(thread_team_size(hosts->team) == box->rank_count);
    record_pause();
    job.began = record_mark();
    thread_team_run(hosts->team, rank_work, &job);
    for (int r = 0; r < box->rank_count; r++)
        record_need(job.ended[r]);
    record_resume();
    return comm_domain_failure(box->domain, err);
}

enum status box_run(struct box *box,
                    enum status (*work)(void *context, int rank, struct error *err), void *context,
                    struct error *err)
{
    enum status status = box_run_on(box, &box->hosts, work, context, err);
    /* A rank that failed may have left collectives on its stream, and others theirs. They have
     * ended behind this, so that the caller may take their memory away. */
    if (status != STATUS_OK)
        streams_drain(box);
    return status;
}
