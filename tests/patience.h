/* How ranks lose patience, by a clock that stands (clock.h). */
#ifndef PHASOR_TESTS_PATIENCE_H
#define PHASOR_TESTS_PATIENCE_H

#include <stdbool.h>

struct comm_domain;

/* Whether the rank waits in a collective to which another has not come: it stays there until that
 * one comes, or the run ends. */
bool rank_waits(struct comm_domain *domain, int rank);

/* Returns when each of these ranks (a bit each) waits so, or the run has ended. */
void until_ranks_wait(struct comm_domain *domain, unsigned ranks);

/* So many seconds pass, in steps that who waits sees one by one; or fewer, where the run ends
 * before. Somebody has to wait. */
void time_passes(struct comm_domain *domain, double seconds);

/* Time passes until the run has ended: where ranks wait in a collective no longer than they have
 * patience, for they know who is late, and who else looks does not. */
void time_passes_to_the_end(struct comm_domain *domain);

#endif
