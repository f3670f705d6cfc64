/* Which measurement of a point counts, with a machine that is as slow as the test says. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "base/system.h"
#include "measure/calm.h"
#include "measure/meter_state.h"
#include "meter_gpus.h"

TestSuite(calm, .timeout = 120);

/* `count` probes of so many seconds were behind points. */
static void remember(struct calm *calm, enum calm_probe which, int count, double seconds)
{
    for (int i = 0; i < count; i++)
        calm_remember(calm, &(struct calm_point){.probe = which, .probe_seconds = seconds});
}

/* How many times as long as usual whatever is measured takes, one measurement or probe after
 * another; from the last on for ever. */
struct machine {
    double slow[16];
    int count, next;
    int measured, probed;
    enum calm_probe which; /* the last one */
};

static double now_slow(struct machine *machine)
{
    int at = machine->next < machine->count ? machine->next++ : machine->count - 1;
    return machine->slow[at];
}

static enum status probe(double *out, void *context, enum calm_probe which, struct error *err)
{
    struct machine *machine = context;
    machine->which = which;
    machine->probed++;
    if (now_slow(machine) < 0)
        return error_set(err, STATUS_IO, "the probe failed");
    *out = 1e-3 * machine->slow[machine->next - 1];
    return STATUS_OK;
}

static enum status measure(struct measured *out, void *context, struct error *err)
{
    struct machine *machine = context;
    double slow = now_slow(machine);
    machine->measured++;
    if (slow < 0)
        return error_set(err, STATUS_IO, "the point failed");
    *out = (struct measured){slow, 0, 3};
    return STATUS_OK;
}

static const struct {
    const char *name;
    double patience, waited;
    double
        slow[16]; /* point, probe, then as long as that is unusual a probe, a point, a probe ... */
    double seconds;
    int measured, probed;
    bool is_disturbed;
} cases[] = {
    {"calm", 1e6, 0, {1, 1}, 1, 1, 1, false},
    {"within the tolerance", 1e6, 0, {1, 1.09}, 1, 1, 1, false},
    {"slow, then calm", 1e6, 0, {1.5, 1.5, 1, 1, 1}, 1, 2, 3, false},
    {"slow for long", 1e6, 0, {1.5, 1.5, 1.4, 1.3, 1, 1.1, 1}, 1.1, 2, 5, false},
    {"slow again", 1e6, 0, {1.5, 1.5, 1, 1.4, 1.4, 1, 1.2, 1}, 1.2, 3, 5, false},
    {"what had calm behind it", 1e6, 0, {1, 1.5, 1, 1.05, 1}, 1.05, 2, 3, false},
    {"nearly as fast as usual", 1e6, 0, {1, 0.92}, 1, 1, 1, false},
    {"fast, then calm", 1e6, 0, {0.6, 0.6, 1, 1, 1}, 1, 2, 3, false},
    {"fast for long", 1e6, 0, {0.6, 0.6, 0.6, 0.7, 1, 1.1, 1}, 1.1, 2, 5, false},
    {"fast again", 1e6, 0, {0.6, 0.6, 1, 0.7, 0.7, 1, 1, 1}, 1, 3, 5, false},
    {"fast, then slow, then calm", 1e6, 0, {0.6, 0.6, 1, 1.4, 1.4, 1, 1, 1}, 1, 3, 5, false},
    {"no patience left", 10, 11, {1.5, 1.5, 1, 1}, 1.5, 1, 1, true},
    {"no patience left when it is fast", 10, 11, {0.5, 0.5, 1, 1}, 0.5, 1, 1, true},
    {"the more usual when patience ends", 0.01, 0, {1.2, 1.2, 1, 2, 2}, 1.2, 2, 3, true},
    {"nothing is probed", 0, 0, {1.5, 1.5}, 1.5, 1, 0, false},
};

Test(calm, what_has_calm_behind_it_counts)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct machine machine = {.count = 16};
        struct calm_point found;
        struct calm calm;
        struct error err;
        memcpy(machine.slow, cases[i].slow, sizeof machine.slow);
        while (machine.slow[machine.count - 1] == 0)
            machine.count--;
        calm_init(&calm, &(struct calm_params){.probe = probe,
                                               .context = &machine,
                                               .tolerance = 0.1,
                                               .patience_seconds = cases[i].patience});
        remember(&calm, CALM_MEMORY, 99, 1e-3);
        calm.waited_seconds = cases[i].waited;
        cr_assert_eq(calm_measure(&found, &calm, CALM_MEMORY, measure, &machine, &err), STATUS_OK);
        cr_expect_float_eq(found.measured.seconds, cases[i].seconds, 1e-9, "%s: %g", cases[i].name,
                           found.measured.seconds);
        cr_expect_eq(machine.measured, cases[i].measured, "%s: %d", cases[i].name,
                     machine.measured);
        cr_expect_eq(machine.probed, cases[i].probed, "%s: %d", cases[i].name, machine.probed);
        cr_expect_eq(calm.disturbed, cases[i].is_disturbed, "%s", cases[i].name);
    }
}

