#include "layout/expert_form.h"

#define ALIGNMENT 64

static int arrays_per_matrix(struct expert_type type)
{
    return type.dtype != DTYPE_INT4 ? 1 : type.has_minima ? 3 : 2;
}

/* Weights of a block of a matrix, and their scales, or minima. All three matrices have blocks of
 * one size. */
static int64_t weight_bytes(int64_t hidden_dim, struct expert_type type)
{
    return packed_bytes(PACK_BLOCK, hidden_dim, type.dtype);
}

static int64_t scale_bytes(int64_t hidden_dim, struct expert_type type)
{
    if (type.dtype != DTYPE_INT4)
        return 0;
    return packed_scale_count(PACK_OUTPUT, PACK_BLOCK, hidden_dim, type.group) *
           (int64_t)sizeof(uint16_t);
}

int64_t expert_block_bytes(const struct model_shape *shape, struct expert_type type)
{
    return EXPERT_MATRICES * (weight_bytes(shape->hidden_dim, type) +
                              (arrays_per_matrix(type) - 1) * scale_bytes(shape->hidden_dim, type));
}

struct expert_form expert_form_of(const struct model_shape *shape, const struct layout *layout,
                                  int rank, struct expert_type type)
{
    struct expert_form form = {
        .slice = moves_slice(shape, layout, rank),
        .width = layout_expert_width(layout, shape, rank),
        .hidden_dim = shape->hidden_dim,
        .type = type,
    };
    const int64_t scales = scale_bytes(shape->hidden_dim, type);
    const int64_t block_bytes[] = {weight_bytes(shape->hidden_dim, type), scales, scales};
    for (int matrix = 0; matrix < EXPERT_MATRICES; matrix++) {
        for (int part = 0; part < arrays_per_matrix(type); part++) {
            form.arrays[form.array_count++] =
                (struct expert_array){form.expert_bytes, block_bytes[part]};
            form.expert_bytes += form.slice.blocks.count * block_bytes[part];
        }
        form.expert_bytes = round_up(form.expert_bytes, ALIGNMENT);
    }
    return form;
}

int64_t expert_form_offset(const struct expert_form *form, int array, int64_t expert, int64_t block)
{
    int64_t local = expert - form->slice.first_expert;
    int64_t at = block - form->slice.blocks.first;
    ASSERT(local >= 0 && local < form->slice.expert_count);
    ASSERT(at >= 0 && at <= form->slice.blocks.count);
    return local * form->expert_bytes + form->arrays[array].offset +
           at * form->arrays[array].block_bytes;
}

struct matrix expert_form_matrix(const struct expert_form *form, const char *place, int64_t local,
                                 int matrix)
{
    int per_matrix = arrays_per_matrix(form->type);
    const char *expert = place + local * form->expert_bytes;
    const struct expert_array *weights = &form->arrays[matrix * per_matrix];
    bool is_down = matrix == EXPERT_MATRICES - 1;
    struct matrix out = {
        .data = expert + weights->offset,
        .dtype = form->type.dtype,
        .packing = is_down ? PACK_INPUT : PACK_OUTPUT,
        .rows = is_down ? form->hidden_dim : form->width.count,
        .columns = is_down ? form->width.count : form->hidden_dim,
    };
    if (per_matrix > 1) {
        out.scales = (const uint16_t *)(expert + weights[1].offset);
        out.group = form->type.group;
    }
    if (per_matrix > 2)
        out.minima = (const uint16_t *)(expert + weights[2].offset);
    return out;
}
