/* Throughput of many questions over one long document, with prefix sharing and without; see
 * bench/README.md.
 *
 * Inside the timed window: a whole phasor_batch_run from its first row to its last, that is reading
 * rows, prefill, decode, writing and flushing the output file. Outside: loading the model, opening
 * the session (the KV cache is taken then, and touched within the window), making the input. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "head.h"
#include "phasor.h"

#define DOCUMENT_TOKENS 8192 /* 128 pages */
#define QUESTION_TOKENS 64
#define ANSWER_TOKENS   32
#define QUESTIONS       64
#define VOCAB           2000 /* token ids below it, above the special ones */
#define REPEATS_MAX     99

struct run {
    double seconds, prefill_seconds, decode_seconds;
    uint64_t computed_tokens, shared_tokens;
};

static void fail(const char *what)
{
    fprintf(stderr, "bench_prefix: %s\n", what);
    exit(1);
}

static uint32_t random_state = 12345;

static int next_id(void)
{
    random_state = random_state * 1664525u + 1013904223u;
    return 3 + (int)(random_state >> 16) % (VOCAB - 3);
}

static void write_input(const char *path)
{
    static int document[DOCUMENT_TOKENS];
    FILE *file = fopen(path, "w");
    if (file == NULL)
        fail("cannot write the input file");
    for (int t = 0; t < DOCUMENT_TOKENS; t++)
        document[t] = next_id();
    for (int q = 0; q < QUESTIONS; q++) {
        fprintf(file,
                "{\"custom_id\":\"%d\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":"
                "{\"max_tokens\":%d,\"ignore_eos\":true,\"temperature\":0,\"prompt\":[",
                q, ANSWER_TOKENS);
        for (int t = 0; t < DOCUMENT_TOKENS; t++)
            fprintf(file, "%d,", document[t]);
        for (int t = 0; t < QUESTION_TOKENS; t++)
            fprintf(file, "%d%s", next_id(), t + 1 < QUESTION_TOKENS ? "," : "]}}\n");
    }
    if (fclose(file) != 0)
        fail("cannot write the input file");
}

static struct run run_once(struct phasor_model *model, const char *input, const char *output,
                           bool shares)
{
    struct phasor_batch_params params = phasor_batch_params_default();
    struct phasor_batch_result result;
    struct phasor_error err;
    params.input_path = input;
    params.output_path = output;
    params.overwrite = true;
    params.max_num_seqs = QUESTIONS;
    params.shares_prefixes = shares;
    if (phasor_batch_run(model, &params, &result, &err) != PHASOR_OK)
        fail(err.message);
    if (result.completed != QUESTIONS)
        fail("not every question was answered");
    fprintf(stderr, "%s: %.2f s, prefill %.2f s, decode %.2f s\n", shares ? "sharing" : "without",
            result.elapsed_seconds, result.prefill_seconds, result.decode_seconds);
    return (struct run){result.elapsed_seconds, result.prefill_seconds, result.decode_seconds,
                        result.prefill_tokens, result.shared_tokens};
}

static int by_seconds(const void *a, const void *b)
{
    double x = ((const struct run *)a)->seconds, y = ((const struct run *)b)->seconds;
    return (x > y) - (x < y);
}

/* The run of the median time; sorts. */
static struct run report(const char *name, struct run *runs, int count)
{
    qsort(runs, (size_t)count, sizeof *runs, by_seconds);
    struct run median = runs[count / 2];
    printf("%-16s %8.2f s (%.2f to %.2f), prefill %8.2f s, decode %6.2f s; %7llu tokens computed, "
           "%7llu shared; %8.2f answers/s\n",
           name, median.seconds, runs[0].seconds, runs[count - 1].seconds, median.prefill_seconds,
           median.decode_seconds, (unsigned long long)median.computed_tokens,
           (unsigned long long)median.shared_tokens, QUESTIONS / median.seconds);
    return median;
}

static void print_head(int argc, char **argv, int repeats)
{
    bench_print_head(argc, argv);
    printf("# %d questions of %d tokens behind one document of %d, answers of %d; one rank, %ld "
           "cores;\n# clock: CLOCK_MONOTONIC; median (least to most) of %d runs of each kind, in "
           "turn\n",
           QUESTIONS, QUESTION_TOKENS, DOCUMENT_TOKENS, ANSWER_TOKENS,
           sysconf(_SC_NPROCESSORS_ONLN), repeats);
}

int main(int argc, char **argv)
{
    static struct run shared[REPEATS_MAX], whole[REPEATS_MAX];
    struct phasor_model *model;
    struct phasor_error err;
    struct phasor_model_params params = phasor_model_params_default();
    int repeats = argc > 2 ? atoi(argv[2]) : 3;
    char folder[] = "/tmp/bench-prefix-XXXXXX", input[64], output[64];
    if (argc < 2 || repeats < 1 || repeats > REPEATS_MAX)
        fail("usage: bench_prefix MODEL [repeats]");
    if (mkdtemp(folder) == NULL)
        fail("cannot make a folder in /tmp");
    snprintf(input, sizeof input, "%s/in", folder);
    snprintf(output, sizeof output, "%s/out", folder);
    write_input(input);
    params.model = argv[1];
    if (phasor_model_open(&model, &params, &err) != PHASOR_OK)
        fail(err.message);
    print_head(argc, argv, repeats);
    for (int r = 0; r < repeats; r++) {
        shared[r] = run_once(model, input, output, true);
        whole[r] = run_once(model, input, output, false);
    }
    phasor_model_close(model);
    remove(input);
    remove(output);
    rmdir(folder);
    struct run with = report("sharing", shared, repeats);
    struct run without = report("without", whole, repeats);
    printf("ratio of throughput: %.1f\n", without.seconds / with.seconds);
    return 0;
}
