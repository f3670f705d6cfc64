/* Costs are of the bytes that layouts move; what does not fit is told; the best is chosen (against
 * an integer program: test_program.c). */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "layout/traffic.h"
#include "model_shapes.h"
#include "problems.h"

TestSuite(planner, .timeout = 280);

static uint64_t test_seed(void)
{
    const char *seed = getenv("PHASOR_TEST_SEED");
    return seed == NULL ? 0 : strtoull(seed, NULL, 10);
}

static struct layout layout_of(const char *text)
{
    struct error err;
    struct layout layout;
    cr_assert_eq(layout_parse(&layout, text, 0, &err), STATUS_OK, "%s", err.message);
    return layout;
}

/* ---- Costs ----------------------------------------------------------------------------------- */

/* Seconds are bytes here: what each exchange is priced with is what leaves a rank of it, as the
 * formulas of traffic.h have it for rows that are dealt evenly. */
static void check_exchanges(const char *text, enum layer_form form)
{
    struct test_problem test;
    const struct model_shape *shape = &model_shapes[MIXTRAL_8X7B].shape;
    struct layout layout = layout_of(text);
    problem_simple(&test, shape, &(struct simple_box){layout.rank_count, INFINITY, INFINITY, 1, 0});
    int64_t own[8], sent[64], rows = 56 * 64;
    struct traffic_pass pass = {form, own, 4096 * 4};
    struct traffic_bytes bytes = {{{0}}};
    for (int rank = 0; rank < layout.rank_count; rank++)
        own[rank] = form == FORM_REPLICATED ? rows : rows / layout.rank_count;
    /* 8 experts in 2, 4 or 8 groups: 11/14, 13/28, 1/4 of all tokens go to each. */
    double chance = layout.experts.ep == 2   ? 11.0 / 14
                    : layout.experts.ep == 4 ? 13.0 / 28
                                             : 1.0 / 4;
    for (int i = 0; i < layout.rank_count * layout.experts.ep; i++)
        sent[i] = (int64_t)((double)own[0] * chance + 0.5);
    traffic_attention(&bytes, &layout, &pass);
    traffic_experts(&bytes, &layout, shape, &pass, sent);
    struct pass_shape asked = {.form = form, .rows = (double)rows, .pairs = 1, .seen = 1};
    struct routing routing = {0};
    struct pass_cost cost =
        pass_cost(&test.profile, shape, &layout, &test.problem.types, &routing, &asked);
    double imbalance = form == FORM_OWNED ? routing_imbalance(&routing, shape, PHASE_PREFILL,
                                                              layout.experts.ep, 2.0 * (double)rows)
                                          : 1;
    for (int kind = TRAFFIC_ATTENTION_GATHER; kind < TRAFFIC_FFN_GATHER; kind++) {
        double expected = (double)bytes.bytes[0][kind] * (double)shape->layer_count;
        bool is_of_experts = kind != TRAFFIC_ATTENTION_GATHER && kind != TRAFFIC_ATTENTION_REDUCE &&
                             kind != TRAFFIC_COUNTS && layout.experts.ep > 1;
        double found = cost.seconds[COST_EXCHANGE + kind];
        if (is_of_experts)
            expected *= imbalance;
        cr_assert(fabs(found - expected) <= 1e-6 * expected, "%s, %s: %g, not %g", text,
                  traffic_names[kind], found, expected);
    }
}

Test(planner, exchanges_are_priced_by_their_bytes)
{
    static const char *const layouts[] = {"tp4|tp4", "tp4|ep4",      "tp2dp2|tp2ep2",
                                          "dp4|ep4", "dp4|tp4",      "dp8|tp2ep4",
                                          "tp8|ep8", "tp2dp4|tp4ep2"};
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        check_exchanges(layouts[i], FORM_OWNED);
        check_exchanges(layouts[i], FORM_GATHERED);
    }
    check_exchanges("tp4|ep4", FORM_REPLICATED);
    check_exchanges("tp8|tp4ep2", FORM_REPLICATED);
}

Test(planner, products_are_priced_by_their_flops)
{
    struct test_problem test;
    const struct model_shape *shape = &model_shapes[MIXTRAL_8X7B].shape;
    struct layout layout = layout_of("tp4|tp4");
    problem_simple(&test, shape, &(struct simple_box){4, 1, INFINITY, INFINITY, 0});
    struct pass_shape pass = {
        .form = FORM_OWNED, .rows = 1000, .pairs = 5000, .seen = 1000, .logit_rows = 10};
    struct pass_cost cost =
        pass_cost(&test.profile, shape, &layout, &test.problem.types, &test.problem.routing, &pass);
    double layers = (double)shape->layer_count;
    cr_assert_float_eq(cost.seconds[COST_EXPERTS] / (layers * 6.0 * 2000 * 14336 / 4 * 4096), 1,
                       1e-9);
    cr_assert_float_eq(cost.seconds[COST_ATTENTION] / (layers * 4.0 * 5000 * 8 * 128), 1, 1e-9);
    cr_assert_float_eq(cost.seconds[COST_PROJECTION] /
                           (layers * 2.0 * 1000 * 4096 * (8 + 2 * 2 + 8) * 128),
                       1, 1e-9);
    cr_assert_float_eq(cost.seconds[COST_HEAD] / (2.0 * 10 * 8000 * 4096), 1, 1e-9);
}

