/* Keys and values of all running sequences, in pages of KV_PAGE_TOKENS tokens.
 *
 * A page holds that many tokens of one sequence for every layer. The pool never grows: a sequence
 * takes all the pages that it can ever need before it starts, so that it never has to be put off.
 */
#ifndef PHASOR_EXEC_KV_CACHE_H
#define PHASOR_EXEC_KV_CACHE_H

#include <stdint.h>

#include "device/device.h"
#include "model/config.h"

struct kv_cache {
    struct kv_layer *layers; /* [layer_count] */
    int64_t page_count;
    int64_t free_count;

    /* private */
    struct device *device;
    int64_t layer_count;
    int32_t *free_pages; /* [free_count], a stack */
};

/* Bytes of one page over all layers. */
uint64_t kv_page_bytes(const struct model_config *config, enum dtype dtype);

/* Pages for `token_count` tokens. */
static inline int64_t kv_pages_for(int64_t token_count)
{
    return ceil_div(token_count, KV_PAGE_TOKENS);
}

/* `dtype` is DTYPE_F32 or DTYPE_BF16; `page_count` >= 1. The memory is not touched. */
enum status kv_cache_init(struct kv_cache *out, struct device *device,
                          const struct model_config *config, enum dtype dtype, int64_t page_count,
                          struct error *err) MUST_CHECK;
void kv_cache_deinit(struct kv_cache *cache);

/* Takes `count` pages into `pages`; the caller has seen that free_count is enough. */
void kv_cache_take(struct kv_cache *cache, int32_t *pages, int64_t count);
void kv_cache_return(struct kv_cache *cache, const int32_t *pages, int64_t count);

#endif
