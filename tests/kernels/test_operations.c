/* Every operation on every set of kernels, over the shared table of cases:
 *   - against the reference (reference.h), with padding zero and everything else untouched;
 *   - bit for bit the same for 1, 2, 3 and 8 threads;
 *   - bit for bit the same for each row alone as for all rows together. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "checks.h"
#include "kernel_sets.h"

static struct device *device_open(const char *set, int thread_count)
{
    struct device *device;
    struct error err;
    struct cpu_share share = {.thread_count = thread_count, .first_cpu = -1};
    cr_assert_eq(device_cpu_create_with(&device, &share, set_find(set), &err), STATUS_OK);
    return device;
}

static check_fn *const checks[OP_COUNT] = {
    [OP_EMBED] = check_embed,
    [OP_RMS_NORM] = check_rms_norm,
    [OP_ADD] = check_add,
    [OP_MATMUL] = check_matmul,
    [OP_ROPE_APPEND] = check_rope_append,
    [OP_ATTENTION] = check_attention,
    [OP_ROUTE] = check_route,
    [OP_DISPATCH] = check_dispatch,
    [OP_GROUP] = check_group,
    [OP_FFN_UP] = check_ffn_up,
    [OP_FFN_DOWN] = check_ffn_down,
    [OP_COMBINE] = check_combine,
    [OP_SHARED_ADD] = check_shared_add,
    [OP_GATHER] = check_gather,
    [OP_DEQUANTIZE] = check_dequantize,
    [OP_COPY] = check_copy,
};

/* ---- Bit for bit --------------------------------------------------------------------------- */

struct bits {
    void *data[4];
};

static struct bits bits_take(const struct workload *w)
{
    struct bits bits = {{NULL}};
    for (int i = 0; i < w->output_count; i++) {
        bits.data[i] = memory_alloc_raw(w->outputs[i].bytes, 1);
        cr_assert_not_null(bits.data[i]);
        memcpy(bits.data[i], w->outputs[i].data, w->outputs[i].bytes);
    }
    return bits;
}

static void bits_check(const struct bits *bits, const struct workload *w, const char *name,
                       const char *how, int number)
{
    for (int i = 0; i < w->output_count; i++)
        cr_assert(memcmp(bits->data[i], w->outputs[i].data, w->outputs[i].bytes) == 0,
                  "%s: output %d differs with %s (%d)", name, i, how, number);
}

static void check_bits(struct workload *w, struct device *const devices[4], const char *name)
{
    workload_reset(w);
    workload_launch(w, devices[0]);
    struct bits bits = bits_take(w);
    for (int d = 1; d < 4; d++) {
        workload_reset(w);
        workload_launch(w, devices[d]);
        bits_check(&bits, w, name, "more threads", devices[d]->ops->host_workers(devices[d]));
    }
    for (int d = 0; w->row_count > 0 && d < 2; d++) {
        workload_reset(w);
        for (int64_t row = w->row_count - 1; row >= 0; row--)
            workload_launch_row(w, devices[d], row);
        bits_check(&bits, w, name, "each row alone", d + 1);
    }
    for (int i = 0; i < 4; i++)
        memory_free(bits.data[i]);
}

/* ---- Every set, every operation ------------------------------------------------------------ */

static void run_cases(const char *set, enum kernel_op op)
{
    struct device *devices[4];
    static const int thread_counts[4] = {1, 2, 3, 8};
    for (int d = 0; d < 4; d++)
        devices[d] = device_open(set, thread_counts[d]);
    int count = 0;
    for (size_t i = 0; i < case_lists[op].count; i++) {
        const struct kernel_case *c = &case_lists[op].cases[i];
        char name[256];
        int used = snprintf(name, sizeof name, "%s, case %zu: ", set, i);
        if (c->use != FOR_TEST)
            continue;
        struct workload workload;
        case_describe(name + used, sizeof name - (size_t)used, op, c);
        workload_create(&workload, op, c);
        workload.takes_pairs = set_find(set)->takes_pairs;
        checks[op](&workload, devices[0], name);
        check_bits(&workload, devices, name);
        workload_destroy(&workload);
        count++;
    }
    cr_assert_gt(count, 0);
    for (int d = 0; d < 4; d++)
        device_destroy(devices[d]);
}

struct combination {
    int set;
    enum kernel_op op;
};

ParameterizedTestParameters(operations, hold_their_contracts)
{
    static struct combination all[SET_COUNT * OP_COUNT];
    for (int i = 0; i < SET_COUNT * OP_COUNT; i++)
        all[i] = (struct combination){i / OP_COUNT, (enum kernel_op)(i % OP_COUNT)};
    return cr_make_param_array(struct combination, all, SET_COUNT * OP_COUNT);
}

ParameterizedTest(struct combination *of, operations, hold_their_contracts)
{
    if (set_find(set_names[of->set]) == NULL)
        cr_skip_test("this machine cannot run the %s kernels", set_names[of->set]);
    uint64_t live = memory_counters_get().live_count;
    run_cases(set_names[of->set], of->op);
    cr_assert_eq(memory_counters_get().live_count, live);
}
