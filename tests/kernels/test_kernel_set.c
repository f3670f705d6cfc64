/* Which kernels are chosen, and what the vector helpers promise where no other test would see it.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/cpu/kernels.h"

static const struct cpu_share share = {.thread_count = 1, .first_cpu = -1};

Test(kernel_set, names_answer_to_names)
{
    static const char *const names[] = {"plain", "avx2", "avx512"};
    cr_assert_not_null(cpu_kernels_choose("plain"));
    cr_assert_null(cpu_kernels_choose("sse9"));
    cr_assert_null(cpu_kernels_choose(""));
    for (int i = 0; i < 3; i++) {
        const struct cpu_kernels *set = cpu_kernels_choose(names[i]);
        char expected[32];
        snprintf(expected, sizeof expected, "cpu (%s)", names[i]);
        if (set != NULL)
            cr_assert_str_eq(set->name, expected);
    }
}

Test(kernel_set, the_best_is_the_default)
{
    const struct cpu_kernels *best = cpu_kernels_choose("plain");
    if (cpu_kernels_choose("avx2") != NULL)
        best = cpu_kernels_choose("avx2");
    if (cpu_kernels_choose("avx512") != NULL)
        best = cpu_kernels_choose("avx512");
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
    static const char *const names[] = {"plain", "avx2", "avx512"};
    for (int i = 0; i < 3; i++) {
        if (cpu_kernels_choose(names[i]) == NULL)
            continue;
        struct device *device;
        struct error err;
        cr_assert_eq(device_cpu_create_with(&device, &share, cpu_kernels_choose(names[i]), &err),
                     STATUS_OK);
        for (double x = -86; x <= 86; x += 0.0078125 * 1.37) {
            double rounded = (double)(float)x, exact = rounded / (1 + exp(-rounded));
            double found = (double)silu_of(device, (float)x);
            /* 2^-22 of the exponential, and three roundings. */
            cr_assert(fabs(found - exact) <= fabs(exact) * (0x1p-22 + 3 * 0x1p-24),
                      "%s: silu(%.9g) is %.9g instead of %.9g", names[i], rounded, found, exact);
        }
        /* Beyond the range: no overflow, no NaN, and the limit. */
        cr_assert_eq(silu_of(device, 1e30f), 1e30f);
        cr_assert_eq(silu_of(device, 0), 0);
        cr_assert(fabsf(silu_of(device, -1e3f)) < 1e-30f);
        cr_assert(isnan(silu_of(device, NAN)));
        device_destroy(device);
    }
}

/* A damaged checkpoint makes logits that are no numbers. Whatever they are, a token's experts are
 * distinct, and its weights show the damage. */
Test(kernel_set, route_never_picks_an_expert_twice)
{
    enum { EXPERTS = 16, TOP_K = 8, ROWS = 6 };
    static const char *const names[] = {"plain", "avx2", "avx512"};
    const float rows[ROWS][3] = {{NAN, NAN, NAN},           {1, NAN, 2},
                                 {INFINITY, 1, 0},          {-INFINITY, -INFINITY, -INFINITY},
                                 {INFINITY, INFINITY, NAN}, {0, 0, 0}};
    for (int set = 0; set < 3; set++) {
        struct cpu_share chosen = {.thread_count = 1, .first_cpu = -1, .kernels = names[set]};
        float logits[ROWS][EXPERTS], weights[ROWS][TOP_K];
        int32_t ids[ROWS][TOP_K];
        struct device *device;
        struct error err;
        if (device_cpu_create(&device, &chosen, &err) != STATUS_OK)
            continue;
        for (int i = 0; i < ROWS * EXPERTS; i++)
            logits[i / EXPERTS][i % EXPERTS] = rows[i / EXPERTS][i % 3];
        device->ops->route(device->stream, &(struct op_route){
                                               .ids = ids[0],
                                               .weights = weights[0],
                                               .logits = logits[0],
                                               .token_count = ROWS,
                                               .expert_count = EXPERTS,
                                               .top_k = TOP_K,
                                               .choice_stride = TOP_K,
                                               .logit_stride = EXPERTS,
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
