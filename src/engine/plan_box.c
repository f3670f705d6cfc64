#include "engine/plan_box.h"

#include <math.h>

#include "base/memory.h"
#include "replay/simulate.h"

/* Bytes of messages: from 256 B to 1 GiB, each four times the one before. On a slow link a KiB
 * takes longer than to begin; what is less is mostly counts and choices. */
#define POINT_COUNT 12
#define POINT_LEAST 256.0

/* A core of a host of these boxes; ranges are wide, and uploads are rarely bound by them. */
#define CHECK_RATE   20e9  /* XXH3 of granules, bytes per second: 10e9 to 30e9 */
#define BACKUP_SHARE 0.875 /* of the host's memory that a backup may have (read_tier.h) */
#define REPACK_RATE  4e9   /* native weights into tiles: 2e9 to 8e9 */

/* Of the host, between passes: sampling, and what the next pass needs; 1e-4 to 1e-3. */
#define HOST_STEP 3e-4

#define GROUP_OPS  4
#define SIZES_MAX  12
#define TABLES_MAX (GROUP_OPS * SIZES_MAX * 2)
#define WORKS_MAX  (WORK_KIND_COUNT * 3)

/* All that a profile points to. */
struct tables {
    struct work_table work[WORKS_MAX];
    struct collective_table collectives[TABLES_MAX];
    double ratio; /* log of 1 */
    double bytes[POINT_COUNT];
    double seconds[TABLES_MAX][POINT_COUNT];
};

/* ---- Collectives, by replay ------------------------------------------------------------------ */

/* A recording of one call of every group. */
struct one_call {
    struct recording recording;
    struct recording_lane lanes[RECORDING_RANKS_MAX];
    struct recording_node nodes[RECORDING_RANKS_MAX];
    struct recording_collective collectives[RECORDING_RANKS_MAX];
    struct recording_group groups[RECORDING_RANKS_MAX];
    int64_t counts[RECORDING_RANKS_MAX * RECORDING_RANKS_MAX]; /* [rank][member] */
};

/* What each member has in a call by which `bytes` leave it. */
static int64_t count_of(enum group_op op, int size, double bytes)
{
    double count = op == GROUP_ALL_REDUCE ? bytes * size / (2.0 * (size - 1)) : bytes / (size - 1);
    return (int64_t)(count + 0.5);
}

static const enum collective_op recorded_as[GROUP_OPS] = {
    [GROUP_ALL_GATHER] = COLLECTIVE_OP_ALL_GATHER,
    [GROUP_REDUCE_SCATTER] = COLLECTIVE_OP_REDUCE_SCATTER,
    [GROUP_ALL_REDUCE] = COLLECTIVE_OP_ALL_REDUCE,
    [GROUP_ALL_TO_ALL] = COLLECTIVE_OP_ALL_TO_ALL,
};

/* Nothing is sent to oneself, and an all-reduce has one count. */
static bool is_empty(enum group_op op, int to, int member)
{
    return (op == GROUP_ALL_TO_ALL && to == member) || (op == GROUP_ALL_REDUCE && to > 0);
}

