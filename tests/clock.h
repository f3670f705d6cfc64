/* The clock of the program under test in the hands of the test, so that what waits for so many
 * seconds is tested without any: however long a thread of a busy machine gets no time, none passes.
 * Linked with clock.c, a test program has this clock in place of the C library's CLOCK_MONOTONIC,
 * and of that by which pthread_cond_timedwait waits. */
#ifndef PHASOR_TESTS_CLOCK_H
#define PHASOR_TESTS_CLOCK_H

/* It stands from here on. Waits for a moment of it look at it every millisecond. */
void clock_hold(void);

/* It jumps ahead. Any thread. */
void clock_advance(double seconds);

/* It stands from here on, but jumps ahead whenever somebody looks at it: what is done every so many
 * seconds is done each time. */
void clock_hurry(double seconds);

/* Called from here on by each thread that begins to wait in pthread_cond_timedwait; NULL: no more.
 */
void clock_on_wait(void (*call)(void));

#endif
