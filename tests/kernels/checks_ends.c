#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "checks.h"
#include "workload_memory.h"

/* `x` beside 127 zeros, times int4 weights of `scale` that lie as `packing` says. */
static float fixed_by(struct device *device, float x, int place, enum packing packing,
                      uint16_t scale)
{
    enum { COLUMNS = 128 };
    struct {
        _Alignas(64) uint8_t nibbles[PACK_BLOCK * COLUMNS / 2];
        uint16_t scales[COLUMNS]; /* by output 16 of one group, by input one for each input */
        float in[COLUMNS], out[PACK_BLOCK];
    } *data = workload_memory_get(sizeof *data);
    memset(data->nibbles, 0x99, sizeof data->nibbles);
    for (int i = 0; i < COLUMNS; i++)
        data->scales[i] = scale;
    data->in[place] = x;
    device->ops->matmul(device->stream, &(struct op_matmul){.out = data->out,
                                                            .in = data->in,
                                                            .weight = {data->nibbles, DTYPE_INT4,
                                                                       packing, PACK_BLOCK, COLUMNS,
                                                                       data->scales, NULL, COLUMNS},
                                                            .row_count = 1,
                                                            .out_stride = PACK_BLOCK,
                                                            .in_stride = COLUMNS});
    struct error err;
    cr_assert_eq(device->ops->synchronize(device->stream, &err), STATUS_OK);
    float found = data->out[0];
    workload_memory_free(data);
    return found;
}

void check_fixed_point(struct device *device, const char *name)
{
    static const float values[] = {
        0,        1,           0x1p14f - 1, 0x1p14f + 1,   0x1p14f + 3, 16386.5f,  3.14159f,
        0x1p-99f, 0x1.8p-110f, 0x1p-113f,   0x1p-114f,     0x3p-114f,   0x1p-140f, 0x1.fffffep125f,
        0x1p126f, INFINITY,    NAN,         0x1.fffffep-1f};
    for (size_t v = 0; v < 2 * sizeof values / sizeof *values; v++) {
        float x = v % 2 == 0 ? values[v / 2] : -values[v / 2], expected = NAN;
        if (fabsf(x) < 0x1p126f) {
            int exponent = x == 0 ? -100 : ilogbf(x) > -100 ? ilogbf(x) : -100;
            expected = (float)ldexp(rint(ldexp((double)x, 13 - exponent)), exponent - 13);
        }
        for (int place = 0; place < 128; place += 21) {
            float found = fixed_by(device, x, place, PACK_OUTPUT, bf16_from_f32(1));
            cr_assert(found == expected || (isnan(found) && isnan(expected)),
                      "%s: %a at %d became %a", name, (double)x, place, (double)found);
        }
    }
}

void check_fixed_point_ends(struct device *device, const char *name)
{
    static const float values[] = {0x1.fffffep0f, 0x1.ffff00p0f, 0x1.fffefep0f, 0x1.ffp0f,
                                   0x1.fe02p0f,   0x1p0f,        0x1.01p0f,     0x1.8p-3f};
    const uint16_t scale = 0x3FFF; /* the largest below 2 */
    for (size_t v = 0; v < 2 * sizeof values / sizeof *values; v++) {
        float x = v % 2 == 0 ? values[v / 2] : -values[v / 2], factor = x * bf16_to_f32(scale);
        double unit = ldexp(1, ilogbf(factor) - 13);
        double expected = rint((double)factor / unit) * unit;
        for (int place = 0; place < 128; place += 21) {
            float found = fixed_by(device, x, place, PACK_INPUT, scale);
            cr_assert(found == (float)expected, "%s: %a at %d became %a instead of %a", name,
                      (double)x, place, (double)found, expected);
        }
    }
}

#define ANY_COLUMNS 1632 /* of four parts, the last a short one */
#define ANY_PART    512
#define ANY_ROWS    70

