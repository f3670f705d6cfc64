/* The formulas of traffic.h against a walk through every message, for every legal layout. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "traffic_walk.h"

/* Every degree divides heads and experts; Et is 1, 2, 4 or 8. */
static const struct model_shape shape = {
    .layer_count = 2,
    .moe_layer_count = 1,
    .vocab_count = 100, /* of 8 ranks the last holds nothing */
    .hidden_dim = 40,
    .head_count = 24,
    .kv_head_count = 24,
    .head_dim = 8,
    .expert_count = 24,
    .expert_top_k = 4,
    .expert_dim = 128,
    .shared_expert_dim = 96,
    .dense_dim = 128,
};

static uint64_t test_seed(void)
{
    const char *seed = getenv("PHASOR_TEST_SEED");
    return seed == NULL ? 0 : strtoull(seed, NULL, 10);
}

/* ---- Cases: who owns how much, and where the router sends it --------------------------------- */

enum owners { OWNERS_ANY, OWNERS_ONE_RANK, OWNERS_FIRST_HALF, OWNERS_EVEN };
enum routes { ROUTES_ANY, ROUTES_SAME, ROUTES_LAST };

struct traffic_case {
    const char *name;
    int token_count; /* -1: any */
    enum owners owners;
    enum routes routes;
    int64_t top_k;
};

static const struct traffic_case cases[] = {
    {"any", -1, OWNERS_ANY, ROUTES_ANY, 4},
    {"any, one expert each", -1, OWNERS_ANY, ROUTES_ANY, 1},
    {"any, 8 experts each", -1, OWNERS_ANY, ROUTES_ANY, 8},
    {"ranks without tokens", 24, OWNERS_FIRST_HALF, ROUTES_ANY, 4},
    {"all tokens of one rank", 17, OWNERS_ONE_RANK, ROUTES_ANY, 4},
    {"as many on each", 48, OWNERS_EVEN, ROUTES_ANY, 4},
    {"one token in all", 1, OWNERS_ANY, ROUTES_ANY, 4},
    {"no token", 0, OWNERS_ANY, ROUTES_ANY, 4},
    {"all to one expert", 40, OWNERS_ANY, ROUTES_SAME, 1},
    {"all to the same experts", 40, OWNERS_ANY, ROUTES_SAME, 4},
    {"all to the last experts", 40, OWNERS_EVEN, ROUTES_LAST, 4},
};

static int draw_owner(struct random *random, enum owners owners, int rank_count, int token)
{
    if (owners == OWNERS_ONE_RANK)
        return rank_count - 1;
    if (owners == OWNERS_FIRST_HALF)
        return (int)random_below(random, (uint64_t)(rank_count + 1) / 2);
    if (owners == OWNERS_EVEN)
        return token % rank_count;
    return (int)random_below(random, (uint64_t)rank_count);
}

/* top_k experts, all different. */
static void draw_experts(struct random *random, int32_t *out, int64_t top_k)
{
    int32_t all[24];
    for (int32_t i = 0; i < 24; i++)
        all[i] = i;
    for (int64_t i = 0; i < top_k; i++) {
        int64_t other = i + (int64_t)random_below(random, (uint64_t)(24 - i));
        out[i] = all[other];
        all[other] = all[i];
    }
}

static int draw_tokens(struct walk_token *tokens, struct random *random,
                       const struct traffic_case *row, int rank_count)
{
    int count =
        row->token_count >= 0 ? row->token_count : (int)random_below(random, WALK_TOKENS_MAX + 1);
    for (int i = 0; i < count; i++) {
        tokens[i].owner = draw_owner(random, row->owners, rank_count, i);
        tokens[i].id = (int64_t)random_below(random, (uint64_t)shape.vocab_count);
        tokens[i].is_wanted = random_below(random, 3) == 0;
        draw_experts(random, tokens[i].experts, row->top_k);
        for (int64_t c = 0; c < row->top_k && row->routes != ROUTES_ANY; c++)
            tokens[i].experts[c] =
                row->routes == ROUTES_LAST ? (int32_t)(23 - c) : tokens[0].experts[c];
    }
    return count;
}

