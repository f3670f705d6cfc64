/* phasor bench: adaptive plans against static ones, side by side: by the clock, modelled of a box
 * that is not here, or predicted of one that is not quite known. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench_plans.h"
#include "bench_predict.h"
#include "bench_print.h"
#include "bench_replay.h"
#include "bench_run.h"
#include "commands.h"
#include "progress.h"
#include "stop_signal.h"
#include "table.h"

#define ROUNDS_DEFAULT 3
#define DRAWS_DEFAULT  200

struct bench_values {
    const char *devices, *box, *replay, *recordings, *predict, *results;
    const char *scenarios, *batch_sizes, *modes, *routing;
    int64_t threads, repeats;
    uint64_t seed, memory;
    int format;
    bool resume, plans_only, quiet, verbose;
};

static struct bench_values values = {
    .scenarios = "256/64,256/2048,4096/64,4096/2048",
    .batch_sizes = "8,16,32,64",
    .modes = "static-tp,static-ep,static-ep-dp,best-attention,best-static,static-tp-int4,hap,"
             "adaptive-exact,"
             "adaptive",
};

#define AT(member) offsetof(struct bench_values, member)

static const struct option_word format_words[] = {
    {"md", BENCH_MARKDOWN, NULL},
    {"json", BENCH_JSON, NULL},
    {"jsonl", BENCH_JSON_LINES, NULL},
    {"csv", BENCH_CSV, NULL},
    {NULL, 0, NULL},
};

static const struct cli_option options[] = {
    {"devices", 0, OPTION_TEXT, AT(devices), "cpu:N",
     "the ranks, as of phasor run; needed, but not with --predict", 0, 0, NULL},
    {"box", 0, OPTION_FILE, AT(box), "BOX",
     "whose times the plans are chosen by: a profile, a box file, or a box that comes with phasor "
     "(the profile that phasor calibrate made for these devices)",
     0, 0, NULL},
    {"replay", 0, OPTION_FILE, AT(replay), "BOX",
     "times of a box that is not here, modelled: prefill by replay of recorded passes over its "
     "links, decode by its figures, which the plans are chosen by, too; --devices cpu:N has as "
     "many ranks, and --recordings is needed",
     0, 0, NULL},
    {"recordings", 0, OPTION_FILE, AT(recordings), "DIR",
     "with --replay: the folder of recorded passes, made if need be; what is there is not recorded "
     "again",
     0, 0, NULL},
    {"predict", 0, OPTION_FILE, AT(predict), "BOX",
     "run nothing: choose plans for the box, and predict them in each round with its numbers drawn "
     "anew from their ranges; without --devices",
     0, 0, NULL},
    {"scenarios", 0, OPTION_TEXT, AT(scenarios), "LIST",
     "tokens of a prompt and of its answer (256/64,256/2048,4096/64,4096/2048)", 0, 0, NULL},
    {"batch-sizes", 0, OPTION_TEXT, AT(batch_sizes), "LIST", "sequences in all (8,16,32,64)", 0, 0,
     NULL},
    {"modes", 0, OPTION_TEXT, AT(modes), "LIST",
     "of static-tp, static-ep, static-ep-dp, best-attention, best-static, static-tp-int4, hap, "
     "adaptive-exact and adaptive (all)",
     0, 0, NULL},
    {"routing", 0, OPTION_TEXT, AT(routing), "FILE,...",
     "for the planner: how often experts were chosen, as phasor run --routing-counts found it, a "
     "file for each model (it is assumed)",
     0, 0, NULL},
    {"repeats", 'r', OPTION_COUNT, AT(repeats), "COUNT",
     "rounds: each runs every plan of every load once (3; with --predict 200)", 1, BENCH_ROUNDS_MAX,
     NULL},
    {"output", 'o', OPTION_WORD, AT(format), "FORMAT",
     "of the table on standard output: md, json, jsonl, csv (md)", 0, 0, format_words},
    {"results", 0, OPTION_FILE, AT(results), "FILE",
     "keep each run here as it is made, for --resume and phasor report", 0, 0, NULL},
    {"resume", 0, OPTION_FLAG, AT(resume), NULL,
     "go on with the bench of --results: its plans stay, and runs that it has are not repeated", 0,
     0, NULL},
    {"plans-only", 0, OPTION_FLAG, AT(plans_only), NULL, "choose the plans, and run none", 0, 0,
     NULL},
    {"threads", 't', OPTION_COUNT, AT(threads), "COUNT",
     "compute threads (0: one for each core that the process may use)", 0, 4096, NULL},
    {"memory", 0, OPTION_BYTES, AT(memory), "SIZE",
     "memory of each device (what the box says, or this machine has)", 0, 0x1p62, NULL},
    {"seed", 0, OPTION_SEED, AT(seed), "NUMBER",
     "of the prompts' token ids, or of what --predict draws (0)", 0, 0, NULL},
    {"quiet", 'q', OPTION_FLAG, AT(quiet), NULL, "no progress or warnings", 0, 0, NULL},
    {"verbose", 'v', OPTION_FLAG, AT(verbose), NULL, "more notices", 0, 0, NULL},
    {.name = NULL},
};

/* A bench under way. */
struct bench {
    struct bench_results results;
    struct bench_runner runner;     /* by the clock */
    struct bench_replayer replayer; /* modelled */
    struct bench_predictor predictor;
    struct progress progress;
    char what[192]; /* is run, for the bar */
    uint64_t done, total;
    /* Of the runs that were made: seconds of this machine's clock, and what stands for them: what
     * was predicted where runs are by the clock, else one for each. */
    double spent, weight_spent;
    double weight_left;
};

