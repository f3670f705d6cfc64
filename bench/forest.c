#include "forest.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"

#define TREES    100
#define LEAF_MIN 2 /* samples of a leaf */

struct node {
    int feature; /* -1: a leaf */
    double threshold, value;
    int low, high; /* nodes; low takes what is not above the threshold */
};

struct forest {
    struct node *nodes[TREES];
};

struct growth {
    const double (*features)[FOREST_FEATURES];
    const double *targets;
    int *rows; /* of the tree's sample, parted node by node */
    struct node *nodes;
    int node_count;
    struct random random;
};

static double mean_of(const struct growth *growth, int first, int count)
{
    double sum = 0;
    for (int i = first; i < first + count; i++)
        sum += growth->targets[growth->rows[i]];
    return sum / count;
}

/* Squared errors of both sides about their means; INFINITY where one is too small. */
static double split_error(const struct growth *growth, int first, int count, int feature,
                          double threshold)
{
    double sums[2] = {0}, squares[2] = {0};
    int counts[2] = {0};
    for (int i = first; i < first + count; i++) {
        int side = growth->features[growth->rows[i]][feature] > threshold;
        double target = growth->targets[growth->rows[i]];
        sums[side] += target;
        squares[side] += target * target;
        counts[side]++;
    }
    if (counts[0] < LEAF_MIN || counts[1] < LEAF_MIN)
        return INFINITY;
    return squares[0] - sums[0] * sums[0] / counts[0] + squares[1] - sums[1] * sums[1] / counts[1];
}

static void split_find(struct node *out, struct growth *growth, int first, int count)
{
    double best = INFINITY;
    out->feature = -1;
    for (int feature = 0; feature < FOREST_FEATURES; feature++) {
        if (random_below(&growth->random, 2) == 0)
            continue;
        for (int i = first; i < first + count; i++) {
            double threshold = growth->features[growth->rows[i]][feature];
            double error = split_error(growth, first, count, feature, threshold);
            if (error < best) {
                best = error;
                out->feature = feature;
                out->threshold = threshold;
            }
        }
    }
}

/* Rows that are not above the threshold come first; their number. */
static int part(struct growth *growth, int first, int count, const struct node *node)
{
    int low = first;
    for (int i = first; i < first + count; i++) {
        int row = growth->rows[i];
        if (growth->features[row][node->feature] > node->threshold)
            continue;
        growth->rows[i] = growth->rows[low];
        growth->rows[low++] = row;
    }
    return low - first;
}

static int grow(struct growth *growth, int first, int count)
{
    int at = growth->node_count++;
    struct node node = {.feature = -1, .value = mean_of(growth, first, count)};
    if (count >= 2 * LEAF_MIN)
        split_find(&node, growth, first, count);
    if (node.feature >= 0) {
        int low = part(growth, first, count, &node);
        node.low = grow(growth, first, low);
        node.high = grow(growth, first + low, count - low);
    }
    growth->nodes[at] = node;
    return at;
}

struct forest *forest_create(const double (*features)[FOREST_FEATURES], const double *targets,
                             int count, uint64_t seed)
{
    struct forest *forest = calloc(1, sizeof *forest);
    struct growth growth = {.features = features, .targets = targets, .random = {.seed = seed}};
    growth.rows = malloc((size_t)count * sizeof *growth.rows);
    for (int t = 0; t < TREES && forest != NULL && growth.rows != NULL; t++) {
        growth.nodes = calloc((size_t)count * 2, sizeof *growth.nodes);
        forest->nodes[t] = growth.nodes;
        growth.node_count = 0;
        if (growth.nodes == NULL)
            break;
        for (int i = 0; i < count; i++)
            growth.rows[i] = (int)random_below(&growth.random, (uint64_t)count);
        grow(&growth, 0, count);
    }
    free(growth.rows);
    if (forest == NULL || forest->nodes[TREES - 1] == NULL) {
        forest_destroy(forest);
        return NULL;
    }
    return forest;
}

void forest_destroy(struct forest *forest)
{
    for (int t = 0; forest != NULL && t < TREES; t++)
        free(forest->nodes[t]);
    free(forest);
}

double forest_value(const struct forest *forest, const double features[FOREST_FEATURES])
{
    double sum = 0;
    for (int t = 0; t < TREES; t++) {
        const struct node *node = forest->nodes[t];
        while (node->feature >= 0)
            node = forest->nodes[t] +
                   (features[node->feature] > node->threshold ? node->high : node->low);
        sum += node->value;
    }
    return sum / TREES;
}
