/* Where weights lie in a checkpoint, and their values. */
#include <string.h>

#include "base/checked.h"
#include "base/file.h"
#include "model/checkpoint_parts.h"

/* Inside a fused tensor each expert has `block` rows, of which this weight begins at `start`. */
static void locate_fused(struct weight_location *out, const struct checkpoint *checkpoint,
                         enum weight weight, int64_t layer, int64_t expert)
{
    const struct model_config *config = &checkpoint->config;
    bool down = weight == WEIGHT_EXPERT_DOWN;
    int64_t block = down ? config->hidden_dim : 2 * config->expert_dim;
    int64_t start = weight == WEIGHT_EXPERT_UP ? config->expert_dim : 0;
    *out = (struct weight_location){
        .tensor = checkpoint_find_weight(checkpoint,
                                         down ? WEIGHT_FUSED_DOWN : WEIGHT_FUSED_GATE_UP, layer, 0),
        .first_row = expert * block + start,
        .row_count = down ? config->hidden_dim : config->expert_dim,
        .column_count = down ? config->expert_dim : config->hidden_dim,
    };
}

static bool is_single_expert(enum weight weight)
{
    return weight == WEIGHT_EXPERT_GATE || weight == WEIGHT_EXPERT_UP ||
           weight == WEIGHT_EXPERT_DOWN;
}

enum status checkpoint_locate(struct weight_location *out, const struct checkpoint *checkpoint,
                              enum weight weight, int64_t layer, int64_t expert, struct error *err)
{
    const struct model_config *config = &checkpoint->config;
    if (weight == WEIGHT_HEAD && config->tied_embedding)
        weight = WEIGHT_EMBEDDING;
    ASSERT(!weight_is_per_layer(weight) || (layer >= 0 && layer < config->layer_count));
    ASSERT(weight_is_present(config, weight, layer));
    ASSERT(!is_single_expert(weight) || (expert >= 0 && expert < config->expert_count));
    if (is_single_expert(weight) && checkpoint->fused[layer]) {
        locate_fused(out, checkpoint, weight, layer, expert);
        return STATUS_OK;
    }
    const struct tensor_info *tensor = checkpoint_find_weight(checkpoint, weight, layer, expert);
    if (tensor == NULL) /* only a fused form that this checkpoint does not have */
        return error_set(err, STATUS_NOT_FOUND, "%s: the experts of layer %lld are not fused",
                         checkpoint->dir, (long long)layer);
    int64_t column_count = tensor->shape[tensor->rank - 1], row_count = 1;
    for (int i = 0; i + 1 < tensor->rank; i++)
        row_count *= tensor->shape[i];
    *out = (struct weight_location){tensor, 0, row_count, column_count};
    return STATUS_OK;
}

enum status checkpoint_read(const struct checkpoint *checkpoint, const struct tensor_info *tensor,
                            uint64_t offset, void *out, uint64_t bytes, struct error *err)
{
    ASSERT(checked_range(offset, bytes, tensor->bytes));
    const struct shard *shard = &checkpoint->shards[tensor->shard];
    return file_read_at(shard->fd, shard->path, tensor->offset + offset, out, bytes, err);
}

static enum dtype dtype_on_disk(const struct tensor_info *tensor)
{
    switch (tensor->dtype) {
    case TENSOR_F32:
        return DTYPE_F32;
    case TENSOR_BF16:
        return DTYPE_BF16;
    case TENSOR_F16:
        return DTYPE_F16;
    case TENSOR_OTHER:
        break;
    }
    ASSERT(false); /* checkpoint_open refuses such a weight */
}

enum status checkpoint_read_rows(const struct checkpoint *checkpoint,
                                 const struct weight_location *where, int64_t row, int64_t count,
                                 void *out, enum dtype dtype, void *staging, uint64_t staging_bytes,
                                 struct error *err)
{
    ASSERT(row >= 0 && count >= 0 && row <= where->row_count && count <= where->row_count - row);
    enum dtype stored = dtype_on_disk(where->tensor);
    int64_t columns = where->column_count;
    uint64_t row_bytes = (uint64_t)(columns * dtype_bytes(stored));
    uint64_t offset = (uint64_t)(where->first_row + row) * row_bytes;
    if (stored == dtype)
        return checkpoint_read(checkpoint, where->tensor, offset, out, (uint64_t)count * row_bytes,
                               err);
    int64_t step = (int64_t)(staging_bytes / row_bytes);
    ASSERT(step > 0);
    char *at = out;
    for (int64_t done = 0; done < count; done += step) {
        int64_t rows = count - done < step ? count - done : step;
        TRY(checkpoint_read(checkpoint, where->tensor, offset + (uint64_t)done * row_bytes, staging,
                            (uint64_t)rows * row_bytes, err));
        numeric_convert(at, dtype, staging, stored, rows * columns);
        at += rows * columns * dtype_bytes(dtype);
    }
    return STATUS_OK;
}
