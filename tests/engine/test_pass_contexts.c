/* What stands before a recorded step of decode is what the model computes, whatever the layout. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "engine/engine.h"
#include "engine/pass_contexts.h"

#define MODEL MODELS_DIR "/kjv-moe"

/* Contexts of one engine. Keys and values are f32. */
struct setup {
    struct engine *engine;
    struct pass_contexts contexts;
};

static void setup_open(struct setup *setup, const char *plan, int ranks)
{
    struct error err = {0};
    char devices[16];
    snprintf(devices, sizeof devices, "cpu:%d", ranks);
    *setup = (struct setup){0};
    cr_assert_eq(engine_open(&setup->engine,
                             &(struct engine_params){.model = MODEL,
                                                     .dtype = DTYPE_F32,
                                                     .thread_count = ranks,
                                                     .devices = devices,
                                                     .plan = plan},
                             &err),
                 STATUS_OK, "%s", err.message);
}

static void contexts_get(struct setup *setup, int64_t context)
{
    struct error err = {0};
    cr_assert_eq(pass_contexts_get(&setup->contexts, setup->engine, context, &err), STATUS_OK, "%s",
                 err.message);
}

static void setup_close(struct setup *setup)
{
    pass_contexts_deinit(&setup->contexts);
    engine_close(setup->engine);
}

/* Keys (`which` 0) or values of a page. */
static float *page_of(const struct kv_cache *cache, int rank, int64_t layer, int which,
                      int64_t page)
{
    struct kv_layer kv = kv_cache_layer(cache, rank, layer);
    return (float *)(which == 0 ? kv.keys : kv.values) + page * kv_page_values(&kv);
}

static int64_t values_of_page(const struct kv_cache *cache)
{
    struct kv_layer kv = kv_cache_layer(cache, 0, 0);
    return kv_page_values(&kv);
}

Test(pass_contexts, prompts_are_no_longer_than_contexts, .timeout = 100)
{
    static const struct {
        int64_t context, prompt;
    } cases[] = {{1, 64},    {2, 64},    {63, 64},   {64, 64},   {127, 64},
                 {128, 128}, {255, 128}, {256, 256}, {257, 256}, {8192, 256}};
    struct setup setup;
    setup_open(&setup, "tp1|tp1", 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        contexts_get(&setup, cases[i].context);
        cr_expect_eq(setup.contexts.prompt, cases[i].prompt, "%d: %d", (int)cases[i].context,
                     (int)setup.contexts.prompt);
    }
    setup_close(&setup);
}

Test(pass_contexts, are_computed_once_for_each_length_of_prompt, .timeout = 100)
{
    struct setup setup;
    setup_open(&setup, "tp1|tp1", 1);
    contexts_get(&setup, 300);
    float *value = page_of(&setup.contexts.cache, 0, 0, 1, 0), was = *value;
    *value = 1234;
    contexts_get(&setup, 5000);
    cr_expect_eq(*value, 1234);
    contexts_get(&setup, 100);
    cr_expect_neq(*value, 1234);
    contexts_get(&setup, 300);
    cr_expect_eq(*value, was);
    setup_close(&setup);
}

/* Every group has all pages of the pool, as one rank alone computes them; each of a group's ranks
 * those of its heads. But for rounding, and for what follows where a token's choice between two
 * experts hangs on that. */
static void expect_as_alone(const struct setup *setup, const struct setup *alone, const char *plan)
{
    const struct layout *layout = engine_layout(setup->engine);
    const struct model_config *config = engine_config(setup->engine);
    int64_t count = values_of_page(&setup->contexts.cache), nonzero = 0;
    int64_t far = 0;
    for (int rank = 0; rank < layout->rank_count; rank++) {
        int64_t before = layout_place(layout, rank).at * count;
        for (int64_t i = 0; i < config->layer_count * 2 * CONTEXT_POOL_PAGES; i++) {
            int64_t layer = i / (2 * CONTEXT_POOL_PAGES), page = i % CONTEXT_POOL_PAGES;
            int which = i / CONTEXT_POOL_PAGES % 2;
            const float *found = page_of(&setup->contexts.cache, rank, layer, which, page);
            const float *expected = page_of(&alone->contexts.cache, 0, layer, which, page) + before;
            for (int64_t v = 0; v < count; v++) {
                nonzero += expected[v] != 0;
                far += !(fabs((double)found[v] - expected[v]) < 1e-3);
            }
        }
    }
    int64_t all = layout->rank_count * config->layer_count * 2 * CONTEXT_POOL_PAGES * count;
    cr_expect_gt(nonzero, all * 9 / 10);
    cr_expect_leq(far, all / 200, "%s: %lld of %lld", plan, (long long)far, (long long)all);
}

