/* The times of a simulation as a trace, in the JSON of Chrome's trace viewer: docs/trace.md. */
#ifndef PHASOR_REPLAY_TIMELINE_H
#define PHASOR_REPLAY_TIMELINE_H

#include "base/text.h"
#include "replay/recording.h"
#include "replay/simulate.h"

/* Appends the whole file. `label` says what the times are. Nodes that take no time are left out. */
void timeline_write(struct text *out, const struct recording *recording,
                    const struct simulation *simulation, const char *label);

#endif
