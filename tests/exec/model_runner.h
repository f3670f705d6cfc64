/* A small checkpoint of tests/data/models, opened and ready to run. */
#ifndef PHASOR_TESTS_EXEC_MODEL_RUNNER_H
#define PHASOR_TESTS_EXEC_MODEL_RUNNER_H

#include "exec/exec.h"
#include "model/checkpoint.h"

struct model_runner {
    struct checkpoint *checkpoint;
    struct device *device;
    struct weights weights;
    struct exec *exec;
    struct kv_cache cache;
};

/* Fails the test when something cannot be had. */
struct checkpoint *test_checkpoint_open(const char *name);
void model_runner_open(struct model_runner *out, const char *name, enum dtype dtype,
                       int thread_count, int64_t token_max, int64_t page_count);
void model_runner_close(struct model_runner *runner);

#endif
