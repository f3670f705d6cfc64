/* Whose the pages of a KV cache are: a table of prompts that come one after another, random
 * sequences of calls against a book that is kept in the plainest way, and failed allocations. */
#include "engine/page_pool.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/memory.h"
#include "base/random.h"
#include "sweep.h"

#define PAGE_TOKENS     KV_PAGE_TOKENS
#define PROMPT_PAGES    6
#define SEQUENCES       12
#define CHAIN_MAX       16 /* as in page_pool.c */
#define NEVER           (-1)
#define NO_PAGE         (-1)
#define PAGES_MAX       64
#define STEPS_OF_A_WALK 4000

struct sequence {
    int32_t prompt[(PROMPT_PAGES + 1) * PAGE_TOKENS];
    struct page_request request;
    int32_t pages[PROMPT_PAGES + 2];
    int64_t number;      /* 0: not there */
    int64_t position;    /* in pages */
    int64_t named_count; /* leading pages that are kept; of the reference */
};

/* ---- Prompts --------------------------------------------------------------------------------- */

/* One letter for each page of the prompt, then so many tokens more, which are all alike. */
static void prompt_write(struct sequence *sequence, const char *letters, int64_t rest,
                         int64_t token_max)
{
    int64_t full = (int64_t)strlen(letters), count = full * PAGE_TOKENS + rest;
    for (int64_t t = 0; t < count; t++)
        sequence->prompt[t] =
            t < full * PAGE_TOKENS ? letters[t / PAGE_TOKENS] * 1000 + (int32_t)t : (int32_t)t;
    sequence->request = (struct page_request){
        .prompt = sequence->prompt,
        .prompt_count = count,
        .page_count = ceil_div(count + token_max, PAGE_TOKENS),
    };
}

static struct page_pool pool_of(int64_t page_count, int64_t bucket_count)
{
    struct page_pool pool;
    struct error err;
    struct page_pool_params params = {page_count, 5, bucket_count};
    cr_assert_eq(page_pool_init(&pool, &params, &err), STATUS_OK, "%s", err.message);
    return pool;
}

/* Computes what of the prompt is left, as far as no other does; true when nothing is. */
static bool compute(struct page_pool *pool, struct sequence *sequence)
{
    int64_t full = sequence->request.is_private ? 0 : sequence->request.prompt_count / PAGE_TOKENS;
    for (int64_t i = 0; i < full; i++) {
        if (page_pool_is_computed(pool, sequence->pages[i]))
            continue;
        if (!page_pool_claim(pool, sequence->pages[i], sequence->number))
            return false;
        page_pool_set_computed(pool, sequence->pages[i]);
    }
    return true;
}

/* ---- One after another ----------------------------------------------------------------------- */

/* Each takes, computes and returns before the next comes, in a pool of 8 pages. */
Test(page_pool, what_a_prompt_finds_of_those_before_it)
{
    static const struct {
        const char *letters;
        int64_t rest, token_max;
        bool is_private;
        int64_t shared, used, cached; /* while it is there */
    } cases[] = {
        {"abc", 1, 10, false, 0, 4, 0},    {"abc", 1, 10, false, 3, 4, 0},
        {"abc", 0, 10, false, 2, 4, 1},    /* the page of the last token is its own */
        {"abcd", 1, 0, false, 3, 5, 0},    /* goes on behind */
        {"abx", 5, 0, false, 2, 4, 2},     /* parts ways */
        {"xbc", 5, 0, false, 0, 4, 4},     /* evicts d, the oldest; "bc" behind another page */
        {"abcd", 2, 0, false, 3, 5, 3},    /* d is gone; takes x of "abx" or what is oldest */
        {"abc", 63, 0, true, 0, 4, 4},     /* computes all itself */
        {"abc", 63, 1, false, 3, 4, 1},    /* which left nothing new */
        {"", 63, 0, false, 0, 1, 4},       /* nothing full */
        {"ab", 1, 5 * 64, false, 2, 8, 0}, /* the whole pool */
        {"ab", 1, 0, false, 2, 3, 0},
    };
    struct page_pool pool = pool_of(8, 0);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct sequence one = {.number = (int64_t)c + 1};
        prompt_write(&one, cases[c].letters, cases[c].rest, cases[c].token_max);
        one.request.is_private = cases[c].is_private;
        struct page_fit fit = page_pool_fit(&pool, &one.request);
        cr_assert(fit.fits, "case %zu", c);
        cr_assert_eq(fit.shared_count, cases[c].shared, "case %zu: %lld", c,
                     (long long)fit.shared_count);
        cr_assert_eq(page_pool_take(&pool, one.pages, &one.request, one.number), cases[c].shared);
        cr_expect_eq(page_pool_used(&pool), cases[c].used, "case %zu: %lld used", c,
                     (long long)page_pool_used(&pool));
        cr_expect_eq(pool.cached_count, cases[c].cached, "case %zu: %lld cached", c,
                     (long long)pool.cached_count);
        cr_assert(compute(&pool, &one));
        page_pool_return(&pool, one.pages, one.request.page_count, one.number);
        cr_assert_eq(page_pool_used(&pool), 0);
    }
    page_pool_deinit(&pool);
}

