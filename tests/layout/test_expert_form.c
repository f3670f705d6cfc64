/* Slices in memory: matrices and their scales where the kernels look for them, and moving ranges of
 * bytes by a move list gives the bytes of a slice that was made in place. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "layout/expert_form.h"
#include "layout/packing.h"

static const struct {
    const char *name;
    struct model_shape shape;
    struct expert_type type;
} cases[] = {
    {"f32", {.hidden_dim = 32, .expert_count = 8, .expert_dim = 128}, {.dtype = DTYPE_F32}},
    {"bf16", {.hidden_dim = 48, .expert_count = 6, .expert_dim = 64}, {.dtype = DTYPE_BF16}},
    {"bf16, odd sizes",
     {.hidden_dim = 20, .expert_count = 4, .expert_dim = 24},
     {.dtype = DTYPE_BF16}},
    {"int4, odd scales",
     {.hidden_dim = 80, .expert_count = 8, .expert_dim = 128},
     {DTYPE_INT4, 32, false}},
    {"int4, minima",
     {.hidden_dim = 80, .expert_count = 8, .expert_dim = 128},
     {DTYPE_INT4, 16, true}},
};
#define CASE_COUNT (sizeof cases / sizeof *cases)

/* ---- Matrices -------------------------------------------------------------------------------- */

/* One rank that has all: matrices follow one another, none overlaps another. */
Test(expert_form, matrices_are_whole_and_apart)
{
    for (size_t i = 0; i < CASE_COUNT; i++) {
        struct layout alone;
        struct error err;
        cr_assert_eq(layout_parse(&alone, "tp1|tp1", 0, &err), STATUS_OK);
        struct expert_form form = expert_form_of(&cases[i].shape, &alone, 0, cases[i].type);
        int64_t hidden = cases[i].shape.hidden_dim, width = cases[i].shape.expert_dim, end = 0;
        for (int64_t e = 0; e < cases[i].shape.expert_count; e++) {
            for (int m = 0; m < EXPERT_MATRICES; m++) {
                struct matrix matrix = expert_form_matrix(&form, NULL, e, m);
                bool is_down = m == 2;
                cr_assert_eq(matrix.rows, is_down ? hidden : width);
                cr_assert_eq(matrix.columns, is_down ? width : hidden);
                cr_assert_eq(matrix.packing, is_down ? PACK_INPUT : PACK_OUTPUT);
                cr_assert_eq(matrix.dtype, cases[i].type.dtype);
                cr_assert_eq((int64_t)matrix.data % 64, 0, "%s", cases[i].name);
                cr_assert(end <= (int64_t)matrix.data, "%s", cases[i].name);
                end =
                    (int64_t)matrix.data + packed_bytes(matrix.rows, matrix.columns, matrix.dtype);
                if (matrix.dtype != DTYPE_INT4)
                    continue;
                cr_assert_eq((int64_t)matrix.scales, end);
                cr_assert_eq(matrix.group, cases[i].type.group);
                int64_t scales = 2 * packed_scale_count(matrix.packing, matrix.rows, matrix.columns,
                                                        matrix.group);
                end += scales;
                cr_assert_eq((int64_t)matrix.minima, cases[i].type.has_minima ? end : 0);
                end += cases[i].type.has_minima ? scales : 0;
            }
        }
        cr_assert(end <= expert_form_bytes(&form) && end > expert_form_bytes(&form) - 64, "%s",
                  cases[i].name);
    }
}

/* ---- Moving ---------------------------------------------------------------------------------- */

/* A byte of the whole model's experts, by where it belongs. */
static char byte_of(int64_t expert, int array, int64_t block, int64_t at)
{
    return (char)(expert * 131 + array * 31 + block * 17 + at * 7 + at / 256 + 1);
}

static char *slice_make(const struct expert_form *form)
{
    char *out = memory_alloc((size_t)expert_form_bytes(form), 1);
    cr_assert_not_null(out);
    const struct expert_slice *slice = &form->slice;
    for (int64_t e = slice->first_expert; e < slice->first_expert + slice->expert_count; e++) {
        for (int a = 0; a < form->array_count; a++) {
            for (int64_t b = 0; b < slice->blocks.count; b++) {
                int64_t block = slice->blocks.first + b;
                char *at = out + expert_form_offset(form, a, e, block);
                for (int64_t i = 0; i < form->arrays[a].block_bytes; i++)
                    at[i] = byte_of(e, a, block, i);
            }
        }
    }
    return out;
}

static void check_pair(size_t index, const struct layout *from, const struct layout *to)
{
    const struct model_shape *shape = &cases[index].shape;
    struct expert_form old[8], new;
    char *held[8];
    int64_t sent_blocks[64], sent[64] = {0};
    int n = from->rank_count;
    for (int r = 0; r < n; r++) {
        old[r] = expert_form_of(shape, from, r, cases[index].type);
        held[r] = slice_make(&old[r]);
    }
    for (int r = 0; r < n; r++) {
        struct move moves[64];
        int64_t count = moves_list(moves, 64, shape, from, to, r, moves_between_ranks());
        new = expert_form_of(shape, to, r, cases[index].type);
        char *moved = memory_alloc((size_t)expert_form_bytes(&new), 1);
        char *made = slice_make(&new);
        cr_assert_not_null(moved);
        for (int64_t m = 0; m < count; m++) {
            int source = moves[m].rank;
            for (int a = 0; a < new.array_count; a++) {
                int64_t bytes = moves[m].blocks.count * new.arrays[a].block_bytes;
                memcpy(moved + expert_form_offset(&new, a, moves[m].expert, moves[m].blocks.first),
                       held[source] + expert_form_offset(&old[source], a, moves[m].expert,
                                                         moves[m].blocks.first),
                       (size_t)bytes);
                sent[source * n + r] += source == r ? 0 : bytes;
            }
        }
        cr_assert(memcmp(moved, made, (size_t)expert_form_bytes(&new)) == 0, "%s, tp%d>tp%d on %d",
                  cases[index].name, from->experts.tp, to->experts.tp, n);
        memory_free(moved);
        memory_free(made);
    }
    moves_sent_blocks(sent_blocks, shape, from, to);
    for (int i = 0; i < n * n; i++)
        cr_assert_eq(sent[i], sent_blocks[i] * expert_block_bytes(shape, cases[index].type));
    for (int r = 0; r < n; r++)
        memory_free(held[r]);
}

Test(expert_form, moved_slices_are_those_made_in_place)
{
    int pairs = 0;
    for (size_t i = 0; i < CASE_COUNT; i++) {
        for (int n = 1; n <= 8; n++) {
            for (int a = 1; a <= n; a++) {
                for (int b = 1; b <= n; b++) {
                    struct layout from = {n, {1, n, false}, {a, n / a}};
                    struct layout to = {n, {1, n, false}, {b, n / b}};
                    if (n % a != 0 || n % b != 0 ||
                        layout_check(&from, &cases[i].shape, NULL) != STATUS_OK ||
                        layout_check(&to, &cases[i].shape, NULL) != STATUS_OK)
                        continue;
                    check_pair(i, &from, &to);
                    pairs++;
                }
            }
        }
    }
    printf("%d pairs of layouts\n", pairs);
    cr_assert_gt(pairs, 50);
}
