/* Medians, spreads, and how sure a ratio is. */
#ifndef PHASOR_CLI_BENCH_STATS_H
#define PHASOR_CLI_BENCH_STATS_H

/* Of `count` > 0 values, which it sorts; spread: from the first quartile to the third, relative to
 * the median (quartiles by linear interpolation). */
struct bench_spread {
    double median, spread;
};
struct bench_spread bench_spread_of(double *values, int count);

/* Of pairs that were measured next to each other, how many times as long the first took as the
 * second: the geometric mean of the ratios, and its interval of 95 % by Student's t over their
 * logarithms. With one pair there is no interval: low is 0 and high infinite. */
struct bench_ratio {
    double middle, low, high;
};
struct bench_ratio bench_ratio_of(const double *first, const double *second, int count);

/* Of the same the median, the least and the most (with one pair as above); count > 0. `first` is
 * written over. */
struct bench_ratio bench_ratio_range(double *first, const double *second, int count);

#endif
