/* The operations that a device computes, one struct of arguments each.
 *
 * Activations are f32 on the CPU, in row-major [token][stride] arrays. Every stride is a multiple
 * of 16 values and at least its dimension rounded up to 16; values between dimension and stride are
 * finite and are zero where a matrix follows (operations keep this: padded outputs of a matrix are
 * zero, because its padding is). Pointers are to memory of the device, but for
 * what is said to be host memory, borrowed until the stream has passed the operation; the argument
 * struct itself is copied. "Bytes" says what an operation must move at least, for benchmarks. No
 * operation allocates. Each value of a result depends on its own row alone, summed in an order that
 * does not depend on the other rows or on the number of threads.
 */
#ifndef PHASOR_DEVICE_OPS_H
#define PHASOR_DEVICE_OPS_H

#include <stdbool.h>
#include <stdint.h>

#include "layout/packing.h"

/* out[t] = row ids[t] of the table. Bytes: token_count rows. */
struct op_embed {
    float *out;          /* [token_count][out_stride] */
    struct matrix table; /* PACK_OUTPUT [vocab][hidden_dim] */
    const int32_t *ids;  /* [token_count] */
    int64_t token_count;
    int64_t out_stride;
};

/* out = in / sqrt(mean(in^2) + epsilon) x weight, over each row; out may be in. */
struct op_rms_norm {
    float *out;          /* [row_count][stride] */
    const float *in;     /* [row_count][stride] */
    const float *weight; /* [dim] */
    int64_t row_count;
    int64_t dim;
    int64_t stride;
    float epsilon;
};

/* out += in, over [row_count][stride], padding included. */
struct op_add {
    float *out;
    const float *in;
    int64_t row_count;
    int64_t stride;
};

/* out[m][n] = sum over k of in[m][k] x weight[n][k], + bias[n]. f32 accumulation, k rising. Here
 * and in feed-forward networks a device may round inputs to bf16 where the weight is bf16, and take
 * the two of a pair in either order; or round both to fp16, inputs in units by up to 2^-11 of
 * themselves and 2^-38 of the largest within 512 neighbours or of 2^-100 (2^126 and more gives no
 * number), weights by up to 2^-25 (finite ones beyond 65504 become that); and where it is int4
 * round inputs (times the scales that they have) by up to 2^-14 of the largest within 128
 * neighbours, or inputs to bf16 and weights to what op_dequantize makes of them. Bytes: the weight
 * once. Flops: 2 x row_count x rows x columns. */
struct op_matmul {
    float *out;           /* [row_count][out_stride], columns 0 .. round_up(rows, 16) - 1 */
    const float *in;      /* [row_count][in_stride] */
    struct matrix weight; /* [rows][columns] = [outputs][inputs], neither 0 */
    const float *bias;    /* [round_up(rows, 16)] or NULL */
    int64_t row_count;
    int64_t out_stride;
    int64_t in_stride;
};

/* Where the keys and values of a layer lie: pages of KV_PAGE_TOKENS tokens. In a page of one
 * kv head, keys are transposed, [dim_stride][KV_PAGE_TOKENS], so that a score of 16 tokens is one
 * vector; values are [KV_PAGE_TOKENS][dim_stride]. dim_stride is head_dim rounded up to 16. */
#define KV_PAGE_TOKENS 64

struct kv_layer {
    void *keys;   /* [page][kv_head][dim_stride][KV_PAGE_TOKENS] */
    void *values; /* [page][kv_head][KV_PAGE_TOKENS][dim_stride] */
    enum dtype dtype;
    int64_t kv_head_count;
    int64_t head_dim;
};

static inline int64_t kv_page_values(const struct kv_layer *layer)
{
    return layer->kv_head_count * round_up(layer->head_dim, PACK_BLOCK) * KV_PAGE_TOKENS;
}

/* Tokens of one sequence in a pass: rows first_row .. of the activations are positions
 * first_position .. of the sequence, whose pages (from position 0 on) are `pages`. */
struct segment {
    int64_t first_row;
    int64_t token_count;
    int64_t first_position;
    const int32_t *pages; /* [ceil((first_position + token_count) / KV_PAGE_TOKENS)] */
};

/* The projected heads of all tokens: [token][stride], with q, k and v at their offsets, heads one
 * after another, head_dim values each. */
struct qkv {
    float *values;
    int64_t stride;
    int64_t k_offset; /* q stands at 0 */
    int64_t v_offset;
    int64_t head_count;
    int64_t kv_head_count;
    int64_t head_dim;
};

/* Per query and key head: RMSNorm with q_norm, k_norm (where not NULL), then rotation of the pairs
 * (i, i + head_dim / 2) by the angle of the token's position. Queries stay in place; keys and
 * values go to their pages. */
