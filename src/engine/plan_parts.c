#include "engine/plan_parts.h"

#include "base/seconds_text.h"
#include "engine/auto_pick.h"
#include "planner/transition_cost.h"

/* What is predicted of a load is rougher than what is of passes, and a run in parts has more to
 * fail in. */
#define GAIN_WORTH_PARTS 1.02

/* Of a prompt, on the mean. */
#define SHARED_MOST 0.01

/* What is looked for: parts that all decode on a backup's weights, or none of them. */
struct search {
    const struct plan_question *question;
    bool takes_int4;
};

static bool may_be_of_part(const void *context, const struct plan_candidate *candidate)
{
    const struct search *search = context;
    const struct plan_question *question = search->question;
    return auto_takes_int4(candidate) == search->takes_int4 &&
           (question->may == NULL || question->may(question->may_context, candidate));
}

/* As a change of all weights by reload: every rank reads what it will hold, as much as the fullest
 * one, and has nothing of it yet. */
static double reload_seconds(const struct plan_candidate *candidate, const struct profile *profile)
{
    double taken = (double)candidate->memory.weights + (double)candidate->memory.experts;
    double read = taken * candidate->layouts.of[PHASE_PREFILL].rank_count;
    const struct change change = {.read = read, .file = read, .taken = taken};
    return change_reload_seconds(profile, &change);
}

/* *found = false: there is no plan for these bins. */
static enum status part_find(struct plan_part *out, bool *found, const struct search *search,
                             unsigned bins, struct error *err)
{
    struct plan_table table;
    TRY(plan_bins_price(&table, search->question, bins, false, err));
    int best = plan_table_pick(&table, may_be_of_part, search);
    *found = best >= 0;
    if (!*found)
        return STATUS_OK;
    const struct plan_candidate *candidate = &table.candidates[best];
    *out = (struct plan_part){
        .bins = bins,
        .load = plan_bins_load(search->question, bins),
        .index = best,
        .candidate = *candidate,
        .reload = reload_seconds(candidate, search->question->subject->profile),
    };
    return STATUS_OK;
}

static bool pair_find(int *first, int *second, const struct plan_parts *parts)
{
    for (*first = 0; *first < parts->count; ++*first) {
        for (*second = *first + 1; *second < parts->count; ++*second) {
            if (parts->of[*first].index == parts->of[*second].index)
                return true;
        }
    }
    return false;
}

/* Two parts under the same plan are one, whose plan may be another's again. */
static enum status parts_join(struct plan_parts *parts, bool *found, const struct search *search,
                              struct error *err)
{
    int kept, gone;
    while (*found && pair_find(&kept, &gone, parts)) {
        unsigned bins = parts->of[kept].bins | parts->of[gone].bins;
        TRY(part_find(&parts->of[kept], found, search, bins, err));
        for (int p = gone + 1; p < parts->count; p++)
            parts->of[p - 1] = parts->of[p];
        parts->count--;
    }
    return STATUS_OK;
}

static void parts_sum(struct plan_parts *parts)
{
    parts->seconds = parts->reloaded = 0;
    for (int p = 0; p < parts->count; p++) {
        parts->reloaded += p == 0 ? 0 : parts->of[p].reload;
        parts->seconds += plan_candidate_total(&parts->of[p].candidate);
    }
    parts->seconds += parts->reloaded;
}

/* Of so many classes; no parts, or one, where some of them have no plan or all the same. */
static enum status parts_of_classes(struct plan_parts *out, const struct search *search,
                                    int class_count, struct error *err)
{
    struct plan_classes classes;
    const struct plan_mix *mix = search->question->mix;
    bool found = true;
    plan_classes_make(&classes, mix, class_count);
    *out = (struct plan_parts){.count = class_count};
    for (int class = 0; class < class_count && found; class ++)
        TRY(part_find(&out->of[class], &found, search, plan_class_bins(&classes, mix, class), err));
    if (found)
        TRY(parts_join(out, &found, search, err));
    if (!found)
        out->count = 0;
    parts_sum(out);
    return STATUS_OK;
}

