#include "exec/exec.h"

#include <string.h>

#include "base/memory.h"
#include "exec/exec_state.h"

static int64_t max_of(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static struct strides strides_of(const struct model_config *config)
{
    int64_t q = round_up(config->head_count * config->head_dim, PACK_BLOCK);
    int64_t kv = round_up(config->kv_head_count * config->head_dim, PACK_BLOCK);
    return (struct strides){
        .hidden = round_up(config->hidden_dim, PACK_BLOCK),
        .qkv = q + 2 * kv,
        .k_offset = q,
        .v_offset = q + kv,
        .attention = q,
        .experts = round_up(config->expert_count, PACK_BLOCK),
        /* One buffer serves top_k expert rows and one shared or dense row of a token. */
        .up = max_of(config->expert_top_k * round_up(config->expert_dim, PACK_BLOCK),
                     round_up(max_of(config->shared_expert_dim, config->dense_dim), PACK_BLOCK)),
        .vocab = round_up(config->vocab_count, PACK_BLOCK),
    };
}

/* Lays the buffers one after another; with `base` NULL it only counts. */
static int64_t activations_place(struct activations *act, char *base,
                                 const struct model_config *config, const struct strides *s,
                                 int64_t tokens)
{
    int64_t pairs = tokens * config->expert_top_k;
    const struct {
        void *pointer; /* to the pointer */
        int64_t count; /* of 4-byte values */
    } buffers[] = {
        {&act->residual, tokens * s->hidden},
        {&act->normed, tokens * s->hidden},
        {&act->module_out, tokens * s->hidden},
        {&act->qkv, tokens * s->qkv},
        {&act->attention, tokens * s->attention},
        {&act->router_logits, tokens * s->experts},
        {&act->expert_up, tokens * s->up},
        {&act->expert_down, pairs * s->hidden},
        {&act->rope, tokens * config->head_dim},
        {&act->logits, EXEC_LOGIT_ROWS * s->vocab},
        {&act->logit_hidden, EXEC_LOGIT_ROWS * s->hidden},
        {&act->ids, max_of(tokens, EXEC_LOGIT_ROWS)},
        {&act->expert_ids, pairs},
        {&act->expert_weights, pairs},
        {&act->expert_offsets, config->expert_count + 1},
        {&act->token_of, pairs},
        {&act->position_of, pairs},
        {&act->dense_offsets, 2},
    };
    int64_t bytes = 0;
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++) {
        if (base != NULL) {
            void *place = base + bytes;
            memcpy(buffers[i].pointer, &place, sizeof place);
        }
        bytes += round_up(buffers[i].count * 4, 64);
    }
    return bytes;
}

uint64_t exec_bytes(const struct model_config *config, int64_t token_max)
{
    struct activations act;
    struct strides strides = strides_of(config);
    return (uint64_t)activations_place(&act, NULL, config, &strides, token_max);
}

enum status exec_create(struct exec **out, struct device *device, const struct model_config *config,
                        const struct weights *weights, int64_t token_max, int64_t segment_max,
                        struct error *err)
{
    struct exec *exec;
    size_t bytes = exec_bytes(config, token_max);
    TRY(memory_get((void **)&exec, 1, sizeof *exec, "the executor", err));
    exec->device = device;
    exec->config = config;
    exec->weights = weights;
    exec->token_max = token_max;
    exec->segment_max = segment_max;
    exec->strides = strides_of(config);
    enum status status;
    TRY_GOTO(memory_get((void **)&exec->segments, (size_t)segment_max, sizeof *exec->segments,
                        "the executor", err),
             failed);
    TRY_GOTO(memory_get((void **)&exec->expert_loads,
                        (size_t)(config->layer_count * config->expert_count),
                        sizeof *exec->expert_loads, "the executor", err),
             failed);
    TRY_GOTO(device->ops->memory_get(device, &exec->slab, bytes, "activations", err), failed);
    /* Padding between heads and strides must be finite from the start. */
    memset(exec->slab, 0, bytes);
    activations_place(&exec->act, exec->slab, config, &exec->strides, token_max);
    *out = exec;
    return STATUS_OK;

failed:
    exec_destroy(exec);
    return status;
}

