/* Stages 5 and 7: how tokens reach the experts and how sums come back, in the forms of
 * layout/traffic.h. A form is a choice of collectives; what the experts compute (ffn.c) is the
 * same: rows, their choices, and partial sums for them. */
#include <string.h>

#include "exec/exec_state.h"

/* Tokens are sent only where they are needed: all-to-all with counts that the router decides. */
static bool sends_apart(const struct rank *rank)
{
    return rank->exec->pass.form == FORM_OWNED && rank->here->layout.ep > 1;
}

/* Every rank already has all rows that its experts need. */
static bool has_all(const struct rank *rank)
{
    return rank->world == NULL || rank->exec->pass.form == FORM_REPLICATED;
}

const float *received_rows(const struct rank *rank)
{
    return has_all(rank) ? rank->act.normed : rank->act.received;
}

const int32_t *received_choices(const struct rank *rank)
{
    return has_all(rank) ? rank->act.choices : rank->act.received_choices;
}

float *received_sums(const struct rank *rank)
{
    return has_all(rank) ? rank->act.module_out : rank->act.received_out;
}

/* ---- Counts of the all-to-all ---------------------------------------------------------------- */

static void gather(struct rank *rank, void *out, const void *in, int64_t row_count,
                   int64_t row_bytes)
{
    rank->ops->gather(rank->stream, &(struct op_gather){
                                        .out = out,
                                        .in = in,
                                        .rows = rank->act.sent_token_of,
                                        .row_count = row_count,
                                        .row_bytes = row_bytes,
                                    });
}

/* Lists of own tokens for each expert group, and how many all ranks have for each. */
static enum status counts_exchange(struct rank *rank, struct error *err)
{
    const struct exec *exec = rank->exec;
    int64_t groups = rank->here->layout.ep, rank_count = exec->layout.rank_count;
    rank->ops->dispatch(rank->stream, &(struct op_dispatch){
                                          .counts = rank->act.sent_counts,
                                          .token_of = rank->act.sent_token_of,
                                          .slot_of = rank->act.slot_of,
                                          .ids = rank->act.choices,
                                          .group_of = rank->here->group_of,
                                          .token_count = rank->own_count,
                                          .group_count = groups,
                                          .top_k = exec->config->expert_top_k,
                                          .choice_stride = exec->dim.choices,
                                      });
    comm_all_gather(rank->world, rank->stream,
                    &(struct comm_all_gather){
                        .out = rank->act.all_counts,
                        .in = rank->act.sent_counts,
                        .counts = rank->here->count_bytes,
                        .tag = TRAFFIC_COUNTS,
                    });
    rank->ops->copy(rank->stream, &(struct op_copy){.out = rank->staging.all_counts,
                                                    .in = rank->act.all_counts,
                                                    .bytes = rank_count * groups * 4});
    TRY(rank->ops->synchronize(rank->stream, err));
    for (int64_t i = 0; i < rank_count * groups; i++)
        rank->staging.sent[i] = rank->staging.all_counts[i];
    return STATUS_OK;
}

enum status dispatch_begin(struct rank *rank, struct error *err)
{
    const struct exec *exec = rank->exec;
    rank->rounds = 1;
    if (!sends_apart(rank))
        return STATUS_OK;
    stage_begin(rank, STAGE_COLLECTIVE);
    TRY(counts_exchange(rank, err));
    int64_t groups = rank->here->layout.ep, list_rows = 0;
    for (int64_t g = 0; g < groups; g++)
        list_rows += rank->staging.sent[rank->index * groups + g];
    gather(rank, rank->act.sent, rank->act.normed, list_rows, exec->dim.hidden * 4);
    gather(rank, rank->act.sent_choices, rank->act.choices, list_rows, exec->dim.choices * 4);
    rank->rounds = dispatch_rounds(rank->staging.sent, exec->layout.rank_count, (int)groups,
                                   rank->here->capacity);
    return STATUS_OK;
}

