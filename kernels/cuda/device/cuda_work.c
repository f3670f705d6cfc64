#include "kernels/cuda/device/cuda_work.h"

#include <string.h>

#include "base/memory.h"

enum status cuda_work_init(struct cuda_work *work, int launch_max, struct error *err)
{
    size_t count = (size_t)launch_max;
    TRY(memory_get((void **)&work->launches, count, sizeof *work->launches, "launches", err));
    return memory_get((void **)&work->arrays, count, sizeof *work->arrays, "launches", err);
}

void cuda_work_deinit(struct cuda_work *work)
{
    memory_free(work->launches);
    memory_free(work->arrays);
    *work = (struct cuda_work){0};
}

void cuda_work_clear(struct cuda_work *work)
{
    work->launch_count = work->array_count = 0;
}

static struct cuda_array array_of(const struct cuda_launch_once *launch)
{
    struct cuda_array array = {.kind = CUDA_ARRAY_NONE};
    if (launch->kind->array != NULL)
        launch->kind->array(&array, launch->op);
    return array;
}

static bool is_named(const struct cuda_work *work, const struct cuda_array *array)
{
    for (int i = work->array_count; i-- > 0;) {
        const struct cuda_array *known = &work->arrays[i].array;
        if (known->kind == array->kind && known->source == array->source &&
            known->count == array->count)
            return true;
    }
    return false;
}

void cuda_work_add(struct cuda_work *work, const struct cuda_launch_once *launch)
{
    struct cuda_array array = array_of(launch);
    struct cuda_launch_once *to = &work->launches[work->launch_count++];
    to->kind = launch->kind;
    memcpy(to->op, launch->op, launch->kind->bytes);
    if (array.count == 0 || is_named(work, &array))
        return;
    struct cuda_named_array *named = &work->arrays[work->array_count++];
    named->array = array;
    cuda_array_facts_get(&named->facts, &array);
}

enum status cuda_work_copy(struct cuda_work *out, const struct cuda_work *of, struct error *err)
{
    TRY(cuda_work_init(out, of->launch_count, err));
    memcpy(out->launches, of->launches, (size_t)of->launch_count * sizeof *out->launches);
    memcpy(out->arrays, of->arrays, (size_t)of->array_count * sizeof *out->arrays);
    out->launch_count = of->launch_count;
    out->array_count = of->array_count;
    return STATUS_OK;
}

bool cuda_work_is_same(const struct cuda_work *work, const struct cuda_work *other)
{
    if (work->launch_count != other->launch_count || work->array_count != other->array_count)
        return false;
    for (int i = 0; i < work->array_count; i++) {
        if (memcmp(&work->arrays[i].facts, &other->arrays[i].facts, sizeof work->arrays[i].facts) !=
            0)
            return false;
    }
    for (int i = 0; i < work->launch_count; i++) {
        const struct cuda_launch_once *a = &work->launches[i], *b = &other->launches[i];
        if (a->kind != b->kind || memcmp(a->op, b->op, a->kind->bytes) != 0)
            return false;
    }
    return true;
}

struct cuda_work_sums cuda_work_sum(const struct cuda_work *work)
{
    struct cuda_work_sums sums = {0};
    for (int i = 0; i < work->launch_count; i++) {
        struct cuda_array array = array_of(&work->launches[i]);
        sums.mark_count += work->launches[i].kind->is_stage;
        sums.read_count += array.kind == CUDA_ARRAY_GROUPS;
    }
    return sums;
}
