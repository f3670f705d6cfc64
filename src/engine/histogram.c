#include "engine/histogram.h"

const struct histogram_bounds histogram_seconds = {
    22, {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,  1,    2.5,
         5,     10,     25,    50,   100,   250,  500, 1000, 2500, 5000, 10000}};

const struct histogram_bounds histogram_tokens = {19,
                                                  {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000,
                                                   5000, 10000, 20000, 50000, 100000, 200000,
                                                   500000, 1000000}};

void histogram_add(struct histogram *histogram, double value)
{
    int place = 0;
    while (place < histogram->bounds->count && value > histogram->bounds->values[place])
        place++;
    histogram->counts[place]++;
    histogram->count++;
    histogram->sum += value;
}
