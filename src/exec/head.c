/* Stage 9: the final rows that need logits go to all ranks, each of which computes its part of the
 * vocabulary; of all logits, or of the token that is chosen, the host learns. */
#include <math.h>
#include <string.h>

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

/* The draws of the wanted rows, to this device. */
static const struct draw *draws_here(struct rank *rank)
{
    const struct exec *exec = rank->exec;
    int64_t bytes = exec->wanted_count * (int64_t)sizeof(struct draw);
    if (exec->draws == NULL || bytes == 0)
        return NULL;
    memcpy(rank->staging.draws, exec->draws, (size_t)bytes);
    rank->ops->copy(
        rank->stream,
        &(struct op_copy){.out = rank->act.draws, .in = rank->staging.draws, .bytes = bytes});
    return rank->act.draws;
}

/* The token that is chosen of own vocabulary, to where head_merge finds it. */
static void chosen_send(struct rank *rank, const struct draw *draws)
{
    const struct exec *exec = rank->exec;
    rank->ops->choose(rank->stream, &(struct op_choose){
                                        .out = rank->act.chosen,
                                        .in = rank->act.logits,
                                        .draws = draws,
                                        .row_count = exec->wanted_count,
                                        .dim = rank->weights->vocab.count,
                                        .stride = exec->dim.vocab,
                                        .first_token = rank->weights->vocab.first,
                                    });
    rank->ops->copy(rank->stream, &(struct op_copy){
                                      .out = rank->staging.chosen,
                                      .in = rank->act.chosen,
                                      .bytes = exec->wanted_count * (int64_t)sizeof(struct chosen),
                                  });
}

/* Likewise the candidates. */
static void candidates_send(struct rank *rank, const struct draw *draws)
{
    const struct exec *exec = rank->exec;
    rank->ops->candidates(rank->stream, &(struct op_candidates){
                                            .out = rank->act.candidates,
                                            .in = rank->act.logits,
                                            .draws = draws,
                                            .row_count = exec->wanted_count,
                                            .dim = rank->weights->vocab.count,
                                            .stride = exec->dim.vocab,
                                        });
    rank->ops->copy(rank->stream,
                    &(struct op_copy){
                        .out = rank->staging.candidates,
                        .in = rank->act.candidates,
                        .bytes = exec->wanted_count * (int64_t)sizeof(struct candidates),
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
    const struct draw *draws = draws_here(rank);
    if (exec->wants_chosen)
        chosen_send(rank, draws);
    if (exec->wants_candidates)
        candidates_send(rank, draws);
    if (!exec->skips_logits)
        logits_send(rank);
}

/* ---- Of all ranks ---------------------------------------------------------------------------- */

/* Ranks have tokens in rising order: of equal scores the first is kept. */
static void chosen_merge(struct chosen *to, const struct chosen *from, int64_t first_token)
{
    if (to->at == CHOSEN_BROKEN || from->at == CHOSEN_NONE)
        return;
    if (from->at == CHOSEN_BROKEN)
        *to = *from;
    else if (to->at == CHOSEN_NONE || from->score > to->score)
        *to = (struct chosen){from->score, (int32_t)first_token + from->at, from->logit};
}

/* Both in falling order; of equal ones those of `a` are first, as their tokens are. */
static int64_t top_merge(struct candidate *out, const struct candidates *a,
                         const struct candidates *b, int64_t first_token_of_b)
{
    int64_t count = 0, i = 0, k = 0;
    while (count < CANDIDATES_MAX && (i < a->count || k < b->count)) {
        bool is_of_b = i == a->count || (k < b->count && b->top[k].logit > a->top[i].logit);
        out[count] = is_of_b ? b->top[k++] : a->top[i++];
        if (is_of_b)
            out[count].at += (int32_t)first_token_of_b;
        count++;
    }
    return count;
}

/* Sums are on the highest logit of each: they become sums on that of both. */
static void candidates_merge(struct candidates *to, const struct candidates *from,
                             int64_t first_token, double temperature)
{
    struct candidates both = {0};
    if (to->count == CHOSEN_BROKEN || from->count == CHOSEN_NONE)
        return;
    if (from->count == CHOSEN_BROKEN) {
        *to = *from;
        return;
    }
    if (to->count == CHOSEN_NONE)
        *to = (struct candidates){0};
    both.count = top_merge(both.top, to, from, first_token);
    double most = (double)both.top[0].logit;
    double down_to = to->count > 0 ? (double)to->top[0].logit - most : 0;
    double down_from = (double)from->top[0].logit - most;
    double cold = temperature > 0 ? temperature : 1;
    both.sum = to->sum * exp(down_to) + from->sum * exp(down_from);
    both.mass = to->mass * exp(down_to / cold) + from->mass * exp(down_from / cold);
    *to = both;
}

/* What all ranks found of a wanted row. */
static void row_merge(struct exec *exec, int64_t row)
{
    exec->chosen[row] = (struct chosen){-INFINITY, CHOSEN_NONE, -INFINITY};
    exec->candidates[row] = (struct candidates){.count = CHOSEN_NONE};
    for (int r = 0; r < exec->layout.rank_count; r++) {
        const struct rank *rank = &exec->ranks[r];
        const struct range *vocab = &rank->weights->vocab;
        if (vocab->count == 0)
            continue;
        if (exec->wants_chosen)
            chosen_merge(&exec->chosen[row], &rank->staging.chosen[row], vocab->first);
        if (exec->wants_candidates)
            candidates_merge(&exec->candidates[row], &rank->staging.candidates[row], vocab->first,
                             exec->draws != NULL ? exec->draws[row].temperature : 0);
    }
}

void head_merge(struct exec *exec)
{
    for (int64_t row = 0; row < exec->wanted_count; row++)
        row_merge(exec, row);
}
