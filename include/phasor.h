/* phasor: Mixture-of-Experts inference on one machine, with an expert layout for each phase.
 *
 * What a caller may rely on
 *   A `struct phasor_model *` is a model that was loaded and is ready to run. Treat it as a handle:
 *   open it, give it to the calls below, close it. One thread at a time may use one model; several
 *   models may be used by several threads, but not at once on the same several GPUs where NCCL
 *   joins them: its kernels of one could wait for those of the other for ever. Every call that can
 *   fail returns an `enum phasor_status` (0 is success) and, when it fails, fills
 *   `struct phasor_error` with one sentence that says what was wrong, where, and what cures it. A
 *   failed call changes nothing except what its own comment says. The library prints nothing,
 *   installs no signal handler and never exits: notices go to the log callback. In a build with
 *   CUDA the first call that looks for GPUs (a model on them, phasor_calibrate, a path or a plan of
 *   a profile of GPUs) sets CUDA_DEVICE_MAX_CONNECTIONS in the environment where it is not set,
 *   which is not safe beside threads of the caller that read the environment just then. Structs of
 *   parameters begin with `size`; take them from the *_default function, so that a later library
 *   can add fields at the end. Texts that are passed in are read during the call only. Callbacks
 *   come from the thread of the call, unless their comment says otherwise, and must not call phasor
 *   with the same model.
 *
 * What a caller must not know
 *   How weights are packed, which threads or devices compute, how requests are batched. None of it
 *   is part of this interface and all of it will change.
 *
 * Until version 1.0 the interface may change with the minor version.
 */
#ifndef PHASOR_H
#define PHASOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PHASOR_VERSION_MAJOR 0
#define PHASOR_VERSION_MINOR 1
#define PHASOR_VERSION_PATCH 0
#define PHASOR_VERSION       "0.1.0"

#if defined(__GNUC__)
#define PHASOR_API        __attribute__((visibility("default")))
#define PHASOR_MUST_CHECK __attribute__((warn_unused_result))
#else
#define PHASOR_API
#define PHASOR_MUST_CHECK
#endif

enum phasor_status {
    PHASOR_OK = 0,
    PHASOR_INVALID_ARGUMENT, /* a parameter is wrong: the caller can mend it */
    PHASOR_NOT_FOUND,        /* a file, tensor or key that must exist does not */
    PHASOR_FORMAT,           /* a file breaks the rules of its format */
    PHASOR_UNSUPPORTED,      /* well formed, but not known to this version */
    PHASOR_LIMIT,            /* larger than a stated limit */
    PHASOR_NO_MEMORY,
    PHASOR_IO,        /* the operating system refused or failed an operation */
    PHASOR_CANCELLED, /* stopped on request */
    PHASOR_INTERNAL,  /* a mistake of phasor's own; please report it */
};

struct phasor_error {
    enum phasor_status status;
    char message[1024]; /* UTF-8, one line, no control characters */
};

/* "0.1.0" of the library that runs (the macros are of the header that was compiled). */
PHASOR_API const char *phasor_version(void);

/* What joins GPUs: "NCCL 2.32.3 (FILE)", which is opened for that, or "no NCCL: " and why; then, as
 * between ranks on one GPU, they are joined by copies. */
PHASOR_API const char *phasor_nccl(void);

/* A short word, e.g. "format"; never NULL. */
PHASOR_API const char *phasor_status_name(enum phasor_status status);

enum phasor_log_level { PHASOR_LOG_DEBUG, PHASOR_LOG_INFO, PHASOR_LOG_WARNING };

/* One whole sentence without a newline. May be called from any thread. */
typedef void phasor_log_fn(void *context, enum phasor_log_level level, const char *message);

/* ---- Models -------------------------------------------------------------------------------- */

enum phasor_dtype {
    PHASOR_DTYPE_AUTO,
    PHASOR_DTYPE_FLOAT32,
    PHASOR_DTYPE_BFLOAT16,
    PHASOR_DTYPE_INT4 /* routed experts only: 4.125 bits a weight, rounded while they load */
};

/* How experts come from the one layout to the other, under a plan that has two. */
enum phasor_transition {
    PHASOR_TRANSITION_AUTO,    /* keep where both take at most half of the memory, leave the runs to
                                * come what they ask for, and can be had; else that of the others for
                                * which passes wait least, by a trial when the model is opened; one
                                * that fails is left for another with a warning. With ":int4": else
                                * upload */
    PHASOR_TRANSITION_KEEP,    /* both layouts stay in memory */
    PHASOR_TRANSITION_RESHARD, /* ranks send one another what they lack */
    PHASOR_TRANSITION_RELOAD,  /* what a rank lacks is read from the checkpoint again */
    PHASOR_TRANSITION_UPLOAD,  /* decode gets the weights of the INT4 backup, and prefill its own
                                * again  by reload; answers differ a little */
    PHASOR_TRANSITION_MIXED /* some experts as by RESHARD, the others as by RELOAD, at the same time
                             */
};

