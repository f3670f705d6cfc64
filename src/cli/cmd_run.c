/* phasor run: a batch file, or one prompt, through a model. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "commands.h"
#include "progress.h"
#include "run_files.h"
#include "run_summary.h"
#include "stop_signal.h"

#define COUNT_TOP 0x1p62

struct run_values {
    const char *model, *revision;
    const char *input, *output, *errors;
    const char *metrics, *summary, *trace, *record, *routing_counts;
    const char *chat_template;
    const char *prompt;
    int dtype, expert_dtype, transition, policy;
    const char *backup;
    int64_t threads;
    const char *devices, *plan, *profile, *routing;
    uint64_t seed;
    int64_t max_num_seqs, max_num_batched_tokens, max_model_len;
    uint64_t memory, kv_memory;
    int64_t max_tokens, top_k;
    double temperature, top_p;
    bool no_prefix_sharing, weights_cache;
    bool chat, ignore_eos, prompt_logprobs, strict, overwrite, resume, deterministic, quiet,
        verbose;
};

#define MAX_TOKENS_DEFAULT   128
#define MAX_NUM_SEQS_DEFAULT 256
#define NOT_GIVEN            (-1) /* below what these options take */

#define PLAN_AUTO "auto"

static struct run_values values = {
    .plan = PLAN_AUTO,
    .max_num_seqs = NOT_GIVEN,
    .max_num_batched_tokens = NOT_GIVEN,
    .max_tokens = NOT_GIVEN,
    .temperature = NOT_GIVEN,
    .top_p = NOT_GIVEN,
    .top_k = NOT_GIVEN,
};

#define AT(member) offsetof(struct run_values, member)

