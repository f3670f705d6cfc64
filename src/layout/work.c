#include "layout/work.h"

#define ACTIVATION_BYTES ((int64_t)sizeof(float))

/* Sizes come from files, each within its bound, and the planner asks about more of them together
 * than any machine computes: what cannot be counted counts as the most. */
static int64_t sum(int64_t one, int64_t other)
{
    return one + other < WORK_COUNT_MOST ? one + other : WORK_COUNT_MOST;
}

static int64_t product(int64_t one, int64_t other)
{
    int64_t all;
    return __builtin_mul_overflow(one, other, &all) || all > WORK_COUNT_MOST ? WORK_COUNT_MOST
                                                                             : all;
}

static int64_t product3(int64_t one, int64_t two, int64_t three)
{
    return product(product(one, two), three);
}

struct work work_matmul(int64_t row_count, const struct matrix *weight)
{
    return (struct work){
        .kind = WORK_MATMUL,
        .dims = {row_count, weight->rows, weight->columns},
        .flops = product3(2 * row_count, weight->rows, weight->columns),
        .held_bytes = row_count > 0 ? matrix_bytes(weight) : 0,
        .activation_bytes = product(row_count, (weight->rows + weight->columns) * ACTIVATION_BYTES),
    };
}

struct work work_attention(int64_t head_count, int64_t kv_head_count, int64_t head_dim)
{
    return (struct work){
        .kind = WORK_ATTENTION,
        .dims = {[3] = head_count * head_dim, [4] = kv_head_count * head_dim},
    };
}

/* Pairs that tokens at positions 0 .. count - 1 see. */
static int64_t pairs_before(int64_t count, int64_t window)
{
    int64_t growing = window > 0 && window < count ? window : count;
    return growing * (growing + 1) / 2 + (count - growing) * window;
}

int64_t work_attention_pairs(int64_t token_count, int64_t first_position, int64_t window)
{
    return pairs_before(first_position + token_count, window) -
           pairs_before(first_position, window);
}

int64_t work_attention_positions(int64_t token_count, int64_t first_position, int64_t window)
{
    int64_t oldest = window > 0 && first_position >= window ? first_position - window + 1 : 0;
    return token_count == 0 ? 0 : first_position + token_count - oldest;
}

void work_attention_sum(struct work *work, int64_t tokens, int64_t pairs, int64_t positions,
                        enum dtype kv_dtype)
{
    int64_t heads = work->dims[3], kv_heads = work->dims[4];
    work->dims[0] += tokens;
    work->dims[1] += pairs;
    work->dims[2] += positions;
    /* a score, and its share of the values */
    work->flops = sum(work->flops, product(pairs, 4 * heads));
    work->held_bytes =
        sum(work->held_bytes, product(positions, 2 * kv_heads * dtype_bits(kv_dtype) / 8));
    work->activation_bytes =
        sum(work->activation_bytes, product(tokens, 2 * heads * ACTIVATION_BYTES));
}

void work_attention_add(struct work *work, int64_t token_count, int64_t first_position,
                        int64_t window, enum dtype kv_dtype)
{
    work_attention_sum(work, token_count, work_attention_pairs(token_count, first_position, window),
                       work_attention_positions(token_count, first_position, window), kv_dtype);
}

struct work work_ffn_up(int64_t row_count, int64_t expert_count, const struct matrix *gate)
{
    int64_t width = gate->rows, hidden = gate->columns;
    return (struct work){
        .kind = WORK_FFN_UP,
        .dims = {row_count, expert_count, width, hidden},
        .flops = product3(4 * row_count, width, hidden),
        .held_bytes = product(2 * expert_count, matrix_bytes(gate)),
        .activation_bytes = product(row_count, (width + hidden) * ACTIVATION_BYTES),
    };
}

struct work work_ffn_down(int64_t row_count, int64_t expert_count, const struct matrix *down)
{
    int64_t width = down->columns, hidden = down->rows;
    return (struct work){
        .kind = WORK_FFN_DOWN,
        .dims = {row_count, expert_count, width, hidden},
        .flops = product3(2 * row_count, width, hidden),
        .held_bytes = product(expert_count, matrix_bytes(down)),
        .activation_bytes = product(row_count, (width + hidden) * ACTIVATION_BYTES),
    };
}

struct work work_rows(int64_t row_count, int64_t value_count, int64_t passes, int64_t value_bytes)
{
    return (struct work){
        .kind = WORK_ROWS,
        .dims = {row_count, value_count, passes},
        .activation_bytes = product3(row_count, value_count, passes * value_bytes),
    };
}

struct work work_dequantize(const struct matrix *in, enum dtype out)
{
    return (struct work){
        .kind = WORK_DEQUANTIZE,
        .dims = {in->rows, in->columns},
        .flops = 2 * in->rows * in->columns,
        .held_bytes = matrix_bytes(in),
        .activation_bytes = packed_bytes(in->rows, in->columns, out),
    };
}
