#include "exec/kv_cache.h"

#include "base/memory.h"

uint64_t kv_page_bytes(const struct model_config *config, enum dtype dtype)
{
    int64_t values = config->kv_head_count * round_up(config->head_dim, PACK_BLOCK) *
                     KV_PAGE_TOKENS * config->layer_count;
    return (uint64_t)(2 * values * dtype_bytes(dtype));
}

enum status kv_cache_init(struct kv_cache *out, struct device *device,
                          const struct model_config *config, enum dtype dtype, int64_t page_count,
                          struct error *err)
{
    ASSERT(page_count >= 1 && page_count <= INT32_MAX);
    struct kv_cache cache = {.device = device, .layer_count = config->layer_count};
    enum status status;
    TRY_GOTO(memory_get((void **)&cache.layers, (size_t)config->layer_count, sizeof *cache.layers,
                        "the KV cache", err),
             done);
    TRY_GOTO(memory_get_raw((void **)&cache.free_pages, (size_t)page_count,
                            sizeof *cache.free_pages, "the KV cache", err),
             done);
    for (int64_t l = 0; l < config->layer_count; l++) {
        struct kv_layer *layer = &cache.layers[l];
        layer->dtype = dtype;
        layer->kv_head_count = config->kv_head_count;
        layer->head_dim = config->head_dim;
        size_t bytes = (size_t)(kv_page_values(layer) * dtype_bytes(dtype) * page_count);
        TRY_GOTO(device->ops->memory_get(device, &layer->keys, bytes, "the KV cache", err), done);
        TRY_GOTO(device->ops->memory_get(device, &layer->values, bytes, "the KV cache", err), done);
    }
    for (int64_t p = 0; p < page_count; p++)
        cache.free_pages[p] = (int32_t)(page_count - 1 - p);
    cache.page_count = page_count;
    cache.free_count = page_count;
    *out = cache;

done:
    if (status != STATUS_OK)
        kv_cache_deinit(&cache);
    return status;
}

void kv_cache_deinit(struct kv_cache *cache)
{
    for (int64_t l = 0; cache->layers != NULL && l < cache->layer_count; l++) {
        cache->device->ops->memory_free(cache->device, cache->layers[l].keys);
        cache->device->ops->memory_free(cache->device, cache->layers[l].values);
    }
    memory_free(cache->layers);
    memory_free(cache->free_pages);
    *cache = (struct kv_cache){0};
}

void kv_cache_take(struct kv_cache *cache, int32_t *pages, int64_t count)
{
    ASSERT(count <= cache->free_count);
    for (int64_t i = 0; i < count; i++)
        pages[i] = cache->free_pages[--cache->free_count];
}

void kv_cache_return(struct kv_cache *cache, const int32_t *pages, int64_t count)
{
    ASSERT(cache->free_count + count <= cache->page_count);
    for (int64_t i = count - 1; i >= 0; i--)
        cache->free_pages[cache->free_count++] = pages[i];
}
