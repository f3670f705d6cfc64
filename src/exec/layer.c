/* One layer on one rank, each stage one call, in the order of docs/ARCHITECTURE.md, "One token's
 * way through a layer". Stages that move tokens between ranks move nothing where a rank already has
 * what it needs; which do, and how, follows from the layout and the form of the pass. */
#include "exec/exec_state.h"

static bool is_replicated(const struct rank *rank)
{
    return rank->exec->pass.form == FORM_REPLICATED;
}

static void norm(struct rank *rank, const float *weight)
{
    stage_begin(rank, STAGE_NORM);
    rank->ops->rms_norm(rank->stream, &(struct op_rms_norm){
                                          .out = rank->act.normed,
                                          .in = rank->act.residual,
                                          .weight = weight,
                                          .row_count = rank->own_count,
                                          .dim = rank->exec->config->hidden_dim,
                                          .stride = rank->exec->dim.hidden,
                                          .epsilon = (float)rank->exec->config->norm_epsilon,
                                      });
}

static void residual_add(struct rank *rank)
{
    stage_begin(rank, STAGE_NORM);
    rank->ops->add(rank->stream, &(struct op_add){
                                     .out = rank->act.residual,
                                     .in = rank->act.module_out,
                                     .row_count = rank->own_count,
                                     .stride = rank->exec->dim.hidden,
                                 });
}

/* ---- Within the attention group -------------------------------------------------------------- */

/* Whether the group's rows are spread over its ranks. */
static bool is_spread(const struct rank *rank)
{
    return rank->attention != NULL && !is_replicated(rank);
}

/* Normed rows of the whole group. */
static const float *group_gather(struct rank *rank, enum traffic tag)
{
    if (!is_spread(rank))
        return rank->act.normed;
    stage_begin(rank, STAGE_COLLECTIVE);
    comm_all_gather(rank->attention, rank->stream,
                    &(struct comm_all_gather){
                        .out = rank->act.group_in,
                        .in = rank->act.normed,
                        .counts = rank->attention_rows.bytes,
                        .tag = (int)tag,
                    });
    return rank->act.group_in;
}

/* Where a rank leaves its partial sums for the group's rows. */
static float *group_sums(const struct rank *rank)
{
    return is_spread(rank) ? rank->act.group_out : rank->act.module_out;
}

/* The sums of own rows, into `out`. */
static void group_reduce(struct rank *rank, float *out, enum traffic tag)
{
    if (rank->attention == NULL)
        return;
    stage_begin(rank, STAGE_COLLECTIVE);
    if (is_replicated(rank))
        comm_all_reduce(rank->attention, rank->stream,
                        &(struct comm_all_reduce){
                            .out = out,
                            .in = rank->act.module_out,
                            .count = rank->group_count * rank->exec->dim.hidden,
                            .tag = (int)tag,
                        });
    else
        comm_reduce_scatter(rank->attention, rank->stream,
                            &(struct comm_reduce_scatter){
                                .out = out,
                                .in = rank->act.group_out,
                                .counts = rank->attention_rows.values,
                                .tag = (int)tag,
                            });
}

/* ---- Attention ------------------------------------------------------------------------------- */

static void matmul(struct rank *rank, float *out, int64_t out_stride, const float *in,
                   int64_t in_stride, const struct matrix *weight, const float *bias)
{
    rank->ops->matmul(rank->stream, &(struct op_matmul){
                                        .out = out,
                                        .in = in,
                                        .weight = *weight,
                                        .bias = bias,
                                        .row_count = rank->group_count,
                                        .out_stride = out_stride,
                                        .in_stride = in_stride,
                                    });
}

static struct qkv qkv_view(const struct rank *rank)
{
    const struct exec *exec = rank->exec;
    return (struct qkv){
        .values = rank->act.qkv,
        .stride = exec->dim.qkv,
        .k_offset = exec->dim.k_offset,
        .v_offset = exec->dim.v_offset,
        .head_count = exec->config->head_count / exec->layout.attention.tp,
        .kv_head_count = exec->config->kv_head_count / exec->layout.attention.tp,
        .head_dim = exec->config->head_dim,
    };
}

/* 2: queries, keys and values of own heads; RoPE; keys and values go to the cache. */
static void attention_project(struct rank *rank, const struct layer_weights *layer,
                              const struct kv_layer *kv, const float *rows)
{
    const struct dimensions *dim = &rank->exec->dim;
    float *qkv = rank->act.qkv;
    stage_begin(rank, STAGE_PROJECTION);
    matmul(rank, qkv, dim->qkv, rows, dim->hidden, &layer->q, layer->q_bias);
    matmul(rank, qkv + dim->k_offset, dim->qkv, rows, dim->hidden, &layer->k, layer->k_bias);
    matmul(rank, qkv + dim->v_offset, dim->qkv, rows, dim->hidden, &layer->v, layer->v_bias);
    stage_begin(rank, STAGE_ROPE);
    rank->ops->rope_append(rank->stream,
                           &(struct op_rope_append){
                               .qkv = qkv_view(rank),
                               .kv = *kv,
                               .q_norm = layer->q_norm,
                               .k_norm = layer->k_norm,
                               .norm_epsilon = (float)rank->exec->config->norm_epsilon,
                               .rope = rank->act.rope,
                               .segments = rank->segments,
                               .segment_count = rank->segment_count,
                           });
}

