/* What a stream is told repeats: it does the same as what is launched one by one, in fewer
 * launches, and nobody outside sees it late. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/trace.h"
#include "cuda_tools.h"
#include "simt_control.h"
#include "workload.h"

TestSuite(cuda_graph, .timeout = 300);

#define DIM 64

/* Pinned memory, which kernels reach and the host looks at. */
static float *values_get(struct device *device)
{
    struct error err;
    void *out;
    cr_assert_eq(device->ops->host_memory_get(device, &out, DIM * sizeof(float), "a test", &err),
                 STATUS_OK, "%s", err.message);
    return memset(out, 0, DIM * sizeof(float));
}

static void put_add(struct device *device, float *out, const float *in, int64_t rows)
{
    device->ops->add(device->stream, &(struct op_add){out, in, rows, DIM / 4});
}

static void put_adds(struct device *device, float *out, const float *in, int count)
{
    for (int i = 0; i < count; i++)
        put_add(device, out, in, 4);
}

/* A step that adds `count` times; returns how many graphs it launched. */
static uint64_t step_run(struct device *device, float *out, const float *in, int count)
{
    uint64_t before = simt_graph_launches();
    device->ops->repeat(device->stream, true);
    put_adds(device, out, in, count);
    device->ops->repeat(device->stream, false);
    synchronize_ok(device, device->stream);
    return simt_graph_launches() - before;
}

struct rig {
    struct device *device;
    float *one, *sum;
};

static void rig_open(struct rig *rig)
{
    rig->device = device_open(1);
    rig->one = values_get(rig->device);
    rig->sum = values_get(rig->device);
    for (int i = 0; i < DIM; i++)
        rig->one[i] = 1;
}

static void rig_close(struct rig *rig)
{
    rig->device->ops->host_memory_free(rig->device, rig->one);
    rig->device->ops->host_memory_free(rig->device, rig->sum);
    device_destroy(rig->device);
    gpu_check_nothing_left();
}

/* ---- When something is a graph --------------------------------------------------------------- */

Test(cuda_graph, from_the_second_time_on)
{
    struct rig rig;
    rig_open(&rig);
    for (int step = 1; step <= 5; step++) {
        cr_assert_eq(step_run(rig.device, rig.sum, rig.one, 8), step > 1, "step %d", step);
        cr_assert_eq(rig.sum[DIM - 1], 8 * step);
    }
    cr_assert_eq(simt_graph_instances(), 1);
    rig_close(&rig);
}

/* Few launches are not worth one, and what does not repeat is none. */
Test(cuda_graph, not_of_everything)
{
    struct rig rig;
    rig_open(&rig);
    for (int step = 1; step <= 3; step++) {
        cr_assert_eq(step_run(rig.device, rig.sum, rig.one, 3), 0);
        put_adds(rig.device, rig.sum, rig.one, 8);
        synchronize_ok(rig.device, rig.device->stream);
        cr_assert_eq(rig.sum[0], 11 * step);
    }
    cr_assert_eq(simt_graph_launches(), 0);
    rig_close(&rig);
}

/* Each differs in one argument; both are kept, and so are as many as batches change between. */
Test(cuda_graph, another_step_is_another_graph)
{
    struct rig rig;
    float expected = 0;
    rig_open(&rig);
    for (int round = 1; round <= 3; round++) {
        for (int count = 8; count < 16; count++) {
            cr_assert_eq(step_run(rig.device, rig.sum, rig.one, count), round > 1);
            cr_assert_eq(rig.sum[0], expected += (float)count, "%d", count);
        }
    }
    cr_assert_eq(simt_graph_instances(), 8);
    for (int round = 1; round <= 3; round++) { /* more than are kept */
        for (int count = 8; count < 17; count++) {
            step_run(rig.device, rig.sum, rig.one, count);
            cr_assert_eq(rig.sum[0], expected += (float)count);
        }
    }
    step_run(rig.device, rig.sum, rig.one, 16);
    uint64_t before = simt_graph_launches();
    device_destroy(device_open(1));
    rig.device->ops->repeat(rig.device->stream, true);
    put_adds(rig.device, rig.sum, rig.one, 15);
    put_add(rig.device, rig.sum, rig.one, 2); /* of the last, another number of rows */
    rig.device->ops->repeat(rig.device->stream, false);
    synchronize_ok(rig.device, rig.device->stream);
    cr_assert_eq(simt_graph_launches(), before);
    cr_assert(rig.sum[0] == expected + 32 && rig.sum[DIM - 1] == expected + 31);
    rig_close(&rig);
}