/* Which weights decode may have, where a backup is at hand. */
enum phasor_policy {
    PHASOR_POLICY_INT4_DECODE, /* the backup's, where that is asked for, or AUTO chooses it */
    PHASOR_POLICY_EXACT        /* the checkpoint's alone */
};

struct phasor_batch_params;

/* Sequences of one length each. */
struct phasor_load {
    int64_t sequences, prompt_tokens, output_tokens;
};

struct phasor_model_params {
    size_t size;
    const char *model;              /* a directory, or "org/name" in the local Hugging Face cache */
    const char *revision;           /* of a cached model; NULL: main */
    enum phasor_dtype dtype;        /* AUTO: as the checkpoint says (float16 runs as bfloat16) */
    enum phasor_dtype expert_dtype; /* of routed experts: AUTO (as dtype) or INT4 */
    bool needs_tokenizer;  /* refuse a checkpoint without tokenizer.json before it is loaded */
    uint64_t memory_bytes; /* for all that phasor holds in this process: weights of all ranks,
                            * activations, tables, rows in flight; runs give the rest to the KV
                            * cache. 0: as much as there is */
    int thread_count;      /* of all devices together; 0: one for each core the process may use */
    const char *devices;   /* "cpu:N": N ranks, each with its share of the cores and its own
                            * memory; "cuda:0": one rank, the first GPU; "cuda:0-3", "cuda:0,2": one
                            * on each of them; "cuda:0x4": four on the first; "cuda:0x4@22GB/s": each
                            * with a link that is made as slow as that; NULL: as many of the CPU as
                            * the plan has, or one */
    const char *plan;      /* how weights lie over the ranks, "tp4|ep4", or in prefill and then in
                            * decode, "dp4|ep4>tp4", perhaps on packed INT4 weights,
                            * "tp4|tp4>tp4:int4" (docs/plans.md); "auto": see `batch`; NULL or
                            * "static": static tensor parallelism */
    phasor_log_fn *log;    /* or NULL */
    void *log_context;
    /* Bytes of weights read so far, of those of all devices together; before that, where an INT4
     * backup is made, of the weights that go into it, and behind it, with caches_weights, of what
     * is written to the cache. Or NULL. Comes from threads of the library, one call at a time; with
     * plan "auto" within phasor_batch_run, too (see `batch`), so that it and its context live as
     * long as the model. An answer other than 0 stops (PHASOR_CANCELLED): nothing stays of what
     * was loaded, and a backup is gone on with by who next makes it. */
    int (*load_progress)(void *context, uint64_t bytes_done, uint64_t bytes_total);
    void *load_context;
    enum phasor_transition transition; /* between the layouts of a plan that has two */
    const char *backup_path;           /* the INT4 backup for UPLOAD or AUTO, or a plan with ":int4"
                                        * (phasor_quantize); NULL: the one in the cache, which UPLOAD and
                                        * ":int4" make there where it is not yet */
    enum phasor_policy policy;
    /* What the runs to come will ask for (phasor_batch_params), for PHASOR_TRANSITION_AUTO to leave
     * them room; 0: not known. */
    uint64_t kv_bytes;
    int64_t max_num_seqs;
    int64_t max_num_batched_tokens;
    bool records; /* runs may be recorded (record_path): the ranks work one at a time, and what they
                   * take together is what they would if they had one core for all. Of the CPU */
    /* The batch that will be run, with all its params; NULL: there is none, and `load` is what is
     * run. Where it is `deterministic`, PHASOR_TRANSITION_AUTO does not weigh UPLOAD, which another
     * trial might not take, and leaves no way for one that gives decode other numbers. With plan
     * "auto" its rows' lengths are read, and the plan is taken that the planner finds the best
     * (docs/plans.md), from the times that phasor_calibrate measured on this machine with these
     * devices and threads; where there are none it is static tensor parallelism, and the log has
     * the cure. With `resume`, that of the run that is finished. While its rows are read its
     * `progress` is called (requests_total is 0), whose PHASOR_STOP and PHASOR_DRAIN end the call
     * with PHASOR_CANCELLED. Of a large batch of very unlike rows some may have a plan of their own:
     * phasor_batch_run then loads the weights anew between them, and calls load_progress as opening
     * does. Read during the call only, but for an input that cannot be read twice:
     * that is kept for the first phasor_batch_run. */
    const struct phasor_batch_params *batch;
    struct phasor_load load;   /* of no sequences: not known, and the plan is static */
    const char *profile_path;  /* of phasor_calibrate; NULL: what phasor_profile_path says */
    const char *routing_path;  /* how often experts are chosen, counted in an earlier run
                                * (routing_counts_path), for plan "auto"; NULL: it is assumed */
    uint64_t planned_kv_bytes; /* with a plan that is named: the KV cache of all ranks together that
                                * phasor_plan priced it with. It is as if plan "auto" had chosen it:
                                * what is read ahead of a change of layout leaves that much, and
                                * runs that do not say have at least as much where there is. Goes
                                * with max_num_seqs; 0: not known */
    bool caches_weights; /* the weights, once they are packed, are left in the cache, as many bytes
                          * as they are in memory, and the next time they are mapped from there:
                          * nothing is packed, and processes share them (docs/weights-cache.md). Of
                          * the CPU */
};
PHASOR_API struct phasor_model_params phasor_model_params_default(void);

