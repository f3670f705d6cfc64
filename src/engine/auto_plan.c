#include "engine/auto_plan.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/size_text.h"
#include "base/system.h"
#include "engine/auto_past.h"
#include "engine/auto_profile.h"
#include "engine/batch_lengths.h"
#include "engine/batch_progress.h"
#include "engine/engine_backup.h"
#include "engine/plan_problem.h"
#include "engine/plan_source.h"
#include "engine/run_limits.h"

/* Of runs that do not say. */
#define PASS_TOKENS_DEFAULT   2048
#define RUN_SEQUENCES_DEFAULT 256
#define ROUTING_DEVIATION     0.3 /* as of phasor_plan */

/* Of each rank; measured with small models, of which it is no more than a few MiB. */
#define UNPRICED_BYTES ((uint64_t)16 << 20)

/* A backup is spoken of where it would save more than predictions err. */
#define GAIN_WORTH_A_WORD 1.05

/* ---- The load -------------------------------------------------------------------------------- */

static bool is_regular(const char *path)
{
    struct stat about;
    bool is_there =
        strcmp(path, "-") == 0 ? fstat(STDIN_FILENO, &about) == 0 : stat(path, &about) == 0;
    return is_there && S_ISREG(about.st_mode);
}

static void load_bound(struct plan_load *load, int64_t context_max)
{
    if (load->prompt_tokens > context_max - 1)
        load->prompt_tokens = context_max - 1;
    if (load->output_tokens > context_max - load->prompt_tokens)
        load->output_tokens = context_max - load->prompt_tokens;
    if (load->prompt_tokens < 1 || load->output_tokens < 1)
        load->sequences = 0;
}

static enum status lengths_read(struct auto_plan *plan, const struct engine_basis *basis,
                                struct batch_reader *reader, const struct watch *watch,
                                struct error *err)
{
    const struct phasor_batch_params *batch = plan->batch;
    const struct model_config *config = checkpoint_config(basis->checkpoint);
    const struct chat_template *template = NULL;
    struct error ignored; /* the rows are told */
    if (batch->chat_template != NULL)
        template = chat_template_find(batch->chat_template);
    else if (basis->tokenizer != NULL &&
             chat_template_of(&template, basis->tokenizer, &ignored) != STATUS_OK)
        template = NULL;
    return batch_lengths_read(
        &plan->load,
        &(struct batch_lengths_params){
            .reader = reader,
            .defaults = {.ignore_eos = batch->ignore_eos,
                         .prompt_logprobs = batch->prompt_logprobs},
            .tokenizer = basis->tokenizer,
            .chat_template = template,
            .context_max =
                batch->max_model_len > 0 && batch->max_model_len < config->position_count_max
                    ? batch->max_model_len
                    : config->position_count_max,
            .watch = *watch,
        },
        err);
}

/* Of the batch, where there is one; else what was told of it, as far as the context goes. */
static enum status load_find(struct auto_plan *plan, const struct engine_basis *basis,
                             struct error *err)
{
    static const struct batch_world world;
    struct phasor_batch_result nothing = {0};
    struct batch_progress progress = {.params = plan->batch, .result = &nothing, .world = &world};
    const struct watch watch = {.ask = batch_progress_reading, .context = &progress};
    struct batch_reader *reader;
    if (plan->batch == NULL) {
        load_bound(&plan->load, checkpoint_config(basis->checkpoint)->position_count_max);
        return STATUS_OK;
    }
    TRY(batch_reader_open(&reader, plan->batch->input_path, BATCH_LINE_BYTES_MAX, &watch, NULL,
                          err));
    plan->input = batch_reader_fingerprint(reader);
    if (!is_regular(plan->batch->input_path) &&
        snprintf(plan->input_path, sizeof plan->input_path, "%s", plan->batch->input_path) <
            (int)sizeof plan->input_path)
        plan->input_fd = fcntl(batch_reader_fd(reader), F_DUPFD_CLOEXEC, 0);
    enum status status = lengths_read(plan, basis, reader, &watch, err);
    batch_reader_close(reader);
    return status;
}

/* ---- The choice ------------------------------------------------------------------------------ */

static const enum way ways_of_plans[PLAN_WAY_COUNT] = {
    [PLAN_KEEP] = WAY_KEEP,
    [PLAN_RESHARD] = WAY_RESHARD,
    [PLAN_UPLOAD] = WAY_UPLOAD,
    [PLAN_RELOAD] = WAY_RELOAD,
};

static bool takes_int4(const struct plan_candidate *candidate)
{
    return candidate->layouts.decode_is_packed || candidate->way == PLAN_UPLOAD;
}

/* Mixed is as good as reshard at least. */
static bool is_by_way(const struct plan_candidate *candidate, const struct engine_params *params)
{
    enum way asked = params->transition == WAY_MIXED ? WAY_RESHARD : params->transition;
    return params->transition_is_auto || candidate->way == PLAN_NONE ||
           ways_of_plans[candidate->way] == asked;
}