/* ---- At the same time ------------------------------------------------------------------------ */

static void take(struct page_pool *pool, struct sequence *sequence, int64_t shared)
{
    cr_assert(page_pool_fit(pool, &sequence->request).fits);
    cr_assert_eq(page_pool_take(pool, sequence->pages, &sequence->request, sequence->number),
                 shared);
}

static void give_back(struct page_pool *pool, struct sequence *sequence)
{
    page_pool_return(pool, sequence->pages, sequence->request.page_count, sequence->number);
}

Test(page_pool, a_page_has_one_writer_and_another_when_it_leaves)
{
    struct page_pool pool = pool_of(16, 0);
    struct sequence a = {.number = 1}, b = {.number = 2}, c = {.number = 3};
    prompt_write(&a, "abc", 3, 0);
    prompt_write(&b, "abd", 3, 0);
    prompt_write(&c, "abd", 4, 0);
    take(&pool, &a, 0);
    take(&pool, &b, 2);
    take(&pool, &c, 3);
    cr_assert_eq(page_pool_used(&pool), 4 + 2 + 1);
    cr_assert_eq(page_pool_references(&pool, a.pages[0]), 3);
    cr_assert(page_pool_claim(&pool, a.pages[0], 1));
    cr_assert(page_pool_claim(&pool, a.pages[0], 1), "again by the same");
    cr_assert_not(page_pool_claim(&pool, b.pages[0], 2));
    page_pool_set_computed(&pool, a.pages[0]);
    cr_assert(page_pool_is_computed(&pool, c.pages[0]));
    cr_assert_not(page_pool_claim(&pool, b.pages[0], 2), "nobody writes what is read");
    cr_assert(page_pool_claim(&pool, a.pages[1], 1));
    give_back(&pool, &a); /* in the midst of page 1 */
    cr_assert_eq(page_pool_used(&pool), 2 + 2 + 1);
    cr_assert_eq(pool.cached_count, 0, "page c was not computed");
    cr_assert_not(page_pool_is_computed(&pool, b.pages[1]));
    cr_assert(page_pool_claim(&pool, b.pages[1], 2), "another goes on");
    cr_assert_not(page_pool_claim(&pool, c.pages[1], 3));
    give_back(&pool, &b);
    cr_assert(compute(&pool, &c));
    give_back(&pool, &c);
    cr_assert_eq(pool.cached_count, 3);
    cr_assert_eq(page_pool_used(&pool), 0);
    page_pool_deinit(&pool);
}

/* Whose last token fills a page writes it, even when another that shares it asks first. */
Test(page_pool, the_page_of_the_last_token_is_its_own)
{
    struct page_pool pool = pool_of(16, 0);
    struct sequence a = {.number = 1}, b = {.number = 2}, c = {.number = 3};
    prompt_write(&a, "ab", 0, 0);
    prompt_write(&b, "ab", 1, 0);
    prompt_write(&c, "ab", 0, 0);
    take(&pool, &a, 0);
    take(&pool, &b, 2);
    take(&pool, &c, 1);
    cr_assert_neq(c.pages[1], a.pages[1]);
    cr_assert(page_pool_claim(&pool, b.pages[0], 2), "the first page is anybody's");
    page_pool_set_computed(&pool, b.pages[0]);
    cr_assert_not(page_pool_claim(&pool, b.pages[1], 2));
    cr_assert(page_pool_claim(&pool, c.pages[1], 3), "private: the name was taken");
    give_back(&pool, &a);
    cr_assert(page_pool_claim(&pool, b.pages[1], 2));
    give_back(&pool, &b);
    give_back(&pool, &c);
    cr_assert_eq(pool.cached_count, 1);
    cr_assert_eq(pool.free_count, 15);
    page_pool_deinit(&pool);
}

