/* Data of the operations of the experts. */
#include <string.h>

#include "workload_data.h"

/* The rows of choices that an operation writes: ids and weights each by themselves, or, where the
 * case has more between them, in one row as they travel. */
struct choices {
    int32_t *ids;
    float *weights;
    int64_t stride;
};

static struct choices choices_new(struct workload *w)
{
    const struct kernel_case *c = w->from;
    if (c->choice_extra == 0)
        return (struct choices){output_ints_new(w, c->token_count * c->top_k),
                                output_new(w, c->token_count, c->top_k), c->top_k};
    int64_t stride = 2 * c->top_k + c->choice_extra;
    float *rows = output_new(w, c->token_count, stride);
    return (struct choices){(int32_t *)rows, rows + c->top_k, stride};
}

/* Logits are multiples of 1/4, so that two are equal or far apart: ties are ties in any arithmetic.
 */
void workload_route(struct workload *w, struct random *random)
{
    const struct kernel_case *c = w->from;
    int64_t stride = stride_of(w, c->expert_count);
    float *logits = own(w, (size_t)(c->token_count * stride), sizeof *logits);
    for (int64_t i = 0; i < c->token_count * stride; i++)
        logits[i] = (float)random_below(random, 40) / 4 - 5;
    struct choices choices = choices_new(w);
    w->route = (struct op_route){
        .ids = choices.ids,
        .weights = choices.weights,
        .logits = output_add(w, logits, (size_t)(c->token_count * stride) * sizeof *logits),
        .token_count = c->token_count,
        .expert_count = c->expert_count,
        .top_k = c->top_k,
        .choice_stride = choices.stride,
        .logit_stride = stride,
        .normalize = c->option,
    };
    w->bytes = (double)(c->token_count * c->expert_count * 4);
}

static bool id_is_taken(const int32_t *ids, int64_t count, int32_t id)
{
    for (int64_t i = 0; i < count; i++) {
        if (ids[i] == id)
            return true;
    }
    return false;
}

/* top_k different experts for each token; with `absent`, some are none, and the first token has
 * none at all. */
static const int32_t *expert_ids_new(struct workload *w, struct random *random, int64_t stride)
{
    const struct kernel_case *c = w->from;
    int32_t *ids = own(w, (size_t)(c->token_count * stride), sizeof *ids);
    for (int64_t i = 0; i < c->token_count * stride; i++)
        ids[i] = (int32_t)POISON_F32; /* no expert: is not to be read */
    for (int64_t t = 0; t < c->token_count; t++) {
        int32_t *token_ids = ids + t * stride, id;
        for (int64_t k = 0; k < c->top_k; k++) {
            do {
                id = (int32_t)random_below(random, (uint64_t)c->expert_count);
                if (c->spread == SPREAD_FEW)
                    id -= id % 2;
                if (c->spread == SPREAD_LAST && k == 0)
                    id = (int32_t)c->expert_count - 1;
            } while (id_is_taken(token_ids, k, id));
            token_ids[k] = id;
        }
        for (int64_t k = 0; c->absent && k < c->top_k; k++) {
            if (t == 0 || random_below(random, 3) == 0)
                token_ids[k] = -1;
        }
    }
    return ids;
}

static int64_t choice_stride_of(const struct workload *w)
{
    return w->from->top_k + w->from->choice_extra;
}

/* Experts in turn belong to the groups, so that neighbours do not. */
void workload_dispatch(struct workload *w, struct random *random)
{
    const struct kernel_case *c = w->from;
    int64_t least = c->top_k < c->group_count ? c->top_k : c->group_count;
    int32_t *group_of = own(w, (size_t)c->expert_count, sizeof *group_of);
    for (int64_t e = 0; e < c->expert_count; e++)
        group_of[e] = (int32_t)(e % c->group_count);
    w->dispatch = (struct op_dispatch){
        .counts = output_ints_new(w, c->group_count),
        .token_of = output_ints_new(w, c->token_count * least),
        .slot_of = output_ints_new(w, c->token_count * c->group_count),
        .ids = expert_ids_new(w, random, choice_stride_of(w)),
        .group_of = group_of,
        .token_count = c->token_count,
        .group_count = c->group_count,
        .top_k = c->top_k,
        .choice_stride = choice_stride_of(w),
    };
    w->bytes = (double)(c->token_count * (c->top_k + least + c->group_count) * 4);
}

