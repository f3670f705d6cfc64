/* Unknown patterns, by PCRE2. A file may hold any pattern and a prompt any text, so that a match is
 * bounded in steps and memory, and all matches of an encode in time. The classes are those of
 * PCRE2's own Unicode tables, which may be older than the reference's. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <stdbool.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"
#include "base/text.h"
#include "tokenizer/split.h"

#define PATTERN_BYTES_MAX 16384
#define SHOWN_BYTES       200 /* of a pattern, in messages */
#define HEAP_LIMIT_KIB    65536
/* One attempt to match, from one place, may take this many steps and 16 more for each byte: a
 * greedy repeat over the whole text that gives back one character at a time needs one step for
 * each, in each alternative. */
#define STEPS_BASE     10000
#define STEPS_PER_BYTE 16
/* All attempts of a text together: CPU time of the thread, so that a busy machine refuses nothing.
 * PCRE2 counts no steps over attempts; a callout at the front of the pattern looks at the clock. */
#define SECONDS_BASE       0.08
#define SECONDS_PER_MIB    1.0
#define ATTEMPTS_PER_CHECK 4

struct pcre_pattern {
    pcre2_code *code;
    char *shown; /* for messages */
};

static void *pcre_allocate(size_t bytes, void *context)
{
    (void)context;
    return memory_alloc_raw(bytes, 1);
}

static void pcre_release(void *memory, void *context)
{
    (void)context;
    memory_free(memory);
}

/* What follows "(?": plain, case-insensitive, atomic, or a look around. */
static bool is_known_group(const char *rest, size_t length)
{
    static const char *const known[] = {":", "i:", ">", "=", "!", "<=", "<!"};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (length > strlen(known[i]) && memcmp(rest, known[i], strlen(known[i])) == 0)
            return true;
    }
    return false;
}

/* The } that ends the braces which begin at `at`, or the end of the expression. */
static size_t skip_braces(const char *regex, size_t length, size_t at)
{
    while (at < length && regex[at] != '}')
        at++;
    return at;
}

/* A construct that Oniguruma reads otherwise than PCRE2, or that has no place in a split pattern.
 * NULL: none found. */
static const char *find_foreign(const char *regex, size_t length)
{
    bool in_class = false;
    for (size_t i = 0; i < length; i++) {
        char byte = regex[i], next = i + 1 < length ? regex[i + 1] : 0;
        if (byte == '\\') {
            if (next != 0 && strchr("wWbBhHvVgkKRXGQEZzAyYONCMcu123456789", next) != NULL)
                return "an escape whose meaning differs";
            i++;
            if (i + 1 < length && regex[i + 1] == '{') /* \p{L} */
                i = skip_braces(regex, length, i + 1);
        } else if (in_class) {
            if (byte == '[' || (byte == '&' && next == '&'))
                return "a class within a class";
            in_class = byte != ']';
        } else if (byte == '[') {
            in_class = true;
            i += next == '^';
            if (i + 1 < length && regex[i + 1] == ']')
                return "a class that begins with ]";
        } else if (byte == '(' && next == '*') {
            return "a verb";
        } else if (byte == '(' && next == '?' && !is_known_group(regex + i + 2, length - i - 2)) {
            return "a group of an unknown kind";
        } else if (byte == '}' && next == '+') {
            return "a counted repeat followed by +";
        }
    }
    return NULL;
}

static enum status no_memory(const char *file, struct error *err)
{
    return error_set(err, STATUS_NO_MEMORY, "cannot allocate a pre-tokenizer pattern of %s", file);
}

static enum status refuse(const char *file, const char *regex, size_t length, const char *reason,
                          struct error *err)
{
    return error_set(err, STATUS_UNSUPPORTED,
                     "%s: pre-tokenizer pattern \"%.*s\" is not supported: %s", file,
                     (int)(length < SHOWN_BYTES ? length : SHOWN_BYTES), regex, reason);
}

static enum status compile(pcre2_code **out, pcre2_compile_context *context, const char *regex,
                           size_t length, const char *file, struct error *err)
{
    /* $ and ^ stand for line ends, as in Oniguruma's Ruby syntax. */
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    int code;
    PCRE2_SIZE where;
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    *out = pcre2_compile((PCRE2_SPTR)regex, length, options, &code, &where, context);
    if (*out != NULL)
        return STATUS_OK;
    if (code == PCRE2_ERROR_HEAP_FAILED)
        return no_memory(file, err);
    PCRE2_UCHAR reason[128];
    pcre2_get_error_message(code, reason, sizeof reason);
    return refuse(file, regex, length, (const char *)reason, err);
}

/* The pattern alone must be right before it is put behind the callout. */
static enum status compile_pattern(struct pcre_pattern *pattern, pcre2_compile_context *context,
                                   const char *regex, size_t length, const char *file,
                                   struct error *err)
{
    struct text guarded = {0};
    enum status status;
    TRY_GOTO(compile(&pattern->code, context, regex, length, file, err), done);
    uint32_t may_be_empty = 0;
    pcre2_pattern_info(pattern->code, PCRE2_INFO_MATCHEMPTY, &may_be_empty);
    pcre2_code_free(pattern->code);
    pattern->code = NULL;
    if (may_be_empty) {
        status = refuse(file, regex, length, "it may match the empty text", err);
        goto done;
    }
    text_append_string(&guarded, "(?C1)(?:");
    text_append(&guarded, regex, length);
    text_append_string(&guarded, ")");
    TRY_GOTO(text_check(&guarded, "a pattern", err), done);
    status = compile(&pattern->code, context, guarded.bytes, guarded.length, file, err);
done:
    text_deinit(&guarded);
    return status;
}