struct phasor_model;

/* Reads a checkpoint into memory and makes it ready. The log callback and its context must live as
 * long as the model. A checkpoint without tokenizer.json opens, too: it takes and gives token ids
 * only. */
PHASOR_API enum phasor_status phasor_model_open(struct phasor_model **out,
                                                const struct phasor_model_params *params,
                                                struct phasor_error *err) PHASOR_MUST_CHECK;
PHASOR_API void phasor_model_close(struct phasor_model *model); /* NULL is allowed */

/* How its weights lay when it was opened: "dp4|ep4>tp4" (docs/plans.md). The text lives as long as
 * the model. */
PHASOR_API const char *phasor_model_plan(const struct phasor_model *model);

/* ---- Batch files --------------------------------------------------------------------------- */

struct phasor_batch_progress {
    uint64_t requests_total, requests_done, requests_failed; /* done includes failed */
    uint64_t prompt_tokens, completion_tokens;               /* processed so far */
    double prefill_tokens_per_second;                        /* over the time spent in each phase */
    double decode_tokens_per_second;
    double elapsed_seconds;
    double remaining_seconds; /* an estimate; negative: not known yet */
};

/* What `progress` answers. */
enum phasor_answer {
    PHASOR_GO_ON,
    PHASOR_STOP,  /* end the run; rows in flight are lost */
    PHASOR_DRAIN, /* start no more rows, and end when those in flight are done, or after
                   * drain_seconds; PHASOR_STOP may still follow */
};

struct phasor_batch_params {
    size_t size;
    const char *input_path;    /* JSON Lines as of OpenAI's Batch API (docs/batch-format.md); "-":
                                * standard input, from where it stands */
    const char *output_path;   /* one line for each row, in order of completion; "-": standard
                                * output */
    const char *error_path;    /* where rows that failed go; NULL: into output_path too */
    const char *chat_template; /* a known name; NULL: the checkpoint's own */
    bool overwrite;            /* replace output files that are not empty */
    bool strict;               /* refuse the whole file when a line is wrong */
    bool ignore_eos;           /* default for rows that do not say */
    bool prompt_logprobs;      /* score every prompt; default for rows that do not say */
    uint64_t seed;             /* default for rows without one */
    int64_t max_num_seqs;      /* sequences that run at the same time */
    int64_t max_num_batched_tokens; /* tokens in one forward pass, at least max_num_seqs; 0: as they
                                     * were chosen with the plan, else 2048,
                                     * or max_num_seqs where that is more */
    int64_t max_model_len;          /* 0: the model's own */
    uint64_t kv_bytes;              /* memory for the KV cache; 0: what memory_bytes of the model
                                     * leaves, or half of what is free, or what the chosen plan was
                                     * priced with where that is more */
    bool shares_prefixes; /* default true: prompts that begin alike compute that part once; results
                           * are the same either way */
    /* Called about every 200 ms: between forward passes, and in one that waits for experts which
     * change their layout; requests_total is 0 while the input is still read. While weights are
     * loaded between two plans load_progress of the model is called instead. The answer is an enum
     * phasor_answer; a run that it ends before all rows are done returns PHASOR_CANCELLED. */
    int (*progress)(void *context, const struct phasor_batch_progress *progress);
    void *progress_context;
    bool resume;          /* finish the run that wrote the output; start anew where there is none */
    bool deterministic;   /* the same answers, to the byte, whether or not the run is interrupted;
                           * docs/batch-format.md tells what else differs */
    double drain_seconds; /* see PHASOR_DRAIN; 10 by default */
    /* Files about the run, or NULL; docs/batch-format.md has their contents. Each is replaced
     * whole, must be none of the files above, and hold nothing that phasor did not write there.
     * That one cannot be written is refused before the run begins, and a warning later. */
    const char *metrics_path; /* for Prometheus: every few seconds, and at the end */
    const char *summary_path; /* JSON: at the end, however the run ends, once it has begun */
    const char *trace_path;  /* what ran when, in Chrome's trace format (docs/trace.md); likewise */
    const char *record_path; /* what was computed, sent and read, and what waited for what, for
                              * replay on other boxes; of a model that was opened with `records`.
                              * At the end of a run that did all rows: else there is none */
    const char *routing_counts_path; /* how often each expert was chosen, as JSON (docs/plans.md),
                                      * for routing_path of later plans; of a model with experts.
                                      * The passes are slower meanwhile */
};
PHASOR_API struct phasor_batch_params phasor_batch_params_default(void);

