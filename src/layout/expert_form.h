/* How a rank's slice of the routed experts of a layer lies in memory: expert after expert, in each
 * gate, up and down, packed (layout/packing.h), each from a multiple of 64; for int4 the scales of
 * a matrix stand behind its weights, and its minima behind these. So a range of blocks of an expert
 * is one range of bytes in each of a few arrays, and these ranges are the same wherever the slice
 * is cut: what moves between ranks, and what a slot holds. */
#ifndef PHASOR_LAYOUT_EXPERT_FORM_H
#define PHASOR_LAYOUT_EXPERT_FORM_H

#include "layout/moves.h"

/* Numbers of the routed experts in memory. */
struct expert_type {
    enum dtype dtype; /* DTYPE_F32, DTYPE_BF16 or DTYPE_INT4 */
    int64_t group;    /* int4: see struct matrix */
    bool has_minima;  /* the same */
};

#define EXPERT_MATRICES   3 /* gate, up, down */
#define EXPERT_ARRAYS_MAX 9 /* int4: weights, scales and minima of each */

struct expert_array {
    int64_t offset;      /* in an expert */
    int64_t block_bytes; /* of each block of the slice, one after another */
};

/* A slice in memory. */
struct expert_form {
    struct expert_slice slice;
    struct range width; /* in rows of gate: the last block may be filled in part */
    int64_t hidden_dim;
    struct expert_type type;
    struct expert_array
        arrays[EXPERT_ARRAYS_MAX]; /* gate, up, down, each with what it has behind */
    int array_count;
    int64_t expert_bytes; /* from one expert to the next */
};

struct expert_form expert_form_of(const struct model_shape *shape, const struct layout *layout,
                                  int rank, struct expert_type type);

/* Of the whole slice. */
static inline int64_t expert_form_bytes(const struct expert_form *form)
{
    return form->slice.expert_count * form->expert_bytes;
}

/* Where block `block` (of the whole expert's; held) of the model's expert `expert` begins in one of
 * the arrays, from the beginning of the slice. */
int64_t expert_form_offset(const struct expert_form *form, int array, int64_t expert,
                           int64_t block);

/* The matrices of the local-th expert of a slice that lies at `place`: 0 gate, 1 up, 2 down. */
struct matrix expert_form_matrix(const struct expert_form *form, const char *place, int64_t local,
                                 int matrix);

/* Bytes of one block of an expert, in all arrays together. */
int64_t expert_block_bytes(const struct model_shape *shape, struct expert_type type);

#endif
