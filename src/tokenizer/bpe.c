#include "tokenizer/bpe.h"

#include <string.h>

#include "base/memory.h"
#include "base/text.h"

struct bpe_symbol {
    int32_t id; /* SYMBOL_MERGED: now part of the symbol to its left */
    int32_t previous, next;
};
#define SYMBOL_MERGED (-1)

void bpe_work_deinit(struct bpe_work *work)
{
    memory_free(work->symbols);
    memory_free(work->queue);
    *work = (struct bpe_work){0};
}

enum status token_list_add(struct token_list *list, int32_t id, struct error *err)
{
    if (list->count == list->capacity)
        TRY(memory_reserve(&list->ids, &list->capacity, list->count + 1, sizeof *list->ids,
                           "token ids", err));
    list->ids[list->count++] = id;
    return STATUS_OK;
}

/* The queue is a binary heap of rank << 32 | position: the smallest rank, then the leftmost. */
static enum status queue_push(struct bpe_work *work, uint64_t entry, struct error *err)
{
    if (work->queue_count == work->queue_capacity)
        TRY(memory_reserve(&work->queue, &work->queue_capacity, work->queue_count + 1,
                           sizeof *work->queue, "the merge queue", err));
    size_t at = work->queue_count++;
    while (at > 0 && work->queue[(at - 1) / 2] > entry) {
        work->queue[at] = work->queue[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    work->queue[at] = entry;
    return STATUS_OK;
}

static uint64_t queue_pop(struct bpe_work *work)
{
    uint64_t top = work->queue[0];
    uint64_t last = work->queue[--work->queue_count];
    size_t count = work->queue_count, at = 0;
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && work->queue[child + 1] < work->queue[child])
            child++;
        if (work->queue[child] >= last)
            break;
        work->queue[at] = work->queue[child];
    }
    work->queue[at] = last;
    return top;
}

static enum status add_symbol(struct bpe_work *work, int32_t id, struct error *err)
{
    if (work->symbol_count == INT32_MAX)
        return error_set(err, STATUS_LIMIT, "a word of the text has more than %d symbols",
                         INT32_MAX);
    if (work->symbol_count == work->symbol_capacity)
        TRY(memory_reserve(&work->symbols, &work->symbol_capacity, work->symbol_count + 1,
                           sizeof *work->symbols, "the symbols of a word", err));
    int32_t at = (int32_t)work->symbol_count++;
    work->symbols[at] = (struct bpe_symbol){.id = id, .previous = at - 1, .next = at + 1};
    return STATUS_OK;
}

static int32_t character_id(const struct bpe *bpe, const char *bytes, size_t length,
                            uint32_t code_point)
{
    if (code_point < BPE_LOW_CODE_POINTS)
        return bpe->low_ids[code_point];
    return vocab_find_plain(bpe->vocab, bytes, length);
}

/* Whether all bytes of a character have a token of their own. */
static bool has_byte_ids(const struct bpe *bpe, const char *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (bpe->byte_ids[(unsigned char)bytes[i]] < 0)
            return false;
    }
    return bpe->byte_fallback;
}

/* The word as single characters. An unknown one is kept pending, so that the next can fuse with it;
 * byte tokens do not flush it (as in the original: it then stands behind them). */
static enum status split_word(const struct bpe *bpe, struct bpe_work *work, const char *word,
                              size_t length, struct error *err)
{
    bool pending = false;
    work->symbol_count = 0;
    for (size_t at = 0, step; at < length; at += step) {
        uint32_t code_point = 0;
        step = utf8_decode(&code_point, word + at, length - at);
        ASSERT(step > 0);
        int32_t id = character_id(bpe, word + at, step, code_point);
        if (id < 0 && has_byte_ids(bpe, word + at, step)) {
            for (size_t i = 0; i < step; i++)
                TRY(add_symbol(work, bpe->byte_ids[(unsigned char)word[at + i]], err));
            continue;
        }
        if (id < 0 && bpe->unknown_id < 0)
            continue;
        if (pending && (id >= 0 || !bpe->fuse_unknown))
            TRY(add_symbol(work, bpe->unknown_id, err));
        pending = id < 0;
        if (id >= 0)
            TRY(add_symbol(work, id, err));
    }
    return pending ? add_symbol(work, bpe->unknown_id, err) : STATUS_OK;
}

static enum status queue_pair(const struct bpe *bpe, struct bpe_work *work, int32_t left,
                              struct error *err)
{
    const struct bpe_symbol *symbol = &work->symbols[left];
    const struct merge_slot *merge =
        bpe_merge_slot(bpe, bpe_pair(symbol->id, work->symbols[symbol->next].id));
    if (merge->result < 0)
        return STATUS_OK;
    return queue_push(work, (uint64_t)merge->rank << 32 | (uint32_t)left, err);
}

static enum status merge_word(const struct bpe *bpe, struct bpe_work *work, struct error *err)
{
    struct bpe_symbol *symbols = work->symbols;
    int32_t count = (int32_t)work->symbol_count;
    work->queue_count = 0;
    for (int32_t at = 0; at + 1 < count; at++)
        TRY(queue_pair(bpe, work, at, err));
    while (work->queue_count > 0) {
        uint64_t top = queue_pop(work);
        int32_t at = (int32_t)(uint32_t)top;
        int32_t result = bpe->results[top >> 32];
        int32_t right = symbols[at].next;
        if (symbols[at].id == SYMBOL_MERGED || right >= count)
            continue;
        if (bpe_merge_slot(bpe, bpe_pair(symbols[at].id, symbols[right].id))->result != result)
            continue; /* one of the sides has changed since */
        symbols[at].id = result;
        symbols[at].next = symbols[right].next;
        symbols[right].id = SYMBOL_MERGED;
        if (symbols[at].next < count) {
            symbols[symbols[at].next].previous = at;
            TRY(queue_pair(bpe, work, at, err));
        }
        if (symbols[at].previous >= 0)
            TRY(queue_pair(bpe, work, symbols[at].previous, err));
    }
    return STATUS_OK;
}

enum status bpe_encode(const struct bpe *bpe, struct bpe_work *work, struct token_list *out,
                       const char *word, size_t length, struct error *err)
{
    if (bpe->ignore_merges) {
        int32_t id = vocab_find_plain(bpe->vocab, word, length);
        if (id >= 0)
            return token_list_add(out, id, err);
    }
    TRY(split_word(bpe, work, word, length, err));
    TRY(merge_word(bpe, work, err));
    TRY(memory_reserve(&out->ids, &out->capacity, out->count + work->symbol_count, sizeof *out->ids,
                       "token ids", err));
    for (size_t at = 0; at < work->symbol_count; at = (size_t)work->symbols[at].next)
        out->ids[out->count++] = work->symbols[at].id;
    return STATUS_OK;
}