/* Of times: the mean is exact, median and 99th percentile are to 1 %. All are 0 where count is. */
struct phasor_latency {
    uint64_t count;
    double mean_seconds, median_seconds, p99_seconds;
};

#define PHASOR_RANKS_MAX        64
#define PHASOR_COLLECTIVE_COUNT 13 /* kinds of traffic between ranks */

/* A few words, e.g. "attention reduction"; NULL unless 0 <= index < PHASOR_COLLECTIVE_COUNT. */
PHASOR_API const char *phasor_collective_name(int index);

#define PHASOR_STAGE_COUNT 13 /* stages of a forward pass */

/* A word, e.g. "attention"; NULL unless 0 <= index < PHASOR_STAGE_COUNT. The first, "between", is
 * what is left of the passes' time: choosing tokens and preparing the next pass. Up to "head"
 * follow the stages that are matrix products or attention. */
PHASOR_API const char *phasor_stage_name(int index);

struct phasor_batch_result {
    uint64_t total, completed, failed;         /* rows; the rest was not run */
    uint64_t prompt_tokens, completion_tokens; /* of the completed rows */
    double elapsed_seconds;                    /* from the first row to the last */
    double prefill_seconds, decode_seconds;    /* of it, in forward passes of each kind */
    /* Of these, by stage; mean over the ranks. */
    double prefill_stage_seconds[PHASOR_STAGE_COUNT], decode_stage_seconds[PHASOR_STAGE_COUNT];
    /* Weights that each stage read, all ranks together: each once for a pass that needs it. */
    uint64_t prefill_weight_bytes[PHASOR_STAGE_COUNT], decode_weight_bytes[PHASOR_STAGE_COUNT];
    uint64_t prefill_tokens, decode_tokens; /* processed in them */
    uint64_t shared_tokens;                 /* of prompts, found computed: not in prefill_tokens */
    /* Rows that were done before a run was resumed; not in the numbers above, but in `total`. */
    uint64_t completed_before, failed_before;
    /* Of choices (a row has `n` for each prompt): time to first token, time per output token after
     * the first, inter-token latency, end-to-end latency; from when the row was read. */
    struct phasor_latency ttft, tpot, itl, e2el;
    /* Bytes that ranks sent to others in this run, of all ranks together, by kind. */
    uint64_t collective_bytes[PHASOR_COLLECTIVE_COUNT];
    int rank_count;
    /* The most memory that was held of each rank's device since its weights were loaded, the first
     * time or in this run; and of the host's, ranks on CPUs and all else, since the process began,
     * of all its models: of what GPUs hold it has nothing. */
    uint64_t rank_peak_bytes[PHASOR_RANKS_MAX];
    uint64_t peak_bytes;
    /* Of the ranks' the KV cache, and its pages that any row has had: set aside for a prompt and
     * all that may be generated, so that more than is written where answers end early. */
    uint64_t kv_bytes, kv_taken_bytes;
    /* Changes of the experts' layout between prefill and decode, and the time they took between
     * passes, not in prefill_seconds and decode_seconds; what passes waited for them is the stage
     * "transition". */
    uint64_t transitions;
    double transition_seconds;
    /* Where the model's plan was chosen for this batch, and all of it was run: what the phases, and
     * changes of layout beyond what passes hide, were predicted to take, if each answer is as long
     * as max_tokens allows. */
    bool has_prediction;
    double predicted_prefill_seconds, predicted_decode_seconds, predicted_between_seconds;
    /* Where rows of it had plans of their own (docs/plans.md): how often all weights were loaded
     * anew, the time from the last row of a plan to the first of the next, and what that was
     * predicted to be. */
    uint64_t plan_changes;
    double plan_change_seconds, predicted_plan_change_seconds;
};

/* What can be told of the files of a run before a model is loaded: input that cannot be read, files
 * that cannot be written or would destroy another. Changes nothing. phasor_batch_run looks again,
 * and at more. */
PHASOR_API enum phasor_status phasor_batch_check(const struct phasor_batch_params *params,
                                                 struct phasor_error *err) PHASOR_MUST_CHECK;