static void check_fullest(const struct pass_cost *one, const struct pass_cost *four,
                          const char *what)
{
    static const int as_four[] = {COST_PROJECTION, COST_ATTENTION, COST_EXCHANGE + TRAFFIC_CHOICES,
                                  COST_EXCHANGE + TRAFFIC_EXPERT_REDUCE};
    for (size_t i = 0; i < sizeof as_four / sizeof *as_four; i++)
        cr_assert_float_eq(one->seconds[as_four[i]] / four->seconds[as_four[i]], 1, 1e-9, "%s: %zu",
                           what, i);
    cr_assert_float_eq(4 * one->seconds[COST_EXPERTS] / four->seconds[COST_EXPERTS], 1, 1e-9, "%s",
                       what);
}

/* One sequence takes its group as long as four take theirs, and what the rank that has it gives to
 * the others and gets of them, too; experts have a quarter to do. */
Test(planner, one_group_of_many_has_a_sequence)
{
    struct test_problem test;
    struct layout layout = layout_of("dp4|tp4");
    problem_simple(&test, &model_shapes[MIXTRAL_8X7B].shape,
                   &(struct simple_box){4, 1, INFINITY, 1, 0});
    const int gather = COST_EXCHANGE + TRAFFIC_EXPERT_GATHER,
              dispatch = COST_EXCHANGE + TRAFFIC_DISPATCH;
    for (int64_t pass = 100; pass <= 10000; pass *= 100) {
        struct pass_cost one = plan_prefill_cost(&test.problem, &layout, pass, 1).cost;
        struct pass_cost four = plan_prefill_cost(&test.problem, &layout, pass, 4).cost;
        check_fullest(&one, &four, "prefill");
        cr_assert_float_eq(one.seconds[gather] / four.seconds[gather], 1, 1e-9);
    }
    struct pass_cost one = plan_decode_cost(&test.problem, &layout, false, 1);
    struct pass_cost four = plan_decode_cost(&test.problem, &layout, false, 4);
    check_fullest(&one, &four, "decode");
    cr_assert_float_eq(one.seconds[dispatch] / four.seconds[dispatch], 1, 1e-9);
    /* Groups of experts have their rows of the one rank, and chance is more uneven among fewer. */
    layout = layout_of("dp4|tp2ep2");
    one = plan_prefill_cost(&test.problem, &layout, 10000, 1).cost;
    four = plan_prefill_cost(&test.problem, &layout, 10000, 4).cost;
    cr_assert_geq(one.seconds[gather], 0.999 * four.seconds[gather]);
    cr_assert_leq(one.seconds[gather], 1.1 * four.seconds[gather]);
}

/* Where one group of four has three times its share, its phase computes three times as long, and
 * the other as long as ever. */
Test(planner, a_phase_is_priced_by_its_own_counts)
{
    struct test_problem test;
    struct layout layout = layout_of("tp4|ep4");
    problem_simple(&test, &model_shapes[MIXTRAL_8X7B].shape,
                   &(struct simple_box){4, 1, INFINITY, INFINITY, 0});
    test.problem.load = (struct plan_load)PLAN_LOAD(4096, 1024, 20);
    for (int counted = 0; counted < PHASE_COUNT; counted++) {
        struct routing even = {.is_counted = true}, uneven = even;
        double seconds[PHASE_COUNT], evenly[PHASE_COUNT];
        uneven.excess[counted][4] = 2;
        for (int is_even = 0; is_even < 2; is_even++) {
            double *to = is_even ? evenly : seconds;
            test.problem.routing = is_even ? even : uneven;
            struct prefill_cost prefill = plan_prefill_cost(&test.problem, &layout, 1 << 20, 4096);
            to[PHASE_PREFILL] = prefill.cost.seconds[COST_EXPERTS];
            to[PHASE_DECODE] =
                plan_decode_cost(&test.problem, &layout, false, 4096).seconds[COST_EXPERTS];
        }
        for (int phase = 0; phase < PHASE_COUNT; phase++)
            cr_assert_float_eq(seconds[phase] / evenly[phase], phase == counted ? 3 : 1, 0.1,
                               "%d by %d: %g", phase, counted, seconds[phase] / evenly[phase]);
    }
}

/* ---- Every candidate --------------------------------------------------------------------------
 */

static const struct plan_candidate *candidate_of(const struct plan_table *table, const char *text,
                                                 enum plan_way way)
{
    for (int i = 0; i < table->count; i++) {
        char own[LAYOUT_TEXT_BYTES];
        plan_layouts_format(own, &table->candidates[i].layouts);
        if (table->candidates[i].way == way && strcmp(own, text) == 0)
            return &table->candidates[i];
    }
    cr_assert_fail("no candidate %s by %s", text, plan_way_names[way]);
    return NULL;
}

static void table_find(struct plan_table *table, const struct test_problem *test)
{
    struct error err;
    cr_assert_eq(plan_find(table, &test->problem, &err), STATUS_OK, "%s", err.message);
}

