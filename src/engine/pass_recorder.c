#include "engine/pass_recorder.h"

#include <string.h>

#include "base/checked.h"
#include "base/memory.h"
#include "base/random.h"
#include "base/record.h"
#include "base/system.h"
#include "base/trace.h"
#include "engine/batch_recording.h"
#include "engine/pass_contexts.h"
#include "exec/exec.h"

#define TOKENS_MAX   ((int64_t)1 << 20) /* of a pass; positions that sequences see together: 2^32 */
#define SEGMENTS_MAX 4096
#define KV_BYTE      0x3c /* bf16 of it are small numbers */

enum { SEED_PROMPTS = 1, SEED_STEPS };

struct pass_recorder {
    struct engine *engine;
    const struct layout *layout;
    struct exec *exec;
    struct kv_cache cache;
    struct pass_contexts *contexts;
    int64_t prompt;          /* of the contexts that the cache begins with; 0: it does not */
    int32_t *tokens, *pages; /* at random; of each sequence of the pass */
    struct exec_segment segments[SEGMENTS_MAX];
    struct draw draws[EXEC_LOGIT_ROWS];
    int32_t wanted[SEGMENTS_MAX]; /* rows whose logits are */
    int64_t segment_count, wanted_count, row_count;
    bool is_timed;
};

/* ---- What a pass has ------------------------------------------------------------------------- */

int64_t pass_period(const struct layout *layout, int64_t prompt, int64_t tokens)
{
    int64_t of_group = tokens / layout->attention.dp;
    return of_group < prompt ? prompt / of_group : 1;
}

static int64_t of_group(const struct layout *layout, int64_t count)
{
    return ceil_div(count, layout->attention.dp);
}

static enum status prefill_check(const struct pass_case *of, const struct layout *layout,
                                 const struct model_config *config, struct error *err)
{
    int64_t groups = layout->attention.dp;
    if (of->prompt < 1 || of->prompt > config->position_count_max)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "a prompt of %lld tokens; the model's context has 1 to %lld",
                         (long long)of->prompt, (long long)config->position_count_max);
    if (of->tokens < 1 || of->tokens > TOKENS_MAX || of->tokens % groups != 0)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "a pass of %lld tokens: expected 1 to %lld, evenly over %lld groups",
                         (long long)of->tokens, (long long)TOKENS_MAX, (long long)groups);
    int64_t share = of->tokens / groups;
    if (share % of->prompt != 0 && of->prompt % share != 0)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "a group has %lld tokens of the pass, which prompts of %lld tokens do not "
                         "fill evenly",
                         (long long)share, (long long)of->prompt);
    if (of->pass_index < 0 || of->pass_index >= pass_period(layout, of->prompt, of->tokens))
        return error_set(err, STATUS_INVALID_ARGUMENT, "pass %lld of the %lld of a prompt",
                         (long long)of->pass_index,
                         (long long)pass_period(layout, of->prompt, of->tokens));
    if (ceil_div(share, of->prompt) * groups > SEGMENTS_MAX)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "a pass has more than %d prompts; fewer tokens do", SEGMENTS_MAX);
    return STATUS_OK;
}

enum status pass_case_check(const struct pass_case *of, const struct layout *layout,
                            const struct model_config *config, struct error *err)
{
    if (of->phase == PHASE_PREFILL)
        return prefill_check(of, layout, config, err);
    if (of->sequences < layout->attention.dp || of->sequences > SEGMENTS_MAX)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%lld sequences of decode: expected %d, the groups, to %d",
                         (long long)of->sequences, layout->attention.dp, SEGMENTS_MAX);
    if (of->context < 1 || of->context > config->position_count_max)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "a context of %lld tokens; the model's has 1 to %lld",
                         (long long)of->context, (long long)config->position_count_max);
    return STATUS_OK;
}

/* Sequences of a group that have pages, and pages of each. */
static int64_t sequences_of(const struct layout *layout, const struct pass_case *of)
{
    if (of->phase == PHASE_DECODE)
        return of_group(layout, of->sequences);
    return ceil_div((of->pass_index + 1) * of_group(layout, of->tokens), of->prompt);
}

static int64_t pages_of(const struct pass_case *of)
{
    return kv_pages_for(of->phase == PHASE_DECODE ? of->context : of->prompt);
}

