/* That the turns prove what they are for: after a collective, each rank has its own memory and no
 * other. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm_tools.h"
#include "turns.h"

struct touch {
    struct box *box;
    struct comm *comms[2];
    unsigned char *blocks[2];
    int touched; /* whose memory rank 1 reads and writes after the collective */
};

static enum status touch_run(void *argument, struct error *err)
{
    (void)err;
    (**(volatile unsigned char **)argument)++;
    return STATUS_OK;
}

static enum status touch_rank(void *context, int rank, struct error *err)
{
    static const int64_t counts[2] = {1, 1};
    struct touch *touch = context;
    struct device *device = box_device(touch->box, rank);
    unsigned char *out = touch->blocks[rank];
    if (rank == 0)
        sleep_microseconds(50000); /* comes last and copies first, so that rank 1 touches at once */
    comm_all_gather(touch->comms[rank], device->stream,
                    &(struct comm_all_gather){out, out + rank, counts, 0});
    if (rank == 1)
        device->ops->call(device->stream, touch_run, &touch->blocks[touch->touched],
                          sizeof touch->blocks[0]);
    return device->ops->synchronize(device->stream, err);
}

static void touching_child(int touched)
{
    struct touch touch = {.touched = touched};
    struct error err;
    const struct backend *backend = &backends[backend_count - 1];
    if (backend->open(&touch.box, 2, FOREVER, &err) != STATUS_OK)
        _exit(7);
    test_comm_create(touch.comms, touch.box, 2);
    for (int r = 0; r < 2; r++) {
        struct device *device = box_device(touch.box, r);
        if (device->ops->memory_get(device, (void **)&touch.blocks[r], 2, "a block", &err) !=
            STATUS_OK)
            _exit(7);
    }
    _exit(box_run(touch.box, touch_rank, &touch, &err) == STATUS_OK ? 0 : 7);
}

/* How a process ends in which rank 1 touches a block. */
static int state_after_touching(int touched)
{
    int state = -1;
    pid_t child = fork();
    if (child == 0) {
        /* The sanitizers' report of a death that is wanted would look like a failure. */
        if (touched == 0 && freopen("/dev/null", "w", stderr) == NULL)
            _exit(7);
        touching_child(touched);
    }
    waitpid(child, &state, 0);
    return state;
}

Test(turns, let_a_rank_touch_its_own)
{
    int state = state_after_touching(1);
    cr_assert(WIFEXITED(state) && WEXITSTATUS(state) == 0, "state %x", (unsigned)state);
}

Test(turns, kill_who_touches_what_is_not_its_own)
{
    int state = state_after_touching(0);
    cr_assert(WIFSIGNALED(state) || WEXITSTATUS(state) != 7, "state %x", (unsigned)state);
    cr_assert_neq(state, 0);
}