Test(planner, tells_why_a_candidate_is_not_possible)
{
    struct test_problem test;
    struct plan_table table;
    problem_simple(&test, &model_shapes[MIXTRAL_8X7B].shape,
                   &(struct simple_box){4, 1e14, 1e12, 1e10, 1e-5});
    test.expert_bytes = 1 << 20;
    test.problem.memory_bytes = (1 << 20) + (1 << 18) + 20000;
    table_find(&table, &test);
    cr_assert_eq(candidate_of(&table, "tp4|ep4>tp4", PLAN_KEEP)->verdict, PLAN_TOO_LARGE);
    cr_assert_eq(candidate_of(&table, "tp4|ep4>tp4", PLAN_RESHARD)->verdict, PLAN_POSSIBLE);
    cr_assert_eq(candidate_of(&table, "tp4|ep4>tp4:int4", PLAN_KEEP)->verdict, PLAN_POSSIBLE);
    cr_assert(candidate_of(&table, "tp4|ep4>tp4:int4", PLAN_KEEP)->has_times);
    cr_assert_not(candidate_of(&table, "tp4|ep4>tp4", PLAN_KEEP)->has_times);
    plan_table_deinit(&table);
    test.problem.memory_bytes = 1000;
    table_find(&table, &test);
    cr_assert_eq(table.best, -1);
    cr_assert_eq(table.fastest, -1);
    cr_assert_eq(table.static_tp, -1);
    const struct plan_candidate *large = candidate_of(&table, "tp4|tp4", PLAN_NONE);
    cr_assert_eq(large->verdict, PLAN_TOO_LARGE);
    cr_assert_geq(plan_memory_total(&large->memory), 1 << 20);
    plan_table_deinit(&table);
}

static bool is_native(const void *context, const struct plan_candidate *candidate)
{
    (void)context;
    return !candidate->layouts.decode_is_packed && candidate->way != PLAN_UPLOAD;
}

/* Every layout of the ranks is told of: what the model cannot have by the rule that it breaks. */
Test(planner, tells_of_each_layout_that_is_refused)
{
    struct layout all[LAYOUT_LIST_MAX];
    const struct model_shape *shape = &model_shapes[QWEN15_MOE_A27B].shape; /* of 60 experts */
    struct test_problem test;
    struct plan_table table;
    int count = layout_list(all, LAYOUT_LIST_MAX, 8), refused = 0;
    problem_simple(&test, shape, &(struct simple_box){8, 1e14, 1e12, 1e10, 1e-5});
    table_find(&table, &test);
    for (int i = 0; i < count; i++) {
        char text[LAYOUT_TEXT_BYTES];
        struct error rule = {.message = ""}, told;
        enum status status = layout_check(&all[i], shape, &rule);
        layout_format(text, &all[i]);
        const struct plan_candidate *candidate = candidate_of(&table, text, PLAN_NONE);
        cr_assert_eq(candidate->verdict == PLAN_ILLEGAL, status != STATUS_OK, "%s", text);
        plan_illegal_reason(&told, &test.problem, candidate);
        cr_assert_str_eq(told.message, rule.message);
        refused += status != STATUS_OK;
    }
    cr_assert_eq(refused, 4);
    for (int i = 0; i < table.count; i++)
        cr_assert_eq(table.candidates[i].verdict == PLAN_ILLEGAL, i >= table.count - refused);
    plan_table_deinit(&table);
}

/* What is not allowed is priced as if it were, and never taken; without a backup to be had there is
 * nothing to price. */
Test(planner, prices_what_is_not_allowed)
{
    struct test_problem test;
    struct plan_table allowed, exact;
    int forbidden = 0;
    problem_simple(&test, &model_shapes[MIXTRAL_8X7B].shape,
                   &(struct simple_box){4, 1e14, 1e12, 1e10, 1e-5});
    test.expert_bytes = 1 << 20;
    test.problem.memory_bytes = (1 << 20) + (1 << 18) + 20000;
    table_find(&allowed, &test);
    cr_assert(!is_native(NULL, &allowed.candidates[allowed.best]));
    test.problem.allows_int4 = false;
    table_find(&exact, &test);
    cr_assert_eq(exact.count, allowed.count);
    for (int i = 0; i < exact.count; i++) {
        const struct plan_candidate *one = &allowed.candidates[i], *other = &exact.candidates[i];
        bool is_forbidden = !is_native(NULL, other);
        cr_assert_eq(other->verdict, is_forbidden ? PLAN_NOT_ALLOWED : one->verdict);
        cr_assert_eq(other->has_times, one->verdict == PLAN_POSSIBLE);
        cr_assert_eq(plan_memory_total(&other->memory), plan_memory_total(&one->memory));
        if (other->has_times)
            cr_assert_eq(plan_candidate_total(other), plan_candidate_total(one));
        forbidden += is_forbidden && other->has_times;
    }
    cr_assert_gt(forbidden, 10);
    cr_assert(is_native(NULL, &exact.candidates[exact.best]));
    cr_assert(is_native(NULL, &exact.candidates[exact.fastest]));
    plan_table_deinit(&exact);
    test.problem.can_have_backup = false;
    table_find(&exact, &test);
    for (int i = 0; i < exact.count; i++)
        cr_assert(is_native(NULL, &exact.candidates[i]) || !exact.candidates[i].has_times);
    cr_assert_eq(candidate_of(&exact, "tp4|ep4>tp4", PLAN_UPLOAD)->verdict, PLAN_NOT_ALLOWED);
    plan_table_deinit(&exact);
    plan_table_deinit(&allowed);
}