/* ---- The question ---------------------------------------------------------------------------- */

/* The profile that phasor calibrate made for these devices; NULL: told. */
static char *profile_find(void)
{
    struct phasor_calibrate_params params = phasor_calibrate_params_default();
    struct phasor_error err;
    char *path;
    params.devices = values.devices;
    params.thread_count = (int)values.threads;
    if (phasor_profile_path(&path, &params, &err) != PHASOR_OK) {
        fail(&err);
        return NULL;
    }
    if (access(path, F_OK) == 0)
        return path;
    fprintf(stderr,
            "phasor: there is no profile of %s to choose plans by: \"phasor calibrate "
            "--devices %s\" makes it, or --box names a box\n",
            values.devices, values.devices);
    phasor_text_free(path);
    return NULL;
}

/* A shell's completion of a folder's name ends in '/'. */
static char *model_copy(const char *model)
{
    size_t length = strlen(model);
    while (length > 1 && model[length - 1] == '/')
        length--;
    return strndup(model, length);
}

/* What cannot be kept in a file of JSON, or is there twice. */
static bool question_check(const struct bench_question *question)
{
    json_t *object = bench_question_json(question);
    struct bench_question again;
    bool is_good = object != NULL && bench_question_read(&again, object) &&
                   again.model_count == question->model_count;
    if (!is_good)
        fprintf(stderr,
                "phasor: a model, --devices, --box or --routing is named with bytes that are no "
                "UTF-8; "
                "give it another name\n");
    for (int i = 0; i < question->model_count && is_good; i++) {
        for (int j = 0; j < i && is_good; j++)
            is_good = strcmp(question->models[i], question->models[j]) != 0;
        if (!is_good)
            fprintf(stderr, "phasor: the model \"%s\" is named twice\n", question->models[i]);
    }
    if (object != NULL)
        bench_question_free(&again);
    json_decref(object);
    return is_good;
}

static bool question_get(struct bench_question *out, char **models, int model_count)
{
    char *path = NULL;
    out->threads = values.threads;
    out->seed = values.seed;
    out->memory = values.memory;
    out->devices = strdup(values.predict != NULL ? values.predict : values.devices);
    for (int i = 0; i < model_count; i++)
        out->models[out->model_count++] = model_copy(models[i]);
    out->clock = values.predict != NULL  ? BENCH_PREDICTED
                 : values.replay != NULL ? BENCH_MODELLED
                                         : BENCH_WALL;
    const char *const boxes[BENCH_CLOCK_COUNT] = {values.box, values.replay, values.predict};
    const char *box = boxes[out->clock];
    if (box == NULL && (path = profile_find()) == NULL)
        return false;
    out->box = strdup(box == NULL ? path : box);
    phasor_text_free(path);
    return question_check(out);
}