enum status pcre_pattern_compile(struct pcre_pattern **out, const char *regex, size_t length,
                                 const char *file, struct error *err)
{
    const char *foreign = find_foreign(regex, length);
    if (foreign != NULL)
        return refuse(file, regex, length, foreign, err);
    if (length == 0 || length > PATTERN_BYTES_MAX)
        return refuse(file, regex, length, "it is empty or longer than 16,384 bytes", err);
    void *memory;
    TRY(memory_get(&memory, 1, sizeof(struct pcre_pattern), "a pre-tokenizer pattern", err));
    struct pcre_pattern *pattern = memory;
    pcre2_general_context *general =
        pcre2_general_context_create(pcre_allocate, pcre_release, NULL);
    pcre2_compile_context *context = general == NULL ? NULL : pcre2_compile_context_create(general);
    pattern->shown = memory_copy_text(regex, length < SHOWN_BYTES ? length : SHOWN_BYTES);
    enum status status = context == NULL || pattern->shown == NULL
                             ? no_memory(file, err)
                             : compile_pattern(pattern, context, regex, length, file, err);
    pcre2_compile_context_free(context);
    pcre2_general_context_free(general);
    if (status == STATUS_OK)
        *out = pattern;
    else
        pcre_pattern_free(pattern);
    return status;
}

void pcre_pattern_free(struct pcre_pattern *pattern)
{
    if (pattern == NULL)
        return;
    pcre2_code_free(pattern->code);
    memory_free(pattern->shown);
    memory_free(pattern);
}

void match_work_deinit(struct match_work *work)
{
    pcre2_match_data_free(work->pcre_match);
    pcre2_match_context_free(work->pcre_limits);
    *work = (struct match_work){0};
}

static double thread_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static enum status too_slow(const struct pcre_pattern *pattern, const char *what, struct error *err)
{
    return error_set(err, STATUS_LIMIT,
                     "the pre-tokenizer pattern \"%s\" takes too %s on this text", pattern->shown,
                     what);
}

static enum status match_failed(const struct pcre_pattern *pattern, int code, struct error *err)
{
    if (code == PCRE2_ERROR_NOMEMORY)
        return error_set(err, STATUS_NO_MEMORY, "cannot allocate memory to match a pattern");
    if (code == PCRE2_ERROR_CALLOUT)
        return too_slow(pattern, "long", err);
    if (code == PCRE2_ERROR_HEAPLIMIT)
        return too_slow(pattern, "much memory", err);
    if (code == PCRE2_ERROR_MATCHLIMIT || code == PCRE2_ERROR_DEPTHLIMIT)
        return too_slow(pattern, "many steps", err);
    return error_set(err, STATUS_INTERNAL, "the pre-tokenizer pattern \"%s\" failed with code %d",
                     pattern->shown, code);
}

/* Called before each attempt to match. */
static int watch_time(pcre2_callout_block *block, void *context)
{
    (void)block;
    struct match_work *work = context;
    if (++work->attempt_count % ATTEMPTS_PER_CHECK != 0)
        return 0;
    double seconds_max = SECONDS_BASE + SECONDS_PER_MIB * (double)work->text_bytes / (1 << 20);
    return thread_seconds() - work->started_s > seconds_max ? PCRE2_ERROR_CALLOUT : 0;
}

static enum status start_work(struct match_work *work, size_t length, struct error *err)
{
    if (work->pcre_match == NULL) {
        pcre2_general_context *general =
            pcre2_general_context_create(pcre_allocate, pcre_release, NULL);
        if (general != NULL) {
            work->pcre_match = pcre2_match_data_create(1, general);
            work->pcre_limits = pcre2_match_context_create(general);
        }
        pcre2_general_context_free(general);
        work->started_s = thread_seconds();
    }
    if (work->pcre_match == NULL || work->pcre_limits == NULL) {
        match_work_deinit(work);
        return error_set(err, STATUS_NO_MEMORY, "cannot allocate memory to match a pattern");
    }
    pcre2_set_match_limit(work->pcre_limits, (uint32_t)(STEPS_BASE + length * STEPS_PER_BYTE));
    pcre2_set_heap_limit(work->pcre_limits, HEAP_LIMIT_KIB);
    pcre2_set_callout(work->pcre_limits, watch_time, work);
    return STATUS_OK;
}

enum status pcre_pattern_find(const struct pcre_pattern *pattern, struct match_work *work,
                              struct span_list *out, const char *text, size_t length,
                              struct error *err)
{
    TRY(start_work(work, length, err));
    for (size_t at = 0; at < length;) {
        int code = pcre2_match(pattern->code, (PCRE2_SPTR)text, length, at, PCRE2_NO_UTF_CHECK,
                               work->pcre_match, work->pcre_limits);
        if (code == PCRE2_ERROR_NOMATCH)
            return STATUS_OK;
        if (code < 0)
            return match_failed(pattern, code, err);
        const PCRE2_SIZE *hit = pcre2_get_ovector_pointer(work->pcre_match);
        ASSERT(hit[1] > at && hit[1] > hit[0]);
        TRY(span_list_add(out, hit[0], hit[1], err));
        at = hit[1];
    }
    return STATUS_OK;
}
