/* What a change of layout costs beside prefill, against cases that were counted by hand. */
#include <criterion/criterion.h>
#include <math.h>

#include "transition/exposed.h"

static const struct {
    const char *name;
    struct exposure exposure;
    double layer_seconds, expected;
} cases[] = {
    /* layers, spares, prefill, of it the last pass; a layer; the result */
    {"nothing hides it", {4, 1, 0, 0}, 1, 4},
    {"nothing hides it, and there are spares", {4, 4, 0, 0}, 1, 4},
    {"nothing moves", {0, 1, 10, 10}, 1, 0},
    {"all fit, in a long prefill", {4, 4, 10, 10}, 1, 0},
    {"all fit: only the sum counts", {4, 4, 100, 4}, 30, 20},
    {"spares that no layer needs", {4, 9, 100, 4}, 30, 20},
    /* Let go at 1, 2, 3: written from 0, 1, 2, 3. */
    {"one spare keeps up with a pass", {4, 1, 4, 4}, 1, 0},
    {"one spare, after many passes", {4, 1, 100, 4}, 1, 0},
    /* Let go at 97, 98, 99: written from 0, 97, 99, 101 to 103. */
    {"one spare is slower than the pass", {4, 1, 100, 4}, 2, 3},
    /* From 0, 2, 97, 99 to 101. */
    {"two spares", {4, 2, 100, 4}, 2, 1},
    /* From 0, 2, 4, 97 to 99. */
    {"three spares", {4, 3, 100, 4}, 2, 0},
    /* The pass is over at once: written from 0, 4, 5, 6 to 7. */
    {"a last pass of no length", {4, 1, 4, 0}, 1, 3},
    /* The first alone outlasts it: from 0, 10, 20 to 30. */
    {"a short prefill", {3, 1, 6, 6}, 10, 24},
};

Test(exposed, is_what_prefill_does_not_hide)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double found = exposed_seconds(&cases[i].exposure, cases[i].layer_seconds);
        cr_assert(fabs(found - cases[i].expected) < 1e-9, "%s: %g", cases[i].name, found);
    }
}

/* A layer by reshard, reload, upload, mixed. */
static const struct {
    const char *name;
    struct exposure exposure;
    double seconds[WAY_COUNT], expected[WAY_COUNT];
    enum way way;
} choices[] = {
    {"the backup is faster, and nothing hides the others",
     {4, 1, 0, 0},
     {-1, 2, 2.5, 0.5, -1},
     {-1, 16, 20, 12, -1},
     WAY_UPLOAD},
    {"prefill hides all: going back decides",
     {4, 4, 10, 10},
     {-1, 2, 2.5, 0.5, -1},
     {-1, 8, 10, 10, -1},
     WAY_RESHARD},
    /* Of reshard's 8 s prefill leaves 3, of upload's 2 none. */
    {"prefill hides what is read, not what is sent",
     {4, 4, 5, 5},
     {-1, 2, 2.1, 0.5, -1},
     {-1, 11, 11.8, 8.4, -1},
     WAY_UPLOAD},
    {"some by one way, some by the other",
     {4, 1, 0, 0},
     {-1, 2, 2, -1, 1},
     {-1, 16, 16, -1, 8},
     WAY_MIXED},
    {"no way back: no upload",
     {4, 1, 0, 0},
     {-1, 2, -1, 0.5, -1},
     {-1, 16, -1, -1, -1},
     WAY_RESHARD},
    {"the first of equals", {4, 1, 0, 0}, {-1, 1, 1, 1, 1}, {-1, 8, 8, 8, 8}, WAY_RESHARD},
    {"nothing was tried", {0, 1, 0, 0}, {-1, -1, -1, -1, -1}, {-1, -1, -1, -1, -1}, WAY_RESHARD},
};

Test(exposed, decides_which_way_is_taken)
{
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        double found[WAY_COUNT];
        ways_exposed(found, choices[i].seconds, &choices[i].exposure);
        for (int way = 0; way < WAY_COUNT; way++)
            cr_assert(fabs(found[way] - choices[i].expected[way]) < 1e-9, "%s, %s: %g",
                      choices[i].name, way_names[way], found[way]);
        cr_assert_eq(way_least(found), choices[i].way, "%s", choices[i].name);
    }
}
