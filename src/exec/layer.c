/* One layer on one rank, each stage one call, in the order of docs/ARCHITECTURE.md, "One token's
 * way through a layer". Stages that move tokens between ranks move nothing where a rank already has
 * what it needs; which do, and how, follows from the layout and the form of the pass. */
#include "exec/exec_state.h"

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

const float *group_gather(struct rank *rank, enum traffic tag)
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

float *group_sums(const struct rank *rank)
{
    return is_spread(rank) ? rank->act.group_out : rank->act.module_out;
}

void group_reduce(struct rank *rank, float *out, enum traffic tag)
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
    stage_begin(rank, STAGE_PROJECTION);
    matmul(rank, rank->act.qkv, dim->qkv, rows, dim->hidden, &layer->qkv, layer->q_bias);
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
            experts_run(rank, layer);        /* 6, and 8 where it rides */
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
