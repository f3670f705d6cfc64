/* What prefill and decode of a wave cost: sums over passes and steps. */
#include <math.h>

#include "planner/planner.h"
#include "planner/turns.h"

static struct pass_cost cost_of(const struct plan_problem *problem, const struct layout *layout,
                                const struct pass_shape *pass, bool is_packed)
{
    struct cost_types types = problem->types;
    if (is_packed)
        types.experts = DTYPE_INT4;
    return pass_cost(problem->profile, problem->shape, layout, &types, &problem->routing, pass);
}

/* ---- Prompts that begin alike ---------------------------------------------------------------- */

double plan_load_beginning(const struct plan_load *load)
{
    const struct plan_shared *shared = &load->shared;
    double all = (double)load->prompt_tokens - 1;
    if (shared->tokens == 0)
        return 0;
    return fmin(shared->tokens * shared->sharers / (shared->sharers - 1), all);
}

/* What a sequence computes: the whole prompt, or what stands behind a beginning that is there. */
struct prompt {
    double tokens, beginning;
    double share; /* of the sequences, that find it there */
};

/* Of a beginning that all of a wave have, each group computes its own, one beside another; of as
 * many as there are groups each is computed by one. */
static struct prompt prompt_of(const struct plan_load *load, const struct layout *layout,
                               int64_t wave)
{
    double groups = layout->attention.dp, sharers = load->shared.sharers;
    struct prompt prompt = {.tokens = (double)load->prompt_tokens,
                            .beginning = plan_load_beginning(load)};
    if (prompt.beginning == 0)
        return prompt;
    double copies = fmin(fmax(groups * sharers / (double)wave, 1), fmin(groups, sharers));
    prompt.share = (sharers - copies) / sharers;
    return prompt;
}

static double prompt_computed(const struct prompt *prompt)
{
    return prompt->tokens - prompt->share * prompt->beginning;
}

/* Tokens of the cache that are read for `tokens` of a prompt in pieces of at most `most` (the last
 * may be a part of one): before each piece stand `found` and those before it, and in a window one
 * less than it is wide. */
static double prompt_seen(double found, double tokens, double most, double window)
{
    double piece = fmin(tokens, most), count = tokens / piece, growing = count;
    if (window > 0)
        growing = fmin(count, fmax(floor((window - 1 - found) / piece) + 1, 0));
    double before = growing * found + growing * (growing - 1) / 2 * piece;
    if (growing < count)
        before += (count - growing) * (window - 1);
    return count * piece + before;
}

static double mean_seen(const struct prompt *prompt, double most, double window)
{
    double whole = prompt_seen(0, prompt->tokens, most, window);
    if (prompt->share == 0)
        return whole;
    double rest = prompt_seen(prompt->beginning, prompt->tokens - prompt->beginning, most, window);
    return whole + prompt->share * (rest - whole);
}

/* Sequences of the group that has most, over the mean: some have one more than others. */
static double fullest_of(int64_t wave, const struct layout *layout)
{
    int groups = layout->attention.dp;
    return (double)(ceil_div(wave, groups) * groups) / (double)wave;
}

/* ---- Prefill --------------------------------------------------------------------------------- */

/* Pairs of positions that attention sees, over the rows of all prompts. */
static double pairs_of_row(const struct plan_problem *problem, const struct layout *layout,
                           int64_t wave, int64_t window)
{
    const struct plan_load *load = problem->mix_count > 0 ? problem->mix : &problem->load;
    double pairs = 0, rows = 0;
    for (int i = 0; i == 0 || i < problem->mix_count; i++) {
        struct prompt prompt = prompt_of(&load[i], layout, wave);
        double sequences = (double)load[i].sequences;
        double found = (double)work_attention_pairs((int64_t)prompt.beginning, 0, window);
        pairs += sequences * ((double)work_attention_pairs(load[i].prompt_tokens, 0, window) -
                              prompt.share * found);
        rows += sequences * prompt_computed(&prompt);
    }
    return pairs / rows;
}

/* Some of the rows of a wave's prompts: `rows` if all groups had as many as the fullest. Of their
 * pairs and final rows each row has its even share; a prompt that is cut reads what stands before
 * each piece again. */
