/* Every operation on the emulated GPU holds its contracts (tests/kernels/contracts.h): the same
 * cases and the same bounds as on the CPU, with the threads of a block in three orders; on a GPU
 * without matrix instructions for bf16, on one with them, and on one with them and more shared
 * memory, for which launchers choose other kernels. */
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

static const int capabilities[] = {75, 86, 90};
#define CAPABILITY_COUNT (int)(sizeof capabilities / sizeof *capabilities)

struct combination {
    int capability;
    enum kernel_op op;
};

ParameterizedTestParameters(cuda_operations, hold_their_contracts)
{
    static struct combination all[CAPABILITY_COUNT * OP_COUNT];
    for (int i = 0; i < CAPABILITY_COUNT * OP_COUNT; i++)
        all[i] = (struct combination){capabilities[i / OP_COUNT], (enum kernel_op)(i % OP_COUNT)};
    return cr_make_param_array(struct combination, all, CAPABILITY_COUNT * OP_COUNT);
}

ParameterizedTest(struct combination *of, cuda_operations, hold_their_contracts)
{
    cr_assert(simt_capability_set(of->capability));
    struct device *device = device_open(1);
    struct contract_ways ways = {.name = "cuda",
                                 .takes_pairs = CUDA_TAKES_PAIRS,
                                 .head_dim_pairs = of->capability >= 80 ? 128 : 0,
                                 .count = WAYS,
                                 .alone_count = 1,
                                 .prepare = prepare};
    for (int way = 0; way < WAYS; way++)
        ways.devices[way] = device;
    contracts_check(&ways, of->op);
    cr_assert_gt(simt_kernel_count() + (of->op == OP_COPY), 0);
    device_destroy(device);
    cr_assert_eq(simt_live_count(), 0);
}
