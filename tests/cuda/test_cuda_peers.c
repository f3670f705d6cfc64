/* What a CUDA device offers to communicators: sums of several ranks' values on one GPU and on
 * several, and events that order the work of streams whose threads have gone on. */
#include <criterion/criterion.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "base/system.h"
#include "cuda_tools.h"
#include "device/peers.h"
#include "device_bytes.h"
#include "simt_control.h"

TestSuite(cuda_peers, .timeout = 300);

#define DEVICES_MAX 4

static struct device *gpu_open(int ordinal)
{
    struct device *device;
    struct error err;
    cr_assert_eq(device_cuda_create(&device, &(struct gpu_share){.ordinal = ordinal}, &err),
                 STATUS_OK, "%s", err.message);
    return device;
}

static void *memory_of(struct device *device, int64_t bytes)
{
    struct error err;
    void *out;
    cr_assert_eq(device->ops->memory_get(device, &out, (size_t)bytes, "a test", &err), STATUS_OK,
                 "%s", err.message);
    return out;
}

/* ---- Time ------------------------------------------------------------------------------------ */

struct pace {
    struct stream *stream;
    const struct peer_ops *peers;
    double seconds, delay_seconds;
};

static enum status pace_put(void *argument, struct error *err)
{
    const struct pace *pace = argument;
    TRY(pace->peers->pace_begin(pace->stream, pace->seconds, err));
    return pace->peers->pace_end(pace->stream, pace->delay_seconds, err);
}

static void pace_call(struct device *device, struct stream *stream, double seconds, double delay)
{
    const struct pace pace = {stream, device->ops->peers, seconds, delay};
    pace.peers->call(stream, pace_put, &pace, sizeof pace);
}

/* Twice on a stream: the second begins when the first has ended. */
Test(cuda_peers, a_stream_is_held_for_as_long_as_it_is_told)
{
    static const double seconds[][2] = {{0.02, 0}, {0, 0.02}, {0.01, 0.01}};
    struct device *device = gpu_open(0);
    struct error err;
    for (int i = 0; i < 3; i++) {
        double begin = system_seconds();
        pace_call(device, device->stream, seconds[i][0], seconds[i][1]);
        pace_call(device, device->stream, seconds[i][0], seconds[i][1]);
        cr_assert_eq(device->ops->synchronize(device->stream, &err), STATUS_OK, "%s", err.message);
        cr_expect_geq(system_seconds() - begin, 2 * 0.02, "%d", i);
    }
    device_destroy(device);
    cr_expect_eq(simt_live_count(), 0);
}

#define OVERLAP_SECONDS 0.15

struct overlap {
    struct stream *streams[2];
    const struct peer_ops *peers;
    struct event *event;
};

/* Both take the link before the first is held: by one thread, as nothing else is on either. */
static enum status overlap_put(void *argument, struct error *err)
{
    const struct overlap *two = argument;
    for (int s = 0; s < 2; s++)
        TRY(two->peers->pace_begin(two->streams[s], OVERLAP_SECONDS, err));
    TRY(two->peers->record(two->streams[1], two->event, err));
    TRY(two->peers->wait(two->streams[0], two->event, err));
    for (int s = 0; s < 2; s++)
        TRY(two->peers->pace_end(two->streams[s], 0, err));
    return STATUS_OK;
}

static void overlap_run(uint64_t seed)
{
    struct device *device = gpu_open(0);
    const struct device_ops *ops = device->ops;
    struct overlap two = {{device->stream, NULL}, ops->peers, NULL};
    struct error err;
    simt_stream_seed_set(seed);
    cr_assert_eq(ops->stream_create(device, &two.streams[1], STREAM_NORMAL, &err), STATUS_OK);
    cr_assert_eq(ops->event_create(device, &two.event, &err), STATUS_OK);
    double begin = gpu_seconds();
    ops->peers->call(device->stream, overlap_put, &two, sizeof two);
    for (int s = 0; s < 2; s++)
        cr_assert_eq(ops->synchronize(two.streams[s], &err), STATUS_OK, "%s", err.message);
    cr_expect_geq(gpu_seconds() - begin, 2 * OVERLAP_SECONDS - 1e-6, "seed %d", (int)seed);
    ops->event_destroy(device, two.event);
    ops->stream_destroy(device, two.streams[1]);
    device_destroy(device);
    cr_expect_eq(simt_live_count(), 0);
}