/* The soonest done of those that can be run here; -1: none can. Equal ones go to the first. */
static int candidate_pick(const struct plan_table *table, const struct engine_params *params,
                          bool has_backup)
{
    int best = -1;
    double least = INFINITY;
    for (int i = 0; i < table->count; i++) {
        const struct plan_candidate *candidate = &table->candidates[i];
        if (candidate->verdict != PLAN_POSSIBLE || (takes_int4(candidate) && !has_backup) ||
            !is_by_way(candidate, params) || plan_candidate_total(candidate) >= least)
            continue;
        best = i;
        least = plan_candidate_total(candidate);
    }
    return best;
}

/* ---- What is said of it ---------------------------------------------------------------------- */

/* "1.3 s", "240 s", "0.0021 s". */
#define SECONDS_FORMAT "%.3g s"

static void tell_choice(const struct log_sink *log, const struct plan_table *table, int chosen)
{
    const struct plan_candidate *best = &table->candidates[chosen];
    double between = best->transition + best->way_back, total = plan_candidate_total(best);
    char layouts[LAYOUT_TEXT_BYTES];
    struct text line = {0};
    plan_layouts_format(layouts, &best->layouts);
    text_append_format(&line, "plan: %s", layouts);
    if (best->way != PLAN_NONE)
        text_append_format(&line, " by %s", plan_way_names[best->way]);
    text_append_format(&line, ": predicted prefill " SECONDS_FORMAT ", decode " SECONDS_FORMAT,
                       best->prefill, best->decode);
    if (between > 0)
        text_append_format(&line, ", between " SECONDS_FORMAT, between);
    if (table->static_tp == chosen)
        text_append_string(&line, "; it is static tensor parallelism");
    else if (table->static_tp >= 0)
        text_append_format(&line, ", %.2f times as fast as static tensor parallelism",
                           plan_candidate_total(&table->candidates[table->static_tp]) / total);
    if (!line.failed)
        log_write(log, LOG_INFO, "%s", line.bytes);
    text_deinit(&line);
}

/* That decode is on other weights than the checkpoint's, or would be faster there. */
static void tell_backup(const struct log_sink *log, const struct plan_table *table, int chosen,
                        const struct engine_params *params)
{
    char layouts[LAYOUT_TEXT_BYTES];
    const struct plan_candidate *best = &table->candidates[candidate_pick(table, params, true)];
    double gain = plan_candidate_total(&table->candidates[chosen]) / plan_candidate_total(best);
    if (takes_int4(&table->candidates[chosen]))
        log_write(log, LOG_INFO,
                  "decode runs on the experts of the INT4 backup, and answers differ a little; "
                  "--policy exact forbids it");
    if (!takes_int4(best) || gain < GAIN_WORTH_A_WORD)
        return;
    plan_layouts_format(layouts, &best->layouts);
    log_write(
        log, LOG_INFO,
        "%s would be %.2f times as fast as that, by prediction: it decodes on an INT4 backup, "
        "which phasor quantize makes, and answers differ a little",
        layouts, gain);
}

static void tell_question(const struct auto_plan *plan, const struct plan_problem *problem,
                          const struct log_sink *log)
{
    log_write(
        log, LOG_DEBUG,
        "planned for %lld sequences of %lld prompt and %lld output tokens on the mean, passes "
        "of %lld tokens, and %s of memory on each of %d ranks",
        (long long)plan->load.sequences, (long long)plan->load.prompt_tokens,
        (long long)plan->load.output_tokens, (long long)problem->passes[0],
        SIZE_TEXT(problem->memory_bytes), problem->rank_count);
}

static void tell_none(const struct log_sink *log, const struct plan_table *table,
                      const struct plan_problem *problem)
{
    for (int i = 0; i < table->count; i++) {
        if (table->candidates[i].verdict != PLAN_UNKNOWN)
            continue;
        log_write(log, LOG_WARNING,
                  "the profile has no times for a plan that fits, and static tensor parallelism is "
                  "taken; phasor calibrate --overwrite measures anew");
        return;
    }
    log_write(log, LOG_WARNING,
              "no plan that can be run is predicted to fit into %s on each rank; static tensor "
              "parallelism is tried",
              SIZE_TEXT(problem->memory_bytes));
}

/* ---- The whole ------------------------------------------------------------------------------- */

/* Less what a run takes beside weights, cache and passes: tables, and what is priced nowhere, such
 * as streams and what a way works with. */
