#include <math.h>
#include <string.h>
#include <xxhash.h>

#include "base/random.h"
#include "model/synth_parts.h"

/* Four 16-bit numbers: mean of the sum 4 x 32767.5, variance 4 x (65536^2 - 1) / 12. */
#define SUM_MEAN      131070.0f
#define SUM_DEVIATION 37837.227f

static inline float value_at(struct synth_values values, uint64_t index)
{
    uint64_t bits = random_mix(values.seed + index);
    int32_t sum =
        (int32_t)((bits & 0xFFFF) + (bits >> 16 & 0xFFFF) + (bits >> 32 & 0xFFFF) + (bits >> 48));
    return values.mean + ((float)sum - SUM_MEAN) * (values.deviation / SUM_DEVIATION);
}

/* One loop for each type: this is where the time of `phasor synth` goes. */
void synth_fill(void *out, enum dtype dtype, const struct synth_values *given, uint64_t first,
                int64_t count)
{
    struct synth_values values = *given;
    float *out_32 = out;
    uint16_t *out_16 = out;
    values.seed += first;
    if (dtype == DTYPE_F32) {
        for (int64_t i = 0; i < count; i++)
            out_32[i] = value_at(values, (uint64_t)i);
    } else if (dtype == DTYPE_BF16) {
        for (int64_t i = 0; i < count; i++)
            out_16[i] = bf16_from_f32(value_at(values, (uint64_t)i));
    } else {
        for (int64_t i = 0; i < count; i++)
            out_16[i] = f16_from_f32(value_at(values, (uint64_t)i));
    }
}

static bool is_norm(enum weight weight)
{
    return weight == WEIGHT_FINAL_NORM || weight == WEIGHT_INPUT_NORM ||
           weight == WEIGHT_FFN_NORM || weight == WEIGHT_Q_NORM || weight == WEIGHT_K_NORM;
}

struct synth_values synth_values_of(enum weight weight, const int64_t *shape, int rank,
                                    const char *name, uint64_t seed)
{
    struct synth_values values = {
        /* Mixed once more, so that the streams of two tensors do not run into each other. */
        .seed = random_mix(XXH3_64bits_withSeed(name, strlen(name), seed)),
        .deviation = 0.02f,
    };
    if (is_norm(weight)) {
        values.mean = 1;
        values.deviation = 0.05f;
    } else if (rank > 1) {
        values.deviation = (float)(1 / sqrt((double)shape[rank - 1]));
    }
    return values;
}
