/* From INT4 to the numbers that a native matrix has. */
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd.h"

/* A tile is 16 x 16 weights: 32 words of nibbles, a lane of 16 for each row and 8 columns. In both
 * packings tiles stand one behind another in either form, and the 16 scales of a panel and group
 * stand together (layout/packing.h). */
#define TILE_WORDS  32
#define TILE_VALUES (PACK_BLOCK * PACK_BLOCK)
#define PIECE_TILES 128

/* Scales and minima of the 16 rows of a tile or, packed by input, of its columns. */
struct tile_scales {
    bool by_output;
    float scale[PACK_BLOCK], minimum[PACK_BLOCK];
};

INLINE void scales_read(struct tile_scales *out, const struct matrix *in, int64_t at)
{
    out->by_output = in->packing == PACK_OUTPUT;
    for (int i = 0; i < PACK_BLOCK; i += LANES) {
        vec scale = vec_load_bf16(in->scales + at + i);
        vec minimum = scale * -8.0f;
        if (in->minima != NULL)
            minimum = vec_load_bf16(in->minima + at + i);
        vec_store(out->scale + i, scale);
        vec_store(out->minimum + i, minimum);
    }
}

/* Rows `row` and on of a column. A product of a bf16 and a nibble is exact in f32, so the sum is
 * rounded once. */
INLINE vec column_of(const uint32_t *in, int row, int column, const struct tile_scales *scales,
                     const bool by_output)
{
    vecu words = *(const vecu *)(in + column / 8 * PACK_BLOCK + row);
    vec nibbles = __builtin_convertvector((veci)(words >> (uint32_t)(column % 8 * 4) & 15u), vec);
    if (by_output)
        return nibbles * vec_load(scales->scale + row) + vec_load(scales->minimum + row);
    return nibbles * scales->scale[column] + scales->minimum[column];
}

INLINE void tile_to_bf16(uint16_t *out, const uint32_t *in, const struct tile_scales *scales,
                         const bool by_output)
{
    for (int c = 0; c < PACK_BLOCK; c += 2) {
        for (int row = 0; row < PACK_BLOCK; row += LANES) {
            vecu even = vec_bf16_bits(column_of(in, row, c, scales, by_output));
            vecu odd = vec_bf16_bits(column_of(in, row, c + 1, scales, by_output));
            *(vecu *)(out + c * PACK_BLOCK + row * 2) = even | odd << 16;
        }
    }
}

INLINE void tile_to_f32(float *out, const uint32_t *in, const struct tile_scales *scales,
                        const bool by_output)
{
    for (int c = 0; c < PACK_BLOCK; c++) {
        for (int row = 0; row < PACK_BLOCK; row += LANES)
            vec_store(out + c * PACK_BLOCK + row, column_of(in, row, c, scales, by_output));
    }
}

/* by_output is a constant where this is called. */
INLINE void tile_write(const struct op_dequantize *op, int64_t tile,
                       const struct tile_scales *scales, const bool by_output)
{
    const uint32_t *in = (const uint32_t *)op->in.data + tile * TILE_WORDS;
    if (op->dtype == DTYPE_BF16)
        tile_to_bf16((uint16_t *)op->out + tile * TILE_VALUES, in, scales, by_output);
    else
        tile_to_f32((float *)op->out + tile * TILE_VALUES, in, scales, by_output);
}

static void tiles(const struct op_dequantize *op, int64_t first, int64_t end)
{
    const struct matrix *in = &op->in;
    int64_t along = in->packing == PACK_OUTPUT ? in->columns : in->rows;
    int64_t panel_tiles = along / PACK_BLOCK, group_tiles = in->group / PACK_BLOCK;
    int64_t groups = ceil_div(along, in->group), known = -1;
    struct tile_scales scales;
    for (int64_t t = first; t < end; t++) {
        int64_t group = t / panel_tiles * groups + t % panel_tiles / group_tiles;
        if (group != known)
            scales_read(&scales, in, group * PACK_BLOCK);
        known = group;
        if (scales.by_output)
            tile_write(op, t, &scales, true);
        else
            tile_write(op, t, &scales, false);
    }
}

void KERNEL(dequantize)(const struct op_dequantize *op, struct share *share)
{
    int64_t count = op->in.rows / PACK_BLOCK * (op->in.columns / PACK_BLOCK), first;
    while ((first = share_take(share) * PIECE_TILES) < count)
        tiles(op, first, first + PIECE_TILES < count ? first + PIECE_TILES : count);
}
