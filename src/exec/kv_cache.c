#include "exec/kv_cache.h"

#include "base/memory.h"

/* Legal layouts cut the KV heads evenly: what one rank holds, all do. */
static int64_t own_kv_heads(const struct model_config *config, const struct layout *layout)
{
    return config->kv_head_count / layout->attention.tp;
}

uint64_t kv_page_bytes(const struct model_config *config, const struct layout *layout,
                       enum dtype dtype)
{
    struct kv_layer layer = {.kv_head_count = own_kv_heads(config, layout),
                             .head_dim = config->head_dim};
    return (uint64_t)(2 * kv_page_values(&layer) * dtype_bytes(dtype) * config->layer_count);
}

static enum status pages_get(struct kv_cache *cache, const struct kv_cache_params *params,
                             struct error *err)
{
    struct kv_layer empty = {.dtype = params->dtype,
                             .kv_head_count = own_kv_heads(params->config, params->layout),
                             .head_dim = params->config->head_dim};
    size_t bytes =
        (size_t)(kv_page_values(&empty) * dtype_bytes(params->dtype) * params->page_count);
    TRY(memory_get((void **)&cache->layers,
                   (size_t)(cache->layer_count * box_rank_count(cache->box)), sizeof *cache->layers,
                   "the KV cache", err));
    for (int rank = 0; rank < box_rank_count(cache->box); rank++) {
        struct device *device = box_device(cache->box, rank);
        for (int64_t l = 0; l < cache->layer_count; l++) {
            struct kv_layer *layer = &cache->layers[rank * cache->layer_count + l];
            *layer = empty;
            TRY(device->ops->memory_get(device, &layer->keys, bytes, "the KV cache", err));
            TRY(device->ops->memory_get(device, &layer->values, bytes, "the KV cache", err));
        }
    }
    return STATUS_OK;
}

enum status kv_cache_init(struct kv_cache *out, const struct kv_cache_params *params,
                          struct error *err)
{
    ASSERT(params->page_count >= 1 && params->page_count <= INT32_MAX);
    struct kv_cache cache = {.page_count = params->page_count,
                             .box = params->box,
                             .layer_count = params->config->layer_count};
    enum status status = pages_get(&cache, params, err);
    if (status != STATUS_OK)
        kv_cache_deinit(&cache);
    else
        *out = cache;
    return status;
}

void kv_cache_deinit(struct kv_cache *cache)
{
    for (int rank = 0; cache->layers != NULL && rank < box_rank_count(cache->box); rank++) {
        struct device *device = box_device(cache->box, rank);
        for (int64_t l = 0; l < cache->layer_count; l++) {
            device->ops->memory_free(device, cache->layers[rank * cache->layer_count + l].keys);
            device->ops->memory_free(device, cache->layers[rank * cache->layer_count + l].values);
        }
    }
    memory_free(cache->layers);
    *cache = (struct kv_cache){0};
}

struct kv_layer kv_cache_layer(const struct kv_cache *cache, int rank, int64_t layer)
{
    return cache->layers[rank * cache->layer_count + layer];
}