static void seconds_set(struct plan_table *table, const char *text, enum plan_way way,
                        double seconds)
{
    int i = (int)(candidate_of(table, text, way) - table->candidates);
    table->candidates[i].prefill = seconds;
}

/* Static TP's layout is left for one hundredth, native decode on it, too, and what experts have in
 * prefill for decode. */
Test(planner, leaves_no_layout_where_another_gains_next_to_nothing)
{
    static const struct {
        double tp, packed, uploaded, other, other_packed, changed, changed_packed;
        const char *best, *exact;
    } cases[] = {
        {1, 2, 2, 0.995, 2, 2, 2, "tp4|tp4", "tp4|tp4"},
        {1, 2, 2, 0.98, 2, 2, 2, "dp4|ep4", "dp4|ep4"},
        {1, 2, 2, 1, 1, 2, 2, "tp4|tp4", "tp4|tp4"},
        {1, 0.6, 2, 0.9, 0.596, 2, 2, "tp4|tp4>tp4:int4", "dp4|ep4"},
        {1, 0.6, 0.598, 0.9, 0.596, 2, 2, "tp4|tp4>tp4:int4", "dp4|ep4"},
        {1, 0.6, 2, 0.995, 0.58, 2, 2, "dp4|ep4>ep4:int4", "tp4|tp4"},
        {1, 0.995, 2, 2, 0.993, 2, 2, "tp4|tp4", "tp4|tp4"},
        {1, 2, 2, 0.9, 2, 0.895, 2, "dp4|ep4", "dp4|ep4"},
        {1, 2, 2, 0.9, 2, 0.88, 2, "dp4|ep4>tp4", "dp4|ep4>tp4"},
        {1, 2, 2, 1.2, 2, 0.995, 2, "tp4|tp4", "tp4|tp4"},
        {1, 2, 2, 0.9905, 2, 0.985, 2, "dp4|ep4", "dp4|ep4"}, /* which gains 1.5 % */
        {1, 0.9, 2, 0.9, 0.6, 0.895, 0.596, "dp4|ep4>ep4:int4", "dp4|ep4"},
        {1, 0.9, 2, 0.9, 0.6, 0.85, 0.58, "dp4|ep4>tp4:int4", "dp4|ep4>tp4"},
        {1, 0.6, 2, 0.9, 0.597, 0.8, 0.596, "tp4|tp4>tp4:int4", "dp4|ep4>tp4"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct test_problem test;
        struct plan_table table;
        char best[LAYOUT_TEXT_BYTES], exact[LAYOUT_TEXT_BYTES];
        problem_simple(&test, &model_shapes[MIXTRAL_8X7B].shape,
                       &(struct simple_box){4, 1e14, 1e12, 1e10, 1e-5});
        table_find(&table, &test);
        for (int c = 0; c < table.count; c++)
            table.candidates[c] = (struct plan_candidate){.layouts = table.candidates[c].layouts,
                                                          .way = table.candidates[c].way,
                                                          .verdict = table.candidates[c].verdict,
                                                          .prefill = 3};
        seconds_set(&table, "tp4|tp4", PLAN_NONE, cases[i].tp);
        seconds_set(&table, "tp4|tp4>tp4:int4", PLAN_KEEP, cases[i].packed);
        seconds_set(&table, "tp4|tp4>tp4:int4", PLAN_UPLOAD, cases[i].uploaded);
        seconds_set(&table, "dp4|ep4", PLAN_NONE, cases[i].other);
        seconds_set(&table, "dp4|ep4>ep4:int4", PLAN_KEEP, cases[i].other_packed);
        seconds_set(&table, "dp4|ep4>tp4", PLAN_KEEP, cases[i].changed);
        seconds_set(&table, "dp4|ep4>tp4:int4", PLAN_UPLOAD, cases[i].changed_packed);
        plan_table_choose(&table);
        int allowed = plan_table_pick(&table, is_native, NULL);
        plan_layouts_format(best, &table.candidates[table.best].layouts);
        plan_layouts_format(exact, &table.candidates[allowed].layouts);
        cr_assert_str_eq(best, cases[i].best, "case %zu", i);
        cr_assert_str_eq(exact, cases[i].exact, "case %zu", i);
        plan_table_deinit(&table);
    }
}

/* The least wave or pass that is asked about decides what fits; the best of those is taken. */
Test(planner, waves_and_passes_are_part_of_the_plan)
{
    struct test_problem test;
    struct plan_table table;
    problem_simple(&test, &model_shapes[QWEN15_MOE_A27B].shape,
                   &(struct simple_box){4, 1e14, 1e12, 1e10, 1e-5});
    test.problem.load = (struct plan_load)PLAN_LOAD(64, 512, 64);
    test.problem.wave_count = test.problem.pass_count = 2;
    test.waves[0] = 8;
    test.waves[1] = 64;
    test.passes[0] = 512;
    test.passes[1] = 8192;
    table_find(&table, &test);
    const struct plan_candidate *best = &table.candidates[table.best];
    cr_assert_eq(best->wave, 64);
    cr_assert_eq(best->pass_tokens, 8192);
    plan_table_deinit(&table);
    test.problem.memory_bytes = 21000; /* a wave of 64 on one group does not fit */
    table_find(&table, &test);
    cr_assert_eq(candidate_of(&table, "tp4|ep4", PLAN_NONE)->wave, 8);
    cr_assert_eq(candidate_of(&table, "dp4|ep4", PLAN_NONE)->wave, 64);
    plan_table_deinit(&table);
}

/* Another pass than the usual one has to gain more than 1 %. */
Test(planner, the_usual_pass_is_not_left_for_little)
{
    static const double gains[] = {1.002, 1.05};
    struct test_problem test;
    for (size_t i = 0; i < 2; i++) {
        struct plan_table table;
        problem_simple(&test, &model_shapes[MIXTRAL_8X7B].shape,
                       &(struct simple_box){4, 1e14, 1e12, 1e10, 0});
        test.problem.load = (struct plan_load)PLAN_LOAD(8, 2048, 1);
        test.passes[0] = 4096;
        test.passes[1] = 8192;
        test.problem.pass_count = 2;
        table_find(&table, &test);
        double half = candidate_of(&table, "tp4|tp4", PLAN_NONE)->prefill;
        cr_assert_eq(candidate_of(&table, "tp4|tp4", PLAN_NONE)->pass_tokens, 8192);
        plan_table_deinit(&table);
        test.problem.usual_pass = 4096;
        test.profile.host_step = half * (gains[i] - 1) / 2; /* two passes more */
        table_find(&table, &test);
        cr_assert_eq(candidate_of(&table, "tp4|tp4", PLAN_NONE)->pass_tokens, i == 0 ? 4096 : 8192);
        plan_table_deinit(&table);
    }
}

Test(planner, a_static_plan_has_no_transition_and_a_queue_pays_the_way_back)
{
    struct test_problem test;
    struct plan_table table;
    problem_simple(&test, &model_shapes[MIXTRAL_8X7B].shape,
                   &(struct simple_box){4, 1e14, 1e12, 1e10, 1e-5});
    test.problem.load.output_tokens = 1; /* no decode hides any of the transition */
    table_find(&table, &test);
    const struct plan_candidate *fixed = candidate_of(&table, "tp4|tp4", PLAN_NONE);
    const struct plan_candidate *moved = candidate_of(&table, "tp4|ep4>tp4", PLAN_RESHARD);
    cr_assert_eq(fixed->transition + fixed->way_back, 0);
    cr_assert_eq(moved->way_back, 0);
    double bytes = 6.0 * 14336 / 4 * 4096 * 3 * 2;
    cr_assert_float_eq(moved->transition / (32 * bytes / 1e10), 1, 0.01);
    cr_assert_eq(&table.candidates[table.static_tp], fixed);
    plan_table_deinit(&table);
    test.problem.is_queue = true;
    table_find(&table, &test);
    moved = candidate_of(&table, "tp4|ep4>tp4", PLAN_RESHARD);
    cr_assert_float_eq(moved->way_back / (32 * bytes / 1e10), 1, 1e-9);
    plan_table_deinit(&table);
}

/* Experts of 32 layers take 32000 bytes, a spare slot 1000; all else about 9 of 1000. */
static const struct {
    uint64_t memory;
    int64_t spares;
} rooms[] = {
    {45000, 1},   /* experts are more than half of it */
    {66600, 1},   /* half of it has no room for twice a slot */
    {70600, 2},   /* and here it has */
    {100000, 9},  /* as much again stays below half */
    {160000, 21}, /* an eighth */
    {250000, 32}, /* each layer's, just so */
    {400000, 32},
};

Test(planner, layers_are_written_ahead_where_there_is_room)
{
    struct test_problem test;
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) {
        struct plan_table table;
        problem_simple(&test, &model_shapes[MIXTRAL_8X7B].shape,
                       &(struct simple_box){4, 1e14, 1e12, 1e10, 1e-5});
        test.expert_bytes = 32000;
        test.problem.load = (struct plan_load)PLAN_LOAD(8, 500, 12);
        test.problem.memory_bytes = rooms[i].memory;
        table_find(&table, &test);
        const struct plan_candidate *reload = candidate_of(&table, "tp4|ep4>tp4", PLAN_RELOAD);
        const struct plan_candidate *reshard = candidate_of(&table, "tp4|ep4>tp4", PLAN_RESHARD);
        cr_expect_eq(reload->spares, rooms[i].spares, "room %zu: %lld", i,
                     (long long)reload->spares);
        cr_expect_eq(reload->memory.experts, 32000 + 1000 * (uint64_t)rooms[i].spares);
        cr_expect_eq(reshard->spares, 1);
        cr_expect_eq(candidate_of(&table, "tp4|ep4>tp4", PLAN_KEEP)->spares, 0);
        plan_table_deinit(&table);
    }
}