/* The median of the probes behind points, not of those while we wait; before there are ten nothing
 * is waited for. */
Test(calm, is_what_is_usual)
{
    struct calm_point found;
    struct calm calm;
    struct error err;
    struct machine machine = {.slow = {1, 2}, .count = 2};
    calm_init(&calm,
              &(struct calm_params){
                  .probe = probe, .context = &machine, .tolerance = 0.1, .patience_seconds = 1e6});
    cr_expect_eq(calm_usual(&calm, CALM_COMPUTE), 0);
    cr_assert_eq(calm_measure(&found, &calm, CALM_COMPUTE, measure, &machine, &err), STATUS_OK);
    cr_expect_eq(machine.which, CALM_COMPUTE);
    cr_expect(found.probe == CALM_COMPUTE && found.probe_seconds == 2e-3);
    cr_expect_float_eq(calm_usual(&calm, CALM_COMPUTE), 2e-3, 2e-5, "the first is usual");
    cr_expect_eq(calm_usual(&calm, CALM_MEMORY), 0, "each kind has its own");

    machine = (struct machine){.slow = {1}, .count = 1};
    for (int point = 0; point < CALM_SEEN_MIN - 3; point++)
        cr_assert_eq(calm_measure(&found, &calm, CALM_COMPUTE, measure, &machine, &err), STATUS_OK);
    cr_expect_float_eq(calm_usual(&calm, CALM_COMPUTE), 1e-3, 1e-5, "most are");
    machine = (struct machine){.slow = {3, 3, 1}, .count = 3};
    cr_assert_eq(calm_measure(&found, &calm, CALM_COMPUTE, measure, &machine, &err), STATUS_OK);
    cr_expect(machine.measured == 1 && calm.disturbed == 0 && calm.waited_seconds == 0,
              "the ninth is not judged");
    remember(&calm, CALM_COMPUTE, 1, 1e-3);

    /* 210 that are quick and 100 that are not: the median is a quick one. */
    remember(&calm, CALM_COMPUTE, 200, 1e-3);
    remember(&calm, CALM_COMPUTE, 100, 2e-3);
    cr_expect_float_eq(calm_usual(&calm, CALM_COMPUTE), 1e-3, 1e-5);

    machine = (struct machine){.slow = {2, 2, 2, 2, 2, 2, 1, 1, 1}, .count = 9};
    cr_assert_eq(calm_measure(&found, &calm, CALM_COMPUTE, measure, &machine, &err), STATUS_OK);
    cr_expect_eq(machine.measured, 2);
    cr_expect_eq(calm.seen[CALM_COMPUTE], 311, "of all that was probed, the one behind the point");
    remember(&calm, CALM_COMPUTE, 150, 2e-3);
    cr_expect_float_eq(calm_usual(&calm, CALM_COMPUTE), 2e-3, 2e-5, "now more are slow");
}

/* Whatever this run's probes say, from the first on. */
Test(calm, is_what_an_earlier_run_found)
{
    struct machine machine = {.slow = {2, 2, 2, 1, 1, 1}, .count = 6};
    struct calm_point found;
    struct calm calm;
    struct error err;
    calm_init(&calm, &(struct calm_params){.probe = probe,
                                           .context = &machine,
                                           .tolerance = 0.1,
                                           .usual = {[CALM_MEMORY] = 1e-3},
                                           .patience_seconds = 1e6});
    remember(&calm, CALM_MEMORY, 99, 2e-3);
    remember(&calm, CALM_COMPUTE, 99, 2e-3);
    cr_expect_eq(calm_usual(&calm, CALM_MEMORY), 1e-3);
    cr_expect_float_eq(calm_usual(&calm, CALM_COMPUTE), 2e-3, 2e-5, "of the other nobody said");
    cr_assert_eq(calm_measure(&found, &calm, CALM_MEMORY, measure, &machine, &err), STATUS_OK);
    cr_expect(found.measured.seconds == 1 && machine.measured == 2 && machine.probed == 4,
              "waited for");

    calm_init(&calm, &calm.params);
    machine = (struct machine){.slow = {2, 2, 1}, .count = 3};
    cr_assert_eq(calm_measure(&found, &calm, CALM_MEMORY, measure, &machine, &err), STATUS_OK);
    cr_expect_eq(found.measured.seconds, 1, "the first is judged");
}

