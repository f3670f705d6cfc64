/* Profiles of GPUs: what their files say of them, and of which they are. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "engine/profile_file.h"

TestSuite(profile_gpus, .timeout = 60);

#define PROFILE(gpus)                                                                              \
    "{\"phasor_profile\":1,\"phasor\":\"0.1.0\",\"box\":{\"processor\":\"A\",\"cores\":16,"        \
    "\"kernels\":\"cuda (sm_80)\",\"ranks\":4,\"threads\":16" gpus                                 \
    "},\"rates\":{},\"work\":[],\"collectives\":[]}"
#define DEVICES ",\"devices\":\"cuda:0x2,1x2\""
#define GPUS    ",\"gpus\":\"2 x NVIDIA A100-SXM4-80GB (sm_80)\""
#define CUDA    ",\"cuda\":\"runtime 13.0, driver 13.1\""
#define MEMORY  ",\"memory\":42949672960"

static const char whole[] = PROFILE(DEVICES GPUS CUDA MEMORY);

static void parse(struct profile_file *out, const char *text)
{
    struct error err;
    cr_assert_eq(profile_file_parse(out, text, strlen(text), "box.json", &err), STATUS_OK, "%s",
                 err.message);
}

Test(profile_gpus, are_read)
{
    struct profile_file file;
    char devices[ENGINE_DEVICES_BYTES];
    parse(&file, whole);
    engine_devices_format(devices, &file.identity.devices);
    cr_expect_str_eq(devices, "cuda:0x2,1x2");
    cr_expect_str_eq(file.identity.gpus, "2 x NVIDIA A100-SXM4-80GB (sm_80)");
    cr_expect_str_eq(file.identity.cuda, "runtime 13.0, driver 13.1");
    cr_expect_eq(file.identity.memory_bytes, (uint64_t)40 << 30);
    cr_expect_eq(file.profile.sharing, 2); /* of ranks, whatever threads the host has */
    profile_file_deinit(&file);
}

Test(profile_gpus, go_round)
{
    struct profile_file file, again;
    struct text text = {0};
    struct error err;
    parse(&file, whole);
    cr_assert_eq(profile_file_format(&text, &file, &err), STATUS_OK, "%s", err.message);
    parse(&again, text.bytes);
    cr_expect_eq(profile_identity_fit(&again.identity, &file.identity, &err), PROFILE_FITS);
    cr_expect_eq(again.identity.memory_bytes, file.identity.memory_bytes);
    text_deinit(&text);
    profile_file_deinit(&file);
    profile_file_deinit(&again);
}

#define LONG16 "0123456789abcdef"
#define LONG64 LONG16 LONG16 LONG16 LONG16

static const struct {
    const char *text;
    enum status status;
    const char *sentence;
} mistakes[] = {
    {PROFILE(""), STATUS_OK, ""}, /* of CPU devices */
    {PROFILE(GPUS CUDA MEMORY), STATUS_OK, ""},
    {PROFILE(",\"devices\":7" GPUS CUDA MEMORY), STATUS_FORMAT, "\"devices\": expected a string"},
    {PROFILE(",\"devices\":\"cpu:4\"" GPUS CUDA MEMORY), STATUS_FORMAT,
     "expected 4 GPUs such as cuda:0-3, found \"cpu:4\""},
    {PROFILE(",\"devices\":\"cuda:0-2\"" GPUS CUDA MEMORY), STATUS_FORMAT,
     "expected 4 GPUs such as cuda:0-3, found \"cuda:0-2\""},
    {PROFILE(",\"devices\":\"cuda:0,0\"" GPUS CUDA MEMORY), STATUS_FORMAT, "found \"cuda:0,0\""},
    {PROFILE(DEVICES CUDA MEMORY), STATUS_FORMAT, "\"gpus\": expected a string"},
    {PROFILE(DEVICES ",\"gpus\":\"" LONG64 LONG64 LONG64 LONG64 LONG64 LONG64 LONG64 LONG64
                     "\"" CUDA MEMORY),
     STATUS_LIMIT, "\"gpus\": expected at most 511 bytes, found 512"},
    {PROFILE(DEVICES GPUS MEMORY), STATUS_FORMAT, "\"cuda\": expected a string"},
    {PROFILE(DEVICES GPUS CUDA), STATUS_FORMAT, "\"memory\": expected an integer"},
    {PROFILE(DEVICES GPUS CUDA ",\"memory\":0"), STATUS_FORMAT, "\"memory\": expected 1 to"},
    {PROFILE(DEVICES GPUS CUDA ",\"memory\":1152921504606846976"), STATUS_FORMAT, "\"memory\""},
};