struct any_size {
    _Alignas(64) uint16_t weights[PACK_BLOCK * ANY_COLUMNS];
    float in[ANY_ROWS][ANY_COLUMNS], out[ANY_ROWS][PACK_BLOCK];
};

static void any_size_run(struct any_size *data, struct device *device, int64_t row_count)
{
    struct error err;
    device->ops->matmul(device->stream,
                        &(struct op_matmul){.out = data->out[0],
                                            .in = data->in[0],
                                            .weight = {data->weights, DTYPE_BF16, PACK_OUTPUT,
                                                       PACK_BLOCK, ANY_COLUMNS, NULL, NULL, 0},
                                            .row_count = row_count,
                                            .out_stride = PACK_BLOCK,
                                            .in_stride = ANY_COLUMNS});
    cr_assert_eq(device->ops->synchronize(device->stream, &err), STATUS_OK, "%s", err.message);
}

static uint16_t *any_weight(struct any_size *data, int n, int k)
{
    return &data->weights[packed_index(PACK_OUTPUT, DTYPE_BF16, PACK_BLOCK, ANY_COLUMNS, n, k)];
}

/* Row r of `data` is of this kind, and each part of another size, of each row in another order. */
static float any_input(int r, int k)
{
    static const float sizes[] = {1e6f, 1e-8f, 0, 1e35f, 1e-28f, 1, 1, 1};
    static const float part_sizes[] = {1, 0x1p-9f, 0x1p-4f, 0x1p-13f, 0x1p-6f};
    float value =
        sizes[r % 8] * part_sizes[(k / ANY_PART + r) % 5] * (float)((7 * k + 3 * r) % 31 - 15);
    if (r % 8 == 5 && k == 11)
        return 1e6f;
    if (r % 8 == 6 && k == 601)
        return INFINITY;
    return r % 8 == 7 && k == 300 ? NAN : value;
}

/* An input is off by up to 2^-8 of itself as bf16, as fp16 by 2^-11, or by 2^-38 of the largest of
 * its part. */
static void check_any_row(struct any_size *data, int r, bool takes_halves, const char *name)
{
    double mosts[(ANY_COLUMNS + ANY_PART - 1) / ANY_PART] = {0};
    for (int k = 0; k < ANY_COLUMNS; k++)
        mosts[k / ANY_PART] = fmax(mosts[k / ANY_PART], fabs((double)data->in[r][k]));
    for (int n = 0; n < PACK_BLOCK; n++) {
        double sum = 0, bound = 0;
        for (int k = 0; k < ANY_COLUMNS; k++) {
            double weight = bf16_to_f32(*any_weight(data, n, k)), term = weight * data->in[r][k];
            sum += term;
            bound += fabs(term) * (takes_halves ? 0x1p-11 : 0x1p-8);
            bound += takes_halves ? fabs(weight) * mosts[k / ANY_PART] * 0x1p-38 : 0;
            bound += fabs(term) * (4 * sqrt(ANY_COLUMNS) + 8) * 0x1p-24; /* as in reference.h */
        }
        double found = data->out[r][n];
        cr_assert(r % 8 >= 6 ? !isfinite(found) : fabs(found - sum) <= bound,
                  "%s: row %d, output %d is %g instead of %g (bound %.2g)", name, r, n, found, sum,
                  bound);
    }
}

