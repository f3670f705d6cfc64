#include "bench_stats.h"

#include <math.h>
#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(const double *sorted, int count, double share)
{
    double at = share * (count - 1);
    int below = (int)at;
    int above = below + 1 < count ? below + 1 : below;
    return sorted[below] + (at - below) * (sorted[above] - sorted[below]);
}

struct bench_spread bench_spread_of(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, by_value);
    double median = quantile(values, count, 0.5);
    double width = quantile(values, count, 0.75) - quantile(values, count, 0.25);
    return (struct bench_spread){median, median > 0 ? width / median : 0};
}

/* Student's t beyond which 2.5 % lie, by degrees of freedom from 1 on; then nearly the normal. */
static double student(int freedom)
{
    static const double values[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306,
                                    2.262,  2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
                                    2.110,  2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064,
                                    2.060,  2.056, 2.052, 2.048, 2.045, 2.042};
    int count = (int)(sizeof values / sizeof *values);
    return freedom <= count ? values[freedom - 1] : 1.96 + 2.5 / freedom;
}

struct bench_ratio bench_ratio_of(const double *first, const double *second, int count)
{
    double sum = 0, squares = 0;
    for (int i = 0; i < count; i++)
        sum += log(first[i] / second[i]);
    double mean = sum / count;
    for (int i = 0; i < count; i++) {
        double off = log(first[i] / second[i]) - mean;
        squares += off * off;
    }
    if (count < 2)
        return (struct bench_ratio){exp(mean), 0, INFINITY};
    double half = student(count - 1) * sqrt(squares / (count - 1) / count);
    return (struct bench_ratio){exp(mean), exp(mean - half), exp(mean + half)};
}

struct bench_ratio bench_ratio_range(double *first, const double *second, int count)
{
    for (int i = 0; i < count; i++)
        first[i] /= second[i];
    double median = bench_spread_of(first, count).median;
    if (count < 2)
        return (struct bench_ratio){median, 0, INFINITY};
    return (struct bench_ratio){median, first[0], first[count - 1]};
}