/* The device's link is taken by one stream after another, and is free for both at the start: before
 * either has seen it, which in few orders comes late. */
Test(cuda_peers, streams_take_a_link_in_turn)
{
    gpu_clock_use();
    for (uint64_t seed = 0; seed < 256; seed++)
        overlap_run(seed);
}

static enum status begin_put(void *argument, struct error *err)
{
    const struct pace *pace = argument;
    return pace->peers->pace_begin(pace->stream, pace->seconds, err);
}

static enum status end_put(void *argument, struct error *err)
{
    const struct pace *pace = argument;
    return pace->peers->pace_end(pace->stream, pace->delay_seconds, err);
}

static void put_and_wait(struct device *device, const struct pace *pace,
                         enum status (*put)(void *argument, struct error *err))
{
    struct error err;
    pace->peers->call(device->stream, put, pace, sizeof *pace);
    cr_assert_eq(device->ops->synchronize(device->stream, &err), STATUS_OK, "%s", err.message);
}

/* How long the clock has gone on for. */
static double end_seconds(struct device *device, const struct pace *pace)
{
    uint64_t before = simt_clock_nanoseconds();
    put_and_wait(device, pace, end_put);
    return (double)(simt_clock_nanoseconds() - before) * 1e-9;
}

/* By 100 seconds, before a collective and within one: as long as it had left, and its delay. */
Test(cuda_peers, a_clock_that_is_set_back_holds_nobody)
{
    struct device *device = gpu_open(0);
    const struct pace pace = {device->stream, device->ops->peers, 0.02, 0.01};
    simt_clock_by_naps();
    put_and_wait(device, &pace, begin_put);
    simt_clock_move(-100 * (int64_t)1000000000);
    double within = end_seconds(device, &pace);
    cr_expect_float_eq(within, 0.03, 1e-5, "%g", within);
    put_and_wait(device, &pace, begin_put);
    double behind = end_seconds(device, &pace);
    cr_expect_float_eq(behind, 0.03, 1e-5, "%g", behind);
    device_destroy(device);
}

/* What others have taken is not taken for a clock that was set back. */
Test(cuda_peers, a_link_may_be_taken_for_seconds)
{
    struct device *device = gpu_open(0);
    const struct pace first = {device->stream, device->ops->peers, 4.5, 0},
                      second = {device->stream, device->ops->peers, 1, 0};
    simt_clock_by_naps();
    put_and_wait(device, &first, begin_put);
    put_and_wait(device, &first, begin_put);
    put_and_wait(device, &second, begin_put);
    double seconds = end_seconds(device, &second);
    cr_expect_float_eq(seconds, 10, 1e-5, "%g", seconds);
    device_destroy(device);
}

/* What a link that could not be made leaves is nothing, and no link. */
Test(cuda_peers, each_call_for_a_link_may_fail)
{
    bool is_ahead = false;
    int n = 1;
    for (; !is_ahead; n++) {
        struct device *device = gpu_open(0);
        struct error err = {.message = ""};
        simt_fail_at((uint64_t)n, cudaErrorUnknown);
        pace_call(device, device->stream, 0, 0);
        enum status status = device->ops->synchronize(device->stream, &err);
        is_ahead = simt_fail_is_ahead();
        simt_fail_at(0, cudaSuccess);
        cr_expect_eq(status == STATUS_OK, is_ahead, "at %d: %s", n, err.message);
        cr_expect(is_ahead || strstr(err.message, "on cuda:0") != NULL, "at %d: %s", n,
                  err.message);
        device_destroy(device);
        cr_expect_eq(simt_live_count(), 0, "at %d", n);
    }
    cr_expect_gt(n, 6, "%d", n);
}

/* ---- Sums ------------------------------------------------------------------------------------ */

