/* What prompts find of those before them: against all of these, token by token. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "engine/prefix_set.h"

TestSuite(prefix_set, .timeout = 60);

static uint64_t test_seed(void)
{
    const char *seed = getenv("PHASOR_TEST_SEED");
    return seed == NULL ? 0 : strtoull(seed, NULL, 10);
}

static struct prefix_share add(struct prefix_set *set, const int32_t *prompt, int64_t count)
{
    struct prefix_share share;
    struct error err;
    cr_assert_eq(prefix_set_add(set, &share, prompt, count, &err), STATUS_OK, "%s", err.message);
    return share;
}

#define PROMPTS    200
#define PROMPT_MAX (6 * KV_PAGE_TOKENS)

struct prompt {
    int32_t ids[PROMPT_MAX];
    int64_t count;
};

static bool begins_alike(const struct prompt *one, const struct prompt *other, int64_t pages)
{
    int64_t count = pages * KV_PAGE_TOKENS;
    return one->count >= count && other->count >= count &&
           memcmp(one->ids, other->ids, (size_t)count * sizeof *one->ids) == 0;
}

/* Pages of prompt `at` that a prompt before it has. */
static int64_t pages_found(const struct prompt *prompts, int at)
{
    int64_t most = prefix_findable(prompts[at].count) / KV_PAGE_TOKENS, found = 0;
    for (int i = 0; i < at; i++) {
        while (found < most && begins_alike(&prompts[i], &prompts[at], found + 1))
            found++;
    }
    return found;
}

/* Whether one in between has found the page before. */
static bool was_lent(const struct prompt *prompts, int at, int64_t page)
{
    for (int i = 0; i < at; i++) {
        if (pages_found(prompts, i) > page && begins_alike(&prompts[i], &prompts[at], page + 1))
            return true;
    }
    return false;
}

Test(prefix_set, finds_what_prompts_before_begin_with)
{
    static struct prompt prompts[PROMPTS];
    struct random random = {.seed = test_seed()};
    struct prefix_set set = {0};
    for (int p = 0; p < PROMPTS; p++) {
        struct prompt *prompt = &prompts[p];
        prompt->count = 1 + (int64_t)random_below(&random, PROMPT_MAX);
        if (random_below(&random, 4) == 0)
            prompt->count = (prompt->count + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS * KV_PAGE_TOKENS;
        for (int64_t t = 0; t < prompt->count; t++) /* of two pages each may stand at its place */
            prompt->ids[t] =
                t % KV_PAGE_TOKENS == 0 ? (int32_t)random_below(&random, 2) : (int32_t)t;
        struct prefix_share share = add(&set, prompt->ids, prompt->count);
        int64_t found = pages_found(prompts, p), lent = 0;
        for (int64_t page = 0; page < found; page++)
            lent += !was_lent(prompts, p, page);
        cr_assert_eq(share.found, found * KV_PAGE_TOKENS, "prompt %d", p);
        cr_assert_eq(share.lent, lent * KV_PAGE_TOKENS, "prompt %d", p);
    }
    prefix_set_deinit(&set);
}

/* The same page behind another one is another page. */
Test(prefix_set, a_page_is_known_by_those_before_it)
{
    struct prompt one = {.count = 3 * KV_PAGE_TOKENS}, other = {.count = 3 * KV_PAGE_TOKENS};
    struct prefix_set set = {0};
    other.ids[0] = 1;
    add(&set, one.ids, one.count);
    cr_assert_eq(add(&set, other.ids, other.count).found, 0);
    cr_assert_eq(add(&set, one.ids, one.count).found, 2 * KV_PAGE_TOKENS, "but for its last token");
    prefix_set_deinit(&set);
}

/* More pages than are kept: those that came first are still found, and memory has an end. */
Test(prefix_set, is_bounded)
{
    int64_t count = ((int64_t)PREFIX_SET_PAGES_MAX + 5000) * KV_PAGE_TOKENS + 1;
    struct prefix_set set = {0};
    struct error err;
    int32_t *prompt;
    cr_assert_eq(memory_get((void **)&prompt, (size_t)count, sizeof *prompt, "a prompt", &err),
                 STATUS_OK);
    for (int64_t t = 0; t < count; t += KV_PAGE_TOKENS)
        prompt[t] = (int32_t)t;
    cr_assert_eq(add(&set, prompt, count).found, 0);
    cr_assert_leq(set.count, PREFIX_SET_PAGES_MAX);
    cr_assert_leq(set.capacity, 2 * PREFIX_SET_PAGES_MAX);
    struct prefix_share share = add(&set, prompt, count);
    cr_assert_eq(share.found, (int64_t)set.count * KV_PAGE_TOKENS);
    cr_assert_gt(set.count, PREFIX_SET_PAGES_MAX / 2);
    cr_assert_eq(add(&set, prompt, 1001).found, 1000 / KV_PAGE_TOKENS * KV_PAGE_TOKENS);
    prefix_set_deinit(&set);
    memory_free(prompt);
}
