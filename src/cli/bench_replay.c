#include "bench_replay.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "answer.h"
#include "bench_plans.h"
#include "table.h"

#define PATH_BYTES      1024
#define CONTEXTS        16 /* of decode, from the first step to the last, of other tokens each */
#define INT4_SUFFIX     ":int4"
#define ALL_MEMORY      (UINT64_MAX / 2) /* one model at a time */
#define ROUND_OF_DECODE 0                /* of which durations do not matter: one for all rounds */

/* A phase of a plan: the plan with one layout whose passes it has. */
struct phase_plan {
    char plan[BENCH_PLAN_BYTES];
    char way[16];
};

static enum phasor_status error_of(struct phasor_error *err, enum phasor_status status,
                                   const char *what)
{
    err->status = status;
    snprintf(err->message, sizeof err->message, "%s", what);
    return status;
}

/* "dp4|ep4>tp4:int4" is "dp4|ep4" in prefill and "dp4|tp4>tp4:int4" in decode; "dp4|ep4>tp4" is
 * "dp4|tp4" then. */
static struct phase_plan phase_of(const struct bench_plan *plan, enum phasor_phase phase)
{
    struct phase_plan of = {.way = "none"};
    const char *bar = strchr(plan->plan, '|'), *arrow = strchr(plan->plan, '>');
    int attention = bar == NULL ? 0 : (int)(bar + 1 - plan->plan);
    if (arrow == NULL)
        snprintf(of.plan, sizeof of.plan, "%s", plan->plan);
    else if (phase == PHASOR_PHASE_PREFILL)
        snprintf(of.plan, sizeof of.plan, "%.*s", (int)(arrow - plan->plan), plan->plan);
    else if (strstr(arrow, INT4_SUFFIX) != NULL) {
        int experts = (int)(strstr(arrow, INT4_SUFFIX) - arrow) - 1;
        snprintf(of.plan, sizeof of.plan, "%.*s%.*s>%.*s" INT4_SUFFIX, attention, plan->plan,
                 experts, arrow + 1, experts, arrow + 1);
        snprintf(of.way, sizeof of.way, "keep");
    } else {
        snprintf(of.plan, sizeof of.plan, "%.*s%s", attention, plan->plan, arrow + 1);
    }
    return of;
}

/* ---- Recordings ------------------------------------------------------------------------------ */

/* A folder may have passes of several checkpoints that are called alike. */
static enum phasor_status identity_get(const char **out, struct bench_replayer *replayer, int model,
                                       struct phasor_error *err)
{
    *out = replayer->identities[model];
    return **out != 0 ? PHASOR_OK
                      : phasor_fingerprint(replayer->identities[model],
                                           replayer->results->question.models[model], NULL, err);
}

/* Without what a file's name had better not have. */
static bool path_format(char out[PATH_BYTES], const struct bench_replayer *replayer,
                        const struct bench_cell *cell, const char *identity,
                        const struct phase_plan *plan, const struct phasor_pass_params *pass,
                        int round)
{
    const struct bench_question *question = &replayer->results->question;
    char what[96], text[BENCH_PLAN_BYTES], name[BENCH_NAME_BYTES];
    bench_model_name(name, question, cell->model);
    snprintf(text, sizeof text, "%s", plan->plan);
    for (char *at = text; *at != 0; at++)
        *at = *at == '|' ? '_' : *at == ':' ? '-' : *at == '>' ? '+' : *at;
    if (pass->phase == PHASOR_PHASE_DECODE)
        snprintf(what, sizeof what, "step-%" PRId64 "x%" PRId64, pass->sequences,
                 pass->context_tokens);
    else
        snprintf(what, sizeof what, "prefill-%" PRId64 "-of-%" PRId64 "-%" PRId64,
                 pass->pass_tokens, pass->prompt_tokens, pass->pass_index);
    int length = snprintf(out, PATH_BYTES, "%s/%s-%s.%s.t%" PRId64 ".%s.%d", replayer->folder, name,
                          identity, text, question->threads, what, round);
    return length < PATH_BYTES;
}