/* Runs the file. Rows that are wrong get an error row and the rest goes on; the result tells how
 * many. Lines are written whole as rows finish and reach the disk within a second or so. Failure is
 * of the whole run: before it began (the output files are then as they were), or in its midst; rows
 * written until then stay in the output, and rows in flight are not written: `resume` runs what is
 * missing. For that a file OUTPUT.phasor-run lies beside OUTPUT. `*result` is filled in any case.
 */
PHASOR_API enum phasor_status phasor_batch_run(struct phasor_model *model,
                                               const struct phasor_batch_params *params,
                                               struct phasor_batch_result *result,
                                               struct phasor_error *err) PHASOR_MUST_CHECK;

/* ---- One prompt ---------------------------------------------------------------------------- */

struct phasor_generate_params {
    size_t size;
    const char *prompt;
    bool chat;                 /* the prompt is a user's turn, put into the chat template */
    const char *chat_template; /* for `chat`: a known name; NULL: the checkpoint's own */
    bool ignore_eos;
    int64_t max_tokens;
    double temperature; /* 0: the likeliest token each time */
    double top_p;       /* 1: all */
    int64_t top_k;      /* 0: all */
    uint64_t seed;
    int64_t max_model_len; /* 0: the model's own */
    uint64_t kv_bytes;     /* as of phasor_batch_params */
    /* A piece of the text, whole UTF-8, as soon as it is settled; an answer other than 0 stops
     * (PHASOR_CANCELLED). `text` is not NUL-terminated. Also called with length 0, so that a caller
     * can stop a model that says nothing. */
    int (*text)(void *context, const char *text, size_t length);
    void *text_context;
};
PHASOR_API struct phasor_generate_params phasor_generate_params_default(void);

struct phasor_generate_result {
    uint64_t prompt_tokens, completion_tokens;
    double prefill_seconds, decode_seconds;
    bool reached_length; /* ended by max_tokens, not by the model */
};

/* Continues one prompt. `*result` may be NULL. */
PHASOR_API enum phasor_status phasor_generate(struct phasor_model *model,
                                              const struct phasor_generate_params *params,
                                              struct phasor_generate_result *result,
                                              struct phasor_error *err) PHASOR_MUST_CHECK;

/* ---- Looking at a checkpoint --------------------------------------------------------------- */

struct phasor_inspect_params {
    size_t size;
    const char *model;
    const char *revision; /* of a cached model; NULL: main */
    /* With either of these: how the weights would lie over ranks, and the bytes of each. */
    const char *devices;     /* as of a model; NULL: as many ranks as the plan has */
    const char *plan;        /* "tp4|ep4" (docs/plans.md); "list": all that there are for `devices`,
                              * legal or not; NULL: the one that phasor_model_open would choose */
    enum phasor_dtype dtype; /* of the weights in memory; AUTO: as the checkpoint says */
    int64_t max_num_seqs;    /* as in phasor_batch_params: memory for a pass follows from them */
    int64_t max_num_batched_tokens;
};
PHASOR_API struct phasor_inspect_params phasor_inspect_params_default(void);

/* Describes a checkpoint without loading its weights: a JSON object, documented in phasor(1), in
 * memory that phasor_text_free releases. An unsupported checkpoint is described as far as it was
 * understood, with the reason under "unsupported". PHASOR_INVALID_ARGUMENT when the plan is none,
 * or not legal for this model: the sentence has the rule. */
PHASOR_API enum phasor_status phasor_inspect(char **out_json,
                                             const struct phasor_inspect_params *params,
                                             struct phasor_error *err) PHASOR_MUST_CHECK;
PHASOR_API void phasor_text_free(char *text); /* NULL is allowed */

/* ---- Choosing a plan ----------------------------------------------------------------------- */

/* Sequences of one length each. */
struct phasor_plan_params {
    size_t size;
    const char *model;       /* as in phasor_model_params, or DIR/config.json alone */
    const char *revision;    /* of a cached model; NULL: main */
    const char *box;         /* one that comes with phasor ("a6000x4"), a box file
                              * (docs/box-format.md), or a profile (docs/profile-format.md), of
                              * another machine, too */
    enum phasor_dtype dtype; /* of weights and KV cache; AUTO: as the checkpoint says */
    int64_t sequences, prompt_tokens, output_tokens;
    bool is_queue; /* more of the same come behind: the way back to prefill's layout is paid */
    enum phasor_policy policy;
    uint64_t memory_bytes; /* of each device; 0: what the box says, or a profile of GPUs, or
                            * of a profile's CPU devices what this machine has over them */
    int64_t max_num_seqs;  /* sequences at a time; 0: part of the plan */
    int64_t max_num_batched_tokens; /* tokens of a pass; 0: part of the plan */
    double routing_deviation; /* how much the experts' shares of tokens are assumed to differ from
                               * one another, relative to the mean */
    const char *input_path;   /* a batch file whose rows are the load, in place of sequences,
                               * prompt_tokens and output_tokens; NULL: none */
    uint64_t draw;            /* 0: the box as its file has it. Else a seed: every number with a
                               * range is drawn from it, uniform in its logarithm, to see what a plan
                               * is worth where the box is not quite what was assumed. Not of a
                               * profile */
    const char *routing_path; /* how often experts are chosen, counted in a run, in place of
                               * routing_deviation: as in phasor_model_params */
    enum phasor_dtype expert_dtype; /* of routed experts, in both phases: AUTO (as dtype) or INT4,
                                     * with which no plan decodes on a backup */
    bool shares_prefixes;           /* of input_path: as in phasor_batch_params; default true */
    const char *backup_path; /* the INT4 backup that a run would be given, this checkpoint's; NULL:
                              * the one in the cache. None with policy EXACT or INT4 experts */
};
PHASOR_API struct phasor_plan_params phasor_plan_params_default(void);

