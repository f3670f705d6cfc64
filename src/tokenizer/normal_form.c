/* Unicode normal forms. utf8proc decomposes and composes; the ordering of combining marks between
 * the two is done here, because utf8proc's takes quadratic time in a run of marks. */
#include <string.h>
#include <utf8proc.h>

#include "base/memory.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/unicode_class.h"

/* Characters that the reference, whose tables are of about Unicode 10, passes as they are: later
 * marks that have an order, later compatibility characters, and the two that would make U+11938. A
 * model has seen them so; ids must not depend on a newer table. None of them combines with what
 * stands beside it in the older tables, so a text can be cut there. */
static const struct {
    uint32_t first, last;
} newer_characters[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},
    {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},
    {0xA82C, 0xA82C},   {0xAB69, 0xAB69},   {0x10781, 0x10785}, {0x10787, 0x107B0},
    {0x107B2, 0x107BA}, {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF},
    {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B},
    {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930}, {0x11938, 0x11938},
    {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34},
    {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45},
    {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E030, 0x1E06D},
    {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF},
    {0x1E4EC, 0x1E4EF}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9},
};

static bool is_newer(uint32_t code_point)
{
    size_t low = 0, high = sizeof newer_characters / sizeof newer_characters[0];
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (code_point > newer_characters[middle].last)
            low = middle + 1;
        else if (code_point < newer_characters[middle].first)
            high = middle;
        else
            return true;
    }
    return false;
}

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

/* End of the stretch that must be normalized together: before the next ASCII or newer character.
 * `*behind` is where the search goes on, behind a newer one. */
static size_t stretch_end(const char *in, size_t length, size_t at, size_t *behind)
{
    while (at < length && (unsigned char)in[at] >= 0x80) {
        *behind = at;
        if (is_newer(unicode_next(in, behind)))
            return at;
        at = *behind;
    }
    *behind = at;
    return at;
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
        size_t copied = at < length && at > begin ? at - 1 : at, behind = at;
        text_append(out, in + begin, copied - begin);
        size_t end = stretch_end(in, length, at, &behind);
        if (end > copied)
            status = append_form(out, &points, kind, in + copied, end - copied, err);
        text_append(out, in + end, behind - end);
        at = behind;
    }
    memory_free(points.items);
    return status;
}
