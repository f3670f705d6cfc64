#include "exec/sampler.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/memory.h"
#include "device/draw.h"

enum status sampler_init(struct sampler *out, int64_t vocab_count, struct error *err)
{
    TRY(memory_get_raw((void **)&out->candidates, (size_t)vocab_count, sizeof *out->candidates,
                       "sampling", err));
    out->vocab_count = vocab_count;
    return STATUS_OK;
}

void sampler_deinit(struct sampler *sampler)
{
    memory_free(sampler->candidates);
    *sampler = (struct sampler){0};
}

bool sampler_can_choose(const float *logits, int64_t count)
{
    int broken = 0, seen = 0; /* without branches: the compiler takes many at a time */
    for (int64_t i = 0; i < count; i++) {
        broken |= !(logits[i] < INFINITY);
        seen |= logits[i] > -INFINITY;
    }
    return !broken && seen;
}

double sampler_log_sum_exp(const float *logits, int64_t count)
{
    float most = logits[0];
    for (int64_t i = 1; i < count; i++)
        most = logits[i] > most ? logits[i] : most;
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += exp((double)(logits[i] - most));
    return (double)most + log(sum);
}

static bool ranks_before(struct candidate a, struct candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.at < b.at);
}

static int compare_rank(const void *a, const void *b)
{
    struct candidate left = *(const struct candidate *)a, right = *(const struct candidate *)b;
    return ranks_before(left, right) ? -1 : ranks_before(right, left) ? 1 : 0;
}

/* Restores the heap whose root ranks last among its members. */
static void heap_sink(struct candidate *heap, int64_t count, int64_t at)
{
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= count)
            return;
        if (child + 1 < count && ranks_before(heap[child], heap[child + 1]))
            child++;
        if (!ranks_before(heap[at], heap[child]))
            return;
        struct candidate swap = heap[at];
        heap[at] = heap[child];
        heap[child] = swap;
        at = child;
    }
}

int64_t sampler_top(struct sampler *sampler, const float *logits, int64_t count,
                    const struct candidate **out)
{
    struct candidate *heap = sampler->candidates;
    if (count > sampler->vocab_count)
        count = sampler->vocab_count;
    *out = heap;
    if (count < 1)
        return 0;
    for (int64_t i = 0; i < count; i++)
        heap[i] = (struct candidate){logits[i], (int32_t)i};
    for (int64_t i = count / 2 - 1; i >= 0; i--)
        heap_sink(heap, count, i);
    for (int64_t i = count; i < sampler->vocab_count; i++) {
        /* An equal logit has a higher id than all in the heap: it ranks behind. */
        if (logits[i] > heap[0].logit) {
            heap[0] = (struct candidate){logits[i], (int32_t)i};
            heap_sink(heap, count, 0);
        }
    }
    qsort(heap, (size_t)count, sizeof *heap, compare_rank);
    return count;
}

#define LARGEST_BLOCK 256

/* Looks closely only at blocks that hold a larger one, which soon are few. */
static int32_t largest(const float *logits, int64_t count)
{
    int64_t best = 0;
    for (int64_t first = 0; first < count; first += LARGEST_BLOCK) {
        int64_t end = first + LARGEST_BLOCK < count ? first + LARGEST_BLOCK : count;
        const float most = logits[best];
        int is_here = 0;
        for (int64_t i = first; i < end; i++)
            is_here |= logits[i] > most;
        for (int64_t i = first; is_here && i < end; i++) {
            if (logits[i] > logits[best])
                best = i;
        }
    }
    return (int32_t)best;
}

/* The running winner. */
struct race {
    struct draw draw;
    double best;
    int32_t id;
};

static void race_enter(struct race *race, float logit, int32_t id)
{
    if (race->id >= 0 && !draw_may_pass(&race->draw, logit, id, race->best))
        return;
    double score = draw_score(&race->draw, logit, id);
    if (race->id < 0 || score > race->best) {
        race->best = score;
        race->id = id;
    }
}

static int32_t choose_from_all(const struct sampler *sampler, const float *logits,
                               const struct sampler_choice *choice)
{
    struct race race = {.draw = sampler_draw(choice), .id = -1};
    for (int64_t i = 0; i < sampler->vocab_count; i++)
        race_enter(&race, logits[i], (int32_t)i);
    return race.id;
}

/* exp of the logit's distance from the largest at the temperature: an unnormalised probability. */
static double mass_of(const struct sampler_choice *choice, float logit, float most)
{
    return exp(((double)logit - (double)most) / choice->temperature);
}