static void call_fill(struct one_call *call, int ranks, enum group_op op, int size, bool is_strided,
                      double bytes)
{
    static char name[] = "";
    static char *names[] = {name};
    int group_count = ranks / size;
    int64_t count = count_of(op, size, bytes);
    call->recording = (struct recording){
        .rank_count = ranks,
        .strings = names,
        .stage_names = names,
        .tag_names = names,
        .lanes = call->lanes,
        .nodes = call->nodes,
        .collectives = call->collectives,
        .groups = call->groups,
        .counts = call->counts,
        .string_count = 1,
        .stage_count = 1,
        .tag_count = 1,
        .lane_count = (uint32_t)ranks,
        .node_count = (uint32_t)ranks,
        .collective_count = (uint32_t)ranks,
        .group_count = (uint32_t)group_count,
        .count_count = (uint32_t)(ranks * size),
    };
    for (int rank = 0; rank < ranks; rank++) {
        int group = is_strided ? rank % group_count : rank / size;
        int member = is_strided ? rank / group_count : rank % size;
        call->lanes[rank] = (struct recording_lane){
            .kind = LANE_STREAM, .rank = rank, .first = (uint32_t)rank, .count = 1};
        call->nodes[rank] = (struct recording_node){
            .kind = NODE_COLLECTIVE, .layer = -1, .collective = (uint32_t)rank};
        call->collectives[rank] =
            (struct recording_collective){.group = (uint32_t)group,
                                          .number = 1,
                                          .op = (uint8_t)recorded_as[op],
                                          .member = (uint8_t)member,
                                          .count_first = (uint32_t)(rank * size)};
        for (int m = 0; m < size; m++)
            call->counts[rank * size + m] = is_empty(op, m, member) ? 0 : count;
        call->groups[group].size = size;
        call->groups[group].ranks[member] = (uint8_t)rank;
    }
}

static enum status call_seconds(double *seconds, struct one_call *call, const struct box_model *box,
                                const struct collective_table *table, double bytes,
                                struct error *err)
{
    struct simulation simulation;
    call_fill(call, box->rank_count, table->op, table->size, table->is_strided, bytes);
    TRY(simulate(
        &simulation,
        &(struct simulation_params){.recording = &call->recording, .box = box, .link_scale = 1},
        err));
    *seconds = simulation.seconds;
    simulation_deinit(&simulation);
    return STATUS_OK;
}

static enum status collectives_fill(struct tables *tables, struct profile *profile,
                                    struct one_call *call, const struct box_model *box,
                                    struct error *err)
{
    for (int op = 0; op < GROUP_OPS; op++) {
        for (int size = 2; size <= box->rank_count; size++) {
            bool has_stride = size < box->rank_count;
            for (int strided = 0; strided <= has_stride && box->rank_count % size == 0; strided++) {
                int i = profile->collective_count++;
                tables->collectives[i] = (struct collective_table){.op = (enum group_op)op,
                                                                   .size = size,
                                                                   .is_strided = strided == 1,
                                                                   .point_count = POINT_COUNT,
                                                                   .bytes = tables->bytes,
                                                                   .seconds = tables->seconds[i]};
                for (int p = 0; p < POINT_COUNT; p++)
                    TRY(call_seconds(&tables->seconds[i][p], call, box, &tables->collectives[i],
                                     tables->bytes[p], err));
            }
        }
    }
    return STATUS_OK;
}

/* ---- Operations and rates -------------------------------------------------------------------- */

/* Bytes per second that each rank has of a memory from which several compute, when all do. */
static double rank_memory_share(const struct box_model *box)
{
    double share = INFINITY;
    for (int m = 0; m < box->memory_count; m++) {
        int sharers = 0;
        for (int rank = 0; rank < box->rank_count; rank++)
            sharers += box->memory_of[rank] == m;
        share = fmin(share, box->memory_bytes_per_second[m] / fmax(sharers, 1));
    }
    return share;
}

/* Where ranks share a slot they are measured, so to speak, all at once (profile.sharing). */
static void work_fill(struct tables *tables, struct profile *profile, const struct box_model *box)
{
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_INT4};
    const struct box_device *device = &box->device;
    double sharing = box->has_one_slot ? box->rank_count : 1, share = rank_memory_share(box);
    profile->sharing = sharing;
    for (int kind = WORK_MATMUL; kind < WORK_KIND_COUNT; kind++) {
        double alone = device->memory_bytes_per_second * device->bytes_efficiency[kind];
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
            tables->work[profile->work_count++] = (struct work_table){
                .kind = (enum work_kind)kind,
                .dtype = dtypes[d],
                .flops_per_second = device->peak_flops * device->flops_efficiency[kind] / sharing,
                .bytes_per_second = fmin(alone / sharing, share),
                .fixed = device->launch * sharing,
                .log_ratios = &tables->ratio,
            };
    }
}

/* One way over each link: the ranks that the host reaches by it, and whether ranks reach one
 * another by it. */
