#include "engine/auto_told.h"

#include <stdio.h>

#include "base/seconds_text.h"
#include "base/size_text.h"
#include "engine/plan_nothing.h"

/* A backup is spoken of where it would save more than predictions err. */
#define GAIN_WORTH_A_WORD 1.05

void auto_tell_choice(const struct plan_table *table, int chosen, const struct log_sink *log)
{
    const struct plan_candidate *best = &table->candidates[chosen];
    double between = best->transition + best->way_back, total = plan_candidate_total(best);
    char layouts[LAYOUT_TEXT_BYTES];
    struct text line = {0};
    plan_layouts_format(layouts, &best->layouts);
    text_append_format(&line, "plan: %s", layouts);
    if (best->way != PLAN_NONE)
        text_append_format(&line, " by %s", plan_way_names[best->way]);
    text_append_format(&line, ": predicted prefill %s, decode %s", SECONDS_TEXT(best->prefill),
                       SECONDS_TEXT(best->decode));
    if (between > 0)
        text_append_format(&line, ", between %s", SECONDS_TEXT(between));
    if (table->static_tp == chosen)
        text_append_string(&line, "; it is static tensor parallelism");
    else if (table->static_tp >= 0)
        text_append_format(&line, ", %.2f times as fast as static tensor parallelism",
                           plan_candidate_total(&table->candidates[table->static_tp]) / total);
    if (!line.failed)
        log_write(log, LOG_INFO, "%s", line.bytes);
    text_deinit(&line);
}

static void tell_faster(const struct log_sink *log, const struct plan_candidate *faster,
                        double seconds)
{
    char layouts[LAYOUT_TEXT_BYTES];
    double gain = seconds / plan_candidate_total(faster);
    if (gain < GAIN_WORTH_A_WORD)
        return;
    plan_layouts_format(layouts, &faster->layouts);
    log_write(
        log, LOG_INFO,
        "%s would be %.2f times as fast as that, by prediction: it decodes on an INT4 backup, "
        "which phasor quantize makes, and answers differ a little",
        layouts, gain);
}

/* What a run with a backup would have, with the classes that it has. `answer` is the question's. */
static enum status backed_find(struct plan_candidate *out, const struct plan_answer *answer,
                               const struct plan_question *question,
                               const struct engine_params *params, struct error *err)
{
    const struct auto_limits limits = {.engine = params, .has_backup = true};
    struct plan_question of_backup = *question;
    struct plan_answer backed;
    if (!plan_question_has_classes(question)) {
        *out = answer->table.candidates[auto_pick(&limits, &answer->table)];
        return STATUS_OK;
    }
    of_backup.may_context = &limits;
    TRY(plan_answer_find(&backed, &of_backup, err));
    *out = backed.table.candidates[backed.chosen];
    plan_answer_deinit(&backed);
    return STATUS_OK;
}

/* That decode is on other weights than the checkpoint's, or would be faster there. */
enum status auto_tell_backup(const struct plan_answer *answer, const struct plan_parts *parts,
                             const struct plan_question *question, const struct auto_limits *limits,
                             struct error *err)
{
    const struct log_sink *log = &limits->engine->log;
    const struct plan_candidate *chosen = &answer->table.candidates[answer->chosen];
    struct plan_candidate best;
    if (auto_takes_int4(parts->count > 0 ? &parts->of[0].candidate : chosen))
        log_write(log, LOG_INFO,
                  "decode runs on the experts of the INT4 backup, and answers differ a little; "
                  "--policy exact forbids it");
    if (limits->has_backup || !question->subject->allows_int4 ||
        question->subject->has_int4_experts)
        return STATUS_OK;
    TRY(backed_find(&best, answer, question, limits->engine, err));
    if (auto_takes_int4(&best))
        tell_faster(log, &best, parts->count > 0 ? parts->seconds : plan_candidate_total(chosen));
    return STATUS_OK;
}

void auto_tell_question(const struct plan_subject_params *subject, const struct log_sink *log)
{
    char passes[48] = "as many tokens as are best";
    if (subject->max_num_batched_tokens > 0)
        snprintf(passes, sizeof passes, "%lld tokens", (long long)subject->max_num_batched_tokens);
    log_write(
        log, LOG_DEBUG,
        "planned for %lld sequences of %lld prompt and %lld output tokens on the mean, %.0f of a "
        "prompt found computed, passes of %s, and %s of memory on each of %d ranks",
        (long long)subject->load.sequences, (long long)subject->load.prompt_tokens,
        (long long)subject->load.output_tokens, subject->load.shared.tokens, passes,
        SIZE_TEXT(subject->memory_bytes), subject->rank_count);
}

void auto_tell_order(int class_count, bool some_stay, double gain, const struct log_sink *log)
{
    const char *staying = some_stay ? ", those of which a change of layout is not worth it "
                                      "decoded in prefill's"
                                    : "";
    if (gain == 0)
        log_write(log, LOG_INFO, "rows with the longest answers are started first");
    else
        log_write(
            log, LOG_INFO,
            "rows of like lengths run together, in %d classes%s: predicted %.2f times as fast "
            "as in the order of the file",
            class_count, staying, gain);
}

void auto_tell_parts(const struct plan_parts *parts, const struct plan_candidate *one,
                     const struct log_sink *log)
{
    struct text line = {0};
    char layouts[LAYOUT_TEXT_BYTES];
    plan_layouts_format(layouts, &one->layouts);
    text_append_format(
        &line,
        "plan: rows run in %d parts, each under its own, and weights are loaded "
        "between them: predicted %s with %s of that, %.2f times as fast as all under %s",
        parts->count, SECONDS_TEXT(parts->seconds), SECONDS_TEXT(parts->reloaded),
        plan_candidate_total(one) / parts->seconds, layouts);
    for (int p = 0; p < parts->count; p++) {
        text_append_string(&line, p == 0 ? ": " : ", then ");
        plan_part_tell(&line, &parts->of[p]);
    }
    if (!line.failed)
        log_write(log, LOG_INFO, "%s", line.bytes);
    text_deinit(&line);
}

/* Nothing but a larger one would do. */
static void append_no_cache(struct text *out, const struct plan_subject_params *params)
{
    text_append_format(out,
                       "--kv-memory %s holds no sequence of %lld prompt and %lld output tokens",
                       SIZE_TEXT(params->kv_bytes), (long long)params->load.prompt_tokens,
                       (long long)params->load.output_tokens);
}

/* What has one layout takes the least, and that a run may always have. */
enum status auto_tell_none(const struct plan_subject_params *params, const struct plan_table *table,
                           const struct log_sink *log, struct error *err)
{
    struct plan_subject subject;
    struct plan_remedies would;
    struct text why = {0};
    TRY(plan_subject_init(&subject, params, err));
    plan_remedies_find(&would, &subject.problem, table);
    if (params->kv_bytes > 0 && would.smallest != NULL &&
        would.smallest->memory.cache >= PLAN_CACHE_BYTES_MOST)
        append_no_cache(&why, params);
    else
        plan_nothing_append(&why, &subject.problem, table, &would);
    enum status status = text_check(&why, "why there is no plan", err);
    if (status == STATUS_OK)
        log_write(log, LOG_WARNING, "%s; static tensor parallelism is tried", why.bytes);
    text_deinit(&why);
    return status;
}
