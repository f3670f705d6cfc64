#include "device/memory_list.h"

#include "base/memory.h"

void memory_list_deinit(struct memory_list *list)
{
    ASSERT(list->count == 0);
    memory_free(list->pieces);
}

enum status memory_list_reserve(struct memory_list *list, struct error *err)
{
    return memory_reserve(&list->pieces, &list->capacity, list->count + 1, sizeof *list->pieces,
                          "the list of device memory", err);
}

void memory_list_add(struct memory_list *list, void *memory, size_t bytes)
{
    ASSERT(list->count < list->capacity);
    list->pieces[list->count++] = (struct memory_piece){.memory = memory, .bytes = bytes};
    list->use.bytes += bytes;
    if (list->use.bytes > list->use.peak_bytes)
        list->use.peak_bytes = list->use.bytes;
}

struct memory_piece *memory_list_find(const struct memory_list *list, const void *memory)
{
    size_t i = list->count; /* what was got last is mostly freed first */
    while (i > 0 && list->pieces[i - 1].memory != memory)
        i--;
    ASSERT(i > 0);
    return &list->pieces[i - 1];
}

size_t memory_list_remove(struct memory_list *list, void *memory)
{
    struct memory_piece *piece = memory_list_find(list, memory);
    size_t bytes = piece->bytes;
    *piece = list->pieces[--list->count];
    list->use.bytes -= bytes;
    return bytes;
}
