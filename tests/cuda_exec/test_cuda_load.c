/* Weights on their way to GPUs whose calls fail. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "gpu.h"
#include "scenarios.h"
#include "simt_control.h"
#include "sweep.h"

TestSuite(cuda_load, .timeout = 200, .fini = scenario_checkpoints_remove);

#define RANKS 2

struct load {
    struct box *box;
    struct checkpoint *checkpoint;
    struct weights_share share;
    struct weights weights[RANKS];
    bool is_there[RANKS];
};

static enum status load_rank(void *context, int rank, struct error *err)
{
    struct load *load = context;
    struct weights_progress silent = {0};
    struct weights_share share = load->share;
    share.rank = rank;
    enum status status = weights_load(&load->weights[rank], box_device(load->box, rank),
                                      load->checkpoint, &share, &silent, err);
    load->is_there[rank] = status == STATUS_OK;
    return status;
}

static void load_open(struct load *out, const char *plan, const struct weight_types *types)
{
    struct error err;
    *out = (struct load){.share.types = *types};
    cr_assert_eq(
        checkpoint_open(&out->checkpoint, scenario_checkpoint("mixtral", DTYPE_BF16), &err),
        STATUS_OK, "%s", err.message);
    cr_assert_eq(plan_layouts_parse(&out->share.layouts, plan, RANKS, &err), STATUS_OK);
    cr_assert_eq(box_open(&out->box,
                          &(struct box_params){.rank_count = RANKS,
                                               .thread_count = RANKS,
                                               .tag_names = traffic_names,
                                               .tag_count = TRAFFIC_KIND_COUNT,
                                               .gpus = (int[RANKS]){0, 1}},
                          &err),
                 STATUS_OK, "%s", err.message);
}

static void load_close(struct load *load)
{
    for (int r = 0; r < RANKS; r++) {
        if (load->is_there[r])
            weights_deinit(&load->weights[r]);
    }
    box_close(load->box);
    checkpoint_close(load->checkpoint);
}

/* The n-th call fails: the loading does, by a sentence with rank and call, and nothing is kept; but
 * of what gives back memory nobody is told. Returns whether it came. */
static bool load_fails(uint64_t n, uint64_t *went_on, const char *plan,
                       const struct weight_types *types)
{
    uint64_t host = memory_counters_get().live_count;
    struct load load;
    struct error err = {.message = ""};
    load_open(&load, plan, types);
    simt_stream_seed_set(n % 4);
    simt_fail_at(n, cudaErrorUnknown);
    enum status status = box_run(load.box, load_rank, &load, &err);
    bool came = !simt_fail_is_ahead();
    simt_fail_at(0, cudaSuccess);
    cr_assert(came || status == STATUS_OK, "%s", err.message);
    cr_assert(status == STATUS_OK || (strncmp(err.message, "rank ", 5) == 0 &&
                                      strstr(err.message, "on cuda:") != NULL),
              "call %" PRIu64 ": %s", n, err.message);
    *went_on += came && status == STATUS_OK;
    load_close(&load);
    gpu_check_nothing_left();
    cr_assert_eq(memory_counters_get().live_count, host, "call %" PRIu64, n);
    return came;
}

Test(cuda_load, each_call_may_fail)
{
    static const struct {
        const char *plan;
        struct weight_types types;
    } cases[] = {{"tp2|tp2", {DTYPE_BF16, DTYPE_BF16}}, {"dp2|ep2>tp2", {DTYPE_F32, DTYPE_INT4}}};
    gpu_count_use(RANKS);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        uint64_t step = sweep_step(7), n = sweep_first(step), went_on = 0;
        for (; load_fails(n, &went_on, cases[c].plan, &cases[c].types); n += step)
            ;
        printf("%s: of %" PRIu64 " calls, one in %" PRIu64 ", %" PRIu64 " failed and did no harm\n",
               cases[c].plan, n - step, step, went_on);
        cr_assert_gt(n, 300, "%s: only %" PRIu64 " calls", cases[c].plan, n);
        cr_assert_leq(went_on, 2 * RANKS, "%s", cases[c].plan); /* each frees its staging by two */
    }
}
