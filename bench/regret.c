/* How much longer the planner's choice takes than the best plan there is; see bench/README.md.
 *
 * The planner plans for CPU devices of one thread, of which it has a calibrated profile, joined by
 * links of stated speed. Then every pass that any plan may have is recorded on these devices and
 * replayed over these links, and all plans are composed of passes. The plans are logged, with their
 * hash, before the first pass is recorded; nothing is fitted to a recording. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"
#include "base/text.h"
#include "engine/plan_problem.h"
#include "engine/routing_counts.h"
#include "head.h"
#include "passes.h"
#include "slow_box.h"

#define MODELS_MAX      8
#define SCENARIOS_MAX   8
#define BATCHES_MAX     8
#define LAYOUTS_MAX     48
#define CASES_MAX       256
#define PASS_TOKENS_MAX 16384
#define MEMORY_NO_LIMIT ((uint64_t)1 << 60)

/* What `phasor plan` takes of a model without counts. */
static const struct routing assumed = {.deviation = 0.3};

struct scenario {
    int64_t prompt, output;
};

/* A question to the planner, and what it answered. */
struct question {
    const struct scenario *scenario;
    int64_t sequences;
    struct plan_subject subject;
    struct plan_table table;
};

/* A pass under one layout, as it came out. */
struct known {
    int layout;
    struct pass_case of;
    struct pass_time time;
};

struct model {
    struct passes passes;
    struct model_config config;
    struct routing routing;
    struct question questions[SCENARIOS_MAX * BATCHES_MAX];
    int question_count;
    struct layout layouts[LAYOUTS_MAX]; /* that any plan has */
    int layout_count;
    struct known *known;
    size_t known_count, known_room;
};

static struct model models[MODELS_MAX];
static struct scenario scenarios[SCENARIOS_MAX];
static int64_t batches[BATCHES_MAX];
static int model_count, scenario_count, batch_count, round_count;
static bool allows_int4, prints_all;
static struct slow_box here;
static const char *folder;

static void fail(const char *what)
{
    fprintf(stderr, "bench_regret: %s\n", what);
    exit(1);
}

static void check(enum status status, const struct error *err)
{
    if (status != STATUS_OK)
        fail(err->message);
}

/* ---- Plans ----------------------------------------------------------------------------------- */

static int64_t pass_tokens(const struct question *question)
{
    int64_t all = question->sequences * question->scenario->prompt;
    return all < PASS_TOKENS_MAX ? all : PASS_TOKENS_MAX;
}

static bool is_same(const struct layout *a, const struct layout *b)
{
    return a->attention.tp == b->attention.tp && a->experts.tp == b->experts.tp &&
           a->attention.replicate_ffn == b->attention.replicate_ffn;
}

static int layout_index(struct model *model, const struct layout *layout)
{
    int i = 0;
    while (i < model->layout_count && !is_same(&model->layouts[i], layout))
        i++;
    if (i == LAYOUTS_MAX)
        fail("too many layouts");
    if (i == model->layout_count)
        model->layouts[model->layout_count++] = *layout;
    return i;
}

/* Of those that move weights there is one with the same phases that keeps both layouts, for there
 * is memory for them: it is never slower. */
static bool is_composed(const struct plan_candidate *candidate)
{
    return candidate->verdict == PLAN_POSSIBLE &&
           (candidate->way == PLAN_NONE || candidate->way == PLAN_KEEP);
}

static bool is_even(int64_t value)
{
    return (value & (value - 1)) == 0;
}

