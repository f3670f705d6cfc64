/* What replay says of two ranks whose links are slow, beside what the clock says of them; see
 * bench/README.md.
 *
 * Wall: prefill_seconds and decode_seconds of a batch run on cpu:2, whose links sleep
 * (src/comm/slow.c). Replay: the same phases of a recording of the same load with fast links, on a
 * box file whose links are these, and whose one memory and whose cost of a meeting are measured in
 * the same rounds. Nothing is fitted. */
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/batch.h"
#include "head.h"
#include "replay/report.h"
#include "replay/simulate.h"
#include "two_ranks.h"

#define ROUNDS_MAX    99
#define PROMPTS       8
#define PROMPT_TOKENS 64
#define STEPS         16
#define VOCAB         2000 /* token ids below it, above the special ones */

static const struct plan {
    const char *text;
    enum way way; /* where the plan has two layouts */
} plans[] = {
    {"tp2|tp2", WAY_KEEP},     {"dp2|ep2", WAY_KEEP},        {"tp2|ep2", WAY_KEEP},
    {"dp2|tp2", WAY_KEEP},     {"dp2|ep2>tp2", WAY_RESHARD}, {"dp2|ep2>tp2", WAY_KEEP},
    {"tp2|ep2>tp2", WAY_KEEP}, {"tp2|ep2>tp2", WAY_RESHARD},
};
#define PLANS ((int)(sizeof plans / sizeof plans[0]))

enum { PREFILL, DECODE, PHASES };

static double walls[PLANS][PHASES][ROUNDS_MAX];
static double replays[PLANS][PHASES][ROUNDS_MAX];
static struct recording recordings[PLANS][ROUNDS_MAX];
static struct two_ranks machines[PLANS];
static const char *choice; /* the one plan to run, by its text; NULL: all */
static struct comm_links links = {.bytes_per_second = 100e6, .latency_seconds = 200e-6};
static char folder[] = "/tmp/bench-reality-XXXXXX";

static void fail(const char *what)
{
    fprintf(stderr, "bench_reality: %s\n", what);
    exit(1);
}

static void check(enum status status, const struct error *err)
{
    if (status != STATUS_OK)
        fail(err->message);
}

static bool is_chosen(int p)
{
    return choice == NULL || strcmp(choice, plans[p].text) == 0;
}

static void note(void *context, enum log_level level, const char *message)
{
    (void)context;
    if (level == LOG_WARNING)
        fprintf(stderr, "%s\n", message);
}

/* Of a run, all in one folder. */
enum file { FILE_IN, FILE_OUT, FILE_RUN, FILE_RECORDING, FILE_BOX, FILES };
static char paths[FILES][64];

static void paths_make(void)
{
    static const char *const names[FILES] = {"in", "out", "out.phasor-run", "recording",
                                             "box.json"};
    if (mkdtemp(folder) == NULL)
        fail("cannot make a folder in /tmp");
    for (int i = 0; i < FILES; i++)
        snprintf(paths[i], sizeof paths[i], "%s/%s", folder, names[i]);
}

static void paths_remove(void)
{
    for (int i = 0; i < FILES; i++)
        remove(paths[i]);
    rmdir(folder);
}

/* ---- Others ---------------------------------------------------------------------------------- */

/* Seconds of processor time of this process, of all, and of all that there was, all cores together.
 */
struct use {
    double own, all, there;
};

static double seconds_of(struct timeval time)
{
    return (double)time.tv_sec + (double)time.tv_usec * 1e-6;
}

/* The columns of /proc/stat: user, nice, system, idle, waiting for a disk, interrupts twice, and
 * what the host gave to others. */
static struct use use_now(void)
{
    unsigned long long ticks[8] = {0};
    struct rusage own;
    struct use use = {0};
    FILE *file = fopen("/proc/stat", "r");
    if (file == NULL ||
        fscanf(file, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &ticks[0], &ticks[1], &ticks[2],
               &ticks[3], &ticks[4], &ticks[5], &ticks[6], &ticks[7]) != 8)
        fail("cannot read /proc/stat");
    fclose(file);
    getrusage(RUSAGE_SELF, &own);
    use.own = seconds_of(own.ru_utime) + seconds_of(own.ru_stime);
    for (int i = 0; i < 8; i++) {
        double seconds = (double)ticks[i] / (double)sysconf(_SC_CLK_TCK);
        use.there += seconds;
        use.all += i == 3 || i == 4 ? 0 : seconds;
    }
    return use;
}