static struct pass_shape prefill_pass(const struct plan_problem *problem,
                                      const struct layout *layout, int64_t together, int64_t wave,
                                      double rows)
{
    struct prompt prompt = prompt_of(&problem->load, layout, together);
    double computed = prompt_computed(&prompt), piece = rows / layout->attention.dp;
    double fullest = fullest_of(wave, layout);
    int64_t window = problem->shape->sliding_window;
    rows /= fullest;
    return (struct pass_shape){
        .phase = PHASE_PREFILL,
        .form = FORM_OWNED,
        .rows = rows,
        .pairs = rows * pairs_of_row(problem, layout, together, 0),
        .seen = rows * mean_seen(&prompt, piece, 0) / computed,
        .sliding_pairs = rows * pairs_of_row(problem, layout, together, window),
        .sliding_seen = rows * mean_seen(&prompt, piece, (double)window) / computed,
        .logit_rows = rows / computed,
        .fullest = fullest,
    };
}

/* Of `wave` sequences that come at once, to be `together` with others. Passes are as many as the
 * fullest group needs, which has its share of their tokens. */
static struct prefill_cost prefill_cost_of(const struct plan_problem *problem,
                                           const struct layout *layout, int64_t pass_tokens,
                                           int64_t together, int64_t wave)
{
    struct prefill_cost prefill = {0};
    struct prompt prompt = prompt_of(&problem->load, layout, together);
    double rows = (double)wave * fullest_of(wave, layout) * prompt_computed(&prompt);
    int64_t all = (int64_t)ceil(rows - 1e-6);
    int64_t whole = (all - 1) / pass_tokens; /* passes before the last */
    struct pass_shape last =
        prefill_pass(problem, layout, together, wave, (double)(all - whole * pass_tokens));
    struct pass_cost cost = cost_of(problem, layout, &last, false);
    prefill.last_pass = pass_cost_total(&cost);
    pass_cost_add(&prefill.cost, &cost, 1);
    if (whole > 0) {
        struct pass_shape pass = prefill_pass(problem, layout, together, wave, (double)pass_tokens);
        cost = cost_of(problem, layout, &pass, false);
        pass_cost_add(&prefill.cost, &cost, (double)whole);
    }
    return prefill;
}

struct prefill_cost plan_prefill_cost(const struct plan_problem *problem,
                                      const struct layout *layout, int64_t pass_tokens,
                                      int64_t wave)
{
    return prefill_cost_of(problem, layout, pass_tokens, wave, wave);
}

static const struct plan_load *loads_of(const struct plan_problem *problem, int *count)
{
    *count = problem->mix_count > 0 ? problem->mix_count : 1;
    return problem->mix_count > 0 ? problem->mix : &problem->load;
}

/* Where all that are there end together, those who come are a wave, and the last of them the rest.
 */
struct pass_cost plan_refilled_prefill_cost(const struct plan_problem *problem,
                                            const struct layout *layout, int64_t pass_tokens,
                                            int64_t wave)
{
    int count;
    const struct plan_load *loads = loads_of(problem, &count);
    int64_t enough = problem->entry_tokens < pass_tokens ? problem->entry_tokens : pass_tokens;
    int64_t come = turns_entry(loads, count, wave, enough).together;
    struct prefill_cost cost = plan_prefill_cost(problem, layout, pass_tokens, wave);
    int64_t all = problem->load.sequences, left = all > wave ? all - wave : 0;
    struct pass_cost sum = cost.cost;
    int64_t at_once = come < wave ? come : wave;
    if (left / at_once > 0) {
        cost = prefill_cost_of(problem, layout, pass_tokens, wave, at_once);
        pass_cost_add(&sum, &cost.cost, (double)(left / at_once));
    }
    if (left % at_once > 0) {
        cost = prefill_cost_of(problem, layout, pass_tokens, wave, left % at_once);
        pass_cost_add(&sum, &cost.cost, 1);
    }
    return sum;
}

/* ---- Decode ---------------------------------------------------------------------------------- */

static struct pass_shape decode_pass(const struct plan_problem *problem,
                                     const struct layout *layout, int64_t wave, double context)
{
    double rows = (double)wave, window = (double)problem->shape->sliding_window;
    double sees = window > 0 ? fmin(context, window) : context;
    return (struct pass_shape){
        .phase = PHASE_DECODE,
        .form = layout->attention.dp == 1 ? FORM_REPLICATED : FORM_GATHERED,
        .rows = rows,
        .pairs = rows * context,
        .seen = rows * context,
        .sliding_pairs = rows * sees,
        .sliding_seen = rows * sees,
        .logit_rows = rows,
        .fullest = fullest_of(wave, layout),
    };
}

/* Of the steps with `first` to `last` tokens in the cache, by Simpson's rule over them: exact where
 * times are cubic in the context, on which attention alone depends. */