/* What prompts find computed may have been computed in another part, whose cache is gone. */
static bool share_much(const struct plan_question *question)
{
    const struct plan_load *load = &question->subject->load;
    return load->shared.tokens > SHARED_MOST * (double)load->prompt_tokens;
}

/* The best of all numbers of classes; of no parts where none is done within `seconds`. */
static enum status parts_search(struct plan_parts *out, const struct search *search, double seconds,
                                struct error *err)
{
    *out = (struct plan_parts){.seconds = seconds};
    for (int count = 2; count <= search->question->mix->bin_count; count++) {
        struct plan_parts tried;
        TRY(parts_of_classes(&tried, search, count, err));
        if (tried.count > 1 && tried.seconds < out->seconds)
            *out = tried;
    }
    return STATUS_OK;
}

/* The same bins, each part with passes of its own. */
static enum status parts_refine(struct plan_parts *parts, const struct search *search,
                                struct error *err)
{
    bool found = true;
    for (int p = 0; p < parts->count && found; p++)
        TRY(part_find(&parts->of[p], &found, search, parts->of[p].bins, err));
    if (found)
        TRY(parts_join(parts, &found, search, err));
    if (!found || parts->count < 2)
        parts->count = 0;
    parts_sum(parts);
    return STATUS_OK;
}

enum status plan_parts_find(struct plan_parts *out, const struct plan_question *question,
                            const struct plan_candidate *one, struct error *err)
{
    struct plan_subject_params subject = *question->subject;
    struct plan_question of_passes = *question;
    double limit = plan_candidate_total(one) / GAIN_WORTH_PARTS;
    *out = (struct plan_parts){.seconds = limit};
    if (!plan_question_has_classes(question) || question->subject->is_queue || share_much(question))
        return STATUS_OK;
    subject.max_num_batched_tokens = one->pass_tokens;
    of_passes.subject = &subject;
    for (int takes_int4 = 0; takes_int4 <= 1; takes_int4++) {
        const struct search of_one_size = {.question = &of_passes, .takes_int4 = takes_int4 == 1};
        const struct search of_all = {.question = question, .takes_int4 = takes_int4 == 1};
        struct plan_parts tried;
        TRY(parts_search(&tried, &of_one_size, out->seconds, err));
        if (tried.count > 1)
            TRY(parts_refine(&tried, &of_all, err));
        if (tried.count > 1 && tried.seconds < out->seconds)
            *out = tried;
    }
    return STATUS_OK;
}

void plan_part_tell(struct text *out, const struct plan_part *part)
{
    char layouts[LAYOUT_TEXT_BYTES];
    bool has_way = part->candidate.way != PLAN_NONE;
    plan_layouts_format(layouts, &part->candidate.layouts);
    text_append_format(out, "%lld of %lld prompt and %lld output tokens under %s%s%s in %s",
                       (long long)part->load.sequences, (long long)part->load.prompt_tokens,
                       (long long)part->load.output_tokens, layouts, has_way ? " by " : "",
                       has_way ? plan_way_names[part->candidate.way] : "",
                       SECONDS_TEXT(plan_candidate_total(&part->candidate)));
}

/* ---- Their rows ------------------------------------------------------------------------------ */

/* Bins are of rising answers, those of class 0 the longest. Returns the class behind its last. */
static int part_classes(struct plan_classes *out, const struct plan_part *part, int first,
                        const struct plan_mix *mix)
{
    bool moves = auto_moves_weights(&part->candidate);
    int64_t longest = 0;
    int class = first - 1;
    for (int i = mix->bin_count - 1; i >= 0; i--) {
        if ((part->bins >> i & 1) == 0)
            continue;
        if (class < first || (!moves && 2 * mix->bins[i].output_tokens <= longest)) {
            class ++;
            longest = mix->bins[i].output_tokens;
        }
        out->of_bin[i] = class;
    }
    return class + 1;
}

void plan_parts_classes(struct plan_classes *out, int class_end[PLAN_BINS_MAX],
                        const struct plan_parts *parts, const struct plan_mix *mix)
{
    *out = (struct plan_classes){.count = 0};
    for (int p = 0; p < parts->count; p++) {
        out->count = part_classes(out, &parts->of[p], out->count, mix);
        class_end[p] = out->count;
    }
}
