/* What measures: every operation and collective runs, on shapes that are odd, too, and no time is
 * asserted but that it is one. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "comm/comm.h"
#include "measure/meter_state.h"
#include "measure/rates.h"
#include "meter_gpus.h"

TestSuite(meter, .timeout = 120);

#define RANK_BYTES ((uint64_t)16 << 20)

struct rig {
    struct box *box;
    struct meter *meter;
};

static void rig_open(struct rig *rig, int rank_count)
{
    struct error err;
    const struct box_params box = {.rank_count = rank_count, .gpus = meter_gpus(rank_count)};
    cr_assert_eq(box_open(&rig->box, &box, &err), STATUS_OK, "%s", err.message);
    struct meter_params params = meter_params_default(rig->box, RANK_BYTES * (uint64_t)rank_count);
    params.point_seconds = 1e-3;
    params.sample_seconds = 1e-4;
    cr_assert_eq(meter_create(&rig->meter, &params, &err), STATUS_OK, "%s", err.message);
}

static void rig_close(struct rig *rig)
{
    meter_destroy(rig->meter);
    box_close(rig->box);
}

static void is_measured(const struct measured *found, const char *name)
{
    cr_expect(isfinite(found->seconds) && found->seconds > 0, "%s: %g s", name, found->seconds);
    cr_expect(isfinite(found->spread) && found->spread >= 0, "%s: %g", name, found->spread);
    cr_expect(found->repeats >= METER_SAMPLES_MIN && found->repeats <= METER_SAMPLES_MAX);
}

static const struct {
    const char *name;
    struct work_shape work;
} works[] = {
    {"one row", {WORK_MATMUL, DTYPE_BF16, {1, 64, 64}}},
    {"rows that fill no block", {WORK_MATMUL, DTYPE_BF16, {7, 24, 40}}},
    {"f32", {WORK_MATMUL, DTYPE_F32, {3, 64, 128}}},
    {"one expert", {WORK_FFN_UP, DTYPE_BF16, {5, 1, 48, 64}}},
    {"experts", {WORK_FFN_UP, DTYPE_BF16, {37, 8, 48, 192}}},
    {"packed experts", {WORK_FFN_UP, DTYPE_INT4, {37, 8, 48, 192}}},
    {"down", {WORK_FFN_DOWN, DTYPE_BF16, {37, 8, 48, 192}}},
    {"packed down, groups that are not full", {WORK_FFN_DOWN, DTYPE_INT4, {8, 8, 48, 80}}},
    {"decode", {WORK_ATTENTION, DTYPE_BF16, {4, 400, 400, 8, 2, 64}}},
    {"prefill", {WORK_ATTENTION, DTYPE_BF16, {100, 5050, 100, 4, 4, 32}}},
    {"two prompts, cut", {WORK_ATTENTION, DTYPE_F32, {32, 3000, 200, 4, 1, 128}}},
    {"a row that sees itself", {WORK_ATTENTION, DTYPE_BF16, {1, 1, 1, 1, 1, 64}}},
    {"fewer pairs than rows", {WORK_ATTENTION, DTYPE_BF16, {10, 1, 1, 1, 1, 64}}},
    {"norm and sum", {WORK_ROWS, DTYPE_F32, {33, 100}}},
    {"dequantize", {WORK_DEQUANTIZE, DTYPE_INT4, {100000}}},
    {"dequantize a value", {WORK_DEQUANTIZE, DTYPE_INT4, {1}}},
};

Test(meter, runs_every_operation)
{
    for (int ranks = 1; ranks <= 3; ranks++) {
        struct rig rig;
        rig_open(&rig, ranks);
        for (size_t i = 0; i < sizeof works / sizeof *works; i++) {
            struct measured found;
            struct error err;
            cr_assert(meter_holds(rig.meter, &works[i].work), "%s", works[i].name);
            cr_assert_eq(meter_work(&found, rig.meter, &works[i].work, &err), STATUS_OK, "%s: %s",
                         works[i].name, err.message);
            is_measured(&found, works[i].name);
        }
        rig_close(&rig);
    }
}

/* What is measured has as many values as were asked for, though matrices are of whole blocks. */
Test(meter, dequantizes_what_was_asked_for)
{
    struct work_shape block = {WORK_DEQUANTIZE, DTYPE_INT4, {1 << 20}};
    double each = (double)meter_rank_bytes(&block) / (double)block.dims[0];
    for (int64_t values = 1 << 16; values < 1 << 20; values += 7919) {
        struct work_shape work = {WORK_DEQUANTIZE, DTYPE_INT4, {values}};
        double bytes = (double)meter_rank_bytes(&work) / (each * (double)values);
        cr_expect(bytes > 0.99 && bytes < 1.06, "%lld values: %g", (long long)values, bytes);
    }
}