static void decode_add(struct pass_cost *to, const struct plan_problem *problem,
                       const struct layout *layout, bool is_packed, int64_t wave, double first,
                       double last)
{
    static const double weights[3] = {1.0 / 6, 4.0 / 6, 1.0 / 6};
    struct pass_shape pass = decode_pass(problem, layout, wave, first);
    struct pass_cost cost = cost_of(problem, layout, &pass, is_packed);
    for (int i = 0; i < 3; i++) {
        pass = decode_pass(problem, layout, wave, first + (last - first) * i / 2);
        cost.seconds[COST_ATTENTION] = pass_attention_seconds(problem->profile, problem->shape,
                                                              layout, &problem->types, &pass);
        pass_cost_add(to, &cost, (last - first + 1) * weights[i]);
    }
}

/* Times bend where the context outgrows the window: each side is for itself. */
struct pass_cost plan_decode_cost(const struct plan_problem *problem, const struct layout *layout,
                                  bool is_packed, int64_t wave)
{
    struct pass_cost sum = {{0}};
    double first = (double)problem->load.prompt_tokens + 1;
    double last = first + (double)(problem->load.output_tokens - 2);
    double window = (double)problem->shape->sliding_window;
    if (last < first)
        return sum;
    if (first < window && window < last) {
        decode_add(&sum, problem, layout, is_packed, wave, first, window);
        first = window + 1;
    }
    decode_add(&sum, problem, layout, is_packed, wave, first, last);
    return sum;
}

/* From the end of one bin's answers to that of the next, those that are longer go on. Where fewer
 * than one of them is in a wave on the mean, so many waves have one. */
struct pass_cost plan_wave_decode_cost(const struct plan_problem *problem,
                                       const struct layout *layout, bool is_packed, int64_t wave)
{
    struct pass_cost sum = {{0}};
    double left = 0, prompts = 0, all;
    int64_t there = 1; /* tokens of the answers; the first is prefill's */
    if (problem->mix_count <= 1)
        return plan_decode_cost(problem, layout, is_packed, wave);
    for (int i = 0; i < problem->mix_count; i++) {
        const struct plan_load *bin = &problem->mix[i];
        left += (double)bin->sequences;
        prompts += (double)bin->sequences * (double)bin->prompt_tokens;
    }
    all = left;
    for (int i = 0; i < problem->mix_count; i++) {
        const struct plan_load *bin = &problem->mix[i];
        struct plan_problem part = *problem;
        double running = (double)wave * left / all;
        part.load.prompt_tokens = (int64_t)ceil(prompts / left) + there - 1;
        part.load.output_tokens = bin->output_tokens - there + 1;
        if (bin->output_tokens > there) {
            struct pass_cost cost =
                plan_decode_cost(&part, layout, is_packed, (int64_t)ceil(running));
            pass_cost_add(&sum, &cost, fmin(1, running));
            there = bin->output_tokens;
        }
        left -= (double)bin->sequences;
        prompts -= (double)bin->sequences * (double)bin->prompt_tokens;
    }
    return sum;
}

/* Steps of sequences of the mean length, while there is somebody to come: more of them where not
 * all places are taken. Then each stretch with one less kind of them. */
struct pass_cost plan_refilled_decode_cost(const struct plan_problem *problem,
                                           const struct layout *layout, bool is_packed,
                                           int64_t wave)
{
    int count;
    const struct plan_load *loads = loads_of(problem, &count);
    struct pass_cost sum = {{0}};
    struct turns turns;
    turns_take(&turns, loads, count, wave);
    if (turns.full_steps > 0) {
        /* Somebody has a step to do, though the mean may have none. */
        struct plan_problem full = *problem;
        if (full.load.output_tokens < 2)
            full.load.output_tokens = 2;
        int64_t running = turns_entry(loads, count, wave, problem->entry_tokens).running;
        struct pass_cost all = plan_decode_cost(&full, layout, is_packed, running);
        double steps = (double)turns.full_steps * (double)wave / (double)running;
        pass_cost_add(&sum, &all, steps / (double)(full.load.output_tokens - 1));
    }
    for (int i = 0; i < turns.tail_count; i++) {
        const struct stretch *stretch = &turns.tail[i];
        struct plan_problem part = *problem;
        part.load.prompt_tokens = stretch->context_tokens;
        part.load.output_tokens = stretch->steps + 1;
        struct pass_cost cost = plan_decode_cost(&part, layout, is_packed, stretch->running);
        pass_cost_add(&sum, &cost, 1);
    }
    return sum;
}
