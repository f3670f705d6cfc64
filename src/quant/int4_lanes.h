/* The loops of int4_search.c, included once for each instruction set, with
 *   LANES_CODE         what stands before each function: the instruction set it is compiled for
 *   LANES_NAME(name)   the name of a function for it
 *   LANES_MIN(a, b), LANES_MAX(a, b)
 * No guard: it is a text. Vectors are passed in memory: how they are in registers differs. */

/* The nearest whole number within the bounds. Adding 1.5 x 2^23 rounds to even. */
LANES_CODE static inline lanes LANES_NAME(nearest)(lanes x, lanes least, lanes most)
{
    x = LANES_MAX(x, least);
    x = LANES_MIN(x, most);
    return (x + 12582912.0f) - 12582912.0f;
}

/* The smallest and the largest value of each lane, and their sum; false as int4_search. */
LANES_CODE static bool LANES_NAME(extend)(struct extent *out, const struct int4_groups *groups)
{
    const float *at = groups->values;
    lanes least = lanes_at(at), most = least, sum = {0};
    lanes_i good = least == least;
    for (int64_t k = 0; k < groups->count; k++, at += groups->stride) {
        lanes value = lanes_at(at);
        good &= (value >= all(-INT4_VALUE_MAX)) & (value <= all(INT4_VALUE_MAX));
        least = LANES_MIN(value, least);
        most = LANES_MAX(value, most);
        sum += value;
    }
    *out = (struct extent){least, most, sum};
    int32_t is_good = -1;
    for (int i = 0; i < INT4_LANES; i++)
        is_good &= good[i];
    return is_good != 0;
}

LANES_CODE static void LANES_NAME(ranges)(struct range *out, const struct extent *extent,
                                          const float *places, bool is_asymmetric)
{
    lanes least = extent->least, most = extent->most;
    lanes middle = (least + most) * 0.5f, half = (most - least) * 0.5f;
    lanes end = choose(most > -least, least, most);
    lanes_i is_zero = (end < all(VALUE_MIN)) & (end > all(-VALUE_MIN));
    for (int i = 0; i < PLACES_AT_ONCE; i++) {
        lanes reach = half * places[i];
        out[i].least = middle - reach; /* of no meaning for symmetric ones */
        if (is_asymmetric)
            out[i].factor = choose(reach < all(VALUE_MIN), 7.5f / reach, all(0));
        else
            out[i].factor = choose(is_zero, -places[i] / end, all(0));
    }
}

/* What PLACES_AT_ONCE symmetric ranges gain. */
LANES_CODE static void LANES_NAME(weigh_even)(struct gain *out, const struct range *ranges,
                                              const struct int4_groups *groups)
{
    const lanes least = all(-8), most = all(7);
    const lanes f0 = ranges[0].factor, f1 = ranges[1].factor;
    const lanes f2 = ranges[2].factor, f3 = ranges[3].factor;
    lanes p0 = {0}, p1 = {0}, p2 = {0}, p3 = {0}, s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    const float *at = groups->values;
    for (int64_t k = 0; k < groups->count; k++, at += groups->stride) {
        lanes value = lanes_at(at);
        lanes q0 = LANES_NAME(nearest)(value * f0, least, most);
        lanes q1 = LANES_NAME(nearest)(value * f1, least, most);
        lanes q2 = LANES_NAME(nearest)(value * f2, least, most);
        lanes q3 = LANES_NAME(nearest)(value * f3, least, most);
        p0 += value * q0, p1 += value * q1, p2 += value * q2, p3 += value * q3;
        s0 += q0 * q0, s1 += q1 * q1, s2 += q2 * q2, s3 += q3 * q3;
    }
    out[0] = (struct gain){.products = p0, .squares = s0};
    out[1] = (struct gain){.products = p1, .squares = s1};
    out[2] = (struct gain){.products = p2, .squares = s2};
    out[3] = (struct gain){.products = p3, .squares = s3};
}