/* in[k] lies on GPU gpus[k % 4]; the sum is GPU 0's. */
static const struct sum_case {
    const char *name;
    int in_count;
    int gpus[DEVICES_MAX];
    int64_t count;
    int64_t offset; /* of each array from its beginning, in values */
    int in_place;   /* which of `in` out is; -1: none */
} sum_cases[] = {
    {"of none", 3, {0, 0, 0, 0}, 0, 0, -1},
    {"of one rank", 1, {0, 0, 0, 0}, 100, 0, -1},
    {"of one rank, in place", 1, {0, 0, 0, 0}, 100, 0, 0},
    {"of fours", 4, {0, 0, 0, 0}, 1024, 0, -1},
    {"of fours, in place", 4, {0, 0, 0, 0}, 1024, 4, 2},
    {"of an odd number", 5, {0, 0, 0, 0}, 1021, 0, -1},
    {"of fours at odd places", 2, {0, 0, 0, 0}, 1024, 3, 1},
    {"of one value", 2, {0, 0, 0, 0}, 1, 0, -1},
    {"of as many ranks as there may be", PEERS_MAX, {0, 0, 0, 0}, 130, 0, 63},
    {"of two GPUs", 4, {0, 1, 0, 1}, 1000, 0, 0},
    {"of four GPUs", 4, {2, 0, 1, 3}, 1001, 1, 1},
    {"of other GPUs alone", 3, {1, 2, 3, 1}, 64, 0, -1},
    {"of no value of other GPUs", 3, {1, 2, 3, 1}, 0, 0, -1},
    {"of more than is brought at a time", 3, {1, 0, 2, 0}, (1 << 19) + 5, 0, 1},
};
#define SUM_CASES (sizeof sum_cases / sizeof sum_cases[0])

struct sum {
    struct device *devices[DEVICES_MAX];
    struct peer_sum op;
    float *expected;
    void *memory[PEERS_MAX], *own;
};

static void sum_open(struct sum *out, const struct sum_case *c, uint64_t seed)
{
    struct random random = {.seed = seed};
    int64_t bytes = (c->count + c->offset) * (int64_t)sizeof(float);
    simt_device_count_set(DEVICES_MAX);
    for (int d = 0; d < DEVICES_MAX; d++)
        out->devices[d] = gpu_open(d);
    out->op = (struct peer_sum){.in_count = c->in_count, .count = c->count};
    out->expected = memory_alloc((size_t)c->count + 1, sizeof(float));
    float *values = memory_alloc((size_t)c->count + 1, sizeof *values);
    out->own = memory_of(out->devices[0], bytes);
    out->op.out = (float *)out->own + c->offset;
    for (int k = 0; k < c->in_count; k++) {
        struct device *device = out->devices[c->gpus[k % DEVICES_MAX]];
        out->memory[k] = memory_of(device, bytes);
        float *in = (float *)out->memory[k] + c->offset;
        for (int64_t i = 0; i < c->count; i++) {
            values[i] = (float)random_normal(&random);
            out->expected[i] = k == 0 ? values[i] : out->expected[i] + values[i];
        }
        device_write(device, in, values, (size_t)c->count * sizeof *in);
        out->op.in[k] = in;
        out->op.devices[k] = device;
        if (k == c->in_place)
            out->op.out = in;
    }
    memory_free(values);
}

static void sum_close(struct sum *sum)
{
    for (int k = 0; k < sum->op.in_count; k++) {
        struct device *device = (struct device *)sum->op.devices[k];
        device->ops->memory_free(device, sum->memory[k]);
    }
    sum->devices[0]->ops->memory_free(sum->devices[0], sum->own);
    for (int d = 0; d < DEVICES_MAX; d++)
        device_destroy(sum->devices[d]);
    memory_free(sum->expected);
    cr_assert_eq(simt_live_count(), 0);
}

static enum status sum_work(void *argument, struct error *err)
{
    struct sum *sum = *(struct sum **)argument;
    struct device *device = sum->devices[0];
    return device->ops->peers->sum(device->stream, &sum->op, err);
}

