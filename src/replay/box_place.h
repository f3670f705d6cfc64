/* The objects of a box file, with their names for sentences, and its numbers, each of which says
 * where it is from. */
#ifndef PHASOR_REPLAY_BOX_PLACE_H
#define PHASOR_REPLAY_BOX_PLACE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/json.h"
#include "base/status.h"

#define PLACE_BYTES 512

/* An object of the file. */
struct place {
    const json_t *object;
    const json_t *numbers;  /* the file's; NULL: it has none */
    char name[PLACE_BYTES]; /* for sentences: "FILE: links[3]" */
    struct error *err;
};

/* "FILE: links[3]: "key": fault" */
enum status place_refuse(const struct place *place, const char *key, const char *fault);

/* That an object has no key but these. `allowed` are words with a space behind each. */
enum status place_check_keys(const struct place *place, const char *allowed) MUST_CHECK;

/* The object under a key, or an item of the array under it; `allowed` NULL: any keys. */
enum status place_enter_key(struct place *out, const struct place *outer, const char *key,
                            const char *allowed) MUST_CHECK;
enum status place_enter_item(struct place *out, const struct place *outer, const char *key,
                             size_t index, const char *allowed) MUST_CHECK;

/* The length of an array, which is min to max. */
enum status place_get_array(size_t *count, const struct place *place, const char *key, size_t min,
                            size_t max) MUST_CHECK;

/* Borrowed from the file's tree. */
enum status place_get_text(const char **out, const struct place *place, const char *key) MUST_CHECK;

/* Into `room` bytes, with the NUL; not empty. A name is of a to z, digits, - and _. */
enum status place_copy_text(char *out, size_t room, const struct place *place,
                            const char *key) MUST_CHECK;
enum status place_copy_name(char *out, size_t room, const struct place *place,
                            const char *key) MUST_CHECK;
bool place_is_name(const char *text);

/* The place of a string in a list of words. */
enum status place_get_word(int *out, const struct place *place, const char *key,
                           const char *const *words, int count) MUST_CHECK;

enum quantity { BANDWIDTH, SECONDS, COMPUTE, SIZE, SHARE };

/* In bytes, seconds, flops and their quotients; a number, or the name of one of the file's. Above
 * 0, but for seconds. */
enum status place_get_number(double *out, const struct place *place, const char *key,
                             enum quantity quantity) MUST_CHECK;

/* The file's "numbers", where it has any: those that nobody uses, too, say where they are from. */
enum status place_take_numbers(struct place *file) MUST_CHECK;

#endif