struct ways {
    int host[BOX_LINKS_MAX][2];
    bool ranks[BOX_LINKS_MAX][2];
};

static void ways_count(struct ways *out, const struct box_model *box)
{
    struct box_route route;
    struct error ignored;
    *out = (struct ways){0};
    for (int to = 0; to < box->rank_count; to++) {
        bool is_reached =
            box->host >= 0 && box_model_route(&route, box, box->host, to, &ignored) == STATUS_OK;
        for (int i = 0; is_reached && i < route.count; i++)
            out->host[route.link[i]][route.direction[i]]++;
        for (int from = 0; from < box->rank_count; from++) {
            if (from == to || box_model_route(&route, box, from, to, &ignored) != STATUS_OK)
                continue;
            for (int i = 0; i < route.count; i++)
                out->ranks[route.link[i]][route.direction[i]] = true;
        }
    }
}

/* Of the host and each rank: the least bandwidth on a way, shared by the ranks whose ways go there;
 * and while ranks exchange. Of a link which that takes, too, copies have the share of all that goes
 * over it: as much as it carries, and they. */
static void host_rates(struct profile *out, const struct box_model *box)
{
    struct ways use;
    double rate = INFINITY, share = 0;
    ways_count(&use, box);
    for (int link = 0; link < box->link_count; link++) {
        for (int way = 0; way < 2; way++) {
            if (use.host[link][way] > 0)
                rate = fmin(rate, box->links[link].bytes_per_second / use.host[link][way]);
        }
    }
    for (int link = 0; link < box->link_count; link++) {
        for (int way = 0; way < 2; way++) {
            if (use.ranks[link][way])
                share = fmax(share, use.host[link][way] * rate / box->links[link].bytes_per_second);
        }
    }
    out->host_to_device = rate;
    out->host_to_device_busy = isfinite(rate) ? rate / (1 + share) : rate;
}

/* Where a box has no disk the backup is in the host's memory. */
static double disk_rate(const struct box_model *box)
{
    struct box_route route;
    struct error ignored;
    double rate = INFINITY;
    if (box->disk < 0 || box->host < 0 ||
        box_model_route(&route, box, box->disk, box->host, &ignored) != STATUS_OK)
        return rate;
    for (int i = 0; i < route.count; i++)
        rate = fmin(rate, box->links[route.link[i]].bytes_per_second);
    return rate;
}

static enum status profile_fill(struct plan_box *out, struct one_call *call,
                                const struct box_model *box, struct error *err)
{
    struct tables *tables = out->memory;
    struct profile *profile = &out->profile;
    ASSERT(box->rank_count <= RECORDING_RANKS_MAX);
    profile->work = tables->work;
    profile->collectives = tables->collectives;
    host_rates(profile, box);
    profile->disk_read = disk_rate(box);
    profile->host_bytes = (double)box->host_bytes * BACKUP_SHARE;
    profile->check = CHECK_RATE;
    profile->repack = REPACK_RATE;
    profile->host_step = HOST_STEP;
    for (int p = 0; p < POINT_COUNT; p++)
        tables->bytes[p] = POINT_LEAST * (double)((int64_t)1 << 2 * p);
    work_fill(tables, profile, box);
    return collectives_fill(tables, profile, call, box, err);
}

enum status plan_box_init(struct plan_box *out, const struct box_model *box, struct error *err)
{
    struct one_call *call;
    *out = (struct plan_box){.memory = NULL};
    TRY(memory_get(&out->memory, 1, sizeof(struct tables), "the box's profile", err));
    enum status status = memory_get((void **)&call, 1, sizeof *call, "the box's profile", err);
    if (status == STATUS_OK) {
        status = profile_fill(out, call, box, err);
        memory_free(call);
    }
    if (status != STATUS_OK)
        plan_box_deinit(out);
    return status;
}

void plan_box_deinit(struct plan_box *box)
{
    memory_free(box->memory);
    *box = (struct plan_box){.memory = NULL};
}