/* 2: attention over own heads, and the output projection: partial sums where heads are spread. */
static void attention_attend(struct rank *rank, const struct layer_weights *layer,
                             const struct kv_layer *kv, int64_t window)
{
    const struct dimensions *dim = &rank->exec->dim;
    stage_begin(rank, STAGE_ATTENTION);
    rank->ops->attention(rank->stream, &(struct op_attention){
                                           .out = rank->act.attention,
                                           .out_stride = dim->attention,
                                           .qkv = qkv_view(rank),
                                           .kv = *kv,
                                           .window = window,
                                           .segments = rank->segments,
                                           .segment_count = rank->segment_count,
                                       });
    stage_begin(rank, STAGE_PROJECTION);
    matmul(rank, group_sums(rank), dim->hidden, rank->act.attention, dim->attention, &layer->o,
           layer->o_bias);
}

/* ---- Experts --------------------------------------------------------------------------------- */

/* 4: router, top-k, weights as the model says. */
static void route(struct rank *rank, const struct layer_weights *layer)
{
    const struct exec *exec = rank->exec;
    stage_begin(rank, STAGE_ROUTER);
    rank->ops->matmul(rank->stream, &(struct op_matmul){
                                        .out = rank->act.router_logits,
                                        .in = rank->act.normed,
                                        .weight = layer->router,
                                        .row_count = rank->own_count,
                                        .out_stride = exec->dim.experts,
                                        .in_stride = exec->dim.hidden,
                                    });
    rank->ops->route(rank->stream,
                     &(struct op_route){
                         .ids = rank->act.choices,
                         .weights = (float *)(rank->act.choices + exec->config->expert_top_k),
                         .logits = rank->act.router_logits,
                         .token_count = rank->own_count,
                         .expert_count = exec->config->expert_count,
                         .top_k = exec->config->expert_top_k,
                         .choice_stride = exec->dim.choices,
                         .logit_stride = exec->dim.experts,
                         .normalize = exec->config->norm_topk_prob,
                     });
}

static void ffn(struct rank *rank, float *out, const float *in, const struct ffn_weights *groups,
                int64_t group_count, const int32_t *offsets, const int32_t *token_of)
{
    int64_t width = round_up(groups[0].gate.rows, PACK_BLOCK);
    int64_t hidden = rank->exec->dim.hidden;
    rank->ops->ffn_up(rank->stream, &(struct op_ffn_up){
                                        .out = rank->act.up,
                                        .in = in,
                                        .groups = groups,
                                        .offsets = offsets,
                                        .token_of = token_of,
                                        .group_count = group_count,
                                        .out_stride = width,
                                        .in_stride = hidden,
                                    });
    rank->ops->ffn_down(rank->stream, &(struct op_ffn_down){
                                          .out = out,
                                          .in = rank->act.up,
                                          .groups = groups,
                                          .offsets = offsets,
                                          .group_count = group_count,
                                          .out_stride = hidden,
                                          .in_stride = width,
                                      });
}

/* 6: sort by expert, grouped GEMMs of own experts, the weighted sum over them for each row. */
static void experts_run(struct rank *rank, int64_t layer)
{
    const struct exec *exec = rank->exec;
    const struct ffn_weights *experts = rank->weights->experts.layers[layer].weights;
    int64_t expert_count = rank->here->expert_count;
    const int32_t *choices = received_choices(rank);
    int64_t top_k = exec->config->expert_top_k;
    stage_begin(rank, STAGE_ROUTER);
    rank->ops->group(rank->stream, &(struct op_group){
                                       .offsets = rank->act.expert_offsets,
                                       .token_of = rank->act.token_of,
                                       .position_of = rank->act.position_of,
                                       .ids = choices,
                                       .local_of = rank->here->local_of,
                                       .token_count = rank->received_count,
                                       .expert_count = expert_count,
                                       .top_k = top_k,
                                       .choice_stride = exec->dim.choices,
                                   });
    stage_begin(rank, STAGE_EXPERTS);
    ffn(rank, rank->act.down, received_rows(rank), experts, expert_count, rank->act.expert_offsets,
        rank->act.token_of);
    stage_begin(rank, STAGE_COMBINE);
    rank->ops->combine(rank->stream, &(struct op_combine){
                                         .out = received_sums(rank),
                                         .in = rank->act.down,
                                         .position_of = rank->act.position_of,
                                         .weights = (const float *)(choices + top_k),
                                         .token_count = rank->received_count,
                                         .top_k = top_k,
                                         .choice_stride = exec->dim.choices,
                                         .stride = exec->dim.hidden,
                                     });
}

