/* Memory that a stream has for what its operations leave to each other. */
#include <criterion/criterion.h>
#include <string.h>

#include "base/memory.h"
#include "cuda_tools.h"
#include "device/peers.h"
#include "kernels/cuda/launch.h"
#include "simt_control.h"
#include "workload.h"

TestSuite(cuda_scratch, .timeout = 300);

struct scratch {
    struct device *device;
    void *got[4];
};

static enum status scratch_get(void *argument, struct error *err)
{
    static const size_t bytes[4] = {1000, 1001, 2000, 5000};
    struct scratch *scratch = *(struct scratch **)argument;
    for (int i = 0; i < 4; i++)
        TRY(scratch->device->ops->peers->scratch(scratch->device->stream, bytes[i],
                                                 &scratch->got[i], err));
    return STATUS_OK;
}

/* What grows by a little each time is not got anew each time: the GPU is waited for then. */
Test(cuda_scratch, scratch_memory_is_doubled)
{
    struct scratch scratch = {.device = device_open(1)}, *argument = &scratch;
    uint64_t waits = gpu_waits();
    scratch.device->ops->peers->call(scratch.device->stream, scratch_get, &argument,
                                     sizeof argument);
    synchronize_ok(scratch.device, scratch.device->stream);
    cr_expect_neq(scratch.got[1], scratch.got[0]);
    cr_expect_eq(scratch.got[2], scratch.got[1]);
    cr_expect_neq(scratch.got[3], scratch.got[2]);
    cr_expect_eq(gpu_waits() - waits, 3 + 1);
    device_destroy(scratch.device);
    gpu_check_nothing_left();
}

struct refused {
    struct device *device;
    uint64_t call; /* of the runtime, of those of the second */
    bool was_refused;
};

static enum status refused_get(void *argument, struct error *err)
{
    struct refused *refused = *(struct refused **)argument;
    struct stream *stream = refused->device->stream;
    const struct peer_ops *peers = refused->device->ops->peers;
    void *got;
    TRY(peers->scratch(stream, 1000, &got, err));
    simt_fail_at(refused->call, cudaErrorMemoryAllocation);
    enum status status = peers->scratch(stream, 1001, &got, err);
    refused->was_refused = !simt_fail_is_ahead();
    simt_fail_at(0, cudaSuccess);
    return status;
}

/* Where twice as much is not to be had, what is asked for may be: one call may fail. */
Test(cuda_scratch, that_cannot_be_doubled)
{
    int spared = 0;
    struct refused refused = {.was_refused = true}, *argument = &refused;
    for (refused.call = 1; refused.was_refused; refused.call++) {
        struct error err = {.message = ""};
        refused.device = device_open(1);
        struct stream *stream = refused.device->stream;
        refused.device->ops->peers->call(stream, refused_get, &argument, sizeof argument);
        enum status status = refused.device->ops->synchronize(stream, &err);
        spared += refused.was_refused && status == STATUS_OK;
        cr_expect(refused.was_refused || status == STATUS_OK);
        device_destroy(refused.device);
    }
    cr_expect_eq(spared, 1);
    gpu_check_nothing_left();
}

#define GPU_BYTES ((size_t)16 << 30) /* of the emulated ones */
#define MIB       ((size_t)1 << 20)

struct larger {
    struct device *device;
    size_t left;     /* of the GPU, beside the first MiB of scratch */
    bool is_refused; /* 5 MiB then */
};

static enum status larger_get(void *argument, struct error *err)
{
    struct larger *larger = *(struct larger **)argument;
    struct stream *stream = larger->device->stream;
    const struct peer_ops *peers = larger->device->ops->peers;
    struct error said = {.message = ""};
    void *got;
    size_t left, all;
    TRY(peers->scratch(stream, MIB, &got, err));
    cr_assert_eq(cudaMemGetInfo(&left, &all), cudaSuccess);
    simt_global_bytes_set(all - left + larger->left);
    enum status status = peers->scratch(stream, 5 * MIB, &got, &said);
    cr_expect_eq(status, larger->is_refused ? STATUS_NO_MEMORY : STATUS_OK, "%zu left",
                 larger->left);
    cr_expect(!larger->is_refused || strstr(said.message, "cudaMalloc") != NULL);
    uint64_t pieces = gpu_pieces();
    TRY(peers->scratch(stream, larger->is_refused ? MIB : 5 * MIB, &got, err));
    cr_expect_eq(gpu_pieces(), pieces, "it was not there any more");
    simt_global_bytes_set(GPU_BYTES);
    return STATUS_OK;
}

/* Where there is no room beside what there is, that goes first; and where more is refused, what
 * there was is got again: operations that need no more go on. */
