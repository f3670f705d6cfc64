/* A file that is in memory: every read is complete when it is submitted, and nothing is copied. */
#include "base/memory.h"
#include "io/read_backend.h"

struct tickets {
    struct read_result *results; /* [capacity]: a ring */
    int capacity, first, count;
};

static void locked_close(void *backend, bool is_abandoned)
{
    struct tickets *tickets = backend;
    (void)is_abandoned; /* nothing is ever in flight */
    memory_free(tickets->results);
    memory_free(tickets);
}

static enum status locked_open(void **out, const struct read_queue_params *params,
                               struct read_target *target, struct error *err)
{
    struct tickets *tickets;
    (void)params;
    TRY(memory_get((void **)&tickets, 1, sizeof *tickets, "a queue of reads", err));
    tickets->capacity = target->request_count;
    enum status status = memory_get((void **)&tickets->results, (size_t)tickets->capacity,
                                    sizeof *tickets->results, "a queue of reads", err);
    if (status != STATUS_OK) {
        memory_free(tickets);
        return status;
    }
    *out = tickets;
    return STATUS_OK;
}

static int locked_begin(void *backend, const struct read_request *request)
{
    struct tickets *tickets = backend;
    ASSERT(tickets->count < tickets->capacity);
    tickets->results[(tickets->first + tickets->count++) % tickets->capacity] =
        (struct read_result){request->ticket, (int)request->bytes};
    return 0;
}

static int locked_next(void *backend, struct read_result *out, double seconds)
{
    struct tickets *tickets = backend;
    (void)seconds;
    if (tickets->count == 0)
        return 0;
    *out = tickets->results[tickets->first];
    tickets->first = (tickets->first + 1) % tickets->capacity;
    tickets->count--;
    return 1;
}

const struct read_backend_ops read_locked = {locked_open, locked_close, locked_begin, locked_next};
