/* The weights of a rank out of the cache: to the byte those that are packed from the checkpoint,
 * whatever the layout and the numbers; another rank's are never taken for them. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/memory.h"
#include "exec/weights_image.h"
#include "model_runner.h"
#include "scenarios.h"

static char dir[] = "/tmp/phasor-test-XXXXXX";

static void make_dir(void)
{
    cr_assert_not_null(mkdtemp(dir));
    cr_assert_eq(setenv("PHASOR_CACHE", dir, 1), 0);
}

static void remove_dir(void)
{
    char command[256];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    cr_assert_eq(system(command), 0);
}

TestSuite(weights_image, .init = make_dir, .fini = remove_dir);

static const struct {
    const char *model, *plan;
    int rank;
    enum dtype matrices, experts;
    bool keeps_both;
    bool is_scenario; /* else of tests/data/models */
} cases[] = {
    {"mixtral", "tp1|tp1", 0, DTYPE_F32, DTYPE_F32, false, false},
    {"mixtral-tied", "tp1|tp1", 0, DTYPE_BF16, DTYPE_BF16, false, false},
    {"mixtral-fused", "tp1|tp1", 0, DTYPE_BF16, DTYPE_BF16, false, false},
    {"qwen2moe-mlponly", "tp1|tp1", 0, DTYPE_BF16, DTYPE_BF16, false, false},
    {"qwen3moe-bias", "tp1|tp1", 0, DTYPE_F32, DTYPE_F32, false, false},
    {"mixtral", "tp2|tp2", 1, DTYPE_BF16, DTYPE_BF16, false, true},
    {"mixtral", "dp2|ep2>tp2", 1, DTYPE_BF16, DTYPE_BF16, false, true},
    {"mixtral", "dp2|ep2>tp2", 0, DTYPE_BF16, DTYPE_BF16, true, true},
    {"qwen2moe", "tp2|tp2", 1, DTYPE_BF16, DTYPE_BF16, false, true},
    {"qwen3moe", "tp2|ep2", 1, DTYPE_F32, DTYPE_F32, false, true},
    {"mixtral", "tp1|tp1", 0, DTYPE_BF16, DTYPE_INT4, false, true},
};
#define CASE_COUNT (sizeof cases / sizeof *cases)

static struct weights_share share_of(size_t index)
{
    struct error err;
    struct weights_share share = {.rank = cases[index].rank,
                                  .keeps_both = cases[index].keeps_both,
                                  .types = {cases[index].matrices, cases[index].experts}};
    cr_assert_eq(plan_layouts_parse(&share.layouts, cases[index].plan, 0, &err), STATUS_OK, "%s",
                 err.message);
    return share;
}

static struct device *device_of(int thread_count)
{
    struct cpu_share share = {.thread_count = thread_count, .first_cpu = -1};
    struct device *device;
    struct error err;
    cr_assert_eq(device_cpu_create(&device, &share, &err), STATUS_OK);
    return device;
}

struct seen {
    uint64_t last, refused;
};

static enum status see(void *context, uint64_t done, struct error *err)
{
    struct seen *seen = context;
    (void)err;
    seen->last = done > seen->last ? done : seen->last; /* workers may tell out of order */
    return STATUS_OK;
}

static void see_refused(void *context, const struct error *reason)
{
    struct seen *seen = context;
    cr_assert_not_null(strstr(reason->message, dir), "%s", reason->message);
    seen->refused++;
}

static void load(struct weights *out, struct device *device, const struct checkpoint *checkpoint,
                 const struct weights_share *share, struct seen *seen)
{
    const struct weights_progress progress = {
        .report = see, .context = seen, .image_refused = see_refused};
    struct error err;
    *seen = (struct seen){0};
    cr_assert_eq(weights_load(out, device, checkpoint, share, &progress, &err), STATUS_OK, "%s",
                 err.message);
}

