/* How many bytes leave a rank in each collective of a pass: exact formulas, given how many tokens
 * each rank owns and how the router has sent them.
 *
 * "Bytes" are payload times receivers, as comm/comm.h counts them; an all-reduce counts as
 * reduce-scatter and all-gather. Counts and ids have rows of their own. The communicator counts
 * what it copies under the same names, so that the two can be compared. */
#ifndef PHASOR_LAYOUT_TRAFFIC_H
#define PHASOR_LAYOUT_TRAFFIC_H

#include "layout/layout.h"

enum traffic {
    TRAFFIC_EMBED,            /* 0: embedding rows to the owners */
    TRAFFIC_ATTENTION_GATHER, /* 1 */
    TRAFFIC_ATTENTION_REDUCE, /* 3; in the replicated form the all-reduce */
    TRAFFIC_COUNTS,           /* 5: how many rows each rank sends to each group */
    TRAFFIC_CHOICES,          /* 5: ids and weights, wherever they travel */
    TRAFFIC_DISPATCH,      /* 5: rows to the expert groups; in the gathered form the all-gather */
    TRAFFIC_EXPERT_GATHER, /* 5: rows within an expert group */
    TRAFFIC_EXPERT_REDUCE, /* 7: within an expert group; in the gathered and the replicated form
                            * the reduction over all ranks */
    TRAFFIC_COMBINE,       /* 7: rows back to the owners */
    TRAFFIC_FFN_GATHER,    /* 8: of a shared expert or a dense layer that is cut, where it cannot
                            * ride on 5 and 7 */
    TRAFFIC_FFN_REDUCE,    /* 8 */
    TRAFFIC_HEAD,          /* 9: final rows to all ranks */
    TRAFFIC_TRANSITION,    /* weights of experts, from one layout to another */
    TRAFFIC_KIND_COUNT
};

/* "embedding rows", ...; never NULL. */
extern const char *const traffic_names[TRAFFIC_KIND_COUNT];

/* How tokens move through a layer (docs/ARCHITECTURE.md). */
enum layer_form {
    FORM_OWNED,      /* each token has one owner; all-to-all to the experts: for prefill */
    FORM_GATHERED,   /* each token has one owner; all tokens go to all ranks: for decode */
    FORM_REPLICATED, /* every rank has every token, one all-reduce for each module; Ad = 1 only */
};

/* Bytes that leave each rank, by kind. */
struct traffic_bytes {
    int64_t bytes[LAYOUT_RANKS_MAX][TRAFFIC_KIND_COUNT];
};

/* What a pass has. Rows are numbered over all ranks: rank r owns own_counts[r] of them, in the
 * order of the ranks; in the replicated form every rank owns all, and own_counts[0] is their
 * number. */
struct traffic_pass {
    enum layer_form form;
    const int64_t *own_counts; /* [rank_count] */
    int64_t row_bytes;         /* of an activation row: stride x bytes of its number type */
};

/* Each adds to `to`. */

/* held[h x rank_count + o] rows go from rank h, which holds them, to their owner o. In the
 * replicated form o is every rank: held[h x rank_count + o] is the number of tokens whose row h
 * holds, for each o. */
void traffic_embed(struct traffic_bytes *to, const struct layout *layout,
                   const struct traffic_pass *pass, const int64_t *held);

/* Attention of one layer. */
void traffic_attention(struct traffic_bytes *to, const struct layout *layout,
                       const struct traffic_pass *pass);

/* Routed experts of one layer. sent[r x Ee + g]: tokens of owner r that go to expert group g (its
 * own group included); read in the owned form only. A token carries 2 x top_k values of 4 bytes
 * with it. With Ee = 1 there is nothing to count or to send: rows and choices are gathered. */
void traffic_experts(struct traffic_bytes *to, const struct layout *layout,
                     const struct model_shape *shape, const struct traffic_pass *pass,
                     const int64_t *sent);

/* A shared expert (beside_experts) or a dense layer, of `width`. Nothing moves when it is not cut
 * or At = 1. Else rows are gathered and sums scattered within the attention group, but for these:
 * in the replicated form a shared expert's sums ride on the experts' all-reduce, and a dense layer
 * has one all-reduce of its own (TRAFFIC_FFN_REDUCE); a shared expert in the gathered form, or in
 * the owned form with At = Et = N, rides on the experts' gather and scatter. */
void traffic_ffn(struct traffic_bytes *to, const struct layout *layout,
                 const struct traffic_pass *pass, int64_t width, bool beside_experts);

/* Final rows: wanted[r] of rank r go to all. In the replicated form nothing moves. */
void traffic_head(struct traffic_bytes *to, const struct layout *layout,
                  const struct traffic_pass *pass, const int64_t *wanted);

/* ---- Dispatch in rounds (dispatch.c) --------------------------------------------------------- */

/* Rows that the receive buffer of an expert group holds: the smaller of all `token_count` tokens of
 * a pass and twice the rows that a group expects of them when all experts are as likely (a token
 * comes once, however many of its top_k experts the group holds), a row of each rank more for what
 * does not divide evenly into rounds, and at least `rank_count`. So the tokens of a pass need at
 * most (Ee + 1) / 2 rounds, however they are routed. */
int64_t dispatch_capacity(const struct layout *layout, const struct model_shape *shape,
                          int64_t token_count);

/* How many rounds, at least 1, bring every group's rows through buffers of `capacity` rows, which
 * is at least rank_count: the fewest. In round i of n, owner r sends to group g its rows
 * dispatch_piece(sent[r x Ee + g], n, i). Every rank computes the same from the same table. */
int64_t dispatch_rounds(const int64_t *sent, int rank_count, int group_count, int64_t capacity);
struct range dispatch_piece(int64_t sent, int64_t rounds, int64_t round);

#endif
