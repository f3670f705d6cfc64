/* Who is asked, now and then, by what takes long: its failure ends that, with its sentence. */
#ifndef PHASOR_BASE_WATCH_H
#define PHASOR_BASE_WATCH_H

#include <stddef.h>

#include "base/status.h"

struct watch {
    enum status (*ask)(void *context, struct error *err); /* NULL: nobody is asked */
    void *context;
};

MUST_CHECK static inline enum status watch_ask(const struct watch *watch, struct error *err)
{
    return watch->ask == NULL ? STATUS_OK : watch->ask(watch->context, err);
}

#endif
