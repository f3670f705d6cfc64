#include "engine/page_pool.h"

#include <string.h>
#include <xxhash.h>

#include "base/memory.h"
#include "base/random.h"

/* Pages of one bucket. With as many buckets as pages a chain of 16 comes once in 10^13 of them, so
 * that only prompts made to collide meet the end: they share less, and cost nobody time. */
#define CHAIN_MAX 16

#define NONE (-1)

struct pool_page {
    int64_t writer;          /* who computes it; 0: nobody */
    uint32_t bucket;         /* of a kept page */
    int32_t next;            /* in the bucket's chain */
    int32_t parent;          /* of a kept page: the one before it in the prompt, or NONE */
    int32_t reference_count; /* sequences that have it */
    int32_t child_count;     /* kept pages that continue it */
    int32_t older, newer;    /* among the cached */
    bool is_kept;
    bool is_computed; /* a kept page */
};

/* ---- Life ------------------------------------------------------------------------------------ */

static int64_t buckets_for(int64_t page_count)
{
    int64_t count = 1;
    while (count < page_count)
        count *= 2;
    return count;
}

uint64_t page_pool_bytes_per_page(void)
{
    /* Up to two buckets for each page. */
    return sizeof(struct pool_page) + (KV_PAGE_TOKENS + 1 + 2) * sizeof(int32_t);
}

static enum status tables_get(struct page_pool *pool, struct error *err)
{
    const char *what = "the KV cache's tables";
    size_t pages = (size_t)pool->page_count;
    TRY(memory_get((void **)&pool->pages, pages, sizeof *pool->pages, what, err));
    TRY(memory_get_raw((void **)&pool->tokens, pages, KV_PAGE_TOKENS * sizeof *pool->tokens, what,
                       err));
    TRY(memory_get_raw((void **)&pool->free_pages, pages, sizeof *pool->free_pages, what, err));
    return memory_get_raw((void **)&pool->buckets, (size_t)pool->bucket_count,
                          sizeof *pool->buckets, what, err);
}

enum status page_pool_init(struct page_pool *out, const struct page_pool_params *params,
                           struct error *err)
{
    ASSERT(params->page_count >= 1 && params->page_count <= INT32_MAX);
    struct page_pool pool = {
        .page_count = params->page_count,
        .free_count = params->page_count,
        .unused_count = params->page_count,
        .bucket_count =
            buckets_for(params->bucket_count > 0 ? params->bucket_count : params->page_count),
        .seed = params->seed,
        .oldest = NONE,
        .newest = NONE,
    };
    enum status status = tables_get(&pool, err);
    if (status != STATUS_OK) {
        page_pool_deinit(&pool);
        return status;
    }
    for (int64_t b = 0; b < pool.bucket_count; b++)
        pool.buckets[b] = NONE;
    for (int64_t p = 0; p < pool.page_count; p++)
        pool.free_pages[p] = (int32_t)(pool.page_count - 1 - p);
    *out = pool;
    return STATUS_OK;
}

void page_pool_deinit(struct page_pool *pool)
{
    memory_free(pool->buckets);
    memory_free(pool->free_pages);
    memory_free(pool->tokens);
    memory_free(pool->pages);
    *pool = (struct page_pool){0};
}

/* ---- Names ----------------------------------------------------------------------------------- */

static const int32_t *tokens_of(const struct page_pool *pool, int32_t page)
{
    return pool->tokens + (int64_t)page * KV_PAGE_TOKENS;
}

static uint32_t bucket_of(const struct page_pool *pool, int32_t parent, const int32_t *tokens)
{
    uint64_t seed = random_mix(pool->seed ^ random_mix((uint64_t)parent));
    uint64_t hash = XXH3_64bits_withSeed(tokens, KV_PAGE_TOKENS * sizeof *tokens, seed);
    return (uint32_t)(hash & (uint64_t)(pool->bucket_count - 1));
}

/* The page of this name, or NONE; `*chain_length` is that of its bucket when there is none. */
static int32_t name_find(const struct page_pool *pool, uint32_t bucket, int32_t parent,
                         const int32_t *tokens, int64_t *chain_length)
{
    *chain_length = 0;
    for (int32_t p = pool->buckets[bucket]; p != NONE; p = pool->pages[p].next) {
        if (pool->pages[p].parent == parent &&
            memcmp(tokens_of(pool, p), tokens, KV_PAGE_TOKENS * sizeof *tokens) == 0)
            return p;
        ++*chain_length;
    }
    return NONE;
}

/* Puts a private page under a name; false when the name is taken, or its chain is full. */
static bool name_give(struct page_pool *pool, int32_t page, int32_t parent, const int32_t *tokens)
{
    int64_t chain_length;
    uint32_t bucket = bucket_of(pool, parent, tokens);
    struct pool_page *named = &pool->pages[page];
    if (name_find(pool, bucket, parent, tokens, &chain_length) != NONE || chain_length >= CHAIN_MAX)
        return false;
    memcpy(pool->tokens + (int64_t)page * KV_PAGE_TOKENS, tokens, KV_PAGE_TOKENS * sizeof *tokens);
    named->is_kept = true;
    named->bucket = bucket;
    named->parent = parent;
    named->next = pool->buckets[bucket];
    pool->buckets[bucket] = page;
    if (parent != NONE)
        pool->pages[parent].child_count++;
    return true;
}

static void name_forget(struct page_pool *pool, int32_t page)
{
    struct pool_page *named = &pool->pages[page];
    int32_t *link = &pool->buckets[named->bucket];
    ASSERT(named->child_count == 0);
    while (*link != page)
        link = &pool->pages[*link].next;
    *link = named->next;
    if (named->parent != NONE)
        pool->pages[named->parent].child_count--;
    named->is_kept = false;
    named->is_computed = false;
}