static enum phasor_status model_get(struct phasor_model **out, struct bench_replayer *replayer,
                                    const struct bench_cell *cell, const struct phase_plan *plan,
                                    struct phasor_error *err)
{
    bool is_new;
    struct bench_plan of = {.wave = replayer->results->question.batch_sizes[cell->batch_size],
                            .pass_tokens = bench_pass_tokens(&replayer->results->question, cell)};
    snprintf(of.plan, sizeof of.plan, "%s", plan->plan);
    snprintf(of.way, sizeof of.way, "%s", plan->way);
    return bench_models_get(out, &is_new, &replayer->models, cell, &of, ALL_MEMORY, err);
}

/* Makes the recording where there is none. */
static enum phasor_status recording_get(char path[PATH_BYTES], struct bench_replayer *replayer,
                                        const struct bench_cell *cell,
                                        const struct phase_plan *plan,
                                        struct phasor_pass_params *pass, int round,
                                        struct phasor_error *err)
{
    struct phasor_model *model;
    const char *identity;
    enum phasor_status status = identity_get(&identity, replayer, cell->model, err);
    if (status != PHASOR_OK)
        return status;
    if (!path_format(path, replayer, cell, identity, plan, pass, round))
        return error_of(err, PHASOR_LIMIT, "--recordings: the folder's path is too long");
    if (access(path, R_OK) == 0)
        return PHASOR_OK;
    if (replayer->makes_none)
        return error_of(err, PHASOR_NOT_FOUND, "there is no such recording");
    if (replayer->progress(replayer->context) != 0)
        return error_of(err, PHASOR_CANCELLED, "stopped on request");
    status = model_get(&model, replayer, cell, plan, err);
    pass->recording_path = path;
    return status == PHASOR_OK ? phasor_pass_record(model, pass, err) : status;
}

/* What a replay said. */
struct replayed {
    double seconds, link_scale;
    double bytes_of[PHASOR_COLLECTIVE_COUNT]; /* that ranks sent one another, by kind */
};

/* Those of the phase; a recording of a pass has one. */
static void bytes_take(struct replayed *out, const json_t *root, const char *phase)
{
    const json_t *of = json_object_get(json_object_get(root, "phases"), phase);
    for (int i = 0; i < PHASOR_COLLECTIVE_COUNT; i++) {
        const json_t *kind =
            json_object_get(json_object_get(of, "collectives"), phasor_collective_name(i));
        out->bytes_of[i] += json_number_value(json_object_get(kind, "bytes"));
    }
}

static void bytes_add(double *to, const struct replayed *of, double times)
{
    for (int i = 0; i < PHASOR_COLLECTIVE_COUNT; i++)
        to[i] += of->bytes_of[i] * times;
}

/* `scale` 0: durations are the box's. Else they are this machine's, and links are slower by it,
 * where it is not that of the recording itself: SCALE_OWN. */
#define SCALE_OWN (-1)
static enum phasor_status replay(struct replayed *out, const struct bench_replayer *replayer,
                                 const char *path, double scale, struct phasor_error *err)
{
    struct phasor_replay_params params = phasor_replay_params_default();
    char *text;
    json_t *root;
    params.recording_path = path;
    params.box = replayer->results->question.box;
    params.modelled = params.leaves_out_host = scale == 0;
    params.scale = scale != 0;
    params.link_scale = scale > 0 ? scale : 0;
    enum phasor_status status = phasor_replay(&text, &params, err);
    if (status != PHASOR_OK) {
        size_t length = strlen(err->message);
        snprintf(err->message + length, sizeof err->message - length,
                 "; a recording that cannot be used may be removed, and is made anew");
        return status;
    }
    status = answer_read(&root, text, err);
    phasor_text_free(text);
    if (status != PHASOR_OK)
        return status;
    *out = (struct replayed){.seconds = json_number_value(json_object_get(root, "seconds"))};
    bytes_take(out, root, "prefill");
    bytes_take(out, root, "decode");
    out->link_scale = json_number_value(json_object_get(root, "link_scale"));
    json_decref(root);
    return PHASOR_OK;
}

