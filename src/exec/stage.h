/* The stages of a pass whose times are told apart. */
#ifndef PHASOR_EXEC_STAGE_H
#define PHASOR_EXEC_STAGE_H

#include "device/device.h"

/* Of the numbers in docs/ARCHITECTURE.md, "One token's way through a layer". The stages that are
 * GEMM or attention stand first: what comes behind them is what a pass pays beside. */
enum stage {
    STAGE_BETWEEN,    /* no pass runs: the host samples, and prepares the next */
    STAGE_PROJECTION, /* 2: GEMMs before and behind attention */
    STAGE_ATTENTION,  /* 2 */
    STAGE_EXPERTS,    /* 6: grouped GEMMs of the routed experts */
    STAGE_SHARED,     /* 8: the shared expert; a dense layer's network */
    STAGE_HEAD,       /* 9: logits */
    STAGE_EMBEDDING,  /* 0: with what each rank must know of the pass */
    STAGE_NORM,       /* 1, 4: norms, and sums with the residual */
    STAGE_ROPE,       /* 2: rotation, keys and values to the cache */
    STAGE_ROUTER,     /* 4: with the sort by expert */
    STAGE_COMBINE,    /* 6: the weighted sum over experts */
    STAGE_COLLECTIVE, /* 1, 3, 5, 7: between ranks, waiting for the others included */
    STAGE_TRANSITION, /* experts that change their layout are waited for */
    STAGE_KIND_COUNT
};
_Static_assert((int)STAGE_KIND_COUNT <= DEVICE_STAGES, "a device tells so many apart");

/* "projection", "attention" ... */
extern const char *const stage_names[STAGE_KIND_COUNT];

#endif
