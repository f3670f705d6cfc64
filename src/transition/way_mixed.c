/* Mixed: of some experts each rank gets what it lacks from the others, of the rest from the
 * checkpoint, at the same time: where ranks and files are reached by different links, both work. A
 * part is a rank's double, which goes its way with a stream, lists and staging of its own; the two
 * write to one target, whose experts they share. A piece is a round of reshard with as many pieces
 * of reload as make them end together.
 *
 * How many experts go which way is transition->mixed_part, the same on all ranks.
 */
#include "base/memory.h"
#include "transition/transition_state.h"

struct mixed_rank {
    struct transition_rank sent, read; /* the parts */
    /* Of `sent`: beside passes, and while who waits lends device->stream to `read`. */
    struct stream *low, *normal;
};

/* ---- Life ------------------------------------------------------------------------------------ */

static enum status mixed_open(struct transition_rank *rank, struct error *err)
{
    struct mixed_rank *mixed;
    struct device *device = rank->device;
    TRY(memory_get((void **)&mixed, 1, sizeof *mixed, "the transition", err));
    rank->mixed = mixed;
    mixed->sent = mixed->read = *rank;
    mixed->sent.reshard = NULL;
    mixed->read.reload = NULL;
    mixed->sent.part = (struct expert_part){rank->transition->mixed_part, false};
    mixed->read.part = (struct expert_part){rank->transition->mixed_part, true};
    TRY(rank->ops->stream_create(device, &mixed->low, STREAM_LOW, err));
    TRY(rank->ops->stream_create(device, &mixed->normal, STREAM_NORMAL, err));
    stream_record_as(rank, mixed->normal, stream_lane(rank, mixed->low));
    TRY(rank->ops->synchronize(mixed->low, err));
    TRY(rank->ops->synchronize(mixed->normal, err));
    TRY(way_reshard.open(&mixed->sent, err));
    return way_reload.open(&mixed->read, err);
}

static void mixed_close(struct transition_rank *rank)
{
    struct mixed_rank *mixed = rank->mixed;
    if (mixed == NULL)
        return;
    way_reshard.close(&mixed->sent);
    way_reload.close(&mixed->read);
    rank->ops->stream_destroy(rank->device, mixed->low);
    rank->ops->stream_destroy(rank->device, mixed->normal);
    memory_free(mixed);
    rank->mixed = NULL;
}

/* ---- Pieces ---------------------------------------------------------------------------------- */

/* Rounds are as many on all ranks, one at least. */
static int64_t mixed_piece_count(const struct transition_rank *rank, int64_t layer,
                                 enum phase phase)
{
    return way_reshard.piece_count(&rank->mixed->sent, layer, phase);
}

/* The pieces of reload that go with some of mixed. */
static struct range reads_of(const struct transition_rank *rank, int64_t layer, enum phase phase,
                             struct range pieces)
{
    int64_t all = way_reload.piece_count(&rank->mixed->read, layer, phase);
    int64_t of = mixed_piece_count(rank, layer, phase);
    int64_t first = all * pieces.first / of;
    return (struct range){first, all * (pieces.first + pieces.count) / of - first};
}

static enum status piece_move(struct transition_rank *rank, int64_t layer, enum phase phase,
                              int64_t piece, struct error *err)
{
    struct mixed_rank *mixed = rank->mixed;
    struct range one = {piece, 1};
    reshard_put(&mixed->sent, layer, phase, piece);
    enum status status =
        way_reload.move(&mixed->read, layer, phase, reads_of(rank, layer, phase, one), err);
    /* What is on the stream ends before its messages may be written again, whatever happened. */
    struct error failure;
    enum status sent = rank->ops->synchronize(mixed->sent.stream, &failure);
    if (status == STATUS_OK && sent != STATUS_OK && err != NULL)
        *err = failure;
    return status != STATUS_OK ? status : sent;
}

static enum status parts_move(struct transition_rank *rank, int64_t layer, enum phase phase,
                              struct range pieces, struct error *err)
{
    struct mixed_rank *mixed = rank->mixed;
    int64_t count = mixed_piece_count(rank, layer, phase), piece = pieces.first;
    for (; piece < pieces.first + pieces.count && mixed->read.refusal == STATUS_OK; piece++)
        TRY(piece_move(rank, layer, phase, piece, err));
    if (mixed->read.refusal == STATUS_OK)
        return STATUS_OK;
    way_refuse(rank, mixed->read.refusal, &mixed->read.refusal_error);
    /* Without reads: the others wait for this rank in each. */
    return way_reshard.move(&mixed->sent, layer, phase, (struct range){piece, count - piece}, err);
}

static enum status mixed_move(struct transition_rank *rank, int64_t layer, enum phase phase,
                              struct range pieces, struct error *err)
{
    struct mixed_rank *mixed = rank->mixed;
    mixed->read.is_lent = rank->is_lent;
    mixed->read.stream = rank->stream;
    mixed->sent.stream = rank->is_lent ? mixed->normal : mixed->low;
    mixed->read.refusal = STATUS_OK;
    stream_note_layer(&mixed->sent, layer);
    enum status status = parts_move(rank, layer, phase, pieces, err);
    if (status != STATUS_OK)
        stream_abort(&mixed->sent, err); /* the caller knows rank->stream alone */
    return status;
}

static uint64_t mixed_bytes(const struct expert_slots_params *slots, const struct device *device)
{
    return reload_bytes(slots, device) + 2 * device->ops->stream_bytes();
}

const struct way_ops way_mixed = {
    .bytes = mixed_bytes,
    .open = mixed_open,
    .close = mixed_close,
    .piece_count = mixed_piece_count,
    .move = mixed_move,
};
