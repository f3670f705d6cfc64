/* Keys and values of all running sequences, in pages of KV_PAGE_TOKENS tokens.
 *
 * A sequence belongs to one data-parallel group of the attention; the ranks of the group hold its
 * pages, each with the KV heads of its own, under the same page numbers. A page holds that many
 * tokens of one sequence for every layer. The pools never grow: a sequence takes all the pages that
 * it can ever need before it starts, so that it never has to be put off.
 */
#ifndef PHASOR_EXEC_KV_CACHE_H
#define PHASOR_EXEC_KV_CACHE_H

#include <stdint.h>

#include "comm/box.h"
#include "layout/layout.h"
#include "model/config.h"

struct kv_group {
    int64_t free_count;
    int32_t *free_pages; /* [page_count], a stack; private */
};

struct kv_cache {
    int64_t page_count;      /* of each group */
    int group_count;         /* Ad */
    struct kv_group *groups; /* [group_count] */

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
};

/* The memory is taken, not touched. */
enum status kv_cache_init(struct kv_cache *out, const struct kv_cache_params *params,
                          struct error *err) MUST_CHECK;
void kv_cache_deinit(struct kv_cache *cache); /* {0} is allowed */

/* Where a rank's keys and values of a layer lie. */
struct kv_layer kv_cache_layer(const struct kv_cache *cache, int rank, int64_t layer);

/* Takes `count` pages of a group into `pages`; the caller has seen that free_count is enough. */
void kv_cache_take(struct kv_cache *cache, int group, int32_t *pages, int64_t count);
void kv_cache_return(struct kv_cache *cache, int group, const int32_t *pages, int64_t count);

#endif
