/* SIGINT and SIGTERM as a request to end at the next step. */
#ifndef PHASOR_CLI_STOP_SIGNAL_H
#define PHASOR_CLI_STOP_SIGNAL_H

/* From here on the first of the two signals is remembered, and `sentence` (borrowed; NULL: none) is
 * written to standard error when it comes; another one, more than a second later, kills at once. */
void stop_signal_catch(const char *sentence);

/* The signal that came, or 0. */
int stop_signal_get(void);

/* Seconds since it came. */
double stop_signal_seconds(void);

#endif
