/* From INT4 to the numbers that a native matrix has. */
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd.h"

/* A tile is 16 x 16 weights: 32 words of nibbles, a lane of 16 for each row and 8 columns. In both
 * packings tiles stand one behind another in either form, and the 16 scales of a panel and group
 * stand together (layout/packing.h). */
#define TILE_WORDS  32
#define TILE_VALUES (PACK_BLOCK * PACK_BLOCK)
#define PIECE_TILES 128

/* Scales and minima of the 16 columns of a tile, each in all lanes; or of its rows, in one vector
 * that stands for all columns. */
struct tile_scales {
    v16 scale[PACK_BLOCK], minimum[PACK_BLOCK];
};

INLINE void scales_read(struct tile_scales *out, const struct matrix *in, int64_t at)
{
    v16 scale = v16_load_bf16(in->scales + at);
    v16 minimum = scale * -8.0f;
    if (in->minima != NULL)
        minimum = v16_load_bf16(in->minima + at);
    float scales[PACK_BLOCK], minima[PACK_BLOCK];
    v16_store(scales, scale);
    v16_store(minima, minimum);
    for (int c = 0; c < PACK_BLOCK; c++) {
        out->scale[c] = in->packing == PACK_OUTPUT ? scale : v16_all(scales[c]);
        out->minimum[c] = in->packing == PACK_OUTPUT ? minimum : v16_all(minima[c]);
    }
}

/* A product of a bf16 and a nibble is exact in f32, so the sum is rounded once. */
INLINE v16 column_of(v16u words, int column, const struct tile_scales *scales)
{
    v16i nibbles = (v16i)(words >> (uint32_t)(column % 8 * 4) & 15u);
    return __builtin_convertvector(nibbles, v16) * scales->scale[column] + scales->minimum[column];
}

INLINE void tile_to_bf16(uint16_t *out, const uint32_t *in, const struct tile_scales *scales)
{
    for (int c = 0; c < PACK_BLOCK; c += 2) {
        v16u words = *(const v16u *)(in + c / 8 * LANES);
        v16u even = v16_bf16_bits(column_of(words, c, scales));
        v16u odd = v16_bf16_bits(column_of(words, c + 1, scales));
        *(v16u *)(out + c * LANES) = even | odd << 16;
    }
}

INLINE void tile_to_f32(float *out, const uint32_t *in, const struct tile_scales *scales)
{
    for (int c = 0; c < PACK_BLOCK; c++)
        v16_store(out + c * LANES, column_of(*(const v16u *)(in + c / 8 * LANES), c, scales));
}

static void tiles(const struct op_dequantize *op, int64_t first, int64_t end)
{
    const struct matrix *in = &op->in;
    int64_t along = in->packing == PACK_OUTPUT ? in->columns : in->rows;
    int64_t panel_tiles = along / PACK_BLOCK, group_tiles = in->group / PACK_BLOCK;
    int64_t groups = ceil_div(along, in->group), known = -1;
    const uint32_t *words = in->data;
    struct tile_scales scales;
    for (int64_t t = first; t < end; t++) {
        int64_t group = t / panel_tiles * groups + t % panel_tiles / group_tiles;
        if (group != known)
            scales_read(&scales, in, group * PACK_BLOCK);
        known = group;
        if (op->dtype == DTYPE_BF16)
            tile_to_bf16((uint16_t *)op->out + t * TILE_VALUES, words + t * TILE_WORDS, &scales);
        else
            tile_to_f32((float *)op->out + t * TILE_VALUES, words + t * TILE_WORDS, &scales);
    }
}

void KERNEL(dequantize)(const struct op_dequantize *op, struct share *share)
{
    int64_t count = op->in.rows / PACK_BLOCK * (op->in.columns / PACK_BLOCK), first;
    while ((first = share_take(share) * PIECE_TILES) < count)
        tiles(op, first, first + PIECE_TILES < count ? first + PIECE_TILES : count);
}