Test(cuda_scratch, that_cannot_grow_stays)
{
    static const struct larger cases[] = {
        {.left = 6 * MIB}, {.left = 9 * MIB / 2}, {.left = 3 * MIB, .is_refused = true}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct larger larger = cases[c], *argument = &larger;
        larger.device = device_open(1);
        larger.device->ops->peers->call(larger.device->stream, larger_get, &argument,
                                        sizeof argument);
        synchronize_ok(larger.device, larger.device->stream);
        device_destroy(larger.device);
    }
    gpu_check_nothing_left();
}

static const struct kernel_case *many_rows_case(void)
{
    const struct case_list *list = case_lists[OP_MATMUL];
    for (size_t i = 0; i < list->count; i++) {
        const struct kernel_case *c = &list->cases[i];
        if (c->use == FOR_TEST && c->dtype == DTYPE_BF16 && c->token_count > 64)
            return c;
    }
    cr_assert_fail("no case has so many rows");
    return NULL;
}

/* Products of many rows go another way without it, to the same bits. */
Test(cuda_scratch, that_products_do_without)
{
    struct workload w;
    int without = 0;
    bool is_over = false;
    gpu_capability_use(90);
    workload_create(&w, OP_MATMUL, many_rows_case());
    void *expected = memory_alloc(w.outputs[0].bytes, 1);
    for (uint64_t call = 0; !is_over; call++) { /* none, then each fails in turn */
        struct error err;
        struct device *device = device_open(1);
        workload_reset(&w);
        simt_fail_at(call, cudaErrorMemoryAllocation);
        workload_put(&w, device);
        enum status status = device->ops->synchronize(device->stream, &err);
        is_over = call > 0 && simt_fail_is_ahead();
        simt_fail_at(0, cudaSuccess);
        if (call == 0)
            memcpy(expected, w.outputs[0].data, w.outputs[0].bytes);
        else if (status == STATUS_OK)
            cr_assert_eq(memcmp(w.outputs[0].data, expected, w.outputs[0].bytes), 0, "call %d",
                         (int)call);
        without += call > 0 && !is_over && status == STATUS_OK;
        device_destroy(device);
    }
    cr_assert_gt(without, 0);
    memory_free(expected);
    workload_destroy(&w);
    gpu_check_nothing_left();
}

/* Of a block that opts in, on real GPUs. */
static int shared_bytes(int capability)
{
    static const struct {
        int capability, kib;
    } kinds[] = {{70, 96}, {75, 64}, {80, 163}, {86, 99}, {89, 99}, {90, 227}};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        if (kinds[k].capability == capability)
            return kinds[k].kib << 10;
    }
    cr_assert_fail("there is no such GPU");
    return 0;
}

/* No plan counts it: however many sequences there are, and however long the longest. */
Test(cuda_scratch, of_attention_is_little)
{
    static const struct {
        int64_t segments, heads, kv_heads, positions;
        int capability;
    } cases[] = {{256, 64, 8, 131072, 90}, {256, 64, 8, 131072, 75}, {1000, 32, 8, 4096, 86},
                 {3, 64, 8, 131072, 90},   {1, 64, 8, 131072, 70},   {17, 16, 8, 1024, 80},
                 {1, 64, 4, 131072, 86},   {1, 64, 4, 131072, 89},   {9, 13, 1, 131072, 86}};
    static const struct segment segments[1000];
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        int64_t heads = cases[c].heads, count = cases[c].segments;
        const struct cuda_launch launch = {.multiprocessors = 132,
                                           .capability = cases[c].capability,
                                           .shared_bytes_max = shared_bytes(cases[c].capability)};
        const struct op_attention op = {
            .qkv = {.head_count = heads, .kv_head_count = cases[c].kv_heads},
            .kv = {.dtype = DTYPE_BF16, .kv_head_count = cases[c].kv_heads, .head_dim = 128},
            .segments = segments,
            .segment_count = count};
        int64_t chunks = ceil_div(cases[c].positions, CUDA_POSITIONS_STEP);
        const struct cuda_segments sum = {count, 1, cases[c].positions, count * chunks};
        size_t got = cuda_attention_scratch(&launch, &op, &sum);
        size_t all = (size_t)(count * heads * chunks) * (128 + 2) * sizeof(float);
        cr_expect_leq(got, 16 * MIB, "case %zu: %zu", c, got);
        cr_expect_geq(got, all < 16 * MIB ? all : 5 * MIB, "case %zu: %zu", c, got);
    }
}

static void *memory_of(struct device *device, int64_t bytes)
{
    struct error err;
    void *out;
    cr_assert_eq(device->ops->memory_get(device, &out, (size_t)bytes, "a test", &err), STATUS_OK,
                 "%s", err.message);
    return out;
}

