/* What passes hide of a transition, by hand; and its bytes against the move lists. */
#include <criterion/criterion.h>
#include <math.h>

#include "model_shapes.h"
#include "planner/transition_cost.h"

TestSuite(transition_cost, .timeout = 30);

/* Four layers; the last pass releases them at 7, 8, 9 and 10 seconds of 10. */
static const struct {
    const char *name;
    int64_t spares;
    bool is_beside;
    double layer, last_pass, decode_layer;
    double exposed;
} cases[] = {
    {"one slot, a layer written while the next one computes", 1, true, 0.5, 4, 0, 0},
    {"one slot, half as slow again: 7, 8.5, 10, 11.5", 1, true, 1.5, 4, 0, 1.5},
    {"two slots: 7, 8, 9, 10", 2, true, 1.5, 4, 0, 0},
    {"one pass of prefill, a slot for each layer", 4, true, 2.5, 10, 0, 0},
    {"the same, too slow by 2 seconds", 4, true, 3, 10, 0, 2},
    {"one slot, twice as slow: 7, 9, 11, 13", 1, true, 2, 4, 0, 3},
    {"behind prefill: all of it", 1, false, 2, 4, 0, 8},
    {"decode hides what comes behind its first layers", 1, false, 2, 4, 1.5, 3.5},
    {"decode is slower than the transition: the first layer alone", 1, false, 1, 4, 2, 1},
    {"nothing to move", 1, true, 0, 4, 1, 0},
};

Test(transition_cost, what_prefill_and_decode_hide)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct hiding hiding = {.layers = 4,
                                .spares = cases[i].spares,
                                .is_beside = cases[i].is_beside,
                                .layer = cases[i].layer,
                                .prefill = 10,
                                .last_pass = cases[i].last_pass,
                                .decode_layer = cases[i].decode_layer};
        double exposed = hiding_exposed(&hiding);
        cr_assert(fabs(exposed - cases[i].exposed) < 1e-9, "%s: %g, not %g", cases[i].name, exposed,
                  cases[i].exposed);
    }
}

/* Four layers, of 10 seconds of passes 4 in exchanges. A copy and an exchange on one link hold up
 * one another: passes end later by the exchanges that had copies beside them. */
static const struct {
    const char *name;
    int64_t spares;
    double layer, layer_link, link_sharing;
    bool is_beside;
    double last_pass, exposed;
} links[] = {
    {"copies go over another link", 4, 1.5, 1, 0, true, 10, 0},
    {"four seconds of copies meet four tenths of exchanges", 4, 1.5, 1, 1, true, 10, 1.6},
    {"each has more than half of the link", 4, 1.5, 1, 0.5, true, 10, 0.8},
    {"copies all the while: exchanges take twice as long, no more", 4, 2.5, 2.5, 1, true, 10, 4},
    {"nothing is copied", 4, 1.5, 0, 1, true, 10, 0},
    {"behind prefill nothing is exchanged", 4, 1.5, 1, 1, false, 10, 4 * 1.5},
    /* Released at 9.25 and so on: written until 2, 11.25, 13.25, 15.25; 2.75 of it before 10. */
    {"one slot: what comes behind the passes meets none", 1, 2, 2, 1, true, 1, 5.25 + 0.4 * 2.75},
};

Test(transition_cost, copies_and_exchanges_on_one_link)
{
    for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
        struct hiding hiding = {.layers = 4,
                                .spares = links[i].spares,
                                .is_beside = links[i].is_beside,
                                .layer = links[i].layer,
                                .layer_link = links[i].layer_link,
                                .exchanging = 4,
                                .link_sharing = links[i].link_sharing,
                                .prefill = 10,
                                .last_pass = links[i].last_pass};
        double exposed = hiding_exposed(&hiding);
        cr_assert(fabs(exposed - links[i].exposed) < 1e-9, "%s: %g, not %g", links[i].name, exposed,
                  links[i].exposed);
    }
}

/* Sums of many layers do not come out even: what is left of them by rounding is nothing, or else it
 * is taken for time that a change saves. */
Test(transition_cost, rounding_saves_nothing)
{
    for (int64_t layers = 1; layers < 100; layers++) {
        for (double decode_layer = 1e-5; decode_layer < 1; decode_layer *= 1.7) {
            struct hiding hiding = {.layers = layers,
                                    .spares = 1,
                                    .is_beside = true,
                                    .layer = 1e-6,
                                    .prefill = 6.94,
                                    .last_pass = 1.7,
                                    .decode_layer = decode_layer};
            cr_assert_geq(hiding_exposed(&hiding), 0, "%lld layers of %g s: %g", (long long)layers,
                          decode_layer, hiding_exposed(&hiding));
        }
    }
}

/* Never less with more to do, never more with more room. */
Test(transition_cost, more_room_never_costs)
{
    for (int64_t spares = 1; spares < 8; spares++) {
        for (double layer = 0.1; layer < 4; layer += 0.3) {
            struct hiding hiding = {.layers = 8,
                                    .spares = spares,
                                    .is_beside = true,
                                    .layer = layer,
                                    .prefill = 10,
                                    .last_pass = 5,
                                    .decode_layer = 0.2};
            double exposed = hiding_exposed(&hiding);
            hiding.layer += 0.3;
            cr_assert_geq(hiding_exposed(&hiding), exposed - 1e-12);
            hiding.layer = layer;
            hiding.spares++;
            cr_assert_leq(hiding_exposed(&hiding), exposed + 1e-12);
        }
    }
}

