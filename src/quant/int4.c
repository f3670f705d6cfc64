#include "quant/int4.h"

#include <math.h>
#include <string.h>

#include "base/numeric.h"

#define LANES      INT4_LANES
#define ROUND_STEP 64 /* values of a group whose nibbles are made together */

typedef uint32_t quad __attribute__((vector_size(16), aligned(2), may_alias));
typedef uint8_t bytes16 __attribute__((vector_size(16)));
typedef uint16_t halves8 __attribute__((vector_size(16)));

/* ---- Into a panel: value k of 16 groups side by side ---------------------------------------- */

/* Four units of 32 bits of each of four rows: turned[unit][row]. */
static inline void square_turn(quad turned[4], const void *in, int64_t row_bytes)
{
    const char *at = in;
    quad a = *(const quad *)(const void *)at;
    quad b = *(const quad *)(const void *)(at + row_bytes);
    quad c = *(const quad *)(const void *)(at + 2 * row_bytes);
    quad d = *(const quad *)(const void *)(at + 3 * row_bytes);
    quad ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    quad ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    quad cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    quad cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    turned[0] = __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5);
    turned[1] = __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7);
    turned[2] = __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5);
    turned[3] = __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7);
}

/* Sixteen rows, four at a time: sixteen lines a power of two apart would not fit a cache's set.
 * count is a multiple of 16. */
static void rows_turn_f32(float *panel, const float *in, int64_t stride, int64_t count)
{
    for (int64_t row = 0; row < LANES; row += 4) {
        for (int64_t k = 0; k < count; k += 4) {
            quad turned[4];
            square_turn(turned, in + row * stride + k, stride * (int64_t)sizeof *in);
            for (int i = 0; i < 4; i++)
                *(quad *)(panel + (k + i) * LANES + row) = turned[i];
        }
    }
}

/* Of bf16 a unit holds two neighbours, each of which is the upper half of its f32. */
static void rows_turn_bf16(float *panel, const uint16_t *in, int64_t stride, int64_t count)
{
    for (int64_t row = 0; row < LANES; row += 4) {
        for (int64_t k = 0; k < count; k += 8) {
            quad turned[4];
            square_turn(turned, in + row * stride + k, stride * (int64_t)sizeof *in);
            for (int i = 0; i < 4; i++) {
                float *at = panel + (k + 2 * i) * LANES + row;
                *(quad *)at = turned[i] << 16;
                *(quad *)(at + LANES) = turned[i] & 0xFFFF0000u;
            }
        }
    }
}

/* `count` rows of sixteen columns. */
static void columns_copy_f32(float *panel, const float *in, int64_t stride, int64_t count)
{
    for (int64_t k = 0; k < count; k++)
        memcpy(panel + k * LANES, in + k * stride, LANES * sizeof *panel);
}

static void columns_copy_bf16(float *panel, const uint16_t *in, int64_t stride, int64_t count)
{
    for (int64_t k = 0; k < count; k++) {
        for (int i = 0; i < LANES; i++)
            panel[k * LANES + i] = bf16_to_f32(in[k * stride + i]);
    }
}

static int64_t row_values(const struct int4_target *target)
{
    return target->stride > 0 ? target->stride : target->columns;
}

static void panel_fill(float *panel, const struct int4_target *target, const char *in,
                       int64_t count)
{
    bool is_bf16 = target->source == DTYPE_BF16;
    int64_t stride = row_values(target);
    const void *at = in;
    if (target->packing == PACK_OUTPUT && is_bf16)
        rows_turn_bf16(panel, at, stride, count);
    else if (target->packing == PACK_OUTPUT)
        rows_turn_f32(panel, at, stride, count);
    else if (is_bf16)
        columns_copy_bf16(panel, at, stride, count);
    else
        columns_copy_f32(panel, at, stride, count);
}

/* ---- Nibbles ------------------------------------------------------------------------------- */

/* Of two values each, the first in the low half of each byte. */
static bytes16 pair(const uint8_t *nibbles)
{
    bytes16 low, high;
    memcpy(&low, nibbles, sizeof low);
    memcpy(&high, nibbles + LANES, sizeof high);
    return low | (bytes16)((halves8)high << 4); /* a nibble does not leave its byte */
}

