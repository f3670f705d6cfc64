/* What a change of the experts' layout moves, on one rank, for one layer: pure data, from which the
 * ways of a transition work and from which its bytes are known in advance.
 *
 * An expert is `moves_block_count` blocks of 16 of its intermediate dimension; block b is the same
 * range of rows of gate and up and of inputs of down, packed (layout/packing.h). A rank's slice in
 * a layout is a range of blocks of each expert that its group holds. A move names a range of blocks
 * of the rank's new slice and where they come from; a list has every block of the new slice once.
 */
#ifndef PHASOR_LAYOUT_MOVES_H
#define PHASOR_LAYOUT_MOVES_H

#include "layout/layout.h"

enum move_source {
    MOVE_HERE,       /* the rank's own old slice */
    MOVE_RANK,       /* another rank's old slice */
    MOVE_BACKUP,     /* the INT4 copy on disk */
    MOVE_CHECKPOINT, /* the weights as they were published */
};

struct move {
    int64_t expert;      /* the model's number */
    struct range blocks; /* of the whole expert's */
    enum move_source source;
    int rank; /* MOVE_RANK: who has them; else the rank itself */
};

/* From where a list takes its blocks. */
struct move_rules {
    bool uses_here;             /* blocks that the rank has stay its own; else they come anew */
    enum move_source elsewhere; /* all others: MOVE_RANK, MOVE_BACKUP or MOVE_CHECKPOINT */
};

/* The rules under which nothing is sent that the receiver has: the fewest bytes that a
 * redistribution can move. */
static inline struct move_rules moves_between_ranks(void)
{
    return (struct move_rules){true, MOVE_RANK};
}

/* Blocks of one whole expert; the last may be shorter than 16. */
static inline int64_t moves_block_count(const struct model_shape *shape)
{
    return ceil_div(shape->expert_dim, PACK_BLOCK);
}

/* What a rank holds of each expert of its group, in blocks. */
struct expert_slice {
    int64_t first_expert, expert_count; /* of the model's numbers */
    struct range blocks;
};
struct expert_slice moves_slice(const struct model_shape *shape, const struct layout *layout,
                                int rank);

/* At most so many moves for each expert of the new slice: one for each piece that the old layout
 * cut. */
#define MOVES_PER_EXPERT_MAX 8

/* Writes at most `capacity` moves by which `rank` gets its slice of layout `to` where `from` stood,
 * and returns how many there are. They are in rising order of expert, then block; neighbours of one
 * source are one move. Where several ranks hold a block, the lowest is named, and never one beside
 * the rank itself under uses_here. Both layouts are legal for the model and of one rank count. */
int64_t moves_list(struct move *out, int64_t capacity, const struct model_shape *shape,
                   const struct layout *from, const struct layout *to, int rank,
                   struct move_rules rules);

/* Blocks of one layer that each rank has in the old layout and another needs: sent[a x rank_count +
 * b] from a to b, under moves_between_ranks. `sent` is [rank_count x rank_count]. Times
 * expert_block_bytes (layout/expert_form.h) it is what a redistribution of a layer counts on
 * TRAFFIC_TRANSITION. */
void moves_sent_blocks(int64_t *sent, const struct model_shape *shape, const struct layout *from,
                       const struct layout *to);

#endif