/* Graphs that are on their way when another piece comes stay until the stream has settled, as their
 * marks are yet to be read: then there is no place for it. */
Test(cuda_graph, none_goes_that_is_on_its_way)
{
    struct rig rig;
    float expected = 0;
    rig_open(&rig);
    for (int round = 1; round <= 2; round++) {
        for (int count = 8; count < 16; count++, expected += (float)count - 1)
            step_run(rig.device, rig.sum, rig.one, count);
    }
    uint64_t before = simt_graph_launches();
    for (int count = 8; count < 17; count++, expected += (float)count - 1) {
        rig.device->ops->repeat(rig.device->stream, true);
        put_adds(rig.device, rig.sum, rig.one, count);
        rig.device->ops->repeat(rig.device->stream, false);
    }
    synchronize_ok(rig.device, rig.device->stream);
    cr_assert_eq(simt_graph_launches() - before, 8);
    cr_assert_eq(rig.sum[0], expected);
    cr_assert_eq(step_run(rig.device, rig.sum, rig.one, 16), 0); /* the first time, again */
    cr_assert_eq(step_run(rig.device, rig.sum, rig.one, 16), 1);
    cr_assert_eq(rig.sum[0], expected + 32);
    rig_close(&rig);
}

/* Where memory was freed, a graph may know what is something else by now. */
Test(cuda_graph, not_of_memory_that_may_be_gone)
{
    struct rig rig;
    struct error err;
    void *memory, *host;
    rig_open(&rig);
    const struct device_ops *ops = rig.device->ops;
    for (int step = 1; step <= 8; step++) {
        if (step == 4) {
            cr_assert_eq(ops->memory_get(rig.device, &memory, 8, "a test", &err), STATUS_OK);
            cr_assert_eq(ops->host_memory_get(rig.device, &host, 8, "a test", &err), STATUS_OK);
        } else if (step == 5) {
            ops->memory_free(rig.device, memory);
        } else if (step == 7) {
            ops->host_memory_free(rig.device, host);
        }
        cr_assert_eq(step_run(rig.device, rig.sum, rig.one, 8), step > 1);
        cr_assert_eq(rig.sum[0], 8 * step);
        cr_assert_eq(simt_graph_instances(), (step > 1) + (step > 4) + (step > 6), "%d", step);
    }
    rig_close(&rig);
}

/* More launches than a piece has, in several. */
Test(cuda_graph, a_long_step_is_several)
{
    struct rig rig;
    rig_open(&rig);
    for (int step = 1; step <= 3; step++) {
        cr_assert_eq(step_run(rig.device, rig.sum, rig.one, 600), step > 1 ? 4 : 0);
        cr_assert_eq(rig.sum[0], 600 * step);
    }
    rig_close(&rig);
}

/* One that comes again before it has settled is launched one by one: its arrays and marks are in
 * use. */
Test(cuda_graph, twice_before_it_settles)
{
    struct rig rig;
    rig_open(&rig);
    step_run(rig.device, rig.sum, rig.one, 8);
    step_run(rig.device, rig.sum, rig.one, 8);
    uint64_t before = simt_graph_launches();
    for (int i = 0; i < 3; i++) {
        rig.device->ops->repeat(rig.device->stream, true);
        put_adds(rig.device, rig.sum, rig.one, 8);
        rig.device->ops->repeat(rig.device->stream, false);
    }
    synchronize_ok(rig.device, rig.device->stream);
    cr_assert_eq(simt_graph_launches(), before + 1);
    cr_assert_eq(rig.sum[0], 40);
    rig_close(&rig);
}

/* ---- What others see ------------------------------------------------------------------------- */

