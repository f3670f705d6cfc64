/* Operations of which the first joins the next (op_ffn_up, op_ffn_down): what they make is what
 * each makes by itself, and time, weights and recording tell the two apart. With a sanitizer the
 * quick tier joins each fourth pair, by the seed. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <string.h>

#include "base/memory.h"
#include "base/record.h"
#include "base/trace.h"
#include "kernel_devices.h"
#include "kernel_sets.h"
#include "layout/work.h"
#include "sweep.h"
#include "workload.h"

#if defined(__SANITIZE_ADDRESS__)
#define PAIR_STEP 4
#else
#define PAIR_STEP 1
#endif

static struct device *device_open(const char *set, int thread_count, struct trace *trace)
{
    struct device *device;
    struct error err;
    struct cpu_share share = {.thread_count = thread_count, .first_cpu = -1, .trace = trace};
    cr_assert_eq(device_cpu_create_with(&device, &share, set_find(set), &err), STATUS_OK);
    return device;
}

static void joins_next(struct workload *w)
{
    if (w->op == OP_FFN_UP)
        w->ffn_up.joins_next = true;
    else
        w->ffn_down.joins_next = true;
}

static void *bits_of(struct workload *w, struct device *device)
{
    workload_launch(w, device);
    void *bits = memory_alloc_raw(w->outputs[0].bytes, 1);
    cr_assert_not_null(bits);
    memcpy(bits, w->outputs[0].data, w->outputs[0].bytes);
    workload_reset(w);
    return bits;
}

/* Each in the place of the first and of the second. */
static void check_pair(const struct kernel_case *one, const struct kernel_case *other,
                       enum kernel_op op, struct device *device, int threads)
{
    struct workload pair[2];
    void *bits[2];
    const struct kernel_case *const cases[] = {one, other};
    for (int i = 0; i < 2; i++) {
        workload_create(&pair[i], op, cases[i]);
        cr_assert_eq(pair[i].output_count, 1);
        bits[i] = bits_of(&pair[i], device);
    }
    joins_next(&pair[0]);
    workload_put(&pair[0], device);
    workload_launch(&pair[1], device);
    for (int i = 0; i < 2; i++) {
        char name[128];
        case_describe(name, sizeof name, op, cases[i]);
        cr_assert_eq(memcmp(bits[i], pair[i].outputs[0].data, pair[i].outputs[0].bytes), 0,
                     "%s, number %d of two, %d threads", name, i, threads);
        memory_free(bits[i]);
        workload_destroy(&pair[i]);
    }
}

struct combination {
    int set;
    enum kernel_op op;
};

ParameterizedTestParameters(joined, make_what_each_makes_alone)
{
    static struct combination all[SET_COUNT * 2];
    for (int i = 0; i < SET_COUNT * 2; i++)
        all[i] = (struct combination){i / 2, i % 2 == 0 ? OP_FFN_UP : OP_FFN_DOWN};
    return cr_make_param_array(struct combination, all, SET_COUNT * 2);
}

ParameterizedTest(struct combination *of, joined, make_what_each_makes_alone)
{
    static const int thread_counts[] = {1, 2, 3, 8};
    if (set_find(set_names[of->set]) == NULL)
        cr_skip_test("this machine cannot run the %s kernels", set_names[of->set]);
    const struct case_list *list = case_lists[of->op];
    size_t step = sweep_step(PAIR_STEP), first = sweep_first(step) - 1;
    for (int t = 0; t < 4; t++) {
        struct device *device = kernel_device_open(set_names[of->set], thread_counts[t]);
        for (size_t i = first; i + 1 < list->count && list->cases[i + 1].use == FOR_TEST;
             i += step) {
            check_pair(&list->cases[i], &list->cases[i + 1], of->op, device, thread_counts[t]);
            check_pair(&list->cases[i + 1], &list->cases[i], of->op, device, thread_counts[t]);
        }
        device_destroy(device);
    }
}

/* ---- What is told of them -------------------------------------------------------------------- */

#define STAGE_FIRST  3
#define STAGE_SECOND 5

struct seen {
    size_t node_count;
    struct record_node nodes[2];
    int64_t span_count;
    struct trace_span spans[2];
};

static void see_nodes(void *context, const struct record_lane_view *lane)
{
    struct seen *seen = context;
    for (size_t n = 0; n < lane->node_count; n++, seen->node_count++) {
        cr_assert_lt(seen->node_count, 2);
        seen->nodes[seen->node_count] = *record_node_at(lane, n);
    }
}

static void see_spans(void *context, const struct trace_lane_view *lane)
{
    struct seen *seen = context;
    for (int64_t s = 0; s < lane->span_count; s++, seen->span_count++) {
        cr_assert_lt(seen->span_count, 2);
        seen->spans[seen->span_count] = lane->spans[s];
    }
}

