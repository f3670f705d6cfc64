/* Who waits for a rank that does not come, that fails or that is only slow. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/system.h"
#include "comm_tools.h"

#define RANKS 4

/* A scene: what each rank does, on communicators that were made for it. */
struct scene {
    struct box *box;
    struct comm *all[RANKS]; /* every rank */
    struct comm *low[2];     /* ranks 0 and 1 */
    struct comm *middle[2];  /* ranks 1 and 2 */
    char out[RANKS][RANKS];
    struct error said[RANKS]; /* what the rank's stream reported */
    double seconds;           /* how long the run took */
};

static void scene_open(struct scene *scene, double patience_seconds)
{
    struct error err;
    *scene = (struct scene){.box = test_box_open(RANKS, patience_seconds)};
    test_comm_create(scene->all, scene->box, RANKS);
    test_comm_create(scene->low, scene->box, 2);
    cr_assert_eq(comm_create(scene->middle, box_domain(scene->box), (int[]){1, 2}, 2, &err), 0);
}

static void scene_close(struct scene *scene)
{
    test_comms_destroy(scene->all, RANKS);
    test_comms_destroy(scene->low, 2);
    test_comms_destroy(scene->middle, 2);
    box_close(scene->box);
}

static enum status scene_run(struct scene *scene,
                             enum status (*work)(void *context, int rank, struct error *err),
                             struct error *err)
{
    double start = system_seconds();
    enum status status = box_run(scene->box, work, scene, err);
    scene->seconds = system_seconds() - start;
    return status;
}

/* A byte from each member to all. */
static void meet(struct scene *scene, struct comm *comm, int rank, int tag)
{
    static const int64_t counts[RANKS] = {1, 1, 1, 1};
    char *out = scene->out[rank];
    comm_all_gather(comm, box_device(scene->box, rank)->stream,
                    &(struct comm_all_gather){out, out + comm_member(comm), counts, tag});
}

static enum status finish(struct scene *scene, int rank, struct error *err)
{
    struct device *device = box_device(scene->box, rank);
    enum status status = device->ops->synchronize(device->stream, err);
    scene->said[rank].status = status;
    if (status != STATUS_OK)
        scene->said[rank] = *err;
    return status;
}

static enum status injected(void *argument, struct error *err)
{
    (void)argument;
    return error_set(err, STATUS_IO, "injected");
}

/* Runs `work`, which ends with `sentence`, and at every rank of `reported` (a bit each). */
static void scene_must_say(struct scene *scene,
                           enum status (*work)(void *context, int rank, struct error *err),
                           enum status expected, const char *sentence, unsigned reported)
{
    struct error err, again;
    cr_assert_eq(scene_run(scene, work, &err), expected, "%s", err.message);
    cr_assert_str_eq(err.message, sentence, "%s", err.message);
    for (int r = 0; r < RANKS; r++) {
        if (reported >> r & 1)
            cr_assert_str_eq(scene->said[r].message, sentence, "rank %d", r);
    }
    cr_assert_eq(comm_domain_failure(box_domain(scene->box), &again), expected);
    cr_assert_str_eq(again.message, sentence);
}

/* ---- A rank that does not come ----------------------------------------------------------------
 */

static enum status two_without_2(void *context, int rank, struct error *err)
{
    meet(context, ((struct scene *)context)->all[rank], rank, 0);
    if (rank != 2)
        meet(context, ((struct scene *)context)->all[rank], rank, 1);
    return finish(context, rank, err);
}

Test(failures, a_rank_that_does_not_come_is_named)
{
    struct scene scene;
    scene_open(&scene, 0.3);
    scene_must_say(&scene, two_without_2, STATUS_INTERNAL,
                   "rank 2: has not come to all-gather number 2 of ranks 0-3 (tag \"ids\"), in "
                   "which ranks 0-1, 3 wait for it; no rank has moved for 0.3 seconds; it last "
                   "finished all-gather number 1 of ranks 0-3 (tag \"rows\")",
                   0xB);
    cr_assert(scene.seconds > 0.3 && scene.seconds < 5, "%g seconds", scene.seconds);
    scene_close(&scene);
}

static enum status only_0(void *context, int rank, struct error *err)
{
    if (rank == 0)
        meet(context, ((struct scene *)context)->all[rank], rank, 15);
    return finish(context, rank, err);
}

Test(failures, all_that_are_late_are_named)
{
    struct scene scene;
    scene_open(&scene, 0.3);
    scene_must_say(&scene, only_0, STATUS_INTERNAL,
                   "rank 1: has not come to all-gather number 1 of ranks 0-3 (tag 15), in which "
                   "rank 0 waits for it and for ranks 2-3; no rank has moved for 0.3 seconds; it "
                   "has been in no collective",
                   0x1);
    scene_close(&scene);
}

