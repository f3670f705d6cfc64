/* Flops and bytes of operations, against loops that do them one by one. */
#include <criterion/criterion.h>
#include <string.h>

#include "layout/work.h"

struct counted {
    int64_t flops, held_bytes, activation_bytes;
};

static void expect(const struct work *work, const struct counted *counted, const char *what)
{
    cr_expect_eq(work->flops, counted->flops, "%s: %lld flops, not %lld", what,
                 (long long)work->flops, (long long)counted->flops);
    cr_expect_eq(work->held_bytes, counted->held_bytes, "%s: %lld bytes held, not %lld", what,
                 (long long)work->held_bytes, (long long)counted->held_bytes);
    cr_expect_eq(work->activation_bytes, counted->activation_bytes,
                 "%s: %lld bytes of activations, not %lld", what, (long long)work->activation_bytes,
                 (long long)counted->activation_bytes);
    cr_expect_eq(work_bytes(work), counted->held_bytes + counted->activation_bytes);
}

static const uint16_t some[1];

/* bf16, f32 and int4, with minima or without; whole blocks or not. */
static const struct matrix matrices[] = {
    {.dtype = DTYPE_BF16, .packing = PACK_OUTPUT, .rows = 48, .columns = 32},
    {.dtype = DTYPE_F32, .packing = PACK_OUTPUT, .rows = 7, .columns = 33},
    {.dtype = DTYPE_BF16, .packing = PACK_INPUT, .rows = 19, .columns = 5},
    {.dtype = DTYPE_INT4, .packing = PACK_OUTPUT, .rows = 32, .columns = 48, .group = 32},
    {.dtype = DTYPE_INT4,
     .packing = PACK_INPUT,
     .rows = 32,
     .columns = 48,
     .group = 16,
     .minima = some},
};
#define MATRICES (sizeof matrices / sizeof *matrices)

/* Value by value of the blocks that there are, and each group's scale and minimum. */
static int64_t held(const struct matrix *matrix)
{
    int64_t bits = 0;
    for (int64_t r = 0; r < round_up(matrix->rows, PACK_BLOCK); r++) {
        for (int64_t c = 0; c < round_up(matrix->columns, PACK_BLOCK); c++) {
            int64_t along = matrix->packing == PACK_OUTPUT ? c : r;
            bits += dtype_bits(matrix->dtype);
            if (matrix->dtype == DTYPE_INT4 && along % matrix->group == 0)
                bits += matrix->minima != NULL ? 32 : 16;
        }
    }
    return bits / 8;
}

Test(work, of_a_matrix)
{
    for (size_t m = 0; m < MATRICES; m++) {
        for (int64_t rows = 0; rows < 4; rows++) {
            struct counted counted = {.held_bytes = rows > 0 ? held(&matrices[m]) : 0};
            for (int64_t t = 0; t < rows; t++) {
                counted.activation_bytes += 4 * matrices[m].columns;
                for (int64_t r = 0; r < matrices[m].rows; r++) {
                    counted.activation_bytes += 4;
                    for (int64_t c = 0; c < matrices[m].columns; c++)
                        counted.flops += 2;
                }
            }
            struct work work = work_matmul(rows, &matrices[m]);
            expect(&work, &counted, "matmul");
            cr_expect_eq(work.kind, WORK_MATMUL);
            cr_expect_eq(work.dims[0], rows);
            cr_expect_eq(work.dims[1], matrices[m].rows);
            cr_expect_eq(work.dims[2], matrices[m].columns);
        }
    }
}

Test(work, of_feed_forward_networks)
{
    for (size_t m = 0; m < MATRICES; m++) {
        for (int64_t experts = 0; experts < 3; experts++) {
            int64_t rows = 3 * experts, width = matrices[m].rows, hidden = matrices[m].columns;
            struct counted up = {0}, down = {0};
            for (int64_t e = 0; e < experts; e++) {
                up.held_bytes += 2 * held(&matrices[m]);
                down.held_bytes += held(&matrices[m]);
            }
            for (int64_t t = 0; t < rows; t++) {
                up.activation_bytes += 4 * (width + hidden);
                down.activation_bytes += 4 * (width + hidden);
                for (int64_t i = 0; i < width * hidden; i++) {
                    up.flops += 4;
                    down.flops += 2;
                }
            }
            struct work work = work_ffn_up(rows, experts, &matrices[m]);
            expect(&work, &up, "ffn up");
            cr_expect(work.dims[2] == width && work.dims[3] == hidden);
            /* Its outputs are the other's inputs. */
            work = work_ffn_down(rows, experts, &matrices[m]);
            expect(&work, &down, "ffn down");
            cr_expect(work.dims[2] == hidden && work.dims[3] == width);
            cr_expect(work.dims[0] == rows && work.dims[1] == experts);
        }
    }
}

