#include "tokenizer/added_tokens.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "tokenizer/unicode_class.h"

void segment_list_deinit(struct segment_list *list)
{
    memory_free(list->items);
    *list = (struct segment_list){0};
}

void added_tokens_deinit(struct added_tokens *added)
{
    memory_free(added->raw.tokens);
    memory_free(added->normalized.tokens);
    *added = (struct added_tokens){0};
}

static enum status normalize_text(struct added_token *token, struct arena *arena,
                                  const struct normalizer *normalizer, struct error *err)
{
    struct text normal = {0}, scratch = {0};
    enum status status;
    TRY_GOTO(normalizer_apply(normalizer, &normal, &scratch, token->text, token->length, err),
             done);
    token->length = normal.length;
    token->text = arena_copy_text(arena, normal.bytes, normal.length);
    if (token->text == NULL)
        status = error_set(err, STATUS_NO_MEMORY, "cannot allocate an added token");
done:
    text_deinit(&normal);
    text_deinit(&scratch);
    return status;
}

static enum status read_token(struct added_token *token, bool *normalized, struct arena *arena,
                              const struct vocab *vocab, const struct normalizer *normalizer,
                              const json_t *json, const char *file, struct error *err)
{
    const json_t *content = json_object_get(json, "content");
    size_t length = json_string_length(content);
    int32_t id = vocab_find(vocab, json_string_value(content), length);
    const struct vocab_token *known = vocab_at(vocab, id);
    ASSERT(known != NULL); /* vocab_read put it there */
    *token = (struct added_token){.text = known->text, .length = known->length, .id = id};
    TRY(json_get_bool_or(&token->special, json, file, "special", false, err));
    TRY(json_get_bool_or(&token->single_word, json, file, "single_word", false, err));
    TRY(json_get_bool_or(&token->left_strip, json, file, "lstrip", false, err));
    TRY(json_get_bool_or(&token->right_strip, json, file, "rstrip", false, err));
    TRY(json_get_bool_or(normalized, json, file, "normalized", !token->special, err));
    if (*normalized)
        TRY(normalize_text(token, arena, normalizer, err));
    if (token->length == 0 || token->length > ADDED_TOKEN_BYTES_MAX)
        return error_set(err, STATUS_LIMIT,
                         "%s: added token %d is %zu bytes long, 1 to %d are "
                         "allowed",
                         file, id, token->length, ADDED_TOKEN_BYTES_MAX);
    return STATUS_OK;
}

static int compare_tokens(const void *left, const void *right)
{
    const struct added_token *a = left, *b = right;
    size_t shorter = a->length < b->length ? a->length : b->length;
    int order = memcmp(a->text, b->text, shorter);
    if (order != 0)
        return order;
    if (a->length != b->length)
        return a->length < b->length ? -1 : 1;
    /* Of tokens that normalize to one text the first counts; special ones come first. */
    if (a->special != b->special)
        return a->special ? -1 : 1;
    return a->id < b->id ? -1 : 1;
}

static void sort_set(struct token_set *set)
{
    if (set->count > 0)
        qsort(set->tokens, set->count, sizeof *set->tokens, compare_tokens);
    uint32_t at = 0;
    for (unsigned byte = 0; byte <= 256; byte++) {
        while (at < set->count && (unsigned char)set->tokens[at].text[0] < byte)
            at++;
        set->first[byte] = at;
    }
}

enum status added_tokens_read(struct added_tokens *added, struct arena *arena,
                              const struct vocab *vocab, const struct normalizer *normalizer,
                              const json_t *json, const char *file, struct error *err)
{
    *added = (struct added_tokens){0};
    if (json != NULL && !json_is_null(json) && !json_is_array(json))
        return error_set(err, STATUS_FORMAT, "%s: \"added_tokens\": expected an array, found %s",
                         file, json_kind(json));
    size_t count = json_array_size(json);
    void *memory;
    TRY(memory_get(&memory, count, sizeof(struct added_token), "the added tokens", err));
    added->raw.tokens = memory;
    TRY(memory_get(&memory, count, sizeof(struct added_token), "the added tokens", err));
    added->normalized.tokens = memory;
    for (size_t i = 0; i < count; i++) {
        struct added_token token;
        bool normalized;
        TRY(read_token(&token, &normalized, arena, vocab, normalizer, json_array_get(json, i), file,
                       err));
        struct token_set *set = normalized ? &added->normalized : &added->raw;
        set->tokens[set->count++] = token;
    }
    sort_set(&added->raw);
    sort_set(&added->normalized);
    return STATUS_OK;
}

