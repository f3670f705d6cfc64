#include "engine/auto_plan.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/system.h"
#include "device/device.h"
#include "device/thread_team.h"
#include "engine/auto_past.h"
#include "engine/auto_pick.h"
#include "engine/auto_profile.h"
#include "engine/auto_told.h"
#include "engine/batch_lengths.h"
#include "engine/batch_progress.h"
#include "engine/engine_backup.h"
#include "engine/plan_answer.h"
#include "engine/plan_parts.h"
#include "engine/plan_problem.h"
#include "engine/plan_source.h"
#include "engine/routing_counts.h"
#include "engine/run_limits.h"

/* Of runs that do not say. */
#define RUN_SEQUENCES_DEFAULT 256
#define ROUTING_DEVIATION     0.3 /* as of phasor_plan */

/* Of each rank; measured with small models, of which it is no more than a few MiB. */
#define UNPRICED_BYTES ((uint64_t)16 << 20)

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

static int64_t context_of(const struct auto_plan *plan, const struct engine_basis *basis)
{
    const struct phasor_batch_params *batch = plan->batch;
    int64_t most = checkpoint_config(basis->checkpoint)->position_count_max;
    bool is_less = batch != NULL && batch->max_model_len > 0 && batch->max_model_len < most;
    return is_less ? batch->max_model_len : most;
}

static enum status lengths_read(struct batch_lengths *out, const struct auto_plan *plan,
                                const struct engine_basis *basis, struct batch_reader *reader,
                                const struct watch *watch, struct error *err)
{
    const struct phasor_batch_params *batch = plan->batch;
    const struct chat_template *template = NULL;
    struct error ignored; /* the rows are told */
    if (batch->chat_template != NULL)
        template = chat_template_find(batch->chat_template);
    else if (basis->tokenizer != NULL &&
             chat_template_of(&template, basis->tokenizer, &ignored) != STATUS_OK)
        template = NULL;
    return batch_lengths_read(out,
                              &(struct batch_lengths_params){
                                  .reader = reader,
                                  .defaults = {.ignore_eos = batch->ignore_eos,
                                               .prompt_logprobs = batch->prompt_logprobs},
                                  .tokenizer = basis->tokenizer,
                                  .chat_template = template,
                                  .context_max = context_of(plan, basis),
                                  .shares_prefixes = batch->shares_prefixes,
                                  .watch = *watch,
                              },
                              err);
}

/* Of the batch, where there is one; else what was told of it, as far as the context goes. To be
 * deinitialised after success. */
static enum status load_find(struct batch_lengths *out, struct auto_plan *plan,
                             const struct engine_basis *basis, struct error *err)
{
    static const struct batch_world world;
    struct phasor_batch_result nothing = {0};
    struct batch_progress progress = {.params = plan->batch, .result = &nothing, .world = &world};
    const struct watch watch = {.ask = batch_progress_reading, .context = &progress};
    struct batch_reader *reader;
    if (plan->batch == NULL) {
        load_bound(&plan->load, context_of(plan, basis));
        *out = (struct batch_lengths){.load = plan->load};
        return STATUS_OK;
    }
    TRY(batch_reader_open(&reader, plan->batch->input_path, BATCH_LINE_BYTES_MAX, &watch, NULL,
                          err));
    plan->input = batch_reader_fingerprint(reader);
    if (!is_regular(plan->batch->input_path) &&
        snprintf(plan->input_path, sizeof plan->input_path, "%s", plan->batch->input_path) <
            (int)sizeof plan->input_path)
        plan->input_fd = fcntl(batch_reader_fd(reader), F_DUPFD_CLOEXEC, 0);
    enum status status = lengths_read(out, plan, basis, reader, &watch, err);
    batch_reader_close(reader);
    return status;
}

/* ---- The whole ------------------------------------------------------------------------------- */

/* Of all ranks together: what the machine has free; of GPUs that of the rank with the least, for
 * each. */
