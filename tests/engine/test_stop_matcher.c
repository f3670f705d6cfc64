#include <criterion/criterion.h>
#include <string.h>

#include "base/random.h"
#include "engine/stop_matcher.h"

static struct stop_set make_set(const char *const *strings)
{
    struct stop_set set = {0};
    for (; *strings != NULL; strings++)
        cr_assert_eq(stop_set_add(&set, *strings, strlen(*strings), NULL), STATUS_OK);
    return set;
}

struct stop_case {
    const char *strings[4];
    const char *text;
    int end; /* -1: none ends */
    int index;
    size_t held; /* when none ends */
};

Test(stop_matcher, finds_the_first_that_ends)
{
    static const struct stop_case cases[] = {
        {{"b"}, "abc", 2, 0, 0},
        {{"abab"}, "abaabab", 7, 0, 0},
        {{"aab"}, "aaaab", 5, 0, 0},
        {{"xyz", "y"}, "wxyz", 3, 1, 0},
        {{"z", "yz", "xyz"}, "wxyz", 4, 2, 0}, /* together: the longest */
        {{"\n\n"}, "a\n", -1, 0, 1},
        {{"stop", "opera"}, "st-stope", 7, 0, 0},
        {{"stops", "opera"}, "a stope", -1, 0, 3},
        {{NULL}, "anything", -1, 0, 0},
        {{"\xE2\x80\xA6"}, "a\xE2\x80\xA6", 4, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct stop_case *c = &cases[i];
        size_t length = strlen(c->text);
        /* In one piece, and split at every place. */
        for (size_t split = 0; split <= length; split++) {
            struct stop_set set = make_set(c->strings);
            struct stop_state state = {0};
            size_t end = 0;
            int index = -1;
            bool found = stop_state_feed(&state, &set, c->text, split, &end, &index);
            if (!found &&
                stop_state_feed(&state, &set, c->text + split, length - split, &end, &index)) {
                found = true;
                end += split;
            }
            cr_expect_eq(found, c->end >= 0, "case %zu split %zu", i, split);
            if (found) {
                cr_expect_eq(end, (size_t)c->end, "case %zu: end %zu", i, end);
                cr_expect_eq(index, c->index, "case %zu: index %d", i, index);
            } else {
                cr_expect_eq(stop_state_held(&state, &set), c->held, "case %zu", i);
            }
            stop_set_deinit(&set);
        }
    }
}

/* The end of the earliest match, by trying every place. */
static size_t search_slowly(const char *text, size_t length, const char *const *strings)
{
    for (size_t end = 1; end <= length; end++) {
        for (const char *const *s = strings; *s != NULL; s++) {
            size_t size = strlen(*s);
            if (size <= end && memcmp(text + end - size, *s, size) == 0)
                return end;
        }
    }
    return 0;
}

Test(stop_matcher, agrees_with_a_slow_search)
{
    struct random random = {.seed = 11};
    for (int round = 0; round < 3000; round++) {
        char text[64], a[8] = "", b[8] = "";
        const char *const strings[] = {a, b, NULL};
        for (size_t i = 0; i < sizeof text; i++)
            text[i] = "ab"[random_below(&random, 2)];
        for (uint64_t i = 0; i < 3 + random_below(&random, 4); i++)
            a[i] = "ab"[random_below(&random, 2)];
        for (uint64_t i = 0; i < 3 + random_below(&random, 4); i++)
            b[i] = "ab"[random_below(&random, 2)];
        struct stop_set set = make_set(strings);
        struct stop_state state = {0};
        size_t end = 0;
        int index;
        stop_state_feed(&state, &set, text, sizeof text, &end, &index);
        cr_assert_eq(end, search_slowly(text, sizeof text, strings), "round %d", round);
        stop_set_deinit(&set);
    }
}

Test(stop_matcher, long_strings_take_linear_time)
{
    static char string[STOP_STRING_BYTES_MAX], text[1 << 20];
    memset(string, 'a', sizeof string);
    string[sizeof string - 1] = 'b';
    memset(text, 'a', sizeof text);
    struct stop_set set = {0};
    struct stop_state state = {0};
    size_t end;
    int index;
    cr_assert_eq(stop_set_add(&set, string, sizeof string, NULL), STATUS_OK);
    cr_expect(!stop_state_feed(&state, &set, text, sizeof text, &end, &index));
    cr_expect_eq(stop_state_held(&state, &set), sizeof string - 1);
    cr_expect(stop_state_feed(&state, &set, "b", 1, &end, &index));
    stop_set_deinit(&set);
}
