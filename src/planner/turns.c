#include "planner/turns.h"

#include <math.h>

/* Places that are free at the same step. A load makes at most one more of them: where its last
 * sequences take some of those that are free first. */
struct places {
    int64_t count;
    int64_t end;                     /* steps, until they are free */
    int64_t last_steps, last_prompt; /* of the sequence that is there then */
};

struct row {
    struct places of[TURNS_LOADS_MAX + 2]; /* of rising end */
    int count;
};

static void sort(struct row *row)
{
    for (int i = 1; i < row->count; i++) {
        struct places moved = row->of[i];
        int at = i;
        for (; at > 0 && row->of[at - 1].end > moved.end; at--)
            row->of[at] = row->of[at - 1];
        row->of[at] = moved;
    }
}

static void lengthen(struct places *places, const struct plan_load *load, int64_t rounds)
{
    places->last_steps = load->output_tokens - 1;
    places->last_prompt = load->prompt_tokens;
    places->end += rounds * places->last_steps;
}

/* Less than one for each of the places that are free before any would be free again. */
static void rest_place(struct row *row, const struct plan_load *load, int64_t rest)
{
    int i = 0;
    for (; rest >= row->of[i].count; i++) {
        rest -= row->of[i].count;
        lengthen(&row->of[i], load, 1);
    }
    if (rest == 0)
        return;
    ASSERT(row->count < TURNS_LOADS_MAX + 2);
    struct places *taken = &row->of[row->count++];
    *taken = row->of[i];
    taken->count = rest;
    row->of[i].count -= rest;
    lengthen(taken, load, 1);
}

/* Places that are free within the steps of one answer are taken in turn, until they meet the next.
 */
static void load_place(struct row *row, const struct plan_load *load)
{
    int64_t left = load->sequences, steps = load->output_tokens - 1;
    while (steps > 0 && left > 0) {
        int64_t first = row->of[0].end, together = 0, rounds;
        int kinds = 0;
        for (; kinds < row->count && row->of[kinds].end - first < steps; kinds++)
            together += row->of[kinds].count;
        rounds = left / together;
        if (rounds == 0) {
            rest_place(row, load, left);
            sort(row);
            return;
        }
        if (kinds < row->count && (row->of[kinds].end - first) / steps < rounds)
            rounds = (row->of[kinds].end - first) / steps;
        for (int i = 0; i < kinds; i++)
            lengthen(&row->of[i], load, rounds);
        left -= rounds * together;
        sort(row);
    }
}

/* Who is still there after `now` steps. */
static struct stretch stretch_from(const struct row *row, int64_t now)
{
    struct stretch stretch = {0};
    double tokens = 0;
    for (int i = row->count - 1; i >= 0 && row->of[i].end > now; i--) {
        const struct places *places = &row->of[i];
        int64_t done = now - (places->end - places->last_steps);
        stretch.running += places->count;
        stretch.steps = places->end - now;
        tokens += (double)places->count * (double)(places->last_prompt + done);
    }
    if (stretch.running > 0)
        stretch.context_tokens = (int64_t)ceil(tokens / (double)stretch.running);
    return stretch;
}

void turns_take(struct turns *out, const struct plan_load *loads, int count, int64_t places)
{
    struct row row = {.of = {{.count = places}}, .count = 1};
    ASSERT(count >= 1 && count <= TURNS_LOADS_MAX && places >= 1);
    *out = (struct turns){0};
    for (int i = count - 1; i >= 0; i--)
        load_place(&row, &loads[i]);
    for (int i = 0; i < row.count; i++) {
        int64_t begin = row.of[i].end - row.of[i].last_steps;
        out->full_steps = begin > out->full_steps ? begin : out->full_steps;
    }
    int64_t now = out->full_steps;
    for (;;) {
        struct stretch stretch = stretch_from(&row, now);
        if (stretch.running == 0)
            return;
        out->tail[out->tail_count++] = stretch;
        now += stretch.steps;
    }
}

/* Answers that begin together end over as many steps as an even distribution of that variance has;
 * at most over an answer's length, for then ends have nothing to do with one another. */
static double together_of(const struct plan_load *load, int64_t places, double variance)
{
    double there = (double)(load->sequences < places ? load->sequences : places);
    double steps = fmin(sqrt(12 * variance), (double)load->output_tokens);
    double at_step = there / fmax(steps, 1);
    if (steps < 1)
        return there;
    return at_step / (1 - exp(-at_step)); /* at steps at which somebody ends */
}

/* Each turn of a place adds the variance of its answer to that of the place's end. */
double turns_together(const struct plan_load *loads, int count, int64_t places)
{
    double left = 0, times = 0, variance = 0;
    for (int i = 0; i < count; i++)
        left += (double)loads[i].sequences;
    double waiting = fmax(left - (double)places, 0);
    left = waiting;
    for (int i = count - 1; i >= 0 && left > 0; i--) {
        double ended = fmin((double)loads[i].sequences, left);
        double of_turn = loads[i].output_deviation * loads[i].output_deviation;
        double turns = (double)loads[i].sequences / (double)places;
        double mean = variance + of_turn * (fmax(turns, 1) + 1) / 2;
        times += ended / together_of(&loads[i], places, mean);
        variance += of_turn * turns;
        left -= ended;
    }
    return waiting > 0 ? waiting / times : 0;
}

/* As many as make a pass, or a share of all places, or end within some steps, or wait. */
static int64_t entry_least(const struct plan_load *loads, int count, int64_t places,
                           int64_t pass_tokens)
{
    double sequences = 0, tokens = 0, steps = 0;
    for (int i = 0; i < count; i++) {
        double here = (double)loads[i].sequences;
        sequences += here;
        tokens += here * ((double)loads[i].prompt_tokens - loads[i].shared.tokens);
        steps += here * (double)loads[i].output_tokens;
    }
    double least = floor((double)places / PLAN_ENTRY_SHARE);
    least = fmin(least, ceil((double)pass_tokens * sequences / tokens));
    least = fmin(least, PLAN_ENTRY_PASSES * (double)places * sequences / steps);
    return (int64_t)fmin(least, sequences - (double)places);
}

struct entry turns_entry(const struct plan_load *loads, int count, int64_t places,
                         int64_t pass_tokens)
{
    double come = turns_together(loads, count, places);
    int64_t least = come > 0 ? entry_least(loads, count, places, pass_tokens) : 0;
    struct entry entry = {.together = (int64_t)fmax(round(come), 1), .running = places};
    if (least > entry.together) {
        /* From none that is free, but for who ends with others, to `least`, in even steps. */
        entry.running -= (int64_t)round(((double)least - come) / 2);
        entry.together = least;
    }
    return entry;
}