struct op_rope_append {
    struct qkv qkv;
    struct kv_layer kv;
    const float *q_norm; /* [head_dim] or NULL */
    const float *k_norm; /* [head_dim] or NULL */
    float norm_epsilon;
    const float *rope;              /* [token_count][head_dim]: cos of the pairs, then sin */
    const struct segment *segments; /* host memory, and so are their pages */
    int64_t segment_count;
};

/* Causal attention with grouped query heads: out = softmax(q k / sqrt(head_dim)) v over the
 * positions p of the sequence with position - window < p <= position (window 0: all p <= position).
 * Where the cache is bf16 a device may round queries to bf16, and the exponentials of the softmax.
 * Bytes: keys and values that are seen, once per segment. */
struct op_attention {
    float *out; /* [token][out_stride], heads one after another */
    int64_t out_stride;
    struct qkv qkv;
    struct kv_layer kv;
    int64_t window;
    const struct segment *segments; /* host memory, and so are their pages */
    int64_t segment_count;
};

/* The choices of a token, made by `route` and read by those below: a row of choice_stride 4-byte
 * values that travels with the token, ids [top_k] (i32; -1: no expert) and weights [top_k] (f32) at
 * places of the caller's choice. */

/* Softmax over expert_count logits, the top_k likeliest in falling order (ties: the lower id
 * first; what differs by less than 2^-20, or is less likely than the likeliest by e^-87, may count
 * as equal), their probabilities, divided by their sum where `normalize`. The ids of a token are
 * distinct, even where the logits are no numbers (its weights are none then, either). */
struct op_route {
    int32_t *ids;   /* [token_count][choice_stride], top_k of each row are written */
    float *weights; /* [token_count][choice_stride], likewise */
    float *logits;  /* [token_count][logit_stride >= expert_count rounded up to 16]; overwritten */
    int64_t token_count;
    int64_t expert_count;
    int64_t top_k;
    int64_t choice_stride;
    int64_t logit_stride;
    bool normalize;
};

/* Which tokens go to which group of experts: a token goes once to each group that holds any of its
 * experts. The lists of the groups stand one after another, each in the order of the tokens: place
 * s holds token token_of[s]; token t is at place slot_of[t][g] for group g, or -1. */
struct op_dispatch {
    int32_t *counts;         /* [group_count]: places of each group */
    int32_t *token_of;       /* [token_count x min(top_k, group_count)] */
    int32_t *slot_of;        /* [token_count][group_count] */
    const int32_t *ids;      /* [token_count][choice_stride] */
    const int32_t *group_of; /* [experts of the layer] */
    int64_t token_count;
    int64_t group_count;
    int64_t top_k;
    int64_t choice_stride;
};

/* Sorts the (token, choice) pairs by expert, stable. Pair p = token x top_k + choice goes to sorted
 * position position_of[p], -1 where its expert is not here; sorted position s holds token
 * token_of[s]; expert e has positions offsets[e] .. offsets[e + 1] - 1. A token's ids are
 * distinct, so there are at most token_count x min(top_k, expert_count) of them. */
struct op_group {
    int32_t *offsets;        /* [expert_count + 1] */
    int32_t *token_of;       /* [token_count x top_k] */
    int32_t *position_of;    /* [token_count x top_k] */
    const int32_t *ids;      /* [token_count][choice_stride] */
    const int32_t *local_of; /* [experts of the layer]: which of the experts here, or -1; NULL: the
                              * id itself */
    int64_t token_count;
    int64_t expert_count; /* here */
    int64_t top_k;
    int64_t choice_stride;
};

/* One feed-forward network: a routed expert, a shared expert or a dense layer. */
struct ffn_weights {
    struct matrix gate; /* PACK_OUTPUT [width][hidden] */
    struct matrix up;   /* PACK_OUTPUT [width][hidden] */
    struct matrix down; /* PACK_INPUT [hidden][width] */
};

/* out[s] = silu(gate x in[r]) x (up x in[r]) for each sorted position s of each group, where r is
 * token_of[s], or s where token_of is NULL. Bytes: gate and up of each group that has rows. */
struct op_ffn_up {
    float *out;                       /* [offsets[group_count]][out_stride] */
    const float *in;                  /* [token][in_stride] */
    const struct ffn_weights *groups; /* host memory, [group_count], all of one shape */
    const int32_t *offsets;           /* [group_count + 1] */
    const int32_t *token_of;          /* or NULL */
    int64_t position_most;            /* offsets[group_count] is no more; 0: not known here */
    int64_t group_count;
    int64_t row_limit; /* no group has more rows; 0: it is not known */
    int64_t out_stride;
    int64_t in_stride;
    bool joins_next; /* the next thing on the stream but for a stage is another operation of this
                      * kind, which does not join its next, and neither writes what this one reads
                      * or writes nor reads what it writes: a device may run both at once, at the
                      * place of the second, so that one's arithmetic hides the other's reading, and
                      * the threads wait for each other once */
};

