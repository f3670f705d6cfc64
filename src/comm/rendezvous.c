/* Where the members of a communicator meet: a gate that opens when the last of them has come.
 *
 * The gate is one word: a count of its openings, and a bit that says that the run has ended. That
 * the two change together decides for all members alike whether a collective takes place: before
 * the gate has opened for its beginning, the end of the run sends all away and nothing is copied;
 * afterwards the collective is finished whatever happens, for a member that left early would free
 * buffers from which the others still copy. Finishing is copying alone and waits for nobody else,
 * so the end is not put off for long.
 */
#include "base/perturb.h"
#include "base/record.h"
#include "comm/futex.h"
#include "comm/group.h"

#define GATE_ENDED 1u
#define GATE_STEP  2u

/* Some 20 us: longer than a collective of few bytes whose members come together. */
#define SPIN_COUNT 1000

static unsigned gate_read(struct comm_group *group)
{
    return atomic_load_explicit(&group->gate, memory_order_acquire);
}

static bool gate_is_open(unsigned gate, unsigned old)
{
    return (gate & ~GATE_ENDED) != old;
}

/* The last member has come: returns whether the gate opened, which only the end of the run can
 * prevent. */
static bool gate_open(struct comm_group *group, unsigned old)
{
    atomic_store_explicit(&group->here, 0, memory_order_relaxed);
    perturb();
    bool opened = atomic_compare_exchange_strong(&group->gate, &old, old + GATE_STEP);
    futex_wake_all(&group->gate);
    return opened;
}

static void gate_open_anyway(struct comm_group *group)
{
    atomic_store_explicit(&group->here, 0, memory_order_relaxed);
    perturb();
    atomic_fetch_add(&group->gate, GATE_STEP);
    futex_wake_all(&group->gate);
}

static void gate_spin(struct comm_group *group, unsigned old)
{
    for (int i = 0; group->domain->may_spin && i < SPIN_COUNT; i++) {
        if (gate_read(group) != old)
            return;
        cpu_pause();
    }
}

/* Waits for the opening behind `old`; false when the run ends before it. */
static bool gate_wait(struct comm_group *group, unsigned old, const struct collective *call)
{
    gate_spin(group, old);
    unsigned gate;
    while (!gate_is_open(gate = gate_read(group), old)) {
        if (gate & GATE_ENDED)
            return false;
        futex_wait(&group->gate, gate, group->domain->poll_seconds);
        if (gate_read(group) == gate)
            domain_watch(call);
    }
    return true;
}

static void gate_wait_anyway(struct comm_group *group, unsigned old)
{
    gate_spin(group, old);
    unsigned gate;
    while (!gate_is_open(gate = gate_read(group), old))
        futex_wait(&group->gate, gate, group->domain->poll_seconds);
}

/* Whether this member is the last to come. What it wrote before is visible behind the gate. */
static bool is_last(struct comm_group *group)
{
    perturb();
    unsigned before = atomic_fetch_add_explicit(&group->here, 1, memory_order_acq_rel);
    return before + 1 == (unsigned)group->size;
}

void group_turn_give(const struct comm *comm)
{
    struct turn *turn = group_device(comm)->turn;
    if (turn != NULL)
        turn->give(turn, group_device(comm));
}

void group_turn_take(const struct comm *comm)
{
    struct turn *turn = group_device(comm)->turn;
    if (turn != NULL)
        turn->take(turn, group_device(comm));
}

/* A communicator that is used on two streams at a time, with nothing that orders them. */
static enum status out_of_order(const struct collective *call, struct error *err)
{
    char text[COLLECTIVE_TEXT_BYTES];
    struct error cause;
    error_set(&cause, STATUS_INTERNAL, "rank %d: %s runs when number %u has not finished",
              collective_rank(call), collective_text(text, call), call->number - 1);
    domain_end(call->comm->group->domain, &cause);
    return comm_domain_failure(call->comm->group->domain, err);
}

/* The last member checks for all, while the others' calls cannot go away. A misfit ends the run,
 * and with it the gate stays closed. */
static bool open_if_calls_fit(struct comm_group *group, unsigned gate)
{
    struct error misfit;
    if (group_calls_fit(group, &misfit) != STATUS_OK)
        domain_end(group->domain, &misfit);
    else if (group->backend->met != NULL)
        group->backend->met(group);
    return gate_open(group, gate);
}

enum status group_meet(const struct collective *call, struct error *err)
{
    struct comm *comm = call->comm;
    struct comm_group *group = comm->group;
    if (atomic_load(&comm->finished) + 1 != call->number)
        return out_of_order(call, err);
    /* Without this member the gate cannot open, so its word is the old one; but for the end. */
    unsigned gate = gate_read(group);
    if (gate & GATE_ENDED)
        return comm_domain_failure(group->domain, err);
    if (group->backend->come != NULL)
        TRY(group->backend->come(call, err));
    comm->call = call;
    atomic_store(&comm->arrived, call->number);
    domain_note(call, false);
    bool open;
    if (is_last(group)) {
        open = open_if_calls_fit(group, gate);
    } else {
        group_turn_give(comm);
        open = gate_wait(group, gate, call);
        group_turn_take(comm);
    }
    perturb();
    return open ? STATUS_OK : comm_domain_failure(group->domain, err);
}

void group_align(struct comm *comm)
{
    struct comm_group *group = comm->group;
    unsigned gate = gate_read(group) & ~GATE_ENDED;
    if (is_last(group)) {
        gate_open_anyway(group);
    } else {
        record_pause();
        group_turn_give(comm);
        gate_wait_anyway(group, gate);
        group_turn_take(comm);
        record_resume();
    }
    perturb();
}

void group_leave(const struct collective *call)
{
    group_align(call->comm);
    domain_note(call, true);
    atomic_store(&call->comm->finished, call->number);
}

void group_end(struct comm_group *group)
{
    perturb();
    atomic_fetch_or(&group->gate, GATE_ENDED);
    futex_wake_all(&group->gate);
    if (group->backend->ended != NULL)
        group->backend->ended(group);
}
