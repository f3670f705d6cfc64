/* The pages of a KV cache, as one data-parallel group keeps book of them: who has which, and which
 * hold the keys and values of a prefix that another prompt begins with, too.
 *
 * A *kept* page is a full page of prompt tokens under a name: the page before it in the prompt and
 * its KV_PAGE_TOKENS token ids. Since pages are named by their predecessors, equal names mean equal
 * prefixes, and a prompt that begins with the same tokens gets the same pages instead of new ones.
 * Every other page (the rest of a prompt, room for what is generated) is private to its sequence.
 *
 *     free -> kept, being computed -> kept, computed -> cached (no references) -> free
 *     free -> private -> free
 *
 * A sequence takes all pages that it can ever need at once, so it has a reference to every page
 * before one that it has; a page is never without references while one that continues it has some.
 * Cached pages become free when pages are needed, least recently used first; a page counts as used
 * after those that continue it, so it never goes before them.
 *
 * One thread uses a pool. Nothing is allocated after page_pool_init. */
#ifndef PHASOR_ENGINE_PAGE_POOL_H
#define PHASOR_ENGINE_PAGE_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "device/ops.h"

struct pool_page;

struct page_pool {
    int64_t page_count;
    int64_t free_count;
    int64_t cached_count; /* computed, kept, without references */
    int64_t unused_count; /* of the free: nobody has had them yet */

    /* private */
    struct pool_page *pages; /* [page_count] */
    int32_t *tokens;         /* [page_count][KV_PAGE_TOKENS], of kept pages */
    int32_t *free_pages;     /* [page_count], a stack */
    int32_t *buckets;        /* [bucket_count]: first page of each chain, or -1 */
    int64_t bucket_count;    /* a power of two */
    uint64_t seed;
    int32_t oldest, newest; /* of the cached, or -1 */
};

struct page_pool_params {
    int64_t page_count;   /* 1 to INT32_MAX */
    uint64_t seed;        /* of the names' hash: not to be guessed by who writes the prompts */
    int64_t bucket_count; /* 0: at least page_count; tests take few, so that chains fill */
};

enum status page_pool_init(struct page_pool *out, const struct page_pool_params *params,
                           struct error *err) MUST_CHECK;
void page_pool_deinit(struct page_pool *pool); /* {0} is allowed */

/* Host memory that a pool takes for each of its pages, at most. */
uint64_t page_pool_bytes_per_page(void);

/* What a sequence asks for. */
struct page_request {
    const int32_t *prompt;
    int64_t prompt_count; /* at least 1 */
    int64_t page_count;   /* of the prompt and all that may be generated */
    bool is_private;      /* shares nothing: each of its prompt tokens must be computed */
};

/* Leading pages of a request that it could have from others at most: the last prompt token is
 * always the sequence's own to compute, for its logits. */
static inline int64_t page_request_findable(const struct page_request *request)
{
    return request->is_private ? 0 : (request->prompt_count - 1) / KV_PAGE_TOKENS;
}

struct page_fit {
    int64_t shared_count; /* leading pages that are there, computed or being computed */
    bool fits;            /* the rest can be had */
};
struct page_fit page_pool_fit(const struct page_pool *pool, const struct page_request *request);

/* Takes the request's pages into `pages`; it fits. Full pages of its prompt that are not there yet
 * are kept under their names for others, as far as their chain of the hash has room. `writer`,
 * above 0 and of this sequence alone, is who it is to page_pool_claim. Returns the shared_count. */
int64_t page_pool_take(struct page_pool *pool, int32_t *pages, const struct page_request *request,
                       int64_t writer);

/* Gives up all that was taken. Computed pages under a name stay cached; what `writer` was computing
 * and others have, too, another may claim. */
void page_pool_return(struct page_pool *pool, const int32_t *pages, int64_t page_count,
                      int64_t writer);

/* Whether keys and values of a kept page are there; false for private ones. */
bool page_pool_is_computed(const struct page_pool *pool, int32_t page);

/* Whether this sequence may write the page: it is private, or nobody has computed it or does so
 * now. From then on until page_pool_set_computed or page_pool_return nobody else may. */
bool page_pool_claim(struct page_pool *pool, int32_t page, int64_t writer);

/* The page, which this sequence could claim, has been written to its end. */
void page_pool_set_computed(struct page_pool *pool, int32_t page);

/* Sequences that have the page. */
int64_t page_pool_references(const struct page_pool *pool, int32_t page);

/* Pages that sequences have, each counted once. */
static inline int64_t page_pool_used(const struct page_pool *pool)
{
    return pool->page_count - pool->free_count - pool->cached_count;
}

#endif
