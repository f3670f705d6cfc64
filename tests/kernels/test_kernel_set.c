/* Which kernels are chosen, and what the vector helpers promise where no other test would see it.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/random.h"
#include "checks.h"
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
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (cpu_kernels_choose("avx512bf16") != NULL && !__builtin_cpu_is("intel"))
        best = cpu_kernels_choose("avx512bf16");
    if (cpu_kernels_choose("amx") != NULL)
        best = cpu_kernels_choose("amx");
#endif
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

Test(kernel_set, inputs_of_int4_are_rounded_to_fixed_point)
{
    for (int i = 0; i < SET_COUNT; i++) {
        struct device *device = device_of(i);
        if (device == NULL)
            continue;
        check_fixed_point(device, set_names[i]);
        device_destroy(device);
    }
}

Test(kernel_set, inputs_of_int4_by_input_end_where_bytes_do)
{
    for (int i = 0; i < SET_COUNT; i++) {
        struct device *device = device_of(i);
        if (device == NULL)
            continue;
        check_fixed_point_ends(device, set_names[i]);
        device_destroy(device);
    }
}

Test(kernel_set, route_never_picks_an_expert_twice)
{
    for (int i = 0; i < SET_COUNT; i++) {
        struct device *device = device_of(i);
        if (device == NULL)
            continue;
        check_damaged_logits(device, set_names[i]);
        device_destroy(device);
    }
}

Test(kernel_set, of_a_name_that_is_none)
{
    struct device *device = NULL;
    struct error err;
    cr_assert_eq(device_cpu_create(
                     &device,
                     &(struct cpu_share){.thread_count = 1, .first_cpu = -1, .kernels = "sse9"},
                     &err),
                 STATUS_UNSUPPORTED);
    cr_assert_str_eq(err.message, "this machine or this build has no kernels \"sse9\"");
    cr_assert_null(device);
}