/* Eight values of each of 16 rows: 32 bits for each row, [16]. */
static void unit_of_rows(uint8_t *out, const uint8_t *nibbles)
{
    bytes16 a = pair(nibbles), b = pair(nibbles + 2 * LANES);
    bytes16 c = pair(nibbles + 4 * LANES), d = pair(nibbles + 6 * LANES);
    halves8 ab[2] = {(halves8)__builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5,
                                                      21, 6, 22, 7, 23),
                     (halves8)__builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28,
                                                      13, 29, 14, 30, 15, 31)};
    halves8 cd[2] = {(halves8)__builtin_shufflevector(c, d, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5,
                                                      21, 6, 22, 7, 23),
                     (halves8)__builtin_shufflevector(c, d, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28,
                                                      13, 29, 14, 30, 15, 31)};
    for (int half = 0; half < 2; half++) {
        halves8 low = __builtin_shufflevector(ab[half], cd[half], 0, 8, 1, 9, 2, 10, 3, 11);
        halves8 high = __builtin_shufflevector(ab[half], cd[half], 4, 12, 5, 13, 6, 14, 7, 15);
        memcpy(out + 32 * half, &low, sizeof low);
        memcpy(out + 32 * half + 16, &high, sizeof high);
    }
}

/* Eight neighbours of one row. */
static uint32_t unit_of_columns(const uint8_t *nibbles)
{
    uint64_t bits;
    memcpy(&bits, nibbles, sizeof bits);
    bits = (bits | bits >> 4) & 0x00FF00FF00FF00FFu;
    bits = (bits | bits >> 8) & 0x0000FFFF0000FFFFu;
    return (uint32_t)(bits | bits >> 16);
}

static uint8_t *unit_at(const struct int4_target *target, int64_t row, int64_t column)
{
    return target->data +
           packed_index(target->packing, DTYPE_INT4, target->rows, target->columns, row, column) /
               2;
}

/* `count` values of 16 groups, of which the first is at (row, column), to their place. */
static void nibbles_put(const struct int4_target *target, const uint8_t *nibbles, int64_t row,
                        int64_t column, int64_t count)
{
    if (target->packing == PACK_OUTPUT) {
        for (int64_t k = 0; k < count; k += 8)
            unit_of_rows(unit_at(target, row, column + k), nibbles + k * LANES);
        return;
    }
    for (int64_t first = 0; first < count; first += PACK_BLOCK) {
        uint8_t *tile = unit_at(target, row + first, column);
        for (int64_t k = 0; k < PACK_BLOCK; k++) {
            const uint8_t *at = nibbles + (first + k) * LANES;
            uint32_t units[2] = {unit_of_columns(at), unit_of_columns(at + 8)};
            memcpy(tile + 4 * k, &units[0], 4);
            memcpy(tile + 4 * (PACK_BLOCK + k), &units[1], 4);
        }
    }
}

/* ---- Groups -------------------------------------------------------------------------------- */

static void scales_put(const struct int4_target *target, const struct int4_scales *scales,
                       int64_t row, int64_t column)
{
    const struct matrix shape = {.packing = target->packing,
                                 .rows = target->rows,
                                 .columns = target->columns,
                                 .group = target->group};
    int64_t at = packed_scale_index(&shape, row, column);
    for (int i = 0; i < LANES; i++) {
        target->scales[at + i] = bf16_from_f32(scales->scale[i]);
        if (target->minima != NULL)
            target->minima[at + i] = bf16_from_f32(scales->minimum[i]);
    }
}

/* What is done with sixteen groups, of which the first begins at (row, column). */
struct visit {
    bool (*call)(const struct visit *visit, const struct int4_target *target,
                 const struct int4_groups *groups, int64_t row, int64_t column);
    struct int4_common *common;
};

static bool groups_extend(const struct visit *visit, const struct int4_target *target,
                          const struct int4_groups *groups, int64_t row, int64_t column)
{
    (void)target, (void)row, (void)column;
    return int4_common_extend(visit->common, groups);
}

static bool groups_weigh(const struct visit *visit, const struct int4_target *target,
                         const struct int4_groups *groups, int64_t row, int64_t column)
{
    (void)target, (void)row, (void)column;
    int4_common_weigh(visit->common, groups);
    return true;
}

