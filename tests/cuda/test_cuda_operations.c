/* Every operation on the emulated GPU holds its contracts (tests/kernels/contracts.h): the same
 * cases and the same bounds as on the CPU, with the threads of a block in three orders. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>

#include "contracts.h"
#include "cuda_tools.h"
#include "kernels/cuda/launch.h"

/* In order, in reverse, and drawn; each time by another seed. */
#define WAYS 3

static void prepare(int way)
{
    static uint64_t seed;
    simt_order_set((enum simt_order)way, ++seed);
    simt_stream_seed_set(seed % 6);
}

ParameterizedTestParameters(cuda_operations, hold_their_contracts)
{
    static enum kernel_op all[OP_COUNT];
    for (int op = 0; op < OP_COUNT; op++)
        all[op] = (enum kernel_op)op;
    return cr_make_param_array(enum kernel_op, all, OP_COUNT);
}

ParameterizedTest(enum kernel_op *op, cuda_operations, hold_their_contracts)
{
    struct device *device = device_open(1);
    struct contract_ways ways = {.name = "cuda",
                                 .takes_pairs = CUDA_TAKES_PAIRS,
                                 .count = WAYS,
                                 .alone_count = 1,
                                 .prepare = prepare};
    for (int way = 0; way < WAYS; way++)
        ways.devices[way] = device;
    contracts_check(&ways, *op);
    cr_assert_gt(simt_kernel_count() + (*op == OP_COPY), 0);
    device_destroy(device);
    cr_assert_eq(simt_live_count(), 0);
}