static enum status memory_there(uint64_t *out, const struct engine_devices *devices,
                                struct error *err)
{
    uint64_t least = UINT64_MAX;
    for (int r = 0; devices->cuda && r < devices->rank_count; r++) {
        const struct gpu_share share = {.ordinal = devices->gpus[r],
                                        .sharer_count = engine_devices_sharers(devices, r)};
        struct gpu_description gpu;
        TRY(device_cuda_describe(&gpu, &share, err));
        least = gpu.memory_left < least ? gpu.memory_left : least;
    }
    *out = devices->cuda ? least * (uint64_t)devices->rank_count : system_memory_available();
    return STATUS_OK;
}

/* Less what a run takes beside weights, cache and passes: tables, which the host has, and what is
 * priced nowhere, such as streams and what reload reads through. */
static enum status memory_of_rank(uint64_t *out, const struct engine_params *params,
                                  const struct engine_devices *devices, uint64_t table_bytes,
                                  struct error *err)
{
    uint64_t all, ranks = (uint64_t)devices->rank_count, budget = params->memory_bytes;
    TRY(memory_there(&all, devices, err));
    uint64_t there = (uint64_t)((double)all * PLAN_USABLE_SHARE);
    uint64_t bytes = budget > 0 && budget < there ? budget : there;
    uint64_t beside = (devices->cuda ? 0 : table_bytes) + UNPRICED_BYTES * ranks;
    *out = (bytes > beside ? bytes - beside : 0) / ranks;
    return STATUS_OK;
}

/* Also where no plan is chosen in the end, or the record has it: a file that is none is told. */
static enum status routing_find(struct routing *out, const struct auto_plan *plan,
                                const struct engine_basis *basis, struct error *err)
{
    *out = (struct routing){.deviation = ROUTING_DEVIATION};
    return plan->routing_path == NULL
               ? STATUS_OK
               : routing_counts_read(out, plan->routing_path, checkpoint_config(basis->checkpoint),
                                     err);
}

/* Threads of the first rank, which has as many as any. */
static int workers_of(const struct engine_basis *basis)
{
    int threads = basis->params->thread_count, ranks = basis->devices->rank_count;
    threads = threads > 0 ? threads : thread_team_cpu_count();
    return (int)ceil_div(threads, ranks);
}

/* `routing` is borrowed by `out`. */
static enum status subject_make(struct plan_subject_params *out, const struct auto_plan *plan,
                                const struct profile *profile, const struct routing *routing,
                                const struct engine_basis *basis, struct error *err)
{
    uint64_t memory_bytes;
    const struct engine_params *params = basis->params;
    const struct phasor_batch_params *batch = plan->batch;
    const struct model_config *config = checkpoint_config(basis->checkpoint);
    int64_t pass = batch != NULL ? batch->max_num_batched_tokens : params->max_num_batched_tokens;
    int64_t wave = batch != NULL ? batch->max_num_seqs : params->max_num_seqs;
    if (batch == NULL &&
        pass == 0) /* nobody knows for which runs that is: they take the usual one */
        pass = ENGINE_PASS_TOKENS;
    wave = wave > 0 ? wave : RUN_SEQUENCES_DEFAULT;
    TRY(memory_of_rank(&memory_bytes, params, basis->devices,
                       run_table_bytes(wave, pass > 0 ? pass : PLAN_PASS_MOST, config->vocab_count),
                       err));
    *out = (struct plan_subject_params){
        .config = config,
        .profile = profile,
        .rank_count = basis->devices->rank_count,
        .dtype = basis->types.matrices,
        .has_int4_experts = params->has_int4_experts,
        .memory_bytes = memory_bytes,
        .kv_bytes = batch != NULL ? batch->kv_bytes : params->kv_bytes,
        .load = plan->load,
        .allows_int4 = !params->is_exact,
        .max_num_batched_tokens = pass,
        .wave_max = wave,
        .worker_count = workers_of(basis),
        .is_gpu = basis->devices->cuda,
        .routing = routing,
    };
    return STATUS_OK;
}

static struct engine_choice choice_of(const struct plan_candidate *candidate)
{
    const struct layout *layout = &candidate->layouts.of[PHASE_PREFILL];
    return (struct engine_choice){
        .is_made = true,
        .layouts = candidate->layouts,
        .has_way = candidate->way != PLAN_NONE,
        .way = auto_way(candidate->way),
        .pass_tokens = candidate->pass_tokens,
        .cache_bytes = candidate->memory.cache * (uint64_t)layout->rank_count,
    };
}

