/* Sequences of different lengths: which are alike enough to run together.
 *
 * Where layouts change between the phases, a wave decodes until the longest of its answers is done,
 * by fewer and fewer sequences. So it matters who is in a wave with whom: sequences are counted in
 * cells of like lengths, cells become bins, and bins are dealt to classes that run one after
 * another. Of how many classes is for who prices them; in one there are all, in the order in which
 * they came. Pure functions. */
#ifndef PHASOR_PLANNER_PLAN_MIX_H
#define PHASOR_PLANNER_PLAN_MIX_H

#include "planner/planner.h"

#define PLAN_CELLS    24 /* of one kind of length, each up to twice as long as the one before */
#define PLAN_BINS_MAX 8

/* Of sequences by the logarithms of their prompts and answers: sums. */
struct plan_cell {
    double sequences, prompt_tokens, output_tokens;
    double output_squares;
    double found_tokens; /* of the prompts, that other sequences have computed before */
    double lent_tokens;  /* of the prompts, that others find; each counted once */
};

void plan_cell_add(struct plan_cell *to, const struct plan_cell *more);

/* The means, as so many sequences: rounded up, prompt and answer together no more than
 * context_max. The cell has sequences. */
struct plan_load plan_cell_load(const struct plan_cell *sum, double sequences, int64_t context_max);
struct plan_cells {
    struct plan_cell of[PLAN_CELLS * PLAN_CELLS];
};

/* Which cell lengths of at least one token belong to: an index of `of`. */
int plan_cell_of(double prompt_tokens, double output_tokens);

struct plan_mix {
    struct plan_load bins[PLAN_BINS_MAX];   /* means, of rising output_tokens */
    int bin_count;                          /* 0: there are no sequences */
    int8_t bin_of[PLAN_CELLS * PLAN_CELLS]; /* -1: no sequence is in that cell */
};

/* The cells with sequences, those with the fewest tokens joined to their nearest until there are no
 * more than bins. `sequences` is the number of all (cells may have counted a part of them), at
 * least 1; `context_max` bounds prompt and answer of each bin together. */
void plan_mix_make(struct plan_mix *out, const struct plan_cells *cells, int64_t sequences,
                   int64_t context_max);

/* A way to run them: class 0 first, with the longest answers. */
struct plan_classes {
    int count;
    int of_bin[PLAN_BINS_MAX];
};

/* `count` classes, 1 <= count <= mix->bin_count, each of bins that are nearest to one another. */
void plan_classes_make(struct plan_classes *out, const struct plan_mix *mix, int count);

/* Classes of bins whose answers are less than twice as long as others of theirs, whatever their
 * prompts: one for no bins. */
void plan_classes_by_answers(struct plan_classes *out, const struct plan_mix *mix);

/* Of the bins of one class the bits, that of bin i the i-th. */
unsigned plan_class_bins(const struct plan_classes *classes, const struct plan_mix *mix,
                         int class_index);

/* The bins of these bits, of rising output_tokens; returns how many. */
int plan_mix_take(struct plan_load out[PLAN_BINS_MAX], const struct plan_mix *mix, unsigned bins);

/* All of them: the sum of sequences, and the means of their lengths, rounded up; both together no
 * more than context_max. */
struct plan_load plan_loads_mean(const struct plan_load *loads, int count, int64_t context_max);

#endif
