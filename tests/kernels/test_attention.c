/* Softmax at the ends of its range, where random data does not come: the running maximum rises by
 * thousands from page to page, and every exponential but one vanishes. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "base/numeric.h"
#include "kernel_sets.h"

#define DIM    16
#define TOKENS 200
#define PAGES  ((TOKENS + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS)

static const struct cpu_share share = {.thread_count = 1, .first_cpu = -1};
static float keys[PAGES * DIM * KV_PAGE_TOKENS], values[PAGES * DIM * KV_PAGE_TOKENS];
static uint16_t key_halves[PAGES * DIM * KV_PAGE_TOKENS],
    value_halves[PAGES * DIM * KV_PAGE_TOKENS];

/* The cache with what was put in `keys` and `values`. */
static struct kv_layer kv_of(enum dtype dtype)
{
    if (dtype == DTYPE_F32)
        return (struct kv_layer){keys, values, DTYPE_F32, 1, DIM};
    for (int i = 0; i < PAGES * DIM * KV_PAGE_TOKENS; i++) {
        key_halves[i] = bf16_from_f32(keys[i]);
        value_halves[i] = bf16_from_f32(values[i]);
    }
    return (struct kv_layer){key_halves, value_halves, DTYPE_BF16, 1, DIM};
}

/* One query of the last position whose score against position p is scores[p]; value p is p in each
 * dimension. */
static float attend(struct device *device, enum dtype dtype, const float *scores)
{
    static const int32_t pages[PAGES] = {2, 0, 3, 1};
    static float out[DIM], qkv[3 * DIM];
    memset(keys, 0, sizeof keys);
    memset(values, 0, sizeof values);
    for (int p = 0; p < TOKENS; p++) {
        float *page_keys = keys + pages[p / KV_PAGE_TOKENS] * DIM * KV_PAGE_TOKENS;
        float *page_values = values + pages[p / KV_PAGE_TOKENS] * DIM * KV_PAGE_TOKENS;
        page_keys[3 * KV_PAGE_TOKENS + p % KV_PAGE_TOKENS] = scores[p];
        for (int d = 0; d < DIM; d++)
            page_values[p % KV_PAGE_TOKENS * DIM + d] = (float)p;
    }
    qkv[3] = 4; /* the root of DIM */
    struct segment segment = {.token_count = 1, .first_position = TOKENS - 1, .pages = pages};
    device->ops->attention(device->stream, &(struct op_attention){
                                               .out = out,
                                               .out_stride = DIM,
                                               .qkv = {.values = qkv,
                                                       .stride = 3 * DIM,
                                                       .k_offset = DIM,
                                                       .v_offset = 2 * DIM,
                                                       .head_count = 1,
                                                       .kv_head_count = 1,
                                                       .head_dim = DIM},
                                               .kv = kv_of(dtype),
                                               .segments = &segment,
                                               .segment_count = 1,
                                           });
    struct error err;
    cr_assert_eq(device->ops->synchronize(device->stream, &err), STATUS_OK);
    return out[DIM - 1];
}

static void check_set(const char *set, enum dtype dtype)
{
    struct device *device;
    struct error err;
    float scores[TOKENS];
    if (set_find(set) == NULL)
        return;
    cr_assert_eq(device_cpu_create_with(&device, &share, set_find(set), &err), STATUS_OK);
    for (int winner = 0; winner < TOKENS; winner += 33) {
        for (int p = 0; p < TOKENS; p++)
            scores[p] = p == winner ? 3e4f : -3e4f;
        cr_assert_eq(attend(device, dtype, scores), (float)winner, "%s: position %d", set, winner);
    }
    for (int p = 0; p < TOKENS; p++)
        scores[p] = (float)p * 1000; /* the maximum rises with each page */
    cr_assert_eq(attend(device, dtype, scores), TOKENS - 1, "%s", set);
    for (int p = 0; p < TOKENS; p++)
        scores[p] = -3e37f; /* all the same: the mean */
    cr_assert_float_eq(attend(device, dtype, scores), (TOKENS - 1) / 2.0f, 1e-3, "%s", set);
    device_destroy(device);
}

static void check_damage(const char *set, enum dtype dtype)
{
    static const float damages[] = {NAN, INFINITY};
    struct device *device;
    struct error err;
    float scores[TOKENS];
    if (set_find(set) == NULL)
        return;
    cr_assert_eq(device_cpu_create_with(&device, &share, set_find(set), &err), STATUS_OK);
    for (int at = 0; at < TOKENS; at++) {
        for (int i = 0; i < 2; i++) {
            for (int p = 0; p < TOKENS; p++)
                scores[p] = p == at ? damages[i] : 1;
            cr_assert(isnan(attend(device, dtype, scores)), "%s: %g at %d is passed over", set,
                      (double)damages[i], at);
        }
    }
    device_destroy(device);
}

Test(attention, a_damaged_key_is_not_passed_over)
{
    for (int i = 0; i < SET_COUNT; i++) {
        check_damage(set_names[i], DTYPE_F32);
        check_damage(set_names[i], DTYPE_BF16);
    }
}

Test(attention, scores_at_the_ends_of_the_range)
{
    for (int i = 0; i < SET_COUNT; i++) {
        check_set(set_names[i], DTYPE_F32);
        check_set(set_names[i], DTYPE_BF16);
    }
}
