/* Copies of the host's arrays: what kernels find in them, and how much room they take. */
#include <criterion/criterion.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "kernels/cuda/device/cuda_arrays.h"

TestSuite(cuda_arrays, .timeout = 60);

#define SEGMENTS  256
#define PAGES_MAX 2048 /* of one: 131,072 positions */

static const int32_t pages[PAGES_MAX] = {[0] = 7, [1] = 3, [PAGES_MAX - 1] = 9};

static int64_t chunks_of(const struct segment *segment)
{
    return ceil_div(segment->first_position + segment->token_count, CUDA_POSITIONS_STEP);
}

static void check_pages(const struct segment *got, const struct segment *segment)
{
    int64_t count =
        ceil_div(segment->first_position + segment->token_count, (int64_t)KV_PAGE_TOKENS);
    cr_assert_eq(got->first_position, segment->first_position);
    for (int64_t page = 0; page < count; page++)
        cr_assert_eq(got->pages[page], segment->pages[page]);
}

/* Of a copy that is read where it stands. */
static void check_copy(const struct cuda_array *array, const struct segment *copy)
{
    const struct segment *segments = array->source;
    int64_t chunk = 0, all = cuda_segments_of(segments, array->count).chunk_count;
    const int32_t *firsts = cuda_segment_chunks(copy, array->count);
    const int32_t *owners = cuda_chunk_segments(copy, array->count);
    for (int64_t s = 0; s < array->count; s++) {
        check_pages(&copy[s], &segments[s]);
        cr_assert_eq(firsts[s], chunk);
        for (int64_t end = chunk + chunks_of(&segments[s]); chunk < end; chunk++)
            cr_assert_eq(owners[chunk], s);
    }
    for (; chunk < all; chunk++)
        cr_assert_eq(owners[chunk], -1);
}

/* Contexts grow a token at a time, each from a length of its own: what launches depend on stays for
 * a while, and what has room for one step has it for all steps until then. */
Test(cuda_arrays, of_segments_that_grow)
{
    struct segment segments[SEGMENTS];
    struct random random = {.seed = 5};
    struct cuda_array array = cuda_array_of_segments(segments, SEGMENTS);
    struct cuda_array_facts facts, now;
    int changes = 0;
    for (int64_t s = 0; s < SEGMENTS; s++)
        segments[s] = (struct segment){s, 1, 600 + (int64_t)random_below(&random, 900), pages};
    segments[SEGMENTS / 2].first_position = 130000;
    cuda_array_facts_get(&facts, &array);
    void *copy = memory_alloc(cuda_array_bytes_max(&array, &facts), 1);
    for (int step = 0; step < 1000; step++) {
        cuda_array_facts_get(&now, &array);
        if (memcmp(&now, &facts, sizeof now) != 0) {
            memory_free(copy);
            facts = now;
            copy = memory_alloc(cuda_array_bytes_max(&array, &facts), 1);
            changes++;
        }
        cr_assert_leq(cuda_array_bytes(&array), cuda_array_bytes_max(&array, &facts));
        if (step % 50 == 0) {
            cr_assert(cuda_array_write(&array, copy, copy, true));
            check_copy(&array, copy);
        }
        for (int64_t s = 0; s < SEGMENTS; s++)
            segments[s].first_position++;
    }
    cr_assert_leq(changes, 4, "%d", changes);
    memory_free(copy);
}

/* A long context takes room for itself, not for each that is beside it. */
Test(cuda_arrays, room_is_for_what_is_there)
{
    struct segment segments[SEGMENTS];
    struct cuda_array array = cuda_array_of_segments(segments, SEGMENTS);
    struct cuda_array_facts facts;
    for (int64_t s = 0; s < SEGMENTS; s++)
        segments[s] = (struct segment){s, 1, s == 99 ? 131071 : 1000, pages};
    cuda_array_facts_get(&facts, &array);
    cr_assert_leq(cuda_array_bytes_max(&array, &facts), 40 << 10);
    cr_assert_geq(cuda_array_bytes_max(&array, &facts), cuda_array_bytes(&array));
}
