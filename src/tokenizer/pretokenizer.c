#include "tokenizer/pretokenizer.h"

#include <string.h>

#include "base/memory.h"

void pretokenizer_work_deinit(struct pretokenizer_work *work)
{
    text_deinit(&work->text);
    text_deinit(&work->next_text);
    span_list_deinit(&work->pieces);
    span_list_deinit(&work->next_pieces);
    span_list_deinit(&work->matches);
    memory_free(work->parts);
    match_work_deinit(&work->match);
    *work = (struct pretokenizer_work){0};
}

void pretokenizer_deinit(struct pretokenizer *pretokenizer)
{
    for (size_t i = 0; i < pretokenizer->step_count; i++)
        matcher_deinit(&pretokenizer->steps[i].matcher);
    *pretokenizer = (struct pretokenizer){0};
}

static bool is_printable_byte(unsigned byte)
{
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
}

/* Bytes that do not stand for themselves take U+0100, U+0101, ... in their order:
 * 0x00-0x20 (33), 0x7F-0xA0 (34), 0xAD. */
uint32_t char_of_byte(unsigned char byte)
{
    if (is_printable_byte(byte))
        return byte;
    if (byte <= 0x20)
        return 0x100u + byte;
    return byte == 0xAD ? 0x100u + 67 : 0x100u + 33 + (byte - 0x7Fu);
}

int byte_of_char(uint32_t code_point)
{
    if (code_point < 0x100)
        return is_printable_byte(code_point) ? (int)code_point : -1;
    if (code_point <= 0x100 + 0x20)
        return (int)(code_point - 0x100);
    if (code_point == 0x100 + 67)
        return 0xAD;
    return code_point < 0x100 + 67 ? (int)(code_point - 0x100 - 33 + 0x7F) : -1;
}

static enum status add_part(struct pretokenizer_work *work, size_t begin, size_t end, bool is_match,
                            struct error *err)
{
    if (begin == end)
        return STATUS_OK;
    TRY(memory_reserve(&work->parts, &work->part_capacity, work->part_count + 1,
                       sizeof *work->parts, "pieces of a text", err));
    work->parts[work->part_count++] =
        (struct part){.begin = (uint32_t)begin, .end = (uint32_t)end, .is_match = is_match};
    return STATUS_OK;
}

/* The whole piece as matches and the gaps between them; offsets are of the text. */
static enum status list_parts(const struct pretokenizer_step *step, struct pretokenizer_work *work,
                              struct span piece, struct error *err)
{
    work->matches.count = 0;
    work->part_count = 0;
    TRY(matcher_find(&step->matcher, &work->match, &work->matches, work->text.bytes + piece.begin,
                     piece.end - piece.begin, err));
    size_t at = piece.begin;
    for (size_t i = 0; i < work->matches.count; i++) {
        size_t begin = piece.begin + work->matches.items[i].begin;
        size_t end = piece.begin + work->matches.items[i].end;
        TRY(add_part(work, at, begin, step->invert, err));
        TRY(add_part(work, begin, end, !step->invert, err));
        at = end;
    }
    return add_part(work, at, piece.end, step->invert, err);
}

/* Whether part i is joined to the one before it. */
static bool joins_previous(const struct part *parts, size_t i, enum split_behavior behavior)
{
    if (i == 0)
        return false;
    switch (behavior) {
    case SPLIT_MERGED_WITH_PREVIOUS:
        return parts[i].is_match && !parts[i - 1].is_match;
    case SPLIT_MERGED_WITH_NEXT:
        return parts[i - 1].is_match && !parts[i].is_match;
    case SPLIT_CONTIGUOUS:
        return parts[i].is_match == parts[i - 1].is_match;
    default:
        return false;
    }
}

static enum status split_piece(const struct pretokenizer_step *step, struct pretokenizer_work *work,
                               struct span piece, struct error *err)
{
    TRY(list_parts(step, work, piece, err));
    for (size_t i = 0, next; i < work->part_count; i = next) {
        for (next = i + 1; next < work->part_count; next++) {
            if (!joins_previous(work->parts, next, step->behavior))
                break;
        }
        if (step->behavior != SPLIT_REMOVED || !work->parts[i].is_match)
            TRY(span_list_add(&work->next_pieces, work->parts[i].begin, work->parts[next - 1].end,
                              err));
    }
    return STATUS_OK;
}

