/* Reshard: each rank sends what others lack, straight from its old slot into theirs, and gets what
 * it lacks; what it has already it copies from itself. Nothing is staged: a move is one message for
 * each array of an expert. A layer goes in rounds of bounded size, the same number on all ranks, so
 * that the lists of messages stay small, a watchdog sees the run move, and one that runs where a
 * core would be idle is short. */
#include "base/memory.h"
#include "layout/traffic.h"
#include "transition/transition_state.h"

/* What a rank receives in a round: at least a move. */
#define ROUND_BYTES ((int64_t)4 << 20)
#define ROUND_MOVES 4

struct reshard_rank {
    struct move_list lists[PHASE_COUNT][COMM_RANKS_MAX]; /* of all ranks, to each layout */
    int64_t round_moves[PHASE_COUNT];                    /* of each rank in a round */
    int64_t round_count[PHASE_COUNT];
    struct comm_message *sends, *receives;
};

/* ---- Life ------------------------------------------------------------------------------------ */

/* Every rank finds the same. */
static void rounds_find(struct reshard_rank *reshard, const struct transition_rank *rank,
                        enum phase phase)
{
    const struct transition *transition = rank->transition;
    int64_t block_bytes = expert_block_bytes(transition->params.shape, rank->slots->forms[0].type);
    int64_t most_blocks = 1, most_moves = 1;
    for (int r = 0; r < transition->rank_count; r++) {
        const struct move_list *list = &reshard->lists[phase][r];
        most_moves = list->count > most_moves ? list->count : most_moves;
        for (int64_t m = 0; m < list->count; m++) {
            int64_t blocks = list->moves[m].blocks.count;
            most_blocks = blocks > most_blocks ? blocks : most_blocks;
        }
    }
    int64_t moves = ROUND_BYTES / (most_blocks * block_bytes);
    moves = moves < 1 ? 1 : moves > ROUND_MOVES ? ROUND_MOVES : moves;
    reshard->round_moves[phase] = moves;
    reshard->round_count[phase] = ceil_div(most_moves, moves);
}

static enum status reshard_open(struct transition_rank *rank, struct error *err)
{
    struct transition *transition = rank->transition;
    struct reshard_rank *reshard;
    TRY(memory_get((void **)&reshard, 1, sizeof *reshard, "the transition", err));
    rank->reshard = reshard;
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        for (int r = 0; r < transition->rank_count; r++)
            TRY(move_list_init(&reshard->lists[phase][r], transition, (enum phase)phase, r,
                               moves_between_ranks(), rank->part, err));
        rounds_find(reshard, rank, (enum phase)phase);
    }
    size_t messages = ROUND_MOVES * EXPERT_ARRAYS_MAX;
    TRY(memory_get((void **)&reshard->receives, messages, sizeof *reshard->receives,
                   "the transition", err));
    return memory_get((void **)&reshard->sends, messages * (size_t)transition->rank_count,
                      sizeof *reshard->sends, "the transition", err);
}

static void reshard_close(struct transition_rank *rank)
{
    struct reshard_rank *reshard = rank->reshard;
    if (reshard == NULL)
        return;
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        for (int r = 0; r < rank->transition->rank_count; r++)
            move_list_deinit(&reshard->lists[phase][r]);
    }
    memory_free(reshard->receives);
    memory_free(reshard->sends);
    memory_free(reshard);
    rank->reshard = NULL;
}

/* ---- Messages -------------------------------------------------------------------------------- */

/* A message for each array of a move, between `peer` and the slice at `place`. */
static int64_t messages_add(struct comm_message *messages, int64_t count, int peer,
                            const struct move *move, const struct expert_form *form, char *place)
{
    for (int a = 0; a < form->array_count; a++)
        messages[count++] = (struct comm_message){
            .peer = peer,
            .data = place + expert_form_offset(form, a, move->expert, move->blocks.first),
            .bytes = move->blocks.count * form->arrays[a].block_bytes,
        };
    return count;
}

/* A list's moves of a round. */
static struct range round_of(const struct move_list *list, int64_t round_moves, int64_t round)
{
    int64_t first = round * round_moves, left = list->count - first;
    if (left <= 0)
        return (struct range){first, 0};
    return (struct range){first, left < round_moves ? left : round_moves};
}

void reshard_put(struct transition_rank *rank, int64_t layer, enum phase phase, int64_t round)
{
    const struct reshard_rank *reshard = rank->reshard;
    const struct expert_slots *slots = rank->slots;
    char *old = expert_slots_now(slots, layer), *new = expert_slots_target(slots, layer, phase);
    struct comm_exchange exchange = {
        .sends = reshard->sends, .receives = reshard->receives, .tag = TRAFFIC_TRANSITION};
    for (int r = 0; r < rank->transition->rank_count; r++) {
        const struct move_list *list = &reshard->lists[phase][r];
        struct range moves = round_of(list, reshard->round_moves[phase], round);
        for (int64_t m = moves.first; m < moves.first + moves.count; m++) {
            const struct move *move = &list->moves[m];
            if (move->rank == rank->index)
                exchange.send_count = messages_add(reshard->sends, exchange.send_count, r, move,
                                                   &slots->forms[phase_other(phase)], old);
            if (r == rank->index)
                exchange.receive_count = messages_add(reshard->receives, exchange.receive_count,
                                                      move->rank, move, &slots->forms[phase], new);
        }
    }
    comm_exchange(rank->world, rank->stream, &exchange);
}

/* Of rounds. */
static int64_t reshard_piece_count(const struct transition_rank *rank, int64_t layer,
                                   enum phase phase)
{
    (void)layer;
    return rank->reshard->round_count[phase];
}

static enum status reshard_move(struct transition_rank *rank, int64_t layer, enum phase phase,
                                struct range rounds, struct error *err)
{
    for (int64_t round = rounds.first; round < rounds.first + rounds.count; round++) {
        reshard_put(rank, layer, phase, round);
        TRY(rank->ops->synchronize(rank->stream, err));
    }
    return STATUS_OK;
}

const struct way_ops way_reshard = {.open = reshard_open,
                                    .close = reshard_close,
                                    .piece_count = reshard_piece_count,
                                    .move = reshard_move};