static uint64_t memory_of_rank(const struct engine_params *params, int rank_count,
                               uint64_t table_bytes)
{
    uint64_t there = (uint64_t)((double)system_memory_available() * PLAN_USABLE_SHARE);
    uint64_t budget = params->memory_bytes;
    uint64_t bytes = budget > 0 && budget < there ? budget : there;
    uint64_t beside = table_bytes + UNPRICED_BYTES * (uint64_t)rank_count;
    return (bytes > beside ? bytes - beside : 0) / (uint64_t)rank_count;
}

static struct plan_subject_params subject_of(const struct auto_plan *plan,
                                             const struct profile *profile,
                                             const struct engine_basis *basis)
{
    const struct engine_params *params = basis->params;
    const struct phasor_batch_params *batch = plan->batch;
    const struct model_config *config = checkpoint_config(basis->checkpoint);
    int64_t pass = batch != NULL ? batch->max_num_batched_tokens : params->max_num_batched_tokens;
    int64_t wave = batch != NULL ? batch->max_num_seqs : params->max_num_seqs;
    pass = pass > 0 ? pass : PASS_TOKENS_DEFAULT;
    wave = wave > 0 ? wave : RUN_SEQUENCES_DEFAULT;
    return (struct plan_subject_params){
        .config = config,
        .profile = profile,
        .rank_count = basis->rank_count,
        .dtype = basis->types.matrices,
        .has_int4_experts = params->has_int4_experts,
        .memory_bytes = memory_of_rank(params, basis->rank_count,
                                       run_table_bytes(wave, pass, config->vocab_count)),
        .kv_bytes = batch != NULL ? batch->kv_bytes : params->kv_bytes,
        .load = plan->load,
        .allows_int4 = !params->is_exact,
        .max_num_batched_tokens = pass,
        .wave_max = wave,
        .routing_deviation = ROUTING_DEVIATION,
    };
}

static void choice_take(struct auto_plan *plan, struct engine_choice *out,
                        const struct plan_table *table, int chosen)
{
    const struct plan_candidate *best = &table->candidates[chosen];
    *out = (struct engine_choice){
        .is_made = true,
        .layouts = best->layouts,
        .has_way = best->way != PLAN_NONE,
        .way = ways_of_plans[best->way],
    };
    plan->has_forecast = plan->batch != NULL;
    plan->forecast = (struct plan_forecast){.prefill = best->prefill,
                                            .decode = best->decode,
                                            .between = best->transition + best->way_back};
}

static enum status plan_with(struct auto_plan *plan, struct engine_choice *out,
                             const struct profile *profile, const struct engine_basis *basis,
                             struct error *err)
{
    const struct log_sink *log = &basis->params->log;
    struct plan_subject subject;
    struct plan_table table;
    TRY(load_find(plan, basis, err));
    if (plan->load.sequences == 0)
        return STATUS_OK;
    struct plan_subject_params params = subject_of(plan, profile, basis);
    TRY(plan_subject_init(&subject, &params, err));
    TRY(plan_find(&table, &subject.problem, err));
    tell_question(plan, &subject.problem, log);
    bool has_backup = engine_backup_is_at_hand(basis->params, basis->checkpoint);
    int chosen = candidate_pick(&table, basis->params, has_backup);
    if (chosen >= 0) {
        choice_take(plan, out, &table, chosen);
        if (!basis->params->transition_is_auto) /* mixed, too, which no plan has */
            out->way = basis->params->transition;
        tell_choice(log, &table, chosen);
        tell_backup(log, &table, chosen, basis->params);
    } else {
        tell_none(log, &table, &subject.problem);
    }
    plan_table_deinit(&table);
    return STATUS_OK;
}

enum status auto_plan_choose(void *context, struct engine_choice *out,
                             const struct engine_basis *basis, struct error *err)
{
    struct auto_plan *plan = context;
    struct profile_file file;
    bool fits;
    *out = (struct engine_choice){.is_made = false};
    TRY(auto_past_choose(out, plan->batch, basis, err));
    if (out->is_made || basis->has_gpus || checkpoint_config(basis->checkpoint)->expert_count == 0)
        return STATUS_OK;
    TRY(auto_profile_read(&file, &fits, plan->profile_path, basis, err));
    if (!fits)
        return STATUS_OK;
    enum status status = plan_with(plan, out, &file.profile, basis, err);
    profile_file_deinit(&file);
    return status;
}

/* ---- Life ------------------------------------------------------------------------------------ */

void auto_plan_init(struct auto_plan *plan)
{
    *plan = (struct auto_plan){.input_fd = -1};
}

int auto_plan_take_input(struct auto_plan *plan, const char *path)
{
    int fd = plan->input_fd;
    if (fd < 0 || strcmp(plan->input_path, path) != 0)
        return -1;
    plan->input_fd = -1;
    return fd;
}

void auto_plan_deinit(struct auto_plan *plan)
{
    if (plan->input_fd >= 0)
        close(plan->input_fd);
    auto_plan_init(plan);
}
