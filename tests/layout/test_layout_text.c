/* Layouts as text: every form, and every text that is none. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "layout/layout.h"

static bool layouts_equal(const struct layout *a, const struct layout *b)
{
    return a->rank_count == b->rank_count && a->attention.tp == b->attention.tp &&
           a->attention.dp == b->attention.dp &&
           a->attention.replicate_ffn == b->attention.replicate_ffn &&
           a->experts.tp == b->experts.tp && a->experts.ep == b->experts.ep;
}

/* Degrees of each form, and the form that layout_format gives; "" where it is the text itself. */
static const struct {
    const char *text;
    int ranks, at, ad, et, ee;
    bool replicate_ffn;
    const char *canonical;
} forms[] = {
    {"tp1|tp1", 1, 1, 1, 1, 1, false, ""},
    {"dp1|ep1", 1, 1, 1, 1, 1, false, "tp1|tp1"},
    {"tp1dp1|tp1ep1", 1, 1, 1, 1, 1, false, "tp1|tp1"},
    {"tp1:rep|tp1", 1, 1, 1, 1, 1, true, ""},
    {"tp4|tp4", 4, 4, 1, 4, 1, false, ""},
    {"tp4|ep4", 4, 4, 1, 1, 4, false, ""},
    {"dp4|ep4", 4, 1, 4, 1, 4, false, ""},
    {"dp4|tp4", 4, 1, 4, 4, 1, false, ""},
    {"tp2dp2|tp2ep2", 4, 2, 2, 2, 2, false, ""},
    {"tp4:rep|ep4", 4, 4, 1, 1, 4, true, ""},
    {"tp2dp2:rep|tp4", 4, 2, 2, 4, 1, true, ""},
    {"dp4:rep|tp4", 4, 1, 4, 4, 1, true, ""},
    {"tp1dp4|tp4ep1", 4, 1, 4, 4, 1, false, "dp4|tp4"},
    {"tp4dp1|tp1ep4", 4, 4, 1, 1, 4, false, "tp4|ep4"},
    {"tp3dp2|tp2ep3", 6, 3, 2, 2, 3, false, ""},
    {"tp12|ep12", 12, 12, 1, 1, 12, false, ""},
    {"tp64|ep64", 64, 64, 1, 1, 64, false, ""},
    {"tp16dp4:rep|tp4ep16", 64, 16, 4, 4, 16, true, ""},
};

Test(layout_text, every_form_is_read)
{
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        struct layout expected = {.rank_count = forms[i].ranks,
                                  .attention = {forms[i].at, forms[i].ad, forms[i].replicate_ffn},
                                  .experts = {forms[i].et, forms[i].ee}};
        struct error err;
        struct layout layout;
        char text[LAYOUT_TEXT_BYTES];
        cr_assert_eq(layout_parse(&layout, forms[i].text, forms[i].ranks, &err), STATUS_OK, "%s",
                     forms[i].text);
        cr_assert(layouts_equal(&layout, &expected), "%s", forms[i].text);
        cr_assert_eq(layout_parse(&layout, forms[i].text, 0, &err), STATUS_OK, "%s", forms[i].text);
        cr_assert(layouts_equal(&layout, &expected), "%s, ranks from the text", forms[i].text);
        layout_format(text, &layout);
        cr_assert_str_eq(text, forms[i].canonical[0] ? forms[i].canonical : forms[i].text);
    }
}

Test(layout_text, all_layouts_come_back)
{
    for (int ranks = 1; ranks <= 16; ranks++) {
        struct layout list[LAYOUT_LIST_MAX], read;
        int count = layout_list(list, LAYOUT_LIST_MAX, ranks);
        for (int i = 0; i < 2 * count; i++) {
            struct layout *layout = &list[i / 2];
            char text[LAYOUT_TEXT_BYTES], again[LAYOUT_TEXT_BYTES];
            struct error err;
            layout->attention.replicate_ffn = i % 2 == 1;
            layout_format(text, layout);
            cr_assert_eq(layout_parse(&read, text, ranks, &err), STATUS_OK, "%s", text);
            cr_assert(layouts_equal(&read, layout), "%s", text);
            layout_format(again, &read);
            cr_assert_str_eq(again, text);
        }
    }
}