static int lists_get(const struct cli_command *command, struct bench_question *out, int model_count)
{
    if (!bench_scenarios_parse(out, values.scenarios))
        return options_mistake(command,
                               "--scenarios: \"%s\" is no list such as 256/64,4096/2048 of up to "
                               "%d different ones",
                               values.scenarios, BENCH_LIST_MAX);
    if (!bench_batch_sizes_parse(out, values.batch_sizes))
        return options_mistake(
            command, "--batch-sizes: \"%s\" is no list such as 8,16,32 of up to %d different ones",
            values.batch_sizes, BENCH_LIST_MAX);
    if (!bench_modes_parse(out, values.modes))
        return options_mistake(command,
                               "--modes: \"%s\" is no list of different modes, such as "
                               "static-tp,adaptive; --help has them",
                               values.modes);
    if (values.routing != NULL && !bench_routing_parse(out, values.routing))
        return options_mistake(command, "--routing: \"%s\" is no list of up to %d files",
                               values.routing, BENCH_LIST_MAX);
    if (values.routing != NULL && out->routing_count != model_count)
        return options_mistake(command,
                               "--routing: expected a file for each of %d models, found %d",
                               model_count, out->routing_count);
    return -1;
}

/* What is predicted takes neither devices nor another box. */
static int predict_check(const struct cli_command *command)
{
    if (values.replay != NULL || values.recordings != NULL)
        return options_mistake(command, "--predict runs nothing; leave --replay and --recordings");
    if (values.box != NULL)
        return options_mistake(command, "--predict has the box; leave --box");
    if (values.devices != NULL)
        return options_mistake(command, "--predict is of the box's devices; leave --devices");
    return -1;
}

static int values_check(const struct cli_command *command, int model_count)
{
    int code = values.predict != NULL ? predict_check(command) : -1;
    if (code >= 0)
        return code;
    if (values.devices == NULL && values.predict == NULL)
        return options_mistake(command, "--devices is missing: plans are for the ranks that it "
                                        "names, such as cpu:4");
    if (model_count > BENCH_LIST_MAX)
        return options_mistake(command, "more than %d models", BENCH_LIST_MAX);
    if ((values.replay == NULL) != (values.recordings == NULL))
        return options_mistake(command, "--replay and --recordings go together");
    if (values.replay != NULL && values.box != NULL)
        return options_mistake(command, "--replay has the box; leave --box");
    if (values.resume && values.results == NULL)
        return options_mistake(command, "--resume needs the --results to go on with");
    return -1;
}

/* ---- Plans ----------------------------------------------------------------------------------- */

/* Plans are for the ranks of the box. What GPUs are named is looked at when a model is opened. */
static bool devices_fit(const struct bench_question *question, const struct bench_cell *cell)
{
    const char *devices = question->devices;
    char wanted[16];
    snprintf(wanted, sizeof wanted, "cpu:%d", cell->device_count);
    bool is_one = cell->device_count == 1 && strcmp(devices, "cpu") == 0;
    bool is_gpu = strncmp(devices, "cuda:", 5) == 0 && question->clock == BENCH_WALL;
    bool has_plan = false; /* without one the box was not looked at */
    for (int i = 0; i < cell->plan_count; i++)
        has_plan |= *cell->plans[i].plan != 0;
    if (strcmp(devices, wanted) == 0 || is_one || is_gpu || !has_plan ||
        question->clock == BENCH_PREDICTED)
        return true;
    fprintf(stderr, "phasor: --devices: %s has %d devices, for which plans run with %s; found %s\n",
            question->box, cell->device_count, wanted, devices);
    return false;
}

/* All of them before anything runs, so that none can know of a result. */
static bool plans_find(struct bench_results *results)
{
    const struct bench_question *question = &results->question;
    int sizes = question->batch_size_count, loads = question->scenario_count * sizes;
    struct bench_planner planner = {.planner = NULL};
    bool is_good = true;
    for (int i = results->cell_count; i < bench_cells_of(question) && is_good; i++) {
        struct bench_cell cell = {
            .model = i / loads, .scenario = i % loads / sizes, .batch_size = i % sizes};
        is_good = bench_plans_find(&planner, &cell, question) && devices_fit(question, &cell) &&
                  bench_results_add_cell(results, &cell);
    }
    bench_planner_close(&planner);
    return is_good;
}

/* For how much of the time it stands. */
static double weight_of(const struct bench *bench, const struct bench_plan *plan)
{
    if (bench->results.question.clock != BENCH_WALL)
        return 1;
    return plan->predicted_prefill + plan->predicted_between + plan->predicted_decode;
}

/* ---- Runs ------------------------------------------------------------------------------------ */

