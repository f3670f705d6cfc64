/* Move lists for every pair of legal layouts of the experts on up to eight ranks: every block of
 * the new slice once, from one that has it, and no byte sent that need not be. Who has what is
 * worked out here again, block by block. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "layout/expert_form.h"
#include "model_shapes.h"

#define RANKS_MAX 8

/* Shapes beside the published: a width that is no multiple of 16 (one uncut slice); two granules;
 * tests/data/configs are like these. */
static const struct named_shape small_shapes[] = {
    {"odd width", {.hidden_dim = 20, .expert_count = 24, .expert_dim = 24}},
    {"two granules", {.hidden_dim = 48, .expert_count = 6, .expert_dim = 96}},
    {"eight granules", {.hidden_dim = 32, .expert_count = 16, .expert_dim = 128}},
};

/* ---- Who has what, block by block ------------------------------------------------------------ */

struct pair {
    const struct model_shape *shape;
    struct layout from, to;
    char label[128];
};

static int64_t blocks_of(const struct model_shape *shape)
{
    return (shape->expert_dim + 15) / 16;
}

static bool holds(const struct model_shape *shape, const struct layout *layout, int rank,
                  int64_t expert, int64_t block)
{
    int64_t group = rank / layout->experts.tp, member = rank % layout->experts.tp;
    int64_t experts = shape->expert_count / layout->experts.ep;
    int64_t blocks = blocks_of(shape) / layout->experts.tp;
    return expert / experts == group && block / blocks == member;
}

/* ---- Every pair ------------------------------------------------------------------------------ */

static int64_t pair_count;

static void visit_pairs(const struct named_shape *model, int rank_count,
                        void (*visit)(const struct pair *pair))
{
    struct layout list[LAYOUT_LIST_MAX];
    int count = layout_list(list, LAYOUT_LIST_MAX, rank_count);
    for (int a = 0; a < count; a++) {
        for (int b = 0; b < count; b++) {
            struct pair pair = {.shape = &model->shape, .from = list[a], .to = list[b]};
            /* Attention is the same in both, and moves no expert: one stands for all. */
            if (pair.from.attention.tp > 1 || pair.to.attention.tp > 1 ||
                layout_check(&pair.from, pair.shape, NULL) != STATUS_OK ||
                layout_check(&pair.to, pair.shape, NULL) != STATUS_OK)
                continue;
            snprintf(pair.label, sizeof pair.label, "%s, tp%dep%d>tp%dep%d", model->name,
                     pair.from.experts.tp, pair.from.experts.ep, pair.to.experts.tp,
                     pair.to.experts.ep);
            visit(&pair);
            pair_count++;
        }
    }
}

static void visit_all(void (*visit)(const struct pair *pair))
{
    pair_count = 0;
    for (int n = 1; n <= RANKS_MAX; n++) {
        for (int model = 0; model < MODEL_SHAPE_COUNT; model++)
            visit_pairs(&model_shapes[model], n, visit);
        for (size_t model = 0; model < sizeof small_shapes / sizeof *small_shapes; model++)
            visit_pairs(&small_shapes[model], n, visit);
    }
    printf("%lld pairs of layouts\n", (long long)pair_count);
    /* On 1, 2, 4 and 8 ranks; 60 experts cannot be dealt to 8 groups. */
    cr_assert_geq(pair_count, MODEL_SHAPE_COUNT * (1 + 4 + 9 + 16) - (16 - 9));
}

static int64_t list_of(struct move **out, const struct pair *pair, int rank,
                       struct move_rules rules)
{
    int64_t capacity = pair->shape->expert_count * MOVES_PER_EXPERT_MAX;
    *out = memory_alloc((size_t)capacity, sizeof **out);
    cr_assert_not_null(*out);
    int64_t count = moves_list(*out, capacity, pair->shape, &pair->from, &pair->to, rank, rules);
    cr_assert_leq(count, capacity, "%s", pair->label);
    return count;
}

/* ---- Between ranks --------------------------------------------------------------------------- */

