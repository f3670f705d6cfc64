#include "planner/plan_mix.h"

#include <math.h>
#include <string.h>

/* ---- Cells ----------------------------------------------------------------------------------- */

static int cell_of_length(double tokens)
{
    int cell = tokens > 1 ? (int)log2(tokens) : 0;
    return cell < PLAN_CELLS ? cell : PLAN_CELLS - 1;
}

int plan_cell_of(double prompt_tokens, double output_tokens)
{
    return cell_of_length(prompt_tokens) * PLAN_CELLS + cell_of_length(output_tokens);
}

void plan_cell_add(struct plan_cell *to, const struct plan_cell *more)
{
    to->sequences += more->sequences;
    to->prompt_tokens += more->prompt_tokens;
    to->output_tokens += more->output_tokens;
    to->output_squares += more->output_squares;
    to->found_tokens += more->found_tokens;
    to->lent_tokens += more->lent_tokens;
}

/* What all of a cell's sequences find may have been computed, and found before, by those of others.
 */
static struct plan_shared shared_of(const struct plan_cell *sum)
{
    if (sum->found_tokens == 0)
        return (struct plan_shared){.tokens = 0};
    return (struct plan_shared){
        .tokens = sum->found_tokens / sum->sequences,
        .sharers = 1 + fmin(sum->found_tokens / sum->lent_tokens, sum->sequences),
    };
}

static double deviation_of(const struct plan_cell *sum)
{
    double mean = sum->output_tokens / sum->sequences;
    return sqrt(fmax(sum->output_squares / sum->sequences - mean * mean, 0));
}

/* A sequence has at least a token of each kind, and both are no longer than the context. */
struct plan_load plan_cell_load(const struct plan_cell *sum, double sequences, int64_t context_max)
{
    double context = (double)context_max;
    double prompt = fmin(ceil(sum->prompt_tokens / sum->sequences), context - 1);
    double output = fmin(ceil(sum->output_tokens / sum->sequences), context - prompt);
    return (struct plan_load){
        .sequences = (int64_t)fmax(1, floor(sequences + 0.5)),
        .prompt_tokens = (int64_t)fmax(1, prompt),
        .output_tokens = (int64_t)fmax(1, output),
        .output_deviation = deviation_of(sum),
        .shared = shared_of(sum),
    };
}

/* ---- What is near ---------------------------------------------------------------------------- */

/* How many times as long, of both lengths. */
static double distance(const struct plan_cell *a, const struct plan_cell *b)
{
    double prompt = a->prompt_tokens / a->sequences / (b->prompt_tokens / b->sequences);
    double output = a->output_tokens / a->sequences / (b->output_tokens / b->sequences);
    return fabs(log(prompt)) + fabs(log(output));
}

/* Some cells as one: `of` says which of the cells it has. */
struct heap {
    struct plan_cell sum;
    int number;
};

static void heaps_join(struct heap *heaps, int *count, int kept, int gone)
{
    plan_cell_add(&heaps[kept].sum, &heaps[gone].sum);
    heaps[gone] = heaps[--*count];
}

static int nearest_of(const struct heap *heaps, int count, int one)
{
    int nearest = -1;
    for (int i = 0; i < count; i++) {
        if (i != one && (nearest < 0 || distance(&heaps[i].sum, &heaps[one].sum) <
                                            distance(&heaps[nearest].sum, &heaps[one].sum)))
            nearest = i;
    }
    return nearest;
}

static int lightest_of(const struct heap *heaps, int count)
{
    int lightest = 0;
    for (int i = 1; i < count; i++) {
        const struct plan_cell *sum = &heaps[i].sum, *least = &heaps[lightest].sum;
        if (sum->prompt_tokens + sum->output_tokens < least->prompt_tokens + least->output_tokens)
            lightest = i;
    }
    return lightest;
}

/* ---- Bins ------------------------------------------------------------------------------------ */

/* Indices of heaps, of rising answers. */
static void order_by_answers(int *out, const struct heap *heaps, int count)
{
    for (int i = 0; i < count; i++) {
        const struct plan_cell *sum = &heaps[i].sum;
        int at = i;
        for (; at > 0; at--) {
            const struct plan_cell *before = &heaps[out[at - 1]].sum;
            if (before->output_tokens / before->sequences <= sum->output_tokens / sum->sequences)
                break;
            out[at] = out[at - 1];
        }
        out[at] = i;
    }
}

