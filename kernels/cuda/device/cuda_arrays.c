#include "kernels/cuda/device/cuda_arrays.h"

#include <string.h>

static int64_t page_count(const struct segment *segment)
{
    return ceil_div(segment->first_position + segment->token_count, KV_PAGE_TOKENS);
}

static int64_t max_of(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

struct cuda_segments cuda_segments_of(const struct segment *segments, int64_t count)
{
    struct cuda_segments sum = {0};
    for (int64_t s = 0; s < count; s++) {
        const struct segment *segment = &segments[s];
        sum.token_count += segment->token_count;
        sum.tokens_max = max_of(sum.tokens_max, segment->token_count);
        sum.positions_max =
            max_of(sum.positions_max, segment->first_position + segment->token_count);
    }
    sum.positions_max = round_up(sum.positions_max, CUDA_POSITIONS_STEP);
    return sum;
}

void cuda_array_facts_get(struct cuda_array_facts *out, const struct cuda_array *array)
{
    memset(out, 0, sizeof *out); /* so that equal ones are the same bytes */
    if (array->kind == CUDA_ARRAY_SEGMENTS)
        out->segments = cuda_segments_of(array->source, array->count);
    else if (array->kind == CUDA_ARRAY_GROUPS)
        memcpy(&out->first, array->source, sizeof out->first);
}

static size_t bytes_with(const struct cuda_array *array, int64_t pages)
{
    if (array->kind == CUDA_ARRAY_SEGMENTS)
        return (size_t)array->count * sizeof(struct segment) + (size_t)pages * sizeof(int32_t);
    return array->kind == CUDA_ARRAY_GROUPS ? (size_t)array->count * sizeof(struct ffn_weights) : 0;
}

size_t cuda_array_bytes(const struct cuda_array *array)
{
    const struct segment *segments = array->source;
    int64_t pages = 0;
    for (int64_t s = 0; array->kind == CUDA_ARRAY_SEGMENTS && s < array->count; s++)
        pages += page_count(&segments[s]);
    return bytes_with(array, pages);
}

size_t cuda_array_bytes_max(const struct cuda_array *array, const struct cuda_array_facts *facts)
{
    return bytes_with(array, array->count * (facts->segments.positions_max / KV_PAGE_TOKENS));
}

/* The segments and behind them their pages. */
static void segments_write(const struct cuda_array *array, struct segment *host, const void *device)
{
    const struct segment *segments = array->source;
    size_t segment_bytes = (size_t)array->count * sizeof *segments;
    int32_t *host_pages = (int32_t *)((char *)host + segment_bytes);
    const int32_t *device_pages = (const int32_t *)((const char *)device + segment_bytes);
    for (int64_t s = 0; s < array->count; s++) {
        int64_t own = page_count(&segments[s]);
        host[s] = segments[s];
        host[s].pages = device_pages;
        memcpy(host_pages, segments[s].pages, (size_t)own * sizeof *host_pages);
        host_pages += own;
        device_pages += own;
    }
}

bool cuda_array_write(const struct cuda_array *array, void *host, const void *device, bool is_new)
{
    size_t bytes = bytes_with(array, 0);
    if (array->kind == CUDA_ARRAY_SEGMENTS)
        segments_write(array, host, device);
    else if (is_new || memcmp(host, array->source, bytes) != 0)
        memcpy(host, array->source, bytes);
    else
        return false;
    return true;
}