static void check_move(const struct pair *pair, const struct move *move, int rank)
{
    if (move->source == MOVE_HERE)
        cr_assert_eq(move->rank, rank, "%s", pair->label);
    else
        cr_assert(move->source == MOVE_RANK && move->rank != rank, "%s", pair->label);
    for (int64_t b = move->blocks.first; b < move->blocks.first + move->blocks.count; b++) {
        bool is_here = holds(pair->shape, &pair->from, rank, move->expert, b);
        cr_assert(holds(pair->shape, &pair->from, move->rank, move->expert, b),
                  "%s, rank %d: block %lld of expert %lld is not on rank %d", pair->label, rank,
                  (long long)b, (long long)move->expert, move->rank);
        cr_assert_eq(is_here, move->source == MOVE_HERE, "%s, rank %d: what is here is received",
                     pair->label, rank);
    }
}

/* Goes through the blocks that the rank must have in the end, in order, with the list in step. */
static void check_rank(const struct pair *pair, int rank, const int64_t *sent)
{
    struct move *moves;
    int64_t count = list_of(&moves, pair, rank, moves_between_ranks()), next = 0, in_move = 0;
    int64_t missing = 0, received = 0;
    for (int64_t e = 0; e < pair->shape->expert_count; e++) {
        for (int64_t b = 0; b < blocks_of(pair->shape); b++) {
            if (!holds(pair->shape, &pair->to, rank, e, b))
                continue;
            cr_assert_lt(next, count, "%s, rank %d", pair->label, rank);
            cr_assert_eq(moves[next].expert, e, "%s, rank %d", pair->label, rank);
            cr_assert_eq(moves[next].blocks.first + in_move, b, "%s, rank %d", pair->label, rank);
            missing += !holds(pair->shape, &pair->from, rank, e, b);
            if (++in_move == moves[next].blocks.count) {
                in_move = 0;
                next++;
            }
        }
    }
    cr_assert(next == count && in_move == 0, "%s, rank %d: more than the slice", pair->label, rank);
    for (int64_t i = 0; i < count; i++) {
        check_move(pair, &moves[i], rank);
        received += moves[i].source == MOVE_RANK ? moves[i].blocks.count : 0;
    }
    cr_assert_eq(received, missing, "%s, rank %d: %lld blocks received, %lld are missing",
                 pair->label, rank, (long long)received, (long long)missing);
    for (int a = 0; a < pair->from.rank_count; a++) {
        int64_t of_list = 0;
        for (int64_t i = 0; i < count; i++)
            of_list +=
                moves[i].source == MOVE_RANK && moves[i].rank == a ? moves[i].blocks.count : 0;
        cr_assert_eq(sent[a * pair->from.rank_count + rank], of_list, "%s, rank %d to %d",
                     pair->label, a, rank);
    }
    memory_free(moves);
}

static void check_between_ranks(const struct pair *pair)
{
    int64_t sent[RANKS_MAX * RANKS_MAX];
    moves_sent_blocks(sent, pair->shape, &pair->from, &pair->to);
    for (int rank = 0; rank < pair->from.rank_count; rank++)
        check_rank(pair, rank, sent);
}

Test(moves, each_block_once_and_the_fewest_bytes)
{
    visit_all(check_between_ranks);
}

/* ---- From files ------------------------------------------------------------------------------ */

static void check_from_files(const struct pair *pair)
{
    for (int rank = 0; rank < pair->from.rank_count; rank++) {
        struct move *kept, *anew, *from_ranks;
        int64_t kept_count = list_of(&kept, pair, rank, (struct move_rules){true, MOVE_CHECKPOINT});
        int64_t anew_count = list_of(&anew, pair, rank, (struct move_rules){false, MOVE_BACKUP});
        int64_t rank_count = list_of(&from_ranks, pair, rank, moves_between_ranks());
        int64_t read = 0, received = 0;
        for (int64_t i = 0; i < kept_count; i++) {
            const struct range *blocks = &kept[i].blocks;
            cr_assert_eq(kept[i].rank, rank);
            cr_assert_eq(kept[i].source == MOVE_HERE,
                         holds(pair->shape, &pair->from, rank, kept[i].expert, blocks->first));
            /* Neighbours of one source are one read, whoever has them now. */
            cr_assert(i == 0 || kept[i - 1].expert != kept[i].expert ||
                          kept[i - 1].source != kept[i].source,
                      "%s, rank %d", pair->label, rank);
            read += kept[i].source == MOVE_CHECKPOINT ? blocks->count : 0;
        }
        for (int64_t i = 0; i < rank_count; i++)
            received += from_ranks[i].source == MOVE_RANK ? from_ranks[i].blocks.count : 0;
        cr_assert_eq(read, received, "%s, rank %d", pair->label, rank);
        /* All of an expert's slice at once. */
        cr_assert_eq(anew_count, pair->shape->expert_count / pair->to.experts.ep);
        for (int64_t i = 0; i < anew_count; i++) {
            cr_assert_eq(anew[i].source, MOVE_BACKUP);
            cr_assert_eq(anew[i].blocks.count, blocks_of(pair->shape) / pair->to.experts.tp);
            cr_assert(holds(pair->shape, &pair->to, rank, anew[i].expert, anew[i].blocks.first));
        }
        memory_free(kept);
        memory_free(anew);
        memory_free(from_ranks);
    }
}

