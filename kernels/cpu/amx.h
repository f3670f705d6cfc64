/* Products of tiles: of bf16, up to 32 rows of inputs by two panels of 16 outputs, a chunk of 32
 * columns at a time; and of bytes, for INT4 weights (amx_multiply_bytes).
 *
 * By AMX's instruction (tdpbf16ps), or, for tests on processors without it, in vectors. Both add in
 * the order of Intel's manual: within a chunk the products of even columns and those of odd ones by
 * themselves, from zero on and by rising columns, each rounded to the nearest even; then the two
 * sums; then that to what there was. So a row's result depends neither on the rows beside it nor on
 * how many chunks are taken at a time. The instruction takes what is denormal for zero. */
#ifndef PHASOR_KERNELS_CPU_AMX_H
#define PHASOR_KERNELS_CPU_AMX_H

#include <stdbool.h>

#include "kernels/cpu/simd.h"

/* 1 in sets whose products of bf16 go by tiles. */
#if !defined(KERNEL_AMX)
#define KERNEL_AMX 0
#endif

#define CHUNK_COLUMNS 32
#define CHUNK_PAIRS   (CHUNK_COLUMNS / 2)
#define CHUNK_BYTES   (CHUNK_PAIRS * PACK_BLOCK * 4) /* of the weights of a panel */
#define AMX_TILE_ROWS 16
#define AMX_ROWS      32 /* of a product, at most */
#define AMX_FEW_ROWS  4  /* that are multiplied in vectors */

/* Of products of bytes. */
#define AMX_BYTES_COLUMNS 64
#define AMX_BYTES_CHUNK   (AMX_BYTES_COLUMNS * PACK_BLOCK) /* bytes of the weights of a panel */

/* What a thread's registers are shaped for, between amx_begin and amx_end: AMX's belong to the
 * thread, and cost it room in each change of context while they are in use. */
struct amx_shape {
    int rows; /* 0: not yet for any number */
};

INLINE struct amx_shape amx_begin(void)
{
    return (struct amx_shape){0};
}

INLINE void amx_end(struct amx_shape *shape)
{
#if defined(__AMX_BF16__)
    if (shape->rows != 0)
        _tile_release();
#endif
    (void)shape;
}

#if KERNEL_AMX

/* sums[row][panel][16] (+)= in[row][chunks] x weights[panel][chunks]. */
struct amx_product {
    float *sums;
    int64_t sums_step; /* from a row to the next; panels lie PACK_BLOCK apart */
    bool adds;         /* to what is there */
    const void *in;    /* bf16; what fills the last chunk is zero */
    int64_t in_step;   /* bytes from a row to the next */
    /* Of each panel: [pairs of columns][16 outputs] words of two bf16, the first column in the low
     * half. What fills the last chunk is finite. */
    const char *weights[2];
    int64_t pair_step, chunk_step; /* bytes */
    int64_t chunk_count;           /* at least 1 */
    int rows, panels;
    /* What the L2 cache is asked for, so many lines with each chunk and panel; 0: nothing. */
    const char *fetch[2];
    int fetch_lines;
};

/* sums[panel][half][row] = in[row][chunks, half] x weights[panel][chunks]: inputs of two bytes with
 * a sign, by bytes without, in chunks of 64 columns. Exact. */
struct amx_bytes_product {
    _Alignas(64) int32_t sums[2][2][AMX_TILE_ROWS][PACK_BLOCK]; /* of high bytes, of low ones */
    const void *in;         /* [row][chunk][high, low][AMX_BYTES_COLUMNS] */
    int64_t in_step;        /* bytes from a row to the next */
    const char *weights[2]; /* [chunk][fours of columns][16 outputs] words of four bytes */
    int64_t chunk_count;    /* at least 1 */
    int rows, panels;       /* at most AMX_TILE_ROWS and 2 */
};

#if defined(__AMX_BF16__)

/* Shapes the registers: of the first six so many rows, of 6 and 7 all. */
static void amx_config(const int rows_of[6])
{
    struct __attribute__((packed)) {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.rows[i] = (uint8_t)(i < 6 ? rows_of[i] : CHUNK_PAIRS);
        config.row_bytes[i] = config.rows[i] > 0 ? 64 : 0;
    }
    _tile_loadconfig(&config);
}

