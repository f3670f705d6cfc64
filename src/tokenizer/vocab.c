#include "tokenizer/vocab.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/json.h"
#include "base/memory.h"
#include "base/random.h"

/* A token longer than this is no token; it would only make matching slow. */
#define TOKEN_BYTES_MAX 65535

static size_t slot_of(const struct vocab *vocab, const char *text, size_t length)
{
    size_t slot = XXH3_64bits_withSeed(text, length, vocab->slot_seed) & vocab->slot_mask;
    while (vocab->slots[slot] != 0) {
        const struct vocab_token *token = &vocab->tokens[vocab->slots[slot] - 1];
        if (token->length == length && memcmp(token->text, text, length) == 0)
            break;
        slot = (slot + 1) & vocab->slot_mask;
    }
    return slot;
}

int32_t vocab_find(const struct vocab *vocab, const char *text, size_t length)
{
    return (int32_t)vocab->slots[slot_of(vocab, text, length)] - 1;
}

static int32_t find_with(const struct vocab *vocab, const char *text, size_t length, uint32_t mask,
                         uint32_t wanted)
{
    int32_t id = vocab_find(vocab, text, length);
    return id >= 0 && (vocab->tokens[id].flags & mask) == wanted ? id : -1;
}

int32_t vocab_find_model(const struct vocab *vocab, const char *text, size_t length)
{
    return find_with(vocab, text, length, TOKEN_IN_MODEL, TOKEN_IN_MODEL);
}

int32_t vocab_find_plain(const struct vocab *vocab, const char *text, size_t length)
{
    return find_with(vocab, text, length, TOKEN_IN_MODEL | TOKEN_SPECIAL, TOKEN_IN_MODEL);
}

static enum status read_id(int64_t *out, const json_t *value, const char *text, int64_t limit,
                           const char *file, struct error *err)
{
    if (!json_is_integer(value))
        return error_set(err, STATUS_FORMAT,
                         "%s: id of token \"%s\": expected an integer, found %s", file, text,
                         json_kind(value));
    int64_t id = json_integer_value(value);
    if (id < 0 || id >= limit)
        return error_set(err, STATUS_FORMAT,
                         "%s: id of token \"%s\": expected 0 to %lld for this number of tokens, "
                         "found %lld",
                         file, text, (long long)limit - 1, (long long)id);
    *out = id;
    return STATUS_OK;
}

/* Stores a token that the table does not hold yet. */
static enum status add_token(struct vocab *vocab, size_t slot, int64_t id, const char *text,
                             size_t length, const char *file, struct error *err)
{
    struct vocab_token *token = &vocab->tokens[id];
    if (token->text != NULL)
        return error_set(err, STATUS_FORMAT, "%s: tokens \"%s\" and \"%s\" have the same id %lld",
                         file, token->text, text, (long long)id);
    if (length > TOKEN_BYTES_MAX)
        return error_set(err, STATUS_LIMIT,
                         "%s: token %lld is %zu bytes long, at most %d are allowed", file,
                         (long long)id, length, TOKEN_BYTES_MAX);
    token->text = arena_copy_text(vocab->arena, text, length);
    if (token->text == NULL)
        return error_set(err, STATUS_NO_MEMORY, "cannot allocate the vocabulary of %s", file);
    token->length = (uint32_t)length;
    vocab->slots[slot] = (uint32_t)id + 1;
    if ((size_t)id >= vocab->count)
        vocab->count = (size_t)id + 1;
    return STATUS_OK;
}

static enum status read_model(struct vocab *vocab, const json_t *model_vocab, int64_t limit,
                              const char *file, struct error *err)
{
    /* The iterator is not const in jansson, but reading changes nothing. */
    json_t *object = (json_t *)(uintptr_t)model_vocab;
    for (void *at = json_object_iter(object); at != NULL; at = json_object_iter_next(object, at)) {
        const char *text = json_object_iter_key(at);
        size_t length = json_object_iter_key_len(at);
        int64_t id;
        TRY(read_id(&id, json_object_iter_value(at), text, limit, file, err));
        TRY(add_token(vocab, slot_of(vocab, text, length), id, text, length, file, err));
        vocab->tokens[id].flags = TOKEN_IN_MODEL;
    }
    return STATUS_OK;
}

static enum status read_added(struct vocab *vocab, const json_t *entry, int64_t limit,
                              const char *file, struct error *err)
{
    const json_t *content = json_object_get(entry, "content");
    if (!json_is_string(content) || json_string_length(content) == 0)
        return error_set(
            err, STATUS_FORMAT,
            "%s: \"added_tokens\": expected objects with a \"content\" that is a string "
            "with text, found %s",
            file, json_is_string(content) ? "an empty one" : json_kind(content));
    const char *text = json_string_value(content);
    size_t length = json_string_length(content);
    int64_t id;
    TRY(read_id(&id, json_object_get(entry, "id"), text, limit, file, err));
    bool special;
    TRY(json_get_bool_or(&special, entry, file, "special", false, err));
    size_t slot = slot_of(vocab, text, length);
    int64_t known = (int64_t)vocab->slots[slot] - 1;
    if (known < 0)
        TRY(add_token(vocab, slot, id, text, length, file, err));
    else if (known != id)
        return error_set(err, STATUS_FORMAT,
                         "%s: added token \"%s\" has id %lld, but the vocabulary gives it id %lld",
                         file, text, (long long)id, (long long)known);
    else if (vocab->tokens[id].flags & TOKEN_ADDED)
        return error_set(err, STATUS_FORMAT, "%s: token \"%s\" is added twice", file, text);
    vocab->tokens[id].flags |= TOKEN_ADDED | (special ? TOKEN_SPECIAL : 0);
    return STATUS_OK;
}

enum status vocab_read(struct vocab *vocab, struct arena *arena, const json_t *model_vocab,
                       const json_t *added_tokens, const char *file, struct error *err)
{
    *vocab = (struct vocab){.arena = arena};
    if (!json_is_object(model_vocab))
        return error_set(err, STATUS_FORMAT, "%s: \"model.vocab\": expected an object, found %s",
                         file, json_kind(model_vocab));
    size_t count = json_object_size(model_vocab) + json_array_size(added_tokens);
    size_t limit = count + VOCAB_HOLES_MAX;
    if (count == 0)
        return error_set(err, STATUS_FORMAT, "%s: \"model.vocab\" is empty", file);
    size_t slot_count = 64;
    while (slot_count < 2 * count)
        slot_count *= 2;
    vocab->slot_mask = slot_count - 1;
    vocab->slot_seed = random_seed_make();
    void *memory;
    TRY(memory_get(&memory, limit, sizeof *vocab->tokens, "the vocabulary", err));
    vocab->tokens = memory;
    TRY(memory_get(&memory, slot_count, sizeof *vocab->slots, "the vocabulary", err));
    vocab->slots = memory;
    TRY(read_model(vocab, model_vocab, (int64_t)limit, file, err));
    for (size_t i = 0; i < json_array_size(added_tokens); i++)
        TRY(read_added(vocab, json_array_get(added_tokens, i), (int64_t)limit, file, err));
    return STATUS_OK;
}

void vocab_deinit(struct vocab *vocab)
{
    memory_free(vocab->tokens);
    memory_free(vocab->slots);
    *vocab = (struct vocab){0};
}