static struct plan_forecast forecast_of(const struct plan_candidate *candidate)
{
    return (struct plan_forecast){.prefill = candidate->prefill,
                                  .decode = candidate->decode,
                                  .between = candidate->transition + candidate->way_back};
}

/* Rows that are of no cell are of the last class. */
static enum status order_take(struct auto_plan *plan, const struct batch_lengths *lengths,
                              const struct plan_classes *classes, struct error *err)
{
    if (classes->count <= 1)
        return STATUS_OK;
    TRY(memory_get((void **)&plan->class_of, (size_t)lengths->row_count, sizeof *plan->class_of,
                   "the order of the rows", err));
    plan->class_count = classes->count;
    for (int64_t row = 0; row < lengths->row_count; row++) {
        int cell = lengths->cell_of[row];
        int bin = cell == BATCH_LENGTHS_NO_CELL ? -1 : lengths->mix.bin_of[cell];
        plan->class_of[row] = (uint8_t)(bin < 0 ? classes->count - 1 : classes->of_bin[bin]);
    }
    return STATUS_OK;
}

/* Of a run that is resumed, from the same rows. Where they come to other bins, the record differs,
 * and the run is refused. */
static enum status order_restore(struct auto_plan *plan, const struct auto_past *past,
                                 const struct engine_basis *basis, struct error *err)
{
    struct batch_lengths lengths;
    bool has_parts = past->parts.count > 0;
    TRY(load_find(&lengths, plan, basis, err));
    enum status status = STATUS_OK;
    if (lengths.mix.bin_count == (has_parts ? past->parts.bin_count : past->staying.bin_count)) {
        status = order_take(plan, &lengths,
                            has_parts ? &past->parts.classes : &past->staying.classes, err);
        plan->staying = past->staying;
        plan->parts = past->parts;
    }
    batch_lengths_deinit(&lengths);
    return status;
}

/* In waves as it was priced; else, where others come for those that end, so that the longest
 * answers are not those that are left over. */
static enum status order_find(struct auto_plan *plan, const struct plan_answer *answer,
                              const struct batch_lengths *lengths, const struct log_sink *log,
                              struct error *err)
{
    const struct plan_candidate *chosen = &answer->table.candidates[answer->chosen];
    struct plan_classes classes = answer->classes;
    bool moves = auto_moves_weights(chosen);
    if (lengths->is_sample)
        return STATUS_OK; /* nobody knows which rows are of which class */
    if (!moves)
        plan_classes_by_answers(&classes, &lengths->mix);
    TRY(order_take(plan, lengths, &classes, err));
    if (moves && plan->class_count > 1 && chosen->stays != 0)
        plan->staying = (struct batch_staying){lengths->mix.bin_count, classes, chosen->stays};
    if (plan->class_count > 1)
        auto_tell_order(plan->class_count, plan->staying.bin_count > 0,
                        moves ? answer->in_file_order / plan_candidate_total(chosen) : 0, log);
    return STATUS_OK;
}

/* A way that was asked for; mixed, too, which no plan has. */
static void way_name(struct engine_choice *choice, const struct engine_params *params)
{
    if (!params->transition_is_auto)
        choice->way = params->transition;
}

static enum status answer_use(struct auto_plan *plan, struct engine_choice *out,
                              const struct plan_answer *answer, const struct batch_lengths *lengths,
                              const struct engine_basis *basis, struct error *err)
{
    const struct log_sink *log = &basis->params->log;
    const struct plan_candidate *chosen = &answer->table.candidates[answer->chosen];
    *out = choice_of(chosen);
    way_name(out, basis->params);
    plan->has_forecast = plan->batch != NULL;
    plan->forecast = forecast_of(chosen);
    auto_tell_choice(&answer->table, answer->chosen, log);
    return order_find(plan, answer, lengths, log, err);
}

/* A run of which every byte is to be the same, or that is recorded or counted as one, has one plan;
 * and which rows are of which part is known where all rows are. */