Test(profile_gpus, mistakes_are_told)
{
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        struct profile_file file = {0};
        struct error err = {.message = ""};
        const char *text = mistakes[i].text;
        enum status status = profile_file_parse(&file, text, strlen(text), "box.json", &err);
        cr_expect_eq(status, mistakes[i].status, "%zu: %s", i, err.message);
        cr_expect(status == STATUS_OK || strstr(err.message, mistakes[i].sentence) != NULL,
                  "%zu: %s", i, err.message);
        cr_expect(status != STATUS_OK || !file.identity.devices.cuda);
        profile_file_deinit(&file);
    }
}

static void check_fit(const struct profile_identity *file, const struct profile_identity *here,
                      enum profile_fit expected, const char *sentence)
{
    struct error why = {.message = ""};
    cr_expect_eq(profile_identity_fit(file, here, &why), expected, "%s", why.message);
    cr_expect_not_null(strstr(why.message, sentence), "%s", why.message);
}

Test(profile_gpus, of_others_are_foreign_and_of_another_cuda_stale)
{
    struct profile_file file;
    struct error ignored;
    parse(&file, whole);
    struct profile_identity other = file.identity;
    cr_assert_eq(engine_devices_parse(&other.devices, "cuda:0-3", &ignored), STATUS_OK);
    check_fit(&other, &file.identity, PROFILE_FOREIGN,
              "the devices \"cuda:0-3\", here it is \"cuda:0x2,1x2\"");
    other.devices = (struct engine_devices){.rank_count = 4};
    check_fit(&other, &file.identity, PROFILE_FOREIGN, "the devices \"cpu:4\"");
    check_fit(&file.identity, &other, PROFILE_FOREIGN, "here it is \"cpu:4\"");
    other = file.identity;
    snprintf(other.gpus, sizeof other.gpus, "2 x NVIDIA H100 80GB HBM3 (sm_90)");
    check_fit(&other, &file.identity, PROFILE_FOREIGN,
              "the GPUs \"2 x NVIDIA H100 80GB HBM3 (sm_90)\"");
    other = file.identity;
    snprintf(other.cuda, sizeof other.cuda, "runtime 13.0, driver 13.0");
    check_fit(&other, &file.identity, PROFILE_STALE, "the CUDA \"runtime 13.0, driver 13.0\"");
    profile_file_deinit(&file);
}

/* What makes a profile foreign is in its name, what makes it stale is not. */
Test(profile_gpus, are_found_by_what_they_are)
{
    struct profile_file file;
    struct error err;
    char *paths[4];
    cr_assert_eq(setenv("PHASOR_CACHE", "/c", 1), 0);
    parse(&file, whole);
    struct profile_identity *identity = &file.identity;
    cr_assert_eq(profile_path_in_cache(&paths[0], identity, &err), STATUS_OK, "%s", err.message);
    snprintf(identity->cuda, sizeof identity->cuda, "another");
    cr_assert_eq(profile_path_in_cache(&paths[1], identity, &err), STATUS_OK);
    snprintf(identity->gpus, sizeof identity->gpus, "another");
    cr_assert_eq(profile_path_in_cache(&paths[2], identity, &err), STATUS_OK);
    cr_assert_eq(engine_devices_parse(&identity->devices, "cuda:0-3", &err), STATUS_OK);
    cr_assert_eq(profile_path_in_cache(&paths[3], identity, &err), STATUS_OK);
    cr_expect_eq(strncmp(paths[0], "/c/profile-cuda4-", 17), 0, "%s", paths[0]);
    cr_expect_str_eq(paths[1], paths[0]);
    cr_expect_str_neq(paths[2], paths[0]);
    cr_expect_str_neq(paths[3], paths[2]);
    for (int i = 0; i < 4; i++)
        memory_free(paths[i]);
    profile_file_deinit(&file);
}