static void ask(struct model *model, const struct scenario *scenario, int64_t sequences)
{
    struct error err;
    struct question *question = &model->questions[model->question_count++];
    *question = (struct question){.scenario = scenario, .sequences = sequences};
    int64_t tokens = pass_tokens(question);
    if (!is_even(sequences) || !is_even(scenario->prompt) || sequences < here.box.rank_count)
        fail("batches and prompts have to come out even over devices and passes: powers of two, no "
             "fewer sequences than devices");
    check(plan_subject_init(&question->subject,
                            &(struct plan_subject_params){
                                .config = &model->config,
                                .profile = &here.profile,
                                .rank_count = here.box.rank_count,
                                .dtype = DTYPE_BF16,
                                .memory_bytes = MEMORY_NO_LIMIT,
                                .load = PLAN_LOAD(sequences, scenario->prompt, scenario->output),
                                .allows_int4 = allows_int4,
                                .max_num_seqs = sequences,
                                .max_num_batched_tokens = tokens,
                                .routing = &model->routing,
                            },
                            &err),
          &err);
    check(plan_find(&question->table, &question->subject.problem, &err), &err);
    const struct plan_table *table = &question->table;
    if (table->best < 0 || table->static_tp < 0 || !is_composed(&table->candidates[table->best]))
        fail("no plan for a model; its layouts, or the profile's tables, do not allow any");
    for (int i = 0; i < table->count; i++) {
        if (is_composed(&table->candidates[i]))
            layout_index(model, &table->candidates[i].layouts.of[PHASE_DECODE]);
    }
}

static void plan_line(struct text *to, const struct model *model, const struct question *question)
{
    const struct plan_candidate *best = &question->table.candidates[question->table.best];
    char text[LAYOUT_TEXT_BYTES];
    plan_layouts_format(text, &best->layouts);
    text_append_format(to, "%s %lld/%lld x %lld: %s, prefill %.4f s, decode %.4f s\n",
                       model->passes.name, (long long)question->scenario->prompt,
                       (long long)question->scenario->output, (long long)question->sequences, text,
                       best->prefill, best->decode);
}

/* FNV-1a, 64 bits. */
static uint64_t hash_of(const char *bytes)
{
    uint64_t hash = 0xcbf29ce484222325;
    for (; *bytes != 0; bytes++)
        hash = (hash ^ (unsigned char)*bytes) * 0x100000001b3;
    return hash;
}

/* The first plans of a folder stand there before anything is recorded; later ones are told apart.
 */
static void plans_log(void)
{
    struct text plans = {0};
    struct error err;
    char path[512], first[64] = "";
    for (int m = 0; m < model_count; m++) {
        for (int q = 0; q < models[m].question_count; q++)
            plan_line(&plans, &models[m], &models[m].questions[q]);
    }
    check(text_check(&plans, "the plans", &err), &err);
    unsigned long long hash = hash_of(plans.bytes);
    snprintf(path, sizeof path, "%s/plans-%s", folder, here.box.name);
    FILE *log = fopen(path, "r");
    bool is_first = log == NULL;
    unsigned long long known = 0;
    if (log != NULL &&
        (fscanf(log, "plans %llx, %63[^\n]", &known, first) != 2 || fclose(log) != 0))
        fail("the folder's log of plans cannot be read");
    if (is_first) {
        time_t now = time(NULL);
        strftime(first, sizeof first, "%Y-%m-%d %H:%M:%S UTC", gmtime(&now));
        log = fopen(path, "w");
        if (log == NULL || fprintf(log, "plans %016llx, %s\n%s", hash, first, plans.bytes) < 0 ||
            fclose(log) != 0)
            fail("cannot write the log of plans into the folder");
    }
    printf("# plans, hash %016llx, %s:\n", hash,
           is_first        ? "logged now; what is recorded for them comes after"
           : known == hash ? "as they were logged first"
                           : "NOT those that were logged first: they may know what was recorded");
    printf("# (log: %s)\n%s\n", first, plans.bytes);
    fflush(stdout);
    text_deinit(&plans);
}

/* ---- Passes ---------------------------------------------------------------------------------- */

static void case_add(struct pass_case *cases, int *count, struct pass_case of)
{
    for (int i = 0; i < *count; i++) {
        if (memcmp(&cases[i], &of, sizeof of) == 0)
            return;
    }
    if (*count == CASES_MAX)
        fail("too many passes");
    cases[(*count)++] = of;
}