/* The share of the machine that other processes took since then. */
static double others_since(const struct use *then)
{
    struct use now = use_now();
    return (now.all - then->all - (now.own - then->own)) / (now.there - then->there);
}

/* ---- Runs ------------------------------------------------------------------------------------ */

/* Ids at random: no two prompts begin alike. */
static void write_input(void)
{
    uint32_t state = 12345;
    FILE *file = fopen(paths[FILE_IN], "w");
    for (int row = 0; file != NULL && row < PROMPTS; row++) {
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
    if (file == NULL || fclose(file) != 0)
        fail("cannot write the input file");
}

static struct engine *open_engine(const char *model, const struct plan *plan, bool records)
{
    struct engine *engine;
    struct error err;
    struct engine_params params = {.model = model,
                                   .dtype_is_auto = true,
                                   .thread_count = 2,
                                   .devices = "cpu:2",
                                   .plan = plan->text,
                                   .transition = plan->way,
                                   .max_num_seqs = PROMPTS,
                                   .max_num_batched_tokens = PROMPTS * PROMPT_TOKENS,
                                   .records = records,
                                   .log = {note, NULL}};
    if (!records)
        params.links = links;
    check(engine_open(&engine, &params, &err), &err);
    return engine;
}

static struct phasor_batch_result run_batch(struct engine *engine, const char *record_path)
{
    struct phasor_batch_params params = phasor_batch_params_default();
    struct phasor_batch_result result;
    struct log_sink log = {note, NULL};
    struct error err;
    params.input_path = paths[FILE_IN];
    params.output_path = paths[FILE_OUT];
    params.overwrite = true;
    params.max_num_seqs = PROMPTS;
    params.max_num_batched_tokens = PROMPTS * PROMPT_TOKENS;
    params.record_path = record_path;
    check(batch_run(engine, &params, &log, &result, &err), &err);
    if (result.decode_tokens != PROMPTS * STEPS || result.failed > 0)
        fail("not every row was computed");
    return result;
}

/* A round is a run with slow links and one that is recorded. The first run of each engine touches
 * memory for the first time, and does not count. */
static void run_plan(const char *model, int p, int rounds)
{
    struct error err;
    struct engine *slow = open_engine(model, &plans[p], false);
    struct engine *recorded = open_engine(model, &plans[p], true);
    run_batch(slow, NULL);
    run_batch(recorded, NULL);
    for (int r = 0; r < rounds; r++) {
        struct phasor_batch_result result = run_batch(slow, NULL);
        walls[p][PREFILL][r] = result.prefill_seconds;
        walls[p][DECODE][r] = result.decode_seconds;
        run_batch(recorded, paths[FILE_RECORDING]);
        check(recording_read(&recordings[p][r], paths[FILE_RECORDING], &err), &err);
    }
    engine_close(recorded);
    engine_close(slow);
}

/* ---- The box --------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, by_value);
    return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* Over the plans that were run. */
static struct two_ranks machine_of(void)
{
    double values[4][PLANS];
    int count = 0;
    for (int p = 0; p < PLANS; p++) {
        if (!is_chosen(p))
            continue;
        values[0][count] = machines[p].alone_bytes_per_second;
        values[1][count] = machines[p].both_bytes_per_second;
        values[2][count] = machines[p].meeting_seconds;
        values[3][count++] = machines[p].all_reduce_seconds;
    }
    return (struct two_ranks){median(values[0], count), median(values[1], count),
                              median(values[2], count), median(values[3], count)};
}

static void write_number(FILE *file, const char *key, double value, const char *unit)
{
    fprintf(file, "\"%s\": {\"value\": %.9g, \"unit\": \"%s\", \"source\": \"bench_reality\"}", key,
            value, unit);
}

static void write_link(FILE *file, const char *name, const char *from, const char *to,
                       const struct comm_links *speed)
{
    fprintf(file, "{\"name\": \"%s\", \"between\": [\"%s\", \"%s\"], \"duplex\": \"full\", ", name,
            from, to);
    write_number(file, "bandwidth", speed->bytes_per_second, "B/s");
    fprintf(file, ", ");
    write_number(file, "latency", speed->latency_seconds, "s");
    fprintf(file, "}");
}

static void write_protocol(FILE *file, const char *name, double base_seconds)
{
    fprintf(file, "\"%s\": {", name);
    write_number(file, "base_latency", base_seconds, "s");
    fprintf(file, ", ");
    write_number(file, "step_latency", 0, "s");
    fprintf(file, ", \"efficiency\": {\"value\": 1, \"assumed\": true, \"reason\": \"the rule\"}}");
}

/* Nothing is modelled, so that the device is of no account. */
static void write_device(FILE *file)
{
    static const char *const kinds[] = {"other",    "matmul", "attention", "ffn_up",
                                        "ffn_down", "rows",   "dequantize"};
    fprintf(file, "\"numbers\": {\"whole\": {\"value\": 1, \"assumed\": true, \"reason\": "
                  "\"nothing is modelled\"}}, \"device\": {");
    write_number(file, "peak_compute", 1, "TFLOP/s");
    fprintf(file, ", ");
    write_number(file, "memory_bandwidth", 1, "GB/s");
    fprintf(file, ", ");
    write_number(file, "memory_size", 1, "GB");
    fprintf(file, ", ");
    write_number(file, "launch", 0, "s");
    for (int of = 0; of < 2; of++) {
        fprintf(file, ", \"%s\": {", of == 0 ? "compute_efficiency" : "memory_efficiency");
        for (int k = 0; k < WORK_KIND_COUNT; k++)
            fprintf(file, "%s\"%s\": \"whole\"", k > 0 ? ", " : "", kinds[k]);
        fprintf(file, "}");
    }
    fprintf(file, "}");
}

/* The ranks' link, and one to the host, which on a CPU is the same memory. */
static void write_box(const struct two_ranks *machine)
{
    struct comm_links host = {.bytes_per_second = machine->both_bytes_per_second};
    FILE *file = fopen(paths[FILE_BOX], "w");
    if (file == NULL)
        fail("cannot write the box file");
    fprintf(file, "{\"format\": \"phasor box\", \"version\": 1, \"name\": \"reality\", \"title\": "
                  "\"this machine with slow links\", \"ranks\": 2, ");
    write_device(file);
    fprintf(file, ", \"links\": [");
    write_link(file, "between", "rank0", "rank1", &links);
    fprintf(file, ", ");
    write_link(file, "host0", "rank0", "host", &host);
    fprintf(file, ", ");
    write_link(file, "host1", "rank1", "host", &host);
    fprintf(file, "], \"protocols\": {");
    write_protocol(file, "once", machine->meeting_seconds);
    fprintf(file, ", ");
    write_protocol(file, "twice", machine->all_reduce_seconds);
    fprintf(file, "}, \"collectives\": {");
    for (int op = 0; op < COLLECTIVE_OP_COUNT; op++) {
        static const char *const names[] = {"all_gather", "reduce_scatter", "all_reduce",
                                            "all_to_all", "exchange"};
        fprintf(file, "%s\"%s\": {\"algorithm\": \"direct\", \"protocols\": [\"%s\"]}",
                op > 0 ? ", " : "", names[op], op == COLLECTIVE_OP_ALL_REDUCE ? "twice" : "once");
    }
    fprintf(file, "}, \"memories\": [{\"ranks\": [0, 1], ");
    write_number(file, "bandwidth", machine->both_bytes_per_second, "B/s");
    fprintf(file, "}]}\n");
    if (fclose(file) != 0)
        fail("cannot write the box file");
}

/* ---- Report ---------------------------------------------------------------------------------- */

static void replay(int p, int round, const struct box_model *box)
{
    struct simulation simulation;
    struct report report;
    struct error err;
    const struct recording *recording = &recordings[p][round];
    check(simulate(&simulation, &(struct simulation_params){.recording = recording, .box = box},
                   &err),
          &err);
    check(report_make(&report, recording, &simulation, &err), &err);
    replays[p][PREFILL][round] = report.phases[RECORD_PREFILL].wall_seconds;
    replays[p][DECODE][round] = report.phases[RECORD_DECODE].wall_seconds;
    report_deinit(&report);
    simulation_deinit(&simulation);
}

/* Whether the replay is as near as it should be: by this share, or by the wall's own spread, which
 * is the range of the middle half of its rounds. */
static void print_phase(int p, int phase, int rounds)
{
    static const double goals[PHASES] = {0.10, 0.15};
    double *wall = walls[p][phase], *of = replays[p][phase];
    double middle = median(wall, rounds), found = median(of, rounds);
    double spread = (wall[rounds - 1 - rounds / 4] - wall[rounds / 4]) / middle;
    double error = found / middle - 1, goal = fmax(goals[phase], spread);
    printf("%-12s %-8s %-8s %8.4f (%.4f to %.4f) %5.1f %%  %8.4f (%.4f to %.4f) %+6.1f %%  %s\n",
           plans[p].text, strchr(plans[p].text, '>') != NULL ? way_names[plans[p].way] : "",
           phase == PREFILL ? "prefill" : "decode", middle, wall[0], wall[rounds - 1], 100 * spread,
           found, of[0], of[rounds - 1], 100 * error, fabs(error) <= goal ? "agrees" : "DIFFERS");
}

static void print_report(int rounds, const struct two_ranks *machine, double others)
{
    printf("# %d prompts of %d tokens, %d passes of decode; links of %.4g MB/s and %.4g us\n"
           "# memory: one core %.2f GB/s, both %.2f GB/s; a meeting %.1f us, an all-reduce's %.1f "
           "us\n"
           "# others: %.1f %% of the machine meanwhile\n"
           "# clock: CLOCK_MONOTONIC; median (least to most) of %d rounds, spread of the middle "
           "half\n"
           "# plan       way      phase      wall s                    spread    replay s          "
           "        error\n",
           PROMPTS, PROMPT_TOKENS, STEPS, links.bytes_per_second / 1e6, links.latency_seconds * 1e6,
           machine->alone_bytes_per_second / 1e9, machine->both_bytes_per_second / 1e9,
           machine->meeting_seconds * 1e6, machine->all_reduce_seconds * 1e6, 100 * others, rounds);
    for (int p = 0; p < PLANS; p++) {
        for (int phase = 0; phase < PHASES && is_chosen(p); phase++)
            print_phase(p, phase, rounds);
    }
}

static void run_all(const char *model, int rounds)
{
    struct error err;
    for (int p = 0; p < PLANS; p++) {
        if (!is_chosen(p))
            continue;
        check(two_ranks_measure(&machines[p], &links, &err), &err);
        run_plan(model, p, rounds);
        fprintf(stderr, "%s\n", plans[p].text);
    }
}

static void replay_all(int rounds)
{
    struct box_model box;
    struct error err;
    check(box_model_read(&box, paths[FILE_BOX], &err), &err);
    for (int p = 0; p < PLANS; p++) {
        for (int r = 0; r < rounds && is_chosen(p); r++) {
            replay(p, r, &box);
            recording_deinit(&recordings[p][r]);
        }
    }
}

int main(int argc, char **argv)
{
    int rounds = argc > 2 ? atoi(argv[2]) : 5;
    if (argc > 3)
        links.bytes_per_second = atof(argv[3]) * 1e6;
    if (argc > 4)
        links.latency_seconds = atof(argv[4]) * 1e-6;
    if (argc > 5)
        choice = argv[5];
    int plan_count = 0;
    for (int p = 0; p < PLANS; p++)
        plan_count += is_chosen(p);
    if (argc < 2 || plan_count == 0 || rounds < 1 || rounds > ROUNDS_MAX ||
        !(links.bytes_per_second > 0) || !(links.latency_seconds >= 0))
        fail("usage: bench_reality MODEL [rounds [MB/s [us [plan]]]]");
    paths_make();
    bench_print_head(argc, argv);
    write_input();
    struct use before = use_now();
    run_all(argv[1], rounds);
    double others = others_since(&before);
    struct two_ranks machine = machine_of();
    write_box(&machine);
    replay_all(rounds);
    print_report(rounds, &machine, others);
    paths_remove();
    return 0;
}
