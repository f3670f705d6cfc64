/* Growing lists of byte ranges; offsets fit 32 bits because the text of one encode is bounded. */
#ifndef PHASOR_TOKENIZER_SPANS_H
#define PHASOR_TOKENIZER_SPANS_H

#include <stddef.h>
#include <stdint.h>

#include "base/memory.h"
#include "base/status.h"

struct span {
    uint32_t begin, end;
};

struct span_list { /* start with {0} */
    struct span *items;
    size_t count;
    size_t capacity;
};

/* Empty spans are dropped: no stage of a pipeline keeps an empty piece. */
static inline enum status span_list_add(struct span_list *list, size_t begin, size_t end,
                                        struct error *err)
{
    if (begin == end)
        return STATUS_OK;
    if (list->count == list->capacity)
        TRY(memory_reserve(&list->items, &list->capacity, list->count + 1, sizeof *list->items,
                           "pieces of a text", err));
    list->items[list->count++] = (struct span){(uint32_t)begin, (uint32_t)end};
    return STATUS_OK;
}

static inline void span_list_deinit(struct span_list *list)
{
    memory_free(list->items);
    *list = (struct span_list){0};
}

#endif
