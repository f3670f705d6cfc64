/* Collectives as they are launched: all groups at once, even parts but where one member is to have
 * more. */
#include "base/memory.h"
#include "measure/meter_state.h"

/* Parts are whole vectors. */
#define PART_BYTES ((int64_t)64)

static void put_all_gather(struct meter_rank *rank, const struct meter_job *job)
{
    comm_all_gather(
        rank->group, rank->device->stream,
        &(struct comm_all_gather){.out = rank->out, .in = rank->in, .counts = rank->counts});
    (void)job;
}

static void put_reduce_scatter(struct meter_rank *rank, const struct meter_job *job)
{
    comm_reduce_scatter(
        rank->group, rank->device->stream,
        &(struct comm_reduce_scatter){.out = rank->out, .in = rank->in, .counts = rank->counts});
    (void)job;
}

static void put_all_reduce(struct meter_rank *rank, const struct meter_job *job)
{
    comm_all_reduce(rank->group, rank->device->stream,
                    &(struct comm_all_reduce){
                        .out = rank->out, .in = rank->in, .count = job->bytes * job->size / 4});
}

static void put_all_to_all(struct meter_rank *rank, const struct meter_job *job)
{
    comm_all_to_all_v(rank->group, rank->device->stream,
                      &(struct comm_all_to_all_v){.out = rank->out,
                                                  .in = rank->in,
                                                  .send_counts = rank->counts,
                                                  .send_offsets = rank->places,
                                                  .receive_counts = rank->received,
                                                  .receive_offsets = rank->places});
    (void)job;
}

/* How often a part of each other member leaves a rank. */
static int times_sent(enum group_op op)
{
    return op == GROUP_ALL_REDUCE ? 2 : 1;
}

/* A group of two has parts of all of them. */
int64_t meter_collective_bytes_max(const struct meter *meter)
{
    return meter->activation_bytes / 4;
}

/* What the m-th member has to get of each of the others, and of itself. */
static int64_t bytes_to(const struct meter_job *job, int m)
{
    return m == 0 ? job->bytes : job->bytes_to_others;
}

/* Counts are of bytes, of a reduce-scatter of values. */
static enum status counts_get(struct meter_rank *rank, const struct meter_job *job,
                              struct error *err)
{
    int own = comm_member(rank->group);
    TRY(memory_get((void **)&rank->counts, (size_t)job->size, sizeof *rank->counts,
                   "what is measured", err));
    TRY(memory_get((void **)&rank->places, (size_t)job->size, sizeof *rank->places,
                   "what is measured", err));
    TRY(memory_get((void **)&rank->received, (size_t)job->size, sizeof *rank->received,
                   "what is measured", err));
    for (int m = 0; m < job->size; m++) {
        rank->counts[m] = bytes_to(job, m) / (job->op == GROUP_REDUCE_SCATTER ? 4 : 1);
        rank->received[m] = bytes_to(job, own);
        rank->places[m] = m * job->bytes;
    }
    return STATUS_OK;
}

void meter_groups_destroy(struct meter *meter)
{
    for (int r = 0; meter->ranks != NULL && r < meter->rank_count; r++) {
        comm_destroy(meter->ranks[r].group);
        meter->ranks[r].group = NULL;
    }
    meter->group_size = 0;
}

/* Group g: its neighbours, or those that stand as far apart as there are groups. */
static enum status groups_get(struct meter *meter, int size, bool is_strided, struct error *err)
{
    int group_count = meter->rank_count / size;
    if (meter->group_size == size && meter->groups_are_strided == is_strided)
        return STATUS_OK;
    meter_groups_destroy(meter);
    for (int g = 0; g < group_count; g++) {
        struct comm *ends[COMM_RANKS_MAX];
        int ranks[COMM_RANKS_MAX];
        for (int m = 0; m < size; m++)
            ranks[m] = is_strided ? g + m * group_count : g * size + m;
        TRY(comm_create(ends, box_domain(meter->params.box), ranks, size, err));
        for (int m = 0; m < size; m++)
            meter->ranks[ranks[m]].group = ends[m];
    }
    meter->group_size = size;
    meter->groups_are_strided = is_strided;
    return STATUS_OK;
}

static enum status point_begin(struct meter *meter, const struct meter_job *job, bool is_strided,
                               struct error *err)
{
    TRY(groups_get(meter, job->size, is_strided, err));
    for (int r = 0; r < meter->rank_count; r++)
        TRY(counts_get(&meter->ranks[r], job, err));
    return STATUS_OK;
}

static void point_end(struct meter *meter)
{
    for (int r = 0; r < meter->rank_count; r++) {
        struct meter_rank *rank = &meter->ranks[r];
        memory_free(rank->counts);
        memory_free(rank->places);
        memory_free(rank->received);
        rank->counts = rank->places = rank->received = NULL;
    }
}

int64_t meter_collective_bytes(enum group_op op, int size, int64_t bytes)
{
    int64_t parts = (int64_t)(size - 1) * times_sent(op);
    return round_up(ceil_div(bytes, parts), PART_BYTES) * parts;
}

/* Of each message to a member behind the first, where that one gets `fullest` times the mean. */
static int64_t bytes_to_others(const struct collective_shape *shape, int64_t bytes)
{
    double rest = (double)bytes * (shape->size / shape->fullest - 1) / (shape->size - 1);
    return (int64_t)rest / PART_BYTES * PART_BYTES;
}

enum status meter_collective(struct measured *out, struct meter *meter,
                             const struct collective_shape *shape, struct error *err)
{
    static void (*const puts[])(struct meter_rank *, const struct meter_job *) = {
        [GROUP_ALL_GATHER] = put_all_gather,
        [GROUP_REDUCE_SCATTER] = put_reduce_scatter,
        [GROUP_ALL_REDUCE] = put_all_reduce,
        [GROUP_ALL_TO_ALL] = put_all_to_all,
    };
    ASSERT(shape->size >= 2 && meter->rank_count % shape->size == 0);
    ASSERT(!shape->is_strided || shape->size < meter->rank_count);
    ASSERT(shape->bytes == meter_collective_bytes(shape->op, shape->size, shape->bytes));
    ASSERT(shape->fullest >= 1 && shape->fullest <= shape->size);
    ASSERT(shape->fullest == 1 || shape->op == GROUP_ALL_TO_ALL);
    int64_t bytes = shape->bytes / ((int64_t)(shape->size - 1) * times_sent(shape->op));
    struct meter_job job = {.put = puts[shape->op],
                            .op = shape->op,
                            .size = shape->size,
                            .bytes = bytes,
                            .bytes_to_others = bytes_to_others(shape, bytes)};
    ASSERT(job.bytes * job.size <= meter->activation_bytes);
    enum status status = point_begin(meter, &job, shape->is_strided, err);
    if (status == STATUS_OK)
        status = meter_sample(out, meter, &job, err);
    point_end(meter);
    return status;
}
