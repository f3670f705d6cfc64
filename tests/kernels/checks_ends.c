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
    device->ops->matmul(device->stream,
                        &(struct op_matmul){.out = data->out,
                                            .in = data->in,
                                            .weight = {data->nibbles, DTYPE_INT4, packing,
                                                       PACK_BLOCK, COLUMNS, data->scales, NULL,
                                                       COLUMNS},
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