/* Whatever a probe says. */
Test(calm, counts_any_time)
{
    static const double seconds[] = {0, -1, NAN, INFINITY, 1e-300, 1e300};
    struct calm calm;
    calm_init(&calm, &(struct calm_params){.tolerance = 0.1});
    for (int i = 0; i < 3; i++)
        remember(&calm, CALM_MEMORY, 1, seconds[i]);
    cr_expect_eq(calm.seen[CALM_MEMORY], 0);
    for (int i = 3; i < 6; i++)
        remember(&calm, CALM_MEMORY, 1, seconds[i]);
    cr_expect_eq(calm.seen[CALM_MEMORY], 3);
    cr_expect_gt(calm_usual(&calm, CALM_MEMORY), 1e3);
}

/* Of two, whatever was usual when they were measured. */
Test(calm, the_better_of_two)
{
    static const struct {
        const char *name;
        struct calm_point a, b; /* seconds of the point, and of the probe behind it */
        bool is_b;
    } pairs[] = {
        {"both calm, the faster",
         {{3, 0, 1}, CALM_MEMORY, 1e-3},
         {{2, 0, 1}, CALM_MEMORY, 1.05e-3},
         true},
        {"both calm, the faster first",
         {{2, 0, 1}, CALM_MEMORY, 0.95e-3},
         {{3, 0, 1}, CALM_MEMORY, 1e-3},
         false},
        {"as fast", {{2, 0, 1}, CALM_MEMORY, 1e-3}, {{2, 0, 1}, CALM_MEMORY, 1e-3}, false},
        {"the calm one, be it slower",
         {{2, 0, 1}, CALM_MEMORY, 0.6e-3},
         {{3, 0, 1}, CALM_MEMORY, 1e-3},
         true},
        {"the calm one, be it first",
         {{3, 0, 1}, CALM_MEMORY, 1e-3},
         {{2, 0, 1}, CALM_MEMORY, 0.6e-3},
         false},
        {"neither, the more usual",
         {{2, 0, 1}, CALM_MEMORY, 0.6e-3},
         {{3, 0, 1}, CALM_MEMORY, 1.4e-3},
         true},
        {"neither, both slow",
         {{3, 0, 1}, CALM_MEMORY, 1.5e-3},
         {{4, 0, 1}, CALM_MEMORY, 2e-3},
         false},
        {"calm is of its own probe",
         {{2, 0, 1}, CALM_MEMORY, 2e-3},
         {{3, 0, 1}, CALM_COMPUTE, 2e-3},
         true},
        {"nothing was probed, the faster",
         {{3, 0, 1}, CALM_MEMORY, 0},
         {{2, 0, 1}, CALM_MEMORY, 0},
         true},
    };
    struct calm calm;
    calm_init(&calm, &(struct calm_params){.tolerance = 0.1});
    remember(&calm, CALM_MEMORY, 99, 1e-3);
    remember(&calm, CALM_COMPUTE, 99, 2e-3);
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        cr_expect_eq(calm_better(&calm, &pairs[i].a, &pairs[i].b),
                     pairs[i].is_b ? &pairs[i].b : &pairs[i].a, "%s", pairs[i].name);
}

Test(calm, patience_ends)
{
    enum { POINTS = 20 };
    struct machine machine = {.slow = {1.5}, .count = 1};
    struct calm_point found;
    struct calm calm;
    struct error err;
    calm_init(&calm,
              &(struct calm_params){
                  .probe = probe, .context = &machine, .tolerance = 0.1, .patience_seconds = 0.2});
    remember(&calm, CALM_COMPUTE, 99, 1e-3);
    double begin = system_seconds();
    for (int point = 0; point < POINTS; point++)
        cr_assert_eq(calm_measure(&found, &calm, CALM_COMPUTE, measure, &machine, &err), STATUS_OK);
    cr_expect_geq(calm.waited_seconds, 0.2);
    cr_expect_leq(calm.waited_seconds, system_seconds() - begin);
    cr_expect_eq(calm.disturbed, POINTS);
    cr_expect_eq(machine.measured, POINTS, "a point is measured again when there was calm");
}