/* Registers 0 and 1: sums of the first 16 rows, of each panel; 2 and 3 of the others; 4 and 5:
 * inputs of these; 6 and 7: weights. */
static void amx_set(struct amx_shape *shape, int rows)
{
    int first = rows < AMX_TILE_ROWS ? rows : AMX_TILE_ROWS, others = rows - first;
    amx_config((const int[]){first, first, others, others, first, others});
    shape->rows = rows;
}

/* The compiler does not know that the registers are loaded from memory and stored to it. */
INLINE void amx_fence(void)
{
    __asm__ volatile("" ::: "memory");
}

/* has_others, panels and fetches are constants where this is called, as are names of registers. */
INLINE void amx_multiply_as(const bool has_others, const int panels, const bool fetches,
                            const struct amx_product *p)
{
    const int64_t sums_bytes = p->sums_step * (int64_t)sizeof(float);
    float *others = p->sums + AMX_TILE_ROWS * p->sums_step;
    const char *in = p->in, *in_others = in + AMX_TILE_ROWS * p->in_step;
    const char *first = p->weights[0], *second = p->weights[1];
    if (p->adds) {
        _tile_loadd(0, p->sums, sums_bytes);
        if (panels == 2)
            _tile_loadd(1, p->sums + PACK_BLOCK, sums_bytes);
        if (has_others)
            _tile_loadd(2, others, sums_bytes);
        if (has_others && panels == 2)
            _tile_loadd(3, others + PACK_BLOCK, sums_bytes);
    } else {
        _tile_zero(0);
        if (panels == 2)
            _tile_zero(1);
        if (has_others)
            _tile_zero(2);
        if (has_others && panels == 2)
            _tile_zero(3);
    }
    const char *fetch = p->fetch[0], *fetch_second = p->fetch[1];
    for (int64_t chunk = 0; chunk < p->chunk_count; chunk++) {
        for (int line = 0; fetches && line < p->fetch_lines; line++, fetch += 64) {
            __builtin_prefetch(fetch, 0, 2);
            if (panels == 2) {
                __builtin_prefetch(fetch_second, 0, 2);
                fetch_second += 64;
            }
        }
        _tile_loadd(4, in, p->in_step);
        _tile_loadd(6, first, p->pair_step);
        _tile_dpbf16ps(0, 4, 6);
        if (panels == 2) {
            _tile_loadd(7, second, p->pair_step);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (has_others) {
            _tile_loadd(5, in_others, p->in_step);
            _tile_dpbf16ps(2, 5, 6);
        }
        if (has_others && panels == 2)
            _tile_dpbf16ps(3, 5, 7);
        in += CHUNK_COLUMNS * 2;
        in_others += CHUNK_COLUMNS * 2;
        first += p->chunk_step;
        second += p->chunk_step;
    }
    _tile_stored(0, p->sums, sums_bytes);
    if (panels == 2)
        _tile_stored(1, p->sums + PACK_BLOCK, sums_bytes);
    if (has_others)
        _tile_stored(2, others, sums_bytes);
    if (has_others && panels == 2)
        _tile_stored(3, others + PACK_BLOCK, sums_bytes);
}

INLINE void amx_multiply_panels(const bool has_others, const int panels,
                                const struct amx_product *p)
{
    if (p->fetch_lines > 0)
        amx_multiply_as(has_others, panels, true, p);
    else
        amx_multiply_as(has_others, panels, false, p);
}

static void amx_multiply(struct amx_shape *shape, const struct amx_product *p)
{
    if (shape->rows != p->rows)
        amx_set(shape, p->rows);
    amx_fence();
    if (p->rows > AMX_TILE_ROWS && p->panels == 2)
        amx_multiply_panels(true, 2, p);
    else if (p->rows > AMX_TILE_ROWS)
        amx_multiply_panels(true, 1, p);
    else if (p->panels == 2)
        amx_multiply_panels(false, 2, p);
    else
        amx_multiply_panels(false, 1, p);
    amx_fence();
}

/* Registers 0 to 3: sums, of high bytes and low ones of each panel; 4 and 5: inputs; 6 and 7:
 * weights. A thread has no other products between amx_begin and amx_end. */
static inline void amx_multiply_bytes(struct amx_shape *shape, struct amx_bytes_product *p)
{
    const char *in = p->in;
    const bool has_second = p->panels == 2;
    if (shape->rows != p->rows) {
        amx_config((const int[]){p->rows, p->rows, p->rows, p->rows, p->rows, p->rows});
        shape->rows = p->rows;
    }
    amx_fence();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t chunk = 0; chunk < p->chunk_count; chunk++, in += 2 * AMX_BYTES_COLUMNS) {
        _tile_loadd(4, in, p->in_step);
        _tile_loadd(6, p->weights[0] + chunk * AMX_BYTES_CHUNK, 64);
        _tile_dpbsud(0, 4, 6);
        _tile_loadd(5, in + AMX_BYTES_COLUMNS, p->in_step);
        _tile_dpbsud(1, 5, 6);
        if (has_second) {
            _tile_loadd(7, p->weights[1] + chunk * AMX_BYTES_CHUNK, 64);
            _tile_dpbsud(2, 4, 7);
            _tile_dpbsud(3, 5, 7);
        }
    }
    _tile_stored(0, p->sums[0][0], 64);
    _tile_stored(1, p->sums[0][1], 64);
    if (has_second) {
        _tile_stored(2, p->sums[1][0], 64);
        _tile_stored(3, p->sums[1][1], 64);
    }
    amx_fence();
}