/* The tokens of [low, high) whose byte at `depth` is `byte`; all agree before it and are sorted. */
static void narrow(const struct token_set *set, size_t *low, size_t *high, size_t depth,
                   unsigned char byte)
{
    size_t bounds[2];
    for (unsigned i = 0; i < 2; i++) {
        size_t from = *low, to = *high;
        while (from < to) { /* the first token whose byte is >= byte + i */
            size_t middle = from + (to - from) / 2;
            const struct added_token *token = &set->tokens[middle];
            bool below = token->length <= depth || (unsigned char)token->text[depth] < byte + i;
            if (below)
                from = middle + 1;
            else
                to = middle;
        }
        bounds[i] = from;
    }
    *low = bounds[0];
    *high = bounds[1];
}

/* The longest token that `text` begins with; NULL: none. */
static const struct added_token *longest_at(const struct token_set *set, const char *text,
                                            size_t length)
{
    size_t low = set->first[(unsigned char)text[0]], high = set->first[(unsigned char)text[0] + 1];
    const struct added_token *found = NULL;
    for (size_t depth = 1; low < high; depth++) {
        if (set->tokens[low].length == depth)
            found = &set->tokens[low];
        if (depth == length)
            break;
        narrow(set, &low, &high, depth, (unsigned char)text[depth]);
    }
    return found;
}

struct finder {
    const struct token_set *set;
    const char *text;
    size_t length;
    struct special_places places;
    size_t span;      /* the first special span that ends behind the place of search */
    size_t done;      /* end of what is already in a segment */
    size_t run_begin; /* the last run of white space that a right strip took */
    size_t run_end;
};

/* A token that ordinary text must not become is skipped as a whole, as in the original. */
static bool is_allowed(struct finder *finder, const struct added_token *token, size_t begin,
                       size_t end)
{
    const struct special_places *places = &finder->places;
    if (!token->special || places->everywhere)
        return true;
    while (finder->span < places->span_count && places->spans[finder->span].end < end)
        finder->span++;
    return finder->span < places->span_count && places->spans[finder->span].begin <= begin;
}

/* Where the search goes on behind a token that was not taken: behind it, but not beyond the
 * beginning of a place where special tokens are accepted. */
static size_t behind_refused(const struct finder *finder, size_t begin, size_t end)
{
    const struct special_places *places = &finder->places;
    if (finder->span >= places->span_count)
        return end;
    size_t next = places->spans[finder->span].begin;
    return next > begin && next < end ? next : end;
}

static bool stands_alone(const struct finder *finder, size_t begin, size_t end)
{
    if (begin > 0 && unicode_is_word(unicode_previous(finder->text, &begin)))
        return false;
    return end == finder->length || !unicode_is_word(unicode_next(finder->text, &end));
}

static size_t strip_left(const struct finder *finder, size_t begin)
{
    while (begin > finder->done) {
        size_t before = begin;
        if (unicode_class(unicode_previous(finder->text, &before)) != CLASS_SPACE)
            break;
        begin = before;
    }
    return begin;
}

/* Tokens of white space can stand within a run that an earlier one took: the run is not read
 * again for each of them. */
static size_t strip_right(struct finder *finder, size_t end)
{
    if (end >= finder->run_begin && end < finder->run_end)
        return finder->run_end;
    finder->run_begin = end;
    while (end < finder->length) {
        size_t behind = end;
        if (unicode_class(unicode_next(finder->text, &behind)) != CLASS_SPACE)
            break;
        end = behind;
    }
    finder->run_end = end;
    return end;
}

static enum status add_segment(struct segment_list *out, size_t begin, size_t end, int32_t id,
                               struct error *err)
{
    TRY(memory_reserve(&out->items, &out->capacity, out->count + 1, sizeof *out->items,
                       "segments of a text", err));
    out->items[out->count++] = (struct segment){.begin = begin, .end = end, .id = id};
    return STATUS_OK;
}

static enum status take_token(struct finder *finder, struct segment_list *out,
                              const struct added_token *token, size_t begin, size_t end,
                              struct error *err)
{
    if (token->left_strip)
        begin = strip_left(finder, begin);
    if (token->right_strip)
        end = strip_right(finder, end);
    if (begin > finder->done)
        TRY(add_segment(out, finder->done, begin, -1, err));
    TRY(add_segment(out, begin, end, token->id, err));
    finder->done = end;
    return STATUS_OK;
}

enum status added_tokens_split(const struct token_set *set, struct segment_list *out,
                               const char *text, size_t length, struct special_places places,
                               struct error *err)
{
    struct finder finder = {.set = set, .text = text, .length = length, .places = places};
    out->count = 0;
    for (size_t at = 0; at < length && set->count > 0;) {
        const struct added_token *token = longest_at(set, text + at, length - at);
        if (token == NULL) {
            at++;
            continue;
        }
        size_t end = at + token->length;
        if (!is_allowed(&finder, token, at, end)) {
            at = behind_refused(&finder, at, end);
            continue;
        }
        if (!token->single_word || stands_alone(&finder, at, end))
            TRY(take_token(&finder, out, token, at, end, err));
        at = end;
    }
    return finder.done < length ? add_segment(out, finder.done, length, -1, err) : STATUS_OK;
}