Test(pass_contexts, are_the_same_in_every_group_and_layout, .timeout = 200)
{
    static const struct {
        const char *plan;
        int ranks;
    } cases[] = {{"tp2|ep2", 2}, {"dp2|ep2", 2}, {"dp4|tp4", 4}, {"tp2dp2|ep4", 4}};
    struct setup alone, setup;
    setup_open(&alone, "tp1|tp1", 1);
    contexts_get(&alone, 1000);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setup_open(&setup, cases[i].plan, cases[i].ranks);
        contexts_get(&setup, 1000);
        expect_as_alone(&setup, &alone, cases[i].plan);
        setup_close(&setup);
    }
    setup_close(&alone);
}

/* ---- Sequences ------------------------------------------------------------------------------- */

#define CONTEXT 1000
#define PAGES   ((CONTEXT + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS)
#define OWN     CONTEXT_POOL_PAGES

static void cache_get(struct kv_cache *cache, const struct setup *setup)
{
    struct error err;
    struct kv_cache_params params = {.box = setup->contexts.cache.box,
                                     .config = engine_config(setup->engine),
                                     .layout = engine_layout(setup->engine),
                                     .dtype = DTYPE_F32,
                                     .page_count = OWN + PAGES};
    cr_assert_eq(kv_cache_init(cache, &params, &err), STATUS_OK);
    pass_contexts_copy(cache, &setup->contexts, setup->engine);
}

static void expect_copy(const struct kv_cache *cache, const struct setup *setup, int rank,
                        int64_t page, int64_t of)
{
    size_t bytes = (size_t)values_of_page(cache) * sizeof(float);
    for (int64_t layer = 0; layer < engine_config(setup->engine)->layer_count; layer++) {
        for (int which = 0; which < 2; which++)
            cr_assert_arr_eq(page_of(cache, rank, layer, which, page),
                             page_of(&setup->contexts.cache, rank, layer, which, of), bytes);
    }
}

/* It is some page of the pool's, and no two of those are alike. */
static void expect_last(const struct kv_cache *cache, const struct setup *setup, int rank,
                        int64_t page)
{
    size_t bytes = (size_t)values_of_page(cache) * sizeof(float);
    int alike = 0;
    for (int64_t of = 0; of < CONTEXT_POOL_PAGES; of++)
        alike += memcmp(page_of(cache, rank, 0, 0, page),
                        page_of(&setup->contexts.cache, rank, 0, 0, of), bytes) == 0;
    cr_expect_eq(alike, 1);
}

Test(pass_contexts, sequences_draw_pages_and_write_in_their_own, .timeout = 100)
{
    struct setup setup;
    struct kv_cache cache;
    int32_t shared[PAGES], again[PAGES], others[PAGES], owned[PAGES];
    setup_open(&setup, "dp2|ep2", 2);
    contexts_get(&setup, CONTEXT);
    cache_get(&cache, &setup);
    for (int group = 0; group < 2; group++) {
        pass_contexts_draw(shared, &cache, setup.engine, CONTEXT, 3, group, OWN, false);
        for (int i = 0; i < PAGES - 1; i++)
            cr_expect(shared[i] >= 0 && shared[i] < CONTEXT_POOL_PAGES);
        cr_expect_eq(shared[PAGES - 1], OWN);
        /* The same whatever the group, and in memory of its own. */
        pass_contexts_draw(again, &cache, setup.engine, CONTEXT, 3, 1 - group, OWN, false);
        cr_expect_arr_eq(again, shared, sizeof shared);
        pass_contexts_draw(owned, &cache, setup.engine, CONTEXT, 3, group, OWN, true);
        for (int i = 0; i < PAGES; i++) {
            cr_expect_eq(owned[i], OWN + i);
            if (i < PAGES - 1)
                expect_copy(&cache, &setup, group, owned[i], shared[i]);
        }
        expect_last(&cache, &setup, group, owned[PAGES - 1]);
    }
    /* Not the same as another sequence's, or of another length. */
    pass_contexts_draw(others, &cache, setup.engine, CONTEXT, 4, 0, OWN, false);
    cr_expect_arr_neq(others, shared, sizeof shared);
    pass_contexts_draw(others, &cache, setup.engine, CONTEXT - 1, 3, 0, OWN, false);
    cr_expect_arr_neq(others, shared, sizeof shared);
    kv_cache_deinit(&cache);
    setup_close(&setup);
}