static bool may_have_parts(const struct auto_plan *plan, const struct batch_lengths *lengths,
                           const struct engine_params *params)
{
    const struct phasor_batch_params *batch = plan->batch;
    return batch != NULL && !batch->deterministic && !params->records &&
           batch->routing_counts_path == NULL && !lengths->is_sample;
}

static enum status parts_use(struct auto_plan *plan, struct engine_choice *out,
                             const struct plan_parts *found, const struct batch_lengths *lengths,
                             const struct engine_params *params, struct error *err)
{
    struct batch_parts *parts = &plan->parts;
    plan->has_forecast = true;
    plan->forecast = (struct plan_forecast){.loads = found->reloaded};
    *parts = (struct batch_parts){.count = found->count, .bin_count = lengths->mix.bin_count};
    for (int p = 0; p < found->count; p++) {
        struct plan_forecast part = forecast_of(&found->of[p].candidate);
        plan->forecast.prefill += part.prefill;
        plan->forecast.decode += part.decode;
        plan->forecast.between += part.between;
        parts->of[p] = choice_of(&found->of[p].candidate);
        way_name(&parts->of[p], params);
    }
    plan_parts_classes(&parts->classes, parts->class_end, found, &lengths->mix);
    *out = parts->of[0];
    return order_take(plan, lengths, &parts->classes, err);
}

/* Under one plan, or in parts where that is sooner done. */
static enum status answer_take(struct auto_plan *plan, struct engine_choice *out,
                               const struct plan_answer *answer,
                               const struct plan_question *question,
                               const struct auto_limits *limits,
                               const struct batch_lengths *lengths,
                               const struct engine_basis *basis, struct error *err)
{
    const struct engine_params *params = basis->params;
    const struct plan_candidate *chosen = &answer->table.candidates[answer->chosen];
    struct plan_parts parts = {.count = 0};
    if (may_have_parts(plan, lengths, params))
        TRY(plan_parts_find(&parts, question, chosen, err));
    if (parts.count > 0) {
        auto_tell_parts(&parts, chosen, &params->log);
        TRY(parts_use(plan, out, &parts, lengths, params, err));
    } else {
        TRY(answer_use(plan, out, answer, lengths, basis, err));
    }
    return auto_tell_backup(answer, &parts, question, limits, err);
}

static enum status plan_for(struct auto_plan *plan, struct engine_choice *out,
                            const struct batch_lengths *lengths, const struct profile *profile,
                            const struct routing *routing, const struct engine_basis *basis,
                            struct error *err)
{
    struct plan_subject_params subject;
    struct backup_settings backup;
    const struct auto_limits limits = {
        .engine = basis->params,
        .has_backup = engine_backup_is_at_hand(&backup, basis->params, basis->checkpoint),
    };
    struct plan_prices prices = {.of = NULL};
    const struct plan_question question = {
        .subject = &subject,
        .mix = &lengths->mix,
        .prices = &prices,
        .context_max = context_of(plan, basis),
        .is_one_class = lengths->is_sample,
        /* Which rows stay follows from all rows and a profile. */
        .may_stay = plan->batch != NULL && !plan->batch->deterministic,
        .may = auto_can_run,
        .may_context = &limits,
    };
    struct plan_answer answer;
    enum status status;
    TRY(subject_make(&subject, plan, profile, routing, basis, err));
    subject.backup = &backup;
    subject.longest_tokens = lengths->longest_tokens;
    auto_tell_question(&subject, &basis->params->log);
    status = plan_answer_find(&answer, &question, err);
    subject.longest_tokens = answer.longest_tokens;
    if (status == STATUS_OK && answer.chosen < 0)
        status = auto_tell_none(&subject, &answer.table, &basis->params->log, err);
    else if (status == STATUS_OK)
        status = answer_take(plan, out, &answer, &question, &limits, lengths, basis, err);
    plan_answer_deinit(&answer);
    plan_prices_deinit(&prices);
    return status;
}