/* The promise to users: the end within 15 seconds where nothing is set. */
Test(failures, patience_is_ten_seconds, .timeout = 60)
{
    struct scene scene;
    struct error err;
    scene_open(&scene, 0);
    cr_assert_eq(scene_run(&scene, only_0, &err), STATUS_INTERNAL);
    cr_assert_not_null(strstr(err.message, "no rank has moved for 10 seconds"), "%s", err.message);
    cr_assert(scene.seconds >= 10 && scene.seconds < 15, "%g seconds", scene.seconds);
    scene_close(&scene);
}

/* 0 waits for 1, which waits for 2, which is not there. */
static enum status chain(void *context, int rank, struct error *err)
{
    struct scene *scene = context;
    if (rank == 1)
        meet(scene, scene->middle[0], rank, 1);
    if (rank <= 1)
        meet(scene, scene->low[rank], rank, 0);
    return finish(scene, rank, err);
}

Test(failures, behind_a_chain_of_waits_its_end_is_named)
{
    struct scene scene;
    scene_open(&scene, 0.3);
    scene_must_say(&scene, chain, STATUS_INTERNAL,
                   "rank 2: has not come to all-gather number 1 of ranks 1-2 (tag \"ids\"), in "
                   "which rank 1 waits for it; no rank has moved for 0.3 seconds; it has been in "
                   "no collective",
                   0x3);
    scene_close(&scene);
}

/* Two communicators in opposite orders: each waits for the other. */
static enum status ring(void *context, int rank, struct error *err)
{
    struct scene *scene = context;
    if (rank > 1)
        return STATUS_OK;
    meet(scene, rank == 0 ? scene->low[rank] : scene->all[rank], rank, rank);
    meet(scene, rank == 0 ? scene->all[rank] : scene->low[rank], rank, 1 - rank);
    return finish(scene, rank, err);
}

Test(failures, a_ring_of_waits_is_found)
{
    struct scene scene;
    struct error err;
    scene_open(&scene, 0.3);
    cr_assert_eq(scene_run(&scene, ring, &err), STATUS_INTERNAL);
    cr_assert_not_null(strstr(err.message, "all-gather number 1 of ranks 0-1 (tag \"rows\")"), "%s",
                       err.message);
    cr_assert_not_null(strstr(err.message, "all-gather number 1 of ranks 0-3 (tag \"ids\")"), "%s",
                       err.message);
    scene_close(&scene);
}

/* ---- Failures elsewhere -----------------------------------------------------------------------
 */

static enum status abort_by_3(void *context, int rank, struct error *err)
{
    struct scene *scene = context;
    struct error cause;
    if (rank != 3) {
        meet(scene, scene->all[rank], rank, 0);
        return finish(scene, rank, err);
    }
    sleep_microseconds(50000); /* the others sleep by now, or come to an end that is there */
    error_set(&cause, STATUS_CANCELLED, "stopped on request");
    comm_domain_abort(box_domain(scene->box), rank, &cause);
    error_set(&cause, STATUS_IO, "a later failure");
    comm_domain_abort(box_domain(scene->box), 0, &cause);
    return STATUS_OK;
}

Test(failures, an_abort_ends_the_waiting_at_once)
{
    struct scene scene;
    scene_open(&scene, 0);
    scene_must_say(&scene, abort_by_3, STATUS_CANCELLED, "rank 3: stopped on request", 0x7);
    cr_assert_lt(scene.seconds, 5);
    scene_close(&scene);
}

/* The host of rank 1 is elsewhere when its stream fails, and stays there until the run has ended.
 */
static void stay_away(struct scene *scene)
{
    double start = system_seconds();
    while (comm_domain_failure(box_domain(scene->box), NULL) == STATUS_OK &&
           system_seconds() - start < 5)
        sleep_microseconds(1000);
}

static enum status stream_of_1_fails(void *context, int rank, struct error *err)
{
    struct scene *scene = context;
    struct device *device = box_device(scene->box, rank);
    meet(scene, scene->all[rank], rank, 0);
    if (rank == 1)
        device->ops->call(device->stream, injected, NULL, 0);
    meet(scene, scene->all[rank], rank, 0);
    if (rank == 1)
        stay_away(scene);
    return finish(scene, rank, err);
}

Test(failures, a_stream_that_fails_ends_the_others)
{
    struct scene scene;
    struct error err;
    scene_open(&scene, 0);
    cr_assert_eq(scene_run(&scene, stream_of_1_fails, &err), STATUS_IO);
    cr_assert_str_eq(err.message, "rank 1: injected");
    cr_assert_str_eq(scene.said[1].message, "injected"); /* its own stream knows whose it is */
    cr_assert_str_eq(scene.said[0].message, "rank 1: injected");
    cr_assert_str_eq(scene.said[3].message, "rank 1: injected");
    cr_assert_lt(scene.seconds, 5);
    scene_close(&scene);
}

static enum status host_of_2_fails(void *context, int rank, struct error *err)
{
    struct scene *scene = context;
    if (rank == 2)
        return error_set(err, STATUS_NOT_FOUND, "rank 2: no such file");
    meet(scene, scene->all[rank], rank, 0);
    return finish(scene, rank, err);
}