/* ---- Phases ---------------------------------------------------------------------------------- */

static int groups_of(const char *plan)
{
    const char *bar = strchr(plan, '|'), *dp = strstr(plan, "dp");
    return dp == NULL || bar == NULL || dp > bar ? 1 : atoi(dp + 2);
}

/* Passes of prefill until the groups stand at the beginning of a prompt again. */
static int64_t period_of(const struct phasor_pass_params *pass, const char *plan)
{
    int64_t share = pass->pass_tokens / groups_of(plan);
    return share > 0 && share < pass->prompt_tokens ? pass->prompt_tokens / share : 1;
}

static struct phasor_pass_params prefill_pass(const struct bench_replayer *replayer,
                                              const struct bench_cell *cell)
{
    const struct bench_question *question = &replayer->results->question;
    struct phasor_pass_params pass = phasor_pass_params_default();
    pass.phase = PHASOR_PHASE_PREFILL;
    pass.prompt_tokens = question->scenarios[cell->scenario].prompt_tokens;
    pass.pass_tokens = bench_pass_tokens(question, cell);
    return pass;
}

/* The plan that the model has on these ranks where nobody names one: also where the modes are
 * without it, or the box has no memory for it. */
static enum phasor_status static_tp_get(const char **out, struct bench_replayer *replayer,
                                        int model, struct phasor_error *err)
{
    const struct bench_question *question = &replayer->results->question;
    struct phasor_inspect_params params = phasor_inspect_params_default();
    json_t *root;
    *out = replayer->static_tp[model];
    if (**out != 0)
        return PHASOR_OK;
    params.model = question->models[model];
    params.devices = question->devices;
    enum phasor_status status = answer_inspect(&root, &params, err);
    if (status != PHASOR_OK)
        return status;
    const json_t *list = json_object_get(json_object_get(root, "plans"), "list");
    snprintf(replayer->static_tp[model], sizeof replayer->static_tp[model], "%s",
             table_text(json_array_get(list, 0), "plan"));
    json_decref(root);
    return PHASOR_OK;
}

/* How much faster the box computes than this machine's ranks did in the round: by static TP's pass,
 * for all plans of the cell. By each one's own, layouts would lose what they compute worse than
 * others. */
static enum phasor_status scale_get(double *out, struct bench_replayer *replayer,
                                    const struct bench_cell *cell, int round,
                                    struct phasor_error *err)
{
    struct phase_plan of = {.way = "none"};
    struct phasor_pass_params pass = prefill_pass(replayer, cell);
    struct replayed replayed;
    char path[PATH_BYTES];
    const char *tp;
    enum phasor_status status = static_tp_get(&tp, replayer, cell->model, err);
    if (status != PHASOR_OK)
        return status;
    snprintf(of.plan, sizeof of.plan, "%s", tp);
    status = recording_get(path, replayer, cell, &of, &pass, round, err);
    if (status == PHASOR_OK)
        status = replay(&replayed, replayer, path, SCALE_OWN, err);
    if (status == PHASOR_OK && !(replayed.link_scale > 0))
        return error_of(err, PHASOR_INTERNAL,
                        "a replay that was to tell how much slower links are has not");
    if (status == PHASOR_OK)
        *out = replayed.link_scale;
    return status;
}

