/* Which custom_ids a file has, and on which line each came first: 128-bit hashes, not texts, so
 * that a million rows take tens of megabytes whatever their ids. Two ids that are not equal collide
 * with a probability of 2^-88 for a million rows. Each table has a seed of its own, so that no file
 * can hold ids that all meet in one place. */
#ifndef PHASOR_ENGINE_ID_TABLE_H
#define PHASOR_ENGINE_ID_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "base/random.h"
#include "base/status.h"

struct id_slot {
    uint64_t low, high;
    int64_t line; /* 0: free */
};

struct id_table {
    struct id_slot *slots; /* start with {0} */
    size_t capacity;       /* a power of two, or 0 */
    size_t count;
    uint64_t seed; /* of ids' hashes and of their places, once there are slots */
};

/* Where a search for these bits begins; of a table that has slots. */
static inline size_t id_table_place(const struct id_table *table, uint64_t low, uint64_t high)
{
    return random_mix(random_mix(low ^ table->seed) ^ high) & (table->capacity - 1);
}

/* Adds an id that stands on `line` (>= 1), unless it is there already. `*first_line` is the line on
 * which it came first: `line` itself when it is new. */
enum status id_table_add(struct id_table *table, const char *id, size_t length, int64_t line,
                         int64_t *first_line, struct error *err) MUST_CHECK;

/* The line on which the id came first; 0 when it is not in the table. */
int64_t id_table_find(const struct id_table *table, const char *id, size_t length);

/* The same by 128 bits that are a hash already. The slot is NULL when they are not in the table;
 * its `line` may be changed, but not to 0, until the next line is added. */
enum status id_table_add_hash(struct id_table *table, uint64_t low, uint64_t high, int64_t line,
                              int64_t *first_line, struct error *err) MUST_CHECK;
struct id_slot *id_table_slot(const struct id_table *table, uint64_t low, uint64_t high);

/* Has the slot of these bits brought near, for a call soon: where a table is larger than the
 * caches, it is memory that one waits for. */
static inline void id_table_prefetch(const struct id_table *table, uint64_t low, uint64_t high)
{
    if (table->capacity > 0)
        __builtin_prefetch(&table->slots[id_table_place(table, low, high)]);
}

/* Makes room for `count` ids in an empty table: quicker than growing to it. */
enum status id_table_reserve(struct id_table *table, size_t count, struct error *err) MUST_CHECK;

void id_table_deinit(struct id_table *table);

#endif