static const struct {
    int64_t token_count, first_position;
} segments[] = {{5, 0}, {1, 0}, {1, 9}, {3, 2}, {4, 6}, {7, 3}, {0, 4}, {12, 0}};

Test(work, of_attention_over_ragged_segments)
{
    static const int64_t windows[] = {0, 1, 3, 4, 7, 100};
    const int64_t heads = 6, kv_heads = 2, head_dim = 5;
    for (size_t w = 0; w < sizeof windows / sizeof *windows; w++) {
        struct work work = work_attention(heads, kv_heads, head_dim);
        struct counted counted = {0};
        int64_t pairs = 0, seen_count = 0, tokens = 0;
        for (size_t s = 0; s < sizeof segments / sizeof *segments; s++) {
            bool seen[64] = {false};
            int64_t first = segments[s].first_position;
            for (int64_t q = first; q < first + segments[s].token_count; q++) {
                tokens++;
                counted.activation_bytes += heads * head_dim * 8;
                for (int64_t p = 0; p <= q; p++) {
                    if (windows[w] > 0 && p <= q - windows[w])
                        continue;
                    seen[p] = true;
                    pairs++;
                    counted.flops += heads * (2 * head_dim + 2 * head_dim);
                }
            }
            for (int p = 0; p < 64; p++) {
                seen_count += seen[p];
                counted.held_bytes += seen[p] ? 2 * kv_heads * head_dim * 2 : 0;
            }
            work_attention_add(&work, segments[s].token_count, first, windows[w], DTYPE_BF16);
            expect(&work, &counted, "attention");
        }
        cr_expect_eq(work.dims[0], tokens);
        cr_expect_eq(work.dims[1], pairs, "window %lld", (long long)windows[w]);
        cr_expect_eq(work.dims[2], seen_count, "window %lld", (long long)windows[w]);
        cr_expect(work.dims[3] == heads * head_dim && work.dims[4] == kv_heads * head_dim);
    }
}

Test(work, of_rows_and_of_numbers_made_wider)
{
    struct work rows = work_rows(3, 10, 2, 4);
    expect(&rows, &(struct counted){.activation_bytes = 240}, "rows");
    for (size_t m = 3; m < MATRICES; m++) {
        struct work work = work_dequantize(&matrices[m], DTYPE_BF16);
        expect(&work,
               &(struct counted){.flops = 2 * 32 * 48,
                                 .held_bytes = held(&matrices[m]),
                                 .activation_bytes = 32 * 48 * 2},
               "dequantize");
    }
}

/* The largest sizes that a config.json may have, of as many tokens as a pass may. */
Test(work, of_more_than_can_be_counted)
{
    const struct matrix largest = {
        .dtype = DTYPE_BF16, .packing = PACK_OUTPUT, .rows = 1 << 20, .columns = 1 << 20};
    int64_t rows = (int64_t)16384 * 4096, experts = 4096;
    struct work up = work_ffn_up(rows, experts, &largest);
    cr_expect_eq(up.flops, WORK_COUNT_MOST);
    cr_expect_eq(up.held_bytes, 2 * experts << 41);
    cr_expect_eq(up.activation_bytes, rows << 23);
    cr_expect_eq(work_ffn_down(rows, experts, &largest).flops, WORK_COUNT_MOST);
    cr_expect_eq(work_matmul((int64_t)1 << 24, &largest).flops, WORK_COUNT_MOST);
    struct work attention = work_attention(4096, 4096, 256);
    for (int i = 0; i < 4; i++)
        work_attention_sum(&attention, 1, (int64_t)1 << 40, (int64_t)1 << 40, DTYPE_BF16);
    cr_expect_eq(attention.flops, WORK_COUNT_MOST);
    cr_expect_eq(attention.held_bytes, WORK_COUNT_MOST);
    cr_expect_gt(work_bytes(&attention), 0);
}
