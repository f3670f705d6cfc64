#include <criterion/criterion.h>

#include "base/memory.h"
#include "model_runner.h"
#include "rss.h"

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

/* ---- Written ahead --------------------------------------------------------------------------- */

#define MANY_PAGES    2000
#define WRITTEN_PAGES 600

/* Whether the system gives memory where it is touched, and tells where it did. */
static bool system_tells(void)
{
    size_t bytes = 64 << 20;
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(memory, MAP_FAILED);
    bool tells = memory_given(memory, bytes) == 0;
    memory[0] = 1;
    size_t given = memory_given(memory, bytes);
    tells &= given > 0 && given <= bytes / 2;
    munmap(memory, bytes);
    return tells;
}

/* Of a part of keys or values: all that is written is given, and what lies behind by more than a
 * huge page is not. */
static void check_given(const void *part, size_t page)
{
    size_t huge = 2 << 20, base = (size_t)sysconf(_SC_PAGESIZE), written = WRITTEN_PAGES * page;
    cr_assert_gt(memory_given(part, written) + 2 * base, written);
    cr_assert_eq(memory_given((const char *)part + written + huge,
                              (MANY_PAGES - WRITTEN_PAGES) * page - 2 * huge),
                 0);
}

Test(kv_cache, first_pages_are_given_by_the_system_when_it_is_made)
{
    struct layout layout = layout_of("tp2dp2|tp4", 4);
    struct box *box = box_of(4);
    bool reaches = box_device(box, 0)->ops->host_reaches, tells = system_tells();
    struct kv_cache_params params = params_of(box, &layout, DTYPE_BF16);
    size_t page = 2 * 32 * 64 * 2; /* of keys: heads, width, tokens, bytes */
    struct kv_cache cache;
    struct error err;
    params.page_count = MANY_PAGES;
    params.written_count = WRITTEN_PAGES;
    cr_assert_eq(kv_cache_init(&cache, &params, &err), STATUS_OK);
    cr_assert_eq(cache.written_count, reaches ? WRITTEN_PAGES : 0);
    for (int part = 0; reaches && tells && part < 4 * 3; part++) {
        struct kv_layer layer = kv_cache_layer(&cache, part / 3, part % 3);
        check_given(layer.keys, page);
        check_given(layer.values, page);
    }
    kv_cache_deinit(&cache);
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
