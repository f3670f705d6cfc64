/* A box of CPU devices of one thread each, of which there is a profile, joined by the links of
 * another box, made as slow as they are (bench/regret.c). A failure ends the program. */
#ifndef PHASOR_BENCH_SLOW_BOX_H
#define PHASOR_BENCH_SLOW_BOX_H

#include "engine/plan_box.h"
#include "engine/profile_file.h"

struct slow_box {
    struct box_model box; /* for replay */
    /* For the planner: work as it was measured on one of the devices, alone, as it is recorded;
     * collectives as replay has them. */
    struct profile profile;
    /* What that points to. */
    struct profile_file file;
    struct plan_box links;
};

/* Of the links the bandwidth is divided by what the other box's devices compute faster than these,
 * their latencies and those of collectives multiplied by what they read faster from memory: prefill
 * is bound by the one and sends much, decode by the other and sends often. What came out is
 * printed. */
void slow_box_get(struct slow_box *out, const char *profile_path, const char *box_name);

#endif
