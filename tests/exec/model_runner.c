#include "model_runner.h"

#include <criterion/criterion.h>
#include <stdio.h>

static void check(enum status status, const struct error *err)
{
    cr_assert_eq(status, STATUS_OK, "%s", err->message);
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

void model_runner_open(struct model_runner *out, const char *name, enum dtype dtype,
                       int thread_count, int64_t token_max, int64_t page_count)
{
    struct error err;
    struct weights_progress silent = {0};
    out->checkpoint = test_checkpoint_open(name);
    const struct model_config *config = checkpoint_config(out->checkpoint);
    check(device_cpu_create(&out->device, thread_count, &err), &err);
    check(weights_load(&out->weights, out->device, out->checkpoint, dtype, &silent, &err), &err);
    check(exec_create(&out->exec, out->device, config, &out->weights, token_max, 16, &err), &err);
    check(kv_cache_init(&out->cache, out->device, config, dtype, page_count, &err), &err);
}

void model_runner_close(struct model_runner *runner)
{
    kv_cache_deinit(&runner->cache);
    exec_destroy(runner->exec);
    weights_deinit(&runner->weights);
    device_destroy(runner->device);
    checkpoint_close(runner->checkpoint);
}
