/* Profiles of emulated GPUs, in seconds. */
#ifndef CUDA_PROFILE_H
#define CUDA_PROFILE_H

#include "engine/calibrate.h"

/* One shape or two of each operation, in every number type that a run may have, and two messages of
 * each collective. */
extern const struct calibrate_plan cuda_profile_plan;

/* Little memory for each rank. */
struct calibrate_params cuda_profile_params(const char *path, const char *devices,
                                            const struct calibrate_plan *plan);

/* Writes a profile to `path`, in place of one that is there; fails the test where it cannot. */
void cuda_profile_measure(struct calibrate_report *out, const char *path, const char *devices);

#endif
