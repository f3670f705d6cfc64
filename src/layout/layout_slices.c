/* Where a rank stands, and what it holds. */
#include "layout/layout.h"

struct layout_place layout_place(const struct layout *layout, int rank)
{
    ASSERT(rank >= 0 && rank < layout->rank_count);
    return (struct layout_place){
        .at = rank % layout->attention.tp,
        .ad = rank / layout->attention.tp,
        .et = rank % layout->experts.tp,
        .ee = rank / layout->experts.tp,
    };
}

struct range layout_share(int64_t total, int64_t parts, int64_t part)
{
    ASSERT(total >= 0 && part >= 0 && part < parts);
    int64_t each = total / parts, more = total % parts;
    return (struct range){.first = part * each + (part < more ? part : more),
                          .count = each + (part < more)};
}

/* An equal cut of what the rules of layout_check let divide. */
static struct range cut(int64_t total, int parts, int part)
{
    ASSERT(total % parts == 0);
    return layout_share(total, parts, part);
}

struct range layout_heads(const struct layout *layout, const struct model_shape *shape, int rank)
{
    return cut(shape->head_count, layout->attention.tp, layout_place(layout, rank).at);
}

struct range layout_kv_heads(const struct layout *layout, const struct model_shape *shape, int rank)
{
    return cut(shape->kv_head_count, layout->attention.tp, layout_place(layout, rank).at);
}

struct range layout_expert_width(const struct layout *layout, const struct model_shape *shape,
                                 int rank)
{
    ASSERT(layout_granule_count(shape->expert_dim) % layout->experts.tp == 0);
    return cut(shape->expert_dim, layout->experts.tp, layout_place(layout, rank).et);
}

bool layout_ffn_is_cut(const struct layout *layout, int64_t width)
{
    int tp = layout->attention.tp;
    return tp > 1 && !layout->attention.replicate_ffn && width > 0 &&
           width % (tp * PACK_BLOCK) == 0;
}

struct range layout_ffn_width(const struct layout *layout, int64_t width, int rank)
{
    if (!layout_ffn_is_cut(layout, width))
        return (struct range){.first = 0, .count = width};
    return cut(width, layout->attention.tp, layout_place(layout, rank).at);
}

struct range layout_vocab(const struct model_shape *shape, int rank_count, int rank)
{
    ASSERT(rank >= 0 && rank < rank_count);
    int64_t total = shape->vocab_count;
    int64_t each = round_up(ceil_div(total, rank_count), PACK_BLOCK);
    int64_t first = rank * each < total ? rank * each : total;
    return (struct range){.first = first, .count = total - first < each ? total - first : each};
}

struct range layout_slice_bytes(const struct model_shape *shape, struct range width,
                                enum dtype dtype)
{
    ASSERT(width.first % PACK_BLOCK == 0);
    int64_t block_bytes = packed_bytes(PACK_BLOCK, shape->hidden_dim, dtype);
    return (struct range){.first = width.first / PACK_BLOCK * block_bytes,
                          .count = ceil_div(width.count, PACK_BLOCK) * block_bytes};
}

void layout_placement(int32_t *group_of, const struct layout *layout,
                      const struct model_shape *shape)
{
    ASSERT(shape->expert_count % layout->experts.ep == 0);
    int64_t each = shape->expert_count / layout->experts.ep;
    for (int64_t expert = 0; expert < shape->expert_count; expert++)
        group_of[expert] = (int32_t)(expert / each);
}