/* Larger than its memory, and what is no operation. */
static const struct work_shape not_held[] = {
    {WORK_OTHER, DTYPE_BF16, {1, 1, 1}},
    {WORK_KIND_COUNT, DTYPE_BF16, {1, 1, 1}},
    {WORK_MATMUL, DTYPE_INT4, {1, 16, 16}},
    {WORK_MATMUL, DTYPE_F16, {1, 16, 16}},
    {WORK_MATMUL, DTYPE_BF16, {0, 16, 16}},
    {WORK_MATMUL, DTYPE_BF16, {1, 4096, 4096}},
    {WORK_MATMUL, DTYPE_BF16, {1 << 20, 16, 16}},
    {WORK_MATMUL, DTYPE_BF16, {INT64_MAX, INT64_MAX, INT64_MAX}},
    {WORK_MATMUL, DTYPE_BF16, {-1, 16, 16}},
    {WORK_FFN_UP, DTYPE_BF16, {7, 8, 16, 16}},
    {WORK_FFN_UP, DTYPE_BF16, {8, 1 << 20, 48, 1024}},
    {WORK_FFN_DOWN, DTYPE_INT4, {8, 8, 40, 64}},
    {WORK_ATTENTION, DTYPE_BF16, {4, 400, 400, 3, 2, 64}},
    {WORK_ATTENTION, DTYPE_INT4, {4, 400, 400, 2, 2, 64}},
    {WORK_ATTENTION, DTYPE_BF16, {4, 1 << 30, 1 << 30, 8, 8, 128}},
    {WORK_ROWS, DTYPE_BF16, {4, 64}},
    {WORK_DEQUANTIZE, DTYPE_INT4, {1 << 30}},
    {WORK_DEQUANTIZE, DTYPE_BF16, {100}},
};

Test(meter, says_what_it_has_no_room_for)
{
    struct rig rig;
    rig_open(&rig, 1);
    for (size_t i = 0; i < sizeof not_held / sizeof *not_held; i++)
        cr_expect_not(meter_holds(rig.meter, &not_held[i]), "case %zu", i);
    rig_close(&rig);
}

/* In decode contexts are spread over a page about the mean, and over launches as well as segments.
 */
Test(meter, contexts_are_spread_about_the_mean)
{
    static const struct {
        struct work_shape work;
        int64_t count, most; /* how far apart at most */
    } cases[] = {
        {{WORK_ATTENTION, DTYPE_BF16, {1, 300, 300, 8, 2, 64}}, 1, 32},
        {{WORK_ATTENTION, DTYPE_BF16, {7, 700, 700, 8, 2, 64}}, 7, 32},
        {{WORK_ATTENTION, DTYPE_BF16, {5, 51, 51, 8, 2, 64}}, 5, 10},
        {{WORK_ATTENTION, DTYPE_BF16, {3, 3, 3, 8, 2, 64}}, 3, 0},
        {{WORK_ATTENTION, DTYPE_BF16, {100, 5050, 100, 4, 4, 32}}, 1, 0}, /* a prompt */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double sum = 0, mean = (double)cases[i].work.dims[2] / (double)cases[i].count;
        int64_t least = INT64_MAX, most = 0;
        for (int64_t s = 0; s < cases[i].count; s++) {
            for (int launch = 0; launch < METER_CONTEXTS; launch++) {
                int64_t tokens = meter_context(&cases[i].work, cases[i].count, s, launch);
                least = tokens < least ? tokens : least;
                most = tokens > most ? tokens : most;
                sum += (double)tokens / (double)(cases[i].count * METER_CONTEXTS);
            }
        }
        double apart = (double)(most - least) / 2, wanted = (double)cases[i].most;
        cr_expect_float_eq(sum, mean, 0.6, "%zu: %g", i, sum);
        cr_expect(apart <= wanted + 0.5 && apart >= 0.9 * wanted - 0.5, "%zu: %g", i, apart);
        cr_expect_gt(least, 0);
    }
}

