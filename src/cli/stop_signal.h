/* SIGINT and SIGTERM as a request to end at the next step. */
#ifndef PHASOR_CLI_STOP_SIGNAL_H
#define PHASOR_CLI_STOP_SIGNAL_H

/* From here on the first of the two signals is remembered; another one, more than a second later,
 * kills at once. */
void stop_signal_catch(void);

/* The signal that came, or 0. */
int stop_signal_get(void);

#endif