/* What is found counts as room only once: it cannot be evicted for the rest of the same request. */
Test(page_pool, fits_exactly)
{
    struct page_pool pool = pool_of(4, 0);
    struct sequence a = {.number = 1}, b = {.number = 2};
    prompt_write(&a, "abc", 1, 0);
    take(&pool, &a, 0);
    compute(&pool, &a);
    give_back(&pool, &a);
    prompt_write(&b, "ab", 1, 64);
    cr_assert(page_pool_fit(&pool, &b.request).fits);
    prompt_write(&b, "ab", 1, 128);
    cr_assert_not(page_pool_fit(&pool, &b.request).fits);
    prompt_write(&b, "ab", 1, 64);
    take(&pool, &b, 2);
    prompt_write(&a, "ab", 1, 0);
    cr_assert_not(page_pool_fit(&pool, &a.request).fits);
    cr_assert_eq(page_pool_fit(&pool, &a.request).shared_count, 2);
    page_pool_deinit(&pool);
}

/* Prompts whose names all fall into one chain cost a bounded search, and share less. */
Test(page_pool, chains_end)
{
    struct page_pool pool = pool_of(PAGES_MAX, 1);
    struct sequence all[CHAIN_MAX + 4] = {{.number = 0}};
    for (int i = 0; i < CHAIN_MAX + 4; i++) {
        char letter[2] = {(char)('A' + i), 0};
        all[i].number = i + 1;
        prompt_write(&all[i], letter, 1, 0);
        take(&pool, &all[i], 0);
        compute(&pool, &all[i]);
    }
    for (int i = 0; i < CHAIN_MAX + 4; i++)
        cr_assert_eq(page_pool_fit(&pool, &all[i].request).shared_count, i < CHAIN_MAX, "%d", i);
    for (int i = 0; i < CHAIN_MAX + 4; i++)
        give_back(&pool, &all[i]);
    cr_assert_eq(pool.cached_count, CHAIN_MAX);
    page_pool_deinit(&pool);
}

/* ---- Against a plain book -------------------------------------------------------------------- */

struct book_page {
    int32_t name[PROMPT_PAGES * PAGE_TOKENS]; /* the whole prefix */
    int64_t name_pages;                       /* 0: none */
    int64_t references, writer, cached_at;    /* cached_at: NEVER, or when it lost its last */
    bool is_computed;
};

struct book {
    struct book_page pages[PAGES_MAX];
    int64_t page_count, time;
    bool one_chain;
};

static int64_t book_count(const struct book *book, bool cached)
{
    int64_t count = 0;
    for (int64_t p = 0; p < book->page_count; p++)
        count += cached ? book->pages[p].cached_at != NEVER : book->pages[p].references > 0;
    return count;
}

static int32_t book_find(const struct book *book, const int32_t *prompt, int64_t pages)
{
    for (int32_t p = 0; p < book->page_count; p++) {
        if (book->pages[p].name_pages == pages &&
            memcmp(book->pages[p].name, prompt, (size_t)(pages * PAGE_TOKENS) * sizeof *prompt) ==
                0)
            return p;
    }
    return NO_PAGE;
}

static int64_t book_shared(const struct book *book, const struct page_request *request,
                           int64_t *cached)
{
    int64_t shared = 0;
    *cached = 0;
    while (shared < page_request_findable(request)) {
        int32_t page = book_find(book, request->prompt, shared + 1);
        if (page == NO_PAGE)
            break;
        *cached += book->pages[page].references == 0;
        shared++;
    }
    return shared;
}

static bool book_can_name(const struct book *book)
{
    int64_t named = 0;
    for (int64_t p = 0; p < book->page_count; p++)
        named += book->pages[p].name_pages > 0;
    return !book->one_chain || named < CHAIN_MAX;
}

/* A new page comes from the free ones while there are any, then it is the one cached first. */
static void book_check_new(const struct book *book, int32_t page, const int32_t *others,
                           int64_t other_count)
{
    const struct book_page *taken = &book->pages[page];
    cr_assert_eq(taken->references, 0);
    for (int64_t o = 0; o < other_count; o++)
        cr_assert_neq(others[o], page);
    if (taken->cached_at == NEVER)
        return;
    for (int64_t p = 0; p < book->page_count; p++) {
        const struct book_page *other = &book->pages[p];
        cr_assert(other->references > 0 ||
                      (other->cached_at != NEVER && other->cached_at >= taken->cached_at),
                  "page %lld should have gone before page %d", (long long)p, page);
    }
}