/* Every group has as many sequences as the others, and every pass as many tokens. */
static enum phasor_status check_even(const struct bench_replayer *replayer,
                                     const struct bench_cell *cell, const char *plan,
                                     struct phasor_error *err)
{
    const struct bench_question *question = &replayer->results->question;
    int64_t sequences = question->batch_sizes[cell->batch_size];
    int64_t tokens = sequences * question->scenarios[cell->scenario].prompt_tokens;
    int groups = groups_of(plan);
    if (sequences % groups == 0 && tokens % bench_pass_tokens(question, cell) == 0)
        return PHASOR_OK;
    err->status = PHASOR_INVALID_ARGUMENT;
    snprintf(err->message, sizeof err->message,
             "%" PRId64 " sequences of %" PRId64 " tokens do not come out even over %d groups and "
             "passes of %" PRId64 " tokens; powers of two do",
             sequences, tokens / sequences, groups, bench_pass_tokens(question, cell));
    return PHASOR_INVALID_ARGUMENT;
}

static enum phasor_status prefill_time(double *out, double *bytes_of,
                                       struct bench_replayer *replayer,
                                       const struct bench_cell *cell, const struct bench_plan *plan,
                                       int round, struct phasor_error *err)
{
    const struct bench_question *question = &replayer->results->question;
    struct phase_plan of = phase_of(plan, PHASOR_PHASE_PREFILL);
    struct phasor_pass_params pass = prefill_pass(replayer, cell);
    int64_t period = period_of(&pass, of.plan);
    double passes =
        (double)(question->batch_sizes[cell->batch_size] * pass.prompt_tokens / pass.pass_tokens);
    double scale = 0;
    enum phasor_status status = check_even(replayer, cell, of.plan, err);
    if (status == PHASOR_OK)
        status = scale_get(&scale, replayer, cell, round, err);
    *out = 0;
    for (int64_t i = 0; i < period && status == PHASOR_OK; i++) {
        char path[PATH_BYTES];
        struct replayed replayed = {.seconds = 0};
        pass.pass_index = i;
        status = recording_get(path, replayer, cell, &of, &pass, round, err);
        if (status == PHASOR_OK)
            status = replay(&replayed, replayer, path, scale, err);
        *out += replayed.seconds * scale * passes / (double)period;
        bytes_add(bytes_of, &replayed, passes / (double)period);
    }
    return status;
}

/* Of all steps, the host's part as the planner has it: this machine's is not the box's, and noise
 * where a step takes a millisecond. Those between two contexts that were replayed are on the line
 * between them. */
static enum phasor_status decode_time(double *out, double *bytes_of,
                                      struct bench_replayer *replayer,
                                      const struct bench_cell *cell, const struct bench_plan *plan,
                                      struct phasor_error *err)
{
    const struct bench_question *question = &replayer->results->question;
    const struct bench_scenario *scenario = &question->scenarios[cell->scenario];
    struct phase_plan of = phase_of(plan, PHASOR_PHASE_DECODE);
    struct phasor_pass_params pass = phasor_pass_params_default();
    struct replayed replayed = {.seconds = 0}, previous = replayed;
    int64_t steps = scenario->output_tokens - 1, before = 0;
    double last = 0;
    pass.phase = PHASOR_PHASE_DECODE;
    pass.is_modelled = true;
    pass.sequences = question->batch_sizes[cell->batch_size];
    *out = 0;
    for (int64_t i = 0; i < CONTEXTS && steps > 0; i++) {
        char path[PATH_BYTES];
        int64_t step = i * (steps - 1) / (CONTEXTS - 1); /* 0 .. steps - 1 */
        pass.context_tokens = scenario->prompt_tokens + 1 + step;
        enum phasor_status status =
            recording_get(path, replayer, cell, &of, &pass, ROUND_OF_DECODE, err);
        if (status == PHASOR_OK)
            status = replay(&replayed, replayer, path, 0, err);
        if (status != PHASOR_OK)
            return status;
        double seconds = replayed.seconds + cell->host_step;
        /* The steps behind `before` up to this one; of the first, itself. */
        double count = (double)(step - before);
        *out +=
            i == 0 ? seconds : count * (last + seconds) / 2 + (seconds - last) / 2 * (count > 0);
        if (i == 0 || count > 0) {
            bytes_add(bytes_of, &previous, i == 0 ? 0 : (count - 1) / 2);
            bytes_add(bytes_of, &replayed, i == 0 ? 1 : (count + 1) / 2);
        }
        previous = replayed;
        last = seconds;
        before = step;
    }
    return PHASOR_OK;
}

