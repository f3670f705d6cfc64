#include "tokenizer/decode_plan.h"

#include <string.h>

#include "base/json.h"
#include "tokenizer/pretokenizer.h"
#include "tokenizer/unicode_class.h"

static int hex_digit(char digit)
{
    if (digit >= '0' && digit <= '9')
        return digit - '0';
    digit |= 0x20;
    return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

/* The byte that <0x41> names; -1 for other tokens. */
static int fallback_byte(const char *token, size_t length)
{
    if (length != 6 || memcmp(token, "<0x", 3) != 0 || token[5] != '>')
        return -1;
    int high = hex_digit(token[3]), low = hex_digit(token[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

static bool begins_with(const char *text, size_t length, const struct decode_step *step)
{
    return length >= step->from_length && memcmp(text, step->from, step->from_length) == 0;
}

static void replace_all(struct text *out, const struct decode_step *step, const char *in,
                        size_t length, const char *to, size_t to_length)
{
    for (size_t at = 0; at < length;) {
        if (begins_with(in + at, length - at, step)) {
            text_append(out, to, to_length);
            at += step->from_length;
        } else {
            text_append(out, in + at, 1);
            at++;
        }
    }
}

/* A token with any character outside the alphabet stands for its own text. */
static void decode_byte_level(struct text *out, const char *in, size_t length)
{
    for (size_t at = 0; at < length;) {
        if (byte_of_char(unicode_next(in, &at)) < 0) {
            text_append(out, in, length);
            return;
        }
    }
    for (size_t at = 0; at < length;) {
        char byte = (char)byte_of_char(unicode_next(in, &at));
        text_append(out, &byte, 1);
    }
}

static void strip(struct text *out, const struct decode_step *step, const char *in, size_t length)
{
    for (int64_t i = 0; i < step->start && begins_with(in, length, step); i++) {
        in += step->from_length;
        length -= step->from_length;
    }
    for (int64_t i = 0; i < step->stop && length >= step->from_length; i++) {
        if (memcmp(in + length - step->from_length, step->from, step->from_length) != 0)
            break;
        length -= step->from_length;
    }
    text_append(out, in, length);
}

static void apply_step(const struct decode_step *step, struct text *out, const char *in,
                       size_t length, bool first)
{
    int byte;
    switch (step->kind) {
    case DECODE_REPLACE:
        replace_all(out, step, in, length, step->to, step->to_length);
        return;
    case DECODE_METASPACE:
        replace_all(out, step, in, length, " ", first && step->leading ? 0 : 1);
        return;
    case DECODE_BYTE_LEVEL:
        decode_byte_level(out, in, length);
        return;
    case DECODE_BYTE_FALLBACK:
        byte = fallback_byte(in, length);
        text_append(out, byte < 0 ? in : (char[]){(char)byte}, byte < 0 ? length : 1);
        return;
    case DECODE_STRIP:
    case DECODE_STRIP_TEXT:
        if (first || step->kind == DECODE_STRIP)
            strip(out, step, in, length);
        else
            text_append(out, in, length);
        return;
    case DECODE_JOIN:
        text_append(out, " ", first ? 0 : 1);
        text_append(out, in, length);
        return;
    }
}

bool decode_plan_apply(const struct decode_plan *plan, struct text *out, const char *token,
                       size_t length, bool first)
{
    struct text current = {0}, next = {0};
    bool had_text = true;
    text_append(&current, token, length);
    for (size_t i = 0; i < plan->step_count && !current.failed; i++) {
        if (plan->steps[i].kind == DECODE_STRIP_TEXT)
            had_text = current.length > 0;
        text_clear(&next);
        apply_step(&plan->steps[i], &next, current.bytes, current.length, first);
        struct text swapped = current;
        current = next;
        next = swapped;
    }
    text_append(out, current.bytes, current.length);
    out->failed = out->failed || current.failed || next.failed;
    text_deinit(&current);
    text_deinit(&next);
    return had_text;
}
