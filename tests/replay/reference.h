/* Replay in the plainest way that there is: all rates anew whenever anything ends, by steps over
 * everything that is under way. For small recordings. */
#ifndef TESTS_REPLAY_REFERENCE_H
#define TESTS_REPLAY_REFERENCE_H

#include "replay/simulate.h"

/* Fills times (begin and end) and link_bytes[link][direction]. */
void reference_simulate(struct node_time *times, double (*link_bytes)[2],
                        const struct recording *recording, const struct box_model *box);

#endif
