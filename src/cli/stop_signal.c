#include "stop_signal.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_SECOND INT64_C(1000000000)

/* Programs such as timeout(1) send their signal to the process and to its group: the two arrive
 * together and mean one. */
#define SAME_SIGNAL_NS NS_PER_SECOND

/* Any thread may be the one that runs the handler. */
static _Atomic int64_t caught_at; /* of the monotonic clock; 0: none has come */
static _Atomic int caught;
static const char *announcement;
static size_t announcement_length;

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time); /* one of the calls a handler may make */
    return time.tv_sec * NS_PER_SECOND + time.tv_nsec;
}

static void remember(int number)
{
    int64_t first = 0, this = now();
    int failure = errno;
    if (atomic_compare_exchange_strong(&caught_at, &first, this)) {
        atomic_store(&caught, number);
        /* Whatever becomes of it: there is nobody else to tell. */
        ssize_t put = write(STDERR_FILENO, announcement, announcement_length);
        (void)put;
    } else if (this - first > SAME_SIGNAL_NS) {
        signal(number, SIG_DFL); /* the user means it */
        raise(number);
    }
    errno = failure;
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

void stop_signal_catch(const char *sentence)
{
    announcement = sentence == NULL ? "" : sentence;
    announcement_length = strlen(announcement);
    catch_one(SIGINT);
    catch_one(SIGTERM);
}

int stop_signal_get(void)
{
    return atomic_load(&caught);
}

double stop_signal_seconds(void)
{
    return (double)(now() - atomic_load(&caught_at)) / (double)NS_PER_SECOND;
}