/* A group's sequences come one behind another, and so many of its tokens with each pass; a first
 * token comes with the pass that has its prompt's end. `index` counts the sequences of all groups
 * in the order of their ends. Where a prompt has several passes all end where a period does, so it
 * does not matter that the passes of one take different times. */
static double first_token_at(const struct bench_run *run, const struct phasor_pass_params *pass,
                             int64_t sequences, int64_t groups, int64_t index)
{
    int64_t share = pass->pass_tokens / groups;
    int64_t passes = ((index / groups + 1) * pass->prompt_tokens + share - 1) / share;
    return run->prefill * (double)(passes * pass->pass_tokens) /
           (double)(sequences * pass->prompt_tokens);
}

static void first_tokens_put(struct bench_run *run, const struct bench_replayer *replayer,
                             const struct bench_cell *cell, const struct bench_plan *plan)
{
    struct phase_plan of = phase_of(plan, PHASOR_PHASE_PREFILL);
    struct phasor_pass_params pass = prefill_pass(replayer, cell);
    int64_t sequences = replayer->results->question.batch_sizes[cell->batch_size];
    static const double fractions[] = {0.5, 0.99};
    double *at[] = {&run->ttft, &run->ttft_p99};
    for (int i = 0; i < 2; i++) {
        double place = fractions[i] * (double)(sequences - 1);
        int64_t below = (int64_t)place, above = below + (below + 1 < sequences);
        double first = first_token_at(run, &pass, sequences, groups_of(of.plan), below);
        double next = first_token_at(run, &pass, sequences, groups_of(of.plan), above);
        *at[i] = first + (place - (double)below) * (next - first);
    }
}

enum phasor_status bench_replayer_run(struct bench_replayer *replayer, struct bench_run *out,
                                      struct phasor_error *err)
{
    const struct bench_question *question = &replayer->results->question;
    const struct bench_cell *cell = &replayer->results->cells[out->cell];
    const struct bench_plan *plan = &cell->plans[out->plan];
    double bytes_of[PHASOR_COLLECTIVE_COUNT] = {0};
    enum phasor_status status =
        prefill_time(&out->prefill, bytes_of, replayer, cell, plan, out->round, err);
    if (status == PHASOR_OK)
        status = decode_time(&out->decode, bytes_of, replayer, cell, plan, err);
    out->has_failed = status != PHASOR_OK;
    if (out->has_failed)
        return status;
    out->between = plan->predicted_between;
    out->total = out->prefill + out->between + out->decode;
    first_tokens_put(out, replayer, cell, plan);
    for (int i = 0; i < PHASOR_COLLECTIVE_COUNT; i++)
        out->collective_bytes += out->bytes_of[i] = (uint64_t)llround(bytes_of[i]);
    bench_run_count(out, question, cell);
    return PHASOR_OK;
}

enum phasor_status bench_replayer_agrees(bool *agrees, struct bench_replayer *replayer,
                                         struct phasor_error *err)
{
    const struct bench_results *results = replayer->results;
    size_t last = results->run_count;
    while (last > 0 && results->runs[last - 1].has_failed)
        last--;
    *agrees = true;
    if (last == 0)
        return PHASOR_OK;
    const struct bench_run *was = &results->runs[last - 1];
    struct bench_run run = {.cell = was->cell, .plan = was->plan, .round = was->round};
    replayer->makes_none = true;
    enum phasor_status status = bench_replayer_run(replayer, &run, err);
    replayer->makes_none = false;
    *agrees = status == PHASOR_OK && fabs(run.total / was->total - 1) < 1e-9;
    return status == PHASOR_NOT_FOUND ? PHASOR_OK : status;
}

void bench_replayer_deinit(struct bench_replayer *replayer)
{
    bench_models_close(&replayer->models);
}
