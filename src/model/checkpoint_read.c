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

/* Whole rows are one read; parts of rows are one read each, so that no byte beside the block is
 * read (a rank's slice of `down` or of the output projection). */
static enum status read_block(const struct checkpoint *checkpoint,
                              const struct weight_location *where, const struct block *block,
                              void *out, struct error *err)
{
    uint64_t value_bytes = (uint64_t)dtype_bytes(dtype_on_disk(where->tensor));
    uint64_t row_bytes = (uint64_t)where->column_count * value_bytes;
    uint64_t part_bytes = (uint64_t)block->column_count * value_bytes;
    uint64_t offset = (uint64_t)(where->first_row + block->row) * row_bytes +
                      (uint64_t)block->column * value_bytes;
    if (part_bytes == row_bytes)
        return checkpoint_read(checkpoint, where->tensor, offset, out,
                               (uint64_t)block->row_count * row_bytes, err);
    for (int64_t row = 0; row < block->row_count; row++)
        TRY(checkpoint_read(checkpoint, where->tensor, offset + (uint64_t)row * row_bytes,
                            (char *)out + (uint64_t)row * part_bytes, part_bytes, err));
    return STATUS_OK;
}

enum status checkpoint_read_block(const struct checkpoint *checkpoint,
                                  const struct weight_location *where, struct block block,
                                  void *out, enum dtype dtype, void *staging,
                                  uint64_t staging_bytes, struct error *err)
{
    ASSERT(block.row >= 0 && block.row_count >= 0 &&
           block.row_count <= where->row_count - block.row);
    ASSERT(block.column >= 0 && block.column_count >= 1 &&
           block.column_count <= where->column_count - block.column);
    enum dtype stored = dtype_on_disk(where->tensor);
    if (stored == dtype)
        return read_block(checkpoint, where, &block, out, err);
    int64_t step = (int64_t)staging_bytes / (block.column_count * dtype_bytes(stored));
    int64_t end = block.row + block.row_count;
    ASSERT(step > 0);
    char *at = out;
    for (struct block piece = block; piece.row < end; piece.row += step) {
        piece.row_count = end - piece.row < step ? end - piece.row : step;
        TRY(read_block(checkpoint, where, &piece, staging, err));
        int64_t values = piece.row_count * piece.column_count;
        numeric_convert(at, dtype, staging, stored, values);
        at += values * dtype_bytes(dtype);
    }
    return STATUS_OK;
}

enum status checkpoint_read_rows(const struct checkpoint *checkpoint,
                                 const struct weight_location *where, int64_t row, int64_t count,
                                 void *out, enum dtype dtype, void *staging, uint64_t staging_bytes,
                                 struct error *err)
{
    return checkpoint_read_block(checkpoint, where,
                                 (struct block){row, count, 0, where->column_count}, out, dtype,
                                 staging, staging_bytes, err);
}

/* In the file. */
static uint64_t row_offset(const struct weight_location *where, int64_t row, uint64_t row_bytes)
{
    return where->tensor->offset + (uint64_t)(where->first_row + row) * row_bytes;
}

static uint64_t row_bytes_of(const struct weight_location *where)
{
    return (uint64_t)(where->column_count * dtype_bytes(dtype_on_disk(where->tensor)));
}

void checkpoint_read_ahead(const struct checkpoint *checkpoint, const struct weight_location *where,
                           int64_t row, int64_t row_count)
{
    uint64_t row_bytes = row_bytes_of(where);
    file_read_ahead(checkpoint->shards[where->tensor->shard].fd, row_offset(where, row, row_bytes),
                    (uint64_t)row_count * row_bytes);
}

bool checkpoint_is_cached(const struct checkpoint *checkpoint, const struct weight_location *where,
                          int64_t row)
{
    return file_is_cached(checkpoint->shards[where->tensor->shard].fd,
                          row_offset(where, row, row_bytes_of(where)));
}