/* Refused, each with a sentence that holds the fragment; and nothing is written. */
static void check_refused(const char *text, int ranks, enum status status, const char *fragment)
{
    struct layout layout = {.rank_count = -7};
    struct error err = {.message = ""};
    cr_assert_eq(layout_parse(&layout, text, ranks, &err), status, "%.60s: %s", text, err.message);
    cr_assert_eq(err.status, status);
    cr_assert_neq(strstr(err.message, fragment), NULL, "%.60s: %s", text, err.message);
    cr_assert_eq(layout.rank_count, -7, "%.60s", text);
}

static const char *const no_forms[] = {
    "",
    "|",
    "||",
    "tp4",
    "tp4|",
    "|ep4",
    "tp4||ep4",
    "tp4|ep4|",
    "tp4|ep4|x",
    "tp4|ep4|ep4",
    "tp4|ep4x",
    "tp4|ep4 ",
    " tp4|ep4",
    "tp4 |ep4",
    "tp4| ep4",
    "tp 4|ep4",
    "tp4|ep4\n",
    "tp4,ep4",
    "TP4|EP4",
    "tp|ep",
    "tp|ep4",
    "tp4|ep",
    "tpdp4|ep4",
    "tp4|tpep4",
    "tp4dp|ep4",
    "tp4ep1|tp4", /* experts' word in the attention */
    "tp4|tp4dp1", /* and the attention's in the experts */
    "dp2tp2|ep4", /* one spelling: tp first */
    "tp4|ep2tp2",
    "tp2tp2|ep4",
    "tp2dp2dp1|ep4",
    "tp0|ep4",
    "tp4|ep0",
    "tp4dp0|ep4",
    "tp-1|ep4",
    "tp-4|ep-4",
    "tp+4|ep4",
    "tp04|ep4",
    "tp4|ep04",
    "tp4.0|ep4",
    "tp4e0|ep4",
    "tp0x4|ep4",
    "tp100|ep100",
    "tp4294967300|ep4",
    "tp99999999999999999999999999999999999999|ep4",
    "tp4|ep18446744073709551620",
    "tp4:|ep4",
    "tp4:re|ep4",
    "tp4:repeat|ep4",
    "tp4:rep:rep|ep4",
    "tp4|ep4:rep",
    "tp4|ep4:int4", /* of a decode layout behind > only */
    ":rep|ep4",
    "tp4>ep4",
    ">",
    "tp4|>tp4",
    "tp4\xff|ep4",
    "\xf0\x9f\x98\x80|\xf0\x9f\x98\x80",
};

Test(layout_text, what_is_no_layout_is_refused)
{
    for (size_t i = 0; i < sizeof no_forms / sizeof *no_forms; i++) {
        check_refused(no_forms[i], 4, STATUS_INVALID_ARGUMENT, "ATTENTION|EXPERTS");
        check_refused(no_forms[i], 0, STATUS_INVALID_ARGUMENT, "ATTENTION|EXPERTS");
    }
}

Test(layout_text, the_sentence_quotes_the_text)
{
    check_refused("tp4|ep4|x", 4, STATUS_INVALID_ARGUMENT, "\"tp4|ep4|x\" is not");
    check_refused("tp4\xff\x1b[2J|ep4", 4, STATUS_INVALID_ARGUMENT, "\"tp4??[2J|ep4\" is not");
    check_refused("0123456789012345678901234567890123456789", 4, STATUS_INVALID_ARGUMENT,
                  "\"0123456789012345678901234567890123456789\" is not");
    check_refused("0123456789012345678901234567890123456789A", 4, STATUS_INVALID_ARGUMENT,
                  "\"0123456789012345678901234567890123456789...\" is not");
}

static const struct {
    const char *text;
    int ranks;
    const char *fragment;
} wrong_products[] = {
    {"tp4|ep4", 8, "attention over 4 devices and experts over 4; both must lie over 8"},
    {"tp4|ep2", 4, "attention over 4 devices and experts over 2; both must lie over 4"},
    {"tp2|ep4", 4, "attention over 2 devices and experts over 4; both must lie over 4"},
    {"tp1|tp1", 2, "over 2"},
    {"tp2dp2|ep4", 3, "over 3"},
    {"tp4|tp4ep4", 4, "experts over 16"},
    {"tp99dp99|ep4", 4, "attention over 9801"},
    {"tp4|ep2", 0, "over 4 devices and experts over 2; both must lie over the same number"},
    {"tp1|ep2", 0, "the same number"},
    {"tp65|ep65", 0, "is for 65 devices, and phasor takes at most 64"},
    {"tp99dp99|tp99ep99", 0, "is for 9801 devices"},
};

