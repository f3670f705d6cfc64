/* Every operation on a GPU holds its contracts (tests/kernels/contracts.h): the same cases and the
 * same bounds as on the CPU. On emulated ones with the threads of a block in three orders; with
 * matrix instructions for fp16, Volta's and Turing's, for bf16, and for that and more shared
 * memory: launchers choose other kernels for each.
 *
 * Scripts ask for less: with PHASOR_TEST_ONCE each case runs once, and no row alone;
 * PHASOR_TEST_ONLY="86:matmul 75:group" names the combinations. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checks.h"
#include "contracts.h"
#include "cuda_tools.h"
#include "kernels/cuda/launch.h"
#include "sweep.h"

/* In order, in reverse, and drawn; each time by another seed. */
#define WAYS 3

/* All take a quarter of an hour: the quick tier takes two, by the seed, and with a sanitizer one.
 * Most of the time of emulated GPUs is that of rows that run alone: the quick tier has them in one
 * case of some, by the seed, another one for each combination. Real ones have all. */
#if defined(__SANITIZE_ADDRESS__)
#define QUICK_WAYS 1
#elif defined(SIMT_HOST)
#define QUICK_WAYS 2
#else
#define QUICK_WAYS WAYS
#endif
#if defined(SIMT_HOST)
#define ALONE_STEP 12
#else
#define ALONE_STEP 1
#endif

static void prepare(int way)
{
    static uint64_t seed;
    uint64_t first = getenv("PHASOR_TEST_ONCE") != NULL ? 0 : sweep_first(WAYS); /* by the seed */
    gpu_order_use((enum gpu_order)((first + (uint64_t)way) % WAYS), ++seed % 6);
}

static int way_count(void)
{
    if (getenv("PHASOR_TEST_ONCE") != NULL)
        return 1;
    return sweep_step(2) == 1 ? WAYS : QUICK_WAYS;
}

static const int capabilities[] = {70, 75, 86, 90};
#define CAPABILITY_COUNT (int)(sizeof capabilities / sizeof *capabilities)

struct combination {
    int capability;
    enum kernel_op op;
};

/* What sm_80 alone does, as its blocks have more shared memory than sm_86's, and products of many
 * rows go another way on sm_90. */
static const struct combination further[] = {{80, OP_MATMUL}, {80, OP_FFN_UP}, {80, OP_FFN_DOWN}};
#define FURTHER_COUNT (int)(sizeof further / sizeof *further)

ParameterizedTestParameters(cuda_operations, hold_their_contracts)
{
    static struct combination all[CAPABILITY_COUNT * OP_COUNT + FURTHER_COUNT];
    int count = CAPABILITY_COUNT * OP_COUNT;
    for (int i = 0; i < count; i++)
        all[i] = (struct combination){capabilities[i / OP_COUNT], (enum kernel_op)(i % OP_COUNT)};
    memcpy(all + count, further, sizeof further);
    return cr_make_param_array(struct combination, all, count + FURTHER_COUNT);
}

static bool is_wanted(const struct combination *of)
{
    const char *only = getenv("PHASOR_TEST_ONLY");
    char name[64], list[1024];
    snprintf(name, sizeof name, " %d:%s ", of->capability, case_lists[of->op]->name);
    snprintf(list, sizeof list, " %s ", only == NULL ? "" : only);
    return only == NULL || strstr(list, name) != NULL;
}

/* With a sanitizer the quick tier takes every other one. */
static bool is_of_seed(const struct combination *of)
{
    uint64_t step = sweep_step(1), number = (uint64_t)of->op + (uint64_t)of->capability / 5;
    return getenv("PHASOR_TEST_ONLY") != NULL || number % step == sweep_first(step) - 1;
}

ParameterizedTest(struct combination *of, cuda_operations, hold_their_contracts)
{
    if (!is_wanted(of))
        cr_skip_test("PHASOR_TEST_ONLY names others");
    if (!is_of_seed(of))
        cr_skip_test("another seed takes it");
    int capability = gpu_capability_use(of->capability);
    if (capability == 0)
        cr_skip_test("the GPU is of another kind");
    struct device *device = device_open(1);
    uint64_t step = sweep_step(ALONE_STEP);
    struct contract_ways ways = {
        .name = "cuda",
        .takes_pairs = capability >= CUDA_BF16_CAPABILITY,
        .takes_halves = capability < CUDA_BF16_CAPABILITY,
        .widens_int4 = capability >= CUDA_BF16_CAPABILITY,
        .head_dim_pairs = capability >= CUDA_BF16_CAPABILITY ? 128 : 0,
        .count = way_count(),
        .alone_count = getenv("PHASOR_TEST_ONCE") == NULL,
        .alone_first =
            (int)((sweep_first(step) + (uint64_t)of->op + (uint64_t)of->capability / 5) % step),
        .alone_step = (int)step,
        .prepare = prepare};
    for (int way = 0; way < WAYS; way++)
        ways.devices[way] = device;
    contracts_check(&ways, of->op);
    gpu_check_kernels(of->op == OP_COPY || of->op == OP_FILL ? 0 : 1);
    device_destroy(device);
    gpu_check_nothing_left();
}

/* In a suite of its own: it is no combination that PHASOR_TEST_ONLY names. */
TestSuite(cuda_sizes, .timeout = 300);

Test(cuda_sizes, inputs_and_weights_of_any_size)
{
    for (int i = 0; i < CAPABILITY_COUNT; i++) {
        struct error err;
        struct device *device;
        char name[32];
        int found = gpu_capability_use(capabilities[i]);
        if (found == 0)
            continue;
        snprintf(name, sizeof name, "cuda, sm_%d", found);
        cr_assert_eq(device_cuda_create(&device, &(struct gpu_share){.ordinal = 0}, &err),
                     STATUS_OK, "%s", err.message);
        check_rows_of_any_size(device, found < CUDA_BF16_CAPABILITY, name);
        check_weights_of_any_size(device, found < CUDA_BF16_CAPABILITY, name);
        device_destroy(device);
    }
    gpu_check_nothing_left();
}
