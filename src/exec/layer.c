/* One layer, each stage one call, in the order of docs/ARCHITECTURE.md, "One token's way through a
 * layer". With one rank a stage that moves tokens between ranks has nothing to move: 3 is the sum
 * into the residual, 5 and 7 are the sort by expert and its way back. */
#include "exec/exec_state.h"

static void norm(struct exec *exec, const float *weight)
{
    exec->device->ops->rms_norm(exec->device->stream,
                                &(struct op_rms_norm){
                                    .out = exec->act.normed,
                                    .in = exec->act.residual,
                                    .weight = weight,
                                    .row_count = exec->token_count,
                                    .dim = exec->config->hidden_dim,
                                    .stride = exec->strides.hidden,
                                    .epsilon = (float)exec->config->norm_epsilon,
                                });
}

static void matmul(struct exec *exec, float *out, int64_t out_stride, const float *in,
                   int64_t in_stride, const struct matrix *weight, const float *bias)
{
    exec->device->ops->matmul(exec->device->stream, &(struct op_matmul){
                                                        .out = out,
                                                        .in = in,
                                                        .weight = *weight,
                                                        .bias = bias,
                                                        .row_count = exec->token_count,
                                                        .out_stride = out_stride,
                                                        .in_stride = in_stride,
                                                    });
}

static struct qkv qkv_view(const struct exec *exec)
{
    return (struct qkv){
        .values = exec->act.qkv,
        .stride = exec->strides.qkv,
        .k_offset = exec->strides.k_offset,
        .v_offset = exec->strides.v_offset,
        .head_count = exec->config->head_count,
        .kv_head_count = exec->config->kv_head_count,
        .head_dim = exec->config->head_dim,
    };
}

/* 1: own tokens, normed. */
static void attention_norm(struct exec *exec, const struct layer_weights *layer)
{
    norm(exec, layer->input_norm);
}

/* 2: queries, keys and values; RoPE; keys and values go to the cache. */
static void attention_project(struct exec *exec, const struct layer_weights *layer,
                              const struct kv_layer *kv)
{
    const struct strides *s = &exec->strides;
    float *qkv = exec->act.qkv;
    matmul(exec, qkv, s->qkv, exec->act.normed, s->hidden, &layer->q, layer->q_bias);
    matmul(exec, qkv + s->k_offset, s->qkv, exec->act.normed, s->hidden, &layer->k, layer->k_bias);
    matmul(exec, qkv + s->v_offset, s->qkv, exec->act.normed, s->hidden, &layer->v, layer->v_bias);
    exec->device->ops->rope_append(exec->device->stream,
                                   &(struct op_rope_append){
                                       .qkv = qkv_view(exec),
                                       .kv = *kv,
                                       .q_norm = layer->q_norm,
                                       .k_norm = layer->k_norm,
                                       .norm_epsilon = (float)exec->config->norm_epsilon,
                                       .rope = exec->act.rope,
                                       .segments = exec->segments,
                                       .segment_count = exec->segment_count,
                                   });
}

/* 2: attention over the heads of this rank, and the output projection. */
static void attention_attend(struct exec *exec, const struct layer_weights *layer,
                             const struct kv_layer *kv, int64_t window)
{
    exec->device->ops->attention(exec->device->stream, &(struct op_attention){
                                                           .out = exec->act.attention,
                                                           .out_stride = exec->strides.attention,
                                                           .qkv = qkv_view(exec),
                                                           .kv = *kv,
                                                           .window = window,
                                                           .segments = exec->segments,
                                                           .segment_count = exec->segment_count,
                                                       });
    matmul(exec, exec->act.module_out, exec->strides.hidden, exec->act.attention,
           exec->strides.attention, &layer->o, layer->o_bias);
}

/* 3 and the end of 7: what a module gave goes into the residual of the owners. */
static void residual_add(struct exec *exec)
{
    exec->device->ops->add(exec->device->stream, &(struct op_add){
                                                     .out = exec->act.residual,
                                                     .in = exec->act.module_out,
                                                     .row_count = exec->token_count,
                                                     .stride = exec->strides.hidden,
                                                 });
}

