/* Layouts as text, and back. */
#include <stdio.h>
#include <string.h>

#include "layout/layout.h"

/* As much of a bad text as a sentence quotes. */
#define QUOTE_CHARS 40

/* What is left of the text. */
struct cursor {
    const char *at;
};

static bool take(struct cursor *cursor, const char *word)
{
    size_t length = strlen(word);
    if (strncmp(cursor->at, word, length) != 0)
        return false;
    cursor->at += length;
    return true;
}

/* A degree behind its name: one or two digits without a leading zero. */
static bool take_degree(struct cursor *cursor, const char *name, int *degree)
{
    struct cursor behind = *cursor;
    if (!take(&behind, name) || *behind.at < '1' || *behind.at > '9')
        return false;
    int value = *behind.at++ - '0';
    if (*behind.at >= '0' && *behind.at <= '9')
        value = 10 * value + (*behind.at++ - '0');
    *cursor = behind;
    *degree = value;
    return true;
}

/* "tpA", "<second>B" or "tpA<second>B". */
static bool take_degrees(struct cursor *cursor, const char *second, int *tp, int *other)
{
    bool has_tp = take_degree(cursor, "tp", tp);
    bool has_other = take_degree(cursor, second, other);
    return has_tp || has_other;
}

static bool take_attention(struct cursor *cursor, struct attention_layout *out)
{
    *out = (struct attention_layout){.tp = 1, .dp = 1};
    if (!take_degrees(cursor, "dp", &out->tp, &out->dp))
        return false;
    out->replicate_ffn = take(cursor, ":rep");
    return true;
}

static bool take_experts(struct cursor *cursor, struct expert_layout *out)
{
    *out = (struct expert_layout){.tp = 1, .ep = 1};
    return take_degrees(cursor, "ep", &out->tp, &out->ep);
}

/* The beginning of a text, for sentences. */
struct quote {
    char text[QUOTE_CHARS + sizeof "..."];
};

static struct quote quote_of(const char *text)
{
    struct quote quote;
    size_t length = strnlen(text, QUOTE_CHARS + 1);
    snprintf(quote.text, sizeof quote.text, "%.*s%s", QUOTE_CHARS, text,
             length > QUOTE_CHARS ? "..." : "");
    return quote;
}

static enum status refuse_form(const char *text, struct error *err)
{
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "the plan \"%s\" is not of the form ATTENTION|EXPERTS, such as dp4|ep4, "
                     "tp2dp2|tp2ep2 or tp4:rep|ep4, or ATTENTION|EXPERTS>EXPERTS, such as "
                     "dp4|ep4>tp4 or dp4|ep4>tp4:int4: the attention is tpA, dpD or tpAdpD, the "
                     "experts are tpT, epE or tpTepE",
                     quote_of(text).text);
}

static enum status refuse_degrees(const struct layout *layout, const char *text, const char *wanted,
                                  struct error *err)
{
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "the plan \"%s\" lays attention over %d devices and experts over %d; both "
                     "must lie over %s",
                     quote_of(text).text, layout->attention.tp * layout->attention.dp,
                     layout->experts.tp * layout->experts.ep, wanted);
}

/* Also settles the number of ranks where the caller left it to the text. */
static enum status check_degrees(struct plan_layouts *plan, const char *text, int rank_count,
                                 struct error *err)
{
    char wanted[32] = "the same number";
    if (rank_count > 0)
        snprintf(wanted, sizeof wanted, "%d", rank_count);
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        struct layout *layout = &plan->of[phase];
        int attention = layout->attention.tp * layout->attention.dp;
        layout->rank_count = rank_count > 0 ? rank_count : attention;
        if (attention != layout->rank_count ||
            layout->experts.tp * layout->experts.ep != layout->rank_count)
            return refuse_degrees(layout, text, wanted, err);
        if (layout->rank_count > LAYOUT_RANKS_MAX)
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "the plan \"%s\" is for %d devices, and phasor takes at most %d",
                             quote_of(text).text, layout->rank_count, LAYOUT_RANKS_MAX);
    }
    return STATUS_OK;
}

enum status plan_layouts_parse(struct plan_layouts *out, const char *text, int rank_count,
                               struct error *err)
{
    struct cursor cursor = {text};
    struct plan_layouts plan = {0};
    struct layout *prefill = &plan.of[PHASE_PREFILL], *decode = &plan.of[PHASE_DECODE];
    ASSERT(rank_count >= 0 && rank_count <= LAYOUT_RANKS_MAX);
    if (!take_attention(&cursor, &prefill->attention) || !take(&cursor, "|") ||
        !take_experts(&cursor, &prefill->experts))
        return refuse_form(text, err);
    *decode = *prefill;
    bool has_decode = take(&cursor, ">");
    if (has_decode && !take_experts(&cursor, &decode->experts))
        return refuse_form(text, err);
    plan.decode_is_packed = has_decode && take(&cursor, ":int4");
    if (*cursor.at != 0)
        return refuse_form(text, err);
    TRY(check_degrees(&plan, text, rank_count, err));
    *out = plan;
    return STATUS_OK;
}

enum status layout_parse(struct layout *out, const char *text, int rank_count, struct error *err)
{
    struct plan_layouts plan;
    TRY(plan_layouts_parse(&plan, text, rank_count, err));
    if (strchr(text, '>') != NULL)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "the plan \"%s\" has a layout for each phase (>), and one for both is "
                         "expected here",
                         quote_of(text).text);
    *out = plan.of[PHASE_PREFILL];
    return STATUS_OK;
}

struct degrees {
    char text[sizeof "tp-2147483648dp-2147483648"];
};

/* "tp4", "ep4" or "tp2ep2". */
static struct degrees degrees_format(int tp, const char *second, int other)
{
    struct degrees out;
    if (other == 1)
        snprintf(out.text, sizeof out.text, "tp%d", tp);
    else if (tp == 1)
        snprintf(out.text, sizeof out.text, "%.2s%d", second, other);
    else
        snprintf(out.text, sizeof out.text, "tp%d%.2s%d", tp, second, other);
    return out;
}

static struct degrees experts_format(const struct layout *layout)
{
    return degrees_format(layout->experts.tp, "ep", layout->experts.ep);
}

void layout_format(char out[LAYOUT_TEXT_BYTES], const struct layout *layout)
{
    const struct attention_layout *attention = &layout->attention;
    snprintf(out, LAYOUT_TEXT_BYTES, "%s%s|%s",
             degrees_format(attention->tp, "dp", attention->dp).text,
             attention->replicate_ffn ? ":rep" : "", experts_format(layout).text);
}

void plan_layouts_format(char out[LAYOUT_TEXT_BYTES], const struct plan_layouts *plan)
{
    layout_format(out, &plan->of[PHASE_PREFILL]);
    if (!plan_layouts_differ(plan))
        return;
    size_t length = strlen(out);
    snprintf(out + length, LAYOUT_TEXT_BYTES - length, ">%s%s",
             experts_format(&plan->of[PHASE_DECODE]).text, plan->decode_is_packed ? ":int4" : "");
}