/* Who knows what the others take is told of those that move as ever. */
Test(planner, plans_that_move_may_be_asked_for_alone)
{
    struct test_problem test;
    struct plan_table all, some;
    int moved = 0;
    problem_simple(&test, &model_shapes[MIXTRAL_8X7B].shape,
                   &(struct simple_box){4, 1e14, 1e12, 1e10, 1e-5});
    table_find(&all, &test);
    test.problem.moves_only = true;
    table_find(&some, &test);
    cr_assert_eq(some.count, all.count);
    for (int i = 0; i < all.count; i++) {
        const struct plan_candidate *one = &all.candidates[i], *other = &some.candidates[i];
        bool moves = plan_way_moves(one->way);
        if (one->verdict != PLAN_POSSIBLE)
            continue;
        cr_expect_eq(other->verdict, moves ? PLAN_POSSIBLE : PLAN_UNKNOWN);
        cr_expect(!moves || plan_candidate_total(one) == plan_candidate_total(other));
        moved += moves;
    }
    cr_expect_gt(moved, 0);
    plan_table_deinit(&all);
    plan_table_deinit(&some);
}

/* Of upload alone, and more of it where decode is on native weights; memory has to hold them. */
Test(planner, upload_takes_its_buffers)
{
    static const struct {
        const char *layouts;
        uint64_t bytes;
    } cases[] = {{"tp4|ep4>tp4", 7000}, {"tp4|ep4>tp4:int4", 300}};
    struct test_problem test;
    for (size_t i = 0; i < 2; i++) {
        struct plan_table table;
        problem_simple(&test, &model_shapes[MIXTRAL_8X7B].shape,
                       &(struct simple_box){4, 1e14, 1e12, 1e10, 1e-5});
        test.expert_bytes = 32000;
        table_find(&table, &test);
        uint64_t without =
            plan_memory_total(&candidate_of(&table, cases[i].layouts, PLAN_UPLOAD)->memory);
        plan_table_deinit(&table);
        test.problem.upload_bytes = 7000;
        test.problem.upload_packed_bytes = 300;
        table_find(&table, &test);
        const struct plan_candidate *upload = candidate_of(&table, cases[i].layouts, PLAN_UPLOAD);
        cr_expect_eq(upload->memory.buffers, cases[i].bytes);
        cr_expect_eq(plan_memory_total(&upload->memory), without + cases[i].bytes);
        cr_expect_eq(candidate_of(&table, "tp4|ep4>tp4", PLAN_RELOAD)->memory.buffers, 0);
        plan_table_deinit(&table);
        test.problem.memory_bytes = 32000 + 1000 + 20000; /* of one spare, and what is beside */
        test.problem.upload_bytes = test.problem.upload_packed_bytes = 20000;
        table_find(&table, &test);
        cr_expect_eq(candidate_of(&table, cases[i].layouts, PLAN_UPLOAD)->verdict, PLAN_TOO_LARGE);
        cr_expect_eq(candidate_of(&table, "tp4|ep4>tp4", PLAN_RELOAD)->verdict, PLAN_POSSIBLE);
        plan_table_deinit(&table);
    }
}