/* How many kernels attend to a token of each of 256 sequences, one of which is long. The window
 * spares the emulation most of its context; what stands in memory does not matter. */
static uint64_t kernels_beside(struct device *device, int64_t positions)
{
    static const int32_t pages[2048];
    struct segment segments[256];
    int64_t heads = 64, kv_heads = 8, dim = 128, stride = (heads + 2 * kv_heads) * dim;
    struct op_attention op = {
        .out_stride = heads * dim,
        .qkv = {.stride = stride, .head_count = heads, .kv_head_count = kv_heads, .head_dim = dim},
        .kv = {.dtype = DTYPE_BF16, .kv_head_count = kv_heads, .head_dim = dim},
        .window = 1,
        .segments = segments,
        .segment_count = 256};
    for (int64_t s = 0; s < 256; s++)
        segments[s] = (struct segment){s, 1, s == 77 ? positions - 1 : 900 + s, pages};
    void *memory[] = {memory_of(device, 256 * heads * dim * 4), memory_of(device, 256 * stride * 4),
                      memory_of(device, kv_page_values(&op.kv) * 2),
                      memory_of(device, kv_page_values(&op.kv) * 2)};
    op.out = memory[0];
    op.qkv.values = memory[1];
    op.kv.keys = memory[2];
    op.kv.values = memory[3];
    uint64_t before = simt_kernel_count();
    device->ops->attention(device->stream, &op);
    synchronize_ok(device, device->stream);
    uint64_t count = simt_kernel_count() - before;
    for (int i = 0; i < 4; i++)
        device->ops->memory_free(device, memory[i]);
    return count;
}

/* What is launched goes by what there is, not by the longest context for each sequence. */
Test(cuda_scratch, of_a_long_context_beside_many)
{
    cr_assert(simt_capability_set(90));
    struct device *device = device_open(1);
    uint64_t count = kernels_beside(device, 131072);
    cr_expect_leq(count, 8, "%d kernels", (int)count);
    device_destroy(device);
    gpu_check_nothing_left();
}

/* A segment by itself, which is never cut, has the bits that it has of `all`. */
static void check_alone(struct workload *w, struct device *device, const void *all, int64_t s)
{
    const struct op_attention *op = &w->attention;
    struct op_attention one = *op;
    int64_t at = op->segments[s].first_row * op->out_stride;
    size_t bytes = (size_t)(op->qkv.head_count * op->kv.head_dim) * sizeof(float);
    one.segments += s;
    one.segment_count = 1;
    workload_reset(w);
    device->ops->attention(device->stream, &one);
    synchronize_ok(device, device->stream);
    cr_expect_eq(memcmp(op->out + at, (const float *)all + at, bytes), 0, "segment %d", (int)s);
}

static void check_cut(int capability, const struct kernel_case *c, uint64_t kernels)
{
    struct workload w;
    cr_assert(simt_capability_set(capability));
    struct device *device = device_open(1);
    workload_create(&w, OP_ATTENTION, c);
    uint64_t before = simt_kernel_count();
    workload_launch(&w, device);
    cr_expect_eq(simt_kernel_count() - before, kernels);
    void *all = memory_alloc(w.outputs[0].bytes, 1);
    memcpy(all, w.outputs[0].data, w.outputs[0].bytes);
    for (int64_t s = 0; s < w.attention.segment_count; s += 2)
        check_alone(&w, device, all, s);
    memory_free(all);
    workload_destroy(&w);
    device_destroy(device);
    gpu_check_nothing_left();
}

/* Launches that are cut between segments, the last of which finds that there are no more. */
static const struct kernel_case cut_by_segments = {
    .dtype = DTYPE_BF16,
    .head_count = 1340,
    .kv_head_count = 1,
    .head_dim = 128,
    .window = 20,
    .segments = {{1, 600}, {1, 523}, {1, 9745}, {1, 1000}, {1, 600}, {1, 9}, {1, 700}, {1, 1000}}};

Test(cuda_scratch, of_attention_that_is_cut)
{
    check_cut(75, &cut_by_segments, 2 * 8);
}

Test(cuda_scratch, of_attention_with_matrix_instructions_that_is_cut)
{
    check_cut(90, &cut_by_segments, 2 * 8);
}

Test(cuda_scratch, of_attention_that_is_cut_by_heads)
{
    const struct kernel_case c = {.dtype = DTYPE_BF16,
                                  .head_count = 1340,
                                  .kv_head_count = 2,
                                  .head_dim = 128,
                                  .window = 20,
                                  .segments = {{1, 16000}, {1, 40}, {1, 6000}}};
    check_cut(90, &c, 2 * 2);
}
