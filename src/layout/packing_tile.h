/* A tile of 16 rows by 16 columns on its way into the packing (layout/packing.h).
 *
 * Of any type a row gives its panels 32 bits at a time: a pair of 16-bit values or one of f32. So a
 * tile is a transposition of such units, whatever they hold: of 16 rows of 8 units (16-bit types)
 * or of 16 (f32) to as many lines of 16.
 */
#ifndef PHASOR_LAYOUT_PACKING_TILE_H
#define PHASOR_LAYOUT_PACKING_TILE_H

#include <stdint.h>

/* in: 16 rows of `unit_count` units, a multiple of 4, that begin row_bytes apart; out:
 * [unit_count][16 rows]. Neither has to be aligned, and they do not overlap. Thread-safe. */
typedef void tile_pack_fn(char *out, const char *in, int64_t row_bytes, int64_t unit_count);

/* The reference, for any processor. */
tile_pack_fn tile_pack_plain;

/* The fastest that this processor has: AVX2's, or the reference. */
tile_pack_fn *tile_pack_best(void);

#endif