/* ---- Shared experts and dense layers ----------------------------------------------------------
 */

/* A network over all rows of a kind. */
static void ffn_rows(struct rank *rank, float *out, const float *in,
                     const struct ffn_weights *weights, enum row_kind kind)
{
    stage_begin(rank, STAGE_SHARED);
    ffn(rank, out, in, weights, 1, rank->act.row_offsets + 2 * kind, NULL);
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

/* Whether a shared expert that is cut has its rows before it anyway, with sums that are yet to be
 * added up: then it rides on the experts' gather and reduction. */
static bool shared_rides(const struct rank *rank)
{
    const struct layout *layout = &rank->exec->layout;
    bool to_all = layout->attention.tp == layout->rank_count && rank->here->layout.ep == 1;
    return layout_ffn_is_cut(layout, rank->exec->config->shared_expert_dim) &&
           (to_all || rank->exec->pass.form != FORM_OWNED);
}

/* 8, before 7: a slice of the shared expert for the group's rows, which stand together among those
 * that the experts had. */
static void shared_beside(struct rank *rank, const struct layer_weights *layer)
{
    if (layer->shared.gate.data == NULL || !shared_rides(rank))
        return;
    int64_t first = rank->group_first * rank->exec->dim.hidden;
    ffn_rows(rank, rank->act.down, received_rows(rank) + first, &layer->shared, ROWS_GROUP);
    shared_add(rank, received_sums(rank) + first, rank->act.down, received_rows(rank) + first,
               layer, rank->group_count);
}

/* 8: the shared expert by itself: whole for own tokens, or its slice for the group's. The gate is
 * applied to the sum. */
static void shared_expert(struct rank *rank, const struct layer_weights *layer)
{
    if (layer->shared.gate.data == NULL || shared_rides(rank))
        return;
    float *shared = rank->act.down;
    if (layout_ffn_is_cut(&rank->exec->layout, rank->exec->config->shared_expert_dim)) {
        const float *rows = group_gather(rank, TRAFFIC_FFN_GATHER);
        ffn_rows(rank, group_sums(rank), rows, &layer->shared, ROWS_GROUP);
        group_reduce(rank, shared, TRAFFIC_FFN_REDUCE);
    } else {
        ffn_rows(rank, shared, rank->act.normed, &layer->shared, ROWS_OWN);
    }
    shared_add(rank, rank->act.module_out, shared, rank->act.normed, layer, rank->own_count);
}

/* In place of 4 to 8 in a layer without experts. */
static void dense_ffn(struct rank *rank, const struct layer_weights *layer)
{
    if (layout_ffn_is_cut(&rank->exec->layout, rank->exec->config->dense_dim)) {
        const float *rows = group_gather(rank, TRAFFIC_FFN_GATHER);
        ffn_rows(rank, group_sums(rank), rows, &layer->dense, ROWS_GROUP);
        group_reduce(rank, rank->act.module_out, TRAFFIC_FFN_REDUCE);
    } else {
        ffn_rows(rank, rank->act.module_out, rank->act.normed, &layer->dense, ROWS_OWN);
    }
}

/* ---- The layer --------------------------------------------------------------------------------
 */

enum status layer_run(struct rank *rank, int64_t index, struct error *err)
{
    const struct exec *exec = rank->exec;
    const struct layer_weights *layer = &rank->weights->layers[index];
    const struct layer_config *config = &exec->config->layers[index];
    const struct kv_layer kv = kv_cache_layer(exec->pass.cache, rank->index, index);

    rank->layer = index;
    norm(rank, layer->input_norm);                                    /* 1 */
    const float *rows = group_gather(rank, TRAFFIC_ATTENTION_GATHER); /* 1 */
    attention_project(rank, layer, &kv, rows);                        /* 2 */
    attention_attend(rank, layer, &kv,                                /* 2 */
                     config->sliding ? exec->config->sliding_window : 0);
    group_reduce(rank, rank->act.module_out, TRAFFIC_ATTENTION_REDUCE); /* 3 */
    residual_add(rank);

    norm(rank, layer->ffn_norm);
    if (config->ffn == FFN_MOE) {
        route(rank, layer); /* 4 */
        TRY(routing_record(rank, index, err));
        TRY(experts_await(rank, index, err)); /* where they change their layout */
        rank->here = &rank->experts[rank->weights->experts.layers[index].phase];
        TRY(dispatch_begin(rank, err)); /* 5 */
        for (int64_t round = 0; round < rank->rounds; round++) {
            TRY(dispatch(rank, round, err)); /* 5 */
            experts_run(rank, index);        /* 6 */
            shared_beside(rank, layer);      /* 8, riding */
            combine(rank);                   /* 7 */
        }
        experts_done(rank, index);
        combine_end(rank);          /* 7 */
        shared_expert(rank, layer); /* 8 */
    } else {
        dense_ffn(rank, layer);
    }
    residual_add(rank);
    return STATUS_OK;
}
