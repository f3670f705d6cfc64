/* The stub of NCCL itself: it brings what is sent, no sooner than NCCL would, and each planted bug
 * of a caller is found. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/nccl_library.h"
#include "nccl_tools.h"
#include "simt_control.h"

TestSuite(nccl_stub, .timeout = 60);

/* Two communicators of two GPUs each, one thread. */
#define GPUS  2
#define COMMS 2
#define COUNT 40

struct scene {
    const struct nccl_library *nccl;
    struct nccl_comm *comms[COMMS][GPUS];
    cudaStream_t streams[GPUS];
    unsigned char *memory[GPUS]; /* pinned: COUNT bytes to send, COUNT to receive */
};

static void ok(int result)
{
    cr_assert(result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS, "%d", result);
}

/* How often it was asked until it was ready; 1000: it never is. */
static int polls_of(const struct scene *scene, struct nccl_comm *comm)
{
    int state = NCCL_IN_PROGRESS, polls = 0;
    while (state == NCCL_IN_PROGRESS && polls++ < 1000)
        ok(scene->nccl->async_error(comm, &state));
    cr_assert(state == NCCL_SUCCESS || state == NCCL_IN_PROGRESS, "%d", state);
    return polls;
}

static void comm_open(struct scene *scene, int which)
{
    struct nccl_config config = {sizeof config, NCCL_CONFIG_MAGIC, NCCL_CONFIG_VERSION, 0};
    struct nccl_id id;
    ok(scene->nccl->get_id(&id));
    ok(scene->nccl->group_start());
    for (int g = 0; g < GPUS; g++) {
        cr_assert_eq(cudaSetDevice(g), cudaSuccess);
        ok(scene->nccl->init(&scene->comms[which][g], GPUS, id, g, &config));
    }
    ok(scene->nccl->group_end());
    for (int g = 0; g < GPUS; g++)
        cr_assert_gt(polls_of(scene, scene->comms[which][g]), 1);
}

/* What GPU `from` has is sent to the other; -1: `bytes` received there. */
static void post(const struct scene *scene, int which, int gpu, bool is_send, size_t bytes)
{
    struct nccl_comm *comm = scene->comms[which][gpu];
    void *stream = scene->streams[gpu];
    ok(scene->nccl->group_start());
    if (is_send)
        ok(scene->nccl->send(scene->memory[gpu], bytes, NCCL_INT8, 1 - gpu, comm, stream));
    else
        ok(scene->nccl->receive(scene->memory[gpu] + COUNT, bytes, NCCL_INT8, 1 - gpu, comm,
                                stream));
    ok(scene->nccl->group_end());
}

static void launch(const struct scene *scene, int which, int gpu, bool is_send, size_t bytes)
{
    post(scene, which, gpu, is_send, bytes);
    polls_of(scene, scene->comms[which][gpu]);
}

/* A byte from each to the other: what is launched later needs no peer. */
static void connect_members(const struct scene *scene, int which)
{
    for (int gpu = 0; gpu < GPUS; gpu++) {
        post(scene, which, gpu, true, 1);
        post(scene, which, 1 - gpu, false, 1);
        polls_of(scene, scene->comms[which][0]);
        polls_of(scene, scene->comms[which][1]);
    }
}

static void finish(const struct scene *scene)
{
    for (int g = 0; g < GPUS; g++)
        cr_assert_eq(cudaStreamSynchronize(scene->streams[g]), cudaSuccess);
}

static struct scene scene_open(void)
{
    struct scene scene;
    struct error err;
    cr_assert_eq(nccl_library_get(&scene.nccl, &err), STATUS_OK, "%s", err.message);
    simt_device_count_set(GPUS);
    for (int g = 0; g < GPUS; g++) {
        cr_assert_eq(cudaSetDevice(g), cudaSuccess);
        cr_assert_eq(cudaStreamCreateWithPriority(&scene.streams[g], cudaStreamNonBlocking, 0),
                     cudaSuccess);
        cr_assert_eq(cudaMallocHost((void **)&scene.memory[g], 2 * COUNT), cudaSuccess);
        memset(scene.memory[g], 10 + g, COUNT);
        memset(scene.memory[g] + COUNT, 0, COUNT);
    }
    for (int c = 0; c < COMMS; c++) {
        comm_open(&scene, c);
        connect_members(&scene, c);
    }
    finish(&scene);
    for (int g = 0; g < GPUS; g++)
        memset(scene.memory[g] + COUNT, 0, COUNT);
    return scene;
}

/* Nothing is on the streams that has not run. */
static void scene_close(const struct scene *scene)
{
    for (int g = 0; g < GPUS; g++) {
        cr_assert_eq(cudaStreamDestroy(scene->streams[g]), cudaSuccess);
        cr_assert_eq(cudaFreeHost(scene->memory[g]), cudaSuccess);
    }
}

/* ---- What is right --------------------------------------------------------------------------- */

