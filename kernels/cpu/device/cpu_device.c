/* The CPU as a device: a stream that runs each operation at once, on a team of threads. */
#include <string.h>

#include "base/memory.h"
#include "device/device.h"
#include "device/thread_team.h"
#include "kernels/cpu/kernels.h"

struct stream {
    const struct cpu_kernels *kernels;
    struct thread_team *team;
};

struct cpu_device {
    struct device device;
    struct device_ops ops; /* the table with the name of the chosen kernels */
    struct stream stream;
};

/* One operation for all workers: its arguments, and the pieces that they share. */
#define DEFINE_LAUNCH(name)                                                                        \
    struct name##_launch {                                                                         \
        const struct cpu_kernels *kernels;                                                         \
        const struct op_##name *op;                                                                \
        struct share share;                                                                        \
    };                                                                                             \
    static void name##_work(void *context, int worker)                                             \
    {                                                                                              \
        (void)worker;                                                                              \
        struct name##_launch *launch = context;                                                    \
        launch->kernels->name(launch->op, &launch->share);                                         \
    }                                                                                              \
    static void cpu_##name(struct stream *stream, const struct op_##name *op)                      \
    {                                                                                              \
        struct name##_launch launch = {.kernels = stream->kernels, .op = op};                      \
        launch.share.worker_count = thread_team_size(stream->team);                                \
        thread_team_run(stream->team, name##_work, &launch);                                       \
    }

DEFINE_LAUNCH(embed)
DEFINE_LAUNCH(rms_norm)
DEFINE_LAUNCH(add)
DEFINE_LAUNCH(matmul)
DEFINE_LAUNCH(rope_append)
DEFINE_LAUNCH(attention)
DEFINE_LAUNCH(route)
DEFINE_LAUNCH(ffn_up)
DEFINE_LAUNCH(ffn_down)
DEFINE_LAUNCH(combine)
DEFINE_LAUNCH(shared_add)
DEFINE_LAUNCH(gather)

/* A counting sort: linear, and not worth a second thread. */
static void cpu_group(struct stream *stream, const struct op_group *op)
{
    (void)stream;
    int64_t pair_count = op->token_count * op->top_k;
    int32_t *offsets = op->offsets;
    memset(offsets, 0, (size_t)(op->expert_count + 1) * sizeof *offsets);
    for (int64_t p = 0; p < pair_count; p++)
        offsets[op->ids[p] + 1]++;
    for (int64_t e = 0; e < op->expert_count; e++) {
        if (op->loads != NULL)
            op->loads[e] += (uint64_t)offsets[e + 1];
        offsets[e + 1] += offsets[e];
    }
    /* offsets[e] serves as the next free place of expert e, and ends as the start of e + 1 ... */
    for (int64_t p = 0; p < pair_count; p++) {
        int32_t position = offsets[op->ids[p]]++;
        op->position_of[p] = position;
        op->token_of[position] = (int32_t)(p / op->top_k);
    }
    /* ... so all starts move up by one. */
    for (int64_t e = op->expert_count; e > 0; e--)
        offsets[e] = offsets[e - 1];
    offsets[0] = 0;
}

static enum status cpu_synchronize(struct stream *stream, struct error *err)
{
    (void)stream; /* operations run at once and cannot fail */
    (void)err;
    return STATUS_OK;
}

static enum status cpu_memory_get(struct device *device, void **out, size_t bytes, const char *what,
                                  struct error *err)
{
    (void)device;
    return memory_get_raw(out, bytes, 1, what, err);
}

static void cpu_memory_free(struct device *device, void *memory)
{
    (void)device;
    memory_free(memory);
}

static void cpu_host_run(struct device *device, void (*work)(void *context, int worker),
                         void *context)
{
    thread_team_run(device->stream->team, work, context);
}

static int cpu_host_workers(const struct device *device)
{
    return thread_team_size(device->stream->team);
}

static void cpu_destroy(struct device *device)
{
    struct cpu_device *cpu = (struct cpu_device *)device;
    thread_team_destroy(cpu->stream.team);
    memory_free(cpu);
}

static const struct device_ops cpu_ops = {
    .embed = cpu_embed,
    .rms_norm = cpu_rms_norm,
    .add = cpu_add,
    .matmul = cpu_matmul,
    .rope_append = cpu_rope_append,
    .attention = cpu_attention,
    .route = cpu_route,
    .group = cpu_group,
    .ffn_up = cpu_ffn_up,
    .ffn_down = cpu_ffn_down,
    .combine = cpu_combine,
    .shared_add = cpu_shared_add,
    .gather = cpu_gather,
    .synchronize = cpu_synchronize,
    .memory_get = cpu_memory_get,
    .memory_free = cpu_memory_free,
    .host_run = cpu_host_run,
    .host_workers = cpu_host_workers,
    .destroy = cpu_destroy,
};

const struct cpu_kernels *cpu_kernels_choose(const char *wanted)
{
#if defined(PHASOR_X86_KERNELS)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (avx512 && (wanted == NULL || strcmp(wanted, "avx512") == 0))
        return &cpu_kernels_avx512;
    if (avx2 && (wanted == NULL || strcmp(wanted, "avx2") == 0))
        return &cpu_kernels_avx2;
#endif
    if (wanted == NULL || strcmp(wanted, "plain") == 0)
        return &cpu_kernels_plain;
    return NULL;
}

enum status device_cpu_create_with(struct device **out, int thread_count,
                                   const struct cpu_kernels *kernels, struct error *err)
{
    struct cpu_device *cpu;
    TRY(memory_get((void **)&cpu, 1, sizeof *cpu, "the CPU device", err));
    enum status status = thread_team_create(&cpu->stream.team, thread_count, err);
    if (status != STATUS_OK) {
        memory_free(cpu);
        return status;
    }
    cpu->stream.kernels = kernels;
    cpu->ops = cpu_ops;
    cpu->ops.name = kernels->name;
    cpu->device.ops = &cpu->ops;
    cpu->device.stream = &cpu->stream;
    *out = &cpu->device;
    return STATUS_OK;
}

enum status device_cpu_create(struct device **out, int thread_count, struct error *err)
{
    return device_cpu_create_with(out, thread_count, cpu_kernels_choose(NULL), err);
}