Test(meter, runs_every_collective_of_every_group)
{
    struct rig rig;
    rig_open(&rig, 4);
    for (int op = GROUP_ALL_GATHER; op <= GROUP_ALL_TO_ALL; op++) {
        for (int size = 2; size <= 4; size += 2) {
            for (int strided = 0; strided <= (size < 4); strided++) {
                for (int64_t wanted = 1; wanted < 1 << 19; wanted *= 37) {
                    int64_t bytes = meter_collective_bytes((enum group_op)op, size, wanted);
                    struct measured found;
                    struct error err;
                    struct collective_shape shape = {.op = (enum group_op)op,
                                                     .size = size,
                                                     .is_strided = strided,
                                                     .bytes = bytes,
                                                     .fullest = 1};
                    cr_assert_eq(meter_collective(&found, rig.meter, &shape, &err), STATUS_OK, "%s",
                                 err.message);
                    is_measured(&found, "collective");
                    cr_expect(bytes >= wanted && bytes < wanted + 6 * 64);
                }
            }
        }
    }
    rig_close(&rig);
}

/* Of four members, each of which sends the first as many bytes as it is told. */
Test(meter, an_uneven_exchange_sends_the_first_member_more)
{
    static const double fullest[] = {1, 1.6, 2.5, 4};
    struct rig rig;
    rig_open(&rig, 4);
    struct comm_domain *domain = box_domain(rig.box);
    for (size_t i = 0; i < sizeof fullest / sizeof *fullest; i++) {
        int64_t bytes = meter_collective_bytes(GROUP_ALL_TO_ALL, 4, 1 << 18);
        struct collective_shape shape = {
            .op = GROUP_ALL_TO_ALL, .size = 4, .bytes = bytes, .fullest = fullest[i]};
        uint64_t before[] = {comm_domain_bytes(domain, 0, 0), comm_domain_bytes(domain, 3, 0)};
        struct measured found;
        struct error err;
        cr_assert_eq(meter_collective(&found, rig.meter, &shape, &err), STATUS_OK, "%s",
                     err.message);
        is_measured(&found, "uneven");
        double first = (double)(comm_domain_bytes(domain, 0, 0) - before[0]),
               last = (double)(comm_domain_bytes(domain, 3, 0) - before[1]);
        double rest = (4 / fullest[i] - 1) / 3; /* of what each sends the first */
        cr_expect_float_eq(first / last, 3 * rest / (1 + 2 * rest), 0.01, "%g: %g", fullest[i],
                           first / last);
    }
    rig_close(&rig);
}

Test(meter, rates_are_rates)
{
    struct rig rig;
    struct error err;
    struct measured step;
    struct read_rates reads;
    struct stat stat_now;
    double rates[5];
    char path[] = "/tmp/phasor-rates-XXXXXX";
    close(mkstemp(path));
    rig_open(&rig, 2);
    cr_expect_eq(rates_read(&reads, rig.box, path, 8 << 20, &err), STATUS_IO,
                 "a file that is there is not taken");
    cr_expect_eq(stat(path, &stat_now), 0);
    unlink(path);
    cr_assert_eq(rates_read(&reads, rig.box, path, 8 << 20, &err), STATUS_OK, "%s", err.message);
    cr_expect_neq(stat(path, &stat_now), 0, "the file is left");
    cr_assert_eq(rates_check(&rates[0], rig.box, &err), STATUS_OK);
    cr_assert_eq(rates_repack(&rates[1], rig.box, &err), STATUS_OK);
    cr_assert_eq(meter_host_to_device(&rates[2], rig.meter, &err), STATUS_OK);
    cr_assert_eq(meter_host_to_device_busy(&rates[4], rig.meter, rates[2], &err), STATUS_OK, "%s",
                 err.message);
    cr_assert_eq(meter_memory(&rates[3], rig.meter, &err), STATUS_OK);
    cr_assert_eq(meter_host_step(&step, rig.meter, &err), STATUS_OK);
    is_measured(&step, "a step of nothing");
    cr_expect(isfinite(reads.disk) && reads.disk > 0);
    cr_expect(isfinite(reads.page_cache) && reads.page_cache > 0);
    for (int i = 0; i < 5; i++)
        cr_expect(isfinite(rates[i]) && rates[i] > 0, "rate %d: %g", i, rates[i]);
    rig_close(&rig);
}

Test(meter, memory_goes_back)
{
    struct memory_counters before = memory_counters_get();
    struct rig rig;
    struct error err;
    struct measured found;
    rig_open(&rig, 2);
    cr_assert_eq(meter_work(&found, rig.meter, &works[4].work, &err), STATUS_OK);
    rig_close(&rig);
    cr_expect_eq(memory_counters_get().live_count, before.live_count);
}
