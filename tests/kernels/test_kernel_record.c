/* What a recording (base/record.h) is told of each operation of a CPU device. */
#include <criterion/criterion.h>
#include <string.h>

#include "base/record.h"
#include "base/trace.h"
#include "layout/work.h"
#include "workload.h"

static const enum work_kind kinds[OP_COUNT] = {
    [OP_EMBED] = WORK_ROWS,      [OP_RMS_NORM] = WORK_ROWS,         [OP_ADD] = WORK_ROWS,
    [OP_MATMUL] = WORK_MATMUL,   [OP_ROPE_APPEND] = WORK_ROWS,      [OP_ATTENTION] = WORK_ATTENTION,
    [OP_ROUTE] = WORK_ROWS,      [OP_DISPATCH] = WORK_ROWS,         [OP_GROUP] = WORK_ROWS,
    [OP_FFN_UP] = WORK_FFN_UP,   [OP_FFN_DOWN] = WORK_FFN_DOWN,     [OP_COMBINE] = WORK_ROWS,
    [OP_SHARED_ADD] = WORK_ROWS, [OP_CHOOSE] = WORK_ROWS,           [OP_CANDIDATES] = WORK_ROWS,
    [OP_GATHER] = WORK_ROWS,     [OP_DEQUANTIZE] = WORK_DEQUANTIZE, [OP_FILL] = WORK_ROWS,
};

/* The nodes of all lanes, and the last one. */
struct seen {
    size_t count;
    struct record_node node;
};

static void see(void *context, const struct record_lane_view *lane)
{
    struct seen *seen = context;
    seen->count += lane->node_count;
    if (lane->node_count > 0)
        seen->node = *record_node_at(lane, lane->node_count - 1);
}

/* The first case of a test that has something to do. */
static const struct kernel_case *case_of(enum kernel_op op)
{
    const struct case_list *list = case_lists[op];
    for (size_t i = 0; i < list->count; i++) {
        const struct kernel_case *c = &list->cases[i];
        bool is_ffn = op == OP_FFN_UP || op == OP_FFN_DOWN;
        if ((c->token_count > 0 && c->expert_count >= is_ffn) || c->segments[0].token_count > 0 ||
            op == OP_DEQUANTIZE || ((op == OP_COPY || op == OP_FILL) && c->row_bytes > 0))
            return c;
    }
    return NULL;
}

Test(kernel_record, of_each_operation)
{
    for (int op = 0; op < OP_COUNT; op++) {
        struct trace *trace;
        struct device *device;
        struct workload w;
        struct error err;
        struct seen seen = {0};
        cr_assert_eq(trace_create(&trace, &err), STATUS_OK);
        struct cpu_share share = {.thread_count = 1, .first_cpu = -1, .trace = trace};
        cr_assert_eq(device_cpu_create(&device, &share, &err), STATUS_OK);
        workload_create(&w, (enum kernel_op)op, case_of((enum kernel_op)op));
        record_start(trace, 1 << 20);
        workload_launch(&w, device);
        cr_assert_eq(record_stop(trace), RECORD_WHOLE);
        record_look(trace, see, &seen);
        cr_assert_eq(seen.count, 1, "%s", case_lists[op]->name);
        cr_assert_str_eq(seen.node.name, case_lists[op]->name);
        cr_assert_eq(seen.node.kind, op == OP_COPY ? RECORD_NODE_COPY : RECORD_NODE_COMPUTE);
        cr_assert(op == OP_COPY || seen.node.work == kinds[op], "%s", case_lists[op]->name);
        cr_assert_gt(seen.node.bytes, 0, "%s", case_lists[op]->name);
        bool multiplies = kinds[op] == WORK_MATMUL || kinds[op] == WORK_ATTENTION ||
                          kinds[op] == WORK_FFN_UP || kinds[op] == WORK_FFN_DOWN;
        cr_assert(!multiplies || seen.node.flops > 0, "%s", case_lists[op]->name);
        workload_destroy(&w);
        device_destroy(device);
        trace_destroy(trace);
    }
}

#define COPY_BYTES (3 << 20) /* so much that it lies in huge pages */

static struct record_node copy_recorded(struct trace *trace, struct device *device, void *out,
                                        const void *in)
{
    struct seen seen = {0};
    struct error err;
    record_start(trace, 1 << 20);
    device->ops->copy(device->stream, &(struct op_copy){.out = out, .in = in, .bytes = COPY_BYTES});
    cr_assert_eq(device->ops->synchronize(device->stream, &err), STATUS_OK);
    cr_assert_eq(record_stop(trace), RECORD_WHOLE);
    record_look(trace, see, &seen);
    cr_assert_eq(seen.count, 1);
    return seen.node;
}

/* Between host and device it is a copy, in one direction; within the device it is work. */
Test(kernel_record, of_copies)
{
    struct trace *trace;
    struct device *device;
    struct error err;
    void *host, *one, *other;
    cr_assert_eq(trace_create(&trace, &err), STATUS_OK);
    struct cpu_share share = {.thread_count = 1, .first_cpu = -1, .trace = trace};
    cr_assert_eq(device_cpu_create(&device, &share, &err), STATUS_OK);
    const struct device_ops *ops = device->ops;
    cr_assert_eq(ops->host_memory_get(device, &host, COPY_BYTES, "a test", &err), STATUS_OK);
    cr_assert_eq(ops->memory_get(device, &one, COPY_BYTES, "a test", &err), STATUS_OK);
    cr_assert_eq(ops->memory_get(device, &other, COPY_BYTES, "a test", &err), STATUS_OK);
    memset(host, 1, COPY_BYTES);
    struct record_node node = copy_recorded(trace, device, one, host);
    cr_assert(node.kind == RECORD_NODE_COPY && !node.to_host && node.bytes == COPY_BYTES);
    node = copy_recorded(trace, device, other, one);
    cr_assert(node.kind == RECORD_NODE_COMPUTE && node.work == WORK_ROWS);
    cr_assert_eq(node.bytes, 2 * COPY_BYTES);
    node = copy_recorded(trace, device, host, other);
    cr_assert(node.kind == RECORD_NODE_COPY && node.to_host && node.bytes == COPY_BYTES);
    ops->host_memory_free(device, host);
    ops->memory_free(device, one);
    ops->memory_free(device, other);
    device_destroy(device);
    trace_destroy(trace);
}
