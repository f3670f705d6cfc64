/* Launches at their ends: values that are no numbers, shapes that no kernel takes, nothing to do,
 * and calls of the runtime that fail. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "checks.h"
#include "cuda_tools.h"
#include "kernels/cuda/launch.h"
#include "simt_control.h"

TestSuite(cuda_launch, .timeout = 300);

Test(cuda_launch, of_numbers_at_their_ends)
{
    struct device *device;
    cr_assert(simt_capability_set(75)); /* where INT4 is multiplied in whole numbers */
    device = device_open(1);
    check_fixed_point(device, "cuda");
    check_fixed_point_ends(device, "cuda");
    check_damaged_logits(device, "cuda");
    device_destroy(device);
}

Test(cuda_launch, of_a_build_with_cuda)
{
    struct device *device = device_open(1);
    cr_expect(device_cuda_is_built());
    cr_expect_gt(device->ops->stream_bytes(), 0);
    device_destroy(device);
}

/* What the device itself does not put on a stream. */
Test(cuda_launch, of_nothing_launches_nothing)
{
    const struct cuda_launch launch = {.multiprocessors = 4, .capability = 75};
    const struct cuda_segments none = {0};
    const struct ffn_weights weights = {.gate = {.dtype = DTYPE_F32}, .down = {.dtype = DTYPE_F32}};
    const struct op_dequantize no_rows = {.in = {.columns = 16}}, no_columns = {.in = {.rows = 16}};
    uint64_t count = simt_kernel_count();
    cr_assert_eq(cuda_sum(&launch, &(struct cuda_sum){.in_count = 1}), cudaSuccess);
    cr_assert_eq(cuda_rope_append(&launch, &(struct op_rope_append){0}, &none), cudaSuccess);
    cr_assert_eq(cuda_attention(&launch, &(struct op_attention){0}, &none), cudaSuccess);
    cr_assert_eq(cuda_dispatch(&launch, &(struct op_dispatch){0}), cudaSuccess);
    cr_assert_eq(cuda_ffn_up(&launch, &(struct op_ffn_up){0}, &weights), cudaSuccess);
    cr_assert_eq(cuda_ffn_down(&launch, &(struct op_ffn_down){0}, &weights), cudaSuccess);
    cr_assert_eq(cuda_dequantize(&launch, &no_rows), cudaSuccess);
    cr_assert_eq(cuda_dequantize(&launch, &no_columns), cudaSuccess);
    cr_assert_eq(simt_kernel_count(), count);
}

/* Runs the case on a GPU of that kind while the runtime's n-th call fails (0: none does), and on
 * the stream as it is then; the status is that of the stream. `came`, if not NULL: whether there
 * were so many calls. */
static enum status run_failing(int capability, enum kernel_op op, const struct kernel_case *c,
                               uint64_t n, bool *came, struct error *err)
{
    struct workload w;
    cr_assert(simt_capability_set(capability));
    struct device *device = device_open(1);
    workload_create(&w, op, c);
    simt_fail_at(n, cudaErrorUnknown);
    workload_put(&w, device);
    enum status status = device->ops->synchronize(device->stream, err);
    if (came != NULL)
        *came = !simt_fail_is_ahead();
    simt_fail_at(0, cudaSuccess);
    device_destroy(device);
    workload_destroy(&w);
    cr_assert_eq(simt_live_count(), 0);
    return status;
}

Test(cuda_launch, of_heads_that_are_too_large)
{
    const struct kernel_case c = {
        .head_count = 1, .kv_head_count = 1, .head_dim = 528, .segments = {{2, 3}}};
    struct error err;
    cr_assert_eq(run_failing(90, OP_ATTENTION, &c, 0, NULL, &err), STATUS_IO);
    cr_assert_str_eq(err.message, "cuda_attention on cuda:0: emulated (an emulated error)");
    cr_assert_eq(run_failing(90, OP_ROPE_APPEND, &c, 0, NULL, &err), STATUS_IO);
    cr_assert_str_eq(err.message, "cuda_rope_append on cuda:0: emulated (an emulated error)");
}

struct attempt {
    int capability;
    enum kernel_op op;
    struct kernel_case of;
};

/* Of the kernels that ask for more shared memory than 48 KiB, or are two. */
static const struct attempt attempts[] = {
    {90,
     OP_ATTENTION,
     {.dtype = DTYPE_BF16,
      .head_count = 2,
      .kv_head_count = 1,
      .head_dim = 16,
      .segments = {{3, 5}}}},
    {90,
     OP_ATTENTION,
     {.dtype = DTYPE_BF16,
      .head_count = 2,
      .kv_head_count = 1,
      .head_dim = 128,
      .segments = {{1, 600}}}},
    {75,
     OP_ATTENTION,
     {.dtype = DTYPE_F32,
      .head_count = 2,
      .kv_head_count = 1,
      .head_dim = 16,
      .segments = {{1, 600}}}},
    {86,
     OP_ATTENTION,
     {.dtype = DTYPE_BF16,
      .head_count = 2,
      .kv_head_count = 1,
      .head_dim = 16,
      .segments = {{3, 5}}}},
    {90, OP_MATMUL, {.dtype = DTYPE_BF16, .token_count = 3, .rows = 16, .columns = 16}},
    {80, OP_MATMUL, {.dtype = DTYPE_BF16, .token_count = 40, .rows = 16, .columns = 16}},
    {80, OP_MATMUL, {.dtype = DTYPE_INT4, .token_count = 40, .rows = 16, .columns = 16}},
    {75,
     OP_FFN_UP,
     {.dtype = DTYPE_INT4,
      .token_count = 3,
      .rows = 16,
      .columns = 14592,
      .expert_count = 1,
      .spread = SPREAD_DENSE}},
};

