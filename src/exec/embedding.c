/* Stage 0: embedding rows come from the ranks that hold them to the owners of the tokens. */
#include "exec/exec_state.h"

static void embed(struct rank *rank, float *out)
{
    rank->ops->embed(rank->stream, &(struct op_embed){
                                       .out = out,
                                       .table = rank->weights->embedding,
                                       .ids = rank->act.ids,
                                       .token_count = rank->held_count,
                                       .out_stride = rank->exec->dim.hidden,
                                   });
}

void embedding_run(struct rank *rank)
{
    const struct exchange_counts *counts = &rank->embedding;
    int64_t row_bytes = rank->exec->dim.hidden * 4;
    if (rank->world == NULL) {
        embed(rank, rank->act.residual);
        return;
    }
    embed(rank, rank->act.down);
    comm_all_to_all_v(rank->world, rank->stream,
                      &(struct comm_all_to_all_v){
                          .out = rank->act.normed,
                          .in = rank->act.down,
                          .send_counts = counts->send,
                          .send_offsets = counts->send_at,
                          .receive_counts = counts->receive,
                          .receive_offsets = counts->receive_at,
                          .tag = TRAFFIC_EMBED,
                      });
    rank->ops->gather(rank->stream, &(struct op_gather){
                                        .out = rank->act.residual,
                                        .in = rank->act.normed,
                                        .rows = rank->act.embed_rows,
                                        .row_count = rank->own_count,
                                        .row_bytes = row_bytes,
                                    });
}
