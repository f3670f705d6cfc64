#include "kernels/cuda/device/cuda_arrays.h"

#include <string.h>

static int64_t page_count(const struct segment *segment)
{
    return ceil_div(segment->first_position + segment->token_count, KV_PAGE_TOKENS);
}

static int64_t chunk_count(const struct segment *segment)
{
    return ceil_div(segment->first_position + segment->token_count, CUDA_POSITIONS_STEP);
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
        sum.chunk_count += chunk_count(segment);
    }
    sum.positions_max = round_up(sum.positions_max, CUDA_POSITIONS_STEP);
    sum.chunk_count = count > 0 ? round_up(sum.chunk_count, count) : 0;
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

static size_t segments_bytes(const struct cuda_array *array, int64_t chunks, int64_t pages)
{
    return (size_t)array->count * sizeof(struct segment) +
           (size_t)(array->count + chunks + pages) * sizeof(int32_t);
}

static size_t groups_bytes(const struct cuda_array *array)
{
    return array->kind == CUDA_ARRAY_GROUPS ? (size_t)array->count * sizeof(struct ffn_weights) : 0;
}

size_t cuda_array_bytes(const struct cuda_array *array)
{
    const struct segment *segments = array->source;
    int64_t pages = 0;
    if (array->kind != CUDA_ARRAY_SEGMENTS)
        return groups_bytes(array);
    for (int64_t s = 0; s < array->count; s++)
        pages += page_count(&segments[s]);
    return segments_bytes(array, cuda_segments_of(segments, array->count).chunk_count, pages);
}

size_t cuda_array_bytes_max(const struct cuda_array *array, const struct cuda_array_facts *facts)
{
    int64_t chunks = facts->segments.chunk_count;
    if (array->kind != CUDA_ARRAY_SEGMENTS)
        return groups_bytes(array);
    return segments_bytes(array, chunks, chunks * (CUDA_POSITIONS_STEP / KV_PAGE_TOKENS));
}

/* Returns how many there may be. */
static int64_t chunks_write(const struct cuda_array *array, struct segment *host)
{
    const struct segment *segments = array->source;
    int32_t *firsts = cuda_segment_chunks(host, array->count);
    int32_t *owners = cuda_chunk_segments(host, array->count);
    int64_t count = cuda_segments_of(segments, array->count).chunk_count, chunk = 0;
    for (int64_t s = 0; s < array->count; s++) {
        int64_t end = chunk + chunk_count(&segments[s]);
        firsts[s] = (int32_t)chunk;
        while (chunk < end)
            owners[chunk++] = (int32_t)s;
    }
    while (chunk < count)
        owners[chunk++] = -1;
    return count;
}

/* The segments, behind them their chunks, and behind those their pages. */
static void segments_write(const struct cuda_array *array, struct segment *host, const void *device)
{
    const struct segment *segments = array->source;
    int64_t chunks = chunks_write(array, host);
    int32_t *host_pages = cuda_chunk_segments(host, array->count) + chunks;
    const int32_t *device_pages = cuda_chunk_segments(device, array->count) + chunks;
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
    size_t bytes = groups_bytes(array);
    if (array->kind == CUDA_ARRAY_SEGMENTS)
        segments_write(array, host, device);
    else if (is_new || memcmp(host, array->source, bytes) != 0)
        memcpy(host, array->source, bytes);
    else
        return false;
    return true;
}
