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

/* ---- Plans of two layouts -------------------------------------------------------------------- */

/* Plans, the layouts of their phases, and the form that plan_layouts_format gives; "": the text. */
static const struct {
    const char *text;
    int ranks;
    const char *prefill, *decode;
    bool differs;
    const char *canonical;
} plans[] = {
    {"dp4|ep4>tp4", 4, "dp4|ep4", "dp4|tp4", true, ""},
    {"tp2dp2|tp2ep2>tp4", 4, "tp2dp2|tp2ep2", "tp2dp2|tp4", true, ""},
    {"tp4:rep|ep4>tp2ep2", 4, "tp4:rep|ep4", "tp4:rep|tp2ep2", true, ""},
    {"tp16dp4:rep|tp4ep16>tp16ep4", 64, "tp16dp4:rep|tp4ep16", "tp16dp4:rep|tp16ep4", true, ""},
    {"tp1dp4|tp1ep4>tp4ep1", 4, "dp4|ep4", "dp4|tp4", true, "dp4|ep4>tp4"},
    {"dp4|ep4>ep4", 4, "dp4|ep4", "dp4|ep4", false, "dp4|ep4"},
    {"dp4|ep4>tp1ep4", 4, "dp4|ep4", "dp4|ep4", false, "dp4|ep4"},
    {"tp1|tp1>ep1", 1, "tp1|tp1", "tp1|tp1", false, "tp1|tp1"},
    {"tp4|tp4", 4, "tp4|tp4", "tp4|tp4", false, ""},
    {"dp4|ep4>tp4:int4", 4, "dp4|ep4", "dp4|tp4", true, ""},
    {"tp4|tp4>tp4:int4", 4, "tp4|tp4", "tp4|tp4", true, ""},
    {"tp1|tp1>tp1:int4", 1, "tp1|tp1", "tp1|tp1", true, ""},
    {"tp16dp4:rep|tp4ep16>tp16ep4:int4", 64, "tp16dp4:rep|tp4ep16", "tp16dp4:rep|tp16ep4", true,
     ""},
    {"dp4|tp1ep4>tp4ep1:int4", 4, "dp4|ep4", "dp4|tp4", true, "dp4|ep4>tp4:int4"},
};

Test(layout_text, plans_have_a_layout_for_each_phase)
{
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        struct plan_layouts plan, again;
        struct layout expected[PHASE_COUNT];
        struct error err;
        char text[LAYOUT_TEXT_BYTES];
        const char *canonical = plans[i].canonical[0] ? plans[i].canonical : plans[i].text;
        cr_assert_eq(layout_parse(&expected[PHASE_PREFILL], plans[i].prefill, 0, &err), STATUS_OK);
        cr_assert_eq(layout_parse(&expected[PHASE_DECODE], plans[i].decode, 0, &err), STATUS_OK);
        for (int ranks = 0; ranks <= plans[i].ranks; ranks += plans[i].ranks) {
            cr_assert_eq(plan_layouts_parse(&plan, plans[i].text, ranks, &err), STATUS_OK, "%s",
                         plans[i].text);
            for (int phase = 0; phase < PHASE_COUNT; phase++)
                cr_assert(layouts_equal(&plan.of[phase], &expected[phase]), "%s", plans[i].text);
        }
        cr_assert_eq(plan_layouts_differ(&plan), plans[i].differs);
        cr_assert_eq(plan.decode_is_packed, strstr(plans[i].text, ":int4") != NULL);
        plan_layouts_format(text, &plan);
        cr_assert_str_eq(text, canonical);
        cr_assert_eq(plan_layouts_parse(&again, text, 0, &err), STATUS_OK, "%s", text);
        cr_assert(layouts_equal(&again.of[PHASE_DECODE], &plan.of[PHASE_DECODE]), "%s", text);
        cr_assert_eq(again.decode_is_packed, plan.decode_is_packed, "%s", text);
        bool is_one = strchr(plans[i].text, '>') == NULL;
        if (!is_one)
            check_refused(plans[i].text, 0, STATUS_INVALID_ARGUMENT, "one for both is expected");
    }
}