/* 4: norm and router, top-k, weights as the model says. */
static void route(struct exec *exec, const struct layer_weights *layer)
{
    matmul(exec, exec->act.router_logits, exec->strides.experts, exec->act.normed,
           exec->strides.hidden, &layer->router, NULL);
    exec->device->ops->route(exec->device->stream, &(struct op_route){
                                                       .ids = exec->act.expert_ids,
                                                       .weights = exec->act.expert_weights,
                                                       .logits = exec->act.router_logits,
                                                       .token_count = exec->token_count,
                                                       .expert_count = exec->config->expert_count,
                                                       .top_k = exec->config->expert_top_k,
                                                       .logit_stride = exec->strides.experts,
                                                       .normalize = exec->config->norm_topk_prob,
                                                   });
}

/* 5: tokens to their experts. */
static void dispatch(struct exec *exec, int64_t index)
{
    exec->device->ops->group(exec->device->stream,
                             &(struct op_group){
                                 .loads = exec->expert_loads + index * exec->config->expert_count,
                                 .offsets = exec->act.expert_offsets,
                                 .token_of = exec->act.token_of,
                                 .position_of = exec->act.position_of,
                                 .ids = exec->act.expert_ids,
                                 .token_count = exec->token_count,
                                 .expert_count = exec->config->expert_count,
                                 .top_k = exec->config->expert_top_k,
                             });
}

static void ffn(struct exec *exec, float *out, const struct ffn_weights *groups,
                int64_t group_count, const int32_t *offsets, const int32_t *token_of)
{
    int64_t width = round_up(groups[0].gate.rows, PACK_BLOCK);
    exec->device->ops->ffn_up(exec->device->stream, &(struct op_ffn_up){
                                                        .out = exec->act.expert_up,
                                                        .in = exec->act.normed,
                                                        .groups = groups,
                                                        .offsets = offsets,
                                                        .token_of = token_of,
                                                        .group_count = group_count,
                                                        .out_stride = width,
                                                        .in_stride = exec->strides.hidden,
                                                    });
    exec->device->ops->ffn_down(exec->device->stream, &(struct op_ffn_down){
                                                          .out = out,
                                                          .in = exec->act.expert_up,
                                                          .groups = groups,
                                                          .offsets = offsets,
                                                          .group_count = group_count,
                                                          .out_stride = exec->strides.hidden,
                                                          .in_stride = width,
                                                      });
}

/* 6: grouped GEMMs of the experts. */
static void experts_run(struct exec *exec, const struct layer_weights *layer)
{
    ffn(exec, exec->act.expert_down, layer->experts, exec->config->expert_count,
        exec->act.expert_offsets, exec->act.token_of);
}

/* 7: the weighted sum back to the owners. */
static void combine(struct exec *exec)
{
    exec->device->ops->combine(exec->device->stream, &(struct op_combine){
                                                         .out = exec->act.module_out,
                                                         .in = exec->act.expert_down,
                                                         .position_of = exec->act.position_of,
                                                         .weights = exec->act.expert_weights,
                                                         .token_count = exec->token_count,
                                                         .top_k = exec->config->expert_top_k,
                                                         .stride = exec->strides.hidden,
                                                     });
}

/* 8: the shared expert on own tokens, where the model has one. */
static void shared_expert(struct exec *exec, const struct layer_weights *layer)
{
    if (layer->shared.gate.data == NULL)
        return;
    ffn(exec, exec->act.expert_down, &layer->shared, 1, exec->act.dense_offsets, NULL);
    exec->device->ops->shared_add(exec->device->stream, &(struct op_shared_add){
                                                            .out = exec->act.module_out,
                                                            .shared = exec->act.expert_down,
                                                            .in = exec->act.normed,
                                                            .gate = layer->shared_sigmoid,
                                                            .token_count = exec->token_count,
                                                            .dim = exec->config->hidden_dim,
                                                            .stride = exec->strides.hidden,
                                                        });
}

static void dense_ffn(struct exec *exec, const struct layer_weights *layer)
{
    ffn(exec, exec->act.module_out, &layer->dense, 1, exec->act.dense_offsets, NULL);
}

void layer_run(struct exec *exec, int64_t index, const struct kv_layer *kv)
{
    const struct layer_weights *layer = &exec->weights->layers[index];
    const struct layer_config *config = &exec->config->layers[index];

    attention_norm(exec, layer);
    attention_project(exec, layer, kv);
    attention_attend(exec, layer, kv, config->sliding ? exec->config->sliding_window : 0);
    residual_add(exec);

    norm(exec, layer->ffn_norm);
    if (config->ffn == FFN_MOE) {
        route(exec, layer);
        dispatch(exec, index);
        experts_run(exec, layer);
        combine(exec);
        shared_expert(exec, layer);
    } else {
        dense_ffn(exec, layer);
    }
    residual_add(exec);
}