Test(layout_text, degrees_multiply_to_the_ranks)
{
    for (size_t i = 0; i < sizeof wrong_products / sizeof *wrong_products; i++)
        check_refused(wrong_products[i].text, wrong_products[i].ranks, STATUS_INVALID_ARGUMENT,
                      wrong_products[i].fragment);
}

Test(layout_text, a_transition_is_not_supported_yet)
{
    static const char *const texts[] = {"dp4|ep4>tp4", "tp4|tp4>tp4:int4", "tp4|ep4>",
                                        "tp4|ep4>nonsense", "tp2dp2:rep|tp2ep2>ep4"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        check_refused(texts[i], 4, STATUS_UNSUPPORTED, "between prefill and decode");
}

Test(layout_text, a_long_text_is_refused_in_short)
{
    static const char *const beginnings[] = {"", "tp4|ep4", "tp4|ep4|", "tp"};
    size_t length = 1024 * 1024;
    char *text = malloc(length + 1);
    cr_assert_neq(text, NULL);
    for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++) {
        memset(text, '4', length);
        memcpy(text, beginnings[i], strlen(beginnings[i]));
        text[length] = 0;
        check_refused(text, 4, STATUS_INVALID_ARGUMENT, "4444...\" is not of the form");
    }
    free(text);
}

/* ---- Mutations ------------------------------------------------------------------------------- */

/* A few characters of a good text removed, doubled or replaced. */
static void mutate(char *text, struct random *random)
{
    static const char alphabet[] = "tpde|:>re0123456789 -\xff";
    for (uint64_t i = 1 + random_below(random, 3); i > 0; i--) {
        size_t length = strlen(text), at = (size_t)random_below(random, length + 1);
        char *behind = text + at;
        uint64_t kind = random_below(random, 3);
        if (kind == 0 && at < length)
            memmove(behind, behind + 1, length - at);
        else if (kind == 1 && length < 50)
            memmove(behind + 1, behind, length - at + 1);
        if (kind != 0 && *behind != 0)
            *behind = alphabet[random_below(random, sizeof alphabet - 1)];
    }
}

/* What is accepted has the ranks that were asked for and comes back from its own text; what is
 * refused has a sentence. */
static bool check_mutant(const char *text, int ranks, uint64_t seed)
{
    struct layout layout, again;
    struct error err = {.message = ""};
    char canonical[LAYOUT_TEXT_BYTES];
    enum status status = layout_parse(&layout, text, ranks, &err);
    if (status != STATUS_OK) {
        cr_assert(status == STATUS_INVALID_ARGUMENT ||
                      (status == STATUS_UNSUPPORTED && strchr(text, '>') != NULL),
                  "%s (seed %llu)", text, (unsigned long long)seed);
        cr_assert_str_not_empty(err.message);
        return false;
    }
    cr_assert_eq(layout.rank_count, ranks);
    cr_assert_eq(layout.attention.tp * layout.attention.dp, ranks);
    cr_assert_eq(layout.experts.tp * layout.experts.ep, ranks);
    layout_format(canonical, &layout);
    cr_assert_eq(layout_parse(&again, canonical, 0, &err), STATUS_OK, "%s", canonical);
    cr_assert(layouts_equal(&again, &layout), "%s (seed %llu)", text, (unsigned long long)seed);
    return true;
}

Test(layout_text, mutants_are_refused_or_mean_what_they_say)
{
    const char *text_seed = getenv("PHASOR_TEST_SEED");
    struct random random = {.seed = text_seed == NULL ? 0 : strtoull(text_seed, NULL, 10)};
    int accepted = 0;
    for (int i = 0; i < 50000; i++) {
        size_t form = (size_t)random_below(&random, sizeof forms / sizeof *forms);
        char text[128];
        strcpy(text, forms[form].text);
        mutate(text, &random);
        accepted += check_mutant(text, forms[form].ranks, random.seed);
    }
    cr_assert(accepted > 0 && accepted < 25000, "%d accepted", accepted);
}