static void book_take(struct book *book, struct sequence *sequence, int64_t shared)
{
    const struct page_request *request = &sequence->request;
    for (int64_t i = 0; i < shared; i++) {
        struct book_page *page = &book->pages[sequence->pages[i]];
        cr_assert_eq(book_find(book, request->prompt, i + 1), sequence->pages[i]);
        page->references++;
        page->cached_at = NEVER;
    }
    for (int64_t i = shared; i < request->page_count; i++) {
        book_check_new(book, sequence->pages[i], sequence->pages, i);
        book->pages[sequence->pages[i]] = (struct book_page){.references = 1, .cached_at = NEVER};
    }
    int64_t full = request->is_private ? 0 : request->prompt_count / PAGE_TOKENS;
    sequence->named_count = shared;
    for (int64_t i = shared; i < full && book_can_name(book); i++) {
        struct book_page *page = &book->pages[sequence->pages[i]];
        if (book_find(book, request->prompt, i + 1) != NO_PAGE)
            break;
        page->name_pages = i + 1;
        memcpy(page->name, request->prompt, (size_t)((i + 1) * PAGE_TOKENS) * sizeof *page->name);
        page->writer = i >= page_request_findable(request) ? sequence->number : 0;
        sequence->named_count = i + 1;
    }
}

static void book_return(struct book *book, const struct sequence *sequence)
{
    for (int64_t i = sequence->request.page_count - 1; i >= 0; i--) {
        struct book_page *page = &book->pages[sequence->pages[i]];
        if (page->writer == sequence->number)
            page->writer = 0;
        if (--page->references > 0)
            continue;
        if (page->is_computed)
            page->cached_at = book->time++;
        else
            *page = (struct book_page){.cached_at = NEVER};
    }
}

/* ---- The walk -------------------------------------------------------------------------------- */

struct walk {
    struct random random;
    struct page_pool pool;
    struct book book;
    struct sequence sequences[SEQUENCES];
    bool was_had[PAGES_MAX];
    int64_t last_number, shared_count, evicted_count, refused_count;
};

static void walk_take(struct walk *walk, struct sequence *sequence)
{
    char letters[PROMPT_PAGES + 1] = {0};
    int64_t full = (int64_t)random_below(&walk->random, PROMPT_PAGES + 1), revived;
    for (int64_t i = 0; i < full; i++)
        letters[i] = (char)('a' + random_below(&walk->random, 4) / 3); /* mostly alike */
    int64_t rest = (int64_t)random_below(&walk->random, 3) * (PAGE_TOKENS / 2 - 1);
    prompt_write(sequence, letters, full == 0 ? rest + 1 : rest,
                 (int64_t)random_below(&walk->random, PAGE_TOKENS));
    sequence->request.is_private = random_below(&walk->random, 8) == 0;
    int64_t shared = book_shared(&walk->book, &sequence->request, &revived);
    int64_t cached = book_count(&walk->book, true);
    int64_t room = walk->book.page_count - book_count(&walk->book, false) - revived;
    struct page_fit fit = page_pool_fit(&walk->pool, &sequence->request);
    cr_assert_eq(fit.shared_count, shared);
    cr_assert_eq(fit.fits, sequence->request.page_count - shared <= room);
    walk->refused_count += !fit.fits;
    if (!fit.fits)
        return;
    sequence->number = ++walk->last_number;
    sequence->position = 0;
    cr_assert_eq(page_pool_take(&walk->pool, sequence->pages, &sequence->request, sequence->number),
                 shared);
    book_take(&walk->book, sequence, shared);
    walk->shared_count += shared;
    walk->evicted_count += cached - revived - book_count(&walk->book, true);
}

