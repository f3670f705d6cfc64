/* Stage 9: the final rows that need logits go to all ranks, each of which computes its part of the
 * vocabulary; of all logits, or of the largest alone, the host learns. */
#include <math.h>

#include "exec/exec_state.h"

/* The wanted rows that this rank owns, as its own rows; they are neighbours in the list. */
static int64_t wanted_here(struct rank *rank)
{
    const struct exec *exec = rank->exec;
    const struct range *own = &exec->pass.own[rank->index];
    int64_t count = 0;
    for (int64_t i = 0; i < exec->wanted_count; i++) {
        int64_t row = exec->wanted[i] - own->first;
        if (row >= 0 && row < own->count)
            rank->staging.logit_rows[count++] = (int32_t)row;
    }
    return count;
}

static void final_counts(struct rank *rank)
{
    const struct exec *exec = rank->exec;
    for (int r = 0; r < exec->layout.rank_count; r++) {
        const struct range *own = &exec->pass.own[r];
        int64_t count = 0;
        for (int64_t i = 0; i < exec->wanted_count; i++)
            count += exec->wanted[i] >= own->first && exec->wanted[i] < own->first + own->count;
        rank->final_rows.bytes[r] = count * exec->dim.hidden * 4;
    }
}

/* Own final rows, normed. */
static void finals_norm(struct rank *rank, int64_t count)
{
    const struct exec *exec = rank->exec;
    int64_t row_bytes = exec->dim.hidden * 4;
    rank->ops->copy(rank->stream, &(struct op_copy){.out = rank->act.logit_rows,
                                                    .in = rank->staging.logit_rows,
                                                    .bytes = count * 4});
    rank->ops->gather(rank->stream, &(struct op_gather){
                                        .out = rank->act.own_finals,
                                        .in = rank->act.residual,
                                        .rows = rank->act.logit_rows,
                                        .row_count = count,
                                        .row_bytes = row_bytes,
                                    });
    rank->ops->rms_norm(rank->stream, &(struct op_rms_norm){
                                          .out = rank->act.own_finals,
                                          .in = rank->act.own_finals,
                                          .weight = rank->weights->final_norm,
                                          .row_count = count,
                                          .dim = exec->config->hidden_dim,
                                          .stride = exec->dim.hidden,
                                          .epsilon = (float)exec->config->norm_epsilon,
                                      });
}

/* Final rows of all ranks, in the order of the list. */
static const float *finals_gather(struct rank *rank)
{
    if (rank->world == NULL || rank->exec->pass.form == FORM_REPLICATED)
        return rank->act.own_finals;
    final_counts(rank);
    comm_all_gather(rank->world, rank->stream,
                    &(struct comm_all_gather){
                        .out = rank->act.finals,
                        .in = rank->act.own_finals,
                        .counts = rank->final_rows.bytes,
                        .tag = TRAFFIC_HEAD,
                    });
    return rank->act.finals;
}

/* To where exec_head finds them. */
static void logits_send(struct rank *rank)
{
    const struct exec *exec = rank->exec;
    const struct range *vocab = &rank->weights->vocab;
    rank->ops->copy(rank->stream,
                    &(struct op_copy){
                        .out = exec->logits + vocab->first,
                        .in = rank->act.logits,
                        .bytes = vocab->count * 4,
                        .more_rows = exec->wanted_count - 1,
                        .out_stride = round_up(exec->config->vocab_count, PACK_BLOCK) * 4,
                        .in_stride = exec->dim.vocab * 4,
                    });
}

/* The largest of own vocabulary, to where head_merge finds it. */
static void largest_send(struct rank *rank)
{
    const struct exec *exec = rank->exec;
    rank->ops->largest(rank->stream, &(struct op_largest){
                                         .out = rank->act.largest,
                                         .in = rank->act.logits,
                                         .row_count = exec->wanted_count,
                                         .dim = rank->weights->vocab.count,
                                         .stride = exec->dim.vocab,
                                     });
    rank->ops->copy(rank->stream, &(struct op_copy){
                                      .out = rank->staging.largest,
                                      .in = rank->act.largest,
                                      .bytes = exec->wanted_count * (int64_t)sizeof(struct largest),
                                  });
}

void head_run(struct rank *rank)
{
    const struct exec *exec = rank->exec;
    stage_begin(rank, STAGE_HEAD);
    finals_norm(rank, wanted_here(rank));
    const float *finals = finals_gather(rank);
    if (rank->weights->vocab.count == 0)
        return;
    rank->ops->matmul(rank->stream, &(struct op_matmul){
                                        .out = rank->act.logits,
                                        .in = finals,
                                        .weight = rank->weights->head,
                                        .row_count = exec->wanted_count,
                                        .out_stride = exec->dim.vocab,
                                        .in_stride = exec->dim.hidden,
                                    });
    if (exec->wants_largest)
        largest_send(rank);
    else
        logits_send(rank);
}

/* Ranks have tokens in rising order: of equal values the first is kept. */
static void merge(struct largest *to, const struct largest *from, int64_t first_token)
{
    if (to->at == LARGEST_BROKEN || from->at == LARGEST_NONE)
        return;
    if (from->at == LARGEST_BROKEN)
        *to = *from;
    else if (to->at == LARGEST_NONE || from->value > to->value)
        *to = (struct largest){from->value, (int32_t)(first_token + from->at)};
}

void head_merge(struct exec *exec)
{
    for (int64_t i = 0; i < exec->wanted_count; i++) {
        exec->largest[i] = (struct largest){-INFINITY, LARGEST_NONE};
        for (int r = 0; r < exec->layout.rank_count; r++) {
            const struct range *vocab = &exec->ranks[r].weights->vocab;
            if (vocab->count > 0)
                merge(&exec->largest[i], &exec->ranks[r].staging.largest[i], vocab->first);
        }
    }
}