/* Sets one side of an all-to-all, for rows and for their choices. */
static void side_set(int64_t *row_bytes, int64_t *rows_at, int64_t *choice_bytes,
                     int64_t *choices_at, int64_t first, int64_t count,
                     const struct dimensions *dim)
{
    *row_bytes = count * dim->hidden * 4;
    *rows_at = first * dim->hidden * 4;
    *choice_bytes = count * dim->choices * 4;
    *choices_at = first * dim->choices * 4;
}

static void round_send(struct rank *rank, int64_t index)
{
    struct round_counts *round = &rank->round;
    int64_t groups = rank->here->layout.ep;
    const int64_t *own = rank->staging.sent + rank->index * groups;
    int64_t list_first = 0;
    for (int64_t g = 0; g < groups; g++) {
        struct range piece = dispatch_piece(own[g], rank->rounds, index);
        side_set(&round->rows.send[g], &round->rows.send_at[g], &round->choices.send[g],
                 &round->choices.send_at[g], list_first + piece.first, piece.count,
                 &rank->exec->dim);
        list_first += own[g];
    }
}

/* Rows that come to each member of the expert group, from the owners with the same et. */
static void round_receive(struct rank *rank, int64_t index)
{
    struct round_counts *round = &rank->round;
    const struct dimensions *dim = &rank->exec->dim;
    int64_t groups = rank->here->layout.ep, tp = rank->here->layout.tp;
    int64_t row = 0;
    for (int64_t member = 0; member < tp; member++) {
        int64_t first = row;
        for (int64_t source = 0; source < groups; source++) {
            int64_t owner = source * tp + member;
            struct range piece = dispatch_piece(rank->staging.sent[owner * groups + rank->here->ee],
                                                rank->rounds, index);
            if (member == rank->here->et)
                side_set(&round->rows.receive[source], &round->rows.receive_at[source],
                         &round->choices.receive[source], &round->choices.receive_at[source], row,
                         piece.count, dim);
            row += piece.count;
        }
        if (member == rank->here->et)
            round->first_row = first;
        round->group.bytes[member] = (row - first) * dim->hidden * 4;
        round->group.values[member] = (row - first) * dim->hidden;
        round->group.choice_bytes[member] = (row - first) * dim->choices * 4;
    }
    round->row_count = row;
    ASSERT(row <= rank->here->capacity);
}

/* ---- Moving ---------------------------------------------------------------------------------- */

static void to_peers(struct rank *rank, void *out, const void *in,
                     const struct exchange_counts *counts, enum traffic tag)
{
    comm_all_to_all_v(rank->here->peers, rank->stream,
                      &(struct comm_all_to_all_v){
                          .out = out,
                          .in = in,
                          .send_counts = counts->send,
                          .send_offsets = counts->send_at,
                          .receive_counts = counts->receive,
                          .receive_offsets = counts->receive_at,
                          .tag = (int)tag,
                      });
}

static void all_gather(struct rank *rank, struct comm *comm, void *out, const void *in,
                       const int64_t *counts, enum traffic tag)
{
    comm_all_gather(
        comm, rank->stream,
        &(struct comm_all_gather){.out = out, .in = in, .counts = counts, .tag = (int)tag});
}

/* To one rank of each group, then to the others of that group. */
static enum status dispatch_apart(struct rank *rank, int64_t index, struct error *err)
{
    struct round_counts *round = &rank->round;
    struct activations *act = &rank->act;
    const struct dimensions *dim = &rank->exec->dim;
    stage_begin(rank, STAGE_COLLECTIVE);
    if (index > 0) /* what is on the stream still reads the counts of the round before */
        TRY(rank->ops->synchronize(rank->stream, err));
    round_send(rank, index);
    round_receive(rank, index);
    to_peers(rank, act->received, act->sent, &round->rows, TRAFFIC_DISPATCH);
    to_peers(rank, act->received_choices, act->sent_choices, &round->choices, TRAFFIC_CHOICES);
    if (rank->here->group != NULL) {
        all_gather(rank, rank->here->group, act->received,
                   act->received + round->first_row * dim->hidden, round->group.bytes,
                   TRAFFIC_EXPERT_GATHER);
        all_gather(rank, rank->here->group, act->received_choices,
                   act->received_choices + round->first_row * dim->choices,
                   round->group.choice_bytes, TRAFFIC_CHOICES);
    }
    rank->received_count = round->row_count;
    return STATUS_OK;
}