static bool groups_pack(const struct visit *visit, const struct int4_target *target,
                        const struct int4_groups *groups, int64_t row, int64_t column)
{
    (void)visit;
    struct int4_scales found;
    const struct int4_scales *scales = target->common;
    bool is_asymmetric = target->minima != NULL, by_output = target->packing == PACK_OUTPUT;
    if (scales == NULL) {
        if (!int4_search(&found, groups, is_asymmetric))
            return false;
        scales = &found;
    }
    scales_put(target, scales, row, column);
    for (int64_t k = 0; k < groups->count; k += ROUND_STEP) {
        uint8_t nibbles[ROUND_STEP * LANES];
        struct int4_groups part = *groups;
        part.values += k * part.stride;
        part.count = groups->count - k < ROUND_STEP ? groups->count - k : ROUND_STEP;
        int4_round(nibbles, &part, scales, is_asymmetric, target->moments);
        nibbles_put(target, nibbles, row + (by_output ? 0 : k), column + (by_output ? k : 0),
                    part.count);
    }
    return true;
}

/* Sixteen rows, group by group along their columns. */
static bool rows_visit_output(const struct visit *visit, const struct int4_target *target,
                              float *panel, const char *in, int64_t row)
{
    for (int64_t first = 0; first < target->columns; first += target->group) {
        int64_t left = target->columns - first;
        struct int4_groups groups = {
            .values = panel, .stride = LANES, .count = left < target->group ? left : target->group};
        panel_fill(panel, target, in + first * dtype_bytes(target->source), groups.count);
        if (!visit->call(visit, target, &groups, row, first))
            return false;
    }
    return true;
}

/* A group of rows or, with common scales, a part of one: sixteen columns at a time. */
static bool rows_visit_input(const struct visit *visit, const struct int4_target *target,
                             float *panel, const char *in, int64_t row, int64_t row_count)
{
    const struct int4_groups groups = {.values = panel, .stride = LANES, .count = row_count};
    for (int64_t column = 0; column < target->columns; column += LANES) {
        panel_fill(panel, target, in + column * dtype_bytes(target->source), row_count);
        if (!visit->call(visit, target, &groups, row, column))
            return false;
    }
    return true;
}

static void find_bad(const struct int4_target *target, const char *in, int64_t *bad_row,
                     int64_t *bad_column)
{
    for (int64_t i = 0;; i++) {
        float value;
        int64_t at = i / target->columns * row_values(target) + i % target->columns;
        numeric_convert(&value, DTYPE_F32, in + at * dtype_bytes(target->source), target->source,
                        1);
        if (!(fabsf(value) <= INT4_VALUE_MAX)) { /* NaN, too */
            *bad_row = i / target->columns;
            *bad_column = i % target->columns;
            return;
        }
    }
}

static bool rows_visit(const struct visit *visit, const struct int4_target *target, const void *in,
                       int64_t first_row, int64_t row_count, int64_t *bad_row, int64_t *bad_column)
{
    float small[INT4_GROUP_MAX * LANES], *panel = target->panel == NULL ? small : target->panel;
    bool by_output = target->packing == PACK_OUTPUT;
    int64_t step = by_output ? LANES : target->group, count;
    ASSERT(target->group > 0 && target->group % LANES == 0);
    ASSERT(target->panel != NULL || target->group <= INT4_GROUP_MAX);
    ASSERT(target->rows % LANES == 0 && target->columns % LANES == 0 && row_count % LANES == 0);
    for (int64_t row = 0; row < row_count; row += count) {
        int64_t to_edge = step - (first_row + row) % step, left = row_count - row;
        const char *at = (const char *)in + row * row_values(target) * dtype_bytes(target->source);
        count = left < to_edge ? left : to_edge;
        if (!(by_output ? rows_visit_output(visit, target, panel, at, first_row + row)
                        : rows_visit_input(visit, target, panel, at, first_row + row, count))) {
            find_bad(target, at, bad_row, bad_column);
            *bad_row += first_row + row;
            return false;
        }
    }
    return true;
}

bool int4_pack_rows(const struct int4_target *target, const void *in, int64_t first_row,
                    int64_t row_count, int64_t *bad_row, int64_t *bad_column)
{
    const struct visit visit = {.call = groups_pack};
    bool is_any = target->common != NULL || target->packing == PACK_OUTPUT;
    ASSERT(first_row % (is_any ? LANES : target->group) == 0);
    return rows_visit(&visit, target, in, first_row, row_count, bad_row, bad_column);
}

bool int4_common_rows(struct int4_common *common, int pass, const struct int4_target *target,
                      const void *in, int64_t row_count, int64_t *bad_row, int64_t *bad_column)
{
    const struct visit visit = {.call = pass == 0 ? groups_extend : groups_weigh, .common = common};
    return rows_visit(&visit, target, in, 0, row_count, bad_row, bad_column);
}