/* A reload of all bytes, the way back, in 32 layers; the spares take theirs while the last 32
 * tokens are generated, or as many as there are. */
Test(planner, the_last_tokens_hide_the_way_back_as_far_as_there_are_spares)
{
    struct test_problem test;
    struct plan_table table;
    double back[3];
    static const int64_t outputs[] = {1, 12, 400};
    for (int i = 0; i < 3; i++) {
        problem_simple(&test, &model_shapes[MIXTRAL_8X7B].shape,
                       &(struct simple_box){4, 1e14, 1e12, 1e10, 1e-5});
        test.expert_bytes = 32000;
        test.problem.memory_bytes = 400000;
        test.problem.is_queue = true;
        test.problem.load = (struct plan_load)PLAN_LOAD(8, 500, outputs[i]);
        table_find(&table, &test);
        back[i] = candidate_of(&table, "tp4|ep4>tp4", PLAN_RELOAD)->way_back;
        const struct plan_candidate *fixed = candidate_of(&table, "tp4|tp4", PLAN_NONE);
        int64_t steps = outputs[i] - 1;
        double step = steps > 0 ? fixed->decode / (double)steps : 0;
        double tail = step * (double)(steps < 32 ? steps : 32);
        cr_expect_float_eq((back[i] + tail) / back[0], 1, 1e-3, "%lld tokens: %g of %g, tail %g",
                           (long long)outputs[i], back[i], back[0], tail);
        cr_expect_float_eq(candidate_of(&table, "tp4|ep4>tp4", PLAN_RESHARD)->way_back,
                           32 * 6.0 * 14336 / 4 * 4096 * 3 * 2 / 1e10, 0.01);
        plan_table_deinit(&table);
    }
}

/* ---- Waves ----------------------------------------------------------------------------------- */

static void table_of(struct plan_table *table, struct test_problem *test, int64_t sequences)
{
    test->problem.load.sequences = sequences;
    table_find(table, test);
}

