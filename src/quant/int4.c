#include "quant/int4.h"

#include <math.h>
#include <string.h>

#include "base/numeric.h"

#define LANES        PACK_BLOCK /* groups at a time: 16 neighbours across */
#define SEARCH_STEPS 12         /* in each sign */
#define SEARCH_FIRST (-1.1f)    /* of the largest magnitude's place, in nibbles */
#define SEARCH_WIDTH 0.2f
#define VALUE_MIN    1e-30f /* groups below are zeros: their squares are none in f32 */

typedef float lanes __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t lanes_i __attribute__((vector_size(64), aligned(4), may_alias));

/* Sixteen groups side by side: value k of group i is values[k][i]. */
struct groups {
    int64_t count; /* values of a group */
    float values[INT4_GROUP_MAX][LANES];
    float scale[LANES];
    int32_t nibbles[INT4_GROUP_MAX][LANES];
};

/* ---- The search ---------------------------------------------------------------------------- */

/* Compiled for the processors below; the best is taken at run time. */
#define INLINE static inline __attribute__((always_inline))

INLINE lanes all(float value)
{
    return value - (lanes){0};
}

/* b where the mask is set, else a. */
INLINE lanes choose(lanes_i mask, lanes a, lanes b)
{
    return (lanes)((mask & (lanes_i)b) | (~mask & (lanes_i)a));
}

/* The nearest whole number in -8 .. 7. Adding 1.5 x 2^23 rounds to even. */
INLINE lanes nearest(lanes x)
{
    lanes rounded = (x + 12582912.0f) - 12582912.0f;
    rounded = choose(rounded < all(-8), rounded, all(-8));
    return choose(rounded > all(7), rounded, all(7));
}

INLINE void search_body(struct groups *groups)
{
    lanes most = {0}, gain = {0}, best = {0};
    for (int64_t k = 0; k < groups->count; k++) {
        lanes value = *(const lanes *)groups->values[k];
        value = choose(value < all(0), value, -value);
        most = choose(value > most, most, value);
    }
    lanes unit = choose(most > all(VALUE_MIN), all(0), 1.0f / most);
    for (int step = 0; step < 2 * SEARCH_STEPS; step++) {
        float place = 7.5f + SEARCH_FIRST + SEARCH_WIDTH * (float)(step % SEARCH_STEPS);
        lanes inverse = unit * (step < SEARCH_STEPS ? place : -place);
        lanes products = {0}, squares = {0};
        for (int64_t k = 0; k < groups->count; k++) {
            lanes value = *(const lanes *)groups->values[k], q = nearest(value * inverse);
            products += value * q;
            squares += q * q;
        }
        lanes scale = choose(squares > all(0), all(0), products / squares);
        lanes found = scale * products;
        best = choose(found > gain, best, scale);
        gain = choose(found > gain, gain, found);
    }
    *(lanes *)groups->scale = best;
}

INLINE void round_body(struct groups *groups)
{
    lanes scale = *(const lanes *)groups->scale;
    lanes inverse = choose(scale != all(0), all(0), 1.0f / scale);
    for (int64_t k = 0; k < groups->count; k++) {
        lanes q = nearest(*(const lanes *)groups->values[k] * inverse);
        *(lanes_i *)groups->nibbles[k] = __builtin_convertvector(q, lanes_i) + 8;
    }
}

static void search_plain(struct groups *groups)
{
    search_body(groups);
}

static void round_plain(struct groups *groups)
{
    round_body(groups);
}

#if defined(__x86_64__)
#define FOR_AVX512 __attribute__((target("avx512f,prefer-vector-width=512")))
#define FOR_AVX2   __attribute__((target("avx2,fma")))
FOR_AVX512 static void search_avx512(struct groups *groups)
{
    search_body(groups);
}

FOR_AVX512 static void round_avx512(struct groups *groups)
{
    round_body(groups);
}

FOR_AVX2 static void search_avx2(struct groups *groups)
{
    search_body(groups);
}

FOR_AVX2 static void round_avx2(struct groups *groups)
{
    round_body(groups);
}
#endif

