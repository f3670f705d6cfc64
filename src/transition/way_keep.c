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

static int64_t keep_piece_count(const struct transition_rank *rank, int64_t layer, enum phase phase)
{
    (void)rank;
    (void)layer;
    (void)phase;
    return 0;
}

const struct way_ops way_keep = {
    .open = keep_open,
    .close = keep_close,
    .piece_count = keep_piece_count,
    .takes_int4 = true,
};