static void check_sum(const struct plan_candidate *sum, const struct plan_candidate *one,
                      const struct plan_candidate *other, double times)
{
    char text[LAYOUT_TEXT_BYTES];
    plan_layouts_format(text, &sum->layouts);
    cr_assert_eq(sum->verdict, one->verdict);
    if (sum->verdict != PLAN_POSSIBLE)
        return;
    double of_all[][3] = {
        {sum->prefill, one->prefill, other->prefill},
        {sum->transition, one->transition, other->transition},
        {sum->decode, one->decode, other->decode},
        {sum->way_back, one->way_back, other->way_back},
        {pass_cost_total(&sum->prefill_cost), one->prefill, other->prefill},
        {pass_cost_total(&sum->decode_cost), one->decode, other->decode},
    };
    for (size_t i = 0; i < sizeof of_all / sizeof *of_all; i++) {
        double expected = times * of_all[i][1] + of_all[i][2];
        cr_assert(fabs(of_all[i][0] - expected) <= 1e-9 * expected,
                  "%s by %s: %g, not %g, of part %zu", text, plan_way_names[sum->way], of_all[i][0],
                  expected, i);
    }
}

/* A batch takes what its whole waves take, and what a batch of the rest would. */
Test(planner, the_last_wave_is_of_those_who_are_left)
{
    static const int64_t rests[] = {1, 44, 255};
    struct test_problem test;
    struct plan_table whole, rest, both;
    problem_simple(&test, &model_shapes[QWEN15_MOE_A27B].shape,
                   &(struct simple_box){4, 1e13, 1e11, 1e9, 1e-5});
    test.problem.load = (struct plan_load)PLAN_LOAD(256, 512, 64);
    test.problem.is_queue = true; /* each wave has a way back */
    test.waves[0] = 256;
    for (size_t i = 0; i < sizeof rests / sizeof *rests; i++) {
        table_of(&whole, &test, 256);
        table_of(&rest, &test, rests[i]);
        table_of(&both, &test, 3 * 256 + rests[i]);
        for (int c = 0; c < both.count; c++)
            check_sum(&both.candidates[c], &whole.candidates[c], &rest.candidates[c], 3);
        double now = plan_candidate_total(&both.candidates[both.static_tp]);
        double before = plan_candidate_total(&whole.candidates[both.static_tp]);
        cr_assert(rests[i] > 1 || now < 3.1 * before, "one more costs %g waves", now / before - 3);
        plan_table_deinit(&whole);
        plan_table_deinit(&rest);
        plan_table_deinit(&both);
    }
}

Test(planner, waves_that_come_out_even_are_alike)
{
    struct test_problem test;
    struct plan_table one, four;
    problem_simple(&test, &model_shapes[QWEN15_MOE_A27B].shape,
                   &(struct simple_box){4, 1e13, 1e11, 1e9, 1e-5});
    test.problem.load = (struct plan_load)PLAN_LOAD(64, 512, 64);
    test.waves[0] = 64;
    test.problem.is_queue = true;
    table_of(&one, &test, 64);
    table_of(&four, &test, 256);
    struct plan_candidate nothing = {.verdict = PLAN_POSSIBLE};
    for (int c = 0; c < four.count; c++)
        check_sum(&four.candidates[c], &one.candidates[c], &nothing, 4);
    plan_table_deinit(&one);
    plan_table_deinit(&four);
    /* The last one's way back is not gone where nobody comes. */
    test.problem.is_queue = false;
    table_of(&one, &test, 65);
    table_of(&four, &test, 64);
    cr_assert_gt(candidate_of(&one, "tp4|ep4>tp4", PLAN_RESHARD)->way_back, 0);
    cr_assert_eq(candidate_of(&four, "tp4|ep4>tp4", PLAN_RESHARD)->way_back, 0);
    plan_table_deinit(&one);
    plan_table_deinit(&four);
}

/* The same problem, the same table. */
Test(planner, is_a_pure_function)
{
    struct random random = {.seed = test_seed()};
    for (int i = 0; i < 20; i++) {
        struct test_problem test;
        struct plan_table one, two;
        problem_random(&test, &random);
        table_find(&one, &test);
        table_find(&two, &test);
        cr_assert_eq(one.count, two.count);
        cr_assert_eq(one.best, two.best);
        for (int c = 0; c < one.count; c++)
            cr_assert_eq(plan_candidate_total(&one.candidates[c]),
                         plan_candidate_total(&two.candidates[c]));
        plan_table_deinit(&one);
        plan_table_deinit(&two);
    }
}

/* ---- Profiles that say nothing sensible -------------------------------------------------------
 */

/* No candidate is possible whose times are no number, none is chosen, and what is possible is still
 * found. */
static void check_table(const struct test_problem *test, bool may_be_possible, const char *what)
{
    struct plan_table table;
    table_find(&table, test);
    for (int i = 0; i < table.count; i++) {
        double total = plan_candidate_total(&table.candidates[i]);
        if (table.candidates[i].verdict == PLAN_POSSIBLE)
            cr_assert(isfinite(total) && total >= 0, "%s: %g seconds", what, total);
    }
    cr_assert_eq(table.best >= 0, may_be_possible, "%s", what);
    plan_table_deinit(&table);
}

static const double nonsense[] = {0, -1, NAN, -INFINITY};
#define NONSENSE (sizeof nonsense / sizeof *nonsense)