/* ---- What the formulas are given ------------------------------------------------------------- */

struct counts {
    int64_t own[WALK_RANKS_MAX], wanted[WALK_RANKS_MAX];
    int64_t held[WALK_RANKS_MAX * WALK_RANKS_MAX];
    int64_t sent[WALK_RANKS_MAX * WALK_RANKS_MAX];
};

static void count_groups(int64_t *sent, const struct walk *walk, const struct walk_token *token)
{
    int32_t placement[24];
    bool seen[WALK_RANKS_MAX] = {false};
    layout_placement(placement, walk->layout, walk->shape);
    for (int64_t c = 0; c < walk->shape->expert_top_k; c++)
        seen[placement[token->experts[c]]] = true;
    for (int g = 0; g < walk->layout->experts.ep; g++)
        sent[g] += seen[g];
}

static void count_all(struct counts *counts, const struct walk *walk)
{
    int ranks = walk->layout->rank_count, groups = walk->layout->experts.ep;
    int64_t each = layout_vocab(walk->shape, ranks, 0).count;
    *counts = (struct counts){.own = {0}};
    for (int i = 0; i < walk->token_count; i++) {
        const struct walk_token *token = &walk->tokens[i];
        int owner = token->owner, holder = (int)(token->id / each);
        counts->own[walk->form == FORM_REPLICATED ? 0 : owner]++;
        counts->wanted[owner] += token->is_wanted;
        for (int rank = 0; rank < ranks; rank++)
            counts->held[holder * ranks + rank] += walk->form == FORM_REPLICATED || rank == owner;
        count_groups(&counts->sent[owner * groups], walk, token);
    }
}

/* ---- The comparison -------------------------------------------------------------------------- */

static void check_equal(const struct walk *walk, const struct traffic_bytes *formulas,
                        const char *what)
{
    static const char *const forms[] = {"owned", "gathered", "replicated"};
    char text[LAYOUT_TEXT_BYTES];
    layout_format(text, walk->layout);
    for (int rank = 0; rank < walk->layout->rank_count; rank++) {
        for (int kind = 0; kind < TRAFFIC_KIND_COUNT; kind++)
            cr_assert_eq(formulas->bytes[rank][kind], walk->sent.bytes[rank][kind],
                         "%s, %s form, %s: %s of rank %d: formula %lld, walk %lld (seed %llu)",
                         text, forms[walk->form], what, traffic_names[kind], rank,
                         (long long)formulas->bytes[rank][kind],
                         (long long)walk->sent.bytes[rank][kind], (unsigned long long)test_seed());
    }
}

/* Both start from numbers that are not 0: formulas add. */
static void fill_start(struct traffic_bytes *bytes)
{
    memset(bytes, 0, sizeof *bytes);
    for (int rank = 0; rank < WALK_RANKS_MAX; rank++) {
        for (int kind = 0; kind < TRAFFIC_KIND_COUNT; kind++)
            bytes->bytes[rank][kind] = 1000 * rank + kind;
    }
}

static void compare(struct walk *walk, const char *what)
{
    static const int64_t widths[] = {96, 128, 40};
    static struct traffic_bytes formulas;
    struct counts counts;
    fill_start(&formulas);
    fill_start(&walk->sent);
    count_all(&counts, walk);
    struct traffic_pass pass = {walk->form, counts.own, walk->row_bytes};

    traffic_embed(&formulas, walk->layout, &pass, counts.held);
    traffic_attention(&formulas, walk->layout, &pass);
    traffic_experts(&formulas, walk->layout, walk->shape, &pass, counts.sent);
    traffic_head(&formulas, walk->layout, &pass, counts.wanted);
    walk_embed(walk);
    walk_attention(walk);
    walk_experts(walk);
    walk_head(walk);
    for (int i = 0; i < 6; i++) {
        traffic_ffn(&formulas, walk->layout, &pass, widths[i / 2], i % 2 == 0);
        walk_ffn(walk, widths[i / 2], i % 2 == 0);
    }
    check_equal(walk, &formulas, what);
}

