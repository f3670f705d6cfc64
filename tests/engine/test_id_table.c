/* Ids and hashes are found on the line on which they came first. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "engine/id_table.h"

#define COUNT 3000

Test(id_table, finds_the_line_on_which_an_id_came_first)
{
    struct id_table table = {0};
    struct error err;
    int64_t first;
    char id[32];
    for (int round = 0; round < 2; round++) {
        for (int i = 1; i <= COUNT; i++) {
            size_t length = (size_t)snprintf(id, sizeof id, "row-%d", i);
            cr_assert_eq(id_table_find(&table, id, length), round == 0 ? 0 : i);
            cr_assert_eq(id_table_add(&table, id, length, round * COUNT + i, &first, &err),
                         STATUS_OK);
            cr_assert_eq(first, i);
        }
    }
    cr_assert_eq(table.count, COUNT);
    id_table_deinit(&table);
}

/* Slots that a search for any of them passes, on the mean. */
static double passed(const struct id_table *table)
{
    double sum = 0;
    for (size_t i = 0; i < table->capacity; i++) {
        if (table->slots[i].line != 0)
            sum += (double)((i - id_table_place(table, table->slots[i].low, table->slots[i].high)) &
                            (table->capacity - 1));
    }
    return sum / (double)table->count;
}

static uint64_t low_of(uint64_t i, int shift)
{
    return shift < 64 ? i << shift : 7;
}

static uint64_t high_of(uint64_t i, int shift)
{
    return shift < 64 ? 7 : i;
}

/* Those of a file may be made to be alike where a table looks: each table looks elsewhere. */
Test(id_table, hashes_that_are_alike_do_not_meet)
{
    for (int shift = 0; shift <= 64; shift += 16) { /* 64: the lower halves are the same */
        struct id_table table = {0}, other = {0};
        struct error err;
        int64_t first;
        for (uint64_t i = 1; i <= COUNT; i++) {
            cr_assert_eq(id_table_add_hash(&table, low_of(i, shift), high_of(i, shift), (int64_t)i,
                                           &first, &err),
                         STATUS_OK);
            cr_assert_eq(first, (int64_t)i);
        }
        for (uint64_t i = 1; i <= COUNT; i++)
            cr_assert_eq(id_table_slot(&table, low_of(i, shift), high_of(i, shift))->line,
                         (int64_t)i);
        cr_expect_lt(passed(&table), 10, "%d bits alike: %.1f slots", shift, passed(&table));
        cr_assert_eq(id_table_reserve(&other, COUNT, &err), STATUS_OK);
        cr_expect(other.capacity == table.capacity && other.seed != table.seed);
        id_table_deinit(&table);
        id_table_deinit(&other);
    }
}

/* So ids of one length and line have other hashes in each. */
Test(id_table, each_table_hashes_by_a_seed_of_its_own)
{
    struct id_table tables[2] = {{0}, {0}};
    struct error err;
    int64_t first;
    uint64_t low[2] = {0, 0};
    for (int t = 0; t < 2; t++) {
        cr_assert_eq(id_table_add(&tables[t], "a", 1, 1, &first, &err), STATUS_OK);
        for (size_t i = 0; i < tables[t].capacity; i++)
            low[t] |= tables[t].slots[i].low;
        id_table_deinit(&tables[t]);
    }
    cr_assert_neq(low[0], low[1]);
}
