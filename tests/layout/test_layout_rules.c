/* Which layouts published models can have, and the sentence of each rule. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "layout/layout.h"
#include "model_shapes.h"

/* ---- Granules -------------------------------------------------------------------------------- */

static const struct {
    int64_t width, granules;
} widths[] = {{14336, 8}, {16384, 8}, {1408, 8}, {2560, 8}, {768, 8}, {128, 8}, {64, 4},  {192, 4},
              {96, 2},    {32, 2},    {48, 1},   {16, 1},   {80, 1},  {24, 1},  {40, 1},  {136, 1},
              {1, 1},     {15, 1},    {17, 1},   {160, 2},  {320, 4}, {640, 8}, {1024, 8}};

Test(layout_rules, granules)
{
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        cr_assert_eq(layout_granule_count(widths[i].width), widths[i].granules, "width %lld",
                     (long long)widths[i].width);
}

/* ---- Rules ----------------------------------------------------------------------------------- */

static struct layout layout_of(const char *text)
{
    struct error err;
    struct layout layout;
    cr_assert_eq(layout_parse(&layout, text, 0, &err), STATUS_OK, "%s", err.message);
    return layout;
}

static const struct {
    int model;
    const char *text;
    const char *sentence; /* NULL: legal */
} rules[] = {
    {MIXTRAL_8X7B, "tp8|ep8", NULL},
    {MIXTRAL_8X7B, "tp8|tp8", NULL},
    {MIXTRAL_8X7B, "tp4:rep|tp2ep2", NULL},
    {MIXTRAL_8X7B, "dp16|tp2ep8", NULL},
    {MIXTRAL_8X7B, "tp16|tp2ep8", "8 heads of keys and values cannot be cut 16 ways"},
    {MIXTRAL_8X7B, "dp16|ep16", "8 experts cannot be dealt evenly to 16 groups"},
    {MIXTRAL_8X7B, "dp16|tp16",
     "an expert's width of 14336 cannot be cut 16 ways: it has 8 granules of 1792"},
    {MIXTRAL_8X7B, "tp3|ep3", "32 query heads cannot be cut 3 ways"},
    {MIXTRAL_8X7B, "dp3|ep3", "8 experts cannot be dealt evenly to 3 groups"},
    {MIXTRAL_8X7B, "dp3|tp3",
     "an expert's width of 14336 cannot be cut 3 ways: it has 8 granules of 1792"},
    {MIXTRAL_8X22B, "tp3dp4|tp2ep6", "8 heads of keys and values cannot be cut 3 ways"},
    {QWEN15_MOE_A27B, "tp8|tp8", NULL},
    {QWEN15_MOE_A27B, "tp8|tp4ep2", NULL},
    {QWEN15_MOE_A27B, "tp8|tp2ep4", NULL},
    {QWEN15_MOE_A27B, "tp8|ep8", "60 experts cannot be dealt evenly to 8 groups"},
    {QWEN15_MOE_A27B, "tp16|tp4ep4", NULL},
    {QWEN15_MOE_A27B, "dp3|ep3", NULL},
    {QWEN15_MOE_A27B, "tp3|ep3", "16 query heads cannot be cut 3 ways"},
    {QWEN2_57B_A14B, "tp4|ep4", NULL},
    {QWEN2_57B_A14B, "tp4dp2|tp2ep4", NULL},
    {QWEN2_57B_A14B, "tp8|ep8", "28 query heads cannot be cut 8 ways"},
    {QWEN2_57B_A14B, "tp7|ep7", "4 heads of keys and values cannot be cut 7 ways"},
    {QWEN3_30B_A3B, "tp4dp4|ep16", NULL},
    {QWEN3_30B_A3B, "tp8|ep8", "4 heads of keys and values cannot be cut 8 ways"},
};

Test(layout_rules, of_published_models)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        struct error reason = {.message = ""};
        struct layout layout = layout_of(rules[i].text);
        const struct named_shape *model = &model_shapes[rules[i].model];
        enum status status = layout_check(&layout, &model->shape, &reason);
        if (rules[i].sentence == NULL) {
            cr_assert_eq(status, STATUS_OK, "%s: %s: %s", model->name, rules[i].text,
                         reason.message);
            continue;
        }
        cr_assert_eq(status, STATUS_UNSUPPORTED, "%s: %s", model->name, rules[i].text);
        cr_assert_str_eq(reason.message, rules[i].sentence, "%s: %s: %s", model->name,
                         rules[i].text, reason.message);
    }
}