Test(cuda_launch, each_call_of_the_runtime_may_fail)
{
    for (size_t i = 0; i < sizeof attempts / sizeof *attempts; i++) {
        const struct attempt *a = &attempts[i];
        struct error err;
        bool came = true;
        uint64_t n;
        for (n = 1; came; n++) {
            enum status status = run_failing(a->capability, a->op, &a->of, n, &came, &err);
            cr_assert_eq(status, came ? STATUS_IO : STATUS_OK, "%d, %d", (int)i, (int)n);
            cr_assert(!came || strstr(err.message, "on cuda:0: emulated") != NULL, "%s",
                      err.message);
        }
        cr_assert_gt(n, 4, "%d", (int)i); /* for the shared memory, the kernel, and the wait */
    }
}

/* More columns than a block has shared memory for is an error, not a wrong sum. */
Test(cuda_launch, of_more_columns_than_shared_memory_holds)
{
    struct kernel_case c = attempts[sizeof attempts / sizeof *attempts - 1].of;
    struct error err;
    c.columns = 32 << 10;
    cr_assert_eq(run_failing(75, OP_FFN_UP, &c, 0, NULL, &err), STATUS_IO);
    cr_assert_str_eq(err.message, "cuda_ffn_up on cuda:0: emulated (an emulated error)");
}

/* ---- Memory of a stream that goes while kernels read it ---------------------------------------
 */

/* What the workload writes when it runs alone. */
static void *alone_new(struct workload *w, struct device *device)
{
    void *out = memory_alloc(w->outputs[0].bytes, 1);
    workload_launch(w, device);
    memcpy(out, w->outputs[0].data, w->outputs[0].bytes);
    workload_reset(w);
    return out;
}

static void check_alone(const struct workload *w, void *alone)
{
    cr_assert_eq(memcmp(alone, w->outputs[0].data, w->outputs[0].bytes), 0);
    memory_free(alone);
}

/* Chunks of a context stand in scratch memory, which a longer context makes larger. */
Test(cuda_launch, of_a_context_behind_a_shorter_one)
{
    struct kernel_case short_case = {.dtype = DTYPE_F32,
                                     .head_count = 2,
                                     .kv_head_count = 1,
                                     .head_dim = 16,
                                     .segments = {{1, 600}}};
    struct kernel_case long_case = short_case;
    long_case.segments[0].first_position = 2000;
    struct workload of_short, of_long;
    struct device *first = device_open(1), *device = device_open(1);
    workload_create(&of_short, OP_ATTENTION, &short_case);
    workload_create(&of_long, OP_ATTENTION, &long_case);
    void *alone = alone_new(&of_short, first);
    simt_free_waits_set(false);
    workload_put(&of_short, device);
    workload_put(&of_long, device);
    synchronize_ok(device, device->stream);
    check_alone(&of_short, alone);
    workload_destroy(&of_short);
    workload_destroy(&of_long);
    device_destroy(first);
    device_destroy(device);
    cr_assert_eq(simt_live_count(), 0);
}

/* A chunk's rows that do not fit one block's shared memory are those of two: the same bits. */
Test(cuda_launch, of_rows_in_one_block_or_two)
{
    struct kernel_case c = {.dtype = DTYPE_BF16,
                            .head_count = 14,
                            .kv_head_count = 1,
                            .head_dim = 128,
                            .segments = {{1, 1700}, {1, 70}}};
    struct workload w;
    workload_create(&w, OP_ATTENTION, &c);
    cr_assert(simt_capability_set(80));
    struct device *one = device_open(1);
    void *alone = alone_new(&w, one);
    cr_assert(simt_capability_set(86));
    struct device *two = device_open(1);
    workload_launch(&w, two);
    check_alone(&w, alone);
    workload_destroy(&w);
    device_destroy(one);
    device_destroy(two);
    cr_assert_eq(simt_live_count(), 0);
}

/* A stream is destroyed with all that is on it still to run, which reads what was sent to it. */
Test(cuda_launch, of_what_a_stream_has_not_run_when_it_goes)
{
    struct kernel_case c = {.dtype = DTYPE_F32,
                            .token_count = 5,
                            .rows = 32,
                            .columns = 16,
                            .expert_count = 3,
                            .top_k = 2};
    struct workload w;
    struct device *first = device_open(1), *device = device_open(1);
    workload_create(&w, OP_FFN_UP, &c);
    void *alone = alone_new(&w, first);
    simt_free_waits_set(false);
    workload_put(&w, device);
    device_destroy(device);
    check_alone(&w, alone);
    workload_destroy(&w);
    device_destroy(first);
    cr_assert_eq(simt_live_count(), 0);
}
