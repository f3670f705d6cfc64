/* Slices tile the whole, and a slice of an expert is one range of the packed whole's bytes. */
#include <criterion/criterion.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "layout/layout.h"
#include "model_shapes.h"

static const int rank_counts[] = {1, 2, 3, 4, 6, 8, 16};
#define RANK_COUNTS (int)(sizeof rank_counts / sizeof *rank_counts)

/* ---- Every legal layout of every model ------------------------------------------------------- */

typedef void layout_visit(const struct layout *layout, const struct named_shape *model);

static void visit_legal(const struct named_shape *model, layout_visit *visit)
{
    int visited = 0;
    for (int i = 0; i < RANK_COUNTS; i++) {
        struct layout list[LAYOUT_LIST_MAX];
        int count = layout_list(list, LAYOUT_LIST_MAX, rank_counts[i]);
        for (int j = 0; j < 2 * count; j++) {
            list[j / 2].attention.replicate_ffn = j % 2 == 1;
            if (layout_check(&list[j / 2], &model->shape, NULL) != STATUS_OK)
                continue;
            visit(&list[j / 2], model);
            visited++;
        }
    }
    cr_assert_geq(visited, 2 * (1 + 4 + 9), "%s", model->name);
}

static void visit_all(layout_visit *visit)
{
    for (int model = 0; model < MODEL_SHAPE_COUNT; model++)
        visit_legal(&model_shapes[model], visit);
}

static const char *name_of(const struct layout *layout)
{
    static char text[LAYOUT_TEXT_BYTES];
    layout_format(text, layout);
    return text;
}

/* ---- Places ---------------------------------------------------------------------------------- */

/* Ranks are dealt to groups one after another: counting up, the place in the group turns first. */
static void check_places(const struct layout *layout, const struct named_shape *model)
{
    struct layout_place expected = {0, 0, 0, 0};
    (void)model;
    for (int rank = 0; rank < layout->rank_count; rank++) {
        struct layout_place place = layout_place(layout, rank);
        cr_assert(place.at == expected.at && place.ad == expected.ad && place.et == expected.et &&
                      place.ee == expected.ee,
                  "%s, rank %d", name_of(layout), rank);
        if (++expected.at == layout->attention.tp) {
            expected.at = 0;
            expected.ad++;
        }
        if (++expected.et == layout->experts.tp) {
            expected.et = 0;
            expected.ee++;
        }
    }
    cr_assert_eq(expected.ad, layout->attention.dp);
    cr_assert_eq(expected.ee, layout->experts.ep);
}

Test(layout_slices, neighbours_make_a_group)
{
    visit_all(check_places);
}

/* ---- Shares ---------------------------------------------------------------------------------- */

Test(layout_slices, shares_differ_by_at_most_one)
{
    for (int64_t total = 0; total <= 40; total++) {
        for (int64_t parts = 1; parts <= 20; parts++) {
            int64_t next = 0;
            for (int64_t part = 0; part < parts; part++) {
                struct range share = layout_share(total, parts, part);
                cr_assert_eq(share.first, next);
                cr_assert_eq(share.count, total / parts + (part < total % parts ? 1 : 0));
                next += share.count;
            }
            cr_assert_eq(next, total, "%lld over %lld", (long long)total, (long long)parts);
        }
    }
}

/* ---- Tilings --------------------------------------------------------------------------------- */

/* The slices of a tensor-parallel group's members, in their order, are the whole. */
struct tiling {
    const struct layout *layout;
    const struct named_shape *model;
    const char *what;
    int64_t total;
};

static void check_tile(const struct tiling *tiling, int64_t *next, bool is_first,
                       struct range slice)
{
    if (is_first)
        *next = 0;
    cr_assert_eq(slice.first, *next, "%s of %s, %s: begins at %lld, expected %lld", tiling->what,
                 tiling->model->name, name_of(tiling->layout), (long long)slice.first,
                 (long long)*next);
    cr_assert_geq(slice.count, 0);
    *next += slice.count;
}

static void check_end(const struct tiling *tiling, int64_t next)
{
    cr_assert_eq(next, tiling->total, "%s of %s, %s: ends at %lld, expected %lld", tiling->what,
                 tiling->model->name, name_of(tiling->layout), (long long)next,
                 (long long)tiling->total);
}

static void check_heads(const struct layout *layout, const struct named_shape *model)
{
    const struct model_shape *shape = &model->shape;
    struct tiling q = {layout, model, "query heads", shape->head_count};
    struct tiling kv = {layout, model, "KV heads", shape->kv_head_count};
    int64_t q_next = 0, kv_next = 0;
    for (int rank = 0; rank < layout->rank_count; rank++) {
        int at = rank % layout->attention.tp;
        struct range heads = layout_heads(layout, shape, rank);
        struct range kv_heads = layout_kv_heads(layout, shape, rank);
        check_tile(&q, &q_next, at == 0, heads);
        check_tile(&kv, &kv_next, at == 0, kv_heads);
        /* The rank has the KV heads that its query heads read, and no others. */
        int64_t per_kv = shape->head_count / shape->kv_head_count;
        cr_assert_eq(heads.first, kv_heads.first * per_kv);
        cr_assert_eq(heads.count, kv_heads.count * per_kv);
        if (at == layout->attention.tp - 1) {
            check_end(&q, q_next);
            check_end(&kv, kv_next);
        }
    }
}