/* out[s] = down x in[s] for each sorted position s of each group. */
struct op_ffn_down {
    float *out;                       /* [offsets[group_count]][out_stride] */
    const float *in;                  /* [offsets[group_count]][in_stride] */
    const struct ffn_weights *groups; /* host memory, [group_count] */
    const int32_t *offsets;
    int64_t position_most; /* as of op_ffn_up */
    int64_t group_count;
    int64_t row_limit; /* as of op_ffn_up */
    int64_t out_stride;
    int64_t in_stride;
    bool joins_next; /* as of op_ffn_up */
};

/* out[t] = sum over choices c, in rising order, of weights[t][c] x in[position_of[t x top_k + c]],
 * choices at position -1 left out: a token without any gives zeros. */
struct op_combine {
    float *out;                 /* [token_count][stride] */
    const float *in;            /* [token_count x top_k][stride] */
    const int32_t *position_of; /* [token_count][top_k] */
    const float *weights;       /* [token_count][choice_stride]; NULL: all 1 */
    int64_t token_count;
    int64_t top_k;
    int64_t choice_stride;
    int64_t stride;
};

/* out[t] += sigmoid(in[t] . gate) x shared[t]; the gate of Qwen2-MoE's shared expert. */
struct op_shared_add {
    float *out;          /* [token_count][stride] */
    const float *shared; /* [token_count][stride] */
    const float *in;     /* [token_count][stride] */
    const float *gate;   /* [dim] */
    int64_t token_count;
    int64_t dim;
    int64_t stride;
};

/* A token of each row's logits: the largest, of equal ones the first; or a random one, each with
 * the probability that its logit has at a temperature (device/draw.h). Of several devices that each
 * have a part of the vocabulary the highest score decides, of equal ones the first token. */
#define CHOSEN_NONE   (-1) /* all are -infinity */
#define CHOSEN_BROKEN (-2) /* one is NaN or +infinity */
struct chosen {
    double score; /* of the token among the others: its logit, or its draw */
    int32_t at;   /* its place in the row; or one of those, with -infinity or NaN for the others */
    float logit;
};
struct draw {
    double temperature; /* 0: none is drawn, the largest is wanted */
    uint64_t key;       /* of the row: random_key(seed, position) */
};
struct op_choose {
    struct chosen *out;       /* [row_count] */
    const float *in;          /* [row_count][stride] */
    const struct draw *draws; /* [row_count], or NULL: the largest of each row */
    int64_t row_count;
    int64_t dim; /* > 0 */
    int64_t stride;
    int64_t first_token; /* the token of a row's first place, for its draws */
};

/* What limited draws and log-probabilities need of each row's logits: the highest ones, and sums
 * over all of them. These are off by up to 2^-30 of themselves. */
#define CANDIDATES_MAX 64
struct candidate {
    float logit;
    int32_t at;
};
struct candidates {
    double sum;  /* of exp(logit - the highest), */
    double mass; /* of exp((logit - the highest) / temperature); at temperature 0 it is the sum */
    int64_t
        count; /* min(dim, CANDIDATES_MAX); or CHOSEN_NONE or CHOSEN_BROKEN, and all else is 0 */
    struct candidate top[CANDIDATES_MAX]; /* [count] in falling order, of equal ones the first
                                           * first; behind them 0 */
};
struct op_candidates {
    struct candidates *out;   /* [row_count] */
    const float *in;          /* [row_count][stride] */
    const struct draw *draws; /* [row_count]: temperatures; or NULL: all are 0 */
    int64_t row_count;
    int64_t dim; /* > 0 */
    int64_t stride;
};

/* Rows of `in`, one after another: out[i] = in[rows[i]], of any kind of value. */
struct op_gather {
    void *out; /* [row_count][row_bytes] */
    const void *in;
    const int32_t *rows; /* [row_count] */
    int64_t row_count;
    int64_t row_bytes;
};

/* out = the weights of an int4 matrix in another type, packed in the same way: scale x nibble +
 * minimum in f32, which is the sum rounded once; to bf16 rounded once more, to nearest, ties to
 * even. Bytes: the matrix and the result once. */
struct op_dequantize {
    void *out;        /* packed_bytes in `dtype` */
    enum dtype dtype; /* DTYPE_BF16 or DTYPE_F32 */
    struct matrix in; /* DTYPE_INT4 */
};

/* out[0 .. bytes - 1] = in[...], and so `more_rows` times again (-1: not even once), each row a
 * stride behind the one before; the two do not overlap. */
struct op_copy {
    void *out;
    const void *in;
    int64_t bytes; /* of a row */
    int64_t more_rows;
    int64_t out_stride, in_stride; /* bytes; at least those of a row, where there are more */
};

/* out[0 .. bytes - 1] = byte. */
struct op_fill {
    void *out;
    int64_t bytes;
    uint8_t byte;
};

#endif
