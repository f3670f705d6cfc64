/* How copies between GPUs go: directly, unless the machine or its user says that they cannot. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm_tools.h"
#include "device_bytes.h"
#include "simt_control.h"

TestSuite(gpus, .timeout = 60);

struct gather {
    struct box *box;
    struct comm *comms[3];
    char text[2000]; /* what the log was told */
};

static void tell(void *context, enum log_level level, const char *message)
{
    struct gather *gather = context;
    size_t length = strlen(gather->text);
    cr_assert_eq(level, LOG_INFO);
    snprintf(gather->text + length, sizeof gather->text - length, "%s\n", message);
}

static enum status gather_rank(void *context, int rank, struct error *err)
{
    static const int64_t counts[3] = {100, 100, 100};
    struct gather *gather = context;
    struct device *device = box_device(gather->box, rank);
    char *out, seen[300];
    TRY(device->ops->memory_get(device, (void **)&out, 300, "a test", err));
    memset(seen, 'a' + rank, sizeof seen);
    device_write(device, out, seen, sizeof seen);
    comm_all_gather(gather->comms[rank], device->stream,
                    &(struct comm_all_gather){out, out + (ptrdiff_t)100 * rank, counts, 0});
    TRY(device->ops->synchronize(device->stream, err));
    device_read(device, seen, out, sizeof seen);
    if (seen[0] != 'a' || seen[199] != 'b' || seen[299] != 'c')
        return error_set(err, STATUS_INTERNAL, "rank %d", rank);
    device->ops->memory_free(device, out);
    return STATUS_OK;
}

#define SENTENCE                                                                                   \
    "copies between GPUs go through the host: NCCL_P2P_DISABLE or NCCL_P2P_LEVEL says so\n"

/* Twice, as what was allowed once stays so. */
static void check_copies(bool are_direct, bool is_said)
{
    for (int again = 0; again < 2; again++) {
        struct gather gather = {.text = ""};
        struct error err;
        uint64_t all = simt_peer_bytes(), direct = simt_direct_bytes();
        struct box_params params = {
            .rank_count = 3, .gpus = (int[]){0, 1, 2}, .log = {.write = tell, .context = &gather}};
        simt_device_count_set(3);
        cr_assert_eq(box_open(&gather.box, &params, &err), STATUS_OK, "%s", err.message);
        test_comm_create(gather.comms, gather.box, 3);
        test_box_run(gather.box, gather_rank, &gather);
        cr_assert_eq(simt_peer_bytes() - all, 600);
        cr_assert_eq(simt_direct_bytes() - direct, are_direct ? 600 : 0);
        cr_assert_eq(strncmp(gather.text, SENTENCE, strlen(SENTENCE)) == 0, is_said, "%s",
                     gather.text);
        test_comms_destroy(gather.comms, 3);
        box_close(gather.box);
    }
}

Test(gpus, copies_go_directly)
{
    check_copies(true, false);
}

Test(gpus, that_cannot_reach_each_other)
{
    simt_peer_access_set(false);
    check_copies(false, false);
}

Test(gpus, direct_copies_may_be_forbidden)
{
    setenv("NCCL_P2P_DISABLE", "1", 1);
    check_copies(false, true);
}

Test(gpus, direct_copies_may_be_forbidden_by_level)
{
    static const char *const levels[] = {"LOC", "0", "NVL", "PHB", "4"};
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        setenv("NCCL_P2P_LEVEL", levels[i], 1);
        check_copies(false, true);
    }
}

Test(gpus, direct_copies_that_are_not_forbidden)
{
    setenv("NCCL_P2P_DISABLE", "0", 1);
    setenv("NCCL_P2P_LEVEL", "SYS", 1);
    check_copies(true, false);
}

/* Nothing is left of a box that does not open. */
Test(gpus, each_call_of_opening_may_fail)
{
    struct box *box = NULL;
    struct error err;
    struct box_params params = {.rank_count = 3, .gpus = (int[]){0, 1, 2}};
    enum status status = STATUS_IO;
    simt_device_count_set(3);
    for (int n = 1; status != STATUS_OK; n++) {
        simt_fail_at((uint64_t)n, cudaErrorUnknown);
        status = box_open(&box, &params, &err);
        simt_fail_at(0, cudaSuccess);
        cr_assert(status == STATUS_OK || simt_live_count() == 0, "at %d", n);
    }
    box_close(box);
}