static const struct cli_option options[] = {
    {"model", 0, OPTION_FILE, AT(model), "MODEL",
     "the model, where it is not the first argument: a directory, or org/name in the local Hugging "
     "Face cache",
     0, 0, NULL},
    {"revision", 0, OPTION_TEXT, AT(revision), "NAME",
     "branch, tag or commit of a cached model (main)", 0, 0, NULL},
    {"input-file", 'i', OPTION_FILE, AT(input), "FILE",
     "requests as JSON lines, as of OpenAI's Batch API; - is standard input", 0, 0, NULL},
    {"output-file", 'o', OPTION_FILE, AT(output), "FILE",
     "responses, one line each, as they finish; - is standard output", 0, 0, NULL},
    {"error-file", 0, OPTION_FILE, AT(errors), "FILE",
     "where rows that failed go (the output file)", 0, 0, NULL},
    {"metrics-file", 0, OPTION_FILE, AT(metrics), "FILE",
     "metrics for Prometheus, every few seconds and at the end", 0, 0, NULL},
    {"summary-file", 0, OPTION_FILE, AT(summary), "FILE",
     "the summary as JSON, at the end, with the keys of vllm bench serve", 0, 0, NULL},
    {"trace", 0, OPTION_FILE, AT(trace), "FILE",
     "what ran when on each rank, for ui.perfetto.dev, at the end", 0, 0, NULL},
    {"record", 0, OPTION_FILE, AT(record), "FILE",
     "what was computed, sent and read and what waited for what, for replay on other boxes; the "
     "ranks, of the CPU alone, then work one at a time",
     0, 0, NULL},
    {"routing-counts", 0, OPTION_FILE, AT(routing_counts), "FILE",
     "how often each expert was chosen, at the end, for --routing of phasor plan and later runs", 0,
     0, NULL},
    {"overwrite", 0, OPTION_FLAG, AT(overwrite), NULL, "replace output files that are not empty", 0,
     0, NULL},
    {"resume", 0, OPTION_FLAG, AT(resume), NULL,
     "finish the interrupted run that wrote the output file; start anew where there is none", 0, 0,
     NULL},
    {"deterministic", 0, OPTION_FLAG, AT(deterministic), NULL,
     "the same bytes for a row whatever rows stand around it, interrupted or not", 0, 0, NULL},
    {"strict", 0, OPTION_FLAG, AT(strict), NULL,
     "run nothing when a row is wrong, and end at the first that fails", 0, 0, NULL},
    {"prompt", 'p', OPTION_TEXT, AT(prompt), "TEXT",
     "instead of files: continue this text on standard output", 0, 0, NULL},
    {"max-tokens", 'n', OPTION_COUNT, AT(max_tokens), "COUNT",
     "with -p: tokens to generate at most (128)", 1, 2147483647, NULL},
    {"chat", 0, OPTION_FLAG, AT(chat), NULL,
     "with -p: put the text into the chat template as a user's turn", 0, 0, NULL},
    {"temperature", 0, OPTION_REAL, AT(temperature), "NUMBER",
     "with -p: 0 takes the likeliest token each time (0)", 0, 100, NULL},
    {"top-p", 0, OPTION_REAL, AT(top_p), "NUMBER", "with -p: nucleus of the distribution (1: all)",
     1e-9, 1, NULL},
    {"top-k", 0, OPTION_COUNT, AT(top_k), "COUNT", "with -p: likeliest tokens kept (0: all)", 0,
     2147483647, NULL},
    {"chat-template", 0, OPTION_TEXT, AT(chat_template), "NAME",
     "a known template instead of the checkpoint's own", 0, 0, NULL},
    {"seed", 0, OPTION_SEED, AT(seed), "NUMBER",
     "for rows without a seed of their own (0); the same seed gives the same output", 0, 0, NULL},
    {"dtype", 0, OPTION_WORD, AT(dtype), "TYPE",
     "number type of the weights: auto, float32, bfloat16 (auto)", 0, 0, dtype_words},
    {"expert-dtype", 0, OPTION_WORD, AT(expert_dtype), "TYPE",
     "of routed experts: auto (as --dtype), int4 (a quarter of the memory; answers differ a "
     "little)",
     0, 0, expert_dtype_words},
    {"devices", 0, OPTION_TEXT, AT(devices), "cpu:N",
     "N ranks of the CPU, each with its share of the cores and its own memory (as many as the plan "
     "has); or GPUs, which are used only where they are named: cuda:0, cuda:0-3, cuda:0,2, a rank "
     "on each, or cuda:0x4, four ranks on the first, "
     "perhaps with links made slow (cuda:0x4@22GB/s, 800MB/s), as between several cards",
     0, 0, NULL},
    {"plan", 0, OPTION_TEXT, AT(plan), "PLAN",
     "how weights lie over the ranks, such as \"tp4|ep4\", or in prefill and then in decode, such "
     "as \"dp4|ep4>tp4\"; with \":int4\" behind that, decode runs on the INT4 backup's packed "
     "weights; static: tensor parallelism; auto: the best for these rows, by the times that "
     "phasor "
     "calibrate measured here (auto)",
     0, 0, NULL},
    {"profile", 0, OPTION_FILE, AT(profile), "FILE",
     "the times that --plan auto chooses by (those of these devices in $PHASOR_CACHE or "
     "~/.cache/phasor)",
     0, 0, NULL},
    {"routing", 0, OPTION_FILE, AT(routing), "FILE",
     "how unevenly experts are chosen, as --routing-counts of an earlier run found it, for --plan "
     "auto (assumed: they differ by 30 %)",
     0, 0, NULL},
    {"transition", 0, OPTION_WORD, AT(transition), "WAY",
     "how experts come from one layout to the other: auto, keep, reshard, reload, upload, mixed "
     "(auto)",
     0, 0, transition_words},
    {"backup", 0, OPTION_FILE, AT(backup), "FILE",
     "the INT4 backup for --transition upload or auto, or a plan with :int4 (the one in "
     "$PHASOR_CACHE or ~/.cache/phasor, which upload and :int4 make)",
     0, 0, NULL},
    {"policy", 0, OPTION_WORD, AT(policy), "POLICY",
     "weights for decode: int4-decode (those of the INT4 backup, too), exact (int4-decode)", 0, 0,
     policy_words},
    {"threads", 't', OPTION_COUNT, AT(threads), "COUNT",
     "compute threads (0: one for each core that the process may use)", 0, 4096, NULL},
    {"max-num-seqs", 0, OPTION_COUNT, AT(max_num_seqs), "COUNT",
     "sequences that run at the same time (256)", 1, COUNT_TOP, NULL},
    {"max-num-batched-tokens", 0, OPTION_COUNT, AT(max_num_batched_tokens), "COUNT",
     "tokens of one forward pass, at least --max-num-seqs (0: as chosen with the plan, else 2048)",
     0, COUNT_TOP, NULL},
    {"max-model-len", 0, OPTION_COUNT, AT(max_model_len), "COUNT",
     "longest prompt and answer together; 8k and 8K are understood (0: the model's own)", 0,
     COUNT_TOP, NULL},
    {"memory", 0, OPTION_BYTES, AT(memory), "SIZE",
     "memory for everything: weights, activations, KV cache, e.g. 24GiB (0: what is free)", 0,
     COUNT_TOP, NULL},
    {"kv-memory", 0, OPTION_BYTES, AT(kv_memory), "SIZE",
     "memory for the KV cache, e.g. 4GiB (0: what --memory leaves, or half of what is free)", 0,
     COUNT_TOP, NULL},
    {"weights-cache", 0, OPTION_FLAG, AT(weights_cache), NULL,
     "leave the packed weights in $PHASOR_CACHE or ~/.cache/phasor, as many bytes as they are in "
     "memory, and map them from there the next time: nothing is packed then, and processes share "
     "them; of the CPU",
     0, 0, NULL},
    {"no-prefix-sharing", 0, OPTION_FLAG, AT(no_prefix_sharing), NULL,
     "compute every prompt whole, also what others begin with", 0, 0, NULL},
    {"ignore-eos", 0, OPTION_FLAG, AT(ignore_eos), NULL,
     "go on behind end-of-sequence tokens, for rows that do not say", 0, 0, NULL},
    {"prompt-logprobs", 0, OPTION_FLAG, AT(prompt_logprobs), NULL,
     "score every prompt, for rows that do not say", 0, 0, NULL},
    {"quiet", 'q', OPTION_FLAG, AT(quiet), NULL, "no progress, warnings or summary", 0, 0, NULL},
    {"verbose", 'v', OPTION_FLAG, AT(verbose), NULL, "more notices", 0, 0, NULL},
    {.name = NULL},
};

