#include "quant/int4_search.h"

#include "base/numeric.h"
#include "base/status.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define VALUE_MIN      1e-30f /* groups below are zeros: their squares are none in f32 */
#define PLACES_AT_ONCE 4
#define SMALL_GROUP    256 /* larger ones have weights far beyond the rest: more is cut off */

typedef float lanes __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t lanes_i __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t lanes_u __attribute__((vector_size(64), aligned(4), may_alias));
typedef double lanes_f64 __attribute__((vector_size(128), aligned(8), may_alias));
typedef uint8_t lanes_u8 __attribute__((vector_size(16), aligned(1), may_alias));

struct extent {
    lanes least, most, sum;
};

struct places {
    const float *at;
    int count; /* a multiple of PLACES_AT_ONCE */
};

/* q = (value - least) x factor. */
struct range {
    lanes least, factor;
};

struct gain {
    lanes products, nibbles, squares; /* sums of (value - least) x q, q, q x q */
};

/* A value is scale x q + minimum, q is nibble - base. */
struct rounding {
    lanes scale, inverse, minimum;
    float base;
    struct int4_moments *moments; /* or NULL */
};

/* Texts, not functions: those would be compiled for the plainest processor before they are put into
 * their callers. */
#define all(value)   ((float)(value) - (lanes){0})
#define lanes_at(at) (*(const lanes *)(at))

/* b where the mask is set, else a. */
#define choose(mask, a, b) ((lanes)(((mask) & (lanes_i)(b)) | (~(mask) & (lanes_i)(a))))

/* ---- Once for each instruction set --------------------------------------------------------- */

#define LANES_CODE
#define LANES_NAME(name) name##_plain
#define LANES_MIN(a, b)  choose((a) < (b), b, a)
#define LANES_MAX(a, b)  choose((a) > (b), b, a)
#include "quant/int4_lanes.h"

#if defined(__x86_64__)

#define HALVES(operation, a, b)                                                                    \
    ({                                                                                             \
        union halves a_ = {.whole = (a)}, b_ = {.whole = (b)};                                     \
        a_.half[0] = operation(a_.half[0], b_.half[0]);                                            \
        a_.half[1] = operation(a_.half[1], b_.half[1]);                                            \
        a_.whole;                                                                                  \
    })

union halves {
    lanes whole;
    __m256 half[2];
};

#define LANES_CODE       __attribute__((target("avx2")))
#define LANES_NAME(name) name##_avx2
#define LANES_MIN(a, b)  HALVES(_mm256_min_ps, a, b)
#define LANES_MAX(a, b)  HALVES(_mm256_max_ps, a, b)
#include "quant/int4_lanes.h"

#define LANES_CODE       __attribute__((target("avx512f")))
#define LANES_NAME(name) name##_avx512
#define LANES_MIN(a, b)  ((lanes)_mm512_min_ps((__m512)(a), (__m512)(b)))
#define LANES_MAX(a, b)  ((lanes)_mm512_max_ps((__m512)(a), (__m512)(b)))
#include "quant/int4_lanes.h"

#endif

struct lanes_set {
    bool (*extend)(struct extent *out, const struct int4_groups *groups);
    void (*ranges)(struct range *out, const struct extent *extent, const float *places,
                   bool is_asymmetric);
    void (*weigh)(struct gain *out, const struct range *ranges, const struct int4_groups *groups,
                  bool is_asymmetric);
    void (*search)(struct int4_scales *out, const struct extent *extent,
                   const struct int4_groups *groups, const struct places *places,
                   bool is_asymmetric);
    void (*round)(uint8_t *nibbles, const struct rounding *with, const struct int4_groups *groups);
};

static const struct lanes_set sets[] = {
    {extend_plain, ranges_plain, weigh_plain, search_plain, round_plain},
#if defined(__x86_64__)
    {extend_avx2, ranges_avx2, weigh_avx2, search_avx2, round_avx2},
    {extend_avx512, ranges_avx512, weigh_avx512, search_avx512, round_avx512},
#endif
};

static const struct lanes_set *best_set(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        return &sets[2];
    if (__builtin_cpu_supports("avx2"))
        return &sets[1];
#endif
    return &sets[0];
}

/* ---- One scale for each group -------------------------------------------------------------- */

/* By these 4 the cosine of normal and of long-tailed weights is that of 16, to 0.0001, and above
 * that of 12 in each sign between 6.4 and 8.6. The first is the plain one, by the largest
 * magnitude: no group ends worse than by that. */
static const float even_places[] = {7.0f, 7.7f, 8.4f, 9.2f};
static const float even_places_wide[] = {7.0f,  7.7f,  8.3f,  8.9f,  9.5f,  10.2f, 10.9f, 11.7f,
                                         12.5f, 13.4f, 14.4f, 15.5f, 17.0f, 19.0f, 22.0f, 26.0f};