/* How many of the ranked candidates hold top_p of `total`; 0 when these `count` do not. */
static int64_t nucleus(const struct candidate *ranked, int64_t count, double total,
                       const struct sampler_choice *choice)
{
    double held = 0;
    for (int64_t i = 0; i < count; i++) {
        held += mass_of(choice, ranked[i].logit, ranked[0].logit);
        if (held >= choice->top_p * total)
            return i + 1;
    }
    return 0;
}

static double mass_sum(const struct candidate *ranked, int64_t count,
                       const struct sampler_choice *choice)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += mass_of(choice, ranked[i].logit, ranked[0].logit);
    return sum;
}

/* At most so many tokens are left. */
static int64_t limit_of(const struct sampler_choice *choice, int64_t vocab_count)
{
    return choice->top_k > 0 && choice->top_k < vocab_count ? choice->top_k : vocab_count;
}

/* The lowest logit that min_p leaves, less the highest. */
static double floor_of(const struct sampler_choice *choice)
{
    return choice->min_p > 0 ? log(choice->min_p) * choice->temperature : -INFINITY;
}

/* How many of the ranked candidates the limits keep; 0: these `count` do not tell. `all` is the
 * mass of the whole vocabulary above the floor, on the highest logit, or NaN: not known. With top_k
 * the mass is that of its tokens alone, all of which then are ranked. */
static int64_t kept_of(const struct candidate *ranked, int64_t count, int64_t vocab_count,
                       double all, const struct sampler_choice *choice)
{
    const int64_t limit = limit_of(choice, vocab_count);
    const double floor = floor_of(choice);
    int64_t above = count;
    while (above > 1 && (double)ranked[above - 1].logit - (double)ranked[0].logit < floor)
        above--;
    bool is_all = count == limit || above < count;
    if (choice->top_p >= 1)
        return is_all ? above : 0;
    bool is_whole = limit == vocab_count && !isnan(all);
    double total = is_whole ? all : is_all ? mass_sum(ranked, above, choice) : (double)NAN;
    int64_t kept = nucleus(ranked, above, total, choice);
    return kept > 0 || !is_all ? kept : above; /* rounding: all hold a hair less than top_p */
}

/* Of all logits that are not below the floor. */
static double mass_of_all(const float *logits, int64_t count, const struct sampler_choice *choice)
{
    const float most = logits[largest(logits, count)];
    const double floor = floor_of(choice);
    double all = 0;
    for (int64_t i = 0; i < count; i++) {
        if ((double)logits[i] - (double)most >= floor)
            all += mass_of(choice, logits[i], most);
    }
    return all;
}

/* Ranks as many candidates as the limits can keep, and says how many they keep. */
static int64_t keep_candidates(struct sampler *sampler, const float *logits,
                               const struct sampler_choice *choice, const struct candidate **ranked)
{
    const int64_t vocab = sampler->vocab_count, limit = limit_of(choice, vocab);
    double all = limit == vocab ? mass_of_all(logits, vocab, choice) : (double)NAN;
    /* The nucleus is mostly small: rank few first, more when they do not hold the mass. */
    for (int64_t wanted = limit < vocab || limit < 256 ? limit : 256;; wanted *= 8) {
        int64_t count = sampler_top(sampler, logits, wanted < limit ? wanted : limit, ranked);
        int64_t kept = kept_of(*ranked, count, vocab, all, choice);
        if (kept > 0)
            return kept;
    }
}

static int32_t race_run(const struct candidate *ranked, int64_t count,
                        const struct sampler_choice *choice)
{
    struct race race = {.draw = sampler_draw(choice), .id = -1};
    for (int64_t i = 0; i < count; i++)
        race_enter(&race, ranked[i].logit, ranked[i].at);
    return race.id;
}

int32_t sampler_choose_among(const struct candidates *candidates, int64_t vocab_count,
                             const struct sampler_choice *choice)
{
    const int64_t limit = limit_of(choice, vocab_count);
    ASSERT(candidates->count > 0);
    if (sampler_is_greedy(choice))
        return candidates->top[0].at;
    int64_t count = candidates->count < limit ? candidates->count : limit;
    double all = choice->min_p > 0 ? (double)NAN : candidates->mass;
    int64_t kept = kept_of(candidates->top, count, vocab_count, all, choice);
    return kept > 0 ? race_run(candidates->top, kept, choice) : -1;
}

int32_t sampler_choose(struct sampler *sampler, const float *logits,
                       const struct sampler_choice *choice)
{
    if (sampler_is_greedy(choice))
        return largest(logits, sampler->vocab_count);
    if (sampler_is_unlimited(choice, sampler->vocab_count))
        return choose_from_all(sampler, logits, choice);
    const struct candidate *ranked;
    int64_t count = keep_candidates(sampler, logits, choice, &ranked);
    return race_run(ranked, count, choice);
}
