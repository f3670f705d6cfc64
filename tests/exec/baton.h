/* Ranks one at a time, each with the memory of all others closed: what a test hands to a box as its
 * turn. There is one baton. */
#ifndef PHASOR_TESTS_EXEC_BATON_H
#define PHASOR_TESTS_EXEC_BATON_H

#include "comm/box.h"

/* Before the box is opened with baton_turn(); all may run until baton_arm. */
void baton_open(void);
struct turn *baton_turn(void);

/* From here on. Nothing is on any stream, but one may not have seen yet that it is idle. */
void baton_arm(struct box *box);
void baton_disarm(void);

/* How often a rank took the baton. */
int baton_changes(void);

#endif