/* Zeros in what a compiler puts between members. */
static struct pass_case prefill_case(const struct question *question, int64_t index)
{
    struct pass_case of;
    memset(&of, 0, sizeof of);
    of.phase = PHASE_PREFILL;
    of.prompt = question->scenario->prompt;
    of.tokens = pass_tokens(question);
    of.pass_index = index;
    return of;
}

/* The first step of decode, or the last. */
static struct pass_case decode_case(const struct question *question, bool is_packed, bool is_last)
{
    struct pass_case of;
    memset(&of, 0, sizeof of);
    of.phase = PHASE_DECODE;
    of.is_packed = is_packed;
    of.sequences = question->sequences;
    of.context = question->scenario->prompt + (is_last ? question->scenario->output - 1 : 1);
    return of;
}

static int cases_of(struct pass_case cases[CASES_MAX], const struct model *model,
                    const struct layout *layout)
{
    int count = 0;
    for (int q = 0; q < model->question_count; q++) {
        const struct question *question = &model->questions[q];
        int64_t period = pass_period(layout, question->scenario->prompt, pass_tokens(question));
        for (int64_t i = 0; i < period; i++)
            case_add(cases, &count, prefill_case(question, i));
        for (int packed = 0; packed <= question->subject.problem.allows_int4; packed++) {
            case_add(cases, &count, decode_case(question, packed, false));
            case_add(cases, &count, decode_case(question, packed, true));
        }
    }
    return count;
}

static void record_all(void)
{
    static struct pass_case cases[CASES_MAX];
    for (int round = 0; round < round_count; round++) {
        for (int m = 0; m < model_count; m++) {
            struct model *model = &models[m];
            for (int l = 0; l < model->layout_count; l++) {
                char text[LAYOUT_TEXT_BYTES];
                int count = cases_of(cases, model, &model->layouts[l]);
                int done = passes_record(&model->passes, &model->layouts[l], cases, count, round);
                layout_format(text, &model->layouts[l]);
                fprintf(stderr, "round %d, %s, %d of %d: %s, %d passes recorded\n", round + 1,
                        model->passes.name, l + 1, model->layout_count, text, done);
            }
        }
    }
}

static void pool_all(void)
{
    static struct pass_case cases[CASES_MAX];
    for (int m = 0; m < model_count; m++) {
        struct model *model = &models[m];
        for (int l = 0; l < model->layout_count; l++) {
            int count = cases_of(cases, model, &model->layouts[l]);
            for (int round = 0; round < round_count; round++)
                passes_pool(&model->passes, &model->layouts[l], cases, count, round);
        }
        pool_settle(&model->passes.pool);
        model->known_count = 0; /* without the pool */
        printf("# %s: an operation takes the median of its shape: %zu operations of %zu shapes\n",
               model->passes.name, model->passes.pool.node_count, model->passes.pool.count);
    }
}

static const struct pass_time *case_time(struct model *model, const struct layout *layout,
                                         struct pass_case of)
{
    struct error err;
    int index = layout_index(model, layout);
    for (size_t i = 0; i < model->known_count; i++) {
        const struct known *known = &model->known[i];
        if (known->layout == index && memcmp(&known->of, &of, sizeof of) == 0)
            return &known->time;
    }
    struct pass_time time = passes_time(&model->passes, layout, &of, round_count, &here.box);
    check(memory_reserve(&model->known, &model->known_room, model->known_count + 1,
                         sizeof *model->known, "passes", &err),
          &err);
    model->known[model->known_count] = (struct known){index, of, time};
    return &model->known[model->known_count++].time;
}

static void time_add(struct pass_time *to, const struct pass_time *more, double times)
{
    to->seconds += times * more->seconds;
    for (int part = 0; part < PART_COUNT; part++)
        to->parts[part] += times * more->parts[part];
}