/* ---- Cached pages ---------------------------------------------------------------------------- */

static void cached_add(struct page_pool *pool, int32_t page)
{
    struct pool_page *added = &pool->pages[page];
    added->older = pool->newest;
    added->newer = NONE;
    *(pool->newest == NONE ? &pool->oldest : &pool->pages[pool->newest].newer) = page;
    pool->newest = page;
    pool->cached_count++;
}

static void cached_remove(struct page_pool *pool, int32_t page)
{
    const struct pool_page *removed = &pool->pages[page];
    *(removed->older == NONE ? &pool->oldest : &pool->pages[removed->older].newer) = removed->newer;
    *(removed->newer == NONE ? &pool->newest : &pool->pages[removed->newer].older) = removed->older;
    pool->cached_count--;
}

/* The oldest has no page that continues it: those without references became cached before it, and
 * one with references would mean references to it. */
static void evict_oldest(struct page_pool *pool)
{
    int32_t page = pool->oldest;
    ASSERT(page != NONE);
    cached_remove(pool, page);
    name_forget(pool, page);
    pool->free_pages[pool->free_count++] = page;
}

/* ---- Taking ---------------------------------------------------------------------------------- */

/* The page that a prompt has from others at an index, behind `parent`; NONE: there is none. */
static int32_t find_next(const struct page_pool *pool, const struct page_request *request,
                         int64_t index, int32_t parent)
{
    int64_t chain_length;
    const int32_t *tokens = request->prompt + index * KV_PAGE_TOKENS;
    if (index >= page_request_findable(request))
        return NONE;
    return name_find(pool, bucket_of(pool, parent, tokens), parent, tokens, &chain_length);
}

struct page_fit page_pool_fit(const struct page_pool *pool, const struct page_request *request)
{
    struct page_fit fit = {0};
    int64_t revived_count = 0; /* found among the cached: they cannot be evicted for the rest */
    int32_t page = NONE;
    while ((page = find_next(pool, request, fit.shared_count, page)) != NONE) {
        revived_count += pool->pages[page].reference_count == 0;
        fit.shared_count++;
    }
    fit.fits = request->page_count - fit.shared_count <=
               pool->free_count + pool->cached_count - revived_count;
    return fit;
}

static int32_t take_free(struct page_pool *pool)
{
    if (pool->free_count == 0)
        evict_oldest(pool);
    int32_t page = pool->free_pages[--pool->free_count];
    if (pool->free_count < pool->unused_count)
        pool->unused_count = pool->free_count; /* they lie at the stack's bottom */
    pool->pages[page] = (struct pool_page){.reference_count = 1};
    return page;
}

int64_t page_pool_take(struct page_pool *pool, int32_t *pages, const struct page_request *request,
                       int64_t writer)
{
    int64_t findable = page_request_findable(request), shared = 0;
    int32_t page = NONE;
    ASSERT(writer > 0);
    while ((page = find_next(pool, request, shared, page)) != NONE) {
        if (pool->pages[page].reference_count++ == 0)
            cached_remove(pool, page);
        pages[shared++] = page;
    }
    for (int64_t i = shared; i < request->page_count; i++)
        pages[i] = take_free(pool);
    /* Behind a page without a name there is none with one. */
    int64_t full = request->is_private ? 0 : request->prompt_count / KV_PAGE_TOKENS;
    for (int64_t i = shared; i < full; i++) {
        int32_t parent = i == 0 ? NONE : pages[i - 1];
        if (!name_give(pool, pages[i], parent, request->prompt + i * KV_PAGE_TOKENS))
            break;
        /* A page with the last token is computed by this sequence, whoever else wants it. */
        if (i >= findable)
            pool->pages[pages[i]].writer = writer;
    }
    return shared;
}

/* ---- Returning ------------------------------------------------------------------------------- */

/* The last reference is gone. */
static void release(struct page_pool *pool, int32_t page)
{
    if (pool->pages[page].is_computed) {
        cached_add(pool, page);
        return;
    }
    if (pool->pages[page].is_kept)
        name_forget(pool, page);
    pool->free_pages[pool->free_count++] = page;
}

void page_pool_return(struct page_pool *pool, const int32_t *pages, int64_t page_count,
                      int64_t writer)
{
    for (int64_t i = page_count - 1; i >= 0; i--) { /* what continues a page goes before it */
        struct pool_page *page = &pool->pages[pages[i]];
        ASSERT(page->reference_count > 0);
        if (page->writer == writer)
            page->writer = 0;
        if (--page->reference_count == 0)
            release(pool, pages[i]);
    }
}

/* ---- Computing ------------------------------------------------------------------------------- */

bool page_pool_is_computed(const struct page_pool *pool, int32_t page)
{
    return pool->pages[page].is_computed;
}

bool page_pool_claim(struct page_pool *pool, int32_t page, int64_t writer)
{
    struct pool_page *claimed = &pool->pages[page];
    ASSERT(claimed->reference_count > 0);
    if (!claimed->is_kept)
        return true;
    if (claimed->is_computed || (claimed->writer != 0 && claimed->writer != writer))
        return false;
    claimed->writer = writer;
    return true;
}

void page_pool_set_computed(struct page_pool *pool, int32_t page)
{
    struct pool_page *done = &pool->pages[page];
    if (!done->is_kept)
        return;
    ASSERT(done->writer != 0);
    done->is_computed = true;
    done->writer = 0;
}

int64_t page_pool_references(const struct page_pool *pool, int32_t page)
{
    return pool->pages[page].reference_count;
}