static enum status plan_with(struct auto_plan *plan, struct engine_choice *out,
                             const struct profile *profile, const struct routing *routing,
                             const struct engine_basis *basis, struct error *err)
{
    struct batch_lengths lengths;
    TRY(load_find(&lengths, plan, basis, err));
    plan->load = lengths.load;
    enum status status = STATUS_OK;
    if (plan->load.sequences > 0)
        status = plan_for(plan, out, &lengths, profile, routing, basis, err);
    batch_lengths_deinit(&lengths);
    return status;
}

static void tell_unused(const struct engine_basis *basis, const char *flag, const char *path,
                        const char *why)
{
    if (path != NULL)
        log_write(&basis->params->log, LOG_WARNING, "%s %s is not used: %s", flag, path, why);
}

static void tell_no_experts(const struct auto_plan *plan, const struct engine_basis *basis)
{
    static const char why[] = "the model has no experts to lay out; the plan is static tensor "
                              "parallelism, unless --plan names one";
    tell_unused(basis, "--profile", plan->profile_path, why);
    tell_unused(basis, "--routing", plan->routing_path, why);
}

/* By the times of this machine, where they were measured. */
static enum status plan_by_profile(struct auto_plan *plan, struct engine_choice *out,
                                   const struct routing *routing, const struct engine_basis *basis,
                                   struct error *err)
{
    struct profile_file file;
    bool fits;
    TRY(auto_profile_read(&file, &fits, plan->profile_path, basis, err));
    if (!fits) {
        tell_unused(basis, "--routing", plan->routing_path,
                    "no plan is chosen without a profile of this machine");
        return STATUS_OK;
    }
    enum status status = plan_with(plan, out, &file.profile, routing, basis, err);
    plan->is_measured = status == STATUS_OK && out->is_made;
    plan->identity = file.identity;
    profile_file_deinit(&file);
    return status;
}

enum status auto_plan_choose(void *context, struct engine_choice *out,
                             const struct engine_basis *basis, struct error *err)
{
    struct auto_plan *plan = context;
    struct auto_past past;
    struct routing routing;
    bool has_experts = checkpoint_config(basis->checkpoint)->expert_count > 0;
    if (has_experts)
        TRY(routing_find(&routing, plan, basis, err));
    TRY(auto_past_find(&past, plan->batch, basis, err));
    *out = past.choice;
    if (out->is_made) {
        static const char why[] = "the plan stands in the record of the run that is resumed";
        tell_unused(basis, "--profile", plan->profile_path, why);
        tell_unused(basis, "--routing", plan->routing_path, why);
    }
    if (past.staying.bin_count > 0 || past.parts.count > 0)
        return order_restore(plan, &past, basis, err);
    if (out->is_made)
        return STATUS_OK;
    if (has_experts)
        return plan_by_profile(plan, out, &routing, basis, err);
    tell_no_experts(plan, basis);
    return STATUS_OK;
}

void auto_plan_check_box(const struct auto_plan *plan, const struct box *box,
                         const struct log_sink *log)
{
    char gpus[PROFILE_GPUS_BYTES];
    struct error untold; /* a GPU that says nothing more of itself: whoever computes on it hears */
    if (!plan->is_measured ||
        profile_identity_opened(gpus, &plan->identity, box, &untold) != STATUS_OK ||
        strcmp(gpus, plan->identity.gpus) == 0)
        return;
    log_write(log, LOG_WARNING,
              "the plan is chosen by times of ranks on %s, but they are on %s: it stands, and "
              "another may be faster",
              plan->identity.gpus, gpus);
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

const struct batch_parts *auto_plan_parts(const struct auto_plan *plan)
{
    return plan->parts.count > 0 && plan->class_count > 0 ? &plan->parts : NULL;
}

bool auto_plan_has_order(const struct auto_plan *plan, const struct fingerprint *input)
{
    return plan->class_count > 0 && memcmp(input, &plan->input, sizeof *input) == 0;
}

struct batch_order auto_plan_order(const struct auto_plan *plan, struct watch watch)
{
    return (struct batch_order){.class_of = plan->class_of,
                                .class_count = plan->class_count,
                                .stays = plan->staying.stays,
                                .watch = watch};
}

void auto_plan_deinit(struct auto_plan *plan)
{
    if (plan->input_fd >= 0)
        close(plan->input_fd);
    memory_free(plan->class_of);
    auto_plan_init(plan);
}
