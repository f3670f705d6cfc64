#include "exec/sampler.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/random.h"

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
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
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

/* The running winner of logit / temperature - log(-log(u)). */
struct race {
    const struct sampler_choice *choice;
    double best;
    int32_t id;
};

static void race_enter(struct race *race, float logit, int32_t id)
{
    double scaled = (double)logit / race->choice->temperature;
    double u = random_unit(random_at(race->choice->seed, race->choice->position, (uint64_t)id));
    /* -log(u) >= 1 - u: whoever fails this cannot win, and two logarithms are saved. */
    if (race->id >= 0 && 1 - u >= exp(scaled - race->best))
        return;
    double score = scaled - log(-log(u));
    if (race->id < 0 || score > race->best) {
        race->best = score;
        race->id = id;
    }
}

static int32_t choose_from_all(const struct sampler *sampler, const float *logits,
                               const struct sampler_choice *choice)
{
    struct race race = {.choice = choice, .id = -1};
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

/* Ranks as many candidates as the limits can keep, and says how many they keep. */
static int64_t keep_candidates(struct sampler *sampler, const float *logits,
                               const struct sampler_choice *choice, const struct candidate **ranked)
{
    int64_t vocab = sampler->vocab_count;
    int64_t limit = choice->top_k > 0 && choice->top_k < vocab ? choice->top_k : vocab;
    double log_floor = choice->min_p > 0 ? log(choice->min_p) * choice->temperature : -INFINITY;
    double all = 0;
    if (limit == vocab) {
        float most = logits[largest(logits, vocab)];
        for (int64_t i = 0; i < vocab; i++) {
            if ((double)logits[i] - (double)most >= log_floor)
                all += mass_of(choice, logits[i], most);
        }
    }
    /* The nucleus is mostly small: rank few first, more when they do not hold the mass. With top_k
     * the mass is that of its tokens, so that all of them are ranked. */
    for (int64_t wanted = limit < vocab || limit < 256 ? limit : 256;; wanted *= 8) {
        int64_t count = sampler_top(sampler, logits, wanted < limit ? wanted : limit, ranked);
        int64_t above = count;
        while (above > 1 &&
               (double)(*ranked)[above - 1].logit - (double)(*ranked)[0].logit < log_floor)
            above--;
        double total = limit == vocab ? all : mass_sum(*ranked, above, choice);
        bool is_all = count == limit || above < count;
        if (choice->top_p >= 1 && is_all)
            return above;
        int64_t kept = choice->top_p < 1 ? nucleus(*ranked, above, total, choice) : 0;
        if (kept > 0)
            return kept;
        if (is_all) /* rounding: all of them hold a hair less than top_p */
            return above;
    }
}

int32_t sampler_choose(struct sampler *sampler, const float *logits,
                       const struct sampler_choice *choice)
{
    if (sampler_is_greedy(choice))
        return largest(logits, sampler->vocab_count);
    bool limited = (choice->top_k > 0 && choice->top_k < sampler->vocab_count) ||
                   choice->top_p < 1 || choice->min_p > 0;
    if (!limited)
        return choose_from_all(sampler, logits, choice);
    const struct candidate *ranked;
    int64_t count = keep_candidates(sampler, logits, choice, &ranked);
    struct race race = {.choice = choice, .id = -1};
    for (int64_t i = 0; i < count; i++)
        race_enter(&race, ranked[i].logit, ranked[i].id);
    return race.id;
}