static enum status value_read(void *argument, struct error *err)
{
    (void)err;
    float **places = *(float ***)argument;
    *places[1] = *places[0];
    return STATUS_OK;
}

/* An event, a call and the end find all that stands before them done. */
Test(cuda_graph, nobody_sees_it_late)
{
    for (uint64_t seed = 0; seed < 4; seed++) {
        struct rig rig;
        struct stream *beside;
        struct event *event;
        struct error err;
        float seen, *places[] = {NULL, &seen}, **pointer = places;
        rig_open(&rig);
        const struct device_ops *ops = rig.device->ops;
        float *copy = values_get(rig.device), *zeros = values_get(rig.device);
        places[0] = rig.sum;
        simt_stream_seed_set(seed);
        cr_assert_eq(ops->stream_create(rig.device, &beside, STREAM_LOW, &err), STATUS_OK);
        cr_assert_eq(ops->event_create(rig.device, &event, &err), STATUS_OK);
        for (int step = 1; step <= 4; step++) {
            ops->repeat(rig.device->stream, true);
            put_adds(rig.device, rig.sum, rig.one, 8);
            ops->event_record(rig.device->stream, event);
            ops->event_wait(beside, event);
            ops->copy(beside, &(struct op_copy){.out = copy, .in = rig.sum, .bytes = 4});
            synchronize_ok(rig.device, beside);
            cr_assert_eq(copy[0], 16 * step - 8, "step %d", step);
            put_adds(rig.device, rig.sum, rig.one, 8);
            ops->call(rig.device->stream, value_read, &pointer, sizeof pointer);
            put_adds(rig.device, rig.one, zeros, 8);
            synchronize_ok(rig.device, rig.device->stream);
            cr_assert_eq(seen, 16 * step);
        }
        cr_assert_eq(simt_graph_instances() > 0, true);
        ops->event_destroy(rig.device, event);
        ops->stream_destroy(rig.device, beside);
        ops->host_memory_free(rig.device, copy);
        ops->host_memory_free(rig.device, zeros);
        rig_close(&rig);
    }
}

/* What was put off when the device goes is done before. */
Test(cuda_graph, the_end_of_a_stream)
{
    struct rig rig;
    struct stream *stream;
    struct error err;
    rig_open(&rig);
    cr_assert_eq(rig.device->ops->stream_create(rig.device, &stream, STREAM_NORMAL, &err),
                 STATUS_OK);
    rig.device->ops->repeat(stream, true);
    for (int i = 0; i < 8; i++)
        rig.device->ops->add(stream, &(struct op_add){rig.sum, rig.one, 4, DIM / 4});
    rig.device->ops->stream_destroy(rig.device, stream);
    cr_assert_eq(rig.sum[0], 8);
    rig_close(&rig);
}

static void spans_count(void *context, const struct trace_lane_view *lane)
{
    int *counts = context;
    for (int64_t i = 0; i < lane->span_count; i++) {
        counts[0] += strcmp(lane->spans[i].name, "launches") == 0;
        counts[1] += strcmp(lane->spans[i].name, "graph captured") == 0;
        counts[2] += strcmp(lane->spans[i].name, "graph") == 0;
        counts[3] += strcmp(lane->spans[i].name, "add") == 0;
    }
}

Test(cuda_graph, the_trace_tells_graphs)
{
    struct rig rig;
    struct error err;
    struct trace *trace;
    int counts[4] = {0};
    rig_open(&rig);
    cr_assert_eq(trace_create(&trace, &err), STATUS_OK);
    struct device *device;
    cr_assert_eq(device_cuda_create(&device, &(struct gpu_share){.trace = trace}, &err), STATUS_OK);
    trace_start(trace, 1000);
    for (int step = 0; step < 4; step++)
        step_run(device, rig.sum, rig.one, 8);
    put_adds(device, rig.sum, rig.one, 5);
    synchronize_ok(device, device->stream);
    trace_stop(trace);
    trace_look(trace, spans_count, counts);
    cr_assert(counts[0] == 1 && counts[1] == 1 && counts[2] == 3 && counts[3] == 5,
              "%d launches, %d captures, %d graphs, %d adds", counts[0], counts[1], counts[2],
              counts[3]);
    device_destroy(device);
    trace_destroy(trace);
    rig_close(&rig);
}