/* ---- Checks before the model is loaded ----------------------------------------------------- */

static bool is_same_file(const char *a, const char *b)
{
    struct stat of_a, of_b;
    return stat(a, &of_a) == 0 && stat(b, &of_b) == 0 && of_a.st_dev == of_b.st_dev &&
           of_a.st_ino == of_b.st_ino;
}

/* Options that mean something with --prompt alone, or with files alone: silence would mislead. */
static int check_mode(const struct cli_command *command)
{
    static const struct {
        const char *name;
        bool needs_prompt;
    } modes[] = {
        {"max-tokens", true},
        {"chat", true},
        {"temperature", true},
        {"top-p", true},
        {"top-k", true},
        {"error-file", false},
        {"metrics-file", false},
        {"summary-file", false},
        {"trace", false},
        {"record", false},
        {"routing-counts", false},
        {"strict", false},
        {"overwrite", false},
        {"resume", false},
        {"deterministic", false},
        {"prompt-logprobs", false},
        {"no-prefix-sharing", false},
        {"max-num-seqs", false},
        {"max-num-batched-tokens", false},
    };
    bool has_prompt = values.prompt != NULL;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (modes[i].needs_prompt == has_prompt || !options_is_typed(command, modes[i].name))
            continue;
        if (modes[i].needs_prompt)
            return options_mistake(
                command, "--%s is for --prompt; rows of a file say it themselves", modes[i].name);
        return options_mistake(command, "--%s is for a batch file, not for --prompt",
                               modes[i].name);
    }
    if (has_prompt && !values.chat && options_is_typed(command, "chat-template"))
        return options_mistake(command, "--chat-template needs --chat where there is a --prompt");
    return -1;
}

/* What holds where nothing was said. */
static void fill_values(void)
{
    if (values.max_num_seqs == NOT_GIVEN)
        values.max_num_seqs = MAX_NUM_SEQS_DEFAULT;
    if (values.max_num_batched_tokens == NOT_GIVEN)
        values.max_num_batched_tokens = 0;
    if (values.max_tokens == NOT_GIVEN)
        values.max_tokens = MAX_TOKENS_DEFAULT;
    if (values.temperature == NOT_GIVEN)
        values.temperature = 0;
    if (values.top_p == NOT_GIVEN)
        values.top_p = 1;
    if (values.top_k == NOT_GIVEN)
        values.top_k = 0;
}

static void pass_over(const struct cli_command *command, const char *name, const char **value)
{
    if (!options_is_typed(command, name))
        *value = NULL;
}

static void pass_over_flag(const struct cli_command *command, const char *name, bool *value)
{
    if (!options_is_typed(command, name))
        *value = false;
}

