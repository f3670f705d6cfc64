#include "replay/fluid.h"

#include <math.h>
#include <stdlib.h>

#include "base/memory.h"

#define NOWHERE (-1)

/* What is left of an amount when its rate changes and is less than this part of it, is rounding: it
 * is done. Or else one that should have ended at the very time at which it loses its resource would
 * wait for it with nothing to do. */
#define ROUNDING 1e-12

struct activity {
    struct fluid_activity about;
    double rate;
    double left; /* at `updated` */
    double updated, end;
    uint64_t serial;        /* the order in which they began */
    int place;              /* in the heap; NOWHERE: it does not move */
    int at[FLUID_USES_MAX]; /* its place among the users of each resource */
    uint64_t seen;          /* the last settling that came to it */
    bool is_fixed;          /* its rate is found */
};

/* One activity's use of a resource. */
struct user {
    int id;
    int use; /* which of its uses */
};

struct resource {
    double capacity;
    struct user *users;
    size_t user_count, user_capacity;
    bool is_dirty;
    uint64_t seen;
    double free; /* while rates are found: what those that are fixed leave */
    int open;    /* users whose rate is not found yet */
};

struct fluid {
    double now;
    struct resource *resources;
    int resource_count;
    struct activity *activities;
    size_t activity_capacity, activity_count; /* that were ever in use at once */
    int *unused;
    size_t unused_capacity, unused_count;
    int *heap; /* by (end, serial) */
    size_t heap_capacity, heap_count;
    uint64_t serial, settling;
    int *dirty; /* resources whose users changed: [resource_count] */
    int dirty_count;
    /* While rates are found: what is joined to the dirty resources. */
    int *joined_resources; /* [resource_count] */
    int joined_resource_count;
    int *joined; /* activities */
    size_t joined_capacity, joined_count;
};

/* ---- The heap -------------------------------------------------------------------------------- */

static bool is_sooner(const struct fluid *fluid, int a, int b)
{
    const struct activity *x = &fluid->activities[a], *y = &fluid->activities[b];
    return x->end < y->end || (x->end == y->end && x->serial < y->serial);
}

static void heap_put(struct fluid *fluid, int place, int id)
{
    fluid->heap[place] = id;
    fluid->activities[id].place = place;
}

static void heap_up(struct fluid *fluid, int place)
{
    int id = fluid->heap[place];
    for (; place > 0 && is_sooner(fluid, id, fluid->heap[(place - 1) / 2]); place = (place - 1) / 2)
        heap_put(fluid, place, fluid->heap[(place - 1) / 2]);
    heap_put(fluid, place, id);
}

static void heap_down(struct fluid *fluid, int place)
{
    int id = fluid->heap[place], count = (int)fluid->heap_count;
    for (;;) {
        int child = 2 * place + 1;
        if (child + 1 < count && is_sooner(fluid, fluid->heap[child + 1], fluid->heap[child]))
            child++;
        if (child >= count || !is_sooner(fluid, fluid->heap[child], id))
            break;
        heap_put(fluid, place, fluid->heap[child]);
        place = child;
    }
    heap_put(fluid, place, id);
}

static void heap_remove(struct fluid *fluid, int id)
{
    int place = fluid->activities[id].place;
    if (place == NOWHERE)
        return;
    fluid->activities[id].place = NOWHERE;
    int last = fluid->heap[--fluid->heap_count];
    if (last == id)
        return;
    heap_put(fluid, place, last);
    heap_up(fluid, place);
    heap_down(fluid, fluid->activities[last].place);
}

/* After its end has changed. */
static void heap_update(struct fluid *fluid, int id)
{
    struct activity *activity = &fluid->activities[id];
    if (activity->place == NOWHERE)
        heap_put(fluid, (int)fluid->heap_count++, id);
    heap_up(fluid, activity->place);
    heap_down(fluid, activity->place);
}

/* ---- Rates ----------------------------------------------------------------------------------- */

/* Nothing is touched where the rate stays, so that times do not depend on how often we look. */
static void set_rate(struct fluid *fluid, int id, double rate)
{
    struct activity *activity = &fluid->activities[id];
    if (rate == activity->rate)
        return;
    activity->left = fmax(0, activity->left - activity->rate * (fluid->now - activity->updated));
    if (activity->left <= ROUNDING * activity->about.amount)
        activity->left = 0;
    activity->updated = fluid->now;
    activity->rate = rate;
    if (rate > 0 || activity->left == 0) {
        activity->end = fluid->now + (activity->left > 0 ? activity->left / rate : 0);
        heap_update(fluid, id);
    } else {
        heap_remove(fluid, id);
    }
}

static void join_resource(struct fluid *fluid, int r)
{
    struct resource *resource = &fluid->resources[r];
    if (resource->seen == fluid->settling)
        return;
    resource->seen = fluid->settling;
    resource->free = resource->capacity;
    resource->open = (int)resource->user_count;
    fluid->joined_resources[fluid->joined_resource_count++] = r;
}