/* By what runs took so far. */
static void left_format(char *out, size_t capacity, const struct bench *bench)
{
    if (bench->weight_spent <= 0) {
        *out = 0;
        return;
    }
    double left = bench->weight_left * bench->spent / bench->weight_spent;
    snprintf(out, capacity, left < 90 ? ", %.0f s left" : ", %.0f min left",
             left < 90 ? left : left / 60);
}

static void bar_draw(struct bench *bench)
{
    char what[256], left[48];
    left_format(left, sizeof left, bench);
    snprintf(what, sizeof what, "%llu/%llu: %s%s", (unsigned long long)bench->done + 1,
             (unsigned long long)bench->total, bench->what, left);
    progress_points(&bench->progress, "bench", bench->done, bench->total, what);
}

static int on_progress(void *context, const struct phasor_batch_progress *progress)
{
    (void)progress;
    bar_draw(context);
    return stop_signal_get() == 0 ? PHASOR_GO_ON : PHASOR_STOP;
}

static int on_pass(void *context)
{
    bar_draw(context);
    return stop_signal_get();
}

static void on_log(void *context, enum phasor_log_level level, const char *message)
{
    struct bench *bench = context;
    if (level == PHASOR_LOG_WARNING || bench->progress.is_verbose)
        progress_log(&bench->progress, level, message);
}

static void what_format(struct bench *bench, const struct bench_run *run)
{
    const struct bench_question *question = &bench->results.question;
    const struct bench_cell *cell = &bench->results.cells[run->cell];
    const struct bench_scenario *scenario = &question->scenarios[cell->scenario];
    snprintf(bench->what, sizeof bench->what, "round %d, %.60s %lld/%lld x %lld %s", run->round,
             question->models[cell->model], (long long)scenario->prompt_tokens,
             (long long)scenario->output_tokens, (long long)question->batch_sizes[cell->batch_size],
             cell->plans[run->plan].plan);
}

static enum phasor_status run_as_asked(struct bench *bench, struct bench_run *run,
                                       struct phasor_error *err)
{
    switch (bench->results.question.clock) {
    case BENCH_MODELLED:
        return bench_replayer_run(&bench->replayer, run, err);
    case BENCH_PREDICTED:
        return bench_predictor_run(&bench->predictor, run, err);
    default:
        return bench_runner_run(&bench->runner, run, err);
    }
}

/* False: the bench ends. A run that fails is told, and is one that is missing. */
static bool run_make(struct bench *bench, int cell, int plan, int round)
{
    struct bench_run run = {.cell = cell, .plan = plan, .round = round};
    struct phasor_error err;
    double weight = weight_of(bench, &bench->results.cells[cell].plans[plan]),
           began = progress_now();
    what_format(bench, &run);
    bar_draw(bench);
    enum phasor_status status = run_as_asked(bench, &run, &err);
    progress_erase(&bench->progress);
    if (stop_signal_get() != 0)
        return false;
    if (status != PHASOR_OK && !bench->progress.is_quiet)
        fprintf(stderr, "warning: %s failed: %s\n", bench->what, err.message);
    bench->done++;
    bench->weight_left -= weight;
    bench->weight_spent += run.has_failed ? 0 : weight;
    bench->spent += run.has_failed ? 0 : progress_now() - began;
    if (run.has_failed)
        bench_text_keep(run.message, sizeof run.message, err.message);
    return bench_results_add_run(&bench->results, &run);
}

typedef bool run_fn(struct bench *bench, int cell, int plan, int round);

/* Every plan of every cell, the plans of a cell one after another; each round begins with another
 * of them, so that none is always the first. Runs that are there are passed over. */
static bool runs_each(struct bench *bench, run_fn *each)
{
    for (int round = 1; round <= values.repeats; round++) {
        for (int c = 0; c < bench->results.cell_count; c++) {
            const struct bench_cell *cell = &bench->results.cells[c];
            for (int i = 0; i < cell->plan_count; i++) {
                int plan = (i + round - 1) % cell->plan_count;
                const struct bench_run *run = bench_run_find(&bench->results, c, plan, round);
                if (*cell->plans[plan].plan == 0 || (run != NULL && !run->has_failed))
                    continue;
                if (!each(bench, c, plan, round))
                    return false;
            }
        }
    }
    return true;
}