/* Prices every plan for the box and finds the one to take, without loading anything: a JSON object,
 * documented in phasor(1), in memory that phasor_text_free releases. PHASOR_OK also where nothing
 * fits: "best" is null then, and "why" says what would. */
PHASOR_API enum phasor_status phasor_plan(char **out_json, const struct phasor_plan_params *params,
                                          struct phasor_error *err) PHASOR_MUST_CHECK;

/* Loads of every pair of a number of sequences and a prompt length. */
struct phasor_plan_axes {
    const int64_t *sequences;     /* [sequence_count] */
    const int64_t *prompt_tokens; /* [prompt_count] */
    size_t sequence_count, prompt_count;
};

/* The same question for many loads, with sequences and prompt_tokens of `axes`, not of `params`;
 * the box is priced once. A JSON object, released likewise: "cells" is an array of rows, one for
 * each number of sequences, of a cell for each prompt length: the best "plan" and its
 * "against_static_tp" (how many times as fast; null: static TP does not fit), or null where nothing
 * fits or the prompt is beyond the model's context. */
PHASOR_API enum phasor_status phasor_plan_map(char **out_json,
                                              const struct phasor_plan_params *params,
                                              const struct phasor_plan_axes *axes,
                                              struct phasor_error *err) PHASOR_MUST_CHECK;

/* A planner that stays: what phasor_plan reads is read once, where a batch of a queue, say, would
 * wait longer for that than for its plan. */
struct phasor_planner;

/* Of `params` the load and its queue, the policy, max_num_seqs and max_num_batched_tokens are of no
 * matter here; input_path has to be NULL. Fails as phasor_plan does, but for what is asked. What
 * was read stays as it was: files may change or go, a backup that is made later is not known of. */
PHASOR_API enum phasor_status phasor_planner_open(struct phasor_planner **out,
                                                  const struct phasor_plan_params *params,
                                                  struct phasor_error *err) PHASOR_MUST_CHECK;

struct phasor_plan_load { /* members are those of phasor_plan_params */
    size_t size;
    int64_t sequences, prompt_tokens, output_tokens;
    bool is_queue;
    enum phasor_policy policy;
    int64_t max_num_seqs, max_num_batched_tokens;
};
PHASOR_API struct phasor_plan_load phasor_plan_load_default(void);

/* What phasor_plan would have answered when the planner was opened, released likewise. Several
 * threads may ask at the same time; close it when none does. PHASOR_INVALID_ARGUMENT where no plan
 * can have the load, or the policy is EXACT and the planner has a backup_path or INT4 experts. */
PHASOR_API enum phasor_status phasor_planner_ask(char **out_json,
                                                 const struct phasor_planner *planner,
                                                 const struct phasor_plan_load *load,
                                                 struct phasor_error *err) PHASOR_MUST_CHECK;

PHASOR_API void phasor_planner_close(struct phasor_planner *planner); /* NULL is allowed */

/* ---- The INT4 backup ----------------------------------------------------------------------- */

/* Which weights have a scale of their own. */
enum phasor_quant_scheme {
    PHASOR_QUANT_GROUP,   /* `group` neighbours along the hidden dimension */
    PHASOR_QUANT_CHANNEL, /* a whole row along it */
    PHASOR_QUANT_TENSOR   /* a matrix of an expert */
};

struct phasor_quantize_params {
    size_t size;
    const char *model;
    const char *revision;    /* of a cached model; NULL: main */
    const char *output_path; /* NULL: what phasor_backup_path says */
    enum phasor_quant_scheme scheme;
    int64_t group;    /* PHASOR_QUANT_GROUP: a multiple of 16; 0: 64 */
    bool asymmetric;  /* groups have a minimum beside the scale */
    bool zstd;        /* each granule is compressed, for slow disks */
    bool overwrite;   /* make it anew where there is one */
    bool verify;      /* write nothing: read the backup that is there, and check all of it */
    int thread_count; /* 0: one for each core the process may use */
    /* An answer other than 0 stops (PHASOR_CANCELLED); or NULL. Bytes of weights as bfloat16. */
    int (*progress)(void *context, uint64_t bytes_done, uint64_t bytes_total);
    void *progress_context;
};
PHASOR_API struct phasor_quantize_params phasor_quantize_params_default(void);