/* All activities that share a resource with one of a dirty resource, or with one that does ... */
static void join(struct fluid *fluid)
{
    fluid->settling++;
    fluid->joined_resource_count = 0;
    fluid->joined_count = 0;
    for (int i = 0; i < fluid->dirty_count; i++) {
        fluid->resources[fluid->dirty[i]].is_dirty = false;
        join_resource(fluid, fluid->dirty[i]);
    }
    fluid->dirty_count = 0;
    for (int i = 0; i < fluid->joined_resource_count; i++) {
        const struct resource *resource = &fluid->resources[fluid->joined_resources[i]];
        for (size_t u = 0; u < resource->user_count; u++) {
            struct activity *activity = &fluid->activities[resource->users[u].id];
            if (activity->seen == fluid->settling)
                continue;
            activity->seen = fluid->settling;
            activity->is_fixed = false;
            fluid->joined[fluid->joined_count++] = resource->users[u].id;
            for (int use = 0; use < activity->about.use_count; use++)
                join_resource(fluid, activity->about.uses[use]);
        }
    }
}

static void fix(struct fluid *fluid, int id, double rate)
{
    struct activity *activity = &fluid->activities[id];
    activity->is_fixed = true;
    for (int use = 0; use < activity->about.use_count; use++) {
        struct resource *resource = &fluid->resources[activity->about.uses[use]];
        resource->free = fmax(0, resource->free - rate);
        resource->open--;
    }
    set_rate(fluid, id, rate);
}

/* The resource that gives least to each whose rate is open; of equals the one of lowest number.
 * NOWHERE: all rates are found. */
static int find_tightest(const struct fluid *fluid, double *share)
{
    int tightest = NOWHERE;
    *share = INFINITY;
    for (int i = 0; i < fluid->joined_resource_count; i++) {
        int r = fluid->joined_resources[i];
        const struct resource *resource = &fluid->resources[r];
        double each = resource->open > 0 ? resource->free / resource->open : INFINITY;
        if (each < *share || (each == *share && resource->open > 0 && r < tightest)) {
            tightest = r;
            *share = each;
        }
    }
    return tightest;
}

/* The activity of the lowest cap, of those whose rate is open and that have one. */
static int find_lowest_cap(const struct fluid *fluid)
{
    int lowest = NOWHERE;
    for (size_t i = 0; i < fluid->joined_count; i++) {
        const struct activity *activity = &fluid->activities[fluid->joined[i]];
        if (!activity->is_fixed && isfinite(activity->about.cap) &&
            (lowest == NOWHERE || activity->about.cap < fluid->activities[lowest].about.cap ||
             (activity->about.cap == fluid->activities[lowest].about.cap &&
              activity->serial < fluid->activities[lowest].serial)))
            lowest = fluid->joined[i];
    }
    return lowest;
}

static void fix_users(struct fluid *fluid, int r, double rate)
{
    const struct resource *resource = &fluid->resources[r];
    for (size_t u = 0; u < resource->user_count; u++) {
        if (!fluid->activities[resource->users[u].id].is_fixed)
            fix(fluid, resource->users[u].id, rate);
    }
}

/* Progressive filling: all rates grow together; whoever reaches his cap, or the end of one of his
 * resources, stays there. */
static void settle(struct fluid *fluid)
{
    if (fluid->dirty_count == 0)
        return;
    join(fluid);
    int capped = find_lowest_cap(fluid);
    for (;;) {
        double share;
        int tightest = find_tightest(fluid, &share);
        if (tightest == NOWHERE)
            return;
        if (capped != NOWHERE && fluid->activities[capped].about.cap <= share) {
            fix(fluid, capped, fluid->activities[capped].about.cap);
            capped = find_lowest_cap(fluid);
        } else {
            fix_users(fluid, tightest, share);
            if (capped != NOWHERE && fluid->activities[capped].is_fixed)
                capped = find_lowest_cap(fluid);
        }
    }
}

static void touch(struct fluid *fluid, const struct activity *activity)
{
    for (int use = 0; use < activity->about.use_count; use++) {
        struct resource *resource = &fluid->resources[activity->about.uses[use]];
        if (!resource->is_dirty)
            fluid->dirty[fluid->dirty_count++] = activity->about.uses[use];
        resource->is_dirty = true;
    }
}

/* ---- Activities ------------------------------------------------------------------------------ */

/* Room for one more in every list that it may be put on, so that nothing fails later. */
static enum status reserve(struct fluid *fluid, const struct fluid_activity *about,
                           struct error *err)
{
    const char *what = "what is under way";
    size_t count = fluid->activity_count + 1;
    TRY(memory_reserve(&fluid->activities, &fluid->activity_capacity, count,
                       sizeof *fluid->activities, what, err));
    TRY(memory_reserve(&fluid->heap, &fluid->heap_capacity, count, sizeof *fluid->heap, what, err));
    TRY(memory_reserve(&fluid->unused, &fluid->unused_capacity, count, sizeof *fluid->unused, what,
                       err));
    TRY(memory_reserve(&fluid->joined, &fluid->joined_capacity, count, sizeof *fluid->joined, what,
                       err));
    for (int use = 0; use < about->use_count; use++) {
        struct resource *resource = &fluid->resources[about->uses[use]];
        TRY(memory_reserve(&resource->users, &resource->user_capacity, resource->user_count + 1,
                           sizeof *resource->users, what, err));
    }
    return STATUS_OK;
}