/* ---- Operations with arrays of the host, and what is counted --------------------------------- */

/* A case of several experts, the first three of which have rows. */
static const struct kernel_case *experts_case(enum kernel_op op)
{
    for (size_t i = 0; i < case_lists[op]->count; i++) {
        const struct kernel_case *c = &case_lists[op]->cases[i];
        struct workload w;
        if (c->use != FOR_TEST)
            continue;
        workload_create(&w, op, c);
        int64_t groups = op == OP_FFN_UP ? w.ffn_up.group_count : w.ffn_down.group_count;
        const int32_t *at = op == OP_FFN_UP ? w.ffn_up.offsets : w.ffn_down.offsets;
        bool has_rows = groups >= 3 && at[1] > at[0] && at[2] > at[1] && at[3] > at[2];
        workload_destroy(&w);
        if (has_rows)
            return c;
    }
    cr_assert_fail("no case has several experts");
    return NULL;
}

/* The operation in stage 3, between changes of it, and what stands in its output. */
static void workload_step(struct workload *w, struct device *device, bool repeats)
{
    workload_reset(w);
    if (repeats)
        device->ops->repeat(device->stream, true);
    for (int i = 0; i < 2; i++) {
        device->ops->stage(device->stream, 3, -1);
        workload_put(w, device);
        device->ops->stage(device->stream, 5, -1);
    }
    if (repeats)
        device->ops->repeat(device->stream, false);
    synchronize_ok(device, device->stream);
}

/* Weights that move between steps: another group than the first, so that the graph stays, and the
 * first. Outputs and the weights that are counted are those of launches one by one. */
static void check_groups(enum kernel_op op)
{
    struct workload w;
    struct stage_total with[DEVICE_STAGES], without[DEVICE_STAGES];
    workload_create(&w, op, experts_case(op));
    struct device *one_by_one = device_open(1), *device = device_open(1);
    struct ffn_weights *groups =
        (struct ffn_weights *)(op == OP_FFN_UP ? w.ffn_up.groups : w.ffn_down.groups);
    void *expected = memory_alloc(w.outputs[0].bytes, 1);
    uint64_t before = simt_graph_launches();
    int changed = 0;
    for (int step = 0; step < 8; step++) {
        if (step == 4 || step == 6) { /* weights of one expert are another's */
            struct ffn_weights kept = groups[step == 4 ? 1 : 0];
            groups[step == 4 ? 1 : 0] = groups[2];
            groups[2] = kept;
        }
        workload_step(&w, one_by_one, false);
        changed += memcmp(expected, w.outputs[0].data, w.outputs[0].bytes) != 0;
        memcpy(expected, w.outputs[0].data, w.outputs[0].bytes);
        workload_step(&w, device, true);
        cr_assert_eq(memcmp(expected, w.outputs[0].data, w.outputs[0].bytes), 0, "step %d", step);
    }
    cr_assert_eq(changed, 3);                        /* the test can tell */
    cr_assert_eq(simt_graph_launches() - before, 6); /* not in steps 0 and 6 */
    device->ops->stage_totals(device->stream, with);
    one_by_one->ops->stage_totals(one_by_one->stream, without);
    for (int stage = 0; stage < DEVICE_STAGES; stage++)
        cr_assert_eq(with[stage].weight_bytes, without[stage].weight_bytes, "stage %d", stage);
    cr_assert(with[3].seconds > 0 && with[5].seconds > 0 && with[4].seconds == 0);
    memory_free(expected);
    workload_destroy(&w);
    device_destroy(one_by_one);
    device_destroy(device);
}

Test(cuda_graph, weights_that_move)
{
    check_groups(OP_FFN_UP);
    check_groups(OP_FFN_DOWN);
    gpu_check_nothing_left();
}

