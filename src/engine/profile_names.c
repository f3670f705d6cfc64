#include "engine/profile_names.h"

#include <stddef.h>
#include <string.h>

static const char *const kinds[WORK_KIND_COUNT] = {
    [WORK_MATMUL] = "matmul",     [WORK_ATTENTION] = "attention", [WORK_FFN_UP] = "ffn_up",
    [WORK_FFN_DOWN] = "ffn_down", [WORK_ROWS] = "rows",           [WORK_DEQUANTIZE] = "dequantize",
};

static const char *const sizes[WORK_KIND_COUNT][WORK_SIZE_COUNT] = {
    [WORK_MATMUL] = {"rows", "outputs", "inputs"},
    [WORK_ATTENTION] = {"rows", "pairs", "tokens", "heads", "kv_heads", "head_dim", "score_rows",
                        [WORK_SIZE_BYTES] = "bytes"},
    [WORK_FFN_UP] = {"rows", "experts", "width", "hidden"},
    [WORK_FFN_DOWN] = {"rows", "experts", "width", "hidden"},
    [WORK_ROWS] = {"rows", "values", [WORK_SIZE_BYTES] = "bytes"},
    [WORK_DEQUANTIZE] = {"values"},
};

static const char *const dtypes[] = {
    [DTYPE_F32] = "float32", [DTYPE_BF16] = "bfloat16", [DTYPE_INT4] = "int4"};
#define DTYPES ((int)(sizeof dtypes / sizeof *dtypes))

static const char *const group_ops[GROUP_OP_COUNT] = {
    [GROUP_ALL_GATHER] = "all_gather",
    [GROUP_REDUCE_SCATTER] = "reduce_scatter",
    [GROUP_ALL_REDUCE] = "all_reduce",
    [GROUP_ALL_TO_ALL] = "all_to_all",
};

static const char *const probes[CALM_PROBES] = {
    [CALM_COMPUTE] = "compute_probe_seconds",
    [CALM_MEMORY] = "memory_probe_seconds",
};

static const char *name_at(const char *const *names, int count, int index)
{
    return index >= 0 && index < count ? names[index] : NULL;
}

static int index_of(const char *const *names, int count, const char *name)
{
    for (int i = 0; i < count; i++) {
        if (names[i] != NULL && strcmp(names[i], name) == 0)
            return i;
    }
    return -1;
}

const char *profile_kind_name(enum work_kind kind)
{
    return name_at(kinds, WORK_KIND_COUNT, (int)kind);
}

const char *profile_size_name(enum work_kind kind, int size)
{
    return profile_kind_name(kind) == NULL ? NULL : name_at(sizes[kind], WORK_SIZE_COUNT, size);
}

const char *profile_dtype_name(enum dtype dtype)
{
    return name_at(dtypes, DTYPES, (int)dtype);
}

const char *profile_group_op_name(enum group_op op)
{
    return name_at(group_ops, GROUP_OP_COUNT, (int)op);
}

const char *profile_probe_name(enum calm_probe which)
{
    return name_at(probes, CALM_PROBES, (int)which);
}

int profile_kind_of(const char *name)
{
    return index_of(kinds, WORK_KIND_COUNT, name);
}

int profile_size_of(enum work_kind kind, const char *name)
{
    return index_of(sizes[kind], WORK_SIZE_COUNT, name);
}

int profile_dtype_of(const char *name)
{
    return index_of(dtypes, DTYPES, name);
}

int profile_group_op_of(const char *name)
{
    return index_of(group_ops, GROUP_OP_COUNT, name);
}
