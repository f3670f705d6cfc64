/* Small kernels that are right, and the same with a bug that the emulation must find. */
#ifndef PHASOR_TESTS_SIMT_PLANTED_H
#define PHASOR_TESTS_SIMT_PLANTED_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* out[i] = in[block's last - i] within blocks of 64, through shared memory; without its barrier. */
void planted_reverse(int *out, const int *in, int count, bool barrier, cudaStream_t stream);

/* out[i] = what all threads of a block of 128 have in round i, of as many: the warps' numbers
 * through shared memory, between two barriers, of which the second may lack. */
#define PLANTED_ROUNDS 8
void planted_rounds(int *out, bool barrier, cudaStream_t stream);

/* out[0] = sum of in[0 .. count - 1], count <= 1024: shuffles, static shared memory, two barriers.
 */
void planted_sum(float *out, const float *in, int count, cudaStream_t stream);

/* out[b] = a number that says all indices of thread and block are as they should be, for each of 24
 * blocks. */
#define PLANTED_BLOCKS 24
void planted_indices(int *out, cudaStream_t stream);

/* What each of 64 lanes gets from each operation of a warp or block. */
enum planted_vote {
    VOTE_SHUFFLE,     /* of lane 5 of each 8 */
    VOTE_UP,          /* by 3, within 16 */
    VOTE_DOWN,        /* by 3, within 16 */
    VOTE_XOR,         /* with 9 */
    VOTE_BALLOT,      /* lane % 3 == 0 */
    VOTE_ANY,         /* lane == 40 */
    VOTE_ALL,         /* lane < 40 */
    VOTE_BLOCK_COUNT, /* lane % 3 == 0 */
    VOTE_BLOCK_OR,    /* lane == 40 */
    VOTE_BLOCK_AND,   /* lane < 40 */
    VOTE_COUNT
};
void planted_votes(int *out, cudaStream_t stream); /* [VOTE_COUNT][64] */

/* out[0 .. 6] = add, max, min, exchange, compare-and-swap, or, and, by 8 blocks of 32. */
#define PLANTED_ATOMICS 7
void planted_atomics(int *out, cudaStream_t stream);

/* out[i] = in[i] + add. */
void planted_add(int *out, const int *in, int count, int add, cudaStream_t stream);

/* out[i] = i, through shared_bytes of dynamic shared memory in a block of `threads`; with `allow`
 * it asks for them before. */
void planted_big(int *out, int threads, int shared_bytes, bool allow, cudaStream_t stream);

/* Each ends the process. */
enum planted_bug {
    BUG_BARRIER_LEFT_OUT,  /* half of the block returns, the others wait */
    BUG_BARRIER_ELSEWHERE, /* two barriers, each for half of the block */
    BUG_WARP_AT_BARRIER,   /* lanes wait for lanes that stand at a barrier */
    BUG_MASK_WITHOUT_SELF,
    BUG_MASK_OF_RETURNED, /* half of the warp has returned before a shuffle of all */
    BUG_MASK_OF_NOBODY,   /* a block of 24, a mask of 32 */
    BUG_MASKS_DIFFER,
    BUG_SHUFFLE_FROM_OUTSIDE, /* of a lane that is not in the mask */
    BUG_OPERATIONS_DIFFER,    /* half of the warp shuffles, the others vote */
    BUG_WAIT_FOR_NOBODY,      /* half of the block waits for what the others do not write */
    BUG_OUT_OF_BOUNDS,        /* behind device memory; needs the address sanitizer */
    BUG_SHARED_OUT_OF_BOUNDS, /* behind dynamic shared memory, likewise */
    BUG_COUNT
};
void planted_bug(enum planted_bug bug, int *out, cudaStream_t stream); /* out [64] */

#ifdef __cplusplus
}
#endif

#endif
