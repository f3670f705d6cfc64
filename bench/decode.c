/* Tokens a second of decode on native experts, on the INT4 backup's dequantized ones, and on its
 * packed ones, for several sizes of the batch; see bench/README.md.
 *
 * Inside the timed window: the passes of decode of one phasor_batch_run, from the choice of what
 * they compute to the tokens drawn from their logits, without what they wait for experts that still
 * change their layout. Outside: loading, prefill, transitions, reading and writing rows. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "head.h"
#include "phasor.h"

#define PROMPT_TOKENS 16
#define STEPS         64
#define VOCAB         2000 /* token ids below it, above the special ones */
#define ROUNDS_MAX    99

static const int batches[] = {1, 8, 32};
#define BATCHES   ((int)(sizeof batches / sizeof batches[0]))
#define BATCH_MAX 32

/* A ratio is to the first of as many ranks. */
static const struct kind {
    const char *name, *plan;
    enum phasor_transition transition;
    int first;
} kinds[] = {
    {"native", "tp1|tp1", PHASOR_TRANSITION_AUTO, 0},
    {"packed", "tp1|tp1>tp1:int4", PHASOR_TRANSITION_KEEP, 0},
    {"native", "dp2|ep2>tp2", PHASOR_TRANSITION_KEEP, 2},
    {"dequantized", "dp2|ep2>tp2", PHASOR_TRANSITION_UPLOAD, 2},
    {"packed", "dp2|ep2>tp2:int4", PHASOR_TRANSITION_KEEP, 2},
};
#define KINDS ((int)(sizeof kinds / sizeof kinds[0]))

static double rates[KINDS][BATCHES][ROUNDS_MAX];
static double expert_bytes[KINDS][BATCHES]; /* of routed experts, a token */

static void fail(const char *what)
{
    fprintf(stderr, "bench_decode: %s\n", what);
    exit(1);
}

static void note(void *context, enum phasor_log_level level, const char *message)
{
    (void)context;
    if (level != PHASOR_LOG_DEBUG)
        fprintf(stderr, "%s\n", message);
}

/* ---- One run --------------------------------------------------------------------------------- */

/* Ids at random: no two prompts begin alike. */
static void write_input(const char *path, int count)
{
    uint32_t state = 12345;
    FILE *file = fopen(path, "w");
    if (file == NULL)
        fail("cannot write the input file");
    for (int row = 0; row < count; row++) {
        fprintf(file,
                "{\"custom_id\":\"%d\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":"
                "{\"max_tokens\":%d,\"ignore_eos\":true,\"temperature\":0,\"prompt\":[",
                row, STEPS + 1); /* prefill gives the first */
        for (int t = 0; t < PROMPT_TOKENS; t++) {
            state = state * 1664525u + 1013904223u;
            fprintf(file, "%d%s", 3 + (int)(state >> 16) % (VOCAB - 3),
                    t + 1 < PROMPT_TOKENS ? "," : "]}}\n");
        }
    }
    if (fclose(file) != 0)
        fail("cannot write the input file");
}

static int stage_of(const char *name)
{
    int stage = 0;
    while (stage < PHASOR_STAGE_COUNT && strcmp(phasor_stage_name(stage), name) != 0)
        stage++;
    if (stage == PHASOR_STAGE_COUNT)
        fail("a stage has another name");
    return stage;
}

static void run_batch(struct phasor_model *model, const char *folder, int kind, int b, int round)
{
    struct phasor_batch_params params = phasor_batch_params_default();
    struct phasor_batch_result result;
    struct phasor_error err;
    char input[64], output[64], record[80];
    snprintf(input, sizeof input, "%s/in", folder);
    snprintf(output, sizeof output, "%s/out", folder);
    snprintf(record, sizeof record, "%s.phasor-run", output);
    write_input(input, batches[b]);
    params.input_path = input;
    params.output_path = output;
    params.overwrite = true;
    params.max_num_seqs = BATCH_MAX;
    if (phasor_batch_run(model, &params, &result, &err) != PHASOR_OK)
        fail(err.message);
    if (result.decode_tokens != (uint64_t)batches[b] * STEPS)
        fail("not every row was computed");
    remove(input);
    remove(output);
    remove(record);
    double seconds = result.decode_seconds - result.decode_stage_seconds[stage_of("transition")];
    double tokens = (double)result.decode_tokens;
    rates[kind][b][round] = tokens / seconds;
    expert_bytes[kind][b] = (double)result.decode_weight_bytes[stage_of("experts")] / tokens;
}

static void run_kind(const char *path, const char *folder, int kind, int round)
{
    struct phasor_model_params params = phasor_model_params_default();
    struct phasor_model *model;
    struct phasor_error err;
    params.model = path;
    params.plan = kinds[kind].plan;
    params.transition = kinds[kind].transition;
    params.log = note;
    if (phasor_model_open(&model, &params, &err) != PHASOR_OK)
        fail(err.message);
    for (int b = 0; b < BATCHES; b++)
        run_batch(model, folder, kind, b, round);
    phasor_model_close(model);
}

/* ---- Report ---------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void sort(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, by_value);
}

/* Before rates are sorted: a ratio is of one round. */
static double median_ratio(int kind, int b, int rounds)
{
    double ratios[ROUNDS_MAX];
    for (int r = 0; r < rounds; r++)
        ratios[r] = rates[kind][b][r] / rates[kinds[kind].first][b][r];
    sort(ratios, rounds);
    return ratios[rounds / 2];
}

static void report(int b, int rounds)
{
    double ratios[KINDS];
    for (int kind = 0; kind < KINDS; kind++)
        ratios[kind] = median_ratio(kind, b, rounds);
    for (int kind = 0; kind < KINDS; kind++) {
        double *of = rates[kind][b];
        double share = expert_bytes[kind][b] / expert_bytes[kinds[kind].first][b];
        sort(of, rounds);
        printf("batch %2d  %-17s %-11s %8.1f tok/s (%.1f to %.1f) %5.2f x native; %8.2f MB of "
               "experts a token, %.3f\n",
               batches[b], kinds[kind].plan, kinds[kind].name, of[rounds / 2], of[0],
               of[rounds - 1], ratios[kind], expert_bytes[kind][b] / 1e6, share);
    }
}

int main(int argc, char **argv)
{
    int rounds = argc > 2 ? atoi(argv[2]) : 7;
    char folder[] = "/tmp/bench-decode-XXXXXX";
    if (argc < 2 || rounds < 1 || rounds > ROUNDS_MAX)
        fail("usage: bench_decode MODEL [rounds]");
    if (mkdtemp(folder) == NULL)
        fail("cannot make a folder in /tmp");
    bench_print_head(argc, argv);
    printf(
        "# prompts of %d tokens, %d passes of decode; %ld cores\n"
        "# clock: CLOCK_MONOTONIC; median (least to most) of %d rounds; ratios and shares are to "
        "native\n# experts on as many ranks\n",
        PROMPT_TOKENS, STEPS, sysconf(_SC_NPROCESSORS_ONLN), rounds);
    for (int r = 0; r < rounds; r++) {
        for (int kind = 0; kind < KINDS; kind++)
            run_kind(argv[1], folder, kind, r);
        fprintf(stderr, "round %d of %d\n", r + 1, rounds);
    }
    rmdir(folder);
    for (int b = 0; b < BATCHES; b++)
        report(b, rounds);
    return 0;
}