Test(nccl_stub, brings_what_is_sent)
{
    for (uint64_t seed = 0; seed < 5; seed++) {
        struct scene scene = scene_open();
        simt_stream_seed_set(seed);
        launch(&scene, 0, 0, true, COUNT);
        launch(&scene, 0, 1, false, COUNT);
        launch(&scene, 1, 1, true, 7);
        launch(&scene, 1, 0, false, 7);
        finish(&scene);
        cr_assert_eq(scene.memory[1][COUNT], 10);
        cr_assert_eq(scene.memory[1][2 * COUNT - 1], 10);
        cr_assert_eq(scene.memory[0][COUNT + 6], 11);
        cr_assert_eq(scene.memory[0][COUNT + 7], 0);
        scene_close(&scene);
    }
}

static void gather(const struct scene *scene, int gpu, bool in_place)
{
    unsigned char *memory = scene->memory[gpu];
    ok(scene->nccl->group_start());
    ok(scene->nccl->all_gather(in_place ? memory + COUNT + 5 * gpu : memory, memory + COUNT, 5,
                               NCCL_INT8, scene->comms[0][gpu], scene->streams[gpu]));
    ok(scene->nccl->group_end());
    polls_of(scene, scene->comms[0][gpu]);
}

Test(nccl_stub, gathers)
{
    for (int in_place = 0; in_place < 2; in_place++) {
        struct scene scene = scene_open();
        for (int g = 0; g < GPUS; g++) {
            memset(scene.memory[g] + COUNT + 5 * g, in_place ? 10 + g : 0, 5);
            gather(&scene, g, in_place != 0);
        }
        finish(&scene);
        for (int g = 0; g < GPUS; g++)
            cr_assert_arr_eq(scene.memory[g] + COUNT,
                             ((unsigned char[]){10, 10, 10, 10, 10, 11, 11, 11, 11, 11, 0}), 11);
        scene_close(&scene);
    }
}

/* What is put on a stream while a launch is in progress runs before it. */
Test(nccl_stub, launches_later)
{
    struct scene scene = scene_open();
    post(&scene, 0, 0, true, COUNT);
    cr_assert_eq(cudaMemcpyAsync(scene.memory[0], scene.memory[1], COUNT, cudaMemcpyDefault,
                                 scene.streams[0]),
                 cudaSuccess);
    cr_assert_eq(polls_of(&scene, scene.comms[0][0]), 3);
    launch(&scene, 0, 1, false, COUNT);
    finish(&scene);
    cr_assert_eq(scene.memory[1][COUNT], 11);
    scene_close(&scene);
}

/* The first launch between two members takes both. */
Test(nccl_stub, connects_when_both_have_come)
{
    struct scene scene = scene_open();
    comm_open(&scene, 0);
    post(&scene, 0, 0, true, COUNT);
    cr_assert_gt(polls_of(&scene, scene.comms[0][0]), 1000);
    launch(&scene, 0, 1, false, COUNT);
    cr_assert_eq(polls_of(&scene, scene.comms[0][0]), 1);
    finish(&scene);
    cr_assert_eq(scene.memory[1][COUNT], 10);
    scene_close(&scene);
}

/* Until it is aborted: then what is behind it runs. */
Test(nccl_stub, waits_for_a_peer_that_does_not_come)
{
    struct scene scene = scene_open();
    launch(&scene, 0, 1, false, COUNT);
    cr_assert_eq(cudaMemcpyAsync(scene.memory[1] + COUNT, scene.memory[1], 1, cudaMemcpyDefault,
                                 scene.streams[1]),
                 cudaSuccess);
    simt_lock();
    while (simt_step())
        ;
    simt_unlock();
    cr_assert_eq(scene.memory[1][COUNT], 0);
    cr_assert_eq(scene.nccl->abort(scene.comms[0][1]), NCCL_SUCCESS);
    finish(&scene);
    cr_assert_eq(scene.memory[1][COUNT], 11);
    cr_assert_eq(scene.memory[1][COUNT + 1], 0);
    cr_assert_eq(stub()->live_count(), COMMS * GPUS - 1);
    scene_close(&scene);
}

Test(nccl_stub, one_operation_is_on_a_gpu)
{
    struct scene scene = scene_open();
    cudaStream_t first = scene.streams[1], beside;
    cr_assert_eq(cudaSetDevice(1), cudaSuccess);
    cr_assert_eq(cudaStreamCreateWithPriority(&beside, cudaStreamNonBlocking, 0), cudaSuccess);
    launch(&scene, 0, 1, false, COUNT);
    scene.streams[1] = beside;
    launch(&scene, 1, 1, false, COUNT);
    simt_lock();
    while (simt_step())
        ;
    simt_unlock();
    launch(&scene, 0, 0, true, COUNT); /* before this has come, that of 1 has not begun */
    launch(&scene, 1, 0, true, COUNT);
    finish(&scene);
    cr_assert_eq(scene.memory[1][COUNT], 10);
    cr_assert_eq(cudaStreamDestroy(first), cudaSuccess);
    scene_close(&scene);
}

