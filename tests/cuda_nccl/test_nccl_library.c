/* Which NCCL it is, and what is said of one that cannot be used: then GPUs are joined by copies. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/nccl_library.h"
#include "comm_tools.h"
#include "nccl_tools.h"

TestSuite(nccl_library, .timeout = 60);

/* What the box's log was told. */
struct told {
    enum log_level level;
    char text[2 * ERROR_MESSAGE_BYTES];
};

static void tell(void *context, enum log_level level, const char *message)
{
    struct told *told = context;
    told->level = level;
    snprintf(told->text, sizeof told->text, "%s", message);
}

struct gather {
    struct box *box;
    struct comm *comms[3];
    char out[3][3];
};

static enum status gather_rank(void *context, int rank, struct error *err)
{
    static const int64_t counts[3] = {1, 1, 1};
    struct gather *gather = context;
    struct device *device = box_device(gather->box, rank);
    gather->out[rank][rank] = (char)('a' + rank);
    comm_all_gather(
        gather->comms[rank], device->stream,
        &(struct comm_all_gather){gather->out[rank], &gather->out[rank][rank], counts, 0});
    return device->ops->synchronize(device->stream, err);
}

/* A box is opened and told how it is joined; its ranks meet, whichever it is. */
static void box_tells(struct told *told)
{
    struct gather gather = {.box = NULL};
    struct error err;
    cr_assert_eq(nccl_box_open(&gather.box, 3, FOREVER,
                               &(struct log_sink){.write = tell, .context = told}, &err),
                 STATUS_OK, "%s", err.message);
    test_comm_create(gather.comms, gather.box, 3);
    test_box_run(gather.box, gather_rank, &gather);
    for (int r = 0; r < 3; r++)
        cr_assert_arr_eq(gather.out[r], "abc", 3);
    test_comms_destroy(gather.comms, 3);
    box_close(gather.box);
}

static void check_copies(enum log_level level, const char *sentence)
{
    struct told told = {.text = ""};
    char expected[2 * ERROR_MESSAGE_BYTES];
    snprintf(expected, sizeof expected, "the GPUs are joined by copies: %s", sentence);
    box_tells(&told);
    cr_assert_str_eq(told.text, expected);
    cr_assert_eq(told.level, level);
}

#define CURE "PHASOR_NCCL=FILE names another one, PHASOR_NCCL=off goes by copies"

Test(nccl_library, is_the_one_that_is_named)
{
    struct told told = {.text = ""};
    const struct nccl_library *library, *again;
    struct error err;
    box_tells(&told);
    cr_assert_str_eq(told.text, "the GPUs are joined by NCCL 2.32.3 (" NCCL_STUB ")");
    cr_assert_eq(told.level, LOG_INFO);
    cr_assert_eq(stub()->launch_count(), 3);
    cr_assert_eq(nccl_library_get(&library, &err), STATUS_OK);
    cr_assert_eq(library->version, 23203);
    setenv("PHASOR_NCCL", "/nowhere", 1); /* it stays */
    cr_assert_eq(nccl_library_get(&again, &err), STATUS_OK);
    cr_assert_eq(again, library);
}

Test(nccl_library, may_be_switched_off)
{
    setenv("PHASOR_NCCL", "off", 1);
    check_copies(LOG_INFO, "NCCL is switched off by PHASOR_NCCL=off");
}

Test(nccl_library, that_is_too_old)
{
    setenv(NCCL_STUB_VERSION, "21705", 1);
    check_copies(LOG_WARNING, NCCL_STUB ": expected NCCL 2.27.3 or newer, found 2.17.5; " CURE);
}

/* Its version was counted otherwise. */
Test(nccl_library, that_is_very_old)
{
    setenv(NCCL_STUB_VERSION, "2708", 1);
    check_copies(LOG_WARNING, NCCL_STUB ": expected NCCL 2.27.3 or newer, found 2.7.8; " CURE);
}

Test(nccl_library, that_lacks_a_function)
{
    setenv("PHASOR_NCCL", NCCL_PARTIAL, 1);
    check_copies(LOG_WARNING, NCCL_PARTIAL ": expected NCCL 2.27.3 or newer, found no "
                                           "ncclGetUniqueId in it; " CURE);
}

Test(nccl_library, that_is_not_there)
{
    setenv("PHASOR_NCCL", "/nowhere/libnccl.so.2", 1);
    check_copies(LOG_WARNING,
                 "/nowhere/libnccl.so.2: expected NCCL, found no library: /nowhere/libnccl.so.2: "
                 "cannot open shared object file: No such file or directory; " CURE);
}

Test(nccl_library, that_is_no_library)
{
    struct told told = {.text = ""};
    setenv("PHASOR_NCCL", __FILE__, 1);
    box_tells(&told);
    cr_assert_eq(told.level, LOG_WARNING);
    cr_assert_not_null(strstr(told.text, "expected NCCL, found no library: "), "%s", told.text);
}

/* A folder of packages below `root`, for a Python, with a library. */
static void packages_make(const char *root, const char *python, const char *library)
{
    char path[512], at[600];
    snprintf(path, sizeof path, "%s/lib/%s/site-packages/nvidia/nccl/lib", root, python);
    for (char *slash = path + strlen(root); slash != NULL; slash = strchr(slash + 1, '/')) {
        snprintf(at, sizeof at, "%.*s", (int)(slash - path), path);
        mkdir(at, 0700);
    }
    mkdir(path, 0700);
    snprintf(at, sizeof at, "%s/libnccl.so.2", path);
    cr_assert_eq(symlink(library, at), 0);
}

static void tree_remove(const char *root)
{
    char command[600];
    snprintf(command, sizeof command, "rm -r '%s'", root);
    cr_assert_eq(system(command), 0);
}

/* Of the newest Python, of which 3.10 is newer than 3.9. */
Test(nccl_library, is_found_in_packages_of_python)
{
    static const char *const pythons[] = {"python3.9", "python3.10", "python3.12"};
    char root[] = "/tmp/phasor-nccl-XXXXXX", expected[200], found[PATH_MAX];
    cr_assert_not_null(mkdtemp(root));
    setenv("VIRTUAL_ENV", root, 1);
    for (int i = 0; i < 3; i++) {
        packages_make(root, pythons[i], NCCL_STUB);
        snprintf(expected, sizeof expected, "%s/lib/%s/site-packages/nvidia/nccl/lib/libnccl.so.2",
                 root, pythons[i]);
        cr_assert(nccl_library_in_packages(found));
        cr_assert_str_eq(found, expected);
    }
    tree_remove(root);
}
