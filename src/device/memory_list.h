/* The pieces of memory that a device's pool has given out, and their sum. Its caller has a lock. */
#ifndef PHASOR_DEVICE_MEMORY_LIST_H
#define PHASOR_DEVICE_MEMORY_LIST_H

#include <stddef.h>

#include "base/status.h"
#include "device/device.h"

struct memory_piece {
    void *memory;
    size_t bytes;
    size_t mapped; /* of them from the beginning: pages of a file */
};

/* Zero is empty. */
struct memory_list {
    struct memory_piece *pieces;
    size_t count, capacity;
    struct device_memory use;
};

void memory_list_deinit(struct memory_list *list); /* everything was removed before */

/* Makes room for one more piece, so that memory_list_add cannot fail. */
enum status memory_list_reserve(struct memory_list *list, struct error *err) MUST_CHECK;
void memory_list_add(struct memory_list *list, void *memory, size_t bytes);

/* A piece that is there; until another is added or removed. */
struct memory_piece *memory_list_find(const struct memory_list *list, const void *memory);

/* Takes out a piece, which is there; returns its size. */
size_t memory_list_remove(struct memory_list *list, void *memory);

#endif