Test(planner, a_rate_of_nothing_is_never_chosen)
{
    for (size_t i = 0; i < NONSENSE; i++) {
        struct test_problem test;
        for (int which = 0; which < 5; which++) {
            problem_simple(&test, &model_shapes[MIXTRAL_8X7B].shape,
                           &(struct simple_box){4, 1e14, 1e12, 1e10, 1e-5});
            for (int t = 0; t < test.profile.work_count; t++) {
                if (which == 0)
                    test.work[t].flops_per_second = nonsense[i];
                else if (which == 1)
                    test.work[t].bytes_per_second = nonsense[i];
                else if (which == 2)
                    test.work[t].fixed = i == 0 ? NAN : INFINITY;
                else if (which == 3)
                    test.log_ratios[t] = i == 0 ? NAN : INFINITY;
            }
            if (which == 4)
                test.profile.host_step = i == 0 ? -INFINITY : i == 1 ? -1e9 : nonsense[i];
            check_table(&test, false, "operations");
        }
    }
}

/* Nothing but static plans and keep is possible; and no way is free. */
Test(planner, a_way_of_no_rate_is_never_chosen)
{
    for (size_t i = 0; i < NONSENSE; i++) {
        struct test_problem test;
        struct plan_table table;
        problem_simple(&test, &model_shapes[MIXTRAL_8X7B].shape,
                       &(struct simple_box){4, 1e14, 1e12, 1e10, 1e-5});
        test.profile.disk_read = nonsense[i];
        check_table(&test, true, "reading");
        table_find(&table, &test);
        cr_assert_eq(candidate_of(&table, "tp4|ep4>tp4", PLAN_RELOAD)->verdict, PLAN_UNKNOWN);
        cr_assert_eq(candidate_of(&table, "tp4|ep4>tp4", PLAN_UPLOAD)->verdict, PLAN_UNKNOWN);
        cr_assert_eq(candidate_of(&table, "tp4|ep4>tp4", PLAN_RESHARD)->verdict, PLAN_POSSIBLE);
        plan_table_deinit(&table);
        test.profile.disk_read = 1e9;
        test.profile.check = nonsense[i];
        table_find(&table, &test);
        cr_assert_eq(candidate_of(&table, "tp4|ep4>tp4", PLAN_UPLOAD)->verdict, PLAN_UNKNOWN);
        cr_assert_eq(candidate_of(&table, "tp4|ep4>tp4", PLAN_RELOAD)->verdict, PLAN_POSSIBLE);
        plan_table_deinit(&table);
        /* A way back that is not gone costs nothing, whatever nobody knows of it. */
        test.profile.check = 1e9;
        test.profile.repack = nonsense[i];
        table_find(&table, &test);
        cr_assert_eq(candidate_of(&table, "tp4|ep4>tp4", PLAN_UPLOAD)->verdict, PLAN_POSSIBLE);
        plan_table_deinit(&table);
        test.problem.is_queue = true;
        table_find(&table, &test);
        cr_assert_eq(candidate_of(&table, "tp4|ep4>tp4", PLAN_UPLOAD)->verdict, PLAN_UNKNOWN);
        plan_table_deinit(&table);
    }
}

/* The first pass and wave that are tried have no times: another one is taken. */
Test(planner, a_size_of_unknown_times_gives_way)
{
    struct test_problem test;
    struct plan_table table;
    static const double sizes[] = {1, 1000};
    double ratios[] = {NAN, 0};
    problem_simple(&test, &model_shapes[MIXTRAL_8X7B].shape,
                   &(struct simple_box){4, 1e14, 1e12, 1e10, 1e-5});
    test.passes[0] = 512;
    test.passes[1] = 4096;
    test.problem.pass_count = 2;
    for (int t = 0; t < test.profile.work_count; t++) {
        if (test.work[t].kind != WORK_ATTENTION)
            continue;
        test.work[t].axis_count = 1;
        test.work[t].axes[0] = (struct profile_axis){0, -1, 2, sizes};
        test.work[t].log_ratios = ratios;
    }
    test.problem.load.output_tokens = 1;
    table_find(&table, &test);
    const struct plan_candidate *found = candidate_of(&table, "tp4|tp4", PLAN_NONE);
    cr_assert_eq(found->verdict, PLAN_POSSIBLE);
    cr_assert_eq(found->pass_tokens, 4096);
    plan_table_deinit(&table);
}

/* A million sequences of as many tokens as a config may say: flops are counted, not come round. */
Test(planner, a_load_that_no_memory_holds)
{
    struct test_problem test;
    problem_simple(&test, &model_shapes[MIXTRAL_8X22B].shape,
                   &(struct simple_box){8, 1e14, 1e12, 1e10, 1e-5});
    test.problem.load = (struct plan_load)PLAN_LOAD(1 << 20, 1 << 30, 1 << 30);
    test.waves[0] = 1 << 20;
    test.passes[0] = 1 << 24;
    check_table(&test, true, "a long wave");
}

/* Rates without end take no time; times that add up to more than a number can be are not chosen. */
Test(planner, huge_rates_and_huge_times)
{
    struct test_problem test;
    problem_simple(&test, &model_shapes[MIXTRAL_8X7B].shape,
                   &(struct simple_box){4, INFINITY, INFINITY, 1e300, 0});
    check_table(&test, true, "no time at all");
    problem_simple(&test, &model_shapes[MIXTRAL_8X7B].shape,
                   &(struct simple_box){4, 0x1p-1000, 1e12, 1e10, 0});
    check_table(&test, false, "more than can be told");
}