/* Variables that do not go with what was typed: they may be meant for other calls. */
static void pass_over_variables(const struct cli_command *command, bool has_operand)
{
    bool has_files =
        options_is_typed(command, "input-file") || options_is_typed(command, "output-file");
    if (has_operand)
        pass_over(command, "model", &values.model);
    if (options_is_typed(command, "prompt")) {
        pass_over(command, "input-file", &values.input);
        pass_over(command, "output-file", &values.output);
    } else if (has_files) {
        pass_over(command, "prompt", &values.prompt);
    }
    if (values.prompt != NULL) {
        pass_over(command, "record", &values.record);
        pass_over(command, "routing-counts", &values.routing_counts);
    }
    if (options_is_typed(command, "plan") && strcmp(values.plan, PLAN_AUTO) != 0) {
        pass_over(command, "profile", &values.profile);
        pass_over(command, "routing", &values.routing);
    } else if (!options_is_typed(command, "plan") &&
               (options_is_typed(command, "profile") || options_is_typed(command, "routing"))) {
        values.plan = PLAN_AUTO;
    }
    if (values.prompt != NULL || options_is_typed(command, "resume"))
        pass_over_flag(command, "overwrite", &values.overwrite);
    if (values.prompt != NULL || options_is_typed(command, "overwrite"))
        pass_over_flag(command, "resume", &values.resume);
}

static int check_names(const struct cli_command *command)
{
    const struct {
        const char *flag, *path;
    } names[] = {{"--input-file", values.input},     {"--output-file", values.output},
                 {"--error-file", values.errors},    {"--metrics-file", values.metrics},
                 {"--summary-file", values.summary}, {"--trace", values.trace},
                 {"--record", values.record}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (names[i].path != NULL && *names[i].path == 0)
            return options_mistake(command, "%s needs the name of a file", names[i].flag);
    }
    return -1;
}

static int check_values(const struct cli_command *command, char **operands, int operand_count)
{
    pass_over_variables(command, operand_count == 1);
    if (operand_count == 1 && values.model != NULL && strcmp(values.model, operands[0]) != 0)
        return options_mistake(command, "--model and \"%s\" name two models", operands[0]);
    if (operand_count == 1)
        values.model = operands[0];
    if (values.model == NULL)
        return options_mistake(command, "MODEL is missing");
    bool has_files = values.input != NULL || values.output != NULL;
    if (values.prompt != NULL && has_files)
        return options_mistake(command, "--prompt takes no input or output file");
    if (values.prompt == NULL && (values.input == NULL || values.output == NULL))
        return options_mistake(command, "%s is missing (or --prompt for a quick try)",
                               values.input == NULL ? "--input-file" : "--output-file");
    int mistake = check_mode(command);
    fill_values();
    if (mistake < 0)
        mistake = check_names(command);
    if (mistake >= 0)
        return mistake;
    if (values.resume && values.overwrite)
        return options_mistake(command, "--resume keeps what --overwrite would replace");
    if (values.profile != NULL && strcmp(values.plan, PLAN_AUTO) != 0)
        return options_mistake(command, "--profile is for --plan auto, and the plan is %s",
                               values.plan);
    if (values.routing != NULL && strcmp(values.plan, PLAN_AUTO) != 0)
        return options_mistake(command, "--routing is for --plan auto, and the plan is %s",
                               values.plan);
    if (values.routing != NULL && values.routing_counts != NULL &&
        is_same_file(values.routing, values.routing_counts))
        return options_mistake(command, "--routing-counts would replace what --routing reads; "
                                        "name another file");
    if (values.prompt == NULL && values.max_num_batched_tokens > 0 &&
        values.max_num_batched_tokens < values.max_num_seqs)
        return options_mistake(command,
                               "--max-num-batched-tokens (%lld) must be at least --max-num-seqs "
                               "(%lld)",
                               (long long)values.max_num_batched_tokens,
                               (long long)values.max_num_seqs);
    return -1;
}

static int check_files(void)
{
    return run_files_check(&(struct run_files){.input = values.input,
                                               .output = values.output,
                                               .errors = values.errors,
                                               .metrics = values.metrics,
                                               .summary = values.summary,
                                               .trace = values.trace,
                                               .record = values.record,
                                               .routing_counts = values.routing_counts,
                                               .keeps_output = values.overwrite || values.resume});
}

/* ---- Running ------------------------------------------------------------------------------- */

/* Before the run a signal ends the program at once: nothing is half written, and a backup is gone
 * on with. Within it, between two plans, no row is in flight: there is nothing to wait for. */
