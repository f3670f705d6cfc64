#include "model_runner.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static void check(enum status status, const struct error *err)
{
    cr_assert_eq(status, STATUS_OK, "%s", err->message);
}

void test_device_warm(struct device *device)
{
    void *pieces[64];
    struct error err;
    for (int i = 0; i < 64; i++)
        check(device->ops->memory_get(device, &pieces[i], 1, "a test", &err), &err);
    for (int i = 0; i < 64; i++)
        device->ops->memory_free(device, pieces[i]);
}

struct checkpoint *test_checkpoint_open(const char *name)
{
    char dir[512];
    struct error err;
    struct checkpoint *checkpoint;
    snprintf(dir, sizeof dir, "%s/models/%s", TEST_DATA, name);
    check(checkpoint_open(&checkpoint, dir, &err), &err);
    return checkpoint;
}

static void layout_choose(struct model_runner *runner, const struct runner_params *params)
{
    struct error err;
    struct model_shape shape = weights_shape(runner->config);
    int rank_count = params->rank_count > 0 ? params->rank_count : 1;
    if (params->plan == NULL) {
        check(layout_static_tp(&runner->layout, &shape, rank_count, &err), &err);
        runner->layouts = plan_layouts_static(&runner->layout);
    } else
        check(plan_layouts_parse(&runner->layouts, params->plan, rank_count, &err), &err);
    check(plan_layouts_check(&runner->layouts, &shape, &err), &err);
    runner->layout = runner->layouts.of[PHASE_PREFILL];
}

struct weights_share model_runner_share(const struct model_runner *runner, int rank)
{
    return (struct weights_share){.layouts = runner->layouts,
                                  .packed = runner->packed,
                                  .keeps_both = runner->keeps_both,
                                  .spare_count = runner->spare_count,
                                  .rank = rank,
                                  .types = runner->types};
}

const struct layout *model_runner_layer_layout(const struct model_runner *runner, int64_t layer)
{
    return &runner->layouts.of[runner->weights[0].experts.layers[layer].phase];
}

static enum status load(void *context, int rank, struct error *err)
{
    struct model_runner *runner = context;
    struct weights_progress silent = {0};
    struct weights_share share = model_runner_share(runner, rank);
    return weights_load(&runner->weights[rank], box_device(runner->box, rank), runner->checkpoint,
                        &share, &silent, err);
}

void model_runner_open(struct model_runner *out, const struct runner_params *params)
{
    struct error err;
    if (params->dir != NULL)
        check(checkpoint_open(&out->checkpoint, params->dir, &err), &err);
    else
        out->checkpoint = test_checkpoint_open(params->name);
    out->config = checkpoint_config(out->checkpoint);
    layout_choose(out, params);
    check(box_open(&out->box,
                   &(struct box_params){
                       .rank_count = out->layout.rank_count,
                       .thread_count = params->thread_count,
                       .patience_seconds = params->patience_seconds,
                       .tag_names = traffic_names,
                       .tag_count = TRAFFIC_KIND_COUNT,
                       .gpus = params->gpus,
                       .kernels = params->kernels,
                       .turn = params->turn,
                   },
                   &err),
          &err);
    out->packed = params->packed;
    out->keeps_both = params->keeps_both;
    out->spare_count = params->spare_count;
    out->types =
        (struct weight_types){params->dtype, params->has_int4_experts ? DTYPE_INT4 : params->dtype};
    check(box_run(out->box, load, out, &err), &err);
    check(exec_create(&out->exec,
                      &(struct exec_params){
                          .box = out->box,
                          .config = out->config,
                          .layouts = &out->layouts,
                          .weights = out->weights,
                          .token_max = params->token_max,
                          .segment_max = params->segment_max > 0 ? params->segment_max : 16,
                      },
                      &err),
          &err);
    check(kv_cache_init(&out->cache,
                        &(struct kv_cache_params){
                            .box = out->box,
                            .config = out->config,
                            .layout = &out->layout,
                            .dtype = params->dtype,
                            .page_count = params->page_count,
                        },
                        &err),
          &err);
    cr_assert_leq(params->page_count, RUNNER_PAGES_MAX);
    memset(out->taken, 0, sizeof out->taken);
}

void model_runner_take(struct model_runner *runner, int group, int32_t *pages, int64_t count)
{
    int64_t found = 0;
    for (int32_t p = 0; p < runner->cache.page_count && found < count; p++) {
        if (!runner->taken[group][p])
            pages[found++] = p;
    }
    cr_assert_eq(found, count, "the cache is too small for this test");
    for (int64_t i = 0; i < count; i++)
        runner->taken[group][pages[i]] = true;
}

void model_runner_return(struct model_runner *runner, int group, const int32_t *pages,
                         int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        cr_assert(runner->taken[group][pages[i]]);
        runner->taken[group][pages[i]] = false;
    }
}

void model_runner_close(struct model_runner *runner)
{
    kv_cache_deinit(&runner->cache);
    exec_destroy(runner->exec);
    for (int r = 0; r < runner->layout.rank_count; r++)
        weights_deinit(&runner->weights[r]);
    box_close(runner->box);
    checkpoint_close(runner->checkpoint);
}