Test(layout_slices, heads_tile)
{
    visit_all(check_heads);
}

static void check_experts(const struct layout *layout, const struct named_shape *model)
{
    struct tiling tiling = {layout, model, "an expert's width", model->shape.expert_dim};
    int64_t next = 0;
    for (int rank = 0; rank < layout->rank_count; rank++) {
        int et = rank % layout->experts.tp;
        struct range width = layout_expert_width(layout, &model->shape, rank);
        check_tile(&tiling, &next, et == 0, width);
        cr_assert_eq(width.first % 16, 0);
        cr_assert_gt(width.count, 0);
        if (layout->experts.tp > 1)
            cr_assert_eq(width.count % 16, 0);
        if (et == layout->experts.tp - 1)
            check_end(&tiling, next);
    }
}

Test(layout_slices, expert_widths_tile_in_blocks)
{
    visit_all(check_experts);
}

static void check_ffn(const struct layout *layout, const struct named_shape *model, int64_t width)
{
    struct tiling tiling = {layout, model, "a feed-forward width", width};
    int tp = layout->attention.tp;
    bool is_cut = layout_ffn_is_cut(layout, width);
    int64_t next = 0;
    cr_assert_eq(is_cut, tp > 1 && !layout->attention.replicate_ffn && width % (16 * tp) == 0,
                 "%s, width %lld", name_of(layout), (long long)width);
    for (int rank = 0; rank < layout->rank_count; rank++) {
        struct range slice = layout_ffn_width(layout, width, rank);
        check_tile(&tiling, &next, !is_cut || rank % tp == 0, slice);
        cr_assert_eq(slice.first % 16, 0);
        if (!is_cut || rank % tp == tp - 1)
            check_end(&tiling, next);
    }
}

static void check_ffns(const struct layout *layout, const struct named_shape *model)
{
    static const int64_t widths[] = {16, 24, 40, 64, 80, 128, 5632, 6144, 18944, 20480};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        check_ffn(layout, model, widths[i]);
}

Test(layout_slices, feed_forward_widths_tile_or_are_whole)
{
    visit_all(check_ffns);
}

Test(layout_slices, vocabulary_tiles)
{
    static const int64_t vocabs[] = {151936, 32000, 32001, 2048, 256, 17, 16, 15, 1};
    for (size_t i = 0; i < sizeof vocabs / sizeof *vocabs; i++) {
        struct model_shape shape = {.vocab_count = vocabs[i]};
        for (int ranks = 1; ranks <= LAYOUT_RANKS_MAX; ranks++) {
            int64_t next = 0, each = layout_vocab(&shape, ranks, 0).count;
            for (int rank = 0; rank < ranks; rank++) {
                struct range slice = layout_vocab(&shape, ranks, rank);
                cr_assert_eq(slice.first, next, "%lld over %d", (long long)vocabs[i], ranks);
                /* A slice that is not full is the last, and those behind it are empty. */
                cr_assert(slice.count == each || slice.first + slice.count == vocabs[i]);
                cr_assert(slice.count >= 0 && slice.count <= each);
                cr_assert(slice.first % 16 == 0 || slice.count == 0);
                next += slice.count;
            }
            cr_assert_eq(next, vocabs[i], "%lld over %d", (long long)vocabs[i], ranks);
        }
    }
}