static int on_load(void *context, uint64_t bytes_done, uint64_t bytes_total)
{
    progress_bytes(context, "load", bytes_done, bytes_total);
    return stop_signal_get() != 0;
}

/* All but what concerns progress. */
static struct phasor_batch_params batch_params(void)
{
    struct phasor_batch_params params = phasor_batch_params_default();
    params.input_path = values.input;
    params.output_path = values.output;
    params.error_path = values.errors;
    params.metrics_path = values.metrics;
    params.summary_path = values.summary;
    params.trace_path = values.trace;
    params.record_path = values.record;
    params.routing_counts_path = values.routing_counts;
    params.chat_template = values.chat_template;
    params.overwrite = values.overwrite;
    params.resume = values.resume;
    params.deterministic = values.deterministic;
    params.strict = values.strict;
    params.ignore_eos = values.ignore_eos;
    params.prompt_logprobs = values.prompt_logprobs;
    params.seed = values.seed;
    params.max_num_seqs = values.max_num_seqs;
    params.max_num_batched_tokens = values.max_num_batched_tokens;
    params.max_model_len = values.max_model_len;
    params.kv_bytes = values.kv_memory;
    params.shares_prefixes = !values.no_prefix_sharing;
    return params;
}

/* Of a prompt, about: its tokens are not known before the model is open. */
#define BYTES_OF_TOKEN 4

static enum phasor_status open_model(struct phasor_model **out, struct progress *progress,
                                     struct phasor_error *err)
{
    struct phasor_batch_params batch = batch_params();
    struct phasor_model_params params = phasor_model_params_default();
    params.model = values.model;
    params.revision = values.revision;
    params.dtype = (enum phasor_dtype)values.dtype;
    params.expert_dtype = (enum phasor_dtype)values.expert_dtype;
    params.needs_tokenizer = values.prompt != NULL;
    params.thread_count = (int)values.threads;
    params.devices = values.devices;
    params.plan = values.plan;
    params.profile_path = values.profile;
    params.routing_path = values.routing;
    params.transition = (enum phasor_transition)values.transition;
    params.backup_path = values.backup;
    params.policy = (enum phasor_policy)values.policy;
    params.memory_bytes = values.memory;
    params.kv_bytes = values.kv_memory;
    params.records = values.record != NULL;
    params.caches_weights = values.weights_cache;
    if (values.prompt == NULL) {
        params.max_num_seqs = values.max_num_seqs;
        params.max_num_batched_tokens = values.max_num_batched_tokens;
        params.batch = &batch;
    } else {
        params.load = (struct phasor_load){1, 1 + (int64_t)strlen(values.prompt) / BYTES_OF_TOKEN,
                                           values.max_tokens};
    }
    params.log = progress_log;
    params.log_context = progress;
    params.load_progress = on_load;
    params.load_context = progress;
    enum phasor_status status = phasor_model_open(out, &params, err);
    progress_erase(progress);
    return status;
}

/* Flags whose range only the model tells: their sentences begin with them. */
static bool is_about_flag(const struct phasor_error *err)
{
    static const char *const beginnings[] = {
        "--max-num-seqs: ", "--max-num-batched-tokens: ", "--max-model-len: ", "--chat-template: "};
    for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++) {
        if (strncmp(err->message, beginnings[i], strlen(beginnings[i])) == 0)
            return true;
    }
    return false;
}

/* 130 or 143 when a signal stopped the run, as shells report it. */
static int exit_code_of(const struct cli_command *command, enum phasor_status status,
                        const struct phasor_error *err)
{
    if (status == PHASOR_INVALID_ARGUMENT && is_about_flag(err))
        return options_mistake(command, "%s", err->message);
    if (status == PHASOR_CANCELLED && stop_signal_get() != 0) {
        fprintf(stderr, "phasor: %s\n", err->message);
        return 128 + stop_signal_get();
    }
    return fail(err);
}

/* The first signal lets rows in flight finish, for a time that begins with it, however long the
 * pass under way takes; the second kills. */
static int on_progress(void *context, const struct phasor_batch_progress *now)
{
    struct progress *progress = context;
    if (now->requests_total > 0)
        progress_rows(progress, now);
    if (stop_signal_get() == 0)
        return PHASOR_GO_ON;
    bool is_over = stop_signal_seconds() >= phasor_batch_params_default().drain_seconds;
    return is_over ? PHASOR_STOP : PHASOR_DRAIN;
}