static void check_layout(const struct layout *layout, struct random *random)
{
    static struct walk walk;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct walk_token tokens[WALK_TOKENS_MAX];
        struct model_shape with_k = shape;
        with_k.expert_top_k = cases[i].top_k;
        walk = (struct walk){.layout = layout, .shape = &with_k, .tokens = tokens};
        walk.token_count = draw_tokens(tokens, random, &cases[i], layout->rank_count);
        walk.row_bytes = i % 2 == 0 ? 192 : 64;
        for (int form = FORM_OWNED; form <= FORM_REPLICATED; form++) {
            if (form == FORM_REPLICATED && layout->attention.dp > 1)
                continue;
            walk.form = (enum layer_form)form;
            compare(&walk, cases[i].name);
        }
    }
}

Test(traffic, formulas_are_what_a_walk_counts)
{
    static const int rank_counts[] = {1, 2, 3, 4, 6, 8};
    struct random random = {.seed = test_seed()};
    int checked = 0;
    for (int i = 0; i < 6; i++) {
        struct layout list[LAYOUT_LIST_MAX];
        int count = layout_list(list, LAYOUT_LIST_MAX, rank_counts[i]);
        for (int j = 0; j < 2 * count; j++) {
            list[j / 2].attention.replicate_ffn = j % 2 == 1;
            if (layout_check(&list[j / 2], &shape, NULL) != STATUS_OK)
                continue;
            check_layout(&list[j / 2], &random);
            checked++;
        }
    }
    /* At of all divisors; Et x Ee of N = 3 is 1x3, of 6 it is 1x6 and 2x3. */
    cr_assert_eq(checked, 2 * (1 + 4 + 2 + 9 + 4 * 2 + 16));
}

Test(traffic, every_kind_has_a_name)
{
    for (int i = 0; i < TRAFFIC_KIND_COUNT; i++) {
        cr_assert_neq(traffic_names[i], NULL);
        for (int j = 0; j < i; j++)
            cr_assert_str_neq(traffic_names[i], traffic_names[j]);
    }
}

/* ---- By hand --------------------------------------------------------------------------------- */

/* 4 ranks, tp2dp2|tp2ep2, rows of 100 bytes, top_k 2: rank 0 owns one token with experts in both
 * groups, rank 3 one with experts in group 0 alone. */
Test(traffic, an_example_by_hand)
{
    struct layout layout = {4, {.tp = 2, .dp = 2}, {.tp = 2, .ep = 2}};
    struct model_shape two = shape;
    static struct traffic_bytes bytes;
    int64_t own[] = {1, 0, 0, 1}, sent[] = {1, 1, 0, 0, 0, 0, 1, 0};
    struct traffic_pass pass = {FORM_OWNED, own, 100};
    two.expert_top_k = 2;
    traffic_experts(&bytes, &layout, &two, &pass, sent);
    static const struct {
        enum traffic kind;
        int64_t of_rank[4];
    } expected[] = {
        {TRAFFIC_COUNTS, {24, 24, 24, 24}},          /* 2 counts of 4 bytes to 3 others */
        {TRAFFIC_DISPATCH, {100, 0, 0, 100}},        /* 0 to 2, 3 to 1 */
        {TRAFFIC_EXPERT_GATHER, {100, 100, 100, 0}}, /* 0 to 1, 1 to 0, 2 to 3 */
        {TRAFFIC_CHOICES, {32, 16, 16, 16}},         /* with them, 16 bytes each */
        {TRAFFIC_EXPERT_REDUCE, {100, 100, 0, 100}}, /* 1 to 0, 0 to 1, 3 to 2 */
        {TRAFFIC_COMBINE, {0, 100, 100, 0}},         /* 2 to 0, 1 to 3 */
    };
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        for (int rank = 0; rank < 4; rank++)
            cr_assert_eq(bytes.bytes[rank][expected[i].kind], expected[i].of_rank[rank],
                         "%s of rank %d: %lld", traffic_names[expected[i].kind], rank,
                         (long long)bytes.bytes[rank][expected[i].kind]);
    }
}