Test(layout_slices, vocabulary_ranges_by_hand)
{
    static const struct {
        int64_t vocab;
        int ranks, rank;
        int64_t first, count;
    } rows[] = {{151936, 8, 0, 0, 18992},
                {151936, 8, 7, 132944, 18992},
                {151936, 3, 1, 50656, 50656},
                {151936, 3, 2, 101312, 50624},
                {32000, 3, 2, 21344, 10656},
                {2048, 6, 5, 1760, 288},
                {17, 2, 0, 0, 16},
                {17, 2, 1, 16, 1},
                {17, 4, 1, 16, 1},
                {17, 4, 2, 17, 0},
                {17, 4, 3, 17, 0},
                {1, 2, 0, 0, 1},
                {1, 2, 1, 1, 0},
                {1, 1, 0, 0, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct model_shape shape = {.vocab_count = rows[i].vocab};
        struct range slice = layout_vocab(&shape, rows[i].ranks, rows[i].rank);
        cr_assert(slice.first == rows[i].first && slice.count == rows[i].count,
                  "row %zu: %lld, %lld", i, (long long)slice.first, (long long)slice.count);
    }
}

static void check_placement(const struct layout *layout, const struct named_shape *model)
{
    int32_t group_of[128];
    int64_t held[LAYOUT_RANKS_MAX] = {0}, count = model->shape.expert_count;
    layout_placement(group_of, layout, &model->shape);
    for (int64_t expert = 0; expert < count; expert++) {
        cr_assert(group_of[expert] >= 0 && group_of[expert] < layout->experts.ep);
        cr_assert(expert == 0 || group_of[expert] >= group_of[expert - 1]);
        held[group_of[expert]]++;
    }
    for (int group = 0; group < layout->experts.ep; group++)
        cr_assert_eq(held[group] * layout->experts.ep, count, "%s", name_of(layout));
}

Test(layout_slices, groups_hold_equal_runs_of_experts)
{
    visit_all(check_placement);
}

/* ---- Bytes ----------------------------------------------------------------------------------- */

#define WIDTH_MAX  256
#define HIDDEN_MAX 48
#define BYTES_MAX  (WIDTH_MAX * HIDDEN_MAX * 4)

static uint32_t element(int64_t width_at, int64_t hidden_at)
{
    return (uint32_t)random_at(7, (uint64_t)width_at, (uint64_t)hidden_at);
}

/* Rows and columns of one matrix of an expert, limited to `slice` of its width: rows of gate and
 * up, columns of down. Fills `packed` and returns its bytes. */
static int64_t pack_expert(char *packed, enum packing packing, enum dtype dtype, int64_t hidden,
                           struct range slice)
{
    static uint32_t plain[WIDTH_MAX * HIDDEN_MAX];
    bool by_rows = packing == PACK_OUTPUT;
    int64_t rows = by_rows ? slice.count : hidden, columns = by_rows ? hidden : slice.count;
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t column = 0; column < columns; column++) {
            uint32_t value =
                by_rows ? element(slice.first + row, column) : element(slice.first + column, row);
            if (dtype == DTYPE_F32)
                plain[row * columns + column] = value;
            else
                ((uint16_t *)plain)[row * columns + column] = (uint16_t)value;
        }
    }
    int64_t bytes = packed_bytes(rows, columns, dtype);
    cr_assert_leq(bytes, BYTES_MAX);
    memset(packed, 0, (size_t)bytes);
    matrix_pack_rows(packed, packing, dtype, rows, columns, plain, 0, rows);
    return bytes;
}

static void check_slice_bytes(const struct layout *layout, const struct model_shape *shape,
                              enum packing packing, enum dtype dtype)
{
    static char whole[BYTES_MAX], slice[BYTES_MAX];
    int64_t next = 0;
    int64_t whole_bytes =
        pack_expert(whole, packing, dtype, shape->hidden_dim, (struct range){0, shape->expert_dim});
    for (int rank = 0; rank < layout->experts.tp; rank++) {
        struct range width = layout_expert_width(layout, shape, rank);
        struct range bytes = layout_slice_bytes(shape, width, dtype);
        int64_t slice_bytes = pack_expert(slice, packing, dtype, shape->hidden_dim, width);
        cr_assert_eq(bytes.first, next);
        cr_assert_eq(bytes.count, slice_bytes);
        cr_assert_eq(memcmp(whole + bytes.first, slice, (size_t)slice_bytes), 0,
                     "%s, rank %d, width %lld, hidden %lld, packing %d, %s", name_of(layout), rank,
                     (long long)shape->expert_dim, (long long)shape->hidden_dim, packing,
                     dtype_name(dtype));
        next += bytes.count;
    }
    cr_assert_eq(next, whole_bytes);
}

Test(layout_slices, slice_bytes_are_the_packed_slice)
{
    static const int64_t expert_widths[] = {16, 24, 40, 48, 64, 96, 128, 256};
    static const int64_t hidden_dims[] = {16, 17, 40, 48};
    for (size_t w = 0; w < sizeof expert_widths / sizeof *expert_widths; w++) {
        for (size_t h = 0; h < sizeof hidden_dims / sizeof *hidden_dims; h++) {
            struct model_shape shape = {.expert_dim = expert_widths[w],
                                        .hidden_dim = hidden_dims[h]};
            int granules = (int)layout_granule_count(shape.expert_dim);
            for (int tp = 1; tp <= granules; tp *= 2) {
                struct layout layout = {tp, {.tp = tp, .dp = 1}, {.tp = tp, .ep = 1}};
                check_slice_bytes(&layout, &shape, PACK_OUTPUT, DTYPE_F32);
                check_slice_bytes(&layout, &shape, PACK_OUTPUT, DTYPE_BF16);
                check_slice_bytes(&layout, &shape, PACK_INPUT, DTYPE_F32);
                check_slice_bytes(&layout, &shape, PACK_INPUT, DTYPE_BF16);
            }
        }
    }
}
