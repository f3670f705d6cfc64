/* Keep: both layouts are resident, filled once; what is used changes, and no byte moves. */
#include "transition/transition_state.h"

static enum status keep_open(struct transition_rank *rank, struct error *err)
{
    (void)rank;
    (void)err;
    return STATUS_OK;
}

static void keep_close(struct transition_rank *rank)
{
    (void)rank;
}

static enum status keep_fill(struct transition_rank *rank, int64_t layer, enum phase phase,
                             struct error *err)
{
    (void)rank;
    (void)layer;
    (void)phase;
    (void)err;
    return STATUS_OK;
}

const struct way_ops way_keep = {keep_open, keep_close, keep_fill};