/* Of all groups' sequences. */
static int64_t tokens_of(const struct layout *layout, const struct pass_case *of)
{
    return layout->attention.dp * sequences_of(layout, of) *
           (of->phase == PHASE_DECODE ? 1 : of->prompt);
}

/* Those that no other sequence has. */
static int64_t own_pages_of(const struct pass_case *of, bool is_timed)
{
    return of->phase == PHASE_DECODE && !is_timed ? 1 : pages_of(of);
}

/* `number` is that of the sequence among those of all groups. */
static void segment_add(struct pass_recorder *recorder, const struct pass_case *of, int group,
                        int64_t number, int64_t first, int64_t count, bool has_logits)
{
    int64_t token = of->phase == PHASE_DECODE ? number : number * of->prompt + first;
    ASSERT(recorder->segment_count < SEGMENTS_MAX);
    recorder->segments[recorder->segment_count++] =
        (struct exec_segment){.tokens = recorder->tokens + token,
                              .token_count = count,
                              .first_position = first,
                              .pages = recorder->pages + number * pages_of(of),
                              .group = group};
    recorder->row_count += count;
    if (has_logits)
        recorder->wanted[recorder->wanted_count++] = (int32_t)recorder->row_count - 1;
}

static void decode_add(struct pass_recorder *recorder, const struct pass_case *of, int group)
{
    struct range here = layout_share(of->sequences, recorder->layout->attention.dp, group);
    int64_t own_count = own_pages_of(of, recorder->is_timed);
    for (int64_t s = 0; s < here.count; s++) {
        int64_t number = here.first + s;
        pass_contexts_draw(recorder->pages + number * pages_of(of), &recorder->cache,
                           recorder->engine, of->context, number, group,
                           CONTEXT_POOL_PAGES + s * own_count, recorder->is_timed);
        segment_add(recorder, of, group, number, of->context - 1, 1, true);
    }
}

/* A group goes through its prompts one after another. */
static void prefill_add(struct pass_recorder *recorder, const struct pass_case *of, int group)
{
    int64_t share = of_group(recorder->layout, of->tokens), at = of->pass_index * share;
    int64_t end = at + share, sequences = sequences_of(recorder->layout, of);
    int64_t before = group * sequences;
    for (int64_t page = 0; page < sequences * pages_of(of); page++)
        recorder->pages[before * pages_of(of) + page] = (int32_t)(CONTEXT_POOL_PAGES + page);
    while (at < end) {
        int64_t first = at % of->prompt, left = of->prompt - first;
        int64_t count = left < end - at ? left : end - at;
        segment_add(recorder, of, group, before + at / of->prompt, first, count, count == left);
        at += count;
    }
}

/* Steps at two contexts have other tokens, so that not all have the same luck with experts. */
static void tokens_draw(struct pass_recorder *recorder, const struct pass_case *of)
{
    bool is_decode = of->phase == PHASE_DECODE;
    uint64_t vocab = (uint64_t)engine_config(recorder->engine)->vocab_count;
    struct random random = {.seed = is_decode ? random_key(SEED_STEPS, (uint64_t)of->context)
                                              : SEED_PROMPTS};
    for (int64_t i = 0; i < tokens_of(recorder->layout, of); i++)
        recorder->tokens[i] = (int32_t)random_below(&random, vocab);
}