static enum status count_run(void *context, int rank, struct error *err)
{
    (void)rank;
    (void)err;
    atomic_fetch_add((atomic_int *)context, 1);
    return STATUS_OK;
}

Test(failures, a_host_that_fails_ends_the_others)
{
    struct scene scene;
    struct error err;
    scene_open(&scene, 0);
    scene_must_say(&scene, host_of_2_fails, STATUS_NOT_FOUND, "rank 2: no such file", 0xB);
    cr_assert_lt(scene.seconds, 5);
    atomic_int runs = 0; /* of a box that is of no more use */
    cr_assert_eq(box_run(scene.box, count_run, &runs, &err), STATUS_NOT_FOUND);
    cr_assert_str_eq(err.message, "rank 2: no such file");
    cr_assert_eq(runs, 0);
    scene_close(&scene);
}

/* The others return without a word, their collectives still wait: the run must not leave them
 * behind, for their memory goes now. */
static enum status only_3_looks(void *context, int rank, struct error *err)
{
    struct scene *scene = context;
    if (rank == 0)
        stream_pause(scene->box, rank, 200000);
    if (rank != 3)
        meet(scene, scene->all[rank], rank, 0);
    return rank == 3 ? error_set(err, STATUS_IO, "no") : STATUS_OK;
}

Test(failures, a_run_that_fails_leaves_nothing_on_the_streams)
{
    struct scene scene;
    struct error err;
    scene_open(&scene, 0);
    cr_assert_eq(scene_run(&scene, only_3_looks, &err), STATUS_IO);
    cr_assert_gt(scene.seconds, 0.19); /* the pause of rank 0 was waited for */
    scene_close(&scene);
}

static enum status on_a_new_communicator(void *context, int rank, struct error *err)
{
    struct scene *scene = context;
    (void)err;
    meet(scene, scene->low[0], rank, 0);
    return STATUS_OK;
}

Test(failures, what_comes_after_the_end_fails_at_once)
{
    struct scene scene;
    struct comm *late[2];
    struct error err, cause = {.status = STATUS_IO, .message = "no"};
    scene_open(&scene, 0);
    comm_domain_abort(box_domain(scene.box), 1, &cause);
    test_comm_create(late, scene.box, 2);
    struct comm *kept = scene.low[0];
    scene.low[0] = late[0];
    cr_assert_eq(on_a_new_communicator(&scene, 0, &err), STATUS_OK);
    cr_assert_eq(finish(&scene, 0, &err), STATUS_IO);
    cr_assert_str_eq(err.message, "rank 1: no");
    scene.low[0] = kept;
    test_comms_destroy(late, 2);
    scene_close(&scene);
}

/* ---- Slow, but working ------------------------------------------------------------------------
 */

/* Rank 1 works five times as long as the patience, in pieces below it. */
static enum status slow_1(void *context, int rank, struct error *err)
{
    struct scene *scene = context;
    for (int i = 0; rank == 1 && i < 15; i++)
        stream_pause(scene->box, rank, 200000);
    meet(scene, scene->all[rank], rank, 0);
    return finish(scene, rank, err);
}

Test(failures, a_slow_rank_is_waited_for)
{
    struct scene scene;
    struct error err;
    scene_open(&scene, 0.6);
    cr_assert_eq(scene_run(&scene, slow_1, &err), STATUS_OK, "%s", err.message);
    cr_assert_gt(scene.seconds, 3);
    scene_close(&scene);
}

/* Rank 1 waits for somebody who is none of the box's, five times as long as the patience. */
static enum status away_1(void *context, int rank, struct error *err)
{
    struct scene *scene = context;
    if (rank == 1) {
        comm_domain_set_away(box_domain(scene->box), true);
        sleep_microseconds(3000000);
        comm_domain_set_away(box_domain(scene->box), false);
    }
    meet(scene, scene->all[rank], rank, 0);
    return finish(scene, rank, err);
}

Test(failures, who_asks_outside_the_box_is_waited_for)
{
    struct scene scene;
    struct error err;
    scene_open(&scene, 0.6);
    cr_assert_eq(scene_run(&scene, away_1, &err), STATUS_OK, "%s", err.message);
    cr_assert_gt(scene.seconds, 3);
    scene_close(&scene);
}

static void stopped_child(void)
{
    struct scene scene;
    struct error err;
    scene_open(&scene, 0.6);
    _exit(scene_run(&scene, slow_1, &err) == STATUS_OK ? 0 : 3);
}

/* Whoever stops the whole process and lets it go on has taken no patience from it. */
Test(failures, a_stopped_process_is_not_late)
{
    pid_t child = fork();
    if (child == 0)
        stopped_child();
    sleep_microseconds(500000);
    kill(child, SIGSTOP);
    sleep_microseconds(1500000);
    kill(child, SIGCONT);
    int state = -1;
    waitpid(child, &state, 0);
    cr_assert(WIFEXITED(state) && WEXITSTATUS(state) == 0, "state %x", (unsigned)state);
}
