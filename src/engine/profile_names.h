/* What kinds, sizes, number types and collectives are called in a profile's file. */
#ifndef PHASOR_ENGINE_PROFILE_NAMES_H
#define PHASOR_ENGINE_PROFILE_NAMES_H

#include "measure/calm.h"
#include "planner/profile.h"

#define GROUP_OP_COUNT (GROUP_ALL_TO_ALL + 1)

/* NULL: none has this number. */
const char *profile_kind_name(enum work_kind kind);           /* "matmul" */
const char *profile_size_name(enum work_kind kind, int size); /* "rows" */
const char *profile_dtype_name(enum dtype dtype);             /* "bfloat16" */
const char *profile_group_op_name(enum group_op op);          /* "all_gather" */
const char *profile_probe_name(enum calm_probe which);        /* "memory_probe_seconds" */

/* -1: no such name. */
int profile_kind_of(const char *name);
int profile_size_of(enum work_kind kind, const char *name);
int profile_dtype_of(const char *name);
int profile_group_op_of(const char *name);

#endif
