/* Angles against formulas written down again, in double precision. The angle itself is an f32
 * (position x frequency, as transformers has it), so cos and sin may be off by half a unit of the
 * angle (2^-24 x angle), as much again for the rounded frequency, and their own rounding. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "exec/exec_state.h"

#define DIM    64
#define TWO_PI 6.283185307179586

static void check_table(const struct model_config *config, const struct rope_table *table,
                        const double *frequency, double factor)
{
    static const struct {
        int64_t count, position;
    } segments_of[] = {{3, 0}, {2, 100}, {1, 5000}, {1, 131071}};
    static float rope[7 * DIM];
    struct segment segments[4];
    int64_t row = 0;
    for (int s = 0; s < 4; s++) {
        segments[s] = (struct segment){.first_row = row,
                                       .token_count = segments_of[s].count,
                                       .first_position = segments_of[s].position};
        row += segments_of[s].count;
    }
    memset(rope, 0xFF, sizeof rope);
    rope_fill(rope, config, table, segments, 4);
    for (int s = 0; s < 4; s++) {
        for (int64_t t = 0; t < segments[s].token_count; t++) {
            const float *found = rope + (segments[s].first_row + t) * DIM;
            for (int i = 0; i < DIM / 2; i++) {
                double angle = (double)(segments[s].first_position + t) * frequency[i];
                double bound = factor * (2 * angle + 2) * 0x1p-24;
                cr_assert(fabs(found[i] - factor * cos(angle)) <= bound &&
                              fabs(found[i + DIM / 2] - factor * sin(angle)) <= bound,
                          "position %lld, pair %d: %g %g instead of %g %g",
                          (long long)(segments[s].first_position + t), i, (double)found[i],
                          (double)found[i + DIM / 2], factor * cos(angle), factor * sin(angle));
            }
        }
    }
}

/* Computed; with a table that ends within a segment, then behind two, then at its limit. */
static void check_angles(const struct model_config *config, const double *frequency, double factor)
{
    static const int64_t counts[] = {0, 1, 101, 4000, 200000};
    struct rope_table table = {0};
    struct error err;
    cr_assert_eq(rope_table_init(&table, config, &err), STATUS_OK);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        rope_table_extend(&table, config, counts[i]);
        cr_assert(table.count >= counts[i] || table.count * DIM * 4 == 16 << 20);
        if (i == 2)
            table.count = 101; /* as if it had ended here, but for its rows */
        check_table(config, &table, frequency, factor);
    }
    rope_table_deinit(&table);
}

static struct model_config config_of(enum rope_kind kind, double theta)
{
    return (struct model_config){
        .head_dim = DIM,
        .position_count_max = 1 << 20,
        .rope = {.kind = kind, .theta = theta, .factor = 1, .attention_factor = 1}};
}

static void plain_frequencies(double *frequency, double theta)
{
    for (int i = 0; i < DIM / 2; i++)
        frequency[i] = 1 / pow(theta, 2.0 * i / DIM);
}

Test(rope, plain)
{
    double frequency[DIM / 2];
    static struct model_config config;
    static const double thetas[] = {1e4, 1e6, 1e7};
    for (int i = 0; i < 3; i++) {
        config = config_of(ROPE_PLAIN, thetas[i]);
        plain_frequencies(frequency, thetas[i]);
        check_angles(&config, frequency, 1);
    }
}

Test(rope, linear)
{
    double frequency[DIM / 2];
    static struct model_config config;
    config = config_of(ROPE_LINEAR, 1e4);
    config.rope.factor = 4;
    plain_frequencies(frequency, 1e4);
    for (int i = 0; i < DIM / 2; i++)
        frequency[i] /= 4;
    check_angles(&config, frequency, 1);
}

/* Source: Peng et al., "YaRN", 2023: r(d) turns of dimension d in the original context; below
 * beta_slow turns divided by the factor, above beta_fast kept, linear in d between the dimensions
 * where these hold (the form of transformers). */
Test(rope, yarn)
{
    static struct model_config config;
    for (int truncate = 0; truncate < 2; truncate++) {
        double frequency[DIM / 2];
        config = config_of(ROPE_YARN, 1e6);
        config.rope.factor = 4;
        config.rope.attention_factor = 0.1 * log(4) + 1;
        config.rope.beta_fast = 32;
        config.rope.beta_slow = 1;
        config.rope.original_max_positions = 32768;
        config.rope.truncate = truncate;
        plain_frequencies(frequency, 1e6);
        double low = DIM * log(32768 / (32 * TWO_PI)) / (2 * log(1e6));
        double high = DIM * log(32768 / TWO_PI) / (2 * log(1e6));
        cr_assert(low > 0 && high < DIM - 1); /* no clamping in this case */
        if (truncate) {
            low = floor(low);
            high = ceil(high);
        }
        int kept = 0, divided = 0;
        for (int i = 0; i < DIM / 2; i++) {
            double share = i <= low ? 0 : i >= high ? 1 : (i - low) / (high - low);
            kept += share == 0;
            divided += share == 1;
            frequency[i] *= 1 - share + share / 4;
        }
        cr_assert(kept > 0 && divided > 0 && kept + divided < DIM / 2);
        check_angles(&config, frequency, config.rope.attention_factor);
    }
}

/* The form of Llama 3.1's own code. */
Test(rope, llama3)
{
    static struct model_config config;
    double frequency[DIM / 2];
    config = config_of(ROPE_LLAMA3, 5e5);
    config.rope.factor = 8;
    config.rope.low_freq_factor = 1;
    config.rope.high_freq_factor = 4;
    config.rope.original_max_positions = 8192;
    plain_frequencies(frequency, 5e5);
    int kinds[3] = {0};
    for (int i = 0; i < DIM / 2; i++) {
        double turns = 8192 * frequency[i] / TWO_PI;
        double smooth = turns < 1 ? 0 : turns > 4 ? 1 : (turns - 1) / (4 - 1);
        kinds[smooth == 0 ? 0 : smooth == 1 ? 2 : 1]++;
        frequency[i] *= (1 - smooth) / 8 + smooth;
    }
    cr_assert(kinds[0] > 0 && kinds[1] > 0 && kinds[2] > 0);
    check_angles(&config, frequency, 1);
}