void plan_mix_make(struct plan_mix *out, const struct plan_cells *cells, int64_t sequences,
                   int64_t context_max)
{
    struct heap heaps[PLAN_CELLS * PLAN_CELLS];
    int heap_of[PLAN_CELLS * PLAN_CELLS], order[PLAN_CELLS * PLAN_CELLS], count = 0;
    double counted = 0;
    *out = (struct plan_mix){0};
    for (int i = 0; i < PLAN_CELLS * PLAN_CELLS; i++) {
        bool has_any = cells->of[i].sequences > 0;
        heap_of[i] = has_any ? i : -1;
        if (has_any)
            heaps[count++] = (struct heap){cells->of[i], i};
        counted += cells->of[i].sequences;
    }
    while (count > PLAN_BINS_MAX) {
        int gone = lightest_of(heaps, count), kept = nearest_of(heaps, count, gone);
        for (int i = 0; i < PLAN_CELLS * PLAN_CELLS; i++) {
            if (heap_of[i] == heaps[gone].number)
                heap_of[i] = heaps[kept].number;
        }
        heaps_join(heaps, &count, kept, gone);
    }
    order_by_answers(order, heaps, count);
    memset(out->bin_of, -1, sizeof out->bin_of);
    for (int bin = 0; bin < count; bin++) {
        const struct heap *heap = &heaps[order[bin]];
        out->bins[bin] = plan_cell_load(
            &heap->sum, heap->sum.sequences * (double)sequences / counted, context_max);
        for (int i = 0; i < PLAN_CELLS * PLAN_CELLS; i++) {
            if (heap_of[i] == heap->number)
                out->bin_of[i] = (int8_t)bin;
        }
    }
    out->bin_count = count;
}

/* ---- Classes --------------------------------------------------------------------------------- */

static struct plan_cell sum_of(const struct plan_load *load)
{
    double sequences = (double)load->sequences, found = sequences * load->shared.tokens;
    double output = (double)load->output_tokens, deviation = load->output_deviation;
    return (struct plan_cell){
        .sequences = sequences,
        .prompt_tokens = sequences * (double)load->prompt_tokens,
        .output_tokens = sequences * output,
        .output_squares = sequences * (output * output + deviation * deviation),
        .found_tokens = found,
        .lent_tokens = found > 0 ? found / (load->shared.sharers - 1) : 0,
    };
}

void plan_classes_make(struct plan_classes *out, const struct plan_mix *mix, int count)
{
    struct heap heaps[PLAN_BINS_MAX];
    int heap_of[PLAN_BINS_MAX], order[PLAN_BINS_MAX], heap_count = mix->bin_count;
    for (int i = 0; i < heap_count; i++) {
        heaps[i] = (struct heap){sum_of(&mix->bins[i]), i};
        heap_of[i] = i;
    }
    while (heap_count > count) {
        int kept = 0, gone = nearest_of(heaps, heap_count, 0);
        for (int i = 1; i < heap_count; i++) {
            int nearest = nearest_of(heaps, heap_count, i);
            if (distance(&heaps[i].sum, &heaps[nearest].sum) <
                distance(&heaps[kept].sum, &heaps[gone].sum)) {
                kept = i;
                gone = nearest;
            }
        }
        for (int i = 0; i < mix->bin_count; i++) {
            if (heap_of[i] == heaps[gone].number)
                heap_of[i] = heaps[kept].number;
        }
        heaps_join(heaps, &heap_count, kept, gone);
    }
    order_by_answers(order, heaps, heap_count);
    *out = (struct plan_classes){.count = heap_count};
    for (int at = 0; at < heap_count; at++) {
        for (int i = 0; i < mix->bin_count; i++) {
            if (heap_of[i] == heaps[order[at]].number)
                out->of_bin[i] = heap_count - 1 - at;
        }
    }
}

/* Bins are of rising answers. */
void plan_classes_by_answers(struct plan_classes *out, const struct plan_mix *mix)
{
    *out = (struct plan_classes){.count = 1};
    int64_t longest = mix->bin_count > 0 ? mix->bins[mix->bin_count - 1].output_tokens : 0;
    for (int i = mix->bin_count - 1; i >= 0; i--) {
        if (2 * mix->bins[i].output_tokens <= longest) {
            out->count++;
            longest = mix->bins[i].output_tokens;
        }
        out->of_bin[i] = out->count - 1;
    }
}

unsigned plan_class_bins(const struct plan_classes *classes, const struct plan_mix *mix,
                         int class_index)
{
    unsigned bins = 0;
    for (int i = 0; i < mix->bin_count; i++)
        bins |= (unsigned)(classes->of_bin[i] == class_index) << i;
    return bins;
}

int plan_mix_take(struct plan_load out[PLAN_BINS_MAX], const struct plan_mix *mix, unsigned bins)
{
    int count = 0;
    for (int i = 0; i < mix->bin_count; i++) {
        if ((bins >> i & 1) != 0)
            out[count++] = mix->bins[i];
    }
    return count;
}

struct plan_load plan_loads_mean(const struct plan_load *loads, int count, int64_t context_max)
{
    struct plan_cell sum = {0};
    for (int i = 0; i < count; i++) {
        struct plan_cell more = sum_of(&loads[i]);
        plan_cell_add(&sum, &more);
    }
    return plan_cell_load(&sum, sum.sequences, context_max);
}
