/* Move lists: see moves.h. */
#include "layout/moves.h"

#include <string.h>

struct expert_slice moves_slice(const struct model_shape *shape, const struct layout *layout,
                                int rank)
{
    struct range experts =
        layout_share(shape->expert_count, layout->experts.ep, layout_place(layout, rank).ee);
    struct range width = layout_expert_width(layout, shape, rank);
    return (struct expert_slice){
        .first_expert = experts.first,
        .expert_count = experts.count,
        .blocks = {width.first / PACK_BLOCK, ceil_div(width.count, PACK_BLOCK)},
    };
}

static bool has(const struct expert_slice *slice, int64_t expert, int64_t block)
{
    return expert >= slice->first_expert && expert < slice->first_expert + slice->expert_count &&
           block >= slice->blocks.first && block < slice->blocks.first + slice->blocks.count;
}

/* Who has which slice of the old layout. */
struct holders {
    int rank_count;
    struct expert_slice slices[LAYOUT_RANKS_MAX];
};

static void holders_find(struct holders *out, const struct model_shape *shape,
                         const struct layout *layout)
{
    out->rank_count = layout->rank_count;
    for (int r = 0; r < layout->rank_count; r++)
        out->slices[r] = moves_slice(shape, layout, r);
}

/* The rank from which a block comes: the receiver where it has it, else the lowest that has it. */
static int holder_of(const struct holders *holders, int64_t expert, int64_t block, int receiver)
{
    if (has(&holders->slices[receiver], expert, block))
        return receiver;
    for (int r = 0; r < holders->rank_count; r++) {
        if (has(&holders->slices[r], expert, block))
            return r;
    }
    ASSERT(!"every block lies somewhere");
    return -1;
}

/* The move that begins at a block and goes no further than `end` or the holder's slice. */
static struct move move_at(const struct holders *holders, int64_t expert, int64_t block,
                           int64_t end, int rank, struct move_rules rules)
{
    int holder = holder_of(holders, expert, block, rank);
    const struct range *held = &holders->slices[holder].blocks;
    int64_t held_end = held->first + held->count;
    bool is_here = holder == rank && rules.uses_here;
    return (struct move){
        .expert = expert,
        .blocks = {block, (held_end < end ? held_end : end) - block},
        .source = is_here ? MOVE_HERE : rules.elsewhere,
        .rank = !is_here && rules.elsewhere == MOVE_RANK ? holder : rank,
    };
}

static bool continues(const struct move *last, const struct move *next)
{
    return last->expert == next->expert && last->source == next->source && last->rank == next->rank;
}

int64_t moves_list(struct move *out, int64_t capacity, const struct model_shape *shape,
                   const struct layout *from, const struct layout *to, int rank,
                   struct move_rules rules)
{
    struct holders holders;
    struct expert_slice slice = moves_slice(shape, to, rank);
    int64_t count = 0, end = slice.blocks.first + slice.blocks.count;
    ASSERT(from->rank_count == to->rank_count && rules.elsewhere != MOVE_HERE);
    ASSERT(rules.uses_here || rules.elsewhere != MOVE_RANK); /* nobody sends to itself */
    holders_find(&holders, shape, from);
    for (int64_t e = slice.first_expert; e < slice.first_expert + slice.expert_count; e++) {
        struct move last = {.expert = -1};
        for (int64_t block = slice.blocks.first; block < end;) {
            struct move next = move_at(&holders, e, block, end, rank, rules);
            block += next.blocks.count;
            if (continues(&last, &next)) {
                next.blocks.first = last.blocks.first;
                next.blocks.count += last.blocks.count;
                count--;
            }
            if (count < capacity)
                out[count] = next;
            count++;
            last = next;
        }
    }
    return count;
}

void moves_sent_blocks(int64_t *sent, const struct model_shape *shape, const struct layout *from,
                       const struct layout *to)
{
    int n = from->rank_count;
    struct holders holders;
    ASSERT(from->rank_count == to->rank_count);
    holders_find(&holders, shape, from);
    memset(sent, 0, sizeof *sent * (size_t)n * (size_t)n);
    for (int rank = 0; rank < n; rank++) {
        struct expert_slice slice = moves_slice(shape, to, rank);
        int64_t end = slice.blocks.first + slice.blocks.count;
        for (int64_t e = slice.first_expert; e < slice.first_expert + slice.expert_count; e++) {
            struct move move;
            for (int64_t block = slice.blocks.first; block < end; block += move.blocks.count) {
                move = move_at(&holders, e, block, end, rank, moves_between_ranks());
                if (move.source == MOVE_RANK)
                    sent[move.rank * n + rank] += move.blocks.count;
            }
        }
    }
}
