#include "stop_signal.h"

#include <signal.h>
#include <stddef.h>
#include <time.h>

/* Programs such as timeout(1) send their signal to the process and to its group: the two arrive
 * together and mean one. */
#define SAME_SIGNAL_SECONDS 1

static volatile sig_atomic_t caught;
static time_t caught_at; /* seconds of the monotonic clock; used by the handler alone */

static time_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time); /* one of the calls a handler may make */
    return time.tv_sec;
}

static void remember(int number)
{
    if (caught == 0) {
        caught = number;
        caught_at = now();
    } else if (now() - caught_at > SAME_SIGNAL_SECONDS) {
        signal(number, SIG_DFL); /* the user means it */
        raise(number);
    }
}

static void catch_one(int number)
{
    struct sigaction before, action = {.sa_handler = remember, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, SIGINT);
    sigaddset(&action.sa_mask, SIGTERM);
    /* A shell lets its background jobs ignore SIGINT; that stays so. */
    if (sigaction(number, NULL, &before) == 0 && before.sa_handler != SIG_IGN)
        sigaction(number, &action, NULL);
}

void stop_signal_catch(void)
{
    catch_one(SIGINT);
    catch_one(SIGTERM);
}

int stop_signal_get(void)
{
    return caught;
}
