/* Dispatch in rounds: all rows come, none twice, and no buffer is overrun. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "base/random.h"
#include "layout/traffic.h"
#include "model_shapes.h"

static uint64_t test_seed(void)
{
    const char *seed = getenv("PHASOR_TEST_SEED");
    return seed == NULL ? 0 : strtoull(seed, NULL, 10);
}

/* ---- Capacity -------------------------------------------------------------------------------- */

static struct layout layout_of(const char *text)
{
    struct error err;
    struct layout layout;
    cr_assert_eq(layout_parse(&layout, text, 0, &err), STATUS_OK, "%s", err.message);
    return layout;
}

static const struct {
    int model;
    const char *layout;
    int64_t token_count, capacity;
} capacities[] = {
    /* One group has every token. */
    {MIXTRAL_8X7B, "tp4|tp4", 2048, 2048},
    /* Each of 4 groups has 2 of 8 experts; a token misses it by 6/8 x 5/7 = 15/28. */
    {MIXTRAL_8X7B, "tp4|ep4", 2800, 2600 + 4},
    {MIXTRAL_8X7B, "tp4|ep4", 280, 260 + 4},
    /* 4 of 8: 4/8 x 3/7 = 3/14 misses; twice 11/14 is more than all. */
    {MIXTRAL_8X7B, "tp4|tp2ep2", 2800, 2800},
    /* 1 of 8: 7/8 x 6/7 = 3/4 misses. */
    {MIXTRAL_8X7B, "tp8|ep8", 2048, 1024 + 8},
    {MIXTRAL_8X7B, "tp8|ep8", 2047, 1024 + 8},
    /* Few tokens: all of them, and a row of each rank. */
    {MIXTRAL_8X7B, "tp8|ep8", 16, 16},
    {MIXTRAL_8X7B, "tp8|ep8", 15, 15},
    {MIXTRAL_8X7B, "tp8|ep8", 7, 8},
    {MIXTRAL_8X7B, "tp8|ep8", 1, 8},
    {MIXTRAL_8X7B, "tp8|ep8", 0, 8},
    {MIXTRAL_8X7B, "tp1|tp1", 1, 1},
};

Test(dispatch, capacity)
{
    for (size_t i = 0; i < sizeof capacities / sizeof *capacities; i++) {
        struct layout layout = layout_of(capacities[i].layout);
        int64_t capacity = dispatch_capacity(&layout, &model_shapes[capacities[i].model].shape,
                                             capacities[i].token_count);
        cr_assert_eq(capacity, capacities[i].capacity, "%s, %lld tokens: %lld",
                     capacities[i].layout, (long long)capacities[i].token_count,
                     (long long)capacity);
    }
}

/* Twice the mean of draws, within their noise; all models, all expert layouts on 4. */
Test(dispatch, capacity_is_twice_what_draws_give)
{
    static const char *const texts[] = {"dp4|ep4", "dp4|tp2ep2"};
    struct random random = {.seed = test_seed()};
    for (int i = 0; i < 2 * MODEL_SHAPE_COUNT; i++) {
        const struct named_shape *model = &model_shapes[i / 2];
        struct layout layout = layout_of(texts[i % 2]);
        int64_t count = model->shape.expert_count, held = count / layout.experts.ep, hits = 0;
        for (int draw = 0; draw < 20000; draw++) {
            /* top_k without return: at each draw so many of the others are left. */
            int64_t others = count - held, left = count;
            bool hit = false;
            for (int64_t k = 0; k < model->shape.expert_top_k && !hit; k++, left--)
                hit = (int64_t)random_below(&random, (uint64_t)left) >= others--;
            hits += hit;
        }
        double expected = fmin(1, 2 * (double)hits / 20000) * 1e6;
        int64_t capacity = dispatch_capacity(&layout, &model->shape, 1000000);
        cr_assert_lt(fabs((double)capacity - expected), 40000,
                     "%s, %s: %lld, draws %.0f (seed %llu)", model->name, texts[i % 2],
                     (long long)capacity, expected, (unsigned long long)test_seed());
    }
}

/* ---- Pieces ---------------------------------------------------------------------------------- */

Test(dispatch, pieces_tile_and_the_first_is_the_largest)
{
    for (int64_t sent = 0; sent <= 50; sent++) {
        for (int64_t rounds = 1; rounds <= 60; rounds++) {
            int64_t next = 0, first = dispatch_piece(sent, rounds, 0).count;
            for (int64_t round = 0; round < rounds; round++) {
                struct range piece = dispatch_piece(sent, rounds, round);
                cr_assert_eq(piece.first, next);
                cr_assert(piece.count >= 0 && piece.count <= first);
                next += piece.count;
            }
            cr_assert_eq(next, sent);
        }
    }
}

/* ---- Rounds ---------------------------------------------------------------------------------- */

#define RANKS_MAX 16