/* The same of asymmetric ones. */
LANES_CODE static void LANES_NAME(weigh_uneven)(struct gain *out, const struct range *ranges,
                                                const struct int4_groups *groups)
{
    const lanes least = all(0), most = all(15);
    for (int i = 0; i < PLACES_AT_ONCE; i++) {
        const lanes from = ranges[i].least, factor = ranges[i].factor;
        lanes products = {0}, nibbles = {0}, squares = {0};
        const float *at = groups->values;
        for (int64_t k = 0; k < groups->count; k++, at += groups->stride) {
            lanes value = lanes_at(at) - from;
            lanes q = LANES_NAME(nearest)(value * factor, least, most);
            products += value * q;
            nibbles += q;
            squares += q * q;
        }
        out[i] = (struct gain){products, nibbles, squares};
    }
}

LANES_CODE static void LANES_NAME(weigh)(struct gain *out, const struct range *ranges,
                                         const struct int4_groups *groups, bool is_asymmetric)
{
    if (is_asymmetric)
        LANES_NAME(weigh_uneven)(out, ranges, groups);
    else
        LANES_NAME(weigh_even)(out, ranges, groups);
}

LANES_CODE static inline lanes LANES_NAME(to_bf16)(lanes value)
{
    lanes_u bits = (lanes_u)value;
    return (lanes)((bits + 0x7FFFu + (bits >> 16 & 1)) & 0xFFFF0000u);
}

/* Of each lane the best of all places. */
LANES_CODE static void LANES_NAME(search)(struct int4_scales *out, const struct extent *extent,
                                          const struct int4_groups *groups,
                                          const struct places *places, bool is_asymmetric)
{
    struct range ranges[PLACES_AT_ONCE];
    struct gain gains[PLACES_AT_ONCE];
    const lanes zero = {0};
    lanes mean = extent->sum / (float)groups->count;
    lanes best = zero, scale = zero, nibble_mean = zero, minimum = zero;
    for (int first = 0; first < places->count; first += PLACES_AT_ONCE) {
        LANES_NAME(ranges)(ranges, extent, places->at + first, is_asymmetric);
        LANES_NAME(weigh)(gains, ranges, groups, is_asymmetric);
        for (int i = 0; i < PLACES_AT_ONCE; i++) {
            lanes products = gains[i].products, squares = gains[i].squares;
            lanes nibbles = gains[i].nibbles / (float)groups->count;
            if (is_asymmetric) {
                products -= (mean - ranges[i].least) * gains[i].nibbles;
                squares -= gains[i].nibbles * nibbles;
            }
            lanes wanted = choose(squares > zero, zero, products / squares);
            lanes gain = wanted * products;
            lanes_i is_better = gain > best;
            best = choose(is_better, best, gain);
            scale = choose(is_better, scale, wanted);
            nibble_mean = choose(is_better, nibble_mean, nibbles);
        }
    }
    scale = LANES_NAME(to_bf16)(scale);
    if (is_asymmetric)
        minimum = LANES_NAME(to_bf16)(mean - scale * nibble_mean);
    *(lanes *)out->scale = scale;
    *(lanes *)out->minimum = minimum;
}

/* The nibbles, and the sums over what they stand for. */
LANES_CODE static void LANES_NAME(round)(uint8_t *nibbles, const struct rounding *with,
                                         const struct int4_groups *groups)
{
    const lanes least = all(0 - with->base), most = all(15 - with->base);
    const lanes scale = with->scale, inverse = with->inverse, minimum = with->minimum;
    const int64_t count = groups->count, stride = groups->stride;
    const float base = with->base;
    lanes product = {0}, before = {0}, after = {0};
    const float *at = groups->values;
    for (int64_t k = 0; k < count; k++, at += stride) {
        lanes value = lanes_at(at);
        lanes q = LANES_NAME(nearest)((value - minimum) * inverse, least, most);
        lanes found = scale * q + minimum;
        product += value * found;
        before += value * value;
        after += found * found;
        *(lanes_u8 *)(nibbles + k * INT4_LANES) =
            __builtin_convertvector(__builtin_convertvector(q + base, lanes_i), lanes_u8);
    }
    if (with->moments == NULL)
        return;
    *(lanes_f64 *)with->moments->product += __builtin_convertvector(product, lanes_f64);
    *(lanes_f64 *)with->moments->before += __builtin_convertvector(before, lanes_f64);
    *(lanes_f64 *)with->moments->after += __builtin_convertvector(after, lanes_f64);
}

#undef LANES_CODE
#undef LANES_NAME
#undef LANES_MIN
#undef LANES_MAX