/* A width that does not fill its blocks, or fills an odd number of them, is never cut. */
Test(layout_rules, of_narrow_experts)
{
    static const struct {
        int64_t width;
        const char *text;
        const char *sentence;
    } rows[] = {
        {24, "dp2|ep2", NULL},
        {40, "dp2|ep2", NULL},
        {24, "dp2|tp2", "an expert's width of 24 cannot be cut 2 ways: it is no multiple of 16"},
        {40, "dp2|tp2", "an expert's width of 40 cannot be cut 2 ways: it is no multiple of 16"},
        {48, "dp2|tp2", "an expert's width of 48 cannot be cut 2 ways: it has 1 granule of 48"},
        {48, "dp3|tp3", "an expert's width of 48 cannot be cut 3 ways: it has 1 granule of 48"},
        {96, "dp2|tp2", NULL},
        {96, "dp4|tp4", "an expert's width of 96 cannot be cut 4 ways: it has 2 granules of 48"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct error reason = {.message = ""};
        struct model_shape shape = model_shapes[MIXTRAL_8X7B].shape;
        struct layout layout = layout_of(rows[i].text);
        shape.expert_dim = rows[i].width;
        enum status status = layout_check(&layout, &shape, &reason);
        cr_assert_eq(status, rows[i].sentence == NULL ? STATUS_OK : STATUS_UNSUPPORTED, "%s of %d",
                     rows[i].text, (int)rows[i].width);
        cr_assert_str_eq(reason.message, rows[i].sentence == NULL ? "" : rows[i].sentence);
    }
}

/* ---- All pairs of degrees -------------------------------------------------------------------- */

Test(layout_rules, the_list_has_every_pair_once_in_order)
{
    for (int ranks = 1; ranks <= LAYOUT_RANKS_MAX; ranks++) {
        struct layout list[LAYOUT_LIST_MAX + 1];
        int divisors = 0, last = 0;
        memset(list, 0x55, sizeof list);
        for (int d = 1; d <= ranks; d++)
            divisors += ranks % d == 0;
        int count = layout_list(list, LAYOUT_LIST_MAX, ranks);
        cr_assert_eq(count, divisors * divisors, "%d ranks", ranks);
        cr_assert_leq(count, LAYOUT_LIST_MAX);
        for (int i = 0; i < count; i++) {
            int place = list[i].attention.tp * 100 + list[i].experts.tp;
            cr_assert_eq(list[i].rank_count, ranks);
            cr_assert_eq(list[i].attention.tp * list[i].attention.dp, ranks);
            cr_assert_eq(list[i].experts.tp * list[i].experts.ep, ranks);
            cr_assert_not(list[i].attention.replicate_ffn);
            cr_assert_gt(place, last, "%d ranks, entry %d", ranks, i);
            last = place;
        }
        cr_assert_eq(list[count].rank_count, 0x55555555, "%d ranks", ranks);
    }
}

Test(layout_rules, a_short_list_is_not_overrun)
{
    struct layout list[3] = {{.rank_count = 0}};
    cr_assert_eq(layout_list(NULL, 0, 8), 16);
    cr_assert_eq(layout_list(list, 2, 8), 16);
    cr_assert_eq(list[1].experts.tp, 2);
    cr_assert_eq(list[2].rank_count, 0);
}

/* ---- The baselines --------------------------------------------------------------------------- */

static const struct {
    int model, ranks;
    const char *tp, *ep; /* NULL: refused */
} baselines[] = {
    {MIXTRAL_8X7B, 1, "tp1|tp1", "tp1|tp1"},
    {MIXTRAL_8X7B, 2, "tp2|tp2", "tp2|ep2"},
    {MIXTRAL_8X7B, 3, NULL, NULL},
    {MIXTRAL_8X7B, 4, "tp4|tp4", "tp4|ep4"},
    {MIXTRAL_8X7B, 6, NULL, NULL},
    {MIXTRAL_8X7B, 8, "tp8|tp8", "tp8|ep8"},
    {MIXTRAL_8X7B, 16, "tp8dp2|tp8ep2", "tp8dp2|tp2ep8"},
    {MIXTRAL_8X22B, 8, "tp8|tp8", "tp8|ep8"},
    {MIXTRAL_8X22B, 16, "tp8dp2|tp8ep2", "tp8dp2|tp2ep8"},
    {QWEN15_MOE_A27B, 1, "tp1|tp1", "tp1|tp1"},
    {QWEN15_MOE_A27B, 2, "tp2|tp2", "tp2|ep2"},
    {QWEN15_MOE_A27B, 3, "dp3|ep3", "dp3|ep3"},
    {QWEN15_MOE_A27B, 4, "tp4|tp4", "tp4|ep4"},
    {QWEN15_MOE_A27B, 6, "tp2dp3|tp2ep3", "tp2dp3|ep6"},
    {QWEN15_MOE_A27B, 8, "tp8|tp8", "tp8|tp2ep4"},
    {QWEN15_MOE_A27B, 16, "tp16|tp8ep2", "tp16|tp4ep4"},
    {QWEN2_57B_A14B, 2, "tp2|tp2", "tp2|ep2"},
    {QWEN2_57B_A14B, 3, NULL, NULL},
    {QWEN2_57B_A14B, 4, "tp4|tp4", "tp4|ep4"},
    {QWEN2_57B_A14B, 6, NULL, NULL},
    {QWEN2_57B_A14B, 8, "tp4dp2|tp8", "tp4dp2|ep8"},
    {QWEN2_57B_A14B, 16, "tp4dp4|tp8ep2", "tp4dp4|ep16"},
    {QWEN3_30B_A3B, 3, NULL, NULL},
    {QWEN3_30B_A3B, 4, "tp4|tp4", "tp4|ep4"},
    {QWEN3_30B_A3B, 8, "tp4dp2|tp8", "tp4dp2|ep8"},
    {QWEN3_30B_A3B, 16, "tp4dp4|tp8ep2", "tp4dp4|ep16"},
};

typedef enum status baseline_fn(struct layout *out, const struct model_shape *shape, int rank_count,
                                struct error *reason);

static void check_baseline(baseline_fn *baseline, int model, int ranks, const char *expected)
{
    struct layout layout = {.rank_count = -7};
    struct error reason = {.message = ""};
    char text[LAYOUT_TEXT_BYTES];
    const struct named_shape *named = &model_shapes[model];
    enum status status = baseline(&layout, &named->shape, ranks, &reason);
    if (expected == NULL) {
        cr_assert_eq(status, STATUS_UNSUPPORTED, "%s on %d", named->name, ranks);
        cr_assert_eq(layout.rank_count, -7);
        cr_assert_neq(strstr(reason.message, "cannot lie on"), NULL, "%s", reason.message);
        return;
    }
    cr_assert_eq(status, STATUS_OK, "%s on %d: %s", named->name, ranks, reason.message);
    layout_format(text, &layout);
    cr_assert_str_eq(text, expected, "%s on %d: %s, expected %s", named->name, ranks, text,
                     expected);
    cr_assert_eq(layout_check(&layout, &named->shape, &reason), STATUS_OK);
}

Test(layout_rules, baselines)
{
    for (size_t i = 0; i < sizeof baselines / sizeof *baselines; i++) {
        check_baseline(layout_static_tp, baselines[i].model, baselines[i].ranks, baselines[i].tp);
        check_baseline(layout_static_ep, baselines[i].model, baselines[i].ranks, baselines[i].ep);
    }
}

/* A baseline is there exactly where some pair of degrees is legal. */
Test(layout_rules, a_baseline_is_refused_only_where_nothing_is_legal)
{
    for (int model = 0; model < MODEL_SHAPE_COUNT; model++) {
        for (int ranks = 1; ranks <= 32; ranks++) {
            const struct model_shape *shape = &model_shapes[model].shape;
            struct layout list[LAYOUT_LIST_MAX], layout;
            int legal = 0, count = layout_list(list, LAYOUT_LIST_MAX, ranks);
            for (int i = 0; i < count; i++)
                legal += layout_check(&list[i], shape, NULL) == STATUS_OK;
            cr_assert_eq(layout_static_tp(&layout, shape, ranks, NULL) == STATUS_OK, legal > 0);
            cr_assert_eq(layout_static_ep(&layout, shape, ranks, NULL) == STATUS_OK, legal > 0);
        }
    }
}

Test(layout_rules, the_sentence_where_nothing_is_legal)
{
    struct layout layout;
    struct error reason;
    cr_assert_eq(layout_static_ep(&layout, &model_shapes[MIXTRAL_8X7B].shape, 6, &reason),
                 STATUS_UNSUPPORTED);
    cr_assert_str_eq(reason.message, "8 experts of 8 granules cannot lie on 6 devices: no two "
                                     "factors of 6 divide them");
}

/* ---- The whole, to be read ------------------------------------------------------------------- */

#define LIST_FILE TEST_DATA "/layout/layouts.txt"

static void append_layouts(struct text *to, const struct named_shape *model, int ranks)
{
    struct layout list[LAYOUT_LIST_MAX];
    int count = layout_list(list, LAYOUT_LIST_MAX, ranks);
    text_append_format(to, "%s on %d\n", model->name, ranks);
    for (int i = 0; i < count; i++) {
        char name[LAYOUT_TEXT_BYTES];
        struct error reason;
        layout_format(name, &list[i]);
        if (layout_check(&list[i], &model->shape, &reason) == STATUS_OK)
            text_append_format(to, "  %s\n", name);
        else
            text_append_format(to, "  %-16s no: %s\n", name, reason.message);
    }
}

static char *read_file(const char *path)
{
    static char bytes[64 * 1024];
    FILE *file = fopen(path, "rb");
    cr_assert_neq(file, NULL, "%s cannot be read", path);
    size_t length = fread(bytes, 1, sizeof bytes - 1, file);
    fclose(file);
    bytes[length] = 0;
    return bytes;
}

/* tests/data/layout/layouts.txt is what a reader sees of the rules; a change of them is a change of
 * that file. On a difference the new list is printed. */
Test(layout_rules, the_list_of_published_models)
{
    static const int rank_counts[] = {1, 2, 4, 8};
    struct text text = {0};
    for (int model = 0; model < MODEL_SHAPE_COUNT; model++) {
        for (int i = 0; i < 4; i++)
            append_layouts(&text, &model_shapes[model], rank_counts[i]);
    }
    cr_assert_not(text.failed);
    bool is_same = strcmp(text.bytes, read_file(LIST_FILE)) == 0;
    if (!is_same)
        fputs(text.bytes, stdout);
    text_deinit(&text);
    cr_assert(is_same, "%s is not the list that was printed", LIST_FILE);
}

/* ---- Plans ----------------------------------------------------------------------------------- */

static const struct {
    const char *plan;
    const char *reason; /* "": legal */
} plans_of_60_experts[] = {
    {"dp4|ep4>tp4", ""},
    {"tp4|tp2ep2>tp4", ""},
    {"dp8|tp2ep4>ep8", "in decode: 60 experts cannot be dealt evenly to 8 groups"},
    {"dp8|ep8>tp8", "in prefill: 60 experts cannot be dealt evenly to 8 groups"},
    {"dp8|ep8", "60 experts cannot be dealt evenly to 8 groups"},
    {"tp4|tp4>tp4:int4", ""},
};

/* Of packed decode. */
Test(layout_rules, int4_needs_experts_that_can_be)
{
    static const struct {
        int64_t layers, experts, width, hidden;
        const char *reason;
    } rows[] = {
        {2, 8, 128, 64, ""},
        {0, 0, 0, 64, ":int4 is of routed experts, and this model has none"},
        {0, 8, 128, 64, ":int4 is of routed experts, and this model has none"}, /* all are dense */
        {2, 8, 24, 64, "experts of 24 x 64 cannot be INT4 (:int4): both must be multiples of 16"},
        {2, 8, 128, 40, "experts of 128 x 40 cannot be INT4 (:int4): both must be multiples of 16"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct model_shape shape = {.head_count = 8,
                                    .kv_head_count = 8,
                                    .hidden_dim = rows[i].hidden,
                                    .moe_layer_count = rows[i].layers,
                                    .expert_count = rows[i].experts,
                                    .expert_dim = rows[i].width};
        struct plan_layouts plan;
        struct error err = {.message = ""};
        cr_assert_eq(plan_layouts_parse(&plan, "tp1|tp1>tp1:int4", 0, &err), STATUS_OK);
        cr_assert_eq(plan_layouts_check(&plan, &shape, &err),
                     rows[i].reason[0] == 0 ? STATUS_OK : STATUS_UNSUPPORTED);
        cr_assert_str_eq(err.message, rows[i].reason);
        plan.decode_is_packed = false;
        cr_assert_eq(plan_layouts_check(&plan, &shape, &err), STATUS_OK);
    }
}

Test(layout_rules, both_layouts_of_a_plan_are_legal)
{
    const struct model_shape *shape = &model_shapes[QWEN15_MOE_A27B].shape;
    for (size_t i = 0; i < sizeof plans_of_60_experts / sizeof *plans_of_60_experts; i++) {
        const char *reason = plans_of_60_experts[i].reason;
        struct plan_layouts plan;
        struct error err = {.message = ""};
        cr_assert_eq(plan_layouts_parse(&plan, plans_of_60_experts[i].plan, 0, &err), STATUS_OK);
        cr_assert_eq(plan_layouts_check(&plan, shape, &err),
                     reason[0] == 0 ? STATUS_OK : STATUS_UNSUPPORTED);
        cr_assert_str_eq(err.message, reason);
    }
}
