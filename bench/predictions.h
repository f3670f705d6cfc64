/* What a model predicts over a text, and how far two of its forms are apart. */
#ifndef PHASOR_BENCH_PREDICTIONS_H
#define PHASOR_BENCH_PREDICTIONS_H

#include <stdint.h>

#define PREDICTIONS_TOKENS  512 /* of a window, at most */
#define PREDICTIONS_WINDOWS 16

struct windows {
    int count, length[PREDICTIONS_WINDOWS];
    int32_t tokens[PREDICTIONS_WINDOWS][PREDICTIONS_TOKENS];
};

/* The bundled model's validation text by its ids (metrics.json in `dir`), or random ids where there
 * is none. */
void windows_read(struct windows *out, const char *dir, int64_t vocab_count);

/* Log probabilities of all tokens behind every token of the windows but the last, windows in order.
 */
struct predictions {
    int64_t row_count, vocab_count;
    float *logprobs;   /* [row_count][vocab_count] */
    char kernels[128]; /* that computed them: "cpu (avx512vnni)" */
};

/* How the model runs. */
enum predictions_way {
    PREDICTIONS_F32,    /* a window is a pass, in f32: weights are all that two models differ in */
    PREDICTIONS_DECODE, /* each pass has the next token of every window, as decode, in bf16 */
    PREDICTIONS_DECODE_INT4, /* the same with routed experts packed as INT4, groups of 64 */
};

/* Of the model in folder `dir`, on one CPU device. Ends the program where it cannot. */
void predictions_make(struct predictions *out, const char *dir, const struct windows *windows,
                      enum predictions_way way);
void predictions_free(struct predictions *predictions);

/* Means over positions. */
struct difference {
    double nll;        /* of the other */
    double divergence; /* KL(native, other) */
    double agreement;  /* share of positions whose likeliest token is the same */
};
struct difference predictions_compare(const struct predictions *native,
                                      const struct predictions *other,
                                      const struct windows *windows);

#endif
