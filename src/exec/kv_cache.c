#include "exec/kv_cache.h"

#include <string.h>

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

/* ---- Writing ahead --------------------------------------------------------------------------- */

struct rank_share {
    const struct kv_cache *cache;
    int rank, worker_count;
    size_t bytes; /* of keys, and as many of values, of each layer */
};

/* Layers in turn, whose memory is apart: of a huge page that two begin at once each would clear the
 * whole. */
static void write_layers(void *context, int worker)
{
    const struct rank_share *share = context;
    for (int64_t l = worker; l < share->cache->layer_count; l += share->worker_count) {
        struct kv_layer layer = kv_cache_layer(share->cache, share->rank, l);
        memset(layer.keys, 0, share->bytes);
        memset(layer.values, 0, share->bytes);
    }
}

/* On the rank's own cores, in whose node of the machine the memory is to be. */
static enum status rank_write(void *context, int rank, struct error *err)
{
    (void)err;
    const struct kv_cache *cache = context;
    struct device *device = box_device(cache->box, rank);
    struct kv_layer layer = kv_cache_layer(cache, rank, 0);
    struct rank_share share = {.cache = cache,
                               .rank = rank,
                               .worker_count = device->ops->host_workers(device),
                               .bytes = (size_t)(kv_page_values(&layer) * dtype_bytes(layer.dtype) *
                                                 cache->written_count)};
    device->ops->host_run(device, write_layers, &share);
    return STATUS_OK;
}

static enum status pages_write(struct kv_cache *cache, int64_t count, struct error *err)
{
    ASSERT(count >= 0 && count <= cache->page_count);
    cache->written_count = box_device(cache->box, 0)->ops->host_reaches ? count : 0;
    return cache->written_count == 0 ? STATUS_OK : box_run(cache->box, rank_write, cache, err);
}

/* ---- Life ------------------------------------------------------------------------------------ */

enum status kv_cache_init(struct kv_cache *out, const struct kv_cache_params *params,
                          struct error *err)
{
    ASSERT(params->page_count >= 1 && params->page_count <= INT32_MAX);
    struct kv_cache cache = {.page_count = params->page_count,
                             .box = params->box,
                             .layer_count = params->config->layer_count};
    enum status status = pages_get(&cache, params, err);
    if (status == STATUS_OK)
        status = pages_write(&cache, params->written_count, err);
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