static void check_same(const struct weights *a, const struct weights *b, const char *label)
{
    int64_t bytes = expert_form_bytes(&a->experts.forms[PHASE_PREFILL]);
    cr_assert_eq(a->resident_bytes, b->resident_bytes);
    cr_assert(memcmp(a->slab, b->slab, a->resident_bytes) == 0, "%s", label);
    for (int64_t i = 0; i < a->experts.layer_count; i++) {
        if (!expert_slots_has(&a->experts, i))
            continue;
        cr_assert(memcmp(expert_slots_now(&a->experts, i), expert_slots_now(&b->experts, i),
                         (size_t)bytes) == 0,
                  "%s, layer %lld", label, (long long)i);
    }
}

static void name_of(struct weights_image *image, const struct checkpoint *checkpoint,
                    const struct weights_share *share)
{
    struct fingerprint fingerprint;
    struct error err;
    cr_assert_eq(fingerprint_files(&fingerprint, checkpoint, &err), STATUS_OK);
    cr_assert_eq(weights_image_name(image, &fingerprint, share, &err), STATUS_OK, "%s",
                 err.message);
}

static struct checkpoint *checkpoint_of(size_t index)
{
    struct checkpoint *checkpoint;
    struct error err;
    if (!cases[index].is_scenario)
        return test_checkpoint_open(cases[index].model);
    cr_assert_eq(checkpoint_open(&checkpoint,
                                 scenario_checkpoint(cases[index].model, cases[index].matrices),
                                 &err),
                 STATUS_OK);
    return checkpoint;
}

/* Read, left, and mapped. */
static void check_case(size_t index)
{
    const struct packed_read_progress silent = {0};
    struct weights_share share = share_of(index);
    struct checkpoint *checkpoint = checkpoint_of(index);
    struct weights read, mapped;
    struct weights_image image;
    struct seen seen;
    struct error err;
    uint64_t total;
    struct device *device = device_of(2);
    cr_assert_eq(weights_bytes_on_disk(&total, checkpoint, &share.layouts.of[0], share.rank, &err),
                 STATUS_OK);
    name_of(&image, checkpoint, &share);
    share.image = &image;
    load(&read, device, checkpoint, &share, &seen);
    cr_assert(!read.is_mapped && read.bytes_read == total && seen.refused == 0);
    cr_assert_eq(weights_image_write(&read, &image, &silent, &err), STATUS_OK, "%s", err.message);
    load(&mapped, device, checkpoint, &share, &seen);
    cr_assert(mapped.is_mapped && mapped.bytes_read == 0 && seen.refused == 0);
    cr_assert_eq(seen.last, total);
    check_same(&read, &mapped, cases[index].plan);
    weights_deinit(&read);
    weights_deinit(&mapped);
    memory_free(image.path);
    device_destroy(device);
    checkpoint_close(checkpoint);
}

Test(weights_image, is_what_is_packed, .fini = scenario_checkpoints_remove)
{
    for (size_t i = 0; i < CASE_COUNT; i++)
        check_case(i);
    remove_dir();
}

/* No two of a model, a layout, a rank and numbers have the same name. */
Test(weights_image, each_share_has_its_own)
{
    static const struct {
        const char *plan;
        int rank;
        enum dtype matrices, experts;
        uint64_t fingerprint;
    } shares[] = {
        {"tp2|tp2", 0, DTYPE_BF16, DTYPE_BF16, 1}, {"tp2|tp2", 1, DTYPE_BF16, DTYPE_BF16, 1},
        {"tp2|ep2", 0, DTYPE_BF16, DTYPE_BF16, 1}, {"dp2|tp2", 0, DTYPE_BF16, DTYPE_BF16, 1},
        {"tp2|tp2", 0, DTYPE_F32, DTYPE_F32, 1},   {"tp2|tp2", 0, DTYPE_BF16, DTYPE_INT4, 1},
        {"tp2|tp2", 0, DTYPE_BF16, DTYPE_BF16, 2}, {"tp1|tp1", 0, DTYPE_BF16, DTYPE_BF16, 1},
    };
    enum { COUNT = sizeof shares / sizeof *shares };
    struct weights_image images[COUNT];
    struct error err;
    for (int i = 0; i < COUNT; i++) {
        struct weights_share share = {.rank = shares[i].rank,
                                      .types = {shares[i].matrices, shares[i].experts}};
        cr_assert_eq(plan_layouts_parse(&share.layouts, shares[i].plan, 0, &err), STATUS_OK);
        cr_assert_eq(weights_image_name(&images[i], &(struct fingerprint){7, shares[i].fingerprint},
                                        &share, &err),
                     STATUS_OK);
        for (int j = 0; j < i; j++) {
            cr_assert_str_neq(images[i].key, images[j].key);
            cr_assert_str_neq(images[i].path, images[j].path);
        }
    }
    for (int i = 0; i < COUNT; i++)
        memory_free(images[i].path);
}

