/* Every way between every pair of legal layouts, there and back: the bytes of a cold start, in the
 * memory that was said, with the traffic that was said. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/system.h"
#include "rig.h"
#include "rig_gpus.h"
#include "sweep.h"

/* ---- Every pair ------------------------------------------------------------------------------ */

/* The experts' layouts of a plan; attention moves nothing here, so one legal form of it serves. */
struct pair {
    int rank_count;
    char plan[LAYOUT_TEXT_BYTES];
};

#define PAIRS_MAX 32

/* Of packed decode also those in which the format alone differs. */
static int pairs_of(struct pair *out, const char *model, bool is_packed)
{
    static const int rank_counts[] = {1, 2, 4, 8};
    struct model_shape shape = rig_shape(model);
    int count = 0;
    for (size_t n = 0; n < sizeof rank_counts / sizeof *rank_counts; n++) {
        int ranks = rank_counts[n];
        for (int a = 1; a <= ranks; a *= 2) {
            for (int b = 1; b <= ranks; b *= 2) {
                struct plan_layouts plan = {.of = {{ranks, {1, ranks, false}, {a, ranks / a}},
                                                   {ranks, {1, ranks, false}, {b, ranks / b}}},
                                            .decode_is_packed = is_packed};
                if (!plan_layouts_differ(&plan) ||
                    plan_layouts_check(&plan, &shape, NULL) != STATUS_OK)
                    continue;
                cr_assert_lt(count, PAIRS_MAX);
                out[count].rank_count = ranks;
                plan_layouts_format(out[count++].plan, &plan);
            }
        }
    }
    return count;
}

/* By mixed, of all ranks and cases. */
static int64_t mixed_sent;

/* There and back twice, between passes and beside them. What only reshard sends is what was
 * said; mixed sends some of it, other ways nothing. */
static void check_way(const struct rig_params *params, const struct cold *cold)
{
    struct rig rig;
    struct error err;
    char label[160];
    snprintf(label, sizeof label, "%s on %d, %s by %s", params->model, params->rank_count,
             params->plan, way_names[params->way]);
    rig_open(&rig, params);
    for (int step = 0; step < 4; step++) {
        enum phase phase = step % 2 == 0 ? PHASE_DECODE : PHASE_PREFILL;
        int64_t before[COMM_RANKS_MAX], after[COMM_RANKS_MAX];
        rig_bytes(before, &rig);
        uint64_t held = memory_counters_get().live_bytes;
        cr_assert_eq(rig_move(&rig, rig.transition, phase, step > 1, &err), STATUS_OK, "%s: %s",
                     label, err.message);
        cr_assert_eq(memory_counters_get().live_bytes, held, "%s", label);
        rig_bytes(after, &rig);
        cr_assert_eq(rig_check(&rig, cold, phase, label), rig_moe_layers(&rig), "%s", label);
        for (int r = 0; r < params->rank_count; r++) {
            int64_t sent = after[r] - before[r], said = rig_predicted_bytes(&rig, phase, r);
            if (params->way == WAY_MIXED) {
                cr_assert_leq(sent, said, "%s, rank %d", label, r);
                mixed_sent += sent;
                continue;
            }
            said = params->way == WAY_RESHARD ? said : 0;
            cr_assert_eq(sent, said, "%s, rank %d: %lld bytes, not %lld", label, r, (long long)sent,
                         (long long)said);
        }
        for (int64_t layer = 0; layer < rig.shape.layer_count; layer++) {
            struct transition_origin origin = transition_layer(rig.transition, layer);
            enum way way = params->way;
            if (way == WAY_UPLOAD && phase == PHASE_PREFILL)
                way = WAY_RELOAD;
            bool is_packed = phase == PHASE_DECODE && rig_is_packed(params);
            cr_assert_eq(origin.is_int4, origin.has_experts && (way == WAY_UPLOAD || is_packed));
            if (expert_slots_has(rig.slots[0], layer))
                cr_assert(!origin.is_loaded && origin.way == way && origin.phase == phase);
            else
                cr_assert(origin.is_loaded && !origin.has_experts);
        }
        /* There already: nothing moves. */
        cr_assert_eq(transition_run(rig.transition, phase, &err), STATUS_OK);
    }
    cr_assert_eq(transition_counters_get(rig.transition).transition_count, 4);
    cr_assert_eq(transition_counters_get(rig.transition).layer_count, 4 * rig_moe_layers(&rig));
    rig_check_memory(&rig, label);
    rig_close(&rig);
}

/* Of each kind; those with zstd are read through another buffer. */
static const struct backup_settings settings[] = {
    {BACKUP_PER_GROUP, false, false, 64},  {BACKUP_PER_GROUP, true, false, 32},
    {BACKUP_PER_CHANNEL, false, false, 0}, {BACKUP_PER_GROUP, true, true, 16},
    {BACKUP_PER_TENSOR, true, false, 0},
};

enum experts { EXPERTS_NATIVE, EXPERTS_INT4, EXPERTS_PACKED };
static const char *const experts_names[] = {"", " with int4 experts", " with packed decode"};

