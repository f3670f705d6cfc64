#include <criterion/criterion.h>
#include <stdbool.h>

#include "base/memory.h"
#include "base/random.h"
#include "exec/kv_cache.h"

#define PAGES 50

static struct model_config config;

static struct device *device_open(void)
{
    struct device *device;
    struct error err;
    cr_assert_eq(device_cpu_create(&device, 1, &err), STATUS_OK);
    config.layer_count = 3;
    config.kv_head_count = 2;
    config.head_dim = 24;
    return device;
}

Test(kv_cache, sizes)
{
    static const int64_t counts[][2] = {{0, 0}, {1, 1}, {63, 1}, {64, 1}, {65, 2}, {6400, 100}};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        cr_assert_eq(kv_pages_for(counts[i][0]), counts[i][1]);
    config = (struct model_config){.layer_count = 3, .kv_head_count = 2, .head_dim = 24};
    /* keys and values x layers x kv heads x 24 rounded up to 32 x tokens x bytes */
    cr_assert_eq(kv_page_bytes(&config, DTYPE_F32), 2 * 3 * 2 * 32 * 64 * 4);
    cr_assert_eq(kv_page_bytes(&config, DTYPE_BF16), 2 * 3 * 2 * 32 * 64 * 2);
}

Test(kv_cache, holds_the_bytes_that_it_says)
{
    struct device *device = device_open();
    struct kv_cache cache;
    struct error err;
    uint64_t live = memory_counters_get().live_bytes;
    cr_assert_eq(kv_cache_init(&cache, device, &config, DTYPE_BF16, PAGES, &err), STATUS_OK);
    uint64_t tables = 3 * sizeof(struct kv_layer) + PAGES * sizeof(int32_t);
    cr_assert_eq(memory_counters_get().live_bytes - live,
                 PAGES * kv_page_bytes(&config, DTYPE_BF16) + tables);
    for (int layer = 0; layer < 3; layer++) {
        cr_assert_eq(cache.layers[layer].dtype, DTYPE_BF16);
        cr_assert_eq(cache.layers[layer].head_dim, 24);
        cr_assert_eq(cache.layers[layer].kv_head_count, 2);
    }
    kv_cache_deinit(&cache);
    cr_assert_eq(memory_counters_get().live_bytes, live);
    device_destroy(device);
}

/* Random taking and returning: a page never has two owners, and none is lost. */
Test(kv_cache, every_page_has_one_owner)
{
    struct device *device = device_open();
    struct random random = {.seed = 11};
    struct kv_cache cache;
    struct error err;
    int32_t pages[8][PAGES];
    int64_t counts[8] = {0}, free_count = PAGES;
    bool taken[PAGES] = {false};
    cr_assert_eq(kv_cache_init(&cache, device, &config, DTYPE_F32, PAGES, &err), STATUS_OK);
    for (int step = 0; step < 5000; step++) {
        uint64_t owner = random_below(&random, 8);
        if (counts[owner] > 0) {
            kv_cache_return(&cache, pages[owner], counts[owner]);
            for (int64_t i = 0; i < counts[owner]; i++)
                taken[pages[owner][i]] = false;
            free_count += counts[owner];
            counts[owner] = 0;
        } else {
            counts[owner] = (int64_t)random_below(&random, (uint64_t)free_count + 1);
            kv_cache_take(&cache, pages[owner], counts[owner]);
            for (int64_t i = 0; i < counts[owner]; i++) {
                int32_t page = pages[owner][i];
                cr_assert(page >= 0 && page < PAGES && !taken[page], "page %d in step %d", page,
                          step);
                taken[page] = true;
            }
            free_count -= counts[owner];
        }
        cr_assert_eq(cache.free_count, free_count);
    }
    kv_cache_deinit(&cache);
    device_destroy(device);
}

Test(kv_cache, every_failed_allocation_leaves_nothing)
{
    struct device *device = device_open();
    struct kv_cache cache = {0};
    struct error err;
    uint64_t live = memory_counters_get().live_count;
    for (uint64_t n = 1;; n++) {
        memory_fail_at(n, 0);
        enum status status = kv_cache_init(&cache, device, &config, DTYPE_F32, PAGES, &err);
        memory_fail_at(0, 0);
        if (status == STATUS_OK) {
            cr_assert_eq(n, 2 + 3 * 2 + 1);
            break;
        }
        cr_assert_eq(status, STATUS_NO_MEMORY);
        cr_assert_null(cache.layers);
        cr_assert_eq(memory_counters_get().live_count, live, "allocation %llu",
                     (unsigned long long)n);
    }
    kv_cache_deinit(&cache);
    device_destroy(device);
}
