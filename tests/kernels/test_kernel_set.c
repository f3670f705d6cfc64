/* Which kernels are chosen, and what the vector helpers promise where no other test would see it.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/random.h"
#include "kernel_sets.h"

static const struct cpu_share share = {.thread_count = 1, .first_cpu = -1};

Test(kernel_set, names_answer_to_names)
{
    cr_assert_not_null(cpu_kernels_choose("plain"));
    cr_assert_null(cpu_kernels_choose("sse9"));
    cr_assert_null(cpu_kernels_choose(""));
    cr_assert_null(cpu_kernels_choose("avx512_pairs"));
    for (int i = 0; i < SET_COUNT; i++) {
        const struct cpu_kernels *set = set_find(set_names[i]);
        char expected[32];
        snprintf(expected, sizeof expected, "cpu (%s)", set_names[i]);
        if (set == NULL)
            continue;
        cr_assert_str_eq(set->name, expected);
        cr_assert_eq(set->takes_pairs, i >= 4, "%s", set->name);
    }
}

/* A device of that set; NULL where the machine has it not. */
static struct device *device_of(int set)
{
    struct device *device;
    struct error err;
    if (set_find(set_names[set]) == NULL)
        return NULL;
    cr_assert_eq(device_cpu_create_with(&device, &share, set_find(set_names[set]), &err),
                 STATUS_OK);
    return device;
}

Test(kernel_set, the_best_is_the_default)
{
    const struct cpu_kernels *best = cpu_kernels_choose("plain");
    if (cpu_kernels_choose("avx2") != NULL)
        best = cpu_kernels_choose("avx2");
    if (cpu_kernels_choose("avx512") != NULL)
        best = cpu_kernels_choose("avx512");
    if (cpu_kernels_choose("avx512vnni") != NULL)
        best = cpu_kernels_choose("avx512vnni");
    if (cpu_kernels_choose("avx512bf16") != NULL)
        best = cpu_kernels_choose("avx512bf16");
    cr_assert_eq(cpu_kernels_choose(NULL), best);
    struct device *device;
    struct error err;
    cr_assert_eq(device_cpu_create(&device, &share, &err), STATUS_OK);
    cr_assert_str_eq(device->ops->name, best->name);
    device_destroy(device);
    device_destroy(NULL);
}

/* silu(gate) x 1 through ffn_up with a 1 x 1 gate: the exponential over its whole range. */
static float silu_of(struct device *device, float x)
{
    _Alignas(64) static float gate[256], up[256], in[16], out[16];
    memset(gate, 0, sizeof gate);
    memset(up, 0, sizeof up);
    memset(in, 0, sizeof in);
    gate[0] = x;
    up[0] = in[0] = 1;
    struct matrix shape = {.dtype = DTYPE_F32, .packing = PACK_OUTPUT, .rows = 1, .columns = 1};
    struct ffn_weights weights = {.gate = shape, .up = shape};
    weights.gate.data = gate;
    weights.up.data = up;
    int32_t offsets[2] = {0, 1};
    device->ops->ffn_up(device->stream, &(struct op_ffn_up){.out = out,
                                                            .in = in,
                                                            .groups = &weights,
                                                            .offsets = offsets,
                                                            .group_count = 1,
                                                            .out_stride = 16,
                                                            .in_stride = 16});
    struct error err;
    cr_assert_eq(device->ops->synchronize(device->stream, &err), STATUS_OK);
    return out[0];
}

Test(kernel_set, silu_over_its_whole_range)
{
    for (int i = 0; i < SET_COUNT; i++) {
        struct device *device = device_of(i);
        if (device == NULL)
            continue;
        for (double x = -86; x <= 86; x += 0.0078125 * 1.37) {
            double rounded = (double)(float)x, exact = rounded / (1 + exp(-rounded));
            double found = (double)silu_of(device, (float)x);
            /* 2^-22 of the exponential, and three roundings. */
            cr_assert(fabs(found - exact) <= fabs(exact) * (0x1p-22 + 3 * 0x1p-24),
                      "%s: silu(%.9g) is %.9g instead of %.9g", set_names[i], rounded, found,
                      exact);
        }
        /* Beyond the range: no overflow, no NaN, and the limit. */
        cr_assert_eq(silu_of(device, 1e30f), 1e30f);
        cr_assert_eq(silu_of(device, 0), 0);
        cr_assert(fabsf(silu_of(device, -1e3f)) < 1e-30f);
        cr_assert(isnan(silu_of(device, NAN)));
        device_destroy(device);
    }
}