static void check_pairs(const char *model, enum dtype dtype, enum experts experts,
                        uint64_t quick_step)
{
    struct pair pairs[PAIRS_MAX];
    int count = pairs_of(pairs, model, experts == EXPERTS_PACKED), tested = 0;
    double start = system_seconds();
    uint64_t step = sweep_step(quick_step);
    for (uint64_t i = sweep_first(step) - 1; i < (uint64_t)count; i += step) {
        struct rig_params params = {.model = model,
                                    .dtype = dtype,
                                    .has_int4_experts = experts == EXPERTS_INT4,
                                    .rank_count = pairs[i].rank_count,
                                    .spare_count = 1 + (int64_t)i % 3,
                                    .plan = pairs[i].plan};
        if (experts == EXPERTS_PACKED)
            params.settings = settings[i % (sizeof settings / sizeof *settings)];
        struct cold cold;
        uint64_t live = memory_counters_get().live_count;
        cold_open(&cold, &params);
        for (int way = 0; way < WAY_COUNT; way++) {
            params.way = (enum way)way;
            if (!rig_can(&params, params.way))
                continue;
            check_way(&params, &cold);
            tested++;
        }
        cold_close(&cold);
        cr_assert_eq(memory_counters_get().live_count, live);
    }
    printf("%s, %s%s: %d ways between layouts, %d legal pairs, %.1f s\n", model, dtype_name(dtype),
           experts_names[experts], tested, count, system_seconds() - start);
    cr_assert_gt(tested, 0);
    cr_assert(experts == EXPERTS_PACKED || mixed_sent > 0);
}

TestSuite(ways, .fini = scenario_checkpoints_remove);

Test(ways, mixtral)
{
    check_pairs("mixtral", DTYPE_BF16, EXPERTS_NATIVE, 1);
    check_pairs("mixtral", DTYPE_F32, EXPERTS_NATIVE, 4);
}

Test(ways, qwen2moe)
{
    check_pairs("qwen2moe", DTYPE_BF16, EXPERTS_NATIVE, 1);
    check_pairs("qwen2moe", DTYPE_F32, EXPERTS_NATIVE, 4);
}

Test(ways, qwen3moe)
{
    check_pairs("qwen3moe", DTYPE_BF16, EXPERTS_NATIVE, 1);
    check_pairs("qwen3moe", DTYPE_F32, EXPERTS_NATIVE, 4);
}

/* Rounded as they load and as they are read again, and moved with their scales. */
Test(ways, int4_experts)
{
    check_pairs("mixtral", DTYPE_BF16, EXPERTS_INT4, 4);
    check_pairs("qwen2moe", DTYPE_F32, EXPERTS_INT4, 4);
    check_pairs("qwen3moe", DTYPE_BF16, EXPERTS_INT4, 4);
}

/* The arrays of the backup, in slots of their own or in native ones. */
Test(ways, packed_decode)
{
    check_pairs("mixtral", DTYPE_BF16, EXPERTS_PACKED, 4);
    check_pairs("qwen2moe", DTYPE_F32, EXPERTS_PACKED, 4);
    check_pairs("qwen3moe", DTYPE_BF16, EXPERTS_PACKED, 4);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* What nobody counts, of a rank: lists, messages, and a queue of reads. */
#define LIST_BYTES  ((uint64_t)24 << 10)
#define QUEUE_BYTES ((uint64_t)40 << 10)

/* Of the transition, and what was said of it. */
static uint64_t live_by(struct rig_params params, enum way way, uint64_t *said)
{
    struct rig rig;
    params.way = way;
    params.has_backup = true;
    rig_open(&rig, &params);
    uint64_t with = memory_counters_get().live_bytes;
    *said = 0;
    for (int r = 0; r < params.rank_count; r++) {
        *said += rig_way_memory_said(&rig, r, way);
        if (way == WAY_UPLOAD)
            *said += rig_host_memory_said(&rig, r);
    }
    transition_destroy(rig.transition);
    rig.transition = NULL;
    uint64_t without = memory_counters_get().live_bytes;
    rig_close(&rig);
    return with - without;
}

/* What a way takes is counted before a model is loaded. */
Test(ways, take_the_memory_that_was_said)
{
    static const struct rig_params cases[] = {
        {.model = "qwen2moe", .dtype = DTYPE_BF16, .rank_count = 2, .plan = "dp2|ep2>tp2"},
        {.model = "qwen3moe", .dtype = DTYPE_F32, .rank_count = 4, .plan = "tp4|tp2ep2>tp4"},
        {.model = "mixtral", .dtype = DTYPE_BF16, .rank_count = 4, .plan = "tp4|tp4>ep4"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        for (enum way way = WAY_RESHARD; way < WAY_COUNT; way++) {
            uint64_t said, live = live_by(cases[c], way, &said);
            uint64_t small = LIST_BYTES + (way == WAY_UPLOAD ? QUEUE_BYTES : 0);
            small *= (uint64_t)cases[c].rank_count;
            printf("case %zu, %s: %llu B, of which %llu were said\n", c, way_names[way],
                   (unsigned long long)live, (unsigned long long)said);
            cr_assert_leq(live, said + small, "case %zu, %s", c, way_names[way]);
            if (rig_gpus(1) == NULL) /* pinned memory is not the allocator's */
                cr_assert_geq(live, said, "case %zu, %s", c, way_names[way]);
        }
    }
}