static bool run_count(struct bench *bench, int cell, int plan, int round)
{
    (void)round;
    bench->total++;
    bench->weight_left += weight_of(bench, &bench->results.cells[cell].plans[plan]);
    return true;
}

static const char *stop_sentence(void)
{
    return values.results == NULL
               ? "phasor: stopping: nothing is kept without --results\n"
               : "phasor: stopping: the run under way is lost, and --resume goes "
                 "on with the others\n";
}

static bool replayer_init(struct bench *bench)
{
    const struct bench_question *question = &bench->results.question;
    bench->replayer = (struct bench_replayer){
        .results = &bench->results,
        .folder = values.recordings,
        .models = {.question = question, .records = true, .log = on_log, .context = bench},
        .progress = on_pass,
        .context = bench};
    if (mkdir(values.recordings, 0777) != 0 && errno != EEXIST) {
        fprintf(stderr, "phasor: --recordings: %s: cannot be made: %s\n", values.recordings,
                strerror(errno));
        return false;
    }
    bool agrees = true;
    struct phasor_error err;
    if (bench->total > 0 && bench_replayer_agrees(&agrees, &bench->replayer, &err) != PHASOR_OK) {
        fprintf(stderr,
                "phasor: --recordings: the last run that %s holds cannot be replayed from %s: %s; "
                "give the folder of then, or begin other results\n",
                values.results, values.recordings, err.message);
        return false;
    }
    if (agrees)
        return true;
    fprintf(stderr,
            "phasor: --recordings: the last run that %s holds was of other passes than are in %s, "
            "or of another version of phasor; give the folder of then, or begin other results\n",
            values.results, values.recordings);
    return false;
}

static bool runner_init(struct bench *bench)
{
    if (!bench_runner_init(&bench->runner, &bench->results))
        return false;
    bench->runner.progress = on_progress;
    bench->runner.models.log = on_log;
    bench->runner.models.context = bench;
    bench->runner.context = bench;
    return true;
}

static bool predictor_init(struct bench *bench)
{
    bench->predictor = (struct bench_predictor){.results = &bench->results};
    if (bench_predictor_agrees(&bench->predictor))
        return true;
    fprintf(stderr,
            "phasor: --results: what %s holds was predicted by other numbers of %s, or another "
            "version of phasor; begin another file\n",
            values.results, values.predict);
    return false;
}

static bool runs_init(struct bench *bench)
{
    switch (bench->results.question.clock) {
    case BENCH_MODELLED:
        return replayer_init(bench);
    case BENCH_PREDICTED:
        return predictor_init(bench);
    default:
        return runner_init(bench);
    }
}

static int runs_make(struct bench *bench)
{
    runs_each(bench, run_count);
    if (!runs_init(bench))
        return EXIT_FATAL;
    stop_signal_catch(values.quiet ? NULL : stop_sentence());
    progress_begin(&bench->progress);
    bool is_whole = runs_each(bench, run_make);
    bench_runner_deinit(&bench->runner);
    bench_replayer_deinit(&bench->replayer);
    bench_predictor_deinit(&bench->predictor);
    if (stop_signal_get() != 0)
        return 128 + stop_signal_get();
    return is_whole ? EXIT_DONE : EXIT_FATAL;
}

/* That were not made good since. */
static bool has_failures(const struct bench_results *results)
{
    for (size_t i = 0; i < results->run_count; i++) {
        const struct bench_run *run = &results->runs[i];
        if (run->has_failed && bench_run_find(results, run->cell, run->plan, run->round) == run)
            return true;
    }
    return false;
}

/* ---- The command ----------------------------------------------------------------------------- */

static bool results_open(struct bench_results *out, struct bench_question *question)
{
    if (values.results == NULL || access(values.results, F_OK) != 0)
        return bench_results_begin(out, question, values.results);
    if (values.resume)
        return bench_results_resume(out, question, values.results);
    fprintf(stderr,
            "phasor: --results: %s is there; --resume goes on with it, or choose another name\n",
            values.results);
    return false;
}

/* That what is still to run is of the box whose times chose the plans: of one cell that has some.
 */
