/* What tests ask the planner about: a box that an example profile makes, and rows by their lengths.
 */
#ifndef PLAN_TOOLS_H
#define PLAN_TOOLS_H

#include "engine/profile_file.h"
#include "example_profile.h"
#include "planner/plan_mix.h"

/* As it is read from a file of the test's folder; what `out` had before goes (a zero one has
 * nothing). */
void plan_tools_profile(struct profile_file *out, const struct example_profile *example);

/* Of loads of one length each, [count]; those of one cell of lengths are one. */
void plan_tools_mix(struct plan_mix *out, const struct plan_load *loads, int count,
                    int64_t context_max);

#endif