struct table {
    int ranks, groups;
    int64_t sent[RANKS_MAX * RANKS_MAX];
};

static int64_t fullest(const struct table *table, int64_t rounds)
{
    int64_t most = 0;
    for (int64_t round = 0; round < rounds; round++) {
        for (int group = 0; group < table->groups; group++) {
            int64_t rows = 0;
            for (int rank = 0; rank < table->ranks; rank++)
                rows +=
                    dispatch_piece(table->sent[rank * table->groups + group], rounds, round).count;
            most = rows > most ? rows : most;
        }
    }
    return most;
}

static void check_rounds(const struct table *table, int64_t capacity)
{
    int64_t rounds = dispatch_rounds(table->sent, table->ranks, table->groups, capacity);
    cr_assert_geq(rounds, 1);
    cr_assert_leq(fullest(table, rounds), capacity, "capacity %lld, %lld rounds (seed %llu)",
                  (long long)capacity, (long long)rounds, (unsigned long long)test_seed());
    if (rounds > 1)
        cr_assert_gt(fullest(table, rounds - 1), capacity,
                     "capacity %lld: %lld rounds, one less is enough (seed %llu)",
                     (long long)capacity, (long long)rounds, (unsigned long long)test_seed());
}

static void draw_table(struct table *table, struct random *random, int ranks, int64_t most)
{
    table->ranks = ranks;
    table->groups = 1 + (int)random_below(random, (uint64_t)ranks);
    for (int i = 0; i < ranks * table->groups; i++) {
        bool is_empty = random_below(random, 4) == 0;
        table->sent[i] = is_empty ? 0 : (int64_t)random_below(random, (uint64_t)most + 1);
    }
}

/* From the smallest buffer that is allowed to one that takes all at once. */
Test(dispatch, rounds_are_the_fewest_that_fit)
{
    static const int64_t sizes[] = {0, 1, 2, 7, 40, 300};
    struct random random = {.seed = test_seed()};
    for (int ranks = 1; ranks <= RANKS_MAX; ranks++) {
        for (int i = 0; i < 6; i++) {
            struct table table;
            draw_table(&table, &random, ranks, sizes[i]);
            int64_t all = fullest(&table, 1);
            for (int64_t capacity = ranks; capacity <= all + 1;
                 capacity += 1 + (int64_t)random_below(&random, 40))
                check_rounds(&table, capacity);
            if (all >= ranks)
                cr_assert_eq(dispatch_rounds(table.sent, ranks, table.groups, all), 1);
        }
    }
}

Test(dispatch, rounds_by_hand)
{
    static const struct {
        int64_t sent[4]; /* two ranks, two groups */
        int64_t capacity, rounds;
    } rows[] = {
        {{0, 0, 0, 0}, 2, 1},       {{1, 1, 1, 1}, 2, 1},     {{2, 0, 1, 0}, 3, 1},
        {{2, 0, 1, 0}, 2, 2},       {{100, 0, 0, 0}, 100, 1}, {{100, 0, 0, 0}, 99, 2},
        {{100, 0, 0, 0}, 2, 50},    {{100, 0, 1, 0}, 2, 100}, /* the one row shares the first round
                                                               */
        {{0, 100, 0, 100}, 2, 100},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        cr_assert_eq(dispatch_rounds(rows[i].sent, 2, 2, rows[i].capacity), rows[i].rounds,
                     "row %zu: %lld", i,
                     (long long)dispatch_rounds(rows[i].sent, 2, 2, rows[i].capacity));
}

/* However a pass is routed, the buffers of dispatch_capacity need few rounds: `count` tokens with
 * all their rows in one group, dealt to the owners at random, most to one. */
Test(dispatch, a_pass_needs_few_rounds)
{
    struct random random = {.seed = test_seed()};
    const struct model_shape *shape = &model_shapes[QWEN3_30B_A3B].shape;
    for (int ranks = 1; ranks <= RANKS_MAX; ranks *= 2) {
        struct layout layout = {ranks, {.tp = 1, .dp = ranks}, {.tp = 1, .ep = ranks}};
        for (int64_t count = 1; count <= 400; count++) {
            int64_t sent[RANKS_MAX * RANKS_MAX] = {0};
            int64_t capacity = dispatch_capacity(&layout, shape, count);
            for (int64_t i = 0; i < count; i++) {
                uint64_t owner = random_below(&random, 2) * random_below(&random, (uint64_t)ranks);
                sent[owner * (uint64_t)ranks + (uint64_t)ranks - 1]++;
            }
            int64_t rounds = dispatch_rounds(sent, ranks, ranks, capacity);
            cr_assert_leq(rounds, (ranks + 1) / 2, "%d ranks, %lld tokens: %lld (seed %llu)", ranks,
                          (long long)count, (long long)rounds, (unsigned long long)test_seed());
        }
    }
}
