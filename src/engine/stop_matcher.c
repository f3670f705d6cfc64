#include "engine/stop_matcher.h"

#include "base/memory.h"

_Static_assert(STOP_STRING_BYTES_MAX <= UINT16_MAX, "borders and states are 16 bits wide");

/* The longest prefix that is matched once `byte` follows a match of `matched` bytes. */
static size_t step(const struct stop_string *string, size_t matched, char byte)
{
    while (matched > 0 && string->bytes[matched] != byte)
        matched = string->borders[matched - 1];
    return string->bytes[matched] == byte ? matched + 1 : 0;
}

enum status stop_set_add(struct stop_set *set, const char *bytes, size_t length, struct error *err)
{
    ASSERT(set->count < STOP_STRINGS_MAX && length > 0 && length <= STOP_STRING_BYTES_MAX);
    void *borders;
    TRY(memory_get(&borders, length, sizeof(uint16_t), "a stop string", err));
    struct stop_string *string = &set->strings[set->count++];
    *string = (struct stop_string){.bytes = bytes, .length = length, .borders = borders};
    for (size_t i = 1; i < length; i++)
        string->borders[i] = (uint16_t)step(string, string->borders[i - 1], bytes[i]);
    return STATUS_OK;
}

void stop_set_deinit(struct stop_set *set)
{
    for (int i = 0; i < set->count; i++)
        memory_free(set->strings[i].borders);
    set->count = 0;
}

bool stop_state_feed(struct stop_state *state, const struct stop_set *set, const char *bytes,
                     size_t length, size_t *end, int *index)
{
    for (size_t at = 0; at < length && set->count > 0; at++) {
        size_t longest = 0;
        for (int i = 0; i < set->count; i++) {
            const struct stop_string *string = &set->strings[i];
            size_t matched = step(string, state->matched[i], bytes[at]);
            if (matched == string->length) {
                if (matched > longest) {
                    longest = matched;
                    *index = i;
                }
                matched = string->borders[matched - 1];
            }
            state->matched[i] = (uint16_t)matched;
        }
        if (longest > 0) {
            *end = at + 1;
            return true;
        }
    }
    return false;
}

size_t stop_state_held(const struct stop_state *state, const struct stop_set *set)
{
    size_t held = 0;
    for (int i = 0; i < set->count; i++) {
        if (state->matched[i] > held)
            held = state->matched[i];
    }
    return held;
}