/* The local number of each expert, and how many there are. What is here stands in falling order, so
 * that a local number is never the id by chance. */
static const int32_t *local_of_new(struct workload *w, int64_t *count)
{
    const struct kernel_case *c = w->from;
    *count = c->expert_count;
    if (c->local == LOCAL_IDS)
        return NULL;
    int32_t *local_of = own(w, (size_t)c->expert_count, sizeof *local_of);
    *count = 0;
    for (int64_t e = c->expert_count - 1; e >= 0; e--) {
        bool here = c->local == LOCAL_ALL || (c->local == LOCAL_SOME && e % 3 == 1);
        local_of[e] = here ? (int32_t)(*count)++ : -1;
    }
    return local_of;
}

void workload_group(struct workload *w, struct random *random)
{
    const struct kernel_case *c = w->from;
    int64_t pairs = c->token_count * c->top_k, expert_count;
    const int32_t *local_of = local_of_new(w, &expert_count);
    w->group = (struct op_group){
        .offsets = output_ints_new(w, expert_count + 1),
        .token_of = output_ints_new(w, pairs),
        .position_of = output_ints_new(w, pairs),
        .ids = expert_ids_new(w, random, choice_stride_of(w)),
        .local_of = local_of,
        .token_count = c->token_count,
        .expert_count = expert_count,
        .top_k = c->top_k,
        .choice_stride = choice_stride_of(w),
    };
    w->bytes = (double)(pairs * 12);
}

/* The rows of each expert, by one scan of all pairs for each: slow and clear. */
static int64_t expert_rows_new(struct workload *w, struct random *random, const int32_t **offsets,
                               const int32_t **token_of)
{
    const struct kernel_case *c = w->from;
    int32_t *starts = own(w, (size_t)c->expert_count + 1, sizeof *starts);
    *offsets = starts;
    *token_of = NULL;
    if (c->spread == SPREAD_DENSE) {
        starts[1] = (int32_t)c->token_count;
        return c->token_count;
    }
    const int32_t *ids = expert_ids_new(w, random, c->top_k);
    int32_t *tokens = own(w, (size_t)(c->token_count * c->top_k), sizeof *tokens);
    int32_t count = 0;
    for (int64_t e = 0; e < c->expert_count; e++) {
        starts[e] = count;
        for (int64_t p = 0; p < c->token_count * c->top_k; p++) {
            if (ids[p] == e)
                tokens[count++] = (int32_t)(p / c->top_k);
        }
    }
    starts[c->expert_count] = count;
    *token_of = tokens;
    return count;
}

/* As it lies in memory, int4 with its scales. */
static double bytes_of_matrix(const struct matrix *matrix)
{
    int64_t bytes = packed_bytes(matrix->rows, matrix->columns, matrix->dtype);
    if (matrix->dtype == DTYPE_INT4)
        bytes += packed_scale_count(matrix->packing, matrix->rows, matrix->columns, matrix->group) *
                 (matrix->minima != NULL ? 4 : 2);
    return (double)bytes;
}

/* Of expert `e`, whose first one's is `first`. A GPU's benchmarks have the first one's numbers in
 * each, as to draw others would take longer than to time the case. */
static struct matrix expert_matrix(struct workload *w, struct random *random, int64_t e,
                                   const struct matrix *first, enum packing packing, int64_t rows,
                                   int64_t columns)
{
    if (e == 0 || w->from->use != FOR_GPU_BENCH)
        return matrix_new(w, random, packing, w->from->dtype, rows, columns);
    struct matrix matrix = *first;
    int64_t bytes = packed_bytes(first->rows, first->columns, first->dtype);
    matrix.data = memcpy(own(w, (size_t)bytes, 1), first->data, (size_t)bytes);
    return matrix;
}