void check_rows_of_any_size(struct device *device, bool takes_halves, const char *name)
{
    static const int64_t counts[] = {8, 16, 32, ANY_ROWS};
    static float before[ANY_ROWS][PACK_BLOCK];
    struct any_size *data = workload_memory_get(sizeof *data);
    for (int k = 0; k < ANY_COLUMNS; k++) {
        for (int n = 0; n < PACK_BLOCK; n++)
            *any_weight(data, n, k) = bf16_from_f32((float)((5 * k + 11 * n) % 41 - 20) / 64);
        for (int r = 0; r < ANY_ROWS; r++)
            data->in[r][k] = any_input(r, k);
    }
    for (int i = 0; i < 4; i++) {
        for (int r = 0; r < ANY_ROWS; r++) {
            for (int n = 0; n < PACK_BLOCK; n++)
                data->out[r][n] = -777;
        }
        any_size_run(data, device, counts[i]);
        for (int r = 0; r < counts[i]; r++) {
            check_any_row(data, r, takes_halves, name);
            if (i > 0 && r < counts[i - 1] && r % 8 < 6)
                cr_assert_eq(memcmp(data->out[r], before[r], sizeof before[r]), 0,
                             "%s: row %d has other bits beside %d rows than beside %d", name, r,
                             (int)counts[i], (int)counts[i - 1]);
        }
        memcpy(before, data->out, sizeof before);
    }
    workload_memory_free(data);
}

void check_weights_of_any_size(struct device *device, bool takes_halves, const char *name)
{
    static const float weights[] = {0,        0x1.fep15f,  0x1p16f,  -0x1p16f,
                                    1e30f,    -1e30f,      INFINITY, NAN,
                                    0x1p-14f, 0x1.02p-16f, 0x1p-24f, 0x1p-26f};
    static const float halves[] = {0,        0x1.fep15f, 65504,    -65504,      65504,    -65504,
                                   INFINITY, NAN,        0x1p-14f, 0x1.02p-16f, 0x1p-24f, 0};
    enum { COUNT = sizeof weights / sizeof *weights };
    struct any_size *data = workload_memory_get(sizeof *data);
    data->in[0][601] = 1;
    for (int n = 0; n < COUNT; n++)
        *any_weight(data, n, 601) = bf16_from_f32(weights[n]);
    any_size_run(data, device, 1);
    for (int n = 0; n < COUNT; n++) {
        float weight = bf16_to_f32(*any_weight(data, n, 601)), found = data->out[0][n];
        float expected = takes_halves ? halves[n] : weight;
        cr_assert(found == expected || (isnan(found) && isnan(expected)), "%s: %a became %a", name,
                  (double)weight, (double)found);
    }
    workload_memory_free(data);
}

void check_damaged_logits(struct device *device, const char *name)
{
    enum { EXPERTS = 12, STRIDE = 16, TOP_K = 12, ROWS = 6 };
    const float rows[ROWS][3] = {{NAN, NAN, NAN},           {1, NAN, 2},
                                 {INFINITY, 1, 0},          {-INFINITY, -INFINITY, -INFINITY},
                                 {INFINITY, INFINITY, NAN}, {0, 0, 0}};
    struct {
        float logits[ROWS][STRIDE], weights[ROWS][TOP_K];
        int32_t ids[ROWS][TOP_K];
    } *data = workload_memory_get(sizeof *data);
    struct error err;
    for (int i = 0; i < ROWS * STRIDE; i++)
        data->logits[i / STRIDE][i % STRIDE] = rows[i / STRIDE][i % 3];
    device->ops->route(device->stream, &(struct op_route){
                                           .ids = data->ids[0],
                                           .weights = data->weights[0],
                                           .logits = data->logits[0],
                                           .token_count = ROWS,
                                           .expert_count = EXPERTS,
                                           .top_k = TOP_K,
                                           .choice_stride = TOP_K,
                                           .logit_stride = STRIDE,
                                       });
    cr_assert_eq(device->ops->synchronize(device->stream, &err), STATUS_OK);
    for (int row = 0; row < ROWS; row++) {
        for (int c = 0; c < TOP_K; c++) {
            cr_assert(data->ids[row][c] >= 0 && data->ids[row][c] < EXPERTS);
            for (int before = 0; before < c; before++)
                cr_assert_neq(data->ids[row][c], data->ids[row][before], "%s: row %d", name, row);
            cr_assert_eq(isnan(data->weights[row][c]), row < ROWS - 1, "%s: row %d", name, row);
        }
    }
    workload_memory_free(data);
}