static bool box_agrees(const struct bench_results *results)
{
    for (int i = 0; i < results->cell_count; i++) {
        const struct bench_cell *was = &results->cells[i];
        struct bench_cell now = {
            .model = was->model, .scenario = was->scenario, .batch_size = was->batch_size};
        if (strcmp(was->box, results->question.box) == 0) /* it was not looked at */
            continue;
        struct bench_planner planner = {.planner = NULL};
        bool is_found = bench_plans_find(&planner, &now, &results->question);
        bench_planner_close(&planner);
        if (!is_found)
            return false;
        if (strcmp(now.box, was->box) == 0)
            return true;
        fprintf(stderr,
                "phasor: --results: the plans that %s holds were chosen by %s, and it is now %s; "
                "put that file back, or begin other results\n",
                values.results, was->box, now.box);
        return false;
    }
    return true;
}

/* That what is still to run is of the weights that were there when the file was begun, where it
 * knows them. */
static bool models_agree(const struct bench_results *results)
{
    for (int i = 0; i < results->question.model_count; i++) {
        const char *was = results->identities[i], *model = results->question.models[i];
        char now[PHASOR_FINGERPRINT_BYTES];
        struct phasor_error err;
        if (*was == 0)
            continue;
        if (phasor_fingerprint(now, model, NULL, &err) != PHASOR_OK) {
            fail(&err);
            return false;
        }
        if (strcmp(now, was) == 0)
            continue;
        fprintf(stderr,
                "phasor: --results: %s is of other weights than %s has now; put those back, or "
                "begin other results\n",
                values.results, model);
        return false;
    }
    return true;
}

/* As phasor run --resume: told, and gone on with. */
static void version_note(const struct bench *bench)
{
    if (strcmp(bench->results.version, phasor_version()) == 0 || bench->progress.is_quiet)
        return;
    fputs("warning: the bench was begun with phasor's version ", stderr);
    table_put_safe(stderr, bench->results.version);
    fprintf(stderr, " and goes on with %s: their times may differ\n", phasor_version());
}

static bool run_exists(struct bench *bench, int cell, int plan, int round)
{
    (void)bench, (void)cell, (void)plan, (void)round;
    return false;
}

/* Before plans are found, or run. What was predicted tells by itself (bench_predictor_agrees),
 * where there is any. */
static bool may_go_on(struct bench *bench)
{
    const struct bench_results *results = &bench->results;
    bool is_whole = results->cell_count == bench_cells_of(&results->question);
    bool tells = results->question.clock == BENCH_PREDICTED && results->run_count > 0;
    if (tells || (is_whole && runs_each(bench, run_exists)))
        return true;
    version_note(bench);
    return (values.plans_only || models_agree(results)) && box_agrees(results);
}

static int bench_run_all(struct bench *bench, struct bench_question *question)
{
    if (!results_open(&bench->results, question) || (values.resume && !may_go_on(bench)))
        return EXIT_FATAL;
    if (!plans_find(&bench->results)) {
        /* It would stand in the next one's way. */
        if (bench->results.is_new && bench->results.cell_count == 0)
            unlink(values.results);
        return EXIT_FATAL;
    }
    int code = values.plans_only ? EXIT_DONE : runs_make(bench);
    if (code == EXIT_DONE && !bench_print(&bench->results, (enum bench_format)values.format))
        code = EXIT_FATAL;
    return code == EXIT_DONE && has_failures(&bench->results) ? EXIT_SOME_ROWS : code;
}

static int run(const struct cli_command *command, char **operands, int operand_count)
{
    static struct bench bench;
    struct bench_question question = {.model_count = 0};
    int code = values_check(command, operand_count);
    if (code < 0)
        code = lists_get(command, &question, operand_count);
    if (code >= 0) {
        bench_question_free(&question);
        return code;
    }
    if (values.repeats == 0)
        values.repeats = values.predict != NULL ? DRAWS_DEFAULT : ROUNDS_DEFAULT;
    progress_init(&bench.progress, values.quiet, values.verbose);
    code = question_get(&question, operands, operand_count) ? -1 : EXIT_FATAL;
    if (code < 0)
        code = bench_run_all(&bench, &question);
    bench_question_free(&question);
    bench_results_free(&bench.results);
    return code;
}

const struct cli_command command_bench = {
    .name = "bench",
    .operands = "MODEL...",
    .summary = "measure adaptive plans beside static tensor and expert parallelism",
    .details =
        "Exit codes: 0 all is measured, 1 failure, 2 wrong usage, 3 some runs failed, 130 or\n"
        "143 stopped by a signal (--resume goes on).",
    .options = options,
    .values = &values,
    .operand_min = 1,
    .operand_max = BENCH_LIST_MAX + 1,
    .run = run,
};