void workload_ffn_up(struct workload *w, struct random *random)
{
    const struct kernel_case *c = w->from;
    const int32_t *offsets, *token_of;
    int64_t rows = expert_rows_new(w, random, &offsets, &token_of);
    struct ffn_weights *groups = own(w, (size_t)c->expert_count, sizeof *groups);
    for (int64_t e = 0; e < c->expert_count; e++) {
        groups[e].gate =
            expert_matrix(w, random, e, &groups[0].gate, PACK_OUTPUT, c->rows, c->columns);
        groups[e].up = expert_matrix(w, random, e, &groups[0].up, PACK_OUTPUT, c->rows, c->columns);
    }
    w->ffn_up = (struct op_ffn_up){
        .out = output_new(w, rows, stride_of(w, c->rows)),
        .in = rows_new(w, random, c->token_count, c->columns, stride_of(w, c->columns)),
        .groups = groups,
        .offsets = offsets,
        .token_of = token_of,
        .position_most = rows,
        .group_count = c->expert_count,
        .row_limit = c->token_count,
        .out_stride = stride_of(w, c->rows),
        .in_stride = stride_of(w, c->columns),
    };
    w->row_count = rows;
    for (int64_t e = 0; e < c->expert_count; e++)
        w->bytes += offsets[e] < offsets[e + 1] ? 2 * bytes_of_matrix(&groups[e].gate) : 0;
    w->flops = 4.0 * (double)(rows * c->rows * c->columns);
}

void workload_ffn_down(struct workload *w, struct random *random)
{
    const struct kernel_case *c = w->from;
    const int32_t *offsets, *token_of;
    int64_t rows = expert_rows_new(w, random, &offsets, &token_of);
    struct ffn_weights *groups = own(w, (size_t)c->expert_count, sizeof *groups);
    for (int64_t e = 0; e < c->expert_count; e++)
        groups[e].down =
            expert_matrix(w, random, e, &groups[0].down, PACK_INPUT, c->columns, c->rows);
    w->ffn_down = (struct op_ffn_down){
        .out = output_new(w, rows, stride_of(w, c->columns)),
        .in = rows_new(w, random, rows, c->rows, stride_of(w, c->rows)),
        .groups = groups,
        .offsets = offsets,
        .position_most = rows,
        .group_count = c->expert_count,
        .row_limit = c->token_count,
        .out_stride = stride_of(w, c->columns),
        .in_stride = stride_of(w, c->rows),
    };
    w->row_count = rows;
    for (int64_t e = 0; e < c->expert_count; e++)
        w->bytes += offsets[e] < offsets[e + 1] ? bytes_of_matrix(&groups[e].down) : 0;
    w->flops = 2.0 * (double)(rows * c->rows * c->columns);
}

/* Positions in a random order; what no choice takes from `in` is poisoned. */
void workload_combine(struct workload *w, struct random *random)
{
    const struct kernel_case *c = w->from;
    int64_t stride = stride_of(w, c->columns), pairs = c->token_count * c->top_k;
    int32_t *position_of = shuffled_new(w, random, pairs);
    float *in = rows_new(w, random, pairs, c->columns, stride);
    for (int64_t p = 0; c->absent && p < pairs; p++) {
        if (p >= c->top_k && random_below(random, 3) > 0)
            continue;
        for (int64_t i = 0; i < stride; i++)
            in[position_of[p] * stride + i] = f32_from_bits(POISON_F32);
        position_of[p] = -1;
    }
    w->combine = (struct op_combine){
        .out = output_new(w, c->token_count, stride),
        .in = in,
        .position_of = position_of,
        .token_count = c->token_count,
        .top_k = c->top_k,
        .stride = stride,
    };
    if (!c->option) {
        w->combine.choice_stride = choice_stride_of(w);
        w->combine.weights = values_new(w, random, c->token_count * choice_stride_of(w), 1);
    }
    w->bytes = (double)((pairs + c->token_count) * stride * 4);
    w->flops = 2.0 * (double)(pairs * stride);
}
