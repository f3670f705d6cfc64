/* Which full pages prompts begin with, for who counts what a run would compute: of each page no
 * more than a hash of it and of all before it. What page_pool.h does with pages, without pages. */
#ifndef PHASOR_ENGINE_PREFIX_SET_H
#define PHASOR_ENGINE_PREFIX_SET_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "device/ops.h"

/* Of 64 tokens each, and 32 MiB of hashes at most: those of 4096 prompts of 32,768 tokens. Of more
 * than that the later ones are not known, and so not found. */
#define PREFIX_SET_PAGES_MAX ((size_t)1 << 21)

struct prefix_set {
    uint64_t *slots; /* start with {0} */
    size_t capacity; /* a power of two, or 0 */
    size_t count;
};

struct prefix_share {
    int64_t found; /* tokens of the prompt's first pages that were there */
    int64_t lent;  /* of them, those that nobody had found before */
};

/* What a prompt could find at most: its last token is always its own to compute. */
static inline int64_t prefix_findable(int64_t prompt_count)
{
    return (prompt_count - 1) / KV_PAGE_TOKENS * KV_PAGE_TOKENS;
}

/* Finds the first pages of a prompt of at least one token, and adds the others that are full. */
enum status prefix_set_add(struct prefix_set *set, struct prefix_share *out, const int32_t *prompt,
                           int64_t prompt_count, struct error *err) MUST_CHECK;
void prefix_set_deinit(struct prefix_set *set);

#endif