static void quantize(struct groups *groups)
{
    void (*search)(struct groups *) = search_plain, (*finish)(struct groups *) = round_plain;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        search = search_avx512, finish = round_avx512;
    else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        search = search_avx2, finish = round_avx2;
#endif
    search(groups);
    for (int i = 0; i < LANES; i++)
        groups->scale[i] = bf16_to_f32(bf16_from_f32(groups->scale[i]));
    finish(groups);
}

/* ---- Packing ------------------------------------------------------------------------------- */

static bool find_bad(const float *values, int64_t count, int64_t *at)
{
    for (int64_t i = 0; i < count; i++) {
        if (!(fabsf(values[i]) <= INT4_VALUE_MAX)) { /* NaN, too */
            *at = i;
            return true;
        }
    }
    return false;
}

static uint32_t *unit_at(const struct int4_target *target, int64_t row, int64_t column)
{
    int64_t index =
        packed_index(target->packing, DTYPE_INT4, target->rows, target->columns, row, column);
    return (uint32_t *)(void *)(target->data + index / 2);
}

/* Sixteen rows, group by group along their columns. */
static void pack_output(const struct int4_target *target, struct groups *groups, const float *in,
                        int64_t row)
{
    int64_t group_count = ceil_div(target->columns, target->group);
    for (int64_t g = 0; g < group_count; g++) {
        int64_t first = g * target->group, left = target->columns - first;
        groups->count = left < target->group ? left : target->group;
        for (int i = 0; i < LANES; i++) {
            for (int64_t k = 0; k < groups->count; k++)
                groups->values[k][i] = in[i * target->columns + first + k];
        }
        quantize(groups);
        uint16_t *scales = target->scales + (row / LANES * group_count + g) * LANES;
        for (int i = 0; i < LANES; i++)
            scales[i] = bf16_from_f32(groups->scale[i]);
        for (int64_t k = 0; k < groups->count; k += 8) {
            uint32_t *units = unit_at(target, row, first + k);
            for (int i = 0; i < LANES; i++) {
                uint32_t bits = 0;
                for (int j = 0; j < 8; j++)
                    bits |= (uint32_t)groups->nibbles[k + j][i] << 4 * j;
                units[i] = bits;
            }
        }
    }
}

/* One group of rows, sixteen columns at a time. */
static void pack_input(const struct int4_target *target, struct groups *groups, const float *in,
                       int64_t row, int64_t row_count)
{
    int64_t group_count = ceil_div(target->rows, target->group);
    groups->count = row_count;
    for (int64_t column = 0; column < target->columns; column += LANES) {
        for (int64_t k = 0; k < row_count; k++)
            memcpy(groups->values[k], in + k * target->columns + column, sizeof groups->values[k]);
        quantize(groups);
        uint16_t *scales =
            target->scales + (column / LANES * group_count + row / target->group) * LANES;
        for (int i = 0; i < LANES; i++)
            scales[i] = bf16_from_f32(groups->scale[i]);
        for (int64_t k = 0; k < row_count; k++) {
            for (int half = 0; half < LANES; half += 8) {
                uint32_t bits = 0;
                for (int j = 0; j < 8; j++)
                    bits |= (uint32_t)groups->nibbles[k][half + j] << 4 * j;
                *unit_at(target, row + k, column + half) = bits;
            }
        }
    }
}

bool int4_pack_rows(const struct int4_target *target, const float *in, int64_t first_row,
                    int64_t row_count, int64_t *bad_row, int64_t *bad_column)
{
    struct groups groups;
    int64_t step = target->packing == PACK_OUTPUT ? LANES : target->group;
    int64_t bad;
    ASSERT(target->group % LANES == 0 && target->group <= INT4_GROUP_MAX);
    ASSERT(target->rows % LANES == 0 && target->columns % LANES == 0 && first_row % step == 0);
    if (find_bad(in, row_count * target->columns, &bad)) {
        *bad_row = first_row + bad / target->columns;
        *bad_column = bad % target->columns;
        return false;
    }
    for (int64_t row = 0; row < row_count; row += step, in += step * target->columns) {
        int64_t left = row_count - row;
        if (target->packing == PACK_OUTPUT)
            pack_output(target, &groups, in, first_row + row);
        else
            pack_input(target, &groups, in, first_row + row, left < step ? left : step);
    }
    return true;
}
