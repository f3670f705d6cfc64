/* Feed-forward networks on one rank: its routed experts, and the shared expert beside them or by
 * itself, or a dense layer's. Numbers are those of docs/ARCHITECTURE.md, "One token's way through a
 * layer". */
#include "exec/exec_state.h"

/* Networks of one shape over the rows before them. */
struct networks {
    const struct ffn_weights *weights; /* [count] */
    int64_t count;
    int64_t row_limit;
    const int32_t *offsets, *token_of; /* as of op_ffn_up */
    const float *in;                   /* [token][hidden] */
    int64_t position_most;             /* as of op_ffn_up */
    float *up;                         /* [position][width]: what is between the halves */
    float *out;                        /* [position][hidden] */
};

static int64_t width_of(const struct ffn_weights *weights)
{
    return round_up(weights->gate.rows, PACK_BLOCK);
}

static void networks_up(struct rank *rank, const struct networks *of, bool joins_next)
{
    rank->ops->ffn_up(rank->stream, &(struct op_ffn_up){
                                        .out = of->up,
                                        .in = of->in,
                                        .groups = of->weights,
                                        .offsets = of->offsets,
                                        .token_of = of->token_of,
                                        .position_most = of->position_most,
                                        .group_count = of->count,
                                        .row_limit = of->row_limit,
                                        .out_stride = width_of(of->weights),
                                        .in_stride = rank->exec->dim.hidden,
                                        .joins_next = joins_next,
                                    });
}

static void networks_down(struct rank *rank, const struct networks *of, bool joins_next)
{
    rank->ops->ffn_down(rank->stream, &(struct op_ffn_down){
                                          .out = of->out,
                                          .in = of->up,
                                          .groups = of->weights,
                                          .offsets = of->offsets,
                                          .position_most = of->position_most,
                                          .group_count = of->count,
                                          .row_limit = of->row_limit,
                                          .out_stride = rank->exec->dim.hidden,
                                          .in_stride = width_of(of->weights),
                                          .joins_next = joins_next,
                                      });
}

static void networks_run(struct rank *rank, const struct networks *of, enum stage stage)
{
    stage_begin(rank, stage);
    networks_up(rank, of, false);
    networks_down(rank, of, false);
}

/* ---- The shared expert ------------------------------------------------------------------------
 *
 * It stands before the reduction of the experts' sums or behind it, and in memory that is its own
 * or the experts' after them. */

static bool has_shared(const struct layer_weights *layer)
{
    return layer->shared.gate.data != NULL;
}

static bool shared_is_cut(const struct rank *rank)
{
    return layout_ffn_is_cut(&rank->exec->layout, rank->exec->config->shared_expert_dim);
}

/* Whether a shared expert that is cut has its rows before it anyway, with sums that are yet to be
 * added up: then it rides on the experts' gather and reduction. */
static bool shared_rides(const struct rank *rank)
{
    const struct layout *layout = &rank->exec->layout;
    bool to_all = layout->attention.tp == layout->rank_count && rank->here->layout.ep == 1;
    return shared_is_cut(rank) && (to_all || rank->exec->pass.form != FORM_OWNED);
}

/* The rows that it has when it rides stand together among those that the experts have. */
static int64_t ridden_at(const struct rank *rank)
{
    return rank->group_first * rank->exec->dim.hidden;
}

static int64_t shared_rows(const struct rank *rank)
{
    return shared_is_cut(rank) ? rank->group_count : rank->own_count;
}

/* A token's experts are distinct. */
static int64_t expert_position_most(const struct rank *rank)
{
    int64_t top_k = rank->exec->config->expert_top_k, experts = rank->here->expert_count;
    return rank->received_count * (top_k < experts ? top_k : experts);
}

/* Whether it runs at once with the routed experts, whose weights are read while its rows are
 * multiplied (two operations of which the first `joins_next`): its rows are there when theirs are,
 * and what they leave of their buffers has room for its own. Of one row all is reading; then what
 * is gained is a wait of the threads for each other less in each half, whose last pieces the
 * other's fill. */
static bool shared_joins(const struct rank *rank, const struct layer_weights *layer)
{
    const struct dimensions *dim = &rank->exec->dim;
    int64_t rows = shared_rows(rank);
    if (!has_shared(layer) || (shared_is_cut(rank) && !shared_rides(rank)) || rows == 0 ||
        rank->rounds > 1)
        return false;
    int64_t pairs = expert_position_most(rank);
    int64_t width = width_of(rank->weights->experts.layers[rank->layer].weights);
    return pairs * width + rows * dim->shared_width <= dim->up_values &&
           pairs + rows <= dim->down_rows;
}

/* Where it leaves what it makes of rows before the gate, for own memory and for the experts'. */
static float *shared_out(const struct rank *rank, bool joins)
{
    const struct dimensions *dim = &rank->exec->dim;
    return rank->act.down + (joins ? (dim->down_rows - shared_rows(rank)) * dim->hidden : 0);
}

static struct networks shared_networks(const struct rank *rank, const struct layer_weights *layer,
                                       const float *in, bool joins)
{
    const struct dimensions *dim = &rank->exec->dim;
    enum row_kind kind = shared_is_cut(rank) ? ROWS_GROUP : ROWS_OWN;
    int64_t up_at = joins ? dim->up_values - shared_rows(rank) * dim->shared_width : 0;
    return (struct networks){
        .weights = &layer->shared,
        .count = 1,
        .row_limit = shared_rows(rank),
        .offsets = rank->act.row_offsets + 2 * kind,
        .in = in,
        .position_most = shared_rows(rank),
        .up = rank->act.up + up_at,
        .out = shared_out(rank, joins),
    };
}