Test(calm, failures_are_told)
{
    static const struct {
        double slow[5];
        const char *message;
    } failing[] = {{{-1, -1, -1, -1, -1}, "the point failed"},
                   {{1.5, -1, -1, -1, -1}, "the probe failed"},
                   {{1.5, 1.5, -1, -1, -1}, "the probe failed"},
                   {{1.5, 1.5, 1, -1, -1}, "the point failed"},
                   {{1.5, 1.5, 1, 1, -1}, "the probe failed"}};
    for (size_t i = 0; i < sizeof failing / sizeof *failing; i++) {
        struct machine machine = {.count = 5};
        struct calm_point found;
        struct calm calm;
        struct error err;
        memcpy(machine.slow, failing[i].slow, sizeof failing[i].slow);
        calm_init(&calm, &(struct calm_params){.probe = probe,
                                               .context = &machine,
                                               .tolerance = 0.1,
                                               .patience_seconds = 1e6});
        remember(&calm, CALM_COMPUTE, 99, 1e-3);
        cr_expect_eq(calm_measure(&found, &calm, CALM_COMPUTE, measure, &machine, &err), STATUS_IO);
        cr_expect_str_eq(err.message, failing[i].message);
    }
}

static enum status stop(void *context, struct error *err)
{
    return --*(int *)context > 0 ? STATUS_OK : error_set(err, STATUS_CANCELLED, "stopped");
}

Test(calm, who_waits_can_be_stopped)
{
    struct machine machine = {.slow = {1.5}, .count = 1};
    struct calm_point found;
    struct calm calm;
    struct error err;
    int left = 3;
    calm_init(&calm, &(struct calm_params){.probe = probe,
                                           .context = &machine,
                                           .tolerance = 0.1,
                                           .goes_on = stop,
                                           .goes_on_context = &left,
                                           .patience_seconds = 1e6});
    remember(&calm, CALM_COMPUTE, 99, 1e-3);
    cr_assert_eq(calm_measure(&found, &calm, CALM_COMPUTE, measure, &machine, &err),
                 STATUS_CANCELLED);
    cr_expect_eq(machine.probed, 3, "behind the point, and behind each of two naps");
}

/* Products of one row are the memory's, of many the cores'; the probes leave the meter as it was.
 */
Test(calm, probes_by_a_meter)
{
    enum { RANKS = 2 };
    static const struct {
        struct work_shape work;
        enum calm_probe which;
    } works[] = {{{WORK_MATMUL, DTYPE_BF16, {1, 64, 64}}, CALM_MEMORY},
                 {{WORK_DEQUANTIZE, DTYPE_INT4, {100000}}, CALM_MEMORY},
                 {{WORK_MATMUL, DTYPE_BF16, {128, 64, 256}}, CALM_COMPUTE}};
    struct machine machine = {.slow = {1}, .count = 1};
    struct calm_meter calm;
    struct calm_point found;
    struct meter *meter;
    struct box *box;
    struct error err;
    const struct box_params params = {.rank_count = RANKS, .gpus = meter_gpus(RANKS)};
    cr_assert_eq(box_open(&box, &params, &err), STATUS_OK, "%s", err.message);
    struct meter_params small = meter_params_default(box, 4 * RANKS * METER_RANK_BYTES_MIN);
    small.point_seconds = 1e-3;
    small.sample_seconds = 1e-4;
    cr_assert_eq(meter_create(&meter, &small, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(calm_meter_init(&calm, meter, &(struct calm_params){.patience_seconds = 1}, &err),
                 STATUS_OK, "%s", err.message);
    cr_expect_eq(meter->params.settled, small.settled);
    cr_expect(isfinite(calm.flops_per_byte) && calm.flops_per_byte > 0);
    cr_assert_eq(calm_work(&found, &calm, &works[0].work, &err), STATUS_OK, "%s", err.message);
    cr_expect_gt(found.measured.seconds, 0);

    calm.calm.params.probe = probe;
    calm.calm.params.context = &machine;
    for (int which = 0; which < CALM_PROBES; which++)
        remember(&calm.calm, (enum calm_probe)which, 99, 1e-3);
    calm.flops_per_byte = 8; /* of most machines; clocks of busy ones say anything */
    for (size_t i = 0; i < sizeof works / sizeof *works; i++) {
        cr_assert_eq(calm_work(&found, &calm, &works[i].work, &err), STATUS_OK);
        cr_expect_eq(machine.which, works[i].which, "work %zu", i);
    }
    for (int64_t bytes = 4096; bytes <= 1 << 19; bytes <<= 7) {
        struct collective_shape shape = {GROUP_ALL_TO_ALL, RANKS, .fullest = 1};
        shape.bytes = meter_collective_bytes(shape.op, RANKS, bytes);
        cr_assert_eq(calm_collective(&found, &calm, &shape, &err), STATUS_OK, "%s", err.message);
        cr_expect_eq(machine.which, bytes == 4096 ? CALM_COMPUTE : CALM_MEMORY);
    }
    cr_expect_eq(machine.probed, 5);
    meter_destroy(meter);
    box_close(box);
}