/* A case of attention whose first segment is one token at `position`. */
static const struct kernel_case *attention_case(int64_t position)
{
    for (size_t i = 0; i < case_lists[OP_ATTENTION]->count; i++) {
        const struct kernel_case *c = &case_lists[OP_ATTENTION]->cases[i];
        if (c->use == FOR_TEST && c->segments[0].token_count == 1 &&
            c->segments[0].first_position == position)
            return c;
    }
    cr_assert_fail("no case begins so");
    return NULL;
}

/* Four times the operation, as a step or one by one. */
static void four_step(struct workload *w, struct device *device, bool repeats)
{
    workload_reset(w);
    device->ops->repeat(device->stream, repeats);
    for (int i = 0; i < 4; i++)
        workload_put(w, device);
    device->ops->repeat(device->stream, false);
    synchronize_ok(device, device->stream);
}

/* A sequence grows by pages; the graph stays, and its copy of the segments has room for them. */
Test(cuda_graph, sequences_that_grow)
{
    struct workload w;
    workload_create(&w, OP_ATTENTION, attention_case(1100));
    struct device *one_by_one = device_open(1), *device = device_open(1);
    struct segment *last = (struct segment *)w.attention.segments + w.attention.segment_count - 1;
    void *expected = memory_alloc(w.outputs[0].bytes, 1);
    uint64_t before = simt_graph_launches();
    const int64_t positions[] = {3, 4, 5, 63, 64, 320, last->first_position};
    for (size_t step = 0; step < sizeof positions / sizeof positions[0]; step++) {
        last->first_position = positions[step];
        four_step(&w, one_by_one, false);
        memcpy(expected, w.outputs[0].data, w.outputs[0].bytes);
        four_step(&w, device, true);
        cr_assert_eq(memcmp(expected, w.outputs[0].data, w.outputs[0].bytes), 0, "step %d",
                     (int)step);
        cr_assert_eq(simt_graph_launches() - before, step);
    }
    cr_assert_eq(simt_graph_instances(), 1);
    memory_free(expected);
    workload_destroy(&w);
    device_destroy(one_by_one);
    device_destroy(device);
    gpu_check_nothing_left();
}

/* Between the members of an operation is whatever was there before. */
Test(cuda_graph, not_by_bytes_that_mean_nothing)
{
    struct workload w[2];
    workload_create(&w[0], OP_ATTENTION, attention_case(1100));
    workload_create(&w[1], OP_ROPE_APPEND, &case_lists[OP_ROPE_APPEND]->cases[0]);
    struct kv_layer *layers[] = {&w[0].attention.kv, &w[1].rope_append.kv};
    for (int i = 0; i < 2; i++) {
        struct device *device = device_open(1);
        unsigned char *hole = (unsigned char *)&layers[i]->dtype + sizeof layers[i]->dtype;
        size_t bytes = (size_t)((unsigned char *)&layers[i]->kv_head_count - hole);
        uint64_t before = simt_graph_launches();
        cr_assert_gt(bytes, 0);
        for (uint64_t step = 0; step < 4; step++) {
            memset(hole, (int)step, bytes);
            four_step(&w[i], device, true);
            cr_assert_eq(simt_graph_launches() - before, step);
        }
        workload_destroy(&w[i]);
        device_destroy(device);
    }
    gpu_check_nothing_left();
}

/* A larger operation between two steps moves the scratch memory that their graph knows. Nothing is
 * freed meanwhile: that may wait for other GPUs, which wait for this one. */
Test(cuda_graph, not_of_scratch_that_has_moved)
{
    struct workload small, large;
    workload_create(&small, OP_ATTENTION, attention_case(600));
    workload_create(&large, OP_ATTENTION, attention_case(1100));
    struct device *device = device_open(1);
    void *expected = memory_alloc(small.outputs[0].bytes, 1);
    four_step(&small, device, false);
    memcpy(expected, small.outputs[0].data, small.outputs[0].bytes);
    uint64_t freed = simt_free_count();
    for (int step = 1; step <= 6; step++) {
        if (step == 4)
            four_step(&large, device, false);
        four_step(&small, device, true);
        cr_assert_eq(memcmp(expected, small.outputs[0].data, small.outputs[0].bytes), 0, "step %d",
                     step);
        cr_assert_eq(simt_graph_instances(), (step > 1) + (step > 3), "step %d", step);
    }
    cr_assert_eq(simt_free_count(), freed);
    memory_free(expected);
    workload_destroy(&small);
    workload_destroy(&large);
    device_destroy(device);
    gpu_check_nothing_left();
}