#else

INLINE vec vec_all_bits(uint32_t bits)
{
    return (vec)((vecu){0} + bits);
}

/* What one chunk adds, of one row. */
INLINE vec amx_chunk(const uint32_t *in, const char *weights, int64_t pair_step)
{
    vec even = {0}, odd = {0};
    for (int k = 0; k < CHUNK_PAIRS; k++) {
        vecu pairs = *(const vecu *)(weights + k * pair_step);
        even += vec_all_bits(in[k] << 16) * (vec)(pairs << 16);
        odd += vec_all_bits(in[k] & 0xFFFF0000u) * (vec)(pairs & 0xFFFF0000u);
    }
    return even + odd;
}

/* Some outputs of one row and panel. */
static void amx_add(float *sums, const char *in, const char *weights, const struct amx_product *p)
{
    vec sum = p->adds ? vec_load(sums) : (vec){0};
    for (int64_t c = 0; c < p->chunk_count; c++) {
        uint32_t words[CHUNK_PAIRS];
        memcpy(words, in + c * CHUNK_COLUMNS * 2, sizeof words);
        sum += amx_chunk(words, weights + c * p->chunk_step, p->pair_step);
    }
    vec_store(sums, sum);
}

static void amx_multiply(struct amx_shape *shape, const struct amx_product *p)
{
    (void)shape;
    for (int r = 0; r < p->rows; r++) {
        for (int panel = 0; panel < p->panels; panel++) {
            const char *in = (const char *)p->in + r * p->in_step;
            float *sums = p->sums + r * p->sums_step + panel * PACK_BLOCK;
            for (int v = 0; v < PACK_BLOCK; v += LANES)
                amx_add(sums + v, in, p->weights[panel] + v * 4, p);
        }
    }
}

/* One row's sums of one panel and half. */
INLINE void amx_bytes_add(int32_t *sums, const char *in, const char *weights, int64_t chunk_count)
{
    veci sum[PANEL_VECTORS] = {{0}};
    for (int64_t c = 0; c < chunk_count; c++) {
        uint32_t words[CHUNK_PAIRS];
        memcpy(words, in + c * 2 * AMX_BYTES_COLUMNS, sizeof words);
        for (int k = 0; k < CHUNK_PAIRS; k++, weights += PACK_BLOCK * 4) {
            for (int v = 0; v < PANEL_VECTORS; v++)
                sum[v] = bytes_dot(sum[v], *(const vecu *)(weights + v * LANES * 4), words + k);
        }
    }
    memcpy(sums, sum, sizeof sum);
}

static inline void amx_multiply_bytes(struct amx_shape *shape, struct amx_bytes_product *p)
{
    (void)shape;
    for (int r = 0; r < p->rows; r++) {
        const char *in = (const char *)p->in + r * p->in_step;
        for (int panel = 0; panel < p->panels; panel++) {
            amx_bytes_add(p->sums[panel][0][r], in, p->weights[panel], p->chunk_count);
            amx_bytes_add(p->sums[panel][1][r], in + AMX_BYTES_COLUMNS, p->weights[panel],
                          p->chunk_count);
        }
    }
}

#endif
#endif
#endif
