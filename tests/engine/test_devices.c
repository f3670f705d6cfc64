/* What --devices means. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "engine/engine_devices.h"

static const struct {
    const char *text;
    int rank_count;
    bool cuda;
    int gpus[8];
    int64_t link_mb;
} sound[] = {
    {NULL, 1, false, {0}, 0},
    {"cpu", 1, false, {0}, 0},
    {"cpu:1", 1, false, {0}, 0},
    {"cpu:64", 64, false, {0}, 0},
    {"cuda:0", 1, true, {0}, 0},
    {"cuda:7", 1, true, {7}, 0},
    {"cuda:10", 1, true, {10}, 0},
    {"cuda:0-3", 4, true, {0, 1, 2, 3}, 0},
    {"cuda:2-2", 1, true, {2}, 0},
    {"cuda:0,2", 2, true, {0, 2}, 0},
    {"cuda:3,0-1", 3, true, {3, 0, 1}, 0},
    {"cuda:0x4", 4, true, {0, 0, 0, 0}, 0},
    {"cuda:0x2,1x2", 4, true, {0, 0, 1, 1}, 0},
    {"cuda:1x1,4-6", 4, true, {1, 4, 5, 6}, 0},
    {"cuda:0x2@22GB/s", 2, true, {0, 0}, 22000},
    {"cuda:0,2@10MB/s", 2, true, {0, 2}, 10},
    {"cuda:0@999999MB/s", 1, true, {0}, 999999},
};

Test(devices, that_are_sound)
{
    for (size_t i = 0; i < sizeof sound / sizeof sound[0]; i++) {
        struct engine_devices devices;
        struct error err;
        cr_assert_eq(engine_devices_parse(&devices, sound[i].text, &err), STATUS_OK, "%s",
                     err.message);
        cr_assert_eq(devices.rank_count, sound[i].rank_count, "%s", sound[i].text);
        cr_assert_eq(devices.cuda, sound[i].cuda, "%s", sound[i].text);
        cr_assert_eq(devices.link_mb, sound[i].link_mb, "%s", sound[i].text);
        cr_assert_eq(engine_devices_links(&devices).bytes_per_second, 1e6 * sound[i].link_mb);
        for (int r = 0; sound[i].cuda && r < sound[i].rank_count; r++)
            cr_assert_eq(devices.gpus[r], sound[i].gpus[r], "%s, rank %d", sound[i].text, r);
    }
}

static const char *const unsound[] = {
    "",
    "cpu:",
    "cpu:0",
    "cpu:65",
    "cpu:01",
    "cpu:1,2",
    "cpu:0x2",
    "cuda",
    "cuda:",
    "cuda:-1",
    "cuda:00",
    "cuda:a",
    "cuda:0,",
    "cuda:,0",
    "cuda:0-",
    "cuda:3-0",
    "cuda:0x",
    "cuda:0x0",
    "cuda:0x65",
    "cuda:0-64",
    "cuda:0 ",
    " cuda:0",
    "cuda:0,0",
    "cuda:0-3,2",
    "cuda:0x2,0",
    "cuda:0-1x2",
    "cuda:0x2x2",
    "cuda:99999",
    "cuda:0x33,1x32",
    "cuda:0xffffffffffff",
    "gpu:0",
    "CUDA:0",
    "cpu:2@1GB/s",
    "cuda:@1GB/s",
    "cuda:0@",
    "cuda:0@GB/s",
    "cuda:0@1",
    "cuda:0@0GB/s",
    "cuda:0@1GB",
    "cuda:0@1000GB/s",
    "cuda:0@1000000MB/s",
    "cuda:0@9MB/s",
    "cuda:0@1.5GB/s",
    "cuda:0@-1GB/s",
    "cuda:0@1GB/s,1",
    "cuda:0@01GB/s",
};

Test(devices, that_are_not)
{
    for (size_t i = 0; i < sizeof unsound / sizeof unsound[0]; i++) {
        struct engine_devices devices;
        struct error err;
        char found[64];
        cr_assert_eq(engine_devices_parse(&devices, unsound[i], &err), STATUS_INVALID_ARGUMENT,
                     "%s", unsound[i]);
        snprintf(found, sizeof found, "found \"%s\"", unsound[i]);
        cr_assert_not_null(strstr(err.message, found), "%s", err.message);
    }
}

/* The shortest text, of which the same devices are made. */
static const char *const texts[][2] = {
    {"cpu", "cpu:1"},
    {"cpu:64", "cpu:64"},
    {"cuda:7", "cuda:7"},
    {"cuda:0,1,2,3", "cuda:0-3"},
    {"cuda:2-2", "cuda:2"},
    {"cuda:3,0-1", "cuda:3,0-1"},
    {"cuda:0x4", "cuda:0x4"},
    {"cuda:0x2,1x2", "cuda:0x2,1x2"},
    {"cuda:0,1x2,2,3,5", "cuda:0,1x2,2-3,5"},
    {"cuda:998,999x3", "cuda:998,999x3"},
    {"cuda:0x4@22000MB/s", "cuda:0x4@22GB/s"},
    {"cuda:0,1@1500MB/s", "cuda:0-1@1500MB/s"},
};

Test(devices, have_a_text)
{
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct engine_devices devices, again;
        struct error err;
        char text[ENGINE_DEVICES_BYTES];
        cr_assert_eq(engine_devices_parse(&devices, texts[i][0], &err), STATUS_OK);
        engine_devices_format(text, &devices);
        cr_expect_str_eq(text, texts[i][1]);
        cr_assert_eq(engine_devices_parse(&again, text, &err), STATUS_OK, "%s", err.message);
        cr_expect_eq(memcmp(&again, &devices, sizeof again), 0, "%s", text);
    }
}

/* The longest that there is: each GPU by itself, of three digits. */
Test(devices, have_room_for_the_longest_text)
{
    struct engine_devices devices = {.rank_count = COMM_RANKS_MAX, .cuda = true, .link_mb = 999999};
    char text[ENGINE_DEVICES_BYTES];
    for (int r = 0; r < COMM_RANKS_MAX; r++)
        devices.gpus[r] = 999 - 2 * r;
    engine_devices_format(text, &devices);
    cr_expect_eq(strlen(text), ENGINE_DEVICES_BYTES - 1);
}

Test(devices, share_gpus)
{
    struct engine_devices devices;
    struct error err;
    cr_assert_eq(engine_devices_parse(&devices, "cuda:0x2,1,3-4", &err), STATUS_OK);
    cr_expect_eq(engine_devices_gpu_count(&devices), 4);
    cr_expect_eq(engine_devices_sharers(&devices, 1), 2);
    cr_expect_eq(engine_devices_sharers(&devices, 2), 1);
    cr_assert_eq(engine_devices_parse(&devices, "cpu:4", &err), STATUS_OK);
    cr_expect_eq(engine_devices_gpu_count(&devices), 0);
    cr_expect_eq(engine_devices_sharers(&devices, 3), 1);
}
