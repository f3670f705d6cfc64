#include <criterion/criterion.h>

#include "base/memory.h"
#include "model_runner.h"

#define PAGES 50

static const struct model_config config = {
    .layer_count = 3, .head_count = 4, .kv_head_count = 4, .head_dim = 24};

static struct layout layout_of(const char *plan, int rank_count)
{
    struct layout layout;
    struct error err;
    cr_assert_eq(layout_parse(&layout, plan, rank_count, &err), STATUS_OK, "%s", err.message);
    return layout;
}

static struct box *box_of(int rank_count)
{
    struct box *box;
    struct error err;
    cr_assert_eq(box_open(&box, &(struct box_params){.rank_count = rank_count}, &err), STATUS_OK);
    for (int rank = 0; rank < rank_count; rank++)
        test_device_warm(box_device(box, rank));
    return box;
}

static struct kv_cache_params params_of(struct box *box, const struct layout *layout,
                                        enum dtype dtype)
{
    return (struct kv_cache_params){
        .box = box, .config = &config, .layout = layout, .dtype = dtype, .page_count = PAGES};
}

Test(kv_cache, sizes)
{
    static const int64_t counts[][2] = {{0, 0}, {1, 1}, {63, 1}, {64, 1}, {65, 2}, {6400, 100}};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        cr_assert_eq(kv_pages_for(counts[i][0]), counts[i][1]);
    struct layout whole = layout_of("tp1|tp1", 1), cut = layout_of("tp2dp2|ep4", 4);
    /* keys and values x layers x kv heads x 24 rounded up to 32 x tokens x bytes */
    cr_assert_eq(kv_page_bytes(&config, &whole, DTYPE_F32), 2 * 3 * 4 * 32 * 64 * 4);
    cr_assert_eq(kv_page_bytes(&config, &whole, DTYPE_BF16), 2 * 3 * 4 * 32 * 64 * 2);
    cr_assert_eq(kv_page_bytes(&config, &cut, DTYPE_BF16), 2 * 3 * 2 * 32 * 64 * 2);
}

Test(kv_cache, each_rank_holds_its_heads_and_the_bytes_that_it_says)
{
    struct layout layout = layout_of("tp2dp2|tp4", 4);
    struct box *box = box_of(4);
    struct kv_cache_params params = params_of(box, &layout, DTYPE_BF16);
    struct kv_cache cache;
    struct error err;
    cr_assert_eq(kv_cache_init(&cache, &params, &err), STATUS_OK);
    for (int rank = 0; rank < 4; rank++) {
        const struct device *device = box_device(box, rank);
        cr_assert_eq(device->ops->memory_use(device).bytes,
                     PAGES * kv_page_bytes(&config, &layout, DTYPE_BF16));
        for (int64_t l = 0; l < 3; l++) {
            struct kv_layer layer = kv_cache_layer(&cache, rank, l);
            cr_assert_eq(layer.dtype, DTYPE_BF16);
            cr_assert_eq(layer.head_dim, 24);
            cr_assert_eq(layer.kv_head_count, 2);
            for (int other = 0; other < rank * 3 + l; other++)
                cr_assert_neq(kv_cache_layer(&cache, other / 3, other % 3).keys, layer.keys);
        }
    }
    kv_cache_deinit(&cache);
    for (int rank = 0; rank < 4; rank++)
        cr_assert_eq(box_device(box, rank)->ops->memory_use(box_device(box, rank)).bytes, 0);
    box_close(box);
}

Test(kv_cache, every_failed_allocation_leaves_nothing)
{
    struct layout layout = layout_of("dp2|ep2", 2);
    struct box *box = box_of(2);
    struct kv_cache_params params = params_of(box, &layout, DTYPE_F32);
    struct kv_cache cache = {0};
    struct error err;
    uint64_t live = memory_counters_get().live_count;
    for (uint64_t n = 1;; n++) {
        memory_fail_at(n, 0);
        enum status status = kv_cache_init(&cache, &params, &err);
        memory_fail_at(0, 0);
        if (status == STATUS_OK) {
            cr_assert_geq(n, 1 + 2 * 3 * 2 + 1);
            break;
        }
        cr_assert_eq(status, STATUS_NO_MEMORY);
        cr_assert_null(cache.layers);
        cr_assert_eq(memory_counters_get().live_count, live, "allocation %llu",
                     (unsigned long long)n);
    }
    kv_cache_deinit(&cache);
    box_close(box);
}
