/* Aborts of NCCL's that do not return: nobody waits for them longer than for some seconds. */
#include <criterion/criterion.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/system.h"
#include "comm_tools.h"
#include "leaks.h"
#include "nccl_tools.h"

TestSuite(nccl_abort, .timeout = 60);

#define RANKS 3
#define BYTES 64

struct scene {
    struct box *box;
    struct comm *comms[RANKS];
    int warning_count;
    char warning[1000];
};

static void warn(void *context, enum log_level level, const char *message)
{
    struct scene *scene = context;
    if (level != LOG_WARNING)
        return;
    scene->warning_count++;
    snprintf(scene->warning, sizeof scene->warning, "%s", message);
}

static void box_open_telling(struct scene *scene, double patience)
{
    struct log_sink log = {.write = warn, .context = scene};
    struct error err;
    cr_assert_eq(nccl_box_open(&scene->box, RANKS, patience, &log, &err), STATUS_OK, "%s",
                 err.message);
}

static enum status gather_rank(void *context, int rank, struct error *err)
{
    static const int64_t counts[RANKS] = {BYTES, BYTES, BYTES};
    const struct scene *scene = context;
    struct device *device = box_device(scene->box, rank);
    char *out;
    TRY(device->ops->memory_get(device, (void **)&out, RANKS * BYTES, "a test", err));
    comm_all_gather(scene->comms[rank], device->stream,
                    &(struct comm_all_gather){out, out + (ptrdiff_t)rank * BYTES, counts, 0});
    enum status status = device->ops->synchronize(device->stream, err);
    device->ops->memory_free(device, out);
    return status;
}

/* Who aborts goes on when it does. */
static void let_go(void)
{
    uint64_t held = memory_counters_get().live_count;
    stub()->hang_abort_at(0);
    while (memory_counters_get().live_count == held)
        usleep(1000);
}

/* The run ends all the same, with its cause, and all that it has can be destroyed. */
Test(nccl_abort, that_hangs_is_left)
{
    struct scene scene = {.warning_count = 0};
    struct box *box;
    struct error err;
    leaks_expected(true);
    stub()->polls_set(0);
    box_open_telling(&scene, 0.2);
    test_comm_create(scene.comms, scene.box, RANKS);
    stub()->lose_at(1, 0);
    stub()->hang_abort_at(2);
    double start = system_seconds();
    enum status status = box_run(scene.box, gather_rank, &scene, &err);
    leaks_expected(false);
    cr_assert_eq(status, STATUS_INTERNAL);
    cr_expect_not_null(strstr(err.message, "was launched by NCCL and does not end"), "%s",
                       err.message);
    test_comms_destroy(scene.comms, RANKS);
    box_close(scene.box);
    cr_expect_lt(system_seconds() - start, 15);
    cr_expect_eq(scene.warning_count, 1);
    cr_expect_eq(strncmp(scene.warning, err.message, strlen(err.message)), 0, "%s", scene.warning);
    cr_expect_not_null(strstr(scene.warning, "; NCCL has not aborted the communicator of rank "));
    cr_expect_not_null(
        strstr(scene.warning, "after 4 seconds: what GPUs have is not freed any more"));
    cr_assert_eq(nccl_box_open(&box, RANKS, FOREVER, NULL, &err), STATUS_IO);
    cr_expect_str_eq(err.message,
                     "cuda:0 cannot be used: a GPU hangs in this process; start another one");
    let_go();
}

/* Of a communicator that does not come to be, and that nobody watches yet. */
Test(nccl_abort, that_hangs_is_left_before_there_is_a_communicator)
{
    struct scene scene = {.warning_count = 0};
    struct error err;
    leaks_expected(true);
    box_open_telling(&scene, 0.01);
    stub()->polls_set(INT_MAX);
    stub()->hang_abort_at(1);
    enum status status =
        comm_create(scene.comms, box_domain(scene.box), (int[]){0, 1, 2}, RANKS, &err);
    leaks_expected(false);
    cr_assert_eq(status, STATUS_IO);
    cr_expect_not_null(strstr(err.message, "NCCL cannot join ranks 0-2"), "%s", err.message);
    cr_expect_eq(scene.warning_count, 1);
    cr_expect_eq(strncmp(scene.warning, "NCCL has not aborted the communicator of rank ", 46), 0,
                 "%s", scene.warning);
    box_close(scene.box);
    let_go();
}