/* `x` among zeros at one of 17 places, times weights of 1: what it is rounded to. */
static float rounded_by(struct device *device, float x, int place)
{
    enum { COLUMNS = 17, PADDED = 32 };
    _Alignas(64) static uint16_t weights[PADDED * PACK_BLOCK];
    float in[PADDED] = {0}, out[PACK_BLOCK];
    struct matrix ones = {weights, DTYPE_BF16, PACK_OUTPUT, 1, COLUMNS, NULL, NULL, 0};
    for (int c = 0; c < COLUMNS; c++)
        weights[packed_index(PACK_OUTPUT, DTYPE_BF16, 1, COLUMNS, 0, c)] = bf16_from_f32(1);
    in[place] = x;
    device->ops->matmul(device->stream, &(struct op_matmul){.out = out,
                                                            .in = in,
                                                            .weight = ones,
                                                            .row_count = 1,
                                                            .out_stride = PACK_BLOCK,
                                                            .in_stride = PADDED});
    struct error err;
    cr_assert_eq(device->ops->synchronize(device->stream, &err), STATUS_OK);
    return out[0];
}

static void check_rounding(struct device *device, bool rounds, uint32_t bits, const char *set)
{
    static const int places[] = {0, 5, 16}; /* of a full block, of a pair, of the last block */
    float x = f32_from_bits(bits), expected = rounds ? bf16_to_f32(bf16_from_f32(x)) : x;
    for (int i = 0; i < 3; i++) {
        float found = rounded_by(device, x, places[i]);
        cr_assert(found == expected || (isnan(found) && isnan(expected)),
                  "%s: %.9g (%08x) became %.9g", set, (double)x, bits, (double)found);
    }
}

/* Inputs beside bf16 weights, where random data does not come: ties, what overflows, infinity, NaNs
 * whose upper half is infinity's. Denormals are left out: the instruction takes them for zero. */
Test(kernel_set, inputs_of_pairs_are_rounded_to_the_nearest_even)
{
    static const uint32_t ends[] = {0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x3FFFFFFF,
                                    0x7F7F7FFF, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FFFFFFF,
                                    0x00800000, 0x00808000, 0x00000000};
    for (int i = 0; i < SET_COUNT; i++) {
        const struct cpu_kernels *set = set_find(set_names[i]);
        struct random random = {.seed = 7};
        struct device *device = device_of(i);
        if (device == NULL)
            continue;
        for (size_t e = 0; e < sizeof ends / sizeof *ends; e++) {
            check_rounding(device, set->takes_pairs, ends[e], set->name);
            check_rounding(device, set->takes_pairs, ends[e] | 0x80000000u, set->name);
        }
        for (int n = 0; n < 2000; n++) {
            uint32_t bits = (uint32_t)random_next(&random);
            if ((bits & 0x7F800000u) != 0)
                check_rounding(device, set->takes_pairs, bits, set->name);
        }
        device_destroy(device);
    }
}

/* `x` beside 63 zeros, times int4 weights of `scale` that lie as `packing` says. */
static float fixed_by(struct device *device, float x, int place, enum packing packing,
                      uint16_t scale)
{
    enum { COLUMNS = 64 };
    _Alignas(64) static uint8_t nibbles[PACK_BLOCK * COLUMNS / 2];
    uint16_t scales[COLUMNS]; /* by output 16 of one group, by input one for each input */
    float in[COLUMNS] = {0}, out[PACK_BLOCK];
    memset(nibbles, 0x99, sizeof nibbles);
    for (int i = 0; i < COLUMNS; i++)
        scales[i] = scale;
    in[place] = x;
    device->ops->matmul(device->stream,
                        &(struct op_matmul){.out = out,
                                            .in = in,
                                            .weight = {nibbles, DTYPE_INT4, packing, PACK_BLOCK,
                                                       COLUMNS, scales, NULL, COLUMNS},
                                            .row_count = 1,
                                            .out_stride = PACK_BLOCK,
                                            .in_stride = COLUMNS});
    struct error err;
    cr_assert_eq(device->ops->synchronize(device->stream, &err), STATUS_OK);
    return out[0];
}

/* Inputs beside int4 weights, where random data does not come: to 14 significant bits, to nearest
 * even; the smallest to a multiple of 2^-113; what is no number, or as large as none should be, is
 * seen. */
