/* Unicode normal forms. utf8proc decomposes and composes; the ordering of combining marks between
 * the two is done here, because utf8proc's takes quadratic time in a run of marks. */
#include <string.h>
#include <utf8proc.h>

#include "base/memory.h"
#include "tokenizer/normalizer.h"

#define DECOMPOSITION_MAX 18 /* code points; of U+FDFA in NFKD */

struct code_points { /* start with {0} */
    utf8proc_int32_t *items;
    size_t count, capacity;
};

static utf8proc_option_t options_of(enum normalizer_kind kind)
{
    unsigned options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
    if (kind == NORMALIZER_NFKC || kind == NORMALIZER_NFKD)
        options |= UTF8PROC_COMPAT;
    return (utf8proc_option_t)options;
}

static enum status decompose(struct code_points *out, enum normalizer_kind kind, const char *in,
                             size_t length, struct error *err)
{
    out->count = 0;
    for (size_t at = 0; at < length;) {
        uint32_t code_point = 0;
        at += utf8_decode(&code_point, in + at, length - at);
        TRY(memory_reserve(&out->items, &out->capacity, out->count + DECOMPOSITION_MAX,
                           sizeof *out->items, "a normal form", err));
        int boundary = 0;
        utf8proc_ssize_t written =
            utf8proc_decompose_char((utf8proc_int32_t)code_point, out->items + out->count,
                                    DECOMPOSITION_MAX, options_of(kind), &boundary);
        ASSERT(written >= 0 && written <= DECOMPOSITION_MAX);
        out->count += (size_t)written;
    }
    return STATUS_OK;
}

static unsigned combining_class(utf8proc_int32_t code_point)
{
    return utf8proc_get_property(code_point)->combining_class & 0xFFu;
}

/* Stable order by class; short runs, which are nearly all, by insertion. */
static void sort_short(utf8proc_int32_t *run, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        utf8proc_int32_t moved = run[i];
        size_t at = i;
        for (; at > 0 && combining_class(run[at - 1]) > combining_class(moved); at--)
            run[at] = run[at - 1];
        run[at] = moved;
    }
}

static enum status sort_long(utf8proc_int32_t *run, size_t count, struct error *err)
{
    size_t starts[257] = {0};
    void *memory;
    TRY(memory_get_raw(&memory, count, sizeof *run, "a run of combining marks", err));
    utf8proc_int32_t *copy = memory;
    memcpy(copy, run, count * sizeof *run);
    for (size_t i = 0; i < count; i++)
        starts[combining_class(copy[i]) + 1]++;
    for (size_t i = 1; i < 257; i++)
        starts[i] += starts[i - 1];
    for (size_t i = 0; i < count; i++)
        run[starts[combining_class(copy[i])]++] = copy[i];
    memory_free(copy);
    return STATUS_OK;
}

static enum status order_marks(struct code_points *points, struct error *err)
{
    for (size_t begin = 0, end; begin < points->count; begin = end + 1) {
        for (end = begin; end < points->count && combining_class(points->items[end]) != 0; end++)
            ;
        if (end - begin <= 16)
            sort_short(points->items + begin, end - begin);
        else
            TRY(sort_long(points->items + begin, end - begin, err));
    }
    return STATUS_OK;
}

static void append_code_points(struct text *out, const utf8proc_int32_t *items, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char bytes[4];
        text_append(out, bytes, utf8_encode(bytes, (uint32_t)items[i]));
    }
}

static enum status append_form(struct text *out, struct code_points *points,
                               enum normalizer_kind kind, const char *in, size_t length,
                               struct error *err)
{
    TRY(decompose(points, kind, in, length, err));
    TRY(order_marks(points, err));
    size_t count = points->count;
    if (kind == NORMALIZER_NFC || kind == NORMALIZER_NFKC) {
        unsigned compose = UTF8PROC_COMPOSE | UTF8PROC_STABLE;
        utf8proc_ssize_t composed = utf8proc_normalize_utf32(points->items, (utf8proc_ssize_t)count,
                                                             (utf8proc_option_t)compose);
        ASSERT(composed >= 0);
        count = (size_t)composed;
    }
    append_code_points(out, points->items, count);
    return STATUS_OK;
}

/* ASCII is its own normal form and combines with nothing before it. So a text is cut into stretches
 * of ASCII, copied, and stretches that begin with at most one ASCII character and go on without. */
enum status normalizer_form(enum normalizer_kind kind, struct text *out, const char *in,
                            size_t length, struct error *err)
{
    struct code_points points = {0};
    enum status status = STATUS_OK;
    size_t at = 0;
    while (at < length && status == STATUS_OK) {
        size_t begin = at;
        while (at < length && (unsigned char)in[at] < 0x80)
            at++;
        size_t copied = at < length && at > begin ? at - 1 : at;
        text_append(out, in + begin, copied - begin);
        while (at < length && (unsigned char)in[at] >= 0x80)
            at++;
        if (at > copied)
            status = append_form(out, &points, kind, in + copied, at - copied, err);
    }
    memory_free(points.items);
    return status;
}
