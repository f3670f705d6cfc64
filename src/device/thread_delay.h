/* What a thread loses to others on its CPU. */
#ifndef PHASOR_DEVICE_THREAD_DELAY_H
#define PHASOR_DEVICE_THREAD_DELAY_H

/* Seconds that the calling thread has been ready to run, and was not, since it began: another
 * thread had its CPU, or a quota of the group was used up. Below 0 where the system does not say
 * (Linux without CONFIG_SCHED_INFO, or without /proc). Some 10 us. */
double thread_delay(void);

#endif
