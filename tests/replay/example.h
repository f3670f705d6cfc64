/* A recording of two ranks, as small as one can be that has of everything. */
#ifndef TESTS_REPLAY_EXAMPLE_H
#define TESTS_REPLAY_EXAMPLE_H

#include "report_tools.h"

void example_fill(struct rig *rig);

#endif