/* Runs two cases of `op`, each in a stage and layer of its own, and keeps what is told. */
static void run_told(struct seen *seen, struct stage_total totals[DEVICE_STAGES],
                     struct workload pair[2], int thread_count)
{
    struct trace *trace;
    struct error err;
    *seen = (struct seen){0};
    cr_assert_eq(trace_create(&trace, &err), STATUS_OK);
    struct device *device = device_open("plain", thread_count, trace);
    trace_start(trace, 10);
    record_start(trace, 1 << 20);
    joins_next(&pair[0]);
    device->ops->stage(device->stream, STAGE_FIRST, 1);
    workload_put(&pair[0], device);
    device->ops->stage(device->stream, STAGE_SECOND, 2);
    workload_put(&pair[1], device);
    device->ops->stage(device->stream, 0, -1);
    cr_assert_eq(device->ops->synchronize(device->stream, &err), STATUS_OK);
    cr_assert_eq(record_stop(trace), RECORD_WHOLE);
    trace_stop(trace);
    device->ops->stage_totals(device->stream, totals);
    record_look(trace, see_nodes, seen);
    trace_look(trace, see_spans, seen);
    device_destroy(device);
    trace_destroy(trace);
}

static const struct kernel_case told_cases[] = {
    {.dtype = DTYPE_BF16,
     .token_count = 40,
     .rows = 304,
     .columns = 272,
     .expert_count = 1,
     .spread = SPREAD_DENSE},
    {.dtype = DTYPE_INT4,
     .token_count = 40,
     .rows = 96,
     .columns = 272,
     .expert_count = 6,
     .top_k = 2},
};

static void check_told(enum kernel_op op, enum work_kind kind, int thread_count)
{
    struct workload pair[2];
    struct seen seen;
    struct stage_total totals[DEVICE_STAGES];
    for (int i = 0; i < 2; i++)
        workload_create(&pair[i], op, &told_cases[i]);
    run_told(&seen, totals, pair, thread_count);
    cr_assert_eq(seen.node_count, 2);
    cr_assert_eq(seen.span_count, 2);
    for (int i = 0; i < 2; i++) {
        const struct stage_total *total = &totals[i == 0 ? STAGE_FIRST : STAGE_SECOND];
        const struct record_node *node = &seen.nodes[i];
        const struct trace_span *span = &seen.spans[i];
        cr_expect_str_eq(node->name, case_lists[op]->name);
        cr_expect_str_eq(span->name, case_lists[op]->name);
        cr_expect(node->work == kind && node->layer == 1 + i && span->layer == 1 + i);
        cr_expect(node->stage == (i == 0 ? STAGE_FIRST : STAGE_SECOND) &&
                  node->stage == span->stage && node->threads == thread_count);
        cr_expect(node->duration_ns > 0 && node->end_ns - node->begin_ns == node->duration_ns);
        cr_expect(span->end > span->begin && total->seconds > 0);
        cr_expect(total->weight_bytes > 0 && total->weight_bytes == span->bytes);
    }
    cr_expect_neq(totals[STAGE_FIRST].weight_bytes, totals[STAGE_SECOND].weight_bytes);
    cr_expect_gt(seen.nodes[0].flops, seen.nodes[1].flops);
    /* They ran at once, or one began behind the other's end. */
    if (thread_count > 1) {
        cr_expect_eq(seen.nodes[1].begin_ns, seen.nodes[0].end_ns);
        cr_expect_eq(seen.spans[1].begin, seen.spans[0].end);
    } else {
        cr_expect_gt(seen.spans[1].begin, seen.spans[0].end);
    }
    for (int i = 0; i < 2; i++)
        workload_destroy(&pair[i]);
}

Test(joined, each_has_its_time_its_weights_and_its_work)
{
    for (int threads = 1; threads <= 3; threads++) {
        check_told(OP_FFN_UP, WORK_FFN_UP, threads);
        check_told(OP_FFN_DOWN, WORK_FFN_DOWN, threads);
    }
}

/* The one with more work has more of the time, but where something else takes the CPU meanwhile: in
 * some of many tries, then. */
Test(joined, the_larger_has_more_of_the_time)
{
    static const struct kernel_case small = {.dtype = DTYPE_BF16,
                                             .token_count = 2,
                                             .rows = 16,
                                             .columns = 272,
                                             .expert_count = 1,
                                             .spread = SPREAD_DENSE};
    for (int place = 0; place < 2; place++) {
        struct workload pair[2];
        struct seen seen;
        struct stage_total totals[DEVICE_STAGES];
        int as_expected = 0;
        workload_create(&pair[place], OP_FFN_UP, &told_cases[0]);
        workload_create(&pair[1 - place], OP_FFN_UP, &small);
        for (int i = 0; i < 20; i++) {
            run_told(&seen, totals, pair, 2);
            as_expected += seen.nodes[place].duration_ns > seen.nodes[1 - place].duration_ns;
        }
        cr_expect_gt(as_expected, 5, "as number %d of two: %d", place, as_expected);
        for (int i = 0; i < 2; i++)
            workload_destroy(&pair[i]);
    }
}
