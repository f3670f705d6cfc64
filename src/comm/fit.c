/* Whether the calls of all members fit one another. Runs at the member that comes last, while the
 * others wait; so it reads everything, and writes nothing but the sentence. */
#include <inttypes.h>

#include "comm/group.h"

/* "rank 1: all-gather number 3 of ranks 0-3 (tag "rows") ": how the sentence begins. */
static enum status misfit(const struct collective *call, struct error *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static enum status misfit(const struct collective *call, struct error *err, const char *format, ...)
{
    char text[COLLECTIVE_TEXT_BYTES];
    struct error what;
    va_list args;
    va_start(args, format);
    error_set_v(&what, STATUS_INTERNAL, format, args);
    va_end(args);
    return error_set(err, STATUS_INTERNAL, "rank %d: %s %s", collective_rank(call),
                     collective_text(text, call), what.message);
}

static const struct collective *call_of(const struct comm_group *group, int member)
{
    return group->ends[member].call;
}

static enum status same_collective(const struct collective *first, const struct collective *other,
                                   struct error *err)
{
    if (first->kind == other->kind && first->tag == other->tag && first->number == other->number)
        return STATUS_OK;
    char text[COLLECTIVE_TEXT_BYTES];
    return misfit(other, err, "meets %s of rank %d", collective_text(text, first),
                  collective_rank(first));
}

static const int64_t *counts_of(const struct collective *call)
{
    return call->kind == COLLECTIVE_ALL_GATHER ? call->all_gather.counts
                                               : call->reduce_scatter.counts;
}

static enum status same_counts(const struct collective *first, const struct collective *other,
                               struct error *err)
{
    const struct comm_group *group = first->comm->group;
    const int64_t *expected = counts_of(first), *found = counts_of(other);
    for (int m = 0; m < group->size; m++) {
        if (found[m] != expected[m] || found[m] < 0)
            return misfit(other, err,
                          "has a count of %" PRId64 " for rank %d, at rank %d it is "
                          "%" PRId64,
                          found[m], group->ranks[m], collective_rank(first), expected[m]);
    }
    return STATUS_OK;
}

static enum status same_count(const struct collective *first, const struct collective *other,
                              struct error *err)
{
    int64_t expected = first->all_reduce.count, found = other->all_reduce.count;
    if (found == expected && found >= 0)
        return STATUS_OK;
    return misfit(other, err, "has a count of %" PRId64 ", at rank %d it is %" PRId64, found,
                  collective_rank(first), expected);
}

/* What each sends to `receiver` is what that one receives. */
static enum status all_to_all_fits(const struct comm_group *group, const struct collective *call,
                                   struct error *err)
{
    for (int m = 0; m < group->size; m++) {
        const struct collective *sender = call_of(group, m);
        int64_t sent = sender->all_to_all_v.send_counts[call->comm->member];
        int64_t received = call->all_to_all_v.receive_counts[m];
        if (sent != received || sent < 0)
            return misfit(call, err,
                          "receives %" PRId64 " bytes from rank %d, which sends %" PRId64, received,
                          collective_rank(sender), sent);
    }
    return STATUS_OK;
}

/* ---- Exchange ---------------------------------------------------------------------------------
 */

static enum status messages_are_sound(const struct collective *call, const struct comm_message *all,
                                      int64_t count, const char *what, struct error *err)
{
    for (int64_t i = 0; i < count; i++) {
        if (all[i].peer < 0 || all[i].peer >= call->comm->group->size)
            return misfit(call, err, "has %s %" PRId64 " with member %d, of %d members", what, i,
                          all[i].peer, call->comm->group->size);
        if (all[i].bytes < 0)
            return misfit(call, err, "has %s %" PRId64 " of %" PRId64 " bytes", what, i,
                          all[i].bytes);
    }
    return STATUS_OK;
}

static enum status too_few_sends(const struct collective *call, const struct collective *sender,
                                 int64_t receive, struct error *err)
{
    return misfit(call, err, "has receive %" PRId64 " for which rank %d has no send", receive,
                  collective_rank(sender));
}

/* The receives of one member against the sends of all. */
static enum status exchange_fits(const struct comm_group *group, const struct collective *call,
                                 struct error *err)
{
    int64_t next[COMM_RANKS_MAX] = {0}; /* where to look for each sender's next send to this one */
    const struct comm_exchange *op = &call->exchange;
    int self = call->comm->member;
    for (int64_t i = 0; i < op->receive_count; i++) {
        int from = op->receives[i].peer;
        const struct collective *sender = call_of(group, from);
        int64_t s = exchange_next_send(&sender->exchange, self, next[from]);
        if (s == sender->exchange.send_count)
            return too_few_sends(call, sender, i, err);
        if (sender->exchange.sends[s].bytes != op->receives[i].bytes)
            return misfit(call, err,
                          "has receive %" PRId64 " of %" PRId64 " bytes, send %" PRId64
                          " of rank %d has %" PRId64,
                          i, op->receives[i].bytes, s, collective_rank(sender),
                          sender->exchange.sends[s].bytes);
        next[from] = s + 1;
    }
    for (int from = 0; from < group->size; from++) {
        const struct collective *sender = call_of(group, from);
        int64_t s = exchange_next_send(&sender->exchange, self, next[from]);
        if (s < sender->exchange.send_count)
            return misfit(call, err, "has no receive for send %" PRId64 " of rank %d", s,
                          collective_rank(sender));
    }
    return STATUS_OK;
}

static enum status exchange_is_sound(const struct collective *call, struct error *err)
{
    const struct comm_exchange *op = &call->exchange;
    TRY(messages_are_sound(call, op->sends, op->send_count, "send", err));
    return messages_are_sound(call, op->receives, op->receive_count, "receive", err);
}

/* ---- All --------------------------------------------------------------------------------------
 */

static enum status call_fits(const struct comm_group *group, const struct collective *call,
                             struct error *err)
{
    const struct collective *first = call_of(group, 0);
    switch (call->kind) {
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_REDUCE_SCATTER:
        return same_counts(first, call, err);
    case COLLECTIVE_ALL_REDUCE:
        return same_count(first, call, err);
    case COLLECTIVE_ALL_TO_ALL_V:
        return all_to_all_fits(group, call, err);
    case COLLECTIVE_EXCHANGE:
        return exchange_fits(group, call, err);
    case COLLECTIVE_KIND_COUNT:
        break;
    }
    ASSERT(!"a kind of collective");
    return STATUS_INTERNAL;
}

enum status group_calls_fit(const struct comm_group *group, struct error *err)
{
    const struct collective *first = call_of(group, 0);
    for (int m = 1; m < group->size; m++)
        TRY(same_collective(first, call_of(group, m), err));
    for (int m = 0; first->kind == COLLECTIVE_EXCHANGE && m < group->size; m++)
        TRY(exchange_is_sound(call_of(group, m), err));
    for (int m = 0; m < group->size; m++)
        TRY(call_fits(group, call_of(group, m), err));
    return STATUS_OK;
}
