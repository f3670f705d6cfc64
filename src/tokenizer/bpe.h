/* Byte-pair encoding: the lowest-ranked pair of neighbours is merged until none is left.
 *
 * Equal to Hugging Face tokenizers (models/bpe/word.rs, `merge_all`) in its rules for ties: of
 * equal ranks the leftmost pair. Time is O(n log n) in the word, which may be a whole text. */
#ifndef PHASOR_TOKENIZER_BPE_H
#define PHASOR_TOKENIZER_BPE_H

#include <jansson.h>
#include <stdbool.h>

#include "base/random.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/vocab.h"

struct merge_slot {
    uint64_t pair; /* left id << 32 | right id */
    uint32_t rank;
    int32_t result; /* -1: the slot is empty */
};

#define BPE_LOW_CODE_POINTS 0x180 /* covers the byte alphabet, which ends at U+0143 */

struct bpe {
    const struct vocab *vocab;
    struct merge_slot *merges;
    size_t merge_mask;
    uint64_t merge_seed;                  /* of the table: random */
    int32_t *results;                     /* by rank */
    int32_t low_ids[BPE_LOW_CODE_POINTS]; /* id of each low code point; -1 */
    int32_t byte_ids[256];                /* ids of <0x00> to <0xFF>; -1 */
    int32_t unknown_id;                   /* -1: unknown characters vanish */
    bool byte_fallback;
    bool fuse_unknown;
    bool ignore_merges; /* a word that is a token is taken whole */
};

/* Refuses, by name, models and settings of others that would change the ids. */
enum status bpe_check_model(const json_t *model, const char *file, struct error *err) MUST_CHECK;

/* Reads the "model" object, of tokenizer.json, already checked. The vocabulary is borrowed. On
 * failure bpe_deinit is still needed. */
enum status bpe_read(struct bpe *bpe, const struct vocab *vocab, const json_t *model,
                     const char *file, struct error *err) MUST_CHECK;
void bpe_deinit(struct bpe *bpe);

static inline uint64_t bpe_pair(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

/* The slot that holds this pair, or the empty one where it would stand. */
static inline struct merge_slot *bpe_merge_slot(const struct bpe *bpe, uint64_t pair)
{
    size_t slot = random_mix(pair ^ bpe->merge_seed) & bpe->merge_mask;
    while (bpe->merges[slot].result >= 0 && bpe->merges[slot].pair != pair)
        slot = (slot + 1) & bpe->merge_mask;
    return &bpe->merges[slot];
}

/* Memory of an encode, kept from word to word. Start with {0}. */
struct bpe_work {
    struct bpe_symbol *symbols;
    size_t symbol_count, symbol_capacity;
    uint64_t *queue; /* rank << 32 | position, a binary heap */
    size_t queue_count, queue_capacity;
};
void bpe_work_deinit(struct bpe_work *work);

/* Appends the ids of one word (valid UTF-8). STATUS_LIMIT: its symbols cannot be numbered. */
enum status bpe_encode(const struct bpe *bpe, struct bpe_work *work, struct token_list *out,
                       const char *word, size_t length, struct error *err) MUST_CHECK;

/* Appends one id. */
enum status token_list_add(struct token_list *list, int32_t id, struct error *err) MUST_CHECK;

#endif