static enum status sum_run(struct sum *sum, struct error *err)
{
    struct device *device = sum->devices[0];
    device->ops->peers->call(device->stream, sum_work, &sum, sizeof sum);
    return device->ops->synchronize(device->stream, err);
}

/* Bit for bit as one after another; what is on other GPUs has come by copies, once. */
Test(cuda_peers, sums_are_in_the_order_of_the_ranks)
{
    for (size_t i = 0; i < SUM_CASES; i++) {
        const struct sum_case *c = &sum_cases[i];
        for (uint64_t seed = 0; seed < 3; seed++) {
            struct sum sum;
            struct error err;
            uint64_t far_bytes = 0, before = simt_peer_bytes();
            simt_stream_seed_set(seed);
            simt_order_set((enum simt_order)seed, seed);
            sum_open(&sum, c, seed);
            for (int k = 0; k < c->in_count; k++)
                far_bytes += c->gpus[k % DEVICES_MAX] != 0 ? (uint64_t)c->count * sizeof(float) : 0;
            cr_assert_eq(sum_run(&sum, &err), STATUS_OK, "%s: %s", c->name, err.message);
            cr_assert_eq(simt_peer_bytes() - before, far_bytes, "%s", c->name);
            size_t bytes = (size_t)c->count * sizeof(float);
            float *found = device_copy(sum.devices[0], sum.op.out, bytes);
            cr_assert_eq(memcmp(found, sum.expected, bytes), 0, "%s, seed %d", c->name, (int)seed);
            memory_free(found);
            sum_close(&sum);
        }
    }
}

/* In every place, until none fails. */
Test(cuda_peers, each_call_of_a_sum_may_fail)
{
    enum status status = STATUS_IO;
    int n;
    for (n = 1; status != STATUS_OK; n++) {
        struct sum sum;
        struct error err = {.message = ""};
        sum_open(&sum, &sum_cases[10], 1);
        simt_fail_at((uint64_t)n, cudaErrorUnknown);
        status = sum_run(&sum, &err);
        simt_fail_at(0, cudaSuccess);
        cr_assert(status == STATUS_OK ? n > 6 : status == STATUS_IO, "at %d", n);
        cr_assert(status == STATUS_OK || strstr(err.message, " on cuda:0: ") != NULL, "at %d: %s",
                  n, err.message);
        sum_close(&sum);
    }
}

/* ---- Order ----------------------------------------------------------------------------------- */

#define DIM    64
#define ROUNDS 8

/* Two ranks hand a value to and fro by copies, each on a stream of its own GPU or of one. */
struct handover {
    struct device *devices[2];
    struct event *events[2];
    float *values[2], *ones[2];
    bool waits;
};

struct step {
    struct handover *handover;
    int at; /* who takes it */
};

static enum status take_work(void *argument, struct error *err)
{
    const struct step *step = argument;
    const struct handover *h = step->handover;
    int at = step->at;
    struct stream *stream = h->devices[at]->stream;
    const struct peer_ops *peers = h->devices[at]->ops->peers;
    if (h->waits)
        TRY(peers->wait(stream, h->events[1 - at], err));
    return peers->copy(stream, h->values[at], h->values[1 - at], DIM * sizeof(float), err);
}

static enum status give_work(void *argument, struct error *err)
{
    const struct step *step = argument;
    const struct handover *h = step->handover;
    return h->devices[step->at]->ops->peers->record(h->devices[step->at]->stream,
                                                    h->events[step->at], err);
}

/* Until the stream's thread has passed so many commands. */
static void until_passed(const struct device *device, uint64_t progress)
{
    while (device->ops->progress(device->stream) < progress)
        ;
}

