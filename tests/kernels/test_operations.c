/* Every operation on every set of kernels holds its contracts (contracts.h), with 1, 2, 3 and 8
 * threads; with a sanitizer, which takes minutes for that, the quick tier has 2 and one other, by
 * the seed, and rows that run alone of every other case. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <limits.h>

#include "base/memory.h"
#include "contracts.h"
#include "kernel_devices.h"
#include "kernel_sets.h"
#include "sweep.h"

#define WAYS 4

#if defined(__SANITIZE_ADDRESS__)
#define QUICK_WAYS 2
#else
#define QUICK_WAYS WAYS
#endif

struct combination {
    int set;
    enum kernel_op op;
};

static void run_cases(const struct combination *of)
{
    static const int others[WAYS - 1] = {1, 3,
                                         8}; /* beside two threads, of which one comes and goes */
    const char *set = set_names[of->set];
    bool takes_pairs = set_find(set)->takes_pairs;
    int count = sweep_step(2) == 1 ? WAYS : QUICK_WAYS;
    uint64_t first = sweep_first(WAYS - 1), step = sweep_step(1);
    struct contract_ways ways = {.name = set,
                                 .takes_pairs = takes_pairs,
                                 .head_dim_pairs = takes_pairs ? INT_MAX : 0,
                                 .count = count,
                                 .alone_count = 2,
                                 .alone_first =
                                     (int)(((uint64_t)of->set + sweep_first(step)) % step),
                                 .alone_step = (int)step};
    ways.devices[0] = kernel_device_open(set, 2);
    for (int d = 1; d < count; d++)
        ways.devices[d] = kernel_device_open(set, others[(first + (uint64_t)d) % (WAYS - 1)]);
    contracts_check(&ways, of->op);
    if (of->op == OP_MATMUL || of->op == OP_FFN_UP || of->op == OP_FFN_DOWN)
        cr_assert_gt(kernel_device_leaves(), 0);
    for (int d = 0; d < ways.count; d++)
        device_destroy(ways.devices[d]);
}

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
    run_cases(of);
    cr_assert_eq(memory_counters_get().live_count, live);
}
