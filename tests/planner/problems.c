#include "problems.h"

#include <math.h>
#include <string.h>

/* In proportion to what is held; the rest is small. */
static struct plan_memory memory_of(void *context, const struct plan_layouts *layouts,
                                    enum plan_room room, int64_t pass_tokens, int64_t sequences)
{
    const struct test_problem *test = context;
    int64_t tokens = test->problem.load.prompt_tokens + test->problem.load.output_tokens;
    uint64_t packed = test->expert_bytes / 4;
    struct plan_memory memory = {
        .weights = 1000 / (uint64_t)layouts->of[0].attention.tp,
        .experts = test->expert_bytes,
        .cache = (uint64_t)(sequences * tokens / layouts->of[0].attention.dp),
        .activations = (uint64_t)pass_tokens,
    };
    if (room == PLAN_ROOM_SPARE) {
        memory.spare = test->expert_bytes / (uint64_t)test->shape.layer_count;
        memory.experts += memory.spare;
    }
    if (room == PLAN_ROOM_BOTH)
        memory.experts += layouts->decode_is_packed ? packed : test->expert_bytes;
    return memory;
}

static void tables_fill(struct test_problem *out, const struct simple_box *box)
{
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_INT4};
    for (int kind = WORK_MATMUL; kind < WORK_KIND_COUNT; kind++) {
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
            int i = out->profile.work_count++;
            out->work[i] = (struct work_table){.kind = (enum work_kind)kind,
                                               .dtype = dtypes[d],
                                               .flops_per_second = box->flops,
                                               .bytes_per_second = box->bytes,
                                               .log_ratios = &out->log_ratios[i]};
        }
    }
    for (int op = GROUP_ALL_GATHER; op <= GROUP_ALL_TO_ALL; op++) {
        for (int size = 2; size <= box->rank_count; size++) {
            for (int strided = 0; strided < 2 && box->rank_count % size == 0; strided++) {
                int i = out->profile.collective_count++;
                out->bytes[i][0] = box->latency > 0 ? box->latency * box->link : 1e-3;
                out->bytes[i][1] = 2 * out->bytes[i][0];
                for (int p = 0; p < 2; p++)
                    out->seconds[i][p] = out->bytes[i][p] / box->link;
                out->collectives[i] = (struct collective_table){
                    (enum group_op)op, size, strided == 1, 2, out->bytes[i],
                    out->seconds[i],   false};
            }
        }
    }
}

void problem_simple(struct test_problem *out, const struct model_shape *shape,
                    const struct simple_box *box)
{
    memset(out, 0, sizeof *out);
    out->shape = *shape;
    tables_fill(out, box);
    out->profile.work = out->work;
    out->profile.collectives = out->collectives;
    out->profile.host_to_device = out->profile.disk_read = box->link;
    out->profile.check = out->profile.repack = INFINITY;
    out->passes[0] = 4096;
    out->waves[0] = 8;
    out->problem = (struct plan_problem){
        .rank_count = box->rank_count,
        .shape = &out->shape,
        .profile = &out->profile,
        .types = {DTYPE_BF16, DTYPE_BF16, DTYPE_BF16},
        .native = {.dtype = DTYPE_BF16},
        .backup = {.dtype = DTYPE_INT4, .group = 64},
        .load = PLAN_LOAD(8, 512, 64),
        .allows_int4 = true,
        .can_have_backup = true,
        .passes = out->passes,
        .waves = out->waves,
        .pass_count = 1,
        .wave_count = 1,
        .memory_bytes = UINT64_MAX,
        .memory = memory_of,
        .memory_context = out,
    };
}

static int64_t power_of_two(struct random *random, int least, int most)
{
    return (int64_t)1 << (least + (int)random_below(random, (uint64_t)(most - least + 1)));
}

static double between(struct random *random, double least, double most)
{
    return least * pow(most / least, random_unit(random_next(random)));
}

void problem_random(struct test_problem *out, struct random *random)
{
    struct model_shape shape = {
        .layer_count = 1 + (int64_t)random_below(random, 8),
        .vocab_count = 1000,
        .hidden_dim = 64 * power_of_two(random, 0, 4),
        .head_count = power_of_two(random, 3, 5),
        .kv_head_count = power_of_two(random, 0, 3),
        .head_dim = 64,
        .expert_count = power_of_two(random, 2, 6),
        .expert_top_k = power_of_two(random, 0, 2),
        .expert_dim = 128 * power_of_two(random, 0, 4),
        .shared_expert_dim = random_below(random, 2) == 0 ? 0 : 512,
    };
    shape.moe_layer_count = shape.layer_count;
    struct simple_box box = {
        .rank_count = (int)power_of_two(random, 1, 3),
        .flops = between(random, 1e11, 1e14),
        .bytes = between(random, 1e10, 1e12),
        .link = between(random, 1e9, 1e11),
        .latency = between(random, 1e-6, 1e-4),
    };
    problem_simple(out, &shape, &box);
    /* No two operations are alike in speed, so that ties are rare. */
    for (int i = 0; i < out->profile.work_count; i++)
        out->log_ratios[i] = between(random, 0.01, 1);
    out->problem.routing.deviation = between(random, 0.01, 0.5);
    out->problem.load = (struct plan_load)PLAN_LOAD(
        power_of_two(random, 0, 6), power_of_two(random, 4, 12), power_of_two(random, 0, 10));
    out->problem.is_queue = random_below(random, 2) == 0;
    out->problem.allows_int4 = random_below(random, 4) != 0;
    out->expert_bytes = 1000;
    out->problem.memory_bytes = (uint64_t)between(random, 2000, 1e6);
}
