/* What meter.c (samples) and its meter_*.c (what is launched) share. */
#ifndef PHASOR_MEASURE_METER_STATE_H
#define PHASOR_MEASURE_METER_STATE_H

#include "measure/meter.h"

#define METER_STAGING_BYTES ((int64_t)1 << 20) /* of a rank's `staging` */

/* Of a rank's memory: weights, what goes in and what comes out. */
#define METER_WEIGHT_PARTS 6
#define METER_PARTS        (METER_WEIGHT_PARTS + 2)

struct meter_rank {
    struct device *device;
    struct comm *all; /* of every rank, for beginning together */
    /* Of the device: weights and caches, which launches go through from one end to the other; and
     * activations. */
    char *weights;
    int64_t weight_bytes;
    float *in, *out;
    char *staging; /* of the host */
    /* Of the present point; the arrays of the device's memory are its own. */
    struct ffn_weights *groups; /* [variant_count][experts], host */
    int32_t *offsets, *token_of;
    struct segment *segments; /* [METER_CONTEXTS][segments], host, and their pages */
    int32_t *pages;
    struct comm *group;       /* meter.group_size */
    int64_t *counts, *places; /* of a collective, host */
    int64_t *received;        /* counts of what reaches it of an all-to-all */
    int64_t variant_count;    /* places of the weights that launches take in turn */
    int64_t variant_bytes;    /* from one to the next */
    int64_t launched;
    struct mark {
        double begin, end;
    } marks[METER_SAMPLES_MAX];
};

/* What is measured: one launch of it on a rank's stream. */
struct meter_job {
    struct meter *meter;
    void (*put)(struct meter_rank *rank, const struct meter_job *job);
    struct work_shape work;
    int64_t segment_count; /* of attention */
    enum group_op op;
    int size;
    int64_t bytes;           /* of each message of a collective, to the first member; of a copy */
    int64_t bytes_to_others; /* of each of an all-to-all's to another member */
    int first_sample, sample_count, launch_count;
};

struct meter {
    struct meter_params params;
    int rank_count;
    int64_t activation_bytes; /* of `in` and of `out`, each */
    struct meter_rank *ranks;
    int64_t together[COMM_RANKS_MAX]; /* bytes of the collective before a sample */
    /* The groups of the last collective, which the next has again for the most part: to join GPUs
     * takes longer than a point. 0: there are none. */
    int group_size;
    bool groups_are_strided;
    struct meter_job job;
};

/* Tokens that a segment of attention sees in one of so many launches (meter_work.c). */
#define METER_CONTEXTS 16 /* a power of two */
int64_t meter_context(const struct work_shape *work, int64_t count, int64_t index, int launch);

/* meter_collective.c */
void meter_groups_destroy(struct meter *meter);

/* Where the weights of the next launch lie; counts it. */
static inline char *meter_next_weights(struct meter_rank *rank)
{
    int64_t variant = rank->launched++ % rank->variant_count;
    return rank->weights + variant * rank->variant_bytes;
}

/* A few bytes of every rank reach every other: what is put on its stream next begins on all of them
 * together. */
void meter_together(struct meter *meter, int index);

/* For `call` on a stream: the time, to where the argument points. */
enum status meter_mark(void *argument, struct error *err);

/* Of samples, which it sorts. */
void measured_of(struct measured *out, double *seconds, int count);

/* Samples of the job until it is settled. */
enum status meter_sample(struct measured *out, struct meter *meter, const struct meter_job *job,
                         struct error *err) MUST_CHECK;

#endif