void exec_destroy(struct exec *exec)
{
    if (exec == NULL)
        return;
    exec->device->ops->memory_free(exec->device, exec->slab);
    memory_free(exec->expert_loads);
    memory_free(exec->segments);
    memory_free(exec);
}

const struct model_config *exec_config(const struct exec *exec)
{
    return exec->config;
}

struct device *exec_device(const struct exec *exec)
{
    return exec->device;
}

int64_t exec_token_max(const struct exec *exec)
{
    return exec->token_max;
}

enum dtype exec_kv_dtype(const struct exec *exec)
{
    return exec->weights->dtype;
}

const uint64_t *exec_expert_loads(const struct exec *exec)
{
    return exec->expert_loads;
}

static void pass_start(struct exec *exec, const struct exec_segment *segments,
                       int64_t segment_count)
{
    ASSERT(segment_count <= exec->segment_max);
    int64_t row = 0;
    for (int64_t s = 0; s < segment_count; s++) {
        const struct exec_segment *in = &segments[s];
        ASSERT(in->token_count > 0 && row + in->token_count <= exec->token_max);
        exec->segments[s] = (struct segment){.first_row = row,
                                             .token_count = in->token_count,
                                             .first_position = in->first_position,
                                             .pages = in->pages};
        memcpy(exec->act.ids + row, in->tokens, (size_t)in->token_count * sizeof *in->tokens);
        row += in->token_count;
    }
    exec->segment_count = segment_count;
    exec->token_count = row;
    exec->act.dense_offsets[0] = 0;
    exec->act.dense_offsets[1] = (int32_t)row;
    rope_fill(exec->act.rope, exec->config, exec->segments, segment_count);
}

static void embed(struct exec *exec)
{
    exec->device->ops->embed(exec->device->stream, &(struct op_embed){
                                                       .out = exec->act.residual,
                                                       .table = exec->weights->embedding,
                                                       .ids = exec->act.ids,
                                                       .token_count = exec->token_count,
                                                       .out_stride = exec->strides.hidden,
                                                   });
}

enum status exec_forward(struct exec *exec, struct kv_cache *cache,
                         const struct exec_segment *segments, int64_t segment_count,
                         struct error *err)
{
    pass_start(exec, segments, segment_count);
    embed(exec);
    for (int64_t layer = 0; layer < exec->config->layer_count; layer++)
        layer_run(exec, layer, &cache->layers[layer]);
    return exec->device->ops->synchronize(exec->device->stream, err);
}

enum status exec_logits(struct exec *exec, const int32_t *rows, int64_t row_count, float **logits,
                        int64_t *stride, struct error *err)
{
    const struct device_ops *ops = exec->device->ops;
    struct stream *stream = exec->device->stream;
    ASSERT(row_count <= EXEC_LOGIT_ROWS);
    ops->gather(stream, &(struct op_gather){
                            .out = exec->act.logit_hidden,
                            .in = exec->act.residual,
                            .rows = rows,
                            .row_count = row_count,
                            .stride = exec->strides.hidden,
                        });
    ops->rms_norm(stream, &(struct op_rms_norm){
                              .out = exec->act.logit_hidden,
                              .in = exec->act.logit_hidden,
                              .weight = exec->weights->final_norm,
                              .row_count = row_count,
                              .dim = exec->config->hidden_dim,
                              .stride = exec->strides.hidden,
                              .epsilon = (float)exec->config->norm_epsilon,
                          });
    ops->matmul(stream, &(struct op_matmul){
                            .out = exec->act.logits,
                            .in = exec->act.logit_hidden,
                            .weight = exec->weights->head,
                            .row_count = row_count,
                            .out_stride = exec->strides.vocab,
                            .in_stride = exec->strides.hidden,
                        });
    TRY(ops->synchronize(stream, err));
    *logits = exec->act.logits;
    *stride = exec->strides.vocab;
    return STATUS_OK;
}
