/* Who waits for a rank that does not come, that fails or that is only slow. The clock stands:
 * nobody is late before time passes, and where none does all waiting is ended by something else. */
#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/system.h"
#include "clock.h"
#include "comm_tools.h"
#include "patience.h"

#define RANKS 4

/* A scene: what each rank does, on communicators that were made for it. */
struct scene {
    struct box *box;
    struct comm *all[RANKS]; /* every rank */
    struct comm *low[2];     /* ranks 0 and 1 */
    struct comm *middle[2];  /* ranks 1 and 2 */
    char out[RANKS][RANKS];
    struct error said[RANKS]; /* what the rank's stream reported */
    double seconds;           /* how long the run took, by the clock that stands */
    atomic_bool has_lingered; /* only_3_looks */
};

static void scene_open(struct scene *scene, double patience_seconds)
{
    struct error err;
    clock_hold();
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

/* Those whom the others wait for: they let time pass when `ranks` (a bit each) wait. */
static void patience_ends(struct scene *scene, unsigned ranks)
{
    until_ranks_wait(box_domain(scene->box), ranks);
    time_passes_to_the_end(box_domain(scene->box));
}

static enum status two_without_2(void *context, int rank, struct error *err)
{
    struct scene *scene = context;
    meet(scene, scene->all[rank], rank, 0);
    if (rank != 2) {
        meet(scene, scene->all[rank], rank, 1);
        return finish(scene, rank, err);
    }
    TRY(finish(scene, rank, err));
    patience_ends(scene, 0xB);
    return STATUS_OK;
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
    if (rank == 3)
        patience_ends(context, 0x1);
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
Test(failures, patience_is_ten_seconds)
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
    if (rank == 3)
        patience_ends(scene, 0x3);
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
    if (rank == 3)
        patience_ends(scene, 0x3);
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
    until_ranks_wait(box_domain(scene->box), 0x7);
    error_set(&cause, STATUS_CANCELLED, "stopped on request");
    comm_domain_abort(box_domain(scene->box), rank, &cause);
    error_set(&cause, STATUS_IO, "a later failure");
    comm_domain_abort(box_domain(scene->box), 0, &cause);
    return STATUS_OK;
}

Test(failures, an_abort_ends_the_waiting)
{
    struct scene scene;
    scene_open(&scene, 0);
    scene_must_say(&scene, abort_by_3, STATUS_CANCELLED, "rank 3: stopped on request", 0x7);
    scene_close(&scene);
}

/* The host of rank 1 is elsewhere when its stream fails, and stays there until the run has ended.
 */
static void stay_away(struct scene *scene)
{
    while (comm_domain_failure(box_domain(scene->box), NULL) == STATUS_OK)
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
    atomic_int runs = 0; /* of a box that is of no more use */
    cr_assert_eq(box_run(scene.box, count_run, &runs, &err), STATUS_NOT_FOUND);
    cr_assert_str_eq(err.message, "rank 2: no such file");
    cr_assert_eq(runs, 0);
    scene_close(&scene);
}

/* The others return without a word, their collectives still wait: the run must not leave them
 * behind, for their memory goes now. */
static enum status linger_run(void *argument, struct error *err)
{
    struct scene *scene = *(struct scene **)argument;
    (void)err;
    while (comm_domain_failure(box_domain(scene->box), NULL) == STATUS_OK)
        sleep_microseconds(1000);
    sleep_microseconds(100000);
    atomic_store(&scene->has_lingered, true);
    return STATUS_OK;
}

static enum status only_3_looks(void *context, int rank, struct error *err)
{
    struct scene *scene = context;
    struct device *device = box_device(scene->box, rank);
    if (rank == 0)
        device->ops->call(device->stream, linger_run, &scene, sizeof scene);
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
    cr_assert(atomic_load(&scene.has_lingered), "rank 0's stream was not waited for");
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
static enum status piece_run(void *argument, struct error *err)
{
    (void)err;
    time_passes(*(struct comm_domain **)argument, 0.2);
    return STATUS_OK;
}

static enum status slow_1(void *context, int rank, struct error *err)
{
    struct scene *scene = context;
    struct device *device = box_device(scene->box, rank);
    struct comm_domain *domain = box_domain(scene->box);
    for (int i = 0; rank == 1 && i < 15; i++)
        device->ops->call(device->stream, piece_run, &domain, sizeof domain);
    meet(scene, scene->all[rank], rank, 0);
    return finish(scene, rank, err);
}

Test(failures, a_slow_rank_is_waited_for)
{
    struct scene scene;
    struct error err;
    scene_open(&scene, 0.6);
    cr_assert_eq(scene_run(&scene, slow_1, &err), STATUS_OK, "%s", err.message);
    cr_assert_gt(scene.seconds, 2.9);
    scene_close(&scene);
}

/* Rank 1 waits for somebody who is none of the box's, five times as long as the patience. */
static enum status away_1(void *context, int rank, struct error *err)
{
    struct scene *scene = context;
    struct comm_domain *domain = box_domain(scene->box);
    if (rank == 1) {
        comm_domain_set_away(domain, true);
        time_passes(domain, 3);
        comm_domain_set_away(domain, false);
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
    cr_assert_gt(scene.seconds, 2.9);
    scene_close(&scene);
}

/* The clock goes on while a process is stopped, and those who wait look before and behind. */
static enum status stopped_with_1_away(void *context, int rank, struct error *err)
{
    struct scene *scene = context;
    struct comm_domain *domain = box_domain(scene->box);
    if (rank == 1) {
        until_ranks_wait(domain, 0xD);
        for (int i = 0; i < 4; i++) {
            clock_advance(i == 2 ? 1000 : 0);
            time_passes(domain, 0.01);
        }
    }
    meet(scene, scene->all[rank], rank, 0);
    return finish(scene, rank, err);
}

/* Whoever stops the whole process and lets it go on has taken no patience from it. */
Test(failures, a_stopped_process_is_not_late)
{
    struct scene scene;
    struct error err;
    scene_open(&scene, 0.6);
    cr_assert_eq(scene_run(&scene, stopped_with_1_away, &err), STATUS_OK, "%s", err.message);
    scene_close(&scene);
}