static const struct {
    const char *text;
    int ranks;
    enum status status;
    const char *fragment;
} no_plans[] = {
    {"dp4|ep4>", 4, STATUS_INVALID_ARGUMENT, "ATTENTION|EXPERTS>EXPERTS"},
    {"dp4|>tp4", 4, STATUS_INVALID_ARGUMENT, "ATTENTION|EXPERTS>EXPERTS"},
    {"dp4|ep4>nonsense", 4, STATUS_INVALID_ARGUMENT, "ATTENTION|EXPERTS>EXPERTS"},
    {"dp4|ep4>dp4", 4, STATUS_INVALID_ARGUMENT, "ATTENTION|EXPERTS>EXPERTS"},
    {"dp4|ep4>ep2tp2", 4, STATUS_INVALID_ARGUMENT, "ATTENTION|EXPERTS>EXPERTS"},
    {"dp4|ep4>tp4>ep4", 4, STATUS_INVALID_ARGUMENT, "ATTENTION|EXPERTS>EXPERTS"},
    {"dp4|ep4>>tp4", 4, STATUS_INVALID_ARGUMENT, "ATTENTION|EXPERTS>EXPERTS"},
    {"dp4|ep4 > tp4", 4, STATUS_INVALID_ARGUMENT, "ATTENTION|EXPERTS>EXPERTS"},
    {"dp4|ep4>tp4:rep", 4, STATUS_INVALID_ARGUMENT, "ATTENTION|EXPERTS>EXPERTS"},
    {"dp4|ep4:int4>tp4", 4, STATUS_INVALID_ARGUMENT, "ATTENTION|EXPERTS>EXPERTS"},
    {"dp4|ep4>tp4:int8", 4, STATUS_INVALID_ARGUMENT, "ATTENTION|EXPERTS>EXPERTS"},
    {"dp4|ep4>tp4:int4:int4", 4, STATUS_INVALID_ARGUMENT, "ATTENTION|EXPERTS>EXPERTS"},
    {"dp4|ep4>tp2", 4, STATUS_INVALID_ARGUMENT, "attention over 4 devices and experts over 2"},
    {"dp4|ep4>tp8", 0, STATUS_INVALID_ARGUMENT, "attention over 4 devices and experts over 8"},
    {"dp4|ep4>tp4", 8, STATUS_INVALID_ARGUMENT, "both must lie over 8"},
    {"dp4|ep4>tp2:int4", 4, STATUS_INVALID_ARGUMENT, "experts over 2"},
    {"tp65|ep65>tp65", 0, STATUS_INVALID_ARGUMENT, "is for 65 devices"},
    {"dp4|ep4>:int4", 4, STATUS_INVALID_ARGUMENT, "or dp4|ep4>tp4:int4"},
    {"tp4|tp4:int4", 4, STATUS_INVALID_ARGUMENT, "ATTENTION|EXPERTS>EXPERTS"},
};

Test(layout_text, what_is_no_plan_is_refused)
{
    for (size_t i = 0; i < sizeof no_plans / sizeof *no_plans; i++) {
        struct plan_layouts plan = {.of[PHASE_DECODE].rank_count = -7};
        struct error err = {.message = ""};
        cr_assert_eq(plan_layouts_parse(&plan, no_plans[i].text, no_plans[i].ranks, &err),
                     no_plans[i].status, "%s: %s", no_plans[i].text, err.message);
        cr_assert_not_null(strstr(err.message, no_plans[i].fragment), "%s: %s", no_plans[i].text,
                           err.message);
        cr_assert_eq(plan.of[PHASE_DECODE].rank_count, -7);
    }
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
    struct plan_layouts plan, again;
    struct error err = {.message = ""};
    char canonical[LAYOUT_TEXT_BYTES];
    enum status status = plan_layouts_parse(&plan, text, ranks, &err);
    if (status != STATUS_OK) {
        cr_assert_eq(status, STATUS_INVALID_ARGUMENT, "%s (seed %llu)", text,
                     (unsigned long long)seed);
        cr_assert_str_not_empty(err.message);
        return false;
    }
    plan_layouts_format(canonical, &plan);
    cr_assert_eq(plan_layouts_parse(&again, canonical, 0, &err), STATUS_OK, "%s", canonical);
    cr_assert_eq(again.decode_is_packed, plan.decode_is_packed, "%s", canonical);
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        const struct layout *layout = &plan.of[phase];
        cr_assert_eq(layout->rank_count, ranks);
        cr_assert_eq(layout->attention.tp * layout->attention.dp, ranks);
        cr_assert_eq(layout->experts.tp * layout->experts.ep, ranks);
        cr_assert(layouts_equal(&again.of[phase], layout), "%s (seed %llu)", text,
                  (unsigned long long)seed);
    }
    return true;
}

Test(layout_text, mutants_are_refused_or_mean_what_they_say)
{
    const char *text_seed = getenv("PHASOR_TEST_SEED");
    struct random random = {.seed = text_seed == NULL ? 0 : strtoull(text_seed, NULL, 10)};
    int accepted = 0;
    for (int i = 0; i < 50000; i++) {
        size_t form_count = sizeof forms / sizeof *forms, plan_count = sizeof plans / sizeof *plans;
        size_t form = (size_t)random_below(&random, form_count + plan_count);
        bool is_form = form < form_count;
        char text[128];
        strcpy(text, is_form ? forms[form].text : plans[form - form_count].text);
        mutate(text, &random);
        accepted += check_mutant(text, is_form ? forms[form].ranks : plans[form - form_count].ranks,
                                 random.seed);
    }
    cr_assert(accepted > 0 && accepted < 25000, "%d accepted", accepted);
}
