/* Patterns that cut a text into pieces: fixed texts, known regular expressions by hand-written
 * scanners in linear time, unknown ones by PCRE2 under limits. */
#ifndef PHASOR_TOKENIZER_SPLIT_H
#define PHASOR_TOKENIZER_SPLIT_H

#include <stddef.h>

#include "base/arena.h"
#include "base/status.h"
#include "tokenizer/spans.h"

enum matcher_kind {
    MATCHER_LITERAL, /* each place of a fixed text */
    MATCHER_NUMBERS, /* each single numeric character */
    MATCHER_GPT2,    /* ByteLevel's own pattern */
    MATCHER_QWEN2,   /* Qwen 1.5, 2, 2.5, 3: single digits */
    MATCHER_LLAMA3,  /* the same with up to three digits */
    MATCHER_PCRE,
};

struct pcre_pattern; /* compiled */

struct matcher {
    enum matcher_kind kind;
    const char *literal; /* owned by the arena */
    size_t literal_length;
    struct pcre_pattern *pcre; /* owned by the matcher */
};

/* A regular expression as tokenizer.json writes it (Oniguruma's dialect). Unknown ones are compiled
 * by PCRE2; what would mean something else there, or may match the empty text, is refused. */
enum status matcher_from_regex(struct matcher *out, const char *regex, size_t length,
                               const char *file, struct error *err) MUST_CHECK;
void matcher_deinit(struct matcher *matcher);

/* Memory and time budget of one encode. */
struct match_work {
    void *pcre_match; /* pcre2_match_data and pcre2_match_context, made on first use */
    void *pcre_limits;
    size_t text_bytes; /* of the whole encode: the time allowed grows with it */
    size_t attempt_count;
    double started_s; /* CPU time of the thread when the first pattern ran */
};
void match_work_deinit(struct match_work *work);

/* Appends the matches in `text` (valid UTF-8), in order and not overlapping. STATUS_LIMIT when an
 * unknown pattern needs too many steps or too much time. */
enum status matcher_find(const struct matcher *matcher, struct match_work *work,
                         struct span_list *out, const char *text, size_t length,
                         struct error *err) MUST_CHECK;

/* End of the piece that begins at `at` < length: for the three known patterns, which leave no gaps.
 */
size_t split_scan_next(enum matcher_kind kind, const char *text, size_t length, size_t at);

/* split_pcre.c */
enum status pcre_pattern_compile(struct pcre_pattern **out, const char *regex, size_t length,
                                 const char *file, struct error *err) MUST_CHECK;
void pcre_pattern_free(struct pcre_pattern *pattern);
enum status pcre_pattern_find(const struct pcre_pattern *pattern, struct match_work *work,
                              struct span_list *out, const char *text, size_t length,
                              struct error *err) MUST_CHECK;

#endif
