/* What the ranks of a run are: what --devices says. */
#ifndef PHASOR_ENGINE_ENGINE_DEVICES_H
#define PHASOR_ENGINE_ENGINE_DEVICES_H

#include <stdbool.h>

#include "base/status.h"
#include "comm/comm.h"

struct engine_devices {
    int rank_count;
    bool cuda;                /* rank r is the GPU cuda:gpus[r]; else they are shares of the CPU */
    int gpus[COMM_RANKS_MAX]; /* some may be the same, one behind the other */
    int64_t link_mb; /* of GPUs: MB/s of each rank's link, which is made so slow; 0: it is as
                      * it is */
};

/* "cpu", "cpu:N", or GPUs: "cuda:" and, between commas, numbers (3), ranges (0-3) and numbers with
 * how many ranks are on that one (0x4), perhaps with the rate of links (@22GB/s, @800MB/s); NULL
 * means "cpu", one rank. */
enum status engine_devices_parse(struct engine_devices *out, const char *devices,
                                 struct error *err) MUST_CHECK;

/* The shortest text of which engine_devices_parse makes them: "cpu:1", "cuda:0-3", "cuda:0x2,4",
 * "cuda:0x4@22GB/s". */
#define ENGINE_DEVICES_BYTES (16 + 4 * COMM_RANKS_MAX)
void engine_devices_format(char out[ENGINE_DEVICES_BYTES], const struct engine_devices *devices);

/* Ranks on the GPU of one, itself included; 1 on the CPU. */
int engine_devices_sharers(const struct engine_devices *devices, int rank);

/* For box_params. */
struct comm_links engine_devices_links(const struct engine_devices *devices);

/* GPUs that they are on; 0 on the CPU. */
int engine_devices_gpu_count(const struct engine_devices *devices);

#endif
