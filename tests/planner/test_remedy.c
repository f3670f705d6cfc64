/* What would fit where nothing does: the least of each change, against trying every size. */
#include <criterion/criterion.h>

#include "model_shapes.h"
#include "planner/plan_remedy.h"
#include "problems.h"

TestSuite(remedy, .timeout = 60);

static void table_find(struct plan_table *table, const struct test_problem *test)
{
    struct error err;
    cr_assert_eq(plan_find(table, &test->problem, &err), STATUS_OK, "%s", err.message);
}

/* `table` is to be deinitialised. */
static void remedies_find(struct plan_remedies *would, struct plan_table *table,
                          const struct test_problem *test)
{
    table_find(table, test);
    plan_remedies_find(would, &test->problem, table);
}

/* Some plan has room with these sizes alone. */
static bool any_fits(const struct test_problem *test, int64_t pass_tokens, int64_t sequences,
                     uint64_t memory_bytes)
{
    struct test_problem tried = *test;
    struct plan_table table;
    int64_t passes[] = {pass_tokens}, waves[] = {sequences};
    tried.problem.passes = passes;
    tried.problem.waves = waves;
    tried.problem.pass_count = tried.problem.wave_count = 1;
    tried.problem.memory_bytes = memory_bytes;
    table_find(&table, &tried);
    bool fits = table.best >= 0;
    plan_table_deinit(&table);
    return fits;
}

/* Experts take a quarter. */
static struct plan_memory int4_memory(void *context, const struct plan_layouts *layouts,
                                      enum plan_room room, int64_t pass_tokens, int64_t sequences)
{
    const struct test_problem *test = context;
    struct plan_memory memory =
        test->problem.memory(context, layouts, room, pass_tokens, sequences);
    cr_assert_not(layouts->decode_is_packed);
    memory.experts /= 4;
    return memory;
}

/* 10,000 bytes of experts, 1,000 of other weights over At, a byte a token of the cache
 * over Ad, a byte a token of a pass: 8 sequences of 100 tokens in passes of 512 take 10,000 + 800 /
 * Ad + 1,000 / At + 512 at least. */
static void problem_make(struct test_problem *out, int ranks, uint64_t memory_bytes)
{
    problem_simple(out, &model_shapes[MIXTRAL_8X7B].shape,
                   &(struct simple_box){ranks, 1e14, 1e12, 1e10, 1e-5});
    out->expert_bytes = 10000;
    out->problem.load = (struct plan_load)PLAN_LOAD(64, 60, 40);
    out->problem.memory_bytes = memory_bytes;
    out->problem.memory_context = out;
    out->waves[0] = 8;
    out->passes[0] = 512;
}

static void check_least(const struct test_problem *test, const struct plan_remedies *would)
{
    int64_t waves = test->waves[0], pass = test->passes[0];
    uint64_t memory = test->problem.memory_bytes;
    cr_assert(any_fits(test, pass, waves, would->memory_bytes));
    cr_assert_not(any_fits(test, pass, waves, would->memory_bytes - 1));
    int64_t sequences = waves - 1, tokens = pass - 1;
    while (sequences > 0 && !any_fits(test, pass, sequences, memory))
        sequences--;
    while (tokens >= waves && !any_fits(test, tokens, waves, memory))
        tokens--;
    cr_assert_eq(would->sequences, sequences, "%lld sequences, not %lld",
                 (long long)would->sequences, (long long)sequences);
    cr_assert_eq(would->pass_tokens, tokens < waves ? 0 : tokens, "passes of %lld, not %lld",
                 (long long)would->pass_tokens, (long long)tokens);
}

static void check_range(int ranks, uint64_t most, uint64_t least, uint64_t step)
{
    int fewer = 0, shorter = 0, neither = 0;
    for (uint64_t memory = most; memory > least; memory -= step) {
        struct test_problem test;
        struct plan_table table;
        struct plan_remedies would;
        problem_make(&test, ranks, memory);
        test.problem.allows_int4 = ranks > 1;
        table_find(&table, &test);
        cr_assert_eq(table.best, -1, "%llu bytes", (unsigned long long)memory);
        plan_remedies_find(&would, &test.problem, &table);
        cr_assert_not_null(would.smallest);
        check_least(&test, &would);
        fewer += would.sequences > 0;
        shorter += would.pass_tokens > 0;
        neither += would.sequences == 0 && would.pass_tokens == 0;
        cr_assert_not(would.int4_fits);
        plan_table_deinit(&table);
    }
    cr_assert(fewer > 0 && shorter > 0 && neither > 0, "%d, %d, %d", fewer, shorter, neither);
}

Test(remedy, is_the_least_of_each_change)
{
    check_range(4, 11411, 10800, 57); /* the least takes 11,412: tp2dp2 */
}

/* One rank has one plan: no other makes up for what is found of it. */
Test(remedy, is_the_least_of_one_plan)
{
    check_range(1, 12311, 11500, 7);
}

/* A run opens passes for so many sequences, however few its waves have. */
Test(remedy, names_no_pass_that_a_run_refuses)
{
    for (int64_t least = 100; least <= 500; least += 400) {
        struct test_problem test;
        struct plan_table table;
        struct plan_remedies would;
        problem_make(&test, 4, 11200);
        test.problem.pass_least = least;
        remedies_find(&would, &table, &test);
        cr_assert_eq(would.pass_tokens, least == 100 ? 300 : 0, "%lld",
                     (long long)would.pass_tokens);
        plan_table_deinit(&table);
    }
}

Test(remedy, of_int4_experts)
{
    struct test_problem test;
    struct plan_table table;
    struct plan_remedies would;
    problem_make(&test, 4, 4000);
    test.problem.int4_memory = int4_memory;
    remedies_find(&would, &table, &test);
    cr_assert(would.int4_fits);
    cr_assert_eq(would.int4.experts, 2500);
    cr_assert_leq(plan_memory_total(&would.int4), 4000);
    cr_assert(would.sequences == 0 && would.pass_tokens == 0);
    plan_table_deinit(&table);
    test.problem.memory_bytes = 3000;
    remedies_find(&would, &table, &test);
    cr_assert_not(would.int4_fits);
    plan_table_deinit(&table);
}

/* Eight experts go on no three ranks that 32 heads do not divide. */
Test(remedy, of_what_no_memory_helps)
{
    struct test_problem test;
    struct plan_table table;
    struct plan_remedies would;
    struct model_shape shape = model_shapes[MIXTRAL_8X7B].shape;
    shape.expert_dim = 1; /* cannot be cut */
    shape.expert_count = 3;
    problem_make(&test, 4, 1);
    test.shape = shape;
    test.problem.allows_int4 = false;
    remedies_find(&would, &table, &test);
    cr_assert_null(would.smallest);
    plan_table_deinit(&table);
}