enum status dispatch(struct rank *rank, int64_t round, struct error *err)
{
    if (sends_apart(rank))
        return dispatch_apart(rank, round, err);
    rank->received_count = rank->row_count;
    if (has_all(rank))
        return STATUS_OK;
    stage_begin(rank, STAGE_COLLECTIVE);
    bool is_owned = rank->exec->pass.form == FORM_OWNED; /* the expert group is all ranks */
    all_gather(rank, rank->world, rank->act.received, rank->act.normed, rank->world_rows.bytes,
               is_owned ? TRAFFIC_EXPERT_GATHER : TRAFFIC_DISPATCH);
    all_gather(rank, rank->world, rank->act.received_choices, rank->act.choices,
               rank->world_rows.choice_bytes, TRAFFIC_CHOICES);
    return STATUS_OK;
}

/* Sums within the group, each row to the member that received it; then back to the owner, into the
 * place from which the row was sent. */
static void combine_apart(struct rank *rank)
{
    struct round_counts *round = &rank->round;
    struct activations *act = &rank->act;
    if (rank->here->group != NULL)
        comm_reduce_scatter(
            rank->here->group, rank->stream,
            &(struct comm_reduce_scatter){
                .out = act->received_out + round->first_row * rank->exec->dim.hidden,
                .in = act->received_out,
                .counts = round->group.values,
                .tag = TRAFFIC_EXPERT_REDUCE,
            });
    const struct exchange_counts *there = &round->rows;
    comm_all_to_all_v(rank->here->peers, rank->stream,
                      &(struct comm_all_to_all_v){
                          .out = act->sent,
                          .in = act->received_out,
                          .send_counts = there->receive,
                          .send_offsets = there->receive_at,
                          .receive_counts = there->send,
                          .receive_offsets = there->send_at,
                          .tag = TRAFFIC_COMBINE,
                      });
}

void combine(struct rank *rank)
{
    struct activations *act = &rank->act;
    if (rank->world == NULL)
        return;
    stage_begin(rank, STAGE_COLLECTIVE);
    if (sends_apart(rank))
        combine_apart(rank);
    else if (has_all(rank))
        comm_all_reduce(rank->world, rank->stream,
                        &(struct comm_all_reduce){
                            .out = act->module_out,
                            .in = act->module_out,
                            .count = rank->row_count * rank->exec->dim.hidden,
                            .tag = TRAFFIC_EXPERT_REDUCE,
                        });
    else
        comm_reduce_scatter(rank->world, rank->stream,
                            &(struct comm_reduce_scatter){
                                .out = act->module_out,
                                .in = act->received_out,
                                .counts = rank->world_rows.values,
                                .tag = TRAFFIC_EXPERT_REDUCE,
                            });
}

/* The owner adds what the groups sent back, in their order. */
void combine_end(struct rank *rank)
{
    if (!sends_apart(rank))
        return;
    stage_begin(rank, STAGE_COMBINE);
    rank->ops->combine(rank->stream, &(struct op_combine){
                                         .out = rank->act.module_out,
                                         .in = rank->act.sent,
                                         .position_of = rank->act.slot_of,
                                         .token_count = rank->own_count,
                                         .top_k = rank->here->layout.ep,
                                         .stride = rank->exec->dim.hidden,
                                     });
}
