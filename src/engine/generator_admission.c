/* Who enters which group, and who leaves. */
#include "base/memory.h"
#include "base/system.h"
#include "engine/generator_state.h"
#include "model/config.h"

static struct page_request pages_wanted(const struct generator *generator,
                                        const struct sequence *sequence)
{
    return (struct page_request){
        .prompt = sequence->request.prompt,
        .prompt_count = sequence->request.prompt_count,
        .page_count = sequence->page_count,
        .is_private = !generator->params.shares_prefixes || sequence->request.prompt_logprobs,
    };
}

/* Tokens that the sequence adds to what a group has before it. */
static int64_t load_of(const struct sequence *sequence, int64_t shared_pages)
{
    return sequence->request.prompt_count + sequence->request.token_count_max -
           shared_pages * KV_PAGE_TOKENS;
}

/* The group that has the fewest tokens before it when the sequence has entered, among those with
 * room; -1: none has. The sequence's own tokens count twice: once as what this group then has
 * before it, once as work that all share. So a prefix is computed in a second group only when the
 * first has as much more to do as that costs; a sequence that shares nothing goes where least is.
 */
static int group_choose(const struct generator *generator, const struct sequence *sequence)
{
    struct page_request request = pages_wanted(generator, sequence);
    int64_t best_cost = INT64_MAX;
    int best = -1;
    for (int g = 0; g < generator->group_count; g++) {
        const struct group_load *load = &generator->loads[g];
        if (load->sequence_count >= generator->group_sequence_max)
            continue;
        struct page_fit fit = page_pool_fit(&generator->pools[g], &request);
        int64_t cost = load->token_count + 2 * load_of(sequence, fit.shared_count);
        if (fit.fits && cost < best_cost) {
            best_cost = cost;
            best = g;
        }
    }
    return best;
}

static void group_enter(struct generator *generator, struct sequence *sequence, int group)
{
    struct page_request request = pages_wanted(generator, sequence);
    struct group_load *load = &generator->loads[group];
    sequence->group = group;
    sequence->number = ++generator->last_number;
    int64_t shared =
        page_pool_take(&generator->pools[group], sequence->pages, &request, sequence->number);
    sequence->load = load_of(sequence, shared);
    load->sequence_count++;
    load->token_count += sequence->load;
}

static void group_leave(struct generator *generator, struct sequence *sequence)
{
    struct group_load *load = &generator->loads[sequence->group];
    page_pool_return(&generator->pools[sequence->group], sequence->pages, sequence->page_count,
                     sequence->number);
    load->sequence_count--;
    load->token_count -= sequence->load;
    generator->is_full = false;
    generator->left++;
    generator->left_pages += sequence->page_count;
}

bool generator_is_of_other_wave(const struct generator *generator, const struct sequence *sequence)
{
    return generator->params.in_waves && generator->counters.running > 0 &&
           generator->running[0]->request.stays != sequence->request.stays;
}

/* Tokens of the prompt that no page has yet. */
static int64_t tokens_to_compute(const struct generator *generator, const struct sequence *sequence)
{
    struct page_request request = pages_wanted(generator, sequence);
    int64_t shared = 0;
    for (int g = 0; g < generator->group_count; g++) {
        struct page_fit fit = page_pool_fit(&generator->pools[g], &request);
        shared = fit.fits && fit.shared_count > shared ? fit.shared_count : shared;
    }
    return sequence->request.prompt_count - shared * KV_PAGE_TOKENS;
}

/* Rows of an expert. GPUs have some 140 (V100) to 300 flops (H100) for a byte, and a weight of two
 * bytes takes two for each row; of a CPU the kernels for a few rows are bound by arithmetic. */
#define GPU_ROWS         256
#define CPU_ROWS         4
#define ENTRY_TOKENS_MAX 2048