/* Adds one to what was taken, round by round; the threads are in step, the GPUs' work is not. */
static bool handover_is_right(int gpu_count, uint64_t seed, bool waits)
{
    struct handover h = {.waits = waits};
    float zeros[DIM] = {0}, ones[DIM], found[2][DIM];
    simt_device_count_set(2);
    simt_stream_seed_set(seed);
    for (int r = 0; r < 2; r++) {
        h.devices[r] = gpu_open(r % gpu_count);
        h.events[r] = event_open(h.devices[r]);
        h.values[r] = memory_of(h.devices[r], DIM * sizeof(float));
        h.ones[r] = memory_of(h.devices[r], DIM * sizeof(float));
        for (int i = 0; i < DIM; i++)
            ones[i] = 1;
        device_write(h.devices[r], h.values[r], zeros, sizeof zeros);
        device_write(h.devices[r], h.ones[r], ones, sizeof ones);
    }
    uint64_t kernels = simt_kernel_count();
    for (int round = 0; round < ROUNDS; round++) {
        struct step step = {&h, round % 2};
        struct device *device = h.devices[round % 2];
        uint64_t before = device->ops->progress(device->stream);
        device->ops->peers->call(device->stream, take_work, &step, sizeof step);
        device->ops->add(device->stream,
                         &(struct op_add){h.values[step.at], h.ones[step.at], 1, DIM});
        device->ops->peers->call(device->stream, give_work, &step, sizeof step);
        until_passed(device, before + 3);
    }
    if (seed == 0)
        cr_assert_eq(simt_kernel_count(), kernels, "a call has waited for its stream");
    for (int r = 0; r < 2; r++)
        synchronize_ok(h.devices[r], h.devices[r]->stream);
    for (int r = 0; r < 2; r++)
        device_read(h.devices[r], found[r], h.values[r], sizeof found[r]);
    bool right = found[1][0] == ROUNDS && found[0][DIM - 1] == ROUNDS - 1;
    for (int r = 0; r < 2; r++) {
        h.devices[r]->ops->memory_free(h.devices[r], h.values[r]);
        h.devices[r]->ops->memory_free(h.devices[r], h.ones[r]);
        h.devices[r]->ops->event_destroy(h.devices[r], h.events[r]);
        device_destroy(h.devices[r]);
    }
    cr_assert_eq(simt_live_count(), 0);
    return right;
}

Test(cuda_peers, events_order_the_work_of_several_gpus)
{
    for (int gpu_count = 1; gpu_count <= 2; gpu_count++) {
        int unordered_right = 0;
        for (uint64_t seed = 0; seed < 6; seed++) {
            cr_assert(handover_is_right(gpu_count, seed, true), "%d GPUs, seed %d", gpu_count,
                      (int)seed);
            unordered_right += handover_is_right(gpu_count, seed, false);
        }
        cr_assert_lt(unordered_right, 6);
    }
}

/* An event that was never recorded holds nobody. */
Test(cuda_peers, what_was_never_recorded_is_not_waited_for)
{
    struct handover h = {.waits = true, .devices = {gpu_open(0), gpu_open(0)}};
    for (int r = 0; r < 2; r++) {
        h.events[r] = event_open(h.devices[r]);
        h.values[r] = memory_of(h.devices[r], DIM * sizeof(float));
    }
    h.devices[0]->ops->peers->call(h.devices[0]->stream, take_work, &(struct step){&h, 0},
                                   sizeof(struct step));
    synchronize_ok(h.devices[0], h.devices[0]->stream);
    for (int r = 0; r < 2; r++) {
        h.devices[r]->ops->memory_free(h.devices[r], h.values[r]);
        h.devices[r]->ops->event_destroy(h.devices[r], h.events[r]);
        device_destroy(h.devices[r]);
    }
}

/* A GPU that is as large for each rank as its part of it, and works with so many threads. */
Test(cuda_peers, ranks_share_a_gpu)
{
    struct device *device;
    struct error err;
    void *out;
    struct gpu_share share = {.sharer_count = 4, .thread_count = 3};
    cr_assert_eq(device_cuda_create(&device, &share, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(device->ops->host_workers(device), 3);
    uint64_t left = device->ops->memory_left(device);
    cr_assert(left > 0 && left <= (uint64_t)15 << 28);
    cr_assert_eq(device->ops->memory_get(device, &out, left + 1, "a test", &err), STATUS_NO_MEMORY);
    cr_assert_not_null(strstr(err.message, "of cuda:0 this rank has "), "%s", err.message);
    device_destroy(device);
}
