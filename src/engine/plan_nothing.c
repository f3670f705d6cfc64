#include "engine/plan_nothing.h"

#include "base/size_text.h"

/* ---- What has no times ----------------------------------------------------------------------- */

/* Numbers that operations were not measured on. */
static bool numbers_append(struct text *out, const struct plan_problem *problem)
{
    const struct {
        enum work_kind kind;
        enum dtype dtype;
        const char *name;
    } needed[] = {
        {WORK_MATMUL, problem->types.matrices, "weights"},
        {WORK_FFN_UP, problem->types.experts, "experts"},
        {WORK_ATTENTION, problem->types.cache, "KV cache"},
    };
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        if (profile_has_work(problem->profile, needed[i].kind, needed[i].dtype))
            continue;
        text_append_format(out, "%s %s", dtype_name(needed[i].dtype), needed[i].name);
        return true;
    }
    return false;
}

/* Rates that are not there: every pass copies something; upload goes back by reload. */
static bool rates_append(struct text *out, const struct plan_problem *problem, enum plan_way way)
{
    const struct profile *profile = problem->profile;
    bool reads = way == PLAN_RELOAD || way == PLAN_UPLOAD;
    const struct {
        bool is_needed;
        double rate;
        const char *name;
    } rates[] = {
        {true, profile->host_to_device, "copies from the host to the devices (host_to_device)"},
        {way == PLAN_UPLOAD, profile->check, "checking what is read of a backup (check)"},
        {reads, profile->repack, "packing what is read of a checkpoint (repack)"},
        {reads, profile->disk_read, "reading a file (disk_read)"},
    };
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        if (!rates[i].is_needed || rates[i].rate > 0)
            continue;
        text_append_string(out, rates[i].name);
        return true;
    }
    return false;
}

bool plan_untimed_append(struct text *out, const struct plan_problem *problem,
                         const struct plan_candidate *candidate)
{
    return numbers_append(out, problem) ||
           rates_append(out, problem, candidate == NULL ? PLAN_NONE : candidate->way);
}

/* To measure anew brings no numbers that are never measured. */
static void append_unknown(struct text *out, const struct plan_problem *problem)
{
    text_append_string(out, "the profile has no times for ");
    if (numbers_append(out, problem)) {
        text_append_string(out, ": phasor calibrate measures bfloat16, and int4 of experts, so "
                                "that --dtype bfloat16 has plans");
        return;
    }
    if (!rates_append(out, problem, PLAN_NONE))
        text_append_string(out, "any plan that fits");
    text_append_string(out, "; phasor calibrate --overwrite measures anew");
}

static bool has_unknown(const struct plan_table *table)
{
    for (int i = 0; i < table->count; i++) {
        if (table->candidates[i].verdict == PLAN_UNKNOWN)
            return true;
    }
    return false;
}

/* ---- What has no room ------------------------------------------------------------------------ */

static void append_plan(struct text *out, const struct plan_layouts *layouts)
{
    char text[LAYOUT_TEXT_BYTES];
    plan_layouts_format(text, layouts);
    text_append_format(out, " (%s)", text);
}

static void append_needs(struct text *out, const struct plan_problem *problem,
                         const struct plan_remedies *would)
{
    char text[LAYOUT_TEXT_BYTES];
    const struct plan_candidate *least = would->smallest;
    plan_layouts_format(text, &least->layouts);
    text_append_format(
        out,
        "nothing fits: the smallest, %s, with %lld sequence%s together in passes of %lld tokens, "
        "needs %s on a device of %s (%s experts, %s other weights, %s KV cache, %s activations)",
        text, (long long)least->wave, least->wave == 1 ? "" : "s", (long long)least->pass_tokens,
        SIZE_TEXT(would->memory_bytes), SIZE_TEXT(problem->memory_bytes),
        SIZE_TEXT(least->memory.experts), SIZE_TEXT(least->memory.weights),
        SIZE_TEXT(least->memory.cache), SIZE_TEXT(least->memory.activations));
}

/* Of each change that would do, the least. */
static void append_changes(struct text *out, const struct plan_problem *problem,
                           const struct plan_remedies *would)
{
    text_append_format(out, "; it would fit with %s more on each device",
                       SIZE_TEXT(would->memory_bytes - problem->memory_bytes));
    if (would->sequences > 0) {
        text_append_format(out, ", or with --max-num-seqs %lld", (long long)would->sequences);
        append_plan(out, &would->sequences_of);
    }
    if (would->pass_tokens > 0) {
        text_append_format(out, ", or with --max-num-batched-tokens %lld",
                           (long long)would->pass_tokens);
        append_plan(out, &would->pass_of);
    }
    if (would->int4_fits) {
        text_append_format(out, ", or with --expert-dtype int4, in %s",
                           SIZE_TEXT(plan_memory_total(&would->int4)));
        append_plan(out, &would->int4_of);
    }
}

/* ---- The whole ------------------------------------------------------------------------------- */

void plan_nothing_append(struct text *out, const struct plan_problem *problem,
                         const struct plan_table *table, const struct plan_remedies *would)
{
    if (has_unknown(table)) {
        append_unknown(out, problem);
    } else if (would->smallest == NULL) {
        text_append_string(out, "no plan is possible for this model on this box");
    } else {
        append_needs(out, problem, would);
        append_changes(out, problem, would);
    }
}
