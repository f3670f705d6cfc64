/* Angles of the rotary position embedding, as transformers computes them (f32 frequencies, f32
 * angles), for the kinds of scaling in enum rope_kind. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "exec/exec_state.h"

#define TWO_PI    6.283185307179586
#define PAIRS_MAX 256 /* head_dim is at most 512 */

/* 32,768 positions of heads of 128; rows behind them are computed in each pass. */
#define TABLE_BYTES_MAX ((size_t)16 << 20)
#define TABLE_STEP      256 /* positions that are computed at a time: of decode, many steps' */

/* The dimension at which `rotations` full turns fit the original context. Source: Peng et al.,
 * "YaRN: Efficient context window extension of large language models", 2023, equation 17 solved
 * for the dimension. */
static double yarn_dimension(const struct rope_config *rope, int64_t head_dim, double rotations)
{
    return (double)head_dim * log(rope->original_max_positions / (rotations * TWO_PI)) /
           (2.0 * log(rope->theta));
}

/* Frequencies that turn often stay (extrapolation), slow ones are divided by the factor
 * (interpolation), with a ramp between. */
static void yarn_frequencies(double *frequency, const struct rope_config *rope, int64_t head_dim)
{
    double low = yarn_dimension(rope, head_dim, rope->beta_fast);
    double high = yarn_dimension(rope, head_dim, rope->beta_slow);
    if (rope->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, (double)head_dim - 1);
    if (low == high)
        high += 0.001;
    for (int64_t i = 0; i < head_dim / 2; i++) {
        double ramp = fmin(fmax(((double)i - low) / (high - low), 0), 1);
        frequency[i] = frequency[i] / rope->factor * ramp + frequency[i] * (1 - ramp);
    }
}

/* Llama 3.1: by wavelength against the original context. */
static void llama3_frequencies(double *frequency, const struct rope_config *rope, int64_t head_dim)
{
    double low_wavelength = rope->original_max_positions / rope->low_freq_factor;
    double high_wavelength = rope->original_max_positions / rope->high_freq_factor;
    for (int64_t i = 0; i < head_dim / 2; i++) {
        double wavelength = TWO_PI / frequency[i];
        double scaled = frequency[i] / rope->factor;
        double smooth = (rope->original_max_positions / wavelength - rope->low_freq_factor) /
                        (rope->high_freq_factor - rope->low_freq_factor);
        if (wavelength > low_wavelength)
            frequency[i] = scaled;
        else if (wavelength >= high_wavelength)
            frequency[i] = (1 - smooth) * scaled + smooth * frequency[i];
    }
}

static void rope_frequencies(float *out, const struct rope_config *rope, int64_t head_dim)
{
    double frequency[PAIRS_MAX];
    for (int64_t i = 0; i < head_dim / 2; i++)
        frequency[i] = pow(rope->theta, -2.0 * (double)i / (double)head_dim);
    if (rope->kind == ROPE_LINEAR) {
        for (int64_t i = 0; i < head_dim / 2; i++)
            frequency[i] /= rope->factor;
    } else if (rope->kind == ROPE_YARN) {
        yarn_frequencies(frequency, rope, head_dim);
    } else if (rope->kind == ROPE_LLAMA3) {
        llama3_frequencies(frequency, rope, head_dim);
    }
    for (int64_t i = 0; i < head_dim / 2; i++)
        out[i] = (float)frequency[i];
}

/* Positions first .. end - 1, one row behind another. */
static void rows_compute(float *out, const struct model_config *config, int64_t first, int64_t end)
{
    float frequency[PAIRS_MAX];
    int64_t half = config->head_dim / 2;
    float factor = (float)config->rope.attention_factor;
    ASSERT(half <= PAIRS_MAX);
    if (first < end)
        rope_frequencies(frequency, &config->rope, config->head_dim);
    for (int64_t position = first; position < end; position++, out += config->head_dim) {
        for (int64_t i = 0; i < half; i++) {
            out[i] = cosf((float)position * frequency[i]) * factor;
            out[half + i] = sinf((float)position * frequency[i]) * factor;
        }
    }
}

enum status rope_table_init(struct rope_table *table, const struct model_config *config,
                            struct error *err)
{
    int64_t most = (int64_t)TABLE_BYTES_MAX / (int64_t)sizeof *table->rows / config->head_dim;
    table->count_max = config->position_count_max < most ? config->position_count_max : most;
    return memory_get_raw((void **)&table->rows, (size_t)(table->count_max * config->head_dim),
                          sizeof *table->rows, "rotary embeddings", err);
}

void rope_table_extend(struct rope_table *table, const struct model_config *config, int64_t count)
{
    int64_t wanted = round_up(count, TABLE_STEP);
    int64_t end = wanted < table->count_max ? wanted : table->count_max;
    if (end <= table->count)
        return;
    rows_compute(table->rows + table->count * config->head_dim, config, table->count, end);
    table->count = end;
}

void rope_table_deinit(struct rope_table *table)
{
    memory_free(table->rows);
}

void rope_fill(float *rope, const struct model_config *config, const struct rope_table *table,
               const struct segment *segments, int64_t segment_count)
{
    int64_t row = config->head_dim;
    for (int64_t s = 0; s < segment_count; s++) {
        int64_t first = segments[s].first_position, end = first + segments[s].token_count;
        int64_t known = end < table->count ? end : table->count;
        float *out = rope + segments[s].first_row * row;
        if (first >= known)
            known = first;
        else
            memcpy(out, table->rows + first * row, (size_t)((known - first) * row) * sizeof *out);
        rows_compute(out + (known - first) * row, config, known, end);
    }
}
