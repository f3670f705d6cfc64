/* What each rank of a run has used: memory of its device, and bytes sent to other ranks. */
#ifndef PHASOR_ENGINE_RANK_USE_H
#define PHASOR_ENGINE_RANK_USE_H

#include <stdint.h>

#include "exec/exec.h"

struct rank_use {
    int rank_count;
    struct {
        struct device_memory memory; /* the peak is since its weights were loaded */
        uint64_t sent_bytes[TRAFFIC_KIND_COUNT];
    } ranks[LAYOUT_RANKS_MAX];
};

/* As of now, between passes; `before` (NULL: nothing) is what had been sent until then. */
void rank_use_get(struct rank_use *out, const struct exec *exec, const struct rank_use *before);

/* What ranks of an earlier box of the same run had used is theirs, too: bytes are added, of memory
 * the peak is the larger one. */
void rank_use_add(struct rank_use *to, const struct rank_use *earlier);

#endif