static const float uneven_places[] = {0.97f, 0.92f, 0.87f, 0.81f};
static const float uneven_places_wide[] = {1.0f,  0.95f, 0.9f,  0.85f, 0.8f,  0.76f, 0.72f, 0.68f,
                                           0.64f, 0.6f,  0.56f, 0.52f, 0.48f, 0.44f, 0.4f,  0.35f};

#define PLACES(array) ((struct places){array, sizeof array / sizeof *array})

static struct places places_for(double value_count, bool is_asymmetric)
{
    if (value_count <= SMALL_GROUP)
        return is_asymmetric ? PLACES(uneven_places) : PLACES(even_places);
    return is_asymmetric ? PLACES(uneven_places_wide) : PLACES(even_places_wide);
}

bool int4_search(struct int4_scales *out, const struct int4_groups *groups, bool is_asymmetric)
{
    struct extent extent;
    struct places places = places_for((double)groups->count, is_asymmetric);
    const struct lanes_set *set = best_set();
    if (!set->extend(&extent, groups))
        return false;
    set->search(out, &extent, groups, &places, is_asymmetric);
    return true;
}

/* ---- One scale for all groups -------------------------------------------------------------- */

static double lanes_sum(lanes values)
{
    double sum = 0;
    for (int i = 0; i < INT4_LANES; i++)
        sum += (double)values[i];
    return sum;
}

bool int4_common_extend(struct int4_common *common, const struct int4_groups *groups)
{
    struct extent extent;
    if (!best_set()->extend(&extent, groups))
        return false;
    if (common->count == 0)
        common->least = common->most = extent.least[0];
    for (int i = 0; i < INT4_LANES; i++) {
        common->least = extent.least[i] < common->least ? extent.least[i] : common->least;
        common->most = extent.most[i] > common->most ? extent.most[i] : common->most;
    }
    common->weights += lanes_sum(extent.sum);
    common->count += (double)groups->count * INT4_LANES;
    return true;
}

/* The ranges from place `first` on. */
static void common_ranges(struct range *out, const struct int4_common *common, int first)
{
    struct places places = places_for(common->count, common->is_asymmetric);
    const struct extent extent = {.least = all(common->least), .most = all(common->most)};
    best_set()->ranges(out, &extent, places.at + first, common->is_asymmetric);
}

void int4_common_weigh(struct int4_common *common, const struct int4_groups *groups)
{
    struct range ranges[PLACES_AT_ONCE];
    struct gain gains[PLACES_AT_ONCE];
    struct places places = places_for(common->count, common->is_asymmetric);
    for (int first = 0; first < places.count; first += PLACES_AT_ONCE) {
        common_ranges(ranges, common, first);
        best_set()->weigh(gains, ranges, groups, common->is_asymmetric);
        for (int i = 0; i < PLACES_AT_ONCE; i++) {
            common->products[first + i] += lanes_sum(gains[i].products);
            common->nibbles[first + i] += lanes_sum(gains[i].nibbles);
            common->squares[first + i] += lanes_sum(gains[i].squares);
        }
    }
}

void int4_common_find(struct int4_scales *out, const struct int4_common *common)
{
    struct range ranges[PLACES_AT_ONCE];
    struct places places = places_for(common->count, common->is_asymmetric);
    double mean = common->count > 0 ? common->weights / common->count : 0;
    double best = 0, scale = 0, nibble_mean = 0;
    for (int place = 0; place < places.count; place++) {
        double products = common->products[place], squares = common->squares[place];
        double nibbles = common->nibbles[place];
        if (common->is_asymmetric) {
            common_ranges(ranges, common, place - place % PLACES_AT_ONCE);
            products -= (mean - (double)ranges[place % PLACES_AT_ONCE].least[0]) * nibbles;
            squares -= nibbles * nibbles / common->count;
        }
        if (squares > 0 && products * (products / squares) > best) {
            best = products * (products / squares);
            scale = products / squares;
            nibble_mean = nibbles / common->count;
        }
    }
    scale = (double)bf16_to_f32(bf16_from_f32((float)scale));
    double minimum = common->is_asymmetric ? mean - scale * nibble_mean : 0;
    for (int i = 0; i < INT4_LANES; i++) {
        out->scale[i] = (float)scale;
        out->minimum[i] = bf16_to_f32(bf16_from_f32((float)minimum));
    }
}

/* ---- Rounding ------------------------------------------------------------------------------ */

void int4_round(uint8_t *nibbles, const struct int4_groups *groups,
                const struct int4_scales *scales, bool is_asymmetric, struct int4_moments *moments)
{
    lanes scale = lanes_at(scales->scale);
    const struct rounding with = {
        .scale = scale,
        .inverse = choose(scale != all(0), all(0), 1.0f / scale),
        .minimum = lanes_at(scales->minimum),
        .base = is_asymmetric ? 0 : 8,
        .moments = moments,
    };
    best_set()->round(nibbles, &with, groups);
}
