/* A pass walked through message by message, as the design tells it: which rank sends which row, or
 * which sum, to whom. Bytes are counted where a message leaves. Beside them the walk keeps who has
 * which row and whose share of the work is in which sum, so that a walk that forgets a message, or
 * sends one twice, fails by itself. It shares no formula with src/layout/traffic.c. */
#ifndef TESTS_LAYOUT_TRAFFIC_WALK_H
#define TESTS_LAYOUT_TRAFFIC_WALK_H

#include "layout/traffic.h"

#define WALK_RANKS_MAX  8
#define WALK_TOKENS_MAX 128
#define WALK_TOP_K_MAX  8

struct walk_token {
    int owner;
    int64_t id; /* in the vocabulary */
    int32_t experts[WALK_TOP_K_MAX];
    bool is_wanted; /* its final row */
};

struct walk {
    const struct layout *layout;
    const struct model_shape *shape;
    enum layer_form form;
    int64_t row_bytes;
    const struct walk_token *tokens;
    int token_count;

    struct traffic_bytes sent;
    bool has[WALK_RANKS_MAX][WALK_TOKENS_MAX];      /* the token's row of this stage */
    uint64_t sums[WALK_RANKS_MAX][WALK_TOKENS_MAX]; /* a bit for each share of the work */
};

void walk_embed(struct walk *walk);
void walk_attention(struct walk *walk);
void walk_experts(struct walk *walk);
void walk_ffn(struct walk *walk, int64_t width, bool beside_experts);
void walk_head(struct walk *walk);

#endif
