/* No rank touches what is not its own: the ranks run one at a time, each with the memory of all
 * others closed (an access is a fault), and change places only inside collectives and when they
 * have nothing to do. Only a collective's copying sees more than one rank's memory. */
#include <criterion/criterion.h>
#include <signal.h>
#include <unistd.h>

#include "base/memory.h"
#include "baton.h"
#include "scenarios.h"

static void runner_open(struct model_runner *out, const char *model, int rank_count,
                        const char *plan, struct turn *turn)
{
    struct layout layout;
    struct error err;
    cr_assert_eq(layout_parse(&layout, plan, rank_count, &err), STATUS_OK);
    model_runner_open(out, &(struct runner_params){
                               .dir = scenario_checkpoint(model, DTYPE_F32),
                               .dtype = DTYPE_F32,
                               .rank_count = rank_count,
                               .plan = plan,
                               .thread_count = rank_count + 2, /* some ranks have two threads */
                               .token_max = scenario_token_max(&scenarios[0], layout.attention.dp),
                               .segment_max = SCENARIO_SEQUENCES_MAX,
                               .page_count = 2 * SCENARIO_SEQUENCES_MAX,
                               .turn = turn,
                           });
}

TestSuite(isolation, .fini = scenario_checkpoints_remove);

Test(isolation, ranks_one_at_a_time, .timeout = 120)
{
    static const struct {
        const char *model, *plan;
        int rank_count;
    } cases[] = {
        {"mixtral", "tp2|tp2", 2},     {"mixtral", "tp2dp2|tp2ep2", 4},
        {"qwen2moe", "tp4|tp4", 4},    {"qwen2moe", "tp2dp4|tp2ep4", 8},
        {"qwen3moe", "tp4dp2|ep8", 8}, {"mixtral", "dp8|tp8", 8},
        {"qwen3moe", "dp4|tp2ep2", 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct model_runner runner;
        struct scenario_result found, expected;
        runner_open(&runner, cases[i].model, 1, "tp1|tp1", NULL);
        scenario_run(&expected, &runner, &scenarios[0]);
        model_runner_close(&runner);

        baton_open();
        runner_open(&runner, cases[i].model, cases[i].rank_count, cases[i].plan, baton_turn());
        baton_arm(runner.box);
        scenario_run(&found, &runner, &scenarios[0]);
        baton_disarm();
        double error = scenario_worst(&found, &expected);
        cr_assert_leq(error, 1e-4, "%s, %s: off by %.2e", cases[i].model, cases[i].plan, error);
        /* At least one change of place for each rank, layer and pass. */
        cr_assert_gt(baton_changes(), cases[i].rank_count * 3 * 6);
        model_runner_close(&runner);
        memory_free(found.logits);
        memory_free(expected.logits);
    }
}

struct trespass {
    const volatile char *memory;
};

static enum status touch(void *argument, struct error *err)
{
    const struct trespass *trespass = argument;
    (void)err;
    return *trespass->memory == 1 ? STATUS_OK : STATUS_OK;
}

#define TRESPASS_EXIT_CODE 77

static void on_fault(int signal_number)
{
    (void)signal_number;
    _exit(TRESPASS_EXIT_CODE);
}

/* The test above can fail: who reads another rank's memory is stopped. */
Test(isolation, a_trespass_is_a_fault, .exit_code = TRESPASS_EXIT_CODE)
{
    struct model_runner runner;
    struct error err;
    baton_open();
    runner_open(&runner, "mixtral", 2, "tp2|tp2", baton_turn());
    scenario_checkpoints_remove();
    struct trespass trespass = {kv_cache_layer(&runner.cache, 1, 0).keys};
    struct device *device = box_device(runner.box, 0);
    signal(SIGSEGV, on_fault);
    baton_arm(runner.box);
    device->ops->call(device->stream, touch, &trespass, sizeof trespass);
    cr_assert_eq(device->ops->synchronize(device->stream, &err), STATUS_OK);
}
