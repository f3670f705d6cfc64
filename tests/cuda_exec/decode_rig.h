/* A few sequences on GPUs: prompts, then steps of decode that are kept. */
#ifndef PHASOR_TESTS_CUDA_EXEC_DECODE_RIG_H
#define PHASOR_TESTS_CUDA_EXEC_DECODE_RIG_H

#include "gpu.h"
#include "scenarios.h"

#define DECODE_SEQUENCES 3
#define DECODE_STEPS     12
#define DECODE_TOKENS    700

struct decode_params {
    char model[16]; /* no pointer: the runner of parameterized tests copies it */
    enum dtype dtype;
    int rank_count, gpu_count;
    char plan[32];
    bool chooses; /* tokens are drawn on the GPUs, but the second sequence's is its largest */
    uint64_t stream_seed;
    int64_t prompts[DECODE_SEQUENCES]; /* their lengths */
};

struct decode_sequence {
    int32_t tokens[DECODE_TOKENS], pages[DECODE_TOKENS / KV_PAGE_TOKENS];
    int64_t fed;
};

struct decode {
    struct model_runner runner;
    struct decode_params params;
    struct decode_sequence sequences[DECODE_SEQUENCES];
    float *found; /* [DECODE_STEPS][DECODE_SEQUENCES][vocab]; where it chooses of each a struct
                     chosen */
    int64_t vocab;
};

/* Rank r is on GPU r % gpu_count. The prompts have run. */
void decode_open(struct decode *decode, const struct decode_params *params);
void decode_close(struct decode *decode);

/* Without graphs from here on: by a table of hooks, as it stands while layers may move. */
void decode_without_graphs(struct decode *decode);

/* The next token of the first sequences. */
enum status decode_step(struct decode *decode, int step, int sequence_count,
                        struct error *err) MUST_CHECK;

/* Whether both found the same to the bit in the steps before `step_count`. */
bool decode_is_same(const struct decode *decode, const struct decode *other, int step_count);

#endif
