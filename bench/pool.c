#include "pool.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/memory.h"

struct pooled {
    uint64_t shape; /* a hash */
    uint64_t nanoseconds;
};

static bool is_pooled(const struct recording_node *node)
{
    return node->kind == NODE_COMPUTE && node->work != WORK_OTHER;
}

/* What the operation is, of what size, and how many threads work at it; not where. */
static uint64_t shape_of(const struct recording *recording, const struct recording_node *node)
{
    const char *name = recording->strings[node->name];
    uint64_t sizes[WORK_DIMS + 4] = {node->work, node->threads, node->bytes, node->flops};
    for (int d = 0; d < WORK_DIMS; d++)
        sizes[4 + d] = (uint64_t)node->dims[d];
    return XXH3_64bits_withSeed(name, strlen(name), XXH3_64bits(sizes, sizeof sizes));
}

enum status pool_add(struct pool *pool, const struct recording *recording, struct error *err)
{
    TRY(memory_reserve(&pool->of, &pool->room, pool->count + recording->node_count,
                       sizeof *pool->of, "durations", err));
    for (uint32_t n = 0; n < recording->node_count; n++) {
        const struct recording_node *node = &recording->nodes[n];
        if (is_pooled(node))
            pool->of[pool->count++] = (struct pooled){shape_of(recording, node), node->duration_ns};
    }
    pool->node_count = pool->count;
    return STATUS_OK;
}

static int compare(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

static int by_shape_and_time(const void *a, const void *b)
{
    const struct pooled *x = a, *y = b;
    int order = compare(x->shape, y->shape);
    return order != 0 ? order : compare(x->nanoseconds, y->nanoseconds);
}

void pool_settle(struct pool *pool)
{
    size_t shapes = 0;
    if (pool->count > 0)
        qsort(pool->of, pool->count, sizeof *pool->of, by_shape_and_time);
    for (size_t first = 0, end; first < pool->count; first = end) {
        for (end = first; end < pool->count && pool->of[end].shape == pool->of[first].shape; end++)
            continue;
        size_t low = first + (end - first - 1) / 2, high = first + (end - first) / 2;
        pool->of[shapes++] = (struct pooled){
            pool->of[first].shape, (pool->of[low].nanoseconds + pool->of[high].nanoseconds) / 2};
    }
    pool->count = shapes;
}

static int by_shape(const void *a, const void *b)
{
    return compare(((const struct pooled *)a)->shape, ((const struct pooled *)b)->shape);
}

void pool_apply(const struct pool *pool, struct recording *recording)
{
    for (uint32_t n = 0; n < recording->node_count; n++) {
        struct recording_node *node = &recording->nodes[n];
        if (pool->count == 0 || !is_pooled(node))
            continue;
        struct pooled wanted = {.shape = shape_of(recording, node)};
        const struct pooled *found =
            bsearch(&wanted, pool->of, pool->count, sizeof *pool->of, by_shape);
        if (found != NULL)
            node->duration_ns = found->nanoseconds;
    }
}

void pool_deinit(struct pool *pool)
{
    memory_free(pool->of);
    *pool = (struct pool){0};
}
