/* Rates are max-min fair: nobody's could be higher but by that of one who has no more. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "builder.h"
#include "replay/fluid.h"

#define RESOURCES  12
#define ACTIVITIES 60

struct scene {
    double capacities[RESOURCES];
    struct fluid_activity activities[ACTIVITIES];
    int ids[ACTIVITIES];
    bool is_there[ACTIVITIES];
};

static struct random dice;

static void start(struct fluid *fluid, struct scene *scene, int a)
{
    struct fluid_activity *activity = &scene->activities[a];
    struct error err;
    *activity = (struct fluid_activity){
        .amount = 1 + (double)random_below(&dice, 9), .cap = INFINITY, .tag = (uint64_t)a};
    for (uint64_t uses = random_below(&dice, 4); uses > 0; uses--) {
        uint16_t resource = (uint16_t)random_below(&dice, RESOURCES);
        bool has_it = false;
        for (int u = 0; u < activity->use_count; u++)
            has_it = has_it || activity->uses[u] == resource;
        if (!has_it)
            activity->uses[activity->use_count++] = resource;
    }
    if (activity->use_count == 0 || random_below(&dice, 3) == 0)
        activity->cap = (double)random_below(&dice, 5) * 0.5;
    cr_assert_eq(fluid_start(&scene->ids[a], fluid, activity, &err), STATUS_OK);
    scene->is_there[a] = true;
}

/* Each is at its cap, or uses a resource that is full and where nobody has more. */
static void check_fair(struct fluid *fluid, const struct scene *scene)
{
    double used[RESOURCES] = {0}, most[RESOURCES] = {0}, rates[ACTIVITIES] = {0};
    for (int a = 0; a < ACTIVITIES; a++) {
        const struct fluid_activity *activity = &scene->activities[a];
        if (!scene->is_there[a])
            continue;
        rates[a] = fluid_rate(fluid, scene->ids[a]);
        cr_assert(rates[a] >= 0 && rates[a] <= activity->cap);
        for (int u = 0; u < activity->use_count; u++) {
            used[activity->uses[u]] += rates[a];
            most[activity->uses[u]] = fmax(most[activity->uses[u]], rates[a]);
        }
    }
    for (int r = 0; r < RESOURCES; r++)
        cr_assert(used[r] <= scene->capacities[r] * (1 + 1e-12));
    for (int a = 0; a < ACTIVITIES; a++) {
        const struct fluid_activity *activity = &scene->activities[a];
        bool is_held = rates[a] == activity->cap || !scene->is_there[a];
        for (int u = 0; u < activity->use_count && !is_held; u++) {
            int r = activity->uses[u];
            is_held =
                used[r] >= scene->capacities[r] * (1 - 1e-12) && most[r] <= rates[a] * (1 + 1e-12);
        }
        cr_assert(is_held, "activity %d could have more", a);
    }
}

Test(fluid, rates_are_max_min_fair)
{
    uint64_t seed = test_seed();
    for (uint64_t c = 0; c < 200; c++) {
        struct scene scene = {.is_there = {false}};
        struct fluid *fluid;
        struct error err;
        dice = (struct random){.seed = random_mix(seed) + c};
        for (int r = 0; r < RESOURCES; r++)
            scene.capacities[r] = 1 + (double)random_below(&dice, 4) * random_unit(c);
        cr_assert_eq(fluid_create(&fluid, scene.capacities, RESOURCES, &err), STATUS_OK);
        for (int change = 0; change < 100; change++) {
            int a = (int)random_below(&dice, ACTIVITIES);
            uint64_t tag;
            if (!scene.is_there[a]) {
                start(fluid, &scene, a);
            } else if (isfinite(scene.activities[a].cap) && random_below(&dice, 2) == 0) {
                scene.activities[a].cap = (double)random_below(&dice, 5) * 0.5;
                fluid_set_cap(fluid, scene.ids[a], scene.activities[a].cap);
            } else if (isfinite(fluid_next(fluid))) {
                fluid_advance(fluid, fluid_next(fluid));
                while (fluid_take(fluid, &tag))
                    scene.is_there[tag] = false;
            }
            check_fair(fluid, &scene);
        }
        fluid_destroy(fluid);
    }
}

/* Those that are joined to nothing that changes keep their rate, and so the very end they had. */
Test(fluid, a_change_elsewhere_touches_nothing)
{
    const double capacities[] = {3, 7};
    struct fluid *fluid;
    struct error err;
    uint64_t tag;
    int id;
    cr_assert_eq(fluid_create(&fluid, capacities, 2, &err), STATUS_OK);
    struct fluid_activity lasting = {.amount = 10, .cap = INFINITY, .use_count = 1, .tag = 99};
    struct fluid_activity other = {.amount = 0.1, .cap = INFINITY, .use_count = 1, .uses = {1}};
    cr_assert_eq(fluid_start(&id, fluid, &lasting, &err), STATUS_OK);
    double first_end = fluid_next(fluid);
    for (int i = 0; i < 100; i++) {
        cr_assert_eq(fluid_start(&id, fluid, &other, &err), STATUS_OK);
        fluid_advance(fluid, fluid_next(fluid));
        cr_assert(fluid_take(fluid, &tag) && tag == 0);
    }
    cr_assert_eq(fluid_next(fluid), first_end);
    fluid_advance(fluid, first_end);
    cr_assert(fluid_take(fluid, &tag) && tag == 99);
    cr_assert_not(fluid_take(fluid, &tag));
    cr_assert(isinf(fluid_next(fluid)));
    fluid_destroy(fluid);
}

/* One that has nothing left but rounding is done, and does not wait for a rate. */
Test(fluid, rounding_is_nothing_to_do)
{
    struct fluid *fluid;
    struct error err;
    uint64_t tag;
    int low, other;
    double now = 0;
    cr_assert_eq(fluid_create(&fluid, NULL, 0, &err), STATUS_OK);
    cr_assert_eq(
        fluid_start(&low, fluid, &(struct fluid_activity){.amount = 0.8, .cap = 1, .tag = 1}, &err),
        STATUS_OK);
    for (int i = 0; i < 8; i++) {
        cr_assert_eq(fluid_start(&other, fluid,
                                 &(struct fluid_activity){.amount = 0.1, .cap = 1, .tag = 2}, &err),
                     STATUS_OK);
        now = fluid_next(fluid);
        fluid_advance(fluid, now);
        while (fluid_take(fluid, &tag))
            cr_assert_eq(tag, 2);
    }
    cr_assert(now < 0.8 && now > 0.8 - 1e-12); /* eight tenths are less than 0.8 */
    fluid_set_cap(fluid, low, 0);
    cr_assert_eq(fluid_next(fluid), now);
    cr_assert(fluid_take(fluid, &tag) && tag == 1);
    fluid_destroy(fluid);
}

/* They are taken in the order in which they began. */
Test(fluid, what_ends_together_has_an_order)
{
    struct fluid *fluid;
    struct error err;
    uint64_t tag;
    int id;
    cr_assert_eq(fluid_create(&fluid, NULL, 0, &err), STATUS_OK);
    for (uint64_t i = 0; i < 50; i++)
        cr_assert_eq(fluid_start(&id, fluid,
                                 &(struct fluid_activity){.amount = 1, .cap = 1, .tag = i}, &err),
                     STATUS_OK);
    fluid_advance(fluid, fluid_next(fluid));
    for (uint64_t i = 0; i < 50; i++)
        cr_assert(fluid_take(fluid, &tag) && tag == i);
    fluid_destroy(fluid);
}