static struct pass_time prefill_time(struct model *model, const struct question *question,
                                     const struct layout *layout)
{
    struct pass_time sum = {0};
    int64_t tokens = pass_tokens(question), prompt = question->scenario->prompt;
    int64_t period = pass_period(layout, prompt, tokens);
    double passes = (double)(question->sequences * prompt / tokens) / (double)period;
    for (int64_t i = 0; i < period; i++)
        time_add(&sum, case_time(model, layout, prefill_case(question, i)), passes);
    return sum;
}

/* A step takes longer by as much for each token that is there before it. */
static struct pass_time decode_time(struct model *model, const struct question *question,
                                    const struct layout *layout, bool is_packed)
{
    struct pass_time sum = {0};
    double steps = (double)(question->scenario->output - 1);
    for (int last = 0; last < 2; last++)
        time_add(&sum, case_time(model, layout, decode_case(question, is_packed, last)), steps / 2);
    return sum;
}

static double plan_seconds(struct model *model, const struct question *question,
                           const struct plan_candidate *candidate)
{
    const struct plan_layouts *layouts = &candidate->layouts;
    return prefill_time(model, question, &layouts->of[PHASE_PREFILL]).seconds +
           decode_time(model, question, &layouts->of[PHASE_DECODE], layouts->decode_is_packed)
               .seconds;
}

/* ---- Report ---------------------------------------------------------------------------------- */

struct totals {
    int count;
    double regret_sum, regret_most, static_most;
};

static void print_phase(const char *phase, double predicted, const struct pass_cost *cost,
                        const struct pass_time *found)
{
    double parts[PART_COUNT] = {0};
    parts_of_cost(parts, cost);
    printf("#     %s %.4f s, predicted %.4f (%+.1f %%)\n#      ", phase, found->seconds, predicted,
           100 * (predicted / found->seconds - 1));
    parts_print(parts, found->parts);
}

/* Each layout's phases: predicted, and as they came out. */
static void print_phases(struct model *model, const struct question *question)
{
    for (int i = 0; i < question->table.count; i++) {
        const struct plan_candidate *candidate = &question->table.candidates[i];
        const struct layout *layout = &candidate->layouts.of[PHASE_DECODE];
        bool is_packed = candidate->layouts.decode_is_packed;
        char text[LAYOUT_TEXT_BYTES];
        if (!is_composed(candidate) || !is_same(layout, &candidate->layouts.of[PHASE_PREFILL]))
            continue;
        struct pass_time prefill = prefill_time(model, question, layout);
        struct pass_time decode = decode_time(model, question, layout, is_packed);
        plan_layouts_format(text, &candidate->layouts);
        printf("#   %s\n", text);
        print_phase("prefill", candidate->prefill, &candidate->prefill_cost, &prefill);
        print_phase("decode", candidate->decode, &candidate->decode_cost, &decode);
    }
}

#define GOAL 0.10

/* How far prices are off, of the phases of every plan that keeps one layout. */
struct errors {
    double *values;
    size_t count, room, within;
};