/* Weights count for the stage that stands, also where a step begins in another than before. */
Test(cuda_graph, in_the_stage_that_stands)
{
    struct workload w;
    struct stage_total totals[DEVICE_STAGES];
    size_t first = 0; /* that has rows */
    for (workload_create(&w, OP_MATMUL, &case_lists[OP_MATMUL]->cases[0]);
         w.matmul.row_count == 0;) {
        workload_destroy(&w);
        workload_create(&w, OP_MATMUL, &case_lists[OP_MATMUL]->cases[++first]);
    }
    struct device *device = device_open(1);
    for (int step = 0; step < 7; step++) {
        device->ops->stage(device->stream, step < 4 ? 3 : 5, -1);
        device->ops->repeat(device->stream, true);
        for (int i = 0; i < 4; i++)
            workload_put(&w, device);
        device->ops->repeat(device->stream, false);
        synchronize_ok(device, device->stream);
    }
    device->ops->stage_totals(device->stream, totals);
    cr_assert_gt(totals[5].weight_bytes, 0);
    cr_assert_eq(3 * totals[3].weight_bytes, 4 * totals[5].weight_bytes);
    cr_assert_eq(simt_graph_launches(), 6);
    cr_assert_eq(simt_graph_instances(), 2);
    workload_destroy(&w);
    device_destroy(device);
}

/* A step of two stages, and one that stands behind it; what they took. */
static void stages_step(struct rig *rig, double seconds[DEVICE_STAGES])
{
    struct stage_total before[DEVICE_STAGES], after[DEVICE_STAGES];
    const struct device_ops *ops = rig->device->ops;
    ops->stage_totals(rig->device->stream, before);
    ops->repeat(rig->device->stream, true);
    ops->stage(rig->device->stream, 3, -1);
    put_adds(rig->device, rig->sum, rig->one, 4);
    ops->stage(rig->device->stream, 5, -1);
    put_adds(rig->device, rig->sum, rig->one, 12);
    ops->stage(rig->device->stream, 6, -1);
    ops->repeat(rig->device->stream, false);
    synchronize_ok(rig->device, rig->device->stream);
    ops->stage_totals(rig->device->stream, after);
    for (int stage = 0; stage < DEVICE_STAGES; stage++)
        seconds[stage] = after[stage].seconds - before[stage].seconds;
}

/* The first launch of a graph marks all stages, and so does each 16th behind it. The time of the
 * others is shared out as it was then. */
Test(cuda_graph, one_launch_in_16_marks_its_stages)
{
    struct rig rig;
    double sampled[DEVICE_STAGES], seconds[DEVICE_STAGES];
    int same = 0;
    rig_open(&rig);
    stages_step(&rig, seconds); /* one by one */
    stages_step(&rig, sampled);
    cr_assert(sampled[3] > 0 && sampled[5] > 0);
    for (int launch = 1; launch <= 40; launch++) {
        stages_step(&rig, seconds);
        cr_assert(seconds[3] > 0 && seconds[5] > 0, "launch %d", launch);
        double off = seconds[3] / seconds[5] / (sampled[3] / sampled[5]) - 1;
        if (launch % 16 == 0)
            memcpy(sampled, seconds, sizeof sampled);
        else
            cr_assert_lt(fabs(off), 1e-6, "launch %d is off by %g", launch, off);
        same += fabs(off) < 1e-6;
    }
    cr_assert_eq(same, 38); /* two samples were measured */
    cr_assert_eq(simt_graph_instances(), 2);
    cr_assert_eq(rig.sum[0], 42 * 16);
    rig_close(&rig);
}

enum { SUM_ROWS = 3, SUM_ROUNDS = 4 };

/* Three steps of sums, each with its norm, or with that of what is added; the third one's kernels.
 * `out` is [sums and norms][SUM_ROWS][stride]. */
