#include "layout/packing_tile.h"

#include <string.h>

#include "layout/packing.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

typedef uint32_t units __attribute__((vector_size(16)));

static units units_load(const char *at)
{
    units out;
    memcpy(&out, at, sizeof out);
    return out;
}

/* Four units of each of four rows: out[unit][row], where a unit's 16 rows are a line of 64 bytes.
 */
static void square_pack(char *out, const char *in, int64_t row_bytes)
{
    const int64_t line = PACK_BLOCK * (int64_t)sizeof(uint32_t);
    units a = units_load(in), b = units_load(in + row_bytes);
    units c = units_load(in + 2 * row_bytes), d = units_load(in + 3 * row_bytes);
    units ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    units ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    units cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    units cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    a = __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5);
    b = __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7);
    c = __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5);
    d = __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7);
    memcpy(out, &a, sizeof a);
    memcpy(out + line, &b, sizeof b);
    memcpy(out + 2 * line, &c, sizeof c);
    memcpy(out + 3 * line, &d, sizeof d);
}

/* Rows from four to four outside: each is read once, and `out` is small enough for the L1 cache. */
void tile_pack_plain(char *out, const char *in, int64_t row_bytes, int64_t unit_count)
{
    for (int64_t row = 0; row < PACK_BLOCK; row += 4) {
        for (int64_t unit = 0; unit < unit_count; unit += 4)
            square_pack(out + (unit * PACK_BLOCK + row) * 4, in + row * row_bytes + unit * 4,
                        row_bytes);
    }
}

#if defined(__x86_64__)

#define AVX2_CODE __attribute__((target("avx2")))

/* Four units of a row, and beside them four of the row that is four below. */
AVX2_CODE static inline __m256 rows_load(const char *in, int64_t row_bytes)
{
    __m128 row = _mm_loadu_ps((const float *)in);
    __m128 below = _mm_loadu_ps((const float *)(in + 4 * row_bytes));
    return _mm256_insertf128_ps(_mm256_castps128_ps256(row), below, 1);
}

AVX2_CODE static inline void line_store(char *out, __m256d line)
{
    _mm256_storeu_pd((double *)out, line);
}

/* Four units of each of eight rows: what square_pack does in either half of a register. */
AVX2_CODE static inline void squares_pack(char *out, const char *in, int64_t row_bytes)
{
    const int64_t line = PACK_BLOCK * (int64_t)sizeof(uint32_t);
    __m256 a = rows_load(in, row_bytes), b = rows_load(in + row_bytes, row_bytes);
    __m256 c = rows_load(in + 2 * row_bytes, row_bytes);
    __m256 d = rows_load(in + 3 * row_bytes, row_bytes);
    __m256d ab_low = _mm256_castps_pd(_mm256_unpacklo_ps(a, b));
    __m256d ab_high = _mm256_castps_pd(_mm256_unpackhi_ps(a, b));
    __m256d cd_low = _mm256_castps_pd(_mm256_unpacklo_ps(c, d));
    __m256d cd_high = _mm256_castps_pd(_mm256_unpackhi_ps(c, d));
    line_store(out, _mm256_unpacklo_pd(ab_low, cd_low));
    line_store(out + line, _mm256_unpackhi_pd(ab_low, cd_low));
    line_store(out + 2 * line, _mm256_unpacklo_pd(ab_high, cd_high));
    line_store(out + 3 * line, _mm256_unpackhi_pd(ab_high, cd_high));
}

AVX2_CODE static void tile_pack_avx2(char *out, const char *in, int64_t row_bytes,
                                     int64_t unit_count)
{
    for (int64_t unit = 0; unit < unit_count; unit += 4) {
        for (int64_t row = 0; row < PACK_BLOCK; row += 8)
            squares_pack(out + (unit * PACK_BLOCK + row) * 4, in + row * row_bytes + unit * 4,
                         row_bytes);
    }
}

#endif

tile_pack_fn *tile_pack_best(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        return tile_pack_avx2;
#endif
    return tile_pack_plain;
}