static void errors_add(struct errors *errors, double predicted, double found)
{
    struct error err;
    double error = fabs(predicted / found - 1);
    check(memory_reserve(&errors->values, &errors->room, errors->count + 1, sizeof *errors->values,
                         "errors", &err),
          &err);
    errors->values[errors->count++] = error;
    errors->within += error <= GOAL;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void errors_print(struct errors *errors, const char *phase)
{
    qsort(errors->values, errors->count, sizeof *errors->values, compare);
    printf("# %s under static layouts: %zu of %zu predicted within %.0f %%; error: median %.1f %%, "
           "90th percentile %.1f %%, most %.1f %%\n",
           phase, errors->within, errors->count, 100 * GOAL,
           100 * errors->values[(errors->count - 1) / 2],
           100 * errors->values[(errors->count * 9 + 9) / 10 - 1],
           100 * errors->values[errors->count - 1]);
    memory_free(errors->values);
}

static void print_errors(void)
{
    struct errors prefill = {0}, decode = {0};
    for (int m = 0; m < model_count; m++) {
        for (int q = 0; q < models[m].question_count; q++) {
            const struct question *question = &models[m].questions[q];
            for (int i = 0; i < question->table.count; i++) {
                const struct plan_candidate *candidate = &question->table.candidates[i];
                const struct plan_layouts *layouts = &candidate->layouts;
                const struct layout *layout = &layouts->of[PHASE_DECODE];
                if (!is_composed(candidate) || !is_same(layout, &layouts->of[PHASE_PREFILL]))
                    continue;
                if (!layouts->decode_is_packed) /* else the same once more */
                    errors_add(&prefill, candidate->prefill,
                               prefill_time(&models[m], question, layout).seconds);
                errors_add(
                    &decode, candidate->decode,
                    decode_time(&models[m], question, layout, layouts->decode_is_packed).seconds);
            }
        }
    }
    errors_print(&prefill, "prefill");
    errors_print(&decode, "decode");
}

/* A question's answer beside all others. */
struct verdict {
    double chosen, least, fixed; /* seconds: of the answer, of the best plan, of static TP */
    int best;
};

static struct verdict judge(struct model *model, const struct question *question)
{
    const struct plan_table *table = &question->table;
    struct verdict verdict = {.least = INFINITY, .best = -1};
    for (int i = 0; i < table->count; i++) {
        double seconds = is_composed(&table->candidates[i])
                             ? plan_seconds(model, question, &table->candidates[i])
                             : INFINITY;
        if (seconds < verdict.least) {
            verdict.least = seconds;
            verdict.best = i;
        }
    }
    verdict.chosen = plan_seconds(model, question, &table->candidates[table->best]);
    verdict.fixed = plan_seconds(model, question, &table->candidates[table->static_tp]);
    return verdict;
}

static void totals_add(struct totals *totals, const struct verdict *verdict)
{
    double regret = verdict->chosen / verdict->least;
    totals->count++;
    totals->regret_sum += regret;
    totals->regret_most = fmax(totals->regret_most, regret);
    totals->static_most = fmax(totals->static_most, verdict->chosen / verdict->fixed);
}

static void totals_print(const struct totals *totals, const char *what)
{
    printf("# regret%s: mean %.4f, worst %.4f; to static TP: worst %.4f; of %d\n", what,
           totals->regret_sum / totals->count, totals->regret_most, totals->static_most,
           totals->count);
}

static void report(struct model *model, const struct question *question,
                   const struct verdict *verdict)
{
    const struct plan_table *table = &question->table;
    char chosen_text[LAYOUT_TEXT_BYTES], best_text[LAYOUT_TEXT_BYTES], load[64];
    plan_layouts_format(chosen_text, &table->candidates[table->best].layouts);
    plan_layouts_format(best_text, &table->candidates[verdict->best].layouts);
    snprintf(load, sizeof load, "%lld/%lld x %lld", (long long)question->scenario->prompt,
             (long long)question->scenario->output, (long long)question->sequences);
    printf("%-14s %-14s %-22s %9.3f %9.3f  %-22s %9.3f %7.3f %7.3f\n", model->passes.name, load,
           chosen_text, plan_candidate_total(&table->candidates[table->best]), verdict->chosen,
           best_text, verdict->least, verdict->chosen / verdict->least,
           verdict->chosen / verdict->fixed);
    if (prints_all)
        print_phases(model, question);
}

static struct totals judge_all(bool prints)
{
    struct totals totals = {0};
    for (int m = 0; m < model_count; m++) {
        for (int q = 0; q < models[m].question_count; q++) {
            struct verdict verdict = judge(&models[m], &models[m].questions[q]);
            totals_add(&totals, &verdict);
            if (prints)
                report(&models[m], &models[m].questions[q], &verdict);
        }
    }
    return totals;
}

/* Once with each recording's own durations, and then with those of the pool. */
static void report_all(void)
{
    struct totals apart = judge_all(false);
    pool_all();
    printf("# times by replay, of passes that were recorded in %d rounds, medians\n"
           "# model        load           chosen plan            predicted   replay s  best plan   "
           "           replay s  regret  to static TP\n",
           round_count);
    struct totals pooled = judge_all(true);
    print_errors();
    for (int m = 0; m < model_count; m++)
        pool_deinit(&models[m].passes.pool);
    totals_print(&pooled, "");
    totals_print(&apart, " where recordings keep their own durations");
}

/* ---- Arguments ------------------------------------------------------------------------------- */

/* "256/64,256/2048" */
static bool scenarios_parse(const char *text)
{
    int length = 0;
    do {
        long long prompt, output;
        if (scenario_count == SCENARIOS_MAX ||
            sscanf(text, "%lld/%lld%n", &prompt, &output, &length) != 2 || prompt < 1 || output < 2)
            return false;
        scenarios[scenario_count++] = (struct scenario){prompt, output};
        text += length;
    } while (*text++ == ',');
    return text[-1] == 0;
}

static bool batches_parse(const char *text)
{
    int length = 0;
    do {
        long long sequences;
        if (batch_count == BATCHES_MAX || sscanf(text, "%lld%n", &sequences, &length) != 1 ||
            sequences < 1)
            return false;
        batches[batch_count++] = sequences;
        text += length;
    } while (*text++ == ',');
    return text[-1] == 0;
}

/* Assumed where there are no counts. */
static void routing_find(struct model *model, const char *counts)
{
    struct error err;
    model->routing = assumed;
    if (counts == NULL)
        return;
    check(routing_counts_read(&model->routing, counts, &model->config, &err), &err);
    printf("# %s: experts are chosen as counted in %s (prefill: %s passes, decode: %s)\n",
           model->passes.name, counts, model->routing.is_own[PHASE_PREFILL] ? "its own" : "all",
           model->routing.is_own[PHASE_DECODE] ? "its own" : "all");
}

/* "FOLDER[,COUNTS]", which is taken apart. */
static void model_add(char *path)
{
    struct error err;
    char *comma = strchr(path, ',');
    if (comma != NULL)
        *comma = 0;
    const char *slash = strrchr(path, '/');
    struct model *model = &models[model_count++];
    model->passes = (struct passes){.model = path,
                                    .name = slash != NULL ? slash + 1 : path,
                                    .folder = folder,
                                    .rank_count = here.box.rank_count};
    check(model_config_load(&model->config, path, &err), &err);
    routing_find(model, comma != NULL ? comma + 1 : NULL);
    for (int s = 0; s < scenario_count; s++) {
        for (int b = 0; b < batch_count; b++)
            ask(model, &scenarios[s], batches[b]);
    }
}

int main(int argc, char **argv)
{
    enum { PROFILE = 1, BOX, FOLDER, SCENARIOS, BATCHES, ROUNDS, POLICY, MODEL };
    bool is_good = argc > MODEL && argc <= MODEL + MODELS_MAX && scenarios_parse(argv[SCENARIOS]) &&
                   batches_parse(argv[BATCHES]);
    if (is_good) {
        round_count = atoi(argv[ROUNDS]);
        allows_int4 = strncmp(argv[POLICY], "int4", 4) == 0;
        prints_all = strchr(argv[POLICY], '+') != NULL;
        folder = argv[FOLDER];
    }
    if (!is_good || round_count < 1 || round_count > PASSES_ROUNDS_MAX ||
        (!allows_int4 && strncmp(argv[POLICY], "exact", 5) != 0))
        fail("usage: bench_regret PROFILE BOX FOLDER PROMPT/OUTPUT,... BATCH,... ROUNDS "
             "exact|int4[+all] MODEL[,COUNTS]...");
    bench_print_head(argc, argv);
    slow_box_get(&here, argv[PROFILE], argv[BOX]);
    for (int i = MODEL; i < argc; i++)
        model_add(argv[i]);
    plans_log();
    record_all();
    report_all();
    return 0;
}
