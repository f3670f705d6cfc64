/* A checkpoint opened and ready to run on any number of ranks. */
#ifndef PHASOR_TESTS_EXEC_MODEL_RUNNER_H
#define PHASOR_TESTS_EXEC_MODEL_RUNNER_H

#include <stdbool.h>

#include "exec/exec.h"
#include "model/checkpoint.h"

#define RUNNER_PAGES_MAX 256

struct runner_params {
    const char *dir; /* of the checkpoint; NULL: `name` in tests/data/models */
    const char *name;
    enum dtype dtype;
    bool has_int4_experts;
    int rank_count;            /* 0: 1 */
    const char *plan;          /* NULL: static tensor parallelism */
    struct expert_type packed; /* of a plan with ":int4"; see struct weights_share */
    bool keeps_both;           /* see struct weights_share */
    int64_t spare_count;       /* the same */
    int thread_count;          /* 0: one for each core */
    int64_t token_max;         /* of a pass */
    int64_t segment_max;       /* 0: 16 */
    int64_t page_count;        /* of each group */
    const int *gpus;           /* see box_params */
    const char *kernels;       /* see cpu_share */
    struct turn *turn;         /* see box_params */
    double patience_seconds;
};

struct model_runner {
    struct checkpoint *checkpoint;
    const struct model_config *config;
    struct plan_layouts layouts;
    struct layout layout; /* of prefill */
    struct box *box;
    struct weights weights[COMM_RANKS_MAX];
    struct exec *exec;
    struct kv_cache cache;
    struct weight_types types;
    struct expert_type packed;
    bool keeps_both;
    int64_t spare_count;
    bool taken[COMM_RANKS_MAX][RUNNER_PAGES_MAX]; /* pages of each group */
};

/* Takes and frees so many pieces that the device's own list of them is as long as it will be: what
 * tests that count allocations do first. */
void test_device_warm(struct device *device);

/* Fails the test when something cannot be had. */
struct checkpoint *test_checkpoint_open(const char *name);
void model_runner_open(struct model_runner *out, const struct runner_params *params);
void model_runner_close(struct model_runner *runner);

/* What the runner's ranks were loaded by. */
struct weights_share model_runner_share(const struct model_runner *runner, int rank);

/* The layout that a layer has now. */
const struct layout *model_runner_layer_layout(const struct model_runner *runner, int64_t layer);

/* Pages of a group of the cache that nobody has. */
void model_runner_take(struct model_runner *runner, int group, int32_t *pages, int64_t count);
void model_runner_return(struct model_runner *runner, int group, const int32_t *pages,
                         int64_t count);

#endif