static struct layout layout_of(const char *text)
{
    struct error err;
    struct layout layout;
    cr_assert_eq(layout_parse(&layout, text, 0, &err), STATUS_OK, "%s", err.message);
    return layout;
}

/* Mixtral 8x7B: 8 experts of 14336 x 4096, three matrices of bf16. From whole experts to quarters
 * of all: a rank has a quarter of its two experts, and lacks a quarter of six. */
Test(transition_cost, bytes_of_each_way)
{
    const struct model_shape *shape = &model_shapes[MIXTRAL_8X7B].shape;
    struct layout ep = layout_of("tp4|ep4"), tp = layout_of("tp4|tp4");
    struct expert_type bf16 = {.dtype = DTYPE_BF16};
    double quarter = 14336.0 / 4 * 4096 * 3 * 2;
    struct change reshard = change_by_reshard(shape, &ep, &tp, bf16);
    struct change reload = change_by_reload(shape, &ep, &tp, bf16);
    cr_assert_eq(reshard.received, 6 * quarter);
    cr_assert_eq(reload.taken, 6 * quarter);
    cr_assert_eq(reload.read, 4 * 6 * quarter);
    struct change upload = change_by_upload(shape, &tp, bf16);
    cr_assert_eq(upload.taken, 8 * quarter);
    cr_assert_eq(upload.read, 4 * 8 * quarter);
    cr_assert_eq(upload.values, 8 * quarter / 2);
    cr_assert_eq(change_by_reshard(shape, &ep, &ep, bf16).received, 0);
}

/* Read from the disk, or from the host's memory where all of the backup fits there, which waits for
 * neither but checksums, the link and dequantizing. */
Test(transition_cost, a_backup_in_memory_is_not_read_from_the_disk)
{
    const struct model_shape *shape = &model_shapes[MIXTRAL_8X7B].shape;
    struct layout tp = layout_of("tp4|tp4");
    struct expert_type int4 = {.dtype = DTYPE_INT4, .group = 128};
    struct change upload = change_by_upload(shape, &tp, int4);
    struct profile profile = {.disk_read = 7e9, .check = 20e9, .host_to_device = 25e9};
    double device = upload.taken / 20e9 + upload.taken / 25e9;
    cr_assert_eq(upload.backup, upload.read * (double)shape->moe_layer_count);
    cr_assert_eq(upload.file, upload.backup);
    cr_assert_eq(change_upload_seconds(&profile, &upload, true), upload.read / 7e9);
    profile.host_bytes = upload.backup - 1;
    cr_assert_eq(change_upload_seconds(&profile, &upload, true), upload.read / 7e9);
    profile.host_bytes = upload.backup;
    cr_assert_eq(change_upload_seconds(&profile, &upload, true), device);
    /* What is read once is on the disk all the same. */
    struct layout ep = layout_of("tp4|ep4");
    struct change reload = change_by_reload(shape, &ep, &tp, int4);
    profile.repack = 4e9;
    cr_assert_eq(change_reload_seconds(&profile, &reload), reload.read / 7e9);
}

/* The page cache has all of a file or none: what is read again and again pushes itself out. A layer
 * that comes back whole is read from all of the experts, as every other is. */
Test(transition_cost, a_file_in_the_page_cache_is_read_from_there)
{
    const struct model_shape *shape = &model_shapes[MIXTRAL_8X7B].shape;
    struct layout ep = layout_of("tp4|ep4"), tp = layout_of("tp4|tp4");
    struct expert_type bf16 = {.dtype = DTYPE_BF16}, int4 = {.dtype = DTYPE_INT4, .group = 128};
    struct change upload = change_by_upload(shape, &tp, int4);
    struct change reload = change_by_reload(shape, &ep, &tp, bf16);
    struct profile profile = {.disk_read = 2e9,
                              .page_cache_read = 8e9,
                              .check = 1e15,
                              .repack = 1e15,
                              .host_to_device = 1e15};
    double experts = 3.0 * 8 * 14336 * 4096 * 2 * (double)shape->moe_layer_count;
    cr_assert_eq(reload.file, experts);
    cr_assert_eq(reload.backup, 0);
    profile.cache_bytes = upload.file - 1;
    cr_assert_eq(change_upload_seconds(&profile, &upload, true), upload.read / 2e9);
    profile.cache_bytes = upload.file;
    cr_assert_eq(change_upload_seconds(&profile, &upload, true), upload.read / 8e9);
    cr_assert_eq(change_reload_seconds(&profile, &reload), reload.read / 2e9);
    profile.cache_bytes = reload.file;
    cr_assert_eq(change_reload_seconds(&profile, &reload), reload.read / 8e9);
    profile.page_cache_read = 1; /* not known */
    cr_assert_eq(change_reload_seconds(&profile, &reload), reload.read / 2e9);
}

/* A layer that takes no number of seconds is not there in no time. */
Test(transition_cost, what_is_unknown_is_never_there)
{
    static const double layers[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        struct hiding hiding = {.layers = 4,
                                .spares = 1,
                                .is_beside = true,
                                .layer = layers[i],
                                .prefill = 10,
                                .last_pass = 4};
        cr_assert_eq(hiding_exposed(&hiding), INFINITY);
    }
}