Test(kernel_set, inputs_of_int4_are_rounded_to_fixed_point)
{
    static const float values[] = {
        0,        1,           0x1p14f - 1, 0x1p14f + 1,   0x1p14f + 3, 16386.5f,  3.14159f,
        0x1p-99f, 0x1.8p-110f, 0x1p-113f,   0x1p-114f,     0x3p-114f,   0x1p-140f, 0x1.fffffep125f,
        0x1p126f, INFINITY,    NAN,         0x1.fffffep-1f};
    for (int i = 0; i < SET_COUNT; i++) {
        struct device *device = device_of(i);
        if (device == NULL)
            continue;
        for (size_t v = 0; v < 2 * sizeof values / sizeof *values; v++) {
            float x = v % 2 == 0 ? values[v / 2] : -values[v / 2], expected = NAN;
            if (fabsf(x) < 0x1p126f) {
                int exponent = x == 0 ? -100 : ilogbf(x) > -100 ? ilogbf(x) : -100;
                expected = (float)ldexp(rint(ldexp((double)x, 13 - exponent)), exponent - 13);
            }
            for (int place = 0; place < 64; place += 21) {
                float found = fixed_by(device, x, place, PACK_OUTPUT, bf16_from_f32(1));
                cr_assert(found == expected || (isnan(found) && isnan(expected)),
                          "%s: %a at %d became %a", set_names[i], (double)x, place, (double)found);
            }
        }
        device_destroy(device);
    }
}

/* By input the product with the scale is what is rounded. It may come to 2^15 - 2^7 units, which is
 * one more than two bytes with signs hold. */
Test(kernel_set, inputs_of_int4_by_input_end_where_bytes_do)
{
    static const float values[] = {0x1.fffffep0f, 0x1.ffff00p0f, 0x1.fffefep0f, 0x1.ffp0f,
                                   0x1.fe02p0f,   0x1p0f,        0x1.01p0f,     0x1.8p-3f};
    const uint16_t scale = 0x3FFF; /* the largest below 2 */
    for (int i = 0; i < SET_COUNT; i++) {
        struct device *device = device_of(i);
        if (device == NULL)
            continue;
        for (size_t v = 0; v < 2 * sizeof values / sizeof *values; v++) {
            float x = v % 2 == 0 ? values[v / 2] : -values[v / 2], factor = x * bf16_to_f32(scale);
            double unit = ldexp(1, ilogbf(x) - 13);
            double expected = fmin(rint((double)factor / unit), 32639) * unit;
            for (int place = 0; place < 64; place += 21) {
                float found = fixed_by(device, x, place, PACK_INPUT, scale);
                cr_assert(found == (float)expected, "%s: %a at %d became %a instead of %a",
                          set_names[i], (double)x, place, (double)found, expected);
            }
        }
        device_destroy(device);
    }
}

/* A damaged checkpoint makes logits that are no numbers. Whatever they are, a token's experts are
 * distinct, and its weights show the damage. */
Test(kernel_set, route_never_picks_an_expert_twice)
{
    enum { EXPERTS = 12, STRIDE = 16, TOP_K = 12, ROWS = 6 };
    const float rows[ROWS][3] = {{NAN, NAN, NAN},           {1, NAN, 2},
                                 {INFINITY, 1, 0},          {-INFINITY, -INFINITY, -INFINITY},
                                 {INFINITY, INFINITY, NAN}, {0, 0, 0}};
    for (int set = 0; set < SET_COUNT; set++) {
        float logits[ROWS][STRIDE], weights[ROWS][TOP_K];
        int32_t ids[ROWS][TOP_K];
        struct device *device = device_of(set);
        struct error err;
        if (device == NULL)
            continue;
        for (int i = 0; i < ROWS * STRIDE; i++)
            logits[i / STRIDE][i % STRIDE] = rows[i / STRIDE][i % 3];
        device->ops->route(device->stream, &(struct op_route){
                                               .ids = ids[0],
                                               .weights = weights[0],
                                               .logits = logits[0],
                                               .token_count = ROWS,
                                               .expert_count = EXPERTS,
                                               .top_k = TOP_K,
                                               .choice_stride = TOP_K,
                                               .logit_stride = STRIDE,
                                           });
        cr_assert_eq(device->ops->synchronize(device->stream, &err), STATUS_OK);
        for (int row = 0; row < ROWS; row++) {
            for (int c = 0; c < TOP_K; c++) {
                cr_assert(ids[row][c] >= 0 && ids[row][c] < EXPERTS);
                for (int before = 0; before < c; before++)
                    cr_assert_neq(ids[row][c], ids[row][before], "row %d", row);
                cr_assert_eq(isnan(weights[row][c]), row < ROWS - 1, "row %d", row);
            }
        }
        device_destroy(device);
    }
}