Test(moves, what_is_missing_comes_from_files)
{
    visit_all(check_from_files);
}

/* ---- Examples, by hand ----------------------------------------------------------------------- */

Test(moves, equal_layouts_move_nothing)
{
    const struct model_shape *shape = &model_shapes[MIXTRAL_8X7B].shape;
    int64_t sent[64];
    struct layout layout;
    struct error err;
    cr_assert_eq(layout_parse(&layout, "dp8|tp2ep4", 0, &err), STATUS_OK);
    moves_sent_blocks(sent, shape, &layout, &layout);
    for (int i = 0; i < 64; i++)
        cr_assert_eq(sent[i], 0);
}

/* Two whole experts of eight on each of four ranks, then a quarter of each: rank 1 has a quarter of
 * its own two, and gets a quarter of six. */
Test(moves, from_whole_experts_to_quarters)
{
    const struct model_shape *shape = &model_shapes[MIXTRAL_8X7B].shape;
    struct move moves[8];
    struct layout from, to;
    struct error err;
    int64_t sent[16];
    cr_assert_eq(layout_parse(&from, "dp4|ep4", 0, &err), STATUS_OK);
    cr_assert_eq(layout_parse(&to, "dp4|tp4", 0, &err), STATUS_OK);
    cr_assert_eq(moves_list(moves, 3, shape, &from, &to, 1, moves_between_ranks()), 8);
    cr_assert_eq(moves_list(moves, 8, shape, &from, &to, 1, moves_between_ranks()), 8);
    for (int e = 0; e < 8; e++) {
        cr_assert_eq(moves[e].expert, e);
        cr_assert(moves[e].blocks.first == 224 && moves[e].blocks.count == 224);
        cr_assert_eq(moves[e].rank, e / 2);
        cr_assert_eq(moves[e].source, e / 2 == 1 ? MOVE_HERE : MOVE_RANK);
    }
    moves_sent_blocks(sent, shape, &from, &to);
    for (int a = 0; a < 4; a++) {
        for (int b = 0; b < 4; b++)
            cr_assert_eq(sent[a * 4 + b], a == b ? 0 : 448);
    }
    cr_assert_eq(expert_block_bytes(shape, (struct expert_type){.dtype = DTYPE_BF16}),
                 (int64_t)3 * 16 * 4096 * 2);
}

/* And back: rank 0 gets three quarters of two experts, in one piece of each from each other. */
Test(moves, from_quarters_to_whole_experts)
{
    const struct model_shape *shape = &model_shapes[MIXTRAL_8X7B].shape;
    struct move moves[16];
    struct layout from, to;
    struct error err;
    cr_assert_eq(layout_parse(&from, "dp4|tp4", 0, &err), STATUS_OK);
    cr_assert_eq(layout_parse(&to, "dp4|ep4", 0, &err), STATUS_OK);
    memset(moves, 0x55, sizeof moves);
    cr_assert_eq(moves_list(moves, 2, shape, &from, &to, 0, moves_between_ranks()), 8);
    cr_assert_eq(moves[2].rank, 0x55555555); /* no more than its capacity is written */
    cr_assert_eq(moves_list(moves, 16, shape, &from, &to, 0, moves_between_ranks()), 8);
    for (int i = 0; i < 8; i++) {
        cr_assert_eq(moves[i].expert, i / 4);
        cr_assert(moves[i].blocks.first == i % 4 * 224 && moves[i].blocks.count == 224);
        cr_assert_eq(moves[i].rank, i % 4);
    }
}