static uint64_t sums_run(float *out, struct device *device, bool repeats, int64_t dim, bool of_sum)
{
    const struct device_ops *ops = device->ops;
    int64_t stride = round_up(dim, 16), count = SUM_ROWS * stride;
    uint64_t before = 0;
    struct error err;
    void *memory;
    cr_assert_eq(ops->host_memory_get(device, &memory, (size_t)(3 * count + dim) * sizeof(float),
                                      "a test", &err),
                 STATUS_OK);
    float *sum = memory, *norm = sum + count, *added = norm + count, *weight = added + count;
    for (int64_t i = 0; i < 3 * count + dim; i++)
        sum[i] = i % count % stride < dim ? (float)(i * 37 % 101) / 64 - 0.75f : 0;
    for (int step = 0; step < 3; step++) {
        before = simt_kernel_count();
        ops->repeat(device->stream, repeats);
        for (int round = 0; round < SUM_ROUNDS; round++) {
            ops->add(device->stream, &(struct op_add){sum, added, SUM_ROWS, stride});
            ops->stage(device->stream, 3, -1);
            ops->rms_norm(device->stream, &(struct op_rms_norm){norm, of_sum ? sum : added, weight,
                                                                SUM_ROWS, dim, stride, 1e-6f});
            ops->stage(device->stream, 5, -1);
        }
        ops->repeat(device->stream, false);
        synchronize_ok(device, device->stream);
    }
    memcpy(out, sum, (size_t)(2 * count) * sizeof *out);
    ops->host_memory_free(device, memory);
    return simt_kernel_count() - before;
}

static void check_sums(int64_t dim, bool of_sum)
{
    struct device *one_by_one = device_open(1), *device = device_open(1);
    int64_t count = 2 * SUM_ROWS * round_up(dim, 16);
    float *found = memory_alloc((size_t)count, sizeof *found);
    float *expected = memory_alloc((size_t)count, sizeof *expected);
    cr_assert_eq(sums_run(expected, one_by_one, false, dim, of_sum), 2 * SUM_ROUNDS);
    cr_assert_eq(sums_run(found, device, true, dim, of_sum), (of_sum ? 1 : 2) * SUM_ROUNDS);
    cr_assert_eq(memcmp(found, expected, (size_t)count * sizeof *found), 0, "%d", (int)dim);
    memory_free(found);
    memory_free(expected);
    device_destroy(one_by_one);
    device_destroy(device);
}

Test(cuda_graph, a_sum_and_its_norm_are_one_kernel)
{
    check_sums(40, true);
    check_sums(20000, true); /* a thread has more of a row than it keeps */
    check_sums(40, false);   /* the norm of something else is not */
    gpu_check_nothing_left();
}

/* A step of so many reads that the stream settles within it, between two graphs. */
Test(cuda_graph, more_than_the_stages_hold)
{
    struct workload w;
    struct stage_total totals[DEVICE_STAGES];
    workload_create(&w, OP_FFN_UP, experts_case(OP_FFN_UP));
    struct device *device = device_open(1);
    uint64_t bytes[4], before = simt_graph_launches();
    for (int step = 0; step < 4; step++) {
        device->ops->repeat(device->stream, true);
        for (int i = 0; i < 600; i++) {
            device->ops->stage(device->stream, 3, -1);
            workload_put(&w, device);
            device->ops->stage(device->stream, 5, -1);
            device->ops->stage(device->stream, 6, -1);
        }
        device->ops->repeat(device->stream, false);
        synchronize_ok(device, device->stream);
        device->ops->stage_totals(device->stream, totals);
        bytes[step] = totals[3].weight_bytes;
        cr_assert_eq(bytes[step], (uint64_t)(step + 1) * bytes[0]);
    }
    cr_assert_eq(simt_graph_launches() - before,
                 3 * 11); /* one of 64 launches, the others of 256 each */
    workload_destroy(&w);
    device_destroy(device);
}

/* ---- Failures -------------------------------------------------------------------------------- */

