#include "store/packed_read.h"

#include <string.h>

#include "base/memory.h"
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

/* ---- Staging --------------------------------------------------------------------------------- */

static int64_t max_of(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Bytes of some rows of the block in its place, but for scales. */
static int64_t packed_row_bytes(const struct packed_block *block, int64_t row_count)
{
    int64_t columns = block->block.column_count;
    return block->is_vector ? round_up(columns, PACK_BLOCK) * (int64_t)sizeof(float)
                            : packed_bytes(row_count, columns, block->dtype);
}

/* In a piece that is staged they are behind the weights. */
static int64_t scales_offset(const struct packed_block *block, int64_t row_count)
{
    return round_up(packed_row_bytes(block, row_count), PACK_BLOCK * (int64_t)sizeof(uint16_t));
}

static int64_t scale_bytes(const struct packed_block *block, int64_t row_count)
{
    if (block->dtype != DTYPE_INT4)
        return 0;
    return packed_scale_count(block->packing, row_count, block->block.column_count, INT4_GROUP) *
           (int64_t)sizeof(uint16_t);
}

void packed_room_add(struct packed_room *room, const struct packed_block *block)
{
    int64_t rows = rows_per_read(block);
    room->read_bytes =
        max_of(room->read_bytes, rows * block->block.column_count * (int64_t)sizeof(float));
    room->packed_bytes =
        max_of(room->packed_bytes, scales_offset(block, rows) + scale_bytes(block, rows));
}

uint64_t packed_staging_bytes(const struct packed_room *room, const struct device *device)
{
    int64_t packed = device->ops->host_reaches ? 0 : room->packed_bytes;
    return (uint64_t)(2 * room->read_bytes + packed);
}

enum status packed_staging_init(struct packed_staging *staging, struct device *device,
                                const struct packed_room *room, struct error *err)
{
    staging->device = device;
    staging->room = *room;
    TRY(memory_get_raw((void **)&staging->read, 2, (size_t)room->read_bytes, "reading weights",
                       err));
    if (device->ops->host_reaches)
        return STATUS_OK;
    return device->ops->host_memory_get(device, (void **)&staging->packed,
                                        (size_t)room->packed_bytes, "reading weights", err);
}

void packed_staging_deinit(struct packed_staging *staging)
{
    if (staging->packed != NULL)
        staging->device->ops->host_memory_free(staging->device, staging->packed);
    memory_free(staging->read);
    *staging = (struct packed_staging){0};
}

/* ---- Packing --------------------------------------------------------------------------------- */

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

/* ---- A piece on its way to the device -------------------------------------------------------- */

/* Some rows of the block, to be packed by themselves. */
static struct packed_block piece_of(const struct packed_block *block, struct block rows,
                                    const struct packed_staging *staging)
{
    struct packed_block piece = *block;
    piece.block = rows;
    piece.place = staging->packed;
    piece.scales = (uint16_t *)(staging->packed + scales_offset(block, rows.row_count));
    return piece;
}

/* Lines of 16 values, one for each row or column, or for each group of them. */
static int64_t lines_of(int64_t count, int64_t group)
{
    return group > 0 ? ceil_div(count, group) : round_up(count, PACK_BLOCK);
}

/* An array of 16 values or scales a line. */
struct array {
    char *out;      /* the block's */
    const char *in; /* the piece's */
    int64_t line_bytes;
    int64_t group; /* 0: values */
};

/* The piece has rows of the block from `row` on: by output they are one range of the array, by
 * input one in each block of 16 columns. */
static enum status array_upload(const struct packed_staging *staging,
                                const struct packed_block *block, const struct packed_block *piece,
                                int64_t row, const struct array *array, struct error *err)
{
    struct op_copy copy = {.in = array->in};
    int64_t line = array->line_bytes;
    if (block->packing == PACK_OUTPUT) {
        int64_t block_bytes = lines_of(block->block.column_count, array->group) * line;
        copy.out = array->out + row / PACK_BLOCK * block_bytes;
        copy.bytes = ceil_div(piece->block.row_count, PACK_BLOCK) * block_bytes;
    } else {
        copy.out = array->out + lines_of(row, array->group) * line;
        copy.out_stride = lines_of(block->block.row_count, array->group) * line;
        copy.bytes = copy.in_stride = lines_of(piece->block.row_count, array->group) * line;
        copy.more_rows = ceil_div(block->block.column_count, PACK_BLOCK) - 1;
    }
    return staging->device->ops->upload(staging->device, &copy, err);
}

static enum status arrays_upload(const struct packed_staging *staging,
                                 const struct packed_block *block, const struct packed_block *piece,
                                 int64_t row, struct error *err)
{
    const struct array values = {.out = block->place,
                                 .in = piece->place,
                                 .line_bytes = PACK_BLOCK * dtype_bits(block->dtype) / 8};
    const struct array scales = {.out = (char *)block->scales,
                                 .in = (const char *)piece->scales,
                                 .line_bytes = PACK_BLOCK * (int64_t)sizeof(uint16_t),
                                 .group = INT4_GROUP};
    const struct op_copy vector = {
        .out = block->place, .in = piece->place, .bytes = packed_row_bytes(block, 1)};
    if (block->is_vector)
        return staging->device->ops->upload(staging->device, &vector, err);
    TRY(array_upload(staging, block, piece, row, &values, err));
    return block->dtype == DTYPE_INT4 ? array_upload(staging, block, piece, row, &scales, err)
                                      : STATUS_OK;
}

static enum status piece_upload(struct packed_staging *staging, const struct packed_block *block,
                                const struct packed_block *piece, int64_t row, struct error *err)
{
    enum status status = arrays_upload(staging, block, piece, row, err);
    staging->device_failed = status != STATUS_OK;
    return status;
}

/* ---- Reading --------------------------------------------------------------------------------- */

static uint64_t bytes_on_disk(const struct weight_location *where, const struct block *block)
{
    return (uint64_t)(block->row_count * block->column_count) *
           (where->tensor->dtype == TENSOR_F32 ? 4 : 2);
}

enum status packed_read(const struct checkpoint *checkpoint, const struct packed_block *block,
                        struct packed_staging *staging, const struct packed_read_progress *progress,
                        struct error *err)
{
    enum dtype dtype = block->dtype == DTYPE_INT4 ? DTYPE_F32 : block->dtype;
    bool is_staged = staging->packed != NULL;
    int64_t step = rows_per_read(block);
    struct weight_location where;
    staging->device_failed = false;
    if (!is_staged)
        padding_zero(block);
    TRY(checkpoint_locate(&where, checkpoint, block->weight, block->layer, block->expert, err));
    for (int64_t row = 0; row < block->block.row_count; row += step) {
        struct block part = block->block;
        part.row += row;
        part.row_count = part.row_count - row < step ? part.row_count - row : step;
        struct packed_block to = is_staged ? piece_of(block, part, staging) : *block;
        void *values = block->is_vector ? to.place : staging->read + staging->room.read_bytes;
        if (is_staged)
            padding_zero(&to);
        double begin = progress->read_ns != NULL ? system_seconds() : 0;
        TRY(checkpoint_read_block(checkpoint, &where, part, values, dtype, staging->read,
                                  (uint64_t)staging->room.read_bytes, err));
        if (progress->read_ns != NULL)
            atomic_fetch_add(progress->read_ns, (uint64_t)((system_seconds() - begin) * 1e9));
        if (!block->is_vector)
            TRY(pack_rows(&to, values, is_staged ? 0 : row, part.row_count, &where, err));
        if (is_staged)
            TRY(piece_upload(staging, block, &to, row, err));
        if (progress->report != NULL)
            TRY(progress->report(progress->context, bytes_on_disk(&where, &part), err));
    }
    return STATUS_OK;
}
