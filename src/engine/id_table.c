#include "engine/id_table.h"

#include <xxhash.h>

#include "base/memory.h"

#define FIRST_CAPACITY 64

/* The slot that holds the hash, or the free one where it belongs. The table has a free slot. */
static struct id_slot *find_slot(const struct id_table *table, uint64_t low, uint64_t high)
{
    size_t index = id_table_place(table, low, high);
    while (table->slots[index].line != 0 &&
           (table->slots[index].low != low || table->slots[index].high != high))
        index = (index + 1) & (table->capacity - 1);
    return &table->slots[index];
}

/* Keeps at least a quarter of the slots free. */
static enum status grow(struct id_table *table, struct error *err)
{
    if (table->count < table->capacity / 4 * 3)
        return STATUS_OK;
    struct id_table larger = {.capacity =
                                  table->capacity == 0 ? FIRST_CAPACITY : 2 * table->capacity,
                              .count = table->count,
                              .seed = table->capacity == 0 ? random_seed_make() : table->seed};
    void *slots;
    TRY(memory_get(&slots, larger.capacity, sizeof *larger.slots, "the table of custom_ids", err));
    larger.slots = slots;
    for (size_t i = 0; i < table->capacity; i++) {
        if (table->slots[i].line != 0)
            *find_slot(&larger, table->slots[i].low, table->slots[i].high) = table->slots[i];
    }
    memory_free(table->slots);
    *table = larger;
    return STATUS_OK;
}

enum status id_table_reserve(struct id_table *table, size_t count, struct error *err)
{
    size_t capacity = FIRST_CAPACITY;
    void *slots;
    ASSERT(table->capacity == 0);
    while (capacity / 4 * 3 <= count)
        capacity *= 2;
    TRY(memory_get(&slots, capacity, sizeof *table->slots, "the table of custom_ids", err));
    *table = (struct id_table){.slots = slots, .capacity = capacity, .seed = random_seed_make()};
    return STATUS_OK;
}

enum status id_table_add_hash(struct id_table *table, uint64_t low, uint64_t high, int64_t line,
                              int64_t *first_line, struct error *err)
{
    TRY(grow(table, err));
    struct id_slot *slot = find_slot(table, low, high);
    if (slot->line == 0) {
        *slot = (struct id_slot){low, high, line};
        table->count++;
    }
    *first_line = slot->line;
    return STATUS_OK;
}

enum status id_table_add(struct id_table *table, const char *id, size_t length, int64_t line,
                         int64_t *first_line, struct error *err)
{
    TRY(grow(table, err)); /* it has a seed then */
    XXH128_hash_t hash = XXH3_128bits_withSeed(id, length, table->seed);
    return id_table_add_hash(table, hash.low64, hash.high64, line, first_line, err);
}

struct id_slot *id_table_slot(const struct id_table *table, uint64_t low, uint64_t high)
{
    if (table->capacity == 0)
        return NULL;
    struct id_slot *slot = find_slot(table, low, high);
    return slot->line == 0 ? NULL : slot;
}

int64_t id_table_find(const struct id_table *table, const char *id, size_t length)
{
    XXH128_hash_t hash = XXH3_128bits_withSeed(id, length, table->seed);
    const struct id_slot *slot = id_table_slot(table, hash.low64, hash.high64);
    return slot == NULL ? 0 : slot->line;
}

void id_table_deinit(struct id_table *table)
{
    memory_free(table->slots);
    *table = (struct id_table){0};
}