/* Memory that lacks for a graph lacks for nothing else. */
Test(cuda_graph, without_memory_for_it)
{
    bool is_over = false;
    for (uint64_t n = 1; !is_over; n++) {
        struct rig rig;
        uint64_t live = memory_counters_get().live_count;
        rig_open(&rig);
        memory_fail_at(n, 0);
        for (int step = 1; step <= 3; step++) {
            step_run(rig.device, rig.sum, rig.one, 8);
            cr_assert_eq(rig.sum[0], 8 * step, "allocation %d", (int)n);
        }
        memory_fail_at(0, 0);
        is_over = step_run(rig.device, rig.sum, rig.one, 8) > 0 && n > 8;
        rig_close(&rig);
        cr_assert_eq(memory_counters_get().live_count, live);
    }
}

/* Whatever call of the capture fails: from then on the stream launches one by one, and all is as it
 * would be. */
Test(cuda_graph, a_capture_that_fails)
{
    int refused = 0;
    for (uint64_t n = 1; n <= 60; n++) {
        struct rig rig;
        struct error err;
        rig_open(&rig);
        step_run(rig.device, rig.sum, rig.one, 8);
        uint64_t before = simt_graph_launches();
        rig.device->ops->repeat(rig.device->stream, true);
        put_adds(rig.device, rig.sum, rig.one, 8);
        simt_fail_at(n, cudaErrorUnknown);
        rig.device->ops->repeat(rig.device->stream, false);
        enum status status = rig.device->ops->synchronize(rig.device->stream, &err);
        bool came = !simt_fail_is_ahead();
        simt_fail_at(0, cudaSuccess);
        if (status == STATUS_OK) {
            cr_assert_eq(rig.sum[0], 16, "call %d", (int)n);
            uint64_t launched = simt_graph_launches() - before;
            cr_assert(came || launched == 1);
            cr_assert_eq(step_run(rig.device, rig.sum, rig.one, 8), launched);
            cr_assert_eq(rig.sum[0], 24);
            refused += launched == 0;
        } else {
            cr_assert_not_null(strstr(err.message, " on cuda:0: "), "%s", err.message);
        }
        rig_close(&rig);
    }
    cr_assert_gt(refused, 0);
}

/* A kernel within a graph that breaks the GPU is the stream's failure; what is put off then is
 * dropped. */
Test(cuda_graph, a_kernel_of_it_breaks_the_gpu)
{
    struct rig rig;
    struct error err;
    rig_open(&rig);
    step_run(rig.device, rig.sum, rig.one, 8);
    step_run(rig.device, rig.sum, rig.one, 8);
    simt_fail_kernel_at(3, cudaErrorIllegalAddress);
    rig.device->ops->repeat(rig.device->stream, true);
    put_adds(rig.device, rig.sum, rig.one, 8);
    cr_assert_eq(rig.device->ops->synchronize(rig.device->stream, &err), STATUS_IO);
    cr_assert_not_null(strstr(err.message, "cuda:0: an illegal memory access"), "%s", err.message);
    simt_fail_kernel_at(0, cudaSuccess);
    put_adds(rig.device, rig.sum, rig.one, 8);
    cr_assert_eq(rig.device->ops->synchronize(rig.device->stream, &err), STATUS_IO);
    cr_assert_eq(rig.sum[0], 19);
    rig_close(&rig);
}

static enum status call_fails(void *argument, struct error *err)
{
    (void)argument;
    return error_set(err, STATUS_IO, "a call that fails");
}

/* What is put off behind something that fails is not done, as what is launched behind it. */
Test(cuda_graph, nothing_is_done_behind_a_failure)
{
    struct rig rig;
    struct error err;
    rig_open(&rig);
    rig.device->ops->repeat(rig.device->stream, true);
    put_adds(rig.device, rig.sum, rig.one, 8);
    rig.device->ops->call(rig.device->stream, call_fails, &rig, sizeof(char));
    put_adds(rig.device, rig.sum, rig.one, 8);
    rig.device->ops->repeat(rig.device->stream, false);
    cr_assert_eq(rig.device->ops->synchronize(rig.device->stream, &err), STATUS_IO);
    cr_assert_str_eq(err.message, "a call that fails");
    cr_assert_eq(rig.sum[0], 8);
    rig_close(&rig);
}