Test(nccl_stub, refuses_a_gpu_twice)
{
    struct scene scene = scene_open();
    struct nccl_config config = {sizeof config, NCCL_CONFIG_MAGIC, NCCL_CONFIG_VERSION, 0};
    struct nccl_comm *comms[2];
    struct nccl_id id;
    int state;
    ok(scene.nccl->get_id(&id));
    for (int m = 0; m < 2; m++)
        ok(scene.nccl->init(&comms[m], 2, id, m, &config));
    ok(scene.nccl->async_error(comms[1], &state));
    cr_assert_eq(state, 5);
    scene_close(&scene);
}

/* ---- What is planted ------------------------------------------------------------------------- */

static void counts_that_differ(struct scene *scene)
{
    launch(scene, 0, 0, true, COUNT);
    launch(scene, 0, 1, false, COUNT - 1);
}

static void orders_that_differ(struct scene *scene)
{
    launch(scene, 0, 0, true, COUNT);
    launch(scene, 1, 0, true, COUNT);
    launch(scene, 1, 1, false, COUNT);
    launch(scene, 0, 1, false, COUNT);
}

static void memory_that_overlaps(struct scene *scene)
{
    struct nccl_comm *comm = scene->comms[0][0];
    ok(scene->nccl->group_start());
    ok(scene->nccl->send(scene->memory[0], 9, NCCL_INT8, 1, comm, scene->streams[0]));
    ok(scene->nccl->receive(scene->memory[0] + 8, 9, NCCL_INT8, 1, comm, scene->streams[0]));
    ok(scene->nccl->group_end());
    polls_of(scene, comm);
}

static void use_after_abort(struct scene *scene)
{
    ok(scene->nccl->abort(scene->comms[0][0]));
    post(scene, 0, 0, true, COUNT);
}

static void use_in_progress(struct scene *scene)
{
    post(scene, 0, 0, true, COUNT);
    post(scene, 0, 0, true, COUNT);
}

static void use_without_group(struct scene *scene)
{
    ok(scene->nccl->send(scene->memory[0], 9, NCCL_INT8, 1, scene->comms[0][0], scene->streams[0]));
}

static void stream_of_another(struct scene *scene)
{
    scene->streams[0] = scene->streams[1];
    launch(scene, 0, 0, true, COUNT);
}

static void gather_that_overlaps(struct scene *scene)
{
    ok(scene->nccl->group_start());
    ok(scene->nccl->all_gather(scene->memory[0] + 1, scene->memory[0], 5, NCCL_INT8,
                               scene->comms[0][0], scene->streams[0]));
}

static void gather_that_is_sent(struct scene *scene)
{
    gather(scene, 0, false);
    launch(scene, 0, 1, false, 5);
}

static void end_while_it_runs(struct scene *scene)
{
    launch(scene, 0, 0, true, COUNT);
    ok(scene->nccl->finalize(scene->comms[0][0]));
    ok(scene->nccl->destroy(scene->comms[0][0]));
}

static void end_that_was_not_asked(struct scene *scene)
{
    ok(scene->nccl->destroy(scene->comms[0][0]));
}

static const struct planted {
    const char *name;
    void (*run)(struct scene *scene);
    const char *sentence;
} planted[] = {
    {"counts", counts_that_differ, "member 1 receives 39 bytes, member 0 sends 40"},
    {"orders", orders_that_differ,
     "cuda:1 launches communicator 2 where cuda:0 has launched "
     "communicator 1: they wait for each other for ever"},
    {"overlap", memory_that_overlaps, "what is received overlaps what is sent"},
    {"after abort", use_after_abort, "ncclSend of a handle that is no communicator any more"},
    {"in progress", use_in_progress, "ncclSend of communicator 1, member 0, which is not ready"},
    {"no group", use_without_group, "ncclSend outside of a group"},
    {"stream", stream_of_another, "its stream is cuda:1's, and it is cuda:0's"},
    {"gather", gather_that_overlaps, "neither in place nor apart"},
    {"kinds", gather_that_is_sent, "member 1 receives 5 bytes, member 0 sends 5 of an all-gather"},
    {"end", end_while_it_runs, "destroyed while it runs"},
    {"end, not asked", end_that_was_not_asked, "destroyed before it was finalized"},
};

/* In a process of its own, which has to end by itself. */
static void planted_run(const struct planted *plant)
{
    char said[1000] = "";
    int pipes[2], status;
    size_t length = 0;
    ssize_t got = 1;
    cr_assert_eq(pipe(pipes), 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        dup2(pipes[1], STDERR_FILENO);
        struct scene scene = scene_open();
        plant->run(&scene);
        _exit(0);
    }
    close(pipes[1]);
    while (got > 0 && length < sizeof said - 1) {
        got = read(pipes[0], said + length, sizeof said - 1 - length);
        length += got > 0 ? (size_t)got : 0;
    }
    close(pipes[0]);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, "%s: not found: %s", plant->name,
              said);
    cr_assert_not_null(strstr(said, plant->sentence), "%s: %s", plant->name, said);
}

Test(nccl_stub, finds_what_is_planted)
{
    for (size_t i = 0; i < sizeof planted / sizeof planted[0]; i++)
        planted_run(&planted[i]);
}
