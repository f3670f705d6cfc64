/* Parts of a batch that are worth plans of their own.
 *
 * Under one plan rows of very different lengths run in classes (plan_answer.h), and attention's
 * layout, prefill's experts and the size of a pass are the same for all. Where the classes of a
 * large batch would each have another plan, they are run one after another, and between them all
 * weights are loaded anew. */
#ifndef PHASOR_ENGINE_PLAN_PARTS_H
#define PHASOR_ENGINE_PLAN_PARTS_H

#include "base/text.h"
#include "engine/plan_answer.h"

struct plan_part {
    unsigned bins;                   /* of the question's mix, each a bit */
    struct plan_load load;           /* means */
    int index;                       /* of its plan among a table's candidates, whatever the load */
    struct plan_candidate candidate; /* that it runs under, from its first row to its last */
    double reload;                   /* seconds in which all weights come to lie as that has them */
};

struct plan_parts {
    int count; /* 0: under one plan all is done as soon */
    struct plan_part of[PLAN_BINS_MAX];
    double seconds;  /* of all, with what is loaded between them */
    double reloaded; /* of them for that: of all parts but the first */
};

/* `one` is the candidate that the question's answer has for all rows: which rows are parts is found
 * with passes of its size, and then each has its own. Parts are taken where they are sooner done by
 * more than 2 %. Decode is on the weights of an INT4 backup in all parts or in none. Of a question
 * that is one of a queue, has one class, or whose prompts find more than a hundredth of them
 * computed by others, there are none. */
enum status plan_parts_find(struct plan_parts *out, const struct plan_question *question,
                            const struct plan_candidate *one, struct error *err) MUST_CHECK;

/* "16 of 4 prompt and 60 output tokens under tp2|tp2 in 1.3 s": appended. */
void plan_part_tell(struct text *out, const struct plan_part *part);

/* Classes of rows for parts: those of the first part come first. `class_end` has of each part the
 * class behind its last. Where nothing moves in a part, rows with much longer answers are classes
 * before the others; in waves a part is one class. */
void plan_parts_classes(struct plan_classes *out, int class_end[PLAN_BINS_MAX],
                        const struct plan_parts *parts, const struct plan_mix *mix);

#endif