struct phasor_quantize_result {
    uint64_t file_bytes;
    uint64_t found_bytes;  /* of them, written by an earlier call */
    uint64_t weight_count; /* of all routed experts */
    uint64_t matrix_count;
    double cosine_min, cosine_mean; /* over the matrices: of weights and what INT4 made of them */
    double elapsed_seconds;
};

/* Writes a backup of all routed experts in INT4 (docs/backup-format.md). It is written beside
 * output_path and renamed; when it is interrupted, even by kill -9, the next call goes on from
 * there. A whole backup of the same checkpoint and settings is left as it is; another one is
 * refused without `overwrite`, any other file always. `*result` may be NULL. */
PHASOR_API enum phasor_status phasor_quantize(const struct phasor_quantize_params *params,
                                              struct phasor_quantize_result *result,
                                              struct phasor_error *err) PHASOR_MUST_CHECK;

/* Where a backup of these params lies that nobody gave another place: below $PHASOR_CACHE,
 * $XDG_CACHE_HOME/phasor or ~/.cache/phasor, named by the checkpoint's fingerprint and the
 * settings. Freed by phasor_text_free; nothing is made. */
PHASOR_API enum phasor_status phasor_backup_path(char **out_path,
                                                 const struct phasor_quantize_params *params,
                                                 struct phasor_error *err) PHASOR_MUST_CHECK;

/* What tells the weights of a checkpoint from any others, as 32 digits: from the names, types and
 * shapes of all tensors and a kibibyte of each matrix's values. `revision` as in
 * phasor_model_params. */
#define PHASOR_FINGERPRINT_BYTES 33
PHASOR_API enum phasor_status phasor_fingerprint(char out[PHASOR_FINGERPRINT_BYTES],
                                                 const char *model, const char *revision,
                                                 struct phasor_error *err) PHASOR_MUST_CHECK;

/* ---- Replaying a run ------------------------------------------------------------------------ */

struct phasor_replay_params {
    size_t size;
    const char *recording_path; /* of a run with a record_path */
    const char *box; /* the links and devices to replay on: a known name, or a file's, with a
                      * '/' or a ".json" at its end; NULL: as it was recorded */
    bool modelled;   /* computation as long as the box's devices would take, not as recorded */
    bool scale;      /* links as much slower as the device that was recorded computes than the
                      * box's: for prefill, times of decode are not valid then */
    const char *trace_path; /* what ran when, in Chrome's trace format; NULL: none */
    double link_scale; /* with `scale`: in place of what this recording says of the device, that of
                        * another; 0: this one's */
    bool leaves_out_host; /* with `modelled`: what the host that was recorded did takes no time */
};
PHASOR_API struct phasor_replay_params phasor_replay_params_default(void);

/* When everything in a recording would have happened on a box: a JSON object, documented in
 * phasor(1), in memory that phasor_text_free releases. The same input gives the same output. */
PHASOR_API enum phasor_status phasor_replay(char **out_json,
                                            const struct phasor_replay_params *params,
                                            struct phasor_error *err) PHASOR_MUST_CHECK;

enum phasor_phase { PHASOR_PHASE_PREFILL, PHASOR_PHASE_DECODE };

/* A single pass of sequences that are alike, evenly over the data-parallel groups of the plan. What
 * stands before it is not run: before a step of decode are keys and values that the model computed
 * of random tokens, before a piece of a prompt numbers that nobody did. */
struct phasor_pass_params {
    size_t size;
    enum phasor_phase phase;
    int64_t sequences;      /* of decode: that get a token each; at least the groups */
    int64_t context_tokens; /* of decode: positions that each token sees, its own included */
    int64_t prompt_tokens;  /* of prefill: of each prompt */
    int64_t pass_tokens; /* of prefill: of the pass. A group's share of it is some whole prompts, or
                          * a part of one into which it divides evenly */
    int64_t pass_index;  /* of prefill: passes that went before through the same prompts; fewer than
                          * phasor_pass_count */
    bool is_modelled;    /* for replay with durations of a box alone: sequences of decode share
                          * keys and values, and the pass may take less time than one of a run */
    const char *recording_path; /* as of phasor_batch_params */
};
PHASOR_API struct phasor_pass_params phasor_pass_params_default(void);

