/* The memory of keys and values of all running sequences, in pages of KV_PAGE_TOKENS tokens.
 *
 * A sequence belongs to one data-parallel group of the attention; the ranks of the group hold its
 * pages, each with the KV heads of its own, under the same page numbers. A page holds that many
 * tokens of one sequence for every layer. Which page is whose is for the caller to know
 * (engine/page_pool.h): a pass reads and writes the pages that its segments name.
 */
#ifndef PHASOR_EXEC_KV_CACHE_H
#define PHASOR_EXEC_KV_CACHE_H

#include <stdint.h>

#include "comm/box.h"
#include "layout/layout.h"
#include "model/config.h"

struct kv_cache {
    int64_t page_count;    /* of each group */
    int64_t written_count; /* see kv_cache_params; 0 where the host's threads do not reach it */

    /* private */
    struct box *box;
    int64_t layer_count;
    struct kv_layer *layers; /* [rank_count][layer_count] */
};

/* Bytes of one page over all layers, on one rank. */
uint64_t kv_page_bytes(const struct model_config *config, const struct layout *layout,
                       enum dtype dtype);

/* Pages for `token_count` tokens. */
static inline int64_t kv_pages_for(int64_t token_count)
{
    return ceil_div(token_count, KV_PAGE_TOKENS);
}

struct kv_cache_params {
    struct box *box; /* borrowed */
    const struct model_config *config;
    const struct layout *layout;
    enum dtype dtype;   /* DTYPE_F32 or DTYPE_BF16 */
    int64_t page_count; /* of each group, >= 1 */
    /* So many first pages of each group, <= page_count, are written once: the system gives memory,
     * in huge pages, to who writes there first, and no pass is to wait for that. */
    int64_t written_count;
};

/* The memory is taken, and but for `written_count` not touched; for that it waits until what is on
 * the devices' own streams has run. */
enum status kv_cache_init(struct kv_cache *out, const struct kv_cache_params *params,
                          struct error *err) MUST_CHECK;
void kv_cache_deinit(struct kv_cache *cache); /* {0} is allowed */

/* Where a rank's keys and values of a layer lie. */
struct kv_layer kv_cache_layer(const struct kv_cache *cache, int rank, int64_t layer);

#endif
