#include "tokenizer/utf8_clean.h"

#define REPLACEMENT "\xEF\xBF\xBD"

/* Length of the maximal broken part at `in`, where no valid sequence begins. */
static size_t broken_length(const char *in, size_t length)
{
    for (size_t part = length < 3 ? length : 3; part > 1; part--) {
        if (utf8_unfinished(in, part) == part)
            return part;
    }
    return 1;
}

size_t utf8_append_finished(struct text *out, const char *in, size_t length)
{
    size_t usable = length - utf8_unfinished(in, length);
    for (size_t at = 0, begin = 0; begin < usable;) {
        uint32_t code_point;
        size_t step;
        while (at < usable && (step = utf8_decode(&code_point, in + at, usable - at)) > 0)
            at += step;
        text_append(out, in + begin, at - begin);
        if (at < usable) {
            text_append_string(out, REPLACEMENT);
            at += broken_length(in + at, usable - at);
        }
        begin = at;
    }
    return usable;
}

void utf8_append_clean(struct text *out, const char *in, size_t length)
{
    if (utf8_append_finished(out, in, length) < length)
        text_append_string(out, REPLACEMENT);
}
