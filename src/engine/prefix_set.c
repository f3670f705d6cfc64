#include "engine/prefix_set.h"

#include <xxhash.h>

#include "base/memory.h"

#define FIRST_CAPACITY 1024

/* At most half of the slots are taken. More of them side by side than this come only where prompts
 * are made to collide: what finds no slot is not known, and costs nobody time. */
#define PROBES_MAX 64

#define FREE  0
#define LENT  1u /* in the lowest bit of a page's hash: somebody has found it */
#define NAMED 2u /* so that no hash is FREE */

static uint64_t name_of(uint64_t before, const int32_t *tokens)
{
    uint64_t hash = XXH3_64bits_withSeed(tokens, KV_PAGE_TOKENS * sizeof *tokens, before);
    return (hash | NAMED) & ~(uint64_t)LENT;
}

/* The slot of the page, or the free one where it belongs; NULL: there is neither. */
static uint64_t *slot_of(const struct prefix_set *set, uint64_t name)
{
    for (size_t i = 0; i < PROBES_MAX && i < set->capacity; i++) {
        uint64_t *slot = &set->slots[((name >> 2) + i) & (set->capacity - 1)];
        if (*slot == FREE || (*slot & ~(uint64_t)LENT) == name)
            return slot;
    }
    return NULL;
}

static enum status room_get(struct prefix_set *set, struct error *err)
{
    if (set->count < set->capacity / 2 || set->count >= PREFIX_SET_PAGES_MAX)
        return STATUS_OK;
    struct prefix_set larger = {.capacity =
                                    set->capacity == 0 ? FIRST_CAPACITY : 2 * set->capacity};
    TRY(memory_get((void **)&larger.slots, larger.capacity, sizeof *larger.slots,
                   "the beginnings of prompts", err));
    for (size_t i = 0; i < set->capacity; i++) {
        uint64_t *slot =
            set->slots[i] == FREE ? NULL : slot_of(&larger, set->slots[i] & ~(uint64_t)LENT);
        if (slot == NULL)
            continue;
        *slot = set->slots[i];
        larger.count++;
    }
    memory_free(set->slots);
    *set = larger;
    return STATUS_OK;
}

/* Behind a page that is not known there is none that is. */
enum status prefix_set_add(struct prefix_set *set, struct prefix_share *out, const int32_t *prompt,
                           int64_t prompt_count, struct error *err)
{
    int64_t findable = prefix_findable(prompt_count);
    uint64_t name = 0;
    *out = (struct prefix_share){0};
    for (int64_t at = 0; at + KV_PAGE_TOKENS <= prompt_count; at += KV_PAGE_TOKENS) {
        TRY(room_get(set, err));
        name = name_of(name, prompt + at);
        uint64_t *slot = slot_of(set, name);
        if (slot == NULL || (*slot == FREE && set->count >= PREFIX_SET_PAGES_MAX))
            return STATUS_OK;
        if (*slot == FREE) {
            *slot = name;
            set->count++;
        } else if (at < findable) {
            out->found += KV_PAGE_TOKENS;
            out->lent += (*slot & LENT) == 0 ? KV_PAGE_TOKENS : 0;
            *slot |= LENT;
        }
    }
    return STATUS_OK;
}

void prefix_set_deinit(struct prefix_set *set)
{
    memory_free(set->slots);
    *set = (struct prefix_set){0};
}
