/* Every operation on every set of kernels holds its contracts (contracts.h), with 1, 2, 3 and 8
 * threads. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <limits.h>

#include "base/memory.h"
#include "contracts.h"
#include "kernel_sets.h"

static struct device *device_open(const char *set, int thread_count)
{
    struct device *device;
    struct error err;
    struct cpu_share share = {.thread_count = thread_count, .first_cpu = -1};
    cr_assert_eq(device_cpu_create_with(&device, &share, set_find(set), &err), STATUS_OK);
    return device;
}

static void run_cases(const char *set, enum kernel_op op)
{
    static const int thread_counts[] = {1, 2, 3, 8};
    bool takes_pairs = set_find(set)->takes_pairs;
    struct contract_ways ways = {.name = set,
                                 .takes_pairs = takes_pairs,
                                 .head_dim_pairs = takes_pairs ? INT_MAX : 0,
                                 .count = 4,
                                 .alone_count = 2};
    for (int d = 0; d < ways.count; d++)
        ways.devices[d] = device_open(set, thread_counts[d]);
    contracts_check(&ways, op);
    for (int d = 0; d < ways.count; d++)
        device_destroy(ways.devices[d]);
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
