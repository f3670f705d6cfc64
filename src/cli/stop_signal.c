#include "stop_signal.h"

#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t caught;

static void remember(int number)
{
    caught = number;
    /* Either signal is deadly from now on: the user means it. */
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
}

static void catch_one(int number)
{
    struct sigaction before, action = {.sa_handler = remember, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
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
