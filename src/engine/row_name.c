#include "engine/row_name.h"

#include <stdio.h>
#include <xxhash.h>

#include "base/memory.h"

/* Not zero, so that an unknown custom_id and line 0 do not hash to a well-known value. */
#define NAME_SALT 0x70686173u

struct row_name row_name_of(const struct row_identity *identity)
{
    struct {
        uint64_t seed, line;
    } key = {identity->run_seed, (uint64_t)identity->line};
    const char *id = identity->custom_id == NULL ? "" : identity->custom_id;
    XXH128_hash_t hash = XXH3_128bits_withSeed(id, identity->custom_id_length,
                                               XXH3_64bits_withSeed(&key, sizeof key, NAME_SALT));
    return (struct row_name){.high = hash.high64, .low = hash.low64};
}

void row_name_format(char out[ROW_NAME_DIGITS + 1], const struct row_name *name)
{
    snprintf(out, ROW_NAME_DIGITS + 1, "%016llx%016llx", (unsigned long long)name->high,
             (unsigned long long)name->low);
}

/* By a table: a million lines are looked at before a run goes on. */
static bool parse_half(uint64_t *out, const char *digits)
{
    static const signed char values[256] = {
        ['0'] = 1,  ['1'] = 2,  ['2'] = 3,  ['3'] = 4,  ['4'] = 5,  ['5'] = 6,
        ['6'] = 7,  ['7'] = 8,  ['8'] = 9,  ['9'] = 10, ['a'] = 11, ['b'] = 12,
        ['c'] = 13, ['d'] = 14, ['e'] = 15, ['f'] = 16,
    };
    bool is_right = true;
    *out = 0;
    for (int i = 0; i < ROW_NAME_DIGITS / 2; i++) {
        signed char value = values[(unsigned char)digits[i]];
        is_right &= value > 0;
        *out = *out << 4 | (uint64_t)((value - 1) & 15);
    }
    return is_right;
}

bool row_name_parse(struct row_name *out, const char digits[ROW_NAME_DIGITS])
{
    return parse_half(&out->high, digits) && parse_half(&out->low, digits + ROW_NAME_DIGITS / 2);
}

enum status row_names_add(struct row_names *names, int64_t line, const char *custom_id,
                          size_t custom_id_length, struct error *err)
{
    struct row_identity identity = {names->run_seed, line, custom_id, custom_id_length};
    TRY(memory_reserve(&names->names, &names->capacity, names->count + 1, sizeof *names->names,
                       "the names of rows", err));
    names->names[names->count++] = row_name_of(&identity);
    return STATUS_OK;
}

void row_names_deinit(struct row_names *names)
{
    memory_free(names->names);
    *names = (struct row_names){.run_seed = names->run_seed};
}
