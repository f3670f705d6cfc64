#include "store/packed_read.h"

#include <string.h>

#include "base/system.h"
#include "quant/int4.h"

/* Small enough for a core's cache: what was read is packed from there, and the kernel's copy into
 * it does not go to memory. */
#define STAGING_BYTES ((int64_t)512 << 10)

/* Rows that are read and packed together are a multiple of it, or all. int4 needs it; other types
 * are packed a tile at a time. */
static int64_t row_step(const struct packed_block *block)
{
    if (block->is_vector)
        return 1;
    return block->dtype == DTYPE_INT4 && block->packing == PACK_INPUT ? INT4_GROUP : PACK_BLOCK;
}

/* Rows that are read at a time into STAGING_BYTES; at least what is packed together. */
static int64_t rows_per_read(const struct packed_block *block)
{
    int64_t row_bytes = block->block.column_count * (int64_t)sizeof(float);
    int64_t step = row_step(block), fitting = STAGING_BYTES / row_bytes / step * step;
    fitting = fitting < step ? step : fitting;
    return block->block.row_count < fitting ? block->block.row_count : fitting;
}

int64_t packed_read_staging(const struct packed_block *block)
{
    return rows_per_read(block) * block->block.column_count * (int64_t)sizeof(float);
}

/* Rows of the block that were read, from `row` on, to their place. */
static enum status pack_rows(const struct packed_block *block, const void *values, int64_t row,
                             int64_t row_count, const struct weight_location *where,
                             struct error *err)
{
    int64_t rows = block->block.row_count, columns = block->block.column_count;
    int64_t bad_row, bad_column;
    if (block->dtype != DTYPE_INT4) {
        matrix_pack_rows(block->place, block->packing, block->dtype, rows, columns, values, row,
                         row_count);
        return STATUS_OK;
    }
    const struct int4_target target = {
        .data = block->place,
        .scales = block->scales,
        .packing = block->packing,
        .rows = rows,
        .columns = columns,
        .group = INT4_GROUP,
    };
    if (int4_pack_rows(&target, values, row, row_count, &bad_row, &bad_column))
        return STATUS_OK;
    return error_set(
        err, STATUS_FORMAT,
        "tensor %s: the weight at row %lld, column %lld of expert %lld is none that int4 "
        "can hold (not a number, or beyond 1e15); --expert-dtype auto runs it as it is",
        where->tensor->name, (long long)(block->block.row + bad_row),
        (long long)(block->block.column + bad_column), (long long)block->expert);
}

/* Bytes of the place that no weight is written to. A matrix without any is not zeroed: that would
 * be one more pass over most of the memory. */
static void padding_zero(const struct packed_block *block)
{
    int64_t rows = block->block.row_count, columns = block->block.column_count;
    if (block->is_vector)
        memset(block->place, 0, (size_t)round_up(columns, PACK_BLOCK) * sizeof(float));
    else if (rows % PACK_BLOCK != 0 || columns % PACK_BLOCK != 0)
        memset(block->place, 0, (size_t)packed_bytes(rows, columns, block->dtype));
}

static uint64_t bytes_on_disk(const struct weight_location *where, const struct block *block)
{
    return (uint64_t)(block->row_count * block->column_count) *
           (where->tensor->dtype == TENSOR_F32 ? 4 : 2);
}

enum status packed_read(const struct checkpoint *checkpoint, const struct packed_block *block,
                        char *staging, int64_t staging_bytes,
                        const struct packed_read_progress *progress, struct error *err)
{
    enum dtype dtype = block->dtype == DTYPE_INT4 ? DTYPE_F32 : block->dtype;
    int64_t step = rows_per_read(block);
    struct weight_location where;
    padding_zero(block);
    TRY(checkpoint_locate(&where, checkpoint, block->weight, block->layer, block->expert, err));
    for (int64_t row = 0; row < block->block.row_count; row += step) {
        struct block part = block->block;
        part.row += row;
        part.row_count = part.row_count - row < step ? part.row_count - row : step;
        void *values = block->is_vector ? block->place : staging + staging_bytes;
        double begin = progress->read_ns != NULL ? system_seconds() : 0;
        TRY(checkpoint_read_block(checkpoint, &where, part, values, dtype, staging,
                                  (uint64_t)staging_bytes, err));
        if (progress->read_ns != NULL)
            atomic_fetch_add(progress->read_ns, (uint64_t)((system_seconds() - begin) * 1e9));
        if (!block->is_vector)
            TRY(pack_rows(block, values, row, part.row_count, &where, err));
        if (progress->report != NULL)
            TRY(progress->report(progress->context, bytes_on_disk(&where, &part), err));
    }
    return STATUS_OK;
}