/* One that is cut is read over, and another is left in its place. */
Test(weights_image, that_is_damaged_is_not_used)
{
    const struct packed_read_progress silent = {0};
    struct weights_share share = share_of(0);
    struct checkpoint *checkpoint = test_checkpoint_open("mixtral");
    struct device *device = device_of(2);
    struct weights read, again;
    struct weights_image image;
    struct seen seen;
    struct error err;
    name_of(&image, checkpoint, &share);
    share.image = &image;
    load(&read, device, checkpoint, &share, &seen);
    cr_assert_eq(weights_image_write(&read, &image, &silent, &err), STATUS_OK);
    cr_assert_eq(truncate(image.path, 3000000), 0);
    load(&again, device, checkpoint, &share, &seen);
    cr_assert(!again.is_mapped && seen.refused == 1);
    check_same(&read, &again, "cut");
    cr_assert_eq(weights_image_write(&again, &image, &silent, &err), STATUS_OK);
    weights_deinit(&again);
    load(&again, device, checkpoint, &share, &seen);
    cr_assert(again.is_mapped && seen.refused == 0);
    check_same(&read, &again, "mended");
    weights_deinit(&read);
    weights_deinit(&again);
    memory_free(image.path);
    device_destroy(device);
    checkpoint_close(checkpoint);
}

/* What an image holds may only change with VERSION of store/packed_image.c: else those of before
 * would be taken for those of now. Who sees this fail raises the version, and puts the new sums
 * here. */
Test(weights_image, holds_what_its_version_says, .fini = scenario_checkpoints_remove)
{
    static const uint64_t sums[CASE_COUNT] = {
        0x1444e17802b97079, 0xa35690ab134587e0, 0x6f29f45ec895de85, 0x92da0180fa75a8ac,
        0x4b14a0465fb94fc2, 0x01299ef8017ad26b, 0x024941914411ee5f, 0xd7a905a1272b75e5,
        0xd231d6f9c46c75c7, 0x37e4305bdfcb6125, 0xa90a6cd4fdda976e};
    for (size_t i = 0; i < CASE_COUNT; i++) {
        const struct packed_read_progress silent = {0};
        struct weights_share share = share_of(i);
        struct checkpoint *checkpoint = checkpoint_of(i);
        struct device *device = device_of(1);
        struct weights weights;
        struct weights_image image;
        struct seen seen;
        struct error err;
        char *bytes;
        size_t length, begin = (size_t)2 << 20; /* behind what tells the files apart */
        name_of(&image, checkpoint, &share);
        load(&weights, device, checkpoint, &share, &seen);
        cr_assert_eq(weights_image_write(&weights, &image, &silent, &err), STATUS_OK);
        cr_assert_eq(file_read_whole(&bytes, &length, image.path, 64 << 20, &err), STATUS_OK);
        cr_assert_gt(length, begin);
        uint64_t sum = XXH3_64bits(bytes + begin, length - begin);
        cr_expect_eq(sum, sums[i], "case %zu: 0x%016llx", i, (unsigned long long)sum);
        memory_free(bytes);
        weights_deinit(&weights);
        memory_free(image.path);
        device_destroy(device);
        checkpoint_close(checkpoint);
    }
    remove_dir();
}