static void shared_add(struct rank *rank, float *out, const float *shared, const float *in,
                       const struct layer_weights *layer, int64_t row_count)
{
    stage_begin(rank, STAGE_SHARED);
    rank->ops->shared_add(rank->stream, &(struct op_shared_add){
                                            .out = out,
                                            .shared = shared,
                                            .in = in,
                                            .gate = layer->shared_sigmoid,
                                            .token_count = row_count,
                                            .dim = rank->exec->config->hidden_dim,
                                            .stride = rank->exec->dim.hidden,
                                        });
}

/* 8, before 7: a slice for the group's rows. */
static void shared_beside(struct rank *rank, const struct layer_weights *layer)
{
    if (!has_shared(layer) || !shared_rides(rank))
        return;
    const float *in = received_rows(rank) + ridden_at(rank);
    struct networks of = shared_networks(rank, layer, in, rank->shared_joined);
    if (!rank->shared_joined)
        networks_run(rank, &of, STAGE_SHARED);
    shared_add(rank, received_sums(rank) + ridden_at(rank), of.out, in, layer, rank->group_count);
}

void shared_expert(struct rank *rank, const struct layer_weights *layer)
{
    float *shared = shared_out(rank, rank->shared_joined);
    if (!has_shared(layer) || shared_rides(rank))
        return;
    if (shared_is_cut(rank)) {
        const float *rows = group_gather(rank, TRAFFIC_FFN_GATHER);
        struct networks of = shared_networks(rank, layer, rows, false);
        of.out = group_sums(rank);
        networks_run(rank, &of, STAGE_SHARED);
        group_reduce(rank, shared, TRAFFIC_FFN_REDUCE);
    } else if (!rank->shared_joined) {
        struct networks of = shared_networks(rank, layer, rank->act.normed, false);
        networks_run(rank, &of, STAGE_SHARED);
    }
    shared_add(rank, rank->act.module_out, shared, rank->act.normed, layer, rank->own_count);
}

/* ---- Routed experts -------------------------------------------------------------------------- */

static void experts_sort(struct rank *rank)
{
    stage_begin(rank, STAGE_ROUTER);
    rank->ops->group(rank->stream, &(struct op_group){
                                       .offsets = rank->act.expert_offsets,
                                       .token_of = rank->act.token_of,
                                       .position_of = rank->act.position_of,
                                       .ids = received_choices(rank),
                                       .local_of = rank->here->local_of,
                                       .token_count = rank->received_count,
                                       .expert_count = rank->here->expert_count,
                                       .top_k = rank->exec->config->expert_top_k,
                                       .choice_stride = rank->exec->dim.choices,
                                   });
}

static void experts_combine(struct rank *rank)
{
    int64_t top_k = rank->exec->config->expert_top_k;
    stage_begin(rank, STAGE_COMBINE);
    rank->ops->combine(rank->stream, &(struct op_combine){
                                         .out = received_sums(rank),
                                         .in = rank->act.down,
                                         .position_of = rank->act.position_of,
                                         .weights = (const float *)(received_choices(rank) + top_k),
                                         .token_count = rank->received_count,
                                         .top_k = top_k,
                                         .choice_stride = rank->exec->dim.choices,
                                         .stride = rank->exec->dim.hidden,
                                     });
}

void experts_run(struct rank *rank, const struct layer_weights *layer)
{
    struct networks experts = {
        .weights = rank->weights->experts.layers[rank->layer].weights,
        .count = rank->here->expert_count,
        .row_limit = rank->received_count,
        .offsets = rank->act.expert_offsets,
        .token_of = rank->act.token_of,
        .in = received_rows(rank),
        .position_most = expert_position_most(rank),
        .up = rank->act.up,
        .out = rank->act.down,
    };
    /* Decided once: behind experts_done the layer's experts may change. */
    rank->shared_joined = shared_joins(rank, layer);
    experts_sort(rank);
    if (rank->shared_joined) {
        const float *in =
            shared_rides(rank) ? received_rows(rank) + ridden_at(rank) : rank->act.normed;
        struct networks shared = shared_networks(rank, layer, in, true);
        stage_begin(rank, STAGE_SHARED);
        networks_up(rank, &shared, true);
        stage_begin(rank, STAGE_EXPERTS);
        networks_up(rank, &experts, false);
        stage_begin(rank, STAGE_SHARED);
        networks_down(rank, &shared, true);
        stage_begin(rank, STAGE_EXPERTS);
        networks_down(rank, &experts, false);
    } else {
        networks_run(rank, &experts, STAGE_EXPERTS);
    }
    experts_combine(rank);
    shared_beside(rank, layer);
}

/* ---- Dense layers ---------------------------------------------------------------------------- */

void dense_ffn(struct rank *rank, const struct layer_weights *layer)
{
    bool is_cut = layout_ffn_is_cut(&rank->exec->layout, rank->exec->config->dense_dim);
    struct networks dense = {
        .weights = &layer->dense,
        .count = 1,
        .row_limit = is_cut ? rank->group_count : rank->own_count,
        .offsets = rank->act.row_offsets + 2 * (is_cut ? ROWS_GROUP : ROWS_OWN),
        .in = is_cut ? group_gather(rank, TRAFFIC_FFN_GATHER) : rank->act.normed,
        .position_most = is_cut ? rank->group_count : rank->own_count,
        .up = rank->act.up,
        .out = is_cut ? group_sums(rank) : rank->act.module_out,
    };
    networks_run(rank, &dense, STAGE_SHARED);
    if (is_cut)
        group_reduce(rank, rank->act.module_out, TRAFFIC_FFN_REDUCE);
}