int64_t generator_entry_tokens(const struct model_config *config, bool is_gpu)
{
    int64_t tokens = is_gpu ? GPU_ROWS : CPU_ROWS;
    if (config->expert_top_k > 0)
        tokens = tokens * config->expert_count / config->expert_top_k;
    return tokens < ENTRY_TOKENS_MAX ? tokens : ENTRY_TOKENS_MAX;
}

/* As many of the waiting as have left have prompts that make a pass. Each is looked at once. */
static bool is_worth_a_pass(struct generator *generator)
{
    int64_t at = 0, most = generator->params.batch_token_max;
    int64_t enough = generator->params.entry_tokens;
    const struct sequence *sequence = generator->first_waiting;
    for (; sequence != NULL && at < generator->left; sequence = sequence->next, at++) {
        if (at < generator->entry_seen)
            continue;
        generator->entry_found += tokens_to_compute(generator, sequence);
        generator->entry_seen = at + 1;
    }
    return generator->entry_found >= (most < enough ? most : enough);
}

/* Whether those who could enter are to wait for others. */
static bool is_too_early(struct generator *generator)
{
    if (generator->counters.running == 0 || generator->left >= generator->entry_most ||
        generator->left >= generator->counters.waiting ||
        generator->left_pages >= generator->entry_pages)
        return false;
    if (generator->left == 0)
        return true;
    return generator->entry_steps < GENERATOR_ENTRY_PASSES && !is_worth_a_pass(generator);
}

static int64_t pages_of_running(const struct generator *generator)
{
    int64_t pages = 0;
    for (int64_t i = 0; i < generator->counters.running; i++)
        pages += generator->running[i]->page_count;
    return pages;
}

/* Behind a try to enter. Who found no room though others have left, for it needs more, waits for
 * nobody else. */
static void entry_plan(struct generator *generator, bool has_entered)
{
    bool has_room =
        generator->counters.running < generator->params.sequence_count_max && !generator->is_full;
    bool waits =
        has_entered && generator->first_waiting != NULL && !has_room && !generator->params.in_waves;
    generator->entry_most = waits ? generator->counters.running / GENERATOR_ENTRY_SHARE : 0;
    generator->entry_pages = waits && generator->is_full
                                 ? pages_of_running(generator) / GENERATOR_ENTRY_SHARE
                                 : INT64_MAX;
    generator->left = generator->left_pages = generator->entry_steps = 0;
    generator->entry_seen = generator->entry_found = 0;
}

void generator_admit(struct generator *generator)
{
    int64_t number = generator->last_number;
    generator->wave_is_closed &= generator->counters.running > 0;
    if (generator->wave_is_closed)
        return;
    if (is_too_early(generator)) {
        generator->entry_steps += generator->left > 0;
        return;
    }
    while (generator->first_waiting != NULL && !generator->is_closed && !generator->is_full &&
           generator->counters.running < generator->params.sequence_count_max) {
        struct sequence *sequence = generator->first_waiting;
        if (generator_is_of_other_wave(generator, sequence))
            return;
        int group = group_choose(generator, sequence);
        generator->is_full = group < 0;
        if (group < 0)
            break;
        generator->first_waiting = sequence->next;
        generator->counters.waiting--;
        group_enter(generator, sequence, group);
        sequence->started = system_seconds();
        generator->running[generator->counters.running++] = sequence;
    }
    entry_plan(generator, generator->last_number > number);
}

void generator_stop_admitting(struct generator *generator)
{
    generator->is_closed = true;
}

bool generator_is_idle(const struct generator *generator)
{
    return generator->counters.running == 0 &&
           (generator->counters.waiting == 0 || generator->is_closed);
}

void generator_sweep_ended(struct generator *generator)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < generator->counters.running; i++) {
        struct sequence *sequence = generator->running[i];
        if (!sequence->done) {
            generator->running[kept++] = sequence;
            continue;
        }
        group_leave(generator, sequence);
        sequence_free(sequence);
    }
    generator->counters.running = kept;
}