/* One page further, as a scheduler goes: over what is there, or computing what it may claim. */
static void walk_compute(struct walk *walk, struct sequence *sequence)
{
    if (sequence->position >= sequence->request.prompt_count / PAGE_TOKENS)
        return;
    int32_t index = sequence->pages[sequence->position];
    struct book_page *page = &walk->book.pages[index];
    bool is_named = sequence->position < sequence->named_count;
    bool may = !is_named ||
               (!page->is_computed && (page->writer == 0 || page->writer == sequence->number));
    cr_assert_eq(page_pool_is_computed(&walk->pool, index), page->is_computed);
    cr_assert_eq(page_pool_claim(&walk->pool, index, sequence->number), may);
    if (may && is_named)
        page->writer = sequence->number;
    if (may && random_below(&walk->random, 3) == 0)
        return; /* half of it */
    if (may) {
        page_pool_set_computed(&walk->pool, index);
        page->is_computed = is_named;
        page->writer = 0;
    }
    sequence->position += may || page->is_computed;
}

static void walk_return(struct walk *walk, struct sequence *sequence)
{
    give_back(&walk->pool, sequence);
    book_return(&walk->book, sequence);
    sequence->number = 0;
}

static void walk_check(struct walk *walk)
{
    int64_t ever_count = 0;
    cr_assert_eq(page_pool_used(&walk->pool), book_count(&walk->book, false));
    cr_assert_eq(walk->pool.cached_count, book_count(&walk->book, true));
    for (int32_t p = 0; p < walk->book.page_count; p++) {
        const struct book_page *page = &walk->book.pages[p];
        cr_assert_eq(page_pool_references(&walk->pool, p), page->references);
        walk->was_had[p] |= page->references > 0;
        ever_count += walk->was_had[p];
    }
    cr_assert_eq(walk->pool.unused_count, walk->book.page_count - ever_count);
}

/* Returns what was shared, evicted and refused, so that the test can see that all came up. */
static void walk_run(struct walk *walk, uint64_t seed, int64_t page_count, bool one_chain)
{
    *walk = (struct walk){.random = {.seed = seed},
                          .pool = pool_of(page_count, one_chain ? 1 : 0),
                          .book = {.page_count = page_count, .one_chain = one_chain}};
    for (int64_t p = 0; p < page_count; p++)
        walk->book.pages[p].cached_at = NEVER;
    for (int step = 0; step < STEPS_OF_A_WALK; step++) {
        struct sequence *sequence = &walk->sequences[random_below(&walk->random, SEQUENCES)];
        if (sequence->number == 0)
            walk_take(walk, sequence);
        else if (random_below(&walk->random, 6) > 0)
            walk_compute(walk, sequence);
        else
            walk_return(walk, sequence);
        walk_check(walk);
    }
    for (int s = 0; s < SEQUENCES; s++) {
        if (walk->sequences[s].number != 0)
            walk_return(walk, &walk->sequences[s]);
    }
    walk_check(walk);
    cr_assert_eq(page_pool_used(&walk->pool), 0);
    page_pool_deinit(&walk->pool);
}

Test(page_pool, any_calls_agree_with_a_plain_book, .timeout = 1800)
{
    static struct walk walk;
    uint64_t step = sweep_step(20);
    int64_t shared = 0, evicted = 0, refused = 0;
    for (uint64_t seed = sweep_first(step); seed <= 800; seed += step) {
        int64_t page_count = 8 + (int64_t)(seed % 57);
        printf("seed %llu, %lld pages\n", (unsigned long long)seed, (long long)page_count);
        walk_run(&walk, seed, page_count, seed % 3 == 0);
        shared += walk.shared_count;
        evicted += walk.evicted_count;
        refused += walk.refused_count;
    }
    cr_assert(shared > 1000 && evicted > 1000 && refused > 1000, "%lld shared, %lld, %lld",
              (long long)shared, (long long)evicted, (long long)refused);
}

Test(page_pool, every_failed_allocation_leaves_nothing)
{
    struct page_pool pool = {0};
    struct page_pool_params params = {.page_count = 10};
    struct error err;
    uint64_t live = memory_counters_get().live_count;
    uint64_t n = 1;
    for (;; n++) {
        memory_fail_at(n, 0);
        enum status status = page_pool_init(&pool, &params, &err);
        memory_fail_at(0, 0);
        if (status == STATUS_OK)
            break;
        cr_assert_eq(status, STATUS_NO_MEMORY);
        cr_assert_null(pool.pages);
        cr_assert_eq(memory_counters_get().live_count, live);
    }
    cr_assert_eq(n, 5);
    uint64_t before = memory_counters_get().live_bytes;
    page_pool_deinit(&pool);
    cr_assert_leq(before - memory_counters_get().live_bytes, 10 * page_pool_bytes_per_page());
}