/* Made beforehand, because the signal's handler may but write it. A bar on the terminal goes. */
static const char *stop_sentence(const struct progress *progress)
{
    static char sentence[160];
    if (values.prompt != NULL || progress->is_quiet)
        return NULL;
    snprintf(sentence, sizeof sentence,
             "%sphasor: stopping: the pass under way is finished, and rows in flight get %.0f s; "
             "another signal stops at once\n",
             progress->is_terminal ? "\r\033[K" : "", phasor_batch_params_default().drain_seconds);
    return sentence;
}

static int run_batch(const struct cli_command *command, struct phasor_model *model,
                     struct progress *progress)
{
    struct phasor_batch_params params = batch_params();
    struct phasor_batch_result result;
    struct phasor_error err;
    params.progress = on_progress;
    params.progress_context = progress;
    progress_begin(progress);
    enum phasor_status status = phasor_batch_run(model, &params, &result, &err);
    progress_erase(progress);
    if (!progress->is_quiet && (status == PHASOR_OK || result.completed + result.failed > 0))
        run_summary_print(&result, values.errors != NULL ? values.errors : values.output);
    if (status != PHASOR_OK)
        return exit_code_of(command, status, &err);
    return result.failed + result.failed_before > 0 ? EXIT_SOME_ROWS : EXIT_DONE;
}

static int on_text(void *context, const char *text, size_t length)
{
    (void)context;
    if (length > 0) {
        fwrite(text, 1, length, stdout);
        fflush(stdout);
    }
    return stop_signal_get() != 0 || ferror(stdout);
}

static int run_prompt(const struct cli_command *command, struct phasor_model *model,
                      const struct progress *progress)
{
    struct phasor_generate_params params = phasor_generate_params_default();
    struct phasor_generate_result result;
    struct phasor_error err;
    params.prompt = values.prompt;
    params.chat = values.chat;
    params.chat_template = values.chat_template;
    params.ignore_eos = values.ignore_eos;
    params.max_tokens = values.max_tokens;
    params.temperature = values.temperature;
    params.top_p = values.top_p;
    params.top_k = values.top_k;
    params.seed = values.seed;
    params.max_model_len = values.max_model_len;
    params.kv_bytes = values.kv_memory;
    params.text = on_text;
    enum phasor_status status = phasor_generate(model, &params, &result, &err);
    if (status == PHASOR_OK || status == PHASOR_CANCELLED) {
        putchar('\n');
        fflush(stdout);
    }
    if (status != PHASOR_OK)
        return exit_code_of(command, status, &err);
    if (progress->is_verbose)
        fprintf(stderr, "%llu prompt tokens in %.2f s, %llu tokens in %.2f s\n",
                (unsigned long long)result.prompt_tokens, result.prefill_seconds,
                (unsigned long long)result.completion_tokens, result.decode_seconds);
    return EXIT_DONE;
}

static int run(const struct cli_command *command, char **operands, int operand_count)
{
    struct progress progress;
    struct phasor_model *model;
    struct phasor_error err;
    int exit_code = check_values(command, operands, operand_count);
    if (exit_code < 0 && values.prompt == NULL)
        exit_code = check_files();
    if (exit_code >= 0)
        return exit_code;
    progress_init(&progress, values.quiet, values.verbose);
    if (open_model(&model, &progress, &err) != PHASOR_OK)
        /* A flag that does not fit this model, such as --plan: as any other wrong flag. */
        return err.status == PHASOR_INVALID_ARGUMENT ? options_mistake(command, "%s", err.message)
                                                     : fail(&err);
    /* Before this a signal may simply kill: nothing has been done yet. */
    stop_signal_catch(stop_sentence(&progress));
    exit_code = values.prompt != NULL ? run_prompt(command, model, &progress)
                                      : run_batch(command, model, &progress);
    phasor_model_close(model);
    return exit_code;
}

const struct cli_command command_run = {
    .name = "run",
    .operands = "MODEL",
    .summary = "run a batch file (-i, -o) or one prompt (-p) through a model",
    .details = "Exit codes: 0 all rows are done, 1 failure, 2 wrong usage, 3 some rows failed,\n"
               "130 or 143 stopped by a signal (--resume finishes the run).",
    .options = options,
    .values = &values,
    .operand_max = 1,
    .run = run,
};