static void append_byte_chars(struct text *out, const char *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        char encoded[4];
        text_append(out, encoded, utf8_encode(encoded, char_of_byte((unsigned char)bytes[i])));
    }
}

static void append_replaced(struct text *out, const struct pretokenizer_step *step,
                            const char *bytes, size_t length)
{
    const char *end = bytes + length;
    while (bytes < end) {
        const char *space = memchr(bytes, ' ', (size_t)(end - bytes));
        const char *stop = space == NULL ? end : space;
        text_append(out, bytes, (size_t)(stop - bytes));
        if (space == NULL)
            break;
        text_append(out, step->text, step->text_length);
        bytes = space + 1;
    }
}

static bool wants_prefix(const struct pretokenizer_step *step, const char *piece, size_t length,
                         bool at_start)
{
    if (step->scheme == PREPEND_NEVER || (step->scheme == PREPEND_FIRST && !at_start))
        return false;
    return length < step->text_length || memcmp(piece, step->text, step->text_length) != 0;
}

/* Steps that change the text write the piece anew. */
static enum status rewrite_piece(const struct pretokenizer_step *step,
                                 struct pretokenizer_work *work, struct span piece, bool at_start,
                                 struct error *err)
{
    const char *bytes = work->text.bytes + piece.begin;
    size_t length = piece.end - piece.begin, begin = work->next_text.length;
    if (step->kind == PRETOKENIZER_BYTE_CHARS) {
        append_byte_chars(&work->next_text, bytes, length);
    } else if (step->kind == PRETOKENIZER_REPLACE) {
        append_replaced(&work->next_text, step, bytes, length);
    } else {
        if (wants_prefix(step, bytes, length, at_start))
            text_append(&work->next_text, step->text, step->text_length);
        text_append(&work->next_text, bytes, length);
    }
    return span_list_add(&work->next_pieces, begin, work->next_text.length, err);
}

/* For a text of `length` bytes. */
static size_t size_limit(size_t length)
{
    if (length > PRETOKENIZED_BYTES_MAX / PRETOKENIZED_GROWTH_MAX)
        return PRETOKENIZED_BYTES_MAX;
    return PRETOKENIZED_GROWTH_MAX * (length + 1); /* of none a mark may come */
}

static enum status check_size(size_t length, size_t limit, struct error *err)
{
    if (length > limit)
        return error_set(err, STATUS_LIMIT,
                         "the text becomes longer than %zu bytes when it is pre-tokenized", limit);
    return STATUS_OK;
}

/* A step makes at most 5 bytes of one: even where a piece is all of the text, it is not far beyond
 * the limit when that is seen. */
static enum status apply_step(const struct pretokenizer_step *step, struct pretokenizer_work *work,
                              bool at_start, size_t limit, struct error *err)
{
    work->next_pieces.count = 0;
    text_clear(&work->next_text);
    for (size_t i = 0; i < work->pieces.count; i++) {
        struct span piece = work->pieces.items[i];
        if (step->kind == PRETOKENIZER_SPLIT)
            TRY(split_piece(step, work, piece, err));
        else
            TRY(rewrite_piece(step, work, piece, at_start && piece.begin == 0, err));
        TRY(check_size(work->next_text.length, limit, err));
    }
    struct span_list pieces = work->pieces;
    work->pieces = work->next_pieces;
    work->next_pieces = pieces;
    if (step->kind == PRETOKENIZER_SPLIT)
        return STATUS_OK;
    struct text text = work->text;
    work->text = work->next_text;
    work->next_text = text;
    return text_check(&work->text, "a pre-tokenized text", err);
}

enum status pretokenizer_apply(const struct pretokenizer *pretokenizer,
                               struct pretokenizer_work *work, const char *in, size_t length,
                               bool at_start, struct error *err)
{
    work->pieces.count = 0;
    text_clear(&work->text);
    text_append(&work->text, in, length);
    TRY(text_check(&work->text, "a pre-tokenized text", err));
    TRY(span_list_add(&work->pieces, 0, length, err));
    for (size_t i = 0; i < pretokenizer->step_count; i++)
        TRY(apply_step(&pretokenizer->steps[i], work, at_start, size_limit(length), err));
    return STATUS_OK;
}
