/* Ranks of one process whose streams' threads do the work: they copy and sum themselves. */
#include <string.h>

#include "base/perturb.h"
#include "comm/group.h"

/* Values that are summed at a time: they stay in the nearest cache. */
#define TILE_VALUES 1024

/* Where ranks run one at a time with the memory of the others closed, copying opens it. */
static enum status open_peers(const struct collective *call, struct error *err)
{
    struct turn *turn = group_device(call->comm)->turn;
    (void)err;
    if (turn != NULL)
        turn->open_all(turn, group_device(call->comm));
    perturb();
    return STATUS_OK;
}

static enum status close_peers(const struct collective *call, struct error *err)
{
    struct turn *turn = group_device(call->comm)->turn;
    (void)err;
    if (turn != NULL)
        turn->close_others(turn, group_device(call->comm));
    perturb();
    return STATUS_OK;
}

static enum status copy(const struct collective *call, void *out, const void *in, int64_t bytes,
                        struct error *err)
{
    (void)call;
    (void)err;
    memcpy(out, in, (size_t)bytes);
    return STATUS_OK;
}

/* `out` may be one of `in`: a tile of it is written when all members' tiles were read. */
static enum status sum(const struct collective *call, float *out, const float *const *in,
                       int64_t count, struct error *err)
{
    float sum[TILE_VALUES];
    (void)err;
    for (int64_t start = 0; start < count; start += TILE_VALUES) {
        int64_t tile = count - start < TILE_VALUES ? count - start : TILE_VALUES;
        memcpy(sum, in[0] + start, (size_t)tile * sizeof *sum);
        for (int m = 1; m < call->comm->group->size; m++) {
            for (int64_t i = 0; i < tile; i++)
                sum[i] += in[m][start + i];
        }
        memcpy(out + start, sum, (size_t)tile * sizeof *sum);
    }
    return STATUS_OK;
}

const struct comm_reach comm_reach_local = {
    .open = open_peers, .close = close_peers, .copy = copy, .sum = sum};

const struct comm_backend comm_backend_local = {
    .name = "local", .move = moves_run, .reach = &comm_reach_local};
