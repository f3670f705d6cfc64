/* A rank that fails ends the run on all ranks: soon, with one sentence that names rank and cause,
 * and nothing is left. Faults are put between the executor and a rank's device: its n-th operation
 * fails, or never ends. The clock stands: a run that nobody ends hangs, and so does the test. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "clock.h"
#include "faulty_device.h"
#include "patience.h"
#include "scenarios.h"
#include "sweep.h"

struct outcome {
    enum status status;
    struct error error;
};

struct others {
    struct comm_domain *domain;
    int rank_count, rank; /* which hangs */
};

static bool do_others_wait(void *context)
{
    const struct others *others = context;
    bool do_all = true;
    for (int r = 0; r < others->rank_count; r++)
        do_all &= r == others->rank || rank_waits(others->domain, r);
    return do_all;
}

/* One pass of the owned form and one for decode, with the fault on a rank. */
static struct outcome run_with_fault(const char *plan, int rank, enum fault_kind kind, int64_t at,
                                     double patience)
{
    struct model_runner runner;
    struct outcome outcome = {.status = STATUS_OK};
    int32_t tokens[8] = {3, 1, 4, 1, 5, 9, 2, 6}, pages[2];
    int32_t row = 0;
    const struct draw draw = {1, 2};
    struct exec_head logits = {.rows = &row, .row_count = 1};
    struct exec_head greedy = {.rows = &row,
                               .row_count = 1,
                               .wants_chosen = true,
                               .wants_candidates = true,
                               .skips_logits = true,
                               .draws = &draw};
    clock_hold();
    model_runner_open(&runner, &(struct runner_params){
                                   .dir = scenario_checkpoint("qwen2moe", DTYPE_F32),
                                   .dtype = DTYPE_F32,
                                   .rank_count = 4,
                                   .plan = plan,
                                   .token_max = 32,
                                   .segment_max = 8,
                                   .page_count = 2,
                                   .patience_seconds = patience,
                               });
    struct device *device = box_device(runner.box, rank);
    /* The executor takes the table when it is made. */
    exec_destroy(runner.exec);
    faulty_device_install(device, kind);
    struct others others = {box_domain(runner.box), 4, rank};
    faulty_device_hang(others.domain, do_others_wait, &others);
    struct exec_params params = {.box = runner.box,
                                 .config = runner.config,
                                 .layouts = &runner.layouts,
                                 .weights = runner.weights,
                                 .token_max = 32,
                                 .segment_max = 8};
    cr_assert_eq(exec_create(&runner.exec, &params, &outcome.error), STATUS_OK);
    faulty_device_arm(at);

    model_runner_take(&runner, 0, pages, 1);
    struct exec_segment prompt = {tokens, 7, 0, pages, 0}, next = {tokens + 7, 1, 7, pages, 0};
    outcome.status =
        exec_forward(runner.exec, &runner.cache, FORM_OWNED, &prompt, 1, &outcome.error);
    if (outcome.status == STATUS_OK)
        outcome.status = exec_head(runner.exec, &logits, &outcome.error);
    if (outcome.status == STATUS_OK)
        outcome.status = exec_step(runner.exec, &runner.cache, exec_decode_form(runner.exec), &next,
                                   1, &greedy, &outcome.error);
    faulty_device_remove(device);
    model_runner_close(&runner);
    return outcome;
}

static const char *const plans[] = {"tp4|tp4", "tp2dp2|tp2ep2", "dp4|ep4"};

/* Every n-th operation of a rank. */
static void sweep(enum fault_kind kind, uint64_t quick_step, int64_t least)
{
    for (size_t p = 0; p < 3; p++) {
        uint64_t step = sweep_step(quick_step), n = sweep_first(step);
        int rank = (int)((n + p) % 4);
        char who[32];
        snprintf(who, sizeof who, "rank %d: ", rank);
        for (;; n += step) {
            uint64_t live = memory_counters_get().live_count;
            struct outcome outcome = run_with_fault(plans[p], rank, kind, (int64_t)n, 0);
            cr_assert_eq(memory_counters_get().live_count, live, "%s, operation %llu leaks",
                         plans[p], (unsigned long long)n);
            if (outcome.status == STATUS_OK)
                break; /* fewer operations than that */
            cr_assert_eq(outcome.status, STATUS_IO, "%s", outcome.error.message);
            cr_assert(strncmp(outcome.error.message, who, strlen(who)) == 0, "%s",
                      outcome.error.message);
            cr_assert_not_null(strstr(outcome.error.message, FAULT_SENTENCE));
            cr_assert_null(strstr(outcome.error.message + strlen(who), "rank "));
        }
        cr_assert_gt((int64_t)n, least, "%s: only %llu operations", plans[p],
                     (unsigned long long)n);
    }
}

TestSuite(failures, .fini = scenario_checkpoints_remove);

Test(failures, of_any_operation_end_the_run, .timeout = 600)
{
    sweep(FAULT_STREAM, 11, 100);
}

Test(failures, of_a_host_thread_end_the_run, .timeout = 600)
{
    sweep(FAULT_HOST, 1, 2);
}

/* A rank that does not come any more: the others wait as long as they were told to, and say for
 * whom and with what. */
Test(failures, a_rank_that_hangs_is_named)
{
    static const int64_t places[] = {1, 20, 45};
    for (size_t p = 0; p < 3; p++) {
        uint64_t live = memory_counters_get().live_count;
        struct outcome outcome = run_with_fault(plans[p], 2, FAULT_HANG, places[p], 0.5);
        printf("%s: %s\n", plans[p], outcome.error.message);
        cr_assert_neq(outcome.status, STATUS_OK);
        cr_assert_not_null(strstr(outcome.error.message, "rank 2"), "%s", outcome.error.message);
        cr_assert_eq(memory_counters_get().live_count, live);
    }
}