static void segments_fill(struct pass_recorder *recorder, const struct pass_case *of)
{
    recorder->segment_count = recorder->wanted_count = recorder->row_count = 0;
    tokens_draw(recorder, of);
    for (int group = 0; group < recorder->layout->attention.dp; group++) {
        if (of->phase == PHASE_DECODE)
            decode_add(recorder, of, group);
        else
            prefill_add(recorder, of, group);
    }
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Of all cases: the largest. */
struct sizes {
    int64_t tokens, sequences; /* of a pass */
    int64_t pages;             /* of a group */
    int64_t drawn, numbers;    /* tokens, and pages of sequences */
};

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static struct sizes sizes_of(const struct layout *layout, const struct pass_case *cases, int count,
                             bool is_timed)
{
    struct sizes sizes = {1, layout->attention.dp, 1, 1, 1};
    for (int i = 0; i < count; i++) {
        const struct pass_case *of = &cases[i];
        bool is_decode = of->phase == PHASE_DECODE;
        int64_t here = sequences_of(layout, of), all = layout->attention.dp * here;
        sizes.tokens = larger(sizes.tokens, is_decode ? of->sequences : of->tokens);
        sizes.sequences = larger(sizes.sequences, larger(all, is_decode ? of->sequences : 0));
        sizes.pages = larger(sizes.pages, CONTEXT_POOL_PAGES + here * own_pages_of(of, is_timed));
        sizes.drawn = larger(sizes.drawn, tokens_of(layout, of));
        sizes.numbers = larger(sizes.numbers, all * pages_of(of));
    }
    sizes.tokens = larger(sizes.tokens, sizes.sequences);
    return sizes;
}

static enum status arrays_get(struct pass_recorder *recorder, const struct sizes *sizes,
                              struct error *err)
{
    TRY(memory_get((void **)&recorder->tokens, (size_t)sizes->drawn, sizeof(int32_t), "ids", err));
    return memory_get((void **)&recorder->pages, (size_t)sizes->numbers, sizeof(int32_t), "pages",
                      err);
}

/* Pages that nobody wrote to would be one page of zeros, which a processor's cache holds. */
static void cache_fill(struct pass_recorder *recorder, int64_t page_count)
{
    for (int rank = 0; rank < recorder->layout->rank_count; rank++) {
        for (int64_t layer = 0; layer < engine_config(recorder->engine)->layer_count; layer++) {
            struct kv_layer kv = kv_cache_layer(&recorder->cache, rank, layer);
            size_t bytes = (size_t)(kv_page_values(&kv) * page_count * dtype_bytes(kv.dtype));
            memset(kv.keys, KV_BYTE, bytes);
            memset(kv.values, KV_BYTE, bytes);
        }
    }
}

static enum status parts_get(struct pass_recorder *recorder, const struct sizes *sizes,
                             struct error *err)
{
    const struct model_config *config = engine_config(recorder->engine);
    TRY(engine_exec_create(&recorder->exec, recorder->engine, sizes->tokens, sizes->sequences,
                           err));
    TRY(arrays_get(recorder, sizes, err));
    return kv_cache_init(&recorder->cache,
                         &(struct kv_cache_params){.box = exec_box(recorder->exec),
                                                   .config = config,
                                                   .layout = recorder->layout,
                                                   .dtype = exec_kv_dtype(recorder->exec),
                                                   .page_count = sizes->pages},
                         err);
}

enum status pass_recorder_create(struct pass_recorder **out, struct engine *engine,
                                 struct pass_contexts *contexts, const struct pass_case *cases,
                                 int count, bool is_timed, struct error *err)
{
    struct pass_recorder *recorder;
    const struct layout *layout = engine_layout(engine);
    struct sizes sizes = sizes_of(layout, cases, count, is_timed);
    TRY(memory_get((void **)&recorder, 1, sizeof *recorder, "a recorder of passes", err));
    recorder->engine = engine;
    recorder->layout = layout;
    recorder->contexts = contexts;
    recorder->is_timed = is_timed;
    for (int i = 0; i < EXEC_LOGIT_ROWS; i++)
        recorder->draws[i].temperature = 1;
    enum status status = parts_get(recorder, &sizes, err);
    if (status != STATUS_OK) {
        pass_recorder_destroy(recorder);
        return status;
    }
    if (is_timed)
        cache_fill(recorder, sizes.pages);
    *out = recorder;
    return STATUS_OK;
}

void pass_recorder_destroy(struct pass_recorder *recorder)
{
    if (recorder == NULL)
        return;
    memory_free(recorder->tokens);
    memory_free(recorder->pages);
    kv_cache_deinit(&recorder->cache);
    exec_destroy(recorder->exec);
    memory_free(recorder);
}

/* ---- Running --------------------------------------------------------------------------------- */

/* As a step of the generator that draws tokens among all. */
static struct exec_head head_of(const struct pass_recorder *recorder, int64_t first)
{
    int64_t left = recorder->wanted_count - first;
    return (struct exec_head){
        .rows = recorder->wanted + first,
        .row_count = left < EXEC_LOGIT_ROWS ? left : EXEC_LOGIT_ROWS,
        .wants_chosen = true,
        .skips_logits = true,
        .draws = recorder->draws,
    };
}

static enum status chosen_check(const struct exec_head *head, struct error *err)
{
    for (int64_t i = 0; i < head->row_count; i++) {
        if (head->chosen[i].at < 0)
            return error_set(err, STATUS_FORMAT,
                             "the model's logits are no finite numbers; its weights are broken");
    }
    return STATUS_OK;
}

static enum status pass_run(struct pass_recorder *recorder, const struct pass_case *of,
                            struct error *err)
{
    bool is_prefill = of->phase == PHASE_PREFILL;
    enum layer_form form = is_prefill ? FORM_OWNED : exec_decode_form(recorder->exec);
    struct exec_head head = head_of(recorder, 0);
    TRY(exec_step(recorder->exec, &recorder->cache, form, recorder->segments,
                  recorder->segment_count, &head, err));
    TRY(chosen_check(&head, err));
    for (int64_t first = EXEC_LOGIT_ROWS; first < recorder->wanted_count;
         first += EXEC_LOGIT_ROWS) {
        head = head_of(recorder, first);
        TRY(exec_head(recorder->exec, &head, err));
        TRY(chosen_check(&head, err));
    }
    return STATUS_OK;
}

static enum status pass_record(struct pass_recorder *recorder, const struct pass_case *of,
                               struct recording *out, struct error *err)
{
    struct trace *trace = engine_trace(recorder->engine);
    struct phasor_batch_result none = {0};
    double begin = system_seconds();
    record_start(trace, RECORDING_BYTES_MAX);
    record_phase(trace, of->phase == PHASE_PREFILL ? RECORD_PREFILL : RECORD_DECODE);
    enum status status = pass_run(recorder, of, err);
    enum record_outcome outcome = record_stop(trace);
    double seconds = system_seconds() - begin;
    if (status != STATUS_OK)
        return status;
    if (outcome == RECORD_NO_MEMORY)
        return error_set(err, STATUS_NO_MEMORY, "there is no memory to record a pass");
    if (outcome != RECORD_WHOLE)
        return error_set(err, STATUS_LIMIT,
                         "the operations of a pass take more than " RECORDING_BYTES_TEXT
                         " to be recorded; fewer ranks or tokens take less");
    return batch_recording_get(out,
                               &(struct batch_recording_params){.engine = recorder->engine,
                                                                .result = &none,
                                                                .wall_seconds = seconds},
                               err);
}

static enum status contexts_get(struct pass_recorder *recorder, const struct pass_case *of,
                                struct error *err)
{
    struct pass_contexts *contexts = recorder->contexts;
    if (of->phase != PHASE_DECODE)
        return STATUS_OK;
    TRY(pass_contexts_get(contexts, recorder->engine, of->context, err));
    if (contexts->prompt != recorder->prompt)
        pass_contexts_copy(&recorder->cache, contexts, recorder->engine);
    recorder->prompt = contexts->prompt;
    return STATUS_OK;
}

/* Threads, weights that nobody has read, and caches that are full of contexts: as behind a step. */
static enum status warm(struct pass_recorder *recorder, const struct pass_case *of,
                        struct error *err)
{
    struct exec_hooks hooks = {0};
    TRY(engine_enter(recorder->engine, &(struct generator_pass){.phase = of->phase}, &hooks, err));
    return of->phase == PHASE_DECODE && recorder->is_timed ? pass_run(recorder, of, err)
                                                           : STATUS_OK;
}

static enum status run(struct pass_recorder *recorder, const struct pass_case *of,
                       struct recording *out, struct error *err)
{
    TRY(contexts_get(recorder, of, err));
    segments_fill(recorder, of);
    TRY(warm(recorder, of, err));
    return pass_record(recorder, of, out, err);
}

enum status pass_recorder_run(struct pass_recorder *recorder, const struct pass_case *of,
                              struct recording *out, struct error *err)
{
    struct trace_lane *before = trace_lane_use(engine_lane(recorder->engine));
    enum status status = run(recorder, of, out, err);
    trace_lane_use(before);
    return status;
}