enum status fluid_start(int *id, struct fluid *fluid, const struct fluid_activity *about,
                        struct error *err)
{
    ASSERT(about->amount > 0 && about->cap >= 0 && about->use_count <= FLUID_USES_MAX);
    ASSERT(about->use_count > 0 || isfinite(about->cap));
    TRY(reserve(fluid, about, err));
    *id = fluid->unused_count > 0 ? fluid->unused[--fluid->unused_count]
                                  : (int)fluid->activity_count++;
    struct activity *activity = &fluid->activities[*id];
    *activity = (struct activity){.about = *about,
                                  .left = about->amount,
                                  .updated = fluid->now,
                                  .end = INFINITY,
                                  .serial = fluid->serial++,
                                  .place = NOWHERE};
    for (int use = 0; use < about->use_count; use++) {
        struct resource *resource = &fluid->resources[about->uses[use]];
        activity->at[use] = (int)resource->user_count;
        resource->users[resource->user_count++] = (struct user){.id = *id, .use = use};
    }
    if (about->use_count == 0)
        set_rate(fluid, *id, about->cap);
    else
        touch(fluid, activity);
    return STATUS_OK;
}

void fluid_set_cap(struct fluid *fluid, int id, double cap)
{
    struct activity *activity = &fluid->activities[id];
    if (cap == activity->about.cap)
        return;
    activity->about.cap = cap;
    if (activity->about.use_count == 0)
        set_rate(fluid, id, cap);
    else
        touch(fluid, activity);
}

double fluid_next(struct fluid *fluid)
{
    settle(fluid);
    return fluid->heap_count > 0 ? fluid->activities[fluid->heap[0]].end : INFINITY;
}

void fluid_advance(struct fluid *fluid, double now)
{
    ASSERT(now >= fluid->now);
    fluid->now = now;
}

static void stop_using(struct fluid *fluid, const struct activity *activity)
{
    for (int use = 0; use < activity->about.use_count; use++) {
        struct resource *resource = &fluid->resources[activity->about.uses[use]];
        struct user last = resource->users[--resource->user_count];
        resource->users[activity->at[use]] = last;
        fluid->activities[last.id].at[last.use] = activity->at[use];
    }
}

bool fluid_take(struct fluid *fluid, uint64_t *tag)
{
    if (fluid->heap_count == 0 || fluid->activities[fluid->heap[0]].end > fluid->now)
        return false;
    int id = fluid->heap[0];
    struct activity *activity = &fluid->activities[id];
    heap_remove(fluid, id);
    touch(fluid, activity);
    stop_using(fluid, activity);
    fluid->unused[fluid->unused_count++] = id;
    *tag = activity->about.tag;
    return true;
}

double fluid_rate(struct fluid *fluid, int id)
{
    settle(fluid);
    return fluid->activities[id].rate;
}

/* ---- Making ---------------------------------------------------------------------------------- */

enum status fluid_create(struct fluid **out, const double *capacities, int resource_count,
                         struct error *err)
{
    struct fluid *fluid;
    enum status status;
    size_t count = (size_t)resource_count;
    const char *what = "the resources of a box";
    TRY(memory_get((void **)&fluid, 1, sizeof *fluid, what, err));
    fluid->resource_count = resource_count;
    TRY_GOTO(memory_get((void **)&fluid->dirty, count, sizeof *fluid->dirty, what, err), failed);
    TRY_GOTO(memory_get((void **)&fluid->joined_resources, count, sizeof *fluid->joined_resources,
                        what, err),
             failed);
    TRY_GOTO(memory_get((void **)&fluid->resources, count, sizeof *fluid->resources, what, err),
             failed);
    for (int r = 0; r < resource_count; r++) {
        ASSERT(capacities[r] > 0);
        fluid->resources[r].capacity = capacities[r];
    }
    *out = fluid;
    return STATUS_OK;
failed:
    fluid_destroy(fluid);
    return status;
}

void fluid_destroy(struct fluid *fluid)
{
    if (fluid == NULL)
        return;
    for (int r = 0; fluid->resources != NULL && r < fluid->resource_count; r++)
        memory_free(fluid->resources[r].users);
    memory_free(fluid->resources);
    memory_free(fluid->joined_resources);
    memory_free(fluid->joined);
    memory_free(fluid->dirty);
    memory_free(fluid->heap);
    memory_free(fluid->unused);
    memory_free(fluid->activities);
    memory_free(fluid);
}
