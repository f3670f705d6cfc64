/* The page of phasor plan --report: where the time of each plan goes, what a device would hold, and
 * which plan is chosen for other prompts and batches. One file of HTML with its pictures within. */
#ifndef PHASOR_CLI_PLAN_PAGE_H
#define PHASOR_CLI_PLAN_PAGE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define PLAN_MAP_LENGTHS 8 /* prompts of 128 .. 16384 tokens */
#define PLAN_MAP_BATCHES 7 /* of 1 .. 64 sequences */

/* What every page begins with. */
#define PLAN_PAGE_HEAD                                                                             \
    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>phasor plan: "

/* What is chosen for one prompt length and batch. */
struct plan_map_cell {
    char plan[96]; /* "": nothing fits, or the model has no such context */
    double gain;   /* static TP's time over its own; 0: static TP does not fit */
};

struct plan_map {
    int64_t lengths[PLAN_MAP_LENGTHS];
    int64_t batches[PLAN_MAP_BATCHES];
    struct plan_map_cell cells[PLAN_MAP_BATCHES][PLAN_MAP_LENGTHS];
};

/* `root` is the object of phasor_plan. Failures are those of `file`. */
void plan_page_write(FILE *file, const json_t *root, const struct plan_map *map);

#endif