/* Runs and records one pass of a model that was opened with `records`, whose plan has one layout
 * (of decode, perhaps packed, with PHASOR_TRANSITION_KEEP). The recording is whole or not at all.
 * Before a step of decode keys and values of 2,048 tokens are computed, which the model keeps for
 * those behind it, until its next run. */
PHASOR_API enum phasor_status phasor_pass_record(struct phasor_model *model,
                                                 const struct phasor_pass_params *params,
                                                 struct phasor_error *err) PHASOR_MUST_CHECK;

/* Passes of prefill that go through the same prompts, each of them another pass_index; 0: params
 * are of none. */
PHASOR_API int64_t phasor_pass_count(const struct phasor_model *model,
                                     const struct phasor_pass_params *params);

/* ---- The times of a box -------------------------------------------------------------------- */

struct phasor_calibrate_params {
    size_t size;
    const char *devices;     /* as they will be in a run, see phasor_model_params; NULL: "cpu" */
    const char *output_path; /* the profile; NULL: what phasor_profile_path says */
    int thread_count;        /* of all devices together; 0: one for each core the process may use */
    bool overwrite;          /* measure anew where there is a profile */
    uint64_t memory_bytes;   /* for what is measured, of GPUs theirs; 0: what is enough (384 MiB a
                              * device or four times the last cache, 8 GiB a device on GPUs), at most
                              * a quarter of what is free */
    /* Before each point: how many there are at most, and a few words; or NULL. An answer other than
     * 0 stops (PHASOR_CANCELLED). */
    int (*progress)(void *context, uint64_t points_done, uint64_t points_total, const char *what);
    void *progress_context;
    phasor_log_fn *log; /* or NULL */
    void *log_context;
};
PHASOR_API struct phasor_calibrate_params phasor_calibrate_params_default(void);

struct phasor_calibrate_result {
    char processor[128], kernels[128];
    char gpus[512]; /* "4 x NVIDIA A100-SXM4-80GB (sm_80)"; "" where devices are the CPU's */
    int rank_count, thread_count;
    uint64_t points_measured, points_found; /* found: by a call that was stopped */
    uint64_t disturbed;   /* measurements of this call (a point has two) while the machine was slower
                           * or faster than usual */
    double spread_median; /* of all points: from the first quartile of its repeats to the third,
                           * relative to the median */
    double elapsed_seconds;
};

/* Measures how long operations, collectives and reads take on these devices and writes their
 * profile (docs/profile-format.md). Takes minutes; nothing else should run meanwhile. What was
 * measured lies in OUTPUT.partial until all is: a call that was stopped, or killed, is gone on with
 * by the next one where box and version are the same. A profile that is there is refused without
 * `overwrite`, any other file always. `*result` may be NULL. */
PHASOR_API enum phasor_status phasor_calibrate(const struct phasor_calibrate_params *params,
                                               struct phasor_calibrate_result *result,
                                               struct phasor_error *err) PHASOR_MUST_CHECK;

/* Where the profile of these devices and threads lies that nobody gave another place, and where
 * plan "auto" looks for it: in the folder of phasor_backup_path, named by the machine, the devices
 * and the threads. Freed by phasor_text_free; nothing is made. */
PHASOR_API enum phasor_status phasor_profile_path(char **out_path,
                                                  const struct phasor_calibrate_params *params,
                                                  struct phasor_error *err) PHASOR_MUST_CHECK;

/* ---- Random checkpoints -------------------------------------------------------------------- */

struct phasor_synth_params {
    size_t size;
    const char *preset;     /* one of phasor_synth_presets(), or the path of a config.json */
    const char *output_dir; /* made if need be; must be empty */
    uint64_t seed;
    int64_t layer_count;      /* 0: as published */
    int64_t vocab_count;      /* 0: as published */
    int64_t scale_divisor;    /* of widths, heads and vocabulary; 0 or 1: as published */
    enum phasor_dtype dtype;  /* of the file; AUTO: bfloat16 */
    bool fused_experts;       /* one tensor for all experts of a layer, as transformers 5 writes */
    uint64_t shard_bytes_max; /* 0: 5 GB */
    /* An answer other than 0 stops (PHASOR_CANCELLED); or NULL. */
    int (*progress)(void *context, uint64_t bytes_done, uint64_t bytes_total);
    void *progress_context;
};
PHASOR_API struct phasor_synth_params phasor_synth_params_default(void);
PHASOR_API const char *const *phasor_synth_presets(void); /* NULL-terminated */

/* Writes a seeded random checkpoint of a known shape, for tests and benchmarks. It has no
 * tokenizer: prompts are token ids. After a failure, shards that were complete stay. */
PHASOR_API enum phasor_status phasor_synth(const struct phasor_synth_params *params,
                                           struct phasor_error *err) PHASOR_MUST_CHECK;

#ifdef __cplusplus
}
#endif

#endif
